/* Plugins: found, opened once, and kept; a failure is remembered with its reason.
 *
 * In the folders only a file that exists is tried. So if one exists but cannot be loaded its reason
 * is reported, and otherwise what the loader says after its own search.
 */
#define _GNU_SOURCE 1 /* dladdr */
#include "core/plugin.h"

#include "core/descriptor.h"
#include "core/memory.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* Weak: a statically linked program must not get a loader because of us. The linker would warn
 * about it (as it does of libgomp's). */
#pragma weak dlopen

typedef struct plugin {
    struct plugin *next;
    void *handle;   /* NULL: could not be loaded */
    char why[1024]; /* the reason */
    char name[];
} plugin;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* fork takes it first (fork.c) */
static _Thread_local int holds;                          /* by this thread */
static plugin *plugins;                                  /* under the lock; never removed */

void tn__libraries_hold(void) {
    if (holds++ == 0) { pthread_mutex_lock(&lock); }
}

void tn__libraries_let_go(void) {
    if (--holds == 0) { pthread_mutex_unlock(&lock); }
}

/* The folder of the file that this function is in, or "". */
static void own_folder(char *folder, size_t size) {
    static const char here = 0;
    Dl_info info;
    *folder = 0;
    if (dladdr(&here, &info) != 0 && info.dli_fname && strchr(info.dli_fname, '/')) {
        int length = (int)(strrchr(info.dli_fname, '/') - info.dli_fname);
        snprintf(folder, size, "%.*s", length, info.dli_fname);
    }
}

/* Whether a dynamic loader started this program, and so knows its libraries. */
static bool has_loader(void) {
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    unsigned long left = header ? getauxval(AT_PHNUM) : 0;
    while (left > 0 && header->p_type != PT_INTERP) {
        left--;
        header++;
    }
    return left > 0;
}

void *tn__library_open(const char *file, char *why, size_t size) {
    if (!dlopen || !has_loader()) {
        snprintf(why, size, "the program is linked statically");
        return NULL;
    }
    tn__libraries_hold();
    tn__streams_hold();
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) { snprintf(why, size, "%s", dlerror()); }
    tn__streams_let_go();
    tn__libraries_let_go();
    return handle;
}

/* Opens `path` unless p is open already. The first reason is the one that is kept. */
static void try_path(plugin *p, const char *path) {
    char why[sizeof(p->why)];
    if (p->handle) { return; }
    p->handle = tn__library_open(path, why, sizeof(why));
    if (!p->handle && !*p->why) { memcpy(p->why, why, sizeof(why)); }
}

static void try_folder(plugin *p, const char *folder, size_t length) {
    char path[PATH_MAX];
    int wanted = snprintf(path, sizeof(path), "%.*s/libtern_%s.so", (int)length, folder, p->name);
    if (length > 0 && wanted > 0 && (size_t)wanted < sizeof(path) && access(path, F_OK) == 0) {
        try_path(p, path);
    }
}

static void open_plugin(plugin *p) {
    char text[PATH_MAX];
    own_folder(text, sizeof(text));
    try_folder(p, text, strlen(text));
    const char *path = getenv("TERN_PLUGIN_PATH");
    while (path && *path) {
        size_t length = strcspn(path, ":");
        try_folder(p, path, length);
        path += length + (path[length] == ':');
    }
    snprintf(text, sizeof(text), "libtern_%s.so", p->name);
    try_path(p, text);
}

/* Under the lock: the plugin of this name, opened if this is the first call for it; NULL when there
 * is no memory. */
static plugin *plugin_of(const char *name) {
    for (plugin *p = plugins; p; p = p->next) {
        if (strcmp(p->name, name) == 0) { return p; }
    }
    size_t length = strlen(name) + 1;
    plugin *p = tn__calloc(1, sizeof(*p) + length);
    if (p) {
        memcpy(p->name, name, length);
        open_plugin(p);
        p->next = plugins;
        plugins = p;
    }
    return p;
}

void *tn__plugin_symbol(const char *name, const char *symbol, char *why, size_t size) {
    if (!name || !*name || strchr(name, '/') || !symbol) {
        snprintf(why, size, "\"%s\" cannot be the name of a plugin", name ? name : "(NULL)");
        return NULL;
    }
    tn__libraries_hold();
    plugin *p = plugin_of(name);
    void *address = p && p->handle ? dlsym(p->handle, symbol) : NULL;
    if (!p) {
        snprintf(why, size, "out of memory for the plugin \"%s\"", name);
    } else if (!address) {
        snprintf(why, size, "%s", p->handle ? dlerror() : p->why);
    }
    tn__libraries_let_go();
    return address;
}
