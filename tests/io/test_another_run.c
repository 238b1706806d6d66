/* Checkpoints of another run: errors name what differs in options, modules, optimisers and data,
 * and with other_run the program continues anyway. */
#define _GNU_SOURCE
#include "tern/tern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/digest.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

/* ---- A run ----------------------------------------------------------------------------------- */

/* What a training run is made of, apart from its state. */
typedef struct recipe {
    tn_gpt_options gpt;
    tn_adamw_options adamw;
    bool bf16;
    const char *text;
} recipe;

typedef struct gpt_run {
    tn_gpt model;
    tn_optim *optim;
    tn_loader *loader;
} gpt_run;

/* What may be another than in the saved run, and what the error then says. */
enum { NOTHING, HEADS, DROPOUT, ACTIVATION, PRECISION, BETA, GROUPS, TEXT, CHANGES };
static const char *const sentences[CHANGES] = {
    [HEADS] = "gpt: heads was 2 but is 4; h.0.attn: heads was 2 but is 4",
    [DROPOUT] = "gpt: dropout was 0 but is 0.1; drop: p was 0 but is 0.1",
    [ACTIVATION] = "gpt: activation was gelu_tanh but is relu",
    [PRECISION] = "gpt: param was not set but is f32; gpt: compute was not set but is bf16",
    [BETA] = "adamw: beta2 was 0.999 but is 0.95",
    [GROUPS] = "group 0 of the optimiser: parameters was 10 but is 18",
    [TEXT] = "the data: digest was ",
};

static bool match_matrices(const tn_entry *entry, void *user) {
    return !tn_match_vectors(entry, user);
}

static recipe recipe_with(int change) {
    recipe r = {.gpt = tn_gpt_defaults(), .adamw = tn_adamw_defaults()};
    r.gpt.vocab = 128;
    r.gpt.context = 4;
    r.gpt.layers = 2;
    r.gpt.width = 8;
    r.gpt.heads = change == HEADS ? 4 : 2;
    r.gpt.dropout = change == DROPOUT ? 0.1 : 0;
    r.gpt.activation = change == ACTIVATION ? TN_ACT_RELU : r.gpt.activation;
    r.bf16 = change == PRECISION;
    r.adamw.beta2 = change == BETA ? 0.95 : r.adamw.beta2;
    r.adamw.no_decay = change == GROUPS ? match_matrices : tn_match_vectors;
    r.text = change == TEXT ? "o be or not to bee" : "to be or not to be";
    return r;
}

static void gpt_run_open(gpt_run *r, const recipe *p, uint64_t seed) {
    int32_t tokens[64];
    int64_t count = (int64_t)strlen(p->text);
    for (int64_t i = 0; i < count; i++) {
        tokens[i] = p->text[i];
    }
    tn_seed(seed);
    tn_gpt_init(&r->model, p->gpt);
    if (p->bf16) { tn_module_set_precision(&r->model, tn_precision_defaults()); }
    r->optim = tn_adamw(&r->model, p->adamw);
    tn_loader_options o = TN_WITH(tn_loader, .epochs = 0);
    r->loader = tn_loader_new(tn_token_dataset(tokens, count, 4), tn_random_sampler(1), o);
    assert_int_equal(tn_error(), TN_OK);
}

static void gpt_run_close(gpt_run *r) {
    tn_loader_free(r->loader);
    tn_optim_free(r->optim);
    tn_module_finish(&r->model);
}

static tn_checkpoint gpt_run_checkpoint(gpt_run *r) {
    return (tn_checkpoint){.model = &r->model, .optim = r->optim, .loader = r->loader, .step = 5};
}

/* A run whose names and shapes match, but which is not the saved one, is refused, and the error
 * says what differs. */
