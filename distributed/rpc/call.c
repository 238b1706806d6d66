/* Calls: futures on the side that asks, a queue and threads on the side that answers.
 *
 * A thread that waits inside a function is not counted as running, so that another may be started:
 * functions that call back and forth end as long as there are threads. */
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "tern/autograd.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

_Thread_local tn__serving *tn__served;

/* ---- Functions ------------------------------------------------------------------------------- */

/* Under the lock. */
static tn__function *find_function(const tn_rpc *r, const char *name, size_t bytes) {
    for (tn__function *f = r->functions; f; f = f->next) {
        if (strlen(f->name) == bytes && memcmp(f->name, name, bytes) == 0) {
            return f;
        }
    }
    return NULL;
}

tn_status tn__rpc_add_function(tn_rpc *r, const char *name, tn_rpc_function f,
                               tn__rpc_builtin *builtin, void *user) {
    size_t length = strlen(name);
    tn__function *entry = tn__calloc_for(1, sizeof(*entry) + length + 1, "rpc_register");
    if (!entry) {
        return tn_error();
    }
    entry->f = f;
    entry->builtin = builtin;
    entry->user = user;
    memcpy(entry->name, name, length + 1);
    pthread_mutex_lock(&r->lock);
    bool taken = find_function(r, name, length) != NULL;
    if (!taken) {
        entry->next = r->functions;
        r->functions = entry;
    }
    pthread_mutex_unlock(&r->lock);
    if (taken) {
        free(entry);
        return tn__raise(TN_ESTATE, "rpc_register", "\"%s\" is registered already", name);
    }
    return TN_OK;
}

tn_status tn_rpc_register(tn_rpc *r, const char *name, tn_rpc_function f, void *user) {
    if (!tn__rpc_usable(r, "rpc_register")) {
        return tn_error();
    }
    if (!f || !name || !*name || strlen(name) > TN__RPC_NAME || strncmp(name, "tn/", 3) == 0) {
        return tn__raise(TN_EVALUE, "rpc_register",
                         "%s \"%.40s\" (a function, and a name of 1 to %d bytes that does not "
                         "begin with tn/)",
                         f ? "the name" : "no function for", name ? name : "(NULL)", TN__RPC_NAME);
    }
    return tn__rpc_add_function(r, name, f, NULL, user);
}

/* ---- Futures --------------------------------------------------------------------------------- */

/* Whether this thread runs a function for another rank, or this one. */
static bool is_inside(const tn_rpc *r) {
    return tn__served && tn__served->rpc == r;
}

/* Under the lock: takes the future with this number out of the table; NULL: none, or of another
 * rank. */
static tn_future *take_future(tn_rpc *r, uint64_t number, int from) {
    for (tn_future **at = &r->futures[number % TN__RPC_BUCKETS]; *at; at = &(*at)->next) {
        tn_future *f = *at;
        if (f->number == number && f->to == from) {
            *at = f->next;
            r->waiting--;
            return f;
        }
    }
    return NULL;
}

/* Under the lock. */
static void future_done(tn_rpc *r, tn_future *f) {
    f->done = true;
    pthread_cond_signal(&f->changed);
    pthread_cond_broadcast(&r->quiet);
}

static tn_future *future_new(tn_rpc *r, int to, const char *name, double timeout) {
    size_t length = strlen(name);
    tn_future *f = tn__calloc_for(1, sizeof(*f) + length + 1, "rpc_call");
    if (f) {
        memcpy(f->name, name, length + 1);
        f->rpc = tn__rpc_keep(r);
        f->to = to;
        f->begun = tn__now();
        f->deadline = f->begun + timeout;
        if (is_inside(r)) { /* later, nobody waits for what it is part of */
            f->deadline = fmax(f->begun, fmin(f->deadline, tn__served->deadline));
        }
        tn__condition_init(&f->changed);
    }
    return f;
}

static void future_free(tn_future *f) {
    pthread_cond_destroy(&f->changed);
    free(f->reply);
    tn__rpc_release(f->rpc);
    free(f);
}

