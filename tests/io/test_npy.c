/* NumPy's files: what is written is read, and errors say where. test_numpy.py compares with NumPy
 * itself. */
#include "tests/fuzz/fuzz_npy.c"
#include "tests/support/test.h"

#include "tests/data/examples.h"
#include "tests/support/replay.h"
#include "tests/support/temp.h"

#include "tern/sys/tensor.h"

#include <math.h>
#include <string.h>

static void same_tensors(const tn_tensor *a, const tn_tensor *b) {
    assert_true(tn_dims_equal(tn_shape(a), tn_shape(b)));
    assert_int_equal(tn_dtype_of(a), tn_dtype_of(b));
    assert_memory_equal(tn_data(a), tn_data(b),
                        (size_t)tn_count(a) * tn_dtype_size(tn_dtype_of(a)));
}

static const tn_dtype ours[] = {TN_F32, TN_F64, TN_F16, TN_I64, TN_I32, TN_U8, TN_BOOL, TN_I8};
enum { OURS = sizeof(ours) / sizeof(*ours) };

TEST(arrays_there_and_back) {
    const char *path = temp_path("x.npy");
    for (int i = 0; i < OURS; i++) {
        tn_tensor *x = tn_cast(tn_reshape(tn_arange(-3, 9, 1, TN_F32), TN_DIMS(3, 4)), ours[i]);
        tn_tensor *shapes[] = {x, tn_t(x), tn_select(tn_select(x, 0, 1), 0, 2),
                               tn_empty(TN_DIMS(0, 5), ours[i]), tn_select(x, 1, 3)};
        for (int k = 0; k < 5; k++) {
            assert_int_equal(tn_npy_save(shapes[k], path), TN_OK);
            same_tensors(tn_npy_load(path), tn_contiguous(shapes[k]));
        }
    }
    assert_fails(tn_npy_save(tn_ones(TN_DIMS(2), TN_BF16), path), TN_EDTYPE,
                 "is bf16, which NumPy does not have");
    assert_fails(tn_npy_save(tn_ones(TN_DIMS(2), TN_F32), "/nowhere/at/all.npy"), TN_EIO,
                 "/nowhere/at/all.npy");
}

TEST(archives_there_and_back) {
    const char *path = temp_path("all.npz"), *names[OURS];
    tn_tensor *tensors[OURS];
    for (int i = 0; i < OURS; i++) {
        names[i] = tn_dtype_name(ours[i]);
        tensors[i] = tn_cast(tn_reshape(tn_arange(0, 2000, 1, TN_F32), TN_DIMS(20, 100)), ours[i]);
    }
    size_t plain = 0, squeezed = 0;
    for (int compressed = 0; compressed < 2; compressed++) {
        assert_int_equal(tn_npz_save(names, tensors, OURS, path, compressed), TN_OK);
        free(temp_read(path, compressed ? &squeezed : &plain));
        tn_npz *f = tn_npz_open(path);
        assert_int_equal(tn_npz_count(f), OURS);
        for (int i = 0; i < OURS; i++) {
            assert_string_equal(tn_npz_name(f, i), names[i]);
            same_tensors(tn_npz_get(f, names[i]), tensors[i]);
        }
        assert_null(tn_npz_name(f, OURS));
        assert_inert(tn_npz_get(f, "nobody"), TN_EVALUE, "there is no array \"nobody\"");
        tn_npz_close(f);
    }
    assert_true(squeezed < plain / 2);
    names[1] = names[0];
    assert_fails(tn_npz_save(names, tensors, 2, path, false), TN_EVALUE,
                 "name 1 is empty, too long, or that of another array");
    assert_int_equal(tn_npz_save(NULL, NULL, 0, path, false), TN_OK);
    tn_npz *none = tn_npz_open(path);
    assert_non_null(none);
    assert_int_equal(tn_npz_count(none), 0);
    tn_npz_close(none);
}

/* An array of version 1 with this header, and `bytes` zeros after it. */
static tn_tensor *array_of(const char *header, size_t bytes) {
    unsigned char text[1024] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
    size_t length = strlen(header);
    text[8] = (unsigned char)length;
    text[9] = (unsigned char)(length >> 8);
    memcpy(text + 10, header, length);
    const char *path = temp_path("one.npy");
    temp_write(path, text, 10 + length + bytes);
    return tn_npy_load(path);
}

