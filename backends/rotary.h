/* How fast each pair of a rotary embedding turns: for the kernels of every table, and for the
 * operation's composition. */
#ifndef TERN_BACKENDS_ROTARY_H
#define TERN_BACKENDS_ROTARY_H

#include "core/inline.h"
#include "tern/sys/backend.h"

#include <math.h>

/* Radians a position, of pair i of `half`: theta^(-i / half). With a factor, pairs that turn fewer
 * than `low` times within the original context turn `factor` times more slowly, those that turn
 * more than `high` times as before, and between the two it passes from one to the other
 * (Grattafiori et al. 2024, arXiv:2407.21783, and Llama 3.1's code). */
TN__INLINE double tn__rotary_frequency(const tn_rotary_args *o, int64_t i, int64_t half) {
    double f = pow(o->theta, -(double)i / (double)half);
    if (o->factor == 1.0) {
        return f;
    }
    double turns = (double)o->original_context * f / (2.0 * M_PI);
    double fast = (turns - o->low_freq_factor) / (o->high_freq_factor - o->low_freq_factor);
    fast = fast < 0.0 ? 0.0 : fast > 1.0 ? 1.0 : fast;
    return f * (fast + (1.0 - fast) / o->factor);
}

#endif
