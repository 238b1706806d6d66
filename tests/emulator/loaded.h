/* How a stand-in finds the emulator next to which it is loaded. */
#ifndef TERN_TESTS_EMULATOR_LOADED_H
#define TERN_TESTS_EMULATOR_LOADED_H

#include <dlfcn.h>
#include <link.h>
#include <string.h>

static inline int emulator_is_here(struct dl_phdr_info *info, size_t size, void *user) {
    if (info->dlpi_name && strstr(info->dlpi_name, "libtern_cuda_emulator")) {
        *(const char **)user = info->dlpi_name;
    }
    return 0;
}

/* For dlsym; NULL: it is not loaded. */
static inline void *loaded_emulator(void) {
    const char *path = NULL;
    dl_iterate_phdr(emulator_is_here, &path);
    return path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

#endif
