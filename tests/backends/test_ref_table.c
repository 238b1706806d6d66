/* The registry: every entry of ref is there, tables are found by name, and the choice can be
 * changed. */
#include "arrays.h"

#include "backends/entries.h"

static const tn_device cpu = {TN_CPU, 0};

static void test_ref_fills_every_entry(void **state) {
    (void)state;
    const tn_backend *ref = tn_backend_named("ref");
    assert_non_null(ref);
    assert_int_equal(ref->size, sizeof(tn_backend));
    assert_int_equal(ref->version, TN_BACKEND_VERSION);
    assert_string_equal(ref->name, "ref");
#define CHECK(entry, ...) assert_true(ref->entry != NULL);
    TN_ENTRIES(CHECK)
#undef CHECK
}

static void test_every_cpu_table_has_the_primitives(void **state) {
    (void)state;
    const char *names[] = {"cpu", "cpu-v2", "cpu-v3", "cpu-v4"};
    for (int i = 0; i < 4; i++) {
        const tn_backend *table = tn_backend_named(names[i]);
        if (!table) {
            continue; /* this build or machine has none */
        }
        assert_int_equal(table->size, sizeof(tn_backend));
        assert_true(i == 0 || strcmp(table->name, names[i]) == 0);
#define CHECK_PRIMITIVE(entry) assert_true(table->entry != NULL);
#define CHECK_FUSED(entry)
#define CHECK(entry, kind, ...) CHECK_##kind(entry)
        TN_ENTRIES(CHECK)
#undef CHECK
    }
}

static void test_names(void **state) {
    (void)state;
    assert_null(tn_backend_named("abacus"));
    assert_null(tn_backend_named(""));
    assert_null(tn_backend_named(NULL));
    assert_null(tn_backend_named("cpu-v9"));
}

static void test_use(void **state) {
    (void)state;
    const tn_backend *first = tn_backend_of(cpu), *ref = tn_backend_named("ref");
    assert_non_null(first);
    tn_backend_use(ref);
    assert_ptr_equal(tn_backend_of(cpu), ref);
    assert_non_null(strstr(tn_build_info(), "ref"));
    tn_backend_use(NULL);
    assert_ptr_equal(tn_backend_of(cpu), first);
    assert_non_null(strstr(tn_build_info(), first->name));
}

static void count_warning(tn_log_level level, const char *message, void *user) {
    *(int *)user += level == TN_LOG_WARN && strstr(message, "abacus") != NULL;
}

static void test_environment(void **state) {
    (void)state;
    int warnings = 0;
    tn_log_to(count_warning, TN_LOG_WARN, &warnings);
    setenv("TERN_BACKEND", "ref", 1);
    tn_backend_use(NULL);
    assert_string_equal(tn_backend_of(cpu)->name, "ref");
    assert_int_equal(warnings, 0);
    setenv("TERN_BACKEND", "abacus", 1);
    tn_backend_use(NULL);
    assert_int_equal(warnings, 1);
    assert_non_null(tn_backend_of(cpu));
    unsetenv("TERN_BACKEND");
    tn_backend_use(NULL);
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
}

static void test_context(void **state) {
    (void)state;
    tn_context *ctx = tn_context_of(cpu);
    assert_non_null(ctx);
    assert_ptr_equal(ctx, tn_context_of(cpu));
    assert_true(ctx->deterministic && !ctx->stream);
    void *memory = ctx->workspace(ctx, 1000);
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 64, 0);
    memset(memory, 0, 1000);
    ctx->workspace_free(ctx, memory, 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref_fills_every_entry),
        cmocka_unit_test(test_every_cpu_table_has_the_primitives),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_use),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_context),
    };
    return cmocka_run_group_tests(tests, NULL, arrays_free);
}
