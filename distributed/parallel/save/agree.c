/* Ranks that agree before they go on (agree.h). */
#include "distributed/parallel/save/agree.h"

#include "core/error.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"

#include <string.h>

/* Raises this rank's error, or else that of the first rank that has one. */
static tn_status compare_errors(const tn__account *mine, const tn__account *all, int n,
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

static tn_status compare_digests(const tn__account *all, int n, const char *operation) {
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

bool tn__account_may_begin(tn_group *g, const char *operation) {
    if (tn__pending()) {
        tn_group_abort(g, tn_error_message());
    }
    return !tn__pending() && !(g && tn__group_refuse_inherited(g, operation));
}

void tn__account_begin(void) {
    tn__quiet(1);
}

tn__account tn__account_end(void) {
    tn__account mine = {.error = {.status = TN_OK}};
    tn_error_take(&mine.error);
    tn__quiet(-1);
    return mine;
}

tn_status tn__accounts_agree(tn_group *g, const tn__account *mine, const char *operation) {
    TN_SCOPE;
    TN__ON_CPU;
    int n = tn_group_size(g);
    const int64_t bytes = sizeof(*mine);
    tn_tensor *told = tn_from_data(mine, TN_DIMS(bytes), TN_U8);
    tn_tensor *heard = tn_empty(TN_DIMS(n, bytes), TN_U8);
    if (tn_work_wait(tn_all_gather(g, heard, told), 0) != TN_OK) {
        return tn_error();
    }
    const tn__account *all = tn_data(heard);
    tn_status status = compare_errors(mine, all, n, operation);
    return status == TN_OK ? compare_digests(all, n, operation) : status;
}
