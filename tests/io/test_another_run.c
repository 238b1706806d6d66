/* Checkpoints of another run: what differs is named, of options, modules, optimisers and data, and
 * with other_run the program goes on with it all the same. */
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

static recipe recipe_usual(void) {
    recipe r = {
        .gpt = tn_gpt_defaults(), .adamw = tn_adamw_defaults(), .text = "to be or not to be"};
    r.gpt.vocab = 128;
    r.gpt.context = 4;
    r.gpt.layers = 2;
    r.gpt.heads = 2;
    r.gpt.width = 8;
    r.adamw.no_decay = tn_match_vectors;
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
    if (p->bf16) {
        tn_module_set_precision(&r->model, tn_precision_defaults());
    }
    r->optim = tn_adamw(&r->model, p->adamw);
    tn_loader_options o = tn_loader_defaults();
    o.epochs = 0;
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

static void other_heads(recipe *r) {
    r->gpt.heads = 4;
}
static void other_dropout(recipe *r) {
    r->gpt.dropout = 0.1;
}
static void other_activation(recipe *r) {
    r->gpt.activation = TN_ACT_RELU;
}
static void other_precision(recipe *r) {
    r->bf16 = true;
}
static void other_beta(recipe *r) {
    r->adamw.beta2 = 0.95;
}
static bool match_matrices(const tn_entry *entry, void *user) {
    return !tn_match_vectors(entry, user);
}
static void other_groups(recipe *r) {
    r->adamw.no_decay = match_matrices;
}
static void other_text(recipe *r) {
    r->text = &"to be or not to bee"[1];
}

static const struct {
    void (*change)(recipe *r);
    const char *told;
} changes[] = {
    {other_heads, "gpt: heads was 2 but is 4; h.0.attn: heads was 2 but is 4"},
    {other_dropout, "gpt: dropout was 0 but is 0.1; drop: p was 0 but is 0.1"},
    {other_activation, "gpt: activation was gelu_tanh but is relu"},
    {other_precision, "gpt: param was not set but is f32; gpt: compute was not set but is bf16"},
    {other_beta, "adamw: beta2 was 0.999 but is 0.95"},
    {other_groups, "group 0 of the optimiser: parameters was 10 but is 18"},
    {other_text, "the data: digest was "},
};
enum { CHANGES = sizeof(changes) / sizeof(changes[0]) };

/* What is right by its names and shapes, but is not what was saved, is refused and named. */
static void test_another_run(void **state) {
    (void)state;
    const char *path = temp_path("run");
    recipe usual = recipe_usual();
    gpt_run saved;
    gpt_run_open(&saved, &usual, 1);
    tn_checkpoint c = gpt_run_checkpoint(&saved);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    for (int i = 0; i < CHANGES; i++) {
        TN_SCOPE;
        recipe r = usual;
        changes[i].change(&r);
        gpt_run run;
        gpt_run_open(&run, &r, 2);
        tn_tensor *before = tn_copy(tn_detach(run.model.stem.wte.weight));
        c = gpt_run_checkpoint(&run);
        c.step = 77;
        if (tn_checkpoint_load(&c, path) != TN_EMISMATCH) {
            fail_msg("went on: %s (%s)", changes[i].told, tn_error_message());
        }
        assert_error(TN_EMISMATCH, changes[i].told);
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

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++) {
        count++;
    }
    return count;
}

/* Asked to, a program goes on all the same; each difference is a warning, once. */
static void test_goes_on_all_the_same(void **state) {
    (void)state;
    TN_SCOPE;
    const char *path = temp_path("run");
    recipe usual = recipe_usual(), other = usual;
    gpt_run saved, run;
    gpt_run_open(&saved, &usual, 1);
    tn_loader_seek(saved.loader, (tn_loader_place){.epoch = 3, .index = 13});
    tn_checkpoint c = gpt_run_checkpoint(&saved);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    other_heads(&other);
    other_beta(&other);
    other.text = "to be or not";
    gpt_run_open(&run, &other, 2);
    warnings w = {0};
    tn_log_to(note_warning, TN_LOG_WARN, &w);
    c = gpt_run_checkpoint(&run);
    c.other_run = true;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    tn_log_to(NULL, TN_LOG_WARN, NULL);
    assert_int_equal(w.count, 6);
    static const char *const told[] = {
        "run: gpt: heads was 2 but is 4\n",         "run: h.0.attn: heads was 2 but is 4\n",
        "run: h.1.attn: heads was 2 but is 4\n",    "run: adamw: beta2 was 0.999 but is 0.95\n",
        "run: the loader was (tokens of 14, order", "run: the data: digest was "};
    for (int i = 0; i < 6; i++) {
        if (occurrences(w.text, told[i]) != 1) {
            fail_msg("\"%s\" is not once in\n%s", told[i], w.text);
        }
    }
    assert_int_equal(c.step, 5);
    assert_true(
        tn_equal(tn_detach(run.model.stem.wte.weight), tn_detach(saved.model.stem.wte.weight)));
    /* the shorter text has no batch 13 */
    assert_int_equal(tn_loader_where(run.loader).epoch, 3);
    assert_int_equal(tn_loader_where(run.loader).index, 0);

    /* what is saved next is this run */
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    c.other_run = false;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);

    /* what does not fit is an error all the same */
    other.gpt.width = 16;
    gpt_run wide;
    gpt_run_open(&wide, &other, 3);
    c = gpt_run_checkpoint(&wide);
    c.other_run = true;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_ESHAPE);
    tn_error_clear();
    gpt_run_close(&wide);
    gpt_run_close(&run);
    gpt_run_close(&saved);
}

