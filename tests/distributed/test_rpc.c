/* Calls between ranks: values, errors, limits, many at once, back and forth, and strangers. Ranks
 * are threads. */
#define _GNU_SOURCE
#include "distributed/group/group.h"
#include "distributed/store/net.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "rpc_check.h"

/* ---- Values ---------------------------------------------------------------------------------- */

/* Tensors of each dtype, eight at a time; one of no dimensions, one without elements, one that is
 * not contiguous. */
static tn_values some_tensors(int set) {
    tn_values v = {0};
    for (int d = 8 * set; d < TN_DTYPES && v.n < TN_MAX_VALUES; d++) {
        v.v[v.n++] = tn_cast(tn_arange(0, 6, 1, TN_F32), (tn_dtype)d);
    }
    if (v.n == 0) {
        tn_tensor *x = tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_DIMS(2, 3));
        v = TN_VALUES(tn_scalar(7, TN_F64), tn_ones(TN_DIMS(0, 3), TN_F32), tn_transpose(x, 0, 1));
    }
    return v;
}

static bool same_tensor(tn_tensor *a, tn_tensor *b) {
    char x[64], y[64];
    return tn_dtype_of(a) == tn_dtype_of(b) && tn_dims_equal(tn_shape(a), tn_shape(b)) &&
           tn_copy_out(a, x) == TN_OK && tn_copy_out(b, y) == TN_OK &&
           memcmp(x, y, (size_t)tn_count(a) * tn_dtype_size(tn_dtype_of(a))) == 0;
}

static void send_values(tn_rpc *r, int to) {
    TN_SCOPE;
    for (int set = 0; set <= (TN_DTYPES + 7) / 8; set++) {
        tn_values in = some_tensors(set), out = ask_rank(r, to, "echo", in, 0);
        CHECK(out.n == in.n);
        for (int i = 0; i < in.n && i < out.n; i++) {
            CHECK(same_tensor(in.v[i], out.v[i]));
        }
    }
    CHECK(ask_rank(r, to, "echo", nothing, 0).n == 0);
}

RANKS_TEST(test_values, 3, 1) {
    tn_rpc *r = start_rank(world);
    for (int to = 0; to < tn_group_size(world); to++) {
        send_values(r, to); /* to itself too */
    }
    end_rank(world, r);
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
TEST(test_no_threads) {
    const size_t too_large = (size_t)1 << 50;
    size_t before = resize_stacks(too_large);
    tn_rpc *none = tn_rpc_new(NULL, tn_rpc_defaults());
    tn_rpc_start(none);
    resize_stacks(before);
    assert_error(TN_ENOMEM, "thread");
    assert_true(is_lost(ask_rank(none, 0, "echo", nothing, 0)));
    assert_error(TN_EPEER, "tn_rpc_start has failed");
    tn_rpc_free(none);
    tn_rpc *r = start_rank(NULL);
    resize_stacks(too_large);
    tn_future *f[3];
    for (int i = 0; i < 3; i++) {
        f[i] = tn_rpc_call(r, 0, "echo", nothing, 20);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tn_rpc_wait(f[i]).n, 0);
    }
    resize_stacks(before);
    assert_int_equal(tn_rpc_shutdown(r, 5), TN_OK);
    tn_rpc_free(r);
}

/* ---- Errors ---------------------------------------------------------------------------------- */

static void all_errors(tn_group *world, void *user) {
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    if (tn_group_rank(world) == 0) {
        CHECK(is_lost(ask_rank(r, 1, "fail", number_of(12), 0)));
        CHECK(failed_with(TN_EINDEX, "\"fail\" of rank 1: "));
        CHECK(is_lost(ask_rank(r, 1, "nothing", nothing, 0)));
        CHECK(failed_with(TN_EVALUE, "there is no function \"nothing\""));
        CHECK(is_lost(ask_rank(r, 2, "echo", nothing, 0)));
        CHECK(failed_with(TN_EVALUE, "rank 2 (there are 2)"));
        CHECK(is_lost(ask_rank(r, -1, "echo", nothing, 0)) && failed_with(TN_EVALUE, "rank -1"));
        CHECK(is_lost(ask_rank(r, 1, "", nothing, 0)) && failed_with(TN_EVALUE, "the name"));
        CHECK(is_lost(ask_rank(r, 1, "echo", nothing, -1)));
        CHECK(failed_with(TN_EVALUE, "time-out of -1"));
        CHECK(is_lost(ask_rank(r, 1, "echo", (tn_values){.n = 9}, 0)));
        CHECK(failed_with(TN_EVALUE, "\"echo\" of rank 1: 9 tensors (0 to 8)"));
        CHECK(is_lost(ask_rank(r, 1, "echo", (tn_values){.n = 1}, 0)));
        CHECK(failed_with(TN_EVALUE, "NULL"));
        CHECK(tn_rpc_register(r, "echo", echo_values, NULL) == TN_ESTATE);
        CHECK(failed_with(TN_ESTATE, "\"echo\" is registered already"));
        CHECK(tn_rpc_start(r) == TN_ESTATE && failed_with(TN_ESTATE, "called before"));
        /* An error that is pending already ends the wait, and the call is forgotten. */
        tn_future *f = tn_rpc_call(r, 1, "echo", nothing, 0);
        tn_raise(TN_EVALUE, "the first");
        CHECK(is_lost(tn_rpc_wait(f)) && failed_with(TN_EVALUE, "the first"));
    }
    end_rank(world, r);
}

