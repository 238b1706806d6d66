/* Operands as kernels see them: descriptors. Those that an operation declares as rows (tn_op's
 * x_rows, y_rows) have their leading dimensions merged, which strides nearly always allow;
 * otherwise their elements are copied to scratch memory. */
#ifndef TERN_AUTOGRAD_OPERAND_H
#define TERN_AUTOGRAD_OPERAND_H

#include "tensor/tensor.h"
#include "tern/sys/op.h"

static inline void tn__desc_fill(tn_desc *d, const tn_tensor *t) {
    d->data = tn__address(t);
    d->dtype = t->dtype;
    d->ndim = t->dims.ndim;
    for (int i = 0; i < t->dims.ndim; i++) {
        d->size[i] = t->dims.size[i];
        d->stride[i] = t->stride[i];
    }
}

/* Whether t is in these rows (TN_ROWS or 0) as it is; a single one may need another stride. */
static inline bool tn__has_rows(const tn_tensor *t, int rows) {
    return !rows || (t->dims.ndim == rows && t->dims.size[0] != 1);
}

/* Merges all dimensions of d but the last `kept`; false, with d unchanged, if strides do not allow
 * it. */
bool tn__desc_to_rows(tn_desc *d, int kept);

/* ---- Scratch memory of one call, released together ------------------------------------------- */

typedef struct tn__scratch_pool {
    const tn_backend *kernels;
    tn_context *ctx;
    int count;
    struct {
        void *memory;
        size_t bytes;
    } piece[2 * (TN_OP_INPUTS + TN_OP_OUTPUTS)];
} tn__scratch_pool;

static inline void tn__scratch_begin(tn__scratch_pool *s, const tn_backend *kernels,
                                     tn_context *ctx) {
    s->kernels = kernels;
    s->ctx = ctx;
    s->count = 0;
}

/* Row-major memory for d, which has a dtype and sizes; false: there is none. */
bool tn__scratch_take(tn__scratch_pool *s, tn_desc *d);

/* d becomes a row-major copy of itself in `dtype`. */
tn_status tn__scratch_copy(tn__scratch_pool *s, tn_desc *d, tn_dtype dtype);

static inline void tn__scratch_end(tn__scratch_pool *s) {
    while (s->count > 0) {
        s->count--;
        s->ctx->workspace_free(s->ctx, s->piece[s->count].memory, s->piece[s->count].bytes);
    }
}

/* ---- Of tensors ------------------------------------------------------------------------------ */

/* Describes t, which a kernel reads, in this dtype; rows: TN_ROWS(kept) or 0. Copied if need be. */
tn_status tn__operand_convert(tn__scratch_pool *s, tn_desc *d, int rows, tn_dtype dtype);
static inline tn_status tn__operand_read(tn__scratch_pool *s, tn_desc *d, const tn_tensor *t,
                                         int rows, tn_dtype dtype) {
    tn__desc_fill(d, t);
    bool fits = dtype == t->dtype && tn__has_rows(t, rows);
    return fits ? TN_OK : tn__operand_convert(s, d, rows, dtype);
}

/* Describes what a kernel writes; false if its strides do not allow rows. */
static inline bool tn__operand_write(tn_desc *d, const tn_tensor *t, int rows) {
    tn__desc_fill(d, t);
    return tn__has_rows(t, rows) || tn__desc_to_rows(d, rows - 1);
}

#endif
