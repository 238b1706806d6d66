/* Groups of threads: what every group promises, tested on the simplest engine. */
#include "distributed/group/group.h"
#include "tern/tern.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

#include "rank_check.h"

#include "../support/temp.h"

/* ---- Order and overlap ----------------------------------------------------------------------- */

/* Many works under way at once, waited for in reverse order. */
static void many_works(tn_group *g, void *user) {
    enum { N = 50 };
    TN_SCOPE;
    tn_tensor *t[N];
    tn_work *w[N];
    for (int i = 0; i < N; i++) {
        t[i] = tn_full(TN_DIMS(i), tn_group_rank(g) + i, TN_F32);
        w[i] = tn_all_reduce(g, t[i], TN_SUM);
    }
    int n = tn_group_size(g);
    for (int i = N - 1; i >= 0; i--) {
        CHECK(tn_work_wait(w[i], 0) == TN_OK);
        CHECK(i == 0 || tn_at(t[i], TN_DIMS(i - 1)) == n * (n - 1) / 2 + n * i);
    }
}

TEST(test_works_in_any_order) {
    run_ok(4, many_works, NULL);
}

static void tensor_outlives(tn_group *g, void *user) {
    tn_work *w;
    {
        TN_SCOPE;
        w = tn_all_reduce(g, tn_ones(TN_DIMS(1000), TN_F32), TN_SUM);
    }
    CHECK(tn_work_wait(w, 0) == TN_OK);
    CHECK(tn_work_done(NULL));
}

TEST(test_a_work_keeps_its_tensors) {
    run_ok(3, tensor_outlives, NULL);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void late_rank(tn_group *g, void *user) {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(4), TN_F32);
    CHECK(tn_work_wait(tn_all_reduce(g, t, TN_SUM), 0) == TN_OK);
    tn_group_set_timeout(g, 0.3); /* not earlier: the first operation may be slow */
    if (tn_group_rank(g) == 2) { usleep(900000); }
    tn_work_wait(tn_all_reduce(g, t, TN_SUM), 0);
    CHECK(tn_error() == TN_EPEER);
    if (tn_group_rank(g) != 2) {
        CHECK(strstr(tn_error_message(), "rank 2") != NULL);
        CHECK(strstr(tn_error_message(), "world") != NULL);
        CHECK(strstr(tn_error_message(), "operation 2, all_reduce f32 [4] sum") != NULL);
    }
}

TEST(test_time_out_names_the_missing_rank) {
    run_failing(3, late_rank, NULL, TN_EPEER);
    FILE *file = fopen(temp_path("tern-flight-0.txt"), "r");
    assert_non_null(file);
    static char text[1 << 20];
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    assert_contains(text, "all_reduce f32 [4] sum");
    assert_contains(text, "TN_EPEER");
}

RANKS_TEST_FAILS(test_time_out_names_the_sender, 2, TN_EPEER, "") {
    TN_SCOPE;
    CHECK(tn_barrier(world) == TN_OK);
    tn_group_set_timeout(world, 0.3);
    if (tn_group_rank(world) == 0) {
        tn_work_wait(tn_recv(world, tn_ones(TN_DIMS(4), TN_F32), 1), 0);
        CHECK(tn_error() == TN_EPEER);
        CHECK(strstr(tn_error_message(), "timed out waiting for rank 1 (") != NULL);
    }
    stay_until_told(world);
}

RANKS_TEST_FAILS(test_the_waits_own_time_out, 2, TN_EPEER, "") {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(4), TN_F32);
    if (tn_group_rank(world) == 0) {
        tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0.1);
        CHECK(tn_error() == TN_EPEER);
        CHECK(strstr(tn_error_message(), "stopped waiting") != NULL);
    } else {
        usleep(400000);
        tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0);
        CHECK(tn_error() == TN_EPEER);
    }
}

/* Rank 1 has an error of its own and calls a collective: the others get an error, and the job's
 * error is rank 1's, not one that follows from it. */