PLAIN_TEST(test_another_run) {
    const char *path = temp_path("run");
    recipe usual = recipe_with(NOTHING);
    gpt_run saved;
    gpt_run_open(&saved, &usual, 1);
    tn_checkpoint c = gpt_run_checkpoint(&saved);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    for (int i = NOTHING + 1; i < CHANGES; i++) {
        TN_SCOPE;
        recipe r = recipe_with(i);
        gpt_run run;
        gpt_run_open(&run, &r, 2);
        tn_tensor *before = tn_copy(tn_detach(run.model.stem.wte.weight));
        c = gpt_run_checkpoint(&run);
        c.step = 77;
        if (tn_checkpoint_load(&c, path) != TN_EMISMATCH) {
            fail_msg("went on: %s (%s)", sentences[i], tn_error_message());
        }
        assert_error(TN_EMISMATCH, sentences[i]);
        assert_int_equal(c.step, 77);
        assert_true(tn_equal(before, tn_detach(run.model.stem.wte.weight)));
        gpt_run_close(&run);
    }
    gpt_run again;
    gpt_run_open(&again, &usual, 2);
    c = gpt_run_checkpoint(&again);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    gpt_run_close(&again);
    gpt_run_close(&saved);
}

/* What is logged, line by line. */
typedef struct warnings {
    int count;
    char text[4096];
} warnings;

static void note_warning(tn_log_level level, const char *message, void *user) {
    warnings *w = user;
    size_t used = strlen(w->text);
    w->count += level == TN_LOG_WARN;
    snprintf(w->text + used, sizeof(w->text) - used, "%s\n", message);
}

static int count_occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++) {
        count++;
    }
    return count;
}

/* With other_run a program continues anyway; each difference is one warning. */
TEST(test_goes_on_all_the_same) {
    const char *path = temp_path("run");
    recipe usual = recipe_with(NOTHING), other = recipe_with(HEADS);
    gpt_run saved, run;
    gpt_run_open(&saved, &usual, 1);
    tn_loader_seek(saved.loader, (tn_loader_place){.epoch = 3, .index = 13});
    tn_checkpoint c = gpt_run_checkpoint(&saved);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    other.adamw.beta2 = 0.95;
    other.text = "to be or not";
    gpt_run_open(&run, &other, 2);
    warnings w = {0};
    tn_log_to(note_warning, TN_LOG_WARN, &w);
    c = gpt_run_checkpoint(&run);
    c.other_run = true;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    tn_log_to(NULL, TN_LOG_WARN, NULL);
    assert_int_equal(w.count, 6);
    static const char *const lines[] = {"run: gpt: heads was 2 but is 4\n",
                                        "run: h.0.attn: heads was 2 but is 4\n",
                                        "run: h.1.attn: heads was 2 but is 4\n",
                                        "run: adamw: beta2 was 0.999 but is 0.95\n",
                                        "run: the loader: examples was 14 but is 8\n",
                                        "run: the data: digest was "};
    for (int i = 0; i < 6; i++) {
        if (count_occurrences(w.text, lines[i]) != 1) {
            fail_msg("\"%s\" is not once in\n%s", lines[i], w.text);
        }
    }
    assert_int_equal(c.step, 5);
    assert_true(
        tn_equal(tn_detach(run.model.stem.wte.weight), tn_detach(saved.model.stem.wte.weight)));
    /* the shorter text has no batch 13 */
    assert_int_equal(tn_loader_where(run.loader).epoch, 3);
    assert_int_equal(tn_loader_where(run.loader).index, 0);

    /* the next save identifies this run */
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    c.other_run = false;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);

    /* what does not fit is still an error */
    other.gpt.width = 16;
    gpt_run wide;
    gpt_run_open(&wide, &other, 3);
    c = gpt_run_checkpoint(&wide);
    c.other_run = true;
    assert_fails(tn_checkpoint_load(&c, path), TN_ESHAPE, "");
    gpt_run_close(&wide);
    gpt_run_close(&run);
    gpt_run_close(&saved);
}