/* Puts f into the table; a rank that is gone fails it at once. */
static void future_begin(tn_rpc *r, tn_future *f) {
    pthread_mutex_lock(&r->lock);
    f->number = ++r->last_number;
    const tn__peer *p = &r->peers[f->to];
    if (p->gone) {
        snprintf(f->why, sizeof(f->why), "%s", p->why);
        f->done = true;
    } else {
        tn_future **head = &r->futures[f->number % TN__RPC_BUCKETS];
        f->next = *head;
        *head = f;
        r->waiting++;
        r->calls_sent++;
    }
    pthread_mutex_unlock(&r->lock);
}

void tn__rpc_forget(tn_future *f) {
    if (!f || tn__inherited(f->rpc->process)) {
        return;
    }
    tn_rpc *r = f->rpc;
    pthread_mutex_lock(&r->lock);
    if (!f->done) {
        take_future(r, f->number, f->to);
    }
    pthread_mutex_unlock(&r->lock);
    if (f->reply) {
        tn__references_dropped(r, f->reply, 0);
    }
    future_free(f);
}

static bool call_sound(tn_rpc *r, int to, const char *name, double timeout, const char *operation) {
    if (to < 0 || to >= r->ranks) {
        tn__raise(TN_EVALUE, operation, "rank %d (there are %d)", to, r->ranks);
    } else if (!name || !*name || strlen(name) > TN__RPC_NAME) {
        tn__raise(TN_EVALUE, operation, "the name \"%.40s\" (1 to %d bytes)",
                  name ? name : "(NULL)", TN__RPC_NAME);
    } else if (!(timeout >= 0 && timeout <= 1e9)) {
        tn__raise(TN_EVALUE, operation, "a time-out of %g seconds (0 to 1e9)", timeout);
    } else if (!r->started) {
        tn__raise(TN_ESTATE, operation, "\"%s\" of rank %d: tn_rpc_start was not called", name, to);
    }
    return !tn__pending();
}

/* What both sides count for a call. */
static uint64_t call_bytes(const tn__rpc_head *call) {
    return TN__RPC_HEAD + call->bytes;
}

/* Counts a call of so many bytes, and if it `waits`, only when its rank has answered enough to be
 * called; false after raising. */
static bool take_room(tn_rpc *r, const tn_future *f, uint64_t bytes, bool waits,
                      const char *operation) {
    tn__peer *p = &r->peers[f->to];
    struct timespec until = tn__timespec(f->deadline);
    bool late = false;
    uint64_t limit = (uint64_t)r->options.backlog_limit;
    pthread_mutex_lock(&r->lock);
    while (waits && p->unanswered >= limit && !p->gone && !late) {
        late = pthread_cond_timedwait(&r->quiet, &r->lock, &until) != 0;
    }
    uint64_t unanswered = p->unanswered;
    p->unanswered += late ? 0 : bytes;
    pthread_mutex_unlock(&r->lock);
    if (late) {
        tn__raise(TN_EPEER, operation,
                  "\"%s\" of rank %d: %llu bytes of calls wait for its answers (backlog_limit: "
                  "%lld), for more than %.3g seconds",
                  f->name, f->to, (unsigned long long)unanswered, (long long)limit,
                  f->deadline - f->begun);
    }
    return !late;
}

/* Under the lock: so many bytes are answered, or were not sent. */
static void give_room(tn__peer *p, uint64_t bytes) {
    p->unanswered -= bytes < p->unanswered ? bytes : p->unanswered;
}

/* Sends f's call in this frame. */
static void send_call(tn_rpc *r, tn_future *f, tn__rpc_frame *frame) {
    future_begin(r, f);
    frame->head.number = f->number;
    tn__rpc_head_write(frame->data, &frame->head);
    tn__peer_send(r, f->to, frame);
}

/* What a function calls does not wait for room: it follows from calls that have, whose answers may
 * depend on it. Nor does the reader's thread, on which all answers depend. */
