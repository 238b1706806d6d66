/* Loading cuDNN and NCCL. Each library is a list of symbols and the place of each in a table. */
#include "backends/cuda/libraries.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHY = 512 };

/* libtern's (core/plugin.h). Weak: a program that has loaded libtern for itself alone hides it. */
#pragma weak tn__libraries_hold
#pragma weak tn__libraries_let_go
void tn__libraries_hold(void);
void tn__libraries_let_go(void);

/* dlopen while no other thread forks. */
static void *open_library(const char *file, int mode) {
    if (tn__libraries_hold) { tn__libraries_hold(); }
    void *handle = dlopen(file, mode);
    if (tn__libraries_hold) { tn__libraries_let_go(); }
    return handle;
}

#if TN_HAVE_CUDNN || TN_HAVE_NCCL

typedef struct symbol {
    const char *name;
    size_t place; /* in the table */
    bool optional;
} symbol;

typedef struct library {
    const char *name, *soname, *variable; /* "cuDNN", its file, what overrides it */
    const symbol *symbols;
    int count;
} library;

/* The file to open; NULL, with the reason in `why`. */
static const char *file_of(const library *l, char why[WHY]) {
    const char *chosen = getenv(l->variable);
    if (chosen && strcmp(chosen, "off") == 0) {
        snprintf(why, WHY, "%s is switched off (%s=off)", l->name, l->variable);
        return NULL;
    }
    if (chosen && *chosen) { return chosen; }
#ifdef TN_CUDA_EMULATOR
    snprintf(why, WHY, "the emulator has no %s (%s is not set)", l->name, l->variable);
    return NULL;
#else
    return l->soname;
#endif
}

/* Opens the library and fills the table's functions. The library is never closed: its threads
 * and handlers may outlive the plugin. */
static bool library_load(const library *l, void *table, char why[WHY]) {
    const char *file = file_of(l, why);
    if (!file) { return false; }
    void *handle = open_library(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        snprintf(why, WHY, "%s could not be loaded: %s", l->name, dlerror());
        return false;
    }
    for (int i = 0; i < l->count; i++) {
        const symbol *s = &l->symbols[i];
        void *address = dlsym(handle, s->name);
        if (!address && !s->optional) {
            snprintf(why, WHY, "%s has no function %s", file, s->name);
            dlclose(handle);
            return false;
        }
        memcpy((char *)table + s->place, &address, sizeof(address));
    }
    return true;
}

/* Both count so: 91900 is "9.19.0". */
static void write_version(char text[16], int number) {
    snprintf(text, 16, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
}

#endif

/* ---- cuDNN ----------------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    tn__cudnn_table table;
    bool loaded;
    char why[WHY];
} cudnn = {.once = PTHREAD_ONCE_INIT, .why = "the plugin was built without cudnn.h"};

#if TN_HAVE_CUDNN

/* The graphs were written for this version's rules (sdpa_graph.c, conv_graph.c). */
enum { CUDNN_OLDEST = 90000 };

/* cuDNN opens and closes NVRTC for each plan that it compiles, and each time leaks the 71 KiB of
 * its C++ runtime. Held open here, it is loaded once. If it is not found, cuDNN will say so. */
static void hold_nvrtc(void) {
    char soname[32];
    snprintf(soname, sizeof(soname), "libnvrtc.so.%d", CUDART_VERSION / 1000);
    open_library(soname, RTLD_LAZY | RTLD_LOCAL);
}

static void load_cudnn(void) {
#define SYMBOL(function) {"cudnn" #function, offsetof(tn__cudnn_table, function), false},
    static const symbol symbols[] = {TN__CUDNN_FUNCTIONS(SYMBOL)};
#undef SYMBOL
    static const library found = {"cuDNN", "libcudnn.so.9", "TERN_CUDNN", symbols,
                                  sizeof(symbols) / sizeof(*symbols)};
    tn__cudnn_table *t = &cudnn.table;
    if (!library_load(&found, t, cudnn.why)) { return; }
    t->number = (int)t->GetVersion();
    write_version(t->version, t->number);
    int runtime = (int)t->GetCudartVersion() / 1000;
    if (t->number < CUDNN_OLDEST || t->number / 10000 != CUDNN_MAJOR) {
        snprintf(cudnn.why, WHY, "cuDNN is %s (the plugin needs version %d.0 or newer of %d.x)",
                 t->version, CUDNN_OLDEST / 10000, CUDNN_MAJOR);
    } else if (runtime != CUDART_VERSION / 1000) {
        snprintf(cudnn.why, WHY, "cuDNN %s was built for CUDA %d, the plugin for CUDA %d",
                 t->version, runtime, CUDART_VERSION / 1000);
    } else {
        hold_nvrtc();
        cudnn.loaded = true;
    }
}

#else

static void load_cudnn(void) {}

#endif

const tn__cudnn_table *tn__cudnn(void) {
    pthread_once(&cudnn.once, load_cudnn);
    return cudnn.loaded ? &cudnn.table : NULL;
}

const char *tn__cudnn_why(void) {
    return tn__cudnn() ? "" : cudnn.why;
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static struct {
    pthread_once_t once;
    tn__nccl_table table;
    bool loaded;
    char why[WHY];
} nccl = {.once = PTHREAD_ONCE_INIT, .why = "the plugin was built without nccl.h"};

#if TN_HAVE_NCCL

/* Older versions are untested. */
enum { NCCL_OLDEST = 21800 };

static void load_nccl(void) {
#define SYMBOL(function) {"nccl" #function, offsetof(tn__nccl_table, function), false},
#define OPTIONAL(function) {"nccl" #function, offsetof(tn__nccl_table, function), true},
    static const symbol symbols[] = {TN__NCCL_FUNCTIONS(SYMBOL) TN__NCCL_OPTIONAL(OPTIONAL)};
#undef SYMBOL
#undef OPTIONAL
    static const library found = {"NCCL", "libnccl.so.2", "TERN_NCCL", symbols,
                                  sizeof(symbols) / sizeof(*symbols)};
    tn__nccl_table *t = &nccl.table;
    if (!library_load(&found, t, nccl.why)) { return; }
    if (t->GetVersion(&t->number) != ncclSuccess) {
        snprintf(nccl.why, WHY, "NCCL does not report its version");
        return;
    }
    write_version(t->version, t->number);
    nccl.loaded = t->number >= NCCL_OLDEST;
    snprintf(nccl.why, WHY, "NCCL is %s (the plugin needs version %d.%d or newer)", t->version,
             NCCL_OLDEST / 10000, NCCL_OLDEST / 100 % 100);
}

#else

static void load_nccl(void) {}

#endif

const tn__nccl_table *tn__nccl(void) {
    pthread_once(&nccl.once, load_nccl);
    return nccl.loaded ? &nccl.table : NULL;
}

const char *tn__nccl_why(void) {
    return tn__nccl() ? "" : nccl.why;
}
