/* gather_rows and scatter_add_rows (an embedding and its gradient). Indices are checked before
 * anything is written.
 *
 * Contiguous rows are copied whole. Otherwise, as when columns are picked, the first element of
 * each picked row is copied, then the second of each, and so on: the indices are closer together
 * than a row.
 *
 * The scatter is parallel over columns: each thread walks all indices in order for its own slice of
 * y, so a sum has the order of the indices however many threads there are.
 */
#include "backends/cpu/convert.h"
#include "backends/desc.h"

static tn_status check_indices(tn_context *ctx, const tn_desc *index, int64_t limit) {
    for (int64_t i = 0; i < index->size[0]; i++) {
        int64_t value = index_at(index, i * index->stride[0]);
        if (value < 0 || value >= limit) { return bad_index(ctx, i, value); }
    }
    return TN_OK;
}

/* Whether a row (everything after the first dimension) is one contiguous run; *length is its number
 * of elements. */
static bool row_is_run(const tn_desc *d, int64_t *length) {
    tn_desc row = tn__desc_without(d, 0);
    *length = count_of(&row);
    return is_contiguous(&row);
}

/* Element i of y is element index[i] of x. */
INLINE void pick_sized(char *y, int64_t y_stride, const char *x, int64_t x_stride,
                       const tn_desc *index, int64_t size) {
    for (int64_t i = 0; i < index->size[0]; i++) {
        memcpy(y + i * y_stride * size, x + index_at(index, i * index->stride[0]) * x_stride * size,
               (size_t)size);
    }
}

/* The same with a compile-time size. */
static void pick_elements(char *y, int64_t y_stride, const char *x, int64_t x_stride,
                          const tn_desc *index, size_t size) {
    switch (size) {
    case 8:
        pick_sized(y, y_stride, x, x_stride, index, 8);
        break;
    case 4:
        pick_sized(y, y_stride, x, x_stride, index, 4);
        break;
    case 2:
        pick_sized(y, y_stride, x, x_stride, index, 2);
        break;
    default:
        pick_sized(y, y_stride, x, x_stride, index, 1);
        break;
    }
}

/* Rows of any strides. */
static void gather_elements(const tn_desc *y, const tn_desc *x, const tn_desc *index) {
    int64_t places = count_of(y) / y->size[0];
    int threads = team_size(places, places * index->size[0]);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t place = 0; place < places; place++) {
        int64_t rest = place, to = 0, from = 0;
        for (int k = y->ndim - 1; k > 0; k--) {
            to += rest % y->size[k] * y->stride[k];
            from += rest % y->size[k] * x->stride[k];
            rest /= y->size[k];
        }
        pick_elements(desc_at(y, to), y->stride[0], desc_at(x, from), x->stride[0], index,
                      size_of(y->dtype));
    }
}

tn_status TN_CPU(gather_rows)(tn_context *ctx, const tn_desc *y, const tn_desc *x,
                              const tn_desc *index) {
    int64_t length, unused;
    if (y->dtype != x->dtype || !is_index(index->dtype) || y->ndim < 1) {
        return TN_CPU(ref)->gather_rows(ctx, y, x, index);
    }
    tn_status status = check_indices(ctx, index, x->size[0]);
    if (status != TN_OK || count_of(y) == 0) { return status; }
    if (!row_is_run(y, &length) || !row_is_run(x, &unused)) {
        gather_elements(y, x, index);
        return TN_OK;
    }
    int64_t rows = y->size[0], height = max_of(1, CHUNK / max_of(1, length)),
            tasks = div_up(rows, height);
    size_t bytes = (size_t)length * size_of(y->dtype);
    int threads = team_size(tasks, rows * length);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        for (int64_t i = task * height; i < min_of((task + 1) * height, rows); i++) {
            memcpy(desc_at(y, i * y->stride[0]),
                   desc_at(x, index_at(index, i * index->stride[0]) * x->stride[0]), bytes);
        }
    }
    return TN_OK;
}

tn_status TN_CPU(scatter_add_rows)(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                                   const tn_desc *src) {
    enum { SLICE = 64 };
    int64_t length, unused;
    if (y->dtype != TN_F32 || src->dtype != TN_F32 || !is_index(index->dtype) || y->ndim < 1 ||
        !row_is_run(y, &length) || !row_is_run(src, &unused)) {
        return TN_CPU(ref)->scatter_add_rows(ctx, y, index, src);
    }
    tn_status status = check_indices(ctx, index, y->size[0]);
    if (status != TN_OK) { return status; }
    int64_t rows = src->size[0], slices = div_up(length, SLICE);
    int threads = team_size(slices, rows * length);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        int64_t from = slices * part / threads * SLICE,
                to = min_of(slices * (part + 1) / threads * SLICE, length);
        for (int64_t i = 0; i < rows; i++) {
            float *sum = (float *)desc_at(y, index_at(index, i * index->stride[0]) * y->stride[0]);
            const float *add = (const float *)desc_at(src, i * src->stride[0]);
#pragma omp simd
            for (int64_t j = from; j < to; j++) {
                sum[j] += add[j];
            }
        }
    }
    return TN_OK;
}
