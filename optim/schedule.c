/* Learning rates as functions of the step. No state: a checkpoint needs nothing but the step.
 *
 *     warm-up   peak (step + 1) / (warmup + 1)                       for step < warmup
 *     linear    peak + (end - peak) t
 *     cosine    end + (peak - end) (1 + cos(pi t)) / 2               t from 0 at `warmup` to 1 at
 *                                                                    `steps`, and 1 after
 */
#include "tern/optim.h"

#include <math.h>

tn_schedule tn_schedule_constant(double lr, int64_t warmup) {
    return (tn_schedule){.kind = TN_CONSTANT, .peak = lr, .end = lr, .warmup = warmup};
}

tn_schedule tn_schedule_linear(double peak, double end, int64_t warmup, int64_t steps) {
    return (tn_schedule){
        .kind = TN_LINEAR, .peak = peak, .end = end, .warmup = warmup, .steps = steps};
}

tn_schedule tn_schedule_cosine(double peak, double end, int64_t warmup, int64_t steps) {
    return (tn_schedule){
        .kind = TN_COSINE, .peak = peak, .end = end, .warmup = warmup, .steps = steps};
}

double tn_schedule_at(tn_schedule s, int64_t step) {
    const double pi = 3.14159265358979323846;
    step = step < 0 ? 0 : step;
    if (step < s.warmup) {
        return s.peak * ((double)step + 1.0) / ((double)s.warmup + 1.0);
    }
    double length = (double)s.steps - (double)s.warmup,
           t = length > 0.0 ? ((double)step - (double)s.warmup) / length : 1.0;
    t = t < 1.0 ? t : 1.0;
    switch (s.kind) {
    case TN_LINEAR:
        return s.peak + (s.end - s.peak) * t;
    case TN_COSINE:
        return s.end + (s.peak - s.end) * (1.0 + cos(pi * t)) / 2.0;
    case TN_CONSTANT:
        break;
    }
    return s.peak;
}
