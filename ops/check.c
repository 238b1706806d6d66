/* tn_op_check: what must hold for every operation, on each of its samples.
 *
 *   gradients   in f64, against central differences, in every layout; the gradient's own gradient
 *               too where it exists; recorded gradients equal ordinary ones
 *   dtypes      f32, bf16 and f16 give what f64 gives on the same numbers, forward and backward
 *   orders      results and gradients do not depend on the memory order of an operand's dimensions
 *   subsets     nor does a gradient on which others are computed
 *   ownership   recorded and dropped without backward, nothing leaks
 *
 * Small samples are checked element by element; large ones along one random direction,
 * which costs two evaluations.
 */
#include "ops/check.h"

#include "core/memory.h"
#include "ops/op.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Inputs from specs ----------------------------------------------------------------------- */

const char *tn__layout_name(tn__layout layout) {
    static const char *const names[] = {"contiguous", "transposed", "sliced", "repeated"};
    return names[layout];
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b > 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static double uniform_at(uint64_t seed, int64_t i) {
    tn_random4 r = tn_philox(seed, 77, 0, (uint64_t)i);
    return ((double)r.word[0] + (double)r.word[1] * 0x1p-32) * 0x1p-32;
}

/* Element i of the spec. DISTINCT: evenly spaced values in an order given by a step that shares no
 * factor with their number. */
static double spec_value(const tn_spec *spec, int64_t count, uint64_t seed, int64_t i) {
    double u = uniform_at(seed, i);
    switch (spec->kind) {
    case TN_SPEC_VALUES:
        return spec->values[i];
    case TN_SPEC_INDEX:
    case TN_SPEC_BOOL:
    case TN_SPEC_BYTE:
        return floor(spec->low + (spec->high - spec->low) * u);
    case TN_SPEC_DISTINCT: {
        int64_t step = count / 3 * 2 + 1;
        while (common_divisor(step, count) != 1) {
            step++;
        }
        int64_t place = (int64_t)((uint64_t)i * (uint64_t)step % (uint64_t)count);
        return spec->low +
               (spec->high - spec->low) * ((double)place + 0.25 + 0.25 * u) / (double)count;
    }
    default:
        return spec->low + (spec->high - spec->low) * u;
    }
}

/* In how many orders t's dimensions can be stored. */
static int64_t count_orders(const tn_tensor *t) {
    int64_t all = 1;
    for (int i = 2; t && i <= tn_ndim(t); i++) {
        all *= i;
    }
    return all;
}

/* A copy of t with its dimensions stored in order number `order`; 0 is row-major, the last one its
 * reverse. */
static tn_tensor *stored_in_order(tn_tensor *t, int64_t order) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_dims dims = tn_shape(t), memory = dims, back = dims;
    int left[TN_MAX_DIMS];
    for (int i = 0; i < dims.ndim; i++) {
        left[i] = i;
    }
    for (int i = 0; i < dims.ndim; i++) {
        int n = dims.ndim - i, pick = (int)(order % n);
        order /= n;
        memory.size[i] = dims.size[left[pick]];
        back.size[left[pick]] = i;
        memmove(&left[pick], &left[pick + 1], (size_t)(n - 1 - pick) * sizeof *left);
    }
    tn_tensor *y = tn_permute(tn_empty_on(tn_device_of(t), memory, tn_dtype_of(t)), back);
    tn_copy_(y, t);
    return tn_return(tn_set_requires_grad(tn_detach(y), tn_requires_grad(t)));
}

/* t, which is dense, or a copy of it on the default device with this memory layout. */
static tn_tensor *laid_out(tn_tensor *t, tn__layout layout) {
    tn_dims dims = tn_shape(t);
    if (layout == TN__TRANSPOSED) { return stored_in_order(t, count_orders(t) - 1); }
    if (layout == TN__SLICED && dims.ndim >= 1) {
        tn_dims larger = dims;
        int last = dims.ndim - 1;
        larger.size[last] = 2 * dims.size[last] + 1;
        return tn_copy_(tn_slice(tn_zeros(larger, tn_dtype_of(t)), last, 1, larger.size[last], 2),
                        t);
    }
    return t;
}

