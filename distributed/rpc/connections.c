/* Whoever has a frame sends as much of it as the socket takes at once, under the connection's lock;
 * what is left is sent by the thread when the socket takes more. So no one waits for a slow rank.
 * Descriptors are closed only when the thread has ended, so that no number means two connections.
 * There is one thread, so that of two ranks the one that left first is lost first: the other may
 * have left because of it.
 */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "distributed/rpc/rpc.h"
#include "distributed/store/store.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 64, READS_AT_ONCE = 64 };

/* ---- Sending --------------------------------------------------------------------------------- */

static void set_full(tn_rpc *r, int rank, bool full) {
    tn__peer *p = &r->peers[rank];
    if (full != p->full) {
        struct epoll_event event = {.events = EPOLLIN | (full ? EPOLLOUT : 0u),
                                    .data.u32 = (uint32_t)rank};
        epoll_ctl(r->epoll, EPOLL_CTL_MOD, p->fd, &event);
        p->full = full;
    }
}

/* Under the lock: sends what the socket takes. After an error the connection is shut down, so that
 * the thread sees its end. */
static void send_some(tn_rpc *r, int rank) {
    tn__peer *p = &r->peers[rank];
    while (p->out.first && !p->closed) {
        tn__rpc_frame *f = p->out.first;
        size_t bytes = TN__RPC_HEAD + f->head.bytes;
        ssize_t sent = send(p->fd, (const char *)&f->head + p->sent, bytes - p->sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) { continue; }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            set_full(r, rank, true);
            return;
        }
        if (sent < 0) {
            p->closed = true;
            shutdown(p->fd, SHUT_RDWR);
            return;
        }
        p->sent += (size_t)sent;
        if (p->sent == bytes) {
            p->out.first = f->next;
            p->sent = 0;
            free(f);
        }
    }
    if (!p->closed) { set_full(r, rank, false); }
}

void tn__rpc_send(tn_rpc *r, int to, tn__rpc_frame *f) {
    tn__peer *p = &r->peers[to];
    if (to == r->rank) {
        r->arrived(r, to, f);
        return;
    }
    pthread_mutex_lock(&p->sending);
    if (p->closed || p->fd < 0) {
        free(f);
    } else {
        bool alone = !p->out.first;
        tn__rpc_queue_add(&p->out, f);
        if (alone) { send_some(r, to); }
    }
    pthread_mutex_unlock(&p->sending);
}

bool tn__rpc_drain(tn_rpc *r, double deadline) {
    for (int i = 0; i < r->ranks; i++) {
        tn__peer *p = &r->peers[i];
        double pause = 1e-4;
        for (bool more = true; more;) {
            pthread_mutex_lock(&p->sending);
            more = p->out.first && !p->closed;
            pthread_mutex_unlock(&p->sending);
            if (more && !tn__rest_until(&pause, 0.01, deadline)) { return false; }
        }
    }
    return true;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

/* Under the lock. */
static void close_output(tn__peer *p) {
    p->closed = true;
    tn__rpc_queue_clear(&p->out);
}

static void end_connection(tn_rpc *r, int rank, const char *why) {
    tn__peer *p = &r->peers[rank];
    pthread_mutex_lock(&p->sending);
    close_output(p);
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    shutdown(p->fd, SHUT_RDWR);
    pthread_mutex_unlock(&p->sending);
    free(p->reader.frame);
    p->reader.frame = NULL;
    r->lost(r, rank, why);
}

/* Returns why the connection is over; NULL: it is not. */
static const char *receive_some(tn_rpc *r, int rank) {
    tn__peer *p = &r->peers[rank];
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
        if (whole) { r->arrived(r, rank, whole); }
    }
    return NULL;
}

static void serve_event(tn_rpc *r, const struct epoll_event *event) {
    int rank = (int)event->data.u32;
    tn__peer *p = &r->peers[rank];
    if (event->events & EPOLLOUT) {
        pthread_mutex_lock(&p->sending);
        send_some(r, rank);
        pthread_mutex_unlock(&p->sending);
    }
    const char *why = event->events & ~(uint32_t)EPOLLOUT ? receive_some(r, rank) : NULL;
    if (why) { end_connection(r, rank, why); }
}

static void *serve_connections(void *user) {
    tn_rpc *r = user;
    struct epoll_event events[EVENTS_AT_ONCE];
    tn__quiet(1);
    for (;;) {
        int n = epoll_wait(r->epoll, events, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < n; i++) {
            if ((int)events[i].data.u32 == r->rank) { return NULL; }
            serve_event(r, &events[i]);
        }
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool watch_all(tn_rpc *r) {
    r->epoll = tn__above_streams(epoll_create1(EPOLL_CLOEXEC));
    r->wake = tn__above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bool fine = r->epoll >= 0 && r->wake >= 0;
    for (int i = 0; fine && i < r->ranks; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        int fd = i == r->rank ? r->wake : r->peers[i].fd;
        fine = epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
    }
    if (!fine) { tn__raise(TN_EIO, "rpc_start", "epoll: %s", strerror(errno)); }
    return fine;
}

bool tn__rpc_connect(tn_rpc *r) {
    if (r->ranks == 1) { return true; }
    if (!watch_all(r)) { return false; }
    int failed = tn__thread_start(&r->thread, serve_connections, r);
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "its thread could not be started: %s", strerror(failed));
    }
    r->has_thread = !failed;
    return !failed;
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void tn__rpc_disconnect(tn_rpc *r) {
    if (r->has_thread) {
        uint64_t one = 1;
        while (write(r->wake, &one, sizeof(one)) < 0 && errno == EINTR) {}
        pthread_join(r->thread, NULL);
        r->has_thread = false;
    }
    for (int i = 0; i < r->ranks; i++) {
        tn__peer *p = &r->peers[i];
        pthread_mutex_lock(&p->sending);
        close_output(p);
        close_fd(&p->fd);
        pthread_mutex_unlock(&p->sending);
        free(p->reader.frame);
        p->reader.frame = NULL;
    }
    close_fd(&r->epoll);
    close_fd(&r->wake);
}
