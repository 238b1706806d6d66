/* What a training program uses besides the model (averages, frozen parts, accumulation, recompute,
 * loss scaling, dropout, metrics, evaluation, bytes), on each mesh as on one rank. Ranks are
 * threads. */
#include "mesh_model.h"

#include "tests/parallel/bits.h"
#include "tests/support/temp.h"
#include "train.h"

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

static void recompute_blocks(void *m) {
    tn_module *parts[4];
    CHECK(tn_lm_parts(m, parts, 4) == 4);
    tn_module_set_recompute(parts[1], true);
    tn_module_set_recompute(parts[2], true);
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
        recompute_blocks(&m);
    }
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

static void test_recipes(void **state) {
    (void)state;
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

typedef struct scaling {
    const char *mesh;
    tn_dtype compute;
    bool clips;
} scaling;

/* The first loss of the last rank is too large for its gradients. */
static void scale_steps(tn_group *world, void *user) {
    TN_SCOPE;
    const scaling *s = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    tn_module_set_precision(&m, TN_WITH(tn_precision, .compute = s->compute));
    tn_spread *spread = mesh_spread(&m, world, s->mesh);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_scaler *scaler = tn_scaler_new(TN_WITH(tn_scaler, .scale = 1024));
    bool last = tn_group_rank(world) == tn_group_size(world) - 1;
    train_bits before = train_whole(&m, world);
    for (int step = 0; step < 2 && !tn_error(); step++) {
        TN_SCOPE;
        tn_tensor *x = mesh_tokens(29, ROWS, step);
        tn_tensor *loss = tn_mul_scalar(tn_lm_loss(&m, x, x), last && step == 0 ? INFINITY : 1);
        tn_backward(tn_scaler_scale(scaler, loss));
        CHECK(!s->clips || isfinite(tn_scaler_clip(scaler, opt, 1.0)) == (step == 1));
        tn_scaler_step(scaler, opt);
        tn_optim_zero_grad(opt);
        tn_scaler_update(scaler);
        CHECK(tn_scaler_skipped(scaler) == (step == 0) && tn_scaler_where(scaler).scale == 512);
        train_bits after = train_whole(&m, world); /* also checks that ranks agree */
        CHECK(train_same(before, after) == (step == 0));
        free(after.data);
    }
    free(before.data);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

static void test_overflow_on_one_rank(void **state) {
    (void)state;
    for (int k = 0; k < MESHES; k++) {
        scaling s = {meshes[k].mesh, k % 2 ? TN_F16 : TN_BF16, k % 3};
        run_ok(meshes[k].ranks, scale_steps, &s);
    }
}

/* What dropout left of ones, as a number: equal for equal masks. */
static tn_values note_mask(tn_module *m, tn_values in, tn_values out, void *user) {
    (void)m;
    (void)in;
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

static void test_dropout_masks(void **state) {
    (void)state;
    for (int k = 0; k < MESHES; k++) {
        run_ok(meshes[k].ranks, drop_apart, (void *)meshes[k].mesh);
    }
}

/* ---- Evaluation ------------------------------------------------------------------------------ */

enum { WINDOWS = 11, LENGTHS = 3 };
static const int64_t lengths[LENGTHS] = {8, 5, 1}; /* no multiple of cp's ranks either */

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

static void test_evaluation(void **state) {
    (void)state;
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

static void test_text(void **state) {
    (void)state;
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

/* ---- Orders that make no sense --------------------------------------------------------------- */

typedef void (*doing)(tn_group *world, void *m);

static void cut_matrices(tn_group *world, void *m) {
    tn_tensor_parallel(m, world, tn_tp_defaults());
}

static void split_sequences(tn_group *world, void *m) {
    tn_context_parallel(m, world, TN_CP_HEADS);
}

static void copy_model(tn_group *world, void *m) {
    tn_ddp(m, world, tn_ddp_defaults());
}

static void shard_model(tn_group *world, void *m) {
    tn_fsdp(m, world, NULL, tn_fsdp_defaults());
}

static void copy_naively(tn_group *world, void *m) {
    tn_ddp_naive(m, world);
}

static void shard_naively(tn_group *world, void *m) {
    tn_fsdp_naive(m, world);
}

static void quantise_model(tn_group *world, void *m) {
    (void)world;
    tn_quantize(m);
}

/* tn_spread_free comes after the model is finished. */
static _Thread_local tn_spread *spreads[2];
static _Thread_local int spread_count;

static void spread_sharded(tn_group *world, void *m) {
    spreads[spread_count++] = mesh_spread(m, world, "shard=2");
}

static void spread_cut(tn_group *world, void *m) {
    spreads[spread_count++] = mesh_spread(m, world, "tp=2");
}

static const struct order {
    doing first, then;
    tn_status status;
    const char *says;
} orders[] = {
    {cut_matrices, cut_matrices, TN_ESTATE, "tensor_parallel: wte.weight is cut already"},
    {split_sequences, cut_matrices, TN_ESTATE, "tensor parallelism comes first"},
    {copy_model, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under data parallelism"},
    {shard_model, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under sharding"},
    {copy_naively, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under data parallelism"},
    {shard_naively, cut_matrices, TN_ESTATE, "tensor_parallel: gpt is under sharding"},
    {split_sequences, split_sequences, TN_ESTATE, "h.0.attn is split already"},
    {copy_model, split_sequences, TN_ESTATE, "context_parallel: gpt is under data parallelism"},
    {shard_model, split_sequences, TN_ESTATE, "context_parallel: gpt is under sharding"},
    {shard_naively, split_sequences, TN_ESTATE, "context_parallel: gpt is under sharding"},
    {spread_cut, spread_cut, TN_ESTATE, "tensor_parallel: gpt is under data parallelism"},
    {spread_sharded, spread_sharded, TN_ESTATE, "fsdp: gpt is under sharding"},
    {spread_sharded, shard_model, TN_ESTATE, "fsdp: gpt is under sharding"},
    {spread_cut, copy_model, TN_ESTATE, "ddp: gpt is under data parallelism"},
    {cut_matrices, copy_naively, TN_EMISMATCH, "ddp_naive: rank 0 has parameter wte.weight"},
    {cut_matrices, shard_naively, TN_EMISMATCH, "fsdp_naive: rank 0 has parameter wte.weight"},
    {quantise_model, cut_matrices, TN_EUNSUPPORTED, "wte is quantised: cut the model first"},
    {quantise_model, copy_model, TN_EUNSUPPORTED, "wte.weight is quantised"},
    {quantise_model, shard_model, TN_EUNSUPPORTED, "wte.weight is quantised"},
    {spread_sharded, quantise_model, TN_ESTATE, "\"wte\" is sharded"},
};

static void do_both(tn_group *world, void *user) {
    const struct order *o = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    spread_count = 0;
    o->first(world, &m);
    CHECK(tn_error() == TN_OK);
    o->then(world, &m);
    tn_module_finish(&m);
    while (spread_count > 0) {
        tn_spread_free(spreads[--spread_count]);
    }
}

static void test_orders(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
        assert_contains(run_failing(2, do_both, (void *)&orders[i], orders[i].status),
                        orders[i].says);
    }
}

/* ---- Plans that would give wrong gradients --------------------------------------------------- */

#define RULES(...)         \
    (const tn_tp_rule[]) { \
        __VA_ARGS__, {     \
            NULL, 0, 0     \
        }                  \
    }

typedef struct wrong_plan {
    const tn_tp_rule *rules;
    bool sequence;
    const char *says;
} wrong_plan;

static void apply_plan(tn_group *world, void *user) {
    const wrong_plan *p = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 3, false);
    tn_tensor_parallel(&m, world, TN_WITH(tn_tp, .plan = p->rules, .sequence = p->sequence));
    tn_module_finish(&m);
}

static void test_plans(void **state) {
    (void)state;
    const tn_tp_rule column = {"h.*.mlp.c_fc", TN_TP_COLUMN, 1},
                     row = {"h.*.mlp.c_proj", TN_TP_ROW, 0}, around = {"h.*.mlp", TN_TP_ENTER, 0},
                     at = {"h.*.mlp.c_fc", TN_TP_ENTER, 0};
    const wrong_plan plans[] = {
        {RULES(column, row), false, "h.0.mlp.c_fc is in 0 regions"},
        {RULES(column, row, around, at), false, "h.0.mlp.c_fc is in 2 regions"},
        {RULES({"h.*.attn", TN_TP_ENTER, 0}, {"h.*.attn.c_attn", TN_TP_COLUMN, 1}), false,
         "h.0.attn.c_attn is 3 matrices side by side"},
        {RULES(column, row, around), true, "has no style for wte"},
    };
    for (size_t i = 0; i < sizeof(plans) / sizeof(*plans); i++) {
        assert_contains(run_failing(2, apply_plan, (void *)&plans[i], TN_EVALUE), plans[i].says);
    }
    run_ok(2, apply_plan, &(wrong_plan){.rules = RULES(column, row, at)});
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

/* What a rank does, of a model on `mesh`; NULL: on no mesh yet. */
typedef struct mistake {
    const char *name, *mesh;
    void (*make)(tn_group *world, mesh_model *m);
    tn_status status;
    const char *says;
} mistake;

/* The sampler of validation was given all ranks, that of training those with other batches. */
static void validate_apart(tn_group *world, mesh_model *m) {
    tn_tensor *x = mesh_tokens(29, ROWS, 1);
    CHECK(!tn_is_inert(tn_lm_loss(m, x, x)));
    tn_module_train(m, false);
    x = mesh_tokens(29, ROWS, tn_group_rank(world));
    CHECK(tn_is_inert(tn_lm_loss(m, x, x)));
}

/* An evaluation is given all ranks. */
static void measure_with_all(tn_group *world, mesh_model *m) {
    tn_module_train(m, false);
    tn_lm_loss(m, mesh_tokens(29, ROWS, 1), mesh_tokens(29, ROWS, 1));
    tn_dataset *windows = windows_of(8);
    tn_perplexity p;
    tn_evaluate_options o = TN_WITH(tn_evaluate, .group = world);
    CHECK(tn_evaluate_perplexity(m, windows, NULL, o, &p) != TN_OK && p.tokens == 0);
    tn_dataset_free(windows);
}

/* Other prompts, after training. */
static void write_apart(tn_group *world, mesh_model *m) {
    tn_tensor *x = mesh_tokens(29, ROWS, 1);
    CHECK(!tn_is_inert(tn_lm_loss(m, x, x)));
    tn_module_train(m, false);
    const int32_t ids[] = {tn_group_rank(world), 4};
    tn_prompt prompt = {ids, 2};
    tn_generated out;
    CHECK(tn_generate(m, &prompt, 1, TN_WITH(tn_generate, .max_new = 4), &out) != TN_OK);
    tn_generated_free(&out, 1);
}

static void draw_apart(tn_group *world, mesh_model *m) {
    tn_prompt prompt = {(const int32_t[]){3, 4}, 2};
    tn_generated out;
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = 40, .seed = (uint64_t)tn_group_rank(world));
    CHECK(tn_generate(m, &prompt, 1, o, &out) != TN_OK);
    tn_generated_free(&out, 1);
}

static bool end_one_text(const tn_generated_token *token, void *user) {
    return tn_group_rank(user) != 0 || token->sequence != 0;
}

/* Only rank 0's callback ends one of two texts. */
static void stop_apart(tn_group *world, mesh_model *m) {
    const int32_t ids[] = {3, 4};
    tn_prompt prompts[] = {{ids, 2}, {ids, 1}};
    tn_generated out[2];
    tn_generate_options o =
        TN_WITH(tn_generate, .max_new = 4, .on_token = end_one_text, .user = world);
    CHECK(tn_generate(m, prompts, 2, o, out) != TN_OK);
    tn_generated_free(out, 2);
}

/* Gradients of each rank's positions are not averaged. */
static void copy_over_no_positions(tn_group *world, mesh_model *m) {
    tn_context_parallel(m, world, TN_CP_HEADS);
    CHECK(!tn_ddp(m, NULL, tn_ddp_defaults()));
}

static void shard_over_no_positions(tn_group *world, mesh_model *m) {
    tn_context_parallel(m, world, TN_CP_HEADS);
    CHECK(!tn_fsdp(m, NULL, NULL, tn_fsdp_defaults()));
}

static const mistake mistakes[] = {
    {"validation", "tp=2", validate_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"validation", "cp=2", validate_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"perplexity", "tp=2", measure_with_all, TN_EVALUE, "tn_spread_data"},
    {"perplexity", "cp=2", measure_with_all, TN_EVALUE, "tn_spread_data"},
    {"prompts", "tp=2", write_apart, TN_EMISMATCH, "has other tokens than rank 0"},
    {"seeds", "tp=2", draw_apart, TN_EMISMATCH, "seeds"},
    {"callbacks", "tp=2", stop_apart, TN_EMISMATCH, "callbacks"},
    {"ddp", NULL, copy_over_no_positions, TN_EVALUE, "\"dp cp\""},
    {"fsdp", NULL, shard_over_no_positions, TN_EVALUE, "\"shard cp\""},
};

static void makes_mistake(tn_group *world, void *user) {
    TN_SCOPE;
    const mistake *wrong = user;
    mesh_model m;
    mesh_shape shape = mesh_shape_of(false);
    mesh_init(&m, &shape, 1, false);
    tn_spread *spread = wrong->mesh ? mesh_spread(&m, world, wrong->mesh) : NULL;
    wrong->make(world, &m);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

static void test_mistakes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(*mistakes); i++) {
        const mistake *wrong = &mistakes[i];
        const char *said = run_failing(2, makes_mistake, (void *)wrong, wrong->status);
        if (!strstr(said, wrong->says)) {
            fail_msg("%s: %s", wrong->name, said);
        }
    }
}

int main(void) {
    tn_set_threads(1);
    const struct CMUnitTest tests[] = {
        TEST(test_recipes),       TEST(test_overflow_on_one_rank),
        TEST(test_dropout_masks), TEST(test_evaluation),
        TEST(test_text),          TEST(test_orders),
        TEST(test_plans),         TEST(test_mistakes),
    };
    return cmocka_run_group_tests(tests, temp_flights, temp_clean);
}
