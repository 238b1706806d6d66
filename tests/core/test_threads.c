/* The number of threads, the log, and the line about the build. */
#include "tern/core.h"

#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "tests/support/test.h"

static int size_of_team(void) {
    int n = 0;
    tn_threads();
#pragma omp parallel
    {
#pragma omp single
        n = omp_get_num_threads();
    }
    return n;
}

static void *team_in_thread(void *to) {
    *(int *)to = size_of_team();
    return NULL;
}

static void *size_of_team_told_nonsense(void *to) {
    omp_set_num_threads(1000000000); /* as OMP_NUM_THREADS does in every thread */
    *(int *)to = size_of_team();
    return NULL;
}

/* Before tn_set_threads is called, what OpenMP was told holds unless it is absurd. */
PLAIN_TEST(test_absurd_environment) {
    int n = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, size_of_team_told_nonsense, &n), 0);
    pthread_join(thread, NULL);
    assert_int_equal(n, omp_get_num_procs());
}

PLAIN_TEST(test_threads) {
    assert_true(tn_threads() >= 1);
    tn_set_threads(3);
    assert_int_equal(tn_threads(), 3);
    assert_int_equal(size_of_team(), 3);
    int n = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, team_in_thread, &n), 0);
    pthread_join(thread, NULL);
    assert_int_equal(n, 3); /* OpenMP alone would not tell another thread */
    tn_set_threads(0);
    assert_int_equal(tn_error(), TN_EVALUE);
    assert_int_equal(tn_threads(), 3);
    tn_error_clear();
    tn_set_threads(1000000000);
    assert_error(TN_EVALUE, "1000000000 threads (1 to 4096)");
    assert_int_equal(tn_threads(), 3);
    assert_int_equal(size_of_team(), 3);
}

static char seen[2000];
static int lines;
static tn_log_level seen_level;

static void log_sink(tn_log_level level, const char *message, void *user) {
    *(int *)user += 1;
    seen_level = level;
    strcpy(seen, message);
    lines++;
    if (lines == 1) { tn_log_write(TN_LOG_ERROR, "from the sink"); /* no deadlock */ }
}

static void endless_sink(tn_log_level level, const char *message, void *user) {
    *(int *)user += 1;
    tn_log_write(TN_LOG_ERROR, "from the sink, again");
}

PLAIN_TEST(test_a_sink_that_logs) {
    int user = 0;
    tn_log_to(endless_sink, TN_LOG_WARN, &user);
    tn_log_write(TN_LOG_ERROR, "one");
    assert_int_equal(user, 2);
    tn_log_write(TN_LOG_ERROR, "two");
    assert_int_equal(user, 4);
    tn_log_to(NULL, TN_LOG_DEBUG, NULL);
}

PLAIN_TEST(test_log) {
    int user = 0;
    tn_log_write(TN_LOG_ERROR, "to nobody");
    tn_log_to(log_sink, TN_LOG_WARN, &user);
    tn_log_write(TN_LOG_INFO, "too much");
    assert_int_equal(user, 0);
    lines = 1;
    tn_log_write(TN_LOG_WARN, "%d rows", 4);
    assert_int_equal(user, 1);
    assert_int_equal(seen_level, TN_LOG_WARN);
    assert_string_equal(seen, "4 rows");
    lines = 0;
    tn_log_write(TN_LOG_ERROR, "one");
    assert_int_equal(user, 3);
    char text[3000];
    memset(text, 'x', sizeof(text));
    text[sizeof(text) - 1] = 0;
    tn_log_write(TN_LOG_ERROR, "%s", text);
    assert_int_equal(strlen(seen), 1023);
    tn_log_write(TN_LOG_ERROR, NULL);
    tn_log_write((tn_log_level)-1, "no level");
    tn_log_to(NULL, TN_LOG_DEBUG, NULL);
    tn_log_write(TN_LOG_ERROR, "to nobody");
    assert_int_equal(user, 4);
}

PLAIN_TEST(test_build_info) {
    const char *text = tn_build_info();
    assert_non_null(strstr(text, "tern 0.1.0, "));
    assert_non_null(strstr(text, " 3 threads"));
    assert_null(strchr(text, '\n'));
}
