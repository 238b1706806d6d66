/* Where an error happened: the first stack frame outside the library, as file and line.
 *
 * backtrace() gives return addresses. Frames of libtern are skipped: those in its shared object,
 * or, when it is linked statically, functions named tn_… and functions of the library's own source
 * files. Frames of the C library, the OpenMP runtime and the like are skipped as well. libdw turns
 * the address into a line when the program has debug information; otherwise the symbol and an
 * offset are named. (A tail call leaves no frame: in optimised programs `return tn_call(m, x);` is
 * reported where its function was called.) Nothing is looked up before the first error, and nothing
 * here can fail: what cannot be found is left out.
 */
#define _GNU_SOURCE 1 /* dladdr */
#include "core/error.h"
#include "core/fork.h"

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdwfl.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { MOST_FRAMES = 64 };

/* One lookup at a time, and one table of the process's modules, kept for the next error. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Dwfl *modules;

/* In a child of fork. Not taken by fork: who holds it asks the dynamic loader, inside of which
 * others may fork. Whoever was looking something up left the table as it was. */
static void renew_lock(void) {
    if (pthread_mutex_trylock(&lock) != 0) {
        lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
        modules = NULL;
        return;
    }
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void care_for_fork(void) {
    pthread_atfork(NULL, NULL, renew_lock);
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* The table of modules, current enough to know `address`; NULL when it cannot be made. Called with
 * the lock held. Separate debug files are found by build id on this machine only: the standard
 * search may ask the network. */
static Dwfl *modules_with(uintptr_t address) {
    static char *debug_path;
    static const Dwfl_Callbacks callbacks = {
        .find_elf = dwfl_linux_proc_find_elf,
        .find_debuginfo = dwfl_build_id_find_debuginfo,
        .debuginfo_path = &debug_path,
    };
    if (!modules) {
        modules = dwfl_begin(&callbacks);
    } else if (dwfl_addrmodule(modules, address)) {
        return modules;
    } else {
        dwfl_report_begin(modules);
    }
    if (modules) {
        int bad = dwfl_linux_proc_report(modules, getpid());
        if (dwfl_report_end(modules, NULL, NULL) != 0 || bad != 0) {
            dwfl_end(modules);
            modules = NULL;
        }
    }
    return modules;
}

/* The compilation unit that contains `address`, and the unit's bias. Asks each unit when there is
 * no table of address ranges (clang writes none). */
static Dwarf_Die *unit_of(Dwfl_Module *module, uintptr_t address, Dwarf_Addr *bias) {
    Dwarf_Die *unit = dwfl_module_addrdie(module, address, bias);
    if (unit) {
        return unit;
    }
    while ((unit = dwfl_module_nextcu(module, unit, bias))) {
        if (dwarf_haspc(unit, address - *bias) > 0) {
            return unit;
        }
    }
    return NULL;
}

/* File and line of the instruction at `address`; false without debug information. */
static bool line_of(Dwfl_Module *module, uintptr_t address, const char **file, int *line) {
    Dwarf_Addr bias = 0;
    Dwarf_Die *unit = unit_of(module, address, &bias);
    Dwarf_Line *found = unit ? dwarf_getsrc_die(unit, address - bias) : NULL;
    if (!found || dwarf_lineno(found, line) != 0 || *line <= 0) {
        return false;
    }
    *file = dwarf_linesrc(found, NULL, NULL);
    return *file != NULL;
}

/* A unit's source file as compiled, and the directory it was compiled in. */
static bool unit_names(Dwfl_Module *module, uintptr_t address, const char **name,
                       const char **directory) {
    Dwarf_Addr bias = 0;
    Dwarf_Attribute attribute;
    Dwarf_Die *unit = unit_of(module, address, &bias);
    if (!unit) {
        return false;
    }
    *name = dwarf_diename(unit);
    *directory = dwarf_formstring(dwarf_attr(unit, DW_AT_comp_dir, &attribute));
    return *name && *directory;
}

/* For a statically linked library: whether `address` is in one of its source files, which lie in
 * the folders beside the one of this file. Called with the lock held. */
static bool own_source(uintptr_t address) {
    static const char *const folders[] = {"core/", "tensor/", "backends/", "autograd/", "ops/",
                                          "nn/",   "optim/",  "data/",     "io/",       "train/"};
    const char *name, *directory, *own_name, *own_directory;
    uintptr_t own = (uintptr_t)&tn__place;
    Dwfl_Module *module = modules_with(address) ? dwfl_addrmodule(modules, address) : NULL;
    if (!module || !unit_names(module, address, &name, &directory) ||
        !unit_names(module, own, &own_name, &own_directory) ||
        strcmp(directory, own_directory) != 0) {
        return false;
    }
    size_t root = strlen(own_name) - strlen("core/place.c");
    if (strlen(own_name) < strlen("core/place.c") || strncmp(name, own_name, root) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (starts_with(name + root, folders[i])) {
            return true;
        }
    }
    return false;
}

/* Shared objects whose frames say nothing to a user. */
static bool runtime_object(const char *path) {
    static const char *const names[] = {"libc.",    "libc-",       "libpthread", "ld-linux",
                                        "libgomp",  "libomp",      "libasan.",   "libubsan.",
                                        "libtsan.", "libclang_rt", "libstdc++.", "libgcc_s"};
    const char *name = last_part(path);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (starts_with(name, names[i])) {
            return true;
        }
    }
    return false;
}

/* The symbol that contains `address`; also static functions, which dladdr does not know. Called
 * with the lock held. */
static const char *symbol_of(uintptr_t address, const Dl_info *object, uintptr_t *start) {
    GElf_Off offset = 0;
    GElf_Sym symbol;
    Dwfl_Module *module = modules_with(address) ? dwfl_addrmodule(modules, address) : NULL;
    const char *name =
        module ? dwfl_module_addrinfo(module, address, &offset, &symbol, NULL, NULL, NULL) : NULL;
    *start = name ? address - offset : (uintptr_t)object->dli_saddr;
    return name ? name : object->dli_sname;
}

/* Whether the frame at `address` is the library's. `own` describes the object with the library in
 * it. */
static bool own_frame(uintptr_t address, const Dl_info *object, const Dl_info *own,
                      bool linked_statically) {
    if (object->dli_fbase != own->dli_fbase || !linked_statically) {
        return object->dli_fbase == own->dli_fbase;
    }
    uintptr_t start;
    const char *name = symbol_of(address, object, &start);
    return (name && starts_with(name, "tn_")) || own_source(address);
}

static void describe_address(uintptr_t address, const Dl_info *object, char *text, size_t room) {
    const char *file;
    int line;
    uintptr_t start;
    Dwfl_Module *module = modules_with(address) ? dwfl_addrmodule(modules, address) : NULL;
    if (module && line_of(module, address, &file, &line)) {
        snprintf(text, room, "%s:%d", last_part(file), line);
        return;
    }
    const char *name = symbol_of(address, object, &start);
    uintptr_t back = address + 1; /* the return address itself, as debuggers show it */
    if (name) {
        snprintf(text, room, "%s+0x%zx", name, (size_t)(back - start));
    } else {
        snprintf(text, room, "%s+0x%zx", last_part(object->dli_fname),
                 (size_t)(back - (uintptr_t)object->dli_fbase));
    }
}

/* Whether this code was linked into the program itself and is no shared object. */
static bool in_program(const Dl_info *own) {
    Dl_info program;
    void *entry = (void *)getauxval(AT_ENTRY);
    return entry && dladdr(entry, &program) && program.dli_fbase == own->dli_fbase;
}

void tn__place(char *text, size_t room) {
    void *frames[MOST_FRAMES];
    Dl_info own, object;
    text[0] = 0;
    int count = backtrace(frames, MOST_FRAMES);
    if (count <= 0 || !dladdr((void *)(uintptr_t)&tn__place, &own)) {
        return;
    }
    bool linked_statically = in_program(&own);
    bool inside = false; /* a sanitizer's backtrace() comes first */
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        /* The instruction before the return address belongs to the call, also when the call is a
         * function's last. */
        uintptr_t address = (uintptr_t)frames[i] - 1;
        if (!dladdr((void *)address, &object) || !object.dli_fname) {
            continue;
        }
        if (own_frame(address, &object, &own, linked_statically)) {
            inside = true;
            continue;
        }
        if (!inside || runtime_object(object.dli_fname)) {
            continue;
        }
        describe_address(address, &object, text, room);
        break;
    }
    pthread_mutex_unlock(&lock);
}
