/* Text without what a terminal would interpret. */
#include "core/plain_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

#define ESC "\033"

typedef struct plain_case {
    const char *from, *plain, *coloured;
} plain_case;

static const plain_case cases[] = {
    {"", "", ""},
    {"as it is\t~ é – \U0001f600", "as it is\t~ é – \U0001f600", "as it is\t~ é – \U0001f600"},
    /* Colours and weight. */
    {ESC "[31mred" ESC "[0m", "red", ESC "[31mred" ESC "[0m"},
    {ESC "[mx", "x", ESC "[mx"},
    {ESC "[1;38:5:208mx", "x", ESC "[1;38:5:208mx"},
    {ESC "[?25mx", "x", "x"},
    {ESC "[>4;2mx", "x", "x"},
    {ESC "[1 mx", "x", "x"},
    /* The cursor, the screen, modes. */
    {"a" ESC "[2J" ESC "[10;1Hb" ESC "[Kc" ESC "[?1049hd", "abcd", "abcd"},
    {ESC "c" ESC "7x" ESC "(Bx" ESC "#8x", "xxx", "xxx"},
    /* Strings for the terminal itself. */
    {ESC "]0;title\ax", "x", "x"},
    {ESC "]52;c;aGVsbG8=" ESC "\\x", "x", "x"},
    {ESC "Pq#0" ESC "\\x" ESC "_a\ay" ESC "^b\az", "xyz", "xyz"},
    {ESC "]0;without an end", "0;without an end", "0;without an end"},
    {"a\ab" ESC "]0;c", "a?b0;c", "ab0;c"},
    /* Incomplete sequences. */
    {"x" ESC, "x?", "x"},
    {"x" ESC "[", "x", "x"},
    {"x" ESC "[12;", "x", "x"},
    {ESC ESC "[31mx", "?x", ESC "[31mx"},
    {ESC ESC "[2J[31mx", "?[31mx", "[31mx"},
    {ESC "\nx", "??x", "x"},
    {ESC "[3" ESC "[1mx", "x", ESC "[1mx"},
    /* Other control characters. */
    {"a\bb\rc\nd\ve\ff\177g\005", "a?b?c?d?e?f?g?", "abcdefg"},
    {"\xc2\x9b"
     "2Jx\xc2\x85\xc2\x90",
     "?2Jx??", "2Jx"},
    {"\u00a0x", "\u00a0x", "\u00a0x"},
    /* Bytes that are not UTF-8. */
    {"a\x9b"
     "31m\x84",
     "a?31m?", "a31m"},
    {"caf\xe9", "caf\xe9", "caf\xe9"},
    {"\xc2" ESC "[K\x9bx", "\xc2?x", "\xc2x"},
    {"\xc0\x9bx\xe0\x80\x9bx\xf0\x80\x80\x9bx", "\xc0?x\xe0??x\xf0???x", "\xc0x\xe0x\xf0x"},
    {"\xed\xa0\x80\xf4\x90\x80\x80\xc2", "\xed\xa0?\xf4???\xc2", "\xed\xa0\xf4\xc2"},
};

TEST(test_cases) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const char *wanted[] = {cases[i].plain, cases[i].coloured};
        for (int colours = 0; colours < 2; colours++) {
            size_t length = strlen(cases[i].from);
            char *to = strdup(cases[i].from);
            length = tn__plain_text(to, to, length, colours);
            to[length] = 0;
            assert_string_equal(to, wanted[colours]);
            assert_int_equal(tn__plain_text(to, to, length, colours), length); /* nothing to do */
            free(to);
        }
    }
}

/* Neither hangs nor lets anything through, whatever the bytes. */
TEST(test_any_bytes) {
    enum { BYTES = 1 << 21 };
    static const char parts[] = "\033\033\033[]P\\;0m9 K\a\b\x80\x9b\xc2\xe0\xf0xy";
    char *text = malloc(BYTES);
    uint32_t random = 1;
    for (size_t i = 0; i < BYTES; i++) {
        random = random * 1664525 + 1013904223;
        text[i] = parts[(random >> 16) % (sizeof(parts) - 1)];
    }
    size_t length = tn__plain_text(text, text, BYTES, true);
    for (size_t i = 0; i < length; i++) {
        assert_true(text[i] != '\a' && text[i] != '\b');
        assert_true(text[i] != '\033' || text[i + 1] == '[');
    }
    length = tn__plain_text(text, text, length, false);
    assert_null(memchr(text, '\033', length));
    for (size_t i = 0; i < BYTES; i++) {
        text[i] = "\033]"[i % 2];
    }
    assert_int_equal(tn__plain_text(text, text, BYTES, false), 0);
    free(text);
}

/* The log on stderr quotes peers and files. */
TEST(test_log) {
    int ends[2], stderr_was = dup(STDERR_FILENO);
    char text[256] = "";
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    tn_log_write(TN_LOG_WARN, "%s", "a peer said " ESC "[2J" ESC "]0;x\ahello\nerror: none");
    dup2(stderr_was, STDERR_FILENO);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    assert_string_equal(text, "tern warn: a peer said hello?error: none\n");
    close(ends[0]);
    close(ends[1]);
    close(stderr_was);
}

/* So do errors, which may have several lines. */
TEST(test_errors) {
    tn_raise(TN_EVALUE, "the file says %s", ESC "[2Jhello\b\n" ESC "]0;x\a\tworld\n");
    assert_error(TN_EVALUE, "the file says hello?\n\tworld\n");
    tn_error_give(&(tn_error_record){TN_EPEER, "rank 1: " ESC "[31mno" ESC});
    assert_error(TN_EPEER, "rank 1: no?");
}

int main(void) {
    setenv("TERN_LOG", "warn", 1);
    return tests_run(NULL, NULL);
}
