/* What debug information says about an address: elfutils' libdw, loaded at the first lookup. */
#ifndef TERN_CORE_DWARF_H
#define TERN_CORE_DWARF_H

#include "tern/core.h"

#include <dlfcn.h>

/* The program or a shared library. */
typedef struct tn__object {
    Dl_info info;
    uintptr_t bias; /* what the loader added to the file's addresses */
    bool program;   /* not a shared library */
} tn__object;

typedef struct tn__dwarf tn__dwarf;

/* NULL without libdw, when memory is short, or after tn__place_lines(false). */
tn__dwarf *tn__dwarf_open(void);
void tn__dwarf_close(tn__dwarf *d);

/* The source path, as compiled, and line of this instruction; and its function, static ones too,
 * with its start. False or NULL: not known. The strings live as long as d, which may be NULL. */
bool tn__dwarf_source(tn__dwarf *d, const tn__object *o, uintptr_t address, const char **path,
                      int *line);
const char *tn__dwarf_function(tn__dwarf *d, const tn__object *o, uintptr_t address,
                               uintptr_t *start);

#endif
