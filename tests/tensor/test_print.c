/* Printing what NumPy lacks: bf16, short buffers, errors. The rest is in test_print_numpy.py. */
#include "tern/sys/tensor.h"

#include <string.h>

#include "tests/support/test.h"

TEST(test_short_buffer) {
    float x[] = {1, 2, 3};
    tn_tensor *t = TN_FROM(x, TN_DIMS(3), TN_F32);
    char text[8];
    for (size_t size = 0; size <= sizeof(text); size++) {
        memset(text, 'z', sizeof(text));
        assert_int_equal(tn_format(t, text, size), 10);
        for (size_t i = 0; i < sizeof(text); i++) {
            assert_int_equal(text[i], i >= size ? 'z' : i == size - 1 ? 0 : "[1. 2. 3.]"[i]);
        }
    }
}

TEST(test_to_a_file) {
    char text[64] = {0};
    int32_t x[] = {1, -2};
    FILE *file = tmpfile();
    tn_fprint(file, TN_FROM(x, TN_DIMS(2), TN_I32));
    tn_fprint(file, tn_inert());
    rewind(file);
    assert_int_equal(fread(text, 1, sizeof(text), file), 14);
    assert_string_equal(text, "[ 1 -2]\ninert\n");
    fclose(file);
    tn_fprint(NULL, tn_inert());
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
}

TEST(test_bf16) {
    tn_bf16 x[] = {tn_bf16_from_float(1), tn_bf16_from_float(0.1f), tn_bf16_from_float(-3.14159f)};
    char text[40];
    assert_int_equal(tn_format(TN_FROM(x, TN_DIMS(3), TN_BF16), text, sizeof(text)), 19);
    assert_string_equal(text, "[   1.   0.1 -3.14]");
}

TEST(test_cannot_print) {
    char text[8] = "z";
    assert_int_equal(tn_format(NULL, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(tn_error(), TN_EVALUE);
    tn_error_clear();
    tn_tensor *t = tn_empty(TN_DIMS(4), TN_F32);
    assert_int_equal(tn_storage_empty(t), TN_OK);
    assert_int_equal(tn_format(t, text, sizeof(text)), 0);
    assert_int_equal(tn_error(), TN_ESTATE);
    tn_error_clear();
}
