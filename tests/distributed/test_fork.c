/* fork: in the child, using the parent's groups and stores is an error at once, and nothing that
 * the child does reaches the parent or the other ranks. */
#include "core/allocator.h"
#include "tern/tern.h"

#include "tests/support/gloo.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../support/fork.h"
#include "../support/ranks.h"
#include "../support/temp.h"

static const char belongs[] = "belongs to the parent of this process (fork)";

/* ---- A rank that forks ----------------------------------------------------------------------- */

enum { CELLS = 1000 };

typedef struct rank_of {
    tn_group *world;
    tn_tensor *flat, *shared; /* CELLS each; shared: by tn_group_empty */
    tn_work *work;            /* under way at the fork */
    tn_linear *line;          /* with DDP */
} rank_of;

static void refused_operations(rank_of *r) {
    child_assert(tn_all_reduce(r->world, r->flat, TN_SUM) == NULL);
    child_error(TN_ESTATE, "all_reduce: group world belongs to the parent of this process (fork)");
    child_assert(tn_barrier(r->world) == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_monitored_barrier(r->world, 1) == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_group_new(r->world, (int[]){0}, 1) == NULL);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_is_inert(tn_group_empty(r->world, TN_DIMS(3), TN_F32)));
    child_error(TN_ESTATE, belongs);
    tn_group_set_timeout(r->world, 5);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_work_done(r->work));
    child_assert(tn_work_wait(r->work, 0) == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_dist_init(tn_dist_defaults()) == NULL);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_dist_save(r->world, NULL, "") == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
}

