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
 * rungs.c decides which trials continue to the next rung.
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

tn_search_options tn_search_defaults(void) {
    return (tn_search_options){
        .out = "search", .trials = 10, .steps = 1000, .factor = 3, .from_defaults = true};
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
        *s = (tn_search){
            .options = options, .out = tn__strdup(options.out), .current = -1, .held = -1};
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

static bool write_text(const char *path, const char *text) {
    return path && tn_write_file(path, text, strlen(text)) == TN_OK;
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
static bool read_value(tn_search *s, int64_t trial) {
    tn__trial *t = &s->trials[trial];
    char *path = t->rungs < s->rung_count ? value_path(s, trial, t->rungs) : NULL;
    char *folder = path ? tn__search_trial_folder(s, trial) : NULL;
    bool there = folder && tn__folder_has(folder, strrchr(path, '/') + 1);
    size_t bytes;
    char *text = there ? tn__read_whole(path, &bytes, "search") : NULL, *end = text;
    if (text) {
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        double value = strtod(text, &end);
        tn__plain_numbers_end(numbers);
        if (end == text || *end != '\n') {
            tn__raise(TN_EFORMAT, "search", "%s: it is not a value", path);
        } else {
            t->values[t->rungs++] = value;
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
    if (path && tn__folder_has(s->out, "search.txt")) {
        size_t bytes;
        char *theirs = tn__read_whole(path, &bytes, "search");
        if (theirs && strcmp(theirs, mine) != 0) {
            tn__raise(TN_EMISMATCH, "search",
                      "%s is another search: it was\n%sbut is\n%s(choose another folder)", s->out,
                      theirs, mine);
        }
        free(theirs);
    } else if (path) {
        write_text(path, mine);
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

/* Makes `trial` this process's. False after raising, or when a child was asked to stop. */
static bool enter_trial(tn_search *s, int64_t trial) {
    bool entered = make_trial_folder(s, trial) && (!s->child || tn__search_hold(s));
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
    if (!claim_folder(s)) {
        return false;
    }
    for (int64_t i = 0; i < s->trial_count && !tn__pending(); i++) {
        while (read_value(s, i)) {
        }
    }
    tn_stop_on_signals();
    return !tn__pending();
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

/* Runs the remaining trials in processes, until all have ended. */
static void run_processes(tn_search *s) {
    while (!tn__pending() && !s->stopped) {
        int64_t trial = s->worker_count < s->options.processes ? tn__search_choose_next(s) : -1;
        if (trial >= 0) {
            tn__search_start(s, trial);
            continue;
        }
        if (s->worker_count == 0) {
            return;
        }
        bool well = false;
        trial = tn__search_wait(s, &well);
        s->stopped = trial < 0;
        if (trial >= 0) {
            s->trials[trial].failed = !read_value(s, trial); /* a value counts, now and later */
            say_trial(s, trial, well);
        }
    }
    tn__search_stop(s); /* after an error */
}

bool tn_search_next(tn_search *s) {
    if (!s || tn__pending()) {
        tn__raise(TN_EVALUE, "search_next", "the search is NULL");
        return false;
    }
    if (!s->began) {
        bool begun = search_begin(s);
        if (!begun || s->child) {
            return begun;
        }
    } else if (s->current >= 0 && !s->reported) {
        s->trials[s->current].failed = true;
    }
    s->stopped = s->stopped || tn_stop_asked();
    s->current = -1;
    tn__search_leave(s);
    free(s->folder);
    s->folder = NULL;
    if (s->child || s->stopped) {
        return false;
    }
    if (s->options.processes > 0) {
        run_processes(s);
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
    char text[40], *path = value_path(s, s->current, t->rungs);
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    snprintf(text, sizeof(text), "%.17g\n", value);
    tn__plain_numbers_end(numbers);
    s->reported = write_text(path, text);
    free(path);
    if (s->reported) {
        t->values[t->rungs++] = value;
    }
    if (s->reported && !s->child) {
        say_trial(s, s->current, true);
    }
}

bool tn_search_best(tn_search *s) {
    int64_t best = -1, count;
    bool ended = s && s->trials && !s->child && !s->stopped;
    for (int rung = ended ? s->rung_count - 1 : -1; rung >= 0 && best < 0; rung--) {
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
