/* Checkpoints of models on meshes of ranks: from one mesh to the next, weights and all state keep
 * their bits. Ranks are threads. */
#include "mesh_model.h"

#include "distributed/parallel/save/convert.h"
#include "tests/parallel/train.h"
#include "tests/support/temp.h"
#include "train.h"

enum { ROWS = 2, MICROS = 6, EXAMPLES = 60, SAVED = 2 };

typedef struct trial {
    const char *name;
    bool llama, bf16; /* bf16: the parameters, with master copies */
    tn_optim *(*make)(void *m);
} trial;

static tn_optim *make_adamw(void *m) {
    return tn_adamw(m, TN_WITH(tn_adamw, .lr = 1e-2, .no_decay = tn_match_vectors));
}

/* Its state has different shapes than the parameters. */
static tn_optim *make_adafactor(void *m) {
    return tn_adafactor(m, tn_adafactor_defaults());
}

static tn_optim *make_muon(void *m) {
    return tn_muon(m, tn_muon_defaults());
}

static const trial trials[] = {
    {"gpt", false, false, make_adamw},
    {"llama", true, false, make_adafactor},
    {"bf16", false, true, make_muon},
};

/* ---- A leg ----------------------------------------------------------------------------------- */

/* Loads, trains, saves. */
typedef struct leg {
    const trial *trial;
    const char *mesh;
    const char *from, *to; /* checkpoints; NULL: none */
    bool one_file;         /* `from` is one */
    const char *bare;      /* a checkpoint without the loader, whose position depends on the mesh */
    const char *whole;     /* one file for everything, saved by one rank */
    const char *export;    /* the file for the weights */
    const char *average;   /* and the file for their average */
    int steps;
    train_bits weights; /* rank 0's copy, of all ranks */
} leg;

typedef struct run {
    mesh_model m;
    tn_spread *spread;
    tn_checkpoint c;
} run;

static tn_loader *open_loader(const run *r, const mesh_shape *shape) {
    tn_loader_options o = TN_WITH(tn_loader, .batch = ROWS, .epochs = 0, .threads = 0);
    tn_dataset *examples = tn_tensor_dataset(mesh_tokens(shape->vocab, EXAMPLES, 0),
                                             mesh_tokens(shape->vocab, EXAMPLES, 1));
    return tn_loader_new(
        examples, tn_distributed_sampler(tn_spread_data(r->spread), tn_random_sampler(5), true), o);
}

static void run_open(run *r, tn_group *world, const leg *l) {
    mesh_shape shape = mesh_shape_of(l->trial->llama);
    shape.dropout = l->trial->llama ? 0 : 0.1;
    *r = (run){.c = {.step = SAVED, .note = "a mesh"}};
    mesh_init(&r->m, &shape, l->from ? 77 : 3, l->from != NULL);
    if (l->trial->bf16) { tn_module_set_precision(&r->m, TN_WITH(tn_precision, .param = TN_BF16)); }
    r->spread = mesh_spread(&r->m, world, l->mesh);
    r->c.model = &r->m;
    r->c.optim = l->trial->make(&r->m);
    r->c.average = tn_ema(&r->m, 0.9);
    r->c.generator = tn_default_generator();
    r->c.loader = open_loader(r, &shape);
}

static void run_close(run *r) {
    tn_optim_free(r->c.optim);
    tn_average_free(r->c.average);
    tn_loader_free(r->c.loader);
    tn_module_finish(&r->m);
    tn_spread_free(r->spread);
}

static void run_step(run *r) {
    int micros = MICROS / tn_group_size(tn_spread_data(r->spread));
    CHECK(tn_spread_step(r->spread, r->c.loader, micros, NULL) > 0);
    tn_optim_clip(r->c.optim, 1.0);
    tn_optim_step(r->c.optim);
    tn_optim_zero_grad(r->c.optim);
    tn_average_update(r->c.average);
}

static void load_checkpoint(run *r, tn_group *world, const leg *l) {
    bool found = true;
    r->c.step = 0;
    if (l->one_file) {
        CHECK(tn_dist_load(world, &r->c, l->from) == TN_OK);
    } else {
        tn_saver *saver = tn_saver_new(world, l->from, tn_saver_defaults());
        CHECK(tn_saver_load(saver, &r->c, &found) == TN_OK);
        tn_saver_free(saver);
    }
    CHECK(found && r->c.step == SAVED);
}

static void save_checkpoint(const tn_checkpoint *c, tn_group *world, const char *to) {
    tn_saver *saver = tn_saver_new(world, to, tn_saver_defaults());
    CHECK(tn_saver_save(saver, c) == TN_OK);
    tn_saver_free(saver);
}

static void run_leg(tn_group *world, void *user) {
    TN_SCOPE;
    leg *l = user;
    run r;
    run_open(&r, world, l);
    if (l->from) { load_checkpoint(&r, world, l); }
    for (int step = 0; step < l->steps && tn_error() == TN_OK; step++) {
        run_step(&r);
    }
    if (l->to) { save_checkpoint(&r.c, world, l->to); }
    tn_checkpoint bare = r.c;
    bare.loader = NULL;
    if (l->bare) { save_checkpoint(&bare, world, l->bare); }
    if (l->whole) { CHECK(tn_checkpoint_save(&r.c, l->whole) == TN_OK); }
    if (l->export) { CHECK(tn_dist_export(world, &r.m, l->export) == TN_OK); }
    if (l->average) {
        TN_AVERAGED(r.c.average);
        CHECK(tn_dist_export(world, &r.m, l->average) == TN_OK);
    }
    train_bits weights = train_whole(&r.m, world);
    if (tn_group_rank(world) == 0) {
        l->weights = weights;
    } else {
        free(weights.data);
    }
    run_close(&r);
}

