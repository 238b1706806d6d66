/* Scopes: who owns what, and until when. */
#include "core/allocator.h"
#include "core/sanitize.h"
#include "tern/sys/tensor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fork.h"
#include "tests/support/test.h"

#include <tern/tern.h>

static tn_tensor *make_scalar(double value) {
    float x = (float)value;
    return tn_from_data(&x, TN_DIMS(), TN_F32);
}

/* A loop without a scope is warned about once, however many threads lack one. */
static int warnings;
static char warning[1024];

static void take_warning(tn_log_level level, const char *message, void *user) {
    warnings += level == TN_LOG_WARN;
    snprintf(warning, sizeof warning, "%s", message);
}

static void adopt_many(tn_tensor *t, int n) {
    for (int i = 0; i < n; i++) {
        tn_adopt(tn_keep(t));
    }
}

static void *forget_scope(void *user) {
    tn_tensor *t = user;
    adopt_many(t, 10000);
    int before = warnings;
    {
        TN_SCOPE;
        adopt_many(t, 10);
    }
    assert_int_equal(warnings, before);
    adopt_many(t, 10);
    return NULL;
}

/* The limit from the environment. */
static void allow_number(void *user) {
    tn_log_to(take_warning, TN_LOG_WARN, NULL);
    setenv("TERN_ROOT_TENSORS", user, 1);
    tn_tensor *t = make_scalar(1);
    adopt_many(t, 15000);
    int limit = atoi(user); /* 0: says nothing at all */
    child_assert(warnings == (limit > 0 && limit < 15000));
    char number[64];
    snprintf(number, sizeof number, "more than %d tensors", limit);
    child_assert(warnings == 0 || strstr(warning, number));
}

/* First of all tests: the environment is read once per process. */
TEST_WITH(test_allowed_number, test_no_error, NULL) {
    assert_child(allow_number, "400");
    assert_child(allow_number, "16000");
    assert_child(allow_number, "0");
}

/* What a program that asks for no log writes to stderr when two threads forget their scope. */
static void forget_aloud(void *level) {
    int ends[2], before = dup(STDERR_FILENO);
    char text[1024] = "";
    unsetenv("TERN_ROOT_TENSORS");
    unsetenv("TERN_LOG");
    if (level) { setenv("TERN_LOG", level, 1); }
    child_assert(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0 && close(ends[1]) == 0);
    tn_tensor *t = make_scalar(1);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        child_assert(pthread_create(&thread, NULL, forget_scope, t) == 0);
        pthread_join(thread, NULL);
    }
    dup2(before, STDERR_FILENO); /* the pipe has no writer left */
    ssize_t bytes = read(ends[0], text, sizeof text - 1);
    const char *line = strstr(text, "more than 10000 tensors were made outside any scope");
    child_assert(bytes >= 0 && (line != NULL) == !level);
    child_assert(!line ||
                 (strncmp(text, "tern warn: ", 11) == 0 && !strstr(line + 1, "tern warn")));
}

TEST_WITH(test_forgotten_scope_aloud, test_no_error, NULL) {
    assert_child(forget_aloud, NULL);
    assert_child(forget_aloud, "error");
}

TEST_WITH(test_forgotten_scope, test_no_error, NULL) {
    warnings = 0;
    tn_log_to(take_warning, TN_LOG_WARN, NULL);
    { /* a scope before anything is made, as at the top of main */
        TN_SCOPE;
        tn_tensor *t = make_scalar(1);
        adopt_many(t, 20000);
    }
    assert_int_equal(warnings, 0);
    tn_tensor *t = make_scalar(1);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, forget_scope, t), 0);
        pthread_join(thread, NULL);
        assert_int_equal(warnings, 1);
    }
    tn_log_to(NULL, TN_LOG_ERROR, NULL);
    assert_contains(warning, "more than 10000 tensors were made outside any scope");
    assert_contains(warning, "TN_SCOPE");
    assert_true(strncmp(warning, "test_scope.c:", 13) == 0); /* where it happens */
}

