/* Convolutions: a loop over the result, and loops over the terms of its sum; sums in double. */
#include "backends/ref/ref.h"

enum { SPATIAL = 3 }; /* dimensions 2, 3 and 4 of (N, C, D, H, W) */

/* Two of the three indices of a dimension (the place of the kernel p, the offset i in it, the place
 * in x) determine the third: at = p stride - padding + i dilation. */
static bool place_in_x(const tn_conv_args *a, int d, int64_t p, int64_t i, int64_t size,
                       int64_t *at) {
    *at = p * a->stride[d] - a->padding[d] + i * a->dilation[d];
    return *at >= 0 && *at < size;
}

static bool place_of_kernel(const tn_conv_args *a, int d, int64_t at, int64_t i, int64_t size,
                            int64_t *p) {
    int64_t from = at + a->padding[d] - i * a->dilation[d];
    *p = from / a->stride[d];
    return from >= 0 && from % a->stride[d] == 0 && *p < size;
}

/* The offset of an index (first, second, place…) in an operand. */
static int64_t offset_of(const tn_desc *x, int64_t first, int64_t second, const int64_t *place) {
    int64_t at = first * x->stride[0] + second * x->stride[1];
    for (int d = 0; d < SPATIAL; d++) {
        at += place[d] * x->stride[d + 2];
    }
    return at;
}

/* Advances i over the offsets in w's kernel, in row-major order; false after the last. */
static bool next_offset(const tn_desc *w, int64_t *i) {
    for (int d = SPATIAL - 1; d >= 0; d--) {
        if (++i[d] < w->size[d + 2]) { return true; }
        i[d] = 0;
    }
    return false;
}

static bool one_dtype(const tn_desc *y, const tn_desc *a, const tn_desc *b, const tn_desc *c) {
    return is_float(y->dtype) && a->dtype == y->dtype && b->dtype == y->dtype &&
           (!c || c->dtype == y->dtype);
}

static bool is_empty(const tn_desc *x) {
    return x->size[2] * x->size[3] * x->size[4] == 0;
}

tn_status tn__ref_conv(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                       const tn_desc *b, const tn_conv_args *args) {
    if (!one_dtype(y, x, w, b)) { return TN_EUNSUPPORTED; }
    int64_t out = w->size[0] / args->groups;
    for (walk k = walk_over(1, y); k.left > 0; walk_next(&k)) {
        int64_t n = k.index[0], o = k.index[1], *p = k.index + 2, i[SPATIAL] = {0}, at[SPATIAL];
        double sum = b ? load_float(b, o * b->stride[0]) : 0;
        bool more = !is_empty(w);
        for (; more; more = next_offset(w, i)) {
            if (!place_in_x(args, 0, p[0], i[0], x->size[2], &at[0]) ||
                !place_in_x(args, 1, p[1], i[1], x->size[3], &at[1]) ||
                !place_in_x(args, 2, p[2], i[2], x->size[4], &at[2])) {
                continue;
            }
            int64_t from = offset_of(x, n, o / out * w->size[1], at),
                    weight = offset_of(w, o, 0, i);
            for (int64_t c = 0; c < w->size[1]; c++) {
                sum += load_float(x, from + c * x->stride[1]) *
                       load_float(w, weight + c * w->stride[1]);
            }
        }
        store_float(y, k.at[0], sum);
    }
    return TN_OK;
}

tn_status tn__ref_conv_backward_input(tn_context *ctx, const tn_desc *dx, const tn_desc *dy,
                                      const tn_desc *w, const tn_desc *b,
                                      const tn_conv_args *args) {
    if (!one_dtype(dx, dy, w, b)) { return TN_EUNSUPPORTED; }
    int64_t out = w->size[0] / args->groups, in = w->size[1];
    for (walk k = walk_over(1, dx); k.left > 0; walk_next(&k)) {
        int64_t n = k.index[0], c = k.index[1], *at = k.index + 2, i[SPATIAL] = {0}, p[SPATIAL];
        double sum = b ? load_float(b, c * b->stride[0]) : 0;
        bool more = !is_empty(w);
        for (; more; more = next_offset(w, i)) {
            if (!place_of_kernel(args, 0, at[0], i[0], dy->size[2], &p[0]) ||
                !place_of_kernel(args, 1, at[1], i[1], dy->size[3], &p[1]) ||
                !place_of_kernel(args, 2, at[2], i[2], dy->size[4], &p[2])) {
                continue;
            }
            int64_t o = c / in * out, from = offset_of(dy, n, o, p),
                    weight = offset_of(w, o, c % in, i);
            for (int64_t j = 0; j < out; j++) {
                sum += load_float(dy, from + j * dy->stride[1]) *
                       load_float(w, weight + j * w->stride[0]);
            }
        }
        store_float(dx, k.at[0], sum);
    }
    return TN_OK;
}

/* db: the sums of dy over all but its channels */
static void sum_channels(const tn_desc *db, const tn_desc *dy) {
    for (int64_t o = 0; o < db->size[0]; o++) {
        tn_desc channel = *dy;
        channel.size[1] = 1;
        double sum = 0;
        for (walk k = walk_over(1, &channel); k.left > 0; walk_next(&k)) {
            sum += load_float(dy, o * dy->stride[1] + k.at[0]);
        }
        store_float(db, o * db->stride[0], sum);
    }
}

tn_status tn__ref_conv_backward_weight(tn_context *ctx, const tn_desc *dw, const tn_desc *db,
                                       const tn_desc *dy, const tn_desc *x,
                                       const tn_conv_args *args) {
    const tn_desc *y = dw ? dw : db;
    if (!y) { return TN_OK; }
    bool widens = y->dtype == TN_F32 && (dy->dtype == TN_BF16 || dy->dtype == TN_F16);
    if (!is_float(y->dtype) || !(dy->dtype == y->dtype || widens) ||
        (dw && x->dtype != dy->dtype) || (db && db->dtype != y->dtype)) {
        return TN_EUNSUPPORTED;
    }
    if (db) { sum_channels(db, dy); }
    if (!dw) { return TN_OK; }
    int64_t out = dw->size[0] / args->groups;
    tn_desc places = *dy; /* of the kernel, over the whole batch */
    places.size[1] = 1;
    for (walk k = walk_over(1, dw); k.left > 0; walk_next(&k)) {
        int64_t o = k.index[0], c = o / out * dw->size[1] + k.index[1], *i = k.index + 2;
        int64_t at[SPATIAL];
        double sum = 0;
        for (walk q = walk_over(1, &places); q.left > 0; walk_next(&q)) {
            int64_t *p = q.index + 2;
            if (place_in_x(args, 0, p[0], i[0], x->size[2], &at[0]) &&
                place_in_x(args, 1, p[1], i[1], x->size[3], &at[1]) &&
                place_in_x(args, 2, p[2], i[2], x->size[4], &at[2])) {
                sum += load_float(dy, o * dy->stride[1] + q.at[0]) *
                       load_float(x, offset_of(x, q.index[0], c, at));
            }
        }
        store_float(dw, k.at[0], sum);
    }
    return TN_OK;
}
