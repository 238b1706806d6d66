/* safetensors: what is written comes back, in the format's layout; bad files are refused with a
 * reason. */
#include "tern/io.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

/* A file from a header and some bytes of data (0, 1, 2, …). */
static const char *make_file(const char *header, size_t data_bytes) {
    const char *path = temp_path("made");
    size_t length = strlen(header);
    unsigned char *all = malloc(8 + length + data_bytes);
    for (int i = 0; i < 8; i++) {
        all[i] = (unsigned char)(length >> (8 * i));
    }
    memcpy(all + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) {
        all[8 + length + i] = (unsigned char)i;
    }
    temp_write(path, all, 8 + length + data_bytes);
    free(all);
    return path;
}

/* ---- Round trips ----------------------------------------------------------------------------- */

TEST(test_every_dtype) {
    const char *path = temp_path("all");
    for (int dtype = 0; dtype < TN_DTYPES; dtype++) {
        TN_SCOPE;
        tn_tensor *t =
            tn_cast(tn_reshape(tn_arange(0, 6, 1, TN_F32), TN_DIMS(2, 3)), (tn_dtype)dtype);
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        assert_int_equal(tn_safetensors_writer_add(w, "matrix", t), TN_OK);
        assert_int_equal(tn_safetensors_writer_add(w, "turned", tn_t(t)), TN_OK);
        assert_int_equal(
            tn_safetensors_writer_add(w, "scalar", tn_select(tn_select(t, 0, 1), 0, 0)), TN_OK);
        assert_int_equal(
            tn_safetensors_writer_add(w, "empty", tn_empty(TN_DIMS(3, 0, 2), (tn_dtype)dtype)),
            TN_OK);
        assert_int_equal(tn_safetensors_writer_add_metadata(w, "k\"e\ny", "välue"), TN_OK);
        assert_int_equal(tn_safetensors_writer_save(w, path), TN_OK);

        tn_safetensors *f = tn_safetensors_open(path);
        assert_int_equal(tn_safetensors_count(f), 4);
        tn_tensor *matrix = tn_safetensors_get(f, "matrix"),
                  *turned = tn_safetensors_get(f, "turned");
        tn_tensor *scalar = tn_safetensors_get(f, "scalar"),
                  *empty = tn_safetensors_get(f, "empty");
        assert_string_equal(tn_safetensors_metadata(f, "k\"e\ny"), "välue");
        assert_null(tn_safetensors_metadata(f, "other"));
        assert_true(tn_safetensors_has(f, "scalar"));
        assert_false(tn_safetensors_has(f, "scala"));
        tn_safetensors_close(f); /* the tensors keep the file mapped */
        assert_true(tn_equal(matrix, t));
        assert_true(tn_equal(turned, tn_t(t)));
        assert_int_equal(tn_ndim(scalar), 0);
        assert_true(tn_item(scalar) == (dtype == TN_BOOL ? 1 : 3));
        assert_true(tn_dims_equal(tn_shape(empty), TN_DIMS(3, 0, 2)));
        assert_int_equal(tn_error(), TN_OK);
    }
}

/* Byte for byte what the reference implementation writes for these. */
TEST(test_layout) {
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"d\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]},"
        "\"e\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[8,8]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[8,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[12,20]},"
        "\"c\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[20,23]}}";
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "c", tn_arange(1, 4, 1, TN_U8));
    tn_safetensors_writer_add(w, "b", tn_ones(TN_DIMS(1, 2), TN_F32));
    tn_safetensors_writer_add(w, "d", tn_full(TN_DIMS(1), 513, TN_I64));
    tn_safetensors_writer_add(w, "a", tn_scalar(-2, TN_F32));
    tn_safetensors_writer_add(w, "e", tn_empty(TN_DIMS(0), TN_F64));
    tn_safetensors_writer_add_metadata(w, "format", "pt");
    const char *path = temp_path("layout");
    assert_int_equal(tn_safetensors_writer_save(w, path), TN_OK);
    size_t bytes, length = sizeof(header) - 1, padded = (length + 7) / 8 * 8;
    unsigned char *file = temp_read(path, &bytes);
    assert_int_equal(bytes, 8 + padded + 23);
    assert_int_equal(file[0] | file[1] << 8, padded);
    assert_memory_equal(file + 8, header, length);
    for (size_t i = length; i < padded; i++) {
        assert_int_equal(file[8 + i], ' ');
    }
    static const unsigned char data[] = {1, 2, 0,    0,    0, 0, 0,    0,    0, 0, 0, 0xc0,
                                         0, 0, 0x80, 0x3f, 0, 0, 0x80, 0x3f, 1, 2, 3};
    assert_memory_equal(file + 8 + padded, data, sizeof(data));
    free(file);
}

