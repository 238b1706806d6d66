/* A process that saves in a loop is killed at random moments: its file is always a whole one, the
 * last or the one before. */
#include "tern/tern.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "tests/io/small_run.h"
#include "tests/support/temp.h"

enum { KILLS = 60 };

/* What the child says about itself, in shared memory: the steps of the last save that began, and
 * that ended. */
typedef struct shared {
    volatile int64_t began, ended;
} shared;

static void save_forever(const char *path, int64_t step, shared *s) {
    small_run r;
    small_run_open(&r, 1);
    tn_checkpoint c = small_run_checkpoint(&r);
    if (step >= 0 && tn_checkpoint_load(&c, path) != TN_OK) {
        _exit(2);
    }
    for (int64_t n = step + 1;; n++) {
        small_run_step(&r);
        c = small_run_checkpoint(&r);
        c.step = n;
        s->began = n;
        if (tn_checkpoint_save(&c, path) != TN_OK) {
            _exit(3);
        }
        s->ended = n;
    }
}

static void test_killed_while_saving(void **state) {
    (void)state;
    const char *path = temp_path("checkpoint");
    shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    s->began = s->ended = -1;
    int64_t step = -1;
    int in_the_middle = 0;
    for (int i = 0; i < KILLS; i++) {
        pid_t child = fork();
        if (child == 0) {
            save_forever(path, step, s);
        }
        int64_t before = s->ended;
        for (int waited = 0; s->ended < before + 2 && waited < 20000; waited++) {
            usleep(1000);
        }
        uint32_t pause = tn_philox(3, 0, 0, (uint64_t)i).word[0] % 3000;
        usleep(pause);
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        small_run r;
        small_run_open(&r, 2);
        tn_checkpoint c = small_run_checkpoint(&r);
        tn_status loaded = tn_checkpoint_load(&c, path);
        if (loaded != TN_OK) {
            fail_msg("%s", tn_error_message());
        }
        assert_true(c.step == s->began || c.step == s->ended);
        in_the_middle += s->began != s->ended;
        step = c.step;
        small_run_close(&r);
        assert_true(temp_count() <= 2); /* leftovers do not pile up */
    }
    fprintf(stderr, "%d of %d kills fell into a save; %lld saves\n", in_the_middle, KILLS,
            (long long)s->ended);
    assert_true(in_the_middle > KILLS / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_while_saving)};
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
