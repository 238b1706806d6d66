/* ref's optimiser steps: several steps against the recurrences written out here in double, over
 * every dtype; master copies, scaled gradients, several spans. */
#include "ref.h"

enum { N = 5 };

/* One span and its memory; m[0] and m[1] are states in the parameter's state dtype. */
typedef struct problem {
    array param, grad, m[2], master;
    tn_optim_span span;
} problem;

static problem problem_new(tn_dtype param, tn_dtype grad, bool with_master) {
    tn_dtype state = param == TN_F64 ? TN_F64 : TN_F32;
    problem p = {.param = array_new(param, DENSE, 1, (int64_t[]){N}),
                 .grad = array_new(grad, DENSE, 1, (int64_t[]){N})};
    array_vary(&p.param, 1);
    for (int s = 0; s < 2; s++) {
        p.m[s] = array_new(state, DENSE, 1, (int64_t[]){N});
        memset(p.m[s].d.data, 0, N * tn_dtype_size(state));
    }
    p.master = array_new(TN_F32, DENSE, 1, (int64_t[]){N});
    for (int i = 0; i < N; i++) {
        array_set(&p.master, i, array_get(&p.param, i));
    }
    p.span = (tn_optim_span){.param = p.param.d.data,
                             .param_dtype = param,
                             .grad = p.grad.d.data,
                             .grad_dtype = grad,
                             .state = {p.m[0].d.data, p.m[1].d.data},
                             .master = with_master ? p.master.d.data : NULL,
                             .count = N};
    return p;
}

static void check_update(const problem *p, const double *expected) {
    tn_dtype dtype = p->param.d.dtype;
    for (int i = 0; i < N; i++) {
        double most = dtype == TN_F64   ? 1e-13
                      : dtype == TN_F32 ? 2e-6
                      : dtype == TN_F16 ? 1e-2
                                        : 8e-2;
        if (p->span.master) { /* the copy stays exact, the parameter is its rounding */
            array_expect_within(&p->master, i, expected[i], 2e-6);
            array_expect(&p->param, i, array_get(&p->master, i), 1);
        } else {
            array_expect_within(&p->param, i, expected[i], most);
        }
    }
    array_check_gaps(&p->param);
    array_check_gaps(&p->grad);
    array_check_gaps(&p->m[0]);
    array_check_gaps(&p->m[1]);
    array_check_gaps(&p->master);
}

ARRAY_TEST(test_adam) {
    for (int k = 0; k < 32; k++) {
        tn_dtype dtype = array_floats[k % 4], grad = k & 8 ? TN_F32 : dtype;
        bool decoupled = k & 16, with_master = (k & 4) && dtype != TN_F64 && dtype != TN_F32;
        problem p = problem_new(dtype, grad, with_master);
        double w[N], m[N] = {0}, v[N] = {0};
        for (int i = 0; i < N; i++) {
            w[i] = array_get(&p.param, i);
        }
        for (int t = 1; t <= 4; t++) {
            array_vary(&p.grad, t);
            tn_adam_step step = {.lr = 0.01,
                                 .beta1 = 0.9,
                                 .beta2 = 0.99,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .decoupled = decoupled,
                                 .step = t,
                                 .grad_scale = 0.5};
            assert_int_equal(ref->adam(ctx, &p.span, 1, &step), TN_OK);
            for (int i = 0; i < N; i++) {
                double g = 0.5 * array_get(&p.grad, i) + (decoupled ? 0 : 0.1 * w[i]);
                m[i] += 0.1 * (g - m[i]);
                v[i] += 0.01 * (g * g - v[i]);
                double m_hat = m[i] / (1 - pow(0.9, t)), v_hat = v[i] / (1 - pow(0.99, t));
                w[i] =
                    w[i] * (decoupled ? 1 - 0.01 * 0.1 : 1) - 0.01 * m_hat / (sqrt(v_hat) + 1e-8);
            }
        }
        check_update(&p, w);
    }
}

ARRAY_TEST(test_sgd) {
    for (int k = 0; k < 64; k++) {
        tn_dtype dtype = array_floats[k % 4];
        bool with_master = (k & 4) && dtype != TN_F64 && dtype != TN_F32, nesterov = k & 8,
             has_buffer = k & 16;
        double dampening = k & 32 && !nesterov ? 0.25 : 0;
        problem p = problem_new(dtype, dtype, with_master);
        if (!has_buffer) {
            p.span.state[0] = NULL;
        }
        double w[N], buffer[N];
        for (int i = 0; i < N; i++) {
            w[i] = array_get(&p.param, i);
        }
        for (int t = 0; t < 4; t++) {
            array_vary(&p.grad, t);
            tn_sgd_step step = {.lr = 0.1,
                                .momentum = 0.9,
                                .dampening = dampening,
                                .weight_decay = 0.01,
                                .nesterov = nesterov,
                                .first = t == 0,
                                .grad_scale = 0.25};
            assert_int_equal(ref->sgd(ctx, &p.span, 1, &step), TN_OK);
            for (int i = 0; i < N; i++) {
                double g = array_get(&p.grad, i) / 4 + 0.01 * w[i];
                buffer[i] = t == 0 ? g : 0.9 * buffer[i] + (1 - dampening) * g;
                double direction = !has_buffer ? g : nesterov ? g + 0.9 * buffer[i] : buffer[i];
                w[i] -= 0.1 * direction;
            }
        }
        check_update(&p, w);
    }
}

/* Spans of different dtypes in one call; an empty one; and a dtype that is refused before anything
 * is written. */
ARRAY_TEST(test_spans) {
    problem a = problem_new(TN_F32, TN_F32, false), b = problem_new(TN_F64, TN_F64, false);
    problem c = problem_new(TN_I32, TN_F32, false);
    array_vary(&a.grad, 1);
    array_vary(&b.grad, 1);
    tn_sgd_step step = {.lr = 0.5, .grad_scale = 1};
    tn_adam_step adam = {.lr = 0.5, .step = 1, .grad_scale = 1};
    double before = array_get(&a.param, 2);
    a.span.state[0] = b.span.state[0] = NULL;
    assert_int_equal(ref->sgd(ctx, (tn_optim_span[]){a.span, c.span}, 2, &step), TN_EUNSUPPORTED);
    assert_int_equal(ref->adam(ctx, (tn_optim_span[]){a.span, c.span}, 2, &adam), TN_EUNSUPPORTED);
    assert_true(array_get(&a.param, 2) == before);
    tn_optim_span empty = {.param_dtype = TN_F32, .grad_dtype = TN_F32};
    double expected_b = array_get(&b.param, 4) - 0.5 * array_get(&b.grad, 4);
    assert_int_equal(ref->sgd(ctx, (tn_optim_span[]){a.span, empty, b.span}, 3, &step), TN_OK);
    array_expect(&a.param, 2, before - 0.5 * array_get(&a.grad, 2), 1);
    array_expect(&b.param, 4, expected_b, 1);
    assert_int_equal(ref->sgd(ctx, NULL, 0, &step), TN_OK);
}

int main(void) {
    return tests_run(ref_begin, NULL);
}