TEST(test_private_and_unaligned) {
    const char *path = make_file("{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"f\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[1,9]}}",
                                 9);
    size_t bytes, again;
    unsigned char *before = temp_read(path, &bytes);
    tn_safetensors *f = tn_safetensors_open(path);
    tn_tensor *t = tn_safetensors_get(f, "f"), *u = tn_safetensors_get(f, "u");
    assert_true(tn_at(t, TN_DIMS(0)) == 0x04030201);
    assert_true(tn_at(t, TN_DIMS(1)) == 0x08070605);
    tn_fill_(t, 7);
    tn_fill_(u, 9);
    tn_safetensors_close(f);
    unsigned char *after = temp_read(path, &again);
    assert_int_equal(again, bytes);
    assert_memory_equal(before, after, bytes);
    free(before);
    free(after);
}

PLAIN_TEST(test_order_is_the_data_s) {
    tn_safetensors *f = tn_safetensors_open(
        make_file("{\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
                  "\"y\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]},"
                  "\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}   ",
                  3));
    assert_string_equal(tn_safetensors_name(f, 0), "x");
    assert_string_equal(tn_safetensors_name(f, 1), "y");
    assert_string_equal(tn_safetensors_name(f, 2), "z");
    assert_null(tn_safetensors_name(f, 3));
    assert_null(tn_safetensors_name(f, -1));
    tn_safetensors_close(f);
}

/* A dtype that Tern lacks makes only that tensor unreadable. */
TEST(test_foreign_dtypes) {
    const char *path =
        make_file("{\"bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                  "\"weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,2],\"data_offsets\":[4,6]},"
                  "\"packed\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[6,9]},"
                  "\"-0 \\\"-0\":{\"dtype\":\"NEW\",\"shape\":[7],\"data_offsets\":[9,10]}}",
                  10);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(tn_safetensors_count(f), 4);
    assert_string_equal(tn_safetensors_dtype(f, "weight"), "F8_E4M3");
    assert_string_equal(tn_safetensors_dtype(f, "bias"), "F32");
    assert_string_equal(tn_safetensors_dtype(f, "-0 \"-0"), "NEW");
    assert_true(tn_dims_equal(tn_safetensors_shape(f, "weight"), TN_DIMS(1, 2)));
    assert_true(tn_dims_equal(tn_safetensors_shape(f, "packed"), TN_DIMS(2, 3)));
    assert_true(tn_at(tn_safetensors_get(f, "bias"), TN_DIMS(0)) > 0);
    assert_int_equal(tn_error(), TN_OK);
    assert_inert(tn_safetensors_get(f, "weight"), TN_EUNSUPPORTED, "\"weight\" is F8_E4M3");
    assert_inert(tn_safetensors_get(f, "-0 \"-0"), TN_EUNSUPPORTED, "is NEW");
    tn_safetensors_close(f);

    tn_linear line; /* loading such a tensor into a module names it */
    tn_linear_init(&line, 2, 1, tn_linear_defaults());
    double before = tn_at(line.bias, TN_DIMS(0));
    assert_fails(tn_load(&line, path), TN_EUNSUPPORTED, "\"weight\" is F8_E4M3");
    assert_true(tn_at(line.bias, TN_DIMS(0)) == before);
    tn_module_finish(&line);
}