static tn_dims kept_dims(const tn_spec *spec, tn__layout layout) {
    tn_dims dims = spec->dims;
    if (layout == TN__REPEATED && spec->kind == TN_SPEC_REAL && dims.ndim > 0 && dims.size[0] > 1) {
        dims.size[0] = 1;
    }
    return dims;
}

tn_tensor *tn__spec_tensor(const tn_spec *spec, tn_dtype dtype, tn__layout layout, bool narrow,
                           uint64_t seed) {
    if (spec->kind == TN_SPEC_ABSENT) { return NULL; }
    TN_SCOPE;
    TN_NO_GRAD;
    if (spec->kind == TN_SPEC_INDEX) {
        dtype = narrow ? TN_I32 : TN_I64;
    } else if (spec->kind == TN_SPEC_BOOL) {
        dtype = TN_BOOL;
    } else if (spec->kind == TN_SPEC_BYTE) {
        dtype = TN_I8;
    }
    tn_dims dims = kept_dims(spec, layout);
    int64_t count = tn_dims_count(dims);
    double *values = tn__calloc_for((size_t)count, sizeof *values, "op_check");
    if (!values) { return tn_inert(); }
    for (int64_t i = 0; i < count; i++) {
        values[i] = spec_value(spec, count, seed, i);
    }
    tn_tensor *from = tn_from_data(values, dims, TN_F64);
    free(values);
    return tn_return(tn_detach(laid_out(tn_cast(from, dtype), layout)));
}

/* ---- The checked function -------------------------------------------------------------------- */

/* A sample as a function of its inputs. */
typedef struct function {
    const tn_op *op;
    const tn_sample *sample;
} function;

static tn_values apply_sample(void *user, tn_values in) {
    const function *f = user;
    tn_values out = {.n = tn_op_results(f->op)};
    for (int i = 0; i < in.n; i++) {
        if (in.v[i] && !tn_dims_equal(tn_shape(in.v[i]), f->sample->in[i].dims)) {
            in.v[i] = tn_expand(in.v[i], f->sample->in[i].dims);
        }
    }
    tn_apply_many(f->op, f->sample->args, in.v, in.n, out.v);
    return out;
}

static tn_values make_inputs(const tn_op *op, const tn_sample *sample, tn_dtype dtype,
                             tn__layout layout, bool narrow) {
    tn_values in = {.n = sample->inputs};
    for (int i = 0; i < in.n; i++) {
        in.v[i] = tn__spec_tensor(&sample->in[i], dtype, layout, narrow, (uint64_t)i + 1);
        if (in.v[i] && tn_op_differentiable(op) && tn__spec_real(&sample->in[i])) {
            tn_set_requires_grad(in.v[i], true);
        }
    }
    return in;
}

static int64_t count_elements(const tn_values *in) {
    int64_t sum = 0;
    for (int i = 0; i < in->n; i++) {
        sum += tn_requires_grad(in->v[i]) ? tn_count(in->v[i]) : 0;
    }
    return sum;
}

/* ---- Comparisons ----------------------------------------------------------------------------- */

/* The error a dtype may have, relative to a result, and the largest number that it holds. Forward:
 * about one rounding. A recorded gradient: two, as kernels read rounded results. Backward reads
 * rounded results too, and subtracts terms as large as the largest gradient: several roundings of
 * that. */
typedef struct precision {
    tn_dtype dtype;
    double forward, recorded, backward, largest;
} precision;

static const precision precisions[] = {
    {TN_F64, 1e-13, 1e-12, 1e-12, INFINITY}, /* fast kernels may sum in another order */
    {TN_F32, 2e-6, 4e-6, 2e-5, 3.4e38},
    {TN_BF16, 1.0 / 256, 1.0 / 128, 1.0 / 32, 3.3e38},
    {TN_F16, 1.0 / 2048, 1.0 / 1024, 1.0 / 256, 65000.0},
};
/* Results are compared with f64's in the last three, and between orders in memory in the first. */
enum { PRECISIONS = 4, ORDERED = 3 };

