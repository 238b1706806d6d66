/* Pipelines: what is refused, and what the others see when one rank fails in a step. */
#include "tests/parallel/mesh_model.h"
#include "tests/support/fail_malloc.h"

#include "core/allocator.h"

enum { RANKS = 3 };

static mesh_shape small_shape(void) {
    mesh_shape s = mesh_shape_of(true);
    s.layers = 4;
    return s;
}

/* ---- Attaching ------------------------------------------------------------------------------- */

static tn_pipe_schedule *own_schedule;

typedef struct refusal {
    void (*spoil)(void *m, tn_group *world, tn_pipeline_options *o);
    tn_status status;
    const char *error;
} refusal;

static void with_ddp(void *m, tn_group *world, tn_pipeline_options *o) {
    tn_ddp(m, world, tn_ddp_defaults());
}
static void with_tensor(void *m, tn_group *world, tn_pipeline_options *o) {
    tn_tensor_parallel(m, world, tn_tp_defaults());
}
static void with_pipeline(void *m, tn_group *world, tn_pipeline_options *o) {
    tn_pipeline_new(m, world, tn_pipeline_defaults());
}
static void two_halves_each(void *m, tn_group *world, tn_pipeline_options *o) {
    o->kind = TN_PIPE_ZERO_BUBBLE;
    o->chunks = 2;
}
static void weights_first(void *m, tn_group *world, tn_pipeline_options *o) {
    o->schedule = own_schedule;
}
static void without_parts(void *m, tn_group *world, tn_pipeline_options *o) {
    o->kind = TN_PIPE_INTERLEAVED;
    o->chunks = 4;
}
static void cuts_backwards(void *m, tn_group *world, tn_pipeline_options *o) {
    static const int cuts[] = {3};
    o->cuts = cuts;
    o->kind = TN_PIPE_INTERLEAVED;
    o->chunks = 1;
}
static void cuts_beyond(void *m, tn_group *world, tn_pipeline_options *o) {
    static const int cuts[] = {6};
    cuts_backwards(m, world, o);
    o->cuts = cuts;
}
static void cuts_differ(void *m, tn_group *world, tn_pipeline_options *o) {
    static const int cuts[][1] = {{2}, {3}};
    cuts_backwards(m, world, o);
    o->cuts = cuts[tn_group_rank(world)];
}
/* Of two micro-batches, as 1F1B or GPipe. */
static void schedules_differ(void *m, tn_group *world, tn_pipeline_options *o) {
    static const tn_pipe_action action[] = {{'F', 0, 0}, {'F', 0, 1}, {'B', 0, 0}, {'B', 0, 1},
                                            {'F', 1, 0}, {'F', 1, 1}, {'B', 1, 0}, {'B', 1, 1},
                                            {'F', 1, 0}, {'B', 1, 0}, {'F', 1, 1}, {'B', 1, 1}};
    static int counts[] = {4, 4};
    static tn_pipe_action *rows[][2] = {{(tn_pipe_action *)action, (tn_pipe_action *)action + 4},
                                        {(tn_pipe_action *)action, (tn_pipe_action *)action + 8}};
    static const tn_pipe_schedule schedules[] = {{2, 2, 2, counts, rows[0]},
                                                 {2, 2, 2, counts, rows[1]}};
    o->schedule = &schedules[tn_group_rank(world)];
}
static void schedule_incomplete(void *m, tn_group *world, tn_pipeline_options *o) {
    static tn_pipe_action action[] = {{'F', 0, 0}, {'B', 0, 0}, {'F', 1, 0}, {'F', 1, 0}};
    static int counts[] = {2, 2};
    static tn_pipe_action *rows[] = {action, action + 2};
    static const tn_pipe_schedule schedule = {2, 2, 1, counts, rows};
    o->schedule = &schedule;
}
static void zero_options(void *m, tn_group *world, tn_pipeline_options *o) {
    o->from_defaults = false;
}
static void two_stages_each(void *m, tn_group *world, tn_pipeline_options *o) {
    o->chunks = 2;
}

