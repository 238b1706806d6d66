/* The reader of handwritten digits, on files made here: good ones, short ones, long
 * ones and wrong ones. */
#include "tern/data.h"

#include <stdlib.h>
#include <string.h>

#include "tests/data/packed.h"
#include "tests/data/examples.h"
#include "tests/support/test.h"

enum { COUNT = 3, PIXELS = 28 * 28 };
enum { IMAGES = 16 + COUNT * PIXELS, LABELS = 8 + COUNT };

static unsigned char images[IMAGES] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, 28, 0, 0, 0, 28};
static unsigned char labels[LABELS] = {0, 0, 8, 1, 0, 0, 0, COUNT, 7, 0, 9};

static void write_gz(const char *path, const void *data, size_t bytes) {
    packed z = pack_gzip(data, bytes);
    packed_write(path, z, z.bytes, 1);
}

static void remove_all(void) {
    static const char *const names[] = {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
                                        "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};
    for (int i = 0; i < 4; i++) {
        unlink(temp_path(names[i]));
    }
}

static void write_plain(void) {
    temp_write(temp_path("t10k-images-idx3-ubyte"), images, IMAGES);
    temp_write(temp_path("t10k-labels-idx1-ubyte"), labels, LABELS);
}

static void check_examples(void) {
    tn_dataset *d = tn_mnist(temp_folder, false);
    assert_non_null(d);
    assert_int_equal(d->size, COUNT);
    float x[PIXELS];
    int64_t y;
    for (int64_t i = 0; i < COUNT; i++) {
        assert_int_equal(tn_dataset_get(d, i, x, &y), TN_OK);
        assert_int_equal(y, labels[8 + i]);
        for (int p = 0; p < PIXELS; p++) {
            assert_true(x[p] == (float)images[16 + i * PIXELS + p] / 255.0f);
        }
    }
    tn_dataset_free(d);
}

PLAIN_TEST(test_plain_and_compressed) {
    write_plain();
    check_examples();
    remove_all();
    write_gz(temp_path("t10k-images-idx3-ubyte.gz"), images, IMAGES);
    write_gz(temp_path("t10k-labels-idx1-ubyte.gz"), labels, LABELS);
    check_examples();
    remove_all();
    assert_none(tn_mnist(temp_folder, true), TN_EIO, "train-images-idx3-ubyte[.gz]: No such file");
    assert_null(tn_mnist(NULL, true));
    tn_error_clear();
}

PLAIN_TEST(test_other_digits_are_noticed) {
    identity text[3];
    for (int i = 0; i < 3; i++) {
        images[IMAGES - 1] = i == 1 ? 3 : 0;
        labels[LABELS - 1] = i == 2 ? 3 : 9;
        write_plain();
        text[i] = identify_and_free(tn_mnist(temp_folder, false));
    }
    labels[LABELS - 1] = 9;
    remove_all();
    assert_string_not_equal(text[0].text, text[1].text);
    assert_string_not_equal(text[0].text, text[2].text);
}

PLAIN_TEST(test_every_truncation) {
    write_plain();
    const char *path = temp_path("t10k-images-idx3-ubyte");
    for (size_t bytes = 0; bytes < IMAGES; bytes += bytes < 40 || bytes > IMAGES - 10 ? 1 : 97) {
        temp_write(path, images, bytes);
        assert_none(tn_mnist(temp_folder, false), TN_EFORMAT,
                    bytes < 16 ? "ubyte is not an idx file of images" : "its header says 3 images");
    }
    temp_write(path, images, IMAGES);
    for (size_t bytes = 0; bytes < LABELS; bytes++) {
        temp_write(temp_path("t10k-labels-idx1-ubyte"), labels, bytes);
        assert_none(tn_mnist(temp_folder, false), TN_EFORMAT,
                    bytes < 8 ? "ubyte is not an idx file of labels" : "its header says 3 labels");
    }
    remove_all();
    write_gz(temp_path("t10k-images-idx3-ubyte.gz"), images, IMAGES);
    write_gz(temp_path("t10k-labels-idx1-ubyte.gz"), labels, LABELS);
    size_t whole;
    unsigned char *gz = temp_read(temp_path("t10k-images-idx3-ubyte.gz"), &whole);
    for (size_t bytes = 0; bytes < whole; bytes++) {
        temp_write(temp_path("t10k-images-idx3-ubyte.gz"), gz, bytes);
        assert_none(tn_mnist(temp_folder, false), TN_EFORMAT, "");
    }
    size_t harmless = 0; /* some bits of deflate have no effect */
    for (size_t at = 10; at < whole; at++) {
        gz[at] ^= 0x10;
        temp_write(temp_path("t10k-images-idx3-ubyte.gz"), gz, whole);
        tn_dataset *d = tn_mnist(temp_folder, false);
        if (d) {
            tn_dataset_free(d);
            check_examples();
            harmless++;
        } else {
            assert_error(TN_EFORMAT, "");
        }
        gz[at] ^= 0x10;
    }
    assert_true(harmless < 4);
    free(gz);
    remove_all();
}

static void expect_changed(const char *name, unsigned char *data, size_t bytes, int at,
                           unsigned char value, const char *part) {
    unsigned char before = data[at];
    data[at] = value;
    write_plain();
    temp_write(temp_path(name), data, bytes);
    assert_none(tn_mnist(temp_folder, false), TN_EFORMAT, part);
    data[at] = before;
}

PLAIN_TEST(test_wrong_contents) {
    static const char *const image = "t10k-images-idx3-ubyte", *const label =
                                                                   "t10k-labels-idx1-ubyte";
    expect_changed(image, images, IMAGES, 2, 13, "is not an idx file of images of 28 x 28 bytes");
    expect_changed(image, images, IMAGES, 3, 1, "is not an idx file of images of 28 x 28 bytes");
    expect_changed(image, images, IMAGES, 4, 255, "says 4278190083 images");
    expect_changed(image, images, IMAGES, 5, 15, "its header says 983043 images");
    expect_changed(image, images, IMAGES, 7, COUNT - 1,
                   "its header says 2 images of 28 x 28 bytes, but 2352 bytes follow");
    expect_changed(image, images, IMAGES, 11, 27, "is not an idx file of images");
    expect_changed(image, images, IMAGES, 15, 29, "is not an idx file of images");
    expect_changed(label, labels, LABELS, 9, 10, "label 1 is 10");
    expect_changed(label, labels, LABELS - 1, 7, COUNT - 1, "3 images but 2 labels");
    write_plain();
    check_examples();
    assert_int_equal(tn_error(), TN_OK);
}

static int fill_images(void **state) {
    for (int i = 16; i < IMAGES; i++) {
        images[i] = (unsigned char)(i * 37 + i / 11);
    }
    temp_path("");
    return 0;
}

int main(void) {
    return tests_run(fill_images, NULL);
}