/* |x - y| <= tolerance of (|y| + the largest |y|), where y fits the dtype at all. */
static void compare_tensors(tn_tensor *x, tn_tensor *y, double tolerance, double largest,
                            const char *what, int i, const char *than) {
    TN_SCOPE;
    TN_NO_GRAD;
    int64_t count = tn_count(y);
    double top = 0.0, *got = tn__calloc_for((size_t)(2 * count), sizeof *got, "op_check");
    if (!got) { return; }
    double *want = got + count;
    bool read = tn_copy_out(tn_cast(x, TN_F64), got) == TN_OK &&
                tn_copy_out(tn_cast(y, TN_F64), want) == TN_OK;
    for (int64_t k = 0; k < count && read; k++) {
        if (isfinite(want[k]) && fabs(want[k]) <= largest) { top = fmax(top, fabs(want[k])); }
    }
    for (int64_t k = 0; k < count && tn_error() == TN_OK; k++) {
        bool same =
            (isnan(want[k]) && isnan(got[k])) || want[k] == got[k] || fabs(want[k]) > largest;
        if (!same && !(fabs(got[k] - want[k]) <= tolerance * (fabs(want[k]) + top) + 1e-7)) {
            tn__raise(TN_EVALUE, "op_check", "%s %d, element %lld: %s gives %.9g but %s gives %.9g",
                      what, i, (long long)k, tn_dtype_name(tn_dtype_of(x)), got[k], than, want[k]);
        }
    }
    free(got);
}

/* ---- Gradients ------------------------------------------------------------------------------- */

/* Larger samples: one direction, no second derivative. */
enum { ALL_ELEMENTS = 400, ALL_SECOND = 150 };

/* Numbers in [-1, 1], of t's shape and dtype and on its device. */
static tn_tensor *random_like(tn_tensor *t, uint64_t seed) {
    tn_spec spec = tn_spec_real(tn_shape(t), -1.0, 1.0);
    return tn_to(tn__spec_tensor(&spec, tn_dtype_of(t), TN__PLAIN, false, seed), tn_device_of(t));
}

/* The weighted sum of all float results: one number whose gradient involves every output. */
static tn_tensor *weighted_sum(tn_values out, uint64_t seed) {
    tn_tensor *sum = NULL;
    for (int i = 0; i < out.n; i++) {
        if (!tn_dtype_is_float(tn_dtype_of(out.v[i]))) { continue; }
        tn_tensor *w = random_like(out.v[i], seed + (uint64_t)i);
        tn_tensor *part = tn_sum_all(tn_mul(out.v[i], w));
        sum = sum ? tn_add(sum, part) : part;
    }
    return sum;
}

static double value_at(function *f, tn_values in, const tn_values *step, double scale) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_values moved = in;
    for (int i = 0; i < in.n; i++) {
        if (step->v[i]) { moved.v[i] = tn_add(in.v[i], tn_mul_scalar(step->v[i], scale)); }
    }
    return tn_item(weighted_sum(apply_sample(f, moved), 900));
}

static void check_direction(function *f, tn_values in) {
    TN_SCOPE;
    tn_values step = {.n = in.n};
    tn_backward(weighted_sum(apply_sample(f, in), 900));
    double got = 0.0, size = 0.0;
    for (int i = 0; i < in.n; i++) {
        if (!in.v[i] || !tn_requires_grad(in.v[i])) { continue; }
        step.v[i] = random_like(in.v[i], 500 + (uint64_t)i);
        tn_tensor *product =
            tn_mul(tn_grad_of(in.v[i]) ? tn_grad_of(in.v[i]) : tn_zeros_like(in.v[i]), step.v[i]);
        got += tn_item(tn_sum_all(product));
        size += tn_item(tn_sum_all(tn_abs(product)));
    }
    double eps = 1e-6,
           expected = (value_at(f, in, &step, eps) - value_at(f, in, &step, -eps)) / (2.0 * eps);
    if (tn_error() == TN_OK && !(fabs(got - expected) <= 1e-6 * size + 1e-5)) {
        tn__raise(TN_EVALUE, "op_check",
                  "along a direction backward gives %.9g but differences give %.9g", got, expected);
    }
}

