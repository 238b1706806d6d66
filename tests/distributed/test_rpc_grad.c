/* Gradients through calls. */
#include "rpc_check.h"

#include <math.h>

enum { STEPS = 5, WIDTH = 8 };

static void run_module(const tn_message *in, tn_message *out, void *module) {
    tn_message_add(out, tn_call(module, tn_message_tensor(in, 0)));
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
    tn_rpc_context *c = tn_rpc_context_new(r);
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = make_batch(step), *h = tn_tanh(tn_call(first, x));
        tn_tensor *y = tn_rpc_forward(c, other, "second", (tn_values){1, {h}}, 0).v[0];
        tn_tensor *z = want->twice
                           ? tn_rpc_forward(c, other, "second", (tn_values){1, {tn_neg(h)}}, 0).v[0]
                           : h;
        tn_tensor *loss =
            tn_mean_all(tn_square(tn_add(tn_sub(y, tn_mul_scalar(z, 0.5)), tn_scalar(1, TN_F32))));
        CHECK(tn_requires_grad(y) && !tn_is_leaf(y));
        tn_backward(loss);
        tn_optim_step(a);
        tn_rpc_step(c);
        tn_optim_zero_grad(a);
        CHECK(fabs(tn_item(loss) - want->loss[step]) <= (want->twice ? 1e-5 : 0));
    }
    tn_rpc_context_free(c);
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
    tn_rpc_register_optim(r, b);
    tn_rpc_start(r);
    if (rank == 0) {
        train_calls(r, last, first, want);
    }
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
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    void *net = make_second();
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        tn_rpc_context *c = tn_rpc_context_new(r);
        tn_tensor *x = tn_set_requires_grad(tn_ones(TN_DIMS(2, WIDTH), TN_F32), true);
        tn_values in = {1, {x}};
        for (int i = 0; i < 3; i++) {
            TN_SCOPE;
            tn_rpc_forward(c, 1, "net", in, 0);
        }
        {
            TN_SCOPE;
            tn_tensor *loss = tn_sum_all(tn_rpc_forward(c, 1, "net", in, 0).v[0]);
            CHECK(tn_backward(loss) == TN_OK && tn_grad_of(x));
            CHECK(tn_backward(loss) == TN_ESTATE);
            tn_error_clear();
            loss = tn_sum_all(tn_rpc_forward(c, 1, "net", in, 0).v[0]);
            tn_tensor *grad, *one = tn_ones(TN_DIMS(), TN_F32);
            CHECK(tn_grad(&loss, &one, 1, &x, 1, &grad, TN_WITH(tn_grad, .create_graph = true)) ==
                  TN_EUNSUPPORTED);
            CHECK(failed_with(TN_EUNSUPPORTED, "it is on rank 1"));
            TN_NO_GRAD;
            CHECK(!tn_requires_grad(tn_rpc_forward(c, 1, "net", in, 0).v[0]));
        }
        tn_tensor *bad = tn_ones(TN_DIMS(2, 3), TN_F32);
        CHECK(tn_is_inert(tn_rpc_forward(c, 1, "net", (tn_values){1, {bad}}, 0).v[0]));
        CHECK(failed_with(TN_ESHAPE, "\"net\" of rank 1"));
        tn_rpc_context_free(c);
    }
    end_rank(world, r);
    tn_module_free(net);
}

TEST(test_graphs_end) {
    run_ok(2, graphs_end, NULL);
}

/* Rank 1's function calls rank 2 in the caller's context: gradients go through all three, and a
 * step reaches both. No input requires a gradient. */
static void through_another(const tn_message *in, tn_message *out, void *module) {
    tn_tensor *h = tn_call(module, tn_message_tensor(in, 0));
    tn_values y = tn_rpc_forward(tn_rpc_context_current(), 2, "net", (tn_values){1, {h}}, 0);
    tn_message_add(out, y.v[0]);
}

