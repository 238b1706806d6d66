/* Gradients through calls. */
#include "core/allocator.h"

#include <math.h>

#include "rpc_check.h"

enum { STEPS = 5, WIDTH = 8 };

static tn_values run_module(tn_values in, void *module) {
    return TN_VALUES(tn_call(module, in.v[0]));
}

/* An optimiser's step on its rank. */
static tn_values step_here(tn_values in, void *opt) {
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return nothing;
}

static void *make_first(void) {
    return tn_linear_new(4, WIDTH);
}

static void *make_second(void) {
    return TN_SEQUENTIAL(tn_linear_new(WIDTH, WIDTH), TN_FN(tn_tanh), tn_linear_new(WIDTH, 1));
}

static tn_tensor *make_batch(int step) {
    tn_generator g = {.seed = 3, .stream = (uint64_t)step};
    return tn_uniform_(tn_empty(TN_DIMS(6, 4), TN_F32), -1, 1, &g);
}

/* One process: the losses, and the bits of both halves' weights afterwards. */
typedef struct record {
    bool twice; /* through the second half in each step, so that its gradients add up */
    double loss[STEPS];
    float first[4 * WIDTH], second[WIDTH * WIDTH];
} record;

/* The same bits; or, where a part is called twice, two sums in place of one that goes on. */
static bool as_wanted(const record *want, const float *got, const float *of, int count) {
    bool right = want->twice || memcmp(got, of, (size_t)count * sizeof(*got)) == 0;
    for (int i = 0; i < count; i++) {
        right = right && fabsf(got[i] - of[i]) <= 1e-5f;
    }
    return right;
}

static void train_one(record *out) {
    tn_seed(9);
    void *first = make_first(), *second = make_second();
    tn_optim *a = tn_adam(first, TN_WITH(tn_adam, .lr = 0.01));
    tn_optim *b = tn_adam(second, TN_WITH(tn_adam, .lr = 0.01));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = make_batch(step), *h = tn_tanh(tn_call(first, x));
        tn_tensor *y = tn_call(second, h), *z = out->twice ? tn_call(second, tn_neg(h)) : h;
        tn_tensor *loss =
            tn_mean_all(tn_square(tn_add(tn_sub(y, tn_mul_scalar(z, 0.5)), tn_scalar(1, TN_F32))));
        tn_backward(loss);
        tn_optim_step(a);
        tn_optim_step(b);
        tn_optim_zero_grad(a);
        tn_optim_zero_grad(b);
        out->loss[step] = tn_item(loss);
    }
    tn_copy_out(tn_module_get(first, "weight"), out->first);
    tn_copy_out(tn_module_get(second, "0.weight"), out->second);
    tn_optim_free(a);
    tn_optim_free(b);
    tn_module_free(first);
    tn_module_free(second);
}

static void train_calls(tn_rpc *r, int other, void *first, const record *want) {
    tn_optim *a = tn_adam(first, TN_WITH(tn_adam, .lr = 0.01));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = make_batch(step), *h = tn_tanh(tn_call(first, x));
        tn_tensor *y = tn_rpc_forward(r, other, "second", TN_VALUES(h), 0).v[0];
        tn_tensor *z =
            want->twice ? tn_rpc_forward(r, other, "second", TN_VALUES(tn_neg(h)), 0).v[0] : h;
        tn_tensor *loss =
            tn_mean_all(tn_square(tn_add(tn_sub(y, tn_mul_scalar(z, 0.5)), tn_scalar(1, TN_F32))));
        CHECK(tn_requires_grad(y) && !tn_is_leaf(y));
        tn_backward(loss);
        tn_optim_step(a);
        CHECK(ask_rank(r, other, "step", nothing, 0).n == 0);
        tn_optim_zero_grad(a);
        CHECK(fabs(tn_item(loss) - want->loss[step]) <= (want->twice ? 1e-5 : 0));
    }
    float got[4 * WIDTH];
    tn_copy_out(tn_module_get(first, "weight"), got);
    CHECK(as_wanted(want, got, want->first, 4 * WIDTH));
    tn_optim_free(a);
}

