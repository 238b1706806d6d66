/* What an ELF file says about an address: the source line (DWARF's line table, versions 2 to 5) and
 * the symbol. The file is mapped and walked anew for each question. Nothing allocates, nothing is
 * kept, and every number is checked before it is used: this runs while an error is being raised,
 * when memory may be what is missing.
 */
#ifndef TERN_CORE_IMAGE_H
#define TERN_CORE_IMAGE_H

#include "tern/core.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tn__image {
    const unsigned char *at;
    size_t bytes;
} tn__image;

/* False when there is no such file, or it is no ELF file of this machine's word size and order. */
TN_API bool tn__image_open(tn__image *m, const char *path);
TN_API void tn__image_close(tn__image *m);

enum { TN__IMAGE_PAGE = 4096 }; /* the smallest there is; the loader maps all of a file's first */

/* Whether this is the file that the loader put to `start`, and none that has taken its name since:
 * the first page, where the build id stands, is the same. */
TN_API bool tn__image_loaded(const tn__image *m, const void *start);

/* Addresses are the file's own: without what the loader added. Texts are valid until the image is
 * closed. */

/* The name, without folders, and line of the source that this instruction comes from. False without
 * a line table, or with one that is compressed. */
TN_API bool tn__image_line(const tn__image *m, uintptr_t address, const char **file, int *line);

/* The path of the source that was being compiled, as far as the line table has it. */
TN_API bool tn__image_unit(const tn__image *m, uintptr_t address, char *path, size_t room);

/* The function around this instruction, also a static one; NULL without symbols. */
TN_API const char *tn__image_symbol(const tn__image *m, uintptr_t address, uintptr_t *start);

#endif
