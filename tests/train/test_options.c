/* A program's options from a table. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#include <tern/tern.h>

/* Parses in a process of its own, since that may end it; what it prints is in `text`.
 * Returns its exit status. */
static int parse_apart(const tn_option *table, char *word, char *text, size_t size) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char name[] = "program", *words[] = {name, word, NULL};
        dup2(pipes[1], STDOUT_FILENO);
        dup2(pipes[1], STDERR_FILENO);
        tn_options_parse(2, words, "A program.", table);
        _exit(0);
    }
    close(pipes[1]);
    size_t used = 0;
    for (ssize_t got = 1; got > 0 && used + 1 < size; used += got > 0 ? (size_t)got : 0) {
        got = read(pipes[0], text + used, size - 1 - used);
    }
    text[used] = 0;
    close(pipes[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A row that takes a value, but does not say what it is called. */
TEST(values_without_names) {
    static const char *const colours[] = {"red", "blue", NULL};
    int colour = 0;
    int64_t number = 0;
    const tn_option table[] = {
        {"colour", .help = "of all", .choice = &colour, .choices = colours},
        {"number", .help = "of them", .whole = &number, .needed = true},
        {0},
    };
    char text[2000], name[] = "program", blue[] = "--colour=blue", three[] = "--number=3";
    char help[] = "--help", bare[] = "--colour", *words[] = {name, blue, three, NULL};
    assert_int_equal(tn_options_parse(3, words, NULL, table), TN_OK);
    assert_int_equal(colour, 1);
    assert_int_equal(number, 3);
    assert_int_equal(parse_apart(table, help, text, sizeof(text)), 0);
    assert_contains(text, "--colour=VALUE");
    assert_contains(text, "of all: red or blue (blue)");
    assert_int_equal(parse_apart(table, bare, text, sizeof(text)), 64);
    assert_contains(text, "requires an argument");
    assert_int_equal(parse_apart(table, blue, text, sizeof(text)), 64);
    assert_contains(text, "--number VALUE is missing");
}
