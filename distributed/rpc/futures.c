#include "distributed/rpc/futures.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

#include <math.h>
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

tn_future *tn__future_new(tn_rpc *r, int to, const char *name, double deadline) {
    size_t length = strlen(name);
    tn_future *f = tn__calloc_for(1, sizeof(*f) + length + 1, "rpc_call");
    if (f) {
        memcpy(f->name, name, length + 1);
        f->rpc = r;
        f->to = to;
        f->begun = tn__now();
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

/* It is done; without a reply, for this reason. */
static void set_done(tn__futures *fs, tn_future *f, tn__rpc_frame *reply, const char *why) {
    f->reply = reply;
    f->done = true;
    snprintf(f->why, sizeof(f->why), "%s", why);
    pthread_cond_signal(&f->changed);
    pthread_cond_broadcast(&fs->answered);
}

/* So many bytes are answered, or were not sent. */
static void release_bytes(tn__futures *fs, int rank, uint64_t bytes) {
    tn__callee *c = &fs->callees[rank];
    c->unanswered -= bytes < c->unanswered ? bytes : c->unanswered;
    pthread_cond_broadcast(&fs->answered);
}

/* Waits on `answered`; false at the deadline. */
static bool await_answer(tn__futures *fs, double deadline) {
    if (isinf(deadline)) {
        pthread_cond_wait(&fs->answered, &fs->lock);
        return true;
    }
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
        set_done(fs, f, NULL, c->why);
    } else if (!late) {
        c->unanswered += bytes;
        put_future(fs, f);
    }
    pthread_mutex_unlock(&fs->lock);
    if (late) {
        tn__raise(TN_EPEER, operation,
                  "\"%s\" of rank %d: %llu bytes of calls wait for its answers (backlog_limit: "
                  "%llu), for more than %.3g seconds",
                  f->name, f->to, (unsigned long long)unanswered, (unsigned long long)fs->limit,
                  f->deadline - f->begun);
    }
    return !late;
}

void tn__futures_cancel(tn__futures *fs, tn_future *f, uint64_t unsent) {
    pthread_mutex_lock(&fs->lock);
    if (!f->done) {
        take_future(fs, f->number, f->to);
        release_bytes(fs, f->to, unsent);
    }
    pthread_mutex_unlock(&fs->lock);
}

void tn__futures_await(tn__futures *fs, tn_future *f) {
    struct timespec until = tn__timespec(f->deadline);
    pthread_mutex_lock(&fs->lock);
    while (!f->done && pthread_cond_timedwait(&f->changed, &fs->lock, &until) == 0) {
    }
    if (!f->done) {
        char why[TN__RPC_WHY];
        snprintf(why, sizeof(why), "no answer within %.3g seconds", f->deadline - f->begun);
        take_future(fs, f->number, f->to);
        set_done(fs, f, NULL, why);
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
    if (f) {
        set_done(fs, f, reply, "");
    }
    pthread_mutex_unlock(&fs->lock);
    return f != NULL;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

void tn__futures_lose(tn__futures *fs, int rank, const char *why) {
    pthread_mutex_lock(&fs->lock);
    tn__callee *c = &fs->callees[rank];
    if (!c->gone) {
        c->gone = true;
        fs->first_lost = fs->first_lost ? fs->first_lost : c;
        snprintf(c->why, sizeof(c->why), "rank %d is gone: %s", rank, why);
    }
    for (int i = 0; i < TN__RPC_BUCKETS; i++) {
        for (tn_future **at = &fs->buckets[i]; *at;) {
            tn_future *f = *at;
            if (f->to != rank) {
                at = &f->next;
                continue;
            }
            *at = f->next;
            fs->waiting--;
            set_done(fs, f, NULL, c->why);
        }
    }
    pthread_cond_broadcast(&fs->answered);
    pthread_mutex_unlock(&fs->lock);
}

bool tn__futures_lost(tn__futures *fs, int rank) {
    pthread_mutex_lock(&fs->lock);
    bool gone = fs->callees[rank].gone;
    pthread_mutex_unlock(&fs->lock);
    return gone;
}

bool tn__futures_first_lost(tn__futures *fs, char why[TN__RPC_WHY]) {
    pthread_mutex_lock(&fs->lock);
    const tn__callee *lost = fs->first_lost;
    pthread_mutex_unlock(&fs->lock);
    snprintf(why, TN__RPC_WHY, "%s", lost ? lost->why : ""); /* which does not change any more */
    return lost != NULL;
}

bool tn__futures_settle(tn__futures *fs, double deadline) {
    bool late = false;
    pthread_mutex_lock(&fs->lock);
    while (fs->waiting > 0 && !late) {
        late = !await_answer(fs, deadline);
    }
    bool settled = fs->waiting == 0;
    pthread_mutex_unlock(&fs->lock);
    return settled;
}
