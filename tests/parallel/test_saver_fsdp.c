/* Checkpoints in parts of a model in training, sharded in every stage: a resumed run matches one
 * that was never interrupted. */
#include "tests/support/test.h"

#include "tests/support/temp.h"
#include "train.h"

enum { MICROS = 12 }; /* per step, shared by 4, 3, 2 or 1 ranks */

/* One leg: maybe a step first (which loading undoes), loading, steps, saving. */
typedef struct leg {
    const char *folder;
    const char *export; /* the file for the whole weights; NULL: none */
    int stage;          /* 0: data parallelism */
    bool bf16, spoil, llama;
    int load, save;     /* the steps to load and to save; 0: none */
    int from, steps;    /* the first step to train, and how many */
    train_bits losses;  /* rank 0's copy */
    train_bits weights; /* all weights, whole, at the end */
} leg;

/* For the ranks of `world`. */
static train_run run_of(const leg *l, tn_group *world) {
    train_run run = train_run_of(l->stage ? TRAIN_FSDP : TRAIN_DDP, tn_group_size(world));
    run.micros = MICROS;
    run.sharding.stage = l->stage ? l->stage : 3;
    run.bf16 = l->bf16;
    run.no_sync = !l->stage;
    run.model.llama = l->llama;
    run.model.width = l->llama ? 12 : 10;
    return run;
}

static double one_step(mesh_model *m, const train_run *run, train_groups *groups, tn_optim *opt,
                       int64_t step) {
    double loss = train_step(m, run, groups, step, NULL);
    tn_optim_clip(opt, 1.0);
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
    return loss;
}

static void run_leg(tn_group *world, void *user) {
    TN_SCOPE;
    leg *l = user;
    train_run run = run_of(l, world);
    mesh_model m;
    train_model(&m, &run, l->load ? 77 : 100);
    train_groups groups = train_attach(&m, &run, world);
    tn_optim *opt = train_optimiser(&m, &run);
    tn_saver *saver = tn_saver_new(world, l->folder, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt, .generator = tn_default_generator()};
    if (l->spoil) { /* leaves whole weights behind, which loading must replace */
        one_step(&m, &run, &groups, opt, 90);
        run.looks = LOOKS;
        train_look(&m, &run);
        run.looks = LOOKS_NEVER;
    }
    bool found = false;
    if (l->load && (tn_saver_load(saver, &c, &found) != TN_OK || !found || c.step != l->load)) {
        tn_raise(TN_EVALUE, "step %d was not loaded", l->load);
    }
    for (int step = l->from; step < l->from + l->steps && tn_error() == TN_OK; step++) {
        double loss = one_step(&m, &run, &groups, opt, step);
        if (tn_group_rank(world) == 0) {
            memcpy(train_grow(&l->losses, sizeof(loss)), &loss, sizeof(loss));
        }
    }
    if (l->save) {
        c.step = l->save;
        tn_status status = tn_saver_save(saver, &c);
        (void)status; /* tn_local_run raises it */
    }
    if (l->export && tn_error() == TN_OK) {
        tn_status status = tn_dist_export(world, &m, l->export);
        (void)status; /* tn_local_run raises it */
    }
    tn_saver_free(saver);
    train_bits whole = train_whole(&m, world);
    if (tn_group_rank(world) == 0) {
        l->weights = whole;
    } else {
        free(whole.data);
    }
    tn_optim_free(opt);
    tn_module_finish(&m);
}

static void run_on(int ranks, leg *l) {
    if (tn_local_run(ranks, run_leg, l) != TN_OK) {
        fail_msg("%d ranks, stage %d, from step %d: %s", ranks, l->stage, l->load,
                 tn_error_message());
    }
}

static void free_leg(leg *l) {
    free(l->losses.data);
    free(l->weights.data);
}

/* A file exported from parts is the file that one process saves. */
static void check_exported(const train_run *run) {
    mesh_model m;
    train_model(&m, run, 5);
    assert_int_equal(tn_load(&m, temp_path("exported")), TN_OK);
    assert_int_equal(tn_save(&m, temp_path("again")), TN_OK);
    temp_same(temp_path("exported"), temp_path("again"));
    tn_module_finish(&m);
}

