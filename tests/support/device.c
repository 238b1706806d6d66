/* Test programs on a device: TERN_TEST_DEVICE=cuda makes it the default device before main begins.
 * Part of every program.
 */
#include "tern/tensor.h"

#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void choose_device(void) {
    const char *name = getenv("TERN_TEST_DEVICE");
    if (name && *name) { tn_set_default_device(tn_device_named(name)); }
    if (tn_error() != TN_OK) {
        fprintf(stderr, "TERN_TEST_DEVICE=%s: %s\n", name, tn_error_message());
        exit(2);
    }
}
