/* Tensor objects: making, views, the inert tensor, destruction.
 *
 * A new tensor has one reference, which goes to the current scope at once. When the last one is
 * dropped, its node, leaf, version and storage each lose one. The struct of a dead tensor is not
 * reused for a while, so that using it is an error that says where it died.
 */
#include "tensor/recipe.h"
#include "tern/sys/device.h"

#include "core/memory.h"

#include <string.h>

struct tn__autograd_links tn__autograd;

/* ---- The inert tensor ------------------------------------------------------------------------ */

#define PAGE_OF_ZEROS (64 << 10)
static const char zeros[PAGE_OF_ZEROS] __attribute__((aligned(64)));

static tn_storage inert_storage = {
    .refs = TN__IMMORTAL, .data = (void *)zeros, .bytes = PAGE_OF_ZEROS};
static tn_tensor inert = {
    .object = {.refs = TN__IMMORTAL, .state = TN__ALIVE},
    .inert = true,
    .storage = &inert_storage,
    .version = &inert_storage.version,
};
tn_object *const tn__inert_object = &inert.object;

tn_tensor *tn_inert(void) {
    return &inert;
}

/* ---- Destruction ----------------------------------------------------------------------------- */

/* What is left of a tensor: why it died. */
typedef struct dead_tensor {
    tn_object object;
    const char *file; /* of the scope that was ending; NULL: tn_release or tn_drop did it */
    int line;
} dead_tensor;

/* A reference was dropped once too often. */
static void release_dead(tn_object *self) {
    tn__raise_dead((tn_tensor *)self, "release");
}

static void retire_tensor(tn_tensor *t) {
    const tn_scope *scope = tn__self.ending;
    dead_tensor *dead = (dead_tensor *)t;
    dead->object.state = TN__DEAD;
    dead->object.destroy = release_dead;
    dead->file = scope ? scope->file : NULL;
    dead->line = scope ? scope->line : 0;
    tn__struct_retire(dead, sizeof(*t));
}

void tn__raise_dead(const tn_tensor *t, const char *operation) {
    const dead_tensor *dead = (const dead_tensor *)t;
    const char *file = dead->object.state == TN__DEAD ? dead->file : NULL;
    if (!file) {
        tn__raise(
            TN_ESTATE, operation,
            "the tensor was released before (by tn_release or tn_drop, or with what held it)");
    } else if (dead->line == TN__NO_SCOPE) {
        tn__raise(TN_ESTATE, operation, "the tensor was released by %s", file);
    } else if (dead->line == TN__FORWARD_SCOPE) {
        tn__raise(TN_ESTATE, operation,
                  "the tensor was released when the forward of %s returned (only what it returns "
                  "lives on)",
                  file);
    } else {
        const char *slash = strrchr(file, '/');
        tn__raise(TN_ESTATE, operation,
                  "the tensor was released at the end of the scope opened at %s:%d",
                  slash ? slash + 1 : file, dead->line);
    }
}

