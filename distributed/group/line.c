/* The line: in which order operations are launched, over all groups of a thread.
 *
 * NCCL wants one order of launches over all communicators of a GPU, the same on every rank: kernels
 * of two of them that start in another order on another rank may wait for each other for ever. Each
 * group has a thread of its own, so an operation that an engine only queues takes its place here
 * when it is issued, and is launched when none of those before it is left. A program that issues in
 * one order on every rank gets that order.
 *
 * A place is among those of one issuing thread: threads have no order among them that ranks could
 * share, and may be ranks themselves. What an engine runs in the group's own thread has no place: a
 * rank may be late for one group and wait for the others in another.
 */
#include "core/fork.h"
#include "distributed/group/group.h"

static pthread_mutex_t line_lock = PTHREAD_MUTEX_INITIALIZER;
static tn_work *line; /* oldest first */

__attribute__((constructor)) static void care_for_fork(void) {
    tn__fork_takes(&line_lock);
}

/* In a child of fork the parent's works stay here for ever, and are nobody's. */
static bool same_issuer(const tn_work *a, const tn_work *b) {
    return a->group->process == b->group->process &&
           pthread_equal(a->group->owner, b->group->owner);
}

void tn__line_join(tn_work *w) {
    pthread_mutex_lock(&line_lock);
    tn_work **end = &line;
    while (*end) {
        end = &(*end)->behind;
    }
    *end = w;
    pthread_mutex_unlock(&line_lock);
}

void tn__line_leave(tn_work *w) {
    pthread_mutex_lock(&line_lock);
    tn_work **at = &line;
    while (*at != w) {
        at = &(*at)->behind;
    }
    *at = w->behind;
    w->behind = NULL;
    pthread_mutex_unlock(&line_lock);
}

bool tn__line_is_first(const tn_work *w) {
    pthread_mutex_lock(&line_lock);
    const tn_work *first = line;
    while (!same_issuer(first, w)) {
        first = first->behind;
    }
    pthread_mutex_unlock(&line_lock);
    return first == w;
}
