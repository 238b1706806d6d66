/* What the tests of calls between ranks share: functions to be called, starting, ending. */
#ifndef TERN_TESTS_DISTRIBUTED_RPC_CHECK_H
#define TERN_TESTS_DISTRIBUTED_RPC_CHECK_H

#include "core/clock.h"
#include "distributed/rpc/rpc.h"

#include "rank_check.h"

static inline tn_message *ask_rank(tn_rpc *r, int to, const char *name, tn_message *in,
                                   double timeout) {
    return tn_rpc_wait(tn_rpc_call(r, to, name, in, timeout));
}

/* The pending error is this one; clears it. */
static inline bool failed_with(tn_status status, const char *part) {
    bool fine = tn_error() == status && strstr(tn_error_message(), part);
    if (!fine) {
        fprintf(stderr, "%s: \"%s\", not \"%s\"\n", tn_status_name(tn_error()), tn_error_message(),
                part);
    }
    tn_error_clear();
    return fine;
}

/* Waits until rank r keeps this many things. */
static inline bool comes_to_keep(tn_rpc *r, int64_t count) {
    for (double end = tn__now() + 20; tn_rpc_kept(r) != count && tn__now() < end;) {
        usleep(1000);
    }
    return tn_rpc_kept(r) == count;
}

/* ---- Functions ------------------------------------------------------------------------------- */

static inline void echo_values(const tn_message *in, tn_message *out, void *user) {
    for (int i = 0; i < tn_message_count(in); i++) {
        const tn__value *v = &in->values[i];
        size_t bytes = 0;
        switch (v->kind) {
        case TN__VALUE_TENSOR:
            tn_message_add(out, tn_message_tensor(in, i));
            break;
        case TN__VALUE_BYTES: {
            const void *data = tn_message_bytes(in, i, &bytes);
            tn_message_add_bytes(out, data, bytes);
            break;
        }
        case TN__VALUE_TEXT:
            tn_message_add_text(out, tn_message_text(in, i));
            break;
        case TN__VALUE_INT:
            tn_message_add_int(out, tn_message_int(in, i));
            break;
        default: {
            tn_remote *m = tn_message_remote(in, i);
            tn_message_add_remote(out, m);
            tn_remote_free(m);
        }
        }
    }
}

static inline void count_values(const tn_message *in, tn_message *out, void *user) {
    tn_message_add_int(out, tn_message_count(in));
}

static inline void add_numbers(const tn_message *in, tn_message *out, void *user) {
    tn_message_add_int(out, tn_message_int(in, 0) + tn_message_int(in, 1) + tn_rpc_caller());
}

static inline void fail_here(const tn_message *in, tn_message *out, void *user) {
    tn_raise(TN_EINDEX, "no row %d here", (int)tn_message_int(in, 0));
}

static inline void sleep_here(const tn_message *in, tn_message *out, void *user) {
    usleep((useconds_t)tn_message_int(in, 0));
    tn_message_add(out, tn_ones(TN_DIMS(3), TN_F32));
}

/* Calls the other rank back until the number is 0. */
static inline void count_down(const tn_message *in, tn_message *out, void *user) {
    int64_t n = tn_message_int(in, 0), deeper = 0;
    if (n > 0) {
        tn_message *next = tn_message_new();
        tn_message_add_int(next, n - 1);
        tn_message *reply = ask_rank(user, tn_rpc_caller(), "count_down", next, 0);
        deeper = tn_message_int(reply, 0);
        tn_message_free(reply);
    }
    tn_message_add_int(out, deeper + 1);
}

static inline tn_rpc *start_with(tn_group *world, tn_rpc_options options) {
    tn_rpc *r = tn_rpc_new(world, options);
    tn_rpc_register(r, "echo", echo_values, NULL);
    tn_rpc_register(r, "count", count_values, NULL);
    tn_rpc_register(r, "add", add_numbers, NULL);
    tn_rpc_register(r, "fail", fail_here, NULL);
    tn_rpc_register(r, "sleep", sleep_here, NULL);
    tn_rpc_register(r, "count_down", count_down, r);
    tn_rpc_start(r);
    return r;
}

static inline tn_rpc *start_rank(tn_group *world) {
    return start_with(world, tn_rpc_defaults());
}

/* Nothing is kept, although all ranks are still there. */
static inline void end_rank(tn_group *world, tn_rpc *r) {
    CHECK(tn_rpc_shutdown(r, 60) == TN_OK);
    CHECK(comes_to_keep(r, 0));
    CHECK(tn_barrier(world) == TN_OK);
    tn_rpc_free(r);
}

#endif
