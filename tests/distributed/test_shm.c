/* The engine "shm" on real processes: who dies, stops, leaves, disagrees or gives up is named; its
 * memory; its messages. That the numbers are right is test_collectives.c. */
#define _GNU_SOURCE
#include "core/allocator.h"
#include "core/clock.h"
#include "distributed/group/group.h"
#include "distributed/group/engine/shm/shm.h"
#include "tern/sys/group.h"
#include "tern/sys/store.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#include "../support/ranks.h"
#include "../support/temp.h"

/* ---- For the ranks --------------------------------------------------------------------------- */

enum { STRANGER = 65534 }; /* another user */
enum { PATIENCE = 30 };    /* seconds: far longer than a test takes */

static int rank, ranks;
static uint64_t sequence;
static char why[TN_ENGINE_WHY];

static tn_engine *join_within(const char *path, double timeout) {
    rank = atoi(getenv("RANK"));
    ranks = atoi(getenv("WORLD_SIZE"));
    tn_store *store = tn_file_store(path);
    const tn_engine_options o = {.store = store,
                                 .rank = rank,
                                 .ranks = ranks,
                                 .deadline = tn__now() + timeout,
                                 .timeout = timeout};
    tn_engine *e = tn_engine_new("shm", &o, why);
    tn_store_free(store);
    return e;
}

static tn_engine *join(const char *path) {
    tn_engine *e = join_within(path, PATIENCE);
    if (!e) {
        fprintf(stderr, "rank %d: %s\n", rank, why);
    }
    rank_assert(e != NULL);
    return e;
}

static tn_status run_for(tn_engine *e, tn_transfer t, double seconds) {
    t.sequence = ++sequence;
    t.deadline = tn__now() + seconds;
    return e->run(e, &t, why);
}

static tn_status run(tn_engine *e, tn_transfer t) {
    return run_for(e, t, PATIENCE);
}

static tn_transfer all_reduce(float *x, int64_t count) {
    return (tn_transfer){
        .kind = TN_ALL_REDUCE,
        .dtype = TN_F32,
        .reduce = TN_SUM,
        .in = x,
        .out = x,
        .count = count,
    };
}

static tn_transfer message(tn_collective kind, void *data, int64_t count, int peer) {
    return (tn_transfer){.kind = kind,
                         .dtype = TN_F32,
                         .root = peer,
                         .in = kind == TN_SEND ? data : NULL,
                         .out = kind == TN_SEND ? NULL : data,
                         .count = count};
}

static const tn_transfer BARRIER = {.kind = TN_BARRIER};

/* An all-reduce of ones that must be right. */
static void add_up(tn_engine *e) {
    float x[3] = {1, 1, 1};
    rank_assert(run(e, all_reduce(x, 3)) == TN_OK);
    rank_assert(x[0] == (float)ranks && x[2] == (float)ranks);
}

