/* The input is two files of MNIST, plain or .gz: the length of the first in two bytes, images,
 * labels. Digits, or an error that names a file. */
#include "tests/fuzz/folder.h"

#include "tern/data.h"

static const char *idx_folder;

static void make_idx_folder(void) {
    idx_folder = fuzz_folder_new();
}

static void check_digits(tn_dataset *d) {
    if (!WAS_TAKEN(d != NULL, idx_folder, TN_EFORMAT)) { return; }
    for (int64_t i = 0; i < d->size; i++) {
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

FUZZ(idx, make_idx_folder) {
    if (bytes < 2) { return; }
    size_t images = (size_t)data[0] | (size_t)data[1] << 8, most = bytes - 2;
    images = images < most ? images : most;
    fuzz_folder_write(idx_folder, "t10k-images-idx3-ubyte", data + 2, images);
    fuzz_folder_write(idx_folder, "t10k-labels-idx1-ubyte", data + 2 + images, most - images);
    check_digits(tn_mnist(idx_folder, false));
}
