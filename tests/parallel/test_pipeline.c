/* Pipelines: a model whose layers are on different ranks trains as on one rank that accumulates.
 * More programs are in test_meshes.c. */
#include "tests/parallel/train.h"
#include "tests/support/temp.h"

#include <math.h>

enum { STEPS = 3, ROWS = TRAIN_ROWS };

static train_run run_of(const char *mesh, bool llama, int micros) {
    train_run run = train_on_mesh(mesh, llama, micros);
    run.model.layers = 4;
    return run;
}

/* In every bit, but where a parameter is tied. */
static void expect_alone(train_run run) {
    train_expect_alone(run, run.model.llama && !run.model.tied ? 0 : 1e-5);
}

/* Forwards whose backward, or second half of it, is still to come. */
static int most_alive(const tn_pipe_schedule *s, int rank) {
    int alive = 0, most = 0;
    for (int i = 0; i < s->counts[rank]; i++) {
        char what = s->rows[rank][i].what;
        alive += what == 'F' ? 1 : what == 'I' ? 0 : -1;
        most = alive > most ? alive : most;
    }
    return most;
}

static void expect_schedule(const char *mesh, int micros, bool given) {
    tn_spread_options o = tn_spread_defaults();
    assert_int_equal(tn_spread_read(&o, mesh), TN_OK);
    tn_pipe_schedule *s = tn_pipe_schedule_new(o.pipeline.kind, o.pp, o.pipeline.chunks, micros);
    train_run run = run_of(mesh, true, micros);
    run.schedule = given ? s : NULL;
    train_end want = train_on_threads(train_oracle(run, NULL)), is = train_on_threads(run);
    if (!train_agrees(&want, &is, &run, 0)) {
        fail_msg("%s, %d micro-batches: not one rank's bits", mesh, micros);
    }
    tn_pipe_outcome outcome;
    assert_int_equal(tn_pipe_simulate(s, (tn_pipe_cost){1, 1, 1, 0}, &outcome, NULL), TN_OK);
    assert_int_equal(is.alive[0], outcome.alive);
    for (int rank = 0; rank < o.pp; rank++) {
        assert_int_equal(is.alive[rank], most_alive(s, rank));
    }
    free(want.bits.data);
    free(is.bits.data);
    tn_pipe_schedule_free(s);
}

TEST(every_schedule) {
    static const struct {
        const char *mesh;
        int micros;
    } cases[] = {
        {"pp=2", 2},          {"pp=2", 5},          {"pp=3", 2},          {"pp=3", 4},
        {"pp=4", 8},          {"pp=6", 1},          {"pp=2,gpipe", 4},    {"pp=4,gpipe", 3},
        {"pp=2,chunks=2", 4}, {"pp=2,chunks=3", 8}, {"pp=3,chunks=2", 6}, {"pp=2,zb_h1", 2},
        {"pp=2,zb_h1", 5},    {"pp=3,zb_h1", 2},    {"pp=3,zb_h1", 4},    {"pp=4,zb_h1", 8},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        expect_schedule(cases[i].mesh, cases[i].micros, i % 2);
    }
}

/* ---- Ties, and frozen stages ----------------------------------------------------------------- */

static tn_values detach_output(tn_module *m, tn_values in, tn_values out, void *user) {
    out.v[0] = tn_detach(out.v[0]);
    return out;
}

static void detach_stem(mesh_model *m) {
    tn_module_hook(&m->gpt.stem, (tn_module_hooks){.after = detach_output});
}

static void freeze_tie(mesh_model *m, int step) {
    if (step == 0) { tn_freeze(m, "wte.weight"); }
}

/* The first stage has no gradient of it, then no stage has; with gradients that add up, too. */
TEST(ties_that_lack_gradients) {
    for (int i = 1; i < 8; i++) {
        train_run run = run_of("pp=3", false, 2);
        run.prepare = i & 1 ? detach_stem : NULL;
        run.data.find_unused = i & 1;
        run.after = i & 2 ? freeze_tie : NULL;
        run.adds = i & 4;
        expect_alone(run);
    }
}

/* A stage with nothing to train takes part in the norm of all: the first one, as in fine-tuning of
 * the upper layers, one in the middle, the last one; also under a strategy of its own. */