static void refuse_layout(tn_group *world, void *user) {
    const refusal *r = user;
    mesh_model m;
    mesh_shape shape = small_shape();
    mesh_init(&m, &shape, 3, false);
    tn_pipeline_options o = tn_pipeline_defaults();
    if (r->spoil) { r->spoil(&m, world, &o); }
    CHECK(tn_error() == TN_OK && !tn_pipeline_new(&m, world, o));
    CHECK(failed_with(r->status, r->error));
    tn_module_finish(&m);
}

TEST(what_cannot_be_laid_out) {
    static refusal cases[] = {
        {with_ddp, TN_ESTATE, "is under data parallelism already"},
        {with_tensor, TN_ESTATE, "is split over ranks already"},
        {with_pipeline, TN_ESTATE, "is split over ranks already"},
        {two_halves_each, TN_EVALUE, "only with TN_PIPE_INTERLEAVED"},
        {weights_first, TN_ESTATE, "rank 1 at W1.0 wait for each other"},
        {without_parts, TN_EVALUE, "6 parts has not enough for 8 stages"},
        {cuts_beyond, TN_EVALUE, "stage 1 with 6, of 6 parts"},
        {cuts_differ, TN_EMISMATCH,
         "rank 0 has stage 1 from part 2, but rank 1 has stage 1 from part 3"},
        {schedules_differ, TN_EMISMATCH, "rank 0 has a schedule with F1.1 as action 1 of rank 1"},
        {schedule_incomplete, TN_EVALUE, "stage 1, micro-batch 0: 2 times F, 0 B"},
        {zero_options, TN_EVALUE, "tn_pipeline_defaults"},
        {two_stages_each, TN_EVALUE, "only with TN_PIPE_INTERLEAVED"},
    };
    own_schedule = tn_pipe_schedule_read("F0.0 I0.0 W0.0\nF1.0 W1.0 I1.0");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        run_ok(2, refuse_layout, &cases[i]);
    }
    tn_pipe_schedule_free(own_schedule);
}

enum { LONG_STAGES = 300 };

/* Only the last stage begins elsewhere on rank 1. */
RANKS_TEST(long_cuts, 2) {
    tn_sequential m;
    tn_sequential_init(&m);
    int cuts[LONG_STAGES - 1];
    for (int i = 0; i < LONG_STAGES + 1; i++) {
        tn_sequential_add(&m, TN_FN(tn_relu));
    }
    for (int s = 1; s < LONG_STAGES; s++) {
        cuts[s - 1] = s;
    }
    cuts[LONG_STAGES - 2] += tn_group_rank(world);
    CHECK(!tn_pipeline_new(&m, world,
                           TN_WITH(tn_pipeline, .kind = TN_PIPE_INTERLEAVED,
                                   .chunks = LONG_STAGES / 2, .cuts = cuts)) &&
          failed_with(TN_EMISMATCH, "rank 0 has stage 299 from part 299"));
    tn_module_finish(&m);
}

/* A schedule of one's own for one rank, which has nobody to send to. */
RANKS_TEST(stages_of_one_rank, 1) {
    mesh_model m;
    mesh_shape shape = small_shape();
    mesh_init(&m, &shape, 3, false);
    tn_pipe_schedule *s = tn_pipe_schedule_read("F0.0 F1.0 B1.0 B0.0");
    CHECK(!tn_pipeline_new(&m, world, TN_WITH(tn_pipeline, .schedule = s)) &&
          failed_with(TN_EVALUE, "2 stages on one rank"));
    tn_module_finish(&m);
    tn_pipe_schedule_free(s);
}

typedef struct odd {
    tn_module base;
    tn_tensor *loose;
    tn_linear in;
} odd;

static tn_tensor *odd_forward(tn_module *self, tn_tensor *x) {
    return tn_call(&((odd *)self)->in, x);
}

RANKS_TEST(models_without_parts, 2) {
    odd m;
    tn_module_init(&m, "odd", odd_forward);
    tn_linear_init(&m.in, 2, 2, tn_linear_defaults());
    tn_module_add(&m, "in", &m.in);
    CHECK(!tn_pipeline_new(&m, world, tn_pipeline_defaults()) &&
          failed_with(TN_EVALUE, "not a complete language model"));
    tn_module_finish(&m);
}