/* The text is a document for people, and for versions to come. */
static void test_the_description(void **state) {
    (void)state;
    const char *path = temp_path("run");
    recipe r = recipe_usual();
    r.gpt.layers = 1;
    r.bf16 = true;
    gpt_run run;
    gpt_run_open(&run, &r, 1);
    tn_checkpoint c = gpt_run_checkpoint(&run);
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_string_equal(tn_safetensors_metadata(f, "model"),
                        ".: gpt, vocab 128, context 4, layers 1, heads 2, width 8, bias 1, "
                        "activation gelu_tanh; dropout 0, param f32, compute bf16, reduce f32\n"
                        "wte: embedding\n"
                        "wpe: embedding\n"
                        "drop: dropout; p 0\n"
                        "h.0: block\n"
                        "h.0.ln_1: layer_norm, eps 1e-05\n"
                        "h.0.attn: self_attention, heads 2, causal 1\n"
                        "h.0.attn.c_attn: linear\n"
                        "h.0.attn.c_proj: linear\n"
                        "h.0.attn.drop: dropout; p 0\n"
                        "h.0.ln_2: layer_norm, eps 1e-05\n"
                        "h.0.mlp: mlp, activation gelu_tanh\n"
                        "h.0.mlp.c_fc: linear\n"
                        "h.0.mlp.c_proj: linear\n"
                        "h.0.mlp.drop: dropout; p 0\n"
                        "ln_f: layer_norm, eps 1e-05\n");
    assert_string_equal(tn_safetensors_metadata(f, "optim.options"),
                        "beta1 0.9, beta2 0.999, eps 1e-08");
    assert_string_equal(tn_safetensors_metadata(f, "loader.data"),
                        "x i64[4], y i64[4], digest b95f0bb889792b3ad531045c47c01750");
    tn_safetensors_close(f);
    gpt_run_close(&run);
}

/* A norm by itself, with SGD and a scale. */
typedef struct norm_run {
    double eps;
    tn_sgd_options sgd;
    tn_scaler_options scaler;
} norm_run;

