/* Tokens in files: which files are trusted, and processes that make the user's own token at
 * once. */
#define _GNU_SOURCE
#include "distributed/init/token.h"

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { MAKERS = 8 };

static const char *write_token(const char *text, size_t bytes, mode_t mode) {
    const char *path = temp_path("token");
    unlink(path);
    temp_write(path, text, bytes);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void assert_refused(const char *path, const char *part) {
    char token[TN__TOKEN] = "as it was";
    tn_status status = tn__token_read(path, token);
    assert_int_not_equal(status, TN_OK);
    assert_contains(tn_error_message(), part);
    assert_error(status, path);
    assert_string_equal(token, "as it was");
}

static void text_refused(const char *text, size_t bytes, const char *part) {
    assert_refused(write_token(text, bytes, 0600), part);
}

static void assert_accepted(const char *text, const char *expected) {
    char token[TN__TOKEN];
    if (tn__token_read(write_token(text, strlen(text), 0600), token) != TN_OK) {
        fail_msg("%s", tn_error_message());
    }
    assert_string_equal(token, expected);
}

TEST(test_texts) {
    char longest[TN__TOKEN + 1];
    memset(longest, 'x', TN__TOKEN);
    longest[TN__TOKEN] = 0;
    assert_accepted("a secret", "a secret");
    assert_accepted("secret\n", "secret");
    assert_accepted("secret\r\n", "secret");
    assert_accepted(longest + 1, longest + 1);
    text_refused(longest, TN__TOKEN, "more than 255");
    text_refused("", 0, "0 characters");
    text_refused("\n", 1, "0 characters");
    text_refused("two\nlines\n", 10, "one line");
    text_refused("bell\a", 5, "printable");
    text_refused("\xc3\xa4", 2, "printable");
    text_refused("a\0b", 3, "zero byte");
}

TEST(test_strange_files) {
    const char *path = write_token("secret", 6, 0644), *link = temp_path("link");
    assert_refused(path, "mode 0644");
    assert_refused(write_token("secret", 6, 0620), "chmod 600");
    path = write_token("secret", 6, 0400);
    assert_int_equal(symlink(path, link), 0);
    assert_refused(link, "symbolic link");
    const char *fifo = temp_path("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_refused(fifo, "not a regular file"); /* at once: open does not wait for a writer */
    assert_refused("/dev/null", "not a regular file");
    assert_refused(temp_path("nothing"), "No such file");
    if (geteuid() == 0) { /* only root can give a file away */
        path = write_token("secret", 6, 0600);
        assert_int_equal(chown(path, 65534, 65534), 0);
        assert_refused(path, "belongs to user 65534");
    }
}

/* ---- The user's own token -------------------------------------------------------------------- */

/* A home for this test; without `config` the token is below HOME. */
static void move_home(const char *config, const char *home) {
    assert_int_equal(config ? setenv("XDG_CONFIG_HOME", config, 1) : unsetenv("XDG_CONFIG_HOME"),
                     0);
    assert_int_equal(home ? setenv("HOME", home, 1) : unsetenv("HOME"), 0);
}

static void remove_token(const char *folder) {
    char path[640];
    snprintf(path, sizeof(path), "%s/tern/token", folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/tern", folder);
    assert_int_equal(rmdir(path), 0); /* nothing else remains there */
    rmdir(folder);
}

static void own_token(char token[TN__TOKEN]) {
    if (tn__token_user(token) != TN_OK) { fail_msg("%s", tn_error_message()); }
}

TEST(test_user) {
    char first[TN__TOKEN], again[TN__TOKEN], other[TN__TOKEN], path[600];
    const char *home = temp_path("home");
    struct stat about;
    move_home(NULL, home);
    own_token(first);
    assert_int_equal(strlen(first), 64);
    own_token(again);
    assert_string_equal(first, again);
    snprintf(path, sizeof(path), "%s/.config/tern/token", home);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0600);
    snprintf(path, sizeof(path), "%s/.config/tern", home);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0700);
    move_home(temp_path("config"), home);
    own_token(other);
    assert_string_not_equal(first, other);
    remove_token(temp_path("config"));
    move_home("not/absolute", home);
    own_token(again);
    assert_string_equal(first, again);
    snprintf(path, sizeof(path), "%s/.config", home);
    remove_token(path);
    rmdir(home);
}

static void user_refused(const char *part) {
    char token[TN__TOKEN];
    tn__token_user(token);
    assert_error(TN_EIO, part);
}

TEST(test_no_place) {
    move_home(NULL, NULL);
    user_refused("neither XDG_CONFIG_HOME nor HOME");
    move_home(NULL, "");
    user_refused("neither XDG_CONFIG_HOME nor HOME");
    move_home("/dev/null", NULL);
    user_refused("/dev/null/tern/token");
    move_home("/proc/nowhere", NULL);
    user_refused("/proc/nowhere/tern/token");
}

/* Processes that ask for the token at the same time receive the same one. */
TEST(test_race) {
    char token[TN__TOKEN], mine[TN__TOKEN], byte;
    int gate[2], answers[2];
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    assert_int_equal(pipe2(answers, O_CLOEXEC), 0);
    move_home(temp_path("config"), NULL);
    for (int i = 0; i < MAKERS; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            close(gate[1]);
            memset(mine, 0, sizeof(mine));
            bool begins = read(gate[0], &byte, 1) == 0;
            bool fine = begins && tn__token_user(mine) == TN_OK;
            _exit(fine && write(answers[1], mine, sizeof(mine)) == sizeof(mine) ? 0 : 1);
        }
    }
    close(gate[0]);
    close(gate[1]);
    close(answers[1]);
    for (int i = 0; i < MAKERS; i++) {
        assert_int_equal(read(answers[0], mine, sizeof(mine)), sizeof(mine));
        if (i == 0) { memcpy(token, mine, sizeof(token)); }
        assert_string_equal(token, mine);
    }
    close(answers[0]);
    for (int status; wait(&status) > 0;) {
        assert_int_equal(status, 0);
    }
    remove_token(temp_path("config"));
}

TEST(test_derive) {
    char a[TN__TOKEN], b[TN__TOKEN];
    tn__token_derive("secret", "job 1", a);
    tn__token_derive("secret", "job 1", b);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), 64);
    tn__token_derive("secret", "job 2", b);
    assert_string_not_equal(a, b);
    tn__token_derive("secreu", "job 1", b);
    assert_string_not_equal(a, b);
}
