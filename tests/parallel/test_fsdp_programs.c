/* Programs other than the plain loop: sharding gives the parameters that data parallelism or the
 * naive version gives, or an error that says why not. Ranks are threads. */

#include "fsdp_net.h"

#include "tests/support/temp.h"

/* ---- The same numbers ------------------------------------------------------------------------ */

typedef struct program {
    const char *name;
    strategy like;
    void (*prepare)(net *m); /* before attaching; may be NULL */
    void (*train)(net *m, tn_optim *opt, int rank);
    bool find_unused;  /* true: all ranks call all units, but not all of their parts */
    const char *units; /* in one of the runs; NULL: "h.* h.*.inner" */
} program;

typedef struct program_run {
    run how;
    const program *program;
} program_run;

static void step_and_zero(tn_optim *opt) {
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

/* Units in either order, with a graph and without. */
static void changes_order(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 6; i++) {
        m->backwards = i & 1;
        net_backward(m, i * MOST + rank);
        step_and_zero(opt);
        TN_SCOPE;
        TN_NO_GRAD;
        m->backwards = i & 2;
        net_loss(m, 50 + rank);
    }
}

/* Twice through one graph: here data parallelism would average an average. */
static void retains_graph(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_tensor *loss = net_loss(m, i * MOST + rank);
        tn_backward_from(&loss, NULL, 1, true);
        tn_backward(loss);
        step_and_zero(opt);
    }
}

/* The gradient of an input, through a unit but not to its parameters. */
static void asks_for_an_input(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_tensor *x = tn_set_requires_grad(tn_full(TN_DIMS(2, WIDTH), 0.1 * rank, TN_F32), true);
        tn_tensor *y = tn_sum_all(tn_call(&m->h[0], x)), *grad;
        CHECK(tn_grad(&y, NULL, 1, &x, 1, &grad, tn_grad_defaults()) == TN_OK);
        CHECK(tn_item(tn_sum_all(tn_square(grad))) > 0);
        net_backward(m, i * MOST + rank);
        step_and_zero(opt);
    }
}

static void freeze_most(net *m) {
    tn_module_requires_grad(&m->wte, false);
    tn_module_requires_grad(&m->h[1], false);
}

/* Calls units of the module, but never the module. */
static void calls_units(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 4; i++) {
        TN_SCOPE;
        tn_tensor *x = tn_full(TN_DIMS(2, WIDTH), 0.1 * rank, TN_F32);
        tn_backward(tn_sum_all(tn_square(tn_call(&m->h[0], tn_call(&m->h[1], x)))));
        step_and_zero(opt);
    }
}

/* One unit with parameters in two dtypes. */
static void mix_dtypes(net *m) {
    tn_precision policy = tn_precision_defaults();
    policy.param = TN_BF16;
    policy.cast_output = true;
    tn_module_set_precision(&m->h[1].inner, policy);
}

/* And all of them with one compute dtype. */
static void mix_params(net *m) {
    tn_module_set_precision(m, tn_precision_defaults());
    mix_dtypes(m);
}

static void trains_plainly(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        net_backward(m, i * MOST + rank);
        tn_optim_clip(opt, 0.1);
        step_and_zero(opt);
    }
}

/* Evaluates the whole module in the middle of a unit's forward. */
static tn_values evaluate_all(tn_module *self, tn_values in, void *user) {
    net *m = user;
    if (tn_grad_mode()) {
        TN_NO_GRAD;
        net_loss(m, 99);
    }
    return in;
}

static void evaluate_inside(net *m) {
    tn_module_hook(&m->h[0].out, (tn_module_hooks){.before = evaluate_all, .user = m});
}

/* Gradients that were kept under TN_NO_SYNC when their unit was frozen. */
static void freezes_what_was_kept(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        {
            TN_NO_SYNC(m);
            net_backward(m, i * MOST + rank);
        }
        tn_module_requires_grad(&m->h[1], false);
        net_backward(m, i * MOST + rank);
        tn_module_requires_grad(&m->h[1], true);
        net_backward(m, i * MOST + rank);
        step_and_zero(opt);
    }
}

/* Some ranks leave out part of a unit, different ranks each time. */
static void leaves_out(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 4; i++) {
        m->h[1].skips = (i + rank) & 1;
        net_backward(m, i * MOST + rank);
        step_and_zero(opt);
    }
}