tn_future *tn__rpc_issue(tn_rpc *r, int to, const char *name, tn_message *in, tn__rpc_head h,
                         double timeout, const char *operation) {
    tn_future *f = NULL;
    tn__rpc_frame *frame = NULL;
    if (tn__rpc_usable(r, operation) && call_sound(r, to, name, timeout, operation)) {
        f = future_new(r, to, name, timeout > 0 ? timeout : r->options.timeout);
    }
    h.kind = TN__RPC_CALL;
    if (f && f->deadline <= f->begun) {
        tn__raise(TN_EPEER, operation,
                  "\"%s\" of rank %d: the call that runs this one has no time "
                  "left",
                  name, to);
    } else if (f && tn__message_measure(r, to, &h, name, in, operation) &&
               take_room(r, f, call_bytes(&h), !is_inside(r) && !tn__reading, operation)) {
        frame = tn__message_encode(r, to, &h, name, in, operation, f->deadline);
        if (!frame) {
            pthread_mutex_lock(&r->lock);
            give_room(&r->peers[to], call_bytes(&h));
            pthread_cond_broadcast(&r->quiet);
            pthread_mutex_unlock(&r->lock);
        }
    }
    if (frame) {
        double left = f->deadline - tn__now();
        frame->head.microseconds = left > 0 ? (uint64_t)(left * 1e6) : 0;
        send_call(r, f, frame);
    } else if (f) {
        future_free(f);
        f = NULL;
    }
    tn_message_free(in); /* last: its references must not be let go before they arrive */
    return f;
}

tn_future *tn_rpc_call(tn_rpc *r, int to, const char *name, tn_message *in, double timeout) {
    return tn__rpc_issue(r, to, name, in, (tn__rpc_head){0}, timeout, "rpc_call");
}

tn_future *tn__rpc_share(tn_rpc *r, int owner, uint64_t what, int holder, double timeout) {
    tn_future *f = future_new(r, owner, "tn/share", timeout);
    tn__rpc_frame *frame = tn__rpc_frame_new(
        &(tn__rpc_head){.kind = TN__RPC_SHARE, .context = what, .microseconds = (uint64_t)holder});
    if (f && frame && take_room(r, f, call_bytes(&frame->head), false, "rpc_call")) {
        send_call(r, f, frame);
        return f;
    }
    if (f) {
        future_free(f);
        tn__raise(TN_ENOMEM, "rpc_call", "no memory to pass a reference on");
    }
    free(frame);
    return NULL;
}

bool tn_rpc_done(const tn_future *f) {
    if (!f || tn__inherited(f->rpc->process)) {
        return true;
    }
    pthread_mutex_lock(&f->rpc->lock);
    bool done = f->done || tn__now() >= f->deadline;
    pthread_mutex_unlock(&f->rpc->lock);
    return done;
}

static void start_thread(tn_rpc *r);

/* Under the lock: until f is done or late. */
static void await_future(tn_rpc *r, tn_future *f) {
    bool inside = is_inside(r) && !f->done;
    struct timespec until = tn__timespec(f->deadline);
    if (inside) {
        r->blocked++;
        start_thread(r);
    }
    while (!f->done && pthread_cond_timedwait(&f->changed, &r->lock, &until) == 0) {
    }
    r->blocked -= inside;
    if (!f->done) {
        take_future(r, f->number, f->to);
        snprintf(f->why, sizeof(f->why), "no answer within %.3g seconds", f->deadline - f->begun);
        future_done(r, f);
    }
}

/* The values of the reply; NULL after raising what went wrong. */
static tn_message *open_reply(tn_rpc *r, const tn_future *f, bool learns, const char *operation) {
    const tn__rpc_frame *reply = f->reply;
    if (!reply) {
        tn__raise(TN_EPEER, operation, "\"%s\" of rank %d: %s", f->name, f->to, f->why);
    } else if (reply->refused) {
        tn__raise(TN_EVALUE, operation,
                  "\"%s\" of rank %d: the result has %llu bytes (message_limit: %lld), or there is "
                  "no memory for it",
                  f->name, f->to, (unsigned long long)reply->head.bytes,
                  (long long)r->options.message_limit);
        tn__references_dropped(r, reply, 0);
    } else if (reply->head.status != TN_OK) {
        tn__raise(reply->head.status, operation, "\"%s\" of rank %d: %.*s", f->name, f->to,
                  (int)(reply->bytes - TN__RPC_HEAD), (const char *)reply->data + TN__RPC_HEAD);
    }
    return tn__pending() ? NULL : tn__message_decode(r, reply, learns);
}