static void chain_of_three(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_seed(4);
    void *net = tn_linear_new(WIDTH, WIDTH);
    tn_optim *opt = tn_sgd(net, TN_WITH(tn_sgd, .lr = 0.1));
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_register(r, "through", through_another, net);
    tn_rpc_register_optim(r, opt);
    tn_rpc_start(r);
    CHECK(!tn_rpc_context_current());
    tn_tensor *x = tn_ones(TN_DIMS(2, WIDTH), TN_F32),
              *before = tn_copy(tn_module_get(net, "weight"));
    if (tn_rpc_rank(r) == 0) {
        tn_rpc_context *c = tn_rpc_context_new(r);
        double first = 0, last = 0;
        for (int i = 0; i < 3; i++) {
            TN_SCOPE;
            tn_values y = tn_rpc_forward(c, 1, "through", (tn_values){1, {x}}, 0);
            tn_tensor *loss = tn_mean_all(tn_square(y.v[0]));
            CHECK(tn_backward(loss) == TN_OK);
            CHECK(tn_rpc_step(c) == TN_OK);
            last = tn_item(loss);
            first = i ? first : last;
        }
        CHECK(last < first);
        tn_rpc_context_free(c);
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

/* A function's own context ends with it, also when the function has run too long: rank 2 then owes
 * it nothing. */
static bool has_given_up; /* rank 0 */

static void train_slowly(const tn_message *in, tn_message *out, void *rpc) {
    tn_rpc_context *c = tn_rpc_context_new(rpc);
    tn_tensor *x = tn_ones(TN_DIMS(2, WIDTH), TN_F32);
    tn_values y = tn_rpc_forward(c, 2, "net", (tn_values){1, {x}}, 0);
    CHECK(tn_backward(tn_sum_all(y.v[0])) == TN_OK);
    while (!__atomic_load_n(&has_given_up, __ATOMIC_ACQUIRE)) {
        usleep(1000);
    }
    usleep(200000); /* this rank's deadline is a little later */
    tn_rpc_context_free(c);
}

static void late_context(tn_group *world, void *user) {
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    void *net = make_second();
    tn_optim *opt = tn_sgd(net, TN_WITH(tn_sgd, .lr = 0.1));
    tn_rpc_register(r, "net", run_module, net);
    tn_rpc_register(r, "train", train_slowly, r);
    tn_rpc_register_optim(r, opt);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        CHECK(!ask_rank(r, 1, "train", NULL, 2) && failed_with(TN_EPEER, "no answer"));
        __atomic_store_n(&has_given_up, true, __ATOMIC_RELEASE);
    }
    CHECK(tn_rpc_shutdown(r, 60) == TN_OK);
    bool owes = true;
    for (double end = tn__now() + 20; owes && tn__now() < end; usleep(1000)) {
        pthread_mutex_lock(&r->lock);
        owes = r->owed != NULL;
        pthread_mutex_unlock(&r->lock);
    }
    CHECK(!owes);
    tn_barrier(world);
    tn_rpc_free(r);
    tn_optim_free(opt);
    tn_module_free(net);
}

TEST(test_late_context) {
    has_given_up = false;
    run_ok(3, late_context, NULL);
}

/* Two contexts' gradients of the same parameters stay apart: w + w' would step by 3, not 1. */
static void scale_by(const tn_message *in, tn_message *out, void *weight) {
    tn_message_add(out, tn_mul(weight, tn_message_tensor(in, 0)));
}

static void two_contexts(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_tensor *w = tn_zeros(TN_DIMS(1), TN_F32);
    tn_optim *opt = tn_sgd(tn_parameters(&w, 1), TN_WITH(tn_sgd, .lr = 1));
    tn_rpc_register(r, "scale", scale_by, w);
    tn_rpc_register_optim(r, opt);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        tn_rpc_context *c[3];
        for (int i = 0; i < 3; i++) {
            c[i] = tn_rpc_context_new(r);
            tn_tensor *x = tn_full(TN_DIMS(1), i + 1, TN_F32);
            tn_backward(tn_rpc_forward(c[i], 1, "scale", (tn_values){1, {x}}, 0).v[0]);
        }
        CHECK(tn_rpc_step(c[0]) == TN_OK);
        CHECK(tn_rpc_step(c[2]) == TN_OK);
        for (int i = 0; i < 3; i++) {
            tn_rpc_context_free(c[i]);
        }
    }
    end_rank(world, r);
    CHECK(tn_item(w) == (tn_group_rank(world) == 1 ? -4 : 0));
    CHECK(!tn_grad_of(w));
    tn_optim_free(opt);
}

