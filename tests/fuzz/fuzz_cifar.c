/* The input is read as a file of CIFAR-10 and of CIFAR-100: pictures with labels that are classes,
 * or an error. */
#include "tests/fuzz/folder.h"

#include "tern/data.h"

static const char *cifar_folder;

static void make_cifar_folder(void) {
    cifar_folder = fuzz_folder_new();
}

static void check_pictures(tn_dataset *d, size_t bytes, size_t record, int64_t classes) {
    if (!WAS_TAKEN(d != NULL, cifar_folder, TN_EFORMAT)) { return; }
    must_hold((size_t)d->size * record == bytes, "pictures that are not in the file");
    for (int64_t i = 0; i < d->size; i++) {
        float x[3 * 32 * 32];
        int64_t y;
        must_hold(tn_dataset_get(d, i, x, &y) == TN_OK && y >= 0 && y < classes,
                  "a label that is not a class");
        for (int p = 0; p < 3 * 32 * 32; p++) {
            must_hold(x[p] >= 0 && x[p] <= 1, "a pixel outside [0, 1]");
        }
    }
    tn_dataset_free(d);
}

FUZZ(cifar, make_cifar_folder) {
    fuzz_folder_write(cifar_folder, "test_batch.bin", data, bytes);
    fuzz_folder_write(cifar_folder, "test.bin", data, bytes);
    check_pictures(tn_cifar10(cifar_folder, false), bytes, 3073, 10);
    check_pictures(tn_cifar100(cifar_folder, false), bytes, 3074, 100);
}
