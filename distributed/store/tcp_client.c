/* The client of the TCP store. A call takes a connection that is idle or makes one, sends its
 * request, waits for the reply, and puts the connection back: a get that waits blocks no other
 * call. After a failure the connection is closed, since its reply could still come. */
#include "distributed/store/tcp.h"

#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/store/net.h"
#include "distributed/store/wire.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { IDLE_MOST = 4 };

/* The server answers a get at its deadline at the latest. No answer this much later means none. */
#define GRACE_SECONDS 0.5
#define FIRST_PAUSE 0.01 /* between two tries to join; doubles up to the longest */
#define LONGEST_PAUSE 0.25

typedef struct tcp_store {
    tn_store base;
    char *host, *token;
    int port;
    pthread_mutex_t lock;
    int idle[IDLE_MOST];
    int idle_count;
} tcp_store;

/* ---- Joining --------------------------------------------------------------------------------- */

/* Retries while that may help; waits for a server that is not there yet only if `waits`. -1 with a
 * reason. */
static int join_server(const tcp_store *t, bool waits, double deadline, char *why) {
    double begin = tn__now(), pause = FIRST_PAUSE;
    char reason[TN_STORE_WHY] = "";
    for (;;) {
        int fd;
        tn__dialed dialed = tn__tcp_dial(t->host, t->port, t->token, deadline, &fd, reason);
        bool again = dialed == TN__DIAL_SILENT || dialed == TN__DIAL_NO_HOST ||
                     (dialed == TN__DIAL_REFUSED && waits);
        if (dialed == TN__DIAL_OURS) { return fd; }
        if (!again || !tn__rest_until(&pause, LONGEST_PAUSE, deadline)) {
            tn__why(why, TN_EPEER, "found no store in %.1f seconds: %.200s", tn__now() - begin,
                    reason);
            return -1;
        }
    }
}

/* ---- Connections ----------------------------------------------------------------------------- */

static int take_connection(tcp_store *t, double deadline, char *why) {
    pthread_mutex_lock(&t->lock);
    int fd = t->idle_count ? t->idle[--t->idle_count] : -1;
    pthread_mutex_unlock(&t->lock);
    return fd >= 0 ? fd : join_server(t, false, deadline, why);
}

static void put_back(tcp_store *t, int fd) {
    pthread_mutex_lock(&t->lock);
    bool keeps = t->idle_count < IDLE_MOST;
    if (keeps) { t->idle[t->idle_count++] = fd; }
    pthread_mutex_unlock(&t->lock);
    if (!keeps) { close(fd); }
}

/* ---- Requests -------------------------------------------------------------------------------- */

static int send_request(int fd, const tn_store_call *c) {
    uint8_t head[TN__REQUEST_HEAD];
    double wait = c->kind == TN_STORE_GET ? fmax(c->deadline - tn__now(), 0) : 0;
    const tn__request r = {.kind = c->kind,
                           .key_bytes = (uint32_t)strlen(c->key),
                           .bytes = (uint32_t)c->bytes,
                           .expected_bytes = (uint32_t)c->expected_bytes,
                           .number = c->number,
                           .microseconds = (uint64_t)(wait * 1e6)};
    struct iovec parts[] = {{head, sizeof(head)},
                            {(void *)(uintptr_t)c->key, r.key_bytes},
                            {(void *)(uintptr_t)c->data, c->bytes},
                            {(void *)(uintptr_t)c->expected, c->expected_bytes}};
    tn__request_write(head, &r);
    return tn__net_send(fd, parts, 4, c->deadline);
}

/* 0 or an errno; EPROTO for a malformed reply. */
static int receive_reply(int fd, tn_store_call *c, tn_status *status) {
    uint8_t head[TN__REPLY_HEAD];
    tn__reply r;
    double deadline = c->deadline + (c->kind == TN_STORE_GET ? GRACE_SECONDS : 0);
    int error = tn__net_receive(fd, head, sizeof(head), deadline);
    if (error) { return error; }
    if (!tn__reply_read(head, &r)) { return EPROTO; }
    *status = r.status;
    c->number = r.number;
    if (r.bytes) {
        c->value.bytes = r.bytes;
        c->value.data = tn__malloc(r.bytes);
        error = c->value.data ? tn__net_receive(fd, c->value.data, r.bytes, deadline) : ENOMEM;
    }
    return error;
}

