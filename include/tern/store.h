/* Stores: keys and values that all ranks see, through which they find each other.
 *
 *     tn_store *s = tn_tcp_store("node0", 29500, token, 60);
 *     tn_store_set(s, "rank/3", "ready", 5);
 *
 * Timeouts are in seconds; expiry is TN_EPEER. In a child of fork the parent's stores are
 * TN_ESTATE, and freeing them or a server does nothing.
 */
#ifndef TERN_STORE_H
#define TERN_STORE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_store tn_store;

TN_API tn_store *tn_memory_store(void); /* within this process: for ranks that are threads */
/* A client of tn_store_serve. Joining needs the job's token, which neither side sends: the server
 * first proves that it knows it, for the address the client dialled, so anything that forwards to a
 * server elsewhere (a relay, NAT) is refused. NULL after an error. */
TN_API tn_store *tn_tcp_store(const char *host, int port, const char *token, double timeout);
/* Prefixes every key with "prefix/". Keeps s. */
TN_API tn_store *tn_prefix_store(tn_store *s, const char *prefix);
TN_API void tn_store_free(tn_store *s); /* NULL is fine */

/* Serves a TCP store from a thread of this process, to every client that knows the token. There is
 * no store without one, on any address: TN_EVALUE for NULL and "". Anyone who reaches the port can
 * try tokens, so it should be random: 32 hexadecimal digits. host NULL: all interfaces; port 0: any
 * that is free, or any of TERN_PORTS (FIRST-LAST) if that is set, and then no other is served:
 * TN_EIO, or TN_EVALUE where TERN_PORTS is none. */
typedef struct tn_store_server tn_store_server;
TN_API tn_store_server *tn_store_serve(const char *host, int port, const char *token);
TN_API int tn_store_server_port(const tn_store_server *s);
TN_API void tn_store_server_free(tn_store_server *s);

TN_API tn_status tn_store_set(tn_store *s, const char *key, const void *data, size_t bytes);
/* Waits for the key; *data is malloc'ed with a 0 after it, *bytes may be NULL. */
TN_API tn_status tn_store_get(tn_store *s, const char *key, void **data, size_t *bytes,
                              double timeout);
TN_API tn_status tn_store_add(tn_store *s, const char *key, int64_t amount, int64_t *result);
/* Sets `desired` (a string) if the value is `expected` (NULL: if there is none); *is_set says
 * whether it is `desired` now. */
TN_API tn_status tn_store_compare_set(tn_store *s, const char *key, const char *expected,
                                      const char *desired, bool *is_set);
TN_API tn_status tn_store_wait(tn_store *s, const char *const *keys, int n, double timeout);
TN_API tn_status tn_store_check(tn_store *s, const char *key, bool *exists);
TN_API tn_status tn_store_delete(tn_store *s, const char *key, bool *existed);

#ifdef __cplusplus
}
#endif
#endif
