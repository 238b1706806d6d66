/* Arrays, bytes and texts that grow. */
#include "core/buffer.h"
#include "core/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/test.h"

TEST(test_array_grows) {
    int *list = NULL;
    int64_t capacity = 0;
    int moves = 0;
    for (int i = 0; i < 10000; i++) {
        int64_t before = capacity;
        assert_true(tn__grow(&list, i + 1, &capacity, sizeof(*list), "grow"));
        assert_true(capacity > i);
        moves += capacity != before;
        list[i] = i;
    }
    assert_true(moves < 15); /* it doubles */
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(list[i], i);
    }
    int64_t held = capacity;
    assert_true(tn__grow(&list, 100, &capacity, sizeof(*list), "grow")); /* never shorter */
    assert_int_equal(capacity, held);
    assert_true(tn__grow(&list, 5 * held, &capacity, sizeof(*list), "grow")); /* all at once */
    assert_int_equal(capacity, 5 * held);
    free(list);
}

/* Without memory, and if the number of bytes overflows, the array stays as it was. */
TEST(test_array_refused) {
    int *list = NULL;
    int64_t capacity = 0;
    assert_true(tn__grow(&list, 1, &capacity, sizeof(*list), "grow"));
    *list = 7;
    int *before = list;
    int64_t held = capacity;
    assert_false(tn__grow(&list, INT64_MAX, &capacity, sizeof(*list), "grow"));
    assert_error(TN_ENOMEM, "grow: no memory for 9223372036854775807 times 4 bytes");
    assert_false(tn__grow(&list, INT64_MAX / 2, &capacity, sizeof(*list), NULL)); /* raises nothing
                                                                                   */
    assert_int_equal(tn_error(), TN_OK);
    tn__alloc_fail_at(0);
    assert_false(tn__grow(&list, held + 1, &capacity, sizeof(*list), "grow"));
    tn__alloc_fail_at(-1);
    assert_error(TN_ENOMEM, "grow: no memory for");
    assert_true(list == before && *list == 7 && capacity == held);
    free(list);
}

TEST(test_memory_for) {
    int *zeros = tn__calloc_for(100, sizeof(*zeros), "memory");
    for (int i = 0; i < 100; i++) {
        assert_int_equal(zeros[i], 0);
    }
    free(zeros);
    char *text = tn__strdup_for("text", "memory");
    assert_string_equal(text, "text");
    free(text);
    free(tn__malloc_for(0, "memory"));
    tn__alloc_fail_at(0);
    assert_null(tn__malloc_for(24, "memory"));
    tn__alloc_fail_at(-1);
    assert_error(TN_ENOMEM, "memory: no memory for 24 bytes");
    tn__alloc_fail_at(0);
    assert_null(tn__strdup_for("text", "memory"));
    tn__alloc_fail_at(-1);
    assert_error(TN_ENOMEM, "memory: no memory for \"text\"");
    tn__alloc_fail_at(0);
    assert_null(tn__calloc_for(3, 8, "memory"));
    tn__alloc_fail_at(-1);
    assert_error(TN_ENOMEM, "memory: no memory for 3 times 8 bytes");
}

TEST(test_buffer_appends) {
    tn__buffer b = {.operation = "buffer"};
    char expected[6000] = "", one[40];
    for (int i = 0; i < 500; i++) {
        snprintf(one, sizeof(one), "%d:%.*s;", i, i % 9, "abcdefghi");
        strcat(expected, one);
        assert_true(tn__buffer_format(&b, "%d:", i));
        assert_true(tn__buffer_add(&b, "abcdefghi", (size_t)(i % 9)));
        assert_true(tn__buffer_text(&b, ";"));
        assert_int_equal(strlen(b.at), b.bytes);
    }
    assert_string_equal(b.at, expected);
    char *text = tn__buffer_take(&b);
    assert_string_equal(text, expected);
    assert_null(b.at);
    free(text);
}

/* Texts of every length around the capacity. */
TEST(test_buffer_formats) {
    for (int n = 0; n < 300; n++) {
        tn__buffer b = {.operation = "buffer"};
        tn__buffer_format(&b, "%*s", n, "");
        tn__buffer_format(&b, "%0*d", n + 1, 7);
        assert_int_equal(b.bytes, 2 * n + 1);
        assert_int_equal(strlen(b.at), b.bytes);
        assert_int_equal(b.at[2 * n], '7');
        tn__buffer_free(&b);
        char *text = tn__asprintf("text", "%*s|", n, "");
        assert_int_equal(strlen(text), n + 1);
        assert_int_equal(text[n], '|');
        free(text);
    }
}

/* Any bytes, and an empty one. */
TEST(test_buffer_bytes) {
    tn__buffer b = {0};
    assert_true(tn__buffer_add(&b, "a\0b", 3));
    assert_true(tn__buffer_add(&b, NULL, 0));
    assert_memory_equal(b.at, "a\0b", 4);
    tn__buffer_free(&b);
    char *text = tn__buffer_take(&b);
    assert_string_equal(text, "");
    free(text);
}

/* The first failure stays: nothing is appended after what is missing. */
TEST(test_buffer_fails) {
    for (int quiet = 0; quiet < 2; quiet++) {
        tn__buffer b = {.operation = quiet ? NULL : "buffer"};
        assert_true(tn__buffer_text(&b, "first "));
        tn__alloc_fail_at(0);
        assert_false(tn__buffer_format(&b, "%1000d", 1));
        tn__alloc_fail_at(-1);
        assert_false(tn__buffer_text(&b, "more"));
        assert_true(b.failed);
        assert_null(tn__buffer_take(&b));
        if (quiet) {
            assert_int_equal(tn_error(), TN_OK);
        } else {
            assert_error(TN_ENOMEM, "buffer: no memory for");
        }
        assert_true(tn__buffer_text(&b, "again")); /* it is empty now */
        assert_string_equal(b.at, "again");
        tn__buffer_free(&b);
    }
    tn__alloc_fail_at(0);
    assert_null(tn__asprintf("text", "%d", 3));
    tn__alloc_fail_at(-1);
    assert_error(TN_ENOMEM, "text: no memory for");
}
