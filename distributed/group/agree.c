/* Ranks that agree before they continue (agree.h). */
#include "distributed/group/agree.h"

#include "core/digest.h"
#include "core/error.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"

#include <stdio.h>
#include <string.h>

/* What a rank sends. */
typedef struct account {
    tn_error_record error;
    char digest[TN__DIGEST_DIGITS + 1]; /* "": nothing */
} account;

bool tn__agree_may_begin(tn_group *g, const char *operation) {
    if (tn__pending()) {
        tn_group_abort(g, tn_error_message());
    }
    return !tn__pending() && !(g && tn__group_refuse_inherited(g, operation));
}

void tn__agree_begin(void) {
    tn__quiet(1);
}

tn_error_record tn__agree_end(void) {
    tn_error_record error = {.status = TN_OK};
    tn_error_take(&error);
    tn__quiet(-1);
    return error;
}

/* A message without its place and operation, which who raises it again prepends. */
static const char *plain_text(const char *message, const char *operation) {
    const char *at = strstr(message, operation);
    size_t length = strlen(operation);
    return at && strncmp(at + length, ": ", 2) == 0 ? at + length + 2 : message;
}

/* Adds why the group has failed, which may be the cause of this rank's own error. */
static void add_cause(tn_error_record *mine, const tn_error_record *lost) {
    if (mine->status == TN_OK) {
        *mine = *lost;
    } else {
        size_t length = strlen(mine->message);
        snprintf(mine->message + length, sizeof(mine->message) - length, "; %s", lost->message);
    }
}

tn_status tn__agree(tn_group *g, const char *digest, const char *operation) {
    TN_SCOPE;
    TN__ON_CPU;
    account mine = {.error = {.status = TN_OK}};
    tn_error_take(&mine.error);
    strncpy(mine.digest, digest ? digest : "", TN__DIGEST_DIGITS);
    const int64_t bytes = sizeof(mine);
    int n = tn_group_size(g);
    tn_tensor *sent = tn_from_data(&mine, TN_DIMS(bytes), TN_U8);
    tn_tensor *received = tn_empty(TN_DIMS(n, bytes), TN_U8);
    bool gathered = tn_work_wait(tn_all_gather(g, received, sent), 0) == TN_OK;
    const tn_error_record lost = tn__agree_end();
    if (!gathered) {
        add_cause(&mine.error, &lost);
    }
    tn_error_give(&mine.error);
    if (!gathered) {
        return tn_error();
    }
    const account *all = tn_data(received);
    for (int r = 0; r < n; r++) {
        if (all[r].error.status != TN_OK) {
            return tn__raise(all[r].error.status, operation, "rank %d: %.900s", r,
                             plain_text(all[r].error.message, operation));
        }
    }
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
