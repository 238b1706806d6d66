/* The end of a search: the table of its trials, for people and as CSV. */
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "io/numbers.h"
#include "train/search.h"

#include <stdlib.h>

/* A row of the table, for people or as CSV. */
static void describe_row(const tn_search *s, int64_t trial, int64_t place, bool csv, char *text,
                         size_t room) {
    const tn__trial *t = &s->trials[trial];
    int used = snprintf(text, room, csv ? "%lld,%lld,%lld,%.9g" : "%5lld  %5lld  %8lld  %12.6g",
                        (long long)place, (long long)trial, (long long)s->rung_steps[t->rungs - 1],
                        t->values[t->rungs - 1]);
    tn__setting settings[TN__MOST_SEARCHED];
    tn__search_draw(s, trial, settings);
    for (int i = 0; i < s->space_count && used < (int)room; i++) {
        char value[64];
        tn__search_value(&s->space[i], &settings[i], value, sizeof(value));
        used += snprintf(text + used, room - (size_t)used, csv ? ",%s" : "  %10s", value);
    }
}

static void describe_head(const tn_search *s, bool csv, char *text, size_t room) {
    int used = snprintf(text, room,
                        csv ? "place,trial,steps,value" : "place  trial     steps         value");
    for (int i = 0; i < s->space_count && used < (int)room; i++) {
        used +=
            snprintf(text + used, room - (size_t)used, csv ? ",%s" : "  %10s", s->space[i].name);
    }
}

/* Those that came furthest first, and of these the best. Into f where it is not NULL, as CSV, or to
 * stdout, the first 30. */
static void put_table(const tn_search *s, tn__file *f) {
    enum { SHOWN = 30 };
    char text[TN__SEARCH_TEXT];
    int64_t place = 0, count;
    describe_head(s, f, text, sizeof(text));
    f ? tn__file_print(f, "%.1000s\n", text) : (void)printf("\n%s\n", text);
    for (int rung = s->rung_count - 1; rung >= 0; rung--) {
        tn__ranked *trials = tn__search_sort(s, rung, &count);
        for (int64_t i = 0; trials && i < count; i++) {
            if (s->trials[trials[i].trial].rungs != rung + 1 || (place++ >= SHOWN && !f)) {
                continue;
            }
            describe_row(s, trials[i].trial, place, f, text, sizeof(text));
            f ? tn__file_print(f, "%.1000s\n", text) : (void)printf("%s\n", text);
        }
        free(trials);
    }
}

static void end_search(tn_search *s) {
    char *path = tn__folder_path(s->out, "trials.csv", "search");
    tn__file f;
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    if (path && tn__file_begin(&f, path, "search")) {
        put_table(s, &f);
        tn__file_commit(&f);
        put_table(s, NULL);
        printf("all trials: %s\n", path);
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
    if (!s) {
        return 1;
    }
    bool child = s->child, stopped = s->stopped || (child && tn_stop_asked());
    if (!child && stopped) {
        printf("stopped; the same command goes on\n");
    } else if (!child && !tn__pending() && any_value(s)) {
        end_search(s);
    }
    bool reported = !child || s->reported;
    tn__search_free(s);
    bool failed = tn__pending() || !reported || fflush(stdout) || ferror(stdout);
    return stopped ? tn_stop_status() : failed ? 1 : 0;
}
