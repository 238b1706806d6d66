/* Initial values. Each draw is one call of the thread's default generator, so a seed fixes every
 * weight of a model. They are drawn on the host and copied where the weight is:
 * the same bits on every device.
 */
#include "core/error.h"
#include "tensor/recipe.h"
#include "tern/nn.h"
#include "tern/sys/tensor.h"

#include <math.h>

/* Draws into t on the CPU, else into a tensor like it there, which is then copied. */
static void draw_values(tn_tensor *t, double a, double b,
                        tn_tensor *(*draw)(tn_tensor *, double, double, tn_generator *)) {
    TN_NO_GRAD;
    TN_SCOPE;
    bool here = tn_device_of(t).kind == TN_CPU;
    tn_tensor *host = here ? t : tn_empty_on(tn_cpu(), tn_shape(t), tn_dtype_of(t));
    tn_tensor *drawn = draw(host, a, b, NULL);
    if (!here) { tn_copy_(t, drawn); }
}

void tn_init_uniform(tn_tensor *t, double low, double high) {
    draw_values(t, low, high, tn_uniform_);
}

void tn_init_normal(tn_tensor *t, double mean, double std) {
    draw_values(t, mean, std, tn_normal_);
}

void tn_init_constant(tn_tensor *t, double value) {
    TN_NO_GRAD;
    tn_fill_(t, value);
}

/* Weights are (out, in, …): what follows `in` is a receptive field that multiplies both. False
 * after raising. */
static bool find_fans(const tn_tensor *t, double *fan_in, double *fan_out, const char *operation) {
    if (!tn__usable_or_deferred(t, operation)) { return false; }
    if (tn_ndim(t) < 2) {
        return tn__fail(TN_ESHAPE, operation,
                        "the weight is %s but needs at least 2 dimensions: (out, in, ...)",
                        tn_shape_text(t));
    }
    double field = 1.0;
    for (int i = 2; i < tn_ndim(t); i++) {
        field *= (double)tn_size(t, i);
    }
    *fan_in = (double)tn_size(t, 1) * field;
    *fan_out = (double)tn_size(t, 0) * field;
    return true;
}

void tn_init_xavier_uniform(tn_tensor *t, double gain) {
    double in, out;
    if (find_fans(t, &in, &out, "init_xavier_uniform")) {
        double bound = gain * sqrt(6.0 / (in + out));
        tn_init_uniform(t, -bound, bound);
    }
}

void tn_init_xavier_normal(tn_tensor *t, double gain) {
    double in, out;
    if (find_fans(t, &in, &out, "init_xavier_normal")) {
        tn_init_normal(t, 0.0, gain * sqrt(2.0 / (in + out)));
    }
}

double tn_calculate_gain(tn_nonlinearity nonlinearity, double param) {
    switch (nonlinearity) {
    case TN_GAIN_LINEAR:
    case TN_GAIN_SIGMOID:
        return 1.0;
    case TN_GAIN_TANH:
        return 5.0 / 3.0;
    case TN_GAIN_RELU:
        return sqrt(2.0);
    case TN_GAIN_LEAKY_RELU:
        return sqrt(2.0 / (1.0 + param * param));
    case TN_GAIN_SELU:
        return 0.75;
    }
    tn__raise(TN_EVALUE, "calculate_gain", "there is no nonlinearity %d", (int)nonlinearity);
    return 0.0;
}

tn_kaiming_options tn_kaiming_defaults(void) {
    return (tn_kaiming_options){
        .mode = TN_FAN_IN, .nonlinearity = TN_GAIN_LEAKY_RELU, .from_defaults = true};
}

/* The standard deviation; false after raising. */
static bool kaiming_std(const tn_tensor *t, tn_kaiming_options o, double *std,
                        const char *operation) {
    double in, out, gain = tn_calculate_gain(o.nonlinearity, o.a);
    if (!tn__options_made(o.from_defaults, operation, "tn_kaiming") || gain == 0.0 ||
        !find_fans(t, &in, &out, operation)) {
        return false;
    }
    if (o.mode != TN_FAN_IN && o.mode != TN_FAN_OUT) {
        return tn__fail(TN_EVALUE, operation, "mode is %d (TN_FAN_IN or TN_FAN_OUT)", (int)o.mode);
    }
    *std = gain / sqrt(o.mode == TN_FAN_OUT ? out : in);
    return true;
}

void tn_init_kaiming_uniform_with(tn_tensor *t, tn_kaiming_options options) {
    double std;
    if (kaiming_std(t, options, &std, "init_kaiming_uniform")) {
        tn_init_uniform(t, -sqrt(3.0) * std, sqrt(3.0) * std);
    }
}

void tn_init_kaiming_normal_with(tn_tensor *t, tn_kaiming_options options) {
    double std;
    if (kaiming_std(t, options, &std, "init_kaiming_normal")) { tn_init_normal(t, 0.0, std); }
}

void tn_init_kaiming_uniform(tn_tensor *t, double negative_slope) {
    tn_kaiming_options options = tn_kaiming_defaults();
    options.a = negative_slope;
    tn_init_kaiming_uniform_with(t, options);
}

void tn_init_kaiming_normal(tn_tensor *t, double negative_slope) {
    tn_kaiming_options options = tn_kaiming_defaults();
    options.a = negative_slope;
    tn_init_kaiming_normal_with(t, options);
}
