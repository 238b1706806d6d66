/* What the tests of calls between ranks share: functions to be called, starting, ending. */
#ifndef TERN_TESTS_DISTRIBUTED_RPC_CHECK_H
#define TERN_TESTS_DISTRIBUTED_RPC_CHECK_H

#include "core/clock.h"
#include "distributed/rpc/rpc.h"

#include "rank_check.h"

static inline tn_values ask_rank(tn_rpc *r, int to, const char *name, tn_values in,
                                 double timeout) {
    return tn_rpc_wait(tn_rpc_call(r, to, name, in, timeout));
}

static const tn_values nothing = {0};

static inline tn_values number_of(int64_t n) {
    return (tn_values){1, {tn_scalar((double)n, TN_I64)}};
}

static inline int64_t first_of(tn_values v) {
    return v.n == 1 ? (int64_t)tn_item(v.v[0]) : -1;
}

/* Nothing was given, since it failed. */
static inline bool is_lost(tn_values v) {
    return v.n == 1 && tn_is_inert(v.v[0]);
}

/* Waits until rank r keeps this many graphs. */
static inline bool comes_to_keep(tn_rpc *r, int wanted) {
    for (double end = tn__now() + 20;; usleep(1000)) {
        int count = 0;
        pthread_mutex_lock(&r->lock);
        for (int i = 0; i < r->ranks; i++) {
            for (const tn__graph *g = r->peers[i].graphs; g; g = g->next) {
                count++;
            }
        }
        pthread_mutex_unlock(&r->lock);
        if (count == wanted || tn__now() > end) { return count == wanted; }
    }
}

/* ---- Functions ------------------------------------------------------------------------------- */

static inline tn_values echo_values(tn_values in, void *user) {
    return in;
}

static inline tn_values count_values(tn_values in, void *user) {
    return number_of(in.n);
}

static inline tn_values add_numbers(tn_values in, void *user) {
    return number_of((int64_t)(tn_item(in.v[0]) + tn_item(in.v[1])) + tn_rpc_caller());
}

static inline tn_values fail_here(tn_values in, void *user) {
    tn_raise(TN_EINDEX, "no row %d here", (int)first_of(in));
    return nothing;
}

static inline tn_values sleep_here(tn_values in, void *user) {
    usleep((useconds_t)first_of(in));
    return (tn_values){1, {tn_ones(TN_DIMS(3), TN_F32)}};
}

static inline tn_values run_module(tn_values in, void *module) {
    return TN_VALUES(tn_call(module, in.v[0]));
}

/* Calls the other rank back until the number is 0. */
static inline tn_values count_down(tn_values in, void *user) {
    int64_t n = first_of(in), deeper = 0;
    if (n > 0) {
        deeper = first_of(ask_rank(user, tn_rpc_caller(), "count_down", number_of(n - 1), 0));
    }
    return number_of(deeper + 1);
}

/* Without a user, a function gets the rpc. */
typedef struct callable {
    const char *name;
    tn_rpc_function f;
    void *user;
} callable;
#define FUNCTIONS(...) ((const callable[]){__VA_ARGS__, {0}})

static inline void register_all(tn_rpc *r, const callable *c) {
    for (; c && c->name; c++) {
        tn_rpc_register(r, c->name, c->f, c->user ? c->user : r);
    }
}

/* With the functions above, and more. */
static inline tn_rpc *start_with(tn_group *world, tn_rpc_options options, const callable *more) {
    tn_rpc *r = tn_rpc_new(world, options);
    register_all(r, FUNCTIONS({"echo", echo_values, NULL}, {"count", count_values, NULL},
                              {"add", add_numbers, NULL}, {"fail", fail_here, NULL},
                              {"sleep", sleep_here, NULL}, {"count_down", count_down, NULL}));
    register_all(r, more);
    tn_rpc_start(r);
    return r;
}

static inline tn_rpc *start_rank(tn_group *world) {
    return start_with(world, tn_rpc_defaults(), NULL);
}

/* Nothing is kept, although all ranks are still there. */
static inline void end_rank(tn_group *world, tn_rpc *r) {
    CHECK(tn_rpc_shutdown(r, 60) == TN_OK);
    CHECK(comes_to_keep(r, 0));
    CHECK(tn_barrier(world) == TN_OK);
    tn_rpc_free(r);
}

#endif
