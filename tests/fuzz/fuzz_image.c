/* The input is an address and an ELF file. Whatever is in the file, nothing beyond it is read, and
 * what it says of the address is a text. */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "core/image.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ask_image(const tn__image *m, uintptr_t address) {
    const char *file = NULL, *name;
    int line = 0;
    uintptr_t start = 0;
    char path[40];
    if (tn__image_line(m, address, &file, &line)) {
        must(*file && !strchr(file, '/') && line > 0, "a line that is none");
    }
    if (tn__image_unit(m, address, path, sizeof(path))) {
        must(*path && strlen(path) < sizeof(path), "a path that is none");
    }
    if ((name = tn__image_symbol(m, address, &start))) {
        must(*name && start <= address, "a symbol that is none");
    }
}

/* Mapped memory ends with its page: the copy ends with the file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    uint64_t address = 0;
    tn__image m;
    if (bytes < sizeof(address)) {
        return 0;
    }
    memcpy(&address, data, sizeof(address));
    bytes -= sizeof(address);
    bytes_file file = bytes_file_open(data + sizeof(address), bytes);
    if (tn__image_open(&m, file.path)) {
        must(m.bytes == bytes && tn__image_loaded(&m, m.at), "another file");
        tn__image_close(&m);
        unsigned char *copy = malloc(bytes);
        must(copy != NULL, "no memory");
        memcpy(copy, data + sizeof(address), bytes);
        ask_image(&(tn__image){copy, bytes}, (uintptr_t)address);
        free(copy);
    }
    bytes_file_close(&file);
    return 0;
}
