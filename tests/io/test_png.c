/* Images in a PNG file: every chunk and every pixel, read back without our own code. */
#include "tern/tern.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

static uint32_t number_at(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Checks name and checksum; returns the chunk's data, and sets *next after them. */
static const unsigned char *open_chunk(const unsigned char **at, const char *name, size_t *bytes) {
    *bytes = number_at(*at);
    const unsigned char *data = *at + 8;
    assert_memory_equal(data - 4, name, 4);
    assert_int_equal(number_at(data + *bytes), crc32(0, data - 4, (uInt)*bytes + 4));
    *at = data + *bytes + 4;
    return data;
}

/* The pixels of the file, without the filters' bytes, into out (height, width * channels). */
static void read_back(const char *path, uint32_t width, uint32_t height, int channels,
                      unsigned char *out) {
    size_t size, bytes;
    unsigned char *file = temp_read(path, &size);
    assert_memory_equal(file, "\x89PNG\r\n\x1a\n", 8);
    const unsigned char *at = file + 8, *head = open_chunk(&at, "IHDR", &bytes);
    assert_int_equal(bytes, 13);
    assert_int_equal(number_at(head), width);
    assert_int_equal(number_at(head + 4), height);
    unsigned char rest[] = {8, channels == 3 ? 2 : 0, 0, 0, 0};
    assert_memory_equal(head + 8, rest, 5);
    const unsigned char *data = open_chunk(&at, "IDAT", &bytes);
    size_t row = (size_t)width * (size_t)channels;
    uLongf length = height * (row + 1);
    unsigned char *rows = malloc(length);
    assert_non_null(rows);
    assert_int_equal(uncompress(rows, &length, data, bytes), Z_OK);
    assert_int_equal(length, height * (row + 1));
    for (uint32_t y = 0; y < height; y++) {
        assert_int_equal(rows[y * (row + 1)], 0);
        memcpy(out + y * row, rows + y * (row + 1) + 1, row);
    }
    open_chunk(&at, "IEND", &bytes);
    assert_ptr_equal(at, file + size);
    free(rows);
    free(file);
}

/* Three images of 2 x 1 pixels, two side by side: gaps of 2 around each. */
TEST(grey_images) {
    const char *path = temp_path("grey.png");
    double values[] = {0.0, 1.0, 0.5, -3.0, 7.0, NAN};
    tn_tensor *images = TN_FROM(values, TN_DIMS(3, 1, 1, 2), TN_F64);
    assert_int_equal(tn_save_image(images, path, 2), TN_OK);
    unsigned char got[8][10], want[8][10] = {{0}};
    want[2][2] = 0, want[2][3] = 255, want[2][6] = 128, want[2][7] = 0;
    want[5][2] = 255;
    read_back(path, 10, 8, 1, &got[0][0]);
    assert_memory_equal(got, want, sizeof(want));
    assert_int_equal(tn_save_image(tn_narrow(images, 0, 0, 1), path, 2000000000), TN_OK);
    read_back(path, 6, 5, 1, &got[0][0]); /* no more columns than images */
}

/* Channels are separate planes in a tensor, and adjacent in a pixel. */
TEST(coloured_image) {
    const char *path = temp_path("coloured.png");
    float values[] = {0.0F, 0.2F, 0.4F, 0.6F, 0.8F, 1.0F};
    tn_tensor *image = TN_FROM(values, TN_DIMS(1, 3, 1, 2), TN_F32);
    assert_int_equal(tn_save_image(image, path, 1), TN_OK);
    unsigned char got[5][18], want[] = {0, 102, 204, 51, 153, 255};
    read_back(path, 6, 5, 3, &got[0][0]);
    assert_memory_equal(&got[2][6], want, sizeof(want));
}

TEST(wrong_images) {
    const char *path = temp_path("wrong.png");
    tn_tensor *image = tn_ones(TN_DIMS(1, 1, 2, 2), TN_F32);
    assert_fails(tn_save_image(tn_ones(TN_DIMS(1, 2, 2, 2), TN_F32), path, 1), TN_ESHAPE,
                 "save_image: the images are [1, 2, 2, 2] but must be");
    assert_fails(tn_save_image(tn_ones(TN_DIMS(0, 1, 2, 2), TN_F32), path, 1), TN_ESHAPE, "");
    assert_fails(tn_save_image(image, path, 0), TN_EVALUE, "0 images side by side");
    tn_tensor *endless = tn_expand(image, TN_DIMS(1 << 30, 1, 2, 2));
    assert_fails(tn_save_image(endless, path, 1), TN_EVALUE, "");
    assert_fails(tn_save_image(image, "/nowhere/at/all.png", 1), TN_EIO, "");
    assert_int_not_equal(access(path, F_OK), 0);
}
