#include "distributed/rpc/workers.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"

#include <string.h>

bool tn__workers_init(tn__workers *w) {
    pthread_mutex_init(&w->lock, NULL);
    tn__condition_init(&w->queued);
    tn__condition_init(&w->quiet);
    w->threads = tn__calloc_for((size_t)w->threads_most, sizeof(*w->threads), "rpc_new");
    return w->threads != NULL;
}

void tn__workers_finish(tn__workers *w) {
    pthread_cond_destroy(&w->queued);
    pthread_cond_destroy(&w->quiet);
    pthread_mutex_destroy(&w->lock);
    free(w->threads);
}

/* ---- Threads --------------------------------------------------------------------------------- */

static void *serve_calls(void *user);

/* Under the lock: 0, or the error's number. */
static int add_thread(tn__workers *w) {
    int failed = tn__thread_start(&w->threads[w->thread_count], serve_calls, w);
    w->thread_count += !failed;
    return failed;
}

/* Under the lock. */
static bool may_run(const tn__workers *w) {
    return w->first && w->running - w->blocked < w->concurrent;
}

/* Under the lock: lets another thread take the first of the queue. If none can be started, those
 * that are there take it when they are free. */
static void wake_thread(tn__workers *w) {
    if (may_run(w) && w->idle > 0) {
        pthread_cond_signal(&w->queued);
    } else if (may_run(w) && w->thread_count < w->threads_most && !w->stop) {
        add_thread(w);
    }
}

static void *serve_calls(void *user) {
    tn__workers *w = user;
    tn__quiet(1); /* errors go to the caller */
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        if (!may_run(w)) {
            w->idle++;
            pthread_cond_wait(&w->queued, &w->lock);
            w->idle--;
            continue;
        }
        tn__rpc_frame *call = w->first;
        w->first = call->next;
        w->running++;
        wake_thread(w); /* for the next one */
        pthread_mutex_unlock(&w->lock);
        w->answer(w->user, call);
        pthread_mutex_lock(&w->lock);
        w->running--;
        pthread_cond_broadcast(&w->quiet);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

bool tn__workers_start(tn__workers *w) {
    pthread_mutex_lock(&w->lock);
    int failed = add_thread(w);
    pthread_mutex_unlock(&w->lock);
    if (failed) {
        tn__raise(TN_ENOMEM, "rpc_start", "no thread for calls could be started: %s",
                  strerror(failed));
    }
    return !failed;
}

void tn__workers_stop(tn__workers *w) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    int count = w->thread_count;
    tn__rpc_frames_free(w->first);
    w->first = NULL;
    pthread_cond_broadcast(&w->queued);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < count; i++) {
        pthread_join(w->threads[i], NULL);
    }
}

/* ---- Calls ----------------------------------------------------------------------------------- */

void tn__workers_push(tn__workers *w, tn__rpc_frame *call) {
    call->next = NULL;
    pthread_mutex_lock(&w->lock);
    if (w->stop) {
        free(call);
    } else {
        *(w->first ? &w->last->next : &w->first) = call;
        w->last = call;
        wake_thread(w);
    }
    pthread_mutex_unlock(&w->lock);
}

void tn__workers_block(tn__workers *w, bool blocked) {
    pthread_mutex_lock(&w->lock);
    w->blocked += blocked ? 1 : -1;
    wake_thread(w);
    pthread_mutex_unlock(&w->lock);
}

bool tn__workers_settle(tn__workers *w, double deadline) {
    struct timespec until = tn__timespec(deadline);
    bool late = false;
    pthread_mutex_lock(&w->lock);
    while ((w->first || w->running > 0) && !late) {
        late = pthread_cond_timedwait(&w->quiet, &w->lock, &until) != 0;
    }
    bool quiet = !w->first && w->running == 0;
    pthread_mutex_unlock(&w->lock);
    return quiet;
}
