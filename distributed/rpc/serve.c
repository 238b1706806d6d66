/* Calls that have arrived: the queue, and the threads that answer it. */
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "distributed/rpc/rpc.h"

#include <string.h>

static void *serve_calls(void *user);

/* Under the lock: 0, or the error's number. */
static int add_thread(tn_rpc *r) {
    int failed = tn__thread_start(&r->threads[r->thread_count], serve_calls, r);
    r->thread_count += !failed;
    return failed;
}

/* Under the lock. */
static bool may_run(const tn_rpc *r) {
    return r->calls.first && r->running - r->blocked < r->options.threads;
}

/* Under the lock: lets another thread take the first of the queue. If none can be started, those
 * that are there take it when they are free. */
static void wake_thread(tn_rpc *r) {
    if (may_run(r) && r->idle > 0) {
        pthread_cond_signal(&r->queued);
    } else if (may_run(r) && r->thread_count < r->options.threads_most && !r->stopped) {
        add_thread(r);
    }
}

static void count_blocked(tn_rpc *r, int more) {
    r->blocked += more;
    wake_thread(r);
}

/* ---- Answering ------------------------------------------------------------------------------- */

/* Whether the call can begin; raises otherwise. *f: its function; NULL: it is a backward. */
static bool find_callee(tn_rpc *r, const tn__rpc_frame *call, const tn__function **f) {
    const tn__rpc_head *h = &call->head;
    const char *name = (const char *)call->body;
    if (call->refused) {
        tn__raise(TN_EVALUE, NULL,
                  "the message has %llu bytes (message_limit there: %lld), or there is no memory "
                  "for it",
                  (unsigned long long)h->bytes, (long long)r->options.message_limit);
        return false;
    }
    pthread_mutex_lock(&r->lock);
    *f = h->name_bytes ? tn__rpc_function(r, name, h->name_bytes) : NULL;
    pthread_mutex_unlock(&r->lock);
    if (!*f && h->name_bytes) {
        tn__raise(TN_EVALUE, NULL, "there is no function \"%.*s\"", (int)h->name_bytes, name);
    } else if (tn__now() > call->deadline) {
        tn__raise(TN_EPEER, NULL, "it was called too late to begin");
    }
    return !tn__pending();
}

/* Runs what is called and makes the reply, with head h. NULL after raising. */
static tn__rpc_frame *run_call(tn_rpc *r, const tn__rpc_frame *call, tn__rpc_head h) {
    const tn__function *f;
    tn_values in, out = {0};
    if (!find_callee(r, call, &f) || !tn__values_decode(call, &in)) { return NULL; }
    for (int i = 0; f && i < in.n; i++) {
        if (call->head.mask >> i & 1) { tn_set_requires_grad(in.v[i], true); }
    }
    if (!f) {
        out = tn__rpc_backward(r, call, &in, &h.mask);
    } else if (!tn__pending()) {
        out = f->f(in, f->user);
    }
    if (tn__pending()) { return NULL; }
    tn__rpc_frame *reply = tn__values_encode(h, NULL, &out, r->options.message_limit);
    if (!reply) {
        tn__raise_again("rpc_reply", "the result for rank %d", call->from);
    } else if (call->head.kind == TN__RPC_FORWARD &&
               !tn__rpc_keep_graph(r, call, &in, &out, &reply->head.mask)) {
        free(reply);
        return NULL;
    }
    return reply;
}

/* Makes of the call the reply with the pending error, which becomes the caller's. Where there is no
 * memory for its text, the caller gets the status alone. */
static tn__rpc_frame *error_reply(tn__rpc_frame *call, tn__rpc_head h) {
    tn_error_record record;
    tn_error_take(&record);
    size_t length = strlen(record.message);
    tn__rpc_frame *f = tn__realloc(call, sizeof(*f) + length);
    h.status = (uint8_t)record.status;
    h.bytes = f ? length : 0;
    f = f ? f : call;
    *f = (tn__rpc_frame){.head = h};
    memcpy(f->body, record.message, h.bytes);
    return f;
}

/* Takes the call over. */
static void answer_call(tn_rpc *r, tn__rpc_frame *call) {
    const tn__serving serving = {r, call->from, call->deadline, count_blocked};
    tn__served = &serving;
    tn__rpc_head h = {.kind = TN__RPC_REPLY,
                      .number = call->head.number,
                      .subject = TN__RPC_HEAD + call->head.bytes};
    tn__rpc_frame *reply;
    {
        TN_SCOPE; /* what its end raises is no later call's */
        reply = run_call(r, call, h);
        if (reply) {
            free(call);
        } else {
            reply = error_reply(call, h);
        }
    }
    tn__served = NULL;
    tn__rpc_send(r, serving.caller, reply);
    tn_error_clear();
}

static void *serve_calls(void *user) {
    tn_rpc *r = user;
    tn__quiet(1); /* errors go to the caller */
    pthread_mutex_lock(&r->lock);
    while (!r->stopped) {
        if (!may_run(r)) {
            r->idle++;
            pthread_cond_wait(&r->queued, &r->lock);
            r->idle--;
            continue;
        }
        tn__rpc_frame *call = r->calls.first;
        r->calls.first = call->next;
        r->running++;
        wake_thread(r); /* for the next one */
        pthread_mutex_unlock(&r->lock);
        answer_call(r, call);
        pthread_mutex_lock(&r->lock);
        r->running--;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

bool tn__rpc_start_serving(tn_rpc *r) {
    pthread_mutex_lock(&r->lock);
    int failed = add_thread(r);
    pthread_mutex_unlock(&r->lock);
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "no thread for calls could be started: %s",
                  strerror(failed));
    }
    return !failed;
}

void tn__rpc_stop_serving(tn_rpc *r) {
    pthread_mutex_lock(&r->lock);
    r->stopped = true;
    int count = r->thread_count;
    tn__rpc_queue_clear(&r->calls);
    pthread_cond_broadcast(&r->queued);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < count; i++) {
        pthread_join(r->threads[i], NULL);
    }
}

void tn__rpc_serve(tn_rpc *r, int from, tn__rpc_frame *call) {
    call->from = from;
    call->deadline = tn__now() + 1e-6 * (double)call->head.microseconds;
    pthread_mutex_lock(&r->lock);
    if (r->stopped) {
        free(call);
    } else {
        tn__rpc_queue_add(&r->calls, call);
        wake_thread(r);
    }
    pthread_mutex_unlock(&r->lock);
}
