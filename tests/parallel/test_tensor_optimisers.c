/* Every optimiser on models with tensor parallelism, alone and under sharding: weights, clipped
 * norms and averages match one rank's. And the loss scale of f16. Ranks are threads. */
#include "mesh_scaling.h"

#include "tests/parallel/bits.h"
#include "tests/support/temp.h"

#define CLIP 0.3

enum { ROWS = 2, MICROS = 2, STEPS = 5, MOST_FROZEN = 16 };

/* ---- The optimisers -------------------------------------------------------------------------- */

/* eps: gradients that are only rounding errors do not make full steps. */
static tn_optim *make_sgd(void *m) {
    return tn_sgd(m, TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9, .nesterov = true));
}
static tn_optim *make_adam(void *m) {
    return tn_adam(m, TN_WITH(tn_adam, .eps = 1e-6, .amsgrad = true));
}
static tn_optim *make_adamw(void *m) {
    return tn_adamw(m, TN_WITH(tn_adamw, .eps = 1e-6, .no_decay = tn_match_vectors));
}
static tn_optim *make_rmsprop(void *m) {
    return tn_rmsprop(m, TN_WITH(tn_rmsprop, .lr = 1e-4, .eps = 1e-6, .centered = true));
}
static tn_optim *make_adagrad(void *m) {
    return tn_adagrad(m, TN_WITH(tn_adagrad, .lr = 1e-3, .eps = 1e-6));
}
static tn_optim *make_adadelta(void *m) {
    return tn_adadelta(m, tn_adadelta_defaults());
}
static tn_optim *make_adamax(void *m) {
    return tn_adamax(m, TN_WITH(tn_adamax, .eps = 1e-6));
}
static tn_optim *make_nadam(void *m) {
    return tn_nadam(m, TN_WITH(tn_nadam, .eps = 1e-6));
}
static tn_optim *make_radam(void *m) {
    return tn_radam(m, TN_WITH(tn_radam, .eps = 1e-6));
}
static tn_optim *make_asgd(void *m) {
    return tn_asgd(m, TN_WITH(tn_asgd, .lr = 0.1));
}
static tn_optim *make_lion(void *m) {
    return tn_lion(m, tn_lion_defaults());
}
static tn_optim *make_lamb(void *m) {
    return tn_lamb(m, TN_WITH(tn_lamb, .lr = 1e-2));
}
static tn_optim *make_adafactor(void *m) {
    return tn_adafactor(m, tn_adafactor_defaults());
}
static tn_optim *make_muon(void *m) {
    return tn_muon(m, TN_WITH(tn_muon, .lr = 1e-2, .adamw_eps = 1e-6));
}

/* flips: for updates by sign, where rounding decides the sign near 0, twice the learning rate. */
static const struct method {
    const char *name;
    tn_optim *(*make)(void *m);
    double flips;
} methods[] = {
    {"sgd", make_sgd, 0},
    {"adam", make_adam, 0},
    {"adamw", make_adamw, 0},
    {"rmsprop", make_rmsprop, 0},
    {"adagrad", make_adagrad, 0},
    {"adadelta", make_adadelta, 0},
    {"adamax", make_adamax, 0},
    {"nadam", make_nadam, 0},
    {"radam", make_radam, 0},
    {"asgd", make_asgd, 0},
    {"lion", make_lion, 2e-4},
    {"lamb", make_lamb, 0},
    {"adafactor", make_adafactor, 0},
    {"muon", make_muon, 0},
};
enum { METHODS = sizeof(methods) / sizeof(*methods) };

/* ---- A run ----------------------------------------------------------------------------------- */

typedef struct run {
    const struct method *method;
    const char *mesh;
    bool llama, frozen;
    double norms[STEPS], losses[STEPS];
    train_bits weights, average; /* rank 0's copy, of all ranks */
} run;

typedef struct frozen_list {
    tn_tensor *before[MOST_FROZEN];
    char path[MOST_FROZEN][128];
    int count;
} frozen_list;

static bool note_frozen(const tn_entry *entry, void *user) {
    frozen_list *f = user;
    if (!tn_requires_grad(entry->stored)) {
        snprintf(f->path[f->count], sizeof(f->path[0]), "%s", entry->path);
        f->before[f->count++] = tn_copy(tn_detach(entry->stored));
        CHECK(f->count < MOST_FROZEN);
    }
    return true;
}

static bool compare_frozen(const tn_entry *entry, void *user) {
    const frozen_list *f = user;
    for (int i = 0; i < f->count; i++) {
        if (strcmp(f->path[i], entry->path) == 0) {
            CHECK(tn_equal(f->before[i], entry->stored));
        }
    }
    return true;
}

/* A matrix that has two names, and part of a block. */
static void freeze_parts(mesh_model *m) {
    if (m->base.kind[0] == 'g') {
        tn_module_requires_grad(&m->gpt.stem.wte, false);
        tn_module_requires_grad(&m->gpt.h[0].mlp, false);
    } else {
        tn_module_requires_grad(&m->llama.layers[0].mlp, false);
        tn_module_requires_grad(&m->llama.layers[1].self_attn, false);
    }
}

static double train_step_of(mesh_model *m, const mesh_shape *shape, int step, tn_group *data) {
    int ranks = tn_group_size(data), mine = MICROS / ranks;
    double loss = 0;
    for (int i = 0; i < mine; i++) {
        TN_SCOPE;
        int64_t number = (int64_t)step * MICROS + (int64_t)i * ranks + tn_group_rank(data);
        tn_tensor *each = tn_lm_loss(m, mesh_tokens(shape->vocab, ROWS, 2 * number),
                                     mesh_tokens(shape->vocab, ROWS, 2 * number + 1));
        tn_backward(tn_mul_scalar(each, 1.0 / mine));
        loss += tn_item(each) / mine;
    }
    return loss;
}

