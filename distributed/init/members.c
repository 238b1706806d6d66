/* Each rank puts a key of its own into the store. Rank 0 waits for all of them and publishes the
 * result under one key, so that N ranks need N waits and not N². If the result does not arrive
 * either, a rank checks itself which are missing. If the launcher says that a rank has ended, no
 * one waits for it.
 *
 *     rank.R    "RANKS VERSION HOST CPUS KINDS GPUS GPU NCCL WHO"
 *     result    "+" and a line for each rank;
 *               or "p" (TN_EPEER) or "m" (TN_EMISMATCH) and the reason
 */
#define _GNU_SOURCE
#include "distributed/init/members.h"

#include "core/buffer.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/memory.h"
#include "distributed/store/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rank 0's result may come this much later than its deadline. */
#define GRACE_SECONDS 1.0

/* The time between two checks whether the awaited rank has ended, and the wait for what it wrote
 * before. */
#define LOOK_SECONDS 1.0
#define LAST_LOOK_SECONDS 0.25

#define OPERATION "dist_init"

enum { LINE = TN__HOST_KEY + TN__CPUS + TN__KINDS + TN__WHO + 128, KEY = 32 };

static const char *key_of(const char *what, int rank, char key[KEY]) {
    snprintf(key, KEY, "%s.%d", what, rank);
    return key;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

/* The next word of a line into text[size]. */
static bool next_word(const char **at, char *text, size_t size) {
    size_t length = strcspn(*at, " \n");
    if (length == 0 || length >= size) { return false; }
    memcpy(text, *at, length);
    text[length] = 0;
    *at += length + ((*at)[length] == ' ');
    return true;
}

/* What rank `rank` says about itself. False after raising: it belongs to another world. */
static bool read_line(const char *line, int rank, int ranks, tn__member *m) {
    char count[16], version[64], gpus[16], gpu[16], nccl[16];
    const char *at = line, *mine = tn__version_text();
    if (!next_word(&at, count, sizeof(count)) || !next_word(&at, version, sizeof(version)) ||
        !next_word(&at, m->host, sizeof(m->host)) || !next_word(&at, m->cpus, sizeof(m->cpus)) ||
        !next_word(&at, m->kinds, sizeof(m->kinds)) || !next_word(&at, gpus, sizeof(gpus)) ||
        !next_word(&at, gpu, sizeof(gpu)) || !next_word(&at, nccl, sizeof(nccl)) ||
        !next_word(&at, m->who, sizeof(m->who))) {
        return tn__fail(TN_EMISMATCH, OPERATION,
                        "rank %d says \"%.80s\" about itself: it is not a rank of this world", rank,
                        line);
    }
    m->gpus = atoi(gpus);
    m->gpu = atoi(gpu);
    m->nccl = atoi(nccl);
    if (!tn__version_agrees(version, mine)) {
        return tn__fail(TN_EMISMATCH, OPERATION,
                        "rank %d (%s) has version %s of the library, but here it is %s", rank,
                        m->who, version, mine);
    }
    return atoi(count) == ranks ||
           tn__fail(TN_EMISMATCH, OPERATION,
                    "rank %d (%s) is one of %s ranks, but here there are %d", rank, m->who, count,
                    ranks);
}

/* ---- Who is missing -------------------------------------------------------------------------- */

/* "1, 3-5": appends the ranks from first to last, if the message has room for them. */
static void add_ranks(tn__buffer *text, int first, int last) {
    if (text->bytes + 32 > 256) { return; }
    tn__buffer_format(text, "%s%d", text->bytes ? ", " : "", first);
    if (first < last) { tn__buffer_format(text, "-%d", last); }
}

/* A store answers some ten thousand times a second: with very many ranks only the first are
 * checked. */
static void raise_missing(tn_store *s, int ranks, double seconds) {
    char rest[64] = "", key[KEY];
    double deadline = tn__now() + GRACE_SECONDS;
    tn__buffer text = {0};
    int missing = 0, first = -1, rank = 0;
    for (; rank < ranks && tn__now() < deadline; rank++) {
        tn_store_call c = {
            .kind = TN_STORE_CHECK, .key = key_of("rank", rank, key), .deadline = deadline};
        bool there = s->run(s, &c) != TN_OK || c.number;
        missing += !there;
        if (there && first >= 0) { add_ranks(&text, first, rank - 1); }
        first = there ? -1 : first < 0 ? rank : first;
    }
    if (first >= 0) { add_ranks(&text, first, rank - 1); }
    if (rank < ranks) { snprintf(rest, sizeof(rest), "; ranks from %d on were not checked", rank); }
    if (missing == 0) {
        tn__raise(TN_EPEER, OPERATION,
                  "all %d ranks have arrived, but too late: it took %.1f seconds%s", rank, seconds,
                  rest);
    } else {
        tn__raise(TN_EPEER, OPERATION, "rank%s %.256s of %d %s not arrived within %.1f seconds%s",
                  missing > 1 ? "s" : "", text.at ? text.at : "?", ranks,
                  missing > 1 ? "have" : "has", seconds, rest);
    }
    tn__buffer_free(&text);
}

/* ---- Meeting --------------------------------------------------------------------------------- */

static tn_status claim_rank(tn_store *s, const tn__member *mine, int rank, int ranks,
                            double deadline) {
    char line[LINE], key[KEY];
    snprintf(line, LINE, "%d %s %s %s %s %d %d %d %s", ranks, tn__version_text(), mine->host,
             mine->cpus, mine->kinds, mine->gpus, mine->gpu, mine->nccl, mine->who);
    tn_store_call c = {.kind = TN_STORE_COMPARE_SET,
                       .key = key_of("rank", rank, key),
                       .data = line,
                       .bytes = strlen(line),
                       .deadline = deadline};
    tn_status status = s->run(s, &c);
    const char *now = c.value.data;
    if (status != TN_OK) {
        tn__raise(status, OPERATION, "%s", c.why);
    } else if (c.value.bytes != c.bytes || memcmp(now, line, c.bytes) != 0) {
        const char *space = now ? memrchr(now, ' ', c.value.bytes) : NULL;
        int length = space ? (int)(now + c.value.bytes - space - 1) : 0;
        status = tn__raise(TN_EMISMATCH, OPERATION, "two processes have rank %d: %.*s and %s", rank,
                           length < TN__WHO ? length : TN__WHO, space ? space + 1 : "", mine->who);
    }
    free(c.value.data);
    return status;
}

/* Raises nothing: after a failure c->why says why. */
static tn_status get_text(tn_store *s, tn_store_call *c, char **text) {
    tn_status status = s->run(s, c);
    *text = status == TN_OK ? tn__store_text(c) : NULL;
    return status == TN_OK && !*text ? TN_ENOMEM : status;
}

/* Whether the launcher says that this rank has ended; then who[TN__WHO] says which process it was.
 * If it had another number of ranks, it was in another world. */
static bool has_ended(const tn__meeting *m, int rank, char *who) {
    char key[KEY], *text = NULL;
    int ranks = 0;
    snprintf(key, sizeof(key), TN__ENDED_KEY, m->restarts, rank);
    tn_store_call c = {
        .kind = TN_STORE_CHECK, .key = key, .deadline = tn__now() + LAST_LOOK_SECONDS};
    tn_store_call get = {.kind = TN_STORE_GET, .key = key, .deadline = c.deadline};
    if (m->launcher->run(m->launcher, &c) == TN_OK && c.number) {
        get_text(m->launcher, &get, &text);
    }
    bool ended = text && sscanf(text, "%d %79s", &ranks, who) == 2 && ranks == m->ranks;
    free(text);
    return ended;
}

/* What `rank` will write, which the caller frees. NULL after raising, which names the ranks that
 * are missing, if it has not come by the deadline. A store that does not answer in time may be
 * busy: only one that fails at once has failed. */
static char *await_text(const tn__meeting *m, int rank, const char *key, double deadline,
                        double begin) {
    char who[TN__WHO], *text;
    for (bool ended = false;;) {
        double look = ended ? LAST_LOOK_SECONDS : LOOK_SECONDS;
        tn_store_call c = {
            .kind = TN_STORE_GET, .key = key, .deadline = fmin(deadline, tn__now() + look)};
        tn_status status = get_text(m->store, &c, &text);
        double now = tn__now();
        if (text) { return text; }
        if (status == TN_EPEER && now >= deadline) {
            raise_missing(m->store, m->ranks, now - begin);
            return NULL;
        }
        if (status != TN_EPEER || now < c.deadline - look / 4 || c.deadline >= deadline) {
            return tn__fail_null(status, OPERATION, "%s", c.why);
        }
        if (ended) {
            return tn__fail_null(
                TN_EPEER, OPERATION,
                "rank %d (%s) has ended with exit code 0, and never called tn_dist_init", rank,
                who);
        }
        ended = has_ended(m, rank, who);
    }
}

/* Rank 0: waits for all ranks and adds their lines to `all`. */
static tn_status collect_members(const tn__meeting *m, double begin, tn__buffer *all) {
    for (int rank = 0; rank < m->ranks && !tn__pending(); rank++) {
        char key[KEY];
        tn__member member;
        char *line = await_text(m, rank, key_of("rank", rank, key), m->deadline, begin);
        if (line && read_line(line, rank, m->ranks, &member) &&
            !tn__buffer_format(all, "%.*s\n", LINE - 2, line)) {
            tn__raise(TN_ENOMEM, OPERATION, "no memory to meet %d ranks", m->ranks);
        }
        free(line);
    }
    return tn_error();
}

static tn_status announce_members(const tn__meeting *m, double begin) {
    char failure[1 + sizeof(((tn_error_record *)0)->message)];
    tn__buffer all = {0}; /* grows as they arrive, since most of very many ranks may never arrive */
    tn__buffer_text(&all, "+");
    tn_status status = collect_members(m, begin, &all);
    tn_store_call c = {.kind = TN_STORE_SET,
                       .key = "result",
                       .data = all.at,
                       .bytes = all.bytes,
                       .deadline = m->deadline + GRACE_SECONDS};
    if (status != TN_OK) {
        snprintf(failure, sizeof(failure), "%c%s", status == TN_EMISMATCH ? 'm' : 'p',
                 tn__error_why());
        c.data = failure;
        c.bytes = strlen(failure);
        c.deadline = tn__now() + GRACE_SECONDS;
    }
    tn_status told = m->store->run(m->store, &c);
    tn__raise(told, OPERATION, "%s", c.why);
    tn__buffer_free(&all);
    return tn_error();
}

static tn_status read_result(const char *result, int ranks, tn__member *members) {
    if (*result != '+') {
        return tn__raise(*result == 'm' ? TN_EMISMATCH : TN_EPEER, OPERATION, "%s",
                         *result ? result + 1 : "");
    }
    const char *line = result + 1;
    for (int rank = 0; rank < ranks; rank++) {
        if (!read_line(line, rank, ranks, &members[rank])) { return TN_EMISMATCH; }
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return TN_OK;
}

tn_status tn__meet(const tn__meeting *m, const tn__member *mine, tn__member *members) {
    double begin = tn__now();
    tn_status status = claim_rank(m->store, mine, m->rank, m->ranks, m->deadline);
    if (status == TN_OK && m->rank == 0) { status = announce_members(m, begin); }
    if (status != TN_OK) { return status; }
    char *result = await_text(m, 0, "result", m->deadline + 2 * GRACE_SECONDS, begin);
    if (result) { read_result(result, m->ranks, members); }
    free(result);
    return tn_error();
}

/* ---- Levels ---------------------------------------------------------------------------------- */

/* The last of the levels in `kinds`; "" if there are none. */
static const char *last_level(const char *kinds) {
    const char *colon = strchr(kinds, ':'), *comma = strrchr(kinds, ',');
    return comma ? comma + 1 : colon ? colon + 1 : "";
}

/* Whether this processor is like the one of `kinds`, and has its level word[length]. */
static bool has_level(const tn__member *m, const char *kinds, const char *word, size_t length) {
    size_t machine = strcspn(kinds, ":");
    if (strncmp(m->kinds, kinds, machine) != 0 || m->kinds[machine] != ':') { return false; }
    const char *at = m->kinds + machine;
    while (*at && !(strcspn(at + 1, ",") == length && strncmp(at + 1, word, length) == 0)) {
        at += 1 + strcspn(at + 1, ",");
    }
    return *at != 0;
}

static bool all_have(const tn__member *members, int ranks, const char *word, size_t length) {
    int r = 0;
    while (r < ranks && has_level(&members[r], members[0].kinds, word, length)) {
        r++;
    }
    return r == ranks;
}

bool tn__meet_level(const tn__member *members, int ranks, char word[TN__KINDS],
                    char note[TN__NOTE]) {
    const char *kinds = members[0].kinds, *highest = NULL;
    int other = 1, length = 0;
    for (const char *at = kinds + strcspn(kinds, ":"); *at;) {
        size_t bytes = strcspn(++at, ",");
        if (all_have(members, ranks, at, bytes)) {
            highest = at;
            length = (int)bytes;
        }
        at += bytes;
    }
    while (other < ranks && strcmp(members[other].kinds, kinds) == 0) {
        other++;
    }
    if (!highest) {
        const tn__member *m = &members[other < ranks ? other : 0];
        return tn__fail(TN_EMISMATCH, OPERATION,
                        "rank %d (%s) computes with %s and rank 0 (%s) with %s: at no level of the "
                        "CPU's kernels do they get the same bits",
                        other, m->who, m->kinds, members[0].who, kinds);
    }
    snprintf(word, TN__KINDS, "%.*s", length, highest);
    *note = 0;
    if (other < ranks) {
        snprintf(note, TN__NOTE,
                 "rank %d (%s) has the CPU's level %s and rank 0 (%s) %s: all ranks compute at "
                 "%s, so that they get the same bits",
                 other, members[other].who, last_level(members[other].kinds), members[0].who,
                 last_level(kinds), word);
    }
    return true;
}
