/* Ranks that agree before they continue (agree.h). */
#include "distributed/group/agree.h"

#include "core/error.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* What a rank sends. */
typedef struct account {
    tn_error_record error;
    uint64_t digest; /* of its text */
    int64_t bytes;   /* of its text, with the 0; 0: none */
} account;

bool tn__agree_begin(tn_group *g, const char *operation) {
    if (tn__pending()) { tn_group_abort(g, tn_error_message()); }
    bool may = !tn__pending() && !(g && tn__group_refuse_inherited(g, operation));
    if (may) { tn__quiet(1); }
    return may;
}

/* Adds why the group has failed, which may be the cause of this rank's own error. */
static void add_cause(tn_error_record *mine, const tn_error_record *lost) {
    size_t length = strlen(mine->message);
    snprintf(mine->message + length, sizeof(mine->message) - length, "; %s", lost->message);
}

/* Every rank's bytes, those of rank r at r * room; zeros follow them. Owned by the caller's scope;
 * NULL after raising. */
static const void *gather_bytes(tn_group *g, const void *mine, int64_t bytes, int64_t room) {
    TN__ON_CPU;
    tn_tensor *sent = tn_zeros(TN_DIMS(room), TN_U8);
    tn_tensor *all = tn_empty(TN_DIMS(tn_group_size(g), room), TN_U8);
    if (!tn__pending()) { memcpy(tn_data_mut(sent), mine, (size_t)bytes); }
    return tn_work_wait(tn_all_gather(g, all, sent), 0) == TN_OK ? tn_data(all) : NULL;
}

/* The first line of `at`, for a message. */
static const char *line_of(const char *at, char *line, size_t size) {
    snprintf(line, size, "%.*s", (int)strcspn(at, "\n"), at);
    return *at ? line : "nothing more";
}

/* The texts are at each multiple of `room`. Names the first difference of the first rank that
 * differs from rank 0. */
static void raise_difference(const char *texts, int64_t room, const char *operation) {
    int other = 1;
    while (strcmp(texts, texts + other * room) == 0) {
        other++;
    }
    const char *a = texts, *b = texts + other * room;
    for (size_t n = strcspn(a, "\n") + 1; *a && strncmp(a, b, n) == 0; n = strcspn(a, "\n") + 1) {
        a += n;
        b += n;
    }
    char ours[320], theirs[320];
    tn__raise(TN_EMISMATCH, operation, "rank 0 has %s, but rank %d has %s",
              line_of(a, ours, sizeof(ours)), other, line_of(b, theirs, sizeof(theirs)));
}

/* What all ranks see alike: the first that has an error, or texts that differ. */
static void judge_accounts(tn_group *g, const account *all, const char *text,
                           const char *operation) {
    bool same = true;
    int64_t room = 1;
    for (int r = 0; r < tn_group_size(g); r++) {
        if (all[r].error.status != TN_OK) {
            tn__raise(all[r].error.status, operation, "rank %d: %.900s", r,
                      all[r].error.message + all[r].error.why);
            return;
        }
        same = same && all[r].bytes == all[0].bytes && all[r].digest == all[0].digest;
        room = all[r].bytes > room ? all[r].bytes : room;
    }
    if (!same) {
        text = text ? text : "";
        const char *texts = gather_bytes(g, text, (int64_t)strlen(text), room);
        if (texts) { raise_difference(texts, room, operation); }
    }
}

tn_status tn__agree(tn_group *g, const char *text, const char *operation) {
    TN_SCOPE;
    account mine = {.error = {.status = TN_OK}};
    tn_error_take(&mine.error);
    if (text) {
        mine.bytes = (int64_t)strlen(text) + 1;
        mine.digest = XXH3_64bits(text, strlen(text));
    }
    const account *all = &mine;
    if (tn_group_rank(g) >= 0) {
        all = gather_bytes(g, &mine, sizeof(mine), sizeof(mine));
        if (!all) {
            tn_group_abort(g, tn_error_message());
        } else if (mine.error.status == TN_OK) {
            judge_accounts(g, all, text, operation);
        }
    }
    tn_error_record others = {.status = TN_OK};
    tn_error_take(&others);
    tn__quiet(-1);
    if (!all && mine.error.status != TN_OK) { add_cause(&mine.error, &others); }
    const tn_error_record *why = mine.error.status != TN_OK ? &mine.error : &others;
    tn_error_give(why);
    return why->status; /* also if a handler has cleared it */
}
