/* Objects that were freed: a second free and a use are errors that say so, and nothing that was
 * freed is read. */
#include "tests/support/silence.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- One of each ----------------------------------------------------------------------------- */

static tn_linear *layer;       /* what the others need */
static tn_loader *full_loader; /* with batches */
static tn_optim *other_optim;

static tn_loader *new_loader(int threads) {
    static const int32_t tokens[40];
    return tn_loader_new(tn_token_dataset(tokens, 40, 4), tn_sequential_sampler(),
                         TN_WITH(tn_loader, .batch = 2, .threads = threads));
}

static void *make_optim(void) {
    return tn_adamw(layer, tn_adamw_defaults());
}

static void *make_list_optim(void) {
    tn_tensor *list[] = {tn_ones(TN_DIMS(2), TN_F32)};
    return tn_sgd(tn_parameters(list, 1), tn_sgd_defaults());
}

static void *make_list(void) {
    tn_tensor *list[] = {tn_ones(TN_DIMS(2), TN_F32)};
    return tn_parameters(list, 1);
}

static void *make_scaler(void) {
    return tn_scaler_new(tn_scaler_defaults());
}

static void *make_average(void) {
    return tn_ema(layer, 0.5);
}

static void *make_loader(void) {
    return new_loader(0);
}

static void *make_busy_loader(void) {
    return new_loader(2);
}

static void *make_saver(void) {
    return tn_saver_new(NULL, temp_path("saver"), tn_saver_defaults());
}

static void *make_tokenizer(void) {
    static const char *const text = "a text, and a text";
    size_t bytes = strlen(text);
    return tn_tokenizer_train(&text, &bytes, 1, TN_WITH(tn_tokenizer_train, .vocab = 258));
}

static void *make_run(void) {
    tn_checkpoint parts = {.model = layer, .optim = other_optim, .loader = full_loader};
    tn_run_options o = TN_WITH(tn_run, .out = temp_path("run"), .steps = 1, .overwrite = true);
    silence before = silence_begin();
    tn_run *r = tn_run_new(NULL, o, parts);
    silence_end(before);
    return r;
}

static void *make_group(void) {
    return tn_group_new(tn_world(), (int[]){0}, 1);
}

static void *make_mesh(void) {
    return tn_mesh_new(NULL, 1, (int[]){1}, (const char *const[]){"dp"});
}

static void *make_spread(void) {
    static tn_gpt gpt;
    tn_module_finish(&gpt);
    tn_gpt_init(&gpt,
                TN_WITH(tn_gpt, .vocab = 8, .context = 4, .layers = 1, .heads = 1, .width = 4));
    tn_spread *s = tn_spread_new(&gpt, NULL, tn_spread_defaults());
    tn_module_finish(&gpt);
    return s;
}

static void *make_metrics(void) {
    return tn_metrics_new(3, 1);
}

static void *make_progress(void) {
    static FILE *nowhere;
    nowhere = nowhere ? nowhere : fopen("/dev/null", "w");
    return tn_progress_new(nowhere, 0, 10, "step");
}

static void *make_history(void) {
    return tn_history_open(temp_path("loss.csv"), 0);
}

static void *make_corpus(void) {
    const char *path = temp_path("text.txt");
    temp_write(path, "some text\n", 10);
    return tn_corpus_open(&path, 1, tn_corpus_defaults());
}

static void *make_charset(void) {
    return tn_charset_from_text("abc", 3);
}

static void *make_shards(void) {
    return tn_shards_writer_new(temp_path("shard"), tn_shards_defaults());
}

static void *make_weights(void) {
    return tn_safetensors_writer_new();
}

static void *make_board(void) {
    return tn_summary_writer_new(temp_path("board"), -1);
}

static tn_linear *trained; /* by it */

static void *make_deepspeed(void) {
    const char *path = temp_path("ds.json");
    static const char text[] =
        "{\"train_batch_size\": 1, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.1}}}";
    temp_write(path, text, strlen(text));
    tn_module_free(trained);
    trained = tn_linear_new(2, 2);
    return tn_deepspeed_new(trained, NULL, path);
}

static void *make_layer(void) {
    return tn_linear_new(2, 3);
}

static tn_tensor *same_back(tn_module *m, tn_tensor *x) {
    return x;
}

/* Larger than what malloc keeps for itself. */
static void *make_large_layer(void) {
    return tn_module_new(1 << 16, "large", same_back);
}

static void *make_tree(void) {
    return TN_SEQUENTIAL(tn_linear_new(2, 3), TN_FN(tn_relu));
}

/* ---- Every call ------------------------------------------------------------------------------ */

static const char *noun; /* of the kind in turn */

