/* Calls between ranks: values, errors, many at once, back and forth, limits, and ranks that are
 * slow, stopped or killed. Ranks are threads where none has to die. */
#define _GNU_SOURCE
#include "core/clock.h"
#include "distributed/group/group.h"
#include "distributed/rpc/rpc.h"
#include "distributed/store/net.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "rank_check.h"

#include "tests/support/ranks.h"

static tn_message *ask_rank(tn_rpc *r, int to, const char *name, tn_message *in, double timeout) {
    return tn_rpc_wait(tn_rpc_call(r, to, name, in, timeout));
}

/* The pending error is this one; clears it. */
static bool failed_with(tn_status status, const char *part) {
    bool fine = tn_error() == status && strstr(tn_error_message(), part);
    if (!fine) {
        fprintf(stderr, "%s: \"%s\", not \"%s\"\n", tn_status_name(tn_error()), tn_error_message(),
                part);
    }
    tn_error_clear();
    return fine;
}

/* ---- Functions ------------------------------------------------------------------------------- */

static void echo_values(const tn_message *in, tn_message *out, void *user) {
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

static void add_numbers(const tn_message *in, tn_message *out, void *user) {
    tn_message_add_int(out, tn_message_int(in, 0) + tn_message_int(in, 1) + tn_rpc_caller());
}

static void fail_here(const tn_message *in, tn_message *out, void *user) {
    tn_raise(TN_EINDEX, "no row %d here", (int)tn_message_int(in, 0));
}

static void sleep_here(const tn_message *in, tn_message *out, void *user) {
    usleep((useconds_t)tn_message_int(in, 0));
    tn_message_add(out, tn_ones(TN_DIMS(3), TN_F32));
}

/* Calls the other rank back until the number is 0. */
static void count_down(const tn_message *in, tn_message *out, void *user) {
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

static tn_rpc *start_with(tn_group *world, tn_rpc_options options) {
    tn_rpc *r = tn_rpc_new(world, options);
    tn_rpc_register(r, "echo", echo_values, NULL);
    tn_rpc_register(r, "add", add_numbers, NULL);
    tn_rpc_register(r, "fail", fail_here, NULL);
    tn_rpc_register(r, "sleep", sleep_here, NULL);
    tn_rpc_register(r, "count_down", count_down, r);
    tn_rpc_start(r);
    return r;
}

static tn_rpc *start_rank(tn_group *world) {
    return start_with(world, tn_rpc_defaults());
}

static void end_rank(tn_rpc *r) {
    CHECK(tn_rpc_shutdown(r, 60) == TN_OK);
    CHECK(tn_rpc_kept(r) == 0);
    tn_rpc_free(r);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* A tensor of each dtype, one of no dimensions, one without elements, one that is not
 * contiguous. */
static void add_tensors(tn_message *m) {
    for (int d = 0; d < TN_DTYPES; d++) {
        tn_message_add(m, tn_cast(tn_arange(0, 6, 1, TN_F32), (tn_dtype)d));
    }
    tn_message_add(m, tn_scalar(7, TN_F64));
    tn_message_add(m, tn_ones(TN_DIMS(0, 3), TN_F32));
    tn_message_add(m, tn_transpose(tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_DIMS(2, 3)), 0, 1));
}

static bool same_tensor(tn_tensor *a, tn_tensor *b) {
    char x[64], y[64];
    return tn_dtype_of(a) == tn_dtype_of(b) && tn_dims_equal(tn_shape(a), tn_shape(b)) &&
           tn_copy_out(a, x) == TN_OK && tn_copy_out(b, y) == TN_OK &&
           memcmp(x, y, (size_t)tn_count(a) * tn_dtype_size(tn_dtype_of(a))) == 0;
}

static void send_values(tn_rpc *r, int to) {
    TN_SCOPE;
    tn_message *in = tn_message_new(), *same = tn_message_new();
    add_tensors(in);
    add_tensors(same);
    tn_message_add_bytes(in, "a\0b", 3);
    tn_message_add_bytes(in, NULL, 0);
    tn_message_add_text(in, "text with ü");
    tn_message_add_int(in, INT64_MIN);
    int tensors = tn_message_count(same);
    tn_message *out = ask_rank(r, to, "echo", in, 0);
    CHECK(tn_message_count(out) == tensors + 4);
    for (int i = 0; i < tensors; i++) {
        CHECK(same_tensor(tn_message_tensor(same, i), tn_message_tensor(out, i)));
    }
    size_t bytes;
    const char *data = tn_message_bytes(out, tensors, &bytes);
    CHECK(bytes == 3 && memcmp(data, "a\0b", 4) == 0);
    CHECK(tn_message_bytes(out, tensors + 1, &bytes) && bytes == 0);
    CHECK(strcmp(tn_message_text(out, tensors + 2), "text with ü") == 0);
    CHECK(tn_message_int(out, tensors + 3) == INT64_MIN);
    CHECK(tn_message_int(out, 0) == 0 && failed_with(TN_EVALUE, "value 0 is a tensor, not an int"));
    CHECK(tn_is_inert(tn_message_tensor(out, 99)) && failed_with(TN_EINDEX, "value 99"));
    tn_message_free(out);
    tn_message_free(same);
}

static void all_values(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    for (int to = 0; to < tn_group_size(world); to++) {
        send_values(r, to); /* to itself too */
    }
    end_rank(r);
}

static void test_values(void **state) {
    (void)state;
    run_ok(3, all_values, NULL);
    run_ok(1, all_values, NULL);
}

static void test_alone(void **state) {
    (void)state;
    tn_rpc *r = start_rank(NULL);
    tn_message *out = ask_rank(r, 0, "count_down", tn_message_new(), 0);
    assert_null(out);
    assert_error(TN_EINDEX, "\"count_down\" of rank 0: ");
    assert_int_equal(tn_rpc_shutdown(r, 5), TN_OK);
    tn_rpc_free(r);
}

/* How large the stacks of new threads are; returns how large they were. */
static size_t resize_stacks(size_t bytes) {
    pthread_attr_t a;
    size_t before = 0;
    assert_int_equal(pthread_getattr_default_np(&a), 0);
    assert_int_equal(pthread_attr_getstacksize(&a, &before), 0);
    assert_int_equal(pthread_attr_setstacksize(&a, bytes), 0);
    assert_int_equal(pthread_setattr_default_np(&a), 0);
    pthread_attr_destroy(&a);
    return before;
}

/* Without a thread a rank does not start; with one it answers, even if it gets no others. */
static void test_no_threads(void **state) {
    (void)state;
    const size_t too_large = (size_t)1 << 50;
    size_t before = resize_stacks(too_large);
    tn_rpc *none = tn_rpc_new(NULL, tn_rpc_defaults());
    tn_rpc_start(none);
    resize_stacks(before);
    assert_error(TN_ENOMEM, "thread");
    assert_null(tn_rpc_wait(tn_rpc_call(none, 0, "echo", NULL, 0)));
    assert_error(TN_EPEER, "tn_rpc_start has failed");
    tn_rpc_free(none);
    tn_rpc *r = start_rank(NULL);
    resize_stacks(too_large);
    tn_future *f[3];
    for (int i = 0; i < 3; i++) {
        f[i] = tn_rpc_call(r, 0, "echo", NULL, 20);
    }
    for (int i = 0; i < 3; i++) {
        tn_message *out = tn_rpc_wait(f[i]);
        assert_non_null(out);
        tn_message_free(out);
    }
    resize_stacks(before);
    assert_int_equal(tn_rpc_shutdown(r, 5), TN_OK);
    tn_rpc_free(r);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void all_errors(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 0) {
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 12);
        CHECK(!ask_rank(r, 1, "fail", in, 0));
        CHECK(failed_with(TN_EINDEX, "\"fail\" of rank 1: "));
        CHECK(!ask_rank(r, 1, "fail", NULL, 0) &&
              failed_with(TN_EINDEX, "value 0 of a message with 0"));
        CHECK(!ask_rank(r, 1, "nothing", NULL, 0));
        CHECK(failed_with(TN_EVALUE, "there is no function \"nothing\""));
        CHECK(!ask_rank(r, 2, "echo", NULL, 0) && failed_with(TN_EVALUE, "rank 2 (there are 2)"));
        CHECK(!ask_rank(r, -1, "echo", NULL, 0) && failed_with(TN_EVALUE, "rank -1"));
        CHECK(!ask_rank(r, 1, "", NULL, 0) && failed_with(TN_EVALUE, "the name"));
        CHECK(!ask_rank(r, 1, "echo", NULL, -1) && failed_with(TN_EVALUE, "time-out of -1"));
        CHECK(tn_rpc_register(r, "echo", echo_values, NULL) == TN_ESTATE);
        CHECK(failed_with(TN_ESTATE, "\"echo\" is registered already"));
        CHECK(tn_rpc_register(r, "tn/x", echo_values, NULL) == TN_EVALUE &&
              failed_with(TN_EVALUE, "tn/"));
        CHECK(tn_rpc_start(r) == TN_ESTATE && failed_with(TN_ESTATE, "called before"));
        /* An error that is pending already ends the wait, and the call is forgotten. */
        tn_future *f = tn_rpc_call(r, 1, "echo", NULL, 0);
        tn_raise(TN_EVALUE, "the first");
        CHECK(!tn_rpc_wait(f) && failed_with(TN_EVALUE, "the first"));
    }
    end_rank(r);
}

static void test_errors(void **state) {
    (void)state;
    run_ok(2, all_errors, NULL);
    tn_rpc *r = tn_rpc_new(NULL, tn_rpc_defaults());
    assert_null(tn_rpc_call(r, 0, "echo", NULL, 0));
    assert_error(TN_ESTATE, "tn_rpc_start was not called");
    assert_int_equal(tn_rpc_shutdown(r, 0), TN_ESTATE);
    assert_error(TN_ESTATE, "tn_rpc_start was not called");
    tn_rpc_free(r);
    assert_null(tn_rpc_new(NULL, TN_WITH(tn_rpc, .threads = 8, .threads_most = 4)));
    assert_error(TN_EVALUE, "8 threads, at most 4");
    assert_null(tn_rpc_new(NULL, TN_WITH(tn_rpc, .timeout = 0)));
    assert_error(TN_EVALUE, "time-out is 0");
    assert_null(tn_rpc_new(NULL, TN_WITH(tn_rpc, .message_limit = 1)));
    assert_error(TN_EVALUE, "message_limit is 1");
}

/* In a child of fork an rpc is its parent's, whose calls still work. */
static void test_fork(void **state) {
    (void)state;
    tn_rpc *r = start_rank(NULL);
    tn_future *f = tn_rpc_call(r, 0, "echo", NULL, 0);
    pid_t child = fork();
    if (child == 0) {
        bool fine = !tn_rpc_call(r, 0, "echo", NULL, 0) && tn_error() == TN_ESTATE;
        tn_error_clear();
        fine = fine && !tn_rpc_wait(f) && tn_error() == TN_ESTATE && tn_rpc_kept(r) == 0;
        tn_rpc_free(r);
        _exit(fine ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    tn_message_free(tn_rpc_wait(f));
    assert_int_equal(tn_rpc_shutdown(r, 5), TN_OK);
    tn_rpc_free(r);
}

/* ---- Limits ---------------------------------------------------------------------------------- */

/* Rank 1 takes less than rank 0 sends, and rank 0 less than "grow" gives. */
static void grow_here(const tn_message *in, tn_message *out, void *user) {
    tn_message_add(out, tn_zeros(TN_DIMS(tn_message_int(in, 0)), TN_U8));
}

static void too_large(tn_group *world, void *user) {
    int rank = tn_group_rank(world);
    tn_rpc *r =
        tn_rpc_new(world, TN_WITH(tn_rpc, .message_limit = rank == 0 ? 100000 : rank * 50000));
    tn_rpc_register(r, "echo", echo_values, NULL);
    tn_rpc_register(r, "grow", grow_here, NULL);
    tn_rpc_start(r);
    for (int again = 0; rank == 0 && again < 2; again++) {
        TN_SCOPE;
        tn_values large = {1, {tn_zeros(TN_DIMS(200000), TN_U8)}};
        tn_values fair = {1, {tn_zeros(TN_DIMS(60000), TN_U8)}};
        CHECK(!ask_rank(r, 1, "echo", tn_message_of(large), 0));
        CHECK(failed_with(TN_EVALUE, "(message_limit: 100000)"));
        CHECK(!ask_rank(r, 1, "echo", tn_message_of(fair), 0));
        CHECK(failed_with(TN_EVALUE, "\"echo\" of rank 1: "));
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 120000);
        CHECK(!ask_rank(r, 1, "grow", in, 0)); /* beyond what rank 1 sends */
        CHECK(failed_with(TN_EVALUE, "the result for rank 0"));
        in = tn_message_new();
        tn_message_add_int(in, 120000);
        CHECK(!ask_rank(r, 3, "grow", in, 0)); /* beyond what rank 0 takes */
        CHECK(failed_with(TN_EVALUE, "\"grow\" of rank 3: the result has 1200"));
        tn_values small = {1, {tn_zeros(TN_DIMS(1000), TN_U8)}};
        tn_message *out = ask_rank(r, 1, "echo", tn_message_of(small), 0);
        CHECK(tn_count(tn_message_tensor(out, 0)) == 1000); /* and the connection still works */
        tn_message_free(out);
    }
    end_rank(r);
}

static void test_limits(void **state) {
    (void)state;
    run_ok(4, too_large, NULL);
}

/* ---- Many ------------------------------------------------------------------------------------ */

enum { CALLERS = 8 };

typedef struct crowd {
    tn_rpc *rpc;
    int number, calls;
    int64_t sum;
} crowd;

static void *call_often(void *user) {
    crowd *c = user;
    int size = tn_rpc_size(c->rpc);
    for (int i = 0; i < c->calls; i++) {
        tn_message *in = tn_message_new();
        tn_message_add_int(in, i);
        tn_message_add_int(in, c->number);
        tn_message *out = ask_rank(c->rpc, (c->number + i) % size, "add", in, 0);
        c->sum += tn_message_int(out, 0);
        tn_message_free(out);
    }
    CHECK(tn_error() == TN_OK);
    tn_error_clear();
    return NULL;
}

/* Each rank's threads call all ranks at once. */
static void many_calls(tn_group *world, void *user) {
    int calls = *(int *)user;
    tn_rpc *r = start_rank(world);
    pthread_t threads[CALLERS];
    crowd crowds[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        crowds[i] = (crowd){.rpc = r, .number = i, .calls = calls};
        CHECK(pthread_create(&threads[i], NULL, call_often, &crowds[i]) == 0);
    }
    for (int64_t i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        int64_t n = calls;
        CHECK(crowds[i].sum == n * (n - 1) / 2 + n * i + n * tn_rpc_rank(r));
    }
    end_rank(r);
}

/* 10000 where TERN_RPC_CALLS says so. */
static void test_many_calls(void **state) {
    (void)state;
    const char *wanted = getenv("TERN_RPC_CALLS");
    int calls = wanted ? atoi(wanted) : 500;
    run_ok(2, many_calls, &calls);
}

/* Many under way in one thread, and large ones among them; waited for in reverse. */
static void many_futures(tn_group *world, void *user) {
    enum { N = 200 };
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    tn_future *f[N];
    int other = 1 - tn_rpc_rank(r);
    for (int i = 0; i < N; i++) {
        tn_message *in = tn_message_new();
        tn_message_add(in, tn_full(TN_DIMS(i % 20 ? 3 : 1 << 20), i, TN_F32));
        f[i] = tn_rpc_call(r, other, "echo", in, 0);
    }
    for (int i = N - 1; i >= 0; i--) {
        tn_message *out = tn_rpc_wait(f[i]);
        CHECK(tn_at(tn_message_tensor(out, 0), (int64_t[]){2}) == i);
        tn_message_free(out);
    }
    end_rank(r);
}

static void test_many_futures(void **state) {
    (void)state;
    run_ok(2, many_futures, NULL);
}

/* With one thread for functions, 2 * DEPTH of them wait for each other. */
static void back_and_forth(tn_group *world, void *user) {
    enum { DEPTH = 60 };
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1));
    tn_message *in = tn_message_new();
    tn_message_add_int(in, DEPTH);
    tn_message *out = ask_rank(r, 1 - tn_rpc_rank(r), "count_down", in, 0);
    CHECK(tn_message_int(out, 0) == DEPTH + 1);
    tn_message_free(out);
    end_rank(r);
}

