/* Threads: how many kernels use, and what happens when one ends. */
#include "core/error.h"
#include "core/wait.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>

_Thread_local tn__thread tn__self __attribute__((tls_model("initial-exec")));

__attribute__((constructor)) static void restore_environment(void) {
    tn__wait_restore();
}

static int wanted; /* atomic; what tn_set_threads said; 0: nothing */

/* OpenMP keeps the number per thread: a thread that was not told yet is told here. */
int tn_threads(void) {
    int n = __atomic_load_n(&wanted, __ATOMIC_RELAXED);
    if (n == 0) {
        return omp_get_max_threads();
    }
    if (tn__self.threads != n) {
        tn__self.threads = n;
        omp_set_num_threads(n);
    }
    return n;
}

void tn_set_threads(int n) {
    if (n < 1) {
        tn__raise(TN_EVALUE, "set_threads", "%d threads (at least 1)", n);
        return;
    }
    __atomic_store_n(&wanted, n, __ATOMIC_RELAXED);
    tn_threads();
}

static tn__texts shared_texts;

tn__texts *tn__thread_texts(void) {
    if (!tn__self.texts) {
        tn__self.texts = calloc(1, sizeof(tn__texts));
        if (!tn__self.texts) {
            return &shared_texts;
        }
        tn__thread_watch();
    }
    return tn__self.texts;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_end;
static bool have_key;

/* The root scope goes first: what it releases goes into the caches. */
static void thread_end(void *unused) {
    (void)unused;
    tn__self.watched = false;
    tn__scope_thread_end();
    tn__allocator_thread_end();
    tn__memory_thread_end();
    free(tn__self.texts);
    tn__self.texts = NULL;
    tn__self.error = TN_OK;
}

static void make_key(void) {
    have_key = pthread_key_create(&at_end, thread_end) == 0;
}

void tn__thread_watch(void) {
    if (!tn__self.watched) {
        pthread_once(&once, make_key);
        tn__self.watched = have_key && pthread_setspecific(at_end, &tn__self) == 0;
    }
}