static void take_bits(tn_group *world, void *m, train_bits *to) {
    train_bits bits = train_whole(m, world);
    if (tn_group_rank(world) == 0) {
        *to = bits;
    } else {
        free(bits.data);
    }
}

static void train_run_of_mesh(tn_group *world, void *user) {
    TN_SCOPE;
    run *r = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(r->llama);
    shape.bias = false; /* the gradients of the keys' biases are only rounding errors */
    shape.dropout = r->llama ? 0 : 0.1;
    mesh_init(&m, &shape, 3, false);
    if (r->frozen) {
        freeze_parts(&m);
    }
    tn_spread *spread = mesh_spread(&m, world, r->mesh);
    tn_optim *opt = r->method->make(&m);
    tn_average *average = tn_ema(&m, 0.5);
    frozen_list frozen = {.count = 0};
    tn_module_each(&m, (tn_walk){0}, note_frozen, &frozen);
    CHECK(!frozen.count == !r->frozen);
    bool first = tn_group_rank(world) == 0;
    for (int step = 0; step < STEPS && !tn_error(); step++) {
        double loss = train_step_of(&m, &shape, step, tn_spread_data(spread));
        double norm = tn_optim_clip(opt, CLIP);
        if (first) {
            r->losses[step] = loss;
            r->norms[step] = norm;
        }
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        tn_average_update(average);
    }
    tn_module_each(&m, (tn_walk){0}, compare_frozen, &frozen);
    take_bits(world, &m, &r->weights);
    {
        TN_AVERAGED(average);
        take_bits(world, &m, &r->average);
    }
    tn_average_free(average);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

static void free_run(run *r) {
    free(r->weights.data);
    free(r->average.data);
}

/* How many numbers differ by more than 1e-5, and the largest difference. */
static int far_apart(train_bits a, train_bits b, double *most) {
    int count = 0;
    *most = 0;
    assert_int_equal(a.bytes, b.bytes);
    for (size_t at = 0; at < a.bytes; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a.data + at, sizeof(x));
        memcpy(&y, b.data + at, sizeof(y));
        double apart = fabs((double)x - (double)y);
        count += !(apart <= 1e-5);
        *most = fmax(*most, apart);
    }
    return count;
}

/* Weights agree to 1e-5; where signs may flip, all but one element in a thousand. */
static void compare_weights(const run *is, train_bits a, train_bits b) {
    double most, allowed = is->method->flips * STEPS;
    int count = far_apart(a, b, &most), numbers = (int)(a.bytes / sizeof(float));
    if (count > (allowed > 0 ? numbers / 1000 : 0) || most > fmax(allowed, 1e-5)) {
        fail_msg("%s on %s, llama %d, frozen %d: %d of %d numbers are off, by up to %g",
                 is->method->name, is->mesh, is->llama, is->frozen, count, numbers, most);
    }
}

static void compare_runs(const run *is, const run *want) {
    compare_weights(is, is->weights, want->weights);
    compare_weights(is, is->average, want->average);
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(is->norms[i] / want->norms[i] - 1) <= 1e-6)) {
            fail_msg("%s on %s: step %d has the norm %.9g, one rank's is %.9g", is->method->name,
                     is->mesh, i, is->norms[i], want->norms[i]);
        }
    }
    assert_true(far_apart(is->weights, is->average, &(double){0}) > 0);
}

static void on_meshes(const struct method *method, bool llama, bool frozen, int stage) {
    char sharded[64];
    snprintf(sharded, sizeof(sharded), "tp=2,shard=2,stage=%d", stage);
    const char *const meshes[] = {"tp=2", sharded};
    run alone = {method, "dp=1", llama, frozen, .losses = {0}};
    run_ok(1, train_run_of_mesh, &alone);
    assert_true(alone.norms[0] > CLIP); /* it was clipped */
    for (int i = 0; i < 2; i++) {
        run cut = {method, meshes[i], llama, frozen, .losses = {0}};
        run_ok(2 << i, train_run_of_mesh, &cut);
        compare_runs(&cut, &alone);
        free_run(&cut);
    }
    free_run(&alone);
}

TEST(test_every_optimiser) {
    for (int i = 0; i < METHODS; i++) {
        on_meshes(&methods[i], i % 2, false, 1 + i % 3);
    }
}

TEST(test_frozen_parts) {
    static const char *const names[] = {"adamw", "lamb", "adafactor", "muon"};
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < METHODS; i++) {
            if (strcmp(methods[i].name, names[k]) == 0) {
                on_meshes(&methods[i], k % 2, true, 1 + k % 3);
            }
        }
    }
}

/* ---- The loss scale of f16 ------------------------------------------------------------------- */

/* An overflow in one rank's block, which the others only see in the norm: all skip the step. */
TEST(test_overflow_on_one_rank) {
    static const struct {
        const char *mesh, *path;
        int rank;
    } cases[] = {{"tp=2", "h.0.mlp.c_fc.weight", 1},
                 {"tp=2", "wte.weight", 0},
                 {"tp=2,shard=2", "h.1.", 3},
                 {"tp=2,sequence", "h.1.attn.c_attn.bias", 1}};
    for (int i = 0; i < 4; i++) {
        mesh_scaling s = {cases[i].mesh, TN_F16, true, cases[i].rank, cases[i].path};
        run_ok(i == 2 ? 4 : 2, mesh_scaled_steps, &s);
    }
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