/* The text is for people to read, and for later versions of Tern. */
PLAIN_TEST(test_the_description) {
    const char *path = temp_path("run");
    recipe r = recipe_with(PRECISION);
    r.gpt.layers = 1;
    gpt_run run;
    gpt_run_open(&run, &r, 1);
    tn_checkpoint c = gpt_run_checkpoint(&run);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_string_equal(tn_safetensors_metadata(f, "model"),
                        "{\".\":{\"kind\":\"gpt\",\"options\":{\"vocab\":128,\"context\":4,"
                        "\"layers\":1,\"heads\":2,\"width\":8,\"bias\":true,\"activation\":"
                        "\"gelu_tanh\"},\"training\":{\"dropout\":0,\"param\":\"f32\","
                        "\"compute\":\"bf16\",\"reduce\":\"f32\"}},"
                        "\"wte\":{\"kind\":\"embedding\"},"
                        "\"wpe\":{\"kind\":\"embedding\"},"
                        "\"drop\":{\"kind\":\"dropout\",\"training\":{\"p\":0}},"
                        "\"h.0\":{\"kind\":\"block\"},"
                        "\"h.0.ln_1\":{\"kind\":\"layer_norm\",\"options\":{\"eps\":1e-05}},"
                        "\"h.0.attn\":{\"kind\":\"self_attention\",\"options\":{\"heads\":2,"
                        "\"causal\":true}},"
                        "\"h.0.attn.c_attn\":{\"kind\":\"linear\"},"
                        "\"h.0.attn.c_proj\":{\"kind\":\"linear\"},"
                        "\"h.0.attn.drop\":{\"kind\":\"dropout\",\"training\":{\"p\":0}},"
                        "\"h.0.ln_2\":{\"kind\":\"layer_norm\",\"options\":{\"eps\":1e-05}},"
                        "\"h.0.mlp\":{\"kind\":\"mlp\",\"options\":{\"activation\":"
                        "\"gelu_tanh\"}},"
                        "\"h.0.mlp.c_fc\":{\"kind\":\"linear\"},"
                        "\"h.0.mlp.c_proj\":{\"kind\":\"linear\"},"
                        "\"h.0.mlp.drop\":{\"kind\":\"dropout\",\"training\":{\"p\":0}},"
                        "\"ln_f\":{\"kind\":\"layer_norm\",\"options\":{\"eps\":1e-05}},"
                        "\"lm_head\":{\"kind\":\"linear\"}}");
    assert_string_equal(tn_safetensors_metadata(f, "optim.options"),
                        "{\"beta1\":0.9,\"beta2\":0.999,\"eps\":1e-08}");
    assert_string_equal(tn_safetensors_metadata(f, "loader.data"),
                        "{\"x\":\"i64[4]\",\"y\":\"i64[4]\",\"digest\":"
                        "\"b95f0bb889792b3ad531045c47c01750\"}");
    tn_safetensors_close(f);
    gpt_run_close(&run);
}

/* A norm alone, with SGD and a scale. */
typedef struct norm_run {
    double eps;
    tn_sgd_options sgd;
    tn_scaler_options scaler;
} norm_run;

static tn_status norm_run_pass(const norm_run *r, bool save, const char *path) {
    tn_rms_norm norm;
    tn_norm_options o = TN_WITH(tn_norm, .eps = r->eps);
    tn_rms_norm_init(&norm, 3, o);
    tn_optim *optim = tn_sgd(&norm, r->sgd);
    tn_scaler *scaler = tn_scaler_new(r->scaler);
    tn_checkpoint c = {.model = &norm, .optim = optim, .scaler = scaler};
    tn_status status = save ? tn_checkpoint_save(&c, path) : tn_checkpoint_load(&c, path);
    tn_scaler_free(scaler);
    tn_optim_free(optim);
    tn_module_finish(&norm);
    return status;
}

PLAIN_TEST(test_other_optimisers_and_norms) {
    const char *path = temp_path("norm");
    norm_run usual = {.eps = 1e-5, .sgd = tn_sgd_defaults(), .scaler = tn_scaler_defaults()};
    usual.sgd.momentum = 0.9;
    assert_int_equal(norm_run_pass(&usual, true, path), TN_OK);
    norm_run r = usual;
    r.sgd.lr = 7; /* state */
    r.sgd.weight_decay = 0.3;
    r.scaler.scale = 2;
    assert_int_equal(norm_run_pass(&r, false, path), TN_OK);
    r.eps = nextafter(usual.eps, 1);
    r.sgd.momentum = 0.8;
    r.sgd.nesterov = true;
    r.scaler.interval = 5;
    assert_fails(norm_run_pass(&r, false, path), TN_EMISMATCH,
                 "norm: rms_norm: eps was 1e-05 but is 1.0000000000000003e-05; sgd: "
                 "momentum was 0.9 but is 0.8; sgd: nesterov was false but is true; the "
                 "scaler: interval was 2000 but is 5 (");
    r = usual;
    r.sgd.dampening = 6e-4 * 0.1; /* in full 5.9999999999999995e-05 */
    assert_fails(norm_run_pass(&r, false, path), TN_EMISMATCH,
                 "sgd: dampening was 0 but is 6e-05 (tn_checkpoint.other_run: ");
}

