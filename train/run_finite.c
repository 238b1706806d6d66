/* A NaN or infinite loss or weight ends the run, and must not reach a checkpoint.
 *
 * The loss usually shows it first. The weights are checked before each save as well: a loss belongs
 * to the weights before its step, so after NaN gradients a checkpoint would have NaN weights while
 * all losses so far are numbers. Any rank's finding ends all of them, once the last checkpoint is
 * safe on disk; and all name the first such rank.
 */
#include "core/error.h"
#include "distributed/group/values.h"
#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

void tn__run_note_loss(tn_run *r, const char *name, double value) {
    r->bad_loss = r->bad_loss || (strcmp(name, "loss") == 0 && !isfinite(value));
}

enum { PATH = 256 };

/* To `user`, a text[PATH]: the first parameter that is not finite. */
static bool note_parameter(const tn_entry *entry, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    char *path = user;
    tn_tensor *t = entry->stored;
    if (t && !tn_is_inert(t) && tn_count(t) > 0 && tn_dtype_is_float(tn_dtype_of(t)) &&
        tn_item(tn_all(tn_isfinite(t))) == 0) {
        snprintf(path, PATH, "%s", entry->path);
    }
    return !*path && !tn__pending();
}

/* `mine`: what this rank has found, or ""; the others report `theirs` for the first that has. When
 * it raises, the ranks have nothing left to exchange, so a handler may end the process. */
static void end_at_last_checkpoint(tn_run *r, const char *mine, const char *theirs) {
    char last[64] = "there is no checkpoint to continue from", other[80];
    tn_progress_clear(r->progress);
    r->ended = r->unsound = true;
    if (tn_saver_wait(r->saver) == TN_OK && r->saved >= 0) {
        snprintf(last, sizeof(last), "the last checkpoint is step-%06" PRId64, r->saved);
    }
    int32_t first = *mine ? tn_group_rank(r->world) : r->ranks;
    tn__reduce_values(r->world, &first, 1, TN_I32, TN_MIN);
    snprintf(other, sizeof(other), "rank %d%s", first, theirs);
    if (!tn__pending()) {
        tn__exit_with(EX_DATAERR);
        tn__raise(TN_EVALUE, "run_next", "after step %" PRId64 " of %" PRId64 " %s; %s in %s",
                  r->parts.step, r->options.steps, *mine ? mine : other, last, r->options.out);
        tn__exit_with(1);
    }
}

bool tn__run_loss_finite(tn_run *r, bool any_bad) {
    if (any_bad && !r->options.allow_nan) {
        end_at_last_checkpoint(r, r->bad_loss ? "the loss is NaN or infinite" : "",
                               "'s loss is NaN or infinite");
        return false;
    }
    return true;
}

bool tn__run_weights_finite(tn_run *r) {
    char path[PATH] = "", mine[PATH + 48] = "";
    if (r->parts.model) { tn_module_each(r->parts.model, (tn_walk){0}, note_parameter, path); }
    if (!tn__run_any_rank(r, *path != 0)) { return !tn__pending(); }
    if (*path) { snprintf(mine, sizeof(mine), "%s has elements that are NaN or infinite", path); }
    end_at_last_checkpoint(r, mine, " has weights that are NaN or infinite");
    return false;
}
