/* What debug information says about an address: elfutils' libdw, loaded when the first place is
 * looked up. */
#ifndef TERN_CORE_DWARF_H
#define TERN_CORE_DWARF_H

#include "tern/core.h"

#include <dlfcn.h>

/* The program or a shared library. */
typedef struct tn__object {
    Dl_info info;
    uintptr_t bias; /* what the loader added to the file's addresses */
    bool program;   /* and no shared library */
} tn__object;

typedef struct tn__dwarf tn__dwarf;

/* NULL where there is no libdw, memory is short or tn__place_lines(false) was said. */
tn__dwarf *tn__dwarf_open(void);
void tn__dwarf_close(tn__dwarf *d);

/* The path, as compiled, and line of the source of this instruction, and its function, also a
 * static one, with its start. False or NULL: it is not known. The texts live as long as d, which
 * may be NULL. */
bool tn__dwarf_source(tn__dwarf *d, const tn__object *o, uintptr_t address, const char **path,
                      int *line);
const char *tn__dwarf_function(tn__dwarf *d, const tn__object *o, uintptr_t address,
                               uintptr_t *start);

#endif
