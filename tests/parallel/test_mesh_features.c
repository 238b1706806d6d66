/* What a training program uses besides the model (averages, frozen parts, accumulation, recompute,
 * loss scaling, dropout, metrics, evaluation, bytes), on each mesh as on one rank. Ranks are
 * threads. */
#include "mesh_scaling.h"
#include "models/language.h"

#include "tests/parallel/bits.h"
#include "tests/support/temp.h"

#include <math.h>

enum { ROWS = 2, MICROS = 4, STEPS = 3, MOST_RANKS = 4 };

static const struct {
    const char *mesh;
    int ranks;
} meshes[] = {
    {"tp=2", 2},         {"tp=2,sequence", 2}, {"cp=2", 2},      {"cp=2,keys", 2},
    {"tp=2,shard=2", 4}, {"tp=2,dp=2", 4},     {"tp=2,cp=2", 4},
};
enum { MESHES = sizeof(meshes) / sizeof(*meshes) };

/* ---- Training -------------------------------------------------------------------------------- */

static tn_optim *make_adamw(void *m) {
    return tn_adamw(m, TN_WITH(tn_adamw, .eps = 1e-6));
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

typedef struct recipe {
    const char *name, *frozen; /* paths of tn_freeze; NULL: none */
    tn_optim *(*make)(void *m);
    bool llama, tied, deferred, recompute, scaled;
    bool whole;    /* the whole forward runs again in backward */
    bool own_loss; /* not tn_lm_loss: of what the model returns */
    bool flushes;  /* no backward sends: tn_sync_gradients does */
    bool looks;    /* a forward in evaluation mode between forward and backward, recorded too */
    const char *mesh;
    double norm;
    train_bits weights, average; /* rank 0's copy, of all ranks */
} recipe;

static const recipe recipes[] = {
    {.name = "frozen", .frozen = "h.0.mlp wpe", .make = make_lamb, .deferred = true},
    {.name = "frozen tie",
     .frozen = "wte",
     .make = make_muon,
     .deferred = true,
     .recompute = true,
     .flushes = true},
    {.name = "tied llama",
     .make = make_adafactor,
     .llama = true,
     .tied = true,
     .recompute = true,
     .scaled = true},
    {.name = "frozen blocks", .frozen = "layers", .make = make_adamw, .llama = true, .tied = true},
    {.name = "own loss", .make = make_adamw, .own_loss = true, .looks = true},
    {.name = "looks between", .make = make_adamw, .looks = true, .recompute = true},
    {.name = "whole again", .make = make_adamw, .looks = true, .whole = true},
    {.name = "own loss, whole again",
     .make = make_adamw,
     .llama = true,
     .own_loss = true,
     .recompute = true,
     .whole = true},
};

static tn_cp_kind kind_of(const char *mesh) {
    return strstr(mesh, "keys") ? TN_CP_KEYS : TN_CP_HEADS;
}

static tn_tensor *loss_of(const recipe *r, void *m, tn_spread *spread, int64_t number) {
    tn_tensor *x = mesh_tokens(29, ROWS, 2 * number), *y = mesh_tokens(29, ROWS, 2 * number + 1);
    if (!r->own_loss) {
        return tn_lm_loss(m, x, y);
    }
    y = tn_context_slice(tn_spread_group(spread, "cp"), kind_of(r->mesh), y, 1);
    return tn_cross_entropy(tn_call(m, x), y, TN_MEAN);
}

static void accumulate_step(const recipe *r, void *m, tn_spread *spread, tn_scaler *scaler,
                            int step) {
    tn_group *data = tn_spread_data(spread);
    int ranks = tn_group_size(data), mine = MICROS / ranks;
    for (int i = 0; i < mine; i++) {
        TN_SCOPE;
        TN_NO_SYNC(i + 1 < mine || r->flushes ? m : NULL);
        int64_t number = (int64_t)step * MICROS + (int64_t)i * ranks + tn_group_rank(data);
        tn_tensor *loss = tn_mul_scalar(loss_of(r, m, spread, number), 1.0 / mine);
        if (r->looks) {
            tn_module_train(m, false);
            loss_of(r, m, spread, number + 1);
            tn_module_train(m, true);
        }
        tn_backward(tn_scaler_scale(scaler, loss));
    }
    if (r->flushes) {
        CHECK(tn_sync_gradients(m) == TN_OK);
    }
}

static void take_bits(tn_group *world, void *m, train_bits *to) {
    train_bits bits = train_whole(m, world);
    if (tn_group_rank(world) == 0) {
        *to = bits;
    } else {
        free(bits.data);
    }
}

static void train_recipe(tn_group *world, void *user) {
    TN_SCOPE;
    recipe *r = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(r->llama);
    shape.bias = false; /* the gradients of the keys' biases are only rounding errors */
    shape.tied = r->tied;
    mesh_init(&m, &shape, 3, r->deferred);
    if (r->frozen) {
        CHECK(tn_freeze(&m, r->frozen) > 0);
    }
    if (r->recompute) {
        tn__lm_recompute_blocks(&m);
    }
    tn_module_set_recompute(&m, r->whole);
    tn_spread *spread = mesh_spread(&m, world, r->mesh);
    tn_optim *opt = r->make(&m);
    tn_average *average = tn_ema(&m, 0.5);
    tn_scaler *scaler = tn_scaler_new(TN_WITH(tn_scaler, .scale = 1024, .enabled = r->scaled));
    for (int step = 0; step < STEPS && !tn_error(); step++) {
        accumulate_step(r, &m, spread, scaler, step);
        double norm = tn_scaler_clip(scaler, opt, 0.3);
        if (tn_group_rank(world) == 0) {
            r->norm = norm;
        }
        tn_scaler_step(scaler, opt);
        tn_scaler_update(scaler);
        tn_optim_zero_grad(opt);
        tn_average_update(average);
    }
    take_bits(world, &m, &r->weights);
    {
        TN_AVERAGED(average);
        take_bits(world, &m, &r->average);
    }
    tn_scaler_free(scaler);
    tn_average_free(average);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

static void free_recipe(recipe *r) {
    free(r->weights.data);
    free(r->average.data);
}

TEST(test_recipes) {
    for (size_t i = 0; i < sizeof(recipes) / sizeof(*recipes); i++) {
        recipe alone = recipes[i];
        alone.mesh = "dp=1";
        run_ok(1, train_recipe, &alone);
        for (int k = 0; k < MESHES; k++) {
            recipe r = recipes[i];
            r.mesh = meshes[k].mesh;
            run_ok(meshes[k].ranks, train_recipe, &r);
            double off = train_difference(r.weights, alone.weights),
                   mean = train_difference(r.average, alone.average);
            if (!(off <= 1e-5 && mean <= 1e-5 && fabs(r.norm / alone.norm - 1) <= 1e-6)) {
                fail_msg("%s on %s: weights differ by %g, averages by %g, the norm is %.9g, not "
                         "%.9g",
                         r.name, r.mesh, off, mean, r.norm, alone.norm);
            }
            free_recipe(&r);
        }
        free_recipe(&alone);
    }
}

/* ---- The loss scale, and dropout ------------------------------------------------------------- */

/* The first loss of the last rank is too large for its gradients. */
TEST(test_overflow_on_one_rank) {
    for (int k = 0; k < MESHES; k++) {
        mesh_scaling s = {.mesh = meshes[k].mesh,
                          .compute = k % 2 ? TN_F16 : TN_BF16,
                          .clips = k % 3,
                          .rank = meshes[k].ranks - 1};
        run_ok(meshes[k].ranks, mesh_scaled_steps, &s);
    }
}

/* What dropout left of ones, as a number: equal for equal masks. */
static tn_values note_mask(tn_module *m, tn_values in, tn_values out, void *user) {
    TN_NO_GRAD;
    tn_tensor *kept = tn_cast(tn_ne_scalar(tn_detach(out.v[0]), 0), TN_F64);
    tn_tensor *place =
        tn_reshape(tn_arange(1, (double)tn_count(kept) + 1, 1, TN_F64), tn_shape(kept));
    *(double *)user = tn_item(tn_sum_all(tn_mul(kept, tn_mul(place, place))));
    return out;
}

/* How many ranks of a group have the mask of this one. */
static int count_same(tn_group *g, double mask) {
    void *all[MOST_RANKS];
    size_t bytes[MOST_RANKS];
    int same = 0;
    CHECK(tn_all_gather_bytes(g, &mask, sizeof(mask), all, bytes) == TN_OK);
    for (int i = 0; i < tn_group_size(g) && !tn_error(); i++) {
        same += memcmp(all[i], &mask, sizeof(mask)) == 0;
        tn_bytes_free(all[i]);
    }
    return same;
}

/* Each step and each rank's positions and batches have masks of their own; the ranks of tp, which
 * hold the same activations, have one, even if the program seeds each rank's generator apart. */
static void drop_apart(tn_group *world, void *user) {
    TN_SCOPE;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    shape.dropout = 0.5;
    mesh_init(&m, &shape, 3, false);
    tn_seed(100 + (uint64_t)tn_group_rank(world));
    tn_spread *spread = mesh_spread(&m, world, user);
    if (strstr(user, "dp")) {
        tn_seed(200 + (uint64_t)tn_group_rank(world));
    }
    tn_tensor *x = mesh_tokens(29, ROWS, 1);
    double mask = 0, before = 0;
    tn_module_hook(&m.gpt.stem.drop, (tn_module_hooks){.after = note_mask, .user = &mask});
    int alike = strstr(user, "sequence") ? 1 : tn_group_size(tn_spread_group(spread, "tp"));
    for (int step = 0; step < 3; step++, before = mask) {
        TN_SCOPE;
        tn_backward(tn_lm_loss(&m, x, x));
        CHECK(mask > 0 && mask != before);
        CHECK(count_same(world, mask) == alike);
    }
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_dropout_masks) {
    for (int k = 0; k < MESHES; k++) {
        run_ok(meshes[k].ranks, drop_apart, (void *)meshes[k].mesh);
    }
}

/* ---- Evaluation ------------------------------------------------------------------------------ */

enum { WINDOWS = 11, LENGTHS = 3 };
static const int64_t lengths[LENGTHS] = {8, 5, 1}; /* not a multiple of cp's ranks either */

typedef struct evaluation {
    const char *mesh;
    bool llama;
    tn_perplexity perplexity[LENGTHS];
    double loss, accuracy, top, mean; /* of tn_evaluate; tn_lm_loss */
} evaluation;

static tn_dataset *windows_of(int64_t length) {
    return tn_tensor_dataset(tn_contiguous(tn_narrow(mesh_tokens(29, WINDOWS, 6), 1, 0, length)),
                             tn_contiguous(tn_narrow(mesh_tokens(29, WINDOWS, 7), 1, 0, length)));
}

static void evaluate_pass(void *m, tn_group *data, evaluation *e) {
    tn_metrics *metrics = tn_metrics_new(29, 3);
    tn_loader_options o = TN_WITH(tn_loader, .batch = 2, .threads = 0);
    tn_loader *loader = tn_loader_new(
        windows_of(8), tn_distributed_sampler(data, tn_sequential_sampler(), false), o);
    CHECK(tn_evaluate(m, loader, tn_cross_entropy, data, metrics) == TN_OK);
    e->loss = tn_metrics_loss(metrics);
    e->accuracy = tn_metrics_accuracy(metrics);
    e->top = tn_metrics_top(metrics);
    tn_metrics_free(metrics);
    tn_loader_free(loader);
}

static void evaluate_mesh(tn_group *world, void *user) {
    TN_SCOPE;
    evaluation e = *(evaluation *)user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(e.llama);
    shape.dropout = 0.5; /* which evaluation leaves out */
    mesh_init(&m, &shape, 3, false);
    tn_spread *spread = mesh_spread(&m, world, e.mesh);
    tn_group *data = tn_spread_data(spread);
    for (int i = 0; i < LENGTHS; i++) {
        tn_dataset *windows = windows_of(lengths[i]);
        tn_evaluate_options o = TN_WITH(tn_evaluate, .batch = 3, .group = data);
        CHECK(tn_evaluate_perplexity(&m, windows, NULL, o, &e.perplexity[i]) == TN_OK);
        tn_dataset_free(windows);
    }
    evaluate_pass(&m, data, &e);
    CHECK(m.base.training);
    tn_module_train(&m, false);
    tn_tensor *x = mesh_tokens(29, ROWS, 2);
    e.mean = tn_item(tn_lm_loss(&m, x, mesh_tokens(29, ROWS, 3)));
    double sums[] = {e.loss + e.accuracy + e.top + e.mean, e.perplexity[0].loss};
    CHECK(tn_group_mean(world, sums[0], 1) == sums[0] &&
          tn_group_mean(world, sums[1], 1) == sums[1]);
    if (tn_group_rank(world) == 0) {
        *(evaluation *)user = e;
    }
    tn_module_finish(&m);
    tn_spread_free(spread);
}

static void compare_evaluations(const evaluation *is, const evaluation *want) {
    double off = fmax(fabs(is->loss - want->loss), fabs(is->mean - want->mean));
    for (int i = 0; i < LENGTHS; i++) {
        const tn_perplexity *a = &is->perplexity[i], *b = &want->perplexity[i];
        assert_true(a->windows == WINDOWS && a->tokens == WINDOWS * lengths[i]);
        off = fmax(off, fabs(a->loss - b->loss));
    }
    if (!(off <= 1e-6 && is->accuracy == want->accuracy && is->top == want->top)) {
        fail_msg("%s, llama %d: losses differ by %g, accuracy %g, not %g", is->mesh, is->llama, off,
                 is->accuracy, want->accuracy);
    }
}

TEST(test_evaluation) {
    for (int llama = 0; llama < 2; llama++) {
        evaluation alone = {.mesh = "dp=1", .llama = llama};
        run_ok(1, evaluate_mesh, &alone);
        assert_true(alone.top > alone.accuracy && alone.accuracy > 0);
        for (int k = 0; k < MESHES; k++) {
            evaluation e = {.mesh = meshes[k].mesh, .llama = llama};
            run_ok(meshes[k].ranks, evaluate_mesh, &e);
            compare_evaluations(&e, &alone);
        }
    }
}

/* ---- Text ------------------------------------------------------------------------------------ */

enum { WRITTEN = 12 };

typedef struct text {
    const char *mesh;
    bool llama, bytes;
    int32_t ids[WRITTEN];
} text;

/* Weights larger than a new model's, so that the likeliest token is so by far. */
static bool enlarge_weights(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    if (tn_ndim(*entry->field) == 2) {
        tn_mul_scalar_(*entry->field, *(const double *)user);
    }
    return true;
}

/* A model that is still in training mode, as floats or as bytes. */
static void write_text(tn_group *world, void *user) {
    TN_SCOPE;
    text t = *(text *)user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(t.llama);
    mesh_init(&m, &shape, 3, false);
    tn_module_each(&m, (tn_walk){0}, enlarge_weights, &(double){12});
    tn_spread *spread = mesh_spread(&m, world, t.mesh);
    if (t.bytes) {
        CHECK(tn_quantize(&m) == TN_OK);
    }
    const int32_t ids[] = {3, 1, 4, 1}; /* as many as tp and cp divide */
    tn_prompt prompt = {ids, 4};
    tn_generated out;
    tn_generate_options o = TN_WITH(tn_generate, .max_new = WRITTEN, .temperature = 0);
    CHECK(tn_generate(&m, &prompt, 1, o, &out) == TN_OK && out.tokens.count >= WRITTEN);
    memcpy(t.ids, out.tokens.ids, tn_error() ? 0 : sizeof(t.ids));
    tn_generated_free(&out, 1);
    if (tn_group_size(world) == 1) {
        *(text *)user = t;
    }
    CHECK(memcmp(t.ids, ((text *)user)->ids, sizeof(t.ids)) == 0);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_text) {
    for (int i = 0; i < 4; i++) {
        text t = {.mesh = "dp=1", .llama = i & 1, .bytes = i & 2};
        run_ok(1, write_text, &t);
        for (int k = 0; k < MESHES; k++) {
            t.mesh = meshes[k].mesh;
            if (!t.bytes || !strstr(t.mesh, "shard")) {
                run_ok(meshes[k].ranks, write_text, &t);
            }
        }
    }
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
