/* Rotary positions (ops/nn/rotary.c has the formulas).
 *
 * A task is a column; its cosines and sines serve all heads, and the following sequences with the
 * same position there. Rows that are not contiguous f32 pass through a buffer; f64 is left to the
 * host's loops.
 */
#include "backends/cpu/convert.h"
#include "backends/rotary.h"

/* A thread's buffers: D / 2 cosines, D / 2 sines, a row. */
typedef struct turner {
    float *cosine, *sine, *row;
    int64_t half;
} turner;

static int64_t position_of(const tn_desc *positions, int64_t b, int64_t t) {
    return index_at(positions, b * positions->stride[0] + t * positions->stride[1]);
}

static void set_angles(const turner *w, const double *frequency, int64_t position, bool inverse) {
    for (int64_t i = 0; i < w->half; i++) {
        double angle = (double)position * frequency[i];
        w->cosine[i] = (float)cos(angle);
        w->sine[i] = (float)(inverse ? -sin(angle) : sin(angle));
    }
}

/* y may be x. */
static void turn_row(const turner *w, float *y, const float *x) {
    const float *cosine = w->cosine, *sine = w->sine;
    int64_t half = w->half;
#pragma omp simd
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        y[i] = a * cosine[i] - b * sine[i];
        y[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* All heads of one sequence in one column. */
static void turn_heads(const turner *w, const tn_desc *y, const tn_desc *x, int64_t b, int64_t t) {
    bool plain = x->dtype == TN_F32 && unit_rows(x) && unit_rows(y);
    for (int64_t h = 0; h < x->size[1]; h++) {
        void *to = desc_at(y, b * y->stride[0] + h * y->stride[1] + t * y->stride[2]),
             *from = desc_at(x, b * x->stride[0] + h * x->stride[1] + t * x->stride[2]);
        if (plain) {
            turn_row(w, to, from);
        } else {
            load_f32(w->row, from, x->dtype, x->stride[3], x->size[3]);
            turn_row(w, w->row, w->row);
            store_f32(to, y->dtype, y->stride[3], w->row, x->size[3]);
        }
    }
}

static tn_status rotary_forward(const tn_op_call *c) {
    const tn_desc *y = c->y[0], *x = c->x[0], at = tn__rotary_positions(x, c->x[1]),
                  *positions = &at;
    const tn_rotary_args *args = c->args;
    if (!is_f32_like(x->dtype)) { return TN_EUNSUPPORTED; }
    int64_t columns = x->size[2], half = x->size[3] / 2;
    int threads = team_size(columns, count_of(x));
    TN__SCRATCH(double, frequency, c->ctx, (1 + 2 * threads) * half); /* then turners */
    if (!frequency) { return TN_ENOMEM; }
    for (int64_t i = 0; i < half; i++) {
        frequency[i] = tn__rotary_frequency(args, i, half);
    }
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t t = 0; t < columns; t++) {
        int me = threads > 1 ? omp_get_thread_num() : 0;
        float *own = (float *)(frequency + half + 2 * me * half);
        turner w = {own, own + half, own + 2 * half, half};
        for (int64_t b = 0; b < x->size[0]; b++) {
            int64_t position = position_of(positions, b, t);
            if (b == 0 || position != position_of(positions, b - 1, t)) {
                set_angles(&w, frequency, position, args->inverse);
            }
            turn_heads(&w, y, x, b, t);
        }
    }
    return TN_OK;
}

const tn_op_kernel TN_CPU(op_rotary) = {rotary_forward, NULL};
