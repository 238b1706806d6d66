/* Steps in a folder (saver.h).
 *
 *     FOLDER/step-000100/       committed: it gets this name when all of it is safe on disk
 *     FOLDER/step-000200.tmp/   being written, or left by a dead job
 *     FOLDER/lock               held (flock) by rank 0 of the job that saves here
 *
 * Only the holder of the lock writes, renames and removes here, so a .tmp that it finds when it
 * takes the lock is dead. A step to be removed is renamed to .tmp first: so a kill in between
 * leaves no half step under a committed name.
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

/* ---- Names ----------------------------------------------------------------------------------- */

char *tn__step_path(const char *folder, int64_t step, bool made, const char *file,
                    const char *operation) {
    char name[128];
    snprintf(name, sizeof(name), "step-%06" PRId64 "%s%s%s", step, made ? ".tmp" : "",
             file ? "/" : "", file ? file : "");
    return tn__folder_path(folder, name, operation);
}

/* The step of a name exactly as tn__step_path writes it; -1: not a step. */
static int64_t step_of(const char *name, bool made) {
    char expected[64];
    int64_t step = strncmp(name, "step-", 5) == 0 ? strtoll(name + 5, NULL, 10) : -1;
    snprintf(expected, sizeof(expected), "step-%06" PRId64 "%s", step, made ? ".tmp" : "");
    return step >= 0 && strcmp(name, expected) == 0 ? step : -1;
}

/* The committed steps up to `most` in a folder, without `used`. */
typedef struct steps {
    int64_t most, used, lowest, newest;
    int count;
} steps;

static bool note_step(const char *name, void *user) {
    steps *all = user;
    int64_t step = step_of(name, false);
    if (step >= 0 && step <= all->most && step != all->used) {
        all->lowest = all->count && all->lowest < step ? all->lowest : step;
        all->newest = step > all->newest ? step : all->newest;
        all->count++;
    }
    return true;
}

int64_t tn__step_newest(const char *folder, const char *operation) {
    steps all = {.most = INT64_MAX, .used = -1, .newest = -1};
    bool missing = access(folder, F_OK) != 0 && errno == ENOENT;
    return !missing && tn__folder_each(folder, note_step, &all, operation) ? all.newest : -1;
}

/* ---- Before a step is written ---------------------------------------------------------------- */

static bool sync_path(const tn_saver *s, const char *path) {
    const char *doing;
    return tn__folder_sync(path, &doing) ||
           tn__fail(TN_EIO, s->operation, "%s: %s: %s", path, doing, strerror(errno));
}

/* What cannot be removed does no harm: the log says so. */
static void warn_of_rest(const tn_saver *s) {
    if (tn__pending()) {
        tn_log_write(TN_LOG_WARN, "%s: could not be removed: %s", s->folder, tn_error_message());
        tn_error_clear();
    }
}

/* The folder may be new, so the one above it, which has its name, is synced too. */
static bool make_folder(const tn_saver *s) {
    char *around = tn__folder_path(s->folder, "..", s->operation);
    bool made = around && tn__folder_make(s->folder, s->operation) && sync_path(s, around);
    free(around);
    return made;
}

static bool take_lock(tn_saver *s) {
    char *path = tn__folder_path(s->folder, "lock", s->operation);
    s->lock =
        path ? tn__above_streams(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) : -1;
    if (s->lock < 0) {
        tn__raise(TN_EIO, s->operation, "%s: %s", path ? path : "", strerror(errno));
    } else if (flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(s->lock); /* on file systems without locks other jobs go unnoticed */
        s->lock = -1;
        tn__raise(TN_EIO, s->operation, "another job runs in %s: it holds %s", s->folder, path);
    }
    free(path);
    return s->lock >= 0;
}

