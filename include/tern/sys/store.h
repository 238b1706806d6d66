/* For writing a store.
 *
 * Programs use store.h. A custom store embeds tn_store first and answers calls; the functions in
 * store.h check arguments, turn time-outs into deadlines and raise the errors.
 */
#ifndef TERN_SYS_STORE_H
#define TERN_SYS_STORE_H

#include "../store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Keys are strings without spaces or control characters, 1 … 255 bytes. Values are up to
 * TN_STORE_VALUE bytes. */
#define TN_STORE_KEY 255
#define TN_STORE_VALUE (64 << 20)

/* Seconds for a call without its own time-out, unless the store says otherwise. */
#define TN_STORE_TIMEOUT 60

/* Bytes of a call's error message, its '\0' among them. */
#define TN_STORE_WHY 256

typedef struct tn_store_value {
    void *data; /* malloc'ed, the caller's to free; NULL for 0 bytes */
    size_t bytes;
} tn_store_value;

typedef enum tn_store_kind {
    TN_STORE_SET = 1,
    TN_STORE_GET, /* waits for the key */
    TN_STORE_ADD, /* to a value that is a decimal number as a string; a missing key is 0 */
    /* Sets the value if it is the expected one; 0 bytes: if there is no such key. */
    TN_STORE_COMPARE_SET,
    TN_STORE_CHECK,
    TN_STORE_DELETE
} tn_store_kind;

/* What is asked of a store, and its answer. */
typedef struct tn_store_call {
    tn_store_kind kind;
    const char *key;
    double deadline;             /* in seconds of the monotonic clock */
    const void *data, *expected; /* SET and COMPARE_SET: the value to set; COMPARE_SET */
    size_t bytes, expected_bytes;
    /* ADD: how much, and then the sum. CHECK and DELETE: then whether there is, or was, the key. */
    int64_t number;
    tn_store_value value;   /* the answer of GET; of COMPARE_SET, the value afterwards */
    char why[TN_STORE_WHY]; /* after a failure: one line, what and where */
} tn_store_call;

struct tn_store {
    const char *kind; /* "tcp" */
    int32_t refs;     /* atomic: a prefix store keeps the one beneath it; 1 for a new store */
    uint32_t process; /* tn__process(): refused in a child of fork; 0: works there too */
    double timeout;   /* seconds for calls without a time-out; 0: TN_STORE_TIMEOUT */
    /* The secret that all who use the store have shown to know, without sending it; NULL: none. */
    const char *token;

    /* TN_OK; or TN_EPEER (no answer by the deadline), TN_EIO, TN_ENOMEM or TN_EFORMAT with a
     * reason. Raises nothing. Several threads may use one store: each call is atomic. */
    tn_status (*run)(tn_store *s, tn_store_call *c);
    void (*destroy)(tn_store *s);
};

#ifdef __cplusplus
}
#endif
#endif
