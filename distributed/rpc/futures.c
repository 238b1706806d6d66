#include "distributed/rpc/futures.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

bool tn__futures_init(tn__futures *fs, int ranks, int64_t limit) {
    fs->callees = tn__calloc_for((size_t)ranks, sizeof(*fs->callees), "rpc_new");
    fs->limit = (uint64_t)limit;
    pthread_mutex_init(&fs->lock, NULL);
    tn__condition_init(&fs->answered);
    return fs->callees != NULL;
}

void tn__futures_finish(tn__futures *fs) {
    pthread_cond_destroy(&fs->answered);
    pthread_mutex_destroy(&fs->lock);
    free(fs->callees);
}

tn_future *tn__future_new(tn_rpc *r, int to, const char *name, double now, double deadline) {
    size_t length = strlen(name);
    tn_future *f = tn__calloc_for(1, sizeof(*f) + length + 1, "rpc_call");
    if (f) {
        memcpy(f->name, name, length + 1);
        f->rpc = r;
        f->to = to;
        f->begun = now;
        f->deadline = deadline;
        tn__condition_init(&f->changed);
    }
    return f;
}

void tn__future_free(tn_future *f) {
    pthread_cond_destroy(&f->changed);
    free(f);
}

/* ---- Under the lock -------------------------------------------------------------------------- */

/* Takes the future with this number out of its bucket; NULL: none, or of another rank. */
static tn_future *take_future(tn__futures *fs, uint64_t number, int to) {
    for (tn_future **at = &fs->buckets[number % TN__RPC_BUCKETS]; *at; at = &(*at)->next) {
        tn_future *f = *at;
        if (f->number == number && f->to == to) {
            *at = f->next;
            fs->waiting--;
            return f;
        }
    }
    return NULL;
}

static void put_future(tn__futures *fs, tn_future *f) {
    f->number = ++fs->last_number;
    tn_future **bucket = &fs->buckets[f->number % TN__RPC_BUCKETS];
    f->next = *bucket;
    *bucket = f;
    fs->waiting++;
}

static void set_done(tn__futures *fs, tn_future *f, tn__rpc_frame *reply) {
    f->reply = reply;
    f->done = true;
    pthread_cond_signal(&f->changed);
    pthread_cond_broadcast(&fs->answered);
}

/* So many bytes are answered, or were not sent. */
static void release_bytes(tn__futures *fs, int rank, uint64_t bytes) {
    tn__callee *c = &fs->callees[rank];
    c->unanswered -= bytes < c->unanswered ? bytes : c->unanswered;
    pthread_cond_broadcast(&fs->answered);
}

/* False at the deadline. */
static bool await_answer(tn__futures *fs, double deadline) {
    struct timespec until = tn__timespec(deadline);
    return pthread_cond_timedwait(&fs->answered, &fs->lock, &until) == 0;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

bool tn__futures_begin(tn__futures *fs, tn_future *f, uint64_t bytes, bool waits,
                       const char *operation) {
    tn__callee *c = &fs->callees[f->to];
    bool late = false;
    pthread_mutex_lock(&fs->lock);
    while (waits && !c->gone && c->unanswered >= fs->limit && !late) {
        late = !await_answer(fs, f->deadline);
    }
    uint64_t unanswered = c->unanswered;
    if (c->gone) {
        f->done = true;
    } else if (!late) {
        c->unanswered += bytes;
        put_future(fs, f);
    }
    pthread_mutex_unlock(&fs->lock);
    if (late && !f->done) {
        tn__raise(TN_EPEER, operation,
                  "\"%s\" of rank %d: %llu bytes of calls wait for its answers (backlog_limit: "
                  "%llu), for more than %.3g seconds",
                  f->name, f->to, (unsigned long long)unanswered, (unsigned long long)fs->limit,
                  f->deadline - f->begun);
    }
    return !late || f->done;
}

void tn__futures_cancel(tn__futures *fs, tn_future *f, uint64_t unsent) {
    pthread_mutex_lock(&fs->lock);
    if (take_future(fs, f->number, f->to)) { release_bytes(fs, f->to, unsent); }
    pthread_mutex_unlock(&fs->lock);
}

void tn__futures_await(tn__futures *fs, tn_future *f) {
    struct timespec until = tn__timespec(f->deadline);
    pthread_mutex_lock(&fs->lock);
    while (!f->done && pthread_cond_timedwait(&f->changed, &fs->lock, &until) == 0) {}
    if (!f->done) {
        take_future(fs, f->number, f->to);
        set_done(fs, f, NULL);
    }
    pthread_mutex_unlock(&fs->lock);
}

bool tn__futures_done(tn__futures *fs, const tn_future *f) {
    pthread_mutex_lock(&fs->lock);
    bool done = f->done || tn__now() >= f->deadline;
    pthread_mutex_unlock(&fs->lock);
    return done;
}

bool tn__futures_reply(tn__futures *fs, int from, tn__rpc_frame *reply) {
    pthread_mutex_lock(&fs->lock);
    release_bytes(fs, from, reply->head.subject);
    tn_future *f = take_future(fs, reply->head.number, from);
    if (f) { set_done(fs, f, reply); }
    pthread_mutex_unlock(&fs->lock);
    return f != NULL;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

void tn__futures_lose(tn__futures *fs, int rank, const char *why) {
    tn__callee *c = &fs->callees[rank];
    pthread_mutex_lock(&fs->lock);
    if (!c->gone) {
        c->gone = true;
        snprintf(c->why, sizeof(c->why), "rank %d is gone: %s", rank, why);
        fs->first_lost = fs->first_lost ? fs->first_lost : c;
    }
    for (int i = 0; i < TN__RPC_BUCKETS; i++) {
        for (tn_future *f = fs->buckets[i], *next; f; f = next) {
            next = f->next;
            if (f->to == rank) {
                take_future(fs, f->number, rank);
                set_done(fs, f, NULL);
            }
        }
    }
    pthread_cond_broadcast(&fs->answered);
    pthread_mutex_unlock(&fs->lock);
}

const char *tn__futures_lost(tn__futures *fs, int rank) {
    pthread_mutex_lock(&fs->lock);
    const tn__callee *c = rank < 0 ? fs->first_lost : &fs->callees[rank];
    const char *why = c && c->gone ? c->why : NULL;
    pthread_mutex_unlock(&fs->lock);
    return why;
}

bool tn__futures_settle(tn__futures *fs, double deadline) {
    pthread_mutex_lock(&fs->lock);
    while (fs->waiting > 0 && await_answer(fs, deadline)) {}
    bool settled = fs->waiting == 0;
    pthread_mutex_unlock(&fs->lock);
    return settled;
}