/* 4 ranks train, save after two steps, and continue. The saved step goes through six jobs of 1 to 4
 * ranks, sharded differently, back to 4 ranks, which train as the undisturbed ones did. */
static void wander_over_ranks(const char *name, bool bf16, bool llama) {
    const char *folder = temp_path(name);
    leg undisturbed = {.folder = folder, .stage = 3, .bf16 = bf16, .llama = llama, .steps = 4};
    leg first = {.folder = folder, .stage = 3, .bf16 = bf16, .llama = llama, .steps = 2, .save = 2};
    run_on(4, &undisturbed);
    run_on(4, &first);
    static const struct {
        int ranks, stage;
    } ways[] = {{3, 2}, {2, 1}, {1, 3}, {4, 2}, {2, 0}, {3, 3}};
    int step = 2;
    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++, step++) {
        leg l = {.folder = folder,
                 .stage = ways[i].stage,
                 .bf16 = bf16,
                 .spoil = true,
                 .llama = llama,
                 .load = step,
                 .save = step + 1};
        l.export = temp_path(i == 0 ? "exported" : "again");
        run_on(ways[i].ranks, &l);
        assert_true(train_same(l.weights, first.weights));
        temp_same(temp_path("exported"), l.export);
        free_leg(&l);
    }
    leg last = {.folder = folder,
                .stage = 3,
                .bf16 = bf16,
                .spoil = true,
                .llama = llama,
                .load = step,
                .from = 2,
                .steps = 2};
    run_on(4, &last);
    assert_true(train_same(last.weights, undisturbed.weights));
    size_t half = undisturbed.losses.bytes / 2;
    assert_int_equal(last.losses.bytes, half);
    assert_memory_equal(last.losses.data, undisturbed.losses.data + half, half);
    train_run run = run_of(&first, NULL);
    check_exported(&run);
    free_leg(&undisturbed);
    free_leg(&first);
    free_leg(&last);
}

TEST(wandering) {
    wander_over_ranks("f32", false, false);
    wander_over_ranks("bf16", true, false);
    wander_over_ranks("llama", true, true);
}

/* ---- Units of which some ranks have nothing -------------------------------------------------- */

static tn_tensor *stack_forward(tn_module *self, tn_tensor *x) {
    return tn_call(tn_module_child(self, "b"), tn_call(tn_module_child(self, "a"), x));
}

/* Saves, and loading undoes a step. At stage 1 weights stay whole until parts change: all ranks
 * must mark that theirs did, even those whose parts have no elements. */
static void undoes_a_step(tn_group *g, void *folder) {
    struct {
        tn_module base;
        tn_linear a, b;
    } m;
    TN_SCOPE;
    tn_module_init(&m, "stack", stack_forward);
    tn_linear_init(&m.a, 2, 2, tn_linear_defaults());
    tn_linear_init(&m.b, 2, 2, tn_linear_defaults());
    tn_module_add(&m, "a", &m.a);
    tn_module_add(&m, "b", &m.b);
    tn_fsdp(&m, g, NULL, TN_WITH(tn_fsdp, .stage = 1, .units = "a b"));
    tn_optim *opt = tn_sgd(&m, tn_sgd_defaults());
    tn_saver *saver = tn_saver_new(g, folder, tn_saver_defaults());
    tn_checkpoint c = {.model = &m, .optim = opt, .step = 1};
    tn_tensor *x = tn_ones(TN_DIMS(1, 2), TN_F32);
    bool found = tn_saver_save(saver, &c) != TN_OK;
    double before = tn_item(tn_sum_all(tn_call(&m, x)));
    tn_backward(tn_sum_all(tn_call(&m, x)));
    tn_optim_step(opt);
    double between = tn_item(tn_sum_all(tn_call(&m, x)));
    if (tn_saver_load(saver, &c, &found) == TN_OK && found) {
        double after = tn_item(tn_sum_all(tn_call(&m, x)));
        if (after != before || after == between) {
            tn_raise(TN_EVALUE, "%g before, %g after loading", before, after);
        }
    }
    tn_saver_free(saver);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(ranks_with_nothing) {
    const char *folder = temp_path("nothing");
    run_ok(4, undoes_a_step, folder);
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