static void call_twice(net *m) {
    m->twice = true;
}

static const program programs[] = {
    {"changes order", DDP, NULL, changes_order, false, NULL},
    {"retains graph", NAIVE, NULL, retains_graph, false, NULL},
    {"asks for an input", DDP, NULL, asks_for_an_input, false, NULL},
    {"calls units", DDP, freeze_most, calls_units, false, NULL},
    {"mixes dtypes", DDP, mix_dtypes, trains_plainly, false, NULL},
    {"mixes parameters", DDP, mix_params, trains_plainly, false, NULL},
    {"evaluates inside", DDP, evaluate_inside, trains_plainly, false, NULL},
    {"freezes what was kept", NAIVE, NULL, freezes_what_was_kept, false, NULL},
    {"calls twice", DDP, call_twice, trains_plainly, false, "h.*"},
    {"leaves out", DDP, NULL, leaves_out, true, "head"},
    {"leaves out of parts", DDP, NULL, leaves_out, true, "h.*.out h.1"},
};

static void runs_program(tn_group *g, void *user) {
    const program_run *r = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 9);
    if (r->program->prepare) { r->program->prepare(&m); }
    attach_as(&m, g, &r->how);
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    r->program->train(&m, opt, rank);
    r->how.ends[rank] = numbers_of(&m);
    CHECK(tn_error() == TN_OK);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

static numbers end_of(int ranks, const program *p, strategy how, tn_fsdp_options options) {
    static numbers ends[MOST];
    program_run r = {{.how = how, .options = options, .ends = ends}, p};
    run_ok(ranks, runs_program, &r);
    return ends[0];
}

TEST(test_odd_programs) {
    for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
        for (int ranks = 1; ranks <= MOST; ranks++) {
            tn_fsdp_options o = TN_WITH(tn_fsdp, .find_unused = programs[i].find_unused);
            numbers want = end_of(ranks, &programs[i], programs[i].like, o);
            for (int k = 0; k < 4; k++) {
                o.stage = k < 3 ? k + 1 : 3;
                o.prefetch = k;
                const char *units = programs[i].units ? programs[i].units : "h.* h.*.inner";
                o.units = k == 3 ? units : NULL;
                numbers is = end_of(ranks, &programs[i], FSDP, o);
                if (!same_numbers(&is, &want)) {
                    fail_msg("%s, stage %d, %d ranks: different numbers", programs[i].name, o.stage,
                             ranks);
                }
            }
        }
    }
}

/* ---- What stays gathered, and what is trained later ------------------------------------------ */

/* The module was called, but backward only goes through one unit. */
RANKS_TEST(test_nothing_stays, 2) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    freeze_most(&m);
    const tn_fsdp_state *s = tn_fsdp(&m, world, NULL, tn_fsdp_defaults());
    for (int i = 0; i < 3; i++) {
        net_loss(&m, i);
        CHECK(tn_fsdp_statistics(s).whole > 0);
        tn_tensor *y = tn_call(&m.h[0], tn_ones(TN_DIMS(1, WIDTH), TN_F32));
        tn_backward(tn_sum_all(y));
        CHECK(tn_fsdp_statistics(s).whole == 0);
    }
    CHECK(tn_error() == TN_OK);
    tn_module_finish(&m);
}

/* A unit that is frozen when sharded has no gradients for its parts; it has from the first forward
 * after it is thawed. */
static void thaws_unit(tn_group *g, void *user) {
    net m, want;
    net_init(&m, 1);
    net_init(&want, 1);
    tn_module_train(&m, false);
    tn_module_train(&want, false);
    tn_module_requires_grad(&m.h[1], false);
    attach_as(&m, g, user);
    net_backward(&m, 1);
    tn_module_zero_grad(&m);
    tn_module_requires_grad(&m.h[1], true);
    net_backward(&m, 2);
    net_backward(&want, 2);
    double is = tn_clip_grad_norm(&m.h[1], 1e9), norm = tn_clip_grad_norm(&want.h[1], 1e9);
    CHECK(norm > 0 && is > norm * (1 - 1e-6) && is < norm * (1 + 1e-6));
    tn_module_finish(&m);
    tn_module_finish(&want);
}

TEST(test_what_is_thawed) {
    run ways[] = {{.how = FSDP, .options = tn_fsdp_defaults()}, {.how = NAIVE}};
    run_ok(2, thaws_unit, &ways[0]);
    run_ok(2, thaws_unit, &ways[1]);
}