TEST_WITH(test_scope_releases, test_no_error, NULL) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        make_scalar(1);
        make_scalar(2);
        assert_int_equal(tn_live_tensors(), before + 2);
        {
            TN_SCOPE;
            make_scalar(3);
            assert_int_equal(tn_live_tensors(), before + 3);
        }
        assert_int_equal(tn_live_tensors(), before + 2);
    }
    assert_int_equal(tn_live_tensors(), before);
}

static int leave_by(int how) {
    for (int i = 0; i < 3; i++) {
        TN_SCOPE;
        make_scalar(i);
        if (how == 0) { continue; }
        TN_SCOPE;
        make_scalar(i);
        if (how == 1) { break; }
        if (how == 2) { return i; }
    }
    return -1;
}

TEST_WITH(test_every_way_out, test_no_error, NULL) {
    int64_t before = tn_live_tensors();
    for (int how = 0; how < 4; how++) {
        leave_by(how);
        assert_int_equal(tn_live_tensors(), before);
    }
}

static tn_tensor *inner_scope(void) {
    TN_SCOPE;
    make_scalar(1);
    tn_tensor *result = make_scalar(2);
    make_scalar(3);
    return tn_return(result);
}

static tn_tensor *middle_scope(void) {
    TN_SCOPE;
    tn_tensor *result = inner_scope();
    make_scalar(4);
    return tn_return(result);
}

TEST(test_return_through_scopes) {
    int64_t before = tn_live_tensors();
    tn_tensor *t = middle_scope();
    assert_int_equal(tn_live_tensors(), before + 1);
    assert_true(tn_item(t) == 2);
}

/* Several results keep their order: a later drop of one leaves the others. */
static void make_three(tn_tensor **out) {
    TN_SCOPE;
    for (int i = 0; i < 3; i++) {
        make_scalar(-1);
        out[i] = tn_return(make_scalar(i));
        make_scalar(-2);
    }
    tn_return(out[1]); /* twice counts once */
}

TEST(test_return_several) {
    int64_t before = tn_live_tensors();
    tn_tensor *t[3];
    make_three(t);
    assert_int_equal(tn_live_tensors(), before + 3);
    tn_drop(t[1]);
    assert_int_equal(tn_live_tensors(), before + 2);
    assert_true(tn_item(t[0]) == 0);
    assert_true(tn_item(t[2]) == 2);
}

static tn_tensor *pass_through(tn_tensor *t) {
    TN_SCOPE;
    return tn_return(t);
}

TEST(test_return_of_somebody_elses) {
    tn_tensor *t = make_scalar(5);
    assert_ptr_equal(pass_through(t), t);
    assert_true(tn_item(t) == 5);
    tn_tensor *kept = tn_keep(make_scalar(6));
    tn_drop(kept);
    assert_ptr_equal(pass_through(kept), kept); /* owned by no scope at all */
    assert_true(tn_item(kept) == 6);
    tn_release(kept);
}

TEST(test_drop) {
    int64_t before = tn_live_tensors();
    tn_tensor *a = make_scalar(1), *b = make_scalar(2);
    tn_drop(a);
    assert_int_equal(tn_live_tensors(), before + 1);
    {
        TN_SCOPE;
        tn_drop(b); /* not this scope's */
        assert_true(tn_item(b) == 2);
    }
    assert_int_equal(tn_live_tensors(), before + 1);
    tn_drop(NULL);
    tn_drop(tn_inert());
}

TEST_WITH(test_keep_and_adopt, test_no_error, NULL) {
    int64_t before = tn_live_tensors();
    tn_tensor *kept;
    {
        TN_SCOPE;
        kept = tn_keep(make_scalar(7));
    }
    assert_int_equal(tn_live_tensors(), before + 1);
    {
        TN_SCOPE;
        assert_ptr_equal(tn_adopt(kept), kept);
        assert_true(tn_item(kept) == 7);
    }
    assert_int_equal(tn_live_tensors(), before);
}

static void *make_in_thread(void *unused) {
    make_scalar(1); /* in the root scope: released with the thread */
    return tn_keep(make_scalar(8));
}

