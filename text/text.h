/* String functions that the C library lacks. */
#ifndef TERN_TEXT_TEXT_H
#define TERN_TEXT_TEXT_H

#include <stdbool.h>
#include <string.h>

/* "model.bin" ends with ".bin". */
static inline bool tn__ends_with(const char *text, const char *end) {
    size_t all = strlen(text), bytes = strlen(end);
    return all >= bytes && strcmp(text + all - bytes, end) == 0;
}

#endif
