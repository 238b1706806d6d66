#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "distributed/rpc/values.h"
#include "tern/autograd.h"

#include <string.h>

/* Whether the call can begin; raises otherwise. *f: its function; NULL: it is a backward. */
static bool find_callee(tn_rpc *r, const tn__rpc_frame *call, const tn__function **f) {
    const tn__rpc_head *h = &call->head;
    const char *name = (const char *)call->data + TN__RPC_HEAD;
    if (call->refused) {
        tn__raise(TN_EVALUE, NULL,
                  "the message has %llu bytes (message_limit there: %lld), or there is no memory "
                  "for it",
                  (unsigned long long)h->bytes, (long long)r->options.message_limit);
        return false;
    }
    *f = h->name_bytes ? tn__rpc_function(r, name, h->name_bytes) : NULL;
    if (!*f && h->name_bytes) {
        tn__raise(TN_EVALUE, NULL, "there is no function \"%.*s\"", (int)h->name_bytes, name);
    } else if (tn__now() > call->deadline) {
        tn__raise(TN_EPEER, NULL, "it was called too late to begin");
    }
    return !tn__pending();
}

/* The inputs in the mask become leaves. False after raising: one can have no gradient. */
static bool require_grads(const tn_values *in, uint8_t mask) {
    for (int i = 0; i < in->n; i++) {
        if (mask >> i & 1) { tn_set_requires_grad(in->v[i], true); }
    }
    return !tn__pending();
}

static bool results_sound(const tn_values *out) {
    if (!tn__pending() && (out->n < 0 || out->n > TN_MAX_VALUES)) {
        tn__raise(TN_EVALUE, NULL, "the function gives %d tensors (0 to %d)", out->n,
                  TN_MAX_VALUES);
    }
    return !tn__pending();
}

/* Runs what is called; false after raising. */
static bool run_call(tn_rpc *r, const tn__rpc_frame *call, tn_values *out, uint8_t *mask) {
    const tn__rpc_head *h = &call->head;
    const tn__function *f;
    tn_values in;
    if (!find_callee(r, call, &f) || !tn__values_decode(call, &in)) { return false; }
    if (!f) {
        *mask = h->mask;
        *out = tn__graphs_backward(&r->graphs, call->from, h->subject, &in, mask, call->deadline);
        return !tn__pending();
    }
    if (!require_grads(&in, h->mask)) { return false; }
    *out = f->f(in, f->user);
    return results_sound(out) &&
           (h->kind != TN__RPC_FORWARD ||
            tn__graphs_keep(&r->graphs, call->from, h->number, &in, out, mask));
}

/* The pending error, which becomes the caller's; NULL: there is none. */
static tn__rpc_frame *error_reply(tn__rpc_head h) {
    tn_error_record record;
    if (!tn_error_take(&record)) { return NULL; }
    size_t length = strlen(record.message);
    h.status = record.status;
    h.tensors = h.mask = 0;
    h.bytes = length;
    tn__rpc_frame *f = tn__rpc_frame_new(&h);
    if (f) { memcpy(f->data + TN__RPC_HEAD, record.message, length); }
    return f;
}

/* Runs it and makes the reply; NULL: there is no memory for one. */
static tn__rpc_frame *reply_to(tn_rpc *r, const tn__rpc_frame *call) {
    TN_SCOPE;
    tn_values out = {0};
    tn__rpc_head h = {.kind = TN__RPC_REPLY,
                      .number = call->head.number,
                      .subject = TN__RPC_HEAD + call->head.bytes};
    tn__rpc_frame *reply = NULL;
    if (run_call(r, call, &out, &h.mask) &&
        tn__values_measure(&h, call->from, NULL, &out, r->options.message_limit, "rpc_reply")) {
        reply = tn__values_encode(&h, NULL, &out, "rpc_reply");
    }
    if (!reply && call->head.kind == TN__RPC_FORWARD) {
        tn__graphs_forget(&r->graphs, call->from, h.number);
    }
    return reply ? reply : error_reply(h);
}

void tn__rpc_answer(void *rpc, tn__rpc_frame *call) {
    tn_rpc *r = rpc;
    const tn__serving serving = {.rpc = r, .caller = call->from, .deadline = call->deadline};
    tn__served = &serving;
    tn__rpc_frame *reply = reply_to(r, call);
    tn__served = NULL;
    if (reply) { tn__connections_send(&r->connections, call->from, reply); }
    if (tn__futures_lost(&r->futures, call->from)) { /* meanwhile, perhaps */
        tn__graphs_forget(&r->graphs, call->from, 0);
    }
    tn_error_clear();
    free(call);
}
