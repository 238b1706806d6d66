/* The input is a PNG or JPEG file: a picture, or an error that names the file. */
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <string.h>

FUZZ(picture, NULL) {
    bytes_file f = bytes_file_open(data, bytes);
    {
        TN_SCOPE;
        tn_tensor *t = tn_image_read(f.path, TN_U8);
        if (WAS_TAKEN(!tn_is_inert(t), f.path, TN_EFORMAT, TN_EUNSUPPORTED)) {
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
    bytes_file_close(&f);
}