RANKS_TEST_FAILS(test_an_error_reaches_the_peers, 3, TN_ESHAPE, "add: ") {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(3), TN_F32);
    if (tn_group_rank(world) == 1) {
        tn_add(t, tn_ones(TN_DIMS(4), TN_F32));
        CHECK(tn_error() == TN_ESHAPE);
    }
    CHECK(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) != TN_OK);
    if (tn_group_rank(world) != 1) {
        CHECK(tn_error() == TN_EPEER);
        CHECK(strstr(tn_error_message(), "rank 1 gave up") != NULL);
        CHECK(strstr(tn_error_message(), "add: ") != NULL);
    }
}

RANKS_TEST_FAILS(test_a_refused_call_ends_the_peers, 2, TN_EDTYPE, "bool") {
    TN_SCOPE;
    if (tn_group_rank(world) == 0) {
        CHECK(tn_all_reduce(world, tn_ones(TN_DIMS(2), TN_BOOL), TN_SUM) == NULL);
        CHECK(tn_error() == TN_EDTYPE);
    } else {
        CHECK(tn_work_wait(tn_all_reduce(world, tn_ones(TN_DIMS(2), TN_F32), TN_SUM), 0) ==
              TN_EPEER);
    }
}

RANKS_TEST_FAILS(test_a_rank_that_left, 3, TN_EPEER, "") {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32);
    CHECK(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) == TN_OK);
    if (tn_group_rank(world) != 1) {
        CHECK(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) == TN_EPEER);
        CHECK(strstr(tn_error_message(), "rank 1 has left the group after 1 operations") != NULL);
    }
}

RANKS_TEST(test_a_dead_group_stays_dead, 2, 1) {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32);
    tn_group_abort(world, "enough");
    for (int i = 0; i < 2; i++) {
        CHECK(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) == TN_EPEER);
        CHECK(strstr(tn_error_message(), "gave up: enough") != NULL);
        CHECK(strstr(tn_error_message(), tn_group_engine(world)) != NULL);
        tn_error_clear();
    }
}

/* An error of its own leaves a group of one rank as it was: no one waits there. */
RANKS_TEST(test_one_rank_outlives_errors, 1) {
    TN_SCOPE;
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32);
    CHECK(!tn_all_reduce(world, tn_cast(t, TN_BOOL), TN_SUM) && tn_error() == TN_EDTYPE);
    CHECK(!tn_all_reduce(world, t, TN_SUM)); /* the error is pending */
    CHECK(!tn_mesh_new(world, 1, (int[]){2}, (const char *[]){"dp"}));
    tn_error_clear();
    CHECK(tn_work_wait(tn_all_reduce(world, t, TN_SUM), 0) == TN_OK);
}

/* ---- Groups that are gone -------------------------------------------------------------------- */

/* A freed group is recognised by its address alone: reading it would fail under the address
 * sanitizer. */
TEST(test_a_freed_group) {
    tn_group *g = tn__group_create("mine", NULL, NULL, 0, 1, NULL, NULL);
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32);
    tn_group_free(g);
    tn_group_free(g);
    assert_error(TN_ESTATE, "group_free: the group was freed before");
    assert_none(tn_all_reduce(g, t, TN_SUM), TN_ESTATE, "all_reduce: the group was freed before");
    assert_fails(tn_barrier(g), TN_ESTATE, "the group was freed before");
    assert_none(tn_group_new(g, (int[]){0}, 1), TN_ESTATE, "group_new: the group was freed before");
    assert_inert(tn_group_empty(g, TN_DIMS(2), TN_F32), TN_ESTATE, "the group was freed before");
    tn_group_set_timeout(g, 1);
    assert_error(TN_ESTATE, "the group was freed before");
    assert_int_equal(tn_group_size(g), 1);
    assert_error(TN_ESTATE, "group_size: the group was freed before");
    assert_int_equal(tn_group_rank(g), 0);
    assert_error(TN_ESTATE, "group_rank: the group was freed before");
    assert_int_equal(tn_group_world_rank(g, 0), -1);
    assert_error(TN_ESTATE, "group_world_rank: the group was freed before");
    assert_string_equal(tn_group_name(g), "self");
    assert_error(TN_ESTATE, "the group was freed before");
    assert_string_equal(tn_group_engine(g), "self");
    assert_error(TN_ESTATE, "the group was freed before");
    tn_group_abort(g, "no reason");
    assert_error(TN_ESTATE, "the group was freed before");
}

