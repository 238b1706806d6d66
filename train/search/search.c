/* A search: which trial is next, and what is known about each.
 *
 * A trial's values depend only on the seed and its number, and its results are in its folder, a
 * file per rung: value-000090. So there is nothing else to keep: a search that was killed reads the
 * folders, and continues.
 *
 *     FOLDER/search.txt                    what is searched; another search is refused
 *     FOLDER/trials.csv                    the table at the end
 *     FOLDER/trial-0007/values.txt         its values, for people
 *     FOLDER/trial-0007/value-000090       its result after 90 steps
 *     FOLDER/trial-0007/output.txt         its process's output
 *
 * Over several ranks each has such a folder, or all have the same, and hosts.c sees to it that all
 * know the same values. rungs.c decides which trials continue to the next rung.
 */
#include "train/search/search.h"

#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/plain_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tn_search_options tn_search_defaults(void) {
    return (tn_search_options){.out = "search",
                               .trials = 10,
                               .steps = 1000,
                               .factor = 3,
                               .ranks = 1,
                               .lease = 30,
                               .from_defaults = true};
}

/* ---- Making ---------------------------------------------------------------------------------- */

/* The steps of each rung: first_steps, then factor times as many each, up to steps. */
static void make_rungs(tn_search *s) {
    const tn_search_options *o = &s->options;
    int64_t steps = o->first_steps > 0 ? o->first_steps : o->steps;
    while (steps < o->steps && s->rung_count < TN__RUNGS - 1) {
        s->rungs[s->rung_count++].steps = steps;
        steps *= o->factor;
    }
    s->rungs[s->rung_count++].steps = o->steps;
}

static bool search_options_fit(const tn_search_options *o) {
    const char *wrong =
        !o->out || !*o->out                               ? "there is no folder"
        : o->trials < 1 || o->trials > TN__MOST_TRIALS    ? "trials: 1 to 100000"
        : o->steps < 1 || o->steps > INT64_MAX / 1000     ? "steps are below 1, or too many"
        : o->first_steps < 0 || o->first_steps > o->steps ? "first_steps: 0 to steps"
        : o->factor < 2 || o->factor > 1000               ? "factor: 2 to 1000"
        : o->processes < 0 || o->processes > 1000         ? "processes: 0 to 1000"
        : o->ranks < 1 || o->ranks > 4096                 ? "ranks: 1 to 4096"
        : o->gpus < 0 || o->gpus > 1000                   ? "gpus: 0 to 1000"
        : !(o->lease > 0 && o->lease <= 1e6)              ? "lease: seconds, above 0"
                                                          : NULL;
    if (wrong) {
        tn__raise(TN_EVALUE, "search_new", "%s", wrong);
    }
    return !wrong;
}

tn_search *tn_search_new(tn_search_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "search_new", "tn_search") ||
        !search_options_fit(&options)) {
        return NULL;
    }
    tn_search *s = tn__calloc(1, sizeof(*s));
    if (s) {
        *s = (tn_search){.options = options,
                         .out = tn__strdup(options.out),
                         .current = -1,
                         .held = -1,
                         .local_ranks = 1};
        s->space = tn__calloc(TN__MOST_SEARCHED, sizeof(*s->space));
        s->workers = tn__calloc((size_t)options.processes + 1, sizeof(*s->workers));
    }
    if (!s || !s->out || !s->space || !s->workers) {
        tn__raise(TN_ENOMEM, "search_new", "no memory");
        tn__search_free(s);
        return NULL;
    }
    make_rungs(s);
    return s;
}

void tn__search_free(tn_search *s) {
    for (int i = 0; s && i < s->space_count; i++) {
        free(s->space[i].choices);
    }
    if (s) {
        tn__search_part(s);
        tn__search_leave(s);
        free(s->out);
        free(s->space);
        free(s->workers);
        free(s->trials);
        tn__search_free_rungs(s);
        free(s->folder);
        free(s);
    }
}

/* ---- The folder ------------------------------------------------------------------------------ */

