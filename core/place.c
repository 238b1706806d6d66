/* Where an error happened: the first stack frame outside the library, as file and line.
 *
 * The unwinder gives return addresses. Frames of libtern are skipped: those in its shared object,
 * or, when it is linked statically, functions named tn_… and functions of the library's own source
 * files. Frames of the C library, the OpenMP runtime and the like are skipped as well. The file
 * that the address was loaded from says which line it is (image.c) when it has debug information;
 * otherwise the symbol and an offset are named. (A tail call leaves no frame: in optimised programs
 * `return tn_call(m, x);` is reported where its function was called.) Nothing is looked up before
 * the first error. Nothing here allocates or can fail: what cannot be found is left out.
 */
#define _GNU_SOURCE 1 /* dladdr1 */
#include "core/error.h"
#include "core/image.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unwind.h>
#include <xxhash.h>

enum { MOST_FRAMES = 64, KNOWN = 128, TEXT = 96 };

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* ---- Objects: the program and its shared libraries ------------------------------------------- */

typedef struct object {
    Dl_info info;
    uintptr_t bias; /* what the loader added to the file's addresses */
    bool program;   /* and no shared library */
} object;

static bool object_of(uintptr_t address, object *o) {
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

/* The program is itself also when its file has another name by now, or the folder has changed. A
 * library may have been built anew since it was loaded: then its lines are others. */
static void open_image(tn__image *m, const object *o) {
    tn__image_open(m, o->program ? "/proc/self/exe" : o->info.dli_fname);
    if (m->at && !o->program && !tn__image_loaded(m, o->info.dli_fbase)) {
        tn__image_close(m);
    }
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

/* ---- A library that is linked statically ----------------------------------------------------- */

/* Whether `address` is in one of the library's source files, which lie in the folders beside the
 * one of this file. */
static bool own_source(const tn__image *m, uintptr_t address, uintptr_t own_address) {
    static const char *const folders[] = {"core/",        "tensor/", "backends/", "autograd/",
                                          "ops/",         "nn/",     "optim/",    "data/",
                                          "distributed/", "io/",     "train/"};
    static const char here[] = "core/place.c";
    char path[1024], own[1024];
    if (!tn__image_unit(m, address, path, sizeof(path)) ||
        !tn__image_unit(m, own_address, own, sizeof(own)) || strlen(own) < strlen(here)) {
        return false;
    }
    size_t root = strlen(own) - strlen(here);
    if (strcmp(own + root, here) != 0 || strncmp(path, own, root) != 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        if (starts_with(path + root, folders[i])) {
            return true;
        }
    }
    return false;
}

static bool own_function(const tn__image *m, uintptr_t address, const object *o) {
    uintptr_t start;
    const char *name = tn__image_symbol(m, address - o->bias, &start);
    return (name && starts_with(name, "tn_")) ||
           own_source(m, address - o->bias, (uintptr_t)&tn__place - o->bias);
}

/* ---- One address ----------------------------------------------------------------------------- */

/* What is said of an address; "": it is the library's own. */
typedef struct saying {
    uintptr_t address;
    uint64_t mark; /* of its object */
    char text[TEXT];
} saying;

static void describe_address(const tn__image *m, uintptr_t address, const object *o, char *text) {
    const char *file, *name = NULL;
    int line;
    uintptr_t start = 0;
    if (m->at && tn__image_line(m, address - o->bias, &file, &line)) {
        snprintf(text, TEXT, "%.80s:%d", file, line);
        return;
    }
    if (m->at && (name = tn__image_symbol(m, address - o->bias, &start))) {
        start += o->bias;
    } else if ((name = o->info.dli_sname)) {
        start = (uintptr_t)o->info.dli_saddr;
    }
    uintptr_t back = address + 1; /* the return address itself, as debuggers show it */
    if (name) {
        snprintf(text, TEXT, "%.70s+0x%zx", name, (size_t)(back - start));
    } else {
        snprintf(text, TEXT, "%.70s+0x%zx", last_part(o->info.dli_fname),
                 (size_t)(back - (uintptr_t)o->info.dli_fbase));
    }
}

/* `holds_library`: the library is linked into this object, which is not its own. */
static saying look_at(uintptr_t address, uint64_t mark, const object *o, bool holds_library) {
    tn__image image;
    saying s = {.address = address, .mark = mark};
    open_image(&image, o);
    if (!holds_library || !image.at || !own_function(&image, address, o)) {
        describe_address(&image, address, o, s.text);
    }
    tn__image_close(&image);
    return s;
}

/* What is known of addresses. Whoever finds the table in use does without: it may be in use for
 * ever in a child of fork. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static saying known[KNOWN];

static saying *known_slot(uintptr_t address) {
    return &known[(uint64_t)address * 0x9e3779b97f4a7c15u >> 32 & (KNOWN - 1)];
}

/* Tells a library from another one that was loaded to its place before: what its first page says,
 * where the build id is. The program stays where it is while the process lives. */
static uint64_t mark_of(const object *o) {
    return o->program ? 0 : XXH3_64bits(o->info.dli_fbase, TN__IMAGE_PAGE);
}

static bool recall_saying(uintptr_t address, uint64_t mark, saying *s) {
    bool found = false;
    if (pthread_mutex_trylock(&lock) == 0) {
        *s = *known_slot(address);
        found = s->address == address && s->mark == mark;
        pthread_mutex_unlock(&lock);
    }
    return found;
}

static void remember_saying(const saying *s) {
    if (pthread_mutex_trylock(&lock) == 0) {
        *known_slot(s->address) = *s;
        pthread_mutex_unlock(&lock);
    }
}

static saying say_where(uintptr_t address, const object *o, bool holds_library) {
    saying s;
    uint64_t mark = mark_of(o);
    if (!recall_saying(address, mark, &s)) {
        s = look_at(address, mark, o, holds_library);
        remember_saying(&s);
    }
    return s;
}

typedef struct stack {
    int count;
    uintptr_t frames[MOST_FRAMES];
} stack;

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *to) {
    stack *s = to;
    s->frames[s->count++] = _Unwind_GetIP(context);
    return s->count < MOST_FRAMES ? _URC_NO_REASON : _URC_END_OF_STACK;
}

/* backtrace() would load the unwinder when it is called first, which takes memory. */
void tn__place(char *text, size_t room) {
    stack s = {0};
    object own, o;
    text[0] = 0;
    _Unwind_Backtrace(add_frame, &s);
    if (!object_of((uintptr_t)&tn__place, &own)) {
        return;
    }
    bool inside = false;
    for (int i = 0; i < s.count; i++) {
        /* The instruction before the return address belongs to the call, also when the call is a
         * function's last. */
        uintptr_t address = s.frames[i] - 1;
        if (!object_of(address, &o)) {
            continue;
        }
        bool here = o.info.dli_fbase == own.info.dli_fbase;
        if (here && !own.program) {
            inside = true;
            continue;
        }
        if (runtime_object(o.info.dli_fname) || (!here && !inside)) {
            continue;
        }
        saying said = say_where(address, &o, here);
        if (!said.text[0]) {
            inside = true;
        } else if (inside) {
            snprintf(text, room, "%s", said.text);
            return;
        }
    }
}
