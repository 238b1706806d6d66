/* Pipelines: a model whose layers are on different ranks trains as on one rank that accumulates. */
#include "models/language.h"
#include "tests/parallel/mesh_model.h"
#include "tests/support/temp.h"

#include <math.h>

enum { STEPS = 3, ROWS = 2 };

/* ---- A training run -------------------------------------------------------------------------- */

typedef struct pipe_run {
    mesh_shape shape;
    tn_pipe_kind kind;
    int ranks, chunks, micros; /* ranks: of the pipeline */
    int data;                  /* ranks with different batches */
    int stage;                 /* FSDP over these; 0: DDP, if there are any */
    bool bf16, recompute, deferred, schedule;
    bool whole;             /* the model itself is recomputed, not its blocks */
    bool lamb;              /* which steps by norms of single parameters */
    bool detached, freezes; /* the stem's output; the tied weights, after a step */
    bool adds;              /* no gradient is zeroed */
    const char *frozen;     /* parameters, before the first step; or NULL */
    bool module;            /* clips by tn_clip_grad_norm */
    double losses[STEPS], norms[STEPS];
    int alive[8];
    char file[300]; /* the weights */
} pipe_run;

static pipe_run run_of(bool llama, int ranks, int micros) {
    pipe_run r = {.shape = mesh_shape_of(llama),
                  .kind = TN_PIPE_1F1B,
                  .ranks = ranks,
                  .chunks = 1,
                  .micros = micros,
                  .data = 1};
    r.shape.layers = 4;
    return r;
}

static tn_values detach_output(tn_module *m, tn_values in, tn_values out, void *user) {
    out.v[0] = tn_detach(out.v[0]);
    return out;
}

static void begin_model(mesh_model *m, const pipe_run *r, int rank) {
    mesh_init(m, &r->shape, 3 + (uint64_t)rank, r->deferred); /* rank 0's weights are used */
    if (r->bf16) {
        tn_module_set_precision(m, tn_precision_defaults());
    }
    if (r->recompute) {
        tn__lm_recompute_blocks(m);
    }
    tn_module_set_recompute(m, r->whole);
    if (r->frozen) {
        CHECK(tn_freeze(m, r->frozen) > 0);
    }
    if (r->detached) {
        tn_module_hook(&m->gpt.stem, (tn_module_hooks){.after = detach_output});
    }
}

static tn_optim *make_optim(mesh_model *m, const pipe_run *r) {
    return r->lamb ? tn_lamb(m, TN_WITH(tn_lamb, .lr = 1e-2))
                   : tn_adamw(m, TN_WITH(tn_adamw, .lr = 1e-2));
}

/* Micro-batch `number` of all: its tokens and targets. */
static tn_batch batch_of(const pipe_run *r, int64_t number) {
    return (tn_batch){.x = mesh_tokens(r->shape.vocab, ROWS, 2 * number),
                      .y = mesh_tokens(r->shape.vocab, ROWS, 2 * number + 1)};
}

