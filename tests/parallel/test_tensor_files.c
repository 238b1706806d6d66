/* Hugging Face folders onto meshes and back: a model that a mesh has read computes as on one rank,
 * and the files that it writes are the same. Ranks are threads. */
#include "train.h"

#include "tests/support/temp.h"

#include <math.h>

enum { ROWS = 2, WRITTEN = 10 };

/* ---- Folders --------------------------------------------------------------------------------- */

/* A model, and the error if 2 ranks do not divide it. */
typedef struct folder {
    mesh_shape shape;
    int64_t part_bytes; /* 0: one file */
    const char *says;
} folder;

static const folder folders[] = {
    {{false, 29, 16, 2, 4, 0, true, true, 0, MESH_LENGTH, 24}, 0, NULL},
    {{false, 30, 10, 3, 2, 0, true, true, 0, MESH_LENGTH, 24}, 3000, NULL},
    {{false, 37, 24, 1, 6, 0, false, true, 0, MESH_LENGTH, 24}, 0, NULL},
    {{false, 29, 15, 2, 3, 0, true, true, 0, MESH_LENGTH, 24},
     0,
     "h.0.attn.c_attn: 2 ranks do not divide 3 heads"},
    {{true, 29, 16, 2, 8, 4, false, false, 0, MESH_LENGTH, 24}, 0, NULL},
    {{true, 33, 12, 2, 6, 2, false, true, 0, MESH_LENGTH, 24}, 2000, NULL},
    {{true, 41, 24, 1, 4, 4, false, true, 0, MESH_LENGTH, 24}, 0, NULL},
    {{true, 31, 12, 2, 6, 3, false, false, 0, MESH_LENGTH, 24},
     0,
     "layers.0.self_attn.k_proj: 2 ranks do not divide 3 heads"},
    {{true, 31, 8, 1, 4, 1, false, true, 0, MESH_LENGTH, 24}, 0, "2 ranks do not divide 1 heads"},
};
enum { FOLDERS = sizeof(folders) / sizeof(*folders) };

/* Weights larger than a new model's, so that differences show. */
static bool draw_weights(const tn_entry *entry, void *user) {
    TN_NO_GRAD;
    bool norm = strstr(entry->path, "ln_") || strstr(entry->path, "norm");
    tn_normal_(*entry->field, norm && strstr(entry->path, "weight") ? 1 : 0, 0.2, user);
    return true;
}

static void make_folder(const folder *f, const char *path) {
    mesh_model m;
    tn_generator g = {.seed = 8};
    mesh_init(&m, &f->shape, 1, false);
    tn_module_each(&m, (tn_walk){0}, draw_weights, &g);
    tn_lm_save_options o = tn_lm_save_defaults();
    o.max_part_bytes = f->part_bytes ? f->part_bytes : o.max_part_bytes;
    assert_int_equal(tn_lm_save_with(&m, path, o), TN_OK);
    tn_module_finish(&m);
}

/* ---- A mesh ---------------------------------------------------------------------------------- */

typedef struct job {
    const folder *of;
    const char *mesh;
    const char *from, *to;
    /* One rank's. */
    float *logits;
    int32_t text[WRITTEN];
    double flops; /* per token */
    tn_perplexity perplexity;
} job;

static const int32_t prompt[] = {3, 1, 4};

/* Greedy. */
static void write_text(void *m, int32_t *text) {
    tn_prompt p = {prompt, 3};
    tn_generated out;
    CHECK(tn_generate(m, &p, 1, TN_WITH(tn_generate, .max_new = WRITTEN, .temperature = 0), &out) ==
              TN_OK &&
          out.tokens.count >= WRITTEN);
    if (!tn_error()) { memcpy(text, out.tokens.ids, WRITTEN * sizeof(*text)); }
    tn_generated_free(&out, 1);
}

/* group: the ranks with different batches. */
static tn_status measure_text(void *m, const mesh_shape *shape, tn_group *group,
                              tn_perplexity *out) {
    tn_dataset *windows =
        tn_tensor_dataset(mesh_tokens(shape->vocab, 5, 6), mesh_tokens(shape->vocab, 5, 7));
    tn_status status = tn_evaluate_perplexity(
        m, windows, NULL, TN_WITH(tn_evaluate, .batch = 2, .group = group), out);
    tn_dataset_free(windows);
    return status;
}