/* Layers with sizes that no weight shows. */
static tn_sequential *sized_net(int64_t width) {
    tn_interpolate_options size = TN_WITH(tn_interpolate, .size = TN_DIMS(4, width));
    return TN_SEQUENTIAL(tn_conv2d_new(1, 1, 1),
                         tn_max_pool2d_new_with(TN_DIMS(2, width), tn_pool_defaults()),
                         tn_adaptive_avg_pool2d_new(TN_DIMS(width)), tn_upsample_new_with(size));
}

PLAIN_TEST(test_other_sizes) {
    const char *path = temp_path("sizes");
    tn_sequential *saved = sized_net(6), *same = sized_net(6), *other = sized_net(8);
    assert_int_equal(tn_save(saved, path), TN_OK);
    assert_int_equal(tn_load(same, path), TN_OK);
    assert_fails(tn_load(other, path), TN_EMISMATCH,
                 "1: kernel was 2x6 but is 2x8; 1: stride was 2x6 but is 2x8; 2: size "
                 "was 6 but is 8; 3: size was 4x6 but is 4x8");
    tn_module_free(saved);
    tn_module_free(same);
    tn_module_free(other);
}

/* ---- Fields of your own ---------------------------------------------------------------------- */

/* A module with options, which come from a line of a test's table. */
typedef struct pool_options {
    int window;
    const char *kind;
    double noise;
    bool free;
} pool_options;

typedef struct pool {
    tn_module base;
    pool_options options;
} pool;

static const tn_field pool_fields[] = {
    TN_FIELD_OPTION(pool, window),
    TN_FIELD_OPTION(pool, kind),
    TN_FIELD_OPTION(pool, noise, .training = true),
    TN_FIELD_OPTION(pool, free, .optional = true),
    {0},
};
static const tn_field other_fields[] = {
    TN_FIELD_OPTION(pool, kind),
    TN_FIELD_AS("windows", pool, options.window),
    {0},
};

static tn_tensor *pool_forward(tn_module *self, tn_tensor *x) {
    return x;
}

/* A model that an optimiser accepts: a linear layer, and one with options. */
typedef struct pooled {
    tn_sequential base;
    tn_linear linear;
    pool pool;
    tn_optim *optim;
} pooled;

static void pooled_open(pooled *p, const char *kind, const tn_field *fields, pool_options o) {
    memset(p, 0, sizeof(*p));
    tn_sequential_init(&p->base);
    tn_linear_init(&p->linear, 2, 2, tn_linear_defaults());
    tn_module_init(&p->pool, kind, pool_forward);
    p->pool.base.fields = fields;
    p->pool.options = o;
    tn_sequential_add(&p->base, &p->linear);
    tn_sequential_add(&p->base, &p->pool);
    p->optim = tn_sgd(&p->base, tn_sgd_defaults());
    assert_int_equal(tn_error(), TN_OK);
}

static void pooled_close(pooled *p) {
    tn_optim_free(p->optim);
    tn_module_finish(&p->base);
}

static void pooled_save(const char *kind, pool_options o, const char *path) {
    pooled p;
    pooled_open(&p, kind, pool_fields, o);
    tn_checkpoint c = {.model = &p.base, .optim = p.optim};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    pooled_close(&p);
}

static void check_pooled(const char *kind, const tn_field *fields, pool_options o, const char *path,
                         const char *told) {
    pooled p;
    pooled_open(&p, kind, fields, o);
    tn_checkpoint c = {.model = &p.base, .optim = p.optim};
    tn_status status = tn_checkpoint_load(&c, path);
    if (told) {
        assert_error(TN_EMISMATCH, told);
    } else if (status != TN_OK) {
        fail_msg("%s", tn_error_message());
    }
    pooled_close(&p);
}

