/* A pipeline that never runs empty, and what its stale weights do to a loss.
 *
 *     tern run -n 4 25_pipedream --mode 1f1b        steps between batches, once drained
 *     tern run -n 4 25_pipedream --mode pipedream   for each micro-batch (arXiv:1806.03377)
 *     tern run -n 4 25_pipedream --mode 2bw         for each batch (arXiv:2006.09503)
 *
 * To keep all stages busy, micro-batches enter before those ahead of them have come back, and so
 * before their steps. Here the whole training is one row of a 1F1B schedule, and each stage steps
 * by itself between two actions. A gradient must be computed with the weights of its forward, so
 * the forward reads a copy of them, which is kept until the backward. docs/pipedream.md says why,
 * and has a picture of the losses. Lines with an R know about ranks.
 */
#include <tern/tern.h>

#include <stdio.h>

enum { MICROS = 4096, LINE = 256, ROWS = 16, WIDTH = 64, PARTS = 4, WEIGHTS = 8 };
enum { MODE_1F1B, MODE_PIPEDREAM, MODE_2BW };
static const char *const modes[] = {"1f1b", "pipedream", "2bw", NULL};

static int mode = MODE_PIPEDREAM;
static int64_t batch = 4;
static double lr = 0.01;
static const tn_option table[] = {
    {"mode", 'm', "MODE", "when a stage steps", .choice = &mode, .choices = modes},
    {"batch", 'b', "N", "micro-batches of a step; with pipedream it is 1", .whole = &batch},
    {"lr", 'r', "RATE", "of SGD with momentum 0.9", .real = &lr},
    {0},
};

/* ---- The data: y = sin(3 a) b, for points (a, b) in a square; none comes twice --------------- */

static tn_batch make_points(int64_t number) {
    tn_generator g = {.seed = 1, .stream = (uint64_t)number};
    tn_tensor *x = tn_uniform_(tn_empty(TN_DIMS(ROWS, 2), TN_F32), -1.0, 1.0, &g);
    tn_tensor *a = tn_slice(x, 1, 0, 1, 1), *b = tn_slice(x, 1, 1, 2, 1);
    return (tn_batch){.x = x, .y = tn_mul(tn_sin(tn_mul_scalar(a, 3.0)), b)};
}

/* ---- A stage's weights ----------------------------------------------------------------------- */

typedef struct {
    int count;                         /* of this rank's weights */
    tn_tensor **fields[WEIGHTS];       /* what forwards read: a copy … */
    tn_tensor *newest[WEIGHTS];        /* … of what the optimiser steps */
    tn_tensor *copies[PARTS][WEIGHTS]; /* [i % PARTS] of batch i, until its step */
    tn_optim *opt;
    int batch, batches;        /* micro-batches of a step; steps of the training */
    int copied, stepped, most; /* batches so far; copies at most */
    double scale, *losses;     /* of a micro-batch's loss; where the next one goes */
} stage;

static bool add_weight(const tn_entry *entry, void *user) {
    stage *s = user;
    s->fields[s->count] = entry->field;
    s->newest[s->count++] = tn_keep(*entry->field);
    return true;
}

/* Forwards read the newest weights as they are now, unless this batch has its copy already. */
static void copy_weights(stage *s, int number) {
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < s->count && s->copied == number; i++) {
        tn_tensor *copy = tn_set_requires_grad(tn_copy(s->newest[i]), true);
        s->copies[number % PARTS][i] = tn_keep(copy);
        tn_release(*s->fields[i]);
        *s->fields[i] = tn_keep(copy);
    }
    s->copied = number + 1;
    s->most = s->copied - s->stepped > s->most ? s->copied - s->stepped : s->most;
}

/* All gradients of a batch are there: they were added to its copy. */
static void step_weights(stage *s) {
    for (int i = 0; i < s->count; i++) {
        tn_tensor *copy = s->copies[s->stepped % PARTS][i];
        tn_set_grad(s->newest[i], tn_grad_of(copy));
        tn_release(copy);
    }
    s->stepped++;
    if (mode == MODE_2BW && s->stepped < s->batches) {
        copy_weights(s, s->stepped); /* from before the step, as the first stages have done */
    }
    tn_optim_step(s->opt);
    tn_optim_zero_grad(s->opt);
}

