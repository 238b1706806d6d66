/* Tokens and pairs by name become a tokenizer: every name is looked up, every id is used once, and
 * pieces that are one token, which encoding looks up first, are found in advance. */
#define _GNU_SOURCE /* qsort_r */
#include "data/tokenizer/build.h"

#include "core/error.h"
#include "core/memory.h"
#include "data/tokenizer/byte_alphabet.h"
#include "text/utf8.h"

#include <string.h>

/* Ids may have gaps, but a number in a file cannot make this use much more memory than the file. */
enum { HOLES_FOR_ALL = 65536, HOLES_A_TOKEN = 3 };

static bool raise_memory(const tn__build *b) {
    return tn__fail(TN_ENOMEM, b->operation, "%s: no memory", b->path);
}

bool tn__build_begin(tn__build *b, const char *operation, const char *path, tn__spelling spelling) {
    *b = (tn__build){.operation = operation, .path = path, .spelling = spelling};
    b->t = tn__calloc_for(1, sizeof(*b->t), operation);
    if (b->t) { tn__tokenizer_begin(b->t); }
    return b->t != NULL;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

bool tn__build_token(tn__build *b, const char *text, size_t bytes, int64_t id,
                     tn__token_kind kind) {
    if (kind != TN__TOKEN_BYTES && (bytes == 0 || !tn__is_utf8(text))) {
        return tn__fail(TN_EFORMAT, b->operation,
                        "%s: \"%s\", a token that is found in text, is not UTF-8", b->path,
                        tn__quote(text, bytes).text);
    }
    if (id < 0 || id >= INT32_MAX || bytes > INT32_MAX) {
        return tn__fail(TN_EFORMAT, b->operation,
                        "%s: \"%s\" has the id %lld (from 0, below 2^31 - 1)", b->path,
                        tn__quote(text, bytes).text, (long long)id);
    }
    if (!tn__grow(&b->tokens, (int64_t)b->count + 1, &b->capacity, sizeof(*b->tokens),
                  b->operation)) {
        return false;
    }
    tn__text_entry *entry = tn__text_put(&b->by_text, text, (uint32_t)bytes);
    if (!entry) { return raise_memory(b); }
    if (entry->value >= 0) {
        tn__named_token *there = &b->tokens[entry->value];
        if (there->id != id || kind == TN__TOKEN_BYTES || there->kind != TN__TOKEN_BYTES) {
            return tn__fail(TN_EFORMAT, b->operation, "%s: \"%s\" occurs twice, as %d and as %lld",
                            b->path, tn__quote(text, bytes).text, there->id, (long long)id);
        }
        there->kind = kind;
        return true;
    }
    entry->value = (int32_t)b->count;
    b->tokens[b->count++] =
        (tn__named_token){.text = text, .bytes = (uint32_t)bytes, .id = (int32_t)id, .kind = kind};
    return true;
}

void tn__build_late(tn__build *b, const char *text, size_t bytes) {
    b->tokens[tn__text_find(&b->by_text, text, (uint32_t)bytes)->value].late = true;
    b->t->has_late = true;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

static tn__named_token *find_token(const tn__build *b, const char *text, size_t bytes,
                                   const char *where) {
    const tn__text_entry *entry = bytes ? tn__text_find(&b->by_text, text, bytes) : NULL;
    if (!entry) {
        tn__raise(TN_EFORMAT, b->operation, "%s: the vocabulary has no token \"%s\"", where,
                  tn__quote(text, bytes).text);
        return NULL;
    }
    return &b->tokens[entry->value];
}

bool tn__build_pair(tn__build *b, const char *left, size_t left_bytes, const char *right,
                    size_t right_bytes, const char *where) {
    const tn__named_token *first = find_token(b, left, left_bytes, where);
    const tn__named_token *second = first ? find_token(b, right, right_bytes, where) : NULL;
    if (!second) { return false; }
    char *joined = tn__malloc_for(left_bytes + right_bytes, b->operation);
    if (!joined) { return false; }
    memcpy(joined, left, left_bytes);
    memcpy(joined + left_bytes, right, right_bytes);
    tn__named_token *both = find_token(b, joined, left_bytes + right_bytes, where);
    free(joined);
    if (!both) { return false; }
    both->made = true;
    tn__pair pair = {first->id, second->id, b->rank++, both->id};
    return tn__pairs_put(&b->t->pairs, pair) ? true : raise_memory(b);
}

bool tn__build_pattern(tn__build *b, const char *text, bool literal) {
    tn__patterns *all = &b->t->patterns;
    if (all->count == TN__MOST_PATTERNS) {
        return tn__fail(TN_EFORMAT, b->operation, "%s: more than %d patterns", b->path,
                        TN__MOST_PATTERNS);
    }
    tn__pattern *p = tn__pattern_new(text, literal, b->operation, b->path);
    if (p) { all->of[all->count++] = p; }
    return p != NULL;
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

/* Writes the bytes of a token to `to`, which is as large as its text. Returns how many; -1: a
 * character is not in the alphabet. */
static int64_t spelled_bytes(const tn__byte_alphabet *a, const tn__named_token *n, char *to) {
    int64_t count = 0;
    for (uint32_t at = 0; at < n->bytes;) {
        int32_t code;
        int used = tn__utf8_decode(n->text + at, n->bytes - at, &code);
        if (!used || code >= (int)(sizeof(a->byte) / sizeof(a->byte[0])) || a->byte[code] < 0) {
            return -1;
        }
        to[count++] = (char)a->byte[code];
        at += (uint32_t)used;
    }
    return count;
}

void tn__build_mark_special(tn__build *b) {
    const tn__byte_alphabet alphabet = tn__byte_alphabet_make();
    char first[16];
    for (uint32_t i = 0; i < b->count; i++) {
        tn__named_token *n = &b->tokens[i];
        bool one_byte = n->bytes <= 2 && spelled_bytes(&alphabet, n, first) == 1;
        if (!n->made && !one_byte && n->bytes) { n->kind = TN__TOKEN_SPECIAL; }
    }
}

/* Allocates memory for every token's bytes and a 0, and for every id. */
static bool reserve_all(tn__build *b) {
    tn_tokenizer *t = b->t;
    uint64_t bytes = 1, highest = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        bytes += b->tokens[i].bytes + 1;
        highest = (uint32_t)b->tokens[i].id > highest ? (uint32_t)b->tokens[i].id : highest;
    }
    if (b->count == 0) {
        return tn__fail(TN_EFORMAT, b->operation, "%s: the vocabulary is empty", b->path);
    }
    if (highest >= HOLES_FOR_ALL + (1 + HOLES_A_TOKEN) * (uint64_t)b->count || bytes > UINT32_MAX) {
        return tn__fail(TN_EFORMAT, b->operation, "%s: ids up to %llu for %u tokens of %llu bytes",
                        b->path, (unsigned long long)highest, b->count, (unsigned long long)bytes);
    }
    t->size = (int32_t)highest + 1;
    t->texts = tn__calloc_for(bytes, 1, b->operation);
    t->tokens = tn__calloc_for((size_t)t->size, sizeof(tn__token), b->operation);
    return t->texts && t->tokens;
}

static const tn__named_token *named_with(const tn__build *b, int32_t id) {
    uint32_t i = 0;
    while (b->tokens[i].id != id) {
        i++;
    }
    return &b->tokens[i];
}

/* The first byte of texts stays 0, for ids without a token. */
static bool place_tokens(tn__build *b) {
    const tn__byte_alphabet alphabet = tn__byte_alphabet_make();
    tn_tokenizer *t = b->t;
    uint32_t at = 1;
    memset(t->of_byte, 0xff, sizeof(t->of_byte));
    for (uint32_t i = 0; i < b->count; i++) {
        const tn__named_token *n = &b->tokens[i];
        tn__token *token = &t->tokens[n->id];
        if (token->kind != TN__TOKEN_NONE) {
            const tn__named_token *other = named_with(b, n->id);
            return tn__fail(TN_EFORMAT, b->operation,
                            "%s: the id %d is used twice, by \"%s\" and \"%s\"", b->path, n->id,
                            tn__quote(other->text, other->bytes).text,
                            tn__quote(n->text, n->bytes).text);
        }
        char *to = t->texts + at;
        int64_t bytes = -1;
        if (b->spelling == TN__IN_ALPHABET && n->kind == TN__TOKEN_BYTES) {
            bytes = spelled_bytes(&alphabet, n, to);
        }
        *token = (tn__token){at, bytes < 0 ? n->bytes : (uint32_t)bytes, n->kind, n->late};
        if (bytes < 0) { memcpy(to, n->text, n->bytes); }
        if (n->kind == TN__TOKEN_BYTES &&
            (token->bytes == 0 || (bytes < 0 && b->spelling == TN__IN_ALPHABET))) {
            token->kind = TN__TOKEN_IDLE;
        }
        if (token->kind == TN__TOKEN_BYTES && token->bytes == 1) {
            t->of_byte[(unsigned char)*to] = n->id;
        }
        at += token->bytes;
        t->texts[at++] = 0;
    }
    return true;
}

/* ---- What encoding looks for ----------------------------------------------------------------- */

static int compare_added(const void *a, const void *b, void *tokenizer) {
    const tn_tokenizer *t = tokenizer;
    const tn__token *x = &t->tokens[*(const int32_t *)a], *y = &t->tokens[*(const int32_t *)b];
    int order =
        memcmp(t->texts + x->at, t->texts + y->at, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static bool sort_added(tn__build *b) {
    tn_tokenizer *t = b->t;
    t->added = tn__malloc_for(b->count * sizeof(int32_t), b->operation);
    if (!t->added) { return false; }
    for (int32_t id = 0; id < t->size; id++) {
        const tn__token *token = &t->tokens[id];
        if (token->kind >= TN__TOKEN_ADDED && token->bytes) {
            t->added[t->added_count++] = id;
            t->begins[(unsigned char)t->texts[token->at]] = 1;
        }
    }
    qsort_r(t->added, (size_t)t->added_count, sizeof(int32_t), compare_added, t);
    return true;
}

static bool has_bytes(const tn_tokenizer *t, const tn__token *token) {
    bool all = true;
    for (uint32_t i = 0; i < token->bytes; i++) {
        all = all && t->of_byte[(unsigned char)t->texts[token->at + i]] >= 0;
    }
    return all;
}

/* Whether joining the bytes of this token gives this token. Since pairs were made best first, it
 * does for nearly all. */
static bool joins_to_itself(const tn_tokenizer *t, int32_t id, tn__bpe_scratch *s, tn_ids *ids) {
    const tn__token *token = &t->tokens[id];
    ids->count = 0;
    return has_bytes(t, token) && tn__encode_piece(t, t->texts + token->at, token->bytes, s, ids) &&
           ids->count == 1 && ids->ids[0] == id;
}

static bool find_pieces(tn__build *b) {
    tn_tokenizer *t = b->t;
    tn__bpe_scratch scratch = {0};
    tn_ids ids = {0};
    bool done = tn__text_reserve(&t->pieces, b->count) || raise_memory(b);
    for (int32_t id = 0; done && id < t->size; id++) {
        const tn__token *token = &t->tokens[id];
        if (token->kind == TN__TOKEN_BYTES &&
            (t->whole || joins_to_itself(t, id, &scratch, &ids))) {
            tn__text_entry *entry = tn__text_put(&t->pieces, t->texts + token->at, token->bytes);
            done = entry != NULL || raise_memory(b);
            if (entry) { entry->value = id; }
        }
        done = done && !tn__pending();
    }
    tn_ids_free(&ids);
    tn__bpe_scratch_free(&scratch);
    return done;
}

/* The tokens around a text are there. */
static bool check_around(const tn__build *b) {
    const tn__around *a = &b->t->around;
    for (int i = 0; i < a->before_count + a->after_count; i++) {
        int32_t id = i < a->before_count ? a->before[i] : a->after[i - a->before_count];
        if (id >= b->t->size || b->t->tokens[id].kind == TN__TOKEN_NONE) {
            return tn__fail(TN_EFORMAT, b->operation,
                            "%s: post_processor puts the token %d around a text, but there is none",
                            b->path, id);
        }
    }
    return true;
}

tn_tokenizer *tn__build_end(tn__build *b, bool done) {
    tn_tokenizer *t = b->t;
    done = done && reserve_all(b) && place_tokens(b) && check_around(b) && sort_added(b) &&
           find_pieces(b);
    tn__text_table_free(&b->by_text);
    free(b->tokens);
    b->tokens = NULL;
    if (!done) {
        tn_tokenizer_free(t);
        return NULL;
    }
    return t;
}
