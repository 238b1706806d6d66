/* mixup: convex mixtures of the examples of a batch and of their classes. */
#include "core/error.h"
#include "tern/sys/tensor.h"
#include "tern/transforms.h"

#include <math.h>

#define MIXUP_STREAM (UINT64_C(2) << 32)

static double draw_normal(tn_generator *g) {
    double radius = sqrt(-2 * log(1 - tn_random_uniform(g)));
    return radius * cos(2 * M_PI * tn_random_uniform(g));
}

/* The logarithm of a number from Gamma(shape, 1): Marsaglia, Tsang 2000, "A simple method for
 * generating gamma variables", whose last page covers shapes below 1. A logarithm, since for a
 * small shape the number itself often underflows to 0. */
static double draw_log_gamma(tn_generator *g, double shape) {
    double lift = 0;
    if (shape < 1) {
        lift = log(1 - tn_random_uniform(g)) / shape;
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = draw_normal(g), v = pow(1 + c * x, 3);
        double u = 1 - tn_random_uniform(g);
        if (v > 0 && log(u) < 0.5 * x * x + d - d * v + d * log(v)) { return log(d * v) + lift; }
    }
}

/* Beta(alpha, alpha) */
static double draw_lambda(const tn_batch *b, double alpha, uint64_t seed) {
    tn_generator g = tn_example_generator((tn_example){.epoch = b->epoch, .place = b->index}, seed);
    g.stream = MIXUP_STREAM;
    double x = draw_log_gamma(&g, alpha), y = draw_log_gamma(&g, alpha);
    return 1 / (1 + exp(y - x));
}

static tn_tensor *mix_rows(tn_tensor *t, double lambda) {
    tn_tensor *before = tn_roll(t, TN_DIMS(1), TN_DIMS(0));
    return tn_add(tn_mul_scalar(t, lambda), tn_mul_scalar(before, 1 - lambda));
}

tn_batch tn_mixup(tn_batch b, int64_t classes, double alpha, uint64_t seed) {
    TN_NO_GRAD;
    tn_tensor *x = b.x, *y = b.y;
    b.x = b.y = tn_inert();
    if (!tn__usable(x, "mixup") || !tn__usable(y, "mixup")) { return b; }
    const char *wrong = TN__BEYOND({"classes", classes, 1, 0});
    if (wrong) {
        tn__raise(TN_EVALUE, "mixup", "%s", wrong);
    } else if (!(alpha > 0) || !isfinite(alpha)) {
        tn__raise(TN_EVALUE, "mixup", "alpha is %g (it must be above 0, and finite)", alpha);
    } else if (!tn_dtype_is_float(tn_dtype_of(x))) {
        tn__raise(TN_EDTYPE, "mixup", "x is %s: integers cannot be mixed",
                  tn_dtype_name(tn_dtype_of(x)));
    } else if (tn_ndim(y) != 1 || tn_ndim(x) < 1 || tn_size(x, 0) != tn_size(y, 0)) {
        tn__raise(TN_ESHAPE, "mixup", "x is %s and y %s, but there should be one class per row",
                  tn_shape_text(x), tn_shape_text(y));
    } else {
        double lambda = draw_lambda(&b, alpha, seed);
        b.y = mix_rows(tn_cast(tn_one_hot(y, classes), tn_dtype_of(x)), lambda);
        b.x = tn_is_inert(b.y) ? b.y : mix_rows(x, lambda);
    }
    return b;
}