static void split_model(tn_group *world, void *user) {
    TN_SCOPE;
    const record *want = user;
    int rank = tn_group_rank(world), last = tn_group_size(world) - 1;
    tn_seed(9);
    void *first = make_first(), *second = make_second();
    tn_optim *b = tn_adam(second, TN_WITH(tn_adam, .lr = 0.01));
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(r, "second", run_module, second);
    tn_rpc_register(r, "step", step_here, b);
    tn_rpc_start(r);
    if (rank == 0) { train_calls(r, last, first, want); }
    end_rank(world, r);
    if (rank == last) {
        float got[WIDTH * WIDTH];
        tn_copy_out(tn_module_get(second, "0.weight"), got);
        CHECK(as_wanted(want, got, want->second, WIDTH * WIDTH));
    }
    tn_optim_free(b);
    tn_module_free(first);
    tn_module_free(second);
}

TEST(test_split_model) {
    for (int twice = 0; twice < 2; twice++) {
        record want = {.twice = twice};
        train_one(&want);
        run_ok(2, split_model, &want);
        run_ok(1, split_model, &want);
        assert_true(want.loss[STEPS - 1] < want.loss[0]);
    }
}

/* A graph that is dropped without backward, or after it, is freed on its owner; a second backward
 * and a second derivative are refused; without recording there is no graph. */
static void graphs_end(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    void *net = make_second();
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_start(r);
    if (tn_group_rank(world) == 0) {
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, WIDTH), TN_F32), true);
        tn_values in = TN_VALUES(x);
        for (int i = 0; i < 3; i++) {
            TN_SCOPE;
            tn_rpc_forward(r, 1, "net", in, 0);
        }
        {
            TN_SCOPE;
            tn_tensor *loss = tn_sum_all(tn_rpc_forward(r, 1, "net", in, 0).v[0]);
            CHECK(tn_backward(loss) == TN_OK && tn_grad_of(x));
            CHECK(tn_backward(loss) == TN_ESTATE);
            tn_error_clear();
            loss = tn_sum_all(tn_rpc_forward(r, 1, "net", in, 0).v[0]);
            tn_tensor *grad, *one = tn_ones(TN_DIMS(), TN_F32);
            CHECK(tn_grad(&loss, &one, 1, &x, 1, &grad, TN_WITH(tn_grad, .create_graph = true)) ==
                  TN_EUNSUPPORTED);
            CHECK(failed_with(TN_EUNSUPPORTED, "it is on rank 1"));
            TN_NO_GRAD;
            CHECK(!tn_requires_grad(tn_rpc_forward(r, 1, "net", in, 0).v[0]));
        }
        tn_tensor *bad = tn_ones(TN_DIMS(2, 3), TN_F32);
        CHECK(is_lost(tn_rpc_forward(r, 1, "net", TN_VALUES(bad), 0)));
        CHECK(failed_with(TN_ESHAPE, "\"net\" of rank 1"));
    }
    end_rank(world, r);
    tn_module_free(net);
}

TEST(test_graphs_end) {
    run_ok(2, graphs_end, NULL);
}

/* A graph that is kept is gone through twice: each time the same gradients, of the inputs too. One
 * whose call has failed at the caller, late or refused, is freed. */
static bool has_given_up; /* rank 0 */

static tn_values run_late(tn_values in, void *module) {
    while (!__atomic_load_n(&has_given_up, __ATOMIC_ACQUIRE)) {
        usleep(1000);
    }
    return run_module(in, module);
}

static tn_values run_large(tn_values in, void *module) {
    return TN_VALUES(tn_add(run_module(in, module).v[0], tn_zeros(TN_DIMS(2, 5000), TN_F32)));
}