static void on_action(tn_pipe_action a, bool done, void *user) {
    stage *s = user;
    if (a.what == 'F' && !done) {
        copy_weights(s, a.micro / s->batch);
    } else if (a.what == 'B' && done && (a.micro + 1) % s->batch == 0) {
        step_weights(s);
    }
}

/* In the last stage, for each micro-batch in turn. */
static tn_tensor *measure_loss(tn_tensor *out, tn_tensor *y, void *user) {
    stage *s = user;
    tn_tensor *loss = tn_mse(out, y, TN_MEAN);
    *s->losses++ = tn_item(loss);
    return tn_mul_scalar(loss, s->scale);
}

/* ---- Training -------------------------------------------------------------------------------- */

static tn_sequential *make_layer(int64_t in) {
    return TN_SEQUENTIAL(tn_linear_new(in, WIDTH), TN_FN(tn_tanh));
}

static tn_sequential *make_net(void) {
    tn_seed(7);
    return TN_SEQUENTIAL(make_layer(2), make_layer(WIDTH), make_layer(WIDTH),
                         tn_linear_new(WIDTH, 1));
}

/* losses[n]: of micro-batches, on the last rank. Returns how many copies were here at once. */
static int train_net(tn_group *world, double *losses, int n) {
    TN_SCOPE;
    int each = mode == MODE_PIPEDREAM ? 1 : (int)batch, row = mode == MODE_1F1B ? each : n;
    stage s = {.batch = each, .batches = n / each, .losses = losses};
    s.scale = (double)row / each; /* gradients are of the mean over the row: now over the batch */
    tn_sequential *net = make_net();
    tn_pipeline_options o = TN_WITH(tn_pipeline, .loss = measure_loss, .user = &s,
                                    .on_action = mode == MODE_1F1B ? NULL : on_action);
    tn_pipeline *pipe = tn_pipeline_new(net, world, o); /* R: drops other stages' weights */
    tn_module_each(net, (tn_walk){0}, add_weight, &s);
    s.opt = tn_sgd(tn_parameters(s.newest, s.count), TN_WITH(tn_sgd, .lr = lr, .momentum = 0.9));
    tn_batch points[MICROS];
    for (int i = 0; i < n; i++) {
        points[i] = make_points(i);
    }
    for (int i = 0; i < n; i += row) {
        tn_pipeline_step(pipe, points + i, row, NULL);
        if (mode == MODE_1F1B) {
            tn_optim_step(s.opt);
            tn_optim_zero_grad(s.opt);
        }
    }
    for (int i = 0; i < s.count; i++) {
        tn_release(*s.fields[i]);
        *s.fields[i] = s.newest[i]; /* to go on with, or to save */
    }
    tn_optim_free(s.opt);
    tn_module_free(net);
    return s.most;
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_options_parse(argc, argv,
                     "Trains an MLP in a pipeline that never runs empty (tern run -n N).", table);
    tn_group *world = tn_dist_init(tn_dist_defaults()); /* R: one rank when nothing is set */
    int rank = tn_group_rank(world), last = tn_group_size(world) - 1;
    if (MICROS % batch != 0 || (mode == MODE_2BW && batch < last)) {
        tn_options_refuse("--batch divides %d; with 2bw it is at least %d", MICROS, last);
    }
    double losses[MICROS], sum = 0;
    printf("stage %d: at most %d copies\n", rank, train_net(world, losses, MICROS));
    for (int i = 0; i < MICROS && rank == last; i++) { /* R */
        sum += losses[i];
        if ((i + 1) % LINE == 0) {
            printf("%4d micro-batches  loss %.6f\n", i + 1, sum / LINE);
            sum = 0;
        }
    }
    tn_dist_finish();
    return fflush(stdout) || ferror(stdout);
}