void tn__saver_unlock(tn_saver *s) {
    if (s->lock >= 0 && !tn__inherited(s->process)) {
        flock(s->lock, LOCK_UN); /* forked children have it too: closing would not be enough */
    }
    if (s->lock >= 0) {
        close(s->lock);
        s->lock = -1;
    }
}

/* Removes a step that was being written, or removed, when its job died. */
static bool remove_dead(const char *name, void *user) {
    tn_saver *s = user;
    char *path = step_of(name, true) < 0 ? NULL : tn__folder_path(s->folder, name, s->operation);
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

char *tn__saver_part(const tn_saver *s, int rank) {
    char name[64];
    tn__index_file(rank, name, sizeof(name));
    return tn__step_path(s->folder, s->step, true, name, s->operation);
}

static void forget_names(tn_saver *s) {
    free(s->made);
    free(s->part);
    s->made = s->part = NULL;
}

bool tn__saver_prepare(tn_saver *s) {
    forget_names(s);
    s->made = tn__step_path(s->folder, s->step, true, NULL, s->operation);
    return s->made &&
           (s->rank != 0 || (enter_folder(s) && tn__folder_remove(s->made, s->operation) &&
                             tn__folder_make(s->made, s->operation)));
}

void tn__saver_discard(tn_saver *s) {
    tn_error_record why = {.status = TN_OK};
    tn__quiet(1);
    tn_error_take(&why);
    if (s->part) { /* others may still be writing: the last one removes the folder */
        unlink(s->part);
        rmdir(s->made);
    } else if (s->made && s->lock >= 0) {
        tn__folder_remove(s->made, s->operation);
        warn_of_rest(s);
    }
    forget_names(s);
    tn_error_give(&why);
    tn__quiet(-1);
}

/* ---- When it is written ---------------------------------------------------------------------- */

/* If a step of this name exists, the two swap names, so one is there at any time. */
static bool take_name(const tn_saver *s, const char *from, const char *to) {
    if (rename(from, to) == 0) { return true; }
    if (errno != EEXIST && errno != ENOTEMPTY) {
        tn__raise(TN_EIO, s->operation, "%s: renaming: %s", from, strerror(errno));
    } else if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) != 0) {
        tn__raise(TN_EIO, s->operation, "%s exists already, and cannot be replaced: %s", to,
                  strerror(errno));
    }
    return !tn__pending();
}

/* Gives a step the name of an uncommitted one, then removes it. */
static bool remove_step(const tn_saver *s, int64_t step) {
    char *whole = tn__step_path(s->folder, step, false, NULL, s->operation);
    char *made = whole ? tn__step_path(s->folder, step, true, NULL, s->operation) : NULL;
    if (made && rename(whole, made) != 0) {
        tn__raise(TN_EIO, s->operation, "%s: renaming: %s", whole, strerror(errno));
    } else if (made) {
        tn__folder_remove(made, s->operation);
    }
    free(whole);
    free(made);
    return !tn__pending();
}

/* Removes the lowest of the steps up to `most` until `keep` of them are left, besides one that the
 * command uses. False after raising. */
static bool remove_steps(const tn_saver *s, int64_t most, int keep) {
    steps all;
    do {
        all = (steps){.most = most, .used = tn__after_step(s)};
    } while (tn__folder_each(s->folder, note_step, &all, s->operation) && all.count > keep &&
             remove_step(s, all.lowest));
    return !tn__pending();
}

void tn__saver_remove_old(tn_saver *s) {
    remove_steps(s, s->step, s->options.keep); /* higher ones belong to another run */
    warn_of_rest(s);
}

bool tn__saver_clear_steps(tn_saver *s) {
    return enter_folder(s) && remove_steps(s, INT64_MAX, 0);
}

bool tn__saver_commit(const tn_saver *s) {
    char *to = tn__step_path(s->folder, s->step, false, NULL, s->operation);
    bool done = to && sync_path(s, s->made) && take_name(s, s->made, to) && sync_path(s, s->folder);
    free(to);
    return done;
}