/* What Tern does not have excludes only its tensor; what it does not know changes nothing. */
TEST(test_more_than_we_have) {
    const char *path = make_file(
        "{\"__metadata__\":null,\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,2,1,1,1,1,1],"
        "\"data_offsets\":[0,2]},\"bias\":{\"note\":{\"by\":[1,null,\"x\"]},\"dtype\":\"U8\","
        "\"shape\":[3],\"data_offsets\":[2,5],\"note\":1.5}}",
        5);
    tn_safetensors *f = tn_safetensors_open(path);
    assert_int_equal(tn_error(), TN_OK);
    assert_int_equal(tn_safetensors_count(f), 2);
    assert_null(tn_safetensors_metadata(f, "note"));
    assert_true(tn_at(tn_safetensors_get(f, "bias"), TN_DIMS(1)) == 3);
    assert_inert(tn_safetensors_get(f, "deep"), TN_EUNSUPPORTED,
                 "\"deep\" has 9 dimensions, but Tern has at most 8");
    assert_int_equal(tn_safetensors_shape(f, "deep").ndim, 0);
    assert_error(TN_EUNSUPPORTED, "\"deep\" has 9 dimensions");
    assert_string_equal(tn_safetensors_dtype(f, "deep"), "U8");
    tn_safetensors_close(f);

    tn_linear line;
    tn_linear_init(&line, 1, 1, tn_linear_defaults());
    make_file("{\"bias\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]},"
              "\"weight\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}}",
              8);
    assert_fails(tn_load(&line, path), TN_EUNSUPPORTED, "\"bias\" has 9 dimensions");
    tn_module_finish(&line);
}

/* ---- Files that are refused ------------------------------------------------------------------ */

#define ONE(dtype, shape, offsets) \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

/* For a file of another kind the error says what it is. */
PLAIN_TEST(test_other_files) {
    static const struct {
        const char *begin;
        size_t bytes;
        const char *part;
    } other[] = {
#define OTHER(text, part) {text, sizeof(text) - 1, "file is not a safetensors file; it is " part}
        OTHER("Once upon a time {", "text"),
        OTHER("{\"a\":1,{}}", "text"),
        OTHER("<!DOCTYPE html><html>404", "an HTML page"),
        OTHER("<html><head>", "an HTML page"),
        OTHER("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n",
              "a git-lfs pointer (`git lfs pull` fetches the file itself)"),
        OTHER("PK\3\4\0\0\0\0{", "a zip archive (PyTorch and NumPy write them)"),
        OTHER("\x80\2\x8a\x0al\xfc\x9c\x46\xf9\x20", "an old PyTorch file (a pickle)"),
        OTHER("\x80\2}q\0(X\1\0\0", "a Python pickle"),
        OTHER("GGUF\3\0\0\0{", "a GGUF file (a model's weights)"),
        OTHER("\x93NUMPY\1\0v\0{", "a NumPy array"),
        OTHER("\x1f\x8b\x08\0\0\0\0\0{", "compressed (gzip)"),
        OTHER("\x89HDF\r\n\x1a\n\0", "an HDF5 file"),
#undef OTHER
        {"\1\0\0\0\0\0\0\0\0\0", 10,
         "file is not a safetensors file: after 8 bytes its header should"},
        {"\xff\1\0\0\0\0\0\0{\"a\"", 12,
         "file: its header should have 511 bytes (4 bytes follow; 16777216"},
        {"abc", 3, "file has 3 bytes; the length of the header alone takes 8"},
    };
    const char *path = temp_path("file");
    tn_linear line;
    tn_linear_init(&line, 1, 1, tn_linear_defaults());
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        temp_write(path, other[i].begin, other[i].bytes);
        assert_none(tn_safetensors_open(path), TN_EFORMAT, other[i].part);
        assert_none(tn_safetensors_map(path), TN_EFORMAT, other[i].part);
        assert_fails(tn_load(&line, path), TN_EFORMAT, other[i].part);
    }
    tn_module_finish(&line);
}

