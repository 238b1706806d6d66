/* Saves in memory, for when a rank crashes: a second saver, whose folder `tern run` makes in tmpfs
 * and keeps until the job ends. A run does without it: what is wrong with it is a warning, and ends
 * it on all ranks. */
#include "core/digest.h"
#include "core/error.h"
#include "core/folder.h"
#include "core/log.h"
#include "distributed/parallel/save/saver.h"
#include "io/checkpoint/checkpoint.h"
#include "train/run.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void warn_no_memory(const tn_run *r, const char *why) {
    if (r->first_rank) {
        tn__log_loud("step %" PRId64 " and later ones are not saved in memory: %.300s",
                     r->parts.step, why);
    }
}

void tn__run_memory_open(tn_run *r) {
    const char *top = getenv("TERN_MEMORY_DIR"), *out = r->options.out;
    char name[TN__DIGEST_DIGITS + 1];
    if (r->options.memory_every == 0 || tn__pending()) { return; }
    if (tn__run_any_rank(r, !top)) {
        warn_no_memory(r, "no launcher keeps memory for it (`tern run` on one host does)");
        return;
    }
    char *whole = realpath(out, NULL); /* a job may have several runs */
    tn__digest_of(whole ? whole : out, strlen(whole ? whole : out), name);
    char *folder = tn__folder_path(top, name, "run_new");
    tn_error_record why = {.status = TN_OK};
    tn__quiet(1);
    tn_error_clear(); /* without memory for its name all ranks refuse it */
    r->memory = tn_saver_new(r->world, folder, TN_WITH(tn_saver, .keep = 1));
    bool failed = tn_error_take(&why);
    tn__quiet(-1);
    if (failed) { warn_no_memory(r, why.message); }
    free(folder);
    free(whole);
}

void tn__run_memory_clear(tn_run *r) {
    if (r->memory && !tn__pending()) { /* an error is on all ranks, and stays */
        tn__quiet(1);
        tn_saver_clear(r->memory);
        tn_error_clear(); /* the launcher removes what is left */
        tn__quiet(-1);
    }
}

void tn__run_memory_close(tn_run *r) {
    bool failed = tn__pending();
    tn__quiet(1);
    tn_saver_free(r->memory);
    if (!failed) { tn_error_clear(); /* the last save's, which nothing will read */ }
    tn__quiet(-1);
    r->memory = NULL;
}

void tn__run_memory_save(tn_run *r) {
    if (!r->memory || !tn__run_weights_finite(r)) { return; }
    tn_error_record why = {.status = TN_OK};
    tn__quiet(1);
    tn_saver_save(r->memory, &r->parts);
    bool failed = tn_error_take(&why); /* on all ranks */
    tn__quiet(-1);
    if (failed) {
        warn_no_memory(r, why.message);
        tn__run_memory_close(r);
    } else {
        r->remembered_before = r->remembered;
        r->remembered = r->parts.step;
    }
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* False with *why: it cannot be loaded, and nothing has changed. */
static bool try_load(tn_saver *s, tn_checkpoint *c, bool *found, tn_error_record *why) {
    const char *before = tn__continue_hint;
    tn__continue_hint = TN__RESUME_HINT;
    tn__quiet(1);
    tn_saver_load(s, c, found);
    bool failed = tn_error_take(why);
    tn__quiet(-1);
    tn__continue_hint = before;
    return !failed;
}

bool tn__run_load(tn_run *r, tn_checkpoint *c) {
    bool found = false;
    int64_t in_files = tn__saver_newest(r->saver, "run_new");
    int64_t in_memory = r->memory ? tn__saver_newest(r->memory, "run_new") : -1;
    bool from_memory = in_memory >= 0 && in_memory >= in_files;
    tn_error_record why = {.status = TN_OK};
    if (tn__pending() || try_load(from_memory ? r->memory : r->saver, c, &found, &why)) {
        r->remembered = from_memory ? in_memory : -1;
        r->saved = in_files;
        return found;
    }
    bool damaged = why.status == TN_EFORMAT || why.status == TN_EIO;
    tn__quiet(1); /* statuses differ where two ranks have errors of their own */
    damaged = in_memory >= 0 && !tn__run_any_rank(r, !damaged) && !tn__pending();
    tn_error_clear();
    tn__quiet(-1);
    if (damaged) {
        if (r->first_rank) {
            tn__log_loud("step %" PRId64 " is passed over: %.300s",
                         from_memory ? in_memory : in_files, why.message);
        }
        why.status = TN_OK;
        if (!from_memory || tn_saver_clear(r->memory) == TN_OK) {
            try_load(from_memory ? r->saver : r->memory, c, &found, &why);
        }
        r->remembered = from_memory ? -1 : in_memory;
        r->saved = from_memory ? in_files : -1;
    }
    tn_error_give(&why);
    return found;
}
