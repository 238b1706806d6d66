/* Callbacks of a run: functions that are called at its events, stopping early, limits, and the best
 * weights as files.
 *
 * What was measured is in the history, which continues with the run; so whether a value is the
 * best, and how long it has not improved, is computed from the history alone: a run that was killed
 * and continues decides like any other. The first rank has the history; it decides and tells the
 * others.
 */
#include "core/clock.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "train/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Values ---------------------------------------------------------------------------------- */

/* The place of a name among the values; value_count: it has none yet. */
static int find_value(const tn_run *r, const char *name) {
    int i = 0;
    while (i < r->value_count && strcmp(r->values[i].name, name) != 0) {
        i++;
    }
    return i;
}

void tn__run_note_value(tn_run *r, const char *name, double value) {
    int i = find_value(r, name);
    if (i == TN__COLUMNS || strlen(name) >= sizeof(r->values[i].name)) {
        return; /* the history has refused it */
    }
    r->value_count += i == r->value_count;
    strcpy(r->values[i].name, name);
    r->values[i].value = value;
    r->values[i].step = r->parts.step + 1;
}

double tn_run_value(const tn_run *r, const char *name) {
    if (!r || !name || !tn__run_here(r, "run_value")) { return NAN; }
    int i = find_value(r, name);
    return i < r->value_count ? r->values[i].value : NAN;
}

/* Whether the step that has just ended has this value. */
static bool is_fresh(const tn_run *r, const char *name) {
    int i = find_value(r, name);
    return i < r->value_count && r->values[i].step == r->parts.step;
}

/* ---- Callbacks ------------------------------------------------------------------------------- */

tn_status tn_run_on(tn_run *r, tn_run_event event, tn_run_callback f, void *user) {
    if (!r || !f || tn__pending()) {
        return tn__raise(TN_EVALUE, "run_on", "the %s is NULL", r ? "function" : "run");
    }
    if (!tn__run_here(r, "run_on")) { return tn_error(); }
    if (!tn__grow(&r->watchers, r->watcher_count + 1, &r->watcher_capacity, sizeof(*r->watchers),
                  "run_on")) {
        return TN_ENOMEM;
    }
    r->watchers[r->watcher_count++] = (tn__run_watcher){event, f, user};
    return TN_OK;
}

void tn__run_tell(tn_run *r, tn_run_event event) {
    for (int i = 0; i < r->watcher_count && !tn__pending(); i++) {
        if (r->watchers[i].event == event) {
            TN_SCOPE;
            r->watchers[i].f(r, r->watchers[i].user);
        }
    }
}

void tn_run_stop(tn_run *r) {
    if (r && tn__run_here(r, "run_stop")) { r->wants_end = true; }
}

/* ---- Stopping early -------------------------------------------------------------------------- */

tn_early_options tn_early_defaults(void) {
    return (tn_early_options){.patience = 3, .from_defaults = true};
}

static bool is_improved(double value, double best, double by, bool larger) {
    return larger ? value > best + by : value < best - by;
}

/* Whether the last `patience` values were no better than the best before them. */
static bool has_stalled(const tn_run *r) {
    const tn_early_options *o = &r->early;
    tn_curve c = tn_history_column(r->history, r->early_name, "");
    double best = NAN;
    int64_t bad = 0;
    for (int64_t i = 0; i < c.count; i++) {
        bool better = isnan(best) ? !isnan(c.y[i])
                                  : is_improved(c.y[i], best, o->min_delta, o->larger_is_better);
        best = better ? c.y[i] : best;
        bad = better ? 0 : bad + 1;
    }
    return bad >= o->patience;
}

tn_status tn_run_stop_early(tn_run *r, const char *name, tn_early_options options) {
    if (!tn__options_made(options.from_defaults, "run_stop_early", "tn_early")) {
        return tn_error();
    }
    if (!r || !name || options.patience < 1 || !(options.min_delta >= 0) || tn__pending()) {
        return tn__raise(TN_EVALUE, "run_stop_early", "patience %lld, min_delta %g%s",
                         (long long)options.patience, options.min_delta,
                         !r      ? ", and the run is NULL"
                         : !name ? ", and the name is NULL"
                                 : "");
    }
    if (!tn__run_here(r, "run_stop_early")) { return tn_error(); }
    r->early = options;
    free(r->early_name);
    r->early_name = tn__strdup_for(name, "run_stop_early");
    if (r->early_name && !r->refused) { /* it may have stalled before this process began */
        r->stalled = tn__run_any_rank(r, r->first_rank && has_stalled(r));
    }
    return tn_error();
}

/* ---- Limits ---------------------------------------------------------------------------------- */

const char *tn__run_count_name(const tn_run *r, char *name) {
    snprintf(name, TN__COLUMN_NAME, "%s_count", r->unit);
    return name;
}

void tn__run_count_before(tn_run *r) {
    char name[TN__COLUMN_NAME];
    tn_curve c = tn_history_column(r->history, tn__run_count_name(r, name), "");
    for (int64_t i = 0; i < c.count; i++) {
        r->counted += c.y[i];
    }
}

void tn__run_count_step(tn_run *r) {
    char name[TN__COLUMN_NAME];
    if (r->first_rank && r->units > 0) {
        tn__run_put(r, tn__run_count_name(r, name), (double)r->units);
        r->counted += (double)r->units;
    }
}