/* The call has raised that the object was freed, and nothing else. */
static void expect_freed(const char *call, int line) {
    char said[128];
    snprintf(said, sizeof(said), "%s was freed before", noun);
    if (tn_error() != TN_ESTATE || !strstr(tn_error_message(), said)) {
        fail_msg("line %d: %s: \"%s\", not \"%s\"", line, call, tn_error_message(), said);
    }
    tn_error_clear();
}
#define FREED(call)                    \
    do {                               \
        (void)(call);                  \
        expect_freed(#call, __LINE__); \
    } while (0)
#define FREED_(call)                   \
    do {                               \
        call;                          \
        expect_freed(#call, __LINE__); \
    } while (0)

static bool see_state(const char *name, tn_tensor *t, void *user) {
    return true;
}

static void use_optim(void *o) {
    FREED(tn_optim_step(o));
    FREED_(tn_optim_zero_grad(o));
    FREED(tn_optim_clip(o, 1));
    FREED(tn_optim_clip_later(o, 1));
    FREED(tn_optim_split(o, tn_match_vectors, NULL));
    FREED(tn_optim_group(o, 0));
    FREED(tn_optim_groups(o));
    FREED_(tn_optim_set_lr(o, 1));
    FREED(tn_optim_lr(o));
    FREED(tn_optim_steps(o));
    FREED_(tn_optim_set_steps(o, 1));
    FREED(tn_optim_kind(o));
    FREED_(tn_optim_each(o, see_state, NULL));
    tn_scaler *s = tn_scaler_new(tn_scaler_defaults());
    FREED(tn_scaler_clip(s, o, 1));
    FREED(tn_scaler_step(s, o));
    tn_scaler_free(s);
    tn_checkpoint c = {.model = layer, .optim = o};
    FREED(tn_checkpoint_save(&c, temp_path("checkpoint")));
}

static void use_scaler(void *s) {
    FREED(tn_scaler_scale(s, tn_ones(TN_DIMS(), TN_F32)));
    FREED(tn_scaler_clip(s, other_optim, 1));
    FREED(tn_scaler_step(s, other_optim));
    FREED(tn_scaler_update(s));
    FREED(tn_scaler_skipped(s));
    FREED(tn_scaler_where(s));
    FREED(tn_scaler_seek(s, (tn_scaler_state){.scale = 1}));
}

static void use_average(void *a) {
    FREED(tn_average_update(a));
    FREED(tn_average_updates(a));
    FREED(tn_average_begin(a));
    tn_average *scope = a;
    FREED_(tn_average_end(&scope));
}

static void use_loader(void *l) {
    tn_batch b;
    FREED(tn_loader_next(l, &b));
    FREED(tn_loader_where(l));
    FREED(tn_loader_has(l, (tn_loader_place){0}));
    FREED(tn_loader_seek(l, (tn_loader_place){0}));
    FREED(tn_loader_batches(l));
    FREED(tn_loader_options_of(l));
    FREED(tn_loader_sampler(l));
    FREED(tn_loader_dataset(l));
}

static void use_saver(void *s) {
    tn_checkpoint c = {.model = layer};
    bool found;
    FREED(tn_saver_save(s, &c));
    FREED(tn_saver_wait(s));
    FREED(tn_saver_load(s, &c, &found));
    FREED(tn_saver_clear(s));
}

static void use_tokenizer(void *t) {
    tn_ids ids = {0};
    int32_t id = 1;
    FREED(tn_tokenizer_size(t));
    FREED(tn_tokenizer_special(t, "a"));
    FREED(tn_tokenizer_encode(t, "a", 1, true, &ids));
    FREED(tn_tokenizer_encode_rows(t, (const char *const[]){"a"}, 1, tn_rows_defaults(), NULL));
    FREED(tn_tokenizer_bytes(t, 1, NULL));
    FREED(tn_tokenizer_decode(t, &id, 1, NULL));
    FREED(tn_tokenizer_save(t, temp_path("vocabulary")));
}

static void use_run(void *r) {
    FREED(tn_run_next(r));
    FREED(tn_run_step(r));
    FREED(tn_run_done(r));
    FREED_(tn_run_log(r, "loss", 1));
    FREED(tn_run_board(r));
    FREED_(tn_run_count(r, 1));
    FREED_(tn_run_utilisation(r, 1, 1));
    FREED(tn_run_validates(r));
    FREED(tn_run_value(r, "loss"));
    FREED_(tn_run_stop(r));
    FREED(tn_run_stop_early(r, "loss", TN_WITH(tn_early, .patience = 1)));
    FREED(tn_run_keep_best(r, "loss", 1, false));
    FREED(tn_run_best(r));
    FREED_(tn_run_draw(r, stdout));
    FREED(tn_run_export(r, NULL));
}

static void use_group(void *g) {
    FREED(tn_group_size(g));
    FREED(tn_barrier(g));
}

static void use_mesh(void *m) {
    FREED(tn_mesh_group(m, "dp"));
    FREED(tn_mesh_rank(m, "dp"));
}

static void use_spread(void *s) {
    FREED(tn_spread_group(s, "dp"));
    FREED(tn_spread_data(s));
}

static void use_corpus(void *c) {
    tn_document d;
    FREED(tn_corpus_next(c, &d));
}

static void use_shards(void *w) {
    FREED(tn_shards_writer_add(w, (int32_t[]){1}, 1));
    FREED(tn_shards_writer_add_pair(w, (int32_t[]){1}, 1, 1));
    FREED(tn_shards_writer_finish(w));
}

static void use_weights(void *w) {
    FREED(tn_safetensors_writer_add(w, "a", tn_ones(TN_DIMS(1), TN_F32)));
    FREED(tn_safetensors_writer_add_metadata(w, "a", "b"));
    FREED(tn_safetensors_writer_save(w, temp_path("weights")));
}

static void use_board(void *w) {
    FREED(tn_summary_add_scalar(w, "a", 1, 1));
    FREED(tn_summary_flush(w));
}

static void use_metrics(void *m) {
    FREED_(tn_metrics_reset(m));
}

static void use_deepspeed(void *d) {
    FREED(tn_deepspeed_backward(d, tn_ones(TN_DIMS(), TN_F32)));
    FREED(tn_deepspeed_step(d));
}

static void end_run(void *r) {
    silence before = silence_begin();
    tn_run_end(r);
    silence_end(before);
}

static const struct kind {
    const char *noun;
    void *(*make)(void);
    void (*free)(void *object);
    void (*use)(void *object); /* NULL: only the second free is noticed */
} kinds[] = {
    {"the optimiser", make_optim, (void (*)(void *))tn_optim_free, use_optim},
    {"the optimiser", make_list_optim, (void (*)(void *))tn_optim_free, use_optim},
    {"the list", make_list, tn_parameters_free, NULL},
    {"the scaler", make_scaler, (void (*)(void *))tn_scaler_free, use_scaler},
    {"the average", make_average, (void (*)(void *))tn_average_free, use_average},
    {"the loader", make_loader, (void (*)(void *))tn_loader_free, use_loader},
    {"the loader", make_busy_loader, (void (*)(void *))tn_loader_free, use_loader},
    {"the saver", make_saver, (void (*)(void *))tn_saver_free, use_saver},
    {"the tokenizer", make_tokenizer, (void (*)(void *))tn_tokenizer_free, use_tokenizer},
    {"the run", make_run, end_run, use_run},
    {"the group", make_group, (void (*)(void *))tn_group_free, use_group},
    {"the mesh", make_mesh, (void (*)(void *))tn_mesh_free, use_mesh},
    {"the spread", make_spread, (void (*)(void *))tn_spread_free, use_spread},
    {"the object for metrics", make_metrics, (void (*)(void *))tn_metrics_free, use_metrics},
    {"the progress line", make_progress, (void (*)(void *))tn_progress_free, NULL},
    {"the history", make_history, (void (*)(void *))tn_history_free, NULL},
    {"the corpus", make_corpus, (void (*)(void *))tn_corpus_free, use_corpus},
    {"the character set", make_charset, (void (*)(void *))tn_charset_free, NULL},
    {"the writer", make_shards, (void (*)(void *))tn_shards_writer_free, use_shards},
    {"the writer", make_weights, (void (*)(void *))tn_safetensors_writer_free, use_weights},
    {"the writer", make_board, (void (*)(void *))tn_summary_writer_free, use_board},
    {"the engine of a DeepSpeed file", make_deepspeed, (void (*)(void *))tn_deepspeed_free,
     use_deepspeed},
};

static void free_twice(const struct kind *k) {
    TN_SCOPE;
    noun = k->noun;
    void *object = k->make();
    if (!object || tn_error()) { fail_msg("%s: %s", k->noun, tn_error_message()); }
    k->free(object);
    assert_int_equal(tn_error(), TN_OK);
    FREED_(k->free(object));
    if (k->use) { k->use(object); }
    FREED_(k->free(object));
}

TEST(every_kind) {
    assert_non_null(tn_dist_init(TN_WITH(tn_dist, .rank = 0, .ranks = 1)));
    layer = tn_linear_new(2, 2);
    full_loader = new_loader(0);
    other_optim = tn_sgd(layer, tn_sgd_defaults());
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        for (int again = 0; again < 2; again++) { /* what was noticed has broken nothing */
            free_twice(&kinds[i]);
        }
    }
    tn_optim_free(other_optim);
    tn_loader_free(full_loader);
    tn_module_free(trained);
    tn_module_free(layer);
    tn_dist_finish();
}

/* A module in a struct cannot be told from one that was freed. */
TEST(freed_modules) {
    void *(*const all[])(void) = {make_layer, make_large_layer, make_tree};
    for (int i = 0; i < 6; i++) {
        void *m = all[i % 3]();
        assert_non_null(m);
        tn_module_free(m);
        assert_int_equal(tn_error(), TN_OK);
        tn_module_free(m);
        assert_error(TN_EVALUE, "or was freed before");
    }
    tn_sequential *owner = TN_SEQUENTIAL(tn_linear_new(2, 3));
    void *child = tn_module_child(owner, "0");
    tn_module_free(owner);
    tn_module_free(child); /* went with its parent */
    assert_error(TN_EVALUE, "or was freed before");
}
