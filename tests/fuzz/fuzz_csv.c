/* The input is a byte of options and a table, plain or compressed: rows of numbers with classes or
 * targets, or an error that names the file. */
#include "tests/fuzz/bytes.h"
#include "tests/support/dataset_text.h"

#include "tern/data.h"

#include <math.h>
#include <string.h>

static void check_table(tn_dataset *d, const char *path, tn_csv_options o) {
    if (!WAS_TAKEN(d != NULL, path, TN_EFORMAT, TN_EVALUE)) { return; }
    int64_t classes = 0, features = tn_dims_count(d->x_dims), label = 0;
    for (; d->classes && d->classes[classes]; classes++) {
        must_hold(classes == 0 || strcmp(d->classes[classes - 1], d->classes[classes]) != 0,
                  "a class twice");
    }
    float *x = malloc((size_t)features * sizeof(*x));
    must_hold(x && features > 0 && d->size > 0, "a dataset of nothing");
    for (int64_t i = 0; i < d->size; i++) {
        must_hold(tn_dataset_get(d, i, x, &label) == TN_OK, "a row that cannot be read");
        for (int64_t k = 0; k < features; k++) {
            must_hold(!isnan(x[k]) || o.missing == TN_MISSING_NAN, "a number that is missing");
        }
        must_hold(d->y_dtype != TN_I64 || d->y_dims.ndim < 0 || (label >= 0 && label < classes),
                  "a label that is not a class");
    }
    free(x);
    char text[DATASET_TEXT];
    must_hold(dataset_text(d, text), "data that cannot be described");
    tn_dataset_free(d);
}

FUZZ(csv, NULL) {
    if (bytes == 0) { return; }
    static const char *const targets[] = {"-1", "0", "a", NULL};
    tn_csv_options o = TN_WITH(tn_csv, .header = !(data[0] & 1));
    o.delimiter = data[0] & 2 ? ';' : ',';
    o.missing = (tn_csv_missing)((data[0] >> 2 & 3) % 3);
    o.target_kind = data[0] & 16 ? TN_CSV_NUMBERS : TN_CSV_CLASSES;
    o.target = targets[data[0] >> 5 & 3];
    bytes_file f = bytes_file_open(data + 1, bytes - 1);
    check_table(tn_csv_dataset(f.path, o), f.path, o);
    bytes_file_close(&f);
}
