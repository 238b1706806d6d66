/* A run: it continues where it was, and is not overwritten by mistake. run_program.h is the
 * program.
 */
#include <sys/wait.h>

#include "run_program.h"

/* Wherever it leaves the loop or is stopped, it continues as if uninterrupted. */
TEST(goes_on) {
    const char *whole = undisturbed_run();
    char out[512], text[SAID];
    for (int64_t at = 0; at <= STEPS - 1; at++) {
        for (int stop = 0; stop < 2; stop++) {
            char name[32];
            snprintf(name, sizeof(name), "out_%d_%d", (int)at, stop);
            snprintf(out, sizeof(out), "%s", temp_path(name));
            program p = make_program(out, STEPS);
            *(stop ? &p.stop_at : &p.leave_at) = at;
            program_said(&p, text, sizeof(text));
            bool last = at == STEPS - 1;
            assert_int_equal(p.status, stop && !last ? 128 + SIGTERM : 0);
            assert_int_equal(p.steps, stop ? at + 1 : at);
            assert_true(stop && !last ? strstr(text, "and saved; the same command") != NULL
                                      : strstr(text, "stopped") == NULL);
            p = make_program(out, STEPS);
            p.options.resume = true;
            program_said(&p, text, sizeof(text));
            assert_int_equal(p.status, 0);
            assert_int_equal(p.steps, stop ? STEPS - 1 - at : STEPS - at);
            char said[600];
            snprintf(said, sizeof(said), "continuing after step %d of %s",
                     (int)(stop ? at + 1 : at), out);
            assert_contains(text, said);
            same_end(out, whole, STEPS);
        }
    }
}

/* How often a text occurs in the event files of a folder. */
static int count_events(const char *folder, const char *text) {
    int count = 0;
    DIR *names = opendir(folder);
    assert_non_null(names);
    for (struct dirent *entry; (entry = readdir(names));) {
        char path[512];
        size_t bytes, length = strlen(text);
        snprintf(path, sizeof(path), "%s/%.250s", folder, entry->d_name);
        if (!strstr(entry->d_name, "tfevents")) { continue; }
        unsigned char *file = temp_read(path, &bytes);
        for (size_t i = 0; i + length <= bytes; i++) {
            count += memcmp(file + i, text, length) == 0;
        }
        free(file);
    }
    closedir(names);
    return count;
}

/* Field 1 of a value is its tag, with the length before it. */
TEST(events_for_tensorboard) {
    const char *folder = temp_path("events");
    program p = make_program(folder, 6);
    p.options.tensorboard = true;
    p.leave_at = 4;
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    assert_int_equal(count_events(folder, "\x0a\x04loss"), 4);
    assert_int_equal(count_events(folder, "\x0a\x08val_loss"), 2);
    assert_int_equal(count_events(folder, "weights/weight"), 2); /* at each checkpoint */
    p.options.resume = true;
    p.leave_at = -1;
    quiet_run(&p);
    assert_int_equal(count_events(folder, "\x0a\x04loss"), 6);
    assert_int_equal(count_events(folder, "brain.Event:2"), 2); /* a file of its own, which says */
    assert_int_equal(count_events(folder, "\x10\x04\x3a\x02\x08\x01"), 1); /* from step 4 on */
    p.options.tensorboard = p.options.resume = false;
    p.options.overwrite = true;
    quiet_run(&p);
    assert_int_equal(count_events(folder, "brain.Event:2"), 2);
}

TEST(refuses_to_overwrite) {
    const char *whole = undisturbed_run();
    char text[SAID];
    for (int rows = 0; rows < 2; rows++) { /* steps without a checkpoint are a run, too */
        char out[512];
        snprintf(out, sizeof(out), "%s", rows ? temp_path("rows") : whole);
        if (rows) {
            assert_int_equal(mkdir(out, 0777), 0);
            temp_write(path_in(out, "loss.csv"), "step,loss\n0,1\n", 14);
        }
        program p = make_program(out, STEPS);
        program_said(&p, text, sizeof(text));
        assert_int_equal(p.status, 64);
        assert_int_equal(p.steps, 0);
        assert_contains(text, "has a run: --resume continues it, --overwrite starts over");
        p.options.overwrite = true;
        program_said(&p, text, sizeof(text));
        assert_int_equal(p.status, 0);
        assert_int_equal(p.steps, STEPS);
        same_end(out, whole, STEPS);
    }
}

/* --overwrite removes old checkpoints: one of them would be the newest. */
TEST(forgets_the_other_run) {
    const char *out = temp_path("forgotten");
    program p = make_program(out, STEPS);
    quiet_run(&p);
    p = make_program(out, STEPS);
    p.options.overwrite = true;
    p.leave_at = 2;
    quiet_run(&p);
    p = make_program(out, STEPS);
    p.options.resume = true;
    quiet_run(&p);
    assert_int_equal(p.steps, STEPS - 2);
    same_end(out, undisturbed_run(), STEPS);
}

/* A folder without a run is no reason to refuse. */
TEST(begins_in_a_folder) {
    char text[SAID];
    const char *out = temp_path("folder");
    assert_int_equal(mkdir(out, 0777), 0);
    temp_write(path_in(out, "loss.csv"), "step,loss\n", 10);
    program p = make_program(out, 1);
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    temp_remove(path_in(out, "step-000001"));
    p.options.resume = true;
    program_said(&p, text, sizeof(text));
    assert_contains(text, "no checkpoint in");
    assert_int_equal(p.steps, 1);
}