/* ---- From mesh to mesh ----------------------------------------------------------------------- */

typedef char name[512];

static void name_of(name to, const trial *t, const char *what, int number) {
    snprintf(to, sizeof(name), "%s-%s-%d", temp_path(t->name), what, number);
}

/* Converts a step's folder to one file. */
static void convert_step(const char *folder, const char *file) {
    if (tn__saver_convert(folder, file, false) != TN_OK) {
        fail_msg("%s: %s", folder, tn_error_message());
    }
}

/* An exported file is the file that one process saves. */
static void check_exported(const trial *t, const char *file) {
    mesh_shape shape = mesh_shape_of(t->llama);
    mesh_model m;
    name again;
    name_of(again, t, "again", 0);
    shape.dropout = t->llama ? 0 : 0.1;
    mesh_init(&m, &shape, 5, false);
    if (t->bf16) { tn_module_set_precision(&m, TN_WITH(tn_precision, .param = TN_BF16)); }
    assert_int_equal(tn_load(&m, file), TN_OK);
    assert_int_equal(tn_save(&m, again), TN_OK);
    temp_same(file, again);
    tn_module_finish(&m);
}

/* A step of a run can be loaded as a model, for `tern generate` and others. */
static void check_model(const char *folder, const char *exported) {
    tn_module *m = tn__saver_model(folder, tn_lm_load_defaults());
    tn_module *other = tn__saver_model(exported, tn_lm_load_defaults());
    assert_non_null(m);
    assert_non_null(other);
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *x = mesh_tokens(29, ROWS, 4);
    tn_module_train(m, false);
    tn_module_train(other, false);
    assert_true(tn_equal(tn_call(m, x), tn_call(other, x)));
    tn_module_free(m);
    tn_module_free(other);
}

static const char *const meshes[] = {
    "tp=2,shard=2",
    "shard=4",
    "pp=2,tp=2,shard=2",
    "tp=4",
    "pp=3",
    "dp=1",
    "pp=2,cp=2",
    "tp=2",
    "tp=2,cp=2",
    "tp=2,dp=2",
    "shard=3",
    "tp=2,sequence",
    "tp=4,shard=2",
    "tp=2,shard=2,stage=2",
};
enum { MESHES = sizeof(meshes) / sizeof(*meshes) };

static void visit_meshes(const trial *t) {
    name folder, next, bare, one, exported, average, other, whole;
    name_of(folder, t, "step", 0);
    name_of(bare, t, "bare", 0);
    name_of(one, t, "one", 0);
    name_of(exported, t, "weights", 0);
    name_of(average, t, "average", 0);
    leg undisturbed = {t, meshes[0], .steps = 2 * SAVED};
    leg first = {t,
                 meshes[0],
                 .to = folder,
                 .bare = bare,
                 .export = exported,
                 .average = average,
                 .steps = SAVED};
    run_ok(mesh_ranks(undisturbed.mesh), run_leg, &undisturbed);
    run_ok(mesh_ranks(first.mesh), run_leg, &first);
    convert_step(bare, one);
    check_exported(t, exported);
    check_exported(t, average);
    check_model(folder, exported);
    bool one_file = false;
    for (int i = 1; i < MESHES; i++) {
        leg l = {t, meshes[i], .from = folder, .one_file = one_file};
        name weights, mean;
        name_of(next, t, "step", i);
        name_of(bare, t, "bare", i);
        name_of(other, t, "one", i);
        name_of(weights, t, "weights", i);
        name_of(mean, t, "average", i);
        l.to = next;
        l.bare = bare;
        l.export = weights;
        l.average = mean;
        if (mesh_ranks(l.mesh) == 1) {
            name_of(whole, t, "whole", i);
            l.whole = whole;
        }
        run_ok(mesh_ranks(l.mesh), run_leg, &l);
        convert_step(bare, other);
        temp_same(one, other);
        temp_same(exported, weights);
        temp_same(average, mean);
        assert_true(train_same(first.weights, l.weights));
        free(l.weights.data);
        strcpy(folder, l.whole ? whole : next);
        one_file = l.whole != NULL;
    }
    leg last = {t, meshes[0], .from = folder, .one_file = one_file, .steps = SAVED};
    run_ok(mesh_ranks(last.mesh), run_leg, &last);
    assert_true(train_same(last.weights, undisturbed.weights));
    assert_false(train_same(last.weights, first.weights));
    free(first.weights.data);
    free(last.weights.data);
    free(undisturbed.weights.data);
}

TEST(test_from_mesh_to_mesh) {
    for (size_t i = 0; i < sizeof(trials) / sizeof(*trials); i++) {
        visit_meshes(&trials[i]);
    }
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
