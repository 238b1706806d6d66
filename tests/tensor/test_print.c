/* Printing, against NumPy's text in print_expected.h, and what NumPy lacks. */
#include "tern/sys/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

#include "print_expected.h"

static void store_element(void *data, int64_t i, double value, tn_dtype dtype) {
    switch (dtype) {
    case TN_F32:
        ((float *)data)[i] = (float)value;
        break;
    case TN_F64:
        ((double *)data)[i] = value;
        break;
    case TN_I64:
        ((int64_t *)data)[i] = (int64_t)value;
        break;
    case TN_I32:
        ((int32_t *)data)[i] = (int32_t)value;
        break;
    default:
        fail_msg("no rule for %s", tn_dtype_name(dtype));
    }
}

/* The tensor of a case; with `odd`, as a transposed view with gaps in memory. */
static tn_tensor *case_tensor(size_t k, bool odd) {
    tn_dims dims = cases[k].dims;
    int64_t count = tn_dims_count(dims);
    size_t size = tn_dtype_size(cases[k].dtype);
    char *data = malloc((size_t)count * size + 1);
    for (int64_t i = 0; i < count; i++) {
        if (cases[k].data) {
            memcpy(data + (size_t)i * size, cases[k].data + (size_t)i * size, size);
        } else {
            store_element(data, i,
                          cases[k].step > 0 ? (double)i * cases[k].step
                          : i == 600        ? 1e30
                                            : 1,
                          cases[k].dtype);
        }
    }
    tn_tensor *t = tn_from_data(data, dims, cases[k].dtype);
    /* every second element of twice the memory, first dimension innermost */
    if (odd && dims.ndim > 0 && count > 0) {
        tn_tensor *wide = tn_empty(TN_DIMS(2 * count + 1), cases[k].dtype);
        int64_t stride[TN_MAX_DIMS], next = 2;
        for (int i = 0; i < dims.ndim; i++) {
            stride[i] = next;
            next *= dims.size[i];
        }
        tn_tensor *view = tn__view(wide, dims, stride, 1);
        for (int64_t i = 0; i < count; i++) {
            int64_t position = 1, rest = i;
            for (int d = dims.ndim - 1; d >= 0; d--) {
                position += rest % dims.size[d] * stride[d];
                rest /= dims.size[d];
            }
            memcpy((char *)wide->storage->data + (size_t)position * size, data + (size_t)i * size,
                   size);
        }
        t = view;
    }
    free(data);
    return t;
}

static void assert_prints(const tn_tensor *t, const char *expected, const char *name) {
    size_t length = tn_format(t, NULL, 0);
    char *text = malloc(length + 1);
    assert_int_equal(tn_format(t, text, length + 1), length);
    if (strcmp(text, expected) != 0) {
        fail_msg("%s: expected\n%s\nprinted\n%s", name, expected, text);
    }
    free(text);
}

PLAIN_TEST(test_as_numpy) {
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
        TN_SCOPE;
        assert_prints(case_tensor(k, false), cases[k].text, cases[k].name);
        assert_prints(case_tensor(k, true), cases[k].text, cases[k].name);
    }
    assert_int_equal(tn_error(), TN_OK);
}

PLAIN_TEST(test_short_buffer) {
    TN_SCOPE;
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

PLAIN_TEST(test_to_a_file) {
    TN_SCOPE;
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

PLAIN_TEST(test_bf16) {
    TN_SCOPE;
    tn_bf16 x[] = {tn_bf16_from_float(1), tn_bf16_from_float(0.1f), tn_bf16_from_float(-3.14159f)};
    assert_prints(TN_FROM(x, TN_DIMS(3), TN_BF16), "[ 1.    0.1  -3.14]", "bf16");
}

PLAIN_TEST(test_cannot_print) {
    TN_SCOPE;
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