static tn_status explain_error(const tcp_store *t, tn_store_call *c, int error, double begin) {
    if (error == ENOMEM) {
        return tn__why(c->why, TN_ENOMEM, "no memory for \"%.120s\" with %zu bytes", c->key,
                       c->value.bytes);
    }
    if (error == ETIMEDOUT) {
        return tn__why(c->why, TN_EPEER,
                       "\"%.100s\": the store at %.80s:%d has not answered for %.1f seconds",
                       c->key, t->host, t->port, tn__now() - begin);
    }
    return tn__why(c->why, TN_EPEER, "\"%.100s\": the store at %.80s:%d is gone: %.50s", c->key,
                   t->host, t->port, tn__net_error(error));
}

/* The status that the server gave, with its reason. */
static tn_status pass_on(const tcp_store *t, tn_store_call *c, tn_status status) {
    bool has_reason = c->value.bytes > 0;
    return tn__why(c->why, status, "%.*s (the store at %.60s:%d)",
                   has_reason ? (int)fmin((double)c->value.bytes, 180) : 180,
                   has_reason ? (const char *)c->value.data : "it has no memory", t->host, t->port);
}

static tn_status ask_server(tn_store *s, tn_store_call *c) {
    tcp_store *t = (tcp_store *)s;
    double begin = tn__now();
    int fd = take_connection(t, c->deadline, c->why);
    if (fd < 0) { return TN_EPEER; }
    tn_status status = TN_OK;
    int error = send_request(fd, c);
    error = error ? error : receive_reply(fd, c, &status);
    if (error) {
        close(fd);
        status = explain_error(t, c, error, begin);
    } else {
        put_back(t, fd);
        status = status == TN_OK ? TN_OK : pass_on(t, c, status);
    }
    bool gives = c->kind == TN_STORE_GET || c->kind == TN_STORE_COMPARE_SET;
    if (status != TN_OK || !gives) {
        free(c->value.data);
        c->value = (tn_store_value){0};
    }
    return status;
}

static void tcp_destroy(tn_store *s) {
    tcp_store *t = (tcp_store *)s;
    for (int i = 0; i < t->idle_count; i++) {
        close(t->idle[i]);
    }
    pthread_mutex_destroy(&t->lock);
    free(t->host);
    free(t->token);
    free(t);
}

/* ---- Making one ------------------------------------------------------------------------------ */

static bool options_sound(const char *host, int port, const char *token, double timeout) {
    if (tn__pending()) { return false; }
    if (!host || !*host || port < 1 || port > 65535) {
        tn__raise(TN_EVALUE, "tcp_store",
                  "host \"%.100s\", port %d (a name or address; 1 to 65535)",
                  host ? host : "(NULL)", port);
    } else if (!token || !*token) {
        tn__raise(TN_EVALUE, "tcp_store", "the token is %s", token ? "empty" : "NULL");
    } else if (!(timeout >= 0)) {
        tn__raise(TN_EVALUE, "tcp_store", "a time-out of %g seconds (0 at least)", timeout);
    }
    return !tn__pending();
}

tn_store *tn_tcp_store(const char *host, int port, const char *token, double timeout) {
    char why[TN_STORE_WHY] = "";
    if (!options_sound(host, port, token, timeout)) { return NULL; }
    tcp_store *t = tn__calloc(1, sizeof(*t));
    char *host_copy = tn__strdup(host), *token_copy = tn__strdup(token);
    if (!t || !host_copy || !token_copy) {
        free(t);
        free(host_copy);
        free(token_copy);
        return tn__fail_null(TN_ENOMEM, "tcp_store", "no memory");
    }
    *t = (tcp_store){.base = {.kind = "tcp",
                              .refs = 1,
                              .process = tn__process(),
                              .timeout = timeout,
                              .token = token_copy,
                              .run = ask_server,
                              .destroy = tcp_destroy},
                     .host = host_copy,
                     .token = token_copy,
                     .port = port};
    pthread_mutex_init(&t->lock, NULL);
    int fd = join_server(t, true, tn__now() + timeout, why);
    if (fd < 0) {
        tn_store_free(&t->base);
        return tn__fail_null(TN_EPEER, "tcp_store", "%s", why);
    }
    put_back(t, fd);
    return &t->base;
}