static void end_run(tn_group *world, pipe_run *r, mesh_model *m, tn_optim *opt) {
    CHECK(tn_dist_export(world, m, r->file) == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(m);
}

static void end_step(pipe_run *r, mesh_model *m, int rank, int step, double loss, tn_optim *opt) {
    double norm = r->module ? tn_clip_grad_norm(m, 0.5) : tn_optim_clip(opt, 0.5);
    if (rank == 0) {
        r->losses[step] = loss;
        r->norms[step] = norm;
    }
    tn_optim_step(opt);
    if (!r->adds) {
        tn_optim_zero_grad(opt);
    }
    if (r->freezes && step == 0) {
        CHECK(tn_freeze(m, "wte.weight") == 1);
    }
}

/* Of this rank's data. */
static tn_batch batch_here(const pipe_run *r, tn_group *data, int step, int micro) {
    int64_t round = (int64_t)step * r->micros + micro;
    return batch_of(r, round * r->data + tn_group_rank(data));
}

/* The oracle: the whole model on each of the data's ranks, a plain loop. */
static void train_plain(tn_group *world, void *user) {
    pipe_run *r = user;
    mesh_model m;
    begin_model(&m, r, tn_group_rank(world));
    tn_module_materialize(&m);
    /* keys the random numbers of one rank, too */
    CHECK(tn_ddp(&m, world, TN_WITH(tn_ddp, .find_unused = r->detached)));
    tn_optim *opt = make_optim(&m, r);
    for (int step = 0; step < STEPS; step++) {
        double sum = 0;
        for (int i = 0; i < r->micros; i++) {
            TN_SCOPE;
            TN_NO_SYNC(i + 1 < r->micros ? &m : NULL);
            tn_batch b = batch_here(r, world, step, i);
            tn_tensor *loss = tn_lm_loss(&m, b.x, b.y);
            tn_backward(tn_mul_scalar(loss, 1.0 / r->micros));
            sum += tn_item(loss);
        }
        end_step(r, &m, tn_group_rank(world), step, tn_group_mean(world, sum, r->micros), opt);
    }
    end_run(world, r, &m, opt);
}

static void attach_data(mesh_model *m, tn_group *data, const pipe_run *r) {
    if (r->stage > 0) {
        CHECK(tn_fsdp(m, data, NULL, TN_WITH(tn_fsdp, .stage = r->stage)));
    } else if (r->data > 1) {
        tn_module_materialize(m);
        CHECK(tn_ddp(m, data, tn_ddp_defaults()));
    } else {
        tn_module_materialize(m);
    }
}

static tn_pipeline_options options_of(const pipe_run *r, const tn_pipe_schedule *schedule) {
    return TN_WITH(tn_pipeline, .kind = r->kind, .chunks = r->chunks, .schedule = schedule);
}

static void train_pipeline(tn_group *world, void *user) {
    pipe_run *r = user;
    int rank = tn_group_rank(world);
    tn_mesh *mesh =
        tn_mesh_new(world, 2, (int[]){r->ranks, r->data}, (const char *const[]){"pp", "dp"});
    tn_group *data = tn_mesh_group(mesh, "dp");
    tn_pipe_schedule *schedule =
        r->schedule ? tn_pipe_schedule_new(r->kind, r->ranks, r->chunks, r->micros) : NULL;
    mesh_model m;
    begin_model(&m, r, rank);
    tn_pipeline *p = tn_pipeline_new(&m, tn_mesh_group(mesh, "pp"), options_of(r, schedule));
    CHECK(p);
    attach_data(&m, data, r);
    tn_optim *opt = make_optim(&m, r);
    for (int step = 0; step < STEPS; step++) {
        TN_SCOPE;
        tn_batch batches[16];
        for (int i = 0; i < r->micros; i++) {
            batches[i] = batch_here(r, data, step, i);
        }
        double loss = tn_pipeline_step(p, batches, r->micros, NULL);
        end_step(r, &m, rank, step, tn_group_mean(data, loss, 1), opt);
    }
    r->alive[rank % 8] = tn_pipeline_alive(p);
    end_run(world, r, &m, opt);
    tn_pipe_schedule_free(schedule);
    tn_mesh_free(mesh);
}

static void name_file(pipe_run *r) {
    static int files;
    snprintf(r->file, sizeof(r->file), "%s%d", temp_path("weights"), files++);
}

static char *file_bytes(const char *path, long *size) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = ftell(f);
    rewind(f);
    char *bytes = malloc((size_t)*size);
    assert_int_equal(fread(bytes, 1, (size_t)*size, f), *size);
    fclose(f);
    return bytes;
}

static bool same_files(const char *a, const char *b) {
    long n, k;
    char *x = file_bytes(a, &n), *y = file_bytes(b, &k);
    bool same = n == k && memcmp(x, y, (size_t)n) == 0;
    free(x);
    free(y);
    return same;
}

static void check_close(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance * fabs(b))) {
        fail_msg("%.17g is not %.17g", a, b);
    }
}

/* Trains r as a pipeline and as one rank: the same weights bit for bit, or within 1e-5 where a
 * parameter is tied. */
static pipe_run check_run(pipe_run r) {
    pipe_run plain = r;
    name_file(&plain);
    name_file(&r);
    run_ok(r.data, train_plain, &plain);
    run_ok(r.ranks * r.data, train_pipeline, &r);
    bool tied = !r.shape.llama || r.shape.tied;
    for (int i = 0; i < STEPS; i++) {
        check_close(r.losses[i], plain.losses[i], tied ? 1e-5 : 1e-15);
        check_close(r.norms[i], plain.norms[i], tied ? 1e-5 : 1e-12);
    }
    if (tied) {
        double most = mesh_file_difference(&r.shape, r.file, plain.file);
        if (!(most < 1e-5)) {
            fail_msg("weights differ by %g", most);
        }
    } else if (!same_files(r.file, plain.file)) {
        fail_msg("%d ranks, kind %d, %d stages each, %d micro-batches: weights differ by %g",
                 r.ranks, (int)r.kind, r.chunks, r.micros,
                 mesh_file_difference(&r.shape, r.file, plain.file));
    }
    remove(r.file);
    remove(plain.file);
    return r;
}

/* ---- Bits ------------------------------------------------------------------------------------ */

static const tn_pipe_kind kinds[] = {TN_PIPE_1F1B, TN_PIPE_INTERLEAVED, TN_PIPE_ZERO_BUBBLE};

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

