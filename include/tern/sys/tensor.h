/* The structs of tensors and storages, for writing operations, backends, groups and stores.
 *
 * Programs use tensor.h; nothing here is needed to build a model.
 */
#ifndef TERN_SYS_TENSOR_H
#define TERN_SYS_TENSOR_H

#include "../tensor.h"
#include "object.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_node tn_node; /* autograd/node.h */
typedef struct tn_leaf tn_leaf; /* autograd/leaf.h */

/* A counter that grows whenever elements change;
 * a saved tensor remembers the value it was saved at. */
typedef struct tn_version {
    int32_t refs; /* atomic; unused inside a storage */
    uint32_t value;
} tn_version;

typedef struct tn_storage {
    int32_t refs; /* atomic */
    tn_device device;
    void *data; /* NULL while emptied, and for 0 bytes */
    size_t bytes;
    bool emptied;
    struct tn__recipe *recipe;               /* for elements deferred by TN_DEFER_INIT; or NULL */
    tn_version version;                      /* shared by all views without one of their own */
    void (*release)(void *data, void *user); /* for memory from elsewhere; NULL: the allocator's */
    void *user;
} tn_storage;

struct tn_tensor {
    tn_object object;
    tn_dtype dtype;
    bool inert;
    tn_dims dims;
    int64_t stride[TN_MAX_DIMS]; /* in elements; may be 0, never negative */
    int64_t offset;              /* of the first element, in elements */
    tn_storage *storage;         /* one reference */
    tn_version *version;         /* the storage's, or own_version */
    tn_version *own_version;     /* one reference, or NULL (tn_alias) */
    tn_node *node;               /* the node that made it, one reference; NULL: nothing recorded */
    int output;                  /* which of the node's outputs */
    tn_leaf *leaf;               /* gradient, hooks; NULL until needed */
};

/* The static tensor that failing calls return. */
TN_API tn_tensor *tn_inert(void);

/* New tensors, owned by the current scope. `tn__view` takes its own reference to t's storage and
 * shares its version. On failure the error is raised and the inert tensor returned. */
TN_API tn_tensor *tn__new(tn_dims dims, tn_dtype dtype, tn_device device);
TN_API tn_tensor *tn__view(const tn_tensor *t, tn_dims dims, const int64_t *stride, int64_t offset);

/* Row-major strides of dims. */
TN_API void tn__contiguous_strides(tn_dims dims, int64_t *stride);

/* Whether t can be used as an operand now: not NULL, not inert, not dead, storage filled. Otherwise
 * raises (NULL, dead, emptied) or not (inert: an error is already pending) and returns false. */
TN_API bool tn__usable(const tn_tensor *t, const char *operation);

/* Resolves a dimension that may be negative: 0 … ndim-1, or -1 after raising TN_EINDEX. */
TN_API int tn__dim(const tn_tensor *t, int dim, const char *operation);

/* The address of t's first element; NULL while the storage is empty. */
static inline char *tn__address(const tn_tensor *t) {
    return t->storage->data
               ? (char *)t->storage->data + t->offset * (int64_t)tn_dtype_size(t->dtype)
               : NULL;
}

/* Records that t's elements have changed. */
static inline void tn__touch(tn_tensor *t) {
    __atomic_fetch_add(&t->version->value, 1, __ATOMIC_RELAXED);
}

#ifdef __cplusplus
}
#endif
#endif
