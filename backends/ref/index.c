/* gather and scatter_add, along a dimension and for whole rows. All indices are checked before
 * anything is written. */
#include "backends/desc.h"
#include "backends/ref/ref.h"
#include "backends/scratch.h"

/* Whether every index is in [0, limit); if not, ctx says which one. */
static tn_status check_indices(tn_context *ctx, const tn_desc *index, int64_t limit) {
    for (walk w = walk_over(1, index); w.left > 0; walk_next(&w)) {
        int64_t value = load_integer(index, w.at[0]);
        if (value < 0 || value >= limit) {
            ctx->bad_position = w.position;
            ctx->bad_value = value;
            return TN_EINDEX;
        }
    }
    return TN_OK;
}

/* The 1-dimensional index of rows expanded to like's sizes, with stride 0 along each row. */
static tn_desc row_index(const tn_desc *index, const tn_desc *like) {
    tn_desc wide = *like;
    wide.data = index->data;
    wide.dtype = index->dtype;
    for (int i = 0; i < like->ndim; i++) {
        wide.stride[i] = i == 0 ? index->stride[0] : 0;
    }
    return wide;
}

/* The offset that d's element has when its position along dim is replaced by `position`. */
static int64_t moved_offset(const tn_desc *d, const walk *w, int operand, int dim,
                            int64_t position) {
    return w->at[operand] + (position - w->index[dim]) * d->stride[dim];
}

static void gather_along(const tn_desc *y, const tn_desc *x, const tn_desc *index, int dim) {
    for (walk w = walk_over(3, y, x, index); w.left > 0; walk_next(&w)) {
        move_element(y, w.at[0], x, moved_offset(x, &w, 1, dim, load_integer(index, w.at[2])));
    }
}

static void scatter_along(const tn_desc *y, const tn_desc *index, const tn_desc *src, int dim) {
    for (walk w = walk_over(3, src, y, index); w.left > 0; walk_next(&w)) {
        int64_t to = moved_offset(y, &w, 1, dim, load_integer(index, w.at[2]));
        /* the double sum of two floats, rounded, is their float sum */
        store_float(y, to, load_float(y, to) + load_float(src, w.at[0]));
    }
}

/* bf16 and f16 are added up in an f32 copy of y, so that each element is rounded once. */
static tn_status scatter_dim(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                             const tn_desc *src, int dim) {
    if (y->dtype == TN_F32 || y->dtype == TN_F64) {
        scatter_along(y, index, src, dim);
        return TN_OK;
    }
    tn_desc sum = *y;
    sum.dtype = TN_F32;
    int64_t count = tn__desc_densify(&sum);
    TN__SCRATCH(float, sums, ctx, count);
    if (!sums) { return TN_ENOMEM; }
    sum.data = sums;
    for (walk w = walk_over(2, y, &sum); w.left > 0; walk_next(&w)) {
        store_float(&sum, w.at[1], load_float(y, w.at[0]));
    }
    scatter_along(&sum, index, src, dim);
    for (walk w = walk_over(2, y, &sum); w.left > 0; walk_next(&w)) {
        store_float(y, w.at[0], load_float(&sum, w.at[1]));
    }
    return TN_OK;
}

tn_status tn__ref_gather_rows(tn_context *ctx, const tn_desc *y, const tn_desc *x,
                              const tn_desc *index) {
    if (y->dtype != x->dtype || !is_index(index->dtype)) { return TN_EUNSUPPORTED; }
    tn_status status = check_indices(ctx, index, x->size[0]);
    if (status == TN_OK) {
        tn_desc wide = row_index(index, y);
        gather_along(y, x, &wide, 0);
    }
    return status;
}

tn_status tn__ref_scatter_add_rows(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                                   const tn_desc *src) {
    if (!is_float(y->dtype) || src->dtype != y->dtype || !is_index(index->dtype)) {
        return TN_EUNSUPPORTED;
    }
    tn_status status = check_indices(ctx, index, y->size[0]);
    if (status == TN_OK) {
        tn_desc wide = row_index(index, src);
        status = scatter_dim(ctx, y, &wide, src, 0);
    }
    return status;
}

tn_status tn__ref_gather(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *index,
                         int dim) {
    if (y->dtype != x->dtype || !is_index(index->dtype)) { return TN_EUNSUPPORTED; }
    tn_status status = check_indices(ctx, index, x->size[dim]);
    if (status == TN_OK) { gather_along(y, x, index, dim); }
    return status;
}

tn_status tn__ref_scatter_add(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                              const tn_desc *src, int dim) {
    if (!is_float(y->dtype) || src->dtype != y->dtype || !is_index(index->dtype)) {
        return TN_EUNSUPPORTED;
    }
    tn_status status = check_indices(ctx, index, y->size[dim]);
    return status == TN_OK ? scatter_dim(ctx, y, index, src, dim) : status;
}
