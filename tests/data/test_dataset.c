/* Datasets in memory, characters, whole files. */
#include "tern/data.h"

#include <stdlib.h>
#include <string.h>

#include "tests/data/examples.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

TEST(test_tensors) {
    /* (3, 2), strided */
    tn_tensor *x = tn_t(tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_DIMS(2, 3)));
    tn_tensor *y = tn_arange(0, 3, 1, TN_I64);
    tn_dataset *d = tn_tensor_dataset(x, y);
    assert_int_equal(d->size, 3);
    float row[2];
    int64_t label;
    assert_int_equal(tn_dataset_get(d, 1, row, &label), TN_OK);
    assert_true(row[0] == 1 && row[1] == 4 && label == 1);
    tn_dataset_free(d);
    d = tn_tensor_dataset(y, NULL);
    assert_int_equal(d->y_dims.ndim, -1);
    assert_int_equal(tn_dataset_get(d, 2, &label, NULL), TN_OK);
    assert_int_equal(label, 2);
    tn_dataset_free(d);
    assert_none(tn_tensor_dataset(x, tn_arange(0, 4, 1, TN_I64)), TN_ESHAPE,
                "x is [3, 2] but y is [4]");
    assert_none(tn_tensor_dataset(tn_scalar(1, TN_F32), NULL), TN_ESHAPE,
                "should count the examples");
    assert_null(tn_tensor_dataset(NULL, NULL));
    tn_error_clear();
}

PLAIN_TEST(test_tokens) {
    static const int32_t tokens[] = {3, 1, 4, 1, 5};
    tn_dataset *d = tn_token_dataset(tokens, 5, 3);
    assert_int_equal(d->size, 2);
    int64_t x[3], y[3];
    assert_int_equal(tn_dataset_get(d, 1, x, y), TN_OK);
    assert_memory_equal(x, ((int64_t[]){1, 4, 1}), sizeof(x));
    assert_memory_equal(y, ((int64_t[]){4, 1, 5}), sizeof(y));
    tn_dataset_free(d);
    assert_none(tn_token_dataset(tokens, 3, 3), TN_EVALUE,
                "3 tokens, but a window of length 3 takes 4");
    assert_null(tn_token_dataset(tokens, 3, 0));
    tn_error_clear();
}

PLAIN_TEST(test_charset) {
    static const char text[] = "häß→𝄞 ha\n";
    tn_charset *c = tn_charset_from_text(text, sizeof(text) - 1);
    assert_int_equal(tn_charset_size(c), 8);
    int32_t tokens[sizeof(text)];
    int64_t n = tn_charset_encode(c, text, sizeof(text) - 1, tokens);
    assert_int_equal(n, 9);
    char back[sizeof(text)] = "";
    for (int64_t i = 0; i < n; i++) {
        strcat(back, tn_charset_text(c, tokens[i]));
    }
    assert_string_equal(back, text);
    assert_string_equal(tn_charset_text(c, 0), "\n"); /* code-point order */
    assert_string_equal(tn_charset_text(c, 7), "𝄞");
    assert_int_equal(tn_charset_encode(c, "x", 1, tokens), -1);
    assert_error(TN_EVALUE, "U+0078 at byte 0");
    assert_string_equal(tn_charset_text(c, 8), "");
    assert_error(TN_EINDEX, "token 8");
    tn_charset_free(c);
    assert_null(tn_charset_from_text("", 0));
    tn_error_clear();
}

PLAIN_TEST(test_utf8_is_strict) {
    static const char *const bad[] = {
        "\x80",
        "a\xc3",
        "\xc0\xaf",
        "\xc1\xbf",
        "\xe0\x80\xaf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "\xfe",
        "\xe2\x82",
        "\xe2(\xa1",
        "\xc3\xc3",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_none(tn_charset_from_text(bad[i], strlen(bad[i])), TN_EFORMAT, "is not UTF-8");
    }
    static const char good[] = "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf"
                               "\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf";
    tn_charset *c = tn_charset_from_text(good, sizeof(good)); /* and the 0 */
    assert_int_equal(tn_charset_size(c), 10);
    tn_charset_free(c);
}

