/* A GAN under data parallelism and sharding: two modules, two optimisers, noise, dropout, a
 * gradient penalty, and a module that is frozen in each step. N ranks match one rank that
 * accumulates, bit for bit. */
#include "tests/parallel/train.h"

#include <stdlib.h>

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
    int parts; /* micro-batches per step */
    int stage; /* of FSDP; 0: DDP */
} gan;

static tn_tensor *share_of(const gan *n, tn_tensor *loss) {
    return tn_mul_scalar(loss, 1.0 / n->parts);
}

/* (|d score / d x| - 1)^2, mean over the examples (Gulrajani et al. 2017) */
static tn_tensor *gradient_penalty(gan *n, tn_tensor *x) {
    x = tn_set_requires_grad(tn_detach(x), true);
    tn_tensor *score = tn_sum_all(tn_call(&n->d, x)), *slope;
    tn_grad(&score, NULL, 1, &x, 1, &slope, TN_WITH(tn_grad, .create_graph = true));
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
    TN_WHOLE(&n->d); /* the double backward reads parameters without the hooks that gather them */
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

static void attach_part(mlp *m, tn_group *group, int stage) {
    tn_ddp_options o = TN_WITH(tn_ddp, .sum = true, .bucket_bytes = 256);
    if (stage == 0) {
        CHECK(tn_ddp(m, group, o) != NULL);
    } else {
        CHECK(tn_fsdp(m, group, NULL,
                      TN_WITH(tn_fsdp, .sum = true, .stage = stage, .units = "in out")) != NULL);
    }
}

static train_bits train_gan(tn_group *group, int parts, int stage) {
    TN_SCOPE;
    int ranks = tn_group_size(group);
    gan n = {.parts = parts, .stage = stage};
    tn_seed(21);
    mlp_init(&n.g, NOISE, POINT);
    mlp_init(&n.d, POINT, 1);
    attach_part(&n.g, group, stage);
    attach_part(&n.d, group, stage);
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
    train_bits bits = train_whole(&n.g, group);
    train_join(&bits, train_whole(&n.d, group));
    tn_optim_free(g_opt);
    tn_optim_free(d_opt);
    tn_module_finish(&n.g);
    tn_module_finish(&n.d);
    return bits;
}

typedef struct contest {
    int stage;
    train_bits want;
} contest;

static void train_rank(tn_group *group, void *user) {
    contest *c = user;
    train_bits is = train_gan(group, tn_group_size(group), c->stage);
    CHECK(train_same(c->want, is));
    free(is.data);
}

PLAIN_TEST(test_gan) {
    for (int ranks = 1; ranks <= MOST; ranks++) {
        failures = 0;
        contest c = {.want = train_gan(NULL, ranks, 0)}; /* one rank of DDP accumulates */
        for (c.stage = 0; c.stage <= 3; c.stage++) {
            run_ok(ranks, train_rank, &c);
        }
        free(c.want.data);
    }
}
