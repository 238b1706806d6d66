/* A search in this process: what is drawn, which trials continue, what is kept, what is refused.
 * test_search.py has processes, kills and the table. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/silence.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <tern/tern.h>

typedef struct settings {
    double lr, rate;
    int64_t width, depth;
    const char *kind;
} settings;

enum { MOST = 64 };

/* What a search has called. */
typedef struct calls {
    int count;
    int64_t trial[MOST], steps[MOST];
    settings with[MOST];
    settings best;
    int status;
} calls;

static tn_search_options options_in(const char *name) {
    tn_search_options o =
        TN_WITH(tn_search, .out = temp_path(name), .trials = 9, .steps = 90, .seed = 5);
    return o;
}

static tn_search *make_search(tn_search_options o, settings *s) {
    tn_search *search = tn_search_new(o);
    if (!o.grid) {
        tn_search_log_real(search, "lr", &s->lr, 1e-4, 1e-1);
        tn_search_real(search, "rate", &s->rate, -1, 1);
        tn_search_whole(search, "depth", &s->depth, 2, 4);
    }
    tn_search_choose_whole(search, "width", &s->width, (int64_t[]){8, 16, 32}, 3);
    tn_search_choose_text(search, "kind", &s->kind, (const char *[]){"a", "b", "c"}, 3);
    return search;
}

/* The value depends on the settings alone: best at lr = 1e-2. Leaves after `most` trials. */
static void run_search(tn_search_options o, int most, calls *c) {
    settings s = {0};
    silence before = silence_begin();
    tn_search *search = make_search(o, &s);
    c->count = 0;
    bool has_folder = true;
    while (c->count < most && tn_search_next(search)) {
        c->trial[c->count] = tn_search_trial(search);
        c->steps[c->count] = tn_search_steps(search);
        c->with[c->count++] = s;
        struct stat about;
        has_folder = has_folder && stat(tn_search_folder(search), &about) == 0;
        double off = o.grid ? (double)s.width + (*s.kind == 'a') : fabs(log10(s.lr) + 2);
        tn_search_report(search, off);
    }
    bool found = tn_search_best(search);
    c->best = s;
    c->status = tn_search_end(search);
    silence_end(before);
    assert_true(has_folder);
    assert_true(!found || s.lr == c->best.lr); /* the best settings stay */
    assert_int_equal(tn_error(), TN_OK);
}

TEST(draws_by_number) {
    calls a, b;
    run_search(options_in("draws"), MOST, &a);
    run_search(options_in("again"), MOST, &b);
    assert_int_equal(a.count, 9);
    assert_int_equal(a.status, 0);
    double lowest = 1, highest = 0;
    for (int i = 0; i < 9; i++) {
        const settings *s = &a.with[i];
        assert_true(a.trial[i] == i && a.steps[i] == 90);
        assert_true(s->lr == b.with[i].lr && s->width == b.with[i].width);
        assert_true(s->lr >= 1e-4 && s->lr < 1e-1 && s->rate >= -1 && s->rate < 1);
        assert_true(s->depth >= 2 && s->depth <= 4);
        assert_true(s->width == 8 || s->width == 16 || s->width == 32);
        lowest = fmin(lowest, s->lr);
        highest = fmax(highest, s->lr);
    }
    assert_true(lowest < 1e-3 && highest > 1e-2); /* over decades */
    for (int i = 0; i < 9; i++) {
        assert_true(fabs(log10(a.best.lr) + 2) <= fabs(log10(a.with[i].lr) + 2));
    }
}

/* 9 trials of 10 steps, the best 3 to 30, and the best of those to 90. Nothing waits for the last
 * trial: those among the best third so far continue, so there may be a few more. */
TEST(halves_successively) {
    calls c;
    tn_search_options o = options_in("halves");
    o.first_steps = 10;
    run_search(o, MOST, &c);
    int ran[3] = {0};
    double best = 10, farthest = 10;
    for (int i = 0; i < c.count; i++) {
        double off = fabs(log10(c.with[i].lr) + 2);
        ran[c.steps[i] == 10 ? 0 : c.steps[i] == 30 ? 1 : 2]++;
        best = fmin(best, off);
        farthest = c.steps[i] == 90 ? fmin(farthest, off) : farthest;
    }
    assert_int_equal(ran[0], 9);
    assert_in_range(ran[1], 3, 7);
    assert_in_range(ran[2], 1, 3);
    assert_true(farthest == best && fabs(log10(c.best.lr) + 2) == best);
}

TEST(walks_the_grid) {
    calls c;
    tn_search_options o = options_in("grid");
    o.grid = true;
    o.larger_is_better = true;
    run_search(o, MOST, &c);
    assert_int_equal(c.count, 9);
    for (int i = 0; i < 9; i++) {
        for (int k = 0; k < i; k++) {
            assert_true(c.with[i].width != c.with[k].width || *c.with[i].kind != *c.with[k].kind);
        }
    }
    assert_true(c.best.width == 32 && *c.best.kind == 'a');
}