char *tn__search_trial_folder(const tn_search *s, int64_t trial) {
    char name[32];
    snprintf(name, sizeof(name), "trial-%04lld", (long long)trial);
    return tn__folder_path(s->out, name, "search");
}

/* The caller frees; NULL after raising. */
static char *value_path(const tn_search *s, int64_t trial, int rung) {
    char name[40];
    snprintf(name, sizeof(name), "value-%06lld", (long long)s->rungs[rung].steps);
    char *folder = tn__search_trial_folder(s, trial);
    char *path = folder ? tn__folder_path(folder, name, "search") : NULL;
    free(folder);
    return path;
}

/* Writes a file, unless it is there: other ranks may share the folder and be writing the same.
 * False after raising. */
static bool write_once(const char *path, const char *text) {
    enum { TRIES = 100, PAUSE = 10000 }; /* microseconds */
    tn_error_record error;
    bool there = access(path, F_OK) == 0;
    for (int i = 0; !there && !tn__pending(); i++) {
        tn__quiet(1);
        tn_write_file(text, strlen(text), path);
        tn__quiet(-1);
        bool failed = tn_error_take(&error);
        there = !failed || access(path, F_OK) == 0;
        if (!there && (i == TRIES || error.status != TN_EIO)) {
            tn_error_give(&error);
        } else if (!there) {
            usleep(PAUSE);
        }
    }
    return there;
}

static bool write_value(const char *path, double value) {
    char text[40];
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    snprintf(text, sizeof(text), "%.17g\n", value);
    tn__plain_numbers_end(numbers);
    return write_once(path, text);
}

bool tn__search_keep_value(const tn_search *s, int64_t trial, double value, bool *was_there) {
    char *folder = tn__search_trial_folder(s, trial);
    char *path = folder ? value_path(s, trial, s->trials[trial].rungs) : NULL;
    *was_there = path && access(path, F_OK) == 0;
    bool kept =
        *was_there || (path && tn__folder_make(folder, "search") && write_value(path, value));
    free(path);
    free(folder);
    return kept;
}

/* Makes the trial's folder s->folder, and writes its values there, for people. False after raising.
 */
static bool make_trial_folder(tn_search *s, int64_t trial) {
    free(s->folder);
    s->folder = tn__search_trial_folder(s, trial);
    bool made = s->folder && tn__folder_make(s->folder, "search");
    char *path = made ? tn__folder_path(s->folder, "values.txt", "search") : NULL;
    char *text = path ? tn__search_describe(s, trial) : NULL;
    tn__file f;
    bool written = text && tn__file_begin(&f, path, "search");
    if (written) {
        tn__file_put(&f, text, strlen(text));
        tn__file_put(&f, "\n", 1);
        written = tn__file_commit(&f) == TN_OK;
    }
    free(text);
    free(path);
    return written;
}

/* Reads the trial's result after its next rung; false where there is no such file, or after
 * raising. */
static bool read_value(const tn_search *s, int64_t trial, double *value) {
    const tn__trial *t = &s->trials[trial];
    char *path = t->rungs < s->rung_count ? value_path(s, trial, t->rungs) : NULL;
    char *folder = path ? tn__search_trial_folder(s, trial) : NULL;
    bool there = folder && tn__folder_has(folder, strrchr(path, '/') + 1);
    size_t bytes;
    char *text = there ? tn__read_whole(path, &bytes, "search") : NULL, *end = text;
    if (text) {
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        *value = strtod(text, &end);
        tn__plain_numbers_end(numbers);
        if (end == text || *end != '\n') {
            tn__raise(TN_EFORMAT, "search", "%s: it is not a value", path);
        }
    }
    free(text);
    free(folder);
    free(path);
    return text && !tn__pending();
}

/* Writes the search's text into the folder, or compares it with the one there. False after
 * raising. */
static bool claim_folder(tn_search *s) {
    char *mine = tn__folder_make(s->out, "search") ? tn__search_text(s) : NULL;
    char *path = mine ? tn__folder_path(s->out, "search.txt", "search") : NULL;
    if (path && write_once(path, mine)) {
        size_t bytes;
        char *theirs = tn__read_whole(path, &bytes, "search");
        if (theirs && strcmp(theirs, mine) != 0) {
            tn__raise(TN_EMISMATCH, "search",
                      "%s is another search: it was\n%sbut is\n%s(choose another folder)", s->out,
                      theirs, mine);
        }
        free(theirs);
    }
    free(path);
    free(mine);
    return !tn__pending();
}

