/* The input is a NumPy array, or an archive of arrays. It is refused with an error, or all of it
 * can be read, also the rows of an array one at a time. */
#define _GNU_SOURCE
#include "tests/support/dataset_text.h"
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* The size of an array is limited by that of its file, even a compressed one. */
static void check_array(const tn_tensor *t, size_t bytes) {
    must_hold(tn_is_inert(t) == (tn_error() != TN_OK),
              "inert and without an error, or the other way round");
    must_hold(tn_error() == TN_OK || tn_error() == TN_EFORMAT || tn_error() == TN_ENOMEM ||
                  tn_error() == TN_EUNSUPPORTED,
              "an unexpected error");
    tn_error_clear();
    size_t size = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)), sum = 0;
    const unsigned char *at = tn_data(t);
    must_hold(tn_is_inert(t) || size <= 4400 * (bytes + 1), "more elements than there can be");
    for (size_t i = 0; !tn_is_inert(t) && i < size; i++) {
        sum += at[i];
    }
    must_hold(sum <= size * 255, "a sum of bytes");
}

/* Rows are read one at a time: the first and the last. */
static void check_rows(const char *path, size_t bytes) {
    tn_dataset *d = tn_npy_dataset(path, path);
    must_hold((d == NULL) == (tn_error() != TN_OK), "no dataset and no error, or both");
    must_hold(d || tn_error() == TN_EFORMAT || tn_error() == TN_EUNSUPPORTED ||
                  tn_error() == TN_ESHAPE,
              "an unexpected error");
    tn_error_clear();
    size_t row = d ? (size_t)tn_dims_count(d->x_dims) * tn_dtype_size(d->x_dtype) : 0;
    if (d && d->size > 0) {
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
    must_hold(!d || dataset_text(d, text), "data that cannot be described");
    tn_dataset_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    int64_t live = tn_live_tensors();
    bytes_file file = bytes_file_open(data, bytes);
    {
        TN_SCOPE;
        check_array(tn_npy_load(file.path), bytes);
        check_rows(file.path, bytes);
        tn_npz *f = tn_npz_open(file.path);
        must_hold((f == NULL) == (tn_error() != TN_OK), "no file and no error, or both");
        must_hold(tn_error() == TN_OK || tn_error() == TN_EFORMAT || tn_error() == TN_ENOMEM ||
                      tn_error() == TN_EUNSUPPORTED,
                  "an unexpected error");
        tn_error_clear();
        for (int i = 0; i < tn_npz_count(f); i++) {
            TN_SCOPE;
            check_array(tn_npz_get(f, tn_npz_name(f, i)), bytes);
        }
        tn_npz_close(f);
    }
    bytes_file_close(&file);
    must_hold(tn_live_tensors() == live, "a leak");
    return 0;
}
