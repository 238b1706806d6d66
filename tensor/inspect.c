/* Inspecting tensors: metadata, single elements, copying out. Nothing here changes a tensor. */
#include "core/allocator.h"
#include "tensor/half.h"
#include "tensor/recipe.h"
#include "tern/sys/device.h"

#include <math.h>

bool tn__readable(const tn_tensor *t, const char *operation) {
    if (!t) { return tn__fail(TN_EVALUE, operation, "the tensor is NULL"); }
    if (t->object.state != TN__ALIVE) {
        tn__raise_dead(t, operation);
        return false;
    }
    return !t->inert;
}

/* A deferred tensor that is read while its module is built gets its elements at once. */
static bool fill_or_raise(const tn_tensor *t, const char *operation) {
    if (!tn__deferred(t)) {
        return tn__fail(
            TN_ESTATE, operation,
            "the storage of %s is empty (of a sharded model: TN_WHOLE; else tn_storage_refill)",
            tn_shape_text(t));
    }
    if (tn__deferring) { return tn__deferring(t) == TN_OK; }
    const char *name = t->storage->recipe->name;
    char text[TN__RECIPE_NAME + 64];
    snprintf(text, sizeof(text), "%s%s%s", name, *name ? " " : "", tn_shape_text(t));
    return tn__elements_made(t, text, operation);
}

bool tn__usable(const tn_tensor *t, const char *operation) {
    if (!tn__readable(t, operation)) { return false; }
    return !t->storage->emptied || fill_or_raise(t, operation);
}

int tn__dim(const tn_tensor *t, int dim, const char *operation) {
    if (!t) {
        tn__usable(t, operation);
        return -1;
    }
    int ndim = t->dims.ndim;
    if (dim < -ndim || dim >= ndim) {
        tn__raise(TN_EINDEX, operation, "dimension %d of a tensor with %d dimension%s (%s)", dim,
                  ndim, ndim == 1 ? "" : "s", tn_shape_text(t));
        return -1;
    }
    return dim < 0 ? dim + ndim : dim;
}

bool tn_is_inert(const tn_tensor *t) {
    return !tn__readable(t, "is_inert");
}

int tn_ndim(const tn_tensor *t) {
    return tn__readable(t, "ndim") ? t->dims.ndim : 0;
}

tn_dims tn_shape(const tn_tensor *t) {
    return tn__readable(t, "shape") ? t->dims : (tn_dims){.ndim = 0};
}

int64_t tn_size(const tn_tensor *t, int dim) {
    int i = tn__readable(t, "size") ? tn__dim(t, dim, "size") : -1;
    return i < 0 ? 0 : t->dims.size[i];
}

int64_t tn_stride(const tn_tensor *t, int dim) {
    int i = tn__readable(t, "stride") ? tn__dim(t, dim, "stride") : -1;
    return i < 0 ? 0 : t->stride[i];
}

int64_t tn_count(const tn_tensor *t) {
    return tn__readable(t, "count") ? tn_dims_count(t->dims) : t ? 1 : 0;
}

tn_dtype tn_dtype_of(const tn_tensor *t) {
    return tn__readable(t, "dtype_of") ? t->dtype : TN_F32;
}

tn_device tn_device_of(const tn_tensor *t) {
    return tn__readable(t, "device_of") ? t->storage->device : (tn_device){TN_CPU, 0};
}

bool tn_is_contiguous(const tn_tensor *t) {
    int64_t expected = 1;
    if (!tn__readable(t, "is_contiguous") || tn_dims_count(t->dims) == 0) { return true; }
    for (int i = t->dims.ndim - 1; i >= 0; i--) {
        if (t->dims.size[i] != 1 && t->stride[i] != expected) { return false; }
        expected *= t->dims.size[i];
    }
    return true;
}

bool tn_shares_storage(const tn_tensor *a, const tn_tensor *b) {
    return tn__readable(a, "shares_storage") && tn__readable(b, "shares_storage") &&
           a->storage == b->storage;
}

const void *tn_data(const tn_tensor *t) {
    if (!tn__usable(t, "data")) { return tn_inert()->storage->data; }
    return t->storage->data ? tn__address(t) : tn_inert()->storage->data;
}

void *tn_data_mut(tn_tensor *t) {
    static char nobody_reads[64 << 10] __attribute__((aligned(64)));
    if (!tn__usable(t, "data_mut")) { return nobody_reads; }
    return t->storage->data ? tn__address(t) : nobody_reads;
}

