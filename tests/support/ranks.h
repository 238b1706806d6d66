/* Test bodies as real processes: this program again, once for each rank.
 *
 *     RANK(add_up) { ...; rank_assert(sum == 3); return 0; }
 *
 *     TEST(test_add) { ranks_pass(2, "add_up", ""); }
 *
 * A fault test uses ranks_start, sends a signal to job.pid[1], and calls ranks_wait.
 */
#ifndef TERN_TESTS_SUPPORT_RANKS_H
#define TERN_TESTS_SUPPORT_RANKS_H

#include "tern/parallel.h"

#include <sys/types.h>

#define RANKS_MOST 16

/* What a rank does with `world` and `argument`, between tn_dist_init and tn_dist_finish; its
 * process exits with the value. With an error pending it goes to stderr and the process exits
 * with 1. */
#define RANK(name) RANK_WITH(name, world, false)
/* Without tn_dist_init. */
#define PLAIN_RANK(name) RANK_WITH(name, no_world, true)

/* What these call. */
typedef int (*rank_body)(tn_group *world, const char *argument);
#define RANK_WITH(name, group, plain)                                \
    static int name(tn_group *group, const char *argument);          \
    __attribute__((constructor)) static void register_##name(void) { \
        ranks_add(#name, name, plain);                               \
    }                                                                \
    static int name(__attribute__((unused)) tn_group *group,         \
                    __attribute__((unused)) const char *argument)
void ranks_add(const char *name, rank_body body, bool plain);

/* First in a main of one's own: does not return in a rank. */
void ranks_main(int argc, char **argv);

/* In a body: says what is not true, and ends this process with 1. (cmocka's assert_… would go
 * unnoticed.) */
#define rank_assert(truth) ((truth) ? (void)0 : ranks_failed(#truth, __FILE__, __LINE__))
void ranks_failed(const char *what, const char *file, int line);

typedef struct ranks_job {
    int n;
    pid_t pid[RANKS_MOST]; /* each leads a process group */
    int output[RANKS_MOST];
    double begin;
} ranks_job;

typedef struct ranks_result {
    int n;
    int status[RANKS_MOST];   /* as of waitpid */
    char *output[RANKS_MOST]; /* stdout and stderr */
    double seconds;
    bool timed_out; /* the remaining ones were killed */
} ranks_result;

/* Starts n ranks with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (a
 * free one), TERN_TOKEN and OMP_NUM_THREADS=1, without any other variable of Tern's or of a
 * launcher. extra_env (NULL: none) ends with NULL: "NAME=VALUE" sets, "NAME" removes,
 * "2:NAME=VALUE" is for rank 2 alone. They die with this process. */
ranks_job ranks_start(int n, const char *body, const char *argument, const char *const *extra_env);

/* What a rank has written contains `part`. */
#define assert_says(result, rank, part) assert_says_at(result, rank, part, __FILE__, __LINE__)
void assert_says_at(const ranks_result *result, int rank, const char *part, const char *file,
                    int line);

/* What a rank has written so far; the caller frees. */
char *ranks_output(const ranks_job *job, int rank);
/* Waits until the rank has written this; false after `timeout` seconds, or when it has ended
 * without. */
bool ranks_await_output(const ranks_job *job, int rank, const char *text, double timeout);

/* Waits for all of them; kills and reaps the rest after `timeout` seconds from the start. */
ranks_result ranks_wait(ranks_job *job, double timeout);

ranks_result ranks_run(int n, const char *body, const char *argument, const char *const *extra_env,
                       double timeout);
void ranks_free(ranks_result *result);

/* Whether every rank exited with 0. If not, all that they wrote goes to stderr. */
bool ranks_ok(const ranks_result *result);

/* Runs a body on n ranks and fails the test unless all exit with 0 within 60 seconds. */
void ranks_pass(int n, const char *body, const char *argument);

/* A store that this process serves, for bodies that join without tn_dist_init: the text for
 * ranks_store. Valid until the next call. */
const char *ranks_place(void);
tn_store *ranks_store(const char *place);

/* A TCP port of 127.0.0.1 that was free a moment ago. */
int ranks_free_port(void);
/* The first of n free ports in a row. */
int ranks_free_ports(int n);

#endif
