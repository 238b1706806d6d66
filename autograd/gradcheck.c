/* Gradcheck: gradients against central differences.
 *
 * Every output is weighted with fixed pseudo-random numbers and summed, L = sum of w . f(x): one
 * backward then gives dL/dx, and two evaluations of f give each element of it by differences. A
 * wrong entry of the Jacobian shows with almost all weights. The second derivative is the same
 * check on the function x, v -> gradient of (v . f)(x).
 */
#include "autograd/links.h"
#include "core/error.h"
#include "core/memory.h"
#include "tensor/tensor.h"
#include "tern/autograd.h"
#include "tern/sys/device.h"

#include <math.h>

tn_gradcheck_options tn_gradcheck_defaults(void) {
    return (tn_gradcheck_options){.eps = 1e-6, .atol = 1e-5, .rtol = 1e-3, .from_defaults = true};
}

/* Weight of element i of output k: in [-1, 1], away from 0. */
static double weight_of(int k, int64_t i) {
    double u = tn_philox(20, 0, (uint64_t)k, (uint64_t)i).word[0] * 0x1p-32;
    return u < 0.5 ? -0.25 - 1.5 * u : 1.0 - 1.5 * (u - 0.5);
}

/* ---- Elements, on any device ----------------------------------------------------------------- */

/* A buffer on the host for t's elements; NULL after raising. The caller frees. */
static double *host_buffer(const tn_tensor *t) {
    return tn__malloc_for((size_t)(tn_count(t) > 0 ? tn_count(t) : 1) * sizeof(double),
                          "gradcheck");
}

/* t's elements in row-major order; NULL after raising. The caller frees. */
static double *host_copy(const tn_tensor *t) {
    double *copy = host_buffer(t);
    if (copy && tn_copy_out(t, copy) != TN_OK) {
        free(copy);
        return NULL;
    }
    return copy;
}

/* Sets element i of t, in row-major order, to `value`. */
static void set_element(const tn_tensor *t, int64_t i, double value) {
    int64_t offset = 0;
    for (int d = t->dims.ndim - 1; d >= 0; d--) {
        offset += i % t->dims.size[d] * t->stride[d];
        i /= t->dims.size[d];
    }
    tn__copy_bytes(t->storage->device, (double *)tn__address(t) + offset, tn_cpu(), &value,
                   sizeof value, "gradcheck");
}

static tn_tensor *weights_like(const tn_tensor *t, int k) {
    tn_tensor *w = tn_empty_like(t);
    double *data = w->inert ? NULL : host_buffer(w);
    for (int64_t i = 0; data && i < tn_count(w); i++) {
        data[i] = weight_of(k, i);
    }
    if (data) {
        tn__copy_bytes(w->storage->device, tn__address(w), tn_cpu(), data,
                       (size_t)tn_count(w) * sizeof *data, "gradcheck");
    }
    free(data);
    return w;
}

/* L at the inputs as they are now. */
static double evaluate_sum(tn_forward f, void *user, tn_values inputs) {
    TN_SCOPE;
    tn_values out = f(user, inputs);
    double sum = 0.0;
    for (int k = 0; k < out.n; k++) {
        const tn_tensor *t = out.v[k];
        double *y = t && !t->inert && t->dtype == TN_F64 ? host_copy(t) : NULL;
        for (int64_t i = 0; y && i < tn_count(t); i++) {
            sum += weight_of(k, i) * y[i];
        }
        free(y);
    }
    return sum;
}

/* dL/dx[i] by differences; x[i] is `before` again afterwards. */
static double central_difference(tn_forward f, void *user, tn_values inputs, const tn_tensor *x,
                                 int64_t i, double before, double eps) {
    set_element(x, i, before + eps);
    double up = evaluate_sum(f, user, inputs);
    set_element(x, i, before - eps);
    double down = evaluate_sum(f, user, inputs);
    set_element(x, i, before);
    return (up - down) / (2.0 * eps);
}

static bool compare_gradients(tn_forward f, void *user, tn_values inputs, int which,
                              const tn_tensor *grad, tn_gradcheck_options o) {
    const tn_tensor *x = inputs.v[which];
    double *values = host_copy(x), *gradient = grad ? host_copy(grad) : NULL;
    for (int64_t i = 0; i < tn_count(x) && !tn__pending(); i++) {
        double expected = central_difference(f, user, inputs, x, i, values[i], o.eps);
        double got = gradient ? gradient[i] : 0.0;
        if (!(fabs(got - expected) <= o.atol + o.rtol * fabs(expected))) {
            tn__raise(TN_EVALUE, "gradcheck",
                      "input %d, element %lld: backward gives %.9g but differences give %.9g",
                      which, (long long)i, got, expected);
        }
    }
    free(values);
    free(gradient);
    return !tn__pending();
}

