/* Calls of a model outside its steps, on pipelines and other meshes of ranks that are threads: what
 * it returns, writes and measures is what one rank does. */
#include "models/language.h"
#include "tests/parallel/train.h"
#include "tests/support/temp.h"

enum { LAYERS = 4, ROWS = 2, WINDOWS = 7, CALLS = 3 };

static const char *const meshes[] = {"pp=2",         "pp=3",           "pp=2,chunks=2",
                                     "pp=2,dp=2",    "pp=2,shard=2",   "pp=2,shard=2,stage=1",
                                     "pp=4,shard=2", "pp=2,tp=2",      "pp=2,tp=2,sequence",
                                     "pp=2,cp=2",    "pp=2,cp=2,keys", "pp=2,tp=2,shard=2",
                                     "tp=2",         "tp=4,sequence",  "cp=2",
                                     "cp=4,keys",    "tp=2,shard=2",   "tp=2,dp=2",
                                     "tp=2,cp=2"};
enum { MESHES = sizeof(meshes) / sizeof(*meshes) };

/* The bits of one rank: nothing is summed in another order. */
static bool is_exact(const char *mesh) {
    return !strstr(mesh, "tp=") && !strstr(mesh, "cp=");
}

static mesh_shape deep_shape(bool llama) {
    mesh_shape s = mesh_shape_of(llama);
    s.layers = LAYERS;
    s.dropout = llama ? 0 : 0.1;
    return s;
}

/* Weights larger than a new model's, so that the likeliest token is so by far. */
static bool enlarge_weights(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    if (tn_ndim(*entry->field) == 2) { tn_mul_scalar_(*entry->field, *(const double *)user); }
    return true;
}

/* Rank 0's weights are used. */
static void init_model(mesh_model *m, tn_group *world, bool llama) {
    mesh_shape shape = deep_shape(llama);
    mesh_init(m, &shape, 3 + (uint64_t)tn_group_rank(world), false);
    tn_module_each(m, (tn_walk){0}, enlarge_weights, &(double){12});
}

/* ---- Text ------------------------------------------------------------------------------------ */

typedef enum model_form { IN_F32, IN_BF16, AS_BYTES } model_form;

typedef struct text {
    const char *on; /* NULL: one rank */
    bool llama;
    model_form form;
    double temperature;
    int32_t ids[2][MESH_WRITTEN];
} text;

