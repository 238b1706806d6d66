/* The input is two files of MNIST, plain or .gz: the length of the first in two bytes, images,
 * labels. Digits, or an error that names a file. */
#define _GNU_SOURCE
#include "tests/fuzz/folder.h"

#include "tern/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char idx_folder[32];

static void remove_idx_folder(void) {
    fuzz_folder_remove(idx_folder);
}

static void check_digits(tn_dataset *d) {
    must_hold((d == NULL) == (tn_error() != TN_OK), "no digits and no error, or both");
    must_hold(d != NULL || (tn_error() == TN_EFORMAT && strstr(tn_error_message(), idx_folder)),
              "an error other than the file's");
    tn_error_clear();
    for (int64_t i = 0; d && i < d->size; i++) {
        float x[28 * 28];
        int64_t y;
        must_hold(tn_dataset_get(d, i, x, &y) == TN_OK && y >= 0 && y < 10,
                  "a label that is not a digit");
        for (int p = 0; p < 28 * 28; p++) {
            must_hold(x[p] >= 0 && x[p] <= 1, "a pixel outside [0, 1]");
        }
    }
    tn_dataset_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (!*idx_folder) {
        strcpy(idx_folder, "/tmp/tern_fuzz_XXXXXX");
        fuzz_folder_make(idx_folder);
        atexit(remove_idx_folder);
    }
    if (bytes < 2) { return 0; }
    size_t images = (size_t)data[0] | (size_t)data[1] << 8, most = bytes - 2;
    images = images < most ? images : most;
    fuzz_folder_write(idx_folder, "t10k-images-idx3-ubyte", data + 2, images);
    fuzz_folder_write(idx_folder, "t10k-labels-idx1-ubyte", data + 2 + images, most - images);
    check_digits(tn_mnist(idx_folder, false));
    return 0;
}