static bool check_input(const tn_tensor *t, int i) {
    if (!tn__usable(t, "gradcheck")) { return false; }
    if (!tn_requires_grad(t)) { return true; }
    if (t->dtype != TN_F64 || t->node) {
        return tn__fail(TN_EDTYPE, "gradcheck",
                        "input %d must be a leaf in f64, where differences are exact enough", i);
    }
    for (int d = 0; d < t->dims.ndim; d++) {
        if (t->stride[d] == 0 && t->dims.size[d] > 1) {
            return tn__fail(
                TN_EVALUE, "gradcheck",
                "input %d repeats elements (stride 0): expand inside the function instead", i);
        }
    }
    return true;
}

/* The gradients of f's weighted sum by the inputs that require one. */
typedef struct gradients {
    int count, index[TN_MAX_VALUES]; /* of the inputs */
    tn_tensor *grad[TN_MAX_VALUES];  /* NULL: zeros */
} gradients;

/* False after raising. */
static bool find_gradients(tn_forward f, void *user, tn_values in, bool create_graph,
                           gradients *found) {
    tn_tensor *chosen[TN_MAX_VALUES], *roots[TN_MAX_VALUES], *weights[TN_MAX_VALUES];
    int n = 0;
    found->count = 0;
    bool before = tn_grad_mode_begin(true);
    tn_values out = f(user, in);
    for (int i = 0; i < in.n; i++) {
        if (tn_requires_grad(in.v[i])) {
            found->index[found->count] = i;
            chosen[found->count++] = in.v[i];
        }
    }
    for (int k = 0; k < out.n; k++) {
        if (tn_requires_grad(out.v[k]) && out.v[k]->dtype == TN_F64) {
            weights[n] = weights_like(out.v[k], k);
            roots[n++] = out.v[k];
        }
    }
    if (!tn__pending() && (n == 0 || found->count == 0)) {
        tn__raise(TN_EVALUE, "gradcheck", "no output depends on an input that requires a gradient");
    }
    tn_grad_options options = TN_WITH(tn_grad, .create_graph = create_graph, .allow_unused = true);
    bool ok = !tn__pending() &&
              tn_grad(roots, weights, n, chosen, found->count, found->grad, options) == TN_OK;
    tn_grad_mode_end(&before);
    return ok;
}

static bool first_order(tn_forward f, void *user, tn_values inputs, tn_gradcheck_options o) {
    TN_SCOPE;
    gradients found;
    for (int i = 0; i < inputs.n; i++) {
        if (inputs.v[i] && !check_input(inputs.v[i], i)) { return false; }
    }
    bool ok = find_gradients(f, user, inputs, false, &found);
    TN_NO_GRAD;
    for (int k = 0; k < found.count && ok; k++) {
        ok = compare_gradients(f, user, inputs, found.index[k], found.grad[k], o);
    }
    return ok;
}

/* The gradient of f's weighted sum as a function of f's inputs: the function that second
 * derivatives are the gradient of. */
typedef struct gradient_of {
    tn_forward f;
    void *user;
} gradient_of;

static tn_values gradient_forward(void *user, tn_values in) {
    const gradient_of *of = user;
    tn_values result = {0};
    gradients found;
    bool ok = find_gradients(of->f, of->user, in, true, &found);
    for (int i = 0; ok && i < found.count; i++) {
        if (found.grad[i]) { result.v[result.n++] = found.grad[i]; }
    }
    return result;
}

/* Whether the gradient itself depends on the inputs; a linear function has no second derivative to
 * check. */
static bool gradient_depends(gradient_of *of, tn_values inputs) {
    TN_SCOPE;
    tn_values grads = gradient_forward(of, inputs);
    bool depends = false;
    for (int i = 0; i < grads.n; i++) {
        depends |= tn_requires_grad(grads.v[i]);
    }
    return depends;
}

tn_status tn_gradcheck(tn_forward f, void *user, tn_values inputs, tn_gradcheck_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "gradcheck", "tn_gradcheck")) {
        return tn_error();
    }
    if (!f || inputs.n < 1 || inputs.n > TN_MAX_VALUES) {
        return tn__raise(TN_EVALUE, "gradcheck", "a function and 1 to %d inputs are needed",
                         TN_MAX_VALUES);
    }
    if (!tn__enter("gradcheck")) { return tn_error(); }
    if (first_order(f, user, inputs, options) && options.second) {
        gradient_of of = {f, user};
        if (gradient_depends(&of, inputs) && !tn__pending()) {
            first_order(gradient_forward, &of, inputs, options);
        }
    }
    tn__leave();
    return tn_error();
}
