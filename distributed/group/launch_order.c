/* The order in which operations are launched, over all groups of a thread.
 *
 * NCCL needs one order of launches over all communicators of a GPU, the same on every rank: kernels
 * of two communicators that start in different orders on two ranks may deadlock. Each group has a
 * thread of its own, so an operation that an engine only queues takes its place in a line when it
 * is issued, and is launched when it is the first. A program that issues in one order on every rank
 * gets that order.
 *
 * A place is among those of one issuing thread: threads have no order among them that ranks could
 * share, and may be ranks themselves. What an engine runs in the group's own thread has no place: a
 * rank may be late in one group and wait for the others in another.
 */
#include "core/fork.h"
#include "distributed/group/group.h"

static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_work *launches; /* oldest first */

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&launch_lock);
}

/* In a forked child the parent's works stay here for good, and belong to no thread. */
static bool same_issuer(const tn_work *a, const tn_work *b) {
    return a->group->process == b->group->process &&
           pthread_equal(a->group->owner, b->group->owner);
}

void tn__launch_add(tn_work *w) {
    pthread_mutex_lock(&launch_lock);
    tn_work **end = &launches;
    while (*end) {
        end = &(*end)->next_launch;
    }
    *end = w;
    pthread_mutex_unlock(&launch_lock);
}

void tn__launch_remove(tn_work *w) {
    pthread_mutex_lock(&launch_lock);
    tn_work **at = &launches;
    while (*at != w) {
        at = &(*at)->next_launch;
    }
    *at = w->next_launch;
    w->next_launch = NULL;
    pthread_mutex_unlock(&launch_lock);
}

bool tn__launch_is_first(const tn_work *w) {
    pthread_mutex_lock(&launch_lock);
    const tn_work *first = launches;
    while (!same_issuer(first, w)) {
        first = first->next_launch;
    }
    pthread_mutex_unlock(&launch_lock);
    return first == w;
}
