/* What the ranks of a saver send each other (saver.h): '+' and data, or a failure. */
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
#define HEARD_SECONDS 10.0 /* for ranks that will arrive soon */

typedef struct failure {
    char kind; /* '!' */
    tn_error_record error;
} failure;

typedef struct key {
    char text[64];
} key;

static key key_of(int64_t k, int rank, const char *what) {
    key name;
    snprintf(name.text, sizeof(name.text), "%" PRId64 "/%d/%s", k, rank, what);
    return name;
}

const char *tn__saver_plain(const tn_saver *s, const char *message) {
    const char *plain = strstr(message, s->operation);
    size_t length = strlen(s->operation);
    bool found = plain && strncmp(plain + length, ": ", 2) == 0;
    return found ? plain + length + 2 : message;
}

void tn__saver_send(tn_saver *s, int rank, const char *what, const void *data, size_t bytes) {
    key where = key_of(s->saves, rank, what);
    char *text = tn__pending() ? NULL : tn__malloc_for(bytes + 1, s->operation);
    if (text) {
        text[0] = '+';
        memcpy(text + 1, bytes ? data : "", bytes);
        tn_store_set(s->store, where.text, text, bytes + 1);
        free(text);
    }
    tn_error_record mine;
    if (tn_error_take(&mine)) {
        failure sent = {.kind = '!', .error = {.status = mine.status}};
        snprintf(sent.error.message, sizeof(sent.error.message), "%s",
                 tn__saver_plain(s, mine.message));
        tn_store_set(s->store, where.text, &sent, sizeof(sent));
        tn_error_clear(); /* the first error stays */
        tn_error_give(&mine);
    }
}

/* How long after the deadline rank 0 has surely sent its decision. */
static double grace_of(const tn_saver *s) {
    return fmax(GRACE_SECONDS, s->options.timeout / 4);
}

/* sender -1: rank 0, which decides for all. */
static char *receive_until(tn_saver *s, key where, int sender, double deadline, const char *late,
                           size_t *bytes) {
    void *data;
    s->shared_error = false;
    if (tn__pending()) {
        return NULL;
    }
    if (tn_store_get(s->store, where.text, &data, bytes, fmax(deadline - tn__now(), 0)) != TN_OK) {
        if (tn_error() == TN_EPEER && tn__now() >= deadline) {
            tn_error_clear();
            tn__raise(TN_EPEER, s->operation,
                      "rank %d has not %s step %" PRId64 " within %.4g seconds",
                      sender < 0 ? 0 : sender, late, s->step,
                      fmin(s->options.timeout, deadline - s->deadline + s->options.timeout));
        }
        return NULL;
    }
    char *text = data, who[32] = "";
    if (*bytes == 0 || *text != '+') { /* rank 0 names the rank that its error is from */
        failure sent = {.kind = '!'};
        memcpy(&sent, data, *bytes < sizeof(sent) ? *bytes : sizeof(sent));
        if (sender >= 0) {
            snprintf(who, sizeof(who), "rank %d: ", sender);
        }
        bool known = sent.error.status > TN_OK && sent.error.status <= TN_EMISMATCH;
        s->shared_error = true;
        tn__raise(known ? sent.error.status : TN_EPEER, s->operation, "%s%.900s", who,
                  sent.error.message);
        free(text);
        return NULL;
    }
    memmove(text, text + 1, (*bytes)--); /* and the 0 after it */
    return text;
}

char *tn__saver_receive(tn_saver *s, int rank, const char *what, const char *late, size_t *bytes) {
    size_t unused;
    bool decision = rank < 0 || strcmp(what, "writes") == 0;
    return receive_until(s, key_of(s->saves, rank, what), decision ? -1 : rank,
                         s->deadline + (decision ? grace_of(s) : 0), late, bytes ? bytes : &unused);
}

char *tn__saver_receive_by(tn_saver *s, double deadline, int rank, const char *what, int sender,
                           const char *late, size_t *bytes) {
    return receive_until(s, key_of(s->saves, rank, what), sender, deadline, late, bytes);
}

/* False: the store does not answer. */
static bool remove_key(tn_saver *s, int64_t k, int rank, const char *what) {
    bool removed = tn_store_delete(s->store, key_of(k, rank, what).text, NULL) == TN_OK;
    tn_error_clear();
    return removed;
}

void tn__saver_forget(tn_saver *s) {
    int64_t k = s->saves - 1;
    static const char *const of_ranks[] = {"list", "writes", "copy", "takes", "done", "heard"};
    bool answers = remove_key(s, k, -1, "end"); /* else each key would be waited for */
    for (int r = 0; answers && r < s->ranks; r++) {
        for (size_t i = 0; answers && i < sizeof(of_ranks) / sizeof(*of_ranks); i++) {
            answers = remove_key(s, k, r, of_ranks[i]);
        }
    }
}

void tn__saver_leave(tn_saver *s) {
    tn_error_record why;
    size_t unused;
    if (!tn_error_take(&why)) {
        return;
    }
    if (s->rank != 0) {
        tn__saver_send(s, s->rank, "heard", NULL, 0);
    }
    double deadline = tn__now() + fmin(grace_of(s), HEARD_SECONDS);
    for (int r = 1; s->rank == 0 && r < s->ranks; r++) {
        free(receive_until(s, key_of(s->saves, r, "heard"), r, deadline, "heard", &unused));
        tn_error_clear();
    }
    tn_error_clear();
    tn_error_give(&why);
}
