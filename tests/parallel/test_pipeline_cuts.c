/* Where a pipeline is cut by how long its parts take: around a slow part, alike on all ranks. */
#include "tests/parallel/mesh_model.h"

#include <math.h>
#include <time.h>

enum { PARTS = 8, LAYERS = 4 };

/* ---- Parts that sleep ------------------------------------------------------------------------ */

static _Thread_local int slow; /* the part, on this rank; what others take is little beside it */

static tn_tensor *sleep_for(tn_tensor *x, int ms) {
    struct timespec t = {0, ms * 1000000L};
    while (nanosleep(&t, &t) != 0) {}
    return tn_mul_scalar(x, 1);
}

#define PART(i)                                      \
    static tn_tensor *part_##i(tn_tensor *x) {       \
        return sleep_for(x, slow == (i) ? 400 : 20); \
    }
PART(0)
PART(1)
PART(2)
PART(3)
PART(4)
PART(5)
PART(6)
PART(7)

static tn_sequential *sleeping_model(void) {
    tn_tensor *(*const parts[PARTS])(tn_tensor *) = {part_0, part_1, part_2, part_3,
                                                     part_4, part_5, part_6, part_7};
    tn_sequential *m = tn_sequential_new();
    for (int i = 0; i < PARTS; i++) {
        tn_sequential_add(m, TN_SEQUENTIAL(tn_linear_new(4, 4), TN_FN(parts[i])));
    }
    return m;
}

static tn_tensor *square_loss(tn_tensor *out, tn_tensor *y, void *user) {
    return tn_mse(out, y, TN_MEAN);
}

/* Rank 0 is slow in part 1; user[0]: where rank 1 is. user + 1: the cuts into three. */
static void cut_by_time(tn_group *world, void *user) {
    int *run = user, cuts[2] = {0};
    slow = tn_group_rank(world) == 0 ? 1 : run[0];
    TN_SCOPE;
    tn_sequential *m = sleeping_model();
    tn_batch b = {.x = tn_ones(TN_DIMS(2, 4), TN_F32), .y = tn_zeros(TN_DIMS(2, 4), TN_F32)};
    tn_pipeline_options o = TN_WITH(tn_pipeline, .loss = square_loss);
    CHECK(tn_pipeline_cuts(m, world, b, o, 3, cuts) == TN_OK);
    CHECK(tn_group_mean(world, cuts[0], 1) == cuts[0] &&
          tn_group_mean(world, cuts[1], 1) == cuts[1]);
    if (tn_group_rank(world) == 0) {
        run[1] = cuts[0];
        run[2] = cuts[1];
    }
    tn_module_free(m);
}

TEST(test_slow_parts) {
    int same[3] = {1}; /* 20 | 400 | 6 x 20, or somewhat more where other programs run */
    run_ok(2, cut_by_time, same);
    assert_int_equal(same[1], 1);
    assert_int_equal(same[2], 2);
    int other[3] = {6}; /* 20 + 400, and perhaps more; … | 400 + 20 */
    run_ok(2, cut_by_time, other);
    assert_in_range(other[1], 2, 6);
}

/* ---- A language model ------------------------------------------------------------------------ */

/* What is drawn and trained afterwards is as without. */
static void cut_language_model(tn_group *world, void *user) {
    mesh_shape shape = mesh_shape_of(*(int *)user);
    shape.layers = LAYERS;
    mesh_model m;
    mesh_init(&m, &shape, 1, false);
    tn_batch b = {.x = mesh_tokens(shape.vocab, 2, 1), .y = mesh_tokens(shape.vocab, 2, 2)};
    tn_generator before = *tn_default_generator();
    double loss = tn_item(tn_lm_loss(&m, b.x, b.y));
    *tn_default_generator() = before;
    int cuts[1] = {0};
    CHECK(tn_pipeline_cuts(&m, world, b, tn_pipeline_defaults(), 2, cuts) == TN_OK);
    CHECK(cuts[0] > 0 && cuts[0] < LAYERS + 2);
    CHECK(memcmp(&before, tn_default_generator(), sizeof(before)) == 0);
    tn_pipeline *p = tn_pipeline_new(&m, world, TN_WITH(tn_pipeline, .cuts = cuts));
    CHECK(tn_pipeline_stage(p, cuts[0]) == 1 && tn_pipeline_stage(p, cuts[0] - 1) == 0);
    CHECK(tn_pipeline_step(p, &b, 1, NULL) == loss);
    tn_module_finish(&m);
}

TEST(test_language_models) {
    for (int llama = 0; llama < 2; llama++) {
        run_ok(2, cut_language_model, &llama);
    }
}

/* Gradients are gone, and mistakes are named. */
TEST(test_mistakes) {
    mesh_shape shape = mesh_shape_of(false);
    shape.layers = LAYERS;
    mesh_model m;
    mesh_init(&m, &shape, 1, false);
    tn_batch b = {.x = mesh_tokens(shape.vocab, 2, 1), .y = mesh_tokens(shape.vocab, 2, 2)};
    int cuts[LAYERS + 1];
    tn_pipeline_options o = tn_pipeline_defaults();
    int64_t allocated = tn_memory().allocated;
    assert_int_equal(tn_pipeline_cuts(&m, NULL, b, o, LAYERS + 2, cuts), TN_OK);
    assert_int_equal(tn_memory().allocated, allocated);
    for (int i = 0; i < LAYERS + 1; i++) {
        assert_int_equal(cuts[i], i + 1);
    }
    tn_pipeline_cuts(&m, NULL, b, o, LAYERS + 3, cuts);
    assert_error(TN_EVALUE, "7 stages of 6 parts");
    tn_pipeline_cuts(&m, NULL, b, o, 2, NULL);
    assert_error(TN_EVALUE, "cuts is NULL");
    tn_pipeline_cuts(&m, NULL, (tn_batch){0}, o, 2, cuts);
    assert_error(TN_EVALUE, "x is NULL");
    tn_module_finish(&m);
}

int main(void) {
    tn_set_threads(1);
    return tests_run(NULL, NULL);
}
