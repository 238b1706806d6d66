/* fork: what a child can do with the library, and that neither it nor its parent waits forever. */
#include "core/error.h"
#include "core/sanitize.h"
#include "tern/tern.h"
#include "tests/support/fork.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 192, CELLS = N * N };

static float expected[CELLS];

/* A forward and a backward whose kernels use every thread. */
static void compute_gradient(float *out) {
    TN_SCOPE;
    tn_seed(7);
    tn_tensor *a = tn_set_requires_grad(tn_randn(TN_DIMS(N, N), TN_F32), true);
    tn_tensor *b = tn_randn(TN_DIMS(N, N), TN_F32);
    tn_backward(tn_sum_all(tn_square(tn_softmax(tn_matmul(a, b), 1))));
    tn_copy_out(tn_grad_of(a), out);
    tn_zero_grad(a);
}

static bool computes_right(void) {
    static _Thread_local float out[CELLS];
    compute_gradient(out);
    return tn_error() == TN_OK && memcmp(out, expected, sizeof(out)) == 0;
}

/* ---- Before there are threads ---------------------------------------------------------------- */

static void has_team(void *user) {
    tn_set_threads(2);
    child_assert(tn_threads() == 2);
    int n = 0;
#pragma omp parallel reduction(+ : n)
    n++;
    child_assert(n == 2);
    compute_gradient(expected);
    child_assert(computes_right());
}

/* The first test: nothing has started a thread yet. */
TEST(test_before_threads) {
    if (CHILD_HAS_THREADS) { assert_child(has_team, NULL); }
}

/* ---- Computing ------------------------------------------------------------------------------- */

static void computes_alone(void *user) {
    child_assert(tn_threads() == 1);
    child_assert(computes_right());
}

static void *compute_in_thread(void *user) {
    *(bool *)user = tn_threads() == 3 && computes_right();
    return NULL;
}

/* A child computes on one thread, whatever it asks for; its own parallel regions do not wait for
 * the parent's threads either. Threads that it starts have their own teams. */
static void asks_for_threads(void *user) {
    computes_alone(user);
    tn_set_threads(3);
    computes_alone(user);
    int n = 0;
#pragma omp parallel reduction(+ : n)
    n++;
    child_assert(n == 1);
    for (int i = 0; CHILD_HAS_THREADS && i < 2; i++) {
        pthread_t thread;
        bool right = false;
        child_assert(pthread_create(&thread, NULL, compute_in_thread, &right) == 0);
        pthread_join(thread, NULL);
        child_assert(right);
    }
    computes_alone(user);
}

static void has_children(void *user) {
    assert_child(computes_alone, user);
    computes_alone(user);
    assert_child(computes_alone, user);
}

TEST(test_computes) {
    tn_set_threads(4);
    compute_gradient(expected);
    assert_child(computes_alone, NULL);
    assert_child(asks_for_threads, NULL);
    assert_child(has_children, NULL);
    assert_int_equal(tn_threads(), 4);
    assert_true(computes_right());
}

/* While a team works: each of its threads forks. */
TEST(test_in_a_region) {
    pid_t child[4];
    int status[4];
#pragma omp parallel num_threads(4)
    {
        int me = omp_get_thread_num();
        child[me] = fork();
        if (child[me] == 0) {
            alarm(120);
            _exit(tn_threads() == 1 && computes_right() ? 0 : 1);
        }
        waitpid(child[me], &status[me], 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(child[i] > 0);
        assert_int_equal(status[i], 0);
    }
}

/* ---- While others are busy ------------------------------------------------------------------- */

static bool done; /* atomic */

/* The locks that threads share: of the allocator, the log, the places of errors. */
static void touch_locks(void) {
    TN_SCOPE;
    for (int64_t size = 1; size <= 1 << 20; size *= 4) {
        tn_empty(TN_DIMS(size), TN_U8);
    }
    (void)tn_memory();
    tn_memory_trim();
    tn_log_write(TN_LOG_DEBUG, "still here");
    tn_matmul(tn_zeros(TN_DIMS(2, 3), TN_F32), tn_zeros(TN_DIMS(2, 3), TN_F32));
    (void)tn_error_message(); /* looks up its place */
    tn_error_clear();
    tn_flight_mark("touched", 0);
}

static void *be_busy(void *user) {
    static _Thread_local float out[CELLS];
    while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
        touch_locks();
        compute_gradient(out);
    }
    return NULL;
}

static void no_sink(tn_log_level level, const char *message, void *user) {}

static void lives_on(void *user) {
    touch_locks();
    touch_locks();
    child_assert(computes_right());
}

TEST(test_while_busy) {
    enum { BUSY = 3, FORKS = 200 };
    pthread_t busy[BUSY];
    if (TN__ASAN || !CHILD_HAS_THREADS) { /* sanitizers of gcc 12, clang 14 do not lock at fork */
        print_message("a sanitizer's allocator may be locked in a child\n");
        skip();
    }
    tn_log_to(no_sink, TN_LOG_DEBUG, NULL);
    __atomic_store_n(&done, false, __ATOMIC_RELAXED);
    for (int i = 0; i < BUSY; i++) {
        assert_int_equal(pthread_create(&busy[i], NULL, be_busy, NULL), 0);
    }
    for (int i = 0; i < FORKS; i++) {
        assert_child(lives_on, NULL);
    }
    assert_int_equal(system("exit 3"), 3 << 8);
    FILE *pipe = popen("exit 4", "r");
    assert_non_null(pipe);
    assert_int_equal(pclose(pipe), 4 << 8);
    __atomic_store_n(&done, true, __ATOMIC_RELAXED);
    for (int i = 0; i < BUSY; i++) {
        pthread_join(busy[i], NULL);
    }
    tn_log_to(NULL, TN_LOG_DEBUG, NULL);
    assert_true(computes_right());
}

/* ---- While modules are searched -------------------------------------------------------------- */

typedef struct holder {
    tn_module base;
    tn_tensor *nothing;
} holder;

static tn_tensor *forward_nothing(tn_module *self, tn_tensor *x) {
    return x;
}

static void holder_init(holder *h) {
    tn_module_init(h, "holder", forward_nothing);
    tn_module_scratch(h, "nothing", &h->nothing, NULL);
}

/* Each call looks through all modules for the one that has moved. */
static void *use_a_copy(void *user) {
    holder copy = *(holder *)user;
    while (!__atomic_load_n(&done, __ATOMIC_RELAXED)) {
        tn_module_train(&copy, true);
        tn_error_clear();
    }
    return NULL;
}

static void makes_a_module(void *user) {
    holder h;
    holder_init(&h);
    tn_module_finish(&h);
    child_assert(tn_error() == TN_OK);
}

TEST(test_while_modules_are_looked_for) {
    enum { MODULES = 3000, FORKS = 50 };
    static holder all[MODULES];
    pthread_t busy;
    for (int i = 0; i < MODULES; i++) {
        holder_init(&all[i]);
    }
    __atomic_store_n(&done, false, __ATOMIC_RELAXED);
    assert_int_equal(pthread_create(&busy, NULL, use_a_copy, &all[0]), 0);
    for (int i = 0; i < FORKS; i++) {
        assert_child(makes_a_module, NULL);
    }
    __atomic_store_n(&done, true, __ATOMIC_RELAXED);
    pthread_join(busy, NULL);
    for (int i = 0; i < MODULES; i++) {
        tn_module_finish(&all[i]);
    }
}