/* ---- Trials ---------------------------------------------------------------------------------- */

static bool count_trials(tn_search *s) {
    s->trial_count = s->options.trials;
    if (s->options.grid) {
        s->trial_count = 1;
        for (int i = 0; i < s->space_count; i++) {
            const tn__searched *v = &s->space[i];
            if (!v->choices) {
                tn__raise(TN_EVALUE, "search", "%s is a range, but a grid needs choices", v->name);
                return false;
            }
            s->trial_count *= v->count;
            if (s->trial_count > TN__MOST_TRIALS) {
                tn__raise(TN_EVALUE, "search", "the grid has more than %d points", TN__MOST_TRIALS);
                return false;
            }
        }
    }
    s->trials = tn__calloc_for((size_t)s->trial_count, sizeof(*s->trials), "search");
    return s->trials && tn__search_begin_rungs(s);
}

/* Makes `trial` this process's. False after raising, or when a child was asked to stop. Of a
 * trial's ranks the first one writes in its folder, and holds it. */
static bool enter_trial(tn_search *s, int64_t trial) {
    bool entered = true;
    if (s->trial_rank == 0) {
        entered = make_trial_folder(s, trial) && (!s->child || tn__search_hold(s));
    } else {
        s->folder = tn__search_trial_folder(s, trial);
        entered = s->folder != NULL;
    }
    tn__search_set(s, trial);
    s->current = entered ? trial : -1;
    s->reported = false;
    return entered;
}

/* The first call. False when there is nothing to do here, or after raising. */
static bool search_begin(tn_search *s) {
    int64_t trial, rung;
    s->began = true;
    if (!count_trials(s)) {
        return false;
    }
    if (tn__search_told(&trial, &rung)) {
        const char *rank = s->options.ranks > 1 ? getenv("RANK") : NULL;
        s->trial_rank = rank ? atoi(rank) : 0;
        s->child = true;
        if (trial >= s->trial_count || rung >= s->rung_count) {
            tn__raise(TN_EVALUE, "search",
                      "TERN_TRIAL names trial %lld, rung %lld, which does not exist",
                      (long long)trial, (long long)rung);
            return false;
        }
        s->trials[trial].rungs = (int)rung;
        return enter_trial(s, trial);
    }
    if (!claim_folder(s) || !tn__search_join(s)) {
        return false;
    }
    bool apart = s->hosts || s->options.ranks > 1 || s->options.gpus > 0;
    s->processes = s->options.processes > 0 ? (int)s->options.processes : apart;
    if (s->processes > 0 && s->options.ranks == 1 && getenv("TERN_MEMORY_DIR")) {
        tn_log_write(TN_LOG_INFO, "search: trials save to files only: what those that are killed "
                                  "had saved in memory would stay there");
    }
    for (int64_t i = 0; i < s->trial_count && !tn__pending(); i++) {
        double value;
        while (read_value(s, i, &value) && tn__search_publish(s, i, value)) {
        }
    }
    tn_stop_on_signals();
    return !tn__pending() && tn__search_gpus_suffice(s);
}

/* `well`: its process, if it has one, ended with status 0. */
static void say_trial(const tn_search *s, int64_t trial, bool well) {
    const tn__trial *t = &s->trials[trial];
    char *text = tn__search_describe(s, trial);
    const char *with = text ? text : "";
    if (t->failed) {
        printf("trial %lld has failed (%s/trial-%04lld/output.txt): %s\n", (long long)trial, s->out,
               (long long)trial, with);
    } else {
        printf("trial %lld, %lld steps: %.6g   %s\n", (long long)trial,
               (long long)s->rungs[t->rungs - 1].steps, t->values[t->rungs - 1], with);
    }
    if (!t->failed && !well) {
        printf("trial %lld has failed after its value (%s/trial-%04lld/output.txt)\n",
               (long long)trial, s->out, (long long)trial);
    }
    free(text);
    fflush(stdout);
}

