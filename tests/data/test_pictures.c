/* Pictures and folders of them: damaged files are named, a small file never takes much memory,
 * and running out of memory leaks nothing. test_picture_values.py compares pixels. */
#include "tern/ops.h"
#include "tern/data.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/data/examples.h"
#include "tests/support/fail_malloc.h"
#include "tests/support/temp.h"

/* A seed of the fuzz target; the caller frees. */
static unsigned char *read_seed(const char *name, size_t *bytes) {
    char path[4000];
    const char *root = getenv("TERN_ROOT");
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/fuzz_picture/%s", root ? root : ".", name);
    return temp_read(path, bytes);
}

/* The seed as folder/to. */
static const char *copy_seed(const char *name, const char *to) {
    size_t bytes;
    unsigned char *data = read_seed(name, &bytes);
    const char *path = temp_path(to);
    temp_write(path, data, bytes);
    free(data);
    return path;
}

static void make_folder(const char *name) {
    assert_int_equal(mkdir(temp_path(name), 0700), 0);
}

static void needs_pictures(void) {
    tn_image_read(copy_seed("png_one", "one"), TN_U8);
    if (tn_error() == TN_EUNSUPPORTED) {
        tn_error_clear();
        print_message("this build has no libpng and libjpeg (-Dimages=enabled)\n");
        skip();
    }
    assert_int_equal(tn_error(), TN_OK);
}

static const char *const whole[] = {"png_2_8",     "png_3_4_interlaced", "jpeg_grey",
                                    "jpeg_colour", "jpeg_progressive",   "jpeg_cmyk"};
enum { WHOLE = sizeof(whole) / sizeof(*whole) };

TEST(a_picture_that_is_cut_short) {
    needs_pictures();
    for (int i = 0; i < WHOLE; i++) {
        size_t bytes;
        unsigned char *data = read_seed(whole[i], &bytes);
        const char *path = temp_path("cut.png");
        for (size_t left = 0; left < bytes; left++) {
            TN_SCOPE;
            temp_write(path, data, left);
            assert_inert(tn_image_read(path, TN_U8), TN_EFORMAT, "/cut.png: ");
        }
        free(data);
    }
}

TEST(a_picture_that_is_damaged) {
    needs_pictures();
    for (int i = 0; i < WHOLE; i++) {
        size_t bytes, refused = 0;
        unsigned char *data = read_seed(whole[i], &bytes);
        const char *path = temp_path("damaged");
        for (size_t at = 0; at < 8 * bytes; at += 3) {
            TN_SCOPE;
            data[at / 8] ^= (unsigned char)(1 << at % 8);
            temp_write(path, data, bytes);
            if (tn_is_inert(tn_image_read(path, TN_U8))) {
                assert_error(TN_EFORMAT, "/damaged: ");
                refused++;
            }
            assert_int_equal(tn_error(), TN_OK);
            data[at / 8] ^= (unsigned char)(1 << at % 8);
        }
        assert_true(refused > bytes / 4);
        free(data);
    }
}

static void refuse_seed(const char *name, const char *part) {
    assert_inert(tn_image_read(copy_seed(name, "x.jpg"), TN_F32), TN_EFORMAT, part);
}

TEST(headers_that_claim_much) {
    needs_pictures();
    refuse_seed("png_large", "x.jpg: it says 65535 x 65535 pixels, more than this reader takes");
    refuse_seed("jpeg_large", "65500 x 65500 pixels, more than this reader takes");
    refuse_seed("jpeg_large_progressive", "more than this reader takes");
    refuse_seed("jpeg_dense", "12000 x 12000 pixels, more than its bytes can hold");
    refuse_seed("jpeg_scans", "JPEG: it has more than 100 scans");
    refuse_seed("png_too_few", "PNG, at byte 94: Not enough image data");
    refuse_seed("neither", "it is neither a PNG nor a JPEG file");
}

TEST(what_is_no_picture) {
    assert_inert(tn_image_read(temp_path("nowhere"), TN_U8), TN_EIO, "nowhere: No such file");
    assert_inert(tn_image_read(temp_folder, TN_U8), TN_EIO, "a folder");
    assert_inert(tn_image_read(temp_path("nowhere"), TN_F64), TN_EDTYPE, "f64");
}

/* a/1.png, a/2.jpg and b/3.png of different sizes */
static const char *make_folders(void) {
    static int made;
    char name[32], path[64];
    snprintf(name, sizeof(name), "folder%d", made++);
    make_folder(name);
    static const char *const folders[] = {"a", "b"};
    static const char *const files[][2] = {
        {"png_2_8", "a/1.png"}, {"jpeg_colour", "a/2.jpg"}, {"png_one", "b/3.png"}};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", name, folders[i]);
        make_folder(path);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", name, files[i][1]);
        copy_seed(files[i][0], path);
    }
    return temp_path(name);
}

static tn_image_folder_options options_of_size(int64_t height, int64_t width) {
    tn_image_folder_options o = TN_WITH(tn_image_folder, .height = height, .width = width);
    return o;
}

