/* elfutils' libdw, loaded once. What it reads is dropped after each lookup, which takes less than a
 * millisecond: nothing is kept that a fork or a replaced library would make stale, and threads
 * share only its functions.
 *
 * It crashes when malloc fails inside it (seen with 0.188), so it is called only while there is
 * memory. Only the loaded files are read: a search for separate debug information may go to the
 * network.
 */
#define _GNU_SOURCE 1 /* Dl_info */
#include "core/dwarf.h"

#include "core/descriptor.h"
#include "core/place.h"
#include "core/plugin.h"

#include <stdlib.h>

static bool switched_off; /* atomic */

void tn__place_lines(bool on) {
    __atomic_store_n(&switched_off, !on, __ATOMIC_RELAXED);
}

#if TN_HAVE_LIBDW

#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EACH_FUNCTION(of)                                                                       \
    of(dwarf_getsrc_die) of(dwarf_haspc) of(dwarf_lineno) of(dwarf_linesrc) of(dwfl_addrmodule) \
        of(dwfl_begin) of(dwfl_end) of(dwfl_module_addrdie) of(dwfl_module_addrinfo)            \
            of(dwfl_module_nextcu) of(dwfl_report_begin_add) of(dwfl_report_elf)                \
                of(dwfl_report_end)

static struct functions {
    bool tried, all;
#define MEMBER(function) __typeof__(function) *function;
    EACH_FUNCTION(MEMBER)
#undef MEMBER
} dw;

struct tn__dwarf {
    Dwfl *files;
};

static bool is_memory_short(void) {
    const size_t enough = 64 << 20; /* more than a lookup takes */
    void *block = mmap(NULL, enough, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED || munmap(block, enough) != 0;
}

static int find_no_elf(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base,
                       char **file, Elf **elf) {
    return -1;
}

static int find_no_debuginfo(Dwfl_Module *module, void **user, const char *name, Dwarf_Addr base,
                             const char *file, const char *link, GElf_Word crc, char **found) {
    return -1;
}

static void load_functions(void) {
    char why[256];
    void *handle = tn__library_open("libdw.so.1", why, sizeof(why));
    dw.all = handle;
#define LOAD(function) dw.all = dw.all && (*(void **)&dw.function = dlsym(handle, #function));
    EACH_FUNCTION(LOAD)
#undef LOAD
    __atomic_store_n(&dw.tried, true, __ATOMIC_RELEASE);
}

static bool has_functions(void) {
    if (!__atomic_load_n(&dw.tried, __ATOMIC_ACQUIRE)) {
        tn__libraries_hold();
        if (!dw.tried) { load_functions(); }
        tn__libraries_let_go();
    }
    return dw.all;
}

tn__dwarf *tn__dwarf_open(void) {
    static const Dwfl_Callbacks callbacks = {.find_elf = find_no_elf,
                                             .find_debuginfo = find_no_debuginfo};
    if (__atomic_load_n(&switched_off, __ATOMIC_RELAXED) || is_memory_short()) { return NULL; }
    tn__dwarf *d = calloc(1, sizeof(*d));
    if (!d || !has_functions() || !(d->files = dw.dwfl_begin(&callbacks))) {
        free(d);
        return NULL;
    }
    dw.dwfl_report_end(d->files, NULL, NULL);
    return d;
}

void tn__dwarf_close(tn__dwarf *d) {
    if (d) {
        dw.dwfl_end(d->files);
        free(d);
    }
}

/* The file that was loaded, open for reading; -1 if another file has its name by now. The program
 * is found even if its file was renamed or the current folder has changed. If a library was rebuilt
 * since, the first page, with the build id, differs. */
static int open_loaded(const tn__object *o) {
    enum { PAGE = 4096 }; /* the smallest page size; a file's first page is always mapped whole */
    char page[PAGE];
    int fd = tn__above_streams(
        open(o->program ? "/proc/self/exe" : o->info.dli_fname, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    ssize_t got = fd >= 0 && !o->program ? pread(fd, page, PAGE, 0) : 0;
    if (fd >= 0 && !o->program && (got <= 0 || memcmp(page, o->info.dli_fbase, (size_t)got) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static Dwfl_Module *module_of(tn__dwarf *d, const tn__object *o, uintptr_t address) {
    Dwfl_Module *module = d ? dw.dwfl_addrmodule(d->files, address) : NULL;
    int fd = d && !module ? open_loaded(o) : -1;
    if (fd >= 0) {
        dw.dwfl_report_begin_add(d->files);
        if (!dw.dwfl_report_elf(d->files, o->info.dli_fname, "", fd, o->bias, true)) { close(fd); }
        dw.dwfl_report_end(d->files, NULL, NULL);
        module = dw.dwfl_addrmodule(d->files, address);
    }
    return module;
}

/* Searches each unit when there is no table of address ranges (clang writes none). */
static Dwarf_Die *unit_of(tn__dwarf *d, Dwfl_Module *module, uintptr_t address, Dwarf_Addr *bias) {
    Dwarf_Die *unit = dw.dwfl_module_addrdie(module, address, bias);
    if (!unit) {
        while ((unit = dw.dwfl_module_nextcu(module, unit, bias)) &&
               dw.dwarf_haspc(unit, address - *bias) <= 0) {}
    }
    return unit;
}

bool tn__dwarf_source(tn__dwarf *d, const tn__object *o, uintptr_t address, const char **path,
                      int *line) {
    Dwarf_Addr bias = 0;
    Dwfl_Module *module = module_of(d, o, address);
    Dwarf_Die *unit = module ? unit_of(d, module, address, &bias) : NULL;
    Dwarf_Line *found = unit ? dw.dwarf_getsrc_die(unit, address - bias) : NULL;
    return found && dw.dwarf_lineno(found, line) == 0 && *line > 0 &&
           (*path = dw.dwarf_linesrc(found, NULL, NULL));
}

const char *tn__dwarf_function(tn__dwarf *d, const tn__object *o, uintptr_t address,
                               uintptr_t *start) {
    GElf_Off offset = 0;
    GElf_Sym symbol;
    Dwfl_Module *module = module_of(d, o, address);
    const char *name =
        module ? dw.dwfl_module_addrinfo(module, address, &offset, &symbol, NULL, NULL, NULL)
               : NULL;
    *start = address - offset;
    return name;
}

#else

tn__dwarf *tn__dwarf_open(void) {
    return NULL;
}

void tn__dwarf_close(tn__dwarf *d) {}

bool tn__dwarf_source(tn__dwarf *d, const tn__object *o, uintptr_t address, const char **path,
                      int *line) {
    return false;
}

const char *tn__dwarf_function(tn__dwarf *d, const tn__object *o, uintptr_t address,
                               uintptr_t *start) {
    return NULL;
}

#endif
