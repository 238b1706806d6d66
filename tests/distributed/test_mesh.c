/* Meshes, on groups of threads: their groups, and errors for wrong arguments. */
#include "distributed/group/group.h"

#include <tern/tern.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/fail_malloc.h" /* not in the thread sanitizer's list, therefore */
#include "tests/support/test.h"

#include "rank_check.h"

typedef struct shape {
    int n;
    int sizes[TN_MESH_DIMS];
} shape;

static const char *const names[] = {"pp", "dp", "cp", "tp", "ep"};

/* Along each dimension: the sum of world ranks is the one computed from the coordinates. */
static void sum_along_lines(tn_group *g, void *user) {
    const shape *s = user;
    int me = tn_group_rank(g), step = tn_group_size(g), rebuilt = 0;
    tn_mesh *m = tn_mesh_new(g, s->n, s->sizes, names);
    CHECK(m);
    for (int d = 0; d < s->n; d++) {
        TN_SCOPE;
        int size = s->sizes[d];
        step /= size;
        tn_group *line = tn_mesh_group(m, names[d]);
        int place = tn_mesh_rank(m, names[d]);
        rebuilt += place * step;
        CHECK(tn_group_size(line) == size && tn_group_rank(line) == place);
        tn_tensor *sum = tn_full(TN_DIMS(1), me, TN_F32);
        CHECK(tn_work_wait(tn_all_reduce(line, sum, TN_SUM), 0) == TN_OK);
        int first = me - place * step;
        CHECK((int)tn_item(sum) == size * first + step * size * (size - 1) / 2);
        for (int i = 0; i < size; i++) {
            CHECK(tn_group_world_rank(line, i) == first + i * step);
        }
    }
    CHECK(rebuilt == me);
    tn_mesh_free(m);
}

PLAIN_TEST(test_lines) {
    shape shapes[] = {{1, {1}},       {1, {3}},          {2, {2, 3}},    {2, {3, 2}},
                      {3, {2, 1, 2}}, {4, {1, 2, 1, 2}}, {3, {2, 2, 2}}, {5, {1, 2, 1, 2, 2}}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        int ranks = 1;
        for (int d = 0; d < shapes[i].n; d++) {
            ranks *= shapes[i].sizes[d];
        }
        run_ok(ranks, sum_along_lines, &shapes[i]);
    }
    sum_along_lines(NULL, &(shape){2, {1, 1}}); /* one rank */
    assert_int_equal(failures, 0);
}

/* A product of dimensions, named in any order, is one group: the ranks that differ in these
 * dimensions only, in the parent's order. The product of all dimensions has the parent's ranks. */
RANKS_TEST(test_products, 8) {
    static const int sizes[] = {2, 2, 2};
    static const char *const called[] = {"replicate", "shard", "tp"};
    tn_mesh *m = tn_mesh_new(world, 3, sizes, called);
    int me = tn_group_rank(world), tp = me % 2, replicate = me / 4;
    CHECK(m && world->sequence == 3); /* one exchange per dimension, not one per line */
    tn_group *data = tn_mesh_group(m, "replicate shard"), *outer = tn_mesh_group(m, "tp replicate");
    CHECK(tn_group_size(data) == 4 && tn_group_rank(data) == me / 2);
    CHECK(tn_group_size(outer) == 4 && tn_group_rank(outer) == 2 * replicate + tp);
    for (int r = 0; r < 4; r++) {
        CHECK(tn_group_world_rank(data, r) == 2 * r + tp);
        CHECK(tn_group_world_rank(outer, r) == 4 * (r / 2) + me % 4 / 2 * 2 + r % 2);
    }
    CHECK(tn_mesh_group(m, "shard replicate") == data && world->sequence == 5);
    CHECK(tn_mesh_rank(m, "shard replicate") == tn_group_rank(data));
    CHECK(tn_mesh_rank(m, "replicate tp") == tn_group_rank(outer));
    CHECK(tn_group_rank(tn_mesh_group(m, "tp shard replicate")) == me);
    CHECK(tn_barrier(data) == TN_OK && tn_barrier(outer) == TN_OK);
    tn_mesh_free(m);
}