TEST(test_two_contexts) {
    run_ok(2, two_contexts, NULL);
}

/* A step of one context between another's forward and backward has changed what that would read. */
static void square_of(const tn_message *in, tn_message *out, void *weight) {
    tn_message_add(out, tn_mul(tn_mul(weight, weight), tn_message_tensor(in, 0)));
}

static void stale_weights(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());
    tn_tensor *w = tn_ones(TN_DIMS(1), TN_F32), *x = tn_ones(TN_DIMS(1), TN_F32);
    tn_optim *opt = tn_sgd(tn_parameters(&w, 1), TN_WITH(tn_sgd, .lr = 1));
    tn_rpc_register(r, "square", square_of, w);
    tn_rpc_register_optim(r, opt);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        tn_rpc_context *a = tn_rpc_context_new(r), *b = tn_rpc_context_new(r);
        tn_tensor *first = tn_rpc_forward(a, 1, "square", (tn_values){1, {x}}, 0).v[0];
        tn_tensor *second = tn_rpc_forward(b, 1, "square", (tn_values){1, {x}}, 0).v[0];
        CHECK(tn_backward(second) == TN_OK && tn_rpc_step(b) == TN_OK);
        CHECK(tn_backward(first) == TN_ESTATE && failed_with(TN_ESTATE, "was changed in place"));
        CHECK(tn_rpc_step(a) == TN_OK); /* nothing */
        tn_rpc_context_free(a);
        tn_rpc_context_free(b);
        tn_drop(first);
        tn_drop(second);
    }
    end_rank(world, r);
    CHECK(tn_item(w) == (tn_group_rank(world) == 1 ? -1 : 1));
    tn_optim_free(opt);
}

TEST(test_stale_weights) {
    run_ok(2, stale_weights, NULL);
}

/* Rank 1's function calls itself through rank 2, in one context: the inner backward there runs
 * within the outer one, with the same gradients. y = w (w2 (w x)). */
static void scale_round(const tn_message *in, tn_message *out, void *weight) {
    tn_tensor *h = tn_mul(weight, tn_message_tensor(in, 0));
    tn_values y = tn_rpc_forward(tn_rpc_context_current(), 2, "over", (tn_values){1, {h}}, 0);
    tn_message_add(out, y.v[0]);
}

static void scale_over(const tn_message *in, tn_message *out, void *weight) {
    tn_tensor *h = tn_mul(weight, tn_message_tensor(in, 0));
    tn_values y = tn_rpc_forward(tn_rpc_context_current(), 1, "scale", (tn_values){1, {h}}, 0);
    tn_message_add(out, y.v[0]);
}

static void there_and_back(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .timeout = 10));
    tn_tensor *w = tn_full(TN_DIMS(1), 3, TN_F32);
    tn_optim *opt = tn_sgd(tn_parameters(&w, 1), TN_WITH(tn_sgd, .lr = 1));
    tn_rpc_register(r, "scale", scale_by, w);
    tn_rpc_register(r, "round", scale_round, w);
    tn_rpc_register(r, "over", scale_over, w);
    tn_rpc_register_optim(r, opt);
    tn_rpc_start(r);
    if (tn_rpc_rank(r) == 0) {
        tn_rpc_context *c = tn_rpc_context_new(r);
        tn_tensor *x = tn_set_requires_grad(tn_full(TN_DIMS(1), 2, TN_F32), true);
        tn_values y = tn_rpc_forward(c, 1, "round", (tn_values){1, {x}}, 0);
        CHECK(tn_item(y.v[0]) == 54);
        CHECK(tn_backward(y.v[0]) == TN_OK);
        CHECK(tn_item(tn_grad_of(x)) == 27);
        CHECK(tn_rpc_step(c) == TN_OK);
        tn_rpc_context_free(c);
    }
    end_rank(world, r);
    static const double want[] = {3, 3 - 2 * 18, 3 - 18};
    CHECK(tn_item(w) == want[tn_group_rank(world)]);
    tn_optim_free(opt);
}

TEST(test_there_and_back) {
    run_ok(3, there_and_back, NULL);
}