PLAIN_TEST(test_text_read) {
    const char *path = temp_path("text");
    temp_write(path, "some\0text", 9);
    size_t bytes;
    char *text = tn_text_read(path, &bytes);
    assert_int_equal(bytes, 9);
    assert_memory_equal(text, "some\0text", 10);
    tn_text_free(text);
    temp_write(path, "", 0);
    text = tn_text_read(path, &bytes);
    assert_int_equal(bytes, 0);
    assert_string_equal(text, "");
    tn_text_free(text);
    text = tn_text_read("/proc/self/cmdline", &bytes); /* its stat says 0 bytes */
    assert_true(bytes > 0);
    tn_text_free(text);
    assert_none(tn_text_read("/nowhere/at/all", &bytes), TN_EIO, "/nowhere/at/all: No such file");
    assert_none(tn_text_read("/tmp", &bytes), TN_EIO, "/tmp is a folder, not a regular file");
}

/* ---- Recognising data ------------------------------------------------------------------------ */

TEST(test_other_data_are_noticed) {
    int32_t tokens[] = {1, 2, 3, 4, 5};
    identity one = identify_and_free(tn_token_dataset(tokens, 5, 2));
    assert_contains(one.text, "{\"digest\":\"");
    assert_string_equal(identify_and_free(tn_token_dataset(tokens, 5, 2)).text, one.text);
    tokens[4] = 6; /* only the last target */
    assert_string_not_equal(identify_and_free(tn_token_dataset(tokens, 5, 2)).text, one.text);

    tn_tensor *x = tn_arange(0, 6, 1, TN_F32), *y = tn_ones(TN_DIMS(6), TN_I64);
    one = identify_and_free(tn_tensor_dataset(x, y));
    assert_contains(one.text, "{\"digest of x\":\"");
    assert_contains(one.text, ",\"digest of y\":\"");
    assert_string_equal(identify_and_free(tn_tensor_dataset(tn_copy(x), y)).text, one.text);
    assert_string_not_equal(identify_and_free(tn_tensor_dataset(tn_add_scalar(x, 1), y)).text,
                            one.text);
    assert_string_not_equal(identify_and_free(tn_tensor_dataset(x, tn_add_scalar(y, 1))).text,
                            one.text);
    assert_null(strstr(identify_and_free(tn_tensor_dataset(x, NULL)).text, "of y"));
    /* rows that are not contiguous */
    tn_tensor *wide = tn_reshape(x, TN_DIMS(2, 3));
    assert_string_equal(identify_and_free(tn_tensor_dataset(tn_t(wide), NULL)).text,
                        identify_and_free(tn_tensor_dataset(tn_contiguous(tn_t(wide)), NULL)).text);
    assert_string_equal(
        identify_and_free(tn_tensor_dataset(tn_zeros(TN_DIMS(0, 3), TN_F32), NULL)).text,
        "{\"digest of x\":\"99aa06d3014798d86001c324468d497f\"}");
}

/* The memory of tensors may be freed, and come back elsewhere. */
TEST(test_moved_elements_are_found) {
    char text[DATASET_TEXT];
    tn_tensor *x = tn_ones(TN_DIMS(6), TN_F32), *y = tn_ones(TN_DIMS(6), TN_I64);
    identity one = identify_and_free(tn_tensor_dataset(tn_zeros(TN_DIMS(6), TN_F32), y));
    tn_dataset *d = tn_tensor_dataset(x, y);
    tn_storage_empty(x);
    assert_false(dataset_text(d, text));
    assert_error(TN_ESTATE, "tensor_dataset");
    tn_ones(TN_DIMS(6), TN_F32); /* where x was */
    tn_storage_refill(x);
    tn_fill_(x, 0);
    assert_true(dataset_text(d, text));
    assert_string_equal(text, one.text);
    tn_dataset_free(d);
}