static void test_back_and_forth(void **state) {
    (void)state;
    run_ok(2, back_and_forth, NULL);
}

/* Too deep for the threads: an error at the deadline, and no hang. */
static void too_deep(tn_group *world, void *user) {
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1, .threads_most = 4, .timeout = 1));
    tn_message *in = tn_message_new();
    tn_message_add_int(in, 100);
    if (tn_rpc_rank(r) == 0) {
        CHECK(!ask_rank(r, 1, "count_down", in, 1) && tn_error() == TN_EPEER);
        tn_error_clear();
    } else {
        tn_message_free(in);
    }
    end_rank(r);
}

static void test_too_deep(void **state) {
    (void)state;
    run_ok(2, too_deep, NULL);
}

/* ---- Slow, gone ------------------------------------------------------------------------------ */

static void slow_function(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 0) {
        double begin = tn__now();
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 500000);
        CHECK(!ask_rank(r, 1, "sleep", in, 0.1));
        CHECK(failed_with(TN_EPEER, "\"sleep\" of rank 1: no answer within 0.1 seconds"));
        CHECK(tn__now() - begin < 0.45);
        tn_message *out = ask_rank(r, 1, "echo", NULL, 0); /* its late reply disturbs nothing */
        CHECK(out && tn_message_count(out) == 0);
        tn_message_free(out);
    }
    end_rank(r);
}

