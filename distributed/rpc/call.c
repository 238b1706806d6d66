#include "core/clock.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "tensor/tensor.h"
#include "tern/module.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Futures --------------------------------------------------------------------------------- */

/* With the deadline of the function that calls: later, nobody waits for what it is part of. */
static tn_future *make_future(tn_rpc *r, int to, const char *name, double timeout) {
    double now = tn__now(), deadline = now + (timeout > 0 ? timeout : r->options.timeout);
    deadline = tn__rpc_inside(r) ? fmin(deadline, tn__served->deadline) : deadline;
    if (deadline <= now) {
        return tn__fail_null(TN_EPEER, NULL, "the call that runs this one has no time left");
    }
    size_t length = strlen(name);
    tn_future *f = tn__calloc_for(1, sizeof(*f) + length + 1, NULL);
    if (!f) { return NULL; }
    *f = (tn_future){.rpc = tn__rpc_keep(r), .to = to, .begun = now, .deadline = deadline};
    memcpy(f->name, name, length);
    return f;
}

/* A reply that no one takes: if it is a forward's, perhaps, its rank may forget the graph. */
static void drop_reply(tn_rpc *r, int from, tn__rpc_frame *reply) {
    if (reply && reply->head.mask) {
        tn__rpc_send(r, from, tn__rpc_forget(reply));
    } else {
        free(reply);
    }
}

static void free_future(tn_future *f) {
    tn_rpc *r = f->rpc;
    drop_reply(r, f->to, f->reply);
    free(f);
    tn__rpc_release(r);
}

/* Under the lock: the future that waits for this answer (0: the oldest) does so no more. NULL:
 * there is none. Answers come roughly in the order of the calls, so the search is short. */
static tn_future *take_future(tn_rpc *r, int to, uint64_t number) {
    tn__peer *p = &r->peers[to];
    tn_future **at = &p->futures, *f;
    while (*at && number && (*at)->number != number) {
        at = &(*at)->next;
    }
    if ((f = *at)) {
        *at = f->next;
        p->end = f->next ? p->end : at;
        r->waiting--;
    }
    return f;
}

void tn__rpc_reply(tn_rpc *r, int from, tn__rpc_frame *reply) {
    tn__peer *p = &r->peers[from];
    uint64_t answered = reply->head.subject;
    pthread_mutex_lock(&r->lock);
    p->unanswered -= answered < p->unanswered ? answered : p->unanswered;
    tn_future *f = take_future(r, from, reply->head.number);
    if (f) {
        f->reply = reply;
        f->done = true;
    }
    tn__rpc_unlock(r);
    if (!f) { drop_reply(r, from, reply); }
}

void tn__rpc_lose(tn_rpc *r, int rank, const char *why) {
    tn__peer *p = &r->peers[rank];
    pthread_mutex_lock(&r->lock);
    if (!p->gone) {
        p->gone = true;
        snprintf(p->why, sizeof(p->why), "rank %d is gone: %s", rank, why);
        r->first_lost = r->first_lost ? r->first_lost : p;
    }
    for (tn_future *f; (f = take_future(r, rank, 0));) {
        f->done = true;
    }
    tn__rpc_unlock(r);
}

/* ---- Calling --------------------------------------------------------------------------------- */

static bool call_sound(const tn_rpc *r, int to, const char *name, double timeout,
                       const char *operation) {
    if (to < 0 || to >= r->ranks) {
        tn__raise(TN_EVALUE, operation, "rank %d (there are %d)", to, r->ranks);
    } else if (!name || !*name || strlen(name) > TN__RPC_NAME) {
        tn__raise(TN_EVALUE, operation, "the name \"%.40s\" (1 to %d bytes)",
                  name ? name : "(NULL)", TN__RPC_NAME);
    } else if (!(timeout >= 0 && timeout <= 1e9)) {
        tn__raise(TN_EVALUE, operation, "a time-out of %g seconds (0 to 1e9)", timeout);
    } else if (!__atomic_load_n(&r->started, __ATOMIC_ACQUIRE)) {
        tn__raise(TN_ESTATE, operation, "\"%s\" of rank %d: tn_rpc_start was not called", name, to);
    }
    return !tn__pending();
}

/* Under the lock: waits until the rank has answered enough; false: not in time. What a function
 * calls does not wait: it follows from calls that have waited, whose answers may depend on it. */
static bool await_room(tn_rpc *r, const tn_future *f) {
    const tn__peer *p = &r->peers[f->to];
    while (!tn__rpc_inside(r) && !p->gone && p->unanswered >= (uint64_t)r->options.backlog_limit) {
        if (!tn__rpc_await(r, f->deadline)) { return p->gone; }
    }
    return true;
}

/* From here on f waits for an answer, unless its rank is gone. False after raising. */
static bool begin_call(tn_rpc *r, tn_future *f, uint64_t bytes) {
    tn__peer *p = &r->peers[f->to];
    pthread_mutex_lock(&r->lock);
    bool late = !await_room(r, f);
    uint64_t unanswered = p->unanswered;
    f->done = p->gone;
    if (!late && !p->gone) {
        p->unanswered += bytes;
        f->number = ++r->last_number;
        *p->end = f;
        p->end = &f->next;
        r->waiting++;
    }
    pthread_mutex_unlock(&r->lock);
    return !late ||
           tn__fail(TN_EPEER, NULL,
                    "%llu bytes of calls wait for its answers (backlog_limit: %lld), for more than "
                    "%.3g seconds",
                    (unsigned long long)unanswered, (long long)r->options.backlog_limit,
                    f->deadline - f->begun);
}

