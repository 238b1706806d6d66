/* What the user sees of a run: how it begins, its steps, curves, how it ends. */
#include "text/plain_numbers.h"
#include "train/options.h"
#include "train/run.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *plural_end(int64_t count) {
    return count == 1 ? "" : "s";
}

/* ---- The beginning --------------------------------------------------------------------------- */

void tn__run_say_what(const tn_run *r) {
    tn_device device = tn_default_device();
    tn_device_info info;
    if (!r->first_rank || !r->parts.model || tn_device_describe(device, &info) != TN_OK) { return; }
    int threads = tn_threads();
    bool gpu = device.kind != TN_CPU;
    printf("%lld parameters; %d rank%s of %d thread%s on %s%s%s\n",
           (long long)tn_module_count(r->parts.model), r->ranks, plural_end(r->ranks), threads,
           plural_end(threads), tn_device_text(device), gpu ? ", " : "", gpu ? info.name : "");
    const char *restarts = getenv("TORCHELASTIC_MAX_RESTARTS");
    if (r->memory && restarts && atoi(restarts) == 0) {
        fprintf(stderr,
                "--memory-every: these saves are read when the job is started again after a "
                "crash, which needs tern run --max-restarts N\n");
    }
    fflush(stdout);
}

void tn__run_say_begin(const tn_run *r, bool found, int64_t steps_before) {
    const tn_checkpoint *c = &r->parts;
    if (!r->first_rank) { return; }
    if (!found) {
        printf("no checkpoint in %s to continue from: starting over\n", r->options.out);
    } else {
        printf("continuing after step %lld of %s\n", (long long)c->step, r->options.out);
    }
    if (found && c->schedule && c->optim && steps_before > 0 && steps_before < c->schedule->steps) {
        printf("the schedule has %lld steps instead of %lld: the learning rate continues from %.3g "
               "with %.3g\n",
               (long long)c->schedule->steps, (long long)steps_before, tn_optim_lr(c->optim),
               tn_schedule_at(*c->schedule, c->step));
    }
    fflush(stdout);
}

void tn__run_say_refused(const tn_run *r) {
    if (r->first_rank) {
        fprintf(stderr, "%s has a run: --resume continues it, --overwrite starts over\n",
                r->options.out);
    }
}

/* What a step learns from, where the program counts it: its last two steps before this start had
 * the same, and so have the first two of it. One alone may be the end of an epoch. */
static void say_units(const tn_run *r, const tn_curve *counts) {
    const double *y = counts->y + counts->count - 1;
    bool steady = counts->count > 2 && y[0] == y[-1] && (counts->count == 3 || y[-2] == y[-3]);
    if (steady && y[-1] != y[-2]) {
        printf("a step has %.15g %s instead of %.15g\n", y[0], r->unit, y[-2]);
    }
}

/* Where it does not: with another number of ranks, each still has batches of its old size. */
static void say_examples(const tn_run *r) {
    const tn_loader *l = r->parts.loader;
    int64_t now = l ? tn_loader_options_of(l).batch * tn_loader_sampler(l).parts : 0;
    int64_t before = r->batch_before;
    if (now > 0 && before > 0 && now != before) {
        bool fewer = now < before;
        printf("a batch over all ranks has %lld examples instead of %lld: a step learns from %s, "
               "unless it adds up %s batches\n",
               (long long)now, (long long)before, fewer ? "fewer" : "more",
               fewer ? "more" : "fewer");
    }
}