static void test_slow(void **state) {
    (void)state;
    run_ok(2, slow_function, NULL);
}

/* Rank 1 leaves without a word while rank 0 waits for it, and calls it again. */
static void abrupt_end(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 1) {
        usleep(200000);
        tn_rpc_free(r);
        return;
    }
    tn_message *in = tn_message_new();
    tn_message_add_int(in, 600000);
    CHECK(!ask_rank(r, 1, "sleep", in, 30) &&
          failed_with(TN_EPEER, "\"sleep\" of rank 1: rank 1 is gone"));
    CHECK(!ask_rank(r, 1, "echo", NULL, 30) && failed_with(TN_EPEER, "rank 1 is gone"));
    CHECK(tn_rpc_shutdown(r, 30) == TN_EPEER && failed_with(TN_EPEER, "rank 1 is gone"));
    tn_rpc_free(r);
}

static void test_abrupt_end(void **state) {
    (void)state;
    run_ok(2, abrupt_end, NULL);
}

static void late_rank(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 1) {
        usleep(500000);
    } else {
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER);
        CHECK(failed_with(TN_EPEER, "rank 1 has not ended within 0.1 seconds"));
    }
    tn_rpc_free(r);
}

static void test_late_end(void **state) {
    (void)state;
    run_ok(2, late_rank, NULL);
}

