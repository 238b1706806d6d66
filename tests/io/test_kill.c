/* A process that saves in a loop is killed at each of its calls that change files: its file is
 * always a whole one, the last or the one before. */
#include "tern/tern.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/io/small_run.h"
#include "tests/support/kill_at.h"
#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { KILLS = 60 };

/* What the child reports, in shared memory: the steps of the last save that began and of the last
 * that ended. */
typedef struct shared {
    volatile int64_t began, ended;
} shared;

static void save_forever(const char *path, int64_t step, shared *s) {
    small_run r;
    small_run_open(&r, 1);
    tn_checkpoint c = small_run_checkpoint(&r);
    if (step > 0 && tn_checkpoint_load(&c, path) != TN_OK) { _exit(2); }
    for (int64_t n = step + 1;; n++) {
        small_run_step(&r);
        c = small_run_checkpoint(&r);
        c.step = n;
        s->began = n;
        if (tn_checkpoint_save(&c, path) != TN_OK) { _exit(3); }
        s->ended = n;
    }
}

PLAIN_TEST(test_killed_while_saving) {
    const char *path = temp_path("checkpoint");
    shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    int64_t step = 0;
    int old = 0, new = 0;
    for (int i = 0; i < KILLS; i++) {
        s->began = s->ended = step;
        pid_t child = fork();
        if (child == 0) {
            kill_at_call = KILLS - i; /* the first saves before it; the last dies at once */
            save_forever(path, step, s);
        }
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        small_run r;
        small_run_open(&r, 2);
        tn_checkpoint c = small_run_checkpoint(&r);
        tn_status loaded = tn_checkpoint_load(&c, path);
        if (loaded != TN_OK) { fail_msg("%s", tn_error_message()); }
        assert_int_equal(s->began, s->ended + 1); /* the kill fell into a save */
        assert_true(c.step == s->began || c.step == s->ended);
        *(c.step == s->began ? &new : &old) += 1;
        step = c.step;
        small_run_close(&r);
        assert_true(temp_count() <= 2); /* leftovers do not pile up */
    }
    fprintf(stderr, "%d kills left the file before, %d the new one; %lld saves\n", old, new,
            (long long)step);
    assert_true(old > 0 && new > 0);
}