TEST(test_errors) {
    run_ok(2, all_errors, NULL);
    tn_rpc *r = tn_rpc_new(NULL, tn_rpc_defaults());
    assert_none(tn_rpc_call(r, 0, "echo", nothing, 0), TN_ESTATE, "tn_rpc_start was not called");
    assert_fails(tn_rpc_shutdown(r, 0), TN_ESTATE, "tn_rpc_start was not called");
    tn_rpc_free(r);
    assert_none(tn_rpc_new(NULL, TN_WITH(tn_rpc, .threads = 8, .threads_most = 4)), TN_EVALUE,
                "rpc_new: threads_most is 4 (it must be 8 to ");
    assert_none(tn_rpc_new(NULL, TN_WITH(tn_rpc, .timeout = 0)), TN_EVALUE, "time-out is 0");
    assert_none(tn_rpc_new(NULL, TN_WITH(tn_rpc, .message_limit = 1)), TN_EVALUE,
                "message_limit is 1");
    assert_none(tn_rpc_new(NULL, TN_WITH(tn_rpc, .backlog_limit = 0)), TN_EVALUE,
                "backlog_limit is 0");
}

/* In a child of fork an rpc is its parent's, whose calls still work. */
TEST(test_fork) {
    tn_rpc *r = start_rank(NULL);
    tn_future *f = tn_rpc_call(r, 0, "echo", nothing, 0);
    pid_t child = fork();
    if (child == 0) {
        bool fine = !tn_rpc_call(r, 0, "echo", nothing, 0) && tn_error() == TN_ESTATE;
        tn_error_clear();
        fine = fine && is_lost(tn_rpc_wait(f)) && tn_error() == TN_ESTATE;
        tn_rpc_free(r);
        _exit(fine ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    tn_rpc_wait(f);
    assert_int_equal(tn_rpc_shutdown(r, 5), TN_OK);
    tn_rpc_free(r);
}

/* ---- Limits ---------------------------------------------------------------------------------- */

/* Rank 1 takes less than rank 0 sends, and rank 0 less than "grow" gives. */
static tn_values grow_here(tn_values in, void *user) {
    return (tn_values){1, {tn_zeros(TN_DIMS(first_of(in)), TN_U8)}};
}

static void too_large(tn_group *world, void *user) {
    int rank = tn_group_rank(world);
    tn_rpc *r =
        start_with(world, TN_WITH(tn_rpc, .message_limit = rank == 0 ? 100000 : rank * 50000),
                   FUNCTIONS({"grow", grow_here, NULL}));
    for (int again = 0; rank == 0 && again < 2; again++) {
        TN_SCOPE;
        tn_values large = {1, {tn_zeros(TN_DIMS(200000), TN_U8)}};
        tn_values fair = {1, {tn_zeros(TN_DIMS(60000), TN_U8)}};
        CHECK(is_lost(ask_rank(r, 1, "echo", large, 0)));
        CHECK(failed_with(TN_EVALUE, "(message_limit: 100000)"));
        CHECK(is_lost(ask_rank(r, 1, "echo", fair, 0)));
        CHECK(failed_with(TN_EVALUE, "\"echo\" of rank 1: "));
        CHECK(is_lost(ask_rank(r, 1, "grow", number_of(120000), 0))); /* more than rank 1 sends */
        CHECK(failed_with(TN_EVALUE, "the result for rank 0"));
        CHECK(is_lost(ask_rank(r, 3, "grow", number_of(120000), 0))); /* more than rank 0 takes */
        CHECK(failed_with(TN_EVALUE, "\"grow\" of rank 3: the result has 1200"));
        tn_values small = {1, {tn_zeros(TN_DIMS(1000), TN_U8)}};
        tn_values out = ask_rank(r, 1, "echo", small, 0);
        CHECK(tn_count(out.v[0]) == 1000); /* and the connection still works */
    }
    end_rank(world, r);
}

TEST(test_limits) {
    run_ok(4, too_large, NULL);
}

/* ---- Many ------------------------------------------------------------------------------------ */

enum { CALLERS = 16, CALLS = 200, LARGE = 3000, LIMIT = 5000 }; /* bytes; two calls reach it */

typedef struct crowd {
    tn_rpc *rpc;
    int number, ranks;
    int64_t sum;
} crowd;

/* However many threads call, no more than the limit and one call are unanswered. */
static void *call_often(void *user) {
    crowd *c = user;
    for (int i = 0; i < CALLS; i++) {
        TN_SCOPE;
        int to = (c->number + i) % c->ranks;
        tn_values in = TN_VALUES(tn_scalar(i, TN_I64), tn_scalar(c->number, TN_I64),
                                 tn_zeros(TN_DIMS(LARGE), TN_U8));
        tn_future *f = tn_rpc_call(c->rpc, to, "add", in, 0);
        pthread_mutex_lock(&c->rpc->lock);
        CHECK(c->rpc->peers[to].unanswered < LIMIT + LARGE + 200);
        pthread_mutex_unlock(&c->rpc->lock);
        c->sum += first_of(tn_rpc_wait(f));
    }
    CHECK(tn_error() == TN_OK);
    tn_error_clear();
    return NULL;
}

/* Each rank's threads call all ranks at once. */
RANKS_TEST(test_many_calls, 2) {
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .backlog_limit = LIMIT), NULL);
    pthread_t threads[CALLERS];
    crowd crowds[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        crowds[i] = (crowd){r, i, tn_group_size(world), 0};
        CHECK(pthread_create(&threads[i], NULL, call_often, &crowds[i]) == 0);
    }
    for (int64_t i = 0; i < CALLERS; i++) {
        pthread_join(threads[i], NULL);
        int64_t n = CALLS;
        CHECK(crowds[i].sum == n * (n - 1) / 2 + n * i + n * tn_group_rank(world));
    }
    CHECK(r->peers[0].unanswered == 0 && r->peers[1].unanswered == 0);
    end_rank(world, r);
}