static void kept_graphs(tn_group *world, void *user) {
    TN_SCOPE;
    int rank = tn_group_rank(world);
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .message_limit = rank ? 1 << 20 : 8192));
    void *net = make_second();
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_register(r, "late", run_late, net);
    tn_rpc_register(r, "large", run_large, net);
    tn_rpc_start(r);
    if (rank == 0) {
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, WIDTH), TN_F32), true);
        {
            TN_SCOPE;
            tn_tensor *y = tn_rpc_forward(r, 1, "net", TN_VALUES(x), 0).v[0], *grads[2];
            for (int i = 0; i < 2; i++) {
                tn_tensor *loss = tn_sum_all(y);
                CHECK(tn_backward_from(&loss, (tn_tensor *[]){NULL}, 1, true) == TN_OK);
                grads[i] = tn_copy(tn_grad_of(x));
                tn_zero_grad(x);
            }
            CHECK(tn_equal(grads[0], grads[1]));
        }
        CHECK(is_lost(tn_rpc_forward(r, 1, "late", TN_VALUES(x), 0.3)));
        CHECK(failed_with(TN_EPEER, "no answer"));
        __atomic_store_n(&has_given_up, true, __ATOMIC_RELEASE);
        CHECK(is_lost(tn_rpc_forward(r, 1, "large", TN_VALUES(x), 0)));
        CHECK(failed_with(TN_EVALUE, "\"large\" of rank 1: the result has"));
    }
    end_rank(world, r);
    tn_module_free(net);
}

TEST(test_kept_graphs) {
    has_given_up = false;
    run_ok(2, kept_graphs, NULL);
}

static bool is_running(tn_rpc *r) {
    pthread_mutex_lock(&r->lock);
    bool running = r->running > 0;
    pthread_mutex_unlock(&r->lock);
    return running;
}

/* Rank 1 leaves while rank 0 runs what it called: its graph is not kept. */
static void early_leaver(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    void *net = make_second();
    tn_rpc_register(r, "late", run_late, net);
    tn_rpc_start(r);
    if (tn_group_rank(world) == 1) {
        tn_tensor *x = tn_ones(TN_DIMS(2, WIDTH), TN_F32);
        CHECK(is_lost(tn_rpc_forward(r, 0, "late", TN_VALUES(x), 1)));
        tn_error_clear();
    } else {
        for (tn_status status = TN_OK; status != TN_EPEER; tn_error_clear()) {
            ask_rank(r, 1, "nothing", nothing, 20);
            status = tn_error();
        }
        __atomic_store_n(&has_given_up, true, __ATOMIC_RELEASE);
        while (is_running(r)) {
            usleep(1000);
        }
        CHECK(comes_to_keep(r, 0));
    }
    tn_rpc_free(r);
    tn_module_free(net);
}

TEST(test_early_leaver) {
    has_given_up = false;
    run_ok(2, early_leaver, NULL);
}

/* Whatever there is no memory for: no graph is left, and the next call works. */
TEST(test_no_memory) {
    tn_rpc *r = tn_rpc_new(NULL, TN_WITH(tn_rpc, .timeout = 0.5));
    void *net = make_second();
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_start(r);
    tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, WIDTH), TN_F32), true);
    for (int i = 0, failed = 1; failed; i++) {
        TN_SCOPE;
        tn__alloc_fail_at(i);
        tn_tensor *loss = tn_sum_all(tn_rpc_forward(r, 0, "net", TN_VALUES(x), 0).v[0]);
        tn_backward(loss);
        failed = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_true(failed || tn_grad_of(x));
        tn_error_clear();
        tn_zero_grad(x);
    }
    assert_true(comes_to_keep(r, 0));
    assert_int_equal(tn_rpc_shutdown(r, 20), TN_OK);
    tn_rpc_free(r);
    tn_module_free(net);
}

/* Some of several inputs and results have gradients. */
static tn_values mix_values(tn_values in, void *user) {
    return TN_VALUES(tn_mul(in.v[0], in.v[1]), tn_cast(in.v[2], TN_F64), tn_neg(in.v[1]));
}

