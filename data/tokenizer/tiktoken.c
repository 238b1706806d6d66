/* tiktoken's files: a token in base64 and its rank on each line. Ranks are ids, and say which pair
 * is joined first; two neighbours are a pair when the file has a token for both together, however
 * that token was made. The file says neither which pattern cuts text nor which tokens are special:
 * the files in use are recognised by how many ranks they have. */
#include "data/tokenizer/load.h"

#include "core/error.h"
#include "core/memory.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Far above the longest in use (128 spaces). Every way to cut a token in two is looked up. */
enum { LONGEST_TOKEN = 1024 };

typedef struct special {
    const char *text;
    int32_t id;
} special;

static const special of_gpt2[] = {{"<|endoftext|>", 50256}, {NULL, 0}};
static const special of_cl100k[] = {{"<|endoftext|>", 100257},   {"<|fim_prefix|>", 100258},
                                    {"<|fim_middle|>", 100259},  {"<|fim_suffix|>", 100260},
                                    {"<|endofprompt|>", 100276}, {NULL, 0}};
static const special of_o200k[] = {
    {"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}, {NULL, 0}};
static const special of_llama3[] = {{"<|begin_of_text|>", 128000},
                                    {"<|end_of_text|>", 128001},
                                    {"<|finetune_right_pad_id|>", 128004},
                                    {"<|start_header_id|>", 128006},
                                    {"<|end_header_id|>", 128007},
                                    {"<|eom_id|>", 128008},
                                    {"<|eot_id|>", 128009},
                                    {"<|python_tag|>", 128010},
                                    {NULL, 0}};

typedef struct encoding {
    uint32_t ranks;
    const char *pattern;
    const special *specials;
    bool begins; /* a text begins with the first of them */
} encoding;

static const encoding known[] = {
    {50256, "gpt2", of_gpt2, false},      {50280, "gpt2", of_gpt2, false},
    {100256, "cl100k", of_cl100k, false}, {128000, "llama3", of_llama3, true},
    {199998, "o200k", of_o200k, false},
};

/* ---- Lines ----------------------------------------------------------------------------------- */

static int digit_of(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Returns how many bytes; -1: not base64. `to` may be `text`. */
static int64_t decode_base64(const char *text, size_t bytes, char *to) {
    int64_t count = 0;
    size_t padding = bytes && text[bytes - 1] == '=' ? 1 + (text[bytes - 2] == '=') : 0;
    if (bytes == 0 || bytes % 4) { return -1; }
    for (size_t at = 0; at < bytes; at += 4) {
        uint32_t value = 0;
        size_t held = at + 4 == bytes ? 4 - padding : 4;
        for (size_t i = 0; i < 4; i++) {
            int digit = i < held ? digit_of(text[at + i]) : 0;
            if (digit < 0) { return -1; }
            value = value << 6 | (uint32_t)digit;
        }
        for (size_t i = 0; i + 1 < held; i++) {
            to[count++] = (char)(value >> (16 - 8 * i));
        }
    }
    return count;
}

/* A number that ends at `end`; -1: there is none, or it is too large. */
static int64_t read_rank(const char *text, const char *end) {
    int64_t rank = text < end ? 0 : -1;
    for (; rank >= 0 && text < end; text++) {
        bool digit = *text >= '0' && *text <= '9';
        rank = digit && rank < INT32_MAX / 10 ? 10 * rank + (*text - '0') : -1;
    }
    return rank;
}

/* The token takes the place of its base64, which is longer. */
static bool read_line(tn__build *b, char *line, size_t bytes, size_t number) {
    char *space = memchr(line, ' ', bytes);
    int64_t count = space ? decode_base64(line, (size_t)(space - line), line) : -1;
    int64_t rank = space ? read_rank(space + 1, line + bytes) : -1;
    if (count < 1 || rank < 0 || count > LONGEST_TOKEN) {
        tn__raise(TN_EFORMAT, b->operation,
                  "%s:%zu: should be a token in base64 (of at most %d bytes) and its rank", b->path,
                  number, LONGEST_TOKEN);
        return false;
    }
    return tn__build_token(b, line, (size_t)count, rank, TN__TOKEN_BYTES);
}

static bool read_lines(tn__build *b, char *text, size_t bytes) {
    size_t number = 0;
    for (size_t at = 0, end; at < bytes; at = end + 1) {
        char *newline = memchr(text + at, '\n', bytes - at);
        end = newline ? (size_t)(newline - text) : bytes;
        size_t length = end - at;
        length -= length && text[at + length - 1] == '\r';
        number++;
        if (length && !read_line(b, text + at, length, number)) { return false; }
    }
    return true;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* Every way to cut this token into two tokens is a pair with the token's rank. */
static bool add_cuts(tn__build *b, const tn__named_token *whole) {
    for (uint32_t left = 1; left < whole->bytes; left++) {
        const tn__text_entry *first = tn__text_find(&b->by_text, whole->text, left);
        const tn__text_entry *second =
            first ? tn__text_find(&b->by_text, whole->text + left, whole->bytes - left) : NULL;
        tn__pair pair = {.rank = whole->id, .id = whole->id};
        if (!second) { continue; }
        pair.left = b->tokens[first->value].id;
        pair.right = b->tokens[second->value].id;
        if (!tn__pairs_put(&b->t->pairs, pair)) {
            tn__raise(TN_ENOMEM, b->operation, "%s: no memory", b->path);
            return false;
        }
    }
    return true;
}

/* ---- What the file does not say -------------------------------------------------------------- */

static const encoding *encoding_of(const tn__build *b) {
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].ranks == b->count) { return &known[i]; }
    }
    return NULL;
}

static bool add_specials(tn__build *b, const encoding *e, tn_tiktoken_options o) {
    int64_t next = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        next = b->tokens[i].id >= next ? (int64_t)b->tokens[i].id + 1 : next;
    }
    for (int i = 0; i < o.special_count; i++) {
        if (!tn__build_token(b, o.special[i], strlen(o.special[i]), next++, TN__TOKEN_SPECIAL)) {
            return false;
        }
    }
    if (o.special || !e) { return true; }
    for (const special *s = e->specials; s->text; s++) {
        if (!tn__build_token(b, s->text, strlen(s->text), s->id, TN__TOKEN_SPECIAL)) {
            return false;
        }
    }
    if (e->begins) {
        b->t->around = (tn__around){.before = {e->specials[0].id}, .before_count = 1};
    }
    return true;
}

