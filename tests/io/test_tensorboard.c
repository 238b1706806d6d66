/* Event files: the framing, its contents, and a file that cannot grow. */
#define _GNU_SOURCE 1 /* memmem */
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/support/temp.h"

#include <signal.h>
#include <tern/tern.h>

/* The only file of a folder, whole; the caller frees. */
static unsigned char *only_file(const char *folder, size_t *bytes) {
    char path[512] = "";
    DIR *names = opendir(folder);
    assert_non_null(names);
    for (struct dirent *entry; (entry = readdir(names));) {
        if (entry->d_name[0] != '.') {
            assert_string_equal(path, "");
            assert_non_null(strstr(entry->d_name, "tfevents"));
            snprintf(path, sizeof(path), "%s/%.250s", folder, entry->d_name);
        }
    }
    closedir(names);
    return temp_read(path, bytes);
}

static uint64_t little_endian(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) {
        value = value << 8 | at[i];
    }
    return value;
}

/* Bit by bit from the polynomial, with no code of the library. */
static uint32_t masked_check(const unsigned char *at, size_t bytes) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes * 8; i++) {
        uint32_t bit = (uint32_t)(at[i / 8] >> i % 8 & 1);
        crc = (crc ^ bit) & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Checks the frame at *at; returns its data, their length in *bytes, and moves *at past it. */
static const unsigned char *open_record(const unsigned char **at, const unsigned char *end,
                                        size_t *bytes) {
    assert_true(end - *at >= 16);
    *bytes = (size_t)little_endian(*at, 8);
    assert_int_equal(little_endian(*at + 8, 4), masked_check(*at, 8));
    const unsigned char *data = *at + 12;
    assert_true((size_t)(end - data) >= *bytes + 4);
    assert_int_equal(little_endian(data + *bytes, 4), masked_check(data, *bytes));
    *at = data + *bytes + 4;
    return data;
}

static bool has_text(const unsigned char *data, size_t bytes, const char *text) {
    return memmem(data, bytes, text, strlen(text)) != NULL;
}

TEST(records_of_a_file) {
    const char *folder = temp_path("records");
    assert_int_equal(masked_check((const unsigned char *)"123456789", 9),
                     0xc78ab0e5u); /* RFC 3720 */
    tn_summary_writer *w = tn_summary_writer_new(folder, 7);
    assert_non_null(w);
    assert_int_equal(tn_summary_add_scalar(w, "loss", 0.15625, 300), TN_OK);
    assert_int_equal(tn_summary_add_text(w, "words", "**bold**", 1), TN_OK);
    tn_tensor *x = tn_arange(0, 100, 1, TN_BF16), *none = tn_full(TN_DIMS(3), NAN, TN_F32);
    assert_int_equal(tn_summary_add_histogram(w, "weights", x, 2), TN_OK);
    assert_int_equal(tn_summary_add_histogram(w, "nothing", none, 2), TN_OK);
    assert_int_equal(tn_summary_add_image(w, "picture", tn_rand(TN_DIMS(3, 4, 5), TN_F32), 3),
                     TN_OK);
    float reals[] = {-1, 0, 0.5, 1, 2, NAN};
    unsigned char same[] = {0, 0, 128, 255, 255, 0};
    tn_summary_add_image(w, "grey", TN_FROM(reals, TN_DIMS(1, 2, 3), TN_F32), 4);
    tn_summary_add_image(w, "grey", TN_FROM(same, TN_DIMS(1, 2, 3), TN_U8), 4);
    assert_int_equal(tn_summary_flush(w), TN_OK);
    size_t bytes, n, n_same;
    unsigned char *file = only_file(folder, &bytes);
    const unsigned char *at = file, *end = file + bytes, *data;
    data = open_record(&at, end, &n);
    assert_true(has_text(data, n, "brain.Event:2"));
    data = open_record(&at, end, &n); /* time (9 bytes), step 7, session {status START} */
    assert_memory_equal(data + 9, ((unsigned char[]){0x10, 7, 0x3a, 2, 8, 1}), 6);
    data = open_record(&at, end, &n); /* step 300; summary {value {tag, simple_value}} */
    assert_memory_equal(data + 9,
                        ((unsigned char[]){0x10, 0xac, 2, 0x2a, 13, 0x0a, 11, 0x0a, 4, 'l', 'o',
                                           's', 's', 0x15, 0, 0, 0x20, 0x3e}),
                        18);
    assert_int_equal(n, 9 + 18);
    static const char *const rest[] = {"**bold**", "weights", "\x89PNG\r\n"};
    for (int i = 0; i < 3; i++) {
        data = open_record(&at, end, &n);
        assert_true(has_text(data, n, rest[i]));
    }
    data = open_record(&at, end, &n); /* the same after the time */
    const unsigned char *by_bytes = open_record(&at, end, &n_same);
    assert_int_equal(n, n_same);
    assert_memory_equal(data + 9, by_bytes + 9, n - 9);
    assert_ptr_equal(at, end);
    free(file);
    tn_summary_writer_free(w);
}

TEST(calls_that_make_no_sense) {
    tn_summary_writer *w = tn_summary_writer_new(temp_path("sense"), -1);
    assert_int_equal(tn_summary_add_scalar(NULL, NULL, 1, 1), TN_OK);
    assert_int_equal(tn_summary_add_scalar(w, NULL, 1, 1), TN_EVALUE);
    assert_error(TN_EVALUE, "the tag is NULL or empty");
    static const char *const bytes[] = {"caf\xe9", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"};
    for (int i = 0; i < 5; i++) { /* TensorBoard could not read what follows either */
        tn_tensor *x = tn_ones(TN_DIMS(1, 1, 1), TN_F32);
        assert_int_equal(tn_summary_add_scalar(w, bytes[i], 1, 1), TN_EVALUE);
        assert_error(TN_EVALUE, "is not UTF-8");
        assert_int_equal(tn_summary_add_text(w, bytes[i], "x", 1), TN_EVALUE);
        assert_error(TN_EVALUE, "is not UTF-8");
        assert_int_equal(tn_summary_add_text(w, "a", bytes[i], 1), TN_EVALUE);
        assert_error(TN_EVALUE, "the text of a is not UTF-8");
        assert_int_equal(tn_summary_add_histogram(w, bytes[i], x, 1), TN_EVALUE);
        assert_error(TN_EVALUE, "is not UTF-8");
        assert_int_equal(tn_summary_add_image(w, bytes[i], x, 1), TN_EVALUE);
        assert_error(TN_EVALUE, "is not UTF-8");
    }
    assert_int_equal(tn_summary_add_text(w, "caf\xc3\xa9", "\xf0\x9f\x98\x80", 1), TN_OK);
    assert_int_equal(tn_summary_add_text(w, "a", NULL, 1), TN_EVALUE);
    assert_error(TN_EVALUE, "the text of a is NULL");
    assert_int_equal(tn_summary_add_image(w, "a", tn_ones(TN_DIMS(5, 2, 2), TN_F32), 1), TN_EVALUE);
    assert_error(TN_EVALUE, "a is [5, 2, 2] (a picture is");
    assert_int_equal(tn_summary_add_histogram(w, "a", NULL, 1), TN_EVALUE);
    assert_error(TN_EVALUE, "is NULL");
    tn_summary_writer_free(w);
    assert_null(tn_summary_writer_new(NULL, -1));
    assert_error(TN_EVALUE, "the folder is NULL or empty");
    assert_null(tn_summary_writer_new("/proc/nowhere", -1));
    assert_error(TN_EIO, "/proc/nowhere");
}

/* A record that does not fit is not written, not even in part, so later ones can be read. */
TEST(file_that_is_full) {
    const char *folder = temp_path("full");
    tn_summary_writer *w = tn_summary_writer_new(folder, -1);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){.rlim_cur = 100, .rlim_max = before.rlim_max};
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(tn_summary_add_text(w, "long", "0123456789012345678901234567890123456789", 1),
                     TN_EIO);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, old);
    assert_error(TN_EIO, "tfevents");
    assert_int_equal(tn_summary_add_scalar(w, "after", 1, 2), TN_OK);
    size_t bytes, n;
    unsigned char *file = only_file(folder, &bytes);
    const unsigned char *at = file, *data;
    open_record(&at, file + bytes, &n);
    data = open_record(&at, file + bytes, &n);
    assert_true(has_text(data, n, "after"));
    assert_ptr_equal(at, file + bytes);
    free(file);
    tn_summary_writer_free(w);
}