PLAIN_TEST(test_modules_of_ones_own) {
    const char *path = temp_path("pooled");
    const tn_field *f = pool_fields;
    pooled_save("pool", (pool_options){3, "max", 0.5, false}, path);
    check_pooled("pool", f, (pool_options){3, "max", 0.5, false}, path, NULL);
    check_pooled("pool", f, (pool_options){3, "mean", 0.5, false}, path,
                 "1: kind was max but is mean");
    check_pooled("pool", f, (pool_options){3, "max", 0.5, true}, path,
                 "1: free was not set but is true");
    check_pooled("pond", f, (pool_options){3, "max", 0.5, false}, path,
                 "1: was a pool but is a pond");
    check_pooled("pool", f, (pool_options){33, "maximal", 0.55, false}, path,
                 "1: window was 3 but is 33; 1: kind was max but is maximal; 1: noise was 0.5 but "
                 "is 0.55");
    check_pooled("pool", other_fields, (pool_options){3, "max", 0.5, false}, path,
                 "1: windows was not set but is 3; 1: window was 3 but is not set; 1: noise was "
                 "0.5 but is not set");
    check_pooled("pool", NULL, (pool_options){0}, path, "1: window was 3 but is not set");
    /* quotes and newlines stay in the text, and no control characters reach a terminal */
    const pool_options wild = {1, "\"},\n2: linear\xff\x1b[2J", NAN, true};
    pooled_save("po\"\nol", wild, path);
    check_pooled("po\"\nol", f, wild, path, NULL);
    check_pooled("po\"\nol", f, (pool_options){1, "a", NAN, true}, path,
                 "1: kind was \"},?2: linear? but is a");
    check_pooled("po\"\nol", f, (pool_options){1, wild.kind, INFINITY, true}, path,
                 "1: noise was nan but is inf");

    static char large[100000];
    memset(large, 'x', sizeof(large) - 1);
    pooled_save("pool", (pool_options){1, large, 0, false}, path);
    check_pooled("pool", f, (pool_options){1, large, 0, false}, path, NULL);
    large[sizeof(large) - 2] = 'y';
    check_pooled("pool", f, (pool_options){1, large, 0, false}, path, "1: kind was xxx");
}

/* A dataset of your own. */
typedef struct numbers {
    tn_dataset base;
    int version;
    tn_digest digest;
    tn_status status; /* of making the digest */
    bool says;
} numbers;

static const tn_field numbers_fields[] = {
    TN_FIELD(numbers, version), TN_FIELD(numbers, digest), {0}};

static tn_status numbers_get(tn_dataset *self, tn_example e, void *x, void *y) {
    *(float *)x = (float)e.index;
    return TN_OK;
}

static tn_status numbers_digest(tn_dataset *self, char text[33]) {
    const numbers *n = (const numbers *)self;
    strcpy(text, "abc");
    return n->says ? tn_raise(n->status, "a file is gone") : n->status;
}

static tn_loader *open_numbers(numbers *n, const tn_field *fields) {
    *n = (numbers){.base = {.kind = "numbers",
                            .size = 9,
                            .x_dims = TN_DIMS(),
                            .y_dims = {.ndim = -1},
                            .x_dtype = TN_F32,
                            .get = numbers_get,
                            .digest = numbers_digest,
                            .fields = fields},
                   .version = 3};
    return tn_loader_new(&n->base, tn_sequential_sampler(), tn_loader_defaults());
}

PLAIN_TEST(test_data_of_ones_own) {
    const char *path = temp_path("data");
    numbers n;
    tn_checkpoint c = {.loader = open_numbers(&n, numbers_fields)};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    n.version = 4;
    assert_fails(tn_checkpoint_load(&c, path), TN_EMISMATCH, "the data: version was 3 but is 4");
    n.base.x_dtype = TN_I32;
    n.version = 3;
    assert_fails(tn_checkpoint_load(&c, path), TN_EMISMATCH, "the data: x was f32[] but is i32[]");
    n.status = TN_EIO; /* the digest was made before */
    n.base.x_dtype = TN_F32;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    for (int says = 0; says < 2; says++) {
        tn_loader_free(c.loader);
        c.loader = open_numbers(&n, numbers_fields);
        n.status = TN_EIO;
        n.says = says;
        assert_fails(tn_checkpoint_load(&c, path), TN_EIO,
                     says ? "a file is gone" : "no digest of the dataset \"numbers\"");
        assert_fails(tn_checkpoint_save(&c, path), TN_EIO, "");
    }
    tn_loader_free(c.loader);
    c.loader = open_numbers(&n, NULL); /* a dataset without fields is fine, but no wildcard */
    assert_fails(tn_checkpoint_load(&c, path), TN_EMISMATCH,
                 "the data: version was 3 but is not set");
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    tn_loader_free(c.loader);
}

