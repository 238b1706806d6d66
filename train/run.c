/* A run: a folder in which training continues where it ended, for whatever reason.
 *
 * A step's measurements are written when the next one begins, and the history reaches the disk
 * before a checkpoint does: so it has at least the checkpoint's steps, and any rows beyond are cut
 * off when the run continues. All ranks make the same decisions: to save, to stop, to refuse. What
 * the user sees is in run_show.c. The other files of a run stand on run_state.c.
 */
#include "train/run.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/reader.h"
#include "distributed/parallel/save/saver.h"
#include "io/differences.h"
#include "profile/profiler.h"
#include "train/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sysexits.h>
#include <unistd.h>

tn_run_options tn_run_defaults(void) {
    return (tn_run_options){.out = "run",
                            .steps = 1000,
                            .val_every = 250,
                            .save_every = 1000,
                            .unit = "tok",
                            .from_defaults = true};
}

int tn__run_options(tn_run_options *o, tn_option *rows) {
    const tn_option all[] = {
        {.help = "The run:"},
        {"out", 'o', "DIR", "folder for checkpoints, history and picture", .text = &o->out},
        {"steps", 0, "N", "steps of training; may grow when the run continues", .whole = &o->steps},
        {"val-every", 0, "N", "steps between validations", .whole = &o->val_every},
        {"save-every", 0, "N", "steps between checkpoints", .whole = &o->save_every},
        {"memory-every", 0, "N",
         "steps between saves to memory, for when a rank of `tern run` on one host crashes",
         .whole = &o->memory_every},
        {"after-save", 0, "COMMAND",
         "for sh, after each checkpoint, whose folder is $1; training goes on meanwhile",
         .text = &o->after_save},
        {"epochs", 0, "X", "passes over the data, instead of --steps", .real = &o->epochs},
        {"log-every", 0, "N", "steps between printed lines; else only validations are printed",
         .whole = &o->log_every},
        {"patience", 0, "N", "end after so many validations without a lower loss",
         .whole = &o->patience},
        {"keep-best", 0, "N", "keep the weights of the N validations with the lowest loss",
         .whole = &o->keep_best},
        {"hours", 0, "X", "end, saved, so many hours after this start", .real = &o->hours},
        {"until-tokens", 0, "N", "end, saved, when the run has had so many tokens, or other units",
         .whole = &o->until_units, .most = 1e18},
        {"until-cost", 0, "X", "end, saved, when this start has cost so much at --price",
         .real = &o->until_cost},
        {"price", 0, "X", "of an hour of one rank", .real = &o->price},
        {"again", 0, "FILE", "the command in a run.json, before what else is given here",
         .read = tn__record_refuse},
        {"resume", 'r',
         .help = "continue from DIR's checkpoint, if any; all other options must be as before",
         .flag = &o->resume},
        {"resume-anyway", 0,
         .help =
             "like --resume, but continue even with other options or data, and report what differs",
         .flag = &o->resume_anyway},
        {"overwrite", 0, .help = "start over, even if DIR has a run", .flag = &o->overwrite},
        {"allow-nan", 0, .help = "continue after a loss that is NaN or infinite",
         .flag = &o->allow_nan},
        {"tensorboard", 0, .help = "also write event files for TensorBoard into DIR",
         .flag = &o->tensorboard},
    };
    memcpy(rows, all, sizeof(all));
    return (int)(sizeof(all) / sizeof(all[0]));
}

int64_t tn_run_steps(tn_run_options *o, const tn_loader *l, int64_t n) {
    if (!o || !tn__options_made(o->from_defaults, "run_steps", "tn_run") ||
        (o->epochs > 0 && (!l || n < 1))) {
        tn__raise(TN_EVALUE, "run_steps", "%s",
                  !o ? "the options are NULL" : "epochs need a loader and batches of a step");
        return 0;
    }
    if (o->epochs > 0) {
        double steps = ceil(o->epochs * (double)tn_loader_batches(l) / (double)n);
        o->steps = steps < 1 ? 1 : steps > 1e15 ? (int64_t)1e15 : (int64_t)steps;
        o->epochs = 0;
    }
    return o->steps;
}

/* ---- Beginning, and continuing --------------------------------------------------------------- */

/* Whether the folder has a checkpoint, or steps from before the first one. */
static bool folder_has_run(tn_run *r) {
    struct stat about;
    bool rows = r->first_rank && lstat(r->losses, &about) == 0 && S_ISREG(about.st_mode) &&
                about.st_size > (off_t)strlen("step,loss\n");
    return tn__run_any_rank(r, rows) || tn__saver_newest(r->saver, "run_new") >= 0 ||
           (r->memory && tn__saver_newest(r->memory, "run_new") >= 0);
}

/* A step as one file (`tern convert --to`), in a folder without steps. False: there is none, or
 * after raising. */