/* Whoever asks instead of waiting learns of the deadline as well. */
static void test_done_when_late(void **state) {
    (void)state;
    tn_rpc *r = start_rank(NULL);
    tn_message *in = tn_message_new();
    tn_message_add_int(in, 1000000);
    tn_future *f = tn_rpc_call(r, 0, "sleep", in, 0.5);
    assert_false(tn_rpc_done(f));
    usleep(600000);
    assert_true(tn_rpc_done(f));
    assert_null(tn_rpc_wait(f));
    assert_error(TN_EPEER, "no answer within 0.5 seconds");
    tn_rpc_free(r);
}

/* A rank whose time was up, while it waited for a call or for others, may try again. */
static void end_again(tn_group *world, void *user) {
    tn_rpc *r = start_rank(world);
    if (tn_rpc_rank(r) == 0) {
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 1000000);
        tn_future *f = tn_rpc_call(r, 1, "sleep", in, 0);
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER && failed_with(TN_EPEER, "still running"));
        tn_message_free(tn_rpc_wait(f));
        CHECK(tn_rpc_shutdown(r, 0.1) == TN_EPEER && failed_with(TN_EPEER, "has not ended"));
        tn_message_free(ask_rank(r, 1, "echo", NULL, 0));
    }
    tn_barrier(world);
    CHECK(tn_rpc_shutdown(r, 10) == TN_OK);
    tn_rpc_free(r);
}

