/* A tokenizer at work. A text passes three cuts before pairs are joined:
 *
 *     added and special tokens     found verbatim, the longest first, late ones in what is left
 *                                  (tn__added_at)
 *     runs of UTF-8                between bytes that belong to no character    (cut.c)
 *     pieces                       by the pattern                               (pattern.c)
 *
 * A piece that is itself a token needs no joining, and nearly all are: they are in a table that is
 * made once. The others are joined from bytes (bpe.c).
 */
#include "data/tokenizer/tokenizer.h"

#include "core/error.h"
#include "core/memory.h"

#include <string.h>

/* What one call needs besides the tokenizer, which it does not change. */
typedef struct encoder {
    const tn_tokenizer *t;
    const char *text; /* all of it */
    bool special;     /* special tokens are found, too */
    tn__cutter cutter;
    tn__bpe_scratch scratch;
    tn_ids *out;
} encoder;

TN__ALIVE_LIST(tokenizers, "tokenizer");

void tn__tokenizer_begin(tn_tokenizer *t) {
    tn__alive_begin(&tokenizers, t);
}

bool tn__tokenizer_here(const tn_tokenizer *t, const char *operation) {
    return tn__alive_is(&tokenizers, t, operation);
}

void tn_tokenizer_free(tn_tokenizer *t) {
    if (!t || !tn__alive_end(&tokenizers, t, "tokenizer_free")) { return; }
    for (int i = 0; i < t->patterns.count; i++) {
        tn__pattern_free(t->patterns.of[i]);
    }
    tn__pairs_free(&t->pairs);
    tn__text_table_free(&t->pieces);
    free(t->added);
    free(t->tokens);
    free(t->texts);
    free(t);
}

int64_t tn_tokenizer_size(const tn_tokenizer *t) {
    return t && tn__tokenizer_here(t, "tokenizer_size") ? t->size : 0;
}

/* ---- Added tokens ---------------------------------------------------------------------------- */

static int byte_of(const tn_tokenizer *t, int i, size_t place) {
    const tn__token *token = &t->tokens[t->added[i]];
    return place < token->bytes ? (unsigned char)t->texts[token->at + place] : -1;
}

/* In added[first … last), sorted and equal up to `place`, the first whose byte there is at least
 * `byte`. */
