#define _GNU_SOURCE
#include "tests/support/ranks.h"
#include "tern/store.h"
#include "tests/support/test.h"

#include "core/clock.h"
#include "distributed/store/net.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MARK "--tern-test-rank"

extern char **environ;

static void sleep_for(double seconds) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* ---- A rank ---------------------------------------------------------------------------------- */

void ranks_failed(const char *what, const char *file, int line) {
    const char *rank = getenv("RANK");
    fprintf(stderr, "%s:%d: rank %s: not true: %s\n", file, line, rank ? rank : "?", what);
    if (tn_error() != TN_OK) {
        fprintf(stderr, "%s:%d: rank %s: the error is: %s\n", file, line, rank ? rank : "?",
                tn_error_message());
    }
    _exit(1);
}

static struct {
    const char *name;
    rank_body body;
    bool plain;
} bodies[32];
static int body_count;

void ranks_add(const char *name, rank_body body, bool plain) {
    assert(body_count < (int)(sizeof(bodies) / sizeof(*bodies)));
    bodies[body_count].name = name;
    bodies[body_count].body = body;
    bodies[body_count++].plain = plain;
}

static int run_body(rank_body body, const char *argument, bool plain) {
    int value = 1;
    tn_group *world = plain ? NULL : tn_dist_init(tn_dist_defaults());
    if (plain || world) { value = body(world, argument); }
    if (!plain) { tn_dist_finish(); }
    if (tn_error() != TN_OK) {
        fprintf(stderr, "%s\n", tn_error_message());
        return 1;
    }
    return value;
}

void ranks_main(int argc, char **argv) {
    if (argc != 4 || strcmp(argv[1], MARK) != 0) { return; }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < body_count; i++) {
        if (strcmp(bodies[i].name, argv[2]) == 0) {
            exit(run_body(bodies[i].body, argv[3], bodies[i].plain));
        }
    }
    fprintf(stderr, "%s: there is no body %s\n", argv[0], argv[2]);
    exit(2);
}

/* ---- Environments ---------------------------------------------------------------------------- */

/* NAME=VALUE texts, ended by NULL. */
typedef struct variables {
    char **list;
    int count;
} variables;

static bool is_named(const char *variable, const char *name, size_t length) {
    return strncmp(variable, name, length) == 0 && variable[length] == '=';
}

static void remove_variable(variables *v, const char *name, size_t length) {
    for (int i = v->count - 1; i >= 0; i--) {
        if (is_named(v->list[i], name, length)) {
            free(v->list[i]);
            v->list[i] = v->list[--v->count];
            v->list[v->count] = NULL;
        }
    }
}

/* "NAME=VALUE" or "NAME". */
static void change_variable(variables *v, const char *text) {
    size_t length = strcspn(text, "=");
    remove_variable(v, text, length);
    if (text[length] == '=') {
        v->list = realloc(v->list, (size_t)(v->count + 2) * sizeof(char *));
        v->list[v->count++] = strdup(text);
        v->list[v->count] = NULL;
    }
}

static void set_number(variables *v, const char *name, long number) {
    char text[96];
    snprintf(text, sizeof(text), "%s=%ld", name, number);
    change_variable(v, text);
}

/* This process's, without variables that say something else about ranks. TERN_ROOT and the like are
 * the tests' own. */
static variables plain_environment(void) {
    static const char *const launchers[] = {"TERN_",  "OMPI_",  "PMI",    "PMIX_",  "SLURM_",
                                            "MPI_",   "TORCHE", "MASTER", "RANK=",  "WORLD_SIZE",
                                            "LOCAL_", "GROUP_", "ROLE_",  "OMP_NUM"};
    static const char *const ours[] = {
        "TERN_ROOT=", "TERN_TEST_BIN=", "TERN_EXAMPLE_BIN=", "TERN_PLUGIN_PATH=", "TERN_CPU="};
    variables v = {0};
    v.list = calloc(1, sizeof(char *));
    for (char **at = environ; *at; at++) {
        bool skips = false;
        for (size_t i = 0; i < sizeof(launchers) / sizeof(*launchers); i++) {
            skips |= strncmp(*at, launchers[i], strlen(launchers[i])) == 0;
        }
        for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++) {
            skips &= strncmp(*at, ours[i], strlen(ours[i])) != 0;
        }
        if (!skips) { change_variable(&v, *at); }
    }
    return v;
}

static void change_for(variables *v, int rank, const char *const *extra) {
    for (; extra && *extra; extra++) {
        char *end;
        long only = strtol(*extra, &end, 10);
        if (end == *extra || *end != ':') {
            change_variable(v, *extra);
        } else if (only == rank) {
            change_variable(v, end + 1);
        }
    }
}

static void free_variables(variables *v) {
    for (int i = 0; i < v->count; i++) {
        free(v->list[i]);
    }
    free(v->list);
}

/* ---- A store and ports ----------------------------------------------------------------------- */

static const char store_token[] = "of a test's ranks";

const char *ranks_place(void) {
    static tn_store_server *server;
    static char port[16];
    tn_store_server_free(server);
    server = tn_store_serve("127.0.0.1", 0, store_token);
    assert_non_null(server);
    snprintf(port, sizeof(port), "%d", tn_store_server_port(server));
    return port;
}

tn_store *ranks_store(const char *place) {
    return tn_tcp_store("127.0.0.1", atoi(place), store_token, 30);
}

int ranks_free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&at, size) == 0 &&
                getsockname(fd, (struct sockaddr *)&at, &size) == 0);
    close(fd);
    return ntohs(at.sin_port);
}

