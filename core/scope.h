/* Scopes and reference counts, for makers of tensors. The public side is tern/core.h. */
#ifndef TERN_CORE_SCOPE_H
#define TERN_CORE_SCOPE_H

#include "core/thread.h"

/* Gives the caller's reference to the current scope. False when the scope cannot grow: TN_ENOMEM is
 * raised and the reference is dropped. */
bool tn__scope_own(tn_object *object);

/* Whether it is static, and not counted. */
static inline bool tn__object_immortal(const tn_object *object) {
    return __atomic_load_n(&object->refs, __ATOMIC_RELAXED) == TN__IMMORTAL;
}

static inline void tn__object_keep(tn_object *object) {
    if (!tn__object_immortal(object)) { __atomic_fetch_add(&object->refs, 1, __ATOMIC_RELAXED); }
}

/* Drops one reference; true when it was the last. The only owner needs no atomic subtraction: no
 * one else can add one. */
static inline bool tn__last_reference(int32_t *refs) {
    int32_t now = __atomic_load_n(refs, __ATOMIC_ACQUIRE);
    return now == 1 || (now != TN__IMMORTAL && __atomic_fetch_sub(refs, 1, __ATOMIC_ACQ_REL) == 1);
}

static inline void tn__object_release(tn_object *object) {
    if (tn__last_reference(&object->refs)) { object->destroy(object); }
}

/* Instead of a line in tn_scope. FORWARD_SCOPE: `file` is the kind of the module whose forward runs
 * in the scope. NO_SCOPE: `file` says what releases (tn__ending). An error about a dead tensor
 * names these.
 */
enum { TN__FORWARD_SCOPE = 0, TN__NO_SCOPE = -1 };

/* Sets what ends tensors from now on; returns the previous value, to be restored. */
static inline const tn_scope *tn__ending(const tn_scope *by) {
    const tn_scope *before = tn__self.ending;
    tn__self.ending = by;
    return before;
}

/* What tn_live_tensors reads; code that makes or destroys a tensor counts here. */
extern int64_t tn__live_count;

/* The inert tensor, which lives in tensor/: what a failed tn_adopt returns. */
extern tn_object *const tn__inert_object;

#endif
