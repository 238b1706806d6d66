/* The input is a PNG or JPEG file: a picture, or an error that names the file. */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    int64_t live = tn_live_tensors();
    bytes_file f = bytes_file_open(data, bytes);
    {
        TN_SCOPE;
        tn_tensor *t = tn_image_read(f.path, TN_U8);
        must_hold(tn_is_inert(t) == (tn_error() != TN_OK), "no picture and no error, or both");
        must_hold(!tn_is_inert(t) || tn_error() == TN_EFORMAT || tn_error() == TN_EUNSUPPORTED,
                  "another error");
        must_hold(!tn_is_inert(t) || strstr(tn_error_message(), f.path),
                  "an error that does not name the file");
        tn_error_clear();
        if (!tn_is_inert(t)) {
            must_hold(tn_size(t, 0) == 3 && tn_count(t) > 0, "another shape");
            must_hold((size_t)tn_count(t) <= 3 * (65536 + 8256 * bytes),
                      "more than the bytes can hold");
            size_t sum = 0;
            for (int64_t i = 0; i < tn_count(t); i++) { /* each pixel was written */
                sum += ((const uint8_t *)tn_data(t))[i];
            }
            must_hold(sum <= 255 * (size_t)tn_count(t), "a sum of bytes");
        }
    }
    must_hold(tn_live_tensors() == live, "a leak");
    bytes_file_close(&f);
    return 0;
}