/* A graph that uses the weights from before a step, in either compute dtype. */
static void steps_too_early(tn_group *g, void *user) {
    TN_SCOPE;
    net m;
    net_init(&m, 1);
    if (*(const bool *)user) { tn_module_set_precision(&m, tn_precision_defaults()); }
    tn_fsdp(&m, g, NULL, tn_fsdp_defaults());
    tn_optim *opt = tn_adamw(&m, tn_adamw_defaults());
    tn_tensor *before = net_loss(&m, 1);
    net_backward(&m, 2);
    tn_optim_step(opt);
    CHECK(tn_backward(before) == TN_ESTATE && failed_with(TN_ESTATE, "changed in place"));
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(test_a_graph_from_before_a_step) {
    bool bf16[] = {false, true};
    run_ok(1, steps_too_early, &bf16[0]);
    run_ok(1, steps_too_early, &bf16[1]);
}

/* ---- Errors that end a job ------------------------------------------------------------------- */

/* Rank 1 has one step less data than the others. */
RANKS_TEST_FAILS(test_data_that_ends_earlier, 3, TN_EPEER, "rank 1 has left") {
    net m;
    net_init(&m, 1);
    tn_fsdp(&m, world, NULL, tn_fsdp_defaults());
    int steps = tn_group_rank(world) == 1 ? 2 : 3;
    for (int i = 0; i < steps && tn_error() == TN_OK; i++) {
        net_backward(&m, i);
    }
    CHECK(tn_error() == (tn_group_rank(world) == 1 ? TN_OK : TN_EPEER));
    tn_module_finish(&m);
}

static tn_values fail_here(tn_module *m, tn_values in, void *user) {
    tn_raise(TN_EVALUE, "the fuse has blown");
    return in;
}

/* An error in rank 1's forward: the others do not wait for it, and all can continue without the
 * module. */
static void fails_in_forward(tn_group *g, void *user) {
    bool recorded = *(const bool *)user;
    net m;
    net_init(&m, 1);
    tn_fsdp_state *s = tn_fsdp(&m, g, NULL, tn_fsdp_defaults());
    net_backward(&m, 0);
    tn_module_zero_grad(&m);
    if (tn_group_rank(g) == 1) {
        tn_module_hook(&m.h[0].out, (tn_module_hooks){.before = fail_here});
    }
    {
        TN_SCOPE;
        bool before = tn_grad_mode_begin(recorded);
        tn_tensor *loss = net_loss(&m, 1);
        tn_grad_mode_end(&before);
        if (recorded) { tn_backward(loss); }
    }
    bool me = tn_group_rank(g) == 1;
    if (me || recorded) { /* otherwise the others may have had all that they needed */
        CHECK(tn_error() == (me ? TN_EVALUE : TN_EPEER));
        CHECK(strstr(tn_error_message(), "the fuse has blown"));
    }
    tn_error_clear();
    CHECK(!me || tn_fsdp_statistics(s).whole == 0); /* nothing is half gathered */
    net_backward(&m, 2);
    CHECK(tn_error() == TN_EPEER && strstr(tn_error_message(), "the fuse has blown"));
    CHECK(tn_fsdp_statistics(s).whole == 0);
    stay_until_told(g);
    tn_error_clear();
    tn_module_finish(&m);
}

TEST(test_an_error_in_a_forward) {
    bool recorded[] = {true, false};
    run_ok(3, fails_in_forward, &recorded[0]);
    run_ok(3, fails_in_forward, &recorded[1]);
}

/* Rank 1 has an error before TN_WHOLE: the others do not wait for its parts. */
RANKS_TEST(test_an_error_before_whole, 3) {
    net m;
    net_init(&m, 1);
    const tn_fsdp_state *s = tn_fsdp(&m, world, NULL, tn_fsdp_defaults());
    bool me = tn_group_rank(world) == 1;
    if (me) { tn_raise(TN_EVALUE, "the fuse has blown"); }
    {
        TN_WHOLE(&m);
        CHECK(tn_error() == (me ? TN_EVALUE : TN_EPEER));
        CHECK(strstr(tn_error_message(), "the fuse has blown"));
    }
    CHECK(tn_fsdp_statistics(s).whole == 0);
    stay_until_told(world);
    tn_error_clear();
    tn_module_finish(&m);
}
