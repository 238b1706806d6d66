/* The seeds of the fuzz targets for the store's server and for environments, as an ordinary test. */
#define _GNU_SOURCE
#define LLVMFuzzerTestOneInput fuzz_store
#include "tests/fuzz/fuzz_store.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_environment
#include "tests/fuzz/fuzz_environment.c"
#undef LLVMFuzzerTestOneInput

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "tests/support/temp.h"

/* A target that finds something wrong aborts. */
static int replay(const char *name, int (*run)(const uint8_t *, size_t)) {
    char folder[3000], path[4000];
    const char *root = getenv("TERN_ROOT");
    snprintf(folder, sizeof(folder), "%s/tests/fuzz/corpus/%s", root ? root : ".", name);
    DIR *list = opendir(folder);
    assert_non_null(list);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%.900s", folder, entry->d_name);
            size_t bytes;
            unsigned char *data = temp_read(path, &bytes);
            assert_int_equal(run(data, bytes), 0);
            free(data);
            count++;
        }
    }
    closedir(list);
    return count;
}

static void test_store(void **state) {
    assert_true(replay("fuzz_store", fuzz_store) >= 25);
}

static void test_environments(void **state) {
    assert_true(replay("fuzz_environment", fuzz_environment) >= 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_environments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