TEST(becomes_longer) {
    char text[SAID];
    const char *out = temp_path("longer");
    program p = make_program(out, 4);
    quiet_run(&p);
    p = make_program(out, 8);
    p.options.resume = true;
    program_said(&p, text, sizeof(text));
    assert_int_equal(p.status, 0);
    assert_int_equal(p.steps, 4);
    assert_contains(text, "the schedule has 8 steps instead of 4: the learning rate continues "
                          "from 0.0325 with 0.065");
    tn_history *h = tn_history_open(path_in(out, "loss.csv"), 8);
    tn_schedule longer = tn_schedule_cosine(0.1, 0.01, 1, 8);
    for (int64_t step = 4; step < 8; step++) {
        assert_true(fabs(tn_history_column(h, "lr", NULL).y[step] - tn_schedule_at(longer, step)) <
                    1e-9);
    }
    tn_history_free(h);

    p = make_program(out, 9);
    p.options.resume = true;
    p.warmup = 3; /* longer too */
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    assert_int_equal(p.steps, 1);
    p.options.steps = 10;
    p.warmup = 2;
    quiet_run(&p);
    assert_error(TN_EMISMATCH,
                 "the schedule: warm-up was 3 but is 2; the schedule: steps was 9 but is 10");
    p.options.steps = 9;
    p.warmup = 4;
    quiet_run(&p);
    assert_error(TN_EMISMATCH, "the schedule: warm-up was 3 but is 4");

    for (int i = 0; i < 3; i++) { /* not shorter, not another; but yes with resume_anyway */
        p = make_program(out, i == 0 ? 8 : 10);
        p.options.resume = true;
        p.warmup = 3;
        p.options.resume_anyway = i == 2;
        p.peak = i == 0 ? 0.1 : 0.2;
        program_said(&p, text, sizeof(text));
        if (i < 2) {
            assert_int_equal(p.status, 1);
            assert_error(TN_EMISMATCH, i == 0 ? "the schedule: steps was 9 but is 8"
                                              : "the schedule: peak was 0.1 but is 0.2");
        } else {
            assert_int_equal(p.status, 0);
            assert_int_equal(p.steps, 1);
            assert_contains(text, "the schedule: peak was");
        }
    }
}

/* A second job is refused at once, whatever its options, and the first continues undisturbed; after
 * a kill the folder is free. */
TEST(one_job_in_a_folder) {
    char said[600];
    const char *out = temp_path("held");
    snprintf(said, sizeof(said), "another job runs in %.250s: it holds %.250s/lock", out, out);
    int ready[2], end[2];
    assert_int_equal(pipe(ready) + pipe(end), 0);
    fflush(stdout);
    pid_t first = fork();
    if (first == 0) {
        char byte = 0;
        close(end[1]);
        tn_run *r = tn_run_new(NULL, TN_WITH(tn_run, .out = out), (tn_checkpoint){0});
        tn_run_next(r);
        tn_run_log(r, "loss", 1);
        byte = tn_run_next(r) ? 'r' : 'x'; /* so there is a run, too, that could be refused */
        _exit(write(ready[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 0);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'r');
    for (int i = 0; i < 3; i++) {
        program p = make_program(out, STEPS);
        p.options.resume = i == 0;
        p.options.overwrite = i == 1;
        quiet_run(&p);
        assert_int_equal(p.status, 1);
        assert_int_equal(p.steps, 0);
        assert_error(TN_EIO, said);
    }
    kill(first, SIGKILL);
    assert_int_equal(waitpid(first, NULL, 0), first);
    close(ready[0]), close(ready[1]), close(end[0]), close(end[1]);
    program p = make_program(out, STEPS);
    p.options.resume = true;
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    same_end(out, undisturbed_run(), STEPS);
}

/* If loss.csv is not a regular file there is no run, and it stays as it is. */
TEST(no_history) {
    char out[512], target[512];
    for (int link = 0; link < 2; link++) {
        snprintf(out, sizeof(out), "%s", temp_path(link ? "link" : "directory"));
        snprintf(target, sizeof(target), "%s", path_in(out, "another's"));
        assert_int_equal(mkdir(out, 0777), 0);
        temp_write(target, "step,loss\n0,1\n", 14);
        const char *name = path_in(out, "loss.csv");
        assert_int_equal(link ? symlink(target, name) : mkdir(name, 0777), 0);
        for (int resume = 0; resume < 2; resume++) {
            program p = make_program(out, STEPS);
            p.options.resume = resume;
            quiet_run(&p);
            assert_int_equal(p.status, 1);
            assert_error(TN_EIO, link ? "is a symbolic link" : "Is a directory");
        }
        size_t bytes;
        free(temp_read(target, &bytes));
        assert_int_equal(bytes, 14);
    }
}

TEST(wrong_options) {
    const char *out = temp_path("wrong");
    static const char *const wanted[] = {"no folder", "steps is 0 (it must be at least 1)",
                                         "one of them"};
    for (int i = 0; i < 3; i++) {
        program p = make_program(i == 0 ? "" : out, i == 1 ? 0 : 3);
        p.options.resume = p.options.overwrite = i == 2;
        quiet_run(&p);
        assert_int_equal(p.status, 1);
        assert_error(TN_EVALUE, wanted[i]);
        assert_false(is_there(out, ""));
    }
    program p = make_program("/dev/null/out", 3);
    quiet_run(&p);
    assert_error(TN_EIO, "/dev/null/out: Not a directory");
}
