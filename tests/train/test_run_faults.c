/* A run can continue after anything that goes wrong: numbers that are not finite, a full disk,
 * memory. run_program.h is the program. */
#include <sys/resource.h>
#include <sysexits.h>

#include "core/allocator.h"
#include "run_program.h"

/* A bad loss, or a bad weight at the save, ends the run before anything is saved: it continues from
 * the checkpoint before, as if uninterrupted. A loss may be allowed, a weight never is. */
TEST(stops_at_a_nan) {
    const char *whole = undisturbed_run();
    static const char *const wanted[] = {
        "after step 4 of 5 the loss is NaN or infinite; the last checkpoint is step-000002 in /",
        "after step 4 of 5 bias has elements that are NaN or infinite; the last checkpoint is "
        "step-000002 in /"};
    char out[512];
    for (int weight = 0; weight < 2; weight++) {
        snprintf(out, sizeof(out), "%s", temp_path(weight ? "nan_weight" : "nan_loss"));
        program p = make_program(out, STEPS);
        *(weight ? &p.bad_weight_at : &p.bad_loss_at) = 3;
        p.options.allow_nan = weight;
        quiet_run(&p);
        assert_int_equal(p.status, EX_DATAERR);
        assert_int_equal(p.steps, 4);
        assert_error(TN_EVALUE, wanted[weight]);
        assert_true(is_there(out, "step-000002") && !is_there(out, "step-000004"));
        p = make_program(out, STEPS);
        p.options.resume = true;
        quiet_run(&p);
        assert_int_equal(p.status, 0);
        same_end(out, whole, STEPS);
    }
    snprintf(out, sizeof(out), "%s", temp_path("nan_allowed"));
    program p = make_program(out, STEPS);
    p.bad_loss_at = 3;
    p.options.allow_nan = true;
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    assert_int_equal(p.steps, STEPS);
    snprintf(out, sizeof(out), "%s", temp_path("nan_at_once"));
    p = make_program(out, STEPS);
    p.bad_weight_at = 0;
    p.leave_at = 1; /* saved at the end */
    quiet_run(&p);
    assert_int_equal(p.status, EX_DATAERR);
    assert_error(TN_EVALUE, "infinite; there is no checkpoint to continue from in /");
    assert_false(is_there(out, "step-000001"));
}

/* One of the ranks logs an infinite loss, or has an infinite weight. */
typedef struct bad_rank {
    int bad;
    bool weight;
    int status[2];
    char said[2][1024];
} bad_rank;

static void run_bad_rank(tn_group *world, void *user) {
    bad_rank *b = user;
    int rank = tn_group_rank(world);
    tn_linear net;
    tn_linear_init(&net, 3, 1, tn_linear_defaults());
    tn_run *r =
        tn_run_new(world, TN_WITH(tn_run, .out = temp_folder, .save_every = 2, .overwrite = true),
                   (tn_checkpoint){.model = &net});
    while (tn_run_next(r)) {
        bool bad = rank == b->bad && tn_run_step(r) == 4;
        if (bad && b->weight) {
            TN_NO_GRAD;
            tn_fill_(net.bias, NAN);
        }
        tn_run_log(r, "loss", bad && !b->weight ? INFINITY : 1.0);
    }
    snprintf(b->said[rank], sizeof(b->said[rank]), "%s", tn_error_message());
    b->status[rank] = tn_run_end(r);
    tn_module_finish(&net);
    tn_error_clear();
}

/* No rank saves, and no rank waits for another. */
TEST(stops_at_a_nan_of_one_rank) {
    temp_path("");
    for (int i = 0; i < 4; i++) {
        bad_rank b = {.bad = i % 2, .weight = i / 2};
        silence before = silence_begin();
        tn_status status = tn_local_run(2, run_bad_rank, &b);
        silence_end(before);
        assert_int_equal(status, TN_OK);
        for (int rank = 0; rank < 2; rank++) {
            const char *own = b.weight ? "bias has elements" : "the loss is";
            char theirs[40];
            snprintf(theirs, sizeof(theirs), "rank %d%s", b.bad,
                     b.weight ? " has weights that are NaN" : "'s loss is NaN");
            assert_int_equal(b.status[rank], EX_DATAERR);
            assert_contains(b.said[rank], rank == b.bad ? own : theirs);
            assert_contains(b.said[rank], "; the last checkpoint is step-000004 in");
        }
        assert_false(is_there(temp_folder, "step-000005") || is_there(temp_folder, "step-000006"));
    }
}

/* If the disk is full the run ends with an error; when there is space again it continues. */
TEST(full_disk) {
    const char *whole = undisturbed_run();
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 12000; most += most < 400 ? 60 : 1600) {
        char name[32];
        snprintf(name, sizeof(name), "full_%d", (int)most);
        const char *out = temp_path(name);
        program p = make_program(out, STEPS);
        small = before;
        small.rlim_cur = most;
        setrlimit(RLIMIT_FSIZE, &small);
        quiet_run(&p);
        setrlimit(RLIMIT_FSIZE, &before);
        if (p.status != 0) {
            assert_int_equal(p.status, 1);
            assert_error(TN_EIO, "File too large");
        }
        p = make_program(out, STEPS);
        p.options.resume = true;
        quiet_run(&p);
        assert_int_equal(p.status, 0);
        same_end(out, whole, STEPS);
    }
}

/* If an allocation fails the run ends with an error, or manages without; then it continues. */
TEST(no_memory) {
    const char *whole = undisturbed_run();
    const char *out = temp_path("memory");
    int64_t live = tn_live_tensors();
    int n = 0, failures = 0;
    for (bool reached = true; reached; n += 1 + n / 15) {
        temp_remove(out);
        program p = make_program(out, STEPS);
        p.options.save_every = STEPS; /* what takes time here is the disk */
        tn__alloc_fail_at(n);
        quiet_run(&p);
        reached = !tn__alloc_fail_armed();
        tn__alloc_fail_at(-1);
        assert_int_equal(tn_live_tensors(), live);
        assert_int_equal(p.status, tn_error() == TN_OK ? 0 : 1);
        if (tn_error() != TN_OK) {
            assert_error(TN_ENOMEM, "");
            failures++;
        }
        if (p.status != 0) {
            p = make_program(out, STEPS);
            p.options.save_every = STEPS;
            p.options.resume = true;
            quiet_run(&p);
            assert_int_equal(p.status, 0);
        }
        same_end(out, whole, STEPS);
    }
    assert_true(failures > 20);
}

/* A loop that checks no errors: the run reports them. */
TEST(errors_end_the_loop) {
    char text[SAID];
    const char *out = temp_path("errors");
    program p = make_program(out, STEPS);
    p.options.unit = "a unit, with a comma";
    program_said(&p, text, sizeof(text));
    assert_int_equal(p.status, 1);
    assert_error(TN_EVALUE, "bad column \"a unit, with a comma_per_s\"");
    assert_null(strstr(text, "losses:"));
}