TEST(pictures_of_different_sizes) {
    needs_pictures();
    const char *folder = make_folders();
    float x[3 * 20 * 20];
    int64_t y;
    tn_dataset *d = tn_image_folder(folder, tn_image_folder_defaults());
    assert_non_null(d);
    assert_int_equal(d->size, 3);
    assert_int_equal(d->x_dims.size[1], 4);
    assert_int_equal(d->x_dims.size[2], 5);
    assert_int_equal(tn_dataset_get(d, 0, x, &y), TN_OK);
    assert_fails(tn_dataset_get(d, 1, x, &y), TN_EVALUE,
                 "/a/2.jpg has 9 x 8 pixels, the first image has 5 x 4");
    tn_dataset_free(d);
    d = tn_image_folder(folder, options_of_size(20, 11));
    assert_non_null(d);
    assert_string_equal(d->classes[0], "a");
    assert_string_equal(d->classes[1], "b");
    assert_null(d->classes[2]);
    for (int64_t i = 0; i < 3; i++) {
        assert_int_equal(tn_dataset_get(d, i, x, &y), TN_OK);
        assert_int_equal(y, i == 2);
    }
    check_threads(d);
}

TEST(folders_that_are_no_dataset) {
    needs_pictures();
    const char *folder = make_folders();
    char path[600];
    assert_none(tn_image_folder(folder, options_of_size(4, 0)), TN_EVALUE,
                "height is 4 but width is 0");
    assert_none(tn_image_folder(folder, options_of_size(1 << 20, 1)), TN_EVALUE,
                "height is 1048576");
    assert_none(tn_image_folder(temp_path("nowhere"), options_of_size(4, 4)), TN_EIO, "nowhere");
    snprintf(path, sizeof(path), "%s/a", folder);
    assert_none(tn_image_folder(path, options_of_size(4, 4)), TN_EVALUE,
                "/a: there is no folder in it");
    snprintf(path, sizeof(path), "%s/aa", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_none(tn_image_folder(folder, options_of_size(4, 4)), TN_EVALUE,
                "/aa: there is no .png, .jpg or .jpeg in this folder");
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof(path), "%s/c", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_none(tn_image_folder(folder, options_of_size(4, 4)), TN_EVALUE,
                "/c: there is no .png, .jpg or .jpeg in this folder");
    snprintf(path, sizeof(path), "%s/c/notes.txt", folder);
    temp_write(path, "none", 4);
    assert_none(tn_image_folder(folder, options_of_size(4, 4)), TN_EVALUE,
                "/c: there is no .png, .jpg or .jpeg in this folder");
    snprintf(path, sizeof(path), "%s/c/notes.png", folder);
    temp_write(path, "none", 4);
    tn_dataset *d = tn_image_folder(folder, options_of_size(4, 4));
    assert_non_null(d);
    float x[3 * 4 * 4];
    int64_t y;
    tn_dataset_get(d, 3, x, &y);
    assert_error(TN_EFORMAT, "/c/notes.png: it is neither");
    unlink(path);
    tn_dataset_get(d, 3, x, &y);
    assert_error(TN_EIO, "/c/notes.png: No such file");
    tn_dataset_free(d);
}

TEST(other_pictures_are_noticed) {
    needs_pictures();
    identity text[4];
    char path[600];
    const char *folder = make_folders();
    text[0] = identify_and_free(tn_image_folder(folder, options_of_size(4, 4)));
    text[1] = identify_and_free(tn_image_folder(make_folders(), options_of_size(4, 4)));
    assert_string_equal(text[0].text, text[1].text); /* wherever the folder is */
    text[1] = identify_and_free(tn_image_folder(folder, options_of_size(4, 5)));
    snprintf(path, sizeof(path), "%s/b/3.png", folder);
    FILE *file = fopen(path, "ab");
    fputs("more", file);
    fclose(file);
    text[2] = identify_and_free(tn_image_folder(folder, options_of_size(4, 4)));
    unlink(path);
    snprintf(path, sizeof(path), "%s/b/4.png", folder);
    temp_write(path, "1", 1);
    text[3] = identify_and_free(tn_image_folder(folder, options_of_size(4, 4)));
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(text[i].text, text[k].text);
        }
    }
}

static const char *place;

static void read_picture(void) {
    TN_SCOPE;
    tn_tensor *t = tn_image_read(place, TN_F32);
    assert_int_equal(tn_is_inert(t), tn_error() != TN_OK);
}

static void read_folder(void) {
    float x[3 * 7 * 6];
    int64_t y;
    tn_dataset *d = tn_image_folder(place, options_of_size(7, 6));
    assert_true(d || tn_error() != TN_OK);
    for (int64_t i = 0; d && tn_error() == TN_OK && i < d->size; i++) {
        tn_dataset_get(d, i, x, &y);
    }
    tn_dataset_free(d);
}

TEST(memory_that_runs_out) {
    needs_pictures();
    place = make_folders();
    every_malloc(read_folder, 1, NULL);
    for (int i = 0; i < WHOLE; i++) {
        place = copy_seed(whole[i], "whole");
        every_malloc(read_picture, 1, NULL);
    }
}