/* Below the ports that the system gives to clients, and elsewhere in each process. */
int ranks_free_ports(int n) {
    for (int first = 10000 + getpid() % 300 * 40; first + n < 32000; first += n) {
        int fd[64], got = 0;
        assert_true(n <= 64);
        for (int port = first; got < n && (fd[got] = tn__net_listen(NULL, &port, NULL)) >= 0;) {
            port = first + ++got;
        }
        for (int i = 0; i < got; i++) {
            close(fd[i]);
        }
        tn_error_clear(); /* a port that is taken */
        if (got == n) { return first; }
    }
    fail_msg("no %d free ports in a row", n);
    return 0;
}

/* ---- Starting -------------------------------------------------------------------------------- */

/* Between fork and exec nothing allocates: the parent may have threads. */
static pid_t start_one(variables *v, int output, const char *body, const char *argument) {
    char *const arguments[] = {(char *)"rank", (char *)MARK, (char *)(uintptr_t)body,
                               (char *)(uintptr_t)argument, NULL};
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent && dup2(output, 1) == 1 && dup2(output, 2) == 2) {
            execve("/proc/self/exe", arguments, v->list);
        }
        _exit(127);
    }
    return child;
}

ranks_job ranks_start(int n, const char *body, const char *argument, const char *const *extra_env) {
    assert_true(n >= 1 && n <= RANKS_MOST);
    ranks_job job = {.n = n, .begin = tn__now()};
    uint64_t random[2];
    char token[64];
    assert_true(getrandom(random, sizeof(random), 0) == sizeof(random));
    snprintf(token, sizeof(token), "TERN_TOKEN=%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    int port = ranks_free_port();
    for (int rank = 0; rank < n; rank++) {
        variables v = plain_environment();
        set_number(&v, "RANK", rank);
        set_number(&v, "WORLD_SIZE", n);
        set_number(&v, "LOCAL_RANK", rank);
        set_number(&v, "LOCAL_WORLD_SIZE", n);
        set_number(&v, "MASTER_PORT", port);
        set_number(&v, "OMP_NUM_THREADS", 1);
        change_variable(&v, "MASTER_ADDR=127.0.0.1");
        change_variable(&v, token);
        change_for(&v, rank, extra_env);
        job.output[rank] = memfd_create("output", MFD_CLOEXEC);
        job.pid[rank] = start_one(&v, job.output[rank], body, argument);
        free_variables(&v);
        assert_true(job.output[rank] >= 0 && job.pid[rank] > 0);
    }
    return job;
}

/* ---- Waiting --------------------------------------------------------------------------------- */

char *ranks_output(const ranks_job *job, int rank) {
    struct stat about;
    assert_int_equal(fstat(job->output[rank], &about), 0);
    char *text = calloc(1, (size_t)about.st_size + 1);
    assert_non_null(text);
    assert_true(pread(job->output[rank], text, (size_t)about.st_size, 0) >= 0);
    return text;
}

bool ranks_await_output(const ranks_job *job, int rank, const char *text, double timeout) {
    for (double deadline = tn__now() + timeout;; sleep_for(0.005)) {
        siginfo_t about = {0};
        bool ended =
            waitid(P_PID, (id_t)job->pid[rank], &about, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            about.si_pid != 0;
        char *all = ranks_output(job, rank);
        bool found = strstr(all, text) != NULL;
        free(all);
        if (found || ended || tn__now() > deadline) { return found; }
    }
}

ranks_result ranks_wait(ranks_job *job, double timeout) {
    ranks_result result = {.n = job->n};
    int left = job->n;
    while (left) {
        for (int rank = 0; rank < job->n; rank++) {
            if (job->pid[rank] &&
                waitpid(job->pid[rank], &result.status[rank], WNOHANG) == job->pid[rank]) {
                kill(-job->pid[rank], SIGKILL); /* what it may have started */
                job->pid[rank] = 0;
                left--;
            }
        }
        bool late = !result.timed_out && tn__now() - job->begin > timeout;
        for (int rank = 0; late && rank < job->n; rank++) {
            result.timed_out |= job->pid[rank] != 0;
            if (job->pid[rank]) { kill(-job->pid[rank], SIGKILL); }
        }
        if (left) { sleep_for(0.002); }
    }
    result.seconds = tn__now() - job->begin;
    for (int rank = 0; rank < job->n; rank++) {
        result.output[rank] = ranks_output(job, rank);
        close(job->output[rank]);
    }
    return result;
}

ranks_result ranks_run(int n, const char *body, const char *argument, const char *const *extra_env,
                       double timeout) {
    ranks_job job = ranks_start(n, body, argument, extra_env);
    return ranks_wait(&job, timeout);
}

void ranks_free(ranks_result *result) {
    for (int rank = 0; rank < result->n; rank++) {
        free(result->output[rank]);
    }
    *result = (ranks_result){0};
}

bool ranks_ok(const ranks_result *result) {
    bool ok = !result->timed_out;
    for (int rank = 0; rank < result->n; rank++) {
        ok = ok && result->status[rank] == 0;
    }
    for (int rank = 0; !ok && rank < result->n; rank++) {
        fprintf(stderr, "rank %d of %d: status 0x%x%s\n%s\n", rank, result->n, result->status[rank],
                result->timed_out ? ", and time was up" : "", result->output[rank]);
    }
    return ok;
}

void assert_says_at(const ranks_result *result, int rank, const char *part, const char *file,
                    int line) {
    if (!strstr(result->output[rank], part)) {
        print_error("ERROR: rank %d does not say \"%s\" but: %s\n", rank, part,
                    result->output[rank]);
        _fail(file, line);
    }
}

void ranks_pass(int n, const char *body, const char *argument) {
    ranks_result result = ranks_run(n, body, argument, NULL, 60);
    bool ok = ranks_ok(&result);
    ranks_free(&result);
    if (!ok) { fail_msg("%s(%s) on %d ranks: see above", body, argument, n); }
}