static void expect_refused(int n, const int *sizes, const char *const *given, const char *text) {
    assert_none(tn_mesh_new(NULL, n, sizes, given), TN_EVALUE, text);
}

PLAIN_TEST(test_mistakes) {
    static const char *const twins[] = {"dp", "dp"}, *const none[] = {"", NULL};
    static const char *const spaced[] = {"dp tp"};
    const int ones[] = {1, 1, 1, 1, 1, 1}, two[] = {1, 2};
    expect_refused(0, ones, names, "0 dimensions");
    expect_refused(6, ones, names, "6 dimensions");
    expect_refused(1, ones, spaced, "\"dp tp\" (1 to 31 bytes, no space)");
    expect_refused(1, NULL, names, "1 dimensions");
    expect_refused(1, ones, NULL, "1 dimensions");
    expect_refused(2, ones, twins, "both called dp");
    expect_refused(1, ones, none, "\"\"");
    expect_refused(1, ones, none + 1, "(NULL)");
    expect_refused(2, two, names, "dp has size 2, but there are 1 ranks");
}

PLAIN_TEST(test_names) {
    const int ones[] = {1, 1};
    tn_mesh *m = tn_mesh_new(NULL, 2, ones, names);
    assert_non_null(m);
    assert_int_equal(tn_mesh_rank(m, "dp"), 0);
    assert_int_equal(tn_mesh_rank(m, "tp"), -1);
    assert_contains(tn_error_message(), "\"tp\"; there are pp dp");
    tn_error_clear();
    assert_none(tn_mesh_group(m, "cp"), TN_EVALUE, "");
    assert_none(tn_mesh_group(m, "pp pp"), TN_EVALUE, "the dimension pp is named twice");
    assert_none(tn_mesh_group(m, "pp "), TN_EVALUE, "no dimension is called \"\"");
    assert_null(tn_mesh_group(m, "pp dp")); /* like every group of a mesh of one rank */
    assert_int_equal(tn_mesh_rank(m, "pp dp"), 0);
    assert_int_equal(tn_error(), TN_OK);
    assert_none(tn_mesh_group(NULL, "dp"), TN_EVALUE, "");
    assert_int_equal(tn_mesh_rank(m, NULL), -1);
    tn_error_clear();
    tn_mesh_free(m);
    tn_mesh_free(NULL);
}

RANKS_TEST_FAILS(test_wrong_product, 3, TN_EVALUE, "multiply to 4, but there are 3 ranks") {
    const int sizes[] = {2, 2};
    CHECK(tn_mesh_new(world, 2, sizes, names) == NULL);
}

/* An allocation of rank 1 fails before the others can have its list. They learn of it at once. */
static void makes_short(tn_group *g, void *user) {
    bool fails = tn_group_rank(g) == 1;
    if (fails) { fail_malloc_at(*(long *)user, 1); }
    tn_group *child = tn_group_new(g, (int[]){0, 1}, 2);
    CHECK(!fails || fail_malloc_end());
    CHECK(!child && tn_error() == TN_ENOMEM);
    CHECK(strstr(tn_error_message(), "no memory for"));
    CHECK(fails || strstr(tn_error_message(), "group_new: rank 1: "));
    tn_error_clear();
    child = tn_group_new(g, (int[]){0, 1}, 2);
    CHECK(child && (tn_group_rank(child) < 0 || tn_barrier(child) == TN_OK));
    tn_group_free(child);
}

PLAIN_TEST(test_subgroup_without_memory) {
    for (long at = 0; at < 4; at++) { /* the ranks, the child's store, the list as text */
        run_ok(3, makes_short, &at);
    }
}
