/* argmax of f32, bf16 and f16; the rest is left to ref.
 *
 * Elements are compared as integers in the same order, NaN above all. A line is read in tiles, and
 * a tile is searched only if its largest element exceeds those before. Lines that lie side by side
 * are compared in lanes.
 */
#include "backends/axes.h"
#include "backends/cpu/convert.h"

enum { COLUMNS = 256, FEW = 16 };

/* Keys compare as PyTorch orders floats: -0 equals 0, and all NaN are one, the largest. */
INLINE int32_t key_of(float value) {
    int32_t bits = (int32_t)bits_of_float(value + 0.0f);
    int32_t key = bits ^ (bits >> 31 & INT32_MAX);
    return value != value ? INT32_MAX : key;
}

static int32_t largest_key(const float *x, int64_t n) {
    int32_t largest = INT32_MIN;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) {
        int32_t key = key_of(x[i]);
        largest = key > largest ? key : largest;
    }
    return largest;
}

static int64_t first_with(const float *x, int32_t key) {
    int64_t i = 0;
    while (key_of(x[i]) != key) {
        i++;
    }
    return i;
}

static int64_t argmax_line(const char *x, tn_dtype dtype, int64_t stride, int64_t n) {
    float buffer[TILE];
    int32_t best = INT32_MIN;
    int64_t place = 0;
    for (int64_t i = 0; i < n; i += TILE) {
        int64_t m = min_of(TILE, n - i);
        const char *from = x + i * stride * (int64_t)size_of(dtype);
        const float *tile = (const float *)from;
        if (dtype != TN_F32 || stride != 1) {
            load_f32(buffer, from, dtype, stride, m);
            tile = buffer;
        }
        int32_t largest = largest_key(tile, m);
        if (largest > best) {
            best = largest;
            place = i + first_with(tile, largest);
        }
    }
    return place;
}

/* `n` lines side by side, at most COLUMNS, of length <= INT32_MAX. */
static void argmax_columns(int64_t *y, int64_t step, const char *x, tn_dtype dtype, int64_t stride,
                           int64_t length, int64_t n) {
    float row[COLUMNS];
    int32_t best[COLUMNS], place[COLUMNS];
    for (int64_t i = 0; i < n; i++) {
        best[i] = INT32_MIN;
        place[i] = 0;
    }
    for (int32_t j = 0; j < length; j++) {
        load_f32(row, x + j * stride * (int64_t)size_of(dtype), dtype, 1, n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            int32_t key = key_of(row[i]);
            place[i] = key > best[i] ? j : place[i];
            best[i] = key > best[i] ? key : best[i];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        y[i * step] = place[i];
    }
}

tn_status TN_CPU(argmax)(tn_context *ctx, const tn_desc *y, const tn_desc *x, int dim) {
    if (!is_f32_like(x->dtype) || y->dtype != TN_I64) {
        return TN_CPU(ref)->argmax(ctx, y, x, dim);
    }
    tn__axes lines = {.total = 1};
    int order[TN_MAX_DIMS], n = tn__axes_order(x, order);
    for (int k = 0; k < n; k++) {
        if (order[k] != dim) {
            tn__axes_push(&lines, x->size[order[k]], x->stride[order[k]], y->stride[order[k]]);
        }
    }
    int64_t length = x->size[dim], stride = x->stride[dim];
    int64_t width = 1, pieces = 1, side = 1, step = 1; /* lines side by side, cut in pieces */
    int last = lines.count - 1;
    if (last >= 0 && lines.x[last] == 1 && lines.size[last] >= FEW && length <= INT32_MAX) {
        side = lines.size[last];
        step = lines.y[last];
        width = COLUMNS;
        pieces = div_up(side, width);
        lines.total /= side;
        lines.count--;
    }
    int64_t tasks = lines.total * pieces;
    int threads = team_size(tasks, lines.total * side * length);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        int64_t from = task % pieces * width, x_at = from, y_at = from * step;
        tn__axes_at(&lines, task / pieces, &x_at, &y_at);
        int64_t *to = (int64_t *)desc_at(y, y_at);
        const char *at = desc_at(x, x_at);
        if (side > 1) {
            argmax_columns(to, step, at, x->dtype, stride, length, min_of(width, side - from));
        } else {
            *to = argmax_line(at, x->dtype, stride, length);
        }
    }
    return TN_OK;
}
