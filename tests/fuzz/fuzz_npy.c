/* The input is an array of NumPy's, or an archive of them. It is refused with an error, or all of
 * it can be read. */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Of 1000 bytes nothing larger than a megabyte can come. */
static void check_array(const tn_tensor *t, size_t bytes) {
    must(tn_is_inert(t) == (tn_error() != TN_OK),
         "inert and without an error, or the other way round");
    must(tn_error() == TN_OK || tn_error() == TN_EFORMAT || tn_error() == TN_ENOMEM ||
             tn_error() == TN_EUNSUPPORTED,
         "an unexpected error");
    tn_error_clear();
    size_t size = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)), sum = 0;
    const unsigned char *at = tn_data(t);
    must(tn_is_inert(t) || size <= 4400 * (bytes + 1), "more elements than there can be");
    for (size_t i = 0; !tn_is_inert(t) && i < size; i++) {
        sum += at[i];
    }
    must(sum <= size * 255, "a sum of bytes");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    int64_t live = tn_live_tensors();
    bytes_file file = bytes_file_open(data, bytes);
    {
        TN_SCOPE;
        check_array(tn_npy_load(file.path), bytes);
        tn_npz *f = tn_npz_open(file.path);
        must((f == NULL) == (tn_error() != TN_OK), "no file and no error, or both");
        must(tn_error() == TN_OK || tn_error() == TN_EFORMAT || tn_error() == TN_ENOMEM,
             "an unexpected error");
        tn_error_clear();
        for (int i = 0; i < tn_npz_count(f); i++) {
            TN_SCOPE;
            check_array(tn_npz_get(f, tn_npz_name(f, i)), bytes);
        }
        tn_npz_close(f);
    }
    bytes_file_close(&file);
    must(tn_live_tensors() == live, "a leak");
    return 0;
}