TEST(test_the_world_is_the_librarys) {
    tn_group *world = tn_dist_init(tn_dist_defaults());
    tn_group *part = tn_group_new(world, (int[]){0}, 1);
    tn_group_free(world);
    assert_error(TN_ESTATE, "the world belongs to the library");
    assert_ptr_equal(tn_world(), world);
    assert_int_equal(tn_barrier(tn_world()), TN_OK); /* it is still there */
    tn_dist_finish();
    assert_null(tn_world());
    tn_group_free(world);
    assert_error(TN_ESTATE, "freed before");
    assert_int_equal(tn_barrier(part), TN_OK); /* a separate group */
    tn_group_free(part);
    tn_dist_finish();
}

TEST(test_ranks_beyond_reason) {
    assert_fails(tn_local_run(1000000000, many_works, NULL), TN_EVALUE,
                 "1000000000 ranks (1 to 1024)");
}

/* ---- Subgroups and barriers ------------------------------------------------------------------ */

RANKS_TEST(test_subgroups, 4) {
    TN_SCOPE;
    int rank = tn_group_rank(world);
    tn_group *odd = tn_group_new(world, (int[]){3, 1}, 2),
             *even = tn_group_new(world, (int[]){0, 2}, 2);
    CHECK(tn_group_rank(odd) == (rank % 2 ? rank / 2 : -1));
    CHECK(tn_group_world_rank(odd, 1) == 3);
    tn_group *mine = rank % 2 ? odd : even;
    tn_tensor *t = tn_full(TN_DIMS(1), rank, TN_I64);
    CHECK(tn_work_wait(tn_all_reduce(mine, t, TN_SUM), 0) == TN_OK);
    CHECK(tn_item(t) == (rank % 2 ? 4 : 2));
    CHECK(tn_all_reduce(rank % 2 ? even : odd, t, TN_SUM) == NULL);
    CHECK(failed_with(TN_ESTATE, ""));
    tn_group_free(odd);
    tn_group_free(even);
    CHECK(tn_barrier(world) == TN_OK);
}

/* Rank 1 stays away. Rank 2, which waits for rank 3, which waits for rank 1, names rank 1; and each
 * says which ranks its group has. */
RANKS_TEST(test_waiting_in_another, 4) {
    TN_SCOPE;
    int rank = tn_group_rank(world);
    tn_mesh *mesh = tn_mesh_new(world, 2, (int[]){2, 2}, (const char *const[]){"rows", "columns"});
    tn_group *row = tn_mesh_group(mesh, "columns"), *column = tn_mesh_group(mesh, "rows");
    tn_group_set_timeout(row, 0.3);
    tn_group_set_timeout(column, 0.3);
    if (rank != 1) {
        CHECK(tn_barrier(rank == 3 ? column : row) == TN_EPEER);
        const char *says = tn_error_message();
        CHECK(strstr(says, "; no sign of world rank 1") && !strstr(says, "rank 1,"));
        CHECK(rank == 0 || strstr(says, rank == 2 ? "rank 0 of 2 (world ranks 2, 3): "
                                                  : "rank 1 of 2 (world ranks 1, 3): "));
        tn_error_clear();
    }
    stay_until_told(world);
    tn_mesh_free(mesh);
}

/* Ranks 0 and 1, 1 and 2, 2 and 3 are groups. Rank 0 gives up, and each passes on why: rank 3 hears
 * of the group where it began, and of none between. */
RANKS_TEST(test_passing_on, 4) {
    int rank = tn_group_rank(world);
    tn_group *pair = tn_group_split(world, rank / 2), *next = tn_group_split(world, (rank + 1) / 2);
    tn_group *from = rank % 2 ? pair : next, *to = rank % 2 ? next : pair;
    if (rank > 0) { CHECK(tn_barrier(from) == TN_EPEER); }
    char says[1024];
    snprintf(says, sizeof(says), "%s", rank > 0 ? tn_error_message() : "enough");
    tn_error_clear();
    tn_group_abort(to, says);
    CHECK(rank == 0 || strstr(says, "group world/0.0 (local), rank 1 of 2: "));
    CHECK(rank != 2 || strstr(says, "group world/1.1 (local), rank 1 of 2 (world ranks 1, 2): "));
    CHECK(rank != 3 || !strstr(says, "world/1.1"));
    CHECK(rank == 0 || strstr(says, "rank 0 gave up: enough"));
    CHECK(tn_barrier(world) == TN_OK);
    tn_group_free(pair);
    tn_group_free(next);
}

