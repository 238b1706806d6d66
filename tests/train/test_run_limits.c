/* A run ends, saved, where its limits say: units, hours, money. run_program.h is the program. */
#include "run_program.h"

/* Units are those of the whole run, so a run that continues counts on. */
TEST(ends_at_units) {
    static const struct {
        int64_t until, steps;
        const char *said;
    } starts[] = {
        {5, 3, "ended after step 3 of 5, saved: 6 tok are done\n"}, /* 2 a step */
        {6, 0, "ended after step 3 of 5, saved: 6 tok are done\n"},
        {8, 1, "ended after step 4 of 5, saved: 8 tok are done\n"},
        {10, 1, "losses: "},
    };
    char out[512], text[SAID];
    snprintf(out, sizeof(out), "%s", temp_path("units"));
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
        program p = make_program(out, STEPS);
        p.options.until_units = starts[i].until;
        p.options.resume = true;
        program_said(&p, text, sizeof(text));
        assert_int_equal(p.status, 0);
        assert_int_equal(p.steps, starts[i].steps);
        assert_contains(text, starts[i].said);
        assert_null(strstr(text, "--resume"));
    }
    same_end(out, undisturbed_run(), STEPS);
}

TEST(units_without_a_name) {
    char text[SAID];
    const char *out = temp_path("nameless");
    program p = make_program(out, STEPS);
    p.options.unit = NULL;
    p.options.until_units = 4;
    program_said(&p, text, sizeof(text));
    assert_contains(text, "ended after step 2 of 5, saved: 4 unit are done\n");
    assert_contains(text, " unit/s\n");
}

/* Time and money are those of a start: each makes a step at least, and says how to continue. */
TEST(ends_at_hours) {
    char text[SAID];
    const char *out = temp_path("hours");
    for (int64_t i = 1; i < STEPS; i++) {
        program p = make_program(out, STEPS);
        p.options.hours = i % 2 ? 1e-9 : 1000;
        p.options.until_cost = i % 2 ? 1000 : 1e-9;
        p.options.price = i % 2 ? 1e-9 : 1000;
        p.options.resume = true;
        program_said(&p, text, sizeof(text));
        assert_int_equal(p.status, 0);
        assert_int_equal(p.steps, 1);
        char said[128];
        snprintf(said, sizeof(said), "ended after step %d of 5, saved: 1e-09 %s\n", (int)i,
                 i % 2 ? "hours have passed" : "is spent");
        assert_contains(text, said);
        assert_contains(text, "the same command with --resume continues\n");
    }
    program p = make_program(out, STEPS);
    p.options.resume = true;
    p.options.hours = p.options.until_cost = p.options.price = 1000;
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    assert_int_equal(p.steps, 1);
    same_end(out, undisturbed_run(), STEPS);
}

static void run_with_hours(tn_group *world, void *user) {
    int64_t *steps = user;
    int rank = tn_group_rank(world);
    tn_linear net;
    tn_linear_init(&net, 3, 1, tn_linear_defaults());
    tn_run_options o = TN_WITH(tn_run, .out = temp_folder, .overwrite = true, .steps = 3);
    o.hours = rank == *steps ? 1e-9 : 0;
    tn_run *r = tn_run_new(world, o, (tn_checkpoint){.model = &net});
    while (tn_run_next(r)) {
        tn_run_log(r, "loss", 1.0);
    }
    steps[1 + rank] = tn_run_step(r);
    tn_run_end(r);
    tn_module_finish(&net);
}

/* Clocks differ, so rank 0's decides for all. */
TEST(hours_of_rank_0) {
    temp_path("");
    for (int late = 0; late < 2; late++) {
        int64_t steps[3] = {late};
        silence before = silence_begin();
        tn_status status = tn_local_run(2, run_with_hours, steps);
        silence_end(before);
        assert_int_equal(status, TN_OK);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(steps[1 + rank], late == 0 ? 1 : 3);
        }
    }
}

TEST(wrong_limits) {
    const char *out = temp_path("limits");
    static const char *const wanted[] = {"a limit is below 0", "until_units is -1",
                                         "needs the price"};
    for (int i = 0; i < 3; i++) {
        program p = make_program(out, STEPS);
        p.options.hours = i == 0 ? NAN : 0;
        p.options.until_units = i == 1 ? -1 : 0;
        p.options.until_cost = i == 2;
        quiet_run(&p);
        assert_int_equal(p.status, 1);
        assert_error(TN_EVALUE, wanted[i]);
    }
}
