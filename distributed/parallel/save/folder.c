/* Steps in a folder (saver.h).
 *
 *     FOLDER/step-000100/       committed: it has this name when all of it is safe on disk
 *     FOLDER/step-000200.tmp/   being written, or what a dead job has left
 *     FOLDER/lock               held (flock) by rank 0 of the job that saves here
 *
 * Whoever holds the lock is the only one that writes, renames and removes here, so a .tmp that it
 * finds when it takes the lock is dead. A step that goes is renamed to .tmp first: whoever is
 * killed in between leaves no half of a step under the name of a whole one.
 */
#define _GNU_SOURCE
#include "core/descriptor.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/parallel/save/saver.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MADE ".tmp"

/* ---- Names ----------------------------------------------------------------------------------- */

void tn__step_name(int64_t step, bool made, char *text) {
    snprintf(text, TN__STEP_NAME, "step-%06" PRId64 "%s", step, made ? MADE : "");
}

/* The step of a name exactly as tn__step_name writes it; -1: it is none. */
static int64_t step_of(const char *name, bool made) {
    int64_t step = 0;
    const char *digit = strncmp(name, "step-", 5) == 0 ? name + 5 : "";
    for (; *digit >= '0' && *digit <= '9'; digit++) {
        if (__builtin_mul_overflow(step, 10, &step) ||
            __builtin_add_overflow(step, *digit - '0', &step)) {
            return -1;
        }
    }
    char expected[TN__STEP_NAME];
    tn__step_name(step, made, expected);
    return strcmp(name, expected) == 0 ? step : -1;
}

char *tn__step_path(const char *folder, int64_t step, bool made, const char *file,
                    const char *operation) {
    char name[TN__STEP_NAME];
    tn__step_name(step, made, name);
    size_t room = strlen(folder) + strlen(name) + (file ? strlen(file) : 0) + 3;
    char *path = tn__malloc(room);
    if (!path) {
        tn__raise(TN_ENOMEM, operation, "no memory for a path in %s", folder);
        return NULL;
    }
    snprintf(path, room, "%s/%s%s%s", folder, name, file ? "/" : "", file ? file : "");
    return path;
}

static bool note_newest(const char *name, void *user) {
    int64_t *newest = user, step = step_of(name, false);
    *newest = step > *newest ? step : *newest;
    return true;
}

int64_t tn__step_newest(const char *folder, const char *operation) {
    int64_t newest = -1;
    struct stat about;
    if (stat(folder, &about) != 0 && errno == ENOENT) {
        return -1;
    }
    return tn__folder_each(folder, note_newest, &newest, operation) ? newest : -2;
}

/* ---- Before a step is written ---------------------------------------------------------------- */

static bool sync_path(const tn_saver *s, const char *path) {
    const char *doing;
    if (!tn__folder_sync(path, &doing)) {
        tn__raise(TN_EIO, s->operation, "%s: %s: %s", path, doing, strerror(errno));
        return false;
    }
    return true;
}

/* What cannot be removed is in nobody's way: the log says so. */
static void warn_of_rest(const tn_saver *s) {
    if (tn__pending()) {
        tn_log_write(TN_LOG_WARN, "%s: what should go stays: %s", s->folder, tn_error_message());
        tn_error_clear();
    }
}

/* The folder may be new, and its name is in the one around it. */
static bool make_folder(const tn_saver *s) {
    char around[4096];
    if (snprintf(around, sizeof(around), "%s/..", s->folder) >= (int)sizeof(around)) {
        tn__raise(TN_EVALUE, s->operation, "the path of %.80s… is too long", s->folder);
        return false;
    }
    return tn__folder_make(s->folder, s->operation) && sync_path(s, around);
}

