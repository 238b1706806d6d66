/* Plugins: a missing, a broken and a good one. The good one is compiled by the test itself. */
#define _GNU_SOURCE
#include "core/plugin.h"

#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

PLAIN_TEST(test_missing) {
    char why[256] = "", again[256] = "";
    assert_null(tn__plugin_symbol("nowhere", "f", why, sizeof(why)));
    assert_contains(why, "libtern_nowhere.so");
    assert_contains(why, "No such file");
    assert_null(tn__plugin_symbol("nowhere", "f", again, sizeof(again)));
    assert_string_equal(why, again);
    assert_int_equal(tn_error(), TN_OK);
}

PLAIN_TEST(test_names) {
    char why[256] = "";
    assert_null(tn__plugin_symbol("../evil", "f", why, sizeof(why)));
    assert_contains(why, "../evil");
    assert_null(tn__plugin_symbol(NULL, "f", why, sizeof(why)));
    assert_null(tn__plugin_symbol("", "f", why, sizeof(why)));
    assert_null(tn__plugin_symbol("nowhere", NULL, why, sizeof(why)));
}

/* A file that exists but is not a library: its reason wins over "not found" elsewhere. */
TEST_WITH(test_broken, NULL, temp_clean) {
    char why[512] = "";
    const char *path = temp_path("libtern_broken.so");
    temp_write(path, "not ELF", 7);
    setenv("TERN_PLUGIN_PATH", temp_folder, 1);
    assert_null(tn__plugin_symbol("broken", "f", why, sizeof(why)));
    assert_contains(why, path);
    assert_null(strstr(why, "No such file"));
    unsetenv("TERN_PLUGIN_PATH");
}

typedef struct caller {
    void *address;
    char why[256];
} caller;

static void *find_symbol(void *user) {
    caller *c = user;
    c->address = tn__plugin_symbol("good", "answer", c->why, sizeof(c->why));
    return NULL;
}

/* Found in the second folder of the path, by several threads at once; a symbol that it does not
 * have. */
TEST_WITH(test_good, NULL, temp_clean) {
    enum { THREADS = 4 };
    char command[1200], folders[512], why[256] = "";
    const char *source = temp_path("good.c");
    temp_write(source, "int answer(void) { return 42; }\n", 32);
    snprintf(command, sizeof(command), "cc -shared -fPIC -o %s %s 2>/dev/null",
             temp_path("libtern_good.so"), source);
    if (system(command) != 0) { skip(); /* a machine without a compiler */ }
    snprintf(folders, sizeof(folders), "/nonexistent::%s", temp_folder);
    setenv("TERN_PLUGIN_PATH", folders, 1);
    caller callers[THREADS] = {0};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, find_symbol, &callers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_non_null(callers[i].address);
        assert_ptr_equal(callers[i].address, callers[0].address);
    }
    assert_int_equal(((int (*)(void))callers[0].address)(), 42);
    assert_null(tn__plugin_symbol("good", "question", why, sizeof(why)));
    assert_contains(why, "question");
    unsetenv("TERN_PLUGIN_PATH");
}

/* A fork while another thread opens a library waits until it is open: in the child it is whole, and
 * libraries can be opened. The library's constructor forks as well, and gives the fork a while to
 * come. */
static const char slow_source[] = "#include <poll.h>\n"
                                  "#include <stdlib.h>\n"
                                  "#include <unistd.h>\n"
                                  "static int ready;\n"
                                  "__attribute__((constructor)) static void begin_slowly(void) {\n"
                                  "    if (write(atoi(getenv(\"SLOW_FD\")), \"!\", 1) == 1) {\n"
                                  "        poll(NULL, 0, 300);\n"
                                  "        ready = 42;\n"
                                  "    }\n"
                                  "}\n"
                                  "int answer(void) { return ready; }\n";

static void *find_slow(void *user) {
    caller *c = user;
    c->address = tn__plugin_symbol("slow", "answer", c->why, sizeof(c->why));
    return NULL;
}

static bool slow_answers(void) {
    caller c = {0};
    find_slow(&c);
    char why[256];
    return c.address && ((int (*)(void))c.address)() == 42 &&
           !tn__plugin_symbol("nowhere_else", "f", why, sizeof(why));
}

TEST_WITH(test_fork_while_one_is_opened, NULL, temp_clean) {
    char command[1200], text[16], byte;
    const char *source = temp_path("slow.c");
    temp_write(source, slow_source, sizeof(slow_source) - 1);
    snprintf(command, sizeof(command), "cc -shared -fPIC -o %s %s 2>/dev/null",
             temp_path("libtern_slow.so"), source);
    if (system(command) != 0) { skip(); /* a machine without a compiler */ }
    int ends[2], status = -1;
    assert_int_equal(pipe(ends), 0);
    snprintf(text, sizeof(text), "%d", ends[1]);
    setenv("SLOW_FD", text, 1);
    setenv("TERN_PLUGIN_PATH", temp_folder, 1);
    pthread_t thread;
    caller c = {0};
    assert_int_equal(pthread_create(&thread, NULL, find_slow, &c), 0);
    assert_int_equal(read(ends[0], &byte, 1), 1); /* now it is being opened */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(60);
        _exit(slow_answers() ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    pthread_join(thread, NULL);
    assert_int_equal(status, 0);
    assert_true(slow_answers());
    close(ends[0]);
    close(ends[1]);
    unsetenv("SLOW_FD");
    unsetenv("TERN_PLUGIN_PATH");
}