TEST(stages_that_are_frozen) {
    static const struct {
        const char *mesh, *frozen;
        bool llama;
    } cases[] = {
        {"pp=2", "embed_tokens layers.0 layers.1", true},
        {"pp=4", "layers.1 layers.2", true},
        {"pp=2", "layers.2 layers.3 norm lm_head", true},
        {"pp=2", "wte wpe h.0 h.1", false},
        {"pp=2,dp=2", "embed_tokens layers.0 layers.1", true},
        {"pp=2,shard=2,stage=1", "layers.2 layers.3 norm lm_head", true},
        {"pp=2,shard=2,stage=2", "embed_tokens layers.0 layers.1", true},
        {"pp=2,shard=2,stage=3", "layers.2 layers.3 norm lm_head", true},
    };
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(*cases); i++) {
        train_run run = run_of(cases[i / 2].mesh, cases[i / 2].llama, 4);
        run.frozen = cases[i / 2].frozen;
        run.clips_grad = i % 2;
        expect_alone(run);
    }
}

/* ---- Cuts ------------------------------------------------------------------------------------ */

/* The classifier costs more than the four blocks; the lookup, of as many elements, costs nothing.
 */
static void cuts_by_cost(tn_group *world, void *user) {
    const train_run *r = user;
    int ranks = tn_group_size(world);
    mesh_model m;
    train_model(&m, r, 3);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    CHECK(tn_pipeline_parts(p) == 6 && tn_pipeline_stage(p, 3) == 0);
    CHECK(tn_pipeline_stage(p, 4) == ranks - 2 && tn_pipeline_stage(p, 5) == ranks - 1);
    tn_module_finish(&m);
}

TEST(stages_by_cost) {
    train_run r = run_of("pp=2", true, 1);
    r.model.vocab = 1000;
    run_ok(2, cuts_by_cost, &r);
    run_ok(3, cuts_by_cost, &r); /* two stages are as cheap: a block gets one of its own */
}

/* ---- Around a step --------------------------------------------------------------------------- */

static tn_batch batch_of(const train_run *r, int64_t number) {
    return (tn_batch){.x = train_tokens(r, 2 * number), .y = train_tokens(r, 2 * number + 1)};
}

/* Two steps' gradients add up, of a tied parameter too; and a validation between them leaves no
 * trace. */
static void accumulates_steps(tn_group *world, void *user) {
    const train_run *r = user;
    mesh_model m, plain;
    train_model(&m, r, 3 + (uint64_t)tn_group_rank(world));
    train_model(&plain, r, 3);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    CHECK(p);
    TN_SCOPE;
    tn_batch b[4];
    double want = 0, loss = 0;
    for (int i = 0; i < 4; i++) {
        b[i] = batch_of(r, i);
    }
    for (int i = 0; i < 4; i++) {
        tn_tensor *each = tn_lm_loss(&plain, b[i].x, b[i].y);
        tn_backward(tn_mul_scalar(each, 0.5));
        want += tn_item(each) / 4;
    }
    loss += tn_pipeline_step(p, b, 2, NULL) / 2;
    double before = tn_pipeline_loss(p, b, 4);
    loss += tn_pipeline_step(p, b + 2, 2, NULL) / 2;
    CHECK(fabs(loss - want) < 1e-6 && fabs(before - want) < 1e-6);
    tn_tensor *grad = tn_grad_of(m.gpt.stem.wte.weight),
              *all = tn_grad_of(plain.gpt.stem.wte.weight);
    bool ends = tn_group_rank(world) == 0 || tn_group_rank(world) + 1 == tn_group_size(world);
    CHECK(ends == (grad != NULL));
    if (grad) { CHECK(tn_item(tn_max(tn_abs(tn_sub(grad, all)), TN_DIMS(), false)) < 1e-6); }
    CHECK(tn_module_count(&m) == tn_module_count(&plain));
    tn_module_finish(&m);
    tn_module_finish(&plain);
}

TEST(gradients_of_two_steps) {
    train_run r = run_of("pp=3", false, 2);
    run_ok(1, accumulates_steps, &r);
    run_ok(2, accumulates_steps, &r);
    run_ok(3, accumulates_steps, &r);
}

/* The random numbers of a step are those of its micro-batches, and a validation's no one's. */
static void keeps_generator(tn_group *world, void *user) {
    const train_run *r = user;
    const tn_generator *g = tn_default_generator();
    mesh_model m;
    train_model(&m, r, 3);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    tn_batch b[2] = {batch_of(r, 0), batch_of(r, 1)};
    tn_pipeline_step(p, b, 2, NULL);
    CHECK(g->stream == 3 && g->call == 0);
    tn_pipeline_loss(p, b, 2);
    CHECK(g->stream == 3 && g->call == 0);
    tn_module_finish(&m);
}

TEST(draws_of_a_step) {
    train_run r = run_of("pp=2", false, 2);
    r.model.dropout = 0.2;
    run_ok(2, keeps_generator, &r);
}

/* ---- A sequential ---------------------------------------------------------------------------- */