TEST_WITH(test_threads, test_no_error, NULL) {
    int64_t before = tn_live_tensors();
    pthread_t thread;
    void *made;
    assert_int_equal(pthread_create(&thread, NULL, make_in_thread, NULL), 0);
    pthread_join(thread, &made);
    assert_int_equal(tn_live_tensors(), before + 1);
    {
        TN_SCOPE;
        tn_adopt(made);
        assert_true(tn_item(made) == 8);
    }
    assert_int_equal(tn_live_tensors(), before);
}

static void *use_shared(void *t) {
    for (int i = 0; i < 20000; i++) {
        TN_SCOPE;
        tn_adopt(tn_keep(t));
    }
    return NULL;
}

TEST(test_counting_from_threads) {
    int64_t before = tn_live_tensors();
    tn_tensor *t = make_scalar(9);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, use_shared, t), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(tn_live_tensors(), before + 1);
    assert_true(tn_item(t) == 9);
}

/* A release may do anything: here it makes tensors, inside and outside a scope. */
static int64_t released;
static void busy_release(void *data, void *user) {
    released++;
    make_scalar(1);
    TN_SCOPE;
    for (int i = 0; i < 100; i++) {
        make_scalar(i);
    }
}

TEST_WITH(test_release_makes_tensors, test_no_error, NULL) {
    static float memory[4];
    int64_t before = tn_live_tensors();
    released = 0;
    tn_tensor *result;
    {
        TN_SCOPE;
        {
            TN_SCOPE;
            for (int i = 0; i < 50; i++) {
                tn_from_memory(memory, TN_DIMS(4), TN_F32, busy_release, NULL);
            }
            result = tn_return(make_scalar(3));
        }
        assert_int_equal(released, 50);
        assert_true(tn_item(result) == 3);
    }
    assert_int_equal(tn_live_tensors(), before);
}

TEST_WITH(test_null_and_inert, test_no_error, NULL) {
    assert_null(tn_keep(NULL));
    tn_release(NULL);
    assert_int_equal(tn_error(), TN_OK);
    assert_ptr_equal(tn_keep(tn_inert()), tn_inert());
    tn_release(tn_inert());
    tn_release(tn_inert());
    assert_ptr_equal(tn_adopt(tn_inert()), tn_inert());
    assert_ptr_equal(tn_return(tn_inert()), tn_inert());
    assert_int_equal(tn_error(), TN_OK);
    assert_ptr_equal(tn_return(NULL), tn_inert());
    assert_error(TN_EVALUE, "return: the tensor is NULL");
    assert_ptr_equal(tn_adopt(NULL), tn_inert());
    assert_int_equal(tn_error(), TN_EVALUE);
}

/* 100 000 tensors in one scope, and each allocation on the way may fail. */
TEST_WITH(test_large_scope, test_no_error, NULL) {
    int64_t before = tn_live_tensors();
    {
        TN_SCOPE;
        for (int i = 0; i < 100000; i++) {
            make_scalar(i);
        }
        assert_int_equal(tn_live_tensors(), before + 100000);
    }
    assert_int_equal(tn_live_tensors(), before);
}

static void *fail_to_grow(void *unused) {
    const char *problem = NULL;
    for (int n = 0; n < 1000 && !problem; n++) {
        TN_SCOPE;
        tn__alloc_fail_at(n);
        for (int i = 0; i < 300; i++) {
            tn_tensor *t = make_scalar(i);
            if (tn_error() == TN_OK ? tn_is_inert(t) : tn_error() != TN_ENOMEM) {
                problem = "an inert tensor without an error, or the wrong one";
            }
        }
        if (tn__alloc_fail_armed() ? tn_error() != TN_OK : tn_error() != TN_ENOMEM) {
            problem = "a failed allocation went unnoticed";
        }
        tn__alloc_fail_at(-1);
        tn_error_clear();
    }
    return (void *)problem;
}