tn_message *tn__rpc_finish(tn_future *f, bool learns, const char *operation) {
    if (!f) {
        return NULL;
    }
    tn_rpc *r = f->rpc;
    if (tn__refuse_inherited(r->process, operation, "the rpc")) {
        return NULL;
    }
    if (tn__pending()) {
        tn__rpc_forget(f);
        return NULL;
    }
    pthread_mutex_lock(&r->lock);
    await_future(r, f);
    pthread_mutex_unlock(&r->lock);
    tn_message *out = open_reply(r, f, learns, operation);
    future_free(f);
    return out;
}

tn_message *tn_rpc_wait(tn_future *f) {
    return tn__rpc_finish(f, false, "rpc_wait");
}

/* ---- Answering ------------------------------------------------------------------------------- */

static tn__rpc_head reply_head(const tn__rpc_head *call) {
    return (tn__rpc_head){
        .kind = TN__RPC_REPLY, .number = call->number, .context = call_bytes(call)};
}

/* The pending error, which becomes the caller's. */
static tn__rpc_frame *error_reply(const tn__rpc_head *call) {
    tn_error_record record;
    if (!tn_error_take(&record)) {
        return NULL;
    }
    size_t length = strlen(record.message);
    tn__rpc_head h = reply_head(call);
    h.status = record.status;
    h.bytes = (uint64_t)length;
    tn__rpc_frame *f = tn__rpc_frame_new(&h);
    if (f) {
        memcpy(tn__frame_body(f), record.message, length);
    }
    return f;
}

/* Runs the function on the values. */
static void run_function(tn_rpc *r, const tn__rpc_frame *call, tn__function *f, tn_message *out) {
    bool learns = call->head.flags & TN__RPC_LEARNS;
    tn_message *in = tn__message_decode(r, call, learns);
    if (in && f->builtin) {
        f->builtin(r, in, out);
    } else if (in) {
        f->f(in, out, f->user);
    }
    if (in && learns && !tn__pending()) {
        tn__graph_keep(r, in, out, tn__served->context);
    }
    tn_message_free(in);
}

static void answer_call(tn_rpc *r, const tn__rpc_frame *call, tn__function *f) {
    const tn__rpc_head *h = &call->head;
    const char *name = (const char *)call->data + TN__RPC_HEAD;
    TN_SCOPE;
    tn_message *out = tn_message_new();
    bool begun = false;
    if (call->refused) {
        tn__raise(TN_EVALUE, NULL,
                  "the message has %llu bytes (message_limit there: %lld), or there is no memory "
                  "for it",
                  (unsigned long long)h->bytes, (long long)r->options.message_limit);
    } else if (!f) {
        tn__raise(TN_EVALUE, NULL, "there is no function \"%.*s\"", (int)h->name_bytes, name);
    } else if (tn__now() > call->deadline) {
        tn__raise(TN_EPEER, NULL, "it was called too late to begin");
    } else if (out) {
        begun = true;
        run_function(r, call, f, out);
    }
    if (!begun) {
        tn__references_dropped(r, call, 0);
    }
    tn__rpc_frame *reply = NULL;
    tn__rpc_head head = reply_head(h);
    if (!tn__pending() && tn__message_measure(r, call->from, &head, NULL, out, "rpc_reply")) {
        reply = tn__message_encode(r, call->from, &head, NULL, out, "rpc_reply", call->deadline);
    }
    reply = reply ? reply : error_reply(h);
    if (reply) {
        tn__peer_send(r, call->from, reply);
    }
    tn_message_free(out); /* last: its references must not be let go before they arrive */
    tn_error_clear();
}

