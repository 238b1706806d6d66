/* TCP sockets with deadlines, for the store's two ends. Every socket is non-blocking, close-on-exec
 * and never raises SIGPIPE. */
#ifndef TERN_DISTRIBUTED_STORE_NET_H
#define TERN_DISTRIBUTED_STORE_NET_H

#include "distributed/store/store.h"
#include "distributed/store/wire.h"

#include <netdb.h>
#include <sys/socket.h>

/* Small messages are sent at once, and a lost peer is noticed within a minute. */
void tn__net_options(int fd);

/* A listening socket; host NULL: all interfaces, IPv6 and IPv4. port 0: any of TERN_PORTS; *port
 * becomes the actual one. -1 after raising, also for a port that is not among TERN_PORTS. */
TN_API int tn__net_listen(const char *host, int *port, const char *operation);

/* The addresses of a host, for freeaddrinfo; NULL with what the system says in *error. */
TN_API struct addrinfo *tn__net_resolve(const char *host, int port, const char **error);

/* Connects to the first of them. -1 with an errno in *error. */
TN_API int tn__net_connect(const struct addrinfo *at, double deadline, int *error);

/* Sends or receives all of it. Returns 0 or an errno: ETIMEDOUT at the deadline, ECONNRESET when
 * the other side has closed. `parts` is modified. */
TN_API int tn__net_send(int fd, struct iovec *parts, int n, double deadline);
TN_API int tn__net_receive(int fd, void *data, size_t bytes, double deadline);
const char *tn__net_error(int error); /* what such an errno means */

/* The address of one end of a connection, the other side's or ours: 16 bytes of IPv6 address (IPv4
 * mapped into IPv6) and 2 of port. The two ends see the same, unless something between them
 * rewrites addresses. False when fd is not connected. */
enum { TN__NET_TEXT = 64 };
TN_API bool tn__net_place(int fd, bool other, uint8_t place[TN__PLACE]);

/* "10.0.0.1:29500", "[fe80::1]:29500". */
void tn__net_text(const uint8_t place[TN__PLACE], char text[TN__NET_TEXT]);

#endif
