/* What an operation's own loops (tn_op's host) are made of: pieces that run in parallel, lines of
 * an operand along one dimension, and elements of either float dtype.
 *
 *     static inline void scale_lines(const scale_job *j, int64_t first, int64_t end, tn_dtype t) {
 *         for (int64_t i = first; i < end; i++) {
 *             int64_t x = tn__line_at(&j->x, i), y = tn__line_at(&j->y, i);
 *             for (int64_t k = 0; k < j->x.length; k++, x += j->x.step, y += j->y.step) {
 *                 tn__host_store(j->y.data, t, y, j->k * tn__host_load(j->x.data, t, x));
 *             }
 *         }
 *     }
 *
 *     TN__PIECE(scale_piece, scale_lines, scale_job)
 *
 * The loop is written once and, as the dtype is a constant, compiled for each. Elements are loaded
 * as double, which holds both, and rounded once when stored.
 */
#ifndef TERN_OPS_HOST_H
#define TERN_OPS_HOST_H

#include "ops/dims.h"

/* ---- Pieces ---------------------------------------------------------------------------------- */

/* Items first … end - 1 of a job. Runs in any thread: it raises nothing and allocates nothing. */
typedef void tn__host_piece(const void *job, int64_t first, int64_t end);

/* Defines a piece that calls `loops` with the dtype of its job's x as a constant. */
#define TN__PIECE(piece, loops, job_type)                             \
    static void piece(const void *user, int64_t first, int64_t end) { \
        const job_type *job = user;                                   \
        if (job->x.dtype == TN_F64) {                                 \
            loops(job, first, end, TN_F64);                           \
        } else {                                                      \
            loops(job, first, end, TN_F32);                           \
        }                                                             \
    }

/* Calls piece for all of 0 … count - 1, on several threads if that is worth waking them. `each`:
 * about how many elements an item reads and writes. The split depends only on count and each, so a
 * piece may sum its items: the bits are the same for any number of threads. No two pieces may write
 * the same element. */
TN_API void tn__host_pieces(int64_t count, int64_t each, tn__host_piece *piece, const void *job);

/* ---- Lines ----------------------------------------------------------------------------------- */

/* An operand as lines along one dimension, one for each position in the others, in row-major order.
 * Operands of the same sizes have the same lines, whatever their strides. */
typedef struct tn__lines {
    void *data;
    tn_dtype dtype;
    int64_t count;        /* lines */
    int64_t length, step; /* elements of a line, and how far apart they are */
    tn_desc others;       /* the other dimensions */
} tn__lines;

/* A 0-dimensional x is one line of one. */
TN_API tn__lines tn__lines_along(const tn_desc *x, int dim);

/* The position of the i-th element of x in row-major order; and of the first element of line i. */
TN_API int64_t tn__element_at(const tn_desc *x, int64_t i);
static inline int64_t tn__line_at(const tn__lines *lines, int64_t i) {
    return tn__element_at(&lines->others, i);
}

/* ---- Elements: f32 or f64 -------------------------------------------------------------------- */

static inline double tn__host_load(const void *data, tn_dtype dtype, int64_t at) {
    return dtype == TN_F64 ? ((const double *)data)[at] : (double)((const float *)data)[at];
}

static inline void tn__host_store(void *data, tn_dtype dtype, int64_t at, double value) {
    if (dtype == TN_F64) {
        ((double *)data)[at] = value;
    } else {
        ((float *)data)[at] = (float)value;
    }
}

/* An index: i64 or i32. */
static inline int64_t tn__host_index(const void *data, tn_dtype dtype, int64_t at) {
    return dtype == TN_I32 ? ((const int32_t *)data)[at] : ((const int64_t *)data)[at];
}

/* TN_EINDEX, storing position (row-major) and value for the error message. */
static inline tn_status tn__host_bad_index(tn_context *ctx, int64_t position, int64_t value) {
    ctx->bad_position = position;
    ctx->bad_value = value;
    return TN_EINDEX;
}

#endif
