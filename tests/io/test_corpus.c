/* The seeds of the fuzz targets, and what they have found so far, as an ordinary test. */
#include "tests/fuzz/fuzz_safetensors.c"
#include "tests/support/test.h"
#include "tests/fuzz/fuzz_checkpoint.c"

#include "tests/support/replay.h"

static void check_loads(const char *seed) {
    char path[4000];
    const char *root = getenv("TERN_ROOT");
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/fuzz_checkpoint/%s", root ? root : ".",
             seed);
    size_t bytes;
    unsigned char *data = temp_read(path, &bytes);
    put_digest(data, bytes);
    bytes_file file = bytes_file_open(data, bytes);
    target *t = open_target();
    tn_checkpoint c = {.model = &t->model,
                       .optim = t->optim,
                       .schedule = &t->schedule,
                       .loader = t->loader,
                       .generator = &t->generator};
    if (tn_checkpoint_load(&c, file.path) != TN_OK) { fail_msg("%s", tn_error_message()); }
    assert_int_equal(c.step, 9);
    assert_int_equal(tn_optim_steps(t->optim), 9);
    assert_int_equal(tn_loader_where(t->loader).epoch, 2);
    assert_true(t->generator.seed == UINT64_MAX && t->generator.call == 7);
    assert_true(tn_at(t->model.weight, TN_DIMS(0, 1)) == 1);
    bytes_file_close(&file);
    free(data);
    tn_optim_free(t->optim);
    tn_loader_free(t->loader);
    tn_module_finish(&t->model);
}

/* The targets would be blind if no seed were accepted. */
PLAIN_TEST(test_whole_checkpoints_load) {
    check_loads("json");
}

/* Each target keeps what it has opened until the end. */
PLAIN_TEST(test_safetensors) {
    assert_true(replay_corpus("fuzz_safetensors", fuzz_safetensors) >= 20);
}

PLAIN_TEST(test_checkpoints) {
    assert_true(replay_corpus("fuzz_checkpoint", fuzz_checkpoint) >= 20);
}
