/* Where an error happened: the first stack frame outside the library, as file and line.
 *
 * The unwinder gives return addresses. Frames of libtern are skipped: those in its shared object,
 * or, when it is linked statically, functions named tn_… and functions of the library's own source
 * files. Frames of the C library, the OpenMP runtime and the like are skipped as well. The debug
 * information of what the address was loaded from says which line it is (dwarf.c); where there is
 * none, or no memory to read it, the symbol and an offset are named. (A tail call leaves no frame:
 * in optimised programs `return tn_call(m, x);` is reported where its function was called.) Nothing
 * here can fail: what cannot be found is left out.
 */
#define _GNU_SOURCE 1 /* dladdr1 */
#include "core/place.h"

#include "core/error.h"
#include "core/dwarf.h"

#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unwind.h>

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *to) {
    tn__stack *s = to;
    s->frames[s->count++] = _Unwind_GetIP(context);
    return s->count < TN__STACK_FRAMES ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/* The first backtrace() loads the unwinder, which takes memory. */
void tn__stack_keep(tn__stack *stack) {
    stack->count = 0;
    stack->pending = true;
    _Unwind_Backtrace(add_frame, stack);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static bool object_of(uintptr_t address, tn__object *o) {
    struct link_map *map = NULL;
    Dl_info program;
    if (!dladdr1((void *)address, &o->info, (void **)&map, RTLD_DL_LINKMAP) || !map ||
        !o->info.dli_fname) {
        return false;
    }
    o->bias = map->l_addr;
    uintptr_t entry = getauxval(AT_ENTRY);
    o->program = entry && dladdr((void *)entry, &program) && program.dli_fbase == o->info.dli_fbase;
    return true;
}

/* Shared objects whose frames say nothing to a user. */
static bool runtime_object(const char *path) {
    static const char *const names[] = {"libc.",    "libc-",       "libpthread", "ld-linux",
                                        "libgomp",  "libomp",      "libasan.",   "libubsan.",
                                        "libtsan.", "libclang_rt", "libstdc++.", "libgcc_s"};
    const char *name = last_part(path);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (starts_with(name, names[i])) { return true; }
    }
    return false;
}

/* For a library that is linked statically: whether the function that begins at `start` is in one of
 * its source files, which are in the folders next to this file's. */
static bool own_source(tn__dwarf *d, const tn__object *o, uintptr_t start) {
    static const char *const folders[] = {
        "core/", "text/",  "tensor/", "backends/", "profile/", "autograd/",    "ops/",
        "nn/",   "optim/", "data/",   "io/",       "models/",  "distributed/", "train/"};
    static const char here[] = "core/place.c";
    const char *path, *own;
    int line;
    if (!tn__dwarf_source(d, o, start, &path, &line) ||
        !tn__dwarf_source(d, o, (uintptr_t)&tn__place, &own, &line) || strlen(own) < strlen(here)) {
        return false;
    }
    size_t root = strlen(own) - strlen(here);
    if (strcmp(own + root, here) != 0 || strncmp(path, own, root) != 0) { return false; }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (starts_with(path + root, folders[i])) { return true; }
    }
    return false;
}

static bool own_function(tn__dwarf *d, const tn__object *o, uintptr_t address) {
    uintptr_t start;
    const char *name = tn__dwarf_function(d, o, address, &start);
    return name && (starts_with(name, "tn_") || own_source(d, o, start));
}

static void describe_address(tn__dwarf *d, const tn__object *o, uintptr_t address, char *text,
                             size_t size) {
    const char *path, *name;
    int line;
    uintptr_t start;
    if (tn__dwarf_source(d, o, address, &path, &line)) {
        snprintf(text, size, "%.80s:%d", last_part(path), line);
        return;
    }
    name = tn__dwarf_function(d, o, address, &start);
    if (!name && (name = o->info.dli_sname)) { start = (uintptr_t)o->info.dli_saddr; }
    if (!name) {
        name = last_part(o->info.dli_fname);
        start = (uintptr_t)o->info.dli_fbase;
    }
    uintptr_t back = address + 1; /* the return address itself, as debuggers show it */
    snprintf(text, size, "%.70s+0x%zx", name, (size_t)(back - start));
}

void tn__place(char *text, size_t size) {
    tn__stack now;
    tn__stack_keep(&now);
    tn__place_of(&now, text, size);
}

void tn__place_of(const tn__stack *s, char *text, size_t size) {
    tn__object own, o;
    text[0] = 0;
    if (!object_of((uintptr_t)&tn__place, &own)) { return; }
    tn__dwarf *d = tn__dwarf_open();
    bool inside = false;
    for (int i = 0; i < s->count && !text[0]; i++) {
        /* The instruction before the return address belongs to the call, even when the call is a
         * function's last. */
        uintptr_t address = s->frames[i] - 1;
        if (!object_of(address, &o)) { continue; }
        bool here = o.info.dli_fbase == own.info.dli_fbase;
        if (here && (!own.program || own_function(d, &o, address))) {
            inside = true;
        } else if (inside && !runtime_object(o.info.dli_fname)) {
            describe_address(d, &o, address, text, size);
        }
    }
    tn__dwarf_close(d);
}
