/* Copies of saves in memory (tn_saver_options.copies): when a host is lost with all its memory, the
 * ranks that are left load what it had from the next host. This program keeps the memory of all
 * hosts, as their launchers do; a host is lost when its memory is replaced by empty one. */
#define _GNU_SOURCE 1 /* memfd_create */
#include "tests/parallel/vault_job.h"
#include "tests/support/gloo.h"
#include "tests/support/kill_at.h"
#include "tests/support/temp.h"

#include <signal.h>
#include <sys/wait.h>

/* ---- Faults ---------------------------------------------------------------------------------- */

/* As kill_at.h does with write: heads and tails are written with this. */
ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    if (kill_is_due()) {
        (void)!syscall(SYS_pwrite64, fd, data, bytes / 2, at);
        kill(getpid(), SIGKILL);
    }
    return syscall(SYS_pwrite64, fd, data, bytes, at);
}

static atomic_int map_fails, map_kills; /* calls until then */

/* A block of the launcher's cannot be mapped, or the process dies there. */
void *mmap(void *where, size_t bytes, int how, int flags, int fd, off_t at) {
    static const char name[] = "/memfd:tern-vault";
    char path[64], target[64] = "";
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd >= 0 && readlink(path, target, sizeof(target) - 1) > 0 &&
        strncmp(target, name, sizeof(name) - 1) == 0) {
        if (atomic_fetch_sub(&map_kills, 1) == 1) {
            kill(getpid(), SIGKILL);
        }
        if (atomic_fetch_sub(&map_fails, 1) == 1) {
            errno = ENOMEM;
            return MAP_FAILED;
        }
    }
    return (void *)syscall(SYS_mmap, where, bytes, how, flags, fd, at); // NOLINT
}

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : 0;
}