double tn__element(const tn_tensor *t, int64_t position) {
    const void *data = t->storage->data;
    if (t->storage->device.kind != TN_CPU) {
        static _Thread_local uint64_t here;
        size_t size = tn_dtype_size(t->dtype);
        data = (const char *)data + (size_t)position * size;
        position = 0;
        if (tn__copy_bytes(tn_cpu(), &here, t->storage->device, data, size, "item") != TN_OK) {
            return NAN;
        }
        data = &here;
    }
    switch (t->dtype) {
    case TN_F32:
        return ((const float *)data)[position];
    case TN_F64:
        return ((const double *)data)[position];
    case TN_BF16:
        return tn__bf16_to_float(((const tn_bf16 *)data)[position]);
    case TN_F16:
        return tn__f16_to_float(((const tn_f16 *)data)[position]);
    case TN_I64:
        return (double)((const int64_t *)data)[position];
    case TN_I32:
        return ((const int32_t *)data)[position];
    case TN_U8:
        return ((const uint8_t *)data)[position];
    case TN_I8:
        return ((const int8_t *)data)[position];
    case TN_BOOL:
        return ((const uint8_t *)data)[position] != 0;
    }
    return NAN;
}

double tn_item(const tn_tensor *t) {
    if (!tn__usable(t, "item")) { return NAN; }
    if (tn_dims_count(t->dims) != 1) {
        tn__raise(TN_ESHAPE, "item", "the tensor is %s, which is %lld elements, not one",
                  tn_shape_text(t), (long long)tn_dims_count(t->dims));
        return NAN;
    }
    return tn__element(t, t->offset);
}

double tn_at(const tn_tensor *t, tn_dims index) {
    if (!tn__usable(t, "at")) { return NAN; }
    if (index.ndim != t->dims.ndim) {
        tn__raise(TN_ESHAPE, "at",
                  "the index is %s but the tensor is %s (an index has one position for each "
                  "dimension)",
                  tn__dims_text(index), tn_shape_text(t));
        return NAN;
    }
    int64_t position = t->offset;
    for (int i = 0; i < t->dims.ndim; i++) {
        if (index.size[i] < 0 || index.size[i] >= t->dims.size[i]) {
            tn__raise(TN_EINDEX, "at", "index %lld at dimension %d of %s", (long long)index.size[i],
                      i, tn_shape_text(t));
            return NAN;
        }
        position += index.size[i] * t->stride[i];
    }
    return tn__element(t, position);
}

/* Copies `count` elements that are `stride` elements apart. */
static void copy_row(char *to, const char *from, int64_t count, int64_t stride, size_t size) {
    if (stride == 1) {
        memcpy(to, from, (size_t)count * size);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        memcpy(to + (size_t)i * size, from + (size_t)(i * stride) * size, size);
    }
}

/* The elements of a CPU tensor, row by row. `from` is the address of element 0. */
static void copy_rows(const tn_tensor *t, const char *from, char *to, int64_t count) {
    int64_t index[TN_MAX_DIMS] = {0};
    size_t size = tn_dtype_size(t->dtype);
    int last = t->dims.ndim - 1;
    int64_t row = t->dims.size[last];
    for (char *end = to + (size_t)count * size; to < end; to += (size_t)row * size) {
        copy_row(to, from, row, t->stride[last], size);
        for (int i = last - 1; i >= 0; i--) {
            from += t->stride[i] * (int64_t)size;
            if (++index[i] < t->dims.size[i]) { break; }
            from -= index[i] * t->stride[i] * (int64_t)size;
            index[i] = 0;
        }
    }
}

/* A strided tensor on a device: copies the part of the storage that it spans, then as on the CPU.
 */
static tn_status copy_out_spread(const tn_tensor *t, void *out, int64_t count) {
    size_t size = tn_dtype_size(t->dtype);
    int64_t last = 0;
    for (int i = 0; i < t->dims.ndim; i++) {
        last += (t->dims.size[i] - 1) * t->stride[i];
    }
    size_t bytes = (size_t)(last + 1) * size;
    char *span = tn__alloc(bytes);
    if (!span) {
        return tn__raise(TN_ENOMEM, "copy_out", "no memory for %zu bytes on the host", bytes);
    }
    tn_status status =
        tn__copy_bytes(tn_cpu(), span, t->storage->device, tn__address(t), bytes, "copy_out");
    if (status == TN_OK) { copy_rows(t, span, out, count); }
    tn__free(span, bytes);
    return status;
}

tn_status tn_copy_out(const tn_tensor *t, void *out) {
    if (!tn__usable(t, "copy_out")) { return tn__pending() ? tn_error() : TN_ESTATE; }
    int64_t count = tn_dims_count(t->dims);
    if (count == 0) { return TN_OK; }
    if (!out) {
        return tn__raise(TN_EVALUE, "copy_out", "the destination is NULL but the tensor is %s",
                         tn_shape_text(t));
    }
    if (tn_is_contiguous(t)) {
        return tn__copy_bytes(tn_cpu(), out, t->storage->device, tn__address(t),
                              (size_t)count * tn_dtype_size(t->dtype), "copy_out");
    }
    if (t->storage->device.kind != TN_CPU) { return copy_out_spread(t, out, count); }
    copy_rows(t, tn__address(t), out, count);
    return TN_OK;
}

const char *tn_shape_text(const tn_tensor *t) {
    return tn__readable(t, "shape_text") ? tn__dims_text(t->dims) : "[]";
}
