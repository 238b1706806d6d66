/* Loading oneDNN: a list of symbols and the place of each in a table. */
#include "backends/cpu/onednn_library.h"

#include "backends/backend.h"
#include "core/plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static pthread_once_t wish_once = PTHREAD_ONCE_INIT;
static bool always, never, profits;

/* AMX for bf16: bit 22 of edx in leaf 7. Not every compiler's __builtin_cpu_supports knows it. */
static bool has_amx(void) {
#if defined(__x86_64__)
    enum { AMX_BF16 = 1 << 22 };
    unsigned a, b, c, d;
    return tn__cpu_most() >= 4 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & AMX_BF16);
#else
    return false;
#endif
}

static void read_wish(void) {
    const char *wish = getenv("TERN_ONEDNN");
    always = wish && strcmp(wish, "always") == 0 && tn__cpu_most() >= 3;
    never = wish && strcmp(wish, "0") == 0;
    profits = always || (!never && has_amx());
}

bool tn__onednn_always(void) {
    pthread_once(&wish_once, read_wish);
    return always;
}

bool tn__onednn_profits(void) {
    pthread_once(&wish_once, read_wish);
    return profits;
}

#if TN_HAVE_ONEDNN

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>

typedef struct symbol {
    const char *name;
    size_t place; /* in the table */
} symbol;

static char why[512];
static tn__onednn_library table;
static const tn__onednn_library *loaded;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The version whose descriptors the header describes. */
static const char *const soname = "libdnnl.so.2";

static bool load_symbols(void *handle) {
#define SYMBOL(function) {"dnnl_" #function, offsetof(tn__onednn_library, function)},
    static const symbol symbols[] = {TN__ONEDNN_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
        void *address = dlsym(handle, symbols[i].name);
        if (!address) {
            snprintf(why, sizeof(why), "%s has no function %s", soname, symbols[i].name);
            return false;
        }
        memcpy((char *)&table + symbols[i].place, &address, sizeof(address));
    }
    return true;
}

/* Below v4 the library must not use higher instructions either; this has to be set before its first
 * use. */
static bool library_obeys(void) {
    if (tn__cpu_most() >= 4 || table.set_max_cpu_isa(dnnl_cpu_isa_avx2) == dnnl_success) {
        return true;
    }
    snprintf(why, sizeof(why), "oneDNN cannot be limited to AVX2");
    return false;
}

/* What the library itself reports: it may have been limited to less than the machine has. */
static bool library_multiplies(void) {
    unsigned isa = (unsigned)table.get_effective_cpu_isa(), wanted = dnnl_cpu_isa_avx512_core_amx;
    if (tn__onednn_always() || (isa & wanted) == wanted) {
        return true;
    }
    snprintf(why, sizeof(why), "oneDNN uses no AMX here");
    return false;
}

/* The library stays open: kernels that it has compiled may outlive us. */
static void load_library(void) {
    if (!tn__onednn_profits()) {
        snprintf(why, sizeof(why), "%s",
                 never                ? "oneDNN is switched off (TERN_ONEDNN=0)"
                 : tn__cpu_most() < 4 ? "the level of the CPU's kernels is below v4"
                                      : "this CPU has no AMX for bf16");
        return;
    }
    char reason[sizeof(why)];
    void *handle = tn__library_open(soname, reason, sizeof(reason));
    if (!handle) {
        snprintf(why, sizeof(why), "oneDNN could not be loaded: %.400s", reason);
        return;
    }
    if (!load_symbols(handle) || !library_obeys() || !library_multiplies()) {
        dlclose(handle);
    } else if (table.engine_create(&table.engine, dnnl_cpu, 0) != dnnl_success) {
        snprintf(why, sizeof(why), "oneDNN has no engine for the CPU");
        dlclose(handle);
    } else {
        loaded = &table;
    }
}

const tn__onednn_library *tn__onednn(void) {
    pthread_once(&once, load_library);
    return loaded;
}

const char *tn__onednn_why(void) {
    return tn__onednn() ? "" : why;
}

#endif
