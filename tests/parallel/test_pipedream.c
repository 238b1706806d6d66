/* examples/25_pipedream.c gives every micro-batch the weights that it should: its losses are those
 * of one rank that keeps all versions of each stage's weights, bit for bit. */
#include "tests/distributed/rank_check.h"

int example_main(int argc, char **argv);
#define main example_main
#include "examples/25_pipedream.c"
#undef main

enum { COUNT = 64 }; /* of micro-batches */

typedef struct pipe_case {
    int mode, batch, ranks;
    double losses[COUNT];
    int copies[PARTS]; /* of each rank */
} pipe_case;

/* The stage of each layer, by the number of ranks. */
static const int stages[][PARTS] = {{0}, {0}, {0, 0, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}};

/* ---- The oracle ------------------------------------------------------------------------------ */

/* Version v of a weight is what v steps have left. Weights 2 l and 2 l + 1 are layer l's. */
typedef struct history {
    tn_tensor **fields[WEIGHTS], *newest[WEIGHTS], *versions[COUNT + 1][WEIGHTS];
    int count, steps;
} history;

static bool add_field(const tn_entry *entry, void *user) {
    history *h = user;
    h->fields[h->count] = entry->field;
    h->newest[h->count++] = tn_keep(*entry->field);
    return true;
}

static void add_version(history *h, int v) {
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < h->count; i++) {
        h->versions[v][i] = tn_keep(tn_set_requires_grad(tn_copy(h->newest[i]), true));
    }
}

/* That stage `place` has for its forward of micro-batch k. In a full 1F1B row, between a
 * micro-batch's forward and its backward a stage steps for the micro-batches that the later stages
 * hold. */
static int version_of(const pipe_case *c, int place, int k) {
    int later = c->ranks - 1 - place, steps = k / c->batch;
    int missing = c->mode == MODE_PIPEDREAM ? later : c->mode == MODE_2BW ? 1 : 0;
    return steps > missing ? steps - missing : 0;
}

static void use_versions(history *h, const pipe_case *c, int k) {
    for (int i = 0; i < h->count; i++) {
        int v = version_of(c, stages[c->ranks][i / 2], k);
        tn_release(*h->fields[i]);
        *h->fields[i] = tn_keep(h->versions[v][i]);
    }
}

static void step_newest(history *h, tn_optim *opt) {
    for (int i = 0; i < h->count; i++) {
        tn_set_grad(h->newest[i], tn_grad_of(*h->fields[i]));
        tn_zero_grad(*h->fields[i]);
    }
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    add_version(h, ++h->steps);
}

static void train_plain(pipe_case *c) {
    history h = {0};
    tn_sequential *net = make_net();
    tn_module_each(net, (tn_walk){0}, add_field, &h);
    assert_int_equal(h.count, WEIGHTS);
    tn_optim *opt =
        tn_sgd(tn_parameters(h.newest, h.count), TN_WITH(tn_sgd, .lr = lr, .momentum = 0.9));
    add_version(&h, 0);
    for (int k = 0; k < COUNT; k++) {
        TN_SCOPE;
        use_versions(&h, c, k);
        tn_batch b = make_points(k);
        tn_tensor *loss = tn_mse(tn_call(net, b.x), b.y, TN_MEAN);
        c->losses[k] = tn_item(loss);
        tn_backward(tn_mul_scalar(loss, 1.0 / c->batch));
        if ((k + 1) % c->batch == 0) { step_newest(&h, opt); }
    }
    for (int i = 0; i < h.count; i++) {
        tn_release(h.newest[i]);
        for (int v = 0; v <= h.steps; v++) {
            tn_release(h.versions[v][i]);
        }
    }
    tn_optim_free(opt);
    tn_module_free(net);
}

/* ---- The example ----------------------------------------------------------------------------- */

static void train_example(tn_group *world, void *user) {
    pipe_case *c = user;
    double losses[COUNT] = {0};
    int rank = tn_group_rank(world);
    c->copies[rank] = train_net(world, losses, COUNT);
    if (rank == tn_group_size(world) - 1) { memcpy(c->losses, losses, sizeof(losses)); }
}

static pipe_case run_example(int how, int size, int ranks) {
    mode = how;
    batch = size;
    pipe_case c = {.mode = how, .batch = how == MODE_PIPEDREAM ? 1 : size, .ranks = ranks};
    run_ok(ranks, train_example, &c);
    return c;
}

/* How many copies of its weights a stage has. */
static int copies_of(const pipe_case *c, int place) {
    bool last = place == c->ranks - 1;
    return c->mode == MODE_1F1B ? 0 : c->mode == MODE_2BW ? 2 - last : c->ranks - place;
}

static void check_case(int how, int size, int ranks) {
    pipe_case c = run_example(how, size, ranks), plain = c;
    train_plain(&plain);
    for (int k = 0; k < COUNT; k++) {
        if (!(c.losses[k] == plain.losses[k])) {
            fail_msg("%s, %d ranks, batches of %d: loss %d is %.9g, not %.9g", modes[how], ranks,
                     size, k, c.losses[k], plain.losses[k]);
        }
    }
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(c.copies[r], copies_of(&c, r));
    }
}

TEST(row_without_a_flush) {
    lr = 0.02;
    for (int ranks = 1; ranks <= PARTS; ranks++) {
        check_case(MODE_PIPEDREAM, 4, ranks);
    }
}

TEST(batches_with_and_without) {
    lr = 0.02;
    for (int ranks = 1; ranks <= PARTS; ranks++) {
        for (int size = ranks > 2 ? 4 : ranks; size <= 16; size *= 2) {
            check_case(MODE_1F1B, size, ranks);
            check_case(MODE_2BW, size, ranks);
        }
    }
}
