/* A reader is the only one that says that its connection has ended: whoever else notices shuts the
 * socket down, and the reader sees that. Descriptors are closed only when the threads have ended,
 * so that no number means two connections. */
#include "distributed/rpc/connections.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "distributed/store/net.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* Nothing more is sent, and the reader ends. */
static void close_connection(tn__connection *p) {
    pthread_mutex_lock(&p->lock);
    p->closed = true;
    if (p->fd >= 0) { shutdown(p->fd, SHUT_RDWR); }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* ---- Sending --------------------------------------------------------------------------------- */

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
        f->next = NULL;
        *(p->first ? &p->last->next : &p->first) = f;
        p->last = f;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Waits for the first frame, which stays in the queue while it is sent; NULL: closed. */
static tn__rpc_frame *first_frame(tn__connection *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->first && !p->closed) {
        pthread_cond_wait(&p->changed, &p->lock);
    }
    tn__rpc_frame *f = p->closed ? NULL : p->first;
    pthread_mutex_unlock(&p->lock);
    return f;
}

static void drop_first(tn__connection *p) {
    pthread_mutex_lock(&p->lock);
    tn__rpc_frame *f = p->first;
    p->first = f->next;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    free(f);
}

static void *write_frames(void *user) {
    tn__connection *p = user;
    for (tn__rpc_frame *f; (f = first_frame(p));) {
        struct iovec part = {f->data, f->bytes};
        if (tn__net_send(p->fd, &part, 1, INFINITY) != 0) {
            close_connection(p);
        } else {
            drop_first(p);
        }
    }
    return NULL;
}

bool tn__connections_drain(tn__connections *c, double deadline) {
    struct timespec until = tn__timespec(deadline);
    bool late = false;
    for (int i = 0; i < c->ranks; i++) {
        tn__connection *p = &c->list[i];
        pthread_mutex_lock(&p->lock);
        while (p->first && !p->closed && !late) {
            late = pthread_cond_timedwait(&p->changed, &p->lock, &until) != 0;
        }
        pthread_mutex_unlock(&p->lock);
    }
    return !late;
}

/* ---- Receiving ------------------------------------------------------------------------------- */

/* Receives the body, or skips that of a frame that is refused. 0 or an errno. */
static int receive_body(int fd, tn__rpc_frame *f) {
    uint8_t skipped[4096];
    if (!f->refused) {
        return tn__net_receive(fd, f->data + TN__RPC_HEAD, f->head.bytes, INFINITY);
    }
    int error = 0;
    for (uint64_t left = f->head.bytes, n; left && !error; left -= n) {
        n = left < sizeof(skipped) ? left : sizeof(skipped);
        error = tn__net_receive(fd, skipped, n, INFINITY);
    }
    return error;
}

/* Receives a frame. Returns why the connection is over; NULL: it is not. */
static const char *receive_frame(const tn__connection *p, tn__rpc_frame **f) {
    uint8_t bytes[TN__RPC_HEAD];
    tn__rpc_head h;
    *f = NULL;
    int error = tn__net_receive(p->fd, bytes, sizeof(bytes), INFINITY);
    if (!error) {
        if (!tn__rpc_head_read(bytes, &h)) { return "what it sends is malformed"; }
        *f = tn__rpc_frame_for(&h, p->all->limit);
        error = *f ? receive_body(p->fd, *f) : ENOMEM;
    }
    return error == 0            ? NULL
           : error == ECONNRESET ? "it has closed the connection, or died"
                                 : strerror(error);
}

static void *read_frames(void *user) {
    tn__connection *p = user;
    const tn__connections *c = p->all;
    tn__quiet(1);
    tn__rpc_frame *f;
    const char *why;
    while (!(why = receive_frame(p, &f))) {
        if (!c->receive(c->user, p->rank, f)) {
            why = "what it sends is out of place";
            f = NULL;
            break;
        }
    }
    free(f);
    close_connection(p);
    c->lost(c->user, p->rank, why);
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

bool tn__connections_init(tn__connections *c) {
    c->list = tn__calloc_for((size_t)c->ranks, sizeof(*c->list), "rpc_new");
    for (int i = 0; c->list && i < c->ranks; i++) {
        tn__connection *p = &c->list[i];
        *p = (tn__connection){.all = c, .rank = i, .fd = -1};
        pthread_mutex_init(&p->lock, NULL);
        tn__condition_init(&p->changed);
    }
    return c->list != NULL;
}

void tn__connections_finish(tn__connections *c) {
    for (int i = 0; c->list && i < c->ranks; i++) {
        pthread_cond_destroy(&c->list[i].changed);
        pthread_mutex_destroy(&c->list[i].lock);
    }
    free(c->list);
}

bool tn__connections_start(tn__connections *c) {
    int failed = 0;
    for (int i = 0; i < c->ranks && !failed; i++) {
        tn__connection *p = &c->list[i];
        if (i == c->rank) { continue; }
        failed = tn__thread_start(&p->reader, read_frames, p);
        p->threads += !failed;
        failed = failed ? failed : tn__thread_start(&p->writer, write_frames, p);
        p->threads += !failed;
    }
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "its threads could not be started: %s", strerror(failed));
    }
    return !failed;
}

void tn__connections_stop(tn__connections *c) {
    for (int i = 0; i < c->ranks; i++) {
        close_connection(&c->list[i]);
    }
    for (int i = 0; i < c->ranks; i++) {
        tn__connection *p = &c->list[i];
        if (p->threads > 0) { pthread_join(p->reader, NULL); }
        if (p->threads > 1) { pthread_join(p->writer, NULL); }
        pthread_mutex_lock(&p->lock);
        if (p->fd >= 0) { close(p->fd); }
        p->fd = -1;
        p->threads = 0;
        tn__rpc_frames_free(p->first);
        p->first = NULL;
        pthread_mutex_unlock(&p->lock);
    }
}