static void say(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

static void expect(tn_status status, tn_status want, const char *part) {
    if (status != want || !strstr(why, part)) {
        fprintf(stderr, "rank %d: %s \"%s\", expected %s \"%s\"\n", rank, tn_status_name(status),
                why, tn_status_name(want), part);
        _exit(1);
    }
}

/* ---- Death, sleep, leaving ------------------------------------------------------------------- */

/* Rank 1 is killed while it waits within an operation, between two, or in the middle of a long
 * one. */
static int killed(tn_engine *e, int64_t count, bool waits) {
    static float x[1 << 20];
    add_up(e);
    if (rank == 1 && waits) {
        say("ready");
        pause();
    }
    tn_status status = TN_OK;
    for (int i = 0; status == TN_OK; i++) {
        status = run(e, all_reduce(x, count));
        if (i == 3) {
            say("ready");
        }
    }
    expect(status, TN_EPEER, "rank 1 (process ");
    expect(status, TN_EPEER, ") has died");
    /* It stays dead, with the same reason, and does not touch the data. */
    expect(run(e, BARRIER), TN_EPEER, "rank 1 (process ");
    e->destroy(e);
    return 0;
}

static int body_killed_before(tn_group *g, const char *path) {
    return killed(join(path), 3, true);
}

static int body_killed_within(tn_group *g, const char *path) {
    return killed(join(path), 1 << 20, false);
}

static int body_stopped(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    add_up(e);
    say("ready");
    for (int i = 0; i < 50; i++) {
        usleep(20000);
        add_up(e);
    }
    e->destroy(e);
    return 0;
}

static int body_stopped_long(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    float x = 1;
    add_up(e);
    say("ready");
    tn_status status = TN_OK;
    while (status == TN_OK) {
        usleep(1000);
        status = run_for(e, all_reduce(&x, 1), 0.5);
    }
    expect(status, TN_EPEER, "timed out waiting for rank 1, which ");
    rank_assert(!strstr(why, "rank 0") && !strstr(why, "rank 2"));
    say("failed");
    e->destroy(e);
    return 0;
}

/* Who never comes, and where it is instead. */
static int body_late(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    float x = 1;
    add_up(e);
    if (rank == 1) {
        tn_status status = run(e, message(TN_RECV, &x, 1, 2));
        expect(status, TN_EPEER,
               "timed out waiting for rank 1, which is in operation 2 (recv), and rank 2, "
               "which has finished operation 1");
    } else if (rank == 0) {
        expect(
            run_for(e, BARRIER, 0.2), TN_EPEER,
            "timed out waiting for rank 1, which is in operation 2 (recv), and rank 2, which has "
            "finished operation 1");
    } else {
        sleep(1);
        expect(run(e, BARRIER), TN_EPEER, "timed out waiting for rank 1");
    }
    e->destroy(e);
    return 0;
}

/* What was complete stays complete; what needs the rank that left fails at once. */
static int body_leaves(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    for (int i = 0; i < 40; i++) {
        add_up(e);
    }
    if (rank != 2) {
        if (rank == 1) {
            usleep(50000);
        }
        expect(run(e, BARRIER), TN_EPEER, "rank 2 has left the group after 40 operations");
    }
    e->destroy(e);
    return 0;
}

/* A message that was sent before its sender left can be received. */
static int body_leaves_message(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    float x = 7;
    if (rank == 0) {
        rank_assert(run(e, message(TN_SEND, &x, 1, 1)) == TN_OK);
    } else {
        x = 0;
        usleep(100000);
        rank_assert(run(e, message(TN_RECV, &x, 1, 0)) == TN_OK);
        rank_assert(x == 7);
        expect(run(e, message(TN_RECV, &x, 1, 0)), TN_EPEER,
               "rank 0 has left the group after 1 operations");
    }
    e->destroy(e);
    return 0;
}

static void *give_up(void *user) {
    tn_engine *e = user;
    usleep(50000);
    e->abort(e, "the program has had enough");
    e->abort(e, "a second reason");
    return NULL;
}

static int body_abort(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    pthread_t thread;
    add_up(e);
    if (rank == 2) {
        sleep(1);
    } else {
        if (rank == 0) {
            rank_assert(pthread_create(&thread, NULL, give_up, e) == 0);
        }
        double begin = tn__now();
        expect(run(e, BARRIER), TN_EPEER, "the program has had enough");
        rank_assert(tn__now() - begin < PATIENCE / 2.0);
        if (rank == 0) {
            pthread_join(thread, NULL);
        }
    }
    expect(run(e, BARRIER), TN_EPEER, "the program has had enough");
    e->destroy(e);
    return 0;
}

/* ---- Disagreement ---------------------------------------------------------------------------- */

/* Both sides do something else after a few operations; every rank hears of both. */
static void differ(tn_engine *e, tn_transfer first, tn_transfer other, const char *text) {
    add_up(e);
    expect(run(e, rank == 1 ? other : first), TN_EMISMATCH, text);
    e->destroy(e);
}

static int body_mismatch(tn_group *g, const char *argument) {
    char path[256], what[32];
    rank_assert(sscanf(argument, "%255[^,],%31s", path, what) == 2);
    tn_engine *e = join(path);
    static float x[64], y[64];
    tn_transfer first = all_reduce(x, 4), other = first;
    other.out = y;
    if (strcmp(what, "count") == 0) {
        other.count = 5;
        differ(e, first, other,
               "rank 0 is in all_reduce f32 [4] sum (operation 2), but rank 1 is in all_reduce f32 "
               "[5] "
               "sum (operation 2)");
    } else if (strcmp(what, "dtype") == 0) {
        other.dtype = TN_I32;
        differ(e, first, other, "but rank 1 is in all_reduce i32 [4] sum");
    } else if (strcmp(what, "reduce") == 0) {
        other.reduce = TN_MAX;
        differ(e, first, other, "but rank 1 is in all_reduce f32 [4] max");
    } else if (strcmp(what, "kind") == 0) {
        other.kind = TN_ALL_GATHER;
        differ(e, first, other,
               "rank 0 is in all_reduce f32 [4] sum (operation 2), but rank 1 is in all_gather");
    } else if (strcmp(what, "barrier") == 0) {
        other = BARRIER;
        differ(e, first, other, "but rank 1 is in barrier");
    } else if (strcmp(what, "root") == 0) {
        first.kind = other.kind = TN_BROADCAST;
        other.root = 1;
        differ(e, first, other,
               "rank 0 is in broadcast f32 [4] from rank 0 (operation 2), but rank 1 is in "
               "broadcast f32 "
               "[4] from rank 1");
    } else if (strcmp(what, "recv") == 0) {
        differ(e, first, message(TN_RECV, y, 4, 0),
               "rank 1 is in operation 2 (recv) with rank 0, but rank 0 is in operation 2 "
               "(all_reduce)");
    } else {
        rank_assert(!"a known case");
    }
    return 0;
}

static int body_mismatch_message(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    float x[8] = {0};
    if (rank == 0) {
        rank_assert(run(e, message(TN_SEND, x, 8, 1)) == TN_OK);
    } else {
        expect(run(e, message(TN_RECV, x, 4, 0)), TN_EMISMATCH,
               "rank 0 sends f32 [8], but rank 1 receives f32 [4]");
    }
    expect(run(e, BARRIER), TN_EMISMATCH, "rank 0 sends f32 [8]");
    e->destroy(e);
    return 0;
}

static int body_mismatch_alloc(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    rank_assert(e->alloc(e, rank == 1 ? 200 : 100, tn__now() + PATIENCE, why) == NULL);
    expect(run(e, BARRIER), TN_EMISMATCH,
           "rank 0 allocates 100 bytes, but rank 1 allocates 200 bytes");
    e->destroy(e);
    return 0;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* How many blocks of shared memory this process has mapped. */
static int mappings(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (file && fgets(line, sizeof(line), file)) {
        count += strstr(line, "/memfd:tern") != NULL;
    }
    if (file) {
        fclose(file);
    }
    return count;
}

static float *ask(tn_engine *e, size_t count) {
    float *x = e->alloc(e, count * sizeof(float), tn__now() + PATIENCE, why);
    rank_assert(x != NULL);
    rank_assert((uintptr_t)x % 64 == 0);
    return x;
}

/* Sums x over the ranks; the elements are r + i. */
static void add_region(tn_engine *e, float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(rank + i);
    }
    tn_transfer t = all_reduce(x, n);
    t.out = out;
    rank_assert(run(e, t) == TN_OK);
    for (int64_t i = 0; i < n; i++) {
        rank_assert(out[i] == (float)(ranks * i + ranks * (ranks - 1) / 2));
    }
}

static int body_regions(tn_group *g, const char *path) {
    enum { N = 3000 };
    static float private[N];
    tn_engine *e = join(path);
    int before = mappings();
    float *a = ask(e, N), *b = ask(e, N), *none = ask(e, 0);
    rank_assert(a != b && mappings() == before + 3);
    add_region(e, a, a, N);
    add_region(e, a, b, N);
    add_region(e, b + 17, b + 17, N - 17);
    /* Some ranks in a region, others not; in another region; in at one place, out at another. */
    add_region(e, rank == 1 ? private : a, rank == 1 ? private : a, N);
    add_region(e, rank == 1 ? b : a, rank == 0 ? b : a, N);
    add_region(e, a, rank == 0 ? private : b, N);
    /* Freed by one rank before the other: nothing of it goes away yet. */
    if (rank == 0) {
        e->free(e, a);
        e->free(e, none);
    }
    add_region(e, b, b, N);
    add_region(e, rank == 0 ? b : a, rank == 0 ? b : a, N);
    if (rank != 0) {
        e->free(e, none);
        e->free(e, a);
    }
    rank_assert(run(e, BARRIER) == TN_OK);
    float *c = ask(e, 2 * N);
    rank_assert(mappings() == before + 2);
    add_region(e, c + N, c, N);
    for (int i = 0; i < 50; i++) { /* no leak */
        float *d = ask(e, N);
        add_region(e, d, d, N);
        e->free(e, d);
    }
    e->free(e, NULL);
    e->free(e, private);
    e->free(e, c);
    e->free(e, b);
    e->destroy(e);
    rank_assert(mappings() == 0);
    return 0;
}

static char logged[512];

static void keep_log(tn_log_level level, const char *text, void *user) {
    snprintf(logged, sizeof(logged), "%s", text);
}

/* More than there is: none for anybody, the reason in the log, and the group lives on. */
static int body_too_much(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    int before = mappings();
    tn_log_to(keep_log, TN_LOG_WARN, NULL);
    const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX, SIZE_MAX / 2 + 1};
    for (int i = 0; i < 3; i++) {
        snprintf(why, sizeof(why), "old");
        rank_assert(e->alloc(e, sizes[i], tn__now() + PATIENCE, why) == NULL);
        rank_assert(why[0] == 0);
        rank_assert(strstr(logged, "rank 0: Cannot allocate memory"));
    }
    /* The system refuses one rank its part. */
    const struct rlimit few = {3, 4096}, enough = {1024, 4096};
    rank_assert(setrlimit(RLIMIT_NOFILE, rank == 1 ? &few : &enough) == 0);
    rank_assert(e->alloc(e, 1 << 20, tn__now() + PATIENCE, why) == NULL && why[0] == 0);
    rank_assert(strstr(logged, "rank 1: Too many open files"));
    rank_assert(setrlimit(RLIMIT_NOFILE, &enough) == 0);
    rank_assert(mappings() == before);
    float *x = ask(e, 100);
    add_region(e, x, x, 100);
    e->destroy(e);
    return 0;
}