PLAIN_TEST(test_hostile_headers) {
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } bad[] = {
        {"[]", 0, "should begin with '{'"},
        {"  {}", 0, "should begin with '{'"},
        {"{", 0, "its header should have 1 bytes"},
        {"{}x", 0, "header"},
        {"{}", 1, "0 bytes, but the file has 1"},
        {"{\"a\":1}", 0, "must have dtype, shape and data_offsets"},
        {"{\"a\":null}", 0, "must have dtype, shape and data_offsets"},
        {"{\"a\":{}}", 0, "must have dtype, shape and data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"shape\":[1]}}", 1,
         "its shape is a duplicate"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"more\":1}}", 1, "must have dtype, shape and"},
        {ONE("\"U8\"", "[1]", "[0,1]") "}", 1, "header"},
        {ONE("8", "[1]", "[0,1]"), 1, "its dtype is not a string"},
        {ONE("\"F8_E4M3\"", "[1]", "[0,2]"), 2, "hold 2 bytes but the shape takes 1"},
        {ONE("\"F8_E5M2FNUZ\"", "[3]", "[0,2]"), 2, "hold 2 bytes but the shape takes 3"},
        {ONE("\"U16\"", "[3]", "[0,5]"), 5, "hold 5 bytes but the shape takes 6"},
        {ONE("\"C64\"", "[1152921504606846976]", "[0,0]"), 0, "more bytes than 2^63"},
        {ONE("\"F4\"", "[3]", "[0,1]"), 1, "3 elements of 4 bits are not whole bytes"},
        {ONE("\"F6_E2M3\"", "[12]", "[0,8]"), 8, "hold 8 bytes but the shape takes 9"},
        {ONE("\"NEW\"", "[3]", "[1,2]"), 2, "begins at byte 1"},
        {ONE("\"NEW\"", "[4294967296,4294967296]", "[0,1]"), 1, "more bytes than 2^63"},
        {ONE("\"U8\"", "[1]", "[-0,1]"), 1, "a number is -0"},
        {ONE("\"U8\"", "[-0]", "[0,0]"), 0, "a number is -0"},
        {ONE("\"U8\"", "[1]", "[-0.0,1]"), 1, "a number is -0"},
        {ONE("\"U8\"", "1", "[0,1]"), 1, "not a list of sizes"},
        {ONE("\"U8\"", "{}", "[0,1]"), 1, "not a list of sizes"},
        {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,2]", "[0,1]"), 1, "hold 1 bytes but the shape takes 2"},
        {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,-1]", "[0,1]"), 1, "size 8 of its shape"},
        {ONE("\"U8\"", "[-1]", "[0,1]"), 1, "size 0 of its shape"},
        {ONE("\"U8\"", "[1,1.0]", "[0,1]"), 1, "size 1 of its shape"},
        {ONE("\"U8\"", "[\"1\"]", "[0,1]"), 1, "size 0 of its shape"},
        {ONE("\"U8\"", "[true]", "[0,1]"), 1, "size 0 of its shape"},
        {ONE("\"U8\"", "[9223372036854775808]", "[0,1]"), 1, "size 0 of its shape"},
        {ONE("\"U8\"", "[1e400]", "[0,1]"), 1, "size 0 of its shape"},
        {ONE("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, "more bytes than 2^63"},
        {ONE("\"F64\"", "[9223372036854775807]", "[0,8]"), 8, "more bytes than 2^63"},
        {ONE("\"U8\"", "[4294967296,0,4294967296]", "[0,0]"), 0, "more bytes than 2^63"},
        {ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, "more bytes than 2^63"},
        {ONE("\"U8\"", "[1]", "[0]"), 1, "not two numbers"},
        {ONE("\"U8\"", "[1]", "[0,1,2]"), 1, "not two numbers"},
        {ONE("\"U8\"", "[1]", "[0.0,1]"), 1, "not two numbers"},
        {ONE("\"U8\"", "[1]", "[null,1]"), 1, "not two numbers"},
        {ONE("\"U8\"", "[1]", "[-1,0]"), 1, "data_offsets -1 to 0"},
        {ONE("\"U8\"", "[1]", "[1,0]"), 1, "data_offsets 1 to 0"},
        {ONE("\"U8\"", "[2]", "[0,2]"), 1, "the file has 1 bytes"},
        {ONE("\"U8\"", "[1]", "[9223372036854775806,9223372036854775807]"), 1,
         "the file has 1 bytes"},
        {ONE("\"U8\"", "[2]", "[0,1]"), 1, "hold 1 bytes but the shape takes 2"},
        {ONE("\"F32\"", "[]", "[0,8]"), 8, "hold 8 bytes but the shape takes 4"},
        {ONE("\"U8\"", "[1]", "[1,2]"), 2, "begins at byte 1 of the data, but the data begin at 0"},
        {ONE("\"U8\"", "[1]", "[0,1]"), 2, "1 bytes, but the file has 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "begins at byte 1"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         1, "begins at byte 0"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, "ends at 1"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         1, "duplicate"},
        {"{\"__metadata__\":1}", 0, "is not an object"},
        {"{\"__metadata__\":[]}", 0, "is not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is not a string"},
        {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "header"},
        {"{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "header"},
        {"{\"w\\u001b[2J\\u0007\":1}", 0, "\"w?\""},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_none(tn_safetensors_open(make_file(bad[i].header, bad[i].data)), TN_EFORMAT,
                    bad[i].part);
    }
    /* nothing in it, and nothing wrong */
    tn_safetensors *f = tn_safetensors_open(make_file("{}", 0));
    assert_non_null(f);
    assert_int_equal(tn_safetensors_count(f), 0);
    tn_safetensors_close(f);
}

PLAIN_TEST(test_hostile_length) {
    static const uint64_t lengths[] = {
        0, 1, 3, 100, 1u << 24, 1u << 31, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    const char *path = temp_path("made");
    for (int i = 0; i < 9; i++) {
        unsigned char file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        memcpy(file, &lengths[i], 8);
        temp_write(path, file, sizeof(file));
        assert_null(tn_safetensors_open(path));
        bool text = memchr(file, 0, sizeof(file)) == NULL;
        assert_error(TN_EFORMAT, text ? "not a safetensors file; it is text" : "2 bytes follow");
    }
    char deep[4096] = "{\"a\":";
    memset(deep + 5, '[', 3000);
    deep[3005] = 0;
    assert_none(tn_safetensors_open(make_file(deep, 0)), TN_EFORMAT, "header");
}

/* A header larger than the limit is not even parsed. */
PLAIN_TEST(test_header_cap) {
    size_t bytes = ((size_t)16 << 20) + 8;
    char *header = malloc(bytes + 1);
    memset(header, ' ', bytes);
    header[0] = '{';
    header[1] = '}';
    header[bytes] = 0;
    assert_none(tn_safetensors_open(make_file(header, 0)), TN_EFORMAT, "16777216 are read at most");
    header[bytes - 8] = 0;
    tn_safetensors *f = tn_safetensors_open(make_file(header, 0));
    assert_non_null(f);
    tn_safetensors_close(f);
    free(header);
}

static unsigned char *small_file(size_t *bytes) {
    TN_SCOPE;
    const char *path = temp_path("small");
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "w", tn_ones(TN_DIMS(2, 3), TN_F32));
    tn_safetensors_writer_add(w, "n", tn_arange(0, 3, 1, TN_I64));
    tn_safetensors_writer_add(w, "b", tn_zeros(TN_DIMS(3), TN_BOOL));
    tn_safetensors_writer_add_metadata(w, "format", "pt");
    assert_int_equal(tn_safetensors_writer_save(w, path), TN_OK);
    return temp_read(path, bytes);
}

/* Reads everything; whatever the file says, the process survives and any error is an expected
 * one. */
static void read_everything(const char *path) {
    TN_SCOPE;
    tn_safetensors *f = tn_safetensors_open(path);
    for (int i = 0; f && i < tn_safetensors_count(f) && !tn_error(); i++) {
        tn_tensor *t = tn_safetensors_get(f, tn_safetensors_name(f, i));
        if (tn_dtype_is_float(tn_dtype_of(t)) && tn_count(t)) { tn_item(tn_sum_all(t)); }
    }
    tn_safetensors_close(f);
    assert_true(tn_error() == TN_OK || tn_error() == TN_EFORMAT || tn_error() == TN_ENOMEM ||
                tn_error() == TN_EUNSUPPORTED); /* a flipped byte of a dtype's name */
    assert_true(f || tn_error() != TN_OK);
    tn_error_clear();
}

PLAIN_TEST(test_every_truncation) {
    size_t bytes;
    unsigned char *file = small_file(&bytes);
    const char *path = temp_path("cut");
    for (size_t length = 0; length < bytes; length++) {
        temp_write(path, file, length);
        assert_none(tn_safetensors_open(path), TN_EFORMAT, path);
    }
    free(file);
}

PLAIN_TEST(test_every_flipped_byte) {
    size_t bytes;
    unsigned char *file = small_file(&bytes);
    const char *path = temp_path("flipped");
    for (size_t at = 0; at < bytes; at++) {
        for (int bit = 0; bit < 9; bit++) {
            unsigned char before = file[at];
            file[at] = (unsigned char)(before ^ (bit < 8 ? 1u << bit : 0xffu));
            temp_write(path, file, bytes);
            read_everything(path);
            file[at] = before;
        }
    }
    free(file);
}

TEST(test_bad_bool) {
    tn_safetensors *f = tn_safetensors_open(make_file(ONE("\"BOOL\"", "[3]", "[0,3]"), 3));
    assert_inert(tn_safetensors_get(f, "a"), TN_EFORMAT, "element 2 is 2");
    tn_safetensors_close(f);
}

PLAIN_TEST(test_not_files) {
    assert_none(tn_safetensors_open("/nowhere/at/all"), TN_EIO, "No such file");
    assert_none(tn_safetensors_open("/tmp"), TN_EIO, "/tmp is a folder, not a regular file");
}

/* ---- A file that is cut short while it is open ----------------------------------------------- */

enum { ROWS = 1 << 18 };

static const char *large_file(void) {
    TN_SCOPE;
    const char *path = temp_path("large");
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "a", tn_ones(TN_DIMS(ROWS), TN_F32));
    tn_safetensors_writer_add(w, "b", tn_ones(TN_DIMS(ROWS), TN_F32));
    assert_int_equal(tn_safetensors_writer_save(w, path), TN_OK);
    return path;
}

TEST(test_cut_short) {
    const char *path = large_file();
    tn_safetensors *f = tn_safetensors_open(path);
    tn_tensor *a = tn_safetensors_get(f, "a");
    assert_int_equal(truncate(path, 4 * ROWS), 0); /* inside "a" */
    assert_inert(tn_safetensors_get(f, "b"), TN_EIO, "large was cut short while it was read");
    assert_inert(tn_safetensors_get(f, "a"), TN_EIO, "large was cut short while it was read");
    assert_true(tn_item(tn_sum_all(a)) == ROWS); /* what was read stays valid */
    tn_safetensors_close(f);
}

typedef struct busy_file {
    const char *path;
    off_t whole;
    int done; /* atomic */
} busy_file;

static void *change_length(void *user) {
    busy_file *b = user;
    while (!__atomic_load_n(&b->done, __ATOMIC_ACQUIRE)) {
        if (truncate(b->path, b->whole / 2) != 0 || truncate(b->path, b->whole) != 0) {
            return user;
        }
    }
    return NULL;
}

/* Weights are loaded or unchanged while another thread changes the file's length. */
TEST(test_cut_short_while_it_is_loaded) {
    tn_linear model;
    const char *path = temp_path("model");
    busy_file b = {.path = path};
    struct stat about;
    tn_linear_init(&model, 512, 512, tn_linear_defaults());
    assert_int_equal(tn_save(&model, path), TN_OK);
    assert_int_equal(stat(path, &about), 0);
    b.whole = about.st_size;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, change_length, &b), 0);
    for (int i = 0; i < 200; i++) {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_fill_(model.weight, 3);
        tn_fill_(model.bias, 3);
        if (tn_load(&model, path) != TN_OK) {
            assert_contains(tn_error_message(), path);
            tn_error_clear();
            assert_true(tn_item(tn_sum_all(tn_detach(model.weight))) == 3 * 512 * 512);
            assert_true(tn_item(tn_sum_all(tn_detach(model.bias))) == 3 * 512);
        }
    }
    __atomic_store_n(&b.done, 1, __ATOMIC_RELEASE);
    void *failed;
    pthread_join(thread, &failed);
    assert_null(failed);
    tn_module_finish(&model);
}

