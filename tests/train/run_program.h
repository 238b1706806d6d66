/* A program whose run the tests disturb, and what it leaves in its folder. */
#ifndef TERN_TESTS_TRAIN_RUN_PROGRAM_H
#define TERN_TESTS_TRAIN_RUN_PROGRAM_H

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/silence.h"
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

static inline program make_program(const char *out, int64_t steps) {
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

static inline tn_loader *make_loader(void) {
    TN_SCOPE;
    tn_tensor *x = tn_reshape(tn_arange(0, 24, 1, TN_F32), TN_DIMS(8, 3));
    tn_tensor *y = tn_reshape(tn_arange(0, 8, 1, TN_F32), TN_DIMS(8, 1));
    return tn_loader_new(tn_tensor_dataset(tn_mul_scalar(x, 0.01), y), tn_random_sampler(1),
                         TN_WITH(tn_loader, .batch = 2, .epochs = 0));
}

static inline void program_loop(program *p, tn_run *r, tn_linear *net, tn_optim *optim,
                                tn_loader *loader, const tn_schedule *schedule) {
    tn_batch b;
    while (tn_run_next(r)) {
        TN_SCOPE;
        if (tn_run_step(r) == p->leave_at || !tn_loader_next(loader, &b)) { break; }
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
        if (p->validates && tn_run_validates(r)) { tn_run_log(r, "val_loss", tn_item(loss) + 1); }
        if (tn_run_step(r) == p->stop_at) { raise(SIGTERM); }
        p->steps++;
    }
}

static inline void program_run(program *p) {
    tn_seed(3);
    tn_linear net;
    tn_linear_init(&net, 3, 1, tn_linear_defaults());
    tn_optim *optim = tn_adamw(&net, tn_adamw_defaults());
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
static inline void program_said(program *p, char *text, size_t size) {
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

static inline void quiet_run(program *p) {
    char text[SAID];
    program_said(p, text, sizeof(text));
}

/* ---- What it leaves -------------------------------------------------------------------------- */

/* "FOLDER/NAME" */
static inline const char *path_in(const char *folder, const char *name) {
    static char paths[4][700];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static inline bool is_there(const char *folder, const char *name) {
    struct stat about;
    return stat(path_in(folder, name), &about) == 0;
}

/* The columns that are the same in every run. */
static inline void same_history(const char *a, const char *b, int64_t steps) {
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

static inline void same_end(const char *a, const char *b, int64_t steps) {
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
static inline const char *undisturbed_run(void) {
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

#endif