bool tn__run_at_limit(tn_run *r) {
    const tn_run_options *o = &r->options;
    double hours = (tn__now() - r->opened) / 3600;
    bool stepped = r->parts.step > r->start; /* each start gets on, however late it is */
    bool late = stepped && o->hours > 0 && hours >= o->hours;
    bool spent = stepped && o->until_cost > 0 && hours * o->price * r->ranks >= o->until_cost;
    bool all = o->until_units > 0 && r->counted >= (double)o->until_units;
    if (!r->first_rank || !(late || spent || all)) { return false; }
    r->goes_on = !all;
    if (all) {
        snprintf(r->limit, sizeof(r->limit), "%.18g %s are done", r->counted, r->unit);
    } else {
        snprintf(r->limit, sizeof(r->limit), "%g %s", late ? o->hours : o->until_cost,
                 late ? "hours have passed" : "is spent");
    }
    return true;
}

/* ---- The best -------------------------------------------------------------------------------- */

/* "best-000100.safetensors" */
static const char best_start[] = "best-", best_end[] = ".safetensors";

tn_status tn_run_keep_best(tn_run *r, const char *name, int64_t k, bool larger_is_better) {
    if (!r || !name || k < 1 || tn__pending()) {
        return tn__raise(TN_EVALUE, "run_keep_best", "the best %lld%s", (long long)k,
                         !r      ? ", and the run is NULL"
                         : !name ? ", and the name is NULL"
                                 : "");
    }
    if (!tn__run_here(r, "run_keep_best")) { return tn_error(); }
    r->best_count = k;
    r->best_larger = larger_is_better;
    free(r->best_name);
    r->best_name = tn__strdup_for(name, "run_keep_best");
    return tn_error();
}

static char *best_path(const tn_run *r, int64_t step) {
    char name[64];
    snprintf(name, sizeof(name), "%s%06lld%s", best_start, (long long)step, best_end);
    return tn__folder_path(r->options.out, name, "run_keep_best");
}

/* A step's rank among the values up to step `until`, 0 being the best; -1: it has no value. Of
 * equal values the first is better. */
static int64_t place_among(const tn_run *r, int64_t step, int64_t until) {
    tn_curve c = tn_history_column(r->history, r->best_name, "");
    int64_t at = c.count - 1, before = 0;
    while (at >= 0 && c.x[at] + 1 != (double)step) { /* it counts steps before this one */
        at--;
    }
    for (int64_t i = 0; at >= 0 && i < c.count && c.x[i] + 1 <= (double)until; i++) {
        before += i != at && !isnan(c.y[i]) &&
                  (is_improved(c.y[i], c.y[at], 0, r->best_larger) || isnan(c.y[at]) ||
                   (c.y[i] == c.y[at] && i < at));
    }
    return at < 0 || step > until || isnan(c.y[at]) ? -1 : before;
}

/* Whether a step is among the best, or was at a checkpoint or a save to memory: a killed run
 * continues from there and does not know what was better later. The last checkpoint may not be
 * written yet. */
static bool is_kept(const tn_run *r, int64_t step) {
    const int64_t until[] = {INT64_MAX, r->saved, r->saved_before, r->remembered,
                             r->remembered_before};
    bool kept = false;
    for (size_t i = 0; i < sizeof(until) / sizeof(*until); i++) {
        int64_t place = place_among(r, step, until[i]);
        kept = kept || (place >= 0 && place < r->best_count);
    }
    return kept;
}

static bool remove_if_worse(const char *name, void *user) {
    tn_run *r = user;
    char *end;
    long long step = 0;
    bool ours = strncmp(name, best_start, strlen(best_start)) == 0;
    if (ours) {
        step = strtoll(name + strlen(best_start), &end, 10);
        ours = strcmp(end, best_end) == 0;
    }
    if (ours && !is_kept(r, step)) {
        char *path = tn__folder_path(r->options.out, name, "run_keep_best");
        if (path) { unlink(path); }
        free(path);
    }
    return true;
}

void tn__run_clear_best(tn_run *r) {
    if (r->best_name && r->first_rank) {
        tn__folder_each(r->options.out, remove_if_worse, r, "run_keep_best");
    }
}

static void keep_best(tn_run *r) {
    int64_t place = r->first_rank ? place_among(r, r->parts.step, INT64_MAX) : -1;
    if (!tn__run_any_rank(r, place >= 0 && place < r->best_count) || tn__pending() ||
        !tn__run_weights_finite(r)) {
        return;
    }
    char *path = best_path(r, r->parts.step);
    bool written = path && tn_dist_export(r->world, r->parts.model, path) == TN_OK;
    free(path);
    if (written) { tn__run_clear_best(r); }
    tn__run_any_rank(r, false); /* tells all ranks of an error */
}

/* Rank 0 finds it in the history and tells the others. */
char *tn_run_best(tn_run *r) {
    if (r && !tn__run_here(r, "run_best")) { return NULL; }
    if (!r || !r->best_name || tn__pending()) {
        return tn__fail_null(TN_EVALUE, "run_best", "the run keeps no best weights");
    }
    int64_t best = 0;
    tn_curve c = tn_history_column(r->history, r->best_name, "");
    for (int64_t i = 0; r->first_rank && i < c.count; i++) {
        int64_t step = (int64_t)c.x[i] + 1;
        best = place_among(r, step, INT64_MAX) == 0 ? step : best;
    }
    double all = tn_group_mean(r->world, (double)best, r->first_rank);
    if (tn__pending() || !(all > 0)) { return NULL; }
    return best_path(r, (int64_t)all);
}

bool tn__run_look(tn_run *r) {
    if (r->best_name && is_fresh(r, r->best_name)) { keep_best(r); }
    if (r->early_name && is_fresh(r, r->early_name) && !tn__pending()) {
        r->stalled = tn__run_any_rank(r, r->first_rank && has_stalled(r));
    }
    return !tn__pending();
}