TEST(headers_that_are_wrong) {
    static const struct {
        const char *header, *wrong;
        size_t bytes;
        tn_status status;
    } cases[] = {
        {"", "at byte 10: it is not a dictionary", 0, TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False}", "a key is missing", 4, TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "at byte 44: fortran_order", 4,
         TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2)} x", "something follows", 8,
         TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", "a size is missing", 8,
         TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000000000,)}",
         "a size is too large", 8, TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (400000000000000000,)}",
         "its elements take 1600000000000000000 bytes, but it has 8", 8, TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (400000000000000000, 50)}",
         "its shape has more bytes than 2^64", 8, TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}",
         "its elements take 12 bytes, but it has 8 of them", 8, TN_EFORMAT},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
         "4 bytes follow the 4 of its elements, but a file has one array here", 8, TN_EFORMAT},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': ()}", "a key occurs twice", 4, TN_EFORMAT},
        {"{'descr': '|O', 'fortran_order': False, 'shape': ()}", "elements of type \"|O\"", 8,
         TN_EUNSUPPORTED},
        {"{'descr': '<u8', 'fortran_order': False, 'shape': ()}", "elements of type \"<u8\"", 8,
         TN_EUNSUPPORTED},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}",
         "has elements of several numbers (its descr is a list or a tuple)", 4, TN_EUNSUPPORTED},
        {"{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': ()}",
         "has elements of several numbers", 8, TN_EUNSUPPORTED},
        {"{'descr': '<float32', 'fortran_order': False, 'shape': ()}", "type \"<float32\"", 4,
         TN_EUNSUPPORTED},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}",
         "more than 8 dimensions", 4, TN_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_inert(array_of(cases[i].header, cases[i].bytes), cases[i].status, cases[i].wrong);
    }
    assert_int_equal(
        tn_count(array_of("{\"shape\":(2,3),'fortran_order':True,'descr':'>i2'}\n", 12)), 6);
    assert_int_equal(
        tn_count(array_of("{'descr':'<f4',\r\n'fortran_order':False,'shape':(3,)}", 12)), 3);
    temp_write(temp_path("zip.npy"), "PK\3\4 and more", 14);
    assert_inert(tn_npy_load(temp_path("zip.npy")), TN_EFORMAT, "tn_npz_open reads it");
    assert_inert(tn_npy_load("/nowhere/x.npy"), TN_EIO, "/nowhere/x.npy");
}

/* Each byte of an archive is changed: an error, the same numbers, or other names. */
TEST(damaged_archives) {
    const char *path = temp_path("whole.npz"), *names[] = {"a", "b"};
    tn_tensor *tensors[] = {tn_arange(0, 40, 1, TN_F32), tn_ones(TN_DIMS(2, 3), TN_I64)};
    assert_int_equal(tn_npz_save(names, tensors, 2, path, true), TN_OK);
    size_t bytes;
    unsigned char *whole = temp_read(path, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        whole[i] ^= 0x41;
        fuzz_npy(whole, bytes);
        whole[i] ^= 0x41;
        fuzz_npy(whole, i);
    }
    whole[30 + strlen("a.npy") + 8] ^= 1; /* in the first array's stream */
    temp_write(path, whole, bytes);
    tn_npz *f = tn_npz_open(path);
    assert_inert(tn_npz_get(f, "a"), TN_EFORMAT, "a is damaged");
    same_tensors(tn_npz_get(f, "b"), tensors[1]);
    tn_npz_close(f);
    free(whole);
    /* a number that is not compressed: only the check sum tells */
    assert_int_equal(tn_npz_save(names, tensors, 2, path, false), TN_OK);
    whole = temp_read(path, &bytes);
    whole[30 + strlen("a.npy") + 128 + 8] ^= 1;
    temp_write(path, whole, bytes);
    f = tn_npz_open(path);
    assert_inert(tn_npz_get(f, "a"), TN_EFORMAT, "a is damaged");
    tn_npz_close(f);
    whole[30 + strlen("a.npy") + 128 + 8] ^= 1;
    unsigned char noted[2048]; /* a comment of the archive, after all */
    assert_true(bytes + 4 <= sizeof(noted));
    memcpy(noted, whole, bytes);
    memcpy(noted + bytes, "note", 4);
    noted[bytes - 2] = 4;
    temp_write(path, noted, bytes + 4);
    f = tn_npz_open(path);
    same_tensors(tn_npz_get(f, "a"), tensors[0]);
    tn_npz_close(f);
    /* where a ZIP64 record would have the numbers: at the end, and in the list of contents */
    size_t list = whole[bytes - 6] | (size_t)whole[bytes - 5] << 8;
    const size_t places[] = {bytes - 6, list + 20, list + 24, list + 42};
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        uint32_t before, wide = UINT32_MAX;
        memcpy(&before, whole + places[i], 4);
        memcpy(whole + places[i], &wide, 4);
        temp_write(path, whole, bytes);
        assert_none(tn_npz_open(path), TN_EUNSUPPORTED, "4 GiB");
        memcpy(whole + places[i], &before, 4);
    }
    free(whole);
}