/* ---- Bad calls ------------------------------------------------------------------------------- */

TEST(test_bad_calls) {
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    assert_int_equal(tn_safetensors_writer_add(w, "a", t), TN_OK);
    tn_safetensors_writer_add(w, "__metadata__", t);
    assert_error(TN_EVALUE, "reserved");
    tn_safetensors_writer_add(w, "\xff", t);
    assert_error(TN_EVALUE, "not UTF-8");
    tn_safetensors_writer_add(w, NULL, t);
    assert_error(TN_EVALUE, "NULL");
    assert_int_not_equal(tn_safetensors_writer_add(w, "b", NULL), TN_OK);
    tn_error_clear();
    tn_safetensors_writer_add_metadata(w, "k", "\xff");
    assert_error(TN_EVALUE, "not UTF-8");
    tn_safetensors_writer_add_metadata(w, "k", "v");
    tn_safetensors_writer_add_metadata(w, "k", "v");
    assert_error(TN_EVALUE, "used twice");

    tn_raise(TN_EVALUE, "pending"); /* nothing is written while an error is pending */
    const char *path = temp_path("never");
    assert_int_equal(tn_safetensors_writer_save(w, path), TN_EVALUE);
    assert_int_equal(access(path, F_OK), -1);
    tn_error_clear();
    w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "a", t);
    tn_safetensors_writer_add(w, "b", t);
    tn_tensor *other = tn_ones(TN_DIMS(2), TN_U8); /* which comes after "b" */
    tn_safetensors_writer_add(w, "a", other);
    tn_drop(other);
    assert_fails(tn_safetensors_writer_save(w, path), TN_EVALUE, "\"a\" is used twice");
    assert_int_equal(access(path, F_OK), -1);

    assert_int_equal(tn_safetensors_count(NULL), 0);
    assert_false(tn_safetensors_has(NULL, "a"));
    assert_null(tn_safetensors_metadata(NULL, "a"));
    tn_safetensors *f = tn_safetensors_open(make_file("{}", 0));
    assert_inert(tn_safetensors_get(f, "a"), TN_EVALUE, "has no tensor \"a\"");
    assert_false(tn_safetensors_has(f, NULL));
    tn_safetensors_close(f);
}

