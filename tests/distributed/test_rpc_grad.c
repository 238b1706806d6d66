/* Gradients through calls. */
#include "core/allocator.h"

#include "rpc_check.h"

enum { STEPS = 5, WIDTH = 8 };

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

typedef struct record {
    double loss[STEPS];
    float first[4 * WIDTH], second[WIDTH * WIDTH]; /* the halves' weights afterwards */
} record;

/* With the second half on rank `other`, or here if r is NULL. */
static void train_steps(tn_rpc *r, int other, void *first, void *second, tn_optim *b, record *out) {
    tn_optim *a = tn_adam(first, TN_WITH(tn_adam, .lr = 0.01));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *h = tn_tanh(tn_call(first, make_batch(step)));
        tn_tensor *y =
            r ? tn_rpc_forward(r, other, "second", TN_VALUES(h), 0).v[0] : tn_call(second, h);
        CHECK(tn_requires_grad(y) && !tn_is_leaf(y));
        tn_tensor *loss = tn_mean_all(tn_square(tn_add(y, tn_scalar(1, TN_F32))));
        tn_backward(loss);
        tn_optim_step(a);
        tn_optim_zero_grad(a);
        CHECK((r ? ask_rank(r, other, "step", nothing, 0) : step_here(nothing, b)).n == 0);
        out->loss[step] = tn_item(loss);
    }
    tn_copy_out(tn_module_get(first, "weight"), out->first);
    tn_optim_free(a);
}

/* Rank 0 calls the last one, or nobody if there is no group: in either case the same bits. */
static void split_model(tn_group *world, void *user) {
    TN_SCOPE;
    record *want = user, got = *want;
    int rank = tn_group_rank(world), last = tn_group_size(world) - 1;
    tn_seed(9);
    void *first = make_first(), *second = make_second();
    tn_optim *b = tn_adam(second, TN_WITH(tn_adam, .lr = 0.01));
    const callable *functions = FUNCTIONS({"second", run_module, second}, {"step", step_here, b});
    tn_rpc *r = world ? start_with(world, tn_rpc_defaults(), functions) : NULL;
    if (rank == 0) { train_steps(r, last, first, second, b, &got); }
    if (r) { end_rank(world, r); }
    if (rank == last) { tn_copy_out(tn_module_get(second, "0.weight"), got.second); }
    if (!world) { *want = got; }
    CHECK(memcmp(&got, want, sizeof(got)) == 0);
    tn_optim_free(b);
    tn_module_free(first);
    tn_module_free(second);
}

TEST(test_split_model) {
    record want = {0};
    split_model(NULL, &want);
    assert_true(want.loss[STEPS - 1] < want.loss[0]);
    run_ok(2, split_model, &want);
    run_ok(1, split_model, &want);
}

/* A graph that is dropped without backward, or after it, is freed on its owner; a second backward
 * and a second derivative are refused; without recording there is no graph. */
RANKS_TEST(test_graphs_end, 2) {
    TN_SCOPE;
    void *net = make_second();
    tn_rpc *r = start_with(world, tn_rpc_defaults(), FUNCTIONS({"net", run_module, net}));
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
            CHECK(tn_backward(loss) == TN_ESTATE && failed_with(TN_ESTATE, ""));
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
    void *net = make_second();
    tn_rpc *r = start_with(
        world, TN_WITH(tn_rpc, .message_limit = rank ? 1 << 20 : 8192),
        FUNCTIONS({"net", run_module, net}, {"late", run_late, net}, {"large", run_large, net}));
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
    void *net = make_second();
    tn_rpc *r = start_with(world, tn_rpc_defaults(), FUNCTIONS({"late", run_late, net}));
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
    void *net = make_second();
    tn_rpc *r =
        start_with(NULL, TN_WITH(tn_rpc, .timeout = 0.5), FUNCTIONS({"net", run_module, net}));
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

RANKS_TEST(test_some_gradients, 2) {
    TN_SCOPE;
    tn_rpc *r = start_with(world, tn_rpc_defaults(), FUNCTIONS({"mix", mix_values, NULL}));
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

RANKS_TEST(test_many_callers, 3) {
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

/* A step between a forward and its backward has changed what that would read. */
static tn_values square_of(tn_values in, void *weight) {
    return TN_VALUES(tn_mul(tn_mul(weight, weight), in.v[0]));
}

RANKS_TEST(test_stale_weights, 2) {
    TN_SCOPE;
    tn_tensor *w = tn_ones(TN_DIMS(1), TN_F32), *x = tn_ones(TN_DIMS(1), TN_F32);
    tn_optim *opt = tn_sgd(tn_parameters(&w, 1), TN_WITH(tn_sgd, .lr = 1));
    tn_rpc *r = start_with(world, tn_rpc_defaults(),
                           FUNCTIONS({"square", square_of, w}, {"step", step_here, opt}));
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

RANKS_TEST(test_there_and_back, 3) {
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