/* Without memory for itself a rank fails, and all hear of it. */
static int body_no_memory(tn_group *g, const char *path) {
    tn_engine *e = join(path);
    add_up(e);
    if (rank == 1) {
        tn__alloc_fail_at(0);
    }
    rank_assert(e->alloc(e, 100, tn__now() + PATIENCE, why) == NULL);
    tn__alloc_fail_at(-1);
    expect(run(e, BARRIER), TN_ENOMEM, "rank 1 is out of memory");
    e->destroy(e);
    return 0;
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void fill(float *x, int64_t n, float first) {
    for (int64_t i = 0; i < n; i++) {
        x[i] = first + (float)(i % 1000);
    }
}

static bool is_filled(const float *x, int64_t n, float first) {
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != first + (float)(i % 1000)) {
            return false;
        }
    }
    return true;
}

/* All send to all before anybody receives: far more than the lanes hold. */
static int body_messages(tn_group *g, const char *path) {
    enum { N = 700001 };
    const int64_t sizes[] = {0, 1, 16383, 16384, N, 0, 5};
    static float x[N];
    tn_engine *e = join(path);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
        for (int to = 0; to < ranks; to++) {
            fill(x, sizes[s], (float)(1000 * rank + (int)s));
            rank_assert(to == rank || run(e, message(TN_SEND, x, sizes[s], to)) == TN_OK);
        }
    }
    add_up(e); /* with letters on the way */
    for (int from = ranks - 1; from >= 0; from--) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(*sizes) && from != rank; s++) {
            memset(x, 0, sizeof(x));
            rank_assert(run(e, message(TN_RECV, x, sizes[s], from)) == TN_OK);
            rank_assert(is_filled(x, sizes[s], (float)(1000 * from + (int)s)));
        }
    }
    add_up(e);
    /* Around a ring, one way. */
    for (int i = 0; i < 20; i++) {
        fill(x, N, (float)rank);
        int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
        tn_status first =
            rank == 0 ? run(e, message(TN_SEND, x, N, next)) : run(e, message(TN_RECV, x, N, last));
        rank_assert(first == TN_OK && (rank == 0 || is_filled(x, N, 0)));
        tn_status second =
            rank == 0 ? run(e, message(TN_RECV, x, N, last)) : run(e, message(TN_SEND, x, N, next));
        rank_assert(second == TN_OK && is_filled(x, N, 0));
    }
    e->destroy(e);
    return 0;
}

