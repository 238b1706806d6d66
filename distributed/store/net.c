#define _GNU_SOURCE
#include "distributed/store/net.h"

#include "core/descriptor.h"
#include "core/error.h"
#include "distributed/store/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Seconds for each address of several. */
#define CONNECT_SECONDS 5.0

static void set_option(int fd, int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
}

void tn__net_options(int fd) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 20);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 60000);
}

/* ---- Addresses ------------------------------------------------------------------------------- */

static struct addrinfo *resolve_host(const char *host, int port, int flags, const char **error) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags},
                    *list = NULL;
    char service[16];
    snprintf(service, sizeof(service), "%d", port);
    int failed = getaddrinfo(host, service, &hints, &list);
    *error = failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed);
    return failed ? NULL : list;
}

struct addrinfo *tn__net_resolve(const char *host, int port, const char **error) {
    return resolve_host(host, port, AI_NUMERICSERV, error);
}

bool tn__net_place(int fd, bool other, uint8_t place[TN__PLACE]) {
    union {
        struct sockaddr_storage any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {0};
    socklen_t size = sizeof(at);
    if ((other ? getpeername : getsockname)(fd, (struct sockaddr *)&at, &size) != 0) {
        return false;
    }
    if (at.any.ss_family == AF_INET6) {
        memcpy(place, &at.v6.sin6_addr, 16);
        memcpy(place + 16, &at.v6.sin6_port, 2);
    } else {
        static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
        memcpy(place, mapped, sizeof(mapped));
        memcpy(place + 12, &at.v4.sin_addr, 4);
        memcpy(place + 16, &at.v4.sin_port, 2);
    }
    return true;
}

static int port_of(const uint8_t place[TN__PLACE]) {
    return place[16] << 8 | place[17];
}

void tn__net_text(const uint8_t place[TN__PLACE], char text[TN__NET_TEXT]) {
    struct in6_addr address;
    char host[INET6_ADDRSTRLEN] = "?";
    memcpy(&address, place, 16);
    bool is_v4 = IN6_IS_ADDR_V4MAPPED(&address);
    inet_ntop(is_v4 ? AF_INET : AF_INET6, place + (is_v4 ? 12 : 0), host, sizeof(host));
    snprintf(text, TN__NET_TEXT, is_v4 ? "%s:%d" : "[%s]:%d", host, port_of(place));
}

static int listen_at(const struct addrinfo *at) {
    int fd =
        tn__above_streams(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0) { return -1; }
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (at->ai_family == AF_INET6) { set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0); }
    if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* IPv4 and IPv6 have the port at the same place. */
static void set_port(struct sockaddr *at, int port) {
    ((struct sockaddr_in *)(void *)at)->sin_port = htons((uint16_t)port);
}

/* For all interfaces IPv6 comes first: such a socket takes IPv4 as well. If one of the host's
 * addresses is in use the others are not tried: "localhost" often has two, and with a server on
 * each, clients would find one or the other. */
static int listen_on(const struct addrinfo *list, bool is_any, int port, int *error) {
    int fd = -1;
    *error = 0;
    for (int pass = 0; pass < 2 && fd < 0; pass++) {
        for (const struct addrinfo *at = list; at && fd < 0 && *error != EADDRINUSE;
             at = at->ai_next) {
            bool is_first = is_any && at->ai_family == AF_INET6;
            if (is_first == (pass == 0)) {
                set_port(at->ai_addr, port);
                fd = listen_at(at);
                *error = fd < 0 ? errno : 0;
            }
        }
    }
    return fd;
}

int tn__net_listen(const char *host, int *port, const char *operation) {
    tn__ports open;
    if (tn__ports_find(&open, operation) != TN_OK) { return -1; }
    if (*port && !tn__ports_have(&open, *port)) {
        tn__raise(TN_EIO, operation, "port %d is not one of TERN_PORTS, %d-%d", *port, open.first,
                  open.last);
        return -1;
    }
    bool chosen = *port || open.first == 0;
    int first = chosen ? *port : open.first, last = chosen ? *port : open.last;
    const char *where = host ? host : "any interface", *unknown;
    struct addrinfo *list = resolve_host(host, first, AI_PASSIVE | AI_NUMERICSERV, &unknown);
    int fd = -1, error = EADDRINUSE;
    for (int p = first; list && p <= last && fd < 0 && error == EADDRINUSE; p++) {
        fd = listen_on(list, host == NULL, p, &error);
    }
    if (!list) {
        tn__raise(TN_EIO, operation, "unknown host %.100s: %s", where, unknown);
    } else if (fd < 0 && chosen) {
        tn__raise(TN_EIO, operation, "%.100s port %d: %s", where, *port, strerror(error));
    } else if (fd < 0) {
        tn__raise(TN_EIO, operation, "%.100s: none of TERN_PORTS, %d-%d, is free: %s", where, first,
                  last, strerror(error));
    }
    if (list) { freeaddrinfo(list); }
    uint8_t place[TN__PLACE];
    if (fd >= 0 && tn__net_place(fd, false, place)) { *port = port_of(place); }
    return fd;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* 0 when fd can be read or written; ETIMEDOUT, or another errno. */
static int await_socket(int fd, short events, double deadline) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int left = tn__milliseconds_left(deadline), n = poll(&p, 1, left);
        if (n > 0) { return 0; }
        if (n < 0 && errno != EINTR) { return errno; }
        if (n == 0 && left == 0) { return ETIMEDOUT; }
    }
}