/* Of many members the first and the last are named. */
RANKS_TEST(test_many_members, 20) {
    int rank = tn_group_rank(world);
    tn_group *mine = tn_group_split(world, rank / 10);
    if (rank == 19) {
        tn_group_abort(mine, "enough");
    } else if (rank == 18) {
        CHECK(tn_barrier(mine) == TN_EPEER &&
              failed_with(TN_EPEER, "(world ranks 10, 11, 12, 13, 14, 15, 16, ..., 19): "));
    }
    CHECK(tn_barrier(world) == TN_OK);
    tn_group_free(mine);
}

/* Three groups and a rank in none, with one exchange; and once more, which makes new groups. */
static void split_by_colour(tn_group *g, void *user) {
    static const int colours[] = {7, -1, 7, 0, 7};
    for (int round = 0; round < 2; round++) {
        TN_SCOPE;
        int rank = tn_group_rank(g), colour = colours[rank];
        uint64_t before = g->sequence;
        tn_group *mine = tn_group_split(g, colour);
        CHECK(mine != NULL && g->sequence == before + 1);
        CHECK(tn_group_size(mine) == (colour == 7 ? 3 : colour == 0 ? 1 : 0));
        CHECK(tn_group_rank(mine) == (colour == 7 ? rank / 2 : colour));
        tn_tensor *t = tn_full(TN_DIMS(1), rank, TN_I64);
        tn_work *w = tn_all_reduce(mine, t, TN_SUM);
        CHECK(colour >= 0 || (w == NULL && tn_error() == TN_ESTATE));
        tn_error_clear();
        CHECK(tn_work_wait(w, 0) == TN_OK);
        CHECK(tn_item(t) == (colour == 7 ? 6 : rank));
        CHECK(colour != 7 || tn_group_world_rank(mine, 2) == 4);
        tn_group_free(mine);
    }
    CHECK(tn_barrier(g) == TN_OK);
}

TEST(test_split) {
    run_ok(5, split_by_colour, NULL);
    assert_none(tn_group_split(NULL, 0), TN_EVALUE, "group_split: the parent is NULL");
}

/* If a rank has an error, or makes another call meanwhile, that is an error on all. */
static void split_badly(tn_group *g, void *user) {
    TN_SCOPE;
    if (tn_group_rank(g) != 1) {
        CHECK(tn_group_split(g, 3) == NULL);
    } else if (user) {
        tn_raise(TN_EVALUE, "this rank does not like it");
        CHECK(tn_group_split(g, 3) == NULL);
    } else {
        tn_work_wait(tn_all_reduce(g, tn_ones(TN_DIMS(1), TN_I32), TN_SUM), 0);
    }
    CHECK(tn_error() != TN_OK);
    stay_until_told(g);
}

TEST(test_split_fails_on_all) {
    assert_contains(run_failing(3, split_badly, NULL, TN_EMISMATCH), "all_gather i32 [1]");
    run_failing(3, split_badly, "raise", TN_EVALUE);
}

/* All ranks learn of it at once. */
RANKS_TEST(test_subgroups_of_different_ranks, 3) {
    int rank = tn_group_rank(world);
    CHECK(tn_group_new(world, (int[]){0, rank == 2 ? 2 : 1}, 2) == NULL &&
          strstr(tn_error_message(), " 0 1") && failed_with(TN_EMISMATCH, " 0 2"));
    CHECK(tn_group_new(world, (int[]){0, rank == 1 ? 9 : 1}, 2) == NULL &&
          failed_with(TN_EINDEX, "rank 9, but group world has ranks 0 … 2"));
    CHECK(tn_group_new(world, (int[]){0, 1, 2, 9, 9}, 5) == NULL && failed_with(TN_EINDEX, ""));
    CHECK(tn_barrier(world) == TN_OK);
}

