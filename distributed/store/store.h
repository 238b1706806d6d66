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

/* One more reference to s; returns s. tn_store_free drops it. */
TN_API tn_store *tn__store_keep(tn_store *s);

/* Writes a reason to why[TN_STORE_WHY]; returns `status`. */
tn_status tn__why(char *why, tn_status status, const char *format, ...) TN_PRINTF(3, 4);
/* That the key was not set in time; returns TN_EPEER. */
tn_status tn__store_late(tn_store_call *c, double seconds);

/* Sets a key. The reason of a failure goes to why[TN_STORE_WHY], unless that is NULL. */
tn_status tn__store_put(tn_store *s, const char *key, const void *data, size_t bytes,
                        double deadline, char *why);

/* The value with a 0 after it, which the caller frees. NULL: there is no memory, and c->why says
 * so. */
char *tn__store_text(tn_store_call *c);

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

/* Does what is asked, at once. The value points into the table. A key that GET does not find is
 * TN_EPEER without a reason. */
tn_status tn__table_run(tn__table *t, tn_store_call *c);
void tn__table_clear(tn__table *t);

#endif
