/* What the kernels of rotary and rotary_qkv read (ops/nn/): x[0] (B, H, T, D), D even; the last x,
 * the positions, (T), (1, T) or (B, T), i64 or i32; args tn_rotary_args. f32 f64 bf16 f16. */
#ifndef TERN_BACKENDS_ROTARY_H
#define TERN_BACKENDS_ROTARY_H

#include "backends/desc.h"

#include <math.h>

typedef struct tn_rotary_args { /* as in tn_rotary_options (ops.h) */
    double theta, factor, low_freq_factor, high_freq_factor;
    int64_t original_context;
    bool inverse; /* rotates back */
} tn_rotary_args;

/* The positions of x as (B, T). */
TN__INLINE tn_desc tn__rotary_positions(const tn_desc *x, const tn_desc *positions) {
    int64_t size[2] = {x->size[0], x->size[2]};
    return tn__desc_spread(positions, 2, size);
}

/* Radians per position, for pair i of `half`: theta^(-i / half). With a factor, pairs that turn
 * fewer than `low` times within the original context turn `factor` times more slowly, those that
 * turn more than `high` times are unchanged, and in between it is interpolated (Grattafiori et al.
 * 2024, arXiv:2407.21783, and Llama 3.1's code). */
TN__INLINE double tn__rotary_frequency(const tn_rotary_args *o, int64_t i, int64_t half) {
    double f = pow(o->theta, -(double)i / (double)half);
    if (o->factor == 1.0) { return f; }
    double turns = (double)o->original_context * f / (2.0 * M_PI);
    double fast = (turns - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    fast = fast < 0.0 ? 0.0 : fast > 1.0 ? 1.0 : fast;
    return f * (fast + (1.0 - fast) / o->factor);
}

#endif
