/* PowerSGD: gradients travel as products of thin matrices.
 *
 *     tern run -n 2 29_powersgd
 *
 *     Vogels et al. 2019, arXiv:1905.13727, algorithms 1 and 2
 *
 * tn_ddp asks a hook, if there is one, how to reduce each bucket of gradients. This one sends for a
 * gradient M of n rows and m columns only P = M Q (n, COLUMNS) and Q = M^T P (m, COLUMNS), and
 * takes P Q^T for the mean of all ranks' M. What that leaves out of this rank's M is added to its
 * next gradient, and Q is kept: it turns towards the directions that matter. Vectors are sent
 * whole, and so is everything in the first steps, which suffer most. The program trains twice from
 * the same start, with whole gradients and with thin ones, and prints losses and bytes.
 */
#include <tern/tern.h>

#include <stdio.h>

enum { IN = 64, HIDDEN = 256, OUT = 16, BATCH = 32, STEPS = 200, WHOLE_STEPS = 5, COLUMNS = 4 };

/* ---- The hook -------------------------------------------------------------------------------- */

/* Of one gradient. P and Q are stored transposed: each vector is a row. */
typedef struct {
    tn_tensor *error; /* (n, m): what was left out so far; between the stages it is M */
    tn_tensor *p, *q; /* (COLUMNS, n), (COLUMNS, m) */
} thin;

enum { BUCKETS = 4, GRADIENTS = 16 }; /* more than this model has */
typedef struct {
    int steps;
    thin of[BUCKETS * GRADIENTS]; /* as laid out after the first backward */
} powersgd;

/* Makes the rows orthonormal, in place (Gram-Schmidt). */
static tn_tensor *make_orthonormal(tn_tensor *x) {
    for (int64_t j = 0; j < tn_shape(x).size[0]; j++) {
        tn_tensor *row = tn_narrow(x, 0, j, 1), *above = tn_narrow(x, 0, 0, j);
        tn_sub_(row, tn_matmul(tn_matmul(row, tn_t(above)), above));
        tn_tensor *square = tn_sum(tn_square(row), TN_DIMS(1), true);
        tn_mul_(row, tn_rsqrt(tn_add_scalar(square, 1e-30)));
    }
    return x;
}

/* P of this rank, transposed. */
static tn_tensor *first_half(thin *t, tn_tensor *gradient) {
    if (!t->q) {
        tn_generator g = {.seed = 1}; /* the same on every rank */
        t->q = tn_keep(
            tn_normal_(tn_empty(TN_DIMS(COLUMNS, tn_shape(gradient).size[1]), TN_F32), 0, 1, &g));
        t->error = tn_keep(tn_zeros(tn_shape(gradient), TN_F32));
    }
    tn_add_(t->error, gradient);
    return tn_matmul(make_orthonormal(tn_copy(t->q)), tn_t(t->error));
}

/* The next piece of what has arrived, in this shape. */
static tn_tensor *next_piece(const tn_ddp_bucket *b, int64_t *at, tn_dims shape) {
    tn_tensor *piece = tn_narrow(b->arrived, 0, *at, tn_dims_count(shape));
    *at += tn_dims_count(shape);
    return tn_reshape(piece, shape);
}

/* Stage 0 sends vectors and P, stage 1 Q; in stage 2 all has arrived. */
static tn_work *reduce_thin(tn_group *g, tn_ddp_bucket *b, int stage, void *user) {
    TN_SCOPE;
    powersgd *s = user;
    tn_tensor *pieces[GRADIENTS];
    int64_t at = 0;
    int n = 0;
    if (stage == 0 && s->steps < WHOLE_STEPS) {
        s->steps += b->last;
        return tn_all_reduce(g, b->flat, b->how);
    }
    for (int i = 0; i < b->count && (stage == 0 || b->arrived); i++) {
        tn_tensor *gradient = b->gradients[i];
        tn_dims shape = tn_shape(gradient);
        thin *t = &s->of[b->index * GRADIENTS + i];
        if (shape.ndim < 2 && stage == 0) {
            pieces[n++] = gradient;
        } else if (shape.ndim < 2 && stage == 1) {
            tn_copy_(gradient, next_piece(b, &at, shape));
        } else if (shape.ndim == 2 && stage == 0) {
            pieces[n++] = tn_reshape(first_half(t, gradient), TN_DIMS(-1));
        } else if (shape.ndim == 2 && stage == 1) {
            tn_tensor *p = next_piece(b, &at, TN_DIMS(COLUMNS, shape.size[0]));
            t->p = tn_keep(make_orthonormal(tn_copy(p)));
            pieces[n++] = tn_reshape(tn_matmul(t->p, t->error), TN_DIMS(-1));
        } else if (shape.ndim == 2) {
            tn_copy_(t->q, next_piece(b, &at, TN_DIMS(COLUMNS, shape.size[1])));
            tn_copy_(gradient, tn_matmul(tn_t(t->p), t->q));
            tn_sub_(t->error, gradient);
            tn_release(t->p);
        }
    }
    return n > 0 ? tn_all_reduce(g, tn_cat(pieces, n, 0), b->how) : NULL;
}

static void powersgd_free(powersgd *s) {
    for (int i = 0; i < BUCKETS * GRADIENTS; i++) {
        tn_release(s->of[i].error);
        tn_release(s->of[i].q);
    }
}

/* ---- Training -------------------------------------------------------------------------------- */

static tn_sequential *make_net(uint64_t seed) {
    tn_seed(seed);
    return TN_SEQUENTIAL(tn_linear_new(IN, HIDDEN), TN_FN(tn_tanh), tn_linear_new(HIDDEN, HIDDEN),
                         TN_FN(tn_tanh), tn_linear_new(HIDDEN, OUT));
}

/* Learns another net's outputs; prints the mean loss of the last 20 steps. */
static void train_net(tn_group *world, const char *what, tn_ddp_options options) {
    tn_sequential *teacher = make_net(2), *net = make_net(1);
    tn_ddp_state *ddp = tn_ddp(net, world, options);
    tn_optim *opt = tn_sgd(net, TN_WITH(tn_sgd, .lr = 0.05, .momentum = 0.9));
    tn_generator data = {.seed = 3, .stream = (uint64_t)tn_group_rank(world)};
    double losses = 0;
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_tensor *x = tn_normal_(tn_empty(TN_DIMS(BATCH, IN), TN_F32), 0, 1, &data);
        tn_tensor *y = tn_mul_scalar(tn_detach(tn_call(teacher, x)), 2);
        tn_tensor *loss = tn_mse(tn_call(net, x), y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        losses += step >= STEPS - 20 ? tn_item(loss) : 0;
    }
    double mean = tn_group_mean(world, losses, 20);
    if (tn_group_rank(world) == 0) {
        printf("%s gradients: loss %.5f, %.0f kB sent\n", what, mean,
               (double)tn_ddp_statistics(ddp).sent / 1000);
    }
    tn_optim_free(opt);
    tn_module_free(net);
    tn_module_free(teacher);
}

int main(void) {
    tn_on_error(tn_error_exit);
    tn_group *world = tn_dist_init(tn_dist_defaults());
    powersgd state = {0};
    train_net(world, "whole", tn_ddp_defaults());
    train_net(world, "thin", TN_WITH(tn_ddp, .hook = reduce_thin, .hook_user = &state));
    powersgd_free(&state);
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
