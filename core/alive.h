/* Objects that were made and not freed: so one that was freed is noticed, and not read. Each kind
 * has a list of its own, which a lookup walks: for objects of which a program has a few, or
 * that are rarely looked up (modules: only one that has moved).
 *
 *     TN__ALIVE_LIST(optimisers, "optimiser");
 *
 *     struct tn_optim { tn__alive alive; …                       // the first member
 *     tn__alive_begin(&optimisers, opt);                         // once it is allocated
 *     if (!tn__alive_is(&optimisers, opt, "optim_step")) …       // whatever opt points to
 *     if (!tn__alive_end(&optimisers, opt, "optim_free")) …      // before it is freed
 *
 * Memory that is used again for another object of the same kind is that object. */
#ifndef TERN_CORE_ALIVE_H
#define TERN_CORE_ALIVE_H

#include "core/fork.h"

/* Complements of addresses (0: none), so that a search for leaks does not take the list for a user.
 */
typedef struct tn__alive {
    uintptr_t next, before;
} tn__alive;

typedef struct tn__alive_list {
    const char *what;
    pthread_mutex_t lock;
    uintptr_t first;
} tn__alive_list;

#define TN__ALIVE_LIST(list, noun)                                                    \
    static tn__alive_list list = {.what = (noun), .lock = PTHREAD_MUTEX_INITIALIZER}; \
    __attribute__((constructor)) static void list##_care_for_fork(void) {             \
        tn__fork_takes(&list.lock);                                                   \
    }                                                                                 \
    _Static_assert(sizeof(noun) > 1, "a noun for errors")

void tn__alive_begin(tn__alive_list *list, void *object);
/* False after raising TN_ESTATE: it was freed before. */
bool tn__alive_is(tn__alive_list *list, const void *object, const char *operation);
/* The same, and takes it off: of two threads that free it, one succeeds. */
bool tn__alive_end(tn__alive_list *list, void *object, const char *operation);

/* Without an error: whether it is there; and takes off what is known to be. */
bool tn__alive_has(tn__alive_list *list, const void *object);
void tn__alive_drop(tn__alive_list *list, void *object);
/* The first on the list, and the one after another; NULL: none. Under its lock. */
void *tn__alive_first(const tn__alive_list *list);
void *tn__alive_after(const void *object);

#endif
