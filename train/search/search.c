/* A search: which trial is next, and what is known about each.
 *
 * A trial's values depend only on the seed and its number, and its results are in the folder
 * (folder.c). So there is nothing else to keep: a search that was killed reads the folder, and
 * continues, and several ranks know the same. rungs.c decides which trials continue to the next
 * rung.
 */
#include "train/search/search.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"

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
    const char *wrong = TN__BEYOND(
        {"trials", o->trials, 1, TN__MOST_TRIALS}, {"steps", o->steps, 1, INT64_MAX / 1000},
        {"first_steps", o->first_steps, 0, o->steps}, {"factor", o->factor, 2, 1000},
        {"processes", o->processes, 0, 1000}, {"ranks", o->ranks, 1, 4096},
        {"gpus", o->gpus, 0, 1000});
    wrong = !o->out || !*o->out ? "there is no folder" : wrong;
    if (wrong) { tn__raise(TN_EVALUE, "search_new", "%s", wrong); }
    return !wrong;
}

tn_search *tn_search_new(tn_search_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "search_new", "tn_search") ||
        !search_options_fit(&options)) {
        return NULL;
    }
    tn_search *s = tn__calloc_for(1, sizeof(*s), "search_new");
    if (!s) { return NULL; }
    *s = (tn_search){.options = options, .current = -1, .ranks = 1, .local_ranks = 1};
    s->out = tn__strdup_for(options.out, "search_new");
    s->space = tn__calloc_for(TN__MOST_SEARCHED, sizeof(*s->space), "search_new");
    s->workers = tn__calloc_for((size_t)options.processes + 1, sizeof(*s->workers), "search_new");
    if (tn__pending()) {
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
        free(s->out);
        free(s->space);
        free(s->workers);
        free(s->trials);
        tn__search_free_rungs(s);
        free(s->folder);
        free(s);
    }
}

/* ---- Trials ---------------------------------------------------------------------------------- */

static bool count_trials(tn_search *s) {
    s->trial_count = s->options.trials;
    if (s->options.grid) {
        s->trial_count = 1;
        for (int i = 0; i < s->space_count; i++) {
            const tn__searched *v = &s->space[i];
            if (!v->choices) {
                return tn__fail(TN_EVALUE, "search", "%s is a range, but a grid needs choices",
                                v->name);
            }
            s->trial_count *= v->count;
            if (s->trial_count > TN__MOST_TRIALS) {
                return tn__fail(TN_EVALUE, "search", "the grid has more than %d points",
                                TN__MOST_TRIALS);
            }
        }
    }
    s->trials = tn__calloc_for((size_t)s->trial_count, sizeof(*s->trials), "search");
    return s->trials && tn__search_begin_rungs(s);
}

/* Makes `trial` this process's. False after raising. Of a trial's ranks the first one writes in its
 * folder. */
static bool enter_trial(tn_search *s, int64_t trial) {
    free(s->folder);
    s->folder = tn__search_trial_folder(s, trial);
    bool entered = s->folder != NULL;
    if (entered && s->trial_rank == 0) {
        entered = tn__folder_make(s->folder, "search") && tn__search_write_settings(s, trial);
    }
    tn__search_set(s, trial);
    s->current = entered ? trial : -1;
    s->reported = false;
    return entered;
}

/* The first call in a trial's process. False after raising. */
static bool begin_child(tn_search *s, int64_t trial, int64_t rung) {
    const char *rank = s->options.ranks > 1 ? getenv("RANK") : NULL;
    s->trial_rank = rank ? atoi(rank) : 0;
    s->child = true;
    if (trial >= s->trial_count || rung >= s->rung_count) {
        return tn__fail(TN_EVALUE, "search",
                        "TERN_TRIAL names trial %lld, rung %lld, which does not exist",
                        (long long)trial, (long long)rung);
    }
    s->trials[trial].rungs = (int)rung;
    return enter_trial(s, trial);
}

