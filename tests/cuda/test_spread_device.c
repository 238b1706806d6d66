/* Meshes of ranks with devices, over the emulator: processes have the same bits as threads, and
 * every engine the same bits. */

#include "device_ranks.h"
#include "tests/parallel/mesh_train.h"
#include "tests/support/test.h"

/* The argument is "ENGINE MESH DIGEST …". */
PLAIN_RANK(train_meshes) {
    char engine[32];
    int length = 0;
    rank_assert(sscanf(argument, "%31s %n", engine, &length) == 1);
    tn_group *world = device_join(engine, 100);
    rank_assert(world != NULL);
    rank_assert(tn_default_device().kind == TN_CUDA);
    rank_assert(mesh_expected(world, argument + length));
    return device_leave();
}

static void expect_engine(const char *engine, int ranks, const char *const *meshes) {
    char argument[1100];
    snprintf(argument, sizeof(argument), "%s %s", engine,
             mesh_expectation(ranks, tn_cuda(0), meshes));
    device_pass(ranks, "train_meshes", argument, 200);
}

PLAIN_TEST(test_two_ranks) {
    expect_engine("staged", 2, meshes_of_two);
}

PLAIN_TEST(test_four_ranks) {
    expect_engine("staged", 4, meshes_of_four);
}

/* A pipeline's ranks with devices that are not the default one: models and batches are moved. */
static void train_moved(tn_group *world, void *user) {
    tn_device device = *(bool *)user ? tn_cuda(tn_group_rank(world) % 2) : tn_cpu();
    mesh_shape shape = mesh_shape_of(true);
    mesh_model m;
    mesh_init(&m, &shape, 3, false);
    CHECK(tn_module_to(&m, device) == TN_OK);
    tn_pipeline *p = tn_pipeline_new(&m, world, tn_pipeline_defaults());
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0.1));
    double loss = 0;
    for (int step = 0; step < 2; step++) {
        TN_SCOPE;
        tn_tensor *x = tn_to(mesh_tokens(shape.vocab, 2, 1), device);
        tn_batch b[2] = {{.x = x, .y = x}, {.x = x, .y = x}};
        loss = tn_pipeline_step(p, b, 2, NULL);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
    }
    static double expected;
    if (device.kind == TN_CPU) { expected = loss; }
    CHECK(fabs(loss - expected) < 1e-5);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

PLAIN_TEST(test_moved_stages) {
    tn_device before = tn_default_device();
    tn_set_default_device(tn_cpu());
    run_ok(1, train_moved, &(bool){false});
    run_ok(2, train_moved, &(bool){true});
    tn_set_default_device(before);
}

int main(int argc, char **argv) {
    if (!device_main(argc, argv)) { return 0; }
    return tests_run(device_set_up, NULL);
}