static bool load_file(tn_run *r, tn_checkpoint *c) {
    char *path = tn__folder_path(r->options.out, "checkpoint.safetensors", "run_new");
    bool there = tn__run_any_rank(r, path && r->first_rank && access(path, F_OK) == 0);
    if (there) {
        const char *before = tn__continue_hint;
        tn__continue_hint = TN__RESUME_HINT;
        tn_dist_load(r->world, c, path);
        tn__continue_hint = before;
    }
    free(path);
    return there && !tn__pending();
}

/* So that a restart before the first save does not begin with it. */
static void remove_file(tn_run *r) {
    char *path = tn__folder_path(r->options.out, "checkpoint.safetensors", "run_new");
    if (path && r->first_rank && unlink(path) != 0 && errno != ENOENT) {
        tn__raise(TN_EIO, "run_new", "%s: %s", path, strerror(errno));
    }
    free(path);
}

static void print_warning(tn_log_level level, const char *message, void *user) {
    fprintf(stderr, "%s\n", message);
}

static void run_resume(tn_run *r) {
    tn_checkpoint c = r->parts;
    int64_t steps_before = 0;
    c.longer_than = &steps_before;
    c.batch_before = &r->batch_before;
    c.other_run = r->options.resume_anyway;
    bool loud = c.other_run && !tn__log_heard(TN_LOG_WARN); /* what differs must be seen */
    if (loud) { tn_log_to(print_warning, TN_LOG_WARN, NULL); }
    bool found = tn__run_load(r, &c) || (!tn__pending() && load_file(r, &c));
    if (loud) { tn_log_to(NULL, TN_LOG_ERROR, NULL); }
    if (tn__pending()) { return; }
    r->parts.step = c.step;
    tn__run_say_begin(r, found, steps_before);
}

static void run_begin(tn_run *r) {
    const tn_run_options *o = &r->options;
    bool goes_on = o->resume || o->resume_anyway || tn_restart_count() > 0;
    tn__saver_hold(r->saver, "run_new");
    tn__run_any_rank(r, false); /* tells all ranks of an error */
    if (!goes_on && !o->overwrite && !tn__pending() && folder_has_run(r)) {
        r->refused = r->ended = true;
        tn__run_say_refused(r);
        tn__run_any_rank(r, true); /* the others then end */
        return;
    }
    if (goes_on) {
        run_resume(r);
    } else if (o->overwrite) {
        /* otherwise the launcher would find the other run's when it restarts this one */
        tn_saver_clear(r->saver);
        remove_file(r);
        tn__run_memory_clear(r);
    }
    r->start = r->parts.step;
    if (r->first_rank && !tn__pending()) {
        r->history = tn_history_open(r->losses, r->start);
        tn__run_count_before(r);
        r->progress = tn_progress_new(stderr, r->start, o->steps, o->unit);
        tn__run_board_open(r);
        tn__run_record_open(r, goes_on && (r->saved >= 0 || r->remembered >= 0));
        tn__run_record(r, NULL);
    }
}

static void watch_val_loss(tn_run *r) {
    const tn_run_options *o = &r->options;
    if (o->patience > 0 && !r->refused && !tn__pending()) {
        tn_run_stop_early(r, "val_loss", TN_WITH(tn_early, .patience = o->patience));
    }
    if (o->keep_best > 0 && !r->refused && !tn__pending()) {
        tn_run_keep_best(r, "val_loss", o->keep_best, false);
    }
}

static bool options_fit(const tn_run_options *o) {
    const char *wrong =
        TN__BEYOND({"steps", o->steps, 1, 0}, {"val_every", o->val_every, 1, 0},
                   {"save_every", o->save_every, 1, 0}, {"memory_every", o->memory_every, 0, 0},
                   {"log_every", o->log_every, 0, 0}, {"patience", o->patience, 0, 0},
                   {"keep_best", o->keep_best, 0, 0}, {"until_units", o->until_units, 0, 0});
    wrong = !o->out || !*o->out                                       ? "there is no folder"
            : wrong                                                   ? wrong
            : !(o->hours >= 0 && o->until_cost >= 0 && o->price >= 0) ? "a limit is below 0"
            : o->epochs != 0 ? "this program counts steps, not epochs (tn_run_steps was not called)"
            : o->until_cost > 0 && o->price == 0
                ? "a cost to end at needs the price of an hour of a rank"
            : o->overwrite && (o->resume || o->resume_anyway)
                ? "--resume continues and --overwrite starts over: one of them"
                : NULL;
    if (wrong) { tn__raise(TN_EVALUE, "run_new", "%s", wrong); }
    return !wrong;
}

