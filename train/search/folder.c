/* A search's folder, which has all that is known, and which its ranks share.
 *
 *     FOLDER/search.txt                    what is searched; another search is refused
 *     FOLDER/rank-1                        that rank has this folder, too
 *     FOLDER/trials.csv                    the table at the end
 *     FOLDER/trial-0007/values.txt         its values, for people
 *     FOLDER/trial-0007/value-000090       its result after 90 steps
 *     FOLDER/trial-0007/output.txt         its process's output
 *     FOLDER/trial-0007/process.lock       locked by the one that trains it
 */
#include "core/folder.h"

#include "core/error.h"
#include "core/reader.h"
#include "text/plain_numbers.h"
#include "train/search/search.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tn__search_trial_folder(const tn_search *s, int64_t trial) {
    char name[32];
    snprintf(name, sizeof(name), "trial-%04lld", (long long)trial);
    return tn__folder_path(s->out, name, "search");
}

char *tn__search_rank_path(const tn_search *s, int rank) {
    char name[24];
    snprintf(name, sizeof(name), "rank-%d", rank);
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

bool tn__search_write_value(const tn_search *s, int64_t trial, double value) {
    char text[40], *path = value_path(s, trial, s->trials[trial].rungs);
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    snprintf(text, sizeof(text), "%.17g\n", value);
    tn__plain_numbers_end(numbers);
    bool written = path && write_once(path, text);
    free(path);
    return written;
}

bool tn__search_write_settings(const tn_search *s, int64_t trial) {
    char *path = tn__folder_path(s->folder, "values.txt", "search");
    char *text = path ? tn__search_describe(s, trial) : NULL;
    char *line = text ? tn__asprintf("search", "%s\n", text) : NULL;
    bool written = line && tn_write_file(line, strlen(line), path) == TN_OK;
    free(line);
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

bool tn__search_learn(tn_search *s, int64_t trial) {
    tn__trial *t = &s->trials[trial];
    int before = t->rungs;
    double value;
    while (read_value(s, trial, &value)) {
        t->values[t->rungs++] = value;
    }
    return t->rungs > before;
}

/* Writes the search's text, or compares it with the one there. False after raising. */
static bool claim_text(const tn_search *s) {
    char *mine = tn__search_text(s), *theirs = NULL;
    char *path = mine ? tn__folder_path(s->out, "search.txt", "search") : NULL;
    size_t bytes;
    if (path && write_once(path, mine)) { theirs = tn__read_whole(path, &bytes, "search"); }
    if (theirs && strcmp(theirs, mine) != 0) {
        tn__raise(TN_EMISMATCH, "search",
                  "%s is another search: it was\n%sbut is\n%s(choose another folder)", s->out,
                  theirs, mine);
    }
    free(theirs);
    free(path);
    free(mine);
    return !tn__pending();
}

bool tn__search_claim(const tn_search *s) {
    bool claimed = tn__folder_make(s->out, "search") && claim_text(s);
    char *mark = claimed && s->ranks > 1 ? tn__search_rank_path(s, s->rank) : NULL;
    claimed = claimed && (!mark || write_once(mark, ""));
    free(mark);
    return claimed && !tn__pending();
}
