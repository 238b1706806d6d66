/* What changing a tensor in place needs: permission, and operands that do not overlap the memory
 * being written. Also the fills and draws of new tensors. */
#ifndef TERN_OPS_INPLACE_H
#define TERN_OPS_INPLACE_H

#include "ops/deferred.h"
#include "profile/work.h"

/* Whether x may be changed now. False while an error is pending, and after raising TN_ESTATE (x is
 * a recorded result, or a leaf that requires a gradient while recording is on) or TN_ESHAPE
 * (several of x's elements share one address). */
bool tn__writable(const tn_tensor *x, const char *operation);

/* The same, but true for a deferred tensor too: for callers that then only add a step to its recipe
 * (ops/deferred.h). */
bool tn__settable(const tn_tensor *x, const char *operation);

/* y as an operand of a kernel that writes into x: it must broadcast to x. It is copied first if it
 * shares memory with x in another layout: an element must be read before it is written. The copy is
 * owned by the current scope. */
bool tn__operand(const tn_tensor *x, tn_tensor *y, const char *operation, tn_desc *desc);

/* Ends a change: raises the kernel's error if any, counts the change, and returns x (inert after an
 * error). */
tn_tensor *tn__changed(tn_tensor *x, tn_status status, const char *operation);

/* Profiles, from here to the end of the block, the kernel that writes x and moves `bytes`. */
typedef struct tn__in_place {
    tn__span span;
    const tn_tensor *x; /* NULL: no span was begun */
} tn__in_place;
static inline void tn__in_place_end(tn__in_place *p) {
    if (p->x) { tn__profile_end(&p->span, p->x->storage->device); }
}
#define TN__PROFILED(x_, operation, bytes)                                                      \
    __attribute__((cleanup(tn__in_place_end))) tn__in_place in_place_;                          \
    bool seen_ = tn__profiled() && tn__profile_in_place(&in_place_.span, operation, x_, bytes); \
    in_place_.x = seen_ ? x_ : NULL

/* Fills x with a value, or with draws of a generator (NULL: the thread's default), if it may be
 * changed; what deferred tensors do is recorded. */
tn_tensor *tn__fill_in_place(tn_tensor *x, double value, const char *operation);
tn_tensor *tn__draw_in_place(tn_tensor *x, tn_random_kind kind, double a, double b, tn_generator *g,
                             const char *operation);

static inline const tn_backend *tn__kernels_of(const tn_tensor *t) {
    return tn_backend_of(t->storage->device);
}

static inline tn_context *tn__context_of(const tn_tensor *t) {
    return tn_context_of(t->storage->device);
}

#endif
