/* A run: it continues where it was, is not overwritten by mistake, and can continue after anything
 * that goes wrong. */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include "core/allocator.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

/* ---- A program ------------------------------------------------------------------------------- */

typedef struct program {
    tn_run_options options;
    int64_t leave_at, stop_at; /* the step at which it leaves the loop, or is asked to stop; -1 */
    int64_t bad_loss_at;       /* the step whose loss is NaN; -1 */
    int64_t bad_weight_at;     /* the step after which a weight is infinite; -1 */
    double peak;               /* of the schedule; so is warmup */
    int64_t warmup;            /* in steps */
    bool validates;
    int64_t steps; /* result: how many this process made */
    int status;    /* result: of tn_run_end */
} program;

static program make_program(const char *out, int64_t steps) {
    program p = {.options = tn_run_defaults(),
                 .leave_at = -1,
                 .stop_at = -1,
                 .bad_loss_at = -1,
                 .bad_weight_at = -1,
                 .peak = 0.1,
                 .warmup = 1};
    p.options.out = out;
    p.options.steps = steps;
    p.options.save_every = 2;
    p.options.val_every = 2;
    p.validates = true;
    return p;
}

static tn_loader *make_loader(void) {
    TN_SCOPE;
    tn_tensor *x = tn_reshape(tn_arange(0, 24, 1, TN_F32), TN_DIMS(8, 3));
    tn_tensor *y = tn_reshape(tn_arange(0, 8, 1, TN_F32), TN_DIMS(8, 1));
    tn_loader_options l = tn_loader_defaults();
    l.batch = 2;
    l.epochs = 0;
    return tn_loader_new(tn_tensor_dataset(tn_mul_scalar(x, 0.01), y), tn_random_sampler(1), l);
}

static void program_loop(program *p, tn_run *r, tn_linear *net, tn_optim *optim, tn_loader *loader,
                         const tn_schedule *schedule) {
    tn_batch b;
    while (tn_run_next(r)) {
        TN_SCOPE;
        if (tn_run_step(r) == p->leave_at || !tn_loader_next(loader, &b)) {
            break;
        }
        tn_tensor *loss = tn_mse(tn_call(net, b.x), b.y, TN_MEAN);
        tn_backward(loss);
        double lr = tn_schedule_at(*schedule, tn_run_step(r));
        tn_optim_set_lr(optim, lr);
        tn_optim_step(optim);
        tn_optim_zero_grad(optim);
        bool bad = tn_run_step(r) == p->bad_loss_at;
        if (tn_run_step(r) == p->bad_weight_at) {
            TN_NO_GRAD;
            tn_fill_(net->bias, INFINITY);
        }
        tn_run_log(r, "loss", bad ? NAN : tn_item(loss));
        tn_run_log(r, "lr", lr);
        tn_run_count(r, 2);
        if (p->validates && tn_run_validates(r)) {
            tn_run_log(r, "val_loss", tn_item(loss) + 1);
        }
        if (tn_run_step(r) == p->stop_at) {
            raise(SIGTERM);
        }
        p->steps++;
    }
}

