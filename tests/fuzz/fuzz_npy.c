/* The input is a NumPy array, or an archive of arrays. It is refused with an error, or all of it
 * can be read, also the rows of an array one at a time. */
#include "tests/fuzz/bytes.h"
#include "tests/support/dataset_text.h"

#include "tern/tern.h"

#include <string.h>

/* The size of an array is limited by that of its file, even a compressed one. */
static void check_array(const tn_tensor *t, size_t bytes) {
    bool made = !tn_is_inert(t);
    if (!WAS_TAKEN(made, NULL, TN_EFORMAT, TN_ENOMEM, TN_EUNSUPPORTED)) { return; }
    size_t size = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)), sum = 0;
    const unsigned char *at = tn_data(t);
    must_hold(size <= 4400 * (bytes + 1), "more elements than there can be");
    for (size_t i = 0; i < size; i++) {
        sum += at[i];
    }
    must_hold(sum <= size * 255, "a sum of bytes");
}

/* Rows are read one at a time: the first and the last. */
static void check_rows(const char *path, size_t bytes) {
    tn_dataset *d = tn_npy_dataset(path, path);
    if (!WAS_TAKEN(d != NULL, NULL, TN_EFORMAT, TN_EUNSUPPORTED, TN_ESHAPE)) { return; }
    size_t row = (size_t)tn_dims_count(d->x_dims) * tn_dtype_size(d->x_dtype);
    if (d->size > 0) {
        must_hold(row <= 4 * bytes, "a row that is larger than the file");
        unsigned char *x = malloc(2 * row + 1), *y = x + row;
        for (int last = 0; last < 2; last++) {
            must_hold(x && tn_dataset_get(d, last ? d->size - 1 : 0, x, y) == TN_OK,
                      "a row cannot be read");
            must_hold(memcmp(x, y, row) == 0, "x and y differ");
        }
        free(x);
    }
    char text[DATASET_TEXT];
    must_hold(dataset_text(d, text), "data that cannot be described");
    tn_dataset_free(d);
}

FUZZ(npy, NULL) {
    bytes_file file = bytes_file_open(data, bytes);
    {
        TN_SCOPE;
        check_array(tn_npy_load(file.path), bytes);
        check_rows(file.path, bytes);
        tn_npz *f = tn_npz_open(file.path);
        WAS_TAKEN(f != NULL, NULL, TN_EFORMAT, TN_ENOMEM, TN_EUNSUPPORTED);
        for (int i = 0; i < tn_npz_count(f); i++) {
            TN_SCOPE;
            check_array(tn_npz_get(f, tn_npz_name(f, i)), bytes);
        }
        tn_npz_close(f);
    }
    bytes_file_close(&file);
}
