/* What a corpus says: all of its documents as one text. */
#ifndef TERN_TESTS_DATA_SAID_H
#define TERN_TESTS_DATA_SAID_H

#include "tern/data.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

/* "[text]", a pair as "[prompt|completion]"; the pieces of a
 * document are in the same brackets. */
typedef struct said {
    size_t bytes, capacity;
    char *text;
    int64_t documents, pieces;
} said;

static inline void said_put(said *s, const char *text, size_t bytes) {
    if (s->bytes + bytes + 1 > s->capacity) {
        s->capacity = 2 * (s->bytes + bytes + 1);
        s->text = realloc(s->text, s->capacity);
        assert_non_null(s->text);
    }
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
    s->text[s->bytes] = 0;
}

static inline void said_document(said *s, const tn_document *d) {
    assert_true(d->begins || d->piece > 0);
    assert_int_equal(d->piece, s->pieces++);
    s->documents += d->begins;
    assert_int_equal(d->number, s->documents - 1);
    said_put(s,
             d->begins && d->piece > 0 ? "]["
             : d->begins               ? "["
                                       : "",
             d->begins ? 2 - (d->piece == 0) : 0);
    said_put(s, d->text, d->bytes);
    if (d->completion) {
        said_put(s, "|", 1);
        said_put(s, d->completion, d->completion_bytes);
    }
}

/* To its end, or its error. */
static inline said read_all(tn_corpus *c) {
    said s = {0};
    tn_document d;
    said_put(&s, "", 0);
    while (tn_corpus_next(c, &d)) {
        said_document(&s, &d);
    }
    said_put(&s, "]", s.documents > 0);
    tn_corpus_free(c);
    return s;
}

static inline void expect_said(said s, const char *text) {
    assert_int_equal(tn_error(), TN_OK);
    assert_string_equal(s.text, text);
    free(s.text);
}

#endif
