/* The seeds of the fuzz target for indices of checkpoints in parts, run as an ordinary test. */
#include "tests/fuzz/fuzz_index.c"
#include "tests/support/test.h"

#include "tests/support/replay.h"
#include "tests/support/temp.h"

PLAIN_TEST(test_indices) {
    assert_true(replay_corpus("fuzz_index", fuzz_index) >= 30);
}

static tn__index *read_seed(const char *seed) {
    char path[4000];
    const char *root = getenv("TERN_ROOT");
    snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/fuzz_index/%s", root ? root : ".", seed);
    size_t bytes;
    char *text = (char *)temp_read(path, &bytes);
    put_index_digest(text, bytes);
    tn__index *ix = tn__index_read(index_folder, text, bytes, "test");
    assert_non_null(ix);
    free(text);
    return ix;
}

/* The fuzz target would test little if every seed were refused. */
static void check_reads(const char *seed, int64_t count, float last) {
    tn__index *ix = read_seed(seed);
    const tn__index_tensor *t = tn__index_find(ix, "a");
    float to[64];
    tn_layout mine = tn__layout_whole(t->whole);
    assert_int_equal(mine.length, count);
    assert_true(tn__index_fetch(t, &mine, to));
    assert_true(to[count - 1] == last);
    tn__index_free(ix);
}

PLAIN_TEST(test_whole_indices_are_read) {
    check_reads("whole", 12, 11);
    check_reads("twice_in_ranges", 24, 11);
    check_reads("cut", 24, 11);
    check_reads("cut_inside", 24, 11);
    check_reads("in_pieces", 24, 11);
}

/* Pieces that do not make up a tensor exactly, though the number of elements is right. */
PLAIN_TEST(test_overlaps_are_refused) {
    static const char *const seeds[] = {"gap", "overlap", "overlap_with_gap"};
    for (int i = 0; i < 3; i++) {
        float to[64];
        tn__index *ix = read_seed(seeds[i]);
        const tn__index_tensor *t = tn__index_find(ix, "a");
        tn_layout mine = tn__layout_whole(t->whole);
        assert_false(tn__index_fetch(t, &mine, to));
        assert_error(TN_EFORMAT, "the pieces of \"a\" overlap or leave gaps");
        tn__index_free(ix);
    }
}
