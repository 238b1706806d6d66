/* Which kernel table runs: found once from the machine and TERN_BACKEND, or set by
 * tn_backend_use. */
#include "backends/backend.h"
#include "backends/entries.h"

#include "core/allocator.h"
#include "core/build_info.h"
#include "tern/sys/device.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY(entry, ...) +1
_Static_assert(offsetof(tn_backend, fill) + (0 TN_ENTRIES(ENTRY)) * sizeof(void (*)(void)) ==
                   sizeof(tn_backend),
               "backends/entries.h lists each entry of tn_backend once");

static _Atomic(const tn_backend *) chosen; /* NULL until the first use */

/* Whether this machine (and its system, for the wide registers) runs code for x86-64-v2, -v3, -v4.
 * Every machine with AVX2 and FMA also has the rest of v3 (F16C, LZCNT, MOVBE), which not every
 * compiler's test knows. */
static bool machine_runs(int level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
              __builtin_cpu_supports("popcnt");
    bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return level == 2 ? v2 : level == 3 ? v3 : v4;
#else
    return level == 2; /* elsewhere the lowest level is compiled for what the compiler targets */
#endif
}

/* NULL where the build or the machine does not have it. */
static const tn_backend *cpu_table(int level) {
    if (!machine_runs(level)) {
        return NULL;
    }
    switch (level) {
#ifdef TN_HAVE_CPU_V4
    case 4:
        return tn__cpu_table_v4();
#endif
#ifdef TN_HAVE_CPU_V3
    case 3:
        return tn__cpu_table_v3();
#endif
#ifdef TN_HAVE_CPU_V2
    case 2:
        return tn__cpu_table_v2();
#endif
    default:
        return NULL;
    }
}

const tn_backend *tn_backend_named(const char *name) {
    if (!name) {
        return NULL;
    }
    if (strcmp(name, "ref") == 0) {
        return tn__ref_table();
    }
    if (strcmp(name, "cuda") == 0) {
        return tn_backend_of((tn_device){TN_CUDA, 0});
    }
    static const char *const names[] = {"cpu-v2", "cpu-v3", "cpu-v4"};
    bool best = strcmp(name, "cpu") == 0;
    for (int level = 4; level >= 2; level--) {
        const tn_backend *table =
            best || strcmp(name, names[level - 2]) == 0 ? cpu_table(level) : NULL;
        if (table) {
            return table;
        }
    }
    return NULL;
}

/* What TERN_BACKEND asks for, else the best; ref where there is nothing else. */
static const tn_backend *choose(void) {
    const char *wish = getenv("TERN_BACKEND");
    if (wish && wish[0]) {
        const tn_backend *table = tn_backend_named(wish);
        if (table) {
            return table;
        }
        tn_log_write(
            TN_LOG_WARN,
            "TERN_BACKEND=%s: this build or machine has no such kernels; using the best it has",
            wish);
    }
    const tn_backend *table = tn_backend_named("cpu");
    return table ? table : tn__ref_table();
}

static const tn_backend *first_use(void) {
    tn_backend_use(NULL);
    return atomic_load_explicit(&chosen, memory_order_acquire);
}

const tn_backend *tn_backend_of(tn_device device) {
    if (device.kind != TN_CPU) {
        const tn_device_table *devices = tn__device_table(device);
        return devices ? devices->kernels : NULL;
    }
    const tn_backend *table = atomic_load_explicit(&chosen, memory_order_acquire);
    return table ? table : first_use();
}

void tn_backend_use(const tn_backend *table) {
    if (!table) {
        table = choose();
    }
    tn__build_info_backend = table->name;
    atomic_store_explicit(&chosen, table, memory_order_release);
}

/* At load time, so that tn_build_info is right before the first kernel; earlier for those who start
 * even earlier. */
__attribute__((constructor)) static void backend_begin(void) {
    tn_backend_use(NULL);
}

static void *host_workspace(tn_context *ctx, size_t bytes) {
    (void)ctx;
    return tn__alloc(bytes);
}

static void host_workspace_free(tn_context *ctx, void *memory, size_t bytes) {
    (void)ctx;
    tn__free(memory, bytes);
}

tn_context *tn_context_of(tn_device device) {
    static _Thread_local tn_context context = {
        .deterministic = true, .workspace = host_workspace, .workspace_free = host_workspace_free};
    if (device.kind != TN_CPU) {
        const tn_device_table *devices = tn__device_table(device);
        return devices ? devices->context(device.index) : NULL;
    }
    return &context;
}
