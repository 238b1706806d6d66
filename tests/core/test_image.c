/* What ELF files say: this program of itself, and files that were made to mislead. How compilers
 * write them: test_place.sh. */
#define _GNU_SOURCE
#include "tests/fuzz/fuzz_image.c"
#include "tests/support/replay.h"
#include "tests/support/test.h"

#include <dlfcn.h>
#include <link.h>

static void test_corpus(void **state) {
    (void)state;
    assert_true(replay("fuzz_image", LLVMFuzzerTestOneInput) >= 30);
}

/* What a seed says: "FILE:LINE", and the path of its unit. */
static void assert_seed(const char *name, const char *wanted, const char *unit) {
    char path[4000], text[100] = "", whole[100] = "";
    const char *root = getenv("TERN_ROOT"), *file;
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/fuzz_image/%s", root ? root : ".", name);
    size_t bytes;
    uint64_t address;
    int line;
    unsigned char *data = temp_read(path, &bytes);
    memcpy(&address, data, sizeof(address));
    tn__image m = {data + sizeof(address), bytes - sizeof(address)};
    if (tn__image_line(&m, (uintptr_t)address, &file, &line)) {
        snprintf(text, sizeof(text), "%s:%d", file, line);
    }
    tn__image_unit(&m, (uintptr_t)address, whole, sizeof(whole));
    assert_string_equal(text, wanted);
    assert_string_equal(whole, unit);
    free(data);
}

static void test_tables(void **state) {
    (void)state;
    assert_seed("version_2", "a.c:14", "src/a.c");
    assert_seed("version_4", "a.c:11", "src/a.c");
    assert_seed("version_5", "a.h:11", "/home/me/core/place.c");
    assert_seed("wide", "a.c:11", "src/a.c");
    assert_seed("texts", "y.c:11", "//x.c");
    assert_seed("other_forms", "b.c:11", "b.c/b.c");
    assert_seed("two_units", "a.h:11", "/home/me/core/place.c");
    assert_seed("left_out", "a.c:11", "src/a.c");
    assert_seed("folder_as_file", "", "src/a.c/");
    assert_seed("compressed", "", "");
}

static void test_own_program(void **state) {
    (void)state;
    struct link_map *map = NULL;
    Dl_info own, library;
    assert_int_not_equal(dladdr1((void *)test_tables, &own, (void **)&map, RTLD_DL_LINKMAP), 0);
    assert_int_not_equal(dladdr((void *)tn__image_open, &library), 0);
    tn__image m;
    uintptr_t start;
    assert_true(tn__image_open(&m, "/proc/self/exe"));
    const char *name = tn__image_symbol(&m, (uintptr_t)test_tables + 1 - map->l_addr, &start);
    assert_non_null(name);
    assert_string_equal(name, "test_tables");
    assert_int_equal(start, (uintptr_t)test_tables - map->l_addr);
    assert_true(tn__image_loaded(&m, own.dli_fbase));
    assert_int_equal(tn__image_loaded(&m, library.dli_fbase), own.dli_fbase == library.dli_fbase);
    tn__image_close(&m);
}

static void test_no_image(void **state) {
    (void)state;
    tn__image m;
    assert_false(tn__image_open(&m, "/nowhere"));
    assert_false(tn__image_open(&m, "/dev/zero"));
    assert_false(tn__image_open(&m, "/proc/self/maps"));
    tn__image_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_own_program),
        cmocka_unit_test(test_no_image),
    };
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
