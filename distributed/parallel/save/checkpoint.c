/* Checkpoints of a job: one file, written and read by rank 0. What happens to one rank, a full disk
 * or a damaged file, is an error on all: no rank goes on alone, and none loads what another
 * refuses.
 */
#include "core/error.h"
#include "distributed/parallel/save/agree.h"
#include "io/checkpoint.h"
#include "tern/parallel.h"

#include <stdlib.h>
#include <string.h>

tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path) {
    if (!tn__account_may_begin(g, "dist_save")) {
        return tn_error();
    }
    if (tn_group_size(g) == 1) {
        return tn_checkpoint_save(c, path);
    }
    tn__account_begin();
    tn_status status = tn_group_rank(g) == 0 ? tn_checkpoint_save(c, path) : TN_OK;
    (void)status; /* in the record too */
    tn__account mine = tn__account_end();
    return tn__accounts_agree(g, &mine, "dist_save");
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* Rank 0 reads the file, once, and all get these bytes: whatever is renamed over the path
 * meanwhile. data_free frees them. */
static tn_status share_file(tn_group *g, const char *path, void **data, size_t *bytes) {
    tn__account_begin();
    *data = tn_group_rank(g) == 0 ? tn__checkpoint_file(path, bytes, "dist_load") : NULL;
    tn__account mine = tn__account_end();
    tn_status status = tn__accounts_agree(g, &mine, "dist_load");
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
    tn__account_begin();
    tn__checkpoint_plan *plan = tn__checkpoint_read(c, path, data, bytes, tn_group_rank(g) == 0);
    tn__account mine = tn__account_end();
    if (plan) {
        memcpy(mine.digest, tn__checkpoint_digest(plan), TN__DIGEST_DIGITS);
    }
    tn_status status = tn__accounts_agree(g, &mine, "dist_load");
    if (status == TN_OK) {
        tn__checkpoint_apply(plan);
    }
    tn__checkpoint_plan_free(plan);
    return status;
}

tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path) {
    if (!tn__account_may_begin(g, "dist_load")) {
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