TEST(every_schedule) {
    static const struct {
        tn_pipe_kind kind;
        int ranks, chunks, micros;
    } cases[] = {
        {TN_PIPE_1F1B, 1, 1, 3},        {TN_PIPE_1F1B, 2, 1, 2},
        {TN_PIPE_1F1B, 2, 1, 5},        {TN_PIPE_1F1B, 3, 1, 2},
        {TN_PIPE_1F1B, 3, 1, 4},        {TN_PIPE_1F1B, 4, 1, 8},
        {TN_PIPE_1F1B, 6, 1, 1},        {TN_PIPE_GPIPE, 2, 1, 4},
        {TN_PIPE_GPIPE, 4, 1, 3},       {TN_PIPE_INTERLEAVED, 2, 2, 4},
        {TN_PIPE_INTERLEAVED, 2, 3, 8}, {TN_PIPE_INTERLEAVED, 3, 2, 6},
        {TN_PIPE_ZERO_BUBBLE, 1, 1, 3}, {TN_PIPE_ZERO_BUBBLE, 2, 1, 2},
        {TN_PIPE_ZERO_BUBBLE, 2, 1, 5}, {TN_PIPE_ZERO_BUBBLE, 3, 1, 2},
        {TN_PIPE_ZERO_BUBBLE, 3, 1, 4}, {TN_PIPE_ZERO_BUBBLE, 4, 1, 8},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        pipe_run r = run_of(true, cases[i].ranks, cases[i].micros);
        r.kind = cases[i].kind;
        r.chunks = cases[i].chunks;
        r.schedule = i % 2;
        r = check_run(r);
        tn_pipe_schedule *s = tn_pipe_schedule_new(r.kind, r.ranks, r.chunks, r.micros);
        tn_pipe_outcome o;
        assert_int_equal(tn_pipe_simulate(s, (tn_pipe_cost){1, 1, 1, 0}, &o, NULL), TN_OK);
        assert_int_equal(r.alive[0], o.alive);
        for (int rank = 0; rank < r.ranks; rank++) {
            assert_int_equal(r.alive[rank], most_alive(s, rank));
        }
        tn_pipe_schedule_free(s);
    }
}

TEST(low_precision_recompute_and_deferred) {
    for (int i = 0; i < 8; i++) {
        pipe_run r = run_of(true, 2, 4);
        r.bf16 = i & 1;
        r.recompute = i & 2;
        r.deferred = i & 4;
        r.kind = i & 1 ? TN_PIPE_1F1B : TN_PIPE_INTERLEAVED;
        r.chunks = i & 1 ? 1 : 2;
        check_run(r);
        r = run_of(true, i & 4 ? 3 : 2, 4);
        r.bf16 = i & 1;
        r.recompute = i & 2;
        r.kind = TN_PIPE_ZERO_BUBBLE;
        check_run(r);
    }
}

/* A backward calls the stage again, long after its forward. */
TEST(recompute_of_the_whole) {
    for (int i = 0; i < 3; i++) {
        pipe_run r = run_of(true, 2, 4);
        r.whole = true;
        r.kind = kinds[i];
        r.chunks = r.kind == TN_PIPE_INTERLEAVED ? 2 : 1;
        check_run(r);
        r = run_of(false, 2, 4);
        r.whole = true;
        r.kind = r.chunks == 1 ? kinds[i] : TN_PIPE_1F1B;
        r.shape.dropout = 0.2;
        check_run(r);
    }
}

/* A GPT is tied and has dropout. */
TEST(tied_weights_and_dropout) {
    for (int i = 0; i < 4; i++) {
        pipe_run r = run_of(false, i & 1 ? 3 : 2, 4);
        r.shape.dropout = 0.2;
        r.recompute = i & 2;
        check_run(r);
        r.kind = TN_PIPE_ZERO_BUBBLE;
        check_run(r);
    }
    pipe_run r = run_of(true, 4, 4);
    r.shape.tied = true;
    check_run(r);
}

/* The first stage has no gradient of it, then no stage has; with gradients that add up, too. */
TEST(ties_that_lack_gradients) {
    for (int i = 1; i < 8; i++) {
        pipe_run r = run_of(false, 3, 2);
        r.detached = i & 1;
        r.freezes = i & 2;
        r.adds = i & 4;
        check_run(r);
    }
}

TEST(beside_data_parallelism) {
    for (int stage = 0; stage <= 3; stage++) {
        for (int i = 0; i < 3; i++) {
            pipe_run r = run_of(true, 2, 4);
            r.data = 2;
            r.stage = stage;
            r.kind = kinds[i];
            r.chunks = r.kind == TN_PIPE_INTERLEAVED ? 2 : 1;
            check_run(r);
            r.recompute = r.bf16 = r.kind == TN_PIPE_ZERO_BUBBLE;
            check_run(r);
        }
        pipe_run r = run_of(false, 2, 2); /* tied */
        r.data = 2;
        r.stage = stage;
        r.shape.dropout = 0.2;
        check_run(r);
    }
}