static void compute_alone(job *j) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_module *m = tn_lm_load(j->from, tn_lm_load_defaults());
    assert_non_null(m);
    tn_module_train(m, false);
    tn_tensor *logits = tn_call(m, mesh_tokens(j->of->shape.vocab, ROWS, 3));
    j->logits = malloc((size_t)tn_count(logits) * sizeof(float));
    assert_int_equal(tn_copy_out(logits, j->logits), TN_OK);
    write_text(m, j->text);
    assert_int_equal(measure_text(m, &j->of->shape, NULL, &j->perplexity), TN_OK);
    j->flops = tn_lm_flops(m);
    tn_module_free(m);
}

static void compare_logits(void *m, const job *j) {
    TN_NO_GRAD;
    tn_tensor *logits = tn_call(m, mesh_tokens(j->of->shape.vocab, ROWS, 3));
    tn_tensor *want = tn_from_data(j->logits, tn_shape(logits), TN_F32);
    double far = tn_item(tn_max(tn_abs(tn_sub(logits, want)), TN_DIMS(), false));
    double most = tn_item(tn_max(tn_abs(want), TN_DIMS(), false));
    CHECK(far <= 1e-5 * most);
    CHECK(most > 0.5);
}

static void compare_numbers(void *m, const job *j, tn_group *group) {
    tn_perplexity p;
    CHECK(measure_text(m, &j->of->shape, group, &p) == TN_OK);
    CHECK(p.tokens == j->perplexity.tokens && fabs(p.loss / j->perplexity.loss - 1) < 1e-6);
    CHECK(tn_lm_flops(m) == j->flops);
}

static tn_module *new_model(const char *from) {
    TN_DEFER_INIT;
    return tn_lm_new(from, 0);
}

static void read_compute_write(tn_group *world, void *user) {
    TN_SCOPE;
    const job *j = user;
    tn_module *m = new_model(j->from);
    tn_spread *spread = mesh_spread(m, world, j->mesh);
    if (tn_dist_load_lm(world, m, j->from) == TN_OK) {
        int32_t text[WRITTEN];
        tn_module_train(m, false);
        compare_logits(m, j);
        write_text(m, text);
        CHECK(memcmp(text, j->text, sizeof(text)) == 0);
        compare_numbers(m, j, tn_spread_data(spread));
        tn_lm_save_options o = tn_lm_save_defaults();
        o.max_part_bytes = j->of->part_bytes ? j->of->part_bytes : o.max_part_bytes;
        CHECK(tn_dist_save_lm(world, m, j->to, o) == TN_OK);
    }
    tn_module_free(m);
    tn_spread_free(spread);
}

static void through_meshes(const folder *f, int number) {
    static const char *const meshes[] = {
        "tp=2",   "tp=2,shard=2", "tp=2,dp=2,sequence", "shard=2,stage=1", "shard=2,stage=2",
        "shard=2"};
    char from[512], to[512];
    snprintf(from, sizeof(from), "%s%d", temp_path("from"), number);
    make_folder(f, from);
    job j = {.of = f, .from = from, .to = to};
    compute_alone(&j);
    for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++) {
        snprintf(to, sizeof(to), "%s%d_%zu", temp_path("to"), number, i);
        j.mesh = meshes[i];
        if (f->says && strstr(j.mesh, "tp=")) {
            assert_contains(run_failing(mesh_ranks(j.mesh), read_compute_write, &j, TN_ESHAPE),
                            f->says);
        } else {
            run_ok(mesh_ranks(j.mesh), read_compute_write, &j);
            assert_true(temp_same_folders(from, to) >= 2);
        }
    }
    free(j.logits);
}

TEST(test_onto_meshes_and_back) {
    for (int i = 0; i < FOLDERS; i++) {
        through_meshes(&folders[i], i);
    }
}

/* Models with 3 or 6 heads on 3 ranks, the last of which has fewer rows of the vocabulary. */
TEST(test_three_ranks) {
    for (int i = 0; i < FOLDERS; i++) {
        if (folders[i].shape.heads % 3 == 0 && folders[i].shape.kv_heads % 3 == 0) {
            char from[512], to[512];
            snprintf(from, sizeof(from), "%s%d", temp_path("three"), i);
            snprintf(to, sizeof(to), "%s%d", temp_path("back"), i);
            make_folder(&folders[i], from);
            job j = {.of = &folders[i], .mesh = "tp=3", .from = from, .to = to};
            compute_alone(&j);
            run_ok(3, read_compute_write, &j);
            assert_true(temp_same_folders(from, to) >= 2);
            free(j.logits);
        }
    }
}