TEST(replays_corpus) {
    assert_true(replay_corpus("fuzz_npy", fuzz_npy) >= 15);
}

/* x (6, 2, 3) of this dtype as x.npy, y (6) as y.npy */
static void save_rows(tn_dtype dtype) {
    tn_tensor *x = tn_reshape(tn_arange(-9, 27, 1, TN_F32), TN_DIMS(6, 2, 3));
    assert_int_equal(tn_npy_save(tn_cast(x, dtype), temp_path("x.npy")), TN_OK);
    assert_int_equal(tn_npy_save(tn_arange(0, 6, 1, TN_I64), temp_path("y.npy")), TN_OK);
}

static tn_dataset *open_rows(void) {
    return tn_npy_dataset(temp_path("x.npy"), temp_path("y.npy"));
}

TEST(rows_as_they_are_asked_for) {
    for (int i = 0; i < OURS; i++) {
        save_rows(ours[i]);
        tn_tensor *whole = tn_npy_load(temp_path("x.npy"));
        tn_dataset *d = open_rows();
        assert_non_null(d);
        assert_int_equal(d->size, 6);
        size_t row = example_bytes(d->x_dims, d->x_dtype);
        assert_int_equal(row, 6 * tn_dtype_size(ours[i]));
        for (int64_t k = 5; k >= 0; k--) {
            int64_t y;
            assert_memory_equal(example_x(d, k, &y), (char *)tn_data(whole) + (size_t)k * row, row);
            assert_int_equal(y, k);
        }
        check_threads(d);
    }
    tn_dataset *d = tn_npy_dataset(temp_path("y.npy"), NULL);
    assert_non_null(d);
    assert_int_equal(d->y_dims.ndim, -1);
    assert_int_equal(*(const int64_t *)example_x(d, 4, NULL), 4);
    tn_dataset_free(d);
}

TEST(rows_of_an_archive) {
    tn_tensor *tensors[] = {tn_ones(TN_DIMS(3, 2), TN_F32), tn_arange(0, 3, 1, TN_I64)};
    const char *names[] = {"pictures", "labels"};
    assert_int_equal(tn_npz_save(names, tensors, 2, temp_path("all.npz"), true), TN_OK);
    tn_dataset *d = tn_npz_dataset(temp_path("all.npz"), "pictures", "labels");
    assert_non_null(d);
    int64_t y;
    assert_true(((const float *)example_x(d, 2, &y))[1] == 1.0f && y == 2);
    tn_dataset_free(d);
    assert_none(tn_npz_dataset(temp_path("all.npz"), "pictures", "x"), TN_EVALUE,
                "there is no array \"x\"");
    assert_none(tn_npz_dataset(temp_path("nowhere"), "x", NULL), TN_EIO, "nowhere");
}

TEST(rows_that_are_not_there) {
    save_rows(TN_F32);
    tn_dataset *d = open_rows();
    assert_non_null(d);
    assert_int_equal(truncate(temp_path("x.npy"), 128 + 5 * 24 + 7), 0);
    float x[6];
    int64_t y;
    assert_int_equal(tn_dataset_get(d, 4, x, &y), TN_OK);
    assert_fails(tn_dataset_get(d, 5, x, &y), TN_EIO, "x.npy was cut short");
    tn_dataset_free(d);
    assert_none(open_rows(), TN_EFORMAT,
                "x.npy: its elements take 144 bytes, but it has 127 of them");
    assert_int_equal(tn_npy_save(tn_ones(TN_DIMS(7, 2), TN_F32), temp_path("x.npy")), TN_OK);
    assert_none(open_rows(), TN_ESHAPE, "x.npy has 7 rows but ");
    assert_int_equal(tn_npy_save(tn_ones(TN_DIMS(), TN_F32), temp_path("x.npy")), TN_OK);
    assert_none(open_rows(), TN_ESHAPE, "x.npy has no dimensions");
    static const char fortran[] = "\x93NUMPY\1\0\x40\0{'descr': '<f4', 'fortran_order': True, "
                                  "'shape': (2, 2), }     \n0123456789abcdef";
    temp_write(temp_path("x.npy"), fortran, 10 + 64 + 16);
    assert_none(open_rows(), TN_EUNSUPPORTED, "x.npy is stored column by column");
}

TEST(other_rows_are_noticed) {
    save_rows(TN_F32);
    identity both = identify_and_free(open_rows());
    identity one = identify_and_free(tn_npy_dataset(temp_path("x.npy"), NULL));
    save_rows(TN_I32);
    identity integers = identify_and_free(open_rows());
    assert_string_not_equal(both.text, one.text);
    assert_string_not_equal(both.text, integers.text);
}