/* False after raising. */
static bool run_prepare(tn_run *r) {
    const char *out = r->options.out;
    r->losses = tn__folder_path(out, "loss.csv", "run_new");
    r->picture = tn__folder_path(out, "loss.svg", "run_new");
    r->record = tn__folder_path(out, "run.json", "run_new");
    if (r->losses && r->picture && r->record && tn__record_ranks_fit(r->ranks) &&
        tn__folder_make(out, "run_new")) {
        r->saver = tn_saver_new(r->world, out, TN_WITH(tn_saver, .after = r->options.after_save));
        tn__run_memory_open(r);
    }
    return !tn__pending();
}

static void run_free(tn_run *r) {
    if (!tn__run_closes(r)) { return; }
    tn__profiler_own_end(r);
    tn_progress_free(r->progress);
    tn_history_free(r->history);
    tn_summary_writer_free(r->board);
    tn__run_memory_close(r);
    tn_saver_free(r->saver);
    free(r->losses);
    free(r->picture);
    free(r->record);
    free(r->starts_before);
    free(r->start_text);
    free(r->watchers);
    free(r->early_name);
    free(r->best_name);
    free(r);
}

tn_run *tn_run_new(tn_group *world, tn_run_options options, tn_checkpoint parts) {
    bool fit = !tn__pending() && tn__options_made(options.from_defaults, "run_new", "tn_run") &&
               options_fit(&options);
    tn_run *r = fit ? tn__calloc_for(1, sizeof(*r), "run_new") : NULL;
    if (!r) { return NULL; }
    *r = (tn_run){.options = options,
                  .parts = parts,
                  .world = world,
                  .ranks = tn_group_size(world),
                  .first_rank = tn_group_rank(world) == 0,
                  .saved = -1,
                  .saved_before = -1,
                  .remembered = -1,
                  .remembered_before = -1,
                  .opened = tn__now(),
                  .loss = NAN};
    tn__run_opened(r);
    snprintf(r->unit, sizeof(r->unit), "%.20s", options.unit ? options.unit : "unit");
    r->parts.step = 0;
    if (run_prepare(r)) {
        tn__run_say_what(r);
        run_begin(r);
        watch_val_loss(r);
    }
    if (tn__pending()) {
        run_free(r);
        return NULL;
    }
    tn_stop_on_signals();
    return r;
}

/* ---- A step ---------------------------------------------------------------------------------- */

void tn_run_log(tn_run *r, const char *name, double value) {
    if (r && !tn__run_here(r, "run_log")) { return; }
    if (r && r->in_step && name) {
        tn__run_note_value(r, name, value);
        tn__run_note_loss(r, name, value);
    }
    if (r && r->in_step && r->first_rank) {
        tn__run_put(r, name, value);
        if (!tn__pending()) { tn__run_show(r, name, value); }
    }
}

void tn_run_count(tn_run *r, int64_t units) {
    if (r && tn__run_here(r, "run_count")) { r->units += units; }
}

void tn_run_utilisation(tn_run *r, double flops, double peak) {
    tn_progress_utilisation(r && tn__run_here(r, "run_utilisation") ? r->progress : NULL, flops,
                            peak);
}

/* This process's peak; 0 if unknown. getrusage's would include the process that started it. */
static double process_megabytes(void) {
    static const char place[] = "/proc/self/status", name[] = "\nVmHWM:";
    size_t bytes;
    char *text = access(place, R_OK) == 0 ? tn__read_whole(place, &bytes, "run") : NULL;
    const char *at = text ? strstr(text, name) : NULL;
    long long kilobytes = at ? strtoll(at + strlen(name), NULL, 10) : 0;
    free(text);
    return (double)kilobytes * 1.024e-3;
}

/* Logs peak memory so far, in megabytes: tensors on the device, and the process. */
static void put_memory(tn_run *r) {
    double tensors = (double)tn_device_memory(tn_default_device()).peak / 1e6;
    r->megabytes = tensors;
    tn__run_put(r, "memory_mb", round(tensors));
    tn__run_put(r, "process_mb", round(process_megabytes()));
}

/* The work of the step is done, even if validation follows. */
static void stop_clock(tn_run *r) {
    if (r->clock_stopped || !r->first_rank) { return; }
    r->clock_stopped = true;
    double seconds = tn__now() - r->began;
    if (r->units > 0 && seconds > 0) {
        char name[32];
        snprintf(name, sizeof(name), "%s_per_s", r->unit);
        tn__run_put(r, name, (double)r->units / seconds);
    }
    put_memory(r);
    tn__run_show_step(r);
}

static bool step_due(const tn_run *r, int64_t step, int64_t every) {
    return step % every == 0 || step == r->options.steps;
}

bool tn_run_validates(tn_run *r) {
    bool due = r && tn__run_here(r, "run_validates") && r->in_step &&
               step_due(r, r->parts.step + 1, r->options.val_every);
    if (due) {
        stop_clock(r);
        r->validating = true;
    }
    return due;
}