/* ---- In a step ------------------------------------------------------------------------------- */

typedef struct failing {
    tn_pipe_action at;
    int rank;    /* that fails */
    bool beside; /* data parallelism; and a tied parameter */
} failing;

static _Thread_local bool fails_here;

static void fail_at(tn_pipe_action a, bool done, void *user) {
    const failing *f = user;
    if (fails_here && !done && a.what == f->at.what && a.micro == f->at.micro) {
        tn_raise(TN_EVALUE, "on purpose");
    }
}

/* Every rank's step ends with an error; that of the rank at fault says what, those of the others
 * that it gave up. */
static void fails_in_step(tn_group *world, void *user) {
    failing *f = user;
    mesh_model m;
    mesh_shape shape = small_shape();
    shape.tied = f->beside;
    mesh_init(&m, &shape, 3, false);
    int copies = tn_group_size(world) / RANKS;
    tn_mesh *mesh =
        tn_mesh_new(world, 2, (int[]){RANKS, copies}, (const char *const[]){"pp", "dp"});
    tn_pipeline_options o = TN_WITH(tn_pipeline, .on_action = fail_at, .user = f);
    o.kind = strchr("IW", f->at.what) ? TN_PIPE_ZERO_BUBBLE : TN_PIPE_1F1B;
    tn_pipeline *p = tn_pipeline_new(&m, tn_mesh_group(mesh, "pp"), o);
    if (copies > 1) { tn_ddp(&m, tn_mesh_group(mesh, "dp"), tn_ddp_defaults()); }
    fails_here = tn_group_rank(world) == f->rank;
    TN_SCOPE;
    tn_batch b[4];
    for (int i = 0; i < 4; i++) {
        b[i] = (tn_batch){.x = mesh_tokens(shape.vocab, 2, i), .y = mesh_tokens(shape.vocab, 2, i)};
    }
    double loss = tn_pipeline_step(p, b, 4, NULL);
    CHECK(loss != loss);
    if (fails_here) {
        CHECK(tn_error() == TN_EVALUE && strstr(tn_error_message(), "on purpose"));
    } else {
        CHECK(tn_error() == TN_EPEER && strstr(tn_error_message(), "gave up"));
    }
    tn_error_clear();
    loss = tn_pipeline_step(p, b, 4, NULL); /* the groups are dead: an error at once */
    CHECK(loss != loss && tn_error() != TN_OK);
    tn_error_clear();
    tn_module_finish(&m);
    tn_mesh_free(mesh);
}

TEST(an_error_ends_all) {
    for (int rank = 0; rank < RANKS; rank++) {
        for (int micro = 0; micro < 4; micro++) {
            for (int halves = 0; halves < 2; halves++) {
                failing f = {{(halves ? "IW" : "FB")[micro % 2], 0, micro}, rank, false};
                run_ok(RANKS, fails_in_step, &f);
                f.rank = 2 * rank; /* of the same stage */
                f.beside = true;
                run_ok(2 * RANKS, fails_in_step, &f);
            }
        }
    }
}

/* Rank 1 fails; those that compute its stage with it, and the others of each, are told. */
static void fails_on_mesh(tn_group *world, void *mesh) {
    static failing at = {.at = {'F', 0, 1}, .rank = 1};
    mesh_model m;
    mesh_shape shape = small_shape();
    mesh_init(&m, &shape, 3, false);
    tn_spread_options o = TN_WITH(tn_spread, .pipeline.on_action = fail_at, .pipeline.user = &at);
    tn_spread_read(&o, mesh);
    tn_spread *s = tn_spread_new(&m, world, o);
    tn_loader *loader = mesh_loader(tn_spread_data(s), 1);
    fails_here = tn_group_rank(world) == at.rank;
    double loss = tn_spread_step(s, loader, 4, NULL);
    CHECK(loss != loss && failed_with(fails_here ? TN_EVALUE : TN_EPEER, "on purpose"));
    stay_until_told(world);
    tn_loader_free(loader);
    tn_module_finish(&m);
    tn_spread_free(s);
}

static tn_status get_or_fail(tn_dataset *self, tn_example e, void *x, void *y) {
    return fails_here ? tn_raise(TN_EVALUE, "on purpose") : mesh_get(self, e, x, y);
}