static int first_with(const tn_tokenizer *t, int first, int last, size_t place, int byte) {
    while (first < last) {
        int middle = first + (last - first) / 2;
        if (byte_of(t, middle, place) < byte) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

int32_t tn__added_at(const tn_tokenizer *t, const char *text, size_t bytes, bool special,
                     bool late) {
    int first = 0, last = t->added_count;
    int32_t longest = -1;
    for (size_t place = 0; place < bytes && first < last; place++) {
        int byte = (unsigned char)text[place];
        first = first_with(t, first, last, place, byte);
        last = first_with(t, first, last, place, byte + 1);
        if (first < last) {
            const tn__token *shortest = &t->tokens[t->added[first]];
            bool fits = shortest->bytes == place + 1 && shortest->late == late &&
                        (special || shortest->kind == TN__TOKEN_ADDED);
            longest = fits ? t->added[first] : longest;
        }
    }
    return longest;
}

int32_t tn_tokenizer_special(const tn_tokenizer *t, const char *text) {
    if (!t || !text || !tn__tokenizer_here(t, "tokenizer_special")) { return -1; }
    size_t bytes = strlen(text);
    int32_t id = tn__added_at(t, text, bytes, true, false);
    if (id < 0 || t->tokens[id].bytes != bytes) { id = tn__added_at(t, text, bytes, true, true); }
    return id >= 0 && t->tokens[id].bytes == bytes ? id : -1;
}

int32_t tn__tokenizer_end(const tn_tokenizer *t) {
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    int32_t id = -1;
    for (int i = 0; id < 0 && i < 3; i++) {
        id = tn_tokenizer_special(t, usual[i]);
    }
    return id;
}

/* ---- Encoding -------------------------------------------------------------------------------- */

bool tn__encode_piece(const tn_tokenizer *t, const char *text, size_t bytes, tn__bpe_scratch *s,
                      tn_ids *out) {
    if (bytes > INT32_MAX) {
        return tn__fail(TN_EVALUE, "tokenizer_encode", "a piece of %zu bytes (below 2 GiB)", bytes);
    }
    if (!tn__ids_reserve(out, (int64_t)bytes, "tokenizer_encode")) { return false; }
    int32_t *ids = out->ids + out->count;
    for (size_t i = 0; i < bytes; i++) {
        ids[i] = t->of_byte[(unsigned char)text[i]];
        if (ids[i] < 0) {
            return tn__fail(TN_EVALUE, "tokenizer_encode",
                            "the vocabulary has no token for the byte 0x%02x",
                            (unsigned char)text[i]);
        }
    }
    int64_t count = tn__bpe_join(&t->pairs, ids, (int64_t)bytes, s);
    if (count < 0) {
        return tn__fail(TN_ENOMEM, "tokenizer_encode", "no memory for a piece of %zu bytes", bytes);
    }
    out->count += count;
    return true;
}

static bool put_piece(void *user, const char *text, size_t bytes) {
    encoder *e = user;
    const tn__text_entry *known = tn__text_find(&e->t->pieces, text, bytes);
    return known ? tn__ids_append(e->out, known->value, "tokenizer_encode")
                 : tn__encode_piece(e->t, text, bytes, &e->scratch, e->out);
}

/* Text between added tokens. */
static bool put_text(encoder *e, const char *text, size_t bytes) {
    if (bytes == 0 || !e->t->prefix_space || text[0] == ' ') {
        return tn__cut_part(&e->cutter, text, bytes, (size_t)(text - e->text));
    }
    char *longer = tn__malloc_for(bytes + 1, "tokenizer_encode");
    if (!longer) { return false; }
    longer[0] = ' ';
    memcpy(longer + 1, text, bytes);
    bool done = tn__cut_part(&e->cutter, longer, bytes + 1, (size_t)(text - e->text));
    free(longer);
    return done;
}

typedef bool (*put_between)(encoder *e, const char *text, size_t bytes);

/* Puts the added tokens in the text, late ones or the others, and with `put` what is between
 * them. */
static bool put_found(encoder *e, const char *text, size_t bytes, bool late, put_between put) {
    size_t done = 0;
    for (size_t at = 0; e->t->added_count && at < bytes;) {
        int32_t id = -1;
        if (e->t->begins[(unsigned char)text[at]]) {
            id = tn__added_at(e->t, text + at, bytes - at, e->special, late);
        }
        if (id < 0) {
            at++;
            continue;
        }
        if (!put(e, text + done, at - done) || !tn__ids_append(e->out, id, "tokenizer_encode")) {
            return false;
        }
        at += e->t->tokens[id].bytes;
        done = at;
    }
    return put(e, text + done, bytes - done);
}

static bool put_late(encoder *e, const char *text, size_t bytes) {
    return put_found(e, text, bytes, true, put_text);
}

tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, size_t bytes, bool special,
                              tn_ids *out) {
    if (tn__pending()) { return tn_error(); }
    if (!t || !out || (bytes && !text)) {
        return tn__raise(TN_EVALUE, "tokenizer_encode", "the %s is NULL",
                         !t     ? "tokenizer"
                         : !out ? "list of ids"
                                : "text");
    }
    if (!tn__tokenizer_here(t, "tokenizer_encode")) { return tn_error(); }
    encoder e = {.t = t, .special = special, .out = out, .text = text};
    e.cutter = (tn__cutter){.patterns = &t->patterns, .piece = put_piece, .user = &e};
    int64_t before = out->count;
    bool done = tn__cut_begin(&e.cutter);
    if (done) {
        tn__cut_whole(&e.cutter, bytes);
        done = put_found(&e, text, bytes, false, t->has_late ? put_late : put_text);
    }
    tn__cut_end(&e.cutter);
    tn__bpe_scratch_free(&e.scratch);
    if (!done) {
        out->count = before;
        return tn_error();
    }
    return TN_OK;
}

static bool put_ids(tn_ids *out, const int32_t *ids, int count) {
    if (!tn__ids_reserve(out, count, "tokenizer_encode")) { return false; }
    memcpy(out->ids + out->count, ids, (size_t)count * sizeof(*ids));
    out->count += count;
    return true;
}

tn_status tn_tokenizer_encode_framed(const tn_tokenizer *t, const char *text, size_t bytes,
                                     bool special, tn_ids *out) {
    int64_t before = out ? out->count : 0;
    if (tn__pending() || !t || !out) { return tn_tokenizer_encode(t, text, bytes, special, out); }
    const tn__around *f = &t->around;
    if ((f->before_count && !put_ids(out, f->before, f->before_count)) ||
        tn_tokenizer_encode(t, text, bytes, special, out) != TN_OK ||
        (f->after_count && !put_ids(out, f->after, f->after_count))) {
        out->count = before;
    }
    return tn_error();
}

/* ---- Decoding -------------------------------------------------------------------------------- */

const char *tn_tokenizer_bytes(const tn_tokenizer *t, int64_t id, size_t *bytes) {
    if (t && !tn__tokenizer_here(t, "tokenizer_bytes")) { return NULL; }
    if (!t || id < 0 || id >= t->size) {
        tn__raise(TN_EINDEX, "tokenizer_bytes", "id %lld, but there are %lld", (long long)id,
                  (long long)tn_tokenizer_size(t));
        return NULL;
    }
    if (bytes) { *bytes = t->tokens[id].bytes; }
    return t->texts + t->tokens[id].at;
}

char *tn_tokenizer_decode(const tn_tokenizer *t, const int32_t *ids, int64_t n, size_t *bytes) {
    size_t all = 0, one, ignored = 0;
    bytes = bytes ? bytes : &ignored;
    if (n < 0 || (n && !ids)) {
        tn__raise(TN_EVALUE, "tokenizer_decode", n < 0 ? "%lld ids" : "NULL instead of %lld ids",
                  (long long)n);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        if (!tn_tokenizer_bytes(t, ids[i], &one)) { return NULL; }
        all += one;
    }
    char *text = tn__malloc_for(all + 1, "tokenizer_decode"), *to = text;
    if (!text) { return NULL; }
    for (int64_t i = 0; i < n; i++) {
        const char *from = tn_tokenizer_bytes(t, ids[i], &one);
        memcpy(to, from, one);
        to += one;
    }
    *to = 0;
    *bytes = all;
    return text;
}