static bool would_block(int error) {
    return error == EAGAIN || error == EWOULDBLOCK;
}

/* Skips the bytes sent; *at is the first part with bytes left. */
static void advance_parts(struct iovec *parts, int n, int *at, size_t sent) {
    while (*at < n && sent >= parts[*at].iov_len) {
        sent -= parts[(*at)++].iov_len;
    }
    if (*at < n) {
        parts[*at].iov_base = (char *)parts[*at].iov_base + sent;
        parts[*at].iov_len -= sent;
    }
}

int tn__net_send(int fd, struct iovec *parts, int n, double deadline) {
    int at = 0;
    advance_parts(parts, n, &at, 0);
    while (at < n) {
        struct msghdr message = {.msg_iov = parts + at, .msg_iovlen = (size_t)(n - at)};
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent >= 0) {
            advance_parts(parts, n, &at, (size_t)sent);
            continue;
        }
        int error = errno;
        if (would_block(error)) { error = await_socket(fd, POLLOUT, deadline); }
        if (error && error != EINTR) { return error; }
    }
    return 0;
}

int tn__net_receive(int fd, void *data, size_t bytes, double deadline) {
    char *to = data;
    while (bytes) {
        ssize_t got = recv(fd, to, bytes, 0);
        if (got > 0) {
            to += got;
            bytes -= (size_t)got;
            continue;
        }
        int error = got == 0 ? ECONNRESET : errno;
        if (would_block(error)) { error = await_socket(fd, POLLIN, deadline); }
        if (error && error != EINTR) { return error; }
    }
    return 0;
}

const char *tn__net_error(int error) {
    return error == ETIMEDOUT    ? "no answer in time"
           : error == ECONNRESET ? "the connection was closed"
                                 : strerror(error);
}

/* ---- Connecting ------------------------------------------------------------------------------ */

/* Returns a connected socket, or -1 and *error. */
static int connect_to(const struct addrinfo *at, double deadline, int *error) {
    int fd =
        tn__above_streams(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0) {
        *error = errno;
        return -1;
    }
    *error = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (*error == EINPROGRESS || *error == EINTR) {
        *error = await_socket(fd, POLLOUT, deadline);
        socklen_t size = sizeof(*error);
        if (*error == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &size) != 0) {
            *error = errno;
        }
    }
    if (*error) {
        close(fd);
        return -1;
    }
    tn__net_options(fd);
    return fd;
}

/* Whether a socket has connected to itself: possible if no one listens at a port from the range for
 * clients. */
static bool is_own_echo(int fd) {
    uint8_t here[TN__PLACE], there[TN__PLACE];
    return tn__net_place(fd, false, here) && tn__net_place(fd, true, there) &&
           memcmp(here, there, sizeof(here)) == 0;
}

int tn__net_connect(const struct addrinfo *at, double deadline, int *error) {
    double limit = tn__now() + CONNECT_SECONDS;
    int fd = connect_to(at, limit < deadline ? limit : deadline, error);
    if (fd >= 0 && is_own_echo(fd)) {
        close(fd);
        fd = -1;
        *error = ECONNREFUSED;
    }
    return fd;
}