static void test_end_again(void **state) {
    (void)state;
    run_ok(2, end_again, NULL);
}

static void missing_start(tn_group *world, void *user) {
    tn_rpc *r = tn_rpc_new(world, TN_WITH(tn_rpc, .timeout = 0.3));
    if (tn_rpc_rank(r) != 1) {
        CHECK(tn_rpc_start(r) == TN_EPEER && strstr(tn_error_message(), "rank 1"));
        tn_error_clear();
    }
    tn_rpc_free(r);
}

static void test_missing_start(void **state) {
    (void)state;
    run_ok(3, missing_start, NULL);
}

/* Rank 1 is killed or stopped while rank 0 waits for it. Rank 0 says how it ended. */
static int wait_for_rank_1(tn_group *world, const char *argument) {
    tn_rpc *r = start_rank(world);
    int rank = tn_rpc_rank(r);
    if (rank == 2) { /* rank 1 holds a reference, and rank 0 one that came from rank 1 */
        tn_remote *m = tn_remote_of(r, tn_ones(TN_DIMS(2), TN_F32));
        tn_message *in = tn_message_new();
        tn_message_add_remote(in, m);
        tn_message_free(ask_rank(r, 1, "echo", in, 0));
        tn_remote_free(m);
    }
    if (rank == 0) {
        double begin = tn__now();
        tn_message *in = tn_message_new();
        tn_message_add_int(in, 60000000);
        printf("waiting\n");
        fflush(stdout);
        rank_assert(!ask_rank(r, 1, "sleep", in, atof(argument)));
        printf("failed after %.3f s: %s\n", tn__now() - begin, tn_error_message());
        fflush(stdout);
        tn_error_clear();
        tn_message *out = ask_rank(r, 2, "add", NULL, 10); /* the others still work */
        rank_assert(!out && tn_error() == TN_EINDEX);
        tn_error_clear();
    } else {
        sleep(60); /* until the test kills it */
    }
    tn_rpc_free(r);
    return 0;
}

