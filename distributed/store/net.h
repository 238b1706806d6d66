/* TCP sockets with deadlines, for the store's two ends. Every socket is non-blocking, close-on-exec
 * and never raises SIGPIPE. */
#ifndef TERN_DISTRIBUTED_STORE_NET_H
#define TERN_DISTRIBUTED_STORE_NET_H

#include "distributed/store/store.h"

#include <sys/socket.h>

/* Small messages leave at once, and a peer that the network has lost is noticed within a minute. */
void tn__net_options(int fd);

/* A listening socket; host NULL: all interfaces, IPv6 and IPv4. port 0: any; *port becomes the one
 * that it is. -1 with a reason. */
TN_API int tn__net_listen(const char *host, int *port, char *why);

/* Connects to one of the host's addresses. -1 with a reason and *error: an errno, of the last
 * address tried; 0 when the name is unknown. */
TN_API int tn__net_connect(const char *host, int port, double deadline, int *error, char *why);

/* All of it. 0; else an errno: ETIMEDOUT at the deadline, ECONNRESET when the other side has
 * closed. `parts` is used up. */
TN_API int tn__net_send(int fd, struct iovec *parts, int n, double deadline);
TN_API int tn__net_receive(int fd, void *data, size_t bytes, double deadline);

/* "10.0.0.1:29500", "[fe80::1]:29500" of the other side. */
void tn__net_peer(int fd, char *text, size_t room);

#endif
