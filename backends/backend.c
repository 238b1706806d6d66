/* Which kernel table runs: the best for this machine up to the level that TERN_CPU names, or the
 * one set by tn_backend_use.
 */
#include "backends/backend.h"
#include "backends/entries.h"
#include "backends/machine.h"

#include "core/allocator.h"
#include "core/build_info.h"
#include "core/error.h"
#include "tern/sys/device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY(entry, ...) +1
_Static_assert(offsetof(tn_backend, fill) + (0 TN_ENTRIES(ENTRY)) * sizeof(void (*)(void)) ==
                   sizeof(tn_backend),
               "backends/entries.h lists each entry of tn_backend once");

static _Atomic(const tn_backend *) chosen; /* NULL until the first use */
static atomic_int most;                    /* the level that TERN_CPU permits; 0 until it is read */

static const char *const level_names[] = {[PLAIN] = "plain", "v2", "v3", "v4", "amx", "neon",
                                          "amx-twin"};

bool tn__cpu_tiles;

/* NULL if the build or the machine does not have it. */
static const tn_backend *level_table(int level) {
    if (level > PLAIN && level <= LEVELS && !tn__machine_runs(level)) { return NULL; }
    switch (level) {
#ifdef TN_HAVE_CPU_NEON
    case NEON:
        return tn__cpu_table_neon(false);
#endif
#ifdef TN_HAVE_CPU_V4
    case AMX:
    case 4:
        return tn__cpu_table_v4(level == AMX);
#endif
    case TWIN:
#ifdef TN_HAVE_CPU_NEON
        return tn__cpu_table_neon(true);
#endif
#ifdef TN_HAVE_CPU_V3
        if (tn__machine_runs(3)) { return tn__cpu_table_v3(true); }
#endif
#ifdef TN_HAVE_CPU_V2
        return tn__machine_runs(2) ? tn__cpu_table_v2(true) : NULL;
#else
        return NULL;
#endif
#ifdef TN_HAVE_CPU_V3
    case 3:
        return tn__cpu_table_v3(false);
#endif
#ifdef TN_HAVE_CPU_V2
    case 2:
        return tn__cpu_table_v2(false);
#endif
    case PLAIN:
        return tn__ref_table();
    default:
        return NULL;
    }
}

const char *tn__cpu_levels(char *text, size_t size) {
    size_t used = 0;
    for (int level = PLAIN; level <= LEVELS && used < size; level++) {
        if (level_table(level)) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "",
                                     level_names[level]);
        }
    }
    return text;
}

/* The level that TERN_CPU names; if it is not set, the highest available. A name of no available
 * level raises an error in the thread that asks first: at load time the one that will run main. */
static int read_most(void) {
    const char *wish = getenv("TERN_CPU");
    bool any = !wish || !wish[0];
    for (int level = PLAIN; level <= TWIN && !any; level++) {
        if (strcmp(wish, level_names[level]) == 0 && level_table(level)) { return level; }
    }
    int best = LEVELS;
    while (!level_table(best)) {
        best--;
    }
    if (any) { return best; }
    char levels[TN__CPU_LEVELS];
    tn__raise(TN_EVALUE, "kernels", "TERN_CPU=%s is not one of this machine's levels: %s", wish,
              tn__cpu_levels(levels, sizeof(levels)));
    return best;
}

static int most_level(void) {
    int level = atomic_load_explicit(&most, memory_order_relaxed);
    if (level == 0) {
        level = read_most();
        atomic_store_explicit(&most, level, memory_order_relaxed);
    }
    return level;
}

const tn_backend *tn_backend_named(const char *name) {
    if (!name) { return NULL; }
    if (strcmp(name, "ref") == 0) { return tn__ref_table(); }
    if (strcmp(name, "cuda") == 0) { return tn_backend_of((tn_device){TN_CUDA, 0}); }
    if (strcmp(name, "cpu") == 0) { return level_table(most_level()); }
    for (int level = PLAIN + 1; level <= TWIN; level++) {
        if (strncmp(name, "cpu-", 4) == 0 && strcmp(name + 4, level_names[level]) == 0) {
            return level <= most_level() || level == TWIN ? level_table(level) : NULL;
        }
    }
    return NULL;
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
        atomic_store_explicit(&most, 0, memory_order_relaxed);
        table = tn_backend_named("cpu");
    }
    tn__build_info_backend = table->name;
    tn__cpu_tiles = strncmp(table->name, "cpu-amx", 7) == 0;
    atomic_store_explicit(&chosen, table, memory_order_release);
}

/* At load time, so that tn_build_info is right before the first kernel; earlier if another
 * constructor needs it. */
__attribute__((constructor)) static void backend_begin(void) {
    tn_backend_use(NULL);
}

static void *host_workspace(tn_context *ctx, size_t bytes) {
    return tn__alloc(bytes);
}

static void host_workspace_free(tn_context *ctx, void *memory, size_t bytes) {
    tn__free(memory, bytes);
}

tn_context *tn_context_of(tn_device device) {
    static _Thread_local tn_context context = {
        .deterministic = true, .workspace = host_workspace, .workspace_free = host_workspace_free};
    if (device.kind == TN_CPU) { return &context; }
    const tn_device_table *devices = tn__device_table(device);
    tn_context *ctx = devices ? devices->context(device.index) : NULL;
    if (ctx) {
        ctx->deterministic = tn_deterministic();
        ctx->matmul_tf32 = tn_matmul_tf32();
        ctx->conv_tf32 = tn_conv_tf32();
    }
    return ctx;
}
