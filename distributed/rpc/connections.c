/* Whoever has a frame sends as much of it as the socket takes at once, under the connection's lock;
 * what is left is sent by the thread when the socket takes more. So no one waits for a slow rank.
 * Descriptors are closed only when the thread has ended, so that no number means two connections.
 * There is one thread, so that of two ranks the one that left first is lost first: the other may
 * have left because of it.
 */
#define _GNU_SOURCE
#include "distributed/rpc/connections.h"

#include "core/descriptor.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "distributed/store/store.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 64, READS_AT_ONCE = 64 };

/* ---- Sending --------------------------------------------------------------------------------- */

static void set_full(tn__connections *c, int rank, bool full) {
    tn__connection *p = &c->list[rank];
    if (full != p->full) {
        struct epoll_event event = {.events = EPOLLIN | (full ? EPOLLOUT : 0u),
                                    .data.u32 = (uint32_t)rank};
        epoll_ctl(c->epoll, EPOLL_CTL_MOD, p->fd, &event);
        p->full = full;
    }
}

/* Under the lock: sends what the socket takes. After an error the connection is shut down, so that
 * the thread sees its end. */
static void send_some(tn__connections *c, int rank) {
    tn__connection *p = &c->list[rank];
    while (p->first && !p->closed) {
        tn__rpc_frame *f = p->first;
        size_t bytes = TN__RPC_HEAD + f->head.bytes;
        ssize_t sent = send(p->fd, (const char *)&f->head + p->sent, bytes - p->sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) { continue; }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            set_full(c, rank, true);
            return;
        }
        if (sent < 0) {
            p->closed = true;
            shutdown(p->fd, SHUT_RDWR);
            return;
        }
        p->sent += (size_t)sent;
        if (p->sent == bytes) {
            p->first = f->next;
            p->sent = 0;
            free(f);
        }
    }
    if (!p->closed) { set_full(c, rank, false); }
}

void tn__connections_send(tn__connections *c, int to, tn__rpc_frame *f) {
    tn__connection *p = &c->list[to];
    if (to == c->rank) {
        c->receive(c->user, to, f);
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (p->closed || p->fd < 0) {
        free(f);
    } else {
        bool alone = !p->first;
        f->next = NULL;
        *(alone ? &p->first : &p->last->next) = f;
        p->last = f;
        if (alone) { send_some(c, to); }
    }
    pthread_mutex_unlock(&p->lock);
}

bool tn__connections_drain(tn__connections *c, double deadline) {
    for (int i = 0; i < c->ranks; i++) {
        tn__connection *p = &c->list[i];
        double pause = 1e-4;
        for (bool more = true; more;) {
            pthread_mutex_lock(&p->lock);
            more = p->first && !p->closed;
            pthread_mutex_unlock(&p->lock);
            if (more && !tn__rest_until(&pause, 0.01, deadline)) { return false; }
        }
    }
    return true;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

/* Under the lock. */
static void close_output(tn__connection *p) {
    p->closed = true;
    tn__rpc_frames_free(p->first);
    p->first = NULL;
}

static void end_connection(tn__connections *c, int rank, const char *why) {
    tn__connection *p = &c->list[rank];
    pthread_mutex_lock(&p->lock);
    close_output(p);
    epoll_ctl(c->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    shutdown(p->fd, SHUT_RDWR);
    pthread_mutex_unlock(&p->lock);
    free(p->reader.frame);
    p->reader.frame = NULL;
    c->lost(c->user, rank, why);
}

/* Returns why the connection is over; NULL: it is not. */
static const char *receive_some(tn__connections *c, int rank) {
    tn__connection *p = &c->list[rank];
    for (int reads = 0; reads < READS_AT_ONCE; reads++) { /* then it is the others' turn */
        size_t most;
        void *room = tn__rpc_reader_room(&p->reader, &most);
        ssize_t got = recv(p->fd, room, most, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) { continue; }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) { return NULL; }
        if (got < 0) { return strerror(errno); }
        if (got == 0) { return "it has closed the connection, or died"; }
        tn__rpc_frame *whole;
        const char *why = tn__rpc_reader_take(&p->reader, (size_t)got, &whole);
        if (why) { return why; }
        if (whole) { c->receive(c->user, rank, whole); }
    }
    return NULL;
}

static void serve_event(tn__connections *c, const struct epoll_event *event) {
    int rank = (int)event->data.u32;
    tn__connection *p = &c->list[rank];
    if (event->events & EPOLLOUT) {
        pthread_mutex_lock(&p->lock);
        send_some(c, rank);
        pthread_mutex_unlock(&p->lock);
    }
    const char *why = event->events & ~(uint32_t)EPOLLOUT ? receive_some(c, rank) : NULL;
    if (why) { end_connection(c, rank, why); }
}

static void *serve_connections(void *user) {
    tn__connections *c = user;
    struct epoll_event events[EVENTS_AT_ONCE];
    tn__quiet(1);
    for (;;) {
        int n = epoll_wait(c->epoll, events, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < n; i++) {
            if ((int)events[i].data.u32 == c->rank) { return NULL; }
            serve_event(c, &events[i]);
        }
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

bool tn__connections_init(tn__connections *c) {
    c->epoll = c->wake = -1;
    c->list = tn__calloc_for((size_t)c->ranks, sizeof(*c->list), "rpc_new");
    for (int i = 0; c->list && i < c->ranks; i++) {
        c->list[i].fd = -1;
        c->list[i].reader.limit = c->limit;
        pthread_mutex_init(&c->list[i].lock, NULL);
    }
    return c->list != NULL;
}

void tn__connections_finish(tn__connections *c) {
    for (int i = 0; c->list && i < c->ranks; i++) {
        pthread_mutex_destroy(&c->list[i].lock);
    }
    free(c->list);
}

static bool watch_all(tn__connections *c) {
    c->epoll = tn__above_streams(epoll_create1(EPOLL_CLOEXEC));
    c->wake = tn__above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bool fine = c->epoll >= 0 && c->wake >= 0;
    for (int i = 0; fine && i < c->ranks; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        int fd = i == c->rank ? c->wake : c->list[i].fd;
        fine = epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
    }
    if (!fine) { tn__raise(TN_EIO, "rpc_start", "epoll: %s", strerror(errno)); }
    return fine;
}

bool tn__connections_start(tn__connections *c) {
    if (c->ranks == 1) { return true; }
    if (!watch_all(c)) { return false; }
    int failed = tn__thread_start(&c->thread, serve_connections, c);
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "its thread could not be started: %s", strerror(failed));
    }
    c->has_thread = !failed;
    return !failed;
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void tn__connections_stop(tn__connections *c) {
    if (c->has_thread) {
        uint64_t one = 1;
        while (write(c->wake, &one, sizeof(one)) < 0 && errno == EINTR) {}
        pthread_join(c->thread, NULL);
        c->has_thread = false;
    }
    for (int i = 0; i < c->ranks; i++) {
        tn__connection *p = &c->list[i];
        pthread_mutex_lock(&p->lock);
        close_output(p);
        close_fd(&p->fd);
        pthread_mutex_unlock(&p->lock);
        free(p->reader.frame);
        p->reader.frame = NULL;
    }
    close_fd(&c->epoll);
    close_fd(&c->wake);
}
