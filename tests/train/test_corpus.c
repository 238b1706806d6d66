/* The seeds of the fuzz target for questions with endings, as an ordinary test. */
#include "tests/fuzz/fuzz_choices.c"
#include "tests/support/test.h"

#include "tests/support/replay.h"

PLAIN_TEST(test_choices) {
    assert_true(replay_corpus("fuzz_choices", fuzz_choices) >= 20);
}

/* The target would be blind if no seed were accepted. */
PLAIN_TEST(test_whole_files_are_read) {
    static const char *const seeds[] = {"whole", "labels_as_text", "blank_lines"};
    for (int i = 0; i < 3; i++) {
        char path[4000];
        const char *root = getenv("TERN_ROOT");
        snprintf(path, sizeof(path), "%s/tests/fuzz/corpus/fuzz_choices/%s", root ? root : ".",
                 seeds[i]);
        tn_choice_scores c;
        assert_int_equal(
            tn_evaluate_choices(&table, path, bytes_as_tokens, CONTEXT, tn_evaluate_defaults(), &c),
            TN_OK);
        assert_int_equal(c.questions, 2);
    }
}
