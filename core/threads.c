/* Threads: how many kernels use, and what happens when one ends or forks. */
#include "core/error.h"
#include "core/place.h"
#include "core/threads.h"
#include "core/wait.h"

#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/single_threaded.h>

_Thread_local tn__thread tn__self __attribute__((tls_model("initial-exec")));

__attribute__((constructor)) static void restore_environment(void) {
    tn__wait_restore();
}

static int wanted; /* atomic; what tn_set_threads set; 0: nothing */

/* OpenMP ends the process when it cannot start as many threads as it was asked for. */
enum { MAX_THREADS = 4096 };

/* OpenMP keeps the number per thread: it is set here for a thread that has none yet, and for one
 * that got nonsense from OMP_NUM_THREADS. */
int tn_threads(void) {
    int n = tn__self.alone ? 1 : __atomic_load_n(&wanted, __ATOMIC_RELAXED);
    if (n == 0) {
        n = omp_get_max_threads();
        if (n <= MAX_THREADS) { return n; }
        tn_log_write(TN_LOG_WARN, "OMP_NUM_THREADS asks for %d threads (at most %d): one per core",
                     n, MAX_THREADS);
        n = omp_get_num_procs();
    }
    if (tn__self.threads != n) {
        tn__self.threads = n;
        omp_set_num_threads(n);
    }
    return n;
}

void tn_set_threads(int n) {
    if (n < 1 || n > MAX_THREADS) {
        tn__raise(TN_EVALUE, "set_threads", "%d threads (1 to %d)", n, MAX_THREADS);
        return;
    }
    __atomic_store_n(&wanted, n, __ATOMIC_RELAXED);
    tn_threads();
    if (tn__self.alone && n > 1) {
        tn_log_write(
            TN_LOG_WARN,
            "set_threads: %d applies to new threads only; this one was forked by a process "
            "with threads and computes alone",
            n);
    }
}

int tn__thread_start(pthread_t *thread, void *(*run)(void *user), void *user) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* ---- fork ------------------------------------------------------------------------------------ */

static _Thread_local bool has_company; /* of this thread, when it last forked */

void tn__threads_fork(void) {
    has_company = !__libc_single_threaded;
}

/* OpenMP keeps a thread's team for its next region. After fork the team is empty, and the region
 * would wait forever: libgomp's would, which cannot be asked whether there is a team. A process
 * with one thread had none. OpenMP itself is set by the next tn_threads: libomp has locks that its
 * own handler, which runs later, releases. */
void tn__threads_child(void) {
    if (has_company) {
        tn__self.alone = true;
        tn__self.threads = 0;
    }
}

/* ---- Per thread ------------------------------------------------------------------------------ */

/* With the texts, where the pending error was raised. */
typedef struct own_texts {
    tn__texts texts; /* first: tn__self points to it */
    tn__stack stack;
} own_texts;

static own_texts shared_texts;

tn__texts *tn__thread_texts(void) {
    if (!tn__self.texts) {
        own_texts *own = calloc(1, sizeof(*own));
        if (!own) { return &shared_texts.texts; }
        if (tn__self.error != TN_OK) { /* its message is in the shared buffer */
            *own = shared_texts;
        }
        tn__self.texts = &own->texts;
        tn__thread_watch();
    }
    return tn__self.texts;
}

tn__stack *tn__thread_stack(void) {
    return &((own_texts *)tn__thread_texts())->stack;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t at_end;
static bool have_key;

/* The root scope comes first: what it releases goes into the caches. */
static void thread_end(void *unused) {
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