/* What could not be added is not silently missing, even after the error was cleared. */
TEST(test_refused_add) {
    const char *path = temp_path("incomplete");
    tn_tensor *t = tn_ones(TN_DIMS(2), TN_F32);
    for (int what = 0; what < 4; what++) {
        tn_safetensors_writer *w = tn_safetensors_writer_new();
        assert_int_equal(tn_safetensors_writer_add(w, "whole", t), TN_OK);
        tn_status refused = what == 0   ? tn_safetensors_writer_add(w, "__metadata__", t)
                            : what == 1 ? tn_safetensors_writer_add(w, "absent", NULL)
                            : what == 2 ? tn_safetensors_writer_add(w, NULL, t)
                                        : tn_safetensors_writer_add_metadata(w, "key", "\xff");
        assert_int_not_equal(refused, TN_OK);
        tn_error_clear();
        assert_int_equal(tn_safetensors_writer_add(w, "after", t), TN_OK);
        static const char *const names[] = {"__metadata__", "absent", "(no name)", "key"};
        assert_int_equal(tn_safetensors_writer_save(w, path), TN_ESTATE);
        char part[64];
        snprintf(part, sizeof(part), "would lack \"%s\"", names[what]);
        assert_error(TN_ESTATE, part);
        assert_int_equal(access(path, F_OK), -1);
    }
}
