/* Which trials continue: successive halving (ASHA; Li et al. 2018, arXiv:1810.05934), whichever
 * trial ends first.
 *
 * Each rung has its trials in an order: the first rung all trials by number, the others in order of
 * promotion. A rung is decided along this order: once the first k have values, the best k / factor
 * of these continue, for each k in turn. A trial that ends early waits to be counted, and a failed
 * one is skipped. So promotions follow from the values alone, for any number of processes and after
 * a kill; and with ASHA no trial waits for a full rung: while the next in order still trains,
 * trials promoted earlier run, and new ones begin.
 */
#include "core/error.h"
#include "core/memory.h"
#include "train/search/search.h"

#include <math.h>
#include <stdlib.h>

bool tn__search_begin_rungs(tn_search *s) {
    size_t count = (size_t)s->trial_count;
    bool made = true;
    for (int r = 0; r < s->rung_count; r++) {
        tn__rung *rung = &s->rungs[r];
        rung->order = tn__calloc_for(count, sizeof(*rung->order), "search");
        rung->best = tn__calloc_for(count, sizeof(*rung->best), "search");
        rung->promoted = tn__calloc_for(count, sizeof(*rung->promoted), "search");
        made = made && rung->order && rung->best && rung->promoted;
    }
    for (int64_t i = 0; made && i < s->trial_count; i++) {
        s->rungs[0].order[s->rungs[0].count++] = i;
    }
    return made;
}

void tn__search_free_rungs(tn_search *s) {
    for (int r = 0; r < s->rung_count; r++) {
        free(s->rungs[r].order);
        free(s->rungs[r].best);
        free(s->rungs[r].promoted);
    }
}

/* ---- The best -------------------------------------------------------------------------------- */

static tn__ranked rank_of(const tn_search *s, int64_t trial, int rung) {
    double value = s->trials[trial].values[rung];
    return (tn__ranked){s->options.larger_is_better ? -value : value, trial};
}

/* NaN is worst; of equal trials the first is better. */
static int compare_trials(const void *a, const void *b) {
    const tn__ranked *x = a, *y = b;
    if (isnan(x->value) || isnan(y->value) || x->value == y->value) {
        bool differ = isnan(x->value) != isnan(y->value);
        return differ ? (isnan(x->value) ? 1 : -1) : x->trial < y->trial ? -1 : 1;
    }
    return x->value < y->value ? -1 : 1;
}

tn__ranked *tn__search_sort(const tn_search *s, int rung, int64_t *count) {
    tn__ranked *trials = tn__malloc_for((size_t)s->trial_count * sizeof(*trials), "search");
    *count = 0;
    if (!trials) { return NULL; }
    for (int64_t i = 0; i < s->trial_count; i++) {
        if (s->trials[i].rungs > rung) { trials[(*count)++] = rank_of(s, i, rung); }
    }
    qsort(trials, (size_t)*count, sizeof(*trials), compare_trials);
    return trials;
}

/* ---- Promotions ------------------------------------------------------------------------------ */

/* Puts the next in order among the best, and promotes the trial that is newly one of the best k /
 * factor, if any: the others already were, or are NaN. */
static void count_next(tn_search *s, int r) {
    tn__rung *rung = &s->rungs[r], *next = &s->rungs[r + 1];
    tn__ranked last = rank_of(s, rung->order[rung->counted++], r);
    int64_t at = rung->ranked++;
    for (; at > 0 && compare_trials(&last, &rung->best[at - 1]) < 0; at--) {
        rung->best[at] = rung->best[at - 1];
    }
    rung->best[at] = last;
    for (int64_t i = 0; i < rung->ranked / s->options.factor; i++) {
        int64_t trial = rung->best[i].trial;
        if (!rung->promoted[trial] && !isnan(rung->best[i].value)) {
            rung->promoted[trial] = true;
            next->order[next->count++] = trial;
        }
    }
}

/* Counts trials up to the first that has neither a value nor failed. */
static void decide_rung(tn_search *s, int r) {
    tn__rung *rung = &s->rungs[r];
    while (rung->counted < rung->count) {
        const tn__trial *t = &s->trials[rung->order[rung->counted]];
        if (t->rungs > r) {
            count_next(s, r);
        } else if (t->failed) {
            rung->counted++;
        } else {
            return;
        }
    }
}

/* The first of the rung's order that can be run now; -1: none. */
static int64_t find_waiting(const tn_search *s, int r) {
    for (int64_t i = 0; i < s->rungs[r].count; i++) {
        int64_t trial = s->rungs[r].order[i];
        const tn__trial *t = &s->trials[trial];
        if (t->rungs == r && !t->running && !t->elsewhere && !t->failed) { return trial; }
    }
    return -1;
}

int64_t tn__search_choose_next(tn_search *s) {
    for (int r = 0; r < s->rung_count - 1; r++) {
        decide_rung(s, r);
    }
    int64_t found = -1;
    for (int r = s->rung_count - 1; r >= 0 && found < 0; r--) {
        found = find_waiting(s, r);
    }
    return found;
}