/* Left after 5 of them, it continues with the sixth, and ends with the same table. */
TEST(goes_on) {
    calls whole, part;
    tn_search_options o = options_in("whole"), p = options_in("part");
    o.first_steps = p.first_steps = 10;
    run_search(o, MOST, &whole);
    for (int at = 0; at < whole.count; at += 5) {
        run_search(p, 5, &part);
        for (int i = 0; i < part.count; i++) {
            assert_int_equal(part.trial[i], whole.trial[at + i]);
            assert_int_equal(part.steps[i], whole.steps[at + i]);
        }
    }
    run_search(p, MOST, &part);
    char name[512];
    snprintf(name, sizeof(name), "%s/trials.csv", o.out);
    char *again = strdup(name);
    snprintf(name, sizeof(name), "%s/trials.csv", p.out);
    temp_same(again, name);
    free(again);
}

/* A choice that differs in its last bit makes another search. */
TEST(looks_at_every_bit) {
    tn_search_options o = options_in("bits");
    double value, choices[2] = {1e-3, 0.2};
    for (int i = 0; i < 2; i++) {
        tn_search *search = tn_search_new(o);
        tn_search_choose(search, "value", &value, choices, 2);
        assert_int_equal(tn_search_next(search), i == 0);
        if (i > 0) {
            assert_error(TN_EMISMATCH, "it was\nseed 5, steps 90, first_steps 0, factor 3, grid 0, "
                                       "larger_is_better 0\nvalue 0.001 0.2\nbut is");
        }
        tn_search_end(search);
        choices[1] = nextafter(choices[1], 1);
    }
}

TEST(refuses_mistakes) {
    settings s;
    calls c;
    tn_search_options o = options_in("refuses");
    run_search(o, 1, &c);
    o.seed = 6;
    tn_search *search = make_search(o, &s);
    assert_false(tn_search_next(search));
    assert_error(TN_EMISMATCH, "is another search: it was\nseed 5");
    assert_false(tn_search_next(search)); /* still not its folder */
    tn_search_end(search);
    o = options_in("refused");
    o.factor = 1;
    assert_none(tn_search_new(o), TN_EVALUE, "(it must be 2 to 1000)");
    o.factor = 2;
    o.ranks = 0;
    assert_none(tn_search_new(o), TN_EVALUE, "(it must be 1 to 4096)");
    o.ranks = 1;
    o.grid = true;
    search = tn_search_new(o);
    assert_fails(tn_search_real(search, "x", &s.lr, 2, 1), TN_EVALUE, "x: from 2 to 1");
    assert_fails(tn_search_log_real(search, "x", &s.lr, 0, 1), TN_EVALUE, "by its logarithm");
    assert_fails(tn_search_real(search, "a name", &s.lr, 0, 1), TN_EVALUE, "that is not a name");
    assert_fails(tn_search_choose(search, "x", &s.lr, NULL, 3), TN_EVALUE, "a choice of 0");
    assert_int_equal(tn_search_real(search, "x", &s.lr, 0, 1), TN_OK);
    assert_false(tn_search_next(search));
    assert_error(TN_EVALUE, "x is a range, but a grid needs choices");
    tn_search_end(search);
    o = options_in("refuses"); /* a file that another program has written */
    char path[512];
    snprintf(path, sizeof(path), "%s/trial-0000/value-000090", o.out);
    FILE *file = fopen(path, "w");
    fputs("no number\n", file);
    fclose(file);
    search = make_search(o, &s);
    assert_false(tn_search_next(search));
    assert_error(TN_EFORMAT, "it is not a value");
    tn_search_end(search);
}

/* However rounding goes; whole numbers up to the largest. */
TEST(stays_in_range) {
    tn_search_options o = options_in("edges");
    o.trials = 100;
    double low = 1e-3, high = nextafter(nextafter(low, 1), 1), narrow, plain;
    int64_t last, first, one;
    tn_search *search = tn_search_new(o);
    tn_search_log_real(search, "narrow", &narrow, low, high);
    tn_search_real(search, "plain", &plain, low, high);
    tn_search_whole(search, "last", &last, INT64_MAX - 1, INT64_MAX);
    tn_search_whole(search, "first", &first, INT64_MIN, INT64_MAX);
    tn_search_whole(search, "one", &one, 7, 7);
    int seen[2] = {0};
    fflush(stdout);
    while (tn_search_next(search)) {
        assert_true(narrow >= low && narrow < high);
        assert_true(plain >= low && plain < high);
        assert_true(last >= INT64_MAX - 1 && one == 7);
        seen[first > 0]++;
    }
    assert_true(seen[0] > 20 && seen[1] > 20);
    tn_search_end(search);
}