/* Results that have gradients, with these gradients. */
typedef struct arrivals {
    tn_tensor *root[TN_MAX_VALUES], *weight[TN_MAX_VALUES];
    int n;
} arrivals;

/* dy: the gradients; NULL: random ones. */
static arrivals arrivals_at(tn_values out, const tn_values *dy) {
    arrivals a = {.n = 0};
    for (int i = 0; i < out.n; i++) {
        if (tn_requires_grad(out.v[i])) {
            a.root[a.n] = out.v[i];
            a.weight[a.n++] = dy ? dy->v[i] : random_like(out.v[i], 900 + (uint64_t)i);
        }
    }
    return a;
}

static tn_values leaves_of(tn_values in) {
    tn_values leaves = {0};
    for (int i = 0; i < in.n; i++) {
        if (tn_requires_grad(in.v[i])) { leaves.v[leaves.n++] = in.v[i]; }
    }
    return leaves;
}

static void compare_recorded(tn_values leaves, arrivals *a, double tolerance, double largest) {
    TN_SCOPE;
    tn_tensor *plain[TN_MAX_VALUES], *recorded[TN_MAX_VALUES];
    tn_grad_options once = TN_WITH(tn_grad, .retain_graph = true, .allow_unused = true),
                    again = TN_WITH(tn_grad, .create_graph = true, .allow_unused = true);
    tn_grad(a->root, a->weight, a->n, leaves.v, leaves.n, plain, once);
    tn_grad(a->root, a->weight, a->n, leaves.v, leaves.n, recorded, again);
    for (int i = 0; i < leaves.n && tn_error() == TN_OK; i++) {
        if (plain[i]) {
            compare_tensors(recorded[i], plain[i], tolerance, largest,
                            "the recorded gradient of input", i, "the ordinary one");
        }
    }
}

/* A recorded gradient uses the rule, or the composition, where an ordinary one uses the kernel:
 * they must agree, up to rounding. Also when only one of several results has a gradient, which a
 * kernel may treat separately. */
static void check_recorded(tn_values in, tn_values out, double tolerance, double largest) {
    TN_SCOPE;
    tn_values leaves = leaves_of(in);
    arrivals all = arrivals_at(out, NULL);
    if (all.n == 0 || leaves.n == 0) { return; }
    compare_recorded(leaves, &all, tolerance, largest);
    for (int i = 0; i < all.n && all.n > 1; i++) {
        arrivals one = {.root = {all.root[i]}, .weight = {all.weight[i]}, .n = 1};
        compare_recorded(leaves, &one, tolerance, largest);
    }
}

/* Whether a gradient can be recorded: by a rule or the composition. */
static bool has_rule(const tn_op *op) {
    return op->backward || op->compose;
}

/* TERN_OP_CHECK=brief, for slow kernels: one direction instead of every element, and one layout per
 * sample, in turn. This tests the kernels, not the rules. */
static bool wants_brief(void) {
    const char *value = getenv("TERN_OP_CHECK");
    return value && strcmp(value, "brief") == 0;
}

static void check_gradients(const tn_op *op, const tn_sample *sample, tn__layout layout) {
    TN_SCOPE;
    function f = {op, sample};
    tn_values in = make_inputs(op, sample, TN_F64, layout, false);
    int64_t count = count_elements(&in);
    if (count == 0 || tn_error() != TN_OK) {
        tn_values out = apply_sample(&f, in); /* empty: it must work too */
        if (tn_error() == TN_OK && tn_requires_grad(out.v[0])) {
            tn_backward(weighted_sum(out, 900));
        }
        return;
    }
    if (count > (wants_brief() ? 1 : ALL_ELEMENTS)) {
        check_direction(&f, in);
        return;
    }
    tn_gradcheck_options o = tn_gradcheck_defaults();
    o.second = has_rule(op) && !sample->no_second && count <= ALL_SECOND;
    if (tn_gradcheck(apply_sample, &f, in, o) == TN_OK && has_rule(op)) {
        check_recorded(in, apply_sample(&f, in), 1e-9, INFINITY);
    }
}

