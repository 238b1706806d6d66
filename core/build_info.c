/* One line that says what this library is: for bug reports and the head of a log. */
#include "core/build_info.h"

#include "core/thread.h"

#include <stdio.h>
#include <string.h>

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *tn__build_info_backend;

const char *tn_build_info(void) {
    char *text = tn__thread_texts()->build_info;
    size_t size = sizeof(tn__thread_texts()->build_info);
#ifdef TN_DEBUG_TENSORS
    const char *debug = ", memory checked";
#else
    const char *debug = "";
#endif
    const char *backend = tn__build_info_backend;
    int threads = tn_threads();
    snprintf(text, size, "tern %d.%d.%d, %s%s, %s, %d thread%s", TN_VERSION_MAJOR, TN_VERSION_MINOR,
             TN_VERSION_PATCH, COMPILER, debug, backend ? backend : "no kernels", threads,
             threads == 1 ? "" : "s");
    return text;
}

const char *tn__version_text(void) {
    return tn__version;
}

bool tn__version_agrees(const char *a, const char *b) {
    size_t numbers_a = strcspn(a, "+"), numbers_b = strcspn(b, "+");
    bool both = a[numbers_a] && b[numbers_b];
    return both ? strcmp(a, b) == 0 : numbers_a == numbers_b && strncmp(a, b, numbers_a) == 0;
}
