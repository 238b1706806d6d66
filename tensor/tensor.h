/* The internals of tensor/, for later layers. Implementers of operations read
 * tern/sys/tensor.h first. */
#ifndef TERN_TENSOR_TENSOR_H
#define TERN_TENSOR_TENSOR_H

#include "core/error.h"
#include "core/scope.h"
#include "tern/sys/tensor.h"

/* What a dying tensor calls for its node and its leaf. autograd/ sets them; NULL until then.
 * node_release drops one reference, and does not recurse however long the graph is. */
struct tn__autograd_links {
    void (*node_release)(tn_node *node);
    void (*leaf_free)(tn_leaf *leaf);
};
extern struct tn__autograd_links tn__autograd;

/* A new storage with one reference, or NULL after raising TN_ENOMEM (named with `operation`). */
tn_storage *tn__storage_new(size_t bytes, tn_device device, const char *operation);
void tn__storage_keep(tn_storage *storage);
void tn__storage_release(tn_storage *storage);

/* Frees the bytes and leaves the storage empty, even while an error is pending. */
void tn__storage_drop_bytes(tn_storage *storage);

/* Exchanges the contents of two storages of equal size on one device; neither has a recipe. */
void tn__storage_swap(tn_storage *a, tn_storage *b);

/* A row-major tensor at element 0 of `storage`, owned by the current scope. Takes over the caller's
 * reference to the storage, even on failure, when it returns the inert tensor. */
tn_tensor *tn__tensor_over(tn_storage *storage, tn_dims dims, tn_dtype dtype);

/* Whether the device is available; otherwise raises TN_EDEVICE and says why not. */
bool tn__device_exists(tn_device device, const char *operation);

/* Whether t's metadata can be read: not NULL, not inert, not dead. Raises as tn__usable does; an
 * emptied storage is fine. */
bool tn__readable(const tn_tensor *t, const char *operation);

/* Raises TN_ESTATE for a tensor that was released, and says by what. */
void tn__raise_dead(const tn_tensor *t, const char *operation);

/* The element `position` elements from the beginning of the storage, as a double; NaN after raising
 * what went wrong on its device. The storage must not be empty. */
double tn__element(const tn_tensor *t, int64_t position);

/* 16 bits: kernels compute in f32. */
static inline bool tn__is_narrow(tn_dtype dtype) {
    return dtype == TN_BF16 || dtype == TN_F16;
}

/* "[2, 3]": in one of 8 buffers of this thread, like tn_shape_text. */
const char *tn__dims_text(tn_dims dims);

/* Bytes of a contiguous tensor; false when dims are invalid or the result does not fit (raises
 * TN_ESHAPE, TN_EVALUE or TN_ENOMEM, named with `operation`). */
bool tn__bytes_of(tn_dims dims, tn_dtype dtype, size_t *bytes, const char *operation);

#endif
