/* Works: operations on their way.
 *
 * A group has one thread that runs its operations in the order of their numbers, so buckets are
 * sent while the program computes. tn__group_issue puts a work at the end of the queue; the thread
 * takes the first, runs it in the engine and marks it done; tn_work_wait waits for that and frees
 * it. After a failure the rest of the queue fails with the same reason and nothing more is run.
 *
 * Work on a device is ordered by marks. Issuing sets one in the compute stream, after the work that
 * makes the tensors; the engine's own stream waits for it, and the engine gives a mark of its end
 * when all is queued. From then on tn_work_wait need not wait: it lets the compute stream wait for
 * that mark and lets the tensors go, since whatever gets their memory uses it in the compute
 * stream.
 *
 * Where an engine only queues on a device, the thread does not stay with one operation. It launches
 * each in its turn (launch_order.c), so that the device goes from one to the next without the host,
 * and checks the oldest one now and then, whose deadline counts from the moment when it became the
 * oldest. An operation that the thread runs itself begins when the device has finished them all.
 */
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "distributed/group/group.h"
#include "profile/span.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How long past its deadline an engine may take to return before the group is
 * given up without it. */
static const double engine_grace = 10;

/* Between two checks of what was launched, in seconds: longer each time. */
static const double NAP = 10e-6, LONGEST_NAP = 200e-6;

static void wait_until(tn_group *g, double deadline) {
    struct timespec until = tn__timespec(deadline);
    pthread_cond_timedwait(&g->changed, &g->lock, &until);
}

/* ---- Lists of works, under the lock ---------------------------------------------------------- */

static void append_work(tn__works *list, tn_work *w) {
    w->next = NULL;
    *(list->first ? &list->last->next : &list->first) = w;
    list->last = w;
}

static tn_work *take_work(tn__works *list) {
    tn_work *w = list->first;
    list->first = w->next;
    return w;
}

/* ---- The communication thread ---------------------------------------------------------------- */

/* Called outside the lock. */
static tn_status run_work(tn_group *g, tn_work *w) {
    tn_engine *e = g->engine->engine;
    tn_status same = g->prints ? tn__group_compare(g, w) : TN_OK;
    if (same != TN_OK) { return same; }
    if (w->is_alloc) {
        w->allocated = w->t.device.kind == TN_CPU
                           ? e->alloc(e, w->alloc_bytes, w->t.deadline)
                           : e->device_alloc(e, w->alloc_bytes, w->t.deadline);
        return tn_error();
    }
    return w->launches ? e->launch(e, &w->t) : e->run(e, &w->t);
}

