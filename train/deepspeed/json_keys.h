/* Settings in a JSON object, read into a struct according to tables of keys.
 *
 *     static const tn__key keys[] = {
 *         {.name = "lr", .kind = TN__KEY_NUMBER, .at = offsetof(settings, lr), .most = INFINITY},
 *         {.name = "nesterov", .kind = TN__KEY_SWITCH, .at = offsetof(settings, nesterov)},
 *         {.name = "fused", .kind = TN__KEY_IDLE},
 *         {.name = NULL},
 *     };
 *     settings s = {.lr = 1e-3};       // what is missing or null in the file stays
 *     tn__keys k = {.operation = "sgd", .file = path};
 *     if (!tn__keys_read(&k, text, bytes, keys, &s)) { … }
 *
 * A key that is not in the table, a value that does not fit and a duplicate key are errors that
 * name the file, the path ("optimizer.params.lr") and the value.
 */
#ifndef TERN_TRAIN_DEEPSPEED_JSON_KEYS_H
#define TERN_TRAIN_DEEPSPEED_JSON_KEYS_H

#include "core/error.h"
#include "text/json.h"

typedef enum tn__key_kind {
    TN__KEY_SWITCH,  /* true or false: a bool */
    TN__KEY_COUNT,   /* a whole number from least to most: an int64_t */
    TN__KEY_NUMBER,  /* a number from least to most: a double */
    TN__KEY_PAIR,    /* a list of two numbers from least to below most: a double[2] */
    TN__KEY_CHOICE,  /* one of `words`, in either case: an int, its index */
    TN__KEY_SECTION, /* an object with `keys`, for the same struct */
    TN__KEY_VARIANT, /* {"type": one of `words`, "params": {variants[index]}}: an int, the index */
    TN__KEY_IDLE,    /* accepted and ignored */
    TN__KEY_OFF,     /* TN_EUNSUPPORTED, unless it is false or has "enabled": false */
    TN__KEY_FIXED,   /* TN_EUNSUPPORTED, unless it is the word or number `fixed` */
} tn__key_kind;

typedef struct tn__key {
    const char *name;  /* NULL: the end of the table */
    const char *other; /* another name of it, or NULL */
    tn__key_kind kind;
    size_t at; /* offset in the struct */
    double least, most;
    const char *const *words; /* ends with NULL */
    const struct tn__key *keys;
    const struct tn__key *const *variants;
    const char *fixed;
} tn__key;

/* The source of settings, and which of its keys had no effect. */
typedef struct tn__keys {
    const char *operation, *file; /* for messages */
    char idle[1024];              /* paths, separated by ", " */
} tn__keys;

/* False after raising: TN_EFORMAT (not JSON), TN_EVALUE, TN_EUNSUPPORTED, TN_ENOMEM. */
bool tn__keys_read(tn__keys *k, const char *text, size_t bytes, const tn__key *keys,
                   void *settings);

#endif
