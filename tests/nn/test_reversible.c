/* Reversible pairs: results as the formula's, gradients within rounding of it and of recompute,
 * memory that does not grow with depth, and what is refused. */
#include <math.h>

#include "tests/support/test.h"

#include <tern/tern.h>

#include "autograd/halves.h"

enum { WIDTH = 16, ROWS = 8, MOST = 64, LISTED = 4 * 4 + 4 };

/* Linear, gelu, dropout, linear: what both sides of a pair are made of. */
static void *part_new(int64_t width, double drop, tn_dtype dtype) {
    tn_linear_options o = TN_WITH(tn_linear, .dtype = dtype);
    return TN_SEQUENTIAL(tn_linear_new_with(width, 2 * width, o), TN_FN(tn_gelu),
                         tn_dropout_new(drop), tn_linear_new_with(2 * width, width, o));
}

static tn_reversible *pairs_new(int n, int64_t width, double drop, tn_dtype dtype) {
    void *f[MOST], *g[MOST];
    for (int i = 0; i < n; i++) {
        f[i] = part_new(width, drop, dtype);
        g[i] = part_new(width, drop, dtype);
    }
    return tn_reversible_new(f, g, n);
}

/* ---- Results and gradients ------------------------------------------------------------------- */

/* The same modules, composed as the formula says. */
static tn_values compose_pairs(void *user, tn_values in) {
    tn_reversible *m = user;
    tn_tensor *x1 = in.v[0], *x2 = in.v[1];
    for (int i = 0; i < m->pairs; i++) {
        x1 = tn_add(x1, tn_call(tn_module_at(m, 2 * i), x2));
        x2 = tn_add(x2, tn_call(tn_module_at(m, 2 * i + 1), x1));
    }
    return tn_values_of(x1, x2);
}

typedef enum { REVERSIBLE, PLAIN, RECOMPUTED, AROUND, INSIDE } way;

typedef struct list {
    tn_tensor *t[LISTED];
    int n;
} list;

static bool list_param(const tn_entry *entry, void *user) {
    list *l = user;
    l->t[l->n++] = *entry->field;
    return l->n < LISTED;
}

static tn_values call_pairs(tn_reversible *m, tn_values in, way how) {
    list params = {.n = 0};
    tn_module_each(m, (tn_walk){0}, list_param, &params);
    tn_module_set_recompute(m, how == AROUND);
    for (int i = 0; i < 2 * m->pairs; i++) {
        tn_module_set_recompute(tn_module_at(m, i), how == INSIDE);
    }
    return how == PLAIN        ? compose_pairs(m, in)
           : how == RECOMPUTED ? tn_recompute(compose_pairs, m, NULL, in, params.t, params.n)
                               : tn_call_values(m, in, NULL);
}

/* Both results and, in order, the gradients of both inputs and of the parameters. */
static list step_of(tn_reversible *m, tn_values in, way how) {
    list from = {.n = 2, .t = {in.v[0], in.v[1]}}, is = {.n = 0};
    tn_module_each(m, (tn_walk){0}, list_param, &from);
    for (int i = 0; i < from.n; i++) {
        tn_zero_grad(from.t[i]);
    }
    tn_seed(5);
    tn_values y = call_pairs(m, in, how);
    assert_int_equal(y.n, 2);
    /* draws after the pairs: the generator must be where it would be */
    tn_tensor *after = tn_dropout_op(y.v[0], 0.5);
    tn_backward(tn_add(tn_sum_all(tn_square(y.v[1])), tn_sum_all(tn_mul(after, y.v[1]))));
    assert_string_equal(tn_error_message(), "");
    is.t[is.n++] = tn_detach(y.v[0]);
    is.t[is.n++] = tn_detach(y.v[1]);
    for (int i = 0; i < from.n; i++) {
        is.t[is.n++] = tn_copy(tn_grad_of(from.t[i]));
    }
    return is;
}

static double norm_of(tn_tensor *t) {
    return sqrt(tn_item(tn_sum_all(tn_square(tn_cast(t, TN_F64)))));
}