static void refused_store(void) {
    void *data;
    child_assert(tn_store_get(tn_dist_store(), "nobody's", &data, NULL, 60) == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_store_set(tn_dist_store(), "after", "wrong", 5) == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
    child_assert(tn_prefix_store(tn_dist_store(), "deep") == NULL);
    child_error(TN_ESTATE, belongs);
}

/* Gradients are views of buckets in shared memory. */
static void refused_backward(rank_of *r) {
    TN_SCOPE;
    tn_backward(tn_sum_all(tn_call(r->line, tn_full(TN_DIMS(2, 3), 5, TN_F32))));
    child_error(TN_ESTATE, belongs);
}

static void sum_ranks(tn_group *world, void *user) {
    double sum = tn_group_mean(world, tn_group_rank(world), 1) * tn_group_size(world);
    *(bool *)user = sum == 1 && tn_error() == TN_OK;
}

/* A child can make groups of its own. */
static void own_group(void) {
    bool right = !CHILD_HAS_THREADS;
    if (CHILD_HAS_THREADS) { tn_local_run(2, sum_ranks, &right); }
    child_assert(tn_error() == TN_OK && right);
}

static void keeps_writes(void *user) {
    float *shared = tn_data_mut(((rank_of *)user)->shared);
    child_assert(shared[0] == 3 && shared[1] == 3);
}

static void write_memory(rank_of *r) {
    float *shared = tn_data_mut(r->shared);
    for (int i = 0; i < CELLS; i++) {
        child_assert(shared[i] == 1);
        shared[i] = 3;
    }
    child_assert(child_passes(keeps_writes, r)); /* inherited by its own child */
    tn_release(r->shared);
}

/* With an error pending, tn_dist_finish in the parent would end the group on all ranks. */
static void ends_badly(void) {
    tn_raise(TN_EVALUE, "a mistake of the child");
    tn_group_abort(tn_world(), "the child gives up");
    tn_barrier(tn_world());
    tn_dist_finish();
    child_assert(tn_world() == NULL);
    child_error(TN_EVALUE, "a mistake of the child");
}

static void do_all(void *user) {
    rank_of *r = user;
    refused_operations(r);
    refused_store();
    refused_backward(r);
    own_group();
    write_memory(r);
    ends_badly();
}

static bool all_are(tn_tensor *t, float value) {
    const float *x = tn_data(t);
    for (int i = 0; i < CELLS; i++) {
        if (x[i] != value) { return false; }
    }
    return true;
}

/* A gradient of the line is the mean of rank + 1 over the ranks. */
static void rank_trains(rank_of *r) {
    TN_SCOPE;
    int me = tn_group_rank(r->world), ranks = tn_group_size(r->world);
    tn_zero_grad(r->line->weight);
    tn_backward(tn_sum_all(tn_call(r->line, tn_full(TN_DIMS(1, 3), me + 1, TN_F32))));
    const float *gradient = tn_data(tn_grad_of(r->line->weight));
    rank_assert(tn_error() == TN_OK && fabsf(gradient[0] - (float)(ranks + 1) / 2) < 1e-6f);
}

RANK(rank_forks) {
    TN_SCOPE;
    tn_linear line;
    tn_linear_init(&line, 3, 1, tn_linear_defaults());
    tn_ddp(&line, world, tn_ddp_defaults());
    rank_of r = {.world = world,
                 .line = &line,
                 .flat = tn_full(TN_DIMS(CELLS), 1, TN_F32),
                 .shared = tn_keep(tn_group_empty(world, TN_DIMS(CELLS), TN_F32))};
    rank_trains(&r); /* now there are buckets */
    tn_fill_(r.shared, 1);
    int me = tn_group_rank(world), ranks = tn_group_size(world);
    void *data = NULL;
    if (me == 0) { /* the others join only after the child has ended: the operation is under way */
        r.work = tn_all_reduce(world, r.flat, TN_SUM);
        for (int i = 0; i < 3; i++) {
            rank_assert(child_passes(do_all, &r));
        }
        rank_assert(tn_store_set(tn_dist_store(), "after", "right", 5) == TN_OK);
    } else {
        rank_assert(tn_store_get(tn_dist_store(), "after", &data, NULL, 120) == TN_OK);
        rank_assert(strcmp(data, "right") == 0);
        free(data);
        r.work = tn_all_reduce(world, r.flat, TN_SUM);
    }
    rank_assert(tn_work_wait(r.work, 0) == TN_OK);
    rank_assert(all_are(r.flat, (float)ranks) && all_are(r.shared, 1));
    rank_assert(tn_work_wait(tn_all_reduce(world, r.shared, TN_SUM), 0) == TN_OK);
    rank_assert(all_are(r.shared, (float)ranks));
    rank_trains(&r);
    rank_assert(tn_barrier(world) == TN_OK);
    tn_release(r.shared);
    tn_module_finish(&line);
    return 0;
}

static void pass_as(const char *const *environment) {
    ranks_result result = ranks_run(2, "rank_forks", "", environment, 240);
    bool fine = ranks_ok(&result);
    ranks_free(&result);
    assert_true(fine);
}

TEST(test_shm) {
    pass_as(NULL);
}

TEST(test_gloo) {
    if (!gloo_is_here()) { skip(); }
    pass_as((const char *const[]){"0:TERN_HOST=one", "1:TERN_HOST=two", NULL});
}

/* ---- Stores ---------------------------------------------------------------------------------- */

static void store_refuses(void *user) {
    tn_store *s = user;
    void *data = NULL;
    int64_t sum;
    child_assert(tn_store_get(s, "key", &data, NULL, 60) == TN_ESTATE && !data);
    child_error(TN_ESTATE, "store_get: the store belongs to the parent of this process (fork)");
    child_assert(tn_store_add(s, "count", 1, &sum) == TN_ESTATE);
    child_error(TN_ESTATE, belongs);
    tn_store_free(s);
}

static void store_works(tn_store *s) {
    char *data = NULL;
    int64_t sum = 0;
    assert_int_equal(tn_store_get(s, "key", (void **)&data, NULL, 30), TN_OK);
    assert_string_equal(data, "value");
    free(data);
    assert_int_equal(tn_store_add(s, "count", 1, &sum), TN_OK);
}

static void outlive_children(tn_store *s) {
    assert_int_equal(tn_store_set(s, "key", "value", 5), TN_OK);
    for (int i = 0; i < 5; i++) {
        assert_child(store_refuses, s);
        store_works(s);
    }
}

TEST(test_memory_store) {
    tn_store *s = tn_memory_store(), *p = tn_prefix_store(s, "deep");
    outlive_children(s);
    outlive_children(p);
    tn_store_free(p);
    tn_store_free(s);
}

static void frees_server(void *user) {
    tn_store_server_free(user);
}

TEST(test_tcp_store) {
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, "token");
    tn_store *s = tn_tcp_store("127.0.0.1", tn_store_server_port(server), "token", 30);
    outlive_children(s);
    assert_child(frees_server, server);
    store_works(s);
    tn_store *other = tn_tcp_store("127.0.0.1", tn_store_server_port(server), "token", 30);
    store_works(other);
    tn_store_free(other);
    tn_store_free(s);
    tn_store_server_free(server);
}
