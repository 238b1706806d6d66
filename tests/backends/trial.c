/* Runs trials; finds the tables and their contexts. */
#include "trial.h"

#include "core/plugin.h"
#include "core/sanitize.h"

#include <stdio.h>
#include <tern/sys/device.h>

/* ---- Where ----------------------------------------------------------------------------------- */

bool trial_on_cuda(void) {
    return getenv("TERN_TEST_CUDA") != NULL;
}

static bool on_device(void) {
    const char *wanted = getenv("TERN_TEST_CUDA");
    return wanted && strcmp(wanted, "device") == 0;
}

bool trial_on_emulator(void) {
    return trial_on_cuda() && !on_device();
}

/* The plugin, with a device; a test that was told to use one fails without it. */
static const tn_device_table *device_table(void) {
    const tn_device_table *table = tn__device_table(tn_cuda(0));
    if (!table) {
        fail_msg("TERN_TEST_CUDA is set, but there is no device: %s", tn_device_why(TN_CUDA));
    }
    return table;
}

static void find_tables(const tn_backend **found) {
    static const char *const levels[] = {"cpu-v2",  "cpu-v3",   "cpu-v4",
                                         "cpu-amx", "cpu-neon", "cpu-amx-twin"};
    const char *wish = getenv("TERN_CPU");
    int n = 0;
    for (int i = 0; !(wish && *wish) && i < TRIAL_TABLES; i++) {
        found[n] = tn_backend_named(levels[i]);
        n += found[n] != NULL;
    }
    if (n == 0) { found[n] = tn_backend_named("cpu"); }
}

const tn_backend *const *trial_tables(void) {
    static const tn_backend *found[TRIAL_TABLES + 1];
    if (!found[0] && trial_on_cuda()) {
        found[0] = device_table()->kernels;
    } else if (!found[0]) {
        find_tables(found);
    }
    return found;
}

const tn_backend *const *trial_and_ref(void) {
    static const tn_backend *all[TRIAL_TABLES + 2];
    const tn_backend *const *fast = trial_tables();
    all[0] = tn_backend_named("ref");
    for (int i = 0; fast[i]; i++) {
        all[i + 1] = fast[i];
    }
    return all;
}

static bool is_cuda(const tn_backend *t) {
    return trial_on_cuda() && t == trial_tables()[0];
}

tn_context *trial_context(const tn_backend *t) {
    if (is_cuda(t)) { return tn_context_of(tn_cuda(0)); }
    tn_backend_use(t); /* bf16 products ask it for tiles */
    return tn_context_of(tn_cpu());
}

tn_status trial_wait(const tn_backend *t, tn_status status) {
    if (!is_cuda(t)) { return status; }
    tn_status later = device_table()->synchronize(0);
    return status == TN_OK ? later : status;
}

bool array_any_order;

void *array_memory(size_t bytes) {
    void *memory = on_device() ? device_table()->host_alloc(bytes) : malloc(bytes);
    assert_non_null(memory);
    return memory;
}

void array_memory_free(void *memory, size_t bytes) {
    if (on_device()) {
        device_table()->host_free(memory, bytes);
    } else {
        free(memory);
    }
}

/* ---- How ------------------------------------------------------------------------------------- */

static const char *const orders[TRIAL_WAYS] = {"forward", "reverse", "shuffle"};

/* The order in which the emulator runs blocks, and threads between two waits. */
static void set_order(const char *order) {
    char why[256];
    bool (*set)(const char *);
    void *symbol = tn__plugin_symbol("cuda_emulator", "tern_emulator_set_order", why, sizeof(why));
    if (!symbol) { fail_msg("the emulator cannot change its order: %s", why); }
    memcpy(&set, &symbol, sizeof(set));
    assert_true(set(order));
}

void trial_set_way(const tn_backend *t, int way) {
    if (!is_cuda(t)) {
        tn_set_threads(way + 1);
    } else if (!on_device()) {
        set_order(orders[way]);
    }
}

/* One way is enough under the address sanitizer, which makes the emulator slow and looks for other
 * bugs, when arrays are in any order (the other test tries the rest), and where the check is
 * brief. */
static int ways_of(const tn_backend *t) {
    const char *check = getenv("TERN_OP_CHECK");
    bool brief = check && strcmp(check, "brief") == 0;
    return brief || array_any_order || (TN__ASAN && is_cuda(t)) ? 1 : TRIAL_WAYS;
}