static void program_run(program *p) {
    tn_seed(3);
    tn_linear net;
    tn_linear_init(&net, 3, 1, tn_linear_defaults());
    tn_adamw_options a = tn_adamw_defaults();
    tn_optim *optim = tn_adamw(&net, a);
    int64_t steps = p->options.steps, warmup = steps > 0 ? p->warmup : 0;
    tn_schedule schedule = tn_schedule_cosine(p->peak, 0.01, warmup, steps);
    tn_loader *loader = make_loader();
    tn_checkpoint parts = {.model = &net,
                           .optim = optim,
                           .schedule = &schedule,
                           .loader = loader,
                           .generator = tn_default_generator()};
    tn_run *r = tn_run_new(NULL, p->options, parts);
    p->steps = 0;
    program_loop(p, r, &net, optim, loader, &schedule);
    p->status = tn_run_end(r);
    tn_loader_free(loader);
    tn_optim_free(optim);
    tn_module_finish(&net);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

/* What it prints, into `text`, since stdout is for TAP alone. Through a pipe, which limits on files
 * do not affect; it holds 64 KiB. */
static void program_said(program *p, char *text, size_t size) {
    int pipes[2], before[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    assert_int_equal(pipe(pipes), 0);
    fflush(stdout);
    dup2(pipes[1], STDOUT_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    program_run(p);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        dup2(before[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
        close(before[i]);
    }
    close(pipes[1]);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used + 1 < size; used += got > 0 ? (size_t)got : 0) {
        got = read(pipes[0], text + used, size - 1 - used);
    }
    text[used] = 0;
    close(pipes[0]);
}

enum { SAID = 4000 };

static void quiet_run(program *p) {
    char text[SAID];
    program_said(p, text, sizeof(text));
}

/* ---- What it leaves -------------------------------------------------------------------------- */

/* "FOLDER/NAME" */
static const char *path_in(const char *folder, const char *name) {
    static char paths[4][700];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static bool is_there(const char *folder, const char *name) {
    struct stat about;
    return stat(path_in(folder, name), &about) == 0;
}

/* The columns that are the same in every run. */
static void same_history(const char *a, const char *b, int64_t steps) {
    tn_history *one = tn_history_open(path_in(a, "loss.csv"), steps);
    tn_history *two = tn_history_open(path_in(b, "loss.csv"), steps);
    static const char *const names[] = {"loss", "lr", "val_loss"};
    for (int i = 0; i < 3; i++) {
        tn_curve x = tn_history_column(one, names[i], NULL);
        tn_curve y = tn_history_column(two, names[i], NULL);
        assert_int_equal(x.count, y.count);
        assert_true(x.count > 0);
        for (int64_t k = 0; k < x.count; k++) {
            assert_true(x.x[k] == y.x[k] && x.y[k] == y.y[k]);
        }
    }
    assert_int_equal(tn_history_curve(one, NULL).count, steps);
    assert_true(tn_history_column(one, "tok_per_s", NULL).count == steps);
    assert_true(tn_history_column(one, "process_mb", NULL).count == steps);
    tn_history_free(one);
    tn_history_free(two);
}

static void same_end(const char *a, const char *b, int64_t steps) {
    char last[64];
    static const char *const names[] = {"index.json", "rank-00000.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(last, sizeof(last), "step-%06lld/%s", (long long)steps, names[i]);
        temp_same(path_in(a, last), path_in(b, last));
    }
    temp_same(path_in(a, "loss.svg"), path_in(b, "loss.svg"));
    same_history(a, b, steps);
}

enum { STEPS = 5 };

/* The folder of an undisturbed run. */
static const char *undisturbed_run(void) {
    static char folder[512];
    snprintf(folder, sizeof(folder), "%s", temp_path("undisturbed"));
    if (!is_there(folder, "loss.svg")) {
        program p = make_program(folder, STEPS);
        quiet_run(&p);
        assert_int_equal(p.status, 0);
        assert_int_equal(p.steps, STEPS);
    }
    return folder;
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Wherever it leaves the loop or is stopped, it continues as if uninterrupted. */
static void goes_on(void **state) {
    (void)state;
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
            assert_non_null(strstr(text, said));
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
        if (!strstr(entry->d_name, "tfevents")) {
            continue;
        }
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
static void events_for_tensorboard(void **state) {
    (void)state;
    char folder[512];
    snprintf(folder, sizeof(folder), "%s", temp_path("events"));
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

static void refuses_to_overwrite(void **state) {
    (void)state;
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
        assert_non_null(strstr(text, "has a run: --resume continues it, --overwrite starts over"));
        p.options.overwrite = true;
        program_said(&p, text, sizeof(text));
        assert_int_equal(p.status, 0);
        assert_int_equal(p.steps, STEPS);
        same_end(out, whole, STEPS);
    }
}

/* --overwrite removes old checkpoints: one of them would be the newest. */
static void forgets_the_other_run(void **state) {
    (void)state;
    char out[512];
    snprintf(out, sizeof(out), "%s", temp_path("forgotten"));
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
static void begins_in_a_folder(void **state) {
    (void)state;
    char out[512], text[SAID];
    snprintf(out, sizeof(out), "%s", temp_path("folder"));
    assert_int_equal(mkdir(out, 0777), 0);
    temp_write(path_in(out, "loss.csv"), "step,loss\n", 10);
    program p = make_program(out, 1);
    quiet_run(&p);
    assert_int_equal(p.status, 0);
    temp_remove(path_in(out, "step-000001"));
    p.options.resume = true;
    program_said(&p, text, sizeof(text));
    assert_non_null(strstr(text, "no checkpoint in"));
    assert_int_equal(p.steps, 1);
}

static void becomes_longer(void **state) {
    (void)state;
    char out[512], text[SAID];
    snprintf(out, sizeof(out), "%s", temp_path("longer"));
    program p = make_program(out, 4);
    quiet_run(&p);
    p = make_program(out, 8);
    p.options.resume = true;
    program_said(&p, text, sizeof(text));
    assert_int_equal(p.status, 0);
    assert_int_equal(p.steps, 4);
    assert_non_null(strstr(text,
                           "the schedule has 8 steps instead of 4: the learning rate continues "
                           "from 0.0325 with 0.065"));
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
            assert_non_null(strstr(text, "the schedule: peak was"));
        }
    }
}

/* A bad loss, or a bad weight at the save, ends the run before anything is saved: it continues from
 * the checkpoint before, as if uninterrupted. A loss may be allowed, a weight never is. */
static void stops_at_a_nan(void **state) {
    (void)state;
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
    tn_run_options o = tn_run_defaults();
    o.out = temp_folder;
    o.save_every = 2;
    o.overwrite = true;
    tn_run *r = tn_run_new(world, o, (tn_checkpoint){.model = &net});
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
static void stops_at_a_nan_of_one_rank(void **state) {
    (void)state;
    temp_path("");
    int before[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    for (int i = 0; i < 4; i++) {
        bad_rank b = {.bad = i % 2, .weight = i / 2};
        fflush(stdout);
        assert_true(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
        tn_status status = tn_local_run(2, run_bad_rank, &b);
        fflush(stdout);
        dup2(before[0], STDOUT_FILENO);
        dup2(before[1], STDERR_FILENO);
        assert_int_equal(status, TN_OK);
        for (int rank = 0; rank < 2; rank++) {
            const char *own = b.weight ? "bias has elements" : "the loss is";
            char theirs[40];
            snprintf(theirs, sizeof(theirs), "rank %d%s", b.bad,
                     b.weight ? " has weights that are NaN" : "'s loss is NaN");
            assert_int_equal(b.status[rank], EX_DATAERR);
            assert_non_null(strstr(b.said[rank], rank == b.bad ? own : theirs));
            assert_non_null(strstr(b.said[rank], "; the last checkpoint is step-000004 in"));
        }
        assert_false(is_there(temp_folder, "step-000005") || is_there(temp_folder, "step-000006"));
    }
    close(before[0]);
    close(before[1]);
}

/* A second job is refused at once, whatever its options, and the first continues undisturbed; after
 * a kill the folder is free. */
static void one_job_in_a_folder(void **state) {
    (void)state;
    char out[512], said[600];
    snprintf(out, sizeof(out), "%s", temp_path("held"));
    snprintf(said, sizeof(said), "another job runs in %.250s: it holds %.250s/lock", out, out);
    int ready[2], end[2];
    assert_int_equal(pipe(ready) + pipe(end), 0);
    fflush(stdout);
    pid_t first = fork();
    if (first == 0) {
        char byte = 0;
        close(end[1]);
        tn_run_options o = tn_run_defaults();
        o.out = out;
        tn_run *r = tn_run_new(NULL, o, (tn_checkpoint){0});
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
static void no_history(void **state) {
    (void)state;
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

/* Units are those of the whole run, so a run that continues counts on. */
static void ends_at_units(void **state) {
    (void)state;
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
        assert_non_null(strstr(text, starts[i].said));
        assert_null(strstr(text, "--resume"));
    }
    same_end(out, undisturbed_run(), STEPS);
}

static void units_without_a_name(void **state) {
    (void)state;
    char out[512], text[SAID];
    snprintf(out, sizeof(out), "%s", temp_path("nameless"));
    program p = make_program(out, STEPS);
    p.options.unit = NULL;
    p.options.until_units = 4;
    program_said(&p, text, sizeof(text));
    assert_non_null(strstr(text, "ended after step 2 of 5, saved: 4 unit are done\n"));
    assert_non_null(strstr(text, " unit/s\n"));
}

/* Time and money are those of a start: each makes a step at least, and says how to continue. */
static void ends_at_hours(void **state) {
    (void)state;
    char out[512], text[SAID];
    snprintf(out, sizeof(out), "%s", temp_path("hours"));
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
        assert_non_null(strstr(text, said));
        assert_non_null(strstr(text, "the same command with --resume continues\n"));
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
static void hours_of_rank_0(void **state) {
    (void)state;
    temp_path("");
    int before[2] = {dup(STDOUT_FILENO), dup(STDERR_FILENO)};
    for (int late = 0; late < 2; late++) {
        int64_t steps[3] = {late};
        fflush(stdout);
        assert_true(freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr));
        tn_status status = tn_local_run(2, run_with_hours, steps);
        fflush(stdout);
        dup2(before[0], STDOUT_FILENO);
        dup2(before[1], STDERR_FILENO);
        assert_int_equal(status, TN_OK);
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(steps[1 + rank], late == 0 ? 1 : 3);
        }
    }
    close(before[0]);
    close(before[1]);
}

static void wrong_limits(void **state) {
    (void)state;
    char out[512];
    snprintf(out, sizeof(out), "%s", temp_path("limits"));
    for (int i = 0; i < 3; i++) {
        program p = make_program(out, STEPS);
        p.options.hours = i == 0 ? NAN : 0;
        p.options.until_units = i == 1 ? -1 : 0;
        p.options.until_cost = i == 2;
        quiet_run(&p);
        assert_int_equal(p.status, 1);
        assert_error(TN_EVALUE, i < 2 ? "a limit is below 0" : "needs the price");
    }
}

static void wrong_options(void **state) {
    (void)state;
    char out[512];
    snprintf(out, sizeof(out), "%s", temp_path("wrong"));
    static const char *const wanted[] = {"no folder", "below 1", "one of them"};
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

/* If the disk is full the run ends with an error; when there is space again it continues. */
static void full_disk(void **state) {
    (void)state;
    const char *whole = undisturbed_run();
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 12000; most += most < 400 ? 60 : 1600) {
        char out[512], name[32];
        snprintf(name, sizeof(name), "full_%d", (int)most);
        snprintf(out, sizeof(out), "%s", temp_path(name));
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
static void no_memory(void **state) {
    (void)state;
    const char *whole = undisturbed_run();
    char out[512];
    snprintf(out, sizeof(out), "%s", temp_path("memory"));
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
            assert_int_equal(tn_error(), TN_ENOMEM);
            tn_error_clear();
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
static void errors_end_the_loop(void **state) {
    (void)state;
    char out[512], text[SAID];
    snprintf(out, sizeof(out), "%s", temp_path("errors"));
    program p = make_program(out, STEPS);
    p.options.unit = "a unit, with a comma";
    program_said(&p, text, sizeof(text));
    assert_int_equal(p.status, 1);
    assert_error(TN_EVALUE, "bad column \"a unit, with a comma_per_s\"");
    assert_null(strstr(text, "losses:"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(goes_on),
        TEST(refuses_to_overwrite),
        TEST(events_for_tensorboard),
        TEST(forgets_the_other_run),
        TEST(begins_in_a_folder),
        TEST(becomes_longer),
        TEST(stops_at_a_nan),
        TEST(stops_at_a_nan_of_one_rank),
        TEST(one_job_in_a_folder),
        TEST(no_history),
        TEST(ends_at_units),
        TEST(units_without_a_name),
        TEST(ends_at_hours),
        TEST(hours_of_rank_0),
        TEST(wrong_limits),
        TEST(wrong_options),
        TEST(full_disk),
        TEST(no_memory),
        TEST(errors_end_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
