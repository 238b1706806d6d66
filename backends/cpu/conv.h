/* Convolutions inside the backend: the jobs that conv.c makes of an entry's operands, and that
 * conv_f32.c and conv_f64.c run.
 */
#ifndef TERN_BACKENDS_CPU_CONV_H
#define TERN_BACKENDS_CPU_CONV_H

#include "backends/cpu/cpu.h"

enum { SPATIAL = 3 };

/* How one dimension is walked: places i = 0 … places-1 of the result and taps j = 0 … taps-1 meet
 * at element origin + i step + j shift of the input, 0 outside it; with `falls`, the last tap is at
 * the origin and tap j at (taps - 1 - j) shift. */
typedef struct conv_walk {
    int64_t places, step, taps, shift, origin;
    bool falls;
} conv_walk;

/* Weight of row m (of the result's channels), input channel c and taps j:
 * data + m row + c channel + sum of (first + j each) stride over the dimensions. */
typedef struct conv_weights {
    const void *data;
    tn_dtype dtype;
    int64_t row, channel, group, first[SPATIAL], each[SPATIAL], stride[SPATIAL];
} conv_weights;

/* A result or an input: (images, channels, places), in elements of dtype. */
typedef struct conv_side {
    void *data;
    tn_dtype dtype;
    int64_t image, channel, stride[SPATIAL], size[SPATIAL];
} conv_side;

/* y[n, g rows + m, i] = bias[g rows + m] + sum over c, j of x[n, g channels + c, i, j] w[m, c, j].
 * For the gradient of the weight, y is read and w is written: dw[g, m, c, j] = sum over n, i. */
typedef struct conv_job {
    int64_t images, groups, rows, channels; /* rows and channels of one group */
    conv_walk walk[SPATIAL];
    conv_side x, y;
    conv_weights w;
    const void *bias; /* of y's dtype, or NULL */
    int64_t bias_stride;
} conv_job;

tn_status TN_CPU(conv_f32)(tn_context *ctx, const conv_job *job);
tn_status TN_CPU(conv_f64)(tn_context *ctx, const conv_job *job);
tn_status TN_CPU(conv_weight_f32)(tn_context *ctx, const conv_job *job);
tn_status TN_CPU(conv_weight_f64)(tn_context *ctx, const conv_job *job);

/* The same for f32 jobs of which conv_winograd_fits is true. */
bool TN_CPU(conv_winograd_fits)(const conv_job *job);
tn_status TN_CPU(conv_winograd)(tn_context *ctx, const conv_job *job);
tn_status TN_CPU(conv_winograd_weight)(tn_context *ctx, const conv_job *job);

#endif