/* What a thread knows while it serves. */
static void serve_call(tn_rpc *r, tn__rpc_frame *call) {
    const tn__rpc_head *h = &call->head;
    bool *touched = NULL;
    tn_rpc_context context = {.rpc = r, .id = h->context, .ours = true};
    tn__serving serving = {.rpc = r, .caller = call->from, .deadline = call->deadline};
    if (h->flags & TN__RPC_LEARNS) {
        touched = tn__calloc_for((size_t)r->ranks, sizeof(*touched), "rpc_call");
        context.touched = touched;
        serving.context = &context;
    }
    pthread_mutex_lock(&r->lock);
    tn__function *f =
        call->refused ? NULL
                      : find_function(r, (const char *)call->data + TN__RPC_HEAD, h->name_bytes);
    pthread_mutex_unlock(&r->lock);
    tn__served = &serving;
    answer_call(r, call, f);
    tn__served = NULL;
    free(touched);
    free(call);
}

/* ---- Threads --------------------------------------------------------------------------------- */

/* Under the lock: functions that run and do not wait for a call of their own. */
static bool may_run(const tn_rpc *r) {
    return r->first && r->running - r->blocked < r->options.threads;
}

static void *serve_calls(void *user) {
    tn_rpc *r = user;
    tn__quiet(1); /* errors go to the caller */
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!may_run(r)) {
            r->idle++;
            pthread_cond_wait(&r->queued, &r->lock);
            r->idle--;
            continue;
        }
        tn__rpc_frame *call = r->first;
        r->first = call->next;
        r->running++;
        start_thread(r); /* for the next one */
        pthread_mutex_unlock(&r->lock);
        serve_call(r, call);
        pthread_mutex_lock(&r->lock);
        r->running--;
        r->calls_done++;
        pthread_cond_broadcast(&r->quiet);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Under the lock: 0, or the error's number. */
static int add_thread(tn_rpc *r) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&r->threads[r->thread_count], NULL, serve_calls, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->thread_count += !failed;
    return failed;
}

/* Under the lock: lets another thread take the first of the queue. If none can be started, those
 * that are there take it when they are free. */
static void start_thread(tn_rpc *r) {
    if (!may_run(r)) {
        return;
    }
    if (r->idle > 0) {
        pthread_cond_signal(&r->queued);
        return;
    }
    if (r->thread_count == r->options.threads_most || r->stop) {
        return;
    }
    add_thread(r);
}

/* Nobody reads it. */
static void drop_frame(tn_rpc *r, tn__rpc_frame *f) {
    tn__references_dropped(r, f, 0);
    free(f);
}

bool tn__rpc_start_threads(tn_rpc *r) {
    pthread_mutex_lock(&r->lock);
    int failed = add_thread(r);
    pthread_mutex_unlock(&r->lock);
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "no thread for calls could be started: %s",
                  strerror(failed));
    }
    return !failed;
}

void tn__rpc_stop_threads(tn_rpc *r) {
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    int count = r->thread_count;
    tn__rpc_frame *left = r->first;
    r->first = NULL;
    pthread_cond_broadcast(&r->queued);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < count; i++) {
        pthread_join(r->threads[i], NULL);
    }
    for (tn__rpc_frame *call = left, *next; call; call = next) {
        next = call->next;
        drop_frame(r, call);
    }
}

/* ---- Sorting --------------------------------------------------------------------------------- */