/* A stage with nothing to train takes part in the norm of all: the first one, as in fine-tuning of
 * the upper layers, one in the middle, the last one; also under a strategy of its own. */
TEST(stages_that_are_frozen) {
    static const struct {
        bool llama;
        const char *frozen;
        int ranks;
    } cases[] = {
        {true, "embed_tokens layers.0 layers.1", 2},
        {true, "layers.1 layers.2", 4},
        {true, "layers.2 layers.3 norm lm_head", 2},
        {false, "wte wpe h.0 h.1", 2},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        pipe_run r = run_of(cases[i].llama, cases[i].ranks, 4);
        r.frozen = cases[i].frozen;
        check_run(r);
        r.module = true;
        check_run(r);
    }
    for (int stage = 0; stage <= 3; stage++) {
        pipe_run r = run_of(true, 2, 4);
        r.frozen = cases[2 * (stage & 1)].frozen;
        r.data = 2;
        r.stage = stage;
        check_run(r);
    }
}

TEST(norms_of_one_parameter) {
    for (int tied = 0; tied <= 1; tied++) {
        pipe_run r = run_of(true, 3, 4);
        r.shape.tied = tied;
        r.lamb = true;
        check_run(r);
    }
}

/* The classifier costs more than the four blocks; the lookup, of as many elements, costs nothing.
 */
static void cuts_by_cost(tn_group *world, void *user) {
    const pipe_run *r = user;
    int ranks = tn_group_size(world);
    mesh_model m;
    begin_model(&m, r, 0);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    CHECK(tn_pipeline_parts(p) == 6 && tn_pipeline_stage(p, 3) == 0);
    CHECK(tn_pipeline_stage(p, 4) == ranks - 2 && tn_pipeline_stage(p, 5) == ranks - 1);
    tn_module_finish(&m);
}

TEST(stages_by_cost) {
    pipe_run r = run_of(true, 2, 1);
    r.shape.vocab = 1000;
    run_ok(2, cuts_by_cost, &r);
    run_ok(3, cuts_by_cost, &r); /* two stages are as cheap: a block gets one of its own */
}

/* ---- Around a step --------------------------------------------------------------------------- */

/* Two steps' gradients add up, of a tied parameter too; and a validation between them leaves no
 * trace. */
static void accumulates_steps(tn_group *world, void *user) {
    const pipe_run *r = user;
    mesh_model m, plain;
    begin_model(&m, r, tn_group_rank(world));
    begin_model(&plain, r, 0);
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
    if (grad) {
        CHECK(tn_item(tn_max(tn_abs(tn_sub(grad, all)), TN_DIMS(), false)) < 1e-6);
    }
    CHECK(tn_module_count(&m) == tn_module_count(&plain));
    tn_module_finish(&m);
    tn_module_finish(&plain);
}

TEST(gradients_of_two_steps) {
    pipe_run r = run_of(false, 3, 2);
    run_ok(2, accumulates_steps, &r);
    run_ok(3, accumulates_steps, &r);
}

/* The random numbers of a step are those of its micro-batches, and a validation's no one's. */
static void keeps_generator(tn_group *world, void *user) {
    const pipe_run *r = user;
    const tn_generator *g = tn_default_generator();
    mesh_model m;
    begin_model(&m, r, 0);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    tn_batch b[2] = {batch_of(r, 0), batch_of(r, 1)};
    tn_pipeline_step(p, b, 2, NULL);
    CHECK(g->stream == 3 && g->call == 0);
    tn_pipeline_loss(p, b, 2);
    CHECK(g->stream == 3 && g->call == 0);
    tn_module_finish(&m);
}

TEST(draws_of_a_step) {
    pipe_run r = run_of(false, 2, 2);
    r.shape.dropout = 0.2;
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
        assert_true(same_files(r.file[0], r.file[1]));
    }
}

/* ---- A scaler -------------------------------------------------------------------------------- */

/* A scaled loss has the gradients of one that is not; an overflow on one stage is seen by all: they
 * skip the same step. */
static void overflow_once(tn_group *world, void *user) {
    const pipe_run *r = user;
    mesh_model m;
    begin_model(&m, r, 0);
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
    pipe_run r = run_of(true, 2, 2);
    run_ok(2, overflow_once, &r);
    r.frozen = "embed_tokens layers.0 layers.1"; /* nothing is left to train on the other one */
    run_ok(2, overflow_once, &r);
}
