/* Text without what a terminal would interpret. */
#include "core/plain_text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/test.h"

#define ESC "\033"

typedef struct plain_case {
    const char *from, *plain;
} plain_case;

static const plain_case cases[] = {
    {"", ""},
    {"as it is\t~ é – \U0001f600", "as it is\t~ é – \U0001f600"},
    /* Colours, the cursor, the screen, modes. */
    {ESC "[31mred" ESC "[0m", "red"},
    {ESC "[mx" ESC "[1;38:5:208my" ESC "[>4;2mz" ESC "[1 m", "xyz"},
    {"a" ESC "[2J" ESC "[10;1Hb" ESC "[Kc" ESC "[?1049hd", "abcd"},
    /* Other sequences, and strings for the terminal itself. */
    {ESC "c" ESC "7x" ESC "(Bx", "?c?7x?(Bx"},
    {ESC "]0;title\ax", "?]0;title?x"},
    {ESC "]52;c;aGVsbG8=" ESC "\\x", "?]52;c;aGVsbG8=?\\x"},
    /* Incomplete sequences. */
    {"x" ESC, "x?"},
    {"x" ESC "[", "x"},
    {"x" ESC "[12;", "x"},
    {ESC ESC "[31mx", "?x"},
    {ESC ESC "[2J[31mx", "?[31mx"},
    {ESC "\nx", "??x"},
    {ESC "[3" ESC "[1mx", "x"},
    /* Other control characters. */
    {"a\bb\rc\nd\ve\ff\177g\005", "a?b?c?d?e?f?g?"},
    {"\xc2\x9b"
     "2Jx\xc2\x85\xc2\x90",
     "?2Jx??"},
    {"\u00a0x", "\u00a0x"},
    /* Bytes that are not UTF-8. */
    {"a\x9b"
     "31m\x84",
     "a?31m?"},
    {"caf\xe9", "caf\xe9"},
    {"\xc2" ESC "[K\x9bx", "\xc2?x"},
    {"\xc0\x9bx\xe0\x80\x9bx\xf0\x80\x80\x9bx", "\xc0?x\xe0??x\xf0???x"},
    {"\xed\xa0\x80\xf4\x90\x80\x80\xc2", "\xed\xa0?\xf4???\xc2"},
};

TEST(test_cases) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        size_t length = strlen(cases[i].from);
        char *to = strdup(cases[i].from);
        length = tn__plain_text(to, to, length);
        to[length] = 0;
        assert_string_equal(to, cases[i].plain);
        assert_int_equal(tn__plain_text(to, to, length), length); /* nothing to do */
        free(to);
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
    size_t length = tn__plain_text(text, text, BYTES);
    for (size_t i = 0; i < length; i++) {
        assert_true(text[i] != '\a' && text[i] != '\b' && text[i] != '\033');
    }
    for (size_t i = 0; i < BYTES; i++) {
        text[i] = "\033["[i % 2];
    }
    assert_int_equal(tn__plain_text(text, text, BYTES), 0);
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
    assert_string_equal(text, "tern warn: a peer said ?]0;x?hello?error: none\n");
    close(ends[0]);
    close(ends[1]);
    close(stderr_was);
}

/* So do errors, which may have several lines. */
TEST(test_errors) {
    tn_raise(TN_EVALUE, "the file says %s", ESC "[2Jhello\b\n" ESC "]0;x\a\tworld\n");
    assert_error(TN_EVALUE, "the file says hello?\n?]0;x?\tworld\n");
    tn_error_give(&(tn_error_record){.status = TN_EPEER, .message = "rank 1: " ESC "[31mno" ESC});
    assert_error(TN_EPEER, "rank 1: no?");
}

int main(void) {
    setenv("TERN_LOG", "warn", 1);
    return tests_run(NULL, NULL);
}