/* ---- Joining, crowds ------------------------------------------------------------------------- */

static int body_alone(tn_group *g, const char *path) {
    if (atoi(getenv("RANK")) == 2) {
        return 0;
    }
    rank_assert(join_within(path, 0.5) == NULL);
    rank_assert(strstr(why, "rank 2 has not joined") != NULL);
    rank_assert(mappings() == 0);
    return 0;
}

/* Memory with all that a block of two ranks begins with. */
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
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* which another user's would have cleared */
        if (changed) {
            execlp("sleep", "sleep", "60", (char *)NULL);
        }
        _exit(1);
    }
    rank_assert(pid > 0);
    char path[32];
    struct stat about = {0};
    snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    for (double end = tn__now() + PATIENCE; about.st_uid != STRANGER && tn__now() < end;) {
        usleep(1000); /* until it is the program */
        rank_assert(stat(path, &about) == 0);
    }
    return pid;
}

/* What is wrong with the memory that rank 0 announces, and what the others say. The last two need
 * root: no one else can give a file away, or read what strangers have open. */
static const struct {
    const char *name, *reason;
} forgeries[] = {
    {"right", ""},
    {"nothing", "cannot be opened"},
    {"ended", "that process has ended"},
    {"fifo", "it is something else"},
    {"short", "it is something else"},
    {"unsealed", "it is something else"}, /* who has it could shorten it later */
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

/* "path,name": rank 0 announces something that is not its block. */
static int body_forged(tn_group *g, const char *argument) {
    (void)g;
    char path[256];
    int which = 0;
    const char *name = strchr(argument, ',') + 1;
    snprintf(path, sizeof(path), "%.*s", (int)(name - 1 - argument), argument);
    while (strcmp(forgeries[which].name, name) != 0) {
        which++;
    }
    if (atoi(getenv("RANK")) == 0) {
        tn_store *store = tn_file_store(path);
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

static int body_crowd(tn_group *g, const char *path) {
    enum { N = 300000 };
    static float x[N];
    tn_engine *e = join(path);
    float *shared = ask(e, N);
    for (int i = 0; i < 100; i++) {
        add_up(e);
    }
    for (int i = 0; i < 10; i++) {
        add_region(e, x, x, N);
        add_region(e, shared, shared, N);
    }
    e->destroy(e);
    return 0;
}

static const rank_entry BODIES[] = {
    {"-killed_before", body_killed_before},
    {"-killed_within", body_killed_within},
    {"-stopped", body_stopped},
    {"-stopped_long", body_stopped_long},
    {"-late", body_late},
    {"-leaves", body_leaves},
    {"-leaves_message", body_leaves_message},
    {"-abort", body_abort},
    {"-mismatch", body_mismatch},
    {"-mismatch_message", body_mismatch_message},
    {"-mismatch_alloc", body_mismatch_alloc},
    {"-regions", body_regions},
    {"-too_much", body_too_much},
    {"-no_memory", body_no_memory},
    {"-messages", body_messages},
    {"-alone", body_alone},
    {"-forged", body_forged},
    {"-crowd", body_crowd},
};

/* ---- The tests ------------------------------------------------------------------------------- */

/* A new place to meet. */
static const char *place(void) {
    static int number;
    char name[32];
    snprintf(name, sizeof(name), "store%d", number++);
    return temp_path(name);
}

static void finish(ranks_job *job, int killed_rank) {
    ranks_result result = ranks_wait(job, PATIENCE + 30);
    if (killed_rank >= 0) {
        assert_true(WIFSIGNALED(result.status[killed_rank]));
        result.status[killed_rank] = 0;
    }
    bool ok = ranks_ok(&result);
    ranks_free(&result);
    assert_true(ok);
}

static void kill_rank_1(const char *body) {
    ranks_job job = ranks_start(3, body, place(), NULL);
    assert_true(ranks_await_output(&job, 1, "ready", PATIENCE));
    double begin = tn__now();
    kill(job.pid[1], SIGKILL);
    finish(&job, 1);
    /* Found by itself, and not by the deadline. */
    assert_true(tn__now() - begin < PATIENCE / 2.0);
}

static void test_killed(void **state) {
    kill_rank_1("-killed_before");
    kill_rank_1("-killed_within");
}

static void test_stopped(void **state) {
    ranks_job job = ranks_start(2, "-stopped", place(), NULL);
    assert_true(ranks_await_output(&job, 1, "ready", PATIENCE));
    kill(job.pid[1], SIGSTOP);
    usleep(300000);
    kill(job.pid[1], SIGCONT);
    finish(&job, -1);
}

static void test_stopped_past_the_deadline(void **state) {
    ranks_job job = ranks_start(3, "-stopped_long", place(), NULL);
    assert_true(ranks_await_output(&job, 1, "ready", PATIENCE));
    kill(job.pid[1], SIGSTOP);
    assert_true(ranks_await_output(&job, 0, "failed", PATIENCE));
    assert_true(ranks_await_output(&job, 2, "failed", PATIENCE));
    kill(job.pid[1], SIGCONT);
    finish(&job, -1);
}

static void test_late(void **state) {
    ranks_pass(3, "-late", place());
}

static void test_leaves(void **state) {
    ranks_pass(3, "-leaves", place());
    ranks_pass(2, "-leaves_message", place());
}

static void test_abort(void **state) {
    ranks_pass(3, "-abort", place());
}

static void test_mismatch(void **state) {
    const char *const cases[] = {"count", "dtype", "reduce", "kind", "barrier", "root", "recv"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char argument[256];
        snprintf(argument, sizeof(argument), "%s,%s", place(), cases[i]);
        ranks_pass(i % 2 ? 3 : 2, "-mismatch", argument);
    }
    ranks_pass(2, "-mismatch_message", place());
    ranks_pass(3, "-mismatch_alloc", place());
}

static void test_regions(void **state) {
    ranks_pass(2, "-regions", place());
    ranks_pass(3, "-regions", place());
}

static void test_no_memory(void **state) {
    ranks_pass(3, "-too_much", place());
    ranks_pass(3, "-no_memory", place());
}

static void test_messages(void **state) {
    ranks_pass(2, "-messages", place());
    ranks_pass(3, "-messages", place());
}

static void test_joining(void **state) {
    ranks_pass(3, "-alone", place());
}

static void test_forged_blocks(void **state) {
    size_t count = sizeof(forgeries) / sizeof(*forgeries);
    for (size_t i = 0; i < (geteuid() == 0 ? count : count - 2); i++) {
        char argument[256];
        snprintf(argument, sizeof(argument), "%s,%s", place(), forgeries[i].name);
        ranks_pass(2, "-forged", argument);
    }
}

static void test_more_ranks_than_cores(void **state) {
    ranks_pass(8, "-crowd", place());
}

/* A name in /dev/shm would outlive a killed job. */
static void test_nothing_stays(void **state) {
    ranks_job job = ranks_start(2, "-stopped", place(), NULL);
    assert_true(ranks_await_output(&job, 0, "ready", PATIENCE));
    DIR *folder = opendir("/dev/shm");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        assert_null(strstr(entry->d_name, "tern"));
    }
    if (folder) {
        closedir(folder);
    }
    kill(job.pid[0], SIGKILL);
    kill(job.pid[1], SIGKILL);
    ranks_result result = ranks_wait(&job, PATIENCE);
    ranks_free(&result);
}

static void test_arguments(void **state) {
    tn_store *store = tn_memory_store();
    tn_engine_options o = {.store = store, .rank = 2, .ranks = 2};
    assert_null(tn_engine_new("shm", &o, why));
    assert_non_null(strstr(why, "rank 2 of 2"));
    o = (tn_engine_options){.store = store, .rank = 0, .ranks = 100000};
    assert_null(tn_engine_new("shm", &o, why));
    o = (tn_engine_options){.rank = 0, .ranks = 2}; /* making the store had failed */
    assert_null(tn_engine_new("shm", &o, why));
    assert_non_null(strstr(why, "no store"));
    assert_null(tn__checked_new(NULL));
    tn_store_free(store);
}

int main(int argc, char **argv) {
    ranks_main(argc, argv, BODIES, sizeof(BODIES) / sizeof(*BODIES));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_forged_blocks),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_stopped_past_the_deadline),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_regions),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_joining),
        cmocka_unit_test(test_more_ranks_than_cores),
        cmocka_unit_test(test_nothing_stays),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, temp_clean);
}