static void signal_rank_1(int signal, const char *seconds, double *took, char text[256]) {
    ranks_job job = ranks_start(3, "wait_for_rank_1", seconds, NULL);
    assert_true(ranks_await_output(&job, 0, "waiting", 60));
    usleep(200000);
    kill(job.pid[1], signal);
    bool ended = ranks_await_output(&job, 0, "failed", 60);
    for (int i = 0; i < 3; i++) {
        kill(job.pid[i], SIGKILL);
    }
    ranks_result result = ranks_wait(&job, 60);
    const char *line = strstr(result.output[0], "failed after");
    if (!ended || !line || sscanf(line, "failed after %lf s: %255[^\n]", took, text) != 2) {
        fail_msg("rank 0: %s", result.output[0]);
    }
    ranks_free(&result);
}

static void test_killed(void **state) {
    (void)state;
    double took;
    char text[256];
    signal_rank_1(SIGKILL, "50", &took, text);
    assert_contains(text, "\"sleep\" of rank 1: rank 1 is gone");
    assert_true(took < 10);
}

static void test_stopped(void **state) {
    (void)state;
    double took;
    char text[256];
    signal_rank_1(SIGSTOP, "1", &took, text);
    assert_contains(text, "\"sleep\" of rank 1: no answer within 1 seconds");
    assert_true(took < 10);
}

/* ---- Strangers ------------------------------------------------------------------------------- */

/* Dials where rank 0 listens; -1: nobody does. */
static int dial_rank_0(tn_store *store) {
    char *at = NULL, host[64], why[TN_STORE_WHY];
    int port = 0, error;
    CHECK(tn_store_get(store, "rpc/0/at/0", (void **)&at, NULL, 30) == TN_OK);
    CHECK(sscanf(at, "%63s %d", host, &port) == 2);
    struct addrinfo *where = tn__net_resolve(host, port, why);
    int fd = tn__net_connect(where, tn__now() + 10, &error);
    freeaddrinfo(where);
    free(at);
    return fd;
}

/* How many bytes come before the other side closes the connection; -1: it does not. */
static int heard_from(int fd) {
    double deadline = tn__now() + 20;
    int heard = 0;
    while (tn__now() < deadline) {
        char c;
        int error = tn__net_receive(fd, &c, 1, tn__now() + 0.1);
        if (error && error != ETIMEDOUT) {
            return heard;
        }
        heard += error == 0;
    }
    return -1;
}

/* They say: something else; that they are rank 1; a hello, a wrong proof, that they are rank 1; the
 * same without a proof; nothing. The real rank 1 comes after them. */