tn_future *tn__rpc_issue(tn_rpc *r, tn__rpc_head h, int to, const char *name, const tn_values *in,
                         double timeout, const char *operation) {
    if (!tn__rpc_usable(r, operation) ||
        (h.kind != TN__RPC_BACKWARD && !call_sound(r, to, name, timeout, operation))) {
        return NULL;
    }
    const char *what = name ? name : "backward";
    tn__quiet(1);
    tn__rpc_frame *call = tn__values_encode(h, name, in, r->options.message_limit);
    tn_future *f = call ? make_future(r, to, what, timeout) : NULL;
    bool begun = f && begin_call(r, f, TN__RPC_HEAD + call->head.bytes);
    tn__quiet(-1);
    if (begun && f->number) {
        double left = f->deadline - tn__now();
        call->head.number = f->number;
        call->head.microseconds = left > 0 ? (uint64_t)(left * 1e6) : 0;
        tn__rpc_send(r, to, call);
        return f;
    }
    free(call);
    if (begun) { return f; }
    tn__raise_again(operation, "\"%s\" of rank %d", what, to);
    if (f) { free_future(f); }
    return NULL;
}

tn_future *tn_rpc_call(tn_rpc *r, int to, const char *name, tn_values in, double timeout) {
    return tn__rpc_issue(r, (tn__rpc_head){.kind = TN__RPC_CALL}, to, name, &in, timeout,
                         "rpc_call");
}

/* ---- Waiting --------------------------------------------------------------------------------- */

bool tn_rpc_done(const tn_future *f) {
    if (!f || tn__inherited(f->rpc->process)) { return true; }
    pthread_mutex_lock(&f->rpc->lock);
    bool done = f->done || tn__now() >= f->deadline;
    pthread_mutex_unlock(&f->rpc->lock);
    return done;
}

/* Until it is done or late; not at all if its time is up. */
static void await_reply(tn_rpc *r, tn_future *f, double deadline) {
    bool inside = tn__rpc_inside(r);
    pthread_mutex_lock(&r->lock);
    if (inside) { tn__served->block(r, 1); }
    while (!f->done && tn__rpc_await(r, deadline)) {}
    if (inside) { tn__served->block(r, -1); }
    if (!f->done) { take_future(r, f->to, f->number); }
    tn__rpc_unlock(r);
}

/* The values of the reply; false after raising what went wrong. */
static bool open_reply(tn_rpc *r, const tn_future *f, tn_values *out) {
    const tn__rpc_frame *reply = f->reply;
    if (!reply) {
        pthread_mutex_lock(&r->lock);
        const char *lost = r->peers[f->to].gone ? r->peers[f->to].why : NULL;
        pthread_mutex_unlock(&r->lock);
        if (lost) {
            tn__raise(TN_EPEER, NULL, "%s", lost);
        } else {
            tn__raise(TN_EPEER, NULL, "no answer within %.3g seconds", f->deadline - f->begun);
        }
    } else if (reply->refused) {
        tn__raise(TN_EVALUE, NULL,
                  "the result has %llu bytes (message_limit: %lld), or there is no memory for it",
                  (unsigned long long)reply->head.bytes, (long long)r->options.message_limit);
    } else if (reply->head.status != TN_OK) {
        int bytes = (int)reply->head.bytes;
        tn__raise((tn_status)reply->head.status, NULL, "%.*s", bytes ? bytes : INT_MAX,
                  bytes ? (const char *)reply->body : "it has no memory to say why");
    }
    return !tn__pending() && tn__values_decode(reply, out);
}

tn__rpc_frame *tn__rpc_finish(tn_future *f, tn_values *out, const char *operation) {
    if (!f) { tn__raise(TN_EVALUE, operation, "the future is NULL"); }
    if (!f || tn__refuse_inherited(f->rpc->process, operation, "the rpc")) { return NULL; }
    bool pending = tn__pending(); /* then f is only forgotten */
    await_reply(f->rpc, f, pending ? 0 : f->deadline);
    tn__quiet(1);
    tn__rpc_frame *reply = !pending && open_reply(f->rpc, f, out) ? f->reply : NULL;
    tn__quiet(-1);
    if (reply) {
        f->reply = NULL;
    } else if (!pending) {
        tn__raise_again(operation, "\"%s\" of rank %d", f->name, f->to);
    }
    free_future(f);
    return reply;
}

tn_values tn_rpc_wait(tn_future *f) {
    tn_values out;
    tn__rpc_frame *reply = tn__rpc_finish(f, &out, "rpc_wait");
    free(reply);
    return reply ? out : TN_VALUES(tn_inert());
}

tn__rpc_frame *tn__rpc_forget(tn__rpc_frame *reply) {
    reply->head = (tn__rpc_head){.kind = TN__RPC_FORGET, .number = reply->head.number};
    tn__rpc_frame *shorter = tn__realloc(reply, sizeof(*reply));
    return shorter ? shorter : reply;
}