static tn_status norm_run_pass(const norm_run *r, bool save, const char *path) {
    tn_rms_norm norm;
    tn_norm_options o = tn_norm_defaults();
    o.eps = r->eps;
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

static void test_other_optimisers_and_norms(void **state) {
    (void)state;
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
    assert_int_equal(norm_run_pass(&r, false, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "norm: rms_norm: eps was 1e-05 but is 1.0000000000000003e-05; sgd: "
                               "momentum was 0.9 but is 0.8; sgd: nesterov was 0 but is 1; the "
                               "scaler: interval was 2000 but is 5 (");
    r = usual;
    r.sgd.dampening = 0.1;
    assert_int_equal(norm_run_pass(&r, false, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "sgd: dampening was 0 but is 0.1");
}

/* Layers of sizes: no weight tells them. */
static tn_sequential *sized_net(int64_t width) {
    tn_interpolate_options size = tn_interpolate_defaults();
    size.size = TN_DIMS(4, width);
    return TN_SEQUENTIAL(tn_conv2d_new(1, 1, 1),
                         tn_max_pool2d_new_with(TN_DIMS(2, width), tn_pool_defaults()),
                         tn_adaptive_avg_pool2d_new(width), tn_upsample_new_with(size));
}

static void test_other_sizes(void **state) {
    (void)state;
    const char *path = temp_path("sizes");
    tn_sequential *saved = sized_net(6), *same = sized_net(6), *other = sized_net(8);
    assert_int_equal(tn_save(saved, path), TN_OK);
    assert_int_equal(tn_load(same, path), TN_OK);
    assert_int_equal(tn_load(other, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH,
                 "1: kernel was 2x6 but is 2x8; 1: stride was 2x6 but is 2x8; 2: size "
                 "was 6 but is 8; 3: size was 4x6 but is 4x8");
    tn_module_free(saved);
    tn_module_free(same);
    tn_module_free(other);
}

/* ---- Descriptions of one's own --------------------------------------------------------------- */

/* A module that says of itself what a test wants. */
typedef struct talker {
    tn_module base;
    const char *says;
    int returns; /* 0: as snprintf */
} talker;

static tn_tensor *talker_forward(tn_module *self, tn_tensor *x) {
    (void)self;
    return x;
}

static int talker_describe(const tn_module *self, char *text, size_t room) {
    const talker *t = (const talker *)self;
    int bytes = snprintf(text, room, "%s", t->says);
    return t->returns ? t->returns : bytes;
}

static void talker_init(talker *t, const char *kind, const char *says) {
    memset(t, 0, sizeof(*t));
    tn_module_init(t, kind, talker_forward);
    t->base.describe = talker_describe;
    t->says = says;
}

/* A model that is as good as any with an optimiser: a linear layer, and one that talks. */
typedef struct talking {
    tn_sequential base;
    tn_linear linear;
    talker talker;
    tn_optim *optim;
} talking;

static void talking_open(talking *t, const char *kind, const char *says) {
    memset(t, 0, sizeof(*t));
    tn_sequential_init(&t->base);
    tn_linear_init(&t->linear, 2, 2, tn_linear_defaults());
    talker_init(&t->talker, kind, says);
    tn_sequential_add(&t->base, &t->linear);
    tn_sequential_add(&t->base, &t->talker);
    t->optim = tn_sgd(&t->base, tn_sgd_defaults());
    assert_int_equal(tn_error(), TN_OK);
}

static void talking_close(talking *t) {
    tn_optim_free(t->optim);
    tn_module_finish(&t->base);
}

static tn_status talking_save(const char *kind, const char *says, int returns, const char *path) {
    talking t;
    talking_open(&t, kind, says);
    t.talker.returns = returns;
    tn_checkpoint c = {.model = &t.base, .optim = t.optim};
    tn_status status = tn_checkpoint_save(&c, path);
    talking_close(&t);
    return status;
}

static void check_talking(const char *kind, const char *says, const char *path, const char *told) {
    talking t;
    talking_open(&t, kind, says);
    tn_checkpoint c = {.model = &t.base, .optim = t.optim};
    tn_status status = tn_checkpoint_load(&c, path);
    if (told) {
        assert_error(TN_EMISMATCH, told);
    } else if (status != TN_OK) {
        fail_msg("%s", tn_error_message());
    }
    talking_close(&t);
}

static void test_modules_of_ones_own(void **state) {
    (void)state;
    const char *path = temp_path("talking");
    assert_int_equal(talking_save("pool", "window 3, kind max; noise 0.5", 0, path), TN_OK);
    check_talking("pool", "window 3, kind max; noise 0.5", path, NULL);
    check_talking("pool", "kind max,window 3;noise 0.5", path, NULL);
    check_talking("pool", "window 3, kind mean; noise 0.5", path, "1: kind was max but is mean");
    check_talking("pool", "window 3, kind max", path, "1: noise was 0.5 but is not set");
    check_talking("pool", "window 3, kind max, free; noise 0.5", path,
                  "1: free was not set but is ");
    check_talking("pond", "window 3, kind max; noise 0.5", path, "1: was a pool but is a pond");
    check_talking("pool", "window 33, kind maximal; noise 0.55", path,
                  "1: window was 3 but is 33; 1: kind was max but is maximal; 1: noise was 0.5 but "
                  "is 0.55");
    /* a line of its own is not to be had, and a terminal is not spoken to */
    assert_int_equal(talking_save("po\nol", "a 1\n2: linear\xff\x1b[2J", 0, path), TN_OK);
    check_talking("po\nol", "a 1\n2: linear\xff\x1b[2J", path, NULL);
    check_talking("po\nol", "a 2", path, "1: a was not set but is 2; 1: a 1?2: was lin");

    char long_text[TN_DESCRIBE_ROOM + 1];
    memset(long_text, 'x', sizeof(long_text));
    long_text[TN_DESCRIBE_ROOM - 1] = 0;
    assert_int_equal(talking_save("pool", long_text, 0, path), TN_OK);
    check_talking("pool", long_text, path, NULL);
    long_text[TN_DESCRIBE_ROOM - 1] = 'x';
    long_text[TN_DESCRIBE_ROOM] = 0;
    assert_int_equal(talking_save("pool", long_text, 0, path), TN_EVALUE);
    assert_error(TN_EVALUE, "1 (pool) describes itself in 1024 bytes (0 to 1023)");
    assert_int_equal(talking_save("pool", "a 1", -1, path), TN_EVALUE);
    assert_error(TN_EVALUE, "1 (pool) describes itself in -1 bytes");
    check_talking("pool", "a 1", path, "1: "); /* the file is the one before */
}

/* A dataset of one's own. */
typedef struct numbers {
    tn_dataset base;
    const char *says;
    int returns;
} numbers;

static tn_status numbers_get(tn_dataset *self, tn_example e, void *x, void *y) {
    (void)self;
    (void)y;
    *(float *)x = (float)e.index;
    return TN_OK;
}

static int numbers_describe(tn_dataset *self, char *text, size_t room) {
    const numbers *n = (const numbers *)self;
    return n->returns ? n->returns : snprintf(text, room, "%s", n->says);
}

static tn_loader *open_numbers(numbers *n, const char *says) {
    *n = (numbers){.base = {.kind = "numbers",
                            .size = 9,
                            .x_dims = TN_DIMS(),
                            .y_dims = {.ndim = -1},
                            .x_dtype = TN_F32,
                            .get = numbers_get},
                   .says = says};
    n->base.describe = says ? numbers_describe : NULL;
    return tn_loader_new(&n->base, tn_sequential_sampler(), tn_loader_defaults());
}

static void test_data_of_ones_own(void **state) {
    (void)state;
    const char *path = temp_path("data");
    numbers n;
    tn_checkpoint c = {.loader = open_numbers(&n, "version 3")};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    n.says = "version 4";
    assert_int_equal(tn_checkpoint_load(&c, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "the data: version was 3 but is 4");
    n.base.x_dtype = TN_I32;
    n.says = "version 3";
    assert_int_equal(tn_checkpoint_load(&c, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "the data: x was f32[] but is i32[]");
    n.returns = 5000;
    assert_int_equal(tn_checkpoint_load(&c, path), TN_EVALUE);
    assert_error(TN_EVALUE, "the data describe themselves in 5000 bytes");
    assert_int_equal(tn_checkpoint_save(&c, path), TN_EVALUE);
    tn_error_clear();
    tn_loader_free(c.loader);
    c.loader = open_numbers(&n, NULL); /* silent ones are fine, and no wildcard */
    assert_int_equal(tn_checkpoint_load(&c, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "the data: version was 3 but is not set");
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    tn_loader_free(c.loader);
}

/* A loader of sequences with this sampler and padding. */
static tn_loader *open_padded(tn_sampler s, double pad, int64_t batch) {
    tn_tensor *x[] = {tn_ones(TN_DIMS(2), TN_F32), tn_ones(TN_DIMS(5), TN_F32),
                      tn_ones(TN_DIMS(3), TN_F32)};
    tn_loader_options o = tn_loader_defaults();
    o.batch = batch;
    o.x_pad = pad;
    return tn_loader_new(tn_sequence_dataset(x, NULL, 3), s, o);
}

/* Other weights, other lengths, another padding: another run. */
static void test_samplers_with_tables(void **state) {
    (void)state;
    TN_SCOPE;
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

/* Weights of a network with other heads are worth nothing; what only training does may differ. */
static void test_weights_of_another_network(void **state) {
    (void)state;
    TN_SCOPE;
    const char *path = temp_path("weights"), *run = temp_path("run");
    recipe usual = recipe_usual();
    gpt_run saved;
    gpt_run_open(&saved, &usual, 1);
    assert_int_equal(tn_save(&saved.model, path), TN_OK);
    tn_checkpoint c = gpt_run_checkpoint(&saved);
    assert_int_equal(tn_checkpoint_save(&c, run), TN_OK);
    for (int i = 0; i < CHANGES; i++) {
        recipe r = usual;
        changes[i].change(&r);
        bool differs = r.gpt.heads != usual.gpt.heads || r.gpt.activation != usual.gpt.activation;
        gpt_run other;
        gpt_run_open(&other, &r, 2);
        for (int part = 0; part < 2; part++) { /* a file of weights, and the weights of a run */
            tn_tensor *before = tn_copy(tn_detach(other.model.stem.wte.weight));
            c = (tn_checkpoint){.model = &other.model, .partial = true};
            tn_status status = part ? tn_checkpoint_load(&c, run) : tn_load(&other.model, path);
            assert_int_equal(status, differs ? TN_EMISMATCH : TN_OK);
            if (differs) {
                assert_error(TN_EMISMATCH, changes[i].told);
                assert_true(tn_equal(before, tn_detach(other.model.stem.wte.weight)));
            }
        }
        gpt_run_close(&other);
    }
    /* the way around: the fields are the program's */
    gpt_run other;
    gpt_run_open(&other, &usual, 2);
    assert_int_equal(tn_load(&other.model, path), TN_OK);
    other.model.h[0].attn.causal = false;
    assert_int_equal(tn_load(&other.model, path), TN_EMISMATCH);
    assert_error(TN_EMISMATCH, "weights: h.0.attn: causal was 1 but is 0");
    gpt_run_close(&other);
    gpt_run_close(&saved);

    /* other classes may use them, under other kinds */
    talking t;
    talking_open(&t, "pool", "window 3");
    assert_int_equal(tn_save(&t.base, path), TN_OK);
    talking_close(&t);
    talking_open(&t, "pond", "window 4");
    assert_int_equal(tn_load(&t.base, path), TN_OK);
    talking_close(&t);
    talking_open(&t, "pool", "windows 4");
    assert_int_equal(tn_load(&t.base, path), TN_OK);
    talking_close(&t);
}

/* A run that goes on for fewer epochs than it has had. */
static void test_fewer_epochs(void **state) {
    (void)state;
    const char *path = temp_path("epochs");
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    for (int64_t epochs = 3; epochs >= 1; epochs--) {
        tn_loader_options o = tn_loader_defaults();
        o.epochs = epochs;
        tn_loader *l = tn_loader_new(tn_token_dataset(tokens, 6, 2), tn_random_sampler(1), o);
        tn_checkpoint c = {.loader = l};
        if (epochs == 3) {
            assert_int_equal(tn_loader_seek(l, (tn_loader_place){.epoch = 1, .index = 2}), TN_OK);
            assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
        }
        tn_status status = tn_checkpoint_load(&c, path);
        assert_int_equal(status, epochs == 1 ? TN_EMISMATCH : TN_OK);
        if (epochs == 1) {
            assert_error(TN_EMISMATCH, "the loader had begun epoch 2 but ends after 1");
        }
        tn_loader_free(l);
    }
}

/* ---- Places at the end of a pass ------------------------------------------------------------- */

/* Four examples, two a batch. */
static tn_loader *open_passes(int64_t epochs, int64_t batch, int threads) {
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    tn_loader_options o = tn_loader_defaults();
    o.batch = batch;
    o.epochs = epochs;
    o.threads = threads;
    return tn_loader_new(tn_token_dataset(tokens, 6, 2), tn_random_sampler(1), o);
}

/* What a call of tn_loader_next says: the batch's number from the first epoch on, or -1. */
static int64_t next_number(tn_loader *l) {
    tn_batch b;
    return tn_loader_next(l, &b) ? b.epoch * tn_loader_batches(l) + b.index : -1;
}

/* After any number of calls: what comes after the load is what comes in the run that went on. */
static void test_passes_go_on(void **state) {
    (void)state;
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
    assert_int_equal(tn_error(), TN_OK);
}

/* A pass that is over, with batches of another size (a warning), and with more epochs. */
static void test_the_end_of_a_pass(void **state) {
    (void)state;
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

/* A file from before passes were counted: where its loader had ended, it is still to be told. */
static void test_places_without_passes(void **state) {
    (void)state;
    const char *path = temp_path("older");
    static const char key[] = "loader.passes", other[] = "loader.parsed";
    tn_loader *l = open_passes(2, 2, 0);
    tn_loader_seek(l, (tn_loader_place){.epoch = 1, .index = 2});
    tn_checkpoint c = {.loader = l, .partial = true};
    assert_int_equal(tn_checkpoint_save(&c, path), TN_OK);
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes), *at = memmem(file, bytes, key, strlen(key));
    assert_non_null(at);
    memcpy(at, other, strlen(other));
    put_digest(file, bytes);
    temp_write(path, file, bytes);
    free(file);
    tn_loader_seek(l, (tn_loader_place){.epoch = 0, .index = 1});
    assert_int_equal(tn_checkpoint_load(&c, path), TN_OK);
    assert_int_equal(next_number(l), -1);
    assert_int_equal(next_number(l), 4);
    tn_loader_free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_passes_go_on),
        TEST(test_the_end_of_a_pass),
        TEST(test_places_without_passes),
        cmocka_unit_test(test_another_run),
        cmocka_unit_test(test_goes_on_all_the_same),
        cmocka_unit_test(test_the_description),
        cmocka_unit_test(test_other_optimisers_and_norms),
        cmocka_unit_test(test_other_sizes),
        cmocka_unit_test(test_modules_of_ones_own),
        cmocka_unit_test(test_data_of_ones_own),
        cmocka_unit_test(test_samplers_with_tables),
        cmocka_unit_test(test_weights_of_another_network),
        cmocka_unit_test(test_fewer_epochs),
    };
    return cmocka_run_group_tests_name("another run", tests, NULL, temp_clean);
}