/* ---- Dtypes, orders in memory, subsets of gradients ------------------------------------------ */

/* A program's own operation may lack the small dtypes: that is no error. */
static bool is_left_out(const tn_op *op, tn_dtype dtype) {
    bool ours = tn_op_named(op->name) == op, small = tn__is_narrow(dtype);
    if (tn_error() != TN_EUNSUPPORTED || ours || !small) { return false; }
    tn_error_clear();
    return true;
}

enum { ALL_SUBSETS = 5 }; /* up to so many inputs, all subsets of gradients */

/* A device may be slow: there each sample has one of these dtypes and orders, in turn. */
static bool is_slow(void) {
    return tn_default_device().kind != TN_CPU;
}

/* The results of a call, and the gradients of its inputs; NULL where there is none. */
typedef struct outcome {
    tn_values y, dx;
} outcome;

/* dy: the gradients of the results. */
static outcome run_once(function *f, tn_values in, tn_values dy) {
    outcome o = {.y = apply_sample(f, in), .dx = {.n = in.n}};
    tn_values leaves = leaves_of(in), dx = {0};
    arrivals a = arrivals_at(o.y, &dy);
    if (a.n > 0) {
        tn_grad(a.root, a.weight, a.n, leaves.v, leaves.n, dx.v,
                TN_WITH(tn_grad, .allow_unused = true));
    }
    for (int i = 0, k = 0; i < in.n && a.n > 0; i++) {
        o.dx.v[i] = tn_requires_grad(in.v[i]) ? dx.v[k++] : NULL;
    }
    return o;
}

/* The gradients of the results for run_once: NULL where a result has none. False if none has
 * one. */
static bool make_arriving(function *f, tn_values in, tn_dtype dtype, tn_values *dy) {
    TN_NO_GRAD;
    *dy = apply_sample(f, in);
    if (is_left_out(f->op, dtype)) { return false; }
    for (int i = 0; i < dy->n; i++) {
        bool real = tn_dtype_is_float(tn_dtype_of(dy->v[i]));
        dy->v[i] = real ? random_like(dy->v[i], 900 + (uint64_t)i) : NULL;
    }
    return tn_error() == TN_OK;
}

static void compare_outcomes(tn_values in, const outcome *got, const outcome *want,
                             const precision *p, double tolerance, const char *how,
                             const char *than) {
    char result[64], gradient[64];
    snprintf(result, sizeof result, "%s, result", how);
    snprintf(gradient, sizeof gradient, "%s, gradient of input", how);
    for (int i = 0; i < want->y.n && tn_error() == TN_OK; i++) {
        compare_tensors(got->y.v[i], want->y.v[i], p->forward, p->largest, result, i, than);
    }
    for (int i = 0; i < want->dx.n && tn_error() == TN_OK; i++) {
        if (!want->dx.v[i] || !tn_requires_grad(in.v[i])) { continue; }
        if (!got->dx.v[i]) {
            tn__raise(TN_EVALUE, "op_check", "%s %d is not there", gradient, i);
            return;
        }
        compare_tensors(got->dx.v[i], want->dx.v[i], tolerance, p->largest, gradient, i, than);
    }
}

static void check_dtype(const tn_op *op, const tn_sample *sample, const precision *p) {
    TN_SCOPE;
    function f = {op, sample};
    tn_values in = make_inputs(op, sample, p->dtype, TN__PLAIN, p->dtype == TN_F32), wide = in, dy;
    for (int i = 0; i < in.n; i++) {
        if (in.v[i] && tn__spec_real(&sample->in[i])) {
            wide.v[i] = tn_set_requires_grad(tn_detach(tn_cast(tn_detach(in.v[i]), TN_F64)),
                                             tn_op_differentiable(op));
        }
    }
    if (!make_arriving(&f, in, p->dtype, &dy)) { return; }
    outcome got = run_once(&f, in, dy);
    for (int i = 0; i < dy.n; i++) {
        dy.v[i] = dy.v[i] ? tn_cast(dy.v[i], TN_F64) : NULL;
    }
    outcome want = run_once(&f, wide, dy);
    if (has_rule(op) && tn_error() == TN_OK) {
        check_recorded(in, apply_sample(&f, in), p->recorded, p->largest);
    }
    compare_outcomes(in, &got, &want, p, p->backward, tn_dtype_name(p->dtype), "f64");
}

