/* fork: a child has the memory of its parent and one of its threads.
 *
 * The thread that forked continues alone: OpenMP's team, which it would wait for, stayed in the
 * parent (threads.c). Threads that the child makes have their own teams.
 *
 * Locks of the process are taken before fork and released after it, on both sides; first that of
 * opening libraries, whose holder may take any other.
 *
 * Groups, stores and loaders have threads, connections and shared memory. They remember the process
 * that made them, and refuse to work in another. Freeing them there at most drops the child's
 * memory: nothing is sent, waited for, closed or removed. Devices refuse by themselves
 * (backends/cuda/device.c).
 *
 * All of it relies on pthread_atfork. So vfork, _Fork and clone, which call no handlers, are only
 * for children that exec at once, as those of system, popen and posix_spawn do.
 */
#include "core/fork.h"

#include "core/error.h"
#include "core/plugin.h"

#include <assert.h>

static uint32_t number = 1; /* changes while the process has one thread */

uint32_t tn__process(void) {
    return number;
}

bool tn__refuse_inherited(uint32_t process, const char *operation, const char *what) {
    if (!tn__inherited(process)) { return false; }
    tn__raise(TN_ESTATE, operation,
              "%s belongs to the parent of this process (fork): a child must make its own", what);
    return true;
}

/* ---- Handlers -------------------------------------------------------------------------------- */

/* Their order does not matter, since all are innermost. */
enum { LOCKS = 64 };
static pthread_mutex_t *locks[LOCKS];
static int lock_count;

static void take_locks(void) {
    tn__threads_fork();
    tn__libraries_hold();
    for (int i = 0; i < lock_count; i++) {
        pthread_mutex_lock(locks[i]);
    }
}

static void give_locks(void) {
    for (int i = lock_count - 1; i >= 0; i--) {
        pthread_mutex_unlock(locks[i]);
    }
    tn__libraries_let_go();
}

static void begin_child(void) {
    give_locks();
    number++;
    tn__threads_child();
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(take_locks, give_locks, begin_child);
}

void tn__fork_takes(pthread_mutex_t *lock) {
    assert(lock_count < LOCKS);
    locks[lock_count++] = lock;
}