/* The engine has queued all of w on its device. */
static void work_launched(void *user, void *end) {
    tn_work *w = user;
    tn_group *g = w->group;
    pthread_mutex_lock(&g->lock);
    w->end = end;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void work_free(tn_work *w) {
    const tn_device_table *table = tn__device_table(w->t.device);
    if (table) {
        table->mark_free(w->ready);
        table->mark_free(w->end);
    }
    tn_release(w->in);
    tn_release(w->out);
    free(w);
}

/* The engine has raised `status` for w: the group fails with what w is and the reason. */
static void fail_with(tn_group *g, const tn_work *w, tn_status status) {
    char what[128], text[128 + TN_ENGINE_WHY];
    if (w->is_alloc) {
        snprintf(text, sizeof(text), "%s memory of %zu bytes after operation %llu: %s",
                 w->t.device.kind == TN_CPU ? "shared" : "registered", w->alloc_bytes,
                 (unsigned long long)w->t.sequence, tn__error_why());
    } else {
        tn__transfer_text(&w->t, what, sizeof(what));
        snprintf(text, sizeof(text), "operation %llu, %s: %s", (unsigned long long)w->t.sequence,
                 what, tn__error_why());
    }
    tn_error_clear();
    tn__group_fail(g, status, text);
}

/* Outside the lock: the engine is done with w. It is recorded before the failure is raised, which
 * writes the record to a file; of several failures the first is raised. */
static void note_end(tn_group *g, tn_work *w, tn_status status, bool alive) {
    if (!w->is_alloc) { tn__flight_ended(w->record, tn__now(), status); }
    if (status != TN_OK && alive) { fail_with(g, w, status); }
    tn_error_clear();
}

/* Under the lock: from now on w is what the engine runs. */
static void start_clock(tn_group *g, tn_work *w) {
    double now = tn__now();
    w->t.deadline = now + g->options.timeout;
    g->running = w;
    if (!w->is_alloc) { tn__flight_started(w->record, now); }
}

/* Under the lock: w, which is in no list, is over. */
static void end_work(tn_group *g, tn_work *w, tn_status status) {
    w->status = status == TN_OK ? TN_OK : g->dead;
    w->done = true;
    bool abandoned = w->abandoned;
    pthread_cond_broadcast(&g->changed);
    if (abandoned) { /* outside the lock: the last reference to a tensor may call its owner back */
        pthread_mutex_unlock(&g->lock);
        work_free(w);
        tn_error_clear(); /* of an owner's: it is no later operation's */
        pthread_mutex_lock(&g->lock);
    }
}

/* Under the lock: whether the first of the queue may leave it. */
static bool may_begin(const tn_group *g) {
    const tn_work *w = g->queued.first;
    return g->dead != TN_OK || (w->launches ? tn__launch_is_first(w) : !g->launched.first);
}

/* Under the lock: runs the first of the queue, or launches it. */
static void begin_first(tn_group *g) {
    tn_work *w = take_work(&g->queued);
    tn_status status = g->dead;
    if (status == TN_OK) {
        start_clock(g, w);
        pthread_mutex_unlock(&g->lock);
        status = run_work(g, w);
        if (status != TN_OK || !w->launches) { note_end(g, w, status, true); }
        pthread_mutex_lock(&g->lock);
    }
    if (w->launches) { tn__launch_remove(w); }
    bool under_way = w->launches && status == TN_OK;
    if (under_way) { append_work(&g->launched, w); }
    g->running = g->launched.first;
    if (!under_way) { end_work(g, w, status); }
}

/* Under the lock: checks the oldest that was launched, and says whether it is over. After a failure
 * each is, since the engine has ended them all. */
static bool look_at_oldest(tn_group *g) {
    tn_engine *e = g->engine->engine;
    tn_work *w = g->launched.first;
    bool over = false, alive = g->dead == TN_OK;
    pthread_mutex_unlock(&g->lock);
    tn_status status = e->poll(e, &w->t, &over);
    over |= status != TN_OK;
    if (over) { note_end(g, w, status, alive); }
    pthread_mutex_lock(&g->lock);
    if (!over) { return false; }
    take_work(&g->launched);
    g->running = g->launched.first;
    if (g->running) { start_clock(g, g->running); }
    end_work(g, w, status);
    return true;
}

static void *group_communicate(void *user) {
    tn_group *g = user;
    double nap = NAP;
    tn__quiet(1); /* who waits raises it */
    pthread_mutex_lock(&g->lock);
    while (g->queued.first || g->launched.first || !g->stop) {
        if (g->queued.first && may_begin(g)) {
            begin_first(g);
            nap = NAP;
        } else if (g->launched.first && look_at_oldest(g)) {
            nap = NAP;
        } else if (g->queued.first || g->launched.first) {
            wait_until(g, tn__now() + nap);
            nap = nap < LONGEST_NAP ? 1.5 * nap : nap;
        } else {
            pthread_cond_wait(&g->changed, &g->lock);
        }
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

bool tn__group_start(tn_group *g) {
    int status = tn__thread_start(&g->thread, group_communicate, g);
    g->has_thread = status == 0;
    if (status != 0) {
        tn__raise(TN_ENOMEM, g->name, "the communication thread: %s", strerror(status));
    }
    return g->has_thread;
}

void tn__group_stop(tn_group *g) {
    if (g->has_thread) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        pthread_cond_broadcast(&g->changed);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
        g->has_thread = false;
    }
}

/* ---- Issuing --------------------------------------------------------------------------------- */

static void queue_work(tn_group *g, tn_work *w) {
    pthread_mutex_lock(&g->lock);
    append_work(&g->queued, w);
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static tn_work *work_new(tn_group *g, const char *operation) {
    tn_work *w = tn__calloc_for(1, sizeof(*w), operation);
    if (!w) {
        tn_group_abort(g, "a rank is out of memory");
        return NULL;
    }
    w->group = g;
    return w;
}

/* On a device: sets the mark that the operation comes after. False after raising. */
static bool mark_ready(tn_work *w) {
    const tn_device_table *table = tn__device_table(w->t.device);
    if (!table) { return true; }
    w->ready = table->mark(w->t.device.index);
    if (!w->ready) {
        tn__device_failed(w->t.device, TN_EDEVICE, tn_collective_name(w->t.kind));
        return false;
    }
    w->t.ready = w->ready;
    w->t.launched = work_launched;
    w->t.launched_user = w;
    return true;
}

tn_work *tn__group_issue(tn_group *g, const tn_transfer *t, tn_tensor *in, tn_tensor *out) {
    tn_work *w = work_new(g, tn_collective_name(t->kind));
    if (!w) { return NULL; }
    w->t = *t;
    w->t.sequence = ++g->sequence;
    w->in = tn_keep(in);
    w->out = tn_keep(out);
    if (!mark_ready(w)) {
        work_free(w);
        tn_group_abort(g, tn_error_message());
        return NULL;
    }
    w->record = tn__flight_queued(g, &w->t);
    w->launches = g->engine->engine->queues >> w->t.device.kind & 1;
    if (w->launches) { tn__launch_add(w); }
    queue_work(g, w);
    return w;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Under the lock: whether the engine has taken longer than it may. */
static bool engine_is_stuck(const tn_group *g, double now) {
    return g->running && now > g->running->t.deadline + engine_grace;
}

/* Under the lock: whether the host has nothing left to do for w but to note its end. */
static bool is_over(const tn_work *w) {
    return w->done || w->end;
}

/* Waits until w is over. False when the engine does not return: w then stays with it. */
static bool wait_over(tn_work *w, double deadline) {
    tn_group *g = w->group;
    bool aborted = false;
    pthread_mutex_lock(&g->lock);
    while (!is_over(w)) {
        double now = tn__now();
        if (engine_is_stuck(g, now)) { break; }
        if (now >= deadline && !aborted) {
            aborted = true;
            pthread_mutex_unlock(&g->lock);
            char what[128], text[256];
            tn__transfer_text(&w->t, what, sizeof(what));
            snprintf(text, sizeof(text), "it stopped waiting for operation %llu, %s",
                     (unsigned long long)w->t.sequence, what);
            tn_group_abort(g, text);
            pthread_mutex_lock(&g->lock);
            continue;
        }
        wait_until(g, !aborted && deadline < now + 1 ? deadline : now + 1);
    }
    bool over = is_over(w);
    pthread_mutex_unlock(&g->lock);
    return over;
}

static bool wait_seen(tn_work *w, double deadline) {
    tn__span span;
    char name[64];
    snprintf(name, sizeof(name), "wait for %s", tn_collective_name(w->t.kind));
    bool seen = tn__profiled() && tn__span_begin(&span, TN__SPAN_WAIT, name);
    bool over = wait_over(w, deadline);
    if (seen) { tn__span_end(&span); }
    return over;
}

/* The compute stream waits for the end of w, so its tensors can go. */
static tn_status join_end(tn_work *w) {
    const tn_device_table *table = tn__device_table(w->t.device);
    tn_status status = table->mark_join(w->t.device.index, w->end);
    if (status == TN_OK) {
        tn_release(w->in);
        tn_release(w->out);
        w->in = w->out = NULL;
        return TN_OK;
    }
    tn_group_abort(w->group, table->reason());
    return tn__device_failed(w->t.device, status, tn_collective_name(w->t.kind));
}

/* Frees w now, or when the engine is done with it. */
static void let_go(tn_work *w) {
    tn_group *g = w->group;
    pthread_mutex_lock(&g->lock);
    bool done = w->done;
    w->abandoned = !done;
    pthread_mutex_unlock(&g->lock);
    if (done) { work_free(w); }
}

tn_status tn_work_wait(tn_work *w, double timeout) {
    if (!w) { return tn_error(); }
    tn_group *g = w->group;
    if (tn__group_refuse_inherited(g, tn_collective_name(w->t.kind))) { return tn_error(); }
    if (!wait_seen(w, timeout > 0 ? tn__now() + timeout : HUGE_VAL)) {
        tn__group_fail(g, TN_EPEER, "the engine does not return from an operation");
        return tn__raise(TN_EPEER, NULL, "%s", g->reason);
    }
    pthread_mutex_lock(&g->lock);
    tn_status status = w->done ? w->status : TN_OK;
    bool on_device = w->end != NULL;
    pthread_mutex_unlock(&g->lock);
    if (status == TN_OK && on_device) {
        status = join_end(w);
        let_go(w);
        return status == TN_OK ? tn_error() : status;
    }
    let_go(w);
    return status == TN_OK ? tn_error() : tn__raise(status, NULL, "%s", g->reason);
}

bool tn_work_done(const tn_work *w) {
    if (!w || tn__group_inherited(w->group)) { /* a wait refuses at once */
        return true;
    }
    pthread_mutex_lock(&w->group->lock);
    bool over = is_over(w);
    pthread_mutex_unlock(&w->group->lock);
    return over;
}

void *tn__group_alloc(tn_group *g, tn_device device, size_t bytes) {
    tn_work *w = work_new(g, "group_empty");
    if (!w) { return NULL; }
    w->is_alloc = true;
    w->t.device = device;
    w->t.sequence = g->sequence;
    w->alloc_bytes = bytes;
    queue_work(g, w);
    if (!wait_over(w, HUGE_VAL)) {
        return tn__fail_null(TN_EPEER, "group_empty", "the engine does not return");
    }
    void *memory = w->allocated;
    tn_status status = w->status;
    work_free(w);
    if (status != TN_OK) { tn__raise(status, "group_empty", "%s", g->reason); }
    return memory;
}