/* Runs with one operand, an input or a result's gradient, in another order; `which` < 0: all. */
static void check_order(function *f, tn_values in, tn_values dy, const outcome *want,
                        const precision *p, int which, int64_t order) {
    TN_SCOPE;
    for (int k = 0; k < in.n + dy.n; k++) {
        tn_tensor **t = k < in.n ? &in.v[k] : &dy.v[k - in.n];
        if (*t && (k == which || which < 0)) { *t = stored_in_order(*t, order % count_orders(*t)); }
    }
    outcome got = run_once(f, in, dy);
    char how[48], number[16] = "all";
    if (which >= 0) { snprintf(number, sizeof number, "%d", which); }
    snprintf(how, sizeof how, "operand %s in order %lld", number, (long long)order);
    compare_outcomes(in, &got, want, p, p->recorded, how, "row-major");
}

/* Each operand in every order, the others row-major; then all in the same order. */
static void check_orders(const tn_op *op, const tn_sample *sample, const precision *p, int turn) {
    TN_SCOPE;
    function f = {op, sample};
    tn_values in = make_inputs(op, sample, p->dtype, TN__PLAIN, false), dy;
    if (!make_arriving(&f, in, p->dtype, &dy)) { return; }
    int64_t max = 1;
    outcome want = run_once(&f, in, dy);
    for (int k = 0; k <= in.n + dy.n && tn_error() == TN_OK; k++) {
        bool last = k == in.n + dy.n;
        int64_t orders = last ? max : count_orders(k < in.n ? in.v[k] : dy.v[k - in.n]);
        max = orders > max ? orders : max;
        int64_t first = 1, end = orders;
        if (is_slow() && orders > 1) {
            first = 1 + turn % (orders - 1);
            end = first + 1;
        }
        for (int64_t order = first; order < end && tn_error() == TN_OK; order++) {
            check_order(&f, in, dy, &want, p, last ? -1 : k, order);
        }
    }
}

/* Only some inputs' gradients: what is saved and which kernel runs depend on that. With many
 * inputs: one, two and all but one of them. */
static void check_subsets(const tn_op *op, const tn_sample *sample, const precision *p) {
    TN_SCOPE;
    function f = {op, sample};
    tn_values in = make_inputs(op, sample, p->dtype, TN__PLAIN, false), dy;
    int leaf[TN_MAX_VALUES], n = 0;
    for (int i = 0; i < in.n; i++) {
        if (tn_requires_grad(in.v[i])) { leaf[n++] = i; }
    }
    if (n < 2 || !make_arriving(&f, in, p->dtype, &dy)) { return; }
    outcome want = run_once(&f, in, dy);
    for (unsigned set = 1; set + 1 < 1u << n && tn_error() == TN_OK; set++) {
        TN_SCOPE;
        int size = __builtin_popcount(set);
        if (n > ALL_SUBSETS && size > 2 && size < n - 1) { continue; }
        for (int k = 0; k < n; k++) {
            tn_set_requires_grad(in.v[leaf[k]], set >> k & 1);
        }
        outcome got = run_once(&f, in, dy);
        char how[48];
        snprintf(how, sizeof how, "gradients 0x%x of 0x%x wanted", set, (1u << n) - 1);
        compare_outcomes(in, &got, &want, p, p->recorded, how, "all of them");
    }
}

/* ---- Ownership ------------------------------------------------------------------------------- */

static void check_dropped(const tn_op *op, const tn_sample *sample) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        function f = {op, sample};
        apply_sample(&f, make_inputs(op, sample, TN_F32, TN__PLAIN, false));
    }
    int64_t left = tn_live_tensors() - before;
    if (left != 0) {
        tn__raise(TN_ESTATE, "op_check",
                  "recorded and dropped without backward, %lld tensors stay alive",
                  (long long)left);
    }
}

