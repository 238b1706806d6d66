/* For writing a store.
 *
 * Programs use store.h. A custom store embeds tn_store first and fills the table; the
 * calls in store.h check arguments, turn time-outs into deadlines and raise the errors.
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

/* A failing entry writes the reason (one line, what and where) to why[TN_STORE_WHY] and returns
 * TN_EPEER (no answer by the deadline), TN_EIO, TN_ENOMEM or TN_EFORMAT; it raises nothing. A
 * deadline is in seconds of the monotonic clock. Several threads may use one store: each entry is
 * atomic. */
#define TN_STORE_WHY 256
typedef struct tn_store_value {
    void *data; /* malloc'ed, the caller's to free; NULL for 0 bytes */
    size_t bytes;
} tn_store_value;

struct tn_store {
    const char *kind; /* "tcp" */
    int32_t refs;     /* atomic: a prefix store keeps the one beneath it; 1 for a new store */
    uint32_t process; /* tn__process(): refused in a child of fork; 0: works there too */
    double timeout;   /* seconds for calls without a time-out; 0: TN_STORE_TIMEOUT */
    /* The secret that all who use the store have shown to know, without sending it; NULL: none. */
    const char *token;

    tn_status (*set)(tn_store *s, const char *key, const void *data, size_t bytes, double deadline,
                     char *why);
    /* Waits for the key. */
    tn_status (*get)(tn_store *s, const char *key, tn_store_value *value, double deadline,
                     char *why);
    /* The value is a decimal number as a string (a missing key is 0); *result is the sum. */
    tn_status (*add)(tn_store *s, const char *key, int64_t amount, int64_t *result, double deadline,
                     char *why);
    /* Sets the value to `desired` if it is `expected` (0 bytes: if there is no such key); *now is
     * the value afterwards. */
    tn_status (*compare_set)(tn_store *s, const char *key, const tn_store_value *expected,
                             const tn_store_value *desired, tn_store_value *now, double deadline,
                             char *why);
    tn_status (*check)(tn_store *s, const char *key, bool *exists, double deadline, char *why);
    tn_status (*remove)(tn_store *s, const char *key, bool *existed, double deadline, char *why);
    void (*destroy)(tn_store *s);
};

#ifdef __cplusplus
}
#endif
#endif