/* The first call. False when there is nothing to do here, or after raising. */
static bool search_begin(tn_search *s) {
    int64_t trial, rung;
    s->began = true;
    if (!count_trials(s)) { return false; }
    if (tn__search_told(&trial, &rung)) { return begin_child(s, trial, rung); }
    if (!tn__search_find_rank(s) || !tn__search_claim(s)) { return false; }
    bool apart = s->ranks > 1 || s->options.ranks > 1 || s->options.gpus > 0;
    s->processes = s->options.processes > 0 ? (int)s->options.processes : apart;
    if (s->processes > 0 && s->options.ranks == 1 && getenv("TERN_MEMORY_DIR")) {
        tn_log_write(TN_LOG_INFO, "search: trials save to files only: what those that are killed "
                                  "had saved in memory would stay there");
    }
    for (int64_t i = 0; i < s->trial_count && !tn__pending(); i++) {
        tn__search_learn(s, i);
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

/* The trial to run next, locked. -1: others have the rest at the moment, or after raising. */
static int64_t take_trial(tn_search *s, int *lock) {
    int64_t trial = tn__search_choose_next(s);
    while (trial >= 0 && !tn__pending()) {
        *lock = tn__search_lock(s, trial);
        s->trials[trial].elsewhere = *lock < 0;
        if (*lock >= 0 && !tn__search_learn(s, trial)) { return trial; }
        if (*lock >= 0) { close(*lock); }
        trial = tn__search_choose_next(s);
    }
    return -1;
}

/* Whether trials run, here or elsewhere. */
static bool any_running(const tn_search *s) {
    bool any = false;
    for (int64_t i = 0; i < s->trial_count; i++) {
        any = any || s->trials[i].running || s->trials[i].elsewhere;
    }
    return any;
}

static void await_trial(tn_search *s) {
    bool well = false;
    int64_t trial = tn__search_wait(s, &well);
    if (trial >= 0) {
        s->trials[trial].running = false;
        /* a value counts, now and later, however the process ended */
        s->trials[trial].failed = !tn__search_learn(s, trial);
        if (!tn__pending()) { say_trial(s, trial, well); }
    }
    for (int64_t i = 0; i < s->trial_count; i++) {
        s->trials[i].elsewhere = false; /* until looked at again */
    }
}

/* Runs the remaining trials in processes, until all have ended, here and elsewhere. */
static void run_processes(tn_search *s) {
    bool more = true;
    while (more && !s->stopped && !tn__pending()) {
        int lock;
        int64_t trial = s->worker_count < s->processes ? take_trial(s, &lock) : -1;
        if (trial >= 0) {
            s->trials[trial].running = tn__search_start(s, trial, lock);
        } else if (any_running(s)) {
            await_trial(s);
        } else {
            more = false;
        }
        s->stopped = tn_stop_asked();
    }
    tn__search_stop(s); /* after an error, or when asked to stop */
}

bool tn_search_next(tn_search *s) {
    if (!s || tn__pending()) { return tn__fail(TN_EVALUE, "search_next", "the search is NULL"); }
    if (!s->began) {
        s->over = !search_begin(s);
        if (s->over || s->child) { return !s->over; }
    } else if (s->current >= 0 && !s->reported) {
        s->trials[s->current].failed = true;
    }
    s->stopped = s->stopped || tn_stop_asked();
    s->current = -1;
    free(s->folder);
    s->folder = NULL;
    if (s->child || s->stopped || s->over) { return false; }
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
    s->reported = s->trial_rank > 0 || tn__search_write_value(s, s->current, value);
    if (s->reported) { t->values[t->rungs++] = value; }
    if (s->reported && !s->child) { say_trial(s, s->current, true); }
}

bool tn_search_best(tn_search *s) {
    if (!s || !s->trials || s->child || s->stopped || s->rank != 0) { return false; }
    int64_t best = -1, count;
    for (int rung = s->rung_count - 1; rung >= 0 && best < 0; rung--) {
        tn__ranked *trials = tn__search_sort(s, rung, &count);
        best = trials && count > 0 ? trials[0].trial : -1;
        free(trials);
    }
    if (best < 0 || tn__pending()) { return false; }
    free(s->folder);
    s->folder = tn__search_trial_folder(s, best);
    tn__search_set(s, best);
    return s->folder != NULL;
}
