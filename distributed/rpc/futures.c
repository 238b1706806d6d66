#include "distributed/rpc/futures.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"

#include <stdio.h>

bool tn__futures_init(tn__futures *fs, int ranks, int64_t limit) {
    fs->callees = tn__calloc_for((size_t)ranks, sizeof(*fs->callees), "rpc_new");
    fs->ranks = ranks;
    fs->limit = (uint64_t)limit;
    fs->end = &fs->first;
    pthread_mutex_init(&fs->lock, NULL);
    tn__condition_init(&fs->changed);
    return fs->callees != NULL;
}

void tn__futures_finish(tn__futures *fs) {
    pthread_cond_destroy(&fs->changed);
    pthread_mutex_destroy(&fs->lock);
    free(fs->callees);
}

/* ---- Under the lock -------------------------------------------------------------------------- */

/* Takes the first future of this rank with this number (0: any) out of the list; NULL: none. */
static tn_future *take_future(tn__futures *fs, int to, uint64_t number) {
    tn_future **at = &fs->first;
    while (*at && !((*at)->to == to && (number == 0 || (*at)->number == number))) {
        at = &(*at)->next;
    }
    tn_future *f = *at;
    if (f) {
        *at = f->next;
        fs->end = f->next ? fs->end : at;
    }
    return f;
}

static void put_future(tn__futures *fs, tn_future *f) {
    f->number = ++fs->last_number;
    f->next = NULL;
    *fs->end = f;
    fs->end = &f->next;
}

/* So many bytes are answered, or were not sent. */
static void release_bytes(tn__futures *fs, int rank, uint64_t bytes) {
    tn__callee *c = &fs->callees[rank];
    c->unanswered -= bytes < c->unanswered ? bytes : c->unanswered;
}

/* Waits for any change; false at the deadline. */
static bool await_change(tn__futures *fs, double deadline) {
    struct timespec until = tn__timespec(deadline);
    return pthread_cond_timedwait(&fs->changed, &fs->lock, &until) == 0;
}

static void unlock_changed(tn__futures *fs) {
    pthread_cond_broadcast(&fs->changed);
    pthread_mutex_unlock(&fs->lock);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

bool tn__futures_begin(tn__futures *fs, tn_future *f, uint64_t bytes, bool waits,
                       const char *operation) {
    tn__callee *c = &fs->callees[f->to];
    bool late = false;
    pthread_mutex_lock(&fs->lock);
    while (waits && !c->gone && c->unanswered >= fs->limit && !late) {
        late = !await_change(fs, f->deadline);
    }
    uint64_t unanswered = c->unanswered;
    f->done = c->gone;
    late = late && !c->gone;
    if (!late && !c->gone) {
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
    if (!f->done && take_future(fs, f->to, f->number)) { release_bytes(fs, f->to, unsent); }
    unlock_changed(fs);
}

void tn__futures_await(tn__futures *fs, tn_future *f) {
    pthread_mutex_lock(&fs->lock);
    while (!f->done && await_change(fs, f->deadline)) {}
    if (!f->done) { take_future(fs, f->to, f->number); }
    unlock_changed(fs);
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
    tn_future *f = take_future(fs, from, reply->head.number);
    if (f) {
        f->reply = reply;
        f->done = true;
    }
    unlock_changed(fs);
    return f != NULL;
}

bool tn__futures_settle(tn__futures *fs, double deadline) {
    pthread_mutex_lock(&fs->lock);
    while (fs->first && await_change(fs, deadline)) {}
    bool settled = !fs->first;
    pthread_mutex_unlock(&fs->lock);
    return settled;
}

/* ---- Ends ------------------------------------------------------------------------------------ */

void tn__futures_ended(tn__futures *fs, int rank) {
    pthread_mutex_lock(&fs->lock);
    fs->callees[rank].ended = true;
    unlock_changed(fs);
}

/* Under the lock. */
static int missing_rank(const tn__futures *fs) {
    int missing = -1;
    for (int i = 0; i < fs->ranks; i++) {
        const tn__callee *c = &fs->callees[i];
        if (!c->ended && c->gone) { return i; }
        missing = missing < 0 && !c->ended ? i : missing;
    }
    return missing;
}

int tn__futures_await_ends(tn__futures *fs, double deadline) {
    int missing;
    pthread_mutex_lock(&fs->lock);
    while ((missing = missing_rank(fs)) >= 0 && !fs->callees[missing].gone &&
           await_change(fs, deadline)) {}
    pthread_mutex_unlock(&fs->lock);
    return missing;
}

void tn__futures_lose(tn__futures *fs, int rank, const char *why) {
    tn__callee *c = &fs->callees[rank];
    pthread_mutex_lock(&fs->lock);
    if (!c->gone) {
        c->gone = true;
        snprintf(c->why, sizeof(c->why), "rank %d is gone: %s", rank, why);
        fs->first_lost = fs->first_lost ? fs->first_lost : c;
    }
    for (tn_future *f; (f = take_future(fs, rank, 0));) {
        f->done = true;
    }
    unlock_changed(fs);
}

const char *tn__futures_lost(tn__futures *fs, int rank) {
    pthread_mutex_lock(&fs->lock);
    const tn__callee *c = rank < 0 ? fs->first_lost : &fs->callees[rank];
    const char *why = c && c->gone ? c->why : NULL;
    pthread_mutex_unlock(&fs->lock);
    return why;
}