/* Many under way in one thread, and large ones among them; waited for in reverse. */
RANKS_TEST(test_many_futures, 2) {
    enum { N = 200 };
    TN_SCOPE;
    tn_rpc *r = start_rank(world);
    tn_future *f[N];
    int other = 1 - tn_group_rank(world);
    for (int i = 0; i < N; i++) {
        tn_values in = {1, {tn_full(TN_DIMS(i % 20 ? 3 : 1 << 20), i, TN_F32)}};
        f[i] = tn_rpc_call(r, other, "echo", in, 0);
    }
    for (int i = N - 1; i >= 0; i--) {
        CHECK(tn_at(tn_rpc_wait(f[i]).v[0], TN_DIMS(2)) == i);
    }
    end_rank(world, r);
}

/* With one thread for functions, 2 * DEPTH of them wait for each other. */
RANKS_TEST(test_back_and_forth, 2) {
    enum { DEPTH = 60 };
    TN_SCOPE;
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1), NULL);
    int other = 1 - tn_group_rank(world);
    CHECK(first_of(ask_rank(r, other, "count_down", number_of(DEPTH), 0)) == DEPTH + 1);
    end_rank(world, r);
}

/* Too deep for the threads: an error at the deadline, and no hang. The calls inside have no later
 * deadline than the first, so afterwards the threads are free. */
RANKS_TEST(test_too_deep, 2) {
    TN_SCOPE;
    tn_rpc *r = start_with(world, TN_WITH(tn_rpc, .threads = 1, .threads_most = 4), NULL);
    if (tn_group_rank(world) == 0) {
        CHECK(is_lost(ask_rank(r, 1, "count_down", number_of(100), 1)) &&
              failed_with(TN_EPEER, ""));
        CHECK(ask_rank(r, 1, "echo", nothing, 30).n == 0);
    }
    end_rank(world, r);
}

/* ---- Strangers ------------------------------------------------------------------------------- */

/* Dials where rank 0 listens; -1: nobody does. */
static int dial_rank_0(tn_store *store) {
    char *at = NULL, host[64];
    const char *unknown;
    int port = 0, error;
    CHECK(tn_store_get(store, "rpc/0/at/0", (void **)&at, NULL, 30) == TN_OK);
    CHECK(sscanf(at, "%63s %d", host, &port) == 2);
    struct addrinfo *where = tn__net_resolve(host, port, &unknown);
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
        if (error && error != ETIMEDOUT) { return heard; }
        heard += error == 0;
    }
    return -1;
}

/* They say: something else; that they are rank 1; a hello, a wrong proof, that they are rank 1; the
 * same without a proof; nothing. The real rank 1 comes after them. */
RANKS_TEST(test_strangers, 2) {
    enum { STRANGERS = 5, RANK = 8, PROOF_AT = TN__HELLO, RANK_AT = TN__HELLO + TN__DIGEST };
    static const char other[] = "GET / HTTP/1.1\r\nHost: rank 0, are you there?\r\n\r\n";
    uint8_t nonce[TN__NONCE] = {1}, rank_1[RANK] = {1}, wrong[RANK_AT + RANK] = {0},
            none[PROOF_AT + RANK];
    snprintf(world->interface, sizeof(world->interface), "127.0.0.1"); /* listens at once */
    tn__hello_write(wrong, nonce);
    memcpy(wrong + RANK_AT, rank_1, sizeof(rank_1));
    memcpy(none, wrong, TN__HELLO);
    memcpy(none + PROOF_AT, rank_1, sizeof(rank_1));
    struct iovec says[STRANGERS] = {{(void *)(uintptr_t)other, sizeof(other) - 1},
                                    {rank_1, sizeof(rank_1)},
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
    end_rank(world, r);
}

/* ---- All ------------------------------------------------------------------------------------- */