static bool finish_ranks(tn__build *b, tn_tiktoken_options o) {
    const encoding *e = encoding_of(b);
    const char *pattern = o.pattern ? o.pattern : e ? e->pattern : NULL;
    if (!pattern) {
        tn__raise(TN_EVALUE, b->operation,
                  "%s: %u ranks: say by which pattern text is cut (tn_tokenizer_load_tiktoken)",
                  b->path, b->count);
        return false;
    }
    for (uint32_t i = 0, ranks = b->count; i < ranks; i++) {
        if (!add_cuts(b, &b->tokens[i])) { return false; }
    }
    b->t->whole = true;
    const char *text = tn__pattern_named(pattern);
    return tn__build_pattern(b, text ? text : pattern, false) && add_specials(b, e, o);
}

tn_tiktoken_options tn_tiktoken_defaults(void) {
    return (tn_tiktoken_options){.pattern = NULL, .from_defaults = true};
}

tn_tokenizer *tn_tokenizer_load_tiktoken(const char *path, tn_tiktoken_options o) {
    size_t bytes, begin;
    tn__build b = {0};
    if (tn__pending() || !tn__options_made(o.from_defaults, "tokenizer_load", "tn_tiktoken")) {
        return NULL;
    }
    if (o.special_count < 0 || (o.special_count && !o.special)) {
        tn__raise(TN_EVALUE, "tokenizer_load", "%d special tokens, and their list is %s",
                  o.special_count, o.special ? "there" : "NULL");
        return NULL;
    }
    char *text = tn__read_file(path, &bytes, &begin);
    bool done = text && tn__build_begin(&b, "tokenizer_load", path, TN__AS_IS) &&
                read_lines(&b, text + begin, bytes - begin) && finish_ranks(&b, o);
    tn_tokenizer *t = tn__build_end(&b, done);
    free(text);
    return t;
}
