/* The registry: every entry of ref is there, tables are found by name,
 * and the choice can be changed. */
#include "arrays.h"

#include "backends/backend.h"
#include "backends/entries.h"

static const tn_device cpu = {TN_CPU, 0};

#define CHECK(entry, ...) assert_true(table->entry != NULL);

PLAIN_TEST(test_ref_fills_every_entry) {
    const tn_backend *ref = tn_backend_named("ref");
    assert_non_null(ref);
    assert_int_equal(ref->size, sizeof(tn_backend));
    assert_int_equal(ref->version, TN_BACKEND_VERSION);
    assert_string_equal(ref->name, "ref");
    const tn_backend *table = ref;
    TN_ENTRIES(CHECK)
}

PLAIN_TEST(test_every_cpu_table_fills_every_entry) {
    const char *names[] = {"cpu", "cpu-v2", "cpu-v3", "cpu-v4", "cpu-neon"};
    for (int i = 0; i < 5; i++) {
        const tn_backend *table = tn_backend_named(names[i]);
        if (!table) { continue; /* not in this build or on this machine */ }
        assert_int_equal(table->size, sizeof(tn_backend));
        assert_true(i == 0 || strcmp(table->name, names[i]) == 0);
        TN_ENTRIES(CHECK)
    }
}

PLAIN_TEST(test_names) {
    assert_null(tn_backend_named("abacus"));
    assert_null(tn_backend_named(""));
    assert_null(tn_backend_named(NULL));
    assert_null(tn_backend_named("cpu-v9"));
}

PLAIN_TEST(test_use) {
    const tn_backend *first = tn_backend_of(cpu), *ref = tn_backend_named("ref");
    assert_non_null(first);
    tn_backend_use(ref);
    assert_ptr_equal(tn_backend_of(cpu), ref);
    assert_non_null(strstr(tn_build_info(), "ref"));
    tn_backend_use(NULL);
    assert_ptr_equal(tn_backend_of(cpu), first);
    assert_non_null(strstr(tn_build_info(), first->name));
}

static const char *const levels[] = {"plain", "v2", "v3", "v4", "amx", "neon"};
static const char *const tables[] = {"ref", "cpu-v2", "cpu-v3", "cpu-v4", "cpu-amx", "cpu-neon"};
enum { LEVELS = sizeof(levels) / sizeof(*levels) };

/* TERN_CPU caps the level: no table above it can be found by any name. A level that this build or
 * machine lacks is an error that lists the levels; once it is cleared, the best one is used. */
PLAIN_TEST(test_level) {
    char have[TN__CPU_LEVELS], text[64];
    const char *before = getenv("TERN_CPU");
    before = before ? strcpy(text, before) : NULL;
    unsetenv("TERN_CPU");
    tn_backend_use(NULL);
    const tn_backend *best = tn_backend_of(cpu);
    tn__cpu_levels(have, sizeof(have));
    assert_int_equal(strncmp(have, "plain", 5), 0);
    for (int i = 0; i < LEVELS; i++) {
        bool there = strstr(have, levels[i]) != NULL;
        setenv("TERN_CPU", levels[i], 1);
        tn_backend_use(NULL);
        assert_int_equal(tn_error(), there ? TN_OK : TN_EVALUE);
        tn_error_clear();
        assert_ptr_equal(tn_backend_of(cpu), tn_backend_named("cpu"));
        assert_string_equal(tn_backend_of(cpu)->name, there ? tables[i] : best->name);
        for (int k = i + 1; k < LEVELS && there; k++) {
            assert_null(tn_backend_named(tables[k]));
        }
    }
    setenv("TERN_CPU", "abacus", 1);
    tn_backend_use(NULL);
    assert_ptr_equal(tn_backend_of(cpu), best);
    assert_int_equal(tn_error(), TN_EVALUE);
    assert_non_null(strstr(tn_error_message(), "abacus"));
    assert_non_null(strstr(tn_error_message(), have));
    tn_error_clear();
    if (before) {
        setenv("TERN_CPU", before, 1);
    } else {
        unsetenv("TERN_CPU");
    }
    tn_backend_use(NULL);
}

PLAIN_TEST(test_context) {
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
    return tests_run(NULL, arrays_free);
}