RANKS_TEST_FAILS(test_monitored_barrier_names_who_is_missing, 3, TN_EPEER, "") {
    CHECK(tn_monitored_barrier(world, 5) == TN_OK);
    if (tn_group_rank(world) != 1) {
        CHECK(tn_monitored_barrier(world, 0.2) == TN_EPEER);
        CHECK(strstr(tn_error_message(), "missing after 0.2 s: rank 1") != NULL);
        CHECK(strstr(tn_error_message(), "rank 1 2") == NULL);
    }
}

/* A rank that comes late learns that the others have given up. */
RANKS_TEST(test_late_at_a_monitored_barrier, 3) {
    if (tn_group_rank(world) == 1) { usleep(400000); }
    CHECK(tn_monitored_barrier(world, tn_group_rank(world) == 1 ? 5 : 0.1) == TN_EPEER &&
          failed_with(TN_EPEER, "rank 1"));
}

/* ---- One rank, and means --------------------------------------------------------------------- */

TEST(test_null_is_one_rank) {
    TN_SCOPE;
    tn_tensor *t = tn_full(TN_DIMS(2), 3, TN_F32), *out = tn_zeros(TN_DIMS(1, 2), TN_F32);
    assert_int_equal(tn_group_size(NULL), 1);
    assert_int_equal(tn_group_rank(NULL), 0);
    assert_int_equal(tn_work_wait(tn_all_reduce(NULL, t, TN_MEAN), 0), TN_OK);
    assert_int_equal(tn_work_wait(tn_all_gather(NULL, out, t), 0), TN_OK);
    assert_true(tn_at(out, TN_DIMS(0, 1)) == 3);
    assert_int_equal(tn_barrier(NULL), TN_OK);
    assert_int_equal(tn_monitored_barrier(NULL, 1), TN_OK);
    assert_true(tn_group_mean(NULL, 6, 4) == 1.5);
    assert_true(isnan(tn_group_mean(NULL, 6, 0)));
    tn_group_set_timeout(NULL, INFINITY);
    assert_error(TN_EVALUE, "");
    static const tn_reduction none[] = {TN_NONE, TN_ANY, TN_ALL, TN_SUM_SQUARES, (tn_reduction)99};
    for (int i = 0; i < 5; i++) {
        assert_null(tn_all_reduce(NULL, t, none[i]));
        assert_error(TN_EVALUE, "TN_SUM, TN_MEAN, TN_PRODUCT, TN_MIN");
    }
    tn_work_wait(tn_broadcast(NULL, t, 1), 0);
    assert_error(TN_EINDEX, "");
}

RANKS_TEST(test_mean_over_the_global_count, 3) {
    int rank = tn_group_rank(world);
    CHECK(tn_group_mean(world, 10.0 * rank, 1 + rank) == 30.0 / 6);
}

/* The file appears after a while, since a thread writes it. */
TEST(test_sigusr1_writes_the_recorder) {
    run_ok(2, tensor_outlives, NULL);
    tn__flight_signals(7);
    assert_int_equal(raise(SIGUSR1), 0);
    static char text[1 << 20];
    const char *path = temp_path("tern-flight-7.txt");
    for (int i = 0; i < 500 && !strstr(text, "all_reduce f32 [1000] sum"); i++) {
        usleep(10000);
        FILE *file = fopen(path, "r");
        text[file ? fread(text, 1, sizeof(text) - 1, file) : 0] = 0;
        if (file) { fclose(file); }
    }
    assert_contains(text, "asked by SIGUSR1");
    assert_contains(text, "all_reduce f32 [1000] sum");
}

TEST(test_trace) {
    const char *path = temp_path("trace.json");
    tn_flight_mark("backward", tn_flight_now() - 0.5);
    tn_flight_mark("a \"b\" \\ \n", tn_flight_now());
    assert_int_equal(tn_flight_trace(path), TN_OK);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    static char text[1 << 20];
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    assert_contains(text, "\"name\": \"backward\"");
    assert_contains(text, "\"name\": \"a \\\"b\\\" \\\\  \"");
    assert_contains(text, "\"name\": \"all_reduce f32 [49] sum\"");
    assert_int_equal(text[0], '[');
    assert_fails(tn_flight_trace("/nowhere/at/all"), TN_EIO, "");
}