static void reads_batches(tn_group *world, void *user) {
    mesh_model m;
    mesh_shape shape = small_shape();
    mesh_init(&m, &shape, 3, false);
    tn_spread *s = mesh_spread(&m, world, "pp=3");
    tn_loader *loader = mesh_loader(tn_spread_data(s), 1);
    ((tn_dataset *)tn_loader_dataset(loader))->get = get_or_fail;
    fails_here = tn_group_rank(world) == *(int *)user;
    double loss = tn_spread_step(s, loader, 4, NULL);
    CHECK(loss != loss &&
          failed_with(fails_here ? TN_EVALUE : TN_EPEER, fails_here ? "on purpose" : "gave up"));
    tn_loader_free(loader);
    tn_module_finish(&m);
    tn_spread_free(s);
}

TEST(an_error_ends_a_mesh) {
    static char meshes[][32] = {"pp=2,tp=2", "pp=2,cp=2", "pp=2,shard=2", "pp=2,dp=2"};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(*meshes); i++) {
        run_ok(4, fails_on_mesh, meshes[i]);
    }
}

/* Rank 1 has more micro-batches than the others, or measures the loss while they step. */
static void other_step(tn_group *world, void *measures) {
    mesh_model m;
    mesh_shape shape = small_shape();
    mesh_init(&m, &shape, 3, false);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    TN_SCOPE;
    tn_tensor *x = mesh_tokens(shape.vocab, 2, 1);
    tn_batch b[4] = {{.x = x, .y = x}, {.x = x, .y = x}, {.x = x, .y = x}, {.x = x, .y = x}};
    bool other = tn_group_rank(world) == 1;
    double loss =
        other && measures ? tn_pipeline_loss(p, b, 2) : tn_pipeline_step(p, b, other ? 4 : 2, NULL);
    CHECK(loss != loss &&
          failed_with(other ? TN_EMISMATCH : TN_EPEER,
                      measures ? "rank 0 runs a step of 2 micro-batches, and rank 1 "
                                 "measures the loss of 2"
                               : "rank 0 runs a step of 2 micro-batches, and rank 1 "
                                 "runs a step of 4"));
    stay_until_told(world);
    tn_module_finish(&m);
}

TEST(ranks_with_other_steps) {
    static bool measures = true;
    run_ok(RANKS, other_step, NULL);
    run_ok(RANKS, other_step, &measures);
}

TEST(an_error_of_a_loader_ends_all) {
    for (int rank = 0; rank < RANKS; rank++) {
        run_ok(RANKS, reads_batches, &rank);
    }
}

/* All are told, instead of waiting for rank 2's gradient. */
RANKS_TEST(a_tie_frozen_on_one_rank, RANKS) {
    mesh_model m;
    mesh_shape shape = small_shape();
    shape.tied = true;
    mesh_init(&m, &shape, 3, false);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    if (tn_group_rank(world) == 2) { CHECK(tn_freeze(&m, "embed_tokens") == 1); }
    TN_SCOPE;
    tn_tensor *x = mesh_tokens(shape.vocab, 2, 1);
    tn_batch b[2] = {{.x = x, .y = x}, {.x = x, .y = x}};
    double loss = tn_pipeline_step(p, b, 2, NULL);
    CHECK(loss != loss && tn_error() != TN_OK);
    CHECK(strstr(tn_error_message(), "embed_tokens.weight is frozen on some of the ranks"));
    tn_error_clear();
    tn_module_finish(&m);
}

typedef struct misuse {
    tn_tensor *x, *y; /* of the second micro-batch */
    int n;
    int rank; /* where the error is raised first */
    tn_status status;
    const char *error;
    bool calls;
} misuse;

static void misuse_step(tn_group *world, void *user) {
    const misuse *u = user;
    mesh_model m;
    mesh_shape shape = small_shape();
    mesh_init(&m, &shape, 3, false);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    TN_SCOPE;
    tn_tensor *x = mesh_tokens(shape.vocab, 2, 1);
    tn_batch b[2] = {{.x = x, .y = x}, {.x = u->x, .y = u->y}};
    if (u->calls) {
        tn_call(&m, x);
    } else {
        tn_pipeline_step(p, b, u->n, NULL);
    }
    if (tn_group_rank(world) == u->rank || u->calls) {
        CHECK(tn_error() == u->status && strstr(tn_error_message(), u->error));
    } else {
        CHECK(tn_error() != TN_OK);
    }
    tn_error_clear();
    tn_module_finish(&m);
}