/* A loader of sequences with this sampler and padding. */
static tn_loader *open_padded(tn_sampler s, double pad, int64_t batch) {
    tn_tensor *x[] = {tn_ones(TN_DIMS(2), TN_F32), tn_ones(TN_DIMS(5), TN_F32),
                      tn_ones(TN_DIMS(3), TN_F32)};
    tn_loader_options o = TN_WITH(tn_loader, .batch = batch, .x_pad = pad);
    return tn_loader_new(tn_sequence_dataset(x, NULL, 3), s, o);
}

/* Other weights, lengths or padding make another run. */
TEST(test_samplers_with_tables) {
    const char *path = temp_path("order");
    tn_tensor *weights = TN_FROM(((double[]){1, 2, 3}), TN_DIMS(3), TN_F64);
    tn_tensor *lengths = TN_FROM(((int64_t[]){2, 5, 3}), TN_DIMS(3), TN_I64);
    tn_loader *loaders[] = {
        open_padded(tn_weighted_sampler(weights, 9, 1), 0, 1),
        open_padded(tn_weighted_sampler(weights, 9, 1), 0, 1),
        open_padded(tn_weighted_sampler(weights, 8, 1), 0, 1),
        open_padded(tn_weighted_sampler(tn_rsub_scalar(weights, 4), 9, 1), 0, 1),
        open_padded(tn_weighted_sampler(weights, 9, 1), -1, 1),
        open_padded(tn_bucket_sampler(lengths, 1, 1, 1), 0, 1),
        open_padded(tn_bucket_sampler(lengths, 1, 1, 1), 0, 1),
        open_padded(tn_bucket_sampler(lengths, 1, 2, 1), 0, 1),
        open_padded(tn_bucket_sampler(lengths, 2, 1, 1), 0, 2),
        open_padded(tn_bucket_sampler(tn_neg(lengths), 1, 1, 1), 0, 1),
    };
    enum { LOADERS = sizeof(loaders) / sizeof(*loaders), SECOND = 5 };
    for (int first = 0; first < LOADERS; first += SECOND) {
        tn_batch b;
        assert_true(tn_loader_next(loaders[first], &b));
        assert_int_equal(tn_checkpoint_save(&(tn_checkpoint){.loader = loaders[first]}, path),
                         TN_OK);
        for (int i = 0; i < LOADERS; i++) {
            tn_checkpoint c = {.loader = loaders[i]};
            bool same = i == first || i == first + 1;
            tn_loader_seek(loaders[i], (tn_loader_place){0, 0});
            assert_int_equal(tn_checkpoint_load(&c, path), same ? TN_OK : TN_EMISMATCH);
            assert_int_equal(tn_loader_where(loaders[i]).index, same);
            tn_error_clear();
        }
    }
    for (int i = 0; i < LOADERS; i++) {
        tn_loader_free(loaders[i]);
    }
}

/* Weights of a network with other heads are useless; options of training alone may differ. */
TEST(test_weights_of_another_network) {
    const char *path = temp_path("weights"), *run = temp_path("run");
    recipe usual = recipe_with(NOTHING);
    gpt_run saved;
    gpt_run_open(&saved, &usual, 1);
    assert_int_equal(tn_save(&saved.model, path), TN_OK);
    tn_checkpoint c = gpt_run_checkpoint(&saved);
    assert_int_equal(tn_checkpoint_save(&c, run), TN_OK);
    for (int i = NOTHING; i < CHANGES; i++) {
        recipe r = recipe_with(i);
        bool differs = i == HEADS || i == ACTIVATION;
        gpt_run other;
        gpt_run_open(&other, &r, 2);
        for (int part = 0; part < 2; part++) { /* a file of weights, a run's weights */
            tn_tensor *before = tn_copy(tn_detach(other.model.stem.wte.weight));
            c = (tn_checkpoint){.model = &other.model, .partial = true};
            tn_status status = part ? tn_checkpoint_load(&c, run) : tn_load(&other.model, path);
            assert_int_equal(status, differs ? TN_EMISMATCH : TN_OK);
            if (differs) {
                assert_error(TN_EMISMATCH, sentences[i]);
                assert_true(tn_equal(before, tn_detach(other.model.stem.wte.weight)));
            }
        }
        gpt_run_close(&other);
    }
    /* the other way round: the fields are the program's */
    gpt_run other;
    gpt_run_open(&other, &usual, 2);
    assert_int_equal(tn_load(&other.model, path), TN_OK);
    other.model.h[0].attn.causal = false;
    assert_fails(tn_load(&other.model, path), TN_EMISMATCH,
                 "weights: h.0.attn: causal was true but is false");
    gpt_run_close(&other);
    gpt_run_close(&saved);

    /* other classes may load them, also under other kinds */
    pooled p;
    pooled_open(&p, "pool", pool_fields, (pool_options){3, "max", 0, false});
    assert_int_equal(tn_save(&p.base, path), TN_OK);
    pooled_close(&p);
    pooled_open(&p, "pond", pool_fields, (pool_options){4, "max", 0, false});
    assert_int_equal(tn_load(&p.base, path), TN_OK);
    pooled_close(&p);
    pooled_open(&p, "pool", other_fields, (pool_options){4, "max", 0, false});
    assert_int_equal(tn_load(&p.base, path), TN_OK);
    pooled_close(&p);
}

