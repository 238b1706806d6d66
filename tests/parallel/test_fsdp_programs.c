/* Programs that are not the plain loop: whatever they do, sharding gives the parameters that data
 * parallelism or the naive twin gives, or an error that says why not. Ranks are threads. */

#include "fsdp_net.h"

#include "tests/support/temp.h"

/* ---- The same numbers -------------------------------------------------------------------------
 */

typedef struct program {
    const char *name;
    strategy like;
    void (*prepare)(net *m); /* before it is attached; may be NULL */
    void (*train)(net *m, tn_optim *opt, int rank);
} program;

typedef struct program_run {
    run how;
    const program *program;
} program_run;

static void step_and_zero(tn_optim *opt) {
    tn_optim_step(opt);
    tn_optim_zero_grad(opt);
}

/* A forward that nothing follows, before a step and after one. */
static void forgets_forwards(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        net_loss(m, 50 + rank);
        net_backward(m, i * MOST + rank);
        net_loss(m, 60 + rank);
        step_and_zero(opt);
        TN_NO_GRAD;
        net_loss(m, 70 + rank);
    }
}

/* Units in one order and in the other, recorded and not. */
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

static void adds_losses(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_tensor *a = net_loss(m, 2 * i * MOST + rank),
                  *b = net_loss(m, (2 * i + 1) * MOST + rank);
        tn_backward(tn_add(a, b));
        step_and_zero(opt);
    }
}

/* Twice through one graph: data parallelism takes the mean of a mean. */
static void retains_graph(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        tn_tensor *loss = net_loss(m, i * MOST + rank);
        tn_backward_from(&loss, NULL, 1, true);
        tn_backward(loss);
        step_and_zero(opt);
    }
}

/* The gradient of an input, through a unit and through none of its parameters. */
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

/* Parts of the module, which is never called itself. */
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

static void trains_plainly(net *m, tn_optim *opt, int rank) {
    for (int i = 0; i < 3; i++) {
        net_backward(m, i * MOST + rank);
        tn_optim_clip(opt, 0.1);
        step_and_zero(opt);
    }
}

static const program programs[] = {
    {"forgets forwards", DDP, NULL, forgets_forwards},
    {"changes order", DDP, NULL, changes_order},
    {"adds losses", DDP, NULL, adds_losses},
    {"retains graph", NAIVE, NULL, retains_graph},
    {"asks for an input", DDP, NULL, asks_for_an_input},
    {"calls units", DDP, freeze_most, calls_units},
    {"mixes dtypes", DDP, mix_dtypes, trains_plainly},
};

static void runs_program(tn_group *g, void *user) {
    const program_run *r = user;
    int rank = tn_group_rank(g);
    net m;
    net_init(&m, 9);
    if (r->program->prepare) {
        r->program->prepare(&m);
    }
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

static void test_odd_programs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
        for (int ranks = 1; ranks <= MOST; ranks++) {
            tn_fsdp_options o = tn_fsdp_defaults();
            numbers want = end_of(ranks, &programs[i], programs[i].like, o);
            for (int k = 0; k < 4; k++) {
                o.stage = k < 3 ? k + 1 : 3;
                o.prefetch = k;
                o.keep_last = k & 1;
                o.units = k == 3 ? "h.* h.*.inner" : NULL;
                numbers is = end_of(ranks, &programs[i], FSDP, o);
                if (!same_numbers(&is, &want)) {
                    fail_msg("%s, stage %d, %d ranks: other numbers", programs[i].name, o.stage,
                             ranks);
                }
            }
        }
    }
}

/* ---- What ends a job --------------------------------------------------------------------------
 */

/* Rank 1's data ends a step before the others'. */
static void has_less_data(tn_group *g, void *user) {
    (void)user;
    net m;
    net_init(&m, 1);
    tn_fsdp(&m, g, NULL, tn_fsdp_defaults());
    int steps = tn_group_rank(g) == 1 ? 2 : 3;
    for (int i = 0; i < steps && tn_error() == TN_OK; i++) {
        net_backward(&m, i);
    }
    CHECK(tn_error() == (tn_group_rank(g) == 1 ? TN_OK : TN_EPEER));
    tn_module_finish(&m);
}

static void test_data_that_ends_earlier(void **state) {
    (void)state;
    const char *text = run_failing(3, has_less_data, NULL, TN_EPEER);
    assert_contains(text, "rank 1");
    assert_contains(text, "may have ended earlier");
}

static tn_values fail_here(tn_module *m, tn_values in, void *user) {
    (void)m;
    (void)user;
    tn_raise(TN_EVALUE, "the fuse has blown");
    return in;
}

/* In a forward of rank 1: the others do not wait for it, and all can go on without the module. */
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
        if (recorded) {
            tn_backward(loss);
        }
    }
    bool me = tn_group_rank(g) == 1;
    if (me || recorded) { /* otherwise the others may have had all that they needed */
        CHECK(tn_error() == (me ? TN_EVALUE : TN_EPEER));
        CHECK(strstr(tn_error_message(), "the fuse has blown"));
    }
    tn_error_clear();
    CHECK(!me || tn_fsdp_statistics(s).whole == 0); /* nothing is half there */
    net_backward(&m, 2);
    CHECK(tn_error() == TN_EPEER && strstr(tn_error_message(), "the fuse has blown"));
    CHECK(tn_fsdp_statistics(s).whole == 0);
    stay_until_told(g);
    tn_error_clear();
    tn_module_finish(&m);
}

static void test_an_error_in_a_forward(void **state) {
    (void)state;
    bool recorded[] = {true, false};
    run_ok(3, fails_in_forward, &recorded[0]);
    run_ok(3, fails_in_forward, &recorded[1]);
}

int main(void) {
    tn_set_threads(1);
    const struct CMUnitTest tests[] = {
        TEST(test_odd_programs),
        TEST(test_data_that_ends_earlier),
        TEST(test_an_error_in_a_forward),
    };
    return cmocka_run_group_tests_name("programs of sharding", tests, temp_flights, temp_clean);
}