void tn__run_say_batch(const tn_run *r) {
    if (r->start == 0 || r->parts.step != r->start + 2) { return; }
    char name[TN__COLUMN_NAME];
    tn_curve counts = tn_history_column(r->history, tn__run_count_name(r, name), "");
    tn_progress_clear(r->progress);
    counts.count > 0 ? say_units(r, &counts) : say_examples(r);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Adds "grad norm 0.412" to a text, if it fits. */
static void add_fact(char *text, size_t size, const char *between, const char *name, double value,
                     const char *form) {
    char fact[80], number[32];
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    snprintf(number, sizeof(number), form, value);
    tn__plain_numbers_end(numbers);
    snprintf(fact, sizeof(fact), "%s%s %s", *text ? between : "", name, number);
    for (char *c = fact; *c; c++) {
        *c = *c == '_' ? ' ' : *c;
    }
    if (strlen(text) + strlen(fact) < size) { strcat(text, fact); }
}

void tn__run_show(tn_run *r, const char *name, double value) {
    if (r->validating) {
        add_fact(r->line, sizeof(r->line), ", ", name, value, "%.4f");
    } else if (strcmp(name, "loss") == 0) {
        r->loss = value;
    } else {
        add_fact(r->note, sizeof(r->note), "   ", name, value, "%.3g");
    }
}

void tn__run_show_step(tn_run *r) {
    bool large = r->megabytes >= 1000;
    add_fact(r->note, sizeof(r->note), "   ", "memory", large ? r->megabytes / 1000 : r->megabytes,
             large ? "%.2f GB" : "%.0f MB");
    tn_progress_note(r->progress, r->note);
    tn_progress_step(r->progress, r->parts.step, r->loss, r->units);
}

void tn__run_say_line(tn_run *r) {
    int64_t every = r->options.log_every;
    bool due = every > 0 && r->parts.step % every == 0;
    if (due || *r->line) {
        char loss[40] = "";
        add_fact(loss, due ? sizeof(loss) : 0, "", "loss", r->loss, "%.4f");
        tn_progress_clear(r->progress);
        printf("step %lld: %s%s%s%s%s\n", (long long)r->parts.step, loss, due ? "   " : "",
               due ? r->note : "", due && *r->line ? "   " : "", r->line);
        fflush(stdout);
    }
}

/* ---- Curves ---------------------------------------------------------------------------------- */

enum { CURVES = 3, WIDEST_MEAN = 50 };

static tn_plot plot_of(tn_run *r, tn_curve *curves, char *mean, size_t size) {
    curves[0] = tn_history_curve(r->history, "each step");
    curves[0].faint = true;
    int64_t window = curves[0].count / 10;
    window = window < 1 ? 1 : window > WIDEST_MEAN ? WIDEST_MEAN : window;
    snprintf(mean, size, "mean of %lld step%s", (long long)window, plural_end(window));
    curves[1] = tn_history_smooth(r->history, mean, window);
    curves[2] = tn_history_column(r->history, "val_loss", "validation");
    return (tn_plot){.title = "Loss",
                     .x_label = "step",
                     .curves = curves,
                     .count = curves[2].count > 0 ? CURVES : CURVES - 1};
}

void tn__run_picture(tn_run *r) {
    if (r->history) {
        tn_curve curves[CURVES];
        char mean[64];
        tn_plot plot = plot_of(r, curves, mean, sizeof(mean));
        /* errors are raised, and end the run */
        r->drawn = tn_plot_svg(&plot, r->picture) == TN_OK;
    }
}

void tn_run_draw(tn_run *r, FILE *file) {
    if (r && tn__run_here(r, "run_draw") && r->history && file) {
        tn_curve curves[CURVES];
        char mean[64];
        tn_plot plot = plot_of(r, curves, mean, sizeof(mean));
        tn_progress_clear(r->progress);
        tn_plot_text(&plot, file, 80, 18);
    }
}

/* ---- The end --------------------------------------------------------------------------------- */

static void say_how_to_continue(const tn_run *r) {
    char *command = tn__command_to_continue(r->ranks);
    if (command) {
        printf("to continue:\n    %s\n", command);
    } else {
        printf("the same command with --resume continues\n");
    }
    free(command);
}

static void say_what_was(tn_run *r) {
    double median = tn_progress_median_ms(r->progress), validated = tn_run_value(r, "val_loss");
    if (!isnan(validated)) { printf("val loss: %.4f\n", validated); }
    if (median > 0) {
        printf("median ms/step: %.2f", median);
        if (r->units > 0) { printf(", %.0f %s/s", (double)r->units / median * 1e3, r->unit); }
        printf("\n");
    }
    printf("losses: %s\npicture: %s\n", r->losses, r->picture);
    if (r->exported) { printf("model: %s\n", r->options.out); }
}

void tn__run_say_end(tn_run *r) {
    if (!r->first_rank) { return; }
    tn_progress_clear(r->progress);
    if (r->stalled) {
        printf("ended after step %lld of %lld: %s has not improved %lld times\n",
               (long long)r->parts.step, (long long)r->options.steps, r->early_name,
               (long long)r->early.patience);
    }
    bool limited = *r->limit && r->parts.step < r->options.steps;
    if (limited) {
        printf("ended after step %lld of %lld, saved: %s\n", (long long)r->parts.step,
               (long long)r->options.steps, r->limit);
    }
    if (r->stopped && !tn_run_done(r)) {
        printf("stopped after step %lld of %lld and saved; ", (long long)r->parts.step,
               (long long)r->options.steps);
        say_how_to_continue(r);
        return;
    }
    say_what_was(r);
    if (limited && r->goes_on) { say_how_to_continue(r); }
}
