/* Learning rates as functions of the step. No state: a checkpoint needs only the step. With t steps
 * after the warm-up of w, and n for `steps`:
 *
 *     warm-up        peak (step + 1) / (w + 1)                            for step < w
 *     linear         peak + (end - peak) r                                r = t / (n - w) up to 1
 *     cosine         end + (peak - end) (1 + cos(pi r)) / 2
 *     step           peak factor^(t / every, rounded down)
 *     multi-step     peak factor^(milestones up to t)
 *     exponential    peak factor^t
 *     warm restarts  cosine over cycles of every, every growth, every growth^2, … steps
 *     one cycle      half a cosine from start to peak, then one from there to end
 */
#include "core/error.h"
#include "tern/optim.h"

#include <math.h>
#include <string.h>

tn_schedule tn_schedule_constant(double lr, int64_t warmup) {
    return (tn_schedule){.kind = TN_CONSTANT, .peak = lr, .end = lr, .warmup = warmup};
}

/* After a longer warm-up there would be no decay: the rate would fall to `end` in one step. */
static void check_warmup(int64_t warmup, int64_t steps, const char *operation) {
    if (warmup > steps) {
        tn__raise(
            TN_EVALUE, operation,
            "a warm-up of %lld steps in a schedule of %lld (the warm-up is part of it, and may "
            "not be longer)",
            (long long)warmup, (long long)steps);
    }
}

tn_schedule tn_schedule_linear(double peak, double end, int64_t warmup, int64_t steps) {
    check_warmup(warmup, steps, "schedule_linear");
    return (tn_schedule){
        .kind = TN_LINEAR, .peak = peak, .end = end, .warmup = warmup, .steps = steps};
}

tn_schedule tn_schedule_cosine(double peak, double end, int64_t warmup, int64_t steps) {
    check_warmup(warmup, steps, "schedule_cosine");
    return (tn_schedule){
        .kind = TN_COSINE, .peak = peak, .end = end, .warmup = warmup, .steps = steps};
}

tn_schedule tn_schedule_step(double lr, int64_t every, double factor) {
    return (tn_schedule){.kind = TN_STEP, .peak = lr, .every = every, .factor = factor};
}

tn_schedule tn_schedule_multi_step(double lr, const int64_t *milestones, int n, double factor) {
    tn_schedule s = {.kind = TN_MULTI_STEP, .peak = lr, .factor = factor};
    if (!milestones || n < 1 || n > TN_MILESTONES) {
        tn__raise(TN_EVALUE, "schedule_multi_step", "%d milestones (1 to %d)", n, TN_MILESTONES);
        return s;
    }
    memcpy(s.milestones, milestones, (size_t)n * sizeof(*milestones));
    s.milestone_count = n;
    return s;
}

tn_schedule tn_schedule_exponential(double lr, double factor) {
    return (tn_schedule){.kind = TN_EXPONENTIAL, .peak = lr, .factor = factor};
}

tn_schedule tn_schedule_warm_restarts(double peak, double end, int64_t first, int64_t growth) {
    return (tn_schedule){
        .kind = TN_WARM_RESTARTS, .peak = peak, .end = end, .every = first, .growth = growth};
}

tn_schedule tn_schedule_one_cycle(double peak, int64_t steps) {
    return (tn_schedule){.kind = TN_ONE_CYCLE,
                         .peak = peak,
                         .start = peak / 25,
                         .end = peak / 25 / 1e4,
                         .rise = 0.3,
                         .steps = steps};
}

/* Half a cosine from `from` at 0 to `to` at 1; `to` afterwards. */
static double bend_between(double from, double to, double at) {
    const double pi = 3.14159265358979323846;
    return to + (from - to) * (1.0 + cos(pi * (at < 1.0 ? at : 1.0))) / 2.0;
}

static int count_milestones(const tn_schedule *s, int64_t t) {
    int passed = 0;
    for (int i = 0; i < s->milestone_count && i < TN_MILESTONES; i++) {
        passed += s->milestones[i] <= t;
    }
    return passed;
}

/* How far into its cycle t is. */
static double cycle_part(const tn_schedule *s, int64_t t) {
    int64_t length = s->every > 0 ? s->every : 1;
    if (s->growth < 2) { return (double)(t % length) / (double)length; }
    while (t >= length) {
        t -= length;
        if (__builtin_mul_overflow(length, s->growth, &length)) { length = INT64_MAX; }
    }
    return (double)t / (double)length;
}

static double one_cycle_at(const tn_schedule *s, double t) {
    double top = s->rise * (double)s->steps - 1.0, last = (double)s->steps - 1.0;
    return t <= top ? bend_between(s->start, s->peak, top > 0.0 ? t / top : 1.0)
                    : bend_between(s->peak, s->end, last > top ? (t - top) / (last - top) : 1.0);
}

double tn_schedule_at(tn_schedule s, int64_t step) {
    step = step < 0 ? 0 : step;
    if (step < s.warmup) { return s.peak * ((double)step + 1.0) / ((double)s.warmup + 1.0); }
    int64_t t = step - (s.warmup > 0 ? s.warmup : 0), drops = t / (s.every > 0 ? s.every : 1);
    double length = (double)s.steps - (double)s.warmup,
           part = length > 0.0 ? ((double)step - (double)s.warmup) / length : 1.0;
    part = part < 1.0 ? part : 1.0;
    switch (s.kind) {
    case TN_LINEAR:
        return s.peak + (s.end - s.peak) * part;
    case TN_COSINE:
        return bend_between(s.peak, s.end, part);
    case TN_STEP:
        return s.peak * pow(s.factor, (double)drops);
    case TN_MULTI_STEP:
        return s.peak * pow(s.factor, count_milestones(&s, t));
    case TN_EXPONENTIAL:
        return s.peak * pow(s.factor, (double)t);
    case TN_WARM_RESTARTS:
        return bend_between(s.peak, s.end, cycle_part(&s, t));
    case TN_ONE_CYCLE:
        return one_cycle_at(&s, (double)t);
    case TN_CONSTANT:
        break;
    }
    return s.peak;
}