/* |a - b| / |b| */
static double distance_of(tn_tensor *a, tn_tensor *b) {
    return norm_of(tn_sub(tn_cast(a, TN_F64), tn_cast(b, TN_F64))) / norm_of(b);
}

static double worst_distance(const list *a, const list *b) {
    double worst = 0;
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        worst = fmax(worst, distance_of(a->t[i], b->t[i]));
    }
    return worst;
}

static tn_values inputs_of(tn_dtype dtype) {
    tn_values in = {.n = 2};
    for (int i = 0; i < 2; i++) {
        in.v[i] = tn_set_requires_grad(tn_randn(TN_DIMS(ROWS, WIDTH), dtype), true);
    }
    return in;
}

TEST(gradients_of_the_formula) {
    for (int wide = 0; wide < 2; wide++) {
        tn_reversible *m = pairs_new(2, WIDTH, 0.3, wide ? TN_F64 : TN_F32);
        tn_values in = inputs_of(wide ? TN_F64 : TN_F32);
        list want = step_of(m, in, PLAIN), again = step_of(m, in, RECOMPUTED);
        for (way how = REVERSIBLE; how <= INSIDE; how++) {
            list is = step_of(m, in, how);
            assert_true(tn_equal(is.t[0], want.t[0]) && tn_equal(is.t[1], want.t[1]));
            assert_true(worst_distance(&is, &want) < (wide ? 1e-13 : 1e-5));
            assert_true(worst_distance(&is, &again) < (wide ? 1e-13 : 1e-5));
        }
        tn_module_free(m);
    }
}

/* The streams may have different shapes, and only one may lead to the loss; gradients may be asked
 * for by tn_grad, twice, or in halves. */
TEST(parts_of_the_graph) {
    void *f[2], *g[2];
    for (int i = 0; i < 2; i++) {
        f[i] = tn_linear_new(3, 5);
        g[i] = TN_SEQUENTIAL(tn_linear_new(5, 3), TN_FN(tn_tanh));
    }
    tn_reversible *m = tn_reversible_new(f, g, 2);
    tn_values in = {2, {tn_randn(TN_DIMS(4, 5), TN_F32), tn_randn(TN_DIMS(4, 3), TN_F32)}};
    tn_tensor *chosen[2] = {((tn_linear *)f[1])->weight, ((tn_linear *)f[0])->weight};
    for (int only = 0; only < 2; only++) {
        tn_tensor *want[2], *is[2];
        tn_tensor *loss = tn_sum_all(tn_square(compose_pairs(m, in).v[only]));
        tn_grad(&loss, NULL, 1, chosen, 2, want, tn_grad_defaults());
        loss = tn_sum_all(tn_square(tn_call_values(m, in, NULL).v[only]));
        for (int n = 2; n > 0; n--) { /* the last pair's alone leaves the chain in the middle */
            tn_grad(&loss, NULL, 1, chosen, n, is, TN_WITH(tn_grad, .retain_graph = true));
            for (int i = 0; i < n; i++) {
                assert_true(distance_of(is[i], want[i]) < 1e-5);
            }
        }
        tn_backward(loss);
        assert_true(tn_equal(tn_grad_of(chosen[1]), is[1]));
        tn_module_zero_grad(m);
    }
    tn_module_free(m);
}

TEST(backward_in_halves) {
    tn_reversible *m = pairs_new(2, WIDTH, 0.3, TN_F32);
    tn_values in = inputs_of(TN_F32);
    list params = {.n = 0}, whole = {.n = 0};
    tn_module_each(m, (tn_walk){0}, list_param, &params);
    for (int halved = 0; halved < 2; halved++) {
        tn_seed(5);
        tn_tensor *loss = tn_sum_all(tn_square(tn_call_values(m, in, NULL).v[1]));
        if (halved) {
            tn__run *rest = tn__backward_input(loss, NULL, in.v[0]);
            assert_true(tn_equal(tn_grad_of(in.v[0]), whole.t[0]));
            assert_null(tn_grad_of(params.t[0]));
            tn__backward_rest(rest);
        } else {
            tn_backward(loss);
        }
        assert_int_equal(tn_error(), TN_OK);
        for (int i = 0; i <= params.n; i++) {
            tn_tensor *leaf = i == 0 ? in.v[0] : params.t[i - 1];
            if (halved) {
                assert_true(tn_equal(tn_grad_of(leaf), whole.t[i]));
            } else {
                whole.t[whole.n++] = tn_copy(tn_grad_of(leaf));
            }
            tn_zero_grad(leaf);
        }
    }
    tn_module_free(m);
}

