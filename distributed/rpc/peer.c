/* The connections to the other ranks, once both sides have shown the secret; and the thread that
 * reads them.
 *
 * Whoever has a frame sends as much of it as the socket takes at once, under the peer's lock; what
 * is left is sent by the reader's thread when the socket takes more. Descriptors are closed only
 * when that thread has ended, so that no number means two connections. */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

_Thread_local bool tn__reading;

enum { EVENTS_AT_ONCE = 64, FRAMES_AT_ONCE = 64 };

/* ---- Sending --------------------------------------------------------------------------------- */

static void free_frames(tn__rpc_frame *first) {
    for (tn__rpc_frame *f = first, *next; f; f = next) {
        next = f->next;
        free(f);
    }
}

static void watch_peer(tn_rpc *r, tn__peer *p, int rank, bool sends) {
    if (sends != p->watched) {
        struct epoll_event event = {.events = EPOLLIN | (sends ? EPOLLOUT : 0u),
                                    .data.u32 = (uint32_t)rank};
        epoll_ctl(r->epoll, EPOLL_CTL_MOD, p->fd, &event);
        p->watched = sends;
    }
}

/* Under the peer's lock: sends what the socket takes. After an error the connection is shut down,
 * so that the reader's thread sees its end. */
static void send_some(tn_rpc *r, tn__peer *p, int rank) {
    while (p->first && !p->closed) {
        tn__rpc_frame *f = p->first;
        ssize_t sent =
            send(p->fd, f->data + p->sent, f->bytes - p->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch_peer(r, p, rank, true);
            return;
        }
        if (sent < 0) {
            p->closed = true;
            shutdown(p->fd, SHUT_RDWR);
            break;
        }
        p->sent += (size_t)sent;
        if (p->sent == f->bytes) {
            p->first = f->next;
            p->sent = 0;
            free(f);
        }
    }
    if (!p->closed) {
        watch_peer(r, p, rank, false);
    }
}

void tn__peer_send(tn_rpc *r, int to, tn__rpc_frame *f) {
    tn__peer *p = &r->peers[to];
    if (to == r->rank) {
        const char *fault;
        tn__rpc_take(r, to, f, &fault);
        return;
    }
    pthread_mutex_lock(&p->lock);
    if (p->closed || p->fd < 0) {
        free(f);
    } else {
        f->next = NULL;
        bool alone = !p->first;
        *(p->first ? &p->last->next : &p->first) = f;
        p->last = f;
        if (alone) {
            send_some(r, p, to);
        }
    }
    pthread_mutex_unlock(&p->lock);
}

void tn__peer_tell(tn_rpc *r, int to, tn__rpc_head h) {
    tn__rpc_frame *f = tn__rpc_frame_new(&h);
    if (f) {
        tn__peer_send(r, to, f);
    }
}

/* ---- Receiving ------------------------------------------------------------------------------- */

static void close_peer(tn_rpc *r, int rank, const char *why) {
    tn__peer *p = &r->peers[rank];
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, p->fd, NULL);
    shutdown(p->fd, SHUT_RDWR);
    free_frames(p->first);
    p->first = NULL;
    pthread_mutex_unlock(&p->lock);
    tn__reader_end(&p->reader);
    tn__rpc_lose(r, rank, why);
}

/* False: the connection is over, and *why says so. */
static bool receive_some(tn_rpc *r, int rank, const char **why) {
    tn__peer *p = &r->peers[rank];
    for (int frames = 0; frames < FRAMES_AT_ONCE;) {
        size_t most;
        void *room = tn__reader_room(&p->reader, &most);
        ssize_t got = recv(p->fd, room, most, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return true;
        }
        if (got <= 0) {
            *why = got < 0 ? strerror(errno) : "it has closed the connection, or died";
            return false;
        }
        tn__rpc_frame *f;
        if (!tn__reader_took(&p->reader, (size_t)got, &f)) {
            *why = "what it sends is malformed";
            return false;
        }
        frames += f != NULL;
        if (f && !tn__rpc_take(r, rank, f, why)) {
            return false;
        }
    }
    return true;
}

static void serve_peer(tn_rpc *r, const struct epoll_event *event) {
    int rank = (int)event->data.u32;
    tn__peer *p = &r->peers[rank];
    const char *why = "";
    if (event->events & EPOLLOUT) {
        pthread_mutex_lock(&p->lock);
        send_some(r, p, rank);
        pthread_mutex_unlock(&p->lock);
    }
    if ((event->events & ~(uint32_t)EPOLLOUT) && !receive_some(r, rank, &why)) {
        close_peer(r, rank, why);
    }
}

static void *read_peers(void *user) {
    tn_rpc *r = user;
    struct epoll_event events[EVENTS_AT_ONCE];
    tn__reading = true;
    tn__quiet(1);
    for (;;) {
        int n = epoll_wait(r->epoll, events, EVENTS_AT_ONCE, -1);
        for (int i = 0; i < n; i++) {
            if ((int)events[i].data.u32 == r->rank) {
                return NULL;
            }
            serve_peer(r, &events[i]);
            tn_error_clear(); /* of a message that is dropped */
        }
    }
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool watch_all(tn_rpc *r) {
    struct epoll_event wake = {.events = EPOLLIN, .data.u32 = (uint32_t)r->rank};
    r->epoll = tn__above_streams(epoll_create1(EPOLL_CLOEXEC));
    r->wake = tn__above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    bool fine =
        r->epoll >= 0 && r->wake >= 0 && epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->wake, &wake) == 0;
    for (int i = 0; fine && i < r->ranks; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        r->peers[i].reader.limit = (uint64_t)r->options.message_limit;
        fine = i == r->rank || epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->peers[i].fd, &event) == 0;
    }
    if (!fine) {
        tn__raise(TN_EIO, "rpc_start", "epoll: %s", strerror(errno));
    }
    return fine;
}

/* Signals go to the program's own threads. */
bool tn__peers_start(tn_rpc *r) {
    if (r->ranks == 1) {
        return true;
    }
    if (!watch_all(r)) {
        return false;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&r->reader, NULL, read_peers, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "its thread could not be started: %s", strerror(failed));
    }
    r->has_reader = !failed;
    return !failed;
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

void tn__peers_stop(tn_rpc *r) {
    if (r->has_reader) {
        uint64_t one = 1;
        while (write(r->wake, &one, sizeof(one)) < 0 && errno == EINTR) {
        }
        pthread_join(r->reader, NULL);
        r->has_reader = false;
    }
    for (int i = 0; i < r->ranks; i++) {
        tn__peer *p = &r->peers[i];
        pthread_mutex_lock(&p->lock);
        p->closed = true;
        close_fd(&p->fd);
        free_frames(p->first);
        p->first = NULL;
        pthread_mutex_unlock(&p->lock);
        tn__reader_end(&p->reader);
    }
    close_fd(&r->epoll);
    close_fd(&r->wake);
}
