/* Deferred tensors, whose elements are not made yet: shape, dtype, device, an empty storage, and a
 * recipe by which the elements are made, all at once or some of them.
 *
 * A recipe is a list of steps, each of which sets or changes every element by itself: a fill, a
 * draw, a function of one element. Operations that would do so at once record the step instead
 * (ops/deferred.h). New recipes come from tn_empty while TN_DEFER_INIT is open.
 */
#ifndef TERN_TENSOR_RECIPE_H
#define TERN_TENSOR_RECIPE_H

#include "tensor/tensor.h"

enum { TN__RECIPE_STEPS = 8, TN__RECIPE_NAME = 64 };

typedef struct tn__recipe_step {
    int what;                    /* ops/deferred.c */
    int function;                /* which draw, or which unary function */
    uint64_t seed, stream, call; /* of a draw */
    double a, b;
} tn__recipe_step;

/* Plain data, and the same on every rank that built the same model from the same seed. */
struct tn__recipe {
    char name[TN__RECIPE_NAME]; /* of the parameter, for messages, or "" */
    tn_dtype dtype;             /* in which the elements are made, before they are cast … */
    tn_device device;           /* … and where, before they are copied to the tensor */
    int steps;                  /* 0: they stay as tn_empty leaves them */
    tn__recipe_step step[TN__RECIPE_STEPS];
};

/* While TN_DEFER_INIT is open in this thread: makes the elements of a tensor that is read
 * (tn__deferred_make). Else NULL. */
extern _Thread_local tn_status (*tn__deferring)(const tn_tensor *t);

static inline bool tn__deferred(const tn_tensor *t) {
    return t->storage->recipe != NULL;
}

/* Like tn__new, with an empty storage and a recipe without steps. */
tn_tensor *tn__new_deferred(tn_dims dims, tn_dtype dtype, tn_device device, const char *operation);

/* tn_empty_on, whose errors name `operation`. */
tn_tensor *tn__empty(tn_device device, tn_dims dims, tn_dtype dtype, const char *operation);

/* Names the tensor in messages. */
void tn__recipe_name(tn_tensor *t, const char *name);

/* Drops the recipe: the elements come from elsewhere. The storage stays empty. */
void tn__recipe_drop(tn_tensor *t);

/* Like tn__usable, but a deferred tensor is usable too. */
bool tn__usable_or_deferred(const tn_tensor *t, const char *operation);

/* Whether the elements of a parameter have been made; false after raising TN_ESTATE, which names
 * it. */
bool tn__elements_made(const tn_tensor *t, const char *path, const char *operation);

#endif
