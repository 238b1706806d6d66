/* What the ranks of a saver tell each other (saver.h). A value is '+' and data, or '!', a status
 * and the text of an error. */
#include "core/clock.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/parallel/save/saver.h"
#include "tern/store.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define GRACE_SECONDS 5.0  /* on a busy machine */
#define HEARD_SECONDS 10.0 /* for ranks that are on their way */

typedef struct key {
    char text[64];
} key;

static key key_of(int64_t k, int rank, const char *what) {
    key name;
    if (rank < 0) {
        snprintf(name.text, sizeof(name.text), "%" PRId64 "/%s", k, what);
    } else {
        snprintf(name.text, sizeof(name.text), "%" PRId64 "/%d/%s", k, rank, what);
    }
    return name;
}

/* Without the place and the operation, which whoever raises it puts in front. */
static const char *plain_message(const tn_saver *s, const tn_error_record *error) {
    const char *found = strstr(error->message, s->operation);
    size_t length = strlen(s->operation);
    return found && strncmp(found + length, ": ", 2) == 0 ? found + length + 2 : error->message;
}

/* Tells the pending error, which stays. */
static void tell_error(tn_saver *s, const char *where) {
    tn_error_record taken, *error = &taken;
    tn_error_take(error);
    char text[sizeof(error->message) + 32];
    int bytes = snprintf(text, sizeof(text), "!%d %s", (int)error->status, plain_message(s, error));
    tn_status status = tn_store_set(s->store, where, text, (size_t)bytes);
    (void)status; /* the error that stays is the first */
    tn_error_clear();
    tn_error_give(error);
}

void tn__saver_tell(tn_saver *s, int rank, const char *what, const void *data, size_t bytes) {
    key where = key_of(s->saves, rank, what);
    char *text = tn__pending() ? NULL : tn__malloc(bytes + 1);
    if (!text) { /* if there was no error before */
        tn__raise(TN_ENOMEM, s->operation, "no memory for %zu bytes", bytes);
    } else {
        text[0] = '+';
        memcpy(text + 1, bytes ? data : "", bytes);
        tn_status status = tn_store_set(s->store, where.text, text, bytes + 1);
        (void)status; /* pending */
    }
    if (tn__pending()) {
        tell_error(s, where.text);
    }
    free(text);
}

/* Raises what was told instead of data. Rank 0 says which rank it has it from. */
static void raise_told(tn_saver *s, int rank, const char *what, const char *text) {
    char *message, who[32] = "";
    long status = strtol(text, &message, 10);
    s->shared_error = true;
    bool known = status > TN_OK && status <= TN_EMISMATCH;
    if (rank >= 0 && strcmp(what, "writes") != 0) {
        snprintf(who, sizeof(who), "rank %d: ", rank);
    }
    tn__raise(known ? (tn_status)status : TN_EPEER, s->operation, "%s%.900s", who,
              *message == ' ' ? message + 1 : message);
}

char *tn__saver_hear(tn_saver *s, int rank, const char *what, double deadline, const char *late) {
    void *data;
    size_t bytes;
    s->shared_error = false;
    if (tn__pending()) {
        return NULL;
    }
    key where = key_of(s->saves, rank, what);
    if (tn_store_get(s->store, where.text, &data, &bytes, fmax(deadline - tn__now(), 0)) != TN_OK) {
        if (tn_error() == TN_EPEER && tn__now() >= deadline) {
            tn_error_clear();
            tn__raise(TN_EPEER, s->operation, "%s", late);
        }
        return NULL;
    }
    char *text = data;
    if (bytes == 0 || *text != '+') {
        raise_told(s, rank, what, bytes ? text + 1 : "");
        free(text);
        return NULL;
    }
    memmove(text, text + 1, bytes); /* the 0 behind it too */
    return text;
}

static bool remove_key(tn_saver *s, key where) {
    bool removed = tn_store_delete(s->store, where.text, NULL) == TN_OK;
    tn_error_clear();
    return removed;
}

void tn__saver_forget(tn_saver *s, int64_t k) {
    static const char *const of_ranks[] = {"has", "writes", "done", "heard"};
    bool answers = remove_key(s, key_of(k, -1, "end")); /* or nobody waits for it 3 N times */
    for (int r = 0; answers && r < s->ranks; r++) {
        for (size_t i = 0; answers && i < sizeof(of_ranks) / sizeof(*of_ranks); i++) {
            answers = remove_key(s, key_of(k, r, of_ranks[i]));
        }
    }
}

void tn__saver_part(tn_saver *s) {
    tn_error_record why;
    if (!tn_error_take(&why)) {
        return;
    }
    if (s->rank != 0) {
        tn__saver_tell(s, s->rank, "heard", NULL, 0);
    }
    double deadline = tn__now() + fmin(tn__saver_grace(s), HEARD_SECONDS);
    for (int r = 1; s->rank == 0 && r < s->ranks; r++) {
        free(tn__saver_hear(s, r, "heard", deadline, ""));
        tn_error_clear();
    }
    tn_error_clear();
    tn_error_give(&why);
}

double tn__saver_grace(const tn_saver *s) {
    return fmax(GRACE_SECONDS, s->options.timeout / 4);
}