static void queue_call(tn_rpc *r, int from, tn__rpc_frame *f) {
    f->next = NULL;
    f->from = from;
    f->deadline = tn__now() + 1e-6 * (double)f->head.microseconds;
    pthread_mutex_lock(&r->lock);
    bool late = r->stop;
    if (!late) {
        *(r->first ? &r->last->next : &r->first) = f;
        r->last = f;
        start_thread(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (late) {
        drop_frame(r, f);
    }
}

static void answer_share(tn_rpc *r, int from, const tn__rpc_head *h) {
    tn_error_clear();
    const tn__rpc_head fine = reply_head(h);
    tn__rpc_frame *reply =
        tn__kept_share(r, from, h) == TN_OK ? tn__rpc_frame_new(&fine) : error_reply(h);
    if (reply) {
        tn__peer_send(r, from, reply);
    }
    pthread_mutex_lock(&r->lock);
    r->calls_done++;
    pthread_cond_broadcast(&r->quiet);
    pthread_mutex_unlock(&r->lock);
}

static void take_reply(tn_rpc *r, int from, tn__rpc_frame *frame) {
    pthread_mutex_lock(&r->lock);
    give_room(&r->peers[from], frame->head.context);
    tn_future *f = take_future(r, frame->head.number, from);
    if (f) {
        f->reply = frame;
        future_done(r, f);
    } else {
        pthread_cond_broadcast(&r->quiet);
    }
    pthread_mutex_unlock(&r->lock);
    if (!f) { /* no one waits for it any more */
        drop_frame(r, frame);
    }
}

/* A frame that needs no more than its head. False: it is out of place. */
static bool take_word(tn_rpc *r, int from, const tn__rpc_head *h) {
    const uint64_t ranks = (uint64_t)r->ranks;
    bool fine = true;
    switch (h->kind) {
    case TN__RPC_ENDING:
        tn__rpc_note_end(r, from, h);
        break;
    case TN__RPC_SHARE:
        answer_share(r, from, h);
        break;
    case TN__RPC_FORGET:
        tn__owed_forget(r, h->number);
        break;
    case TN__RPC_LET_GO:
        if ((fine = h->context < ranks)) {
            tn__kept_drop(r, h->number, (int)h->context, from);
        }
        break;
    case TN__RPC_GOT:
        if ((fine = h->context < ranks)) {
            tn__kept_got(r, h->number, (int)h->context, from);
        }
        break;
    case TN__RPC_AWAIT:
        if ((fine = h->number < ranks)) {
            tn__references_await(r, (int)h->number, from);
        }
        break;
    case TN__RPC_LOST:
        if ((fine = h->number < ranks)) {
            tn__kept_lost(r, (int)h->number, from);
        }
        break;
    default:
        fine = false;
    }
    return fine;
}

bool tn__rpc_take(tn_rpc *r, int from, tn__rpc_frame *f, const char **fault) {
    if (f->head.kind == TN__RPC_CALL) {
        tn__references_arrived(r, f, from);
        queue_call(r, from, f);
        return true;
    }
    if (f->head.kind == TN__RPC_REPLY) {
        tn__references_arrived(r, f, from);
        take_reply(r, from, f);
        return true;
    }
    bool fine = take_word(r, from, &f->head);
    free(f);
    *fault = "what it sends is out of place";
    return fine;
}

void tn__rpc_lose(tn_rpc *r, int gone, const char *why) {
    pthread_mutex_lock(&r->lock);
    tn__peer *p = &r->peers[gone];
    if (!p->gone) {
        p->gone = true;
        snprintf(p->why, sizeof(p->why), "rank %d is gone: %s", gone, why);
    }
    for (int i = 0; i < TN__RPC_BUCKETS; i++) {
        for (tn_future **at = &r->futures[i]; *at;) {
            tn_future *f = *at;
            if (f->to != gone) {
                at = &f->next;
                continue;
            }
            *at = f->next;
            r->waiting--;
            snprintf(f->why, sizeof(f->why), "%s", p->why);
            future_done(r, f);
        }
    }
    /* functions here may still use what this rank itself holds: tn_rpc_free lets go of that */
    tn__kept *kept = gone == r->rank ? NULL : tn__kept_of_gone(r, gone);
    struct tn__owed *owed = tn__owed_of_gone(r, gone);
    pthread_cond_broadcast(&r->quiet);
    pthread_mutex_unlock(&r->lock);
    tn__kept_free(kept);
    tn__owed_free(owed);
    tn__references_lost(r, gone);
}