static void count_calls(void) {
    kill_at_call = number_of("KILL_AT");
    map_kills = number_of("MAP_KILLS");
    map_fails = number_of("MAP_FAILS");
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

static int job_with_faults(tn_group *world, const char *folder) {
    count_calls();
    if (getenv("NO_PORTS")) { /* for groups made from now on */
        setenv("TERN_PORTS", "none", 1);
    }
    return load_and_save(world, folder);
}

static void begin_faults(void) {
    count_calls();
    sleep((unsigned)number_of("LATE")); /* for the next save */
}

/* A host that is lost takes along the only part that it had of a save, so the next may be lost when
 * there is another save. */
static int save_until_killed(tn_group *world, const char *folder) {
    return save_forever(world, folder, 1, begin_faults);
}

static const rank_entry bodies[] = {{"job", job_with_faults}, {"forever", save_until_killed}};

/* ---- Hosts ----------------------------------------------------------------------------------- */

enum { HOSTS = 3, HOSTS_MOST = 5 };

typedef struct host {
    keeper memory;
    int ranks;
} host;

typedef struct hosts {
    host at[HOSTS_MOST];
    int n;
    bool apart; /* the ranks too take them for different machines */
    const char *folder;
} hosts;

static hosts hosts_new(const char *name, int n, const int *ranks) {
    hosts all = {.n = n, .folder = temp_path(name)};
    for (int i = 0; i < n; i++) {
        all.at[i] = (host){keeper_new(), ranks[i]};
    }
    return all;
}

static void lose_memory(hosts *all, int i) {
    keeper_finish(&all->at[i].memory);
    all->at[i].memory = keeper_new();
}

/* The host is gone. */
static void lose_host(hosts *all, int i) {
    keeper_finish(&all->at[i].memory);
    for (all->n--; i < all->n; i++) {
        all->at[i] = all->at[i + 1];
    }
}

static void hosts_finish(hosts *all) {
    while (all->n > 0) {
        lose_host(all, 0);
    }
}

typedef struct environment {
    char text[4 * RANKS_MOST][300];
    const char *list[5 * RANKS_MOST];
    int n;
} environment;

/* The variables of all ranks, and those of `more` (ends with NULL). */
static int set_environment(environment *e, const hosts *all, const char *const *more) {
    int rank = 0;
    e->n = 0;
    for (int i = 0; i < all->n; i++) {
        for (int local = 0; local < all->at[i].ranks; local++, rank++) {
            snprintf(e->text[e->n++], sizeof(e->text[0]), "%d:%s", rank,
                     all->at[i].memory.variable);
            snprintf(e->text[e->n++], sizeof(e->text[0]), "%d:LOCAL_RANK=%d", rank, local);
            snprintf(e->text[e->n++], sizeof(e->text[0]), "%d:LOCAL_WORLD_SIZE=%d", rank,
                     all->at[i].ranks);
            if (all->apart) {
                snprintf(e->text[e->n++], sizeof(e->text[0]), "%d:TERN_HOST=%d", rank, i);
            }
        }
    }
    for (int i = 0; i < e->n; i++) {
        e->list[i] = e->text[i];
    }
    while (*more) {
        e->list[e->n++] = *more++;
    }
    e->list[e->n] = NULL;
    return rank;
}

static ranks_result run_hosts(const hosts *all, const char *body, const char *const *more) {
    static environment e;
    int ranks = set_environment(&e, all, more);
    return ranks_run(ranks, body, all->folder, e.list, 60);
}

/* Runs a job to its end; those that only load have another layout each time. says: part of what
 * rank 0 writes (NULL: nothing of parts that were passed over, nor of copies), while each rank
 * reads all. */
static void pass_job(const hosts *all, const char *loads, const char *saves, const char *says) {
    static int jobs;
    char way[32], load[32], save[64];
    snprintf(way, sizeof(way), "WAY=%d", *saves ? LIES_FLAT : says ? LIES_WHOLE : jobs++ % WAYS);
    snprintf(load, sizeof(load), "LOADS=%s", loads);
    snprintf(save, sizeof(save), "SAVES=%s", saves);
    ranks_result result =
        run_hosts(all, "job", (const char *const[]){"COPIES=1", way, load, save, NULL});
    assert_true(ranks_ok(&result));
    if (says) {
        assert_says(&result, 0, says);
    } else if (strstr(result.output[0], "passed over") || strstr(result.output[0], "copied")) {
        fail_msg("%s", result.output[0]);
    }
    ranks_free(&result);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Each host in turn, which another replaces; then the job goes on without one. */
static void lose_each(hosts *all) {
    char loads[16] = "-1", saves[32];
    for (int i = 0, step = 20; i < all->n; i++, step += 20) {
        snprintf(saves, sizeof(saves), "m%d m%d", step - 10, step);
        pass_job(all, loads, saves, NULL);
        lose_memory(all, i);
        snprintf(loads, sizeof(loads), "%d", step);
    }
    pass_job(all, loads, "m990 m1000", NULL);
    lose_host(all, 0);
    pass_job(all, "1000", "m1010 m1020", NULL);
    if (all->n > 1) {
        lose_host(all, 1);
        pass_job(all, "1020", "", NULL);
    }
    hosts_finish(all);
}

PLAIN_TEST(a_host_may_be_lost) {
    hosts two = hosts_new("two", 2, (int[]){2, 2}), three = hosts_new("three", 3, (int[]){1, 1, 1});
    lose_each(&two);
    lose_each(&three);
}

PLAIN_TEST(hosts_with_different_numbers_of_ranks) {
    hosts more = hosts_new("more", 2, (int[]){3, 1}), less = hosts_new("less", 2, (int[]){1, 3});
    hosts mixed = hosts_new("mixed", 3, (int[]){2, 1, 4});
    lose_each(&more);
    lose_each(&less);
    lose_each(&mixed);
}

PLAIN_TEST(hosts_on_other_machines) {
    if (gloo_is_here()) {
        hosts apart = hosts_new("apart", 2, (int[]){2, 1});
        apart.apart = true;
        lose_each(&apart);
    }
}

/* Two neighbours of three: the parts of the first were copied to the second. */
PLAIN_TEST(two_hosts_lost_are_too_many) {
    hosts all = hosts_new("many", 3, (int[]){1, 1, 1});
    pass_job(&all, "-1", "f10 m20 m30", NULL);
    lose_memory(&all, 0);
    lose_memory(&all, 1);
    pass_job(&all, "10", "", NULL);
    hosts_finish(&all);
}

PLAIN_TEST(one_host_has_no_copies) {
    hosts one = hosts_new("one", 1, (int[]){3});
    pass_job(&one, "-1", "m10 m20", NULL);
    for (int block = 2 * KEPT_RANKS; block < KEPT_BLOCKS; block++) {
        assert_int_equal(head_at(&one.at[0].memory, block).magic[0], 0);
    }
    hosts_finish(&one);
}

/* A damaged part is loaded from its copy, before an older save is; then the older save, then the
 * files. */
PLAIN_TEST(damaged_parts_are_loaded_from_copies) {
    for (int tail = 0; tail < 2; tail++) {
        hosts all = hosts_new(tail ? "tail" : "image", 2, (int[]){2, 2});
        const keeper *first = &all.at[0].memory, *second = &all.at[1].memory;
        pass_job(&all, "-1", "f10 m20 m30", NULL);
        flip_byte(first, block_of(first, 1, 30), tail);
        pass_job(&all, "30", "", "part of step 30 in memory is passed over");
        flip_byte(second, block_with(second, 1, true, 30), tail);
        pass_job(&all, "20", "", "step 30 in memory is passed over");
        flip_byte(second, block_of(second, 0, 20), tail);
        /* of the lists only the first host's are read, here the copy's */
        pass_job(&all, "20", "", tail ? NULL : "part of step 20 in memory is passed over");
        flip_byte(first, block_with(first, 0, true, 20), tail);
        pass_job(&all, "10", "m30", "step 20 in memory is passed over");
        pass_job(&all, "30", "", NULL);
        hosts_finish(&all);
    }
}

/* A copy that is damaged is as bad as none. */
PLAIN_TEST(copies_are_checked) {
    hosts all = hosts_new("checked", 2, (int[]){1, 1});
    pass_job(&all, "-1", "m10 m20", NULL);
    flip_byte(&all.at[1].memory, block_with(&all.at[1].memory, 0, true, 20), false);
    lose_memory(&all, 0);
    pass_job(&all, "10", "", "step 20 in memory is passed over");
    hosts_finish(&all);
}

/* Not even a copy of the last save that is whole. */
PLAIN_TEST(last_whole_copy_stays) {
    hosts all = hosts_new("stays", 2, (int[]){1, 1});
    pass_job(&all, "-1", "m40 m30 m20 m10", NULL);
    for (int i = 0; i < 2; i++) {
        block_with(&all.at[i].memory, 0, true, 20);
        block_with(&all.at[i].memory, 0, true, 10);
    }
    hosts_finish(&all);
}

/* The host that is left has the only copies, until a save of its own has ended on all ranks: this
 * one does not. */
PLAIN_TEST(copies_stay_until_they_are_not_needed) {
    hosts all = hosts_new("needed", 2, (int[]){1, 2});
    pass_job(&all, "-1", "m10 m20", NULL);
    lose_host(&all, 0);
    ranks_result result = run_hosts(
        &all, "job",
        (const char *const[]){"LOADS=20", "SAVES=m30", "PATIENCE=10", "1:KILL_AT=1", NULL});
    assert_true(WIFSIGNALED(result.status[1]));
    assert_says(&result, 0, "rank 1 has not written its part of step 30");
    ranks_free(&result);
    pass_job(&all, "20", "", NULL);
    hosts_finish(&all);
}

/* Memory is where the ranks were, also of those that are no longer there. */
PLAIN_TEST(fewer_ranks_on_a_host) {
    hosts all = hosts_new("fewer", 1, (int[]){4});
    pass_job(&all, "-1", "m10 m20", NULL);
    all.at[0].ranks = 1;
    pass_job(&all, "20", "f20", NULL);
    all.at[0].ranks = 4;
    erase_block(&all.at[0].memory, block_of(&all.at[0].memory, 2, 20));
    pass_job(&all, "20", "", NULL);
    all.at[0].ranks = 1;
    ranks_result result =
        run_hosts(&all, "job", (const char *const[]){"LOADS=20", "CLEARS=1", NULL});
    assert_true(ranks_ok(&result));
    ranks_free(&result);
    for (int block = 0; block < KEPT_BLOCKS; block++) {
        assert_int_equal(head_at(&all.at[0].memory, block).magic[0], 0);
    }
    hosts_finish(&all);
}

/* The blocks for copies hold nothing, and no memory. */
static void assert_no_copies(const hosts *all) {
    for (int i = 0; i < all->n; i++) {
        for (int block = 2 * KEPT_RANKS; block < KEPT_BLOCKS; block++) {
            struct stat about;
            assert_int_equal(head_at(&all->at[i].memory, block).magic[0], 0);
            assert_int_equal(fstat(all->at[i].memory.fd[block], &about), 0);
            assert_int_equal(about.st_blocks, 0);
        }
    }
}

/* Copies end, with one warning; saves go on, and what was copied is freed. */
PLAIN_TEST(no_room_ends_copies_only) {
    hosts all = hosts_new("room", 2, (int[]){1, 1});
    keeper *full = &all.at[1].memory;
    for (int i = 2 * KEPT_RANKS; i < KEPT_BLOCKS; i++) {
        assert_int_equal(fcntl(full->fd[i], F_ADD_SEALS, F_SEAL_GROW), 0);
    }
    ranks_result result =
        run_hosts(&all, "job", (const char *const[]){"COPIES=1", "SAVES=m10 m20 m30 m40", NULL});
    assert_true(ranks_ok(&result));
    assert_says(&result, 0, "step 10 and later ones are not copied to other hosts: rank 1: ");
    assert_null(strstr(strstr(result.output[0], "not copied") + 1, "not copied"));
    ranks_free(&result);
    for (int i = 0; i < 2; i++) {
        block_of(&all.at[i].memory, 0, 30);
        block_of(&all.at[i].memory, 0, 40);
    }
    assert_no_copies(&all);
    pass_job(&all, "40", "", NULL);
    hosts_finish(&all);
}

PLAIN_TEST(ranks_that_disagree_are_named) {
    hosts all = hosts_new("disagree", 2, (int[]){1, 1});
    ranks_result result =
        run_hosts(&all, "job", (const char *const[]){"1:COPIES=1", "SAVES=m10", NULL});
    for (int rank = 0; rank < 2; rank++) {
        assert_says(&result, rank, "rank 1 saves to memory with copies, but rank 0 to memory");
    }
    ranks_free(&result);
    hosts_finish(&all);
}

/* What one rank lacks for a copy ends copies, with one warning: no save fails, and no rank waits
 * for another until the time-out, which is longer than this test may take. */
static void end_copies(hosts *all, const char *fault, const char *says) {
    ranks_result result = run_hosts(
        all, "job",
        (const char *const[]){"COPIES=1", "PATIENCE=600", fault, "SAVES=m10 m20 m30", NULL});
    assert_true(ranks_ok(&result));
    assert_says(&result, 0, "step 10 and later ones are not copied to other hosts: rank ");
    assert_says(&result, 0, says);
    assert_null(strstr(strstr(result.output[0], "not copied") + 1, "not copied"));
    ranks_free(&result);
    assert_no_copies(all);
    pass_job(all, "30", "m40 m50", NULL);
    lose_memory(all, 2);
    pass_job(all, "50", "", NULL);
    hosts_finish(all);
}

PLAIN_TEST(an_error_ends_copies_only) {
    hosts sender = hosts_new("sender", 3, (int[]){1, 1, 1});
    hosts receiver = hosts_new("receiver", 3, (int[]){1, 1, 1});
    end_copies(&sender, "1:MAP_FAILS=1",
               "rank 1: the copy of rank 1's part, to rank 2: "); /* its block to send */
    end_copies(&receiver, "1:MAP_FAILS=2", "rank 1: the copy of rank 0's part, to rank 1: ");
}

/* Only gloo's groups need any. */
PLAIN_TEST(no_port_ends_copies_only) {
    if (gloo_is_here()) {
        hosts apart = hosts_new("ports", 3, (int[]){1, 1, 1});
        apart.apart = true;
        end_copies(&apart, "1:NO_PORTS=1", "TERN_PORTS");
    }
}

/* It dies before it has said whether it takes a copy; it is named, and not those who waited for
 * it, even if rank 1 begins its save late. */
static void name_dead_rank(int n, int victim, const char *late) {
    hosts all = hosts_new("dead", n, (int[]){1, 1, 1, 1, 1});
    char kills[32], says[64];
    snprintf(kills, sizeof(kills), "%d:MAP_KILLS=2", victim);
    snprintf(says, sizeof(says), "rank %d has not written its part of step", victim);
    ranks_result result = run_hosts(
        &all, "forever", (const char *const[]){"COPIES=1", "PATIENCE=10", kills, late, NULL});
    assert_true(WIFSIGNALED(result.status[victim]));
    for (int rank = 0; rank < n; rank++) {
        if (rank != victim) {
            assert_true(WIFEXITED(result.status[rank]) && WEXITSTATUS(result.status[rank]) == 3);
            assert_says(&result, rank, says);
        }
    }
    ranks_free(&result);
    hosts_finish(&all);
}

PLAIN_TEST(a_dead_rank_is_named) {
    name_dead_rank(HOSTS, 1, NULL);
    name_dead_rank(HOSTS_MOST, 2, NULL);
    name_dead_rank(HOSTS, 2, "1:LATE=6");
}

/* No memory is no reason to go back to an older save. */
PLAIN_TEST(no_memory_is_an_error) {
    hosts all = hosts_new("memory", 2, (int[]){1, 1});
    pass_job(&all, "-1", "f5 m10 m20", NULL);
    ranks_result result =
        run_hosts(&all, "job", (const char *const[]){"LOADS=20", "1:MAP_FAILS=1", NULL});
    for (int rank = 0; rank < 2; rank++) {
        assert_true(WIFEXITED(result.status[rank]) && WEXITSTATUS(result.status[rank]) == 1);
        assert_says(&result, rank, "cannot be mapped");
    }
    ranks_free(&result);
    pass_job(&all, "20", "", NULL);
    hosts_finish(&all);
}

/* Nothing is in files, so only memory can have the steps; and with each rank its host is lost. The
 * next job loads the last step, or the one before. */
PLAIN_TEST(hosts_lost_again_and_again) {
    enum { KILLS = 60 };
    static environment e;
    hosts all = hosts_new("again", HOSTS, (int[]){1, 1, 1});
    int64_t least = 0, most = 0;
    int old = 0, new = 0;
    for (int i = 0; i < KILLS; i++) {
        int victim = i % HOSTS;
        char kill_at[32], way[32];
        snprintf(kill_at, sizeof(kill_at), "%d:KILL_AT=%d", victim, 1 + i / HOSTS);
        snprintf(way, sizeof(way), "WAY=%d", i % WAYS);
        set_environment(&e, &all, (const char *const[]){"COPIES=1", kill_at, way, NULL});
        ranks_result result = run_until_killed(HOSTS, all.folder, victim, e.list);
        int64_t loaded = last_said(&result, "loaded "), saves = last_said(&result, "saves ");
        int64_t began = last_said(&result, "began ");
        bool damaged = strstr(result.output[0], "passed over") != NULL;
        if (!WIFSIGNALED(result.status[victim]) || loaded < least || loaded > most || damaged) {
            fail_msg("kill %d: rank %d ended with %#x; step %lld was loaded, not %lld to %lld: %s",
                     i, victim, (unsigned)result.status[victim], (long long)loaded,
                     (long long)least, (long long)most, result.output[damaged ? 0 : victim]);
        }
        ranks_free(&result);
        lose_memory(&all, victim);
        *(loaded < most ? &old : &new) += 1;
        least = began > loaded ? began - 1 : loaded; /* a save begins when the last has ended */
        most = saves > loaded ? saves : loaded;
    }
    fprintf(stderr, "%d kills left the step before, %d the new one; %lld steps\n", old, new,
            (long long)most);
    assert_true(old > 0 && most > KILLS / 2);
    hosts_finish(&all);
}

int main(int argc, char **argv) {
    tn_set_threads(1);
    ranks_main(argc, argv, bodies, sizeof(bodies) / sizeof(*bodies));
    return tests_run(NULL, NULL);
}
