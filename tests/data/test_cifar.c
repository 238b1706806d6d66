/* The reader of CIFAR-10 and CIFAR-100, on files made here: good ones, short ones, wrong ones. */
#include "tern/data.h"

#include <stdlib.h>
#include <string.h>

#include "tests/data/examples.h"
#include "tests/support/no_memory.h"
#include "tests/support/temp.h"

enum { VALUES = 3 * 32 * 32, RECORD = 1 + VALUES, EACH = 2 /* images in a file */ };

static unsigned char records[6 * EACH * RECORD];

static const char *const files[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                    "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};

static void write_all(void) {
    for (size_t i = 0; i < sizeof(records); i++) {
        records[i] = (unsigned char)(i % RECORD ? i * 31 + i / 7 : i / RECORD % 10);
    }
    for (int i = 0; i < 6; i++) {
        temp_write(temp_path(files[i]), records + i * EACH * RECORD, EACH * RECORD);
    }
}

static void check_pictures(tn_dataset *d, const unsigned char *from, int64_t count) {
    assert_non_null(d);
    assert_int_equal(d->size, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t y;
        const float *x = example_x(d, i, &y);
        assert_int_equal(y, from[i * RECORD]);
        for (int p = 0; p < VALUES; p++) {
            assert_true(x[p] == (float)from[i * RECORD + 1 + p] / 255.0f);
        }
    }
}

TEST(pictures_and_labels_in_the_order_of_the_files) {
    write_all();
    tn_dataset *d = tn_cifar10(temp_folder, true);
    check_pictures(d, records, 5 * EACH);
    assert_string_equal(d->classes[9], "truck");
    assert_null(d->classes[10]);
    check_threads(d);
    d = tn_cifar10(temp_folder, false);
    check_pictures(d, records + 5 * EACH * RECORD, EACH);
    tn_dataset_free(d);
}

TEST(the_finer_label_of_a_hundred) {
    static unsigned char two[2 * (RECORD + 1)];
    two[0] = 19, two[1] = 99, two[2] = 255;
    two[RECORD + 1] = 3, two[RECORD + 2] = 0, two[2 * (RECORD + 1) - 1] = 51;
    temp_write(temp_path("test.bin"), two, sizeof(two));
    tn_dataset *d = tn_cifar100(temp_folder, false);
    assert_non_null(d);
    assert_int_equal(d->size, 2);
    int64_t y;
    const float *x = example_x(d, 0, &y);
    assert_true(x[0] == 1.0f && y == 99);
    x = example_x(d, 1, &y);
    assert_true(x[VALUES - 1] == 0.2f && y == 0);
    assert_string_equal(d->classes[99], "worm");
    tn_dataset_free(d);
    two[RECORD + 2] = 100;
    temp_write(temp_path("test.bin"), two, sizeof(two));
    assert_none(tn_cifar100(temp_folder, false), TN_EFORMAT,
                "test.bin: label 1 is 100; there are 100 classes");
}

TEST(files_that_are_something_else) {
    static unsigned char more[EACH * RECORD + 1];
    write_all();
    static const size_t lengths[] = {0, 1, RECORD - 1, RECORD + 1, sizeof(more)};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        temp_write(temp_path("data_batch_3.bin"), more, lengths[i]);
        assert_none(tn_cifar10(temp_folder, true), TN_EFORMAT, "data_batch_3.bin has");
    }
    more[RECORD] = 10;
    temp_write(temp_path("data_batch_3.bin"), more, EACH * RECORD);
    assert_none(tn_cifar10(temp_folder, true), TN_EFORMAT,
                "data_batch_3.bin: label 1 is 10; there are 10 classes");
    unlink(temp_path("data_batch_3.bin"));
    assert_none(tn_cifar10(temp_folder, true), TN_EIO, "data_batch_3.bin: No such file");
}

TEST(a_claim_of_too_many_is_refused) {
    write_all();
    assert_int_equal(truncate(temp_path("data_batch_2.bin"), 1000000L * RECORD), 0); /* a hole */
    assert_none(tn_cifar10(temp_folder, true), TN_EFORMAT,
                "data_batch_2.bin has 1000000 pictures and the files before it 2; "
                "this reader takes at most 1000000 in all");
}

TEST(other_pictures_are_noticed) {
    identity text[2];
    write_all();
    text[0] = identify_and_free(tn_cifar10(temp_folder, true));
    records[4 * EACH * RECORD + 9] ^= 1;
    temp_write(temp_path(files[4]), records + 4 * EACH * RECORD, EACH * RECORD);
    text[1] = identify_and_free(tn_cifar10(temp_folder, true));
    assert_string_not_equal(text[0].text, text[1].text);
}

static void read_batches(void) {
    tn_dataset *d = tn_cifar10(temp_folder, true);
    tn_loader *l = d ? tn_loader_new(d, tn_random_sampler(1), tn_loader_defaults()) : NULL;
    tn_batch b;
    while (l && tn_loader_next(l, &b)) {}
    tn_loader_free(l);
}

TEST(memory_that_runs_out) {
    write_all();
    every_allocation(read_batches);
}
