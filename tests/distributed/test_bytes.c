/* Collectives of byte strings of any length, on groups of threads. */
#include "tern/tern.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include "rank_check.h"

static size_t length_of(int rank) {
    return rank == 1 ? 0 : (size_t)rank * 5000 + 1;
}

static char byte_of(int rank, size_t i) {
    return (char)((size_t)rank * 31 + i * 7 + 1);
}

static char *own_bytes(int rank) {
    char *data = malloc(length_of(rank) + 1);
    for (size_t i = 0; i < length_of(rank); i++) {
        data[i] = byte_of(rank, i);
    }
    return data;
}

static bool are_from(const char *data, size_t bytes, int rank) {
    bool same = data && bytes == length_of(rank);
    for (size_t i = 0; same && i < bytes; i++) {
        same = data[i] == byte_of(rank, i);
    }
    return same;
}

static void broadcast_from_each(tn_group *g, void *user) {
    int me = tn_group_rank(g);
    for (int root = 0; root < tn_group_size(g); root++) {
        char *mine = own_bytes(root);
        void *data = me == root ? mine : NULL;
        size_t bytes = me == root ? length_of(root) : 99;
        CHECK(tn_broadcast_bytes(g, &data, &bytes, root) == TN_OK);
        CHECK(are_from(data, bytes, root));
        CHECK((me == root) == (data == mine));
        if (me != root) { tn_bytes_free(data); }
        free(mine);
    }
}

static void gather_all(tn_group *g, void *user) {
    void *all[8];
    size_t bytes[8];
    char *mine = own_bytes(tn_group_rank(g));
    CHECK(tn_all_gather_bytes(g, mine, length_of(tn_group_rank(g)), all, bytes) == TN_OK);
    free(mine);
    for (int r = 0; r < tn_group_size(g); r++) {
        CHECK(are_from(all[r], bytes[r], r));
        tn_bytes_free(all[r]);
    }
}

PLAIN_TEST(test_bytes) {
    for (int ranks = 1; ranks <= 4; ranks++) {
        run_ok(ranks, broadcast_from_each, NULL);
        run_ok(ranks, gather_all, NULL);
    }
    gather_all(NULL, NULL); /* one rank */
    broadcast_from_each(NULL, NULL);
    assert_int_equal(failures, 0);
}

/* A mistake on one rank fails the call on all of them. */
static void mistake_one_call(tn_group *g, void *user) {
    void *all[8] = {all};
    size_t bytes[8];
    CHECK(tn_all_gather_bytes(g, NULL, tn_group_rank(g) == 1 ? 7 : 0, all, bytes) != TN_OK);
    CHECK(all[0] == NULL);
}

/* What a broken peer could send: an impossible number of bytes. */
static void send_absurd_size(tn_group *g, void *user) {
    double number = *(const double *)user;
    TN_SCOPE;
    if (tn_group_rank(g) == 0) {
        tn_work_wait(tn_broadcast(g, tn_full(TN_DIMS(1), number, TN_I64), 0), 0);
        tn_barrier(g);
    } else {
        void *data = user;
        size_t bytes = 5;
        CHECK(tn_broadcast_bytes(g, &data, &bytes, 0) == TN_EFORMAT);
        CHECK(!data && bytes == 0);
        CHECK(strstr(tn_error_message(), "rank 0 sends"));
    }
}

PLAIN_TEST(test_mistakes) {
    double negative = -1, huge = 4611686018427387904.0;
    assert_contains(run_failing(3, mistake_one_call, NULL, TN_EVALUE), "7 bytes at NULL");
    assert_contains(run_failing(2, send_absurd_size, &negative, TN_EFORMAT),
                    "rank 0 sends -1 bytes");
    assert_contains(run_failing(2, send_absurd_size, &huge, TN_EFORMAT),
                    "rank 0 sends 4611686018427387904 bytes");
}

/* While an error is pending, these calls do nothing. */
PLAIN_TEST(test_after_an_error) {
    size_t bytes = 3;
    void *data = &bytes;
    tn_raise(TN_EIO, "before");
    assert_int_equal(tn_broadcast_bytes(NULL, &data, &bytes, 1), TN_EIO);
    assert_fails(tn_all_gather_bytes(NULL, "x", 1, &data, &bytes), TN_EIO, "");
}
