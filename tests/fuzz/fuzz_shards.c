/* The input is read as a shard of tokens. Either it is refused, or every window that can be read
 * has tokens of the vocabulary, and targets that are tokens or none. */
#include "tests/fuzz/bytes.h"
#include "tests/support/dataset_text.h"

#include "tern/data.h"

enum { LENGTH = 6, VOCAB = 50257, MOST = 6 /* windows to read: errors are slow */ };

static void check_window(tn_dataset *d, int64_t i) {
    int64_t x[LENGTH], y[LENGTH];
    if (!WAS_TAKEN(tn_dataset_get(d, i, x, y) == TN_OK, NULL, TN_EFORMAT)) { return; }
    for (int t = 0; t < LENGTH; t++) {
        must_hold(x[t] >= 0 && x[t] < VOCAB, "a token outside the vocabulary");
        must_hold(y[t] == -100 || (y[t] >= 0 && y[t] < VOCAB), "a target outside the vocabulary");
    }
}

static void check_shards(tn_dataset *d) {
    if (!WAS_TAKEN(d != NULL, NULL, TN_EFORMAT)) { return; }
    must_hold(d->size > 0, "a dataset without windows");
    for (int64_t i = 0; i < d->size && i < MOST; i++) {
        check_window(d, i);
    }
    check_window(d, d->size - 1);
    char text[DATASET_TEXT];
    must_hold(dataset_text(d, text), "data that cannot be described");
    tn_dataset_free(d);
}

FUZZ(shards, NULL) {
    bytes_file f = bytes_file_open(data, bytes);
    check_shards(tn_token_shards(f.path, LENGTH, VOCAB));
    check_shards(tn_sliding_shards(f.path, LENGTH, 2, VOCAB));
    bytes_file_close(&f);
}
