/* JSON, read strictly: what RFC 8259 allows and nothing more, minus three things that safetensors
 * headers never have: NUL characters, nesting beyond 16 levels, and numbers that begin with -0.
 *
 * Values are in one array in the order of the text: a list or an object is followed by its
 * contents. Numbers that are not integers, or do not fit, are kept as written.
 */
#ifndef TERN_TEXT_JSON_H
#define TERN_TEXT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tn__json_kind {
    TN__JSON_WORD, /* null, true, false; in the wild also NaN, Infinity, -Infinity */
    TN__JSON_WHOLE,
    TN__JSON_REAL,
    TN__JSON_TEXT,
    TN__JSON_LIST,
    TN__JSON_OBJECT,
} tn__json_kind;

typedef struct tn__json {
    const char *key;  /* in an object; otherwise NULL */
    const char *text; /* a string's text; a word or a number as written; otherwise NULL */
    size_t bytes;     /* of `text`, without the 0 after it */
    int64_t whole;    /* of TN__JSON_WHOLE */
    uint32_t count;   /* of members or elements */
    uint32_t values;  /* this one and all within it */
    tn__json_kind kind;
} tn__json;

typedef struct tn__json_file {
    tn__json *values; /* [0] is the root; NULL after an error */
    char *texts;
    const char *wrong; /* static text; NULL: no memory */
    size_t at;         /* where, in bytes */
} tn__json_file;

/* Reads `bytes` of text, all of them. False with what is wrong; there is nothing to free then.
 * Duplicate keys are kept; the caller handles them. */
bool tn__json_read(tn__json_file *f, const char *text, size_t bytes);
/* The same for JSON in the wild: with NUL characters (a string's `bytes` counts them), numbers that
 * begin with -0, which count as real, nesting up to 512 levels, and NaN, Infinity and -Infinity as
 * Python writes them: words, not numbers, so that a reader who wants a number refuses them. */
bool tn__json_read_any(tn__json_file *f, const char *text, size_t bytes);

/* Reads a file that is an object as JSON in the wild, of at most `most` bytes. False after raising;
 * then there is nothing to free. */
bool tn__json_open(tn__json_file *f, const char *path, size_t most, const char *operation);

void tn__json_free(tn__json_file *f);

/* The members of a list or an object, one after the other: first, then next, `count` times. */
static inline const tn__json *tn__json_first(const tn__json *value) {
    return value + 1;
}
static inline const tn__json *tn__json_next(const tn__json *value) {
    return value + value->values;
}

/* The member with this key (of several the last, as in Python), or the element with this index;
 * NULL: there is none. */
const tn__json *tn__json_get(const tn__json *object, const char *key);
const tn__json *tn__json_at(const tn__json *list, uint32_t index);

/* The member's text, if it is a string; NULL: it is none, or there is no such member, or no
 * object. */
const char *tn__json_text(const tn__json *object, const char *key);

#endif