/* ---- Places at the end of a pass ------------------------------------------------------------- */

/* Four examples, two a batch. */
static tn_loader *open_passes(int64_t epochs, int64_t batch, int threads) {
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    tn_loader_options o = TN_WITH(tn_loader, .batch = batch, .epochs = epochs, .threads = threads);
    return tn_loader_new(tn_token_dataset(tokens, 6, 2), tn_random_sampler(1), o);
}

/* Calls tn_loader_next: the batch's number, counted from the first epoch, or -1. */
static int64_t next_number(tn_loader *l) {
    tn_batch b;
    return tn_loader_next(l, &b) ? b.epoch * tn_loader_batches(l) + b.index : -1;
}

/* After any number of calls: the batches after the load are those of the run that continued. */
TEST(test_passes_go_on) {
    const char *path = temp_path("passes");
    for (int64_t epochs = 1; epochs <= 2; epochs++) {
        for (int calls = 0; calls < 16; calls++) {
            tn_loader *saved = open_passes(epochs, 2, calls % 3);
            tn_loader *loaded = open_passes(epochs, 2, (calls + 1) % 3);
            for (int i = 0; i < calls; i++) {
                next_number(saved);
            }
            tn_checkpoint c = {.loader = saved};
            assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
            c.loader = loaded;
            next_number(loaded);
            assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
            for (int i = 0; i < 12; i++) {
                assert_int_equal(next_number(loaded), next_number(saved));
            }
            tn_loader_free(saved);
            tn_loader_free(loaded);
        }
    }
}

/* After the end of a pass: batches of another size (a warning), and more epochs. */
TEST(test_the_end_of_a_pass) {
    const char *path = temp_path("end");
    for (int told = 0; told < 2; told++) {
        tn_loader *saved = open_passes(1, 2, 0);
        assert_true(next_number(saved) == 0 && next_number(saved) == 1);
        assert_true(!told || next_number(saved) == -1);
        tn_checkpoint c = {.loader = saved, .other_run = true};
        assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
        tn_loader_free(saved);
        for (int64_t batch = 1; batch <= 4; batch *= 2) {
            c.loader = open_passes(1, batch, 0);
            assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
            assert_true(told || next_number(c.loader) == -1);
            assert_int_equal(next_number(c.loader), tn_loader_batches(c.loader));
            tn_loader_free(c.loader);
        }
        c.loader = open_passes(3, 2, 0); /* two more */
        assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
        assert_int_equal(next_number(c.loader), 2);
        tn_loader_free(c.loader);
    }
}

/* A run that continues for fewer epochs than it has had. */
PLAIN_TEST(test_fewer_epochs) {
    const char *path = temp_path("epochs");
    tn_checkpoint c = {.loader = open_passes(3, 1, 0)};
    assert_int_equal(tn_loader_seek(c.loader, (tn_loader_place){.epoch = 1, .index = 2}), TN_OK);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    for (int64_t epochs = 3; epochs >= 1; epochs--) {
        tn_loader_free(c.loader);
        c.loader = open_passes(epochs, 1, 0);
        assert_int_equal(tn_checkpoint_load(&c, path), epochs > 1 ? TN_OK : TN_EMISMATCH);
    }
    assert_error(TN_EMISMATCH, "the loader had begun epoch 2 but ends after 1");
    tn_loader_free(c.loader);
}