const char *trial_way_name(const tn_backend *t, int way) {
    static const char *const threads[TRIAL_WAYS] = {"1 thread", "2 threads", "3 threads"};
    return !is_cuda(t) ? threads[way] : on_device() ? "one more run" : orders[way];
}

/* ---- A trial --------------------------------------------------------------------------------- */

/* A copy of an array, with its own memory. */
static array copy_array(const array *a) {
    array b = *a;
    b.memory = array_memory(a->bytes);
    memcpy(b.memory, a->memory, a->bytes);
    b.d.data = b.memory + ((unsigned char *)a->d.data - a->memory);
    return b;
}

static void free_outputs(const trial *t, const array *out) {
    for (int i = 0; i < t->outputs; i++) {
        array_memory_free(out[i].memory, out[i].bytes);
    }
}

static tn_status call_backend(const trial *t, const tn_backend *backend, array *out) {
    const tn_desc *d[TRIAL_OUTPUTS] = {NULL};
    for (int i = 0; i < t->outputs; i++) {
        out[i] = copy_array(&t->start[i]);
        d[i] = &out[i].d;
    }
    return trial_wait(backend, t->call(backend, d, t->user));
}

static void expect_near(const trial *t, const tn_backend *backend, const array *a, const array *b) {
    double step = t->relative + t->absolute > 0 ? step_of(a->d.dtype) : 0;
    for (int64_t i = 0; i < a->count; i++) {
        double value = array_get(a, i), expected = array_get(b, i);
        bool fine = value == expected || (isnan(value) && isnan(expected));
        if (!fine && isfinite(value) && isfinite(expected)) {
            fine = fabs(value - expected) <=
                   t->absolute + fmax(1, fabs(expected)) * t->relative + fabs(expected) * step;
        }
        if (!fine) {
            fail_msg("%s on %s, %s: element %ld of %ld is %.9g, expected %.9g", t->name,
                     backend->name, tn_dtype_name(a->d.dtype), (long)i, (long)a->count, value,
                     expected);
        }
    }
}

static void expect_same_bits(const trial *t, const tn_backend *backend, int way, const array *a,
                             const array *b) {
    if (memcmp(a->memory, b->memory, a->bytes) != 0) {
        fail_msg("%s on %s, %s: different bits with %s", t->name, backend->name,
                 tn_dtype_name(a->d.dtype), trial_way_name(backend, way));
    }
}

static void try_table(const trial *t, const tn_backend *backend, tn_status status,
                      const array *expected) {
    array first[TRIAL_OUTPUTS], out[TRIAL_OUTPUTS];
    for (int way = 0; way < ways_of(backend); way++) {
        trial_set_way(backend, way);
        array *here = way == 0 ? first : out;
        tn_status given = call_backend(t, backend, here);
        if (given != status) {
            fail_msg("%s on %s with %s, %s: status %d, ref's is %d", t->name, backend->name,
                     trial_way_name(backend, way), tn_dtype_name(t->start[0].d.dtype), given,
                     status);
        }
        for (int i = 0; i < t->outputs && status == TN_OK; i++) {
            if (way == 0) {
                expect_near(t, backend, &first[i], &expected[i]);
                array_check_gaps(&first[i]);
            } else {
                expect_same_bits(t, backend, way, &out[i], &first[i]);
            }
        }
        if (way > 0) { free_outputs(t, out); }
    }
    free_outputs(t, first);
    trial_set_way(backend, 0);
}

/* Under the address sanitizer, which looks for other bugs, two of five trials are enough when
 * arrays are in any order. */
static bool passes_over_trial(void) {
    static int trials;
    return TN__ASAN && array_any_order && trials++ % 5 > 1;
}

void trial_run(const trial *t) {
    if (passes_over_trial()) { return; }
    array expected[TRIAL_OUTPUTS];
    tn_status status = call_backend(t, tn_backend_named("ref"), expected);
    for (int i = 0; i < t->outputs; i++) {
        array_check_gaps(&expected[i]);
    }
    for (const tn_backend *const *table = trial_tables(); *table; table++) {
        try_table(t, *table, status, expected);
    }
    tn_set_threads(2);
    free_outputs(t, expected);
}
