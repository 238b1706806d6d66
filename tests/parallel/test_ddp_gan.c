/* A GAN under data parallelism: two modules, two optimisers, noise, dropout, a gradient penalty,
 * and a module that is frozen in each step. N ranks match one rank that accumulates, bit for
 * bit. */

#include "tests/support/test.h"

#include "ddp_net.h"

enum { NOISE = 8, POINT = 5, WIDTH = 16, EXAMPLES = 12, STEPS = 3, MOST = 4 };

typedef struct mlp {
    tn_module base;
    tn_linear in, out;
    tn_dropout drop;
} mlp;

static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
    mlp *m = (mlp *)self;
    return tn_call(&m->out, tn_call(&m->drop, tn_tanh(tn_call(&m->in, x))));
}

static void mlp_init(mlp *m, int64_t in, int64_t out) {
    tn_module_init(m, "mlp", mlp_forward);
    tn_linear_init(&m->in, in, WIDTH, tn_linear_defaults());
    tn_linear_init(&m->out, WIDTH, out, tn_linear_defaults());
    tn_dropout_init(&m->drop, 0.2);
    tn_module_add(m, "in", &m->in);
    tn_module_add(m, "out", &m->out);
    tn_module_add(m, "drop", &m->drop);
}

typedef struct gan {
    mlp g, d;
    tn_ddp_state *g_state, *d_state;
    int parts; /* micro-batches per step */
} gan;

static tn_tensor *share_of(const gan *n, tn_tensor *loss) {
    return tn_mul_scalar(loss, 1.0 / n->parts);
}

/* (|d score / d x| - 1)^2, mean over the examples (Gulrajani et al. 2017) */
static tn_tensor *gradient_penalty(gan *n, tn_tensor *x) {
    x = tn_set_requires_grad(tn_detach(x), true);
    tn_tensor *score = tn_sum_all(tn_call(&n->d, x)), *slope;
    tn_grad_options o = tn_grad_defaults();
    o.create_graph = true;
    tn_grad(&score, NULL, 1, &x, 1, &slope, o);
    tn_tensor *norm = tn_sqrt(tn_sum(tn_square(slope), TN_DIMS(1), false));
    return tn_mean_all(tn_square(tn_add_scalar(norm, -1)));
}

static tn_tensor *draw_noise(void) {
    return tn_randn(TN_DIMS(EXAMPLES, NOISE), TN_F32);
}

static void judge_batch(gan *n, int64_t number) {
    TN_SCOPE;
    tn_generator data = {.seed = 8, .stream = (uint64_t)number};
    tn_tensor *real = tn_normal_(tn_empty(TN_DIMS(EXAMPLES, POINT), TN_F32), 1, 2, &data), *fake;
    {
        TN_NO_GRAD;
        fake = tn_call(&n->g, draw_noise());
    }
    tn_tensor *loss = tn_sub(tn_mean_all(tn_call(&n->d, fake)), tn_mean_all(tn_call(&n->d, real)));
    tn_backward(share_of(n, tn_add(loss, gradient_penalty(n, tn_add(real, fake)))));
}

static void forge_batch(gan *n) {
    TN_SCOPE;
    tn_backward(share_of(n, tn_neg(tn_mean_all(tn_call(&n->d, tn_call(&n->g, draw_noise()))))));
}

/* The backwards of one optimiser step, over this rank's micro-batches. */
static void run_micros(gan *n, bool discriminator, int ranks, int64_t first) {
    int mine = n->parts / ranks;
    void *trained = discriminator ? (void *)&n->d : &n->g;
    tn_module_requires_grad(&n->g, !discriminator);
    tn_module_requires_grad(&n->d, discriminator);
    for (int i = 0; i < mine; i++) {
        void *scope = i < mine - 1 ? tn_no_sync_begin(trained) : NULL;
        if (discriminator) {
            judge_batch(n, first + i);
        } else {
            forge_batch(n);
        }
        tn_no_sync_end(&scope);
    }
}

static numbers train_gan(tn_group *group, int parts) {
    TN_SCOPE;
    int ranks = tn_group_size(group);
    gan n = {.parts = parts};
    tn_ddp_options o = tn_ddp_defaults();
    o.sum = true;
    o.first_bucket = o.bucket_bytes = 256;
    tn_seed(21);
    mlp_init(&n.g, NOISE, POINT);
    mlp_init(&n.d, POINT, 1);
    n.g_state = tn_ddp(&n.g, group, o);
    n.d_state = tn_ddp(&n.d, group, o);
    tn_optim *g_opt = tn_adam(&n.g, tn_adam_defaults()), *d_opt = tn_adam(&n.d, tn_adam_defaults());
    for (int64_t i = 0; i < STEPS; i++) {
        run_micros(&n, true, ranks, i * parts + tn_group_rank(group));
        tn_optim_step(d_opt);
        tn_optim_zero_grad(d_opt);
        run_micros(&n, false, ranks, 0);
        tn_optim_step(g_opt);
        tn_optim_zero_grad(g_opt);
    }
    CHECK(tn_error() == TN_OK);
    CHECK(tn_ddp_statistics(n.d_state).steps == STEPS &&
          tn_ddp_statistics(n.g_state).steps == STEPS);
    tn_module_requires_grad(&n.g, true);
    tn_module_requires_grad(&n.d, true);
    numbers a = params_of(&n.g.out), b = params_of(&n.d.in);
    memcpy(a.at + a.count, b.at, (size_t)b.count * sizeof(float));
    a.count += b.count;
    tn_optim_free(g_opt);
    tn_optim_free(d_opt);
    tn_module_finish(&n.g);
    tn_module_finish(&n.d);
    return a;
}

typedef struct contest {
    int ranks;
    numbers result[MOST];
} contest;

static void train_rank(tn_group *group, void *user) {
    contest *c = user;
    c->result[tn_group_rank(group)] = train_gan(group, c->ranks);
}

PLAIN_TEST(test_gan) {
    for (int ranks = 1; ranks <= MOST; ranks++) {
        failures = 0;
        contest c = {.ranks = ranks};
        numbers alone = train_gan(NULL, ranks);
        assert_int_equal(tn_local_run(ranks, train_rank, &c), TN_OK);
        assert_int_equal(failures, 0);
        for (int r = 0; r < ranks; r++) {
            assert_true(same_numbers(&alone, &c.result[r]));
        }
    }
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
