#define _GNU_SOURCE
#include "tests/support/relay.h"
#include "tests/support/test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PAIRS = 32 };

typedef struct pair {
    int client, server; /* server -1: there was no server */
    size_t sent;        /* by the client */
} pair;

struct relay {
    int listener, port, first, count;
    int ends[2]; /* a pipe, closed to end the relay */
    pthread_t thread;
    pair pairs[PAIRS];
    int used;
    relay_result result;
};

static struct sockaddr_in place_of(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int reach_server(const relay *r) {
    for (int i = 0; i < r->count; i++) {
        struct sockaddr_in at = place_of(r->first + i);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0) { return fd; }
        close(fd);
    }
    return -1;
}

static void take_client(relay *r) {
    int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0 && r->used == PAIRS) {
        close(fd);
    } else if (fd >= 0) {
        r->pairs[r->used++] = (pair){.client = fd, .server = reach_server(r)};
        r->result.connections++;
    }
}

static void end_pair(relay *r, int i) {
    pair *p = &r->pairs[i];
    r->result.most = p->sent > r->result.most ? p->sent : r->result.most;
    close(p->client);
    if (p->server >= 0) { close(p->server); }
    *p = r->pairs[--r->used];
}

/* Passes on what there is; 0 when that side has gone. */
static size_t pass_on(int from, int to) {
    char bytes[4096];
    ssize_t got = recv(from, bytes, sizeof(bytes), 0);
    bool passed = got > 0 && to >= 0 && send(to, bytes, (size_t)got, MSG_NOSIGNAL) == got;
    return passed ? (size_t)got : 0;
}

static void *relay_bytes(void *user) {
    relay *r = user;
    for (;;) {
        struct pollfd fds[2 + 2 * PAIRS] = {{.fd = r->ends[0], .events = POLLIN},
                                            {.fd = r->listener, .events = POLLIN}};
        int n = r->used;
        for (int i = 0; i < n; i++) {
            fds[2 + 2 * i] = (struct pollfd){.fd = r->pairs[i].client, .events = POLLIN};
            fds[3 + 2 * i] = (struct pollfd){.fd = r->pairs[i].server, .events = POLLIN};
        }
        poll(fds, (nfds_t)(2 + 2 * n), -1);
        for (int i = n - 1; i >= 0; i--) {
            pair *p = &r->pairs[i];
            size_t sent = fds[2 + 2 * i].revents ? pass_on(p->client, p->server) : 0;
            bool gone = fds[2 + 2 * i].revents && sent == 0;
            p->sent += sent;
            if (!gone && fds[3 + 2 * i].revents) { gone = pass_on(p->server, p->client) == 0; }
            if (gone) { end_pair(r, i); }
        }
        if (fds[1].revents) { take_client(r); }
        if (fds[0].revents) { return NULL; }
    }
}

relay *relay_start(int port, int first, int count) {
    relay *r = calloc(1, sizeof(*r));
    struct sockaddr_in at = place_of(port);
    socklen_t size = sizeof(at);
    assert_non_null(r);
    r->first = first;
    r->count = count;
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(r->listener, (struct sockaddr *)&at, size), 0);
    assert_int_equal(listen(r->listener, 16), 0);
    assert_int_equal(getsockname(r->listener, (struct sockaddr *)&at, &size), 0);
    r->port = ntohs(at.sin_port);
    assert_int_equal(pipe2(r->ends, O_CLOEXEC), 0);
    assert_int_equal(pthread_create(&r->thread, NULL, relay_bytes, r), 0);
    return r;
}

int relay_port(const relay *r) {
    return r->port;
}

relay_result relay_end(relay *r) {
    close(r->ends[1]);
    pthread_join(r->thread, NULL);
    while (r->used) {
        end_pair(r, 0);
    }
    close(r->ends[0]);
    close(r->listener);
    relay_result result = r->result;
    free(r);
    return result;
}