static bool take_lock(tn_saver *s) {
    char path[4096];
    if (snprintf(path, sizeof(path), "%s/lock", s->folder) >= (int)sizeof(path)) {
        tn__raise(TN_EVALUE, s->operation, "the path of %.80s… is too long", s->folder);
        return false;
    }
    s->lock = tn__above_streams(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (s->lock < 0) {
        tn__raise(TN_EIO, s->operation, "%s: %s", path, strerror(errno));
        return false;
    }
    if (flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(s->lock); /* some file systems have no locks: then there is nobody to be seen */
        s->lock = -1;
        tn__raise(TN_EIO, s->operation, "another job runs in %s: it holds %s", s->folder, path);
    }
    return s->lock >= 0;
}

void tn__saver_unlock(tn_saver *s) {
    if (s->lock >= 0 && !tn__inherited(s->process)) {
        flock(s->lock, LOCK_UN); /* children by fork have it too: closing would not be enough */
    }
    if (s->lock >= 0) {
        close(s->lock);
        s->lock = -1;
    }
}

/* A step that was being written when its job died, or that was on its way out. */
static bool remove_dead(const char *name, void *user) {
    tn_saver *s = user;
    int64_t step = step_of(name, true);
    char *path = step < 0 ? NULL : tn__step_path(s->folder, step, true, NULL, s->operation);
    if (path) {
        tn__folder_remove(path, s->operation);
        free(path);
        warn_of_rest(s);
    }
    return true;
}

static bool enter_folder(tn_saver *s) {
    return s->lock >= 0 ||
           (make_folder(s) && take_lock(s) &&
            tn__folder_each(s->folder, remove_dead, s, s->operation) && !tn__pending());
}

bool tn__saver_hold(tn_saver *s, const char *operation) {
    s->operation = operation;
    return s->rank != 0 || enter_folder(s);
}

bool tn__saver_prepare(tn_saver *s) {
    char *path =
        enter_folder(s) ? tn__step_path(s->folder, s->step, true, NULL, s->operation) : NULL;
    bool ready =
        path && tn__folder_remove(path, s->operation) && tn__folder_make(path, s->operation);
    if (ready) {
        s->made = path;
    } else {
        free(path);
    }
    return ready;
}

static void forget_made(tn_saver *s) {
    free(s->made);
    s->made = NULL;
}

void tn__saver_discard(tn_saver *s) {
    if (s->made) {
        tn__folder_remove(s->made, s->operation);
        warn_of_rest(s);
    }
    forget_made(s);
}

/* ---- When it is written ---------------------------------------------------------------------- */

/* The new step under the name of one that is there: the two change places, so that there is one at
 * any time. */
static bool exchange_steps(const tn_saver *s, const char *from, const char *to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0) {
        tn__raise(TN_EIO, s->operation, "%s is there already, and cannot be replaced: %s", to,
                  strerror(errno));
        return false;
    }
    return true;
}

static bool take_name(const tn_saver *s, const char *from, const char *to) {
    if (rename(from, to) == 0) {
        return true;
    }
    if (errno == EEXIST || errno == ENOTEMPTY) {
        return exchange_steps(s, from, to);
    }
    tn__raise(TN_EIO, s->operation, "%s: renaming: %s", from, strerror(errno));
    return false;
}

/* The options.keep highest steps up to the one that was just written, ascending. */
typedef struct kept {
    const tn_saver *saver;
    int64_t *steps;
    int count;
} kept;

/* Gives a step that goes the name of one that is not committed, and removes it. */
static void remove_step(const tn_saver *s, int64_t step) {
    char *whole = tn__step_path(s->folder, step, false, NULL, s->operation);
    char *made = whole ? tn__step_path(s->folder, step, true, NULL, s->operation) : NULL;
    if (made && rename(whole, made) != 0) {
        tn__raise(TN_EIO, s->operation, "%s: renaming: %s", whole, strerror(errno));
    } else if (made) {
        tn__folder_remove(made, s->operation);
    }
    free(whole);
    free(made);
}

/* Puts a step among those that stay; the lowest goes when there are too many. Higher ones than what
 * was just written are another run's. */
static bool keep_step(const char *name, void *user) {
    kept *k = user;
    int64_t step = step_of(name, false);
    if (step < 0 || step > k->saver->step) {
        return true;
    }
    if (k->count == k->saver->options.keep) {
        int64_t lowest = step < k->steps[0] ? step : k->steps[0];
        remove_step(k->saver, lowest);
        if (lowest == step) {
            return !tn__pending();
        }
        memmove(k->steps, k->steps + 1, sizeof(*k->steps) * (size_t)--k->count);
    }
    int at = k->count++;
    for (; at > 0 && k->steps[at - 1] > step; at--) {
        k->steps[at] = k->steps[at - 1];
    }
    k->steps[at] = step;
    return !tn__pending();
}

static bool clear_step(const char *name, void *user) {
    int64_t step = step_of(name, false);
    if (step >= 0) {
        remove_step(user, step);
    }
    return !tn__pending();
}

bool tn__saver_clear_steps(tn_saver *s) {
    return enter_folder(s) && tn__folder_each(s->folder, clear_step, s, s->operation) &&
           !tn__pending();
}

/* The step is committed. `replaced`: what had its name before, if anything did. */
static void remove_old(tn_saver *s, const char *replaced) {
    kept k = {.saver = s, .steps = tn__calloc((size_t)s->options.keep, sizeof(int64_t))};
    if (k.steps) {
        tn__folder_each(s->folder, keep_step, &k, s->operation);
    }
    free(k.steps);
    tn__folder_remove(replaced, s->operation);
    warn_of_rest(s);
}

bool tn__saver_commit(tn_saver *s) {
    char *to = tn__step_path(s->folder, s->step, false, NULL, s->operation);
    bool done = to && sync_path(s, s->made) && take_name(s, s->made, to) && sync_path(s, s->folder);
    if (done) { /* and not before: what is safe on disk until then is the older */
        remove_old(s, s->made);
        forget_made(s);
    }
    free(to);
    return done;
}
