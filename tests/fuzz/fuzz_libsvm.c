/* The input is a libsvm file: each row can be read, or there is an error that names the file.
 */
#define _GNU_SOURCE
#include "tests/support/dataset_text.h"
#include "tests/fuzz/bytes.h"

#include "tern/data.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    enum { FEATURES = 300 };
    bytes_file f = bytes_file_open(data, bytes);
    tn_dataset *d = tn_libsvm_dataset(f.path, FEATURES);
    must_hold((d == NULL) == (tn_error() != TN_OK), "no rows and no error, or both");
    must_hold(d || (tn_error() == TN_EFORMAT && strstr(tn_error_message(), f.path)),
              "another error");
    tn_error_clear();
    for (int64_t i = 0; d && i < d->size; i++) {
        float x[FEATURES], y;
        must_hold(tn_dataset_get(d, i, x, &y) == TN_OK && !isnan(y), "a row that cannot be read");
        for (int k = 0; k < FEATURES; k++) {
            must_hold(!isnan(x[k]), "a number that is NaN");
        }
    }
    char text[DATASET_TEXT];
    must_hold(!d || dataset_text(d, text), "data that cannot be described");
    tn_dataset_free(d);
    bytes_file_close(&f);
    return 0;
}