static void some_gradients(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_rpc_register(r, "mix", mix_values, NULL);
    tn_rpc_start(r);
    tn_tensor *a = tn_full(TN_DIMS(2), 3, TN_F32), *n = tn_ones(TN_DIMS(2), TN_I64),
              *b = tn_set_requires_grad(tn_full(TN_DIMS(2), 5, TN_F32), true);
    for (int last = 0; last < 2; last++) {
        tn_values out = tn_rpc_forward(r, 1 - tn_group_rank(world), "mix", TN_VALUES(a, b, n), 0);
        CHECK(out.n == 3 && !tn_requires_grad(out.v[1]) && tn_dtype_of(out.v[1]) == TN_F64);
        CHECK(tn_backward(tn_sum_all(out.v[last ? 2 : 0])) == TN_OK);
        CHECK(tn_at(tn_grad_of(b), TN_DIMS(1)) == (last ? 2 : 3) && !tn_grad_of(a));
        tn_drop(out.v[0]);
        tn_drop(out.v[2]);
    }
    end_rank(world, r);
}

TEST(test_some_gradients) {
    run_ok(2, some_gradients, NULL);
}

/* Rank 1's function calls rank 2: gradients go through all three. No input requires a gradient. */
typedef struct relay {
    tn_rpc *rpc;
    void *net;
} relay;

static tn_values through_another(tn_values in, void *user) {
    const relay *l = user;
    return tn_rpc_forward(l->rpc, 2, "net", TN_VALUES(tn_call(l->net, in.v[0])), 0);
}

static void chain_of_three(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_seed(4);
    void *net = tn_linear_new(WIDTH, WIDTH);
    relay l = {r, net};
    tn_optim *opt = tn_sgd(net, TN_WITH(tn_sgd, .lr = 0.1));
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_register(r, "through", through_another, &l);
    tn_rpc_register(r, "step", step_here, opt);
    tn_rpc_start(r);
    tn_tensor *x = tn_ones(TN_DIMS(2, WIDTH), TN_F32),
              *before = tn_copy(tn_module_get(net, "weight"));
    if (tn_group_rank(world) == 0) {
        double first = 0, last = 0;
        for (int i = 0; i < 3; i++) {
            TN_SCOPE;
            tn_values y = tn_rpc_forward(r, 1, "through", TN_VALUES(x), 0);
            tn_tensor *loss = tn_mean_all(tn_square(y.v[0]));
            CHECK(tn_backward(loss) == TN_OK);
            CHECK(!is_lost(ask_rank(r, 1, "step", nothing, 0)));
            CHECK(!is_lost(ask_rank(r, 2, "step", nothing, 0)));
            last = tn_item(loss);
            first = i ? first : last;
        }
        CHECK(last < first);
    }
    end_rank(world, r);
    bool same = tn_item(tn_sum_all(tn_abs(tn_sub(before, tn_module_get(net, "weight"))))) == 0;
    CHECK(same == (tn_group_rank(world) == 0));
    tn_optim_free(opt);
    tn_module_free(net);
}

TEST(test_chain_of_three) {
    run_ok(3, chain_of_three, NULL);
}

typedef struct factor {
    tn_rpc *rpc;
    tn_tensor *weight;
} factor;

/* Several ranks run backward through one rank's parameter: one at a time, and the gradients add
 * up. */
static int adding;

static tn_tensor *add_slowly(tn_tensor *grad, void *user) {
    CHECK(__atomic_add_fetch(&adding, 1, __ATOMIC_ACQ_REL) == 1);
    usleep(2000);
    __atomic_sub_fetch(&adding, 1, __ATOMIC_ACQ_REL);
    return grad;
}

static tn_values scale_by(tn_values in, void *weight) {
    return TN_VALUES(tn_mul(weight, in.v[0]));
}

/* What is behind it is on rank 1, so that a backward lets others have their turn meanwhile. */
static tn_values scale_far(tn_values in, void *user) {
    const factor *f = user;
    return tn_rpc_forward(f->rpc, 1, "double", TN_VALUES(tn_mul(f->weight, in.v[0])), 0);
}

static tn_values give_double(tn_values in, void *user) {
    return TN_VALUES(tn_mul_scalar(in.v[0], 2));
}

