/* Misuse that the stand-in for NCCL catches: a child process for each mistake, which must end with
 * its message. One rank, on device 0, through the functions that programs load.
 */
#include "tests/support/run.h"

#include <dlfcn.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct setting {
    ncclComm_t comm;
    float *memory; /* COUNT on the device */
    float host[4];
} setting;

enum { COUNT = 64 };

static void *nccl;

#define CALL(function, ...) \
    ((__typeof__(&nccl##function))dlsym(nccl, "nccl" #function))(__VA_ARGS__)

static void settle_comm(ncclComm_t comm) {
    ncclResult_t result = ncclInProgress;
    while (result == ncclInProgress) {
        CALL(CommGetAsyncError, comm, &result);
    }
}

static ncclResult_t sum_of(const setting *s, const void *in, void *out, size_t count) {
    return CALL(AllReduce, in, out, count, ncclFloat32, ncclSum, s->comm, NULL);
}

/* ---- Mistakes -------------------------------------------------------------------------------- */

static void give_host_memory(setting *s) {
    sum_of(s, s->host, s->memory, 4);
}

static void run_over_the_end(setting *s) {
    sum_of(s, s->memory, s->memory, COUNT + 1);
}

static void overlap_in_part(setting *s) {
    sum_of(s, s->memory, s->memory + 1, 4);
}

static void not_wait(setting *s) {
    sum_of(s, s->memory, s->memory, 4);
    sum_of(s, s->memory, s->memory, 4);
}

static void give_no_stream(setting *s) {
    CALL(Broadcast, s->memory, s->memory, 4, ncclFloat32, 0, s->comm, (cudaStream_t)s);
}

static void group_a_collective(setting *s) {
    ((ncclResult_t(*)(void))dlsym(nccl, "ncclGroupStart"))();
    sum_of(s, s->memory, s->memory, 4);
}

static void give_too_many_ranks(setting *s) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CALL(GetUniqueId, &id);
    unlink(id.internal);
    CALL(CommInitRankConfig, &s->comm, 1000, id, 0, &config);
}

/* ---- The tests ------------------------------------------------------------------------------- */

static bool set_up(setting *s) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    bool right = CALL(GetUniqueId, &id) == ncclSuccess &&
                 CALL(CommInitRankConfig, &s->comm, 1, id, 0, &config) == ncclInProgress;
    if (right) {
        settle_comm(s->comm);
        right = CALL(MemAlloc, (void **)&s->memory, COUNT * sizeof(float)) == ncclSuccess;
    }
    return right;
}

/* Runs it in a child process; returns what that wrote and how it ended. */
static int status_of(void (*body)(setting *), char *words, size_t size) {
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setting s = {0};
        dup2(ends[1], STDERR_FILENO);
        if (!set_up(&s)) { _exit(3); }
        body(&s);
        _exit(0);
    }
    close(ends[1]);
    ssize_t got = read(ends[0], words, size - 1);
    words[got > 0 ? got : 0] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void is_misused(void (*body)(setting *), const char *word) {
    char words[256];
    int status = status_of(body, words, sizeof(words));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || !strstr(words, word)) {
        fail_msg("status 0x%x, \"%s\" instead of \"%s\"", (unsigned)status, words, word);
    }
}

PLAIN_TEST(test_mistakes_end_the_process) {
    is_misused(give_host_memory, "memory that is not its device's");
    is_misused(run_over_the_end, "memory that is not its device's");
    is_misused(overlap_in_part, "overlaps");
    is_misused(not_wait, "in progress");
    is_misused(give_no_stream, "a stream that is not");
    is_misused(group_a_collective, "in a group");
    is_misused(give_too_many_ranks, "more ranks");
}

static void call_rightly(setting *s) {
    bool right = sum_of(s, s->memory, s->memory, COUNT) == ncclInProgress;
    settle_comm(s->comm);
    right = right && CALL(AllReduce, s->memory, s->memory, 4, ncclFloat32, (ncclRedOp_t)99, s->comm,
                          NULL) == ncclInvalidArgument;
    right = right && CALL(Broadcast, s->memory, s->memory, 4, ncclFloat32, 1, s->comm, NULL) ==
                         ncclInvalidArgument;
    right = right && CALL(Send, s->memory, 4, ncclFloat32, 1, s->comm, NULL) == ncclInvalidArgument;
    ncclUniqueId id = {{0}};
    right = right && CALL(CommInitRankConfig, &s->comm, 1, id, 1, NULL) == ncclInvalidArgument;
    _exit(right ? 0 : 4);
}

PLAIN_TEST(test_refusals) {
    char words[256];
    assert_int_equal(status_of(call_rightly, words, sizeof(words)), 0);
}

int main(int argc, char **argv) {
    if (argc != 3 || !dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) ||
        !(nccl = dlopen(argv[2], RTLD_NOW))) {
        fprintf(stderr, "test_nccl EMULATOR STAND-IN: %s\n", argc == 3 ? dlerror() : "two names");
        return 1;
    }
    return tests_run(NULL, NULL);
}