/* ---- The whole check ------------------------------------------------------------------------- */

typedef struct checker {
    tn_op_samples sampler;
    const tn_op *op;
    int samples;
} checker;

/* Raises the error, if any, again, prefixed with the sample. */
static void name_sample(const checker *c, const tn_sample *sample, const char *where) {
    tn_error_record record;
    if (!tn_error_take(&record)) { return; }
    char shapes[256] = "";
    for (int i = 0; i < sample->inputs; i++) {
        size_t at = strlen(shapes);
        bool absent = sample->in[i].kind == TN_SPEC_ABSENT;
        snprintf(shapes + at, sizeof shapes - at, "%s%s", i ? " " : "",
                 absent ? "-" : tn__dims_text(sample->in[i].dims));
    }
    tn__raise(record.status, c->op->name, "sample %d (%s; %s), %s: %s", c->samples, shapes,
              sample->text ? sample->text : "", where, record.message);
}

/* False after raising: a sample says how to make each of its inputs. */
static bool is_whole(const checker *c, const tn_sample *sample) {
    if (sample->inputs < 0 || sample->inputs > TN_OP_INPUTS) {
        return tn__fail(TN_EVALUE, c->op->name, "sample %d has %d inputs (0 to %d)", c->samples,
                        sample->inputs, TN_OP_INPUTS);
    }
    for (int i = 0; i < sample->inputs; i++) {
        const tn_spec *spec = &sample->in[i];
        if (spec->kind == TN_SPEC_VALUES && !spec->values && tn_dims_count(spec->dims) != 0) {
            return tn__fail(TN_EVALUE, c->op->name, "sample %d: the values of input %d are NULL",
                            c->samples, i);
        }
    }
    return true;
}

static void check_sample(tn_op_samples *s, const tn_sample *sample) {
    checker *c = (checker *)s;
    if (tn_error() != TN_OK || !is_whole(c, sample)) { return; }
    int first = wants_brief() ? c->samples % TN__LAYOUTS : 0,
        end = wants_brief() ? first + 1 : TN__LAYOUTS;
    const char *where = "";
    for (int layout = first; layout < end && tn_error() == TN_OK; layout++) {
        where = tn__layout_name(layout);
        check_gradients(c->op, sample, layout);
    }
    for (int i = PRECISIONS - ORDERED; i < PRECISIONS && tn_error() == TN_OK; i++) {
        where = tn_dtype_name(precisions[i].dtype);
        check_dtype(c->op, sample, &precisions[i]);
    }
    for (int i = 0; i < ORDERED && tn_error() == TN_OK; i++) {
        if (is_slow() && c->samples % ORDERED != i) { continue; }
        where = tn_dtype_name(precisions[i].dtype);
        check_orders(c->op, sample, &precisions[i], c->samples);
        check_subsets(c->op, sample, &precisions[i]);
    }
    if (tn_error() == TN_OK) {
        where = "dropped";
        check_dropped(c->op, sample);
    }
    name_sample(c, sample, where);
    c->samples++;
}

tn_status tn_op_check(const tn_op *op) {
    if (tn_error() != TN_OK) { return tn_error(); }
    const char *missing = !op                                 ? "the operation"
                          : !op->name                         ? "its name"
                          : !(op->shape || op->shapes)        ? "its shape"
                          : !(op->samples || op->add_samples) ? "samples"
                                                              : NULL;
    if (missing) {
        return tn__raise(TN_EVALUE, op && op->name ? op->name : "op_check",
                         "%s is NULL (to be checked, an operation needs a name, a shape rule and "
                         "samples)",
                         missing);
    }
    checker c = {.sampler = {.add = check_sample}, .op = op};
    tn_error_record record;
    tn__quiet(1);
    tn_op_list_samples(op, &c.sampler);
    bool failed = tn_error_take(&record);
    tn__quiet(-1);
    if (failed) { tn_error_give(&record); }
    if (c.samples == 0 && tn_error() == TN_OK) {
        tn__raise(TN_EVALUE, op->name,
                  "the operation has no samples, so there is nothing to check");
    }
    return tn_error();
}