static void end_trial(tn_search *s, int64_t trial, bool well) {
    double value;
    bool known = read_value(s, trial, &value); /* it counts, now and later */
    if (tn__search_settle(s, trial, known ? &value : NULL)) {
        say_trial(s, trial, well);
    }
}

/* Where hosts share the folder, one that has died may have left the value there. */
static void begin_trial(tn_search *s, int64_t trial) {
    double value;
    if (!tn__search_take(s, trial)) {
        return;
    }
    if (s->hosts && read_value(s, trial, &value)) {
        end_trial(s, trial, true);
    } else {
        tn__search_start(s, trial);
    }
}

static bool any_running(const tn_search *s) {
    bool any = false;
    for (int64_t i = 0; i < s->trial_count; i++) {
        any = any || s->trials[i].running;
    }
    return any;
}

/* Runs the remaining trials in processes, until all have ended, here and elsewhere. */
static void run_processes(tn_search *s) {
    while (!s->stopped && tn__search_listen(s)) {
        int64_t trial = s->worker_count < s->processes ? tn__search_choose_next(s) : -1;
        if (trial >= 0) {
            begin_trial(s, trial);
        } else if (any_running(s)) {
            bool well = false;
            trial = tn__search_wait(s, &well);
            if (trial >= 0) {
                end_trial(s, trial, well);
            }
        } else {
            break;
        }
        s->stopped = tn_stop_asked();
    }
    tn__search_stop(s); /* after an error, or when asked to stop */
    tn__search_part(s);
}

bool tn_search_next(tn_search *s) {
    if (!s || tn__pending()) {
        tn__raise(TN_EVALUE, "search_next", "the search is NULL");
        return false;
    }
    if (!s->began) {
        s->over = !search_begin(s);
        if (s->over || s->child) {
            return !s->over;
        }
    } else if (s->current >= 0 && !s->reported) {
        s->trials[s->current].failed = true;
    }
    s->stopped = s->stopped || tn_stop_asked();
    s->current = -1;
    tn__search_leave(s);
    free(s->folder);
    s->folder = NULL;
    if (s->child || s->stopped || s->over) {
        return false;
    }
    if (s->processes > 0) {
        run_processes(s);
        s->over = true;
        return false;
    }
    int64_t trial = tn__search_choose_next(s);
    return trial >= 0 && enter_trial(s, trial);
}

/* ---- In a trial ------------------------------------------------------------------------------ */

int64_t tn_search_steps(const tn_search *s) {
    return s && s->current >= 0 ? s->rungs[s->trials[s->current].rungs].steps : 0;
}

int64_t tn_search_trial(const tn_search *s) {
    return s ? s->current : -1;
}

const char *tn_search_folder(const tn_search *s) {
    return s ? s->folder : NULL;
}

void tn_search_report(tn_search *s, double value) {
    if (!s || s->current < 0 || s->reported || tn__pending() || tn_stop_asked()) {
        return; /* a stopped trial has not ended */
    }
    tn__trial *t = &s->trials[s->current];
    char *path = value_path(s, s->current, t->rungs);
    s->reported = path && (s->trial_rank > 0 || write_value(path, value));
    free(path);
    if (s->reported) {
        t->values[t->rungs++] = value;
        t->here = true;
    }
    if (s->reported && !s->child) {
        say_trial(s, s->current, true);
    }
}

bool tn_search_best(tn_search *s) {
    if (!s || !s->trials || s->child || s->stopped || s->rank != 0) {
        return false;
    }
    int64_t best = -1, count;
    for (int rung = s->rung_count - 1; rung >= 0 && best < 0; rung--) {
        tn__ranked *trials = tn__search_sort(s, rung, &count);
        best = trials && count > 0 ? trials[0].trial : -1;
        free(trials);
    }
    if (best < 0 || tn__pending()) {
        return false;
    }
    free(s->folder);
    s->folder = tn__search_trial_folder(s, best);
    tn__search_set(s, best);
    return s->folder != NULL;
}