/* A folder of another model changes nothing on any rank. */
static void reads_a_wrong_one(tn_group *world, void *user) {
    TN_SCOPE;
    const job *j = user;
    mesh_model m;
    mesh_init(&m, &folders[0].shape, 1, false);
    tn_spread *spread = mesh_spread(&m, world, j->mesh);
    train_bits before = train_whole(&m, world);
    tn_dist_load_lm(world, &m, j->from);
    tn_error_record e;
    CHECK(tn_error_take(&e));
    train_bits after = train_whole(&m, world);
    CHECK(train_same(before, after));
    free(before.data);
    free(after.data);
    tn_error_give(&e);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_wrong_folder) {
    const char *from = temp_path("wrong");
    make_folder(&folders[1], from);
    job j = {.mesh = "tp=2,shard=2", .from = from};
    assert_contains(run_failing(4, reads_a_wrong_one, &j, TN_EMISMATCH), "vocab");
}

/* ---- What these files cannot hold ------------------------------------------------------------ */

typedef tn_status (*writer)(tn_group *world, mesh_model *m, const char *path);

static tn_status write_alone(tn_group *world, mesh_model *m, const char *path) {
    return tn_save(m, path);
}

static tn_status write_folder_alone(tn_group *world, mesh_model *m, const char *path) {
    return tn_lm_save(m, path);
}

static tn_status write_checkpoint(tn_group *world, mesh_model *m, const char *path) {
    return tn_dist_save(world, &(tn_checkpoint){.model = m, .step = 1}, path);
}

static tn_status read_alone(tn_group *world, mesh_model *m, const char *path) {
    return tn_load(m, path);
}

static tn_status write_onnx(tn_group *world, mesh_model *m, const char *path) {
    TN_SCOPE;
    tn_module_train(m, false);
    return tn_onnx_export(m, TN_VALUES(mesh_tokens(29, ROWS, 1)), path, tn_onnx_defaults());
}

/* The rows of a block have scales of their own, which a whole matrix cannot use. */
static tn_status write_bytes(tn_group *world, mesh_model *m, const char *path) {
    return tn_quantize(m) == TN_OK ? tn_dist_export(world, m, path) : tn_error();
}

static tn_status save_bytes(tn_group *world, mesh_model *m, const char *path) {
    tn_quantize(m);
    tn_saver *saver = tn_saver_new(world, path, tn_saver_defaults());
    tn_status status = tn_saver_save(saver, &(tn_checkpoint){.model = m, .step = 1});
    tn_saver_free(saver);
    return status;
}

static tn_status write_folder_of_bytes(tn_group *world, mesh_model *m, const char *path) {
    tn_quantize(m);
    return tn_dist_save_lm(world, m, path, TN_WITH(tn_lm_save, .plain = true));
}

typedef struct refusal {
    const char *says;
    writer write;
} refusal;

static const refusal refusals[] = {
    {"is sharded", write_alone},          {"is sharded", write_folder_alone},
    {"is sharded", write_checkpoint},     {"dist_", write_onnx},
    {"quantised", write_bytes},           {"quantised", save_bytes},
    {"quantised", write_folder_of_bytes}, {"is sharded", read_alone},
};

static void writes_back(tn_group *world, void *user) {
    const refusal *r = user;
    mesh_model m;
    char path[512];
    mesh_init(&m, &folders[1].shape, 1, true);
    tn_spread *spread = mesh_spread(&m, world, "tp=2");
    snprintf(path, sizeof(path), "%s/refused", temp_folder);
    tn_status status = r->write(world, &m, path);
    CHECK(status != TN_OK);
    CHECK(access(path, F_OK) != 0 || r->write == read_alone);
    tn_module_finish(&m);
    tn_spread_free(spread);
}

TEST(test_what_is_refused) {
    for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
        if (refusals[i].write == read_alone) {
            mesh_model m;
            mesh_init(&m, &folders[1].shape, 1, false);
            assert_int_equal(tn_save(&m, temp_path("refused")), TN_OK);
            tn_module_finish(&m);
        }
        assert_contains(run_failing(2, writes_back, &refusals[i], TN_EUNSUPPORTED),
                        refusals[i].says);
    }
}
