/* The engine "shm" on real processes: ranks that join, ranks that never come, and shared memory
 * that is not the block rank 0 should have made. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "distributed/group/engine/shm/shm.h"
#include "distributed/group/group.h"
#include "tests/distributed/shm_ranks.h"

enum { STRANGER = 65534 }; /* another user */

PLAIN_RANK(body_alone) {
    if (atoi(getenv("RANK")) == 2) { return 0; }
    rank_assert(join_within(argument, 0.5) == NULL);
    rank_assert(strstr(why, "rank 2 has not joined") != NULL);
    rank_assert(count_mappings() == 0);
    return 0;
}

/* ---- Forged blocks --------------------------------------------------------------------------- */

/* Memory with a valid header of a block for two ranks. */
static int forge_block(uint64_t nonce, size_t bytes, bool sealed) {
    int fd = sealed ? tn__shm_create(bytes) : memfd_create("tern", MFD_ALLOW_SEALING);
    rank_assert(fd >= 0 && (sealed || ftruncate(fd, (off_t)bytes) == 0));
    tn__shm_control *c = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rank_assert(c != MAP_FAILED);
    c->magic = tn__shm_magic;
    c->nonce = nonce;
    c->bytes = bytes;
    c->ranks = 2;
    c->seats[0].pid = (int32_t)getpid();
    munmap(c, bytes);
    return fd;
}

/* Another user's process that has this process's descriptors. */
static pid_t start_stranger(void) {
    pid_t pid = fork();
    if (pid == 0) {
        bool changed = setgid(STRANGER) == 0 && setuid(STRANGER) == 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* after setuid, which clears it */
        if (changed) { execlp("sleep", "sleep", "60", (char *)NULL); }
        _exit(1);
    }
    rank_assert(pid > 0);
    char path[32];
    struct stat about = {0};
    snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    for (double end = tn__now() + PATIENCE; about.st_uid != STRANGER && tn__now() < end;) {
        usleep(1000); /* until it has become `sleep` */
        rank_assert(stat(path, &about) == 0);
    }
    return pid;
}

/* What is wrong with the memory that rank 0 announces, and what the other rank says. The last two
 * need root: only root can give a file away, or read a stranger's descriptors. */
static const struct {
    const char *name, *reason;
} forgeries[] = {
    {"right", ""},
    {"nothing", "cannot be opened"},
    {"ended", "that process has ended"},
    {"fifo", "it is something else"},
    {"short", "it is something else"},
    {"unsealed", "it is something else"}, /* a peer could shorten it later */
    {"other nonce", "it is something else"},
    {"given away", "it is another user's"},
    {"stranger", "it is another user's"},
};

static void forge_announcement(tn_store *store, const char *name) {
    tn__shm_announcement a = {.nonce = 7, .process = tn__shm_this_process()};
    size_t bytes = tn__shm_block(2);
    int ends[2];
    a.fd = forge_block(strcmp(name, "other nonce") ? 7 : 8,
                       strcmp(name, "short") ? bytes : bytes - 4096, strcmp(name, "unsealed") != 0);
    if (strcmp(name, "nothing") == 0) {
        a.fd = 1000;
    } else if (strcmp(name, "ended") == 0) {
        a.process.start--;
    } else if (strcmp(name, "fifo") == 0) {
        rank_assert(pipe(ends) == 0);
        a.fd = ends[0];
    } else if (strcmp(name, "given away") == 0) {
        rank_assert(fchown(a.fd, STRANGER, STRANGER) == 0);
    } else if (strcmp(name, "stranger") == 0) {
        rank_assert(fcntl(a.fd, F_SETFD, 0) == 0);
        a.process.pid = start_stranger();
        a.process.start = tn__shm_start(a.process.pid);
    }
    rank_assert(tn_store_set(store, "block", &a, sizeof(a)) == TN_OK);
}

/* "path,name": rank 0 announces something other than its block. */
PLAIN_RANK(body_forged) {
    char path[256];
    int which = 0;
    const char *name = strchr(argument, ',') + 1;
    snprintf(path, sizeof(path), "%.*s", (int)(name - 1 - argument), argument);
    while (strcmp(forgeries[which].name, name) != 0) {
        which++;
    }
    if (atoi(getenv("RANK")) == 0) {
        tn_store *store = ranks_store(path);
        char *said;
        size_t bytes;
        forge_announcement(store, name);
        rank_assert(tn_store_get(store, "joined/1", (void **)&said, &bytes, PATIENCE) == TN_OK);
        rank_assert((bytes == 0) == (which == 0));
        rank_assert(which == 0 || strstr(said, forgeries[which].reason));
        free(said);
        tn_store_free(store);
        return 0;
    }
    rank_assert(join_within(path, which == 0 ? 0.5 : PATIENCE) == NULL);
    rank_assert(strstr(why, forgeries[which].reason));
    return 0;
}

/* ---- The tests ------------------------------------------------------------------------------- */

PLAIN_TEST(test_joining) {
    ranks_pass(3, "body_alone", ranks_place());
}

PLAIN_TEST(test_forged_blocks) {
    size_t count = sizeof(forgeries) / sizeof(*forgeries);
    for (size_t i = 0; i < (geteuid() == 0 ? count : count - 2); i++) {
        char argument[256];
        snprintf(argument, sizeof(argument), "%s,%s", ranks_place(), forgeries[i].name);
        ranks_pass(2, "body_forged", argument);
    }
}

PLAIN_TEST(test_arguments) {
    tn_store *store = tn_memory_store();
    tn_engine_options o = {.store = store, .rank = 2, .ranks = 2};
    assert_null(tn_engine_new("shm", &o));
    take_why();
    assert_contains(why, "rank 2 of 2");
    o = (tn_engine_options){.store = store, .rank = 0, .ranks = 100000};
    assert_null(tn_engine_new("shm", &o));
    take_why();
    o = (tn_engine_options){.rank = 0, .ranks = 2}; /* as if making the store had failed */
    assert_null(tn_engine_new("shm", &o));
    take_why();
    assert_contains(why, "no store");
    tn_store_free(store);
}
