/* Shapes: sizes by value, their product, broadcasting, strides, printing. */
#include "tensor/tensor.h"

#include <stdio.h>

tn_dims tn_dims_from(int ndim, const int64_t *sizes) {
    tn_dims dims = {.ndim = ndim};
    if (ndim < 0 || ndim > TN_MAX_DIMS || (ndim > 0 && !sizes)) {
        dims.ndim = -1;
        return dims;
    }
    /* The constant makes it a few moves. Without it gcc emits a string instruction, which takes 10
     * ns to start: an eighth of what a view costs. */
    for (int i = 0; i < TN_MAX_DIMS && i < ndim; i++) {
        dims.size[i] = sizes[i];
    }
    return dims;
}

int64_t tn_dims_count(tn_dims dims) {
    int64_t count = 1;
    bool too_large = false, empty = false;
    if (dims.ndim < 0 || dims.ndim > TN_MAX_DIMS) { return -1; }
    for (int i = 0; i < dims.ndim; i++) {
        if (dims.size[i] < 0) { return -1; }
        empty |= dims.size[i] == 0;
        too_large |= __builtin_mul_overflow(count, dims.size[i], &count);
    }
    return empty ? 0 : too_large ? INT64_MAX : count;
}

bool tn_dims_equal(tn_dims a, tn_dims b) {
    if (a.ndim != b.ndim) { return false; }
    for (int i = 0; i < a.ndim && i < TN_MAX_DIMS; i++) {
        if (a.size[i] != b.size[i]) { return false; }
    }
    return true;
}

bool tn_dims_broadcast(tn_dims a, tn_dims b, tn_dims *result) {
    if (tn_dims_count(a) < 0 || tn_dims_count(b) < 0) { return false; }
    tn_dims out = {.ndim = a.ndim > b.ndim ? a.ndim : b.ndim};
    for (int i = 1; i <= out.ndim; i++) {
        int64_t x = i <= a.ndim ? a.size[a.ndim - i] : 1;
        int64_t y = i <= b.ndim ? b.size[b.ndim - i] : 1;
        if (x != y && x != 1 && y != 1) { return false; }
        out.size[out.ndim - i] = x == 1 ? y : x;
    }
    if (result) { *result = out; }
    return true;
}

void tn__contiguous_strides(tn_dims dims, int64_t *stride) {
    /* wraps for an impossible shape: makers of tensors check that first */
    uint64_t next = 1;
    for (int i = dims.ndim <= TN_MAX_DIMS ? dims.ndim - 1 : -1; i >= 0; i--) {
        stride[i] = (int64_t)next;
        next *= dims.size[i] > 1 ? (uint64_t)dims.size[i] : 1;
    }
}

const char *tn__dims_text(tn_dims dims) {
    tn__texts *texts = tn__thread_texts();
    enum {
        BUFFERS = sizeof(texts->shape) / sizeof(texts->shape[0]),
        TEXT_SIZE = sizeof(texts->shape[0])
    };
    char *text = texts->shape[texts->next_shape++ % BUFFERS];
    if (dims.ndim < 0 || dims.ndim > TN_MAX_DIMS) {
        snprintf(text, TEXT_SIZE, "[more than %d]", TN_MAX_DIMS);
        return text;
    }
    size_t used = (size_t)snprintf(text, TEXT_SIZE, "[");
    for (int i = 0; i < dims.ndim; i++) {
        used += (size_t)snprintf(text + used, TEXT_SIZE - used, "%s%lld", i ? ", " : "",
                                 (long long)dims.size[i]);
    }
    snprintf(text + used, TEXT_SIZE - used, "]");
    return text;
}

bool tn__bytes_of(tn_dims dims, tn_dtype dtype, size_t *bytes, const char *operation) {
    int64_t count = tn_dims_count(dims), size = (int64_t)tn_dtype_size(dtype);
    if (dims.ndim < 0 || dims.ndim > TN_MAX_DIMS) {
        return tn__fail(TN_ESHAPE, operation, "the shape has more than %d dimensions", TN_MAX_DIMS);
    }
    if (count < 0) {
        return tn__fail(TN_ESHAPE, operation, "the shape is %s (no size may be negative)",
                        tn__dims_text(dims));
    }
    if (size == 0) { return tn__fail(TN_EDTYPE, operation, "%d is not a dtype", (int)dtype); }
    /* Sizes next to a 0 may be anything, but row-major strides must not overflow. */
    int64_t extent = size;
    for (int i = 0; i < dims.ndim; i++) {
        if (__builtin_mul_overflow(extent, dims.size[i] > 1 ? dims.size[i] : 1, &extent)) {
            return tn__fail(TN_ENOMEM, operation,
                            "%s elements of %s are more than an address can reach",
                            tn__dims_text(dims), tn_dtype_name(dtype));
        }
    }
    *bytes = (size_t)(count * size);
    return true;
}
