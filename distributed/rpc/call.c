#include "core/clock.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "distributed/rpc/values.h"
#include "tensor/tensor.h"
#include "tern/module.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Thread_local const tn__serving *tn__served;

/* Whether this thread runs a function for another rank, or this one. */
static bool is_inside(const tn_rpc *r) {
    return tn__served && tn__served->rpc == r;
}

int tn_rpc_caller(void) {
    return tn__served ? tn__served->caller : -1;
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

/* With the deadline of the function that calls: later, nobody waits for what it is part of. */
static tn_future *make_future(tn_rpc *r, int to, const char *name, double timeout,
                              const char *operation) {
    double now = tn__now(), deadline = now + (timeout > 0 ? timeout : r->options.timeout);
    deadline = is_inside(r) ? fmin(deadline, tn__served->deadline) : deadline;
    if (deadline <= now) {
        tn__raise(TN_EPEER, operation,
                  "\"%s\" of rank %d: the call that runs this one has no time left", name, to);
        return NULL;
    }
    size_t length = strlen(name);
    tn_future *f = tn__calloc_for(1, sizeof(*f) + length + 1, operation);
    if (!f) { return NULL; }
    *f = (tn_future){.rpc = tn__rpc_keep(r), .to = to, .begun = now, .deadline = deadline};
    memcpy(f->name, name, length);
    return f;
}

static void free_future(tn_future *f) {
    tn_rpc *r = f->rpc;
    if (f->reply) { tn__rpc_drop_reply(r, f->to, f->reply); }
    free(f);
    tn__rpc_release(r);
}

/* Sends the call of a future that has begun. False after raising. */
static bool send_call(tn_rpc *r, const tn_future *f, tn__rpc_head h, const char *name,
                      const tn_values *in, const char *operation) {
    double left = f->deadline - tn__now();
    h.number = f->number;
    h.microseconds = left > 0 ? (uint64_t)(left * 1e6) : 0;
    tn__rpc_frame *frame = tn__values_encode(&h, name, in, operation);
    if (frame) { tn__connections_send(&r->connections, f->to, frame); }
    return frame != NULL;
}

/* What a function calls does not wait until its rank has answered enough: it follows from calls
 * that have waited, whose answers may depend on it. */
tn_future *tn__rpc_issue(tn_rpc *r, tn__rpc_head h, int to, const char *name, const tn_values *in,
                         double timeout, const char *operation) {
    const char *shown = name ? name : "backward";
    if (!tn__rpc_usable(r, operation) ||
        (h.kind != TN__RPC_BACKWARD && !call_sound(r, to, name, timeout, operation))) {
        return NULL;
    }
    tn_future *f = tn__values_measure(&h, to, name, in, r->options.message_limit, operation)
                       ? make_future(r, to, shown, timeout, operation)
                       : NULL;
    uint64_t bytes = TN__RPC_HEAD + h.bytes;
    bool begun = f && tn__futures_begin(&r->futures, f, bytes, !is_inside(r), operation);
    bool gone = begun && f->number == 0; /* the rank was lost before */
    if (begun && (gone || send_call(r, f, h, name, in, operation))) { return f; }
    if (begun) { tn__futures_cancel(&r->futures, f, bytes); }
    if (f) { free_future(f); }
    return NULL;
}

tn_future *tn_rpc_call(tn_rpc *r, int to, const char *name, tn_values in, double timeout) {
    return tn__rpc_issue(r, (tn__rpc_head){.kind = TN__RPC_CALL}, to, name, &in, timeout,
                         "rpc_call");
}

/* ---- Waiting --------------------------------------------------------------------------------- */

bool tn_rpc_done(const tn_future *f) {
    return !f || tn__inherited(f->rpc->process) || tn__futures_done(&f->rpc->futures, f);
}

/* The values of the reply; false after raising what went wrong. */
static bool open_reply(tn_rpc *r, const tn_future *f, tn_values *out, const char *operation) {
    const tn__rpc_frame *reply = f->reply;
    if (!reply) {
        const char *lost = tn__futures_lost(&r->futures, f->to);
        char late[64];
        snprintf(late, sizeof(late), "no answer within %.3g seconds", f->deadline - f->begun);
        tn__raise(TN_EPEER, operation, "\"%s\" of rank %d: %s", f->name, f->to, lost ? lost : late);
    } else if (reply->refused) {
        tn__raise(TN_EVALUE, operation,
                  "\"%s\" of rank %d: the result has %llu bytes (message_limit: %lld), or there is "
                  "no memory for it",
                  f->name, f->to, (unsigned long long)reply->head.bytes,
                  (long long)r->options.message_limit);
    } else if (reply->head.status != TN_OK) {
        tn__raise(reply->head.status, operation, "\"%s\" of rank %d: %.*s", f->name, f->to,
                  (int)(reply->bytes - TN__RPC_HEAD), (const char *)reply->data + TN__RPC_HEAD);
    }
    return !tn__pending() && tn__values_decode(reply, out);
}

tn__rpc_frame *tn__rpc_finish(tn_future *f, tn_values *out, const char *operation) {
    if (!f) { tn__raise(TN_EVALUE, operation, "the future is NULL"); }
    if (!f || tn__refuse_inherited(f->rpc->process, operation, "the rpc")) { return NULL; }
    tn_rpc *r = f->rpc;
    bool inside = is_inside(r);
    tn__rpc_frame *reply = NULL;
    if (tn__pending()) {
        tn__futures_cancel(&r->futures, f, 0);
    } else {
        if (inside) { tn__workers_block(&r->workers, true); }
        tn__futures_await(&r->futures, f);
        if (inside) { tn__workers_block(&r->workers, false); }
        reply = open_reply(r, f, out, operation) ? f->reply : NULL;
        f->reply = reply ? NULL : f->reply;
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
    reply->bytes = TN__RPC_HEAD;
    tn__rpc_head_write(reply->data, &reply->head);
    tn__rpc_frame *shorter = tn__realloc(reply, sizeof(*reply) + reply->bytes + 1);
    return shorter ? shorter : reply;
}

void tn__rpc_drop_reply(tn_rpc *r, int from, tn__rpc_frame *reply) {
    if (reply->head.mask) {
        tn__connections_send(&r->connections, from, tn__rpc_forget(reply));
    } else {
        free(reply);
    }
}