static void step_begin(tn_run *r) {
    tn__profiler_own_step(r);
    r->in_step = true;
    r->clock_stopped = r->validating = r->bad_loss = false;
    r->units = 0;
    *r->note = *r->line = 0;
    tn_progress_resume(r->progress);
    r->began = tn__now();
}

static void step_end(tn_run *r) {
    stop_clock(r);
    r->in_step = false;
    tn__run_count_step(r);
    r->parts.step++;
    if (r->first_rank) {
        tn_history_step(r->history);
        tn__run_say_batch(r);
        tn__run_say_line(r);
    }
    tn__run_tell(r, TN_RUN_STEPPED);
    if (r->validating && !tn__pending()) { tn__run_tell(r, TN_RUN_VALIDATED); }
}

static void run_save(tn_run *r) {
    if (!tn__run_weights_finite(r)) { return; }
    bool synced = !r->history || tn_history_sync(r->history) == TN_OK;
    if (tn_saver_save(r->saver, &r->parts) == TN_OK && synced) { /* the others learn of an error */
        r->saved_before = r->saved;
        r->saved = r->parts.step;
        tn__run_picture(r);
        tn__run_record(r, NULL);
        tn__run_board_weights(r);
        tn__run_tell(r, TN_RUN_SAVED);
    }
}

/* Asks in one exchange whether any rank was told to stop, wants the run to end, or has a bad loss.
 * False after raising. */
static bool ask_ranks(tn_run *r) {
    const double end = 0x1p16, bad = end * end; /* end: more than the number of ranks */
    bool ends = tn__run_at_limit(r) || r->wants_end;
    double mine = (tn_stop_asked() ? 1 : 0) + (ends ? end : 0) + (r->bad_loss ? bad : 0);
    double all = round(tn_group_mean(r->world, mine, 1) * r->ranks);
    r->stopped = fmod(all, end) > 0;
    r->finished = fmod(all, bad) >= end;
    return tn__run_loss_finite(r, all >= bad) && !tn__pending();
}

bool tn_run_next(tn_run *r) {
    if (!r || !tn__run_here(r, "run_next") || r->ended || tn__pending()) { return false; }
    bool stepped = r->in_step;
    if (stepped) { step_end(r); }
    int64_t step = r->parts.step;
    if (!ask_ranks(r) || (stepped && !tn__run_look(r))) { return false; }
    r->finished = r->finished || r->stalled;
    r->ended = r->stopped || r->finished || step >= r->options.steps;
    bool due = r->ended || (step > r->start && step_due(r, step, r->options.save_every));
    if (due && step > r->saved) {
        run_save(r); /* writes while training continues */
    } else if (step > r->start && r->options.memory_every > 0 &&
               step_due(r, step, r->options.memory_every)) {
        tn__run_memory_save(r);
    }
    if (r->ended || tn__pending()) { return false; }
    step_begin(r);
    return true;
}

/* ---- The end --------------------------------------------------------------------------------- */

tn_status tn_run_export(tn_run *r, const char *words) {
    if (!r) { return tn__raise(TN_EVALUE, "run_export", "the run is NULL"); }
    if (!tn__run_here(r, "run_export")) { return tn_error(); }
    tn_lm_save_options options = tn_lm_save_defaults();
    options.tokenizer = words;
    r->exported =
        !r->refused && tn_dist_save_lm(r->world, r->parts.model, r->options.out, options) == TN_OK;
    return tn_error();
}

int tn_run_end(tn_run *r) {
    if (!r || !tn__run_here(r, "run_end")) { return 1; }
    bool refused = r->refused, done = tn_run_done(r), stopped = r->stopped;
    if (!refused && !r->unsound && !tn__pending()) {
        if (r->parts.step > r->saved) { /* the program left the loop by itself */
            run_save(r);
        }
        if (tn_saver_wait(r->saver) == TN_OK) {
            tn__run_memory_clear(r);
            r->saved_before = r->saved; /* no run will continue from there */
            if (!r->drawn) {            /* the process that saved did not */
                tn__run_picture(r);
            }
            tn__run_record(r, stopped ? "stopped" : *r->limit ? r->limit : done ? "done" : "left");
            tn__run_clear_best(r);
            tn__run_tell(r, TN_RUN_ENDED);
            tn__run_say_end(r);
        }
    }
    bool unsound = r->unsound; /* or found by this save */
    run_free(r);
    /* a run whose output could not be written must not count as successful */
    bool failed = tn__pending() || fflush(stdout) || ferror(stdout);
    return unsound            ? EX_DATAERR
           : failed           ? 1
           : refused          ? EX_USAGE
           : done || !stopped ? 0
                              : tn_stop_status();
}
