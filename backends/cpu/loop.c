/* The element loop: setting it up and walking it. */
#include "backends/cpu/loop.h"

static void swap_dims(element_loop *loop, int a, int b) {
    int64_t keep = loop->size[a];
    loop->size[a] = loop->size[b];
    loop->size[b] = keep;
    for (int k = 0; k < loop->operands; k++) {
        keep = loop->stride[k][a];
        loop->stride[k][a] = loop->stride[k][b];
        loop->stride[k][b] = keep;
    }
}

/* Whether dimension d continues dimension d - 1 in every operand. */
static bool dim_merges(const element_loop *loop, int d) {
    for (int k = 0; k < loop->operands; k++) {
        if (loop->stride[k][d - 1] != loop->stride[k][d] * loop->size[d]) { return false; }
    }
    return true;
}

static void merge_dims(element_loop *loop) {
    int last = 0;
    for (int d = 1; d < loop->ndim; d++) {
        loop->size[last + 1] = loop->size[d];
        for (int k = 0; k < loop->operands; k++) {
            loop->stride[k][last + 1] = loop->stride[k][d];
        }
        if (dim_merges(loop, last + 1)) {
            loop->size[last] *= loop->size[last + 1];
            for (int k = 0; k < loop->operands; k++) {
                loop->stride[k][last] = loop->stride[k][last + 1];
            }
        } else {
            last++;
        }
    }
    loop->ndim = last + 1;
}

void TN_CPU(loop_init)(element_loop *loop, int operands, const tn_desc *const *op) {
    loop->operands = operands;
    loop->count = 1;
    int n = 0;
    for (int d = 0; d < op[0]->ndim; d++) {
        int64_t size = op[0]->size[d];
        loop->count *= size;
        if (size == 1) { continue; }
        loop->size[n] = size;
        for (int k = 0; k < operands; k++) {
            loop->stride[k][n] = op[k]->stride[d];
        }
        n++;
    }
    if (n == 0) {
        loop->size[0] = 1;
        for (int k = 0; k < operands; k++) {
            loop->stride[k][0] = 1;
        }
        n = 1;
    }
    loop->ndim = n;
    for (int d = 1; d < n; d++) {
        for (int e = d; e > 0 && loop->stride[0][e - 1] < loop->stride[0][e]; e--) {
            swap_dims(loop, e - 1, e);
        }
    }
    if (n > 1) { merge_dims(loop); }
}

/* Rows [first, last) of the outer dimensions, columns [from, from + n) of the row. */
static void walk_rows(const element_loop *loop, int64_t first, int64_t last, int64_t from,
                      int64_t n, loop_body body, const void *user) {
    int outer = loop->ndim - 1;
    int64_t index[TN_MAX_DIMS], off[LOOP_OPERANDS];
    for (int k = 0; k < loop->operands; k++) {
        off[k] = from * loop->stride[k][outer];
    }
    int64_t rest = first;
    for (int d = outer - 1; d >= 0; d--) {
        index[d] = rest % loop->size[d];
        rest /= loop->size[d];
        for (int k = 0; k < loop->operands; k++) {
            off[k] += index[d] * loop->stride[k][d];
        }
    }
    for (int64_t row = first; row < last; row++) {
        body(user, loop, off, n);
        for (int d = outer - 1; d >= 0; d--) {
            for (int k = 0; k < loop->operands; k++) {
                off[k] += loop->stride[k][d];
            }
            if (++index[d] < loop->size[d]) { break; }
            for (int k = 0; k < loop->operands; k++) {
                off[k] -= loop->size[d] * loop->stride[k][d];
            }
            index[d] = 0;
        }
    }
}

void TN_CPU(loop_run)(const element_loop *loop, loop_body body, const void *user) {
    if (loop->count == 0) { return; }
    int64_t row = loop->size[loop->ndim - 1], rows = loop->count / row;
    if (loop->count <= CHUNK) {
        walk_rows(loop, 0, rows, 0, row, body, user);
        return;
    }
    int64_t width = min_of(row, CHUNK), pieces = div_up(row, width);
    int64_t height = pieces > 1 ? 1 : max_of(1, CHUNK / row), bands = div_up(rows, height);
    int threads = team_size(bands * pieces, loop->count);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < bands * pieces; task++) {
        int64_t first = task / pieces * height, from = task % pieces * width;
        walk_rows(loop, first, min_of(first + height, rows), from, min_of(width, row - from), body,
                  user);
    }
}
