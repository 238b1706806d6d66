/* Pieces and lines for loops of operations (host.h). */
#include "ops/host.h"

#include <omp.h>

/* Elements per piece, and how many are worth a second thread: waking one takes microseconds. */
enum { PIECE = 16384 };

void tn__host_pieces(int64_t count, int64_t each, tn__host_piece *piece, const void *job) {
    int64_t size = each < PIECE ? PIECE / (each > 0 ? each : 1) : 1;
    int64_t pieces = (count + size - 1) / size;
    int threads = pieces > 1 && !omp_in_parallel() ? tn_threads() : 1;
    threads = threads > pieces ? (int)pieces : threads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < pieces; i++) {
        piece(job, i * size, (i + 1) * size < count ? (i + 1) * size : count);
    }
}

tn__lines tn__lines_along(const tn_desc *x, int dim) {
    tn__lines lines = {
        .data = x->data, .dtype = x->dtype, .count = 1, .length = 1, .others = {.ndim = 0}};
    for (int i = 0; i < x->ndim; i++) {
        if (i == dim) {
            lines.length = x->size[i];
            lines.step = x->stride[i];
        } else {
            lines.count *= x->size[i];
            lines.others.size[lines.others.ndim] = x->size[i];
            lines.others.stride[lines.others.ndim++] = x->stride[i];
        }
    }
    return lines;
}

int64_t tn__element_at(const tn_desc *x, int64_t i) {
    int64_t at = 0;
    for (int d = x->ndim - 1; d >= 0 && i > 0; d--) {
        at += i % x->size[d] * x->stride[d];
        i /= x->size[d];
    }
    return at;
}