static void many_callers(tn_group *world, void *user) {
    enum { TIMES = 20 };
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_tensor *w = tn_set_requires_grad(tn_zeros(TN_DIMS(1), TN_F32), true);
    tn_on_grad(w, add_slowly, NULL);
    factor f = {r, w};
    tn_rpc_register(r, "scale", scale_far, &f);
    tn_rpc_register(r, "double", give_double, NULL);
    tn_rpc_start(r);
    for (int i = 0; i < TIMES; i++) {
        TN_SCOPE;
        tn_tensor *x = tn_full(TN_DIMS(1), tn_group_rank(world) + 1, TN_F32);
        CHECK(tn_backward(tn_rpc_forward(r, 0, "scale", TN_VALUES(x), 0).v[0]) == TN_OK);
    }
    end_rank(world, r);
    CHECK(tn_group_rank(world) != 0 || tn_item(tn_grad_of(w)) == TIMES * 2 * (1 + 2 + 3));
}

TEST(test_many_callers) {
    run_ok(3, many_callers, NULL);
}

/* A step between a forward and its backward has changed what that would read. */
static tn_values square_of(tn_values in, void *weight) {
    return TN_VALUES(tn_mul(tn_mul(weight, weight), in.v[0]));
}

static void stale_weights(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_tensor *w = tn_ones(TN_DIMS(1), TN_F32), *x = tn_ones(TN_DIMS(1), TN_F32);
    tn_optim *opt = tn_sgd(tn_parameters(&w, 1), TN_WITH(tn_sgd, .lr = 1));
    tn_rpc_register(r, "square", square_of, w);
    tn_rpc_register(r, "step", step_here, opt);
    tn_rpc_start(r);
    if (tn_group_rank(world) == 0) {
        TN_SCOPE;
        tn_tensor *first = tn_rpc_forward(r, 1, "square", TN_VALUES(x), 0).v[0];
        tn_tensor *second = tn_rpc_forward(r, 1, "square", TN_VALUES(x), 0).v[0];
        CHECK(tn_backward(second) == TN_OK && !is_lost(ask_rank(r, 1, "step", nothing, 0)));
        CHECK(tn_backward(first) == TN_ESTATE && failed_with(TN_ESTATE, "was changed in place"));
    }
    end_rank(world, r);
    CHECK(tn_item(w) == (tn_group_rank(world) == 1 ? -1 : 1));
    tn_optim_free(opt);
}

TEST(test_stale_weights) {
    run_ok(2, stale_weights, NULL);
}

/* Rank 1's function calls itself through rank 2: the inner backward there runs within the outer
 * one. y = w (w2 (w x)). */
static tn_values scale_round(tn_values in, void *user) {
    const factor *f = user;
    return tn_rpc_forward(f->rpc, 2, "over", TN_VALUES(tn_mul(f->weight, in.v[0])), 0);
}

static tn_values scale_over(tn_values in, void *user) {
    const factor *f = user;
    return tn_rpc_forward(f->rpc, 1, "scale", TN_VALUES(tn_mul(f->weight, in.v[0])), 0);
}

static void there_and_back(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .timeout = 10));
    tn_tensor *w = tn_set_requires_grad(tn_full(TN_DIMS(1), 3, TN_F32), true);
    factor f = {r, w};
    tn_rpc_register(r, "scale", scale_by, w);
    tn_rpc_register(r, "round", scale_round, &f);
    tn_rpc_register(r, "over", scale_over, &f);
    tn_rpc_start(r);
    if (tn_group_rank(world) == 0) {
        TN_SCOPE;
        tn_tensor *x = tn_set_requires_grad(tn_full(TN_DIMS(1), 2, TN_F32), true);
        tn_values y = tn_rpc_forward(r, 1, "round", TN_VALUES(x), 0);
        CHECK(tn_item(y.v[0]) == 54);
        CHECK(tn_backward(y.v[0]) == TN_OK);
        CHECK(tn_item(tn_grad_of(x)) == 27);
    }
    end_rank(world, r);
    static const double want[] = {0, 2 * 18, 18};
    tn_tensor *grad = tn_grad_of(w);
    CHECK((grad ? tn_item(grad) : 0) == want[tn_group_rank(world)]);
}

TEST(test_there_and_back) {
    run_ok(3, there_and_back, NULL);
}
