/* Ranks of the engine "shm" as processes, each with an engine and no group: joining, transfers that
 * must succeed, errors that are expected. */
#ifndef TERN_TESTS_DISTRIBUTED_SHM_RANKS_H
#define TERN_TESTS_DISTRIBUTED_SHM_RANKS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "tern/sys/group.h"
#include "tern/sys/store.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { PATIENCE = 30 }; /* seconds: far longer than a test takes */

static int rank, ranks;
static uint64_t sequence;
static char why[TN_ENGINE_WHY]; /* of the last call's error; "": none */

static inline void take_why(void) {
    snprintf(why, sizeof(why), "%s", tn__error_why());
    tn_error_clear();
}

static inline tn_engine *join_within(const char *place, double timeout) {
    rank = atoi(getenv("RANK"));
    ranks = atoi(getenv("WORLD_SIZE"));
    tn_store *store = ranks_store(place);
    const tn_engine_options o = {.store = store,
                                 .rank = rank,
                                 .ranks = ranks,
                                 .deadline = tn__now() + timeout,
                                 .timeout = timeout};
    tn_engine *e = tn_engine_new("shm", &o);
    take_why();
    tn_store_free(store);
    return e;
}

static inline tn_engine *join_engine(const char *place) {
    tn_engine *e = join_within(place, PATIENCE);
    if (!e) { fprintf(stderr, "rank %d: %s\n", rank, why); }
    rank_assert(e != NULL);
    return e;
}

static inline tn_status run_for(tn_engine *e, tn_transfer t, double seconds) {
    t.sequence = ++sequence;
    t.deadline = tn__now() + seconds;
    tn_status status = e->run(e, &t);
    rank_assert(status == tn_error());
    take_why();
    return status;
}

static inline tn_status run_transfer(tn_engine *e, tn_transfer t) {
    return run_for(e, t, PATIENCE);
}

static inline tn_transfer all_reduce(float *x, int64_t count) {
    return (tn_transfer){
        .kind = TN_ALL_REDUCE,
        .dtype = TN_F32,
        .reduce = TN_SUM,
        .in = x,
        .out = x,
        .count = count,
    };
}

static inline tn_transfer message_with(tn_collective kind, void *data, int64_t count, int peer) {
    return (tn_transfer){.kind = kind,
                         .dtype = TN_F32,
                         .root = peer,
                         .in = kind == TN_SEND ? data : NULL,
                         .out = kind == TN_SEND ? NULL : data,
                         .count = count};
}

static const tn_transfer BARRIER = {.kind = TN_BARRIER};

/* An all-reduce of ones, with its result checked. */
static inline void add_up(tn_engine *e) {
    float x[3] = {1, 1, 1};
    rank_assert(run_transfer(e, all_reduce(x, 3)) == TN_OK);
    rank_assert(x[0] == (float)ranks && x[2] == (float)ranks);
}

static inline void expect_error(tn_status status, tn_status want, const char *part) {
    if (status != want || !strstr(why, part)) {
        fprintf(stderr, "rank %d: %s \"%s\", expected %s \"%s\"\n", rank, tn_status_name(status),
                why, tn_status_name(want), part);
        _exit(1);
    }
}

/* How many blocks of shared memory this process has mapped. */
static inline int count_mappings(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (file && fgets(line, sizeof(line), file)) {
        count += strstr(line, "/memfd:tern") != NULL;
    }
    if (file) { fclose(file); }
    return count;
}

#endif