/* In a new thread, so that its stack of owned tensors has to grow from nothing. */
TEST_WITH(test_no_memory_to_grow, test_no_error, NULL) {
    int64_t before = tn_live_tensors();
    pthread_t thread;
    void *problem;
    assert_int_equal(pthread_create(&thread, NULL, fail_to_grow, NULL), 0);
    pthread_join(thread, &problem);
    if (problem) { fail_msg("%s", (const char *)problem); }
    assert_int_equal(tn_live_tensors(), before);
}

TEST_WITH(test_dead_tensor_names_its_scope, test_no_error, NULL) {
    tn_tensor *t;
    char expected[100];
    {
        snprintf(expected, sizeof(expected),
                 "item: the tensor was released at the end of the scope opened at test_scope.c:%d",
                 __LINE__ + 1);
        TN_SCOPE;
        t = make_scalar(1);
    }
    tn_item(t);
    assert_int_equal(tn_error(), TN_ESTATE);
    if (!strstr(tn_error_message(), expected)) { fail_msg("%s", tn_error_message()); }
    tn_error_clear();
    TN_SCOPE;
    t = make_scalar(2);
    tn_drop(t);
    assert_int_equal(tn_ndim(t), 0);
    assert_int_equal(tn_error(), TN_ESTATE);
    assert_non_null(strstr(
        tn_error_message(),
        "ndim: the tensor was released before (by tn_release or tn_drop, or with what held it)"));
}

/* Dropping one reference twice is an error, and nothing else is lost. */
TEST(test_released_twice) {
    tn_tensor *stays = make_scalar(1), *t = tn_keep(make_scalar(2));
    int64_t before = tn_live_tensors();
    tn_drop(t);
    tn_release(t);
    tn_release(t);
    assert_error(TN_ESTATE, "release: the tensor was released before");
    {
        TN_SCOPE;
        tn_adopt(t);
    }
    assert_error(TN_ESTATE, "release: the tensor was released before");
    assert_int_equal(tn_live_tensors(), before - 1);
    for (int i = 0; i < 5000; i++) { /* its memory is not reused twice */
        tn_drop(make_scalar(i));
    }
    assert_float_equal(tn_item(stays), 1, 0);
}

TEST(test_dead_tensors_rest) {
    tn_tensor *first = make_scalar(0);
    tn_drop(first);
    for (int i = 0; i < 4095; i++) {
        tn_drop(make_scalar(i));
    }
    assert_int_equal(tn_ndim(first), 0); /* still known */
    assert_error(TN_ESTATE, "ndim: the tensor was released before");
    tn_drop(make_scalar(0));
    if (!TN__ASAN) { /* ASan: memory is never reused */
        assert_ptr_equal(make_scalar(0), first);
    }
}

/* What a module's forward keeps to itself dies with the call. */
typedef struct forgetful {
    tn_module base;
    tn_tensor *seen;
} forgetful;

static tn_tensor *remember_square(tn_module *self, tn_tensor *x) {
    ((forgetful *)self)->seen = tn_square(x);
    return tn_neg(x);
}

TEST(test_dead_tensor_names_its_module) {
    forgetful m;
    tn_module_init(&m, "forgetful", remember_square);
    tn_call(&m, make_scalar(2));
    tn_item(m.seen);
    assert_error(TN_ESTATE, "item: the tensor was released when the forward of forgetful returned");
    tn_module_finish(&m);
}

static void *make_one(void *made) {
    *(tn_tensor **)made = tn_keep(make_scalar(1));
    tn_tensor *mine = make_scalar(2);
    tn_drop(mine);
    return mine;
}

/* The memory of a thread's dead tensors is freed with it; tensors that others hold live on. */
TEST_WITH(test_dead_of_a_thread, test_no_error, NULL) {
    pthread_t thread;
    tn_tensor *made;
    int64_t before = tn_live_tensors();
    assert_int_equal(pthread_create(&thread, NULL, make_one, &made), 0);
    pthread_join(thread, NULL);
    assert_float_equal(tn_item(made), 1, 0);
    tn_release(made);
    assert_int_equal(tn_live_tensors(), before);
    tn_item(made);
    assert_error(TN_ESTATE, "item: the tensor was released before");
}
