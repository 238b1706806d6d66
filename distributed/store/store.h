/* What the stores share: a table of keys and values, references, reasons.
 *
 *     store.c    the calls of store.h: arguments, deadlines, errors
 *     table.c    keys and values: of the in-memory store and of the TCP server
 *     prefix.c   memory.c   the stores themselves
 *     tcp_*.c    client and server; handshake.c, session.c and wire.c: what they say to each other
 */
#ifndef TERN_DISTRIBUTED_STORE_STORE_H
#define TERN_DISTRIBUTED_STORE_STORE_H

#include "core/clock.h"
#include "tern/sys/store.h"

#include <stdarg.h>

/* One more reference to s; returns s. tn_store_free drops it. */
TN_API tn_store *tn__store_keep(tn_store *s);

/* Writes a reason to why[TN_STORE_WHY]; returns `status`. */
tn_status tn__why(char *why, tn_status status, const char *format, ...) TN_PRINTF(3, 4);

/* Sleeps *pause seconds, but not beyond the deadline (tn__now), and doubles *pause up to `longest`,
 * all below a second. False when the deadline has passed. */
bool tn__rest_until(double *pause, double longest, double deadline);

/* Whether `key` is valid: 1 … TN_STORE_KEY bytes, none of them a space or a control character. */
bool tn__store_key(const char *key);

/* ---- A table of keys and values -------------------------------------------------------------- */

typedef struct tn__entry tn__entry;

/* When zeroed it is an empty table without a limit. */
typedef struct tn__table {
    tn__entry **heads;
    size_t buckets; /* a power of two */
    size_t count;
    size_t bytes; /* of keys, values and what surrounds them */
    size_t limit; /* of `bytes`; 0: none. More is TN_ENOMEM */
} tn__table;

/* NULL when there is no such key. Valid until the key changes. */
const tn_store_value *tn__table_find(const tn__table *t, const char *key);

/* These do what the entries of tn_store do, at once. compare_set's *now points into the table. */
tn_status tn__table_set(tn__table *t, const char *key, const void *data, size_t bytes, char *why);
tn_status tn__table_add(tn__table *t, const char *key, int64_t amount, int64_t *result, char *why);
tn_status tn__table_compare_set(tn__table *t, const char *key, const tn_store_value *expected,
                                const tn_store_value *desired, tn_store_value *now, char *why);
bool tn__table_remove(tn__table *t, const char *key); /* whether it was there */
void tn__table_clear(tn__table *t);

/* A copy for the caller to free. */
tn_status tn__value_copy(const tn_store_value *from, tn_store_value *to, char *why);

#endif