typedef struct list_run {
    char file[2][300]; /* one rank's and the pipeline's */
    bool pipeline;
    int cuts[2];
} list_run;

static tn_tensor *mean_error(tn_tensor *out, tn_tensor *y, void *user) {
    return tn_mse(out, y, TN_MEAN);
}

static tn_tensor *draw_numbers(tn_dims dims, int64_t number) {
    tn_generator g = {.seed = 9, .stream = (uint64_t)number};
    return tn_normal_(tn_empty(dims, TN_F32), 0, 1, &g);
}

/* Layers without parameters, and with buffers that training changes; boundaries of different
 * shapes. */
static void trains_list(tn_group *world, void *user) {
    list_run *r = user;
    tn_seed(4);
    tn_sequential *m = TN_SEQUENTIAL(tn_conv2d_new_with(1, 4, TN_DIMS(3), tn_conv_strided(1, 1)),
                                     tn_batch_norm2d_new(4), TN_FN(tn_relu), tn_max_pool2d_new(2),
                                     tn_flatten_new(1, -1), tn_linear_new(36, 5));
    tn_pipeline *p =
        tn_pipeline_new(m, world, TN_WITH(tn_pipeline, .loss = mean_error, .cuts = r->cuts));
    CHECK(p && tn_pipeline_stage(p, r->cuts[0]) == r->pipeline &&
          tn_pipeline_stage(p, r->cuts[1]) == 2 * r->pipeline);
    tn_optim *opt = tn_sgd(m, TN_WITH(tn_sgd, .lr = 0.1, .momentum = 0.9));
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_batch b[3];
        for (int i = 0; i < 3; i++) {
            b[i].x = draw_numbers(TN_DIMS(2, 1, 6, 6), 6 * step + 2 * i);
            b[i].y = draw_numbers(TN_DIMS(2, 5), 6 * step + 2 * i + 1);
        }
        tn_pipeline_step(p, b, 3, NULL);
        CHECK(tn_optim_clip(opt, 100) > 0); /* its factor is 1 */
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    CHECK(tn_dist_export(world, m, r->file[r->pipeline]) == TN_OK);
    tn_optim_free(opt);
    tn_module_free(m);
}

TEST(lists_of_layers) {
    static const int cuts[][2] = {{1, 4}, {2, 3}, {2, 5}}; /* the second: a stage is a relu alone */
    list_run r = {.cuts = {1, 2}};
    snprintf(r.file[0], sizeof(r.file[0]), "%s0", temp_path("list"));
    snprintf(r.file[1], sizeof(r.file[1]), "%s1", temp_path("list"));
    run_ok(1, trains_list, &r);
    r.pipeline = true;
    for (int i = 0; i < 3; i++) {
        memcpy(r.cuts, cuts[i], sizeof(r.cuts));
        run_ok(3, trains_list, &r);
        temp_same(r.file[0], r.file[1]);
    }
}

/* ---- A scaler -------------------------------------------------------------------------------- */

/* A scaled loss has the gradients of one that is not; an overflow on one stage is seen by all: they
 * skip the same step. */
static void overflow_once(tn_group *world, void *user) {
    const train_run *r = user;
    mesh_model m;
    train_model(&m, r, 3);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_scaler *scaler = tn_scaler_new(TN_WITH(tn_scaler, .scale = 1024));
    for (int step = 0; step < 3; step++) {
        TN_SCOPE;
        tn_batch b[2] = {batch_of(r, 2 * step), batch_of(r, 2 * step + 1)};
        tn_pipeline_step(p, b, 2, NULL);
        double want = tn_optim_clip(opt, 1.0);
        tn_optim_zero_grad(opt);
        tn_pipeline_step(p, b, 2, scaler);
        if (step == 1 && tn_group_rank(world) == 1) {
            tn_tensor *g = tn_grad_of(m.llama.top.norm.weight);
            tn_mul_(g, tn_full(tn_shape(g), INFINITY, TN_F32));
        }
        double norm = tn_scaler_clip(scaler, opt, 1.0);
        tn_scaler_step(scaler, opt);
        tn_scaler_update(scaler);
        CHECK((step == 1) == tn_scaler_skipped(scaler) &&
              (step == 1 ? !isfinite(norm) : norm == want));
        tn_optim_zero_grad(opt);
    }
    CHECK(tn_optim_steps(opt) == 2);
    tn_scaler_free(scaler);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(overflow_of_one_stage) {
    train_run r = run_of("pp=2", true, 2);
    run_ok(2, overflow_once, &r);
    r.frozen = "embed_tokens layers.0 layers.1"; /* nothing is left to train on the other one */
    run_ok(2, overflow_once, &r);
}
