/* The end of a search: the table of its trials, for users and as CSV. */
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/buffer.h"
#include "text/plain_numbers.h"
#include "train/search/search.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 30 };

/* A table being written: as CSV to a file, or for users to stdout. */
typedef struct table {
    tn__file *csv; /* or NULL */
    tn__buffer row;
} table;

/* A CSV field (RFC 4180): quoted where necessary, with quotes doubled. */
static void put_csv(tn__buffer *row, const char *text) {
    bool quotes = text[strcspn(text, ",\"\r\n")] != 0;
    tn__buffer_add(row, ",\"", quotes ? 2 : 1);
    for (; *text; text++) {
        tn__buffer_add(row, text, 1);
        if (*text == '"') { tn__buffer_add(row, text, 1); }
    }
    tn__buffer_add(row, "\"", quotes ? 1 : 0);
}

static void put_cell(table *t, const char *text) {
    enum { WIDTH = 10 };
    size_t length = strlen(text);
    if (t->csv) {
        put_csv(&t->row, text);
    } else {
        tn__buffer_format(&t->row, "  %*s", length < WIDTH ? (int)(WIDTH - length) : 0, "");
        tn__buffer_add(&t->row, text, length);
    }
}

static void end_row(table *t) {
    bool whole = tn__buffer_text(&t->row, "\n");
    if (whole && t->csv) {
        tn__file_put(t->csv, t->row.at, t->row.bytes);
    } else if (whole) {
        fwrite(t->row.at, 1, t->row.bytes, stdout);
    }
    t->row.bytes = 0;
}

static void put_trial(table *t, const tn_search *s, int64_t trial, int64_t place) {
    const tn__trial *known = &s->trials[trial];
    tn__buffer_format(&t->row, t->csv ? "%lld,%lld,%lld,%.9g" : "%5lld  %5lld  %8lld  %12.6g",
                      (long long)place, (long long)trial,
                      (long long)s->rungs[known->rungs - 1].steps, known->values[known->rungs - 1]);
    tn__setting settings[TN__MOST_SEARCHED];
    tn__search_draw(s, trial, settings);
    for (int i = 0; i < s->space_count; i++) {
        char number[TN__SEARCH_VALUE];
        put_cell(t, tn__search_value(&s->space[i], &settings[i], number));
    }
    end_row(t);
}

/* Trials that got furthest come first, the best first among them; users see only the first rows. */
static void put_table(const tn_search *s, tn__file *csv) {
    table t = {.csv = csv, .row.operation = "search"};
    int64_t place = 0, count;
    tn__buffer_format(&t.row,
                      csv ? "place,trial,steps,value" : "\nplace  trial     steps         value");
    for (int i = 0; i < s->space_count; i++) {
        put_cell(&t, s->space[i].name);
    }
    end_row(&t);
    for (int rung = s->rung_count - 1; rung >= 0; rung--) {
        tn__ranked *trials = tn__search_sort(s, rung, &count);
        for (int64_t i = 0; trials && i < count; i++) {
            bool here = s->trials[trials[i].trial].rungs == rung + 1;
            if (here && (place++ < SHOWN || csv)) { put_trial(&t, s, trials[i].trial, place); }
        }
        free(trials);
    }
    tn__buffer_free(&t.row);
}

/* Ranks that have another folder have searched alone. */
static void name_missing(const tn_search *s) {
    for (int rank = 1; rank < s->ranks; rank++) {
        char *path = tn__search_rank_path(s, rank);
        if (path && access(path, F_OK) != 0) {
            printf("rank %d of %d has not been in %s: all ranks should have the same folder\n",
                   rank, s->ranks, s->out);
        }
        free(path);
    }
}

static void end_search(tn_search *s) {
    char *path = tn__folder_path(s->out, "trials.csv", "search");
    tn__file f;
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    if (path && tn__file_begin(&f, path, "search")) {
        put_table(s, &f);
        tn__pending() ? tn__file_abandon(&f) : (void)tn__file_commit(&f);
        put_table(s, NULL);
        printf("all trials: %s\n", path);
        name_missing(s);
    }
    tn__plain_numbers_end(numbers);
    free(path);
}

static bool any_value(const tn_search *s) {
    bool any = false;
    for (int64_t i = 0; s->trials && i < s->trial_count; i++) {
        any |= s->trials[i].rungs > 0;
    }
    return any;
}

int tn_search_end(tn_search *s) {
    if (!s) { return 1; }
    bool child = s->child, stopped = s->stopped || (child && tn_stop_asked());
    if (!child && stopped) {
        printf("stopped; the same command continues\n");
    } else if (!child && s->rank == 0 && !tn__pending() && any_value(s)) {
        end_search(s);
    }
    bool reported = !child || s->reported;
    tn__search_free(s);
    bool failed = tn__pending() || !reported || fflush(stdout) || ferror(stdout);
    return stopped ? tn_stop_status() : failed ? 1 : 0;
}