static int calls, again;
static tn_tensor *count_call(tn_tensor *x) {
    calls++;
    again += tn_in_recompute();
    return tn_mul_scalar(x, 0.5);
}

/* Backward stops at the first pair that has something to learn; nothing is recorded without. */
TEST(frozen_pairs) {
    void *f[3], *g[3];
    for (int i = 0; i < 3; i++) {
        f[i] = TN_FN(count_call);
        g[i] = TN_SEQUENTIAL(tn_linear_new(4, 4), TN_FN(count_call));
    }
    tn_reversible *m = tn_reversible_new(f, g, 3);
    tn_freeze(m, "0.g 1.g");
    tn_tensor *x = tn_ones(TN_DIMS(2, 4), TN_F32);
    calls = again = 0;
    tn_backward(tn_sum_all(tn_call_values(m, TN_VALUES(x, x), NULL).v[1]));
    assert_int_equal(calls, 6 + 1);
    assert_int_equal(again, 1);
    assert_non_null(tn_grad_of(tn_module_get(m, "2.g.0.weight")));
    {
        TN_NO_GRAD;
        assert_false(tn_requires_grad(tn_call_values(m, TN_VALUES(x, x), NULL).v[1]));
    }
    tn_module_requires_grad(m, false);
    assert_false(tn_requires_grad(tn_call_values(m, TN_VALUES(x, x), NULL).v[1]));
    tn_module_free(m);
}

/* Running statistics follow the first forward only. */
TEST(batch_norm_once) {
    void *f[1] = {tn_batch_norm1d_new(4)}, *g[1] = {tn_batch_norm1d_new(4)};
    tn_reversible *m = tn_reversible_new(f, g, 1);
    tn_tensor *x = tn_randn(TN_DIMS(8, 4), TN_F32);
    tn_tensor *y = tn_call_values(m, TN_VALUES(x, x), NULL).v[1];
    tn_tensor *mean = tn_copy(tn_module_get(m, "0.f.running_mean"));
    tn_backward(tn_sum_all(tn_square(y)));
    assert_true(tn_equal(tn_module_get(m, "0.f.running_mean"), mean));
    assert_true(norm_of(mean) > 0);
    tn_module_free(m);
}

/* ---- Low precision --------------------------------------------------------------------------- */

/* The gradients of one parameter in the first pair, of 64, in bf16 and in f32. What has been
 * computed back is as good as what a plain bf16 forward keeps: its error is no larger. */
