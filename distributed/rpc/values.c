/* Tensors travel without their history, and arrive on the CPU. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/rpc/frame.h"
#include "tensor/tensor.h"

#include <string.h>

enum { TENSOR_HEAD = 8, SIZE_BYTES = 8 };

/* ---- Encoding -------------------------------------------------------------------------------- */

static uint64_t element_bytes(tn_tensor *t) {
    return (uint64_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
}

/* Sets what in h depends on the name and the values; false after raising. */
static bool measure_values(tn__rpc_head *h, const char *name, const tn_values *v, int64_t limit) {
    if (v->n < 0 || v->n > TN_MAX_VALUES) {
        return tn__fail(TN_EVALUE, NULL, "%d tensors (0 to %d)", v->n, TN_MAX_VALUES);
    }
    h->tensors = (uint8_t)v->n;
    h->name_bytes = name ? (uint16_t)strlen(name) : 0;
    h->bytes = h->name_bytes;
    for (int i = 0; i < v->n; i++) {
        if (!tn__usable(v->v[i], NULL)) { return false; }
        h->bytes += TENSOR_HEAD + SIZE_BYTES * (uint64_t)tn_ndim(v->v[i]) + element_bytes(v->v[i]);
        if (h->bytes > (uint64_t)limit) {
            return tn__fail(TN_EVALUE, NULL,
                            "the message has %llu bytes or more (message_limit: %lld)",
                            (unsigned long long)h->bytes, (long long)limit);
        }
    }
    return true;
}

/* Writes t to `at`; returns where the next one goes. */
static uint8_t *encode_tensor(uint8_t *at, tn_tensor *t) {
    const uint64_t head = (uint64_t)tn_dtype_of(t) | (uint64_t)tn_ndim(t) << 8;
    const tn_dims dims = tn_shape(t);
    memcpy(at, &head, TENSOR_HEAD);
    memcpy(at + TENSOR_HEAD, dims.size, SIZE_BYTES * (size_t)dims.ndim);
    at += TENSOR_HEAD + SIZE_BYTES * (size_t)dims.ndim;
    tn_copy_out(t, at);
    return at + element_bytes(t);
}

tn__rpc_frame *tn__values_encode(tn__rpc_head h, const char *name, const tn_values *v,
                                 int64_t limit) {
    if (!measure_values(&h, name, v, limit)) { return NULL; }
    tn__rpc_frame *f = tn__rpc_frame_new(&h);
    if (!f) {
        return tn__fail_null(TN_ENOMEM, NULL, "no memory for a message of %llu bytes",
                             (unsigned long long)h.bytes);
    }
    if (name) { memcpy(f->body, name, h.name_bytes); }
    uint8_t *at = f->body + h.name_bytes;
    for (int i = 0; i < v->n; i++) {
        at = encode_tensor(at, v->v[i]);
    }
    if (!tn__pending()) { return f; }
    free(f); /* a device has failed */
    return NULL;
}

/* ---- Decoding -------------------------------------------------------------------------------- */

typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

static bool take_bytes(cursor *c, void *to, size_t bytes) {
    if (bytes > c->left) { return false; }
    memcpy(to, c->at, bytes);
    c->at += bytes;
    c->left -= bytes;
    return true;
}

/* A tensor's dtype and sizes; false if they are malformed, say more bytes than are left, or next to
 * a 0 something that no address can reach. */
static bool take_shape(cursor *c, tn_dtype *dtype, tn_dims *dims) {
    uint64_t head, ndim;
    int64_t sizes[TN_MAX_DIMS];
    if (!take_bytes(c, &head, TENSOR_HEAD)) { return false; }
    *dtype = (tn_dtype)(head & 0xff);
    ndim = head >> 8;
    if ((head & 0xff) >= TN_DTYPES || ndim > TN_MAX_DIMS ||
        !take_bytes(c, sizes, SIZE_BYTES * ndim)) {
        return false;
    }
    int64_t extent = (int64_t)tn_dtype_size(*dtype);
    for (uint64_t i = 0; i < ndim; i++) {
        if (sizes[i] < 0 || __builtin_mul_overflow(extent, sizes[i] > 1 ? sizes[i] : 1, &extent)) {
            return false;
        }
    }
    *dims = tn_dims_from((int)ndim, sizes);
    return (uint64_t)tn_dims_count(*dims) <= c->left / tn_dtype_size(*dtype);
}

/* Bytes that are neither 0 nor 1 would be no bool. */
static void take_elements(cursor *c, tn_tensor *t) {
    uint8_t *to = tn_data_mut(t);
    size_t bytes = element_bytes(t);
    if (bytes) { take_bytes(c, to, bytes); }
    for (size_t i = 0; t->dtype == TN_BOOL && i < bytes; i++) {
        to[i] = to[i] != 0;
    }
}

bool tn__values_decode(const tn__rpc_frame *f, tn_values *v) {
    cursor c = {f->body + f->head.name_bytes, f->head.bytes - f->head.name_bytes};
    *v = (tn_values){0};
    for (int i = 0; i < f->head.tensors && !tn__pending(); i++) {
        tn_dtype dtype;
        tn_dims dims;
        if (!take_shape(&c, &dtype, &dims)) {
            tn__raise(TN_EFORMAT, "rpc_message", "tensor %d of %d is malformed", i,
                      f->head.tensors);
            break;
        }
        tn_tensor *t = tn__new(dims, dtype, tn_cpu());
        if (!tn_is_inert(t)) { take_elements(&c, t); }
        v->v[v->n++] = t;
    }
    if (!tn__pending() && c.left) {
        tn__raise(TN_EFORMAT, "rpc_message", "%zu bytes are left after %d tensors", c.left,
                  f->head.tensors);
    }
    return !tn__pending();
}