/* Two prompts beyond the context, and again: the caches are gone in between. */
static void write_text(tn_group *world, void *user) {
    text t = *(text *)user;
    int32_t again[2][MESH_WRITTEN];
    mesh_model m;
    init_model(&m, world, t.llama);
    if (t.form == IN_BF16) { tn_module_set_precision(&m, tn_precision_defaults()); }
    tn_spread *spread = mesh_spread(&m, world, t.on ? t.on : "dp=1");
    if (t.form == AS_BYTES) { CHECK(tn_quantize(&m) == TN_OK); }
    mesh_write(&m, t.temperature, t.ids);
    mesh_write(&m, t.temperature, again);
    if (t.on) {
        CHECK(memcmp(t.ids, ((text *)user)->ids, sizeof(t.ids)) == 0);
    } else {
        *(text *)user = t;
    }
    CHECK(memcmp(t.ids, again, sizeof(again)) == 0);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

static void expect_text(text t) {
    run_ok(1, write_text, &t);
    for (int k = 0; k < MESHES; k++) {
        t.on = meshes[k];
        bool whole = t.form == AS_BYTES && !strstr(t.on, "tp="); /* matrices are not cut */
        if (t.form == IN_F32 || ((is_exact(t.on) || whole) && !strstr(t.on, "shard"))) {
            run_ok(mesh_ranks(t.on), write_text, &t);
        }
    }
}

TEST(test_text) {
    for (int i = 0; i < 12; i++) {
        expect_text((text){.llama = i & 1, .temperature = i & 2 ? 0.7 : 0, .form = i / 4});
    }
}

/* ---- What a call returns --------------------------------------------------------------------- */

typedef struct outputs {
    const char *on; /* NULL: one rank */
    bool llama, training;
    float logits[CALLS][ROWS * MESH_LENGTH * 29];
    int first; /* of the logits that are whole */
    float loss;
    uint64_t drawn; /* random numbers */
} outputs;

/* The logits of some tokens at once; of the same in two calls with caches, of which the second is
 * repeated. */
static void call_model(mesh_model *m, outputs *o) {
    TN_NO_GRAD;
    tn_tensor *x = mesh_tokens(29, ROWS, 1), *rest = tn_narrow(x, 1, 3, 5);
    tn_tensor *y = tn_call(m, x);
    o->first = tn_size(y, 1) < MESH_LENGTH; /* of cp: this rank's positions */
    CHECK(o->first > 0 || tn_copy_out(y, o->logits[0]) == TN_OK);
    o->loss = (float)tn_item(tn_lm_loss(m, x, mesh_tokens(29, ROWS, 2)));
    o->drawn = tn_default_generator()->call;
    tn_module_train(m, false);
    tn_attention_cache_options cache = {.batch = ROWS, .length = MESH_LENGTH};
    CHECK(tn_cache_begin(m, cache) == TN_OK);
    CHECK(!tn_is_inert(tn_call(m, tn_narrow(x, 1, 0, 3))));
    CHECK(tn_copy_out(tn_call(m, rest), o->logits[1]) == TN_OK);
    CHECK(tn_cache_rewind(m, 3) == TN_OK);
    CHECK(tn_copy_out(tn_call(m, rest), o->logits[2]) == TN_OK);
    tn_cache_end(m);
}

static double logits_off(const outputs *a, const outputs *b) {
    double most = fabsf(a->loss - b->loss);
    for (int k = a->first; k < CALLS; k++) {
        for (int i = 0; i < ROWS * MESH_LENGTH * 29; i++) {
            most = fmax(most, fabsf(a->logits[k][i] - b->logits[k][i]));
        }
    }
    return most;
}

/* All ranks get the same; in f32 without sums over ranks, the bits of one rank. */
static void compare_outputs(tn_group *world, void *user) {
    TN_SCOPE;
    const outputs *want = user;
    outputs o = {.on = want->on, .llama = want->llama, .training = want->training};
    mesh_model m;
    init_model(&m, world, o.llama);
    tn_spread *spread = mesh_spread(&m, world, o.on ? o.on : "dp=1");
    tn_module_train(&m, o.training);
    call_model(&m, &o);
    if (!o.on) {
        CHECK(o.loss > 0 && (o.drawn > 0) == (o.training && !o.llama));
        *(outputs *)user = o;
    }
    double off = logits_off(&o, want);
    CHECK(off <= (o.on && !is_exact(o.on) ? 2e-5 : 0));
    CHECK(o.drawn == want->drawn);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

/* In training dropout draws what one rank would draw, where no others have other data. */
TEST(test_outputs) {
    for (int i = 0; i < 4; i++) {
        outputs o = {.llama = i & 1, .training = i & 2};
        run_ok(1, compare_outputs, &o);
        for (int k = 0; k < MESHES; k++) {
            o.on = meshes[k];
            if (!o.training || (is_exact(o.on) && !strpbrk(o.on, "ds"))) {
                run_ok(mesh_ranks(o.on), compare_outputs, &o);
            }
        }
    }
}

/* A model of one's own: its parts' values are of other shapes than its input. */
static void call_list(tn_group *world, void *user) {
    TN_SCOPE;
    tn_seed(3 + (uint64_t)tn_group_rank(world));
    tn_sequential *m = TN_SEQUENTIAL(tn_linear_new(6, 4), TN_FN(tn_relu), tn_linear_new(4, 3));
    CHECK(tn_pipeline_new(m, world, tn_pipeline_defaults()));
    TN_NO_GRAD;
    float y[6];
    CHECK(tn_copy_out(tn_call(m, tn_reshape(tn_arange(0, 12, 1, TN_F32), TN_DIMS(2, 6))), y) ==
          TN_OK);
    if (tn_group_size(world) == 1) { memcpy(user, y, sizeof(y)); }
    CHECK(memcmp(user, y, sizeof(y)) == 0 && y[0] != y[3]);
    tn_module_free(m);
}

TEST(test_list) {
    float y[6] = {0};
    run_ok(1, call_list, y);
    run_ok(3, call_list, y);
}

/* ---- Measuring ------------------------------------------------------------------------------- */

enum { LENGTHS = 3 };
static const int64_t lengths[LENGTHS] = {8, 5, 1}; /* not a multiple of cp's ranks either */

typedef struct evaluation {
    const char *on; /* NULL: one rank */
    bool llama;
    tn_perplexity perplexity[LENGTHS];
    double loss, accuracy, top; /* of tn_evaluate */
} evaluation;

static tn_dataset *windows_of(int64_t length) {
    return tn_tensor_dataset(tn_contiguous(tn_narrow(mesh_tokens(29, WINDOWS, 6), 1, 0, length)),
                             tn_contiguous(tn_narrow(mesh_tokens(29, WINDOWS, 7), 1, 0, length)));
}

static void evaluate_pass(void *m, tn_group *data, evaluation *e) {
    tn_metrics *metrics = tn_metrics_new(29, 3);
    tn_loader *loader = tn_loader_new(windows_of(MESH_LENGTH),
                                      tn_distributed_sampler(data, tn_sequential_sampler(), false),
                                      TN_WITH(tn_loader, .batch = 2, .threads = 0));
    CHECK(tn_evaluate(m, loader, tn_cross_entropy, data, metrics) == TN_OK);
    e->loss = tn_metrics_loss(metrics);
    e->accuracy = tn_metrics_accuracy(metrics);
    e->top = tn_metrics_top(metrics);
    tn_metrics_free(metrics);
    tn_loader_free(loader);
}

/* Between steps, which it does not disturb. */
static void evaluate_model(tn_group *world, void *user) {
    TN_SCOPE;
    evaluation e = *(evaluation *)user;
    mesh_model m;
    init_model(&m, world, e.llama);
    tn_spread *spread = mesh_spread(&m, world, e.on ? e.on : "dp=1");
    tn_group *data = tn_spread_data(spread);
    tn_loader *loader = mesh_loader(data, ROWS);
    double before = e.on ? tn_spread_loss(spread, loader, 2) : 0;
    for (int i = 0; i < LENGTHS; i++) {
        tn_dataset *windows = windows_of(lengths[i]);
        CHECK(tn_evaluate_perplexity(&m, windows, NULL,
                                     TN_WITH(tn_evaluate, .batch = 3, .group = data),
                                     &e.perplexity[i]) == TN_OK);
        tn_dataset_free(windows);
    }
    evaluate_pass(&m, data, &e);
    tn_loader_seek(loader, (tn_loader_place){0, 0});
    CHECK(!e.on || tn_spread_loss(spread, loader, 2) == before);
    CHECK(m.base.training && fabs(tn_group_mean(world, e.loss, 1) / e.loss - 1) < 1e-12);
    if (tn_group_rank(world) == 0) { *(evaluation *)user = e; }
    tn_loader_free(loader);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_evaluation) {
    for (int llama = 0; llama < 2; llama++) {
        evaluation alone = {.llama = llama};
        run_ok(1, evaluate_model, &alone);
        for (int k = 0; k < MESHES; k++) {
            evaluation e = {.on = meshes[k], .llama = llama};
            run_ok(mesh_ranks(e.on), evaluate_model, &e);
            for (int i = 0; i < LENGTHS; i++) {
                const tn_perplexity *is = &e.perplexity[i];
                double off = fabs(is->loss - alone.perplexity[i].loss);
                assert_true(off <= (is_exact(e.on) ? 0 : 1e-6));
                assert_true(is->windows == WINDOWS && is->tokens == WINDOWS * lengths[i]);
            }
            assert_true(fabs(e.loss - alone.loss) <= 1e-6 && e.accuracy == alone.accuracy);
            assert_true(e.top == alone.top && e.top > e.accuracy && e.accuracy > 0);
        }
    }
}

/* ---- Between steps --------------------------------------------------------------------------- */

typedef struct course {
    const char *mesh;
    bool between; /* also writes, measures and calls between steps */
    double losses[CALLS];
    int32_t ids[CALLS][2][MESH_WRITTEN];
} course;

/* Whole-block recompute, dropout: all that a step puts off, holds or draws. */
static void train_course(tn_group *world, void *user) {
    course c = *(course *)user;
    mesh_model m;
    init_model(&m, world, false);
    tn__lm_recompute_blocks(&m);
    tn_spread *spread = mesh_spread(&m, world, c.mesh);
    tn_loader *loader = mesh_loader(tn_spread_data(spread), ROWS);
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.01));
    for (int step = 0; step < CALLS && !tn_error(); step++) {
        c.losses[step] = tn_spread_step(spread, loader, 4, NULL);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (c.between) {
            tn_generator before = *tn_default_generator();
            mesh_write(&m, 0.7, c.ids[step]);
            TN_NO_GRAD;
            CHECK(tn_item(tn_lm_loss(&m, mesh_tokens(29, ROWS, 1), mesh_tokens(29, ROWS, 2))) > 0);
            *tn_default_generator() = before;
        }
    }
    if (tn_group_rank(world) == 0) { *(course *)user = c; }
    tn_loader_free(loader);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

/* Calls between steps change no step; and a backward in halves trains to the same texts. */
TEST(test_between) {
    static const char *const pairs[][2] = {
        /* the second: backward is not in halves */
        {"pp=2,zb_h1", "pp=2"},
        {"pp=2,zb_h1,shard=2,stage=3", "pp=2,shard=2,stage=3"},
        {"pp=3,zb_h1,dp=2", "pp=3,dp=2"},
    };
    for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
        course alone = {.mesh = pairs[i][0]}, both = {.mesh = pairs[i][0], .between = true};
        course whole = {.mesh = pairs[i][1], .between = true};
        run_ok(mesh_ranks(pairs[i][0]), train_course, &alone);
        run_ok(mesh_ranks(pairs[i][0]), train_course, &both);
        run_ok(mesh_ranks(pairs[i][0]), train_course, &whole);
        assert_memory_equal(alone.losses, both.losses, sizeof(both.losses));
        assert_memory_equal(whole.losses, both.losses, sizeof(both.losses));
        assert_memory_equal(whole.ids, both.ids, sizeof(both.ids));
        assert_true(both.losses[0] != both.losses[1]);
    }
}