TEST(many_pairs_in_bf16) {
    tn_tensor *grads[3];
    for (int i = 0; i < 3; i++) { /* f32, bf16 composed, bf16 reversible */
        tn_seed(3);
        tn_reversible *m = pairs_new(MOST, WIDTH, 0.1, TN_F32);
        tn_tensor *x = tn_randn(TN_DIMS(ROWS, WIDTH), TN_F32);
        if (i > 0) {
            tn_module_set_precision(m, tn_precision_defaults());
            x = tn_cast(x, TN_BF16);
        }
        tn_tensor *y = i == 1 ? compose_pairs(m, TN_VALUES(x, x)).v[1]
                              : tn_call_values(m, TN_VALUES(x, x), NULL).v[1];
        assert_int_equal(tn_dtype_of(y), i > 0 ? TN_BF16 : TN_F32);
        tn_backward(tn_sum_all(tn_square(tn_cast(y, TN_F32))));
        assert_string_equal(tn_error_message(), "");
        grads[i] = tn_copy(tn_grad_of(tn_module_get(m, "0.f.0.weight")));
        tn_module_free(m);
    }
    double plain = distance_of(grads[1], grads[0]), is = distance_of(grads[2], grads[0]);
    print_message("# bf16, 64 pairs: composed %.2e, reversible %.2e from f32\n", plain, is);
    assert_true(is > 0 && is < plain);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

enum { WIDE = 64, MANY = 128 };

/* The peak of a step beyond the gradients of the parameters. */
static int64_t peak_of(int pairs, bool composed) {
    TN_SCOPE;
    tn_reversible *m = pairs_new(pairs, WIDE, 0.1, TN_F32);
    tn_tensor *x1 = tn_randn(TN_DIMS(MANY, WIDE), TN_F32),
              *x2 = tn_randn(TN_DIMS(MANY, WIDE), TN_F32);
    int64_t before = tn_device_memory(tn_default_device()).allocated;
    tn_device_memory_reset_peak(tn_default_device());
    {
        TN_SCOPE;
        tn_values in = TN_VALUES(x1, x2);
        tn_values y = composed ? compose_pairs(m, in) : tn_call_values(m, in, NULL);
        tn_backward(tn_sum_all(tn_mul(y.v[0], y.v[1])));
    }
    assert_string_equal(tn_error_message(), "");
    int64_t peak = tn_device_memory(tn_default_device()).peak - before;
    int64_t gradients = tn_module_count(m) * (int64_t)sizeof(float);
    tn_module_free(m);
    return peak - gradients - gradients / 100; /* the allocator rounds sizes up */
}

TEST(memory_is_flat) {
    int64_t few = peak_of(4, false), many = peak_of(MOST, false);
    int64_t one = (int64_t)MANY * WIDE * (int64_t)sizeof(float);
    print_message("# beyond the gradients: 4 pairs %lld, 64 pairs %lld kB; composed %lld kB\n",
                  (long long)few >> 10, (long long)many >> 10,
                  (long long)peak_of(MOST, true) >> 10);
    assert_true(few > 4 * one && many <= few + one / 4);
    assert_true(peak_of(MOST, true) > MOST * 8 * one); /* so all that is kept is counted */
}

/* ---- What is refused ------------------------------------------------------------------------- */

TEST(wrong_modules) {
    tn_tensor *x = tn_ones(TN_DIMS(2, 4), TN_F32);
    for (int64_t out = 1; out <= 5; out += 4) { /* 1 would broadcast */
        void *f[2] = {tn_linear_new(4, 4), tn_linear_new(4, out)};
        void *g[2] = {tn_linear_new(4, 4), tn_linear_new(4, 4)};
        tn_reversible *m = tn_reversible_new(f, g, 2);
        assert_inert(tn_call_values(m, TN_VALUES(x, x), NULL).v[0], TN_ESHAPE,
                     out == 1 ? "\"1.f\", linear, made [2, 1] of [2, 4], but it is added to [2, 4]"
                              : "made [2, 5] of [2, 4], but it is added to [2, 4]");
        tn_module_free(m);
    }
    void *f[1] = {tn_linear_new(4, 4)};
    tn_reversible *m = tn_reversible_new(f, (void *[]){NULL}, 1);
    assert_error(TN_EVALUE, "NULL");
    assert_inert(tn_call_values(m, TN_VALUES(x, x), NULL).v[0], TN_ESTATE, "not complete");
    tn_module_free(m);
    m = tn_reversible_new(NULL, NULL, 0);
    assert_error(TN_EVALUE, "0 pairs (1 to 1073741823); f or g is NULL");
    tn_module_free(m);
}

TEST(wrong_calls) {
    tn_reversible *m = pairs_new(2, WIDTH, 0, TN_F32);
    tn_tensor *x = tn_randn(TN_DIMS(ROWS, WIDTH), TN_F32), *made;
    assert_inert(tn_call(m, x), TN_EVALUE, "it takes two tensors");
    assert_inert(tn_call_list(m, (tn_values){2, {x, NULL}}), TN_EVALUE, "it takes two tensors");
    tn_tensor *index = tn_ones(TN_DIMS(ROWS, WIDTH), TN_I64);
    assert_inert(tn_call_list(m, TN_VALUES(x, index)), TN_EDTYPE, "input 1 is i64");

    tn_values y = tn_call_values(m, TN_VALUES(x, x), NULL);
    tn_tensor *loss = tn_sum_all(y.v[0]), *weight = tn_module_get(m, "0.f.0.weight");
    tn_grad(&loss, NULL, 1, &weight, 1, &made, TN_WITH(tn_grad, .create_graph = true));
    assert_error(TN_EUNSUPPORTED, "cannot be differentiated again");
    tn_fill_(tn_detach(y.v[1]), 0);
    tn_backward(loss);
    assert_error(TN_ESTATE, "result 1, [8, 16], was changed in place");

    loss = tn_sum_all(tn_call_values(m, TN_VALUES(x, x), NULL).v[1]);
    tn_backward(loss);
    tn_backward(loss);
    assert_error(TN_ESTATE, "a second time");

    loss = tn_sum_all(tn_call_values(m, TN_VALUES(x, x), NULL).v[1]);
    tn_module_free(m);
    tn_backward(loss);
    assert_error(TN_ESTATE, "finished before backward");
}

/* Without dropout backward would subtract something other than the forward has added; and what is
 * run again alone would have another gradient. */
TEST(switched_mode) {
    tn_tensor *x = tn_randn(TN_DIMS(ROWS, WIDTH), TN_F32);
    for (way how = REVERSIBLE; how <= AROUND; how += AROUND - REVERSIBLE) {
        tn_reversible *m = pairs_new(2, WIDTH, 0.5, TN_F32);
        for (int training = 0; training <= 1; training++) {
            tn_module_train(m, training);
            tn_tensor *loss = tn_sum_all(call_pairs(m, TN_VALUES(x, x), how).v[1]);
            tn_module_train(m, !training);
            tn_backward(loss);
            assert_error(TN_ESTATE, training ? "was in training mode" : "was in evaluation mode");
            tn_module_train(m, training);
        }
        tn_backward(tn_sum_all(call_pairs(m, TN_VALUES(x, x), how).v[1]));
        assert_int_equal(tn_error(), TN_OK);
        tn_module_free(m);
    }
}

static tn_tensor *halve_input(tn_tensor *x) {
    return tn_mul_scalar_(x, 0.5);
}

/* Backward would halve it once more. */
TEST(input_changed) {
    tn_reversible *m =
        tn_reversible_new((void *[]){TN_SEQUENTIAL(TN_FN(halve_input), tn_linear_new(4, 4))},
                          (void *[]){tn_linear_new(4, 4)}, 1);
    tn_values in = TN_VALUES(tn_ones(TN_DIMS(2, 4), TN_F32), tn_ones(TN_DIMS(2, 4), TN_F32));
    assert_inert(tn_call_values(m, in, NULL).v[0], TN_ESTATE,
                 "\"0.f\", sequential, changed its input in place");
    {
        TN_NO_GRAD; /* there is no backward */
        tn_call_values(m, in, NULL);
        assert_int_equal(tn_error(), TN_OK);
    }
    tn_module_free(m);
}

/* One that fails when it runs again is named with what is around it. */
static bool failing;
static tn_tensor *fail_again(tn_tensor *x) {
    return failing && tn_in_recompute() ? tn_reshape(x, TN_DIMS(7)) : x;
}

TEST(errors_name_the_module) {
    tn_sequential *outer = TN_SEQUENTIAL(
        tn_reversible_new((void *[]){tn_linear_new(4, 4)}, (void *[]){TN_FN(fail_again)}, 1));
    tn_tensor *x = tn_ones(TN_DIMS(2, 4), TN_F32);
    tn_tensor *loss = tn_sum_all(tn_call_values(outer, TN_VALUES(x, x), NULL).v[1]);
    failing = true;
    tn_backward(loss);
    failing = false;
    assert_error(TN_ESHAPE, "sequential.0.0.g");
    tn_module_free(outer);
}