static void destroy_tensor(tn_object *self) {
    tn_tensor *t = (tn_tensor *)self;
    tn_node *node = t->node;
    if (t->leaf) { tn__autograd.leaf_free(t->leaf); }
    if (t->own_version && tn__last_reference(&t->own_version->refs)) { free(t->own_version); }
    tn__storage_release(t->storage);
    __atomic_fetch_sub(&tn__live_count, 1, __ATOMIC_RELAXED);
    retire_tensor(t);
    if (node) { tn__autograd.node_release(node); }
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* A tensor with the caller's reference to `storage`, owned by the scope. On failure the reference
 * is dropped. */
static tn_tensor *wrap_storage(tn_storage *storage, tn_dims dims, tn_dtype dtype,
                               const char *operation) {
    tn_tensor *t = tn__struct_alloc(sizeof(*t));
    if (!t) {
        tn__storage_release(storage);
        tn__raise(TN_ENOMEM, operation, "no memory for a tensor");
        return &inert;
    }
    t->object = (tn_object){.refs = 1, .state = TN__ALIVE, .destroy = destroy_tensor};
    t->dtype = dtype;
    t->inert = false;
    t->dims = dims;
    t->offset = 0;
    t->storage = storage;
    t->version = &storage->version;
    t->own_version = NULL;
    t->node = NULL;
    t->output = 0;
    t->leaf = NULL;
    __atomic_fetch_add(&tn__live_count, 1, __ATOMIC_RELAXED);
    return t;
}

static tn_tensor *own_tensor(tn_tensor *t) {
    return t->inert || tn__scope_own(&t->object) ? t : &inert;
}

tn_tensor *tn__tensor_over(tn_storage *storage, tn_dims dims, tn_dtype dtype) {
    tn_tensor *t = wrap_storage(storage, dims, dtype, "tensor");
    if (!t->inert) { tn__contiguous_strides(dims, t->stride); }
    return own_tensor(t);
}

static tn_tensor *make_tensor(tn_dims dims, tn_dtype dtype, tn_device device,
                              const char *operation) {
    size_t bytes;
    if (!tn__device_exists(device, operation) || !tn__bytes_of(dims, dtype, &bytes, operation)) {
        return &inert;
    }
    tn_storage *storage = tn__storage_new(bytes, device, operation);
    return storage ? tn__tensor_over(storage, dims, dtype) : &inert;
}

tn_tensor *tn__new(tn_dims dims, tn_dtype dtype, tn_device device) {
    return make_tensor(dims, dtype, device, "empty");
}

/* A view's elements must be inside the storage. */
static bool view_fits(const tn_tensor *t, tn_dims dims, const int64_t *stride, int64_t offset) {
    int64_t last = offset, count = (int64_t)(t->storage->bytes / tn_dtype_size(t->dtype));
    if (tn_dims_count(dims) < 0 || offset < 0) { return false; }
    for (int i = 0; i < dims.ndim; i++) {
        int64_t step;
        if (dims.size[i] == 0) { return true; }
        if (stride[i] < 0 || __builtin_mul_overflow(dims.size[i] - 1, stride[i], &step) ||
            __builtin_add_overflow(last, step, &last)) {
            return false;
        }
    }
    return last < count;
}

static tn_tensor *make_view(const tn_tensor *t, tn_dims dims, const int64_t *stride, int64_t offset,
                            const char *operation) {
    if (!tn__readable(t, operation)) { return &inert; }
    if (!view_fits(t, dims, stride, offset)) {
        tn__raise(
            TN_EINDEX, operation, "%s at offset %lld does not fit into a storage of %zu elements",
            tn__dims_text(dims), (long long)offset, t->storage->bytes / tn_dtype_size(t->dtype));
        return &inert;
    }
    tn__storage_keep(t->storage);
    tn_tensor *v = wrap_storage(t->storage, dims, t->dtype, operation);
    if (!v->inert) {
        memcpy(v->stride, stride, (size_t)dims.ndim * sizeof(*stride));
        v->offset = offset;
    }
    return v;
}

tn_tensor *tn__view(const tn_tensor *t, tn_dims dims, const int64_t *stride, int64_t offset) {
    tn_tensor *v = make_view(t, dims, stride, offset, "view");
    if (!v->inert && t->own_version) {
        __atomic_fetch_add(&t->own_version->refs, 1, __ATOMIC_RELAXED);
        v->version = v->own_version = t->own_version;
    }
    return own_tensor(v);
}

tn_tensor *tn_alias(tn_tensor *t, int64_t offset, tn_dims dims) {
    int64_t stride[TN_MAX_DIMS];
    size_t bytes;
    if (!tn__readable(t, "alias") || !tn__bytes_of(dims, t->dtype, &bytes, "alias")) {
        return &inert;
    }
    tn__contiguous_strides(dims, stride);
    tn_tensor *v = make_view(t, dims, stride, offset, "alias");
    if (v->inert) { return v; }
    v->own_version = tn__calloc_for(1, sizeof(tn_version), "alias");
    if (!v->own_version) {
        tn__object_release(&v->object);
        return &inert;
    }
    v->own_version->refs = 1;
    v->version = v->own_version;
    return own_tensor(v);
}

tn_tensor *tn_empty(tn_dims dims, tn_dtype dtype) {
    return tn_empty_on(tn_default_device(), dims, dtype);
}

tn_tensor *tn_empty_on(tn_device device, tn_dims dims, tn_dtype dtype) {
    return tn__empty(device, dims, dtype, "empty");
}

tn_tensor *tn__empty(tn_device device, tn_dims dims, tn_dtype dtype, const char *operation) {
    return tn__deferring ? tn__new_deferred(dims, dtype, device, operation)
                         : make_tensor(dims, dtype, device, operation);
}

tn_tensor *tn_empty_like(const tn_tensor *t) {
    return tn__readable(t, "empty_like") ? tn__new(t->dims, t->dtype, t->storage->device) : &inert;
}

tn_tensor *tn_from_data(const void *data, tn_dims dims, tn_dtype dtype) {
    size_t bytes;
    if (!tn__bytes_of(dims, dtype, &bytes, "from_data")) { return &inert; }
    if (!data && bytes > 0) {
        tn__raise(TN_EVALUE, "from_data", "data is NULL but the shape is %s", tn__dims_text(dims));
        return &inert;
    }
    tn_tensor *t = tn__new(dims, dtype, tn_default_device());
    if (!t->inert && tn__copy_bytes(t->storage->device, t->storage->data, tn_cpu(), data, bytes,
                                    "from_data") != TN_OK) {
        return &inert;
    }
    return t;
}

tn_tensor *tn__from_array(const void *array, size_t array_bytes, tn_dims dims, tn_dtype dtype) {
    size_t bytes;
    if (!tn__bytes_of(dims, dtype, &bytes, "from")) { return &inert; }
    if (bytes != array_bytes) {
        tn__raise(TN_ESHAPE, "from", "the array has %zu bytes but %s of %s has %zu", array_bytes,
                  tn__dims_text(dims), tn_dtype_name(dtype), bytes);
        return &inert;
    }
    return tn_from_data(array, dims, dtype);
}

static void leave_alone(void *data, void *user) {}

tn_tensor *tn_from_memory(void *data, tn_dims dims, tn_dtype dtype,
                          void (*release)(void *data, void *user), void *user) {
    size_t bytes;
    if (!tn__bytes_of(dims, dtype, &bytes, "from_memory")) { return &inert; }
    if (!data && bytes > 0) {
        tn__raise(TN_EVALUE, "from_memory", "data is NULL but the shape is %s",
                  tn__dims_text(dims));
        return &inert;
    }
    tn_storage *storage = tn__struct_alloc(sizeof(*storage));
    if (!storage) {
        tn__raise(TN_ENOMEM, "from_memory", "no memory for a storage");
        return &inert;
    }
    /* Until the tensor exists a failure must not release what is still the caller's. */
    *storage = (tn_storage){.refs = 1, .data = data, .bytes = bytes, .release = leave_alone};
    tn_tensor *t = tn__tensor_over(storage, dims, dtype);
    if (!t->inert) {
        storage->release = release ? release : leave_alone;
        storage->user = user;
    }
    return t;
}