static void with_strangers(tn_group *world, void *user) {
    enum { STRANGERS = 5, PROOF_AT = TN__HELLO, RANK_AT = TN__HELLO + TN__DIGEST };
    static const char other[] = "GET / HTTP/1.1\r\nHost: rank 0, are you there?\r\n\r\n";
    uint8_t nonce[TN__NONCE] = {1}, frame[TN__RPC_HEAD], wrong[RANK_AT + TN__RPC_HEAD] = {0},
            none[PROOF_AT + TN__RPC_HEAD];
    snprintf(world->interface, sizeof(world->interface), "127.0.0.1"); /* listens at once */
    tn__rpc_head_write(frame, &(tn__rpc_head){.kind = TN__RPC_RANK, .number = 1});
    tn__hello_write(wrong, nonce);
    memcpy(wrong + RANK_AT, frame, sizeof(frame));
    memcpy(none, wrong, TN__HELLO);
    memcpy(none + PROOF_AT, frame, sizeof(frame));
    struct iovec says[STRANGERS] = {{(void *)(uintptr_t)other, sizeof(other) - 1},
                                    {frame, sizeof(frame)},
                                    {wrong, sizeof(wrong)},
                                    {none, sizeof(none)},
                                    {NULL, 0}};
    int fds[STRANGERS], rank = tn_group_rank(world);
    for (int i = 0; rank == 1 && i < STRANGERS; i++) {
        fds[i] = dial_rank_0(world->store);
        CHECK(fds[i] >= 0 && tn__net_send(fds[i], &says[i], 1, tn__now() + 10) == 0);
    }
    tn_rpc *r = start_rank(world);
    for (int i = 0; rank == 1 && i < STRANGERS; i++) {
        int heard = heard_from(fds[i]);
        CHECK(heard == 0 || ((i == 2 || i == 3) && heard == TN__GREETING));
        close(fds[i]);
    }
    send_values(r, 1 - rank);
    CHECK(rank == 0 || dial_rank_0(world->store) < 0); /* nobody listens any more */
    end_rank(r);
}

static void test_strangers(void **state) {
    (void)state;
    run_ok(2, with_strangers, NULL);
}

/* ---- Frames ---------------------------------------------------------------------------------- */

static void test_malformed_heads(void **state) {
    (void)state;
    static const tn__rpc_head right[] = {
        {.kind = TN__RPC_RANK, .number = 3},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .values = 2, .bytes = 36},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .bytes = 5},
        {.kind = TN__RPC_REPLY, .number = 1, .values = 1, .references = 1, .bytes = 16},
        {.kind = TN__RPC_LET_GO, .number = 7},
    };
    static const tn__rpc_head wrong[] = {
        {.kind = 0},
        {.kind = TN__RPC_KINDS},
        {.kind = TN__RPC_CALL, .number = 1, .bytes = 4},
        {.kind = TN__RPC_CALL, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 256, .bytes = 256},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .values = 3, .bytes = 36},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .status = TN_EPEER},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .flags = 2},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .references = 1},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EMISMATCH + 1},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .values = 1, .bytes = 16},
        {.kind = TN__RPC_REPLY},
        {.kind = TN__RPC_LET_GO, .number = 7, .bytes = 1},
    };
    uint8_t bytes[TN__RPC_HEAD];
    tn__rpc_head h;
    for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++) {
        tn__rpc_head_write(bytes, &right[i]);
        assert_true(tn__rpc_head_read(bytes, &h));
        assert_int_equal(h.number, right[i].number);
        bytes[3] = 1;
        assert_false(tn__rpc_head_read(bytes, &h));
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        tn__rpc_head_write(bytes, &wrong[i]);
        assert_false(tn__rpc_head_read(bytes, &h));
    }
}

/* ---- All ------------------------------------------------------------------------------------- */

static const rank_entry bodies[] = {{"wait_for_rank_1", wait_for_rank_1}};

int main(int argc, char **argv) {
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(bodies[0]));
    const struct CMUnitTest tests[] = {
        TEST(test_values),         TEST(test_alone),
        TEST(test_errors),         TEST(test_limits),
        TEST(test_many_calls),     TEST(test_many_futures),
        TEST(test_back_and_forth), TEST(test_too_deep),
        TEST(test_slow),           TEST(test_abrupt_end),
        TEST(test_late_end),       TEST(test_missing_start),
        TEST(test_killed),         TEST(test_stopped),
        TEST(test_strangers),      TEST(test_malformed_heads),
        TEST(test_done_when_late), TEST(test_end_again),
        TEST(test_fork),           TEST(test_no_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
