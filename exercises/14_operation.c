/* Exercise 14: an operation of one's own in Tern: squareplus. The page is 14_operation.md.
 *
 *     y = (x + sqrt(x^2 + b)) / 2, a smooth relu without exponentials
 *     Barron 2021, arXiv:2112.11687
 */
#include <tern/tern.h>
#include <tern/sys/op.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    double b;
} squareplus_args;

/* The copy kernel lays x out in y without gaps, whatever its strides. Then y is computed in place,
 * in f32 or f64. */
static tn_status squareplus_forward(const tn_op_call *c) {
    double b = ((const squareplus_args *)c->args)->b;
    tn_status status = c->kernels->copy(c->ctx, c->y[0], c->x[0]);
    int64_t n = tn_count(c->out[0]);
    for (int64_t i = 0; status == TN_OK && i < n; i++) {
        if (c->y[0]->dtype == TN_F32) {
            float *y = c->y[0]->data;
            y[i] = (y[i] + sqrtf(y[i] * y[i] + (float)b)) / 2;
        } else if (c->y[0]->dtype == TN_F64) {
            double *y = c->y[0]->data;
            y[i] = (y[i] + sqrt(y[i] * y[i] + b)) / 2;
        } else {
            status = TN_EUNSUPPORTED;
        }
    }
    return status;
}

/* ---- yours ---- */
static const tn_op squareplus_op = {
    .name = "squareplus",
    .inputs = {"x"},
    .args_size = sizeof(squareplus_args),
    .shapes = "... -> ...",
    .forward = squareplus_forward,
};
/* ---- end ---- */

static tn_tensor *squareplus(tn_tensor *x, double b) {
    return tn_apply1(&squareplus_op, &(squareplus_args){b}, x);
}

/* ---- The judge ---- */

static tn_values call(void *user, tn_values in) {
    return (tn_values){1, {squareplus(in.v[0], *(double *)user)}};
}

static int refuse(const char *what, const char *hint) {
    char line[400];
    snprintf(line, sizeof(line), "%s", what);
    for (char *c = line; *c; c++) { *c = *c == '\n' ? ' ' : *c; }
    printf("differs: %s%s\n", line, hint);
    return 1;
}

/* Numbers against the formula; then gradients, and gradients of gradients, against differences. */
static int try(tn_dims dims, double b) {
    TN_SCOPE;
    tn_tensor *x = tn_set_requires_grad(tn_mul_scalar(tn_randn(dims, TN_F64), 2), true);
    tn_tensor *y = squareplus(x, b);
    for (int64_t i = 0; !tn_error() && i < tn_count(x); i++) {
        double v = ((const double *)tn_data(x))[i], want = (v + sqrt(v * v + b)) / 2;
        double got = ((const double *)tn_data(y))[i];
        if (fabs(want - got) > 1e-12) {
            char what[160];
            snprintf(what, sizeof(what), "squareplus(%g), b = %g: expected %.9g, got %.9g", v, b,
                     want, got);
            return refuse(what, " (is b among the arguments?)");
        }
    }
    if (!tn_error() && !tn_requires_grad(y)) {
        return refuse("expected a result with a gradient, got one without", " (.backward?)");
    }
    tn_values in = {1, {x}};
    if (tn_gradcheck(call, &b, in, TN_WITH(tn_gradcheck, .second = true)) == TN_OK) { return 0; }
    return refuse(tn_error_message(), tn_error() == TN_EVALUE ? " (dx = dy · slope)" : "");
}

static void count(tn_op_samples *s, const tn_sample *sample) {
    static double last;
    double b = ((const squareplus_args *)sample->args)->b;
    if (b <= 0 || b == last || tn_dims_count(sample->in[0].dims) < 2) { return; }
    ++*(int *)s->user, last = b;
}

int main(void) {
    int samples = 0;
    tn_seed(4);
    if (try(TN_DIMS(5), 1) || try(TN_DIMS(3, 4, 2), 0.3) || try(TN_DIMS(80), 4)) { return 1; }
    tn_op_list_samples(&squareplus_op, &(tn_op_samples){count, &samples});
    if (tn_error()) { return refuse(tn_error_message(), " (does .fields name b?)"); }
    if (samples < 2) {
        return refuse("fewer than two .samples with more than one element, b > 0", "");
    }
    if (tn_op_check(&squareplus_op) != TN_OK) { return refuse(tn_error_message(), ""); }
    printf("pass\n");
    return 0;
}
