/* Whole files in memory. */
#include "core/reader.h"
#include "tern/data.h"

#include <stdlib.h>

char *tn_text_read(const char *path, size_t *bytes) {
    size_t ignored;
    return tn__read_whole(path, bytes ? bytes : &ignored, "text_read");
}

void tn_text_free(char *text) {
    free(text);
}
