/* Checkpoints of a job: one file, written and read by rank 0. What happens to one rank, a full disk
 * or a damaged file, is an error on all: no rank goes on alone, and none loads what another
 * refuses.
 */
#include "core/error.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"
#include "io/checkpoint.h"
#include "tern/parallel.h"

#include <stdlib.h>
#include <string.h>

/* What a rank has to say: its error, which was taken out of its thread, or that it has none; and
 * the digest of what it is about to load. */
typedef struct account {
    tn_error_record error;
    char digest[TN__DIGEST_DIGITS + 1]; /* "": nothing */
} account;

/* Raises this rank's error, or else that of the first rank that has one. */
static tn_status compare_errors(const account *mine, const account *all, int n,
                                const char *operation) {
    tn_error_give(&mine->error);
    for (int r = 0; r < n; r++) {
        if (all[r].error.status != TN_OK) {
            return tn__raise(all[r].error.status, operation, "rank %d: %.900s", r,
                             all[r].error.message);
        }
    }
    return TN_OK;
}

static tn_status compare_digests(const account *all, int n, const char *operation) {
    for (int r = 1; r < n; r++) {
        if (memcmp(all[r].digest, all[0].digest, sizeof(all[r].digest)) != 0) {
            return tn__raise(TN_EMISMATCH, operation,
                             "rank %d holds a checkpoint with the digest %.32s but rank 0 one with "
                             "%.32s",
                             r, all[r].digest, all[0].digest);
        }
    }
    return TN_OK;
}

/* Every rank tells its own and hears the others'. */
static tn_status agree_on(tn_group *g, const account *mine, const char *operation) {
    TN_SCOPE;
    TN__ON_CPU;
    int n = tn_group_size(g);
    const int64_t bytes = sizeof(*mine);
    tn_tensor *told = tn_from_data(mine, TN_DIMS(bytes), TN_U8);
    tn_tensor *heard = tn_empty(TN_DIMS(n, bytes), TN_U8);
    if (tn_work_wait(tn_all_gather(g, heard, told), 0) != TN_OK) {
        return tn_error();
    }
    const account *all = tn_data(heard);
    tn_status status = compare_errors(mine, all, n, operation);
    return status == TN_OK ? compare_digests(all, n, operation) : status;
}

/* Between these two an error of this rank is kept for the others: the program's handler, which may
 * end the process, comes after they have heard of it. */
static void begin_quiet(void) {
    tn__quiet(1);
}

static account end_quiet(void) {
    account mine = {.error = {.status = TN_OK}};
    tn_error_take(&mine.error);
    tn__quiet(-1);
    return mine;
}

/* Whether this rank may go on; else the others will not wait for it. */
static bool may_begin(tn_group *g, const char *operation) {
    if (tn__pending()) {
        tn_group_abort(g, tn_error_message());
    }
    return !tn__pending() && !(g && tn__group_refuse_inherited(g, operation));
}

tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path) {
    if (!may_begin(g, "dist_save")) {
        return tn_error();
    }
    if (tn_group_size(g) == 1) {
        return tn_checkpoint_save(c, path);
    }
    begin_quiet();
    tn_status status = tn_group_rank(g) == 0 ? tn_checkpoint_save(c, path) : TN_OK;
    (void)status; /* in the record too */
    account mine = end_quiet();
    return agree_on(g, &mine, "dist_save");
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* Rank 0 reads the file, once, and all get these bytes: whatever is renamed over the path
 * meanwhile. data_free frees them. */
static tn_status share_file(tn_group *g, const char *path, void **data, size_t *bytes) {
    begin_quiet();
    *data = tn_group_rank(g) == 0 ? tn__checkpoint_file(path, bytes, "dist_load") : NULL;
    account mine = end_quiet();
    tn_status status = agree_on(g, &mine, "dist_load");
    return status == TN_OK ? tn_broadcast_bytes(g, data, bytes, 0) : status;
}

static void data_free(const tn_group *g, void *data) {
    if (tn_group_rank(g) == 0) {
        free(data);
    } else {
        tn_bytes_free(data);
    }
}

/* Each rank checks the bytes; they are loaded when all have found them right, and the same. */
static tn_status load_bytes(tn_group *g, tn_checkpoint *c, const char *path, void *data,
                            size_t bytes) {
    begin_quiet();
    tn__checkpoint_plan *plan = tn__checkpoint_read(c, path, data, bytes, tn_group_rank(g) == 0);
    account mine = end_quiet();
    if (plan) {
        memcpy(mine.digest, tn__checkpoint_digest(plan), TN__DIGEST_DIGITS);
    }
    tn_status status = agree_on(g, &mine, "dist_load");
    if (status == TN_OK) {
        tn__checkpoint_apply(plan);
    }
    tn__checkpoint_plan_free(plan);
    return status;
}

tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path) {
    if (!may_begin(g, "dist_load")) {
        return tn_error();
    }
    if (tn_group_size(g) == 1) {
        return tn_checkpoint_load(c, path);
    }
    void *data = NULL;
    size_t bytes = 0;
    tn_status status = share_file(g, path, &data, &bytes);
    if (status == TN_OK) {
        status = load_bytes(g, c, path, data, bytes);
    }
    data_free(g, data);
    return status;
}