TEST(what_a_step_refuses) {
    TN_SCOPE;
    tn_tensor *x = mesh_tokens(29, 2, 1), *one = mesh_tokens(29, 1, 1);
    misuse cases[] = {
        {x, NULL, 2, 1, TN_EVALUE, "(in forward of stage 1, micro-batch 1)", false},
        {NULL, x, 2, 0, TN_EVALUE, "x is NULL", false},
        {one, one, 2, 0, TN_ESHAPE, "stage 0 gives [1, 8, 16], and gave [2, 8, 16]", false},
        {x, x, 0, 0, TN_EVALUE, "no micro-batches", false},
        {x, x, 2, 0, TN_ESTATE, "its layers are on 2 ranks", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        run_ok(2, misuse_step, &cases[i]);
    }
}

/* ---- Without memory -------------------------------------------------------------------------- */

/* Rank 1's last allocation of attaching fails. What is left of its model can only be finished. */
static void attaches_short(tn_group *world, void *user) {
    enum { MANY = 1 << 20 };
    long left = 0; /* of MANY; the first time fills caches */
    for (int time = 0; time < 3; time++) {
        mesh_model m;
        mesh_shape shape = small_shape();
        mesh_init(&m, &shape, 3, false);
        bool fails = time == 2 && tn_group_rank(world) == 1;
        fail_malloc_at(fails ? MANY - left - 1 : MANY, 1);
        tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
        left = fail_malloc.before;
        fail_malloc_end();
        CHECK(p || time == 2); /* where meeting takes fewer allocations, none fails */
        if (!p) {
            CHECK(tn_error() != TN_OK);
            tn_error_clear();
            tn_call(&m, mesh_tokens(shape.vocab, 2, 1));
            CHECK(failed_with(TN_ESTATE, "not complete"));
        }
        tn_module_finish(&m);
        tn_error_clear();
    }
}

/* Allocation `at` of a second step, which finds gradients of a tied parameter, fails on a rank. */
typedef struct shortage {
    int64_t at;
    bool halves; /* ZB-H1, with blocks that are recomputed */
} shortage;

static void steps_short(tn_group *world, void *user) {
    const shortage *s = user;
    mesh_model m;
    mesh_shape shape = small_shape();
    shape.tied = true;
    mesh_init(&m, &shape, 3, false);
    TN_SCOPE;
    tn_tensor *x = mesh_tokens(shape.vocab, 2, 1);
    tn_batch b[3] = {{.x = x, .y = x}, {.x = x, .y = x}, {.x = x, .y = x}};
    tn_module *parts[6];
    int count = tn_lm_parts(&m, parts, 6);
    for (int i = 1; i + 1 < count && s->halves; i++) {
        tn_module_set_recompute(parts[i], true);
    }
    tn_pipeline *p = tn_pipeline_new(
        &m, world, TN_WITH(tn_pipeline, .kind = s->halves ? TN_PIPE_ZERO_BUBBLE : TN_PIPE_1F1B));
    tn_pipeline_step(p, b, 2, NULL);
    CHECK(tn_error() == TN_OK);
    if (tn_group_rank(world) == 1) { tn__alloc_fail_at(s->at); }
    for (int i = 0; i < 2; i++) { /* an error, and then another one */
        tn_pipeline_step(p, b, 3, NULL);
        tn_error_clear();
    }
    tn_module_finish(&m);
}

TEST(memory_runs_out) {
    run_ok(2, attaches_short, NULL);
    for (int halves = 0; halves < 2; halves++) {
        bool failed = true;
        for (shortage s = {.halves = halves}; failed; s.at += 1 + s.at / 50) {
            run_ok(2, steps_short, &s);
            failed = !tn__alloc_fail_armed();
            tn__alloc_fail_at(-1);
        }
    }
}
