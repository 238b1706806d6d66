/* Ranks find each other in every way there is, and name those that are missing. */
#define _GNU_SOURCE
#include "backends/backend.h"
#include "distributed/init/members.h"
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"
#include "tests/support/ranks.h"
#include "tests/support/relay.h"
#include "tests/support/test.h"

#include "tests/support/temp.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

/* ---- What ranks run -------------------------------------------------------------------------- */

/* All ranks are there: each sees every other's key in the world's store. */
RANK(meet_others) {
    char key[32];
    void *data;
    int rank = tn_group_rank(world), ranks = tn_group_size(world);
    rank_assert(world == tn_world() && world != NULL);
    rank_assert(world == tn_dist_init(tn_dist_defaults()));
    snprintf(key, sizeof(key), "seen.%d", rank);
    rank_assert(tn_store_set(tn_dist_store(), key, key, strlen(key)) == TN_OK);
    for (int r = 0; r < ranks; r++) {
        snprintf(key, sizeof(key), "seen.%d", r);
        rank_assert(tn_store_get(tn_dist_store(), key, &data, NULL, 20) == TN_OK);
        rank_assert(strcmp(data, key) == 0);
        free(data);
    }
    rank_assert(tn_barrier(world) == TN_OK);
    printf("rank %d of %d, local %d, %s, restarts %d, threads %d\n", rank, ranks, tn_local_rank(),
           tn_group_engine(world), tn_restart_count(), tn_threads());
    if (*argument) { /* one leaves late */
        usleep(rank == atoi(argument) ? 300000 : 0);
    }
    return 0;
}

/* With options: "tcp://…", or "shm" for the engine. */
PLAIN_RANK(meet_with_options) {
    tn_dist_options o = tn_dist_defaults();
    if (strcmp(argument, "shm") == 0) {
        o.engine = "shm";
    } else {
        o.init = argument;
        o.rank = atoi(getenv("TEST_RANK"));
        o.ranks = 3;
    }
    rank_assert(tn_world() == NULL && tn_dist_store() == NULL);
    for (int i = 0; i < 2; i++) { /* the second world does not see the first one's keys */
        tn_group *world = tn_dist_init(o);
        bool exists;
        rank_assert(world != NULL);
        rank_assert(tn_group_size(world) == 3 &&
                    (*argument == 's' || tn_group_rank(world) == o.rank));
        rank_assert(tn_barrier(world) == TN_OK);
        rank_assert(tn_store_check(tn_dist_store(), "left_over", &exists) == TN_OK && !exists);
        rank_assert(tn_barrier(world) == TN_OK);
        rank_assert(tn_store_set(tn_dist_store(), "left_over", "", 0) == TN_OK);
        printf("local %d\n", tn_local_rank());
        rank_assert(tn_barrier(world) == TN_OK);
        tn_dist_finish();
        rank_assert(tn_world() == NULL && tn_dist_store() == NULL);
    }
    tn_dist_finish();
    return 0;
}

/* While the ranks are together: whether a stranger who knows everything public, but no secret,
 * would be let in. `argument`: "open" or "closed". */
RANK(try_guess) {
    char guess[128], why[TN_STORE_WHY];
    const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
    snprintf(guess, sizeof(guess), "tern env  %s %s", host, port);
    tn__dialed found = tn__tcp_probe(host, atoi(port), guess, tn__now() + 20, why);
    rank_assert(found == (*argument == 'o' ? TN__DIAL_OURS : TN__DIAL_OTHER_JOB));
    rank_assert(tn_barrier(world) == TN_OK);
    return 0;
}

/* While the ranks are together: what answers at MASTER_PORT only relays what their store says. */
RANK(try_relay) {
    char why[TN_STORE_WHY];
    tn__dialed found = tn__tcp_probe(getenv("MASTER_ADDR"), atoi(getenv("MASTER_PORT")),
                                     getenv("TERN_TOKEN"), tn__now() + 20, why);
    rank_assert(found == TN__DIAL_RELAYED);
    rank_assert(tn_barrier(world) == TN_OK);
    return 0;
}

/* Sums of many products, of as many rows as each kind of kernel wants, have the same bits on all
 * ranks. `argument`: the level of all of them; it is in use. */
RANK(same_bits) {
    TN_SCOPE;
    tn_seed(1);
    for (int64_t rows = 1; rows <= 64; rows *= 4) {
        tn_tensor *x = tn_randn(TN_DIMS(rows, 999), TN_F32),
                  *w = tn_randn(TN_DIMS(33, 999), TN_F32);
        tn_tensor *y = tn_sum_all(tn_exp(tn_mul_scalar(tn_linear_op(x, w, NULL), 0.01)));
        tn_tensor *all = tn_empty(TN_DIMS(tn_group_size(world)), TN_F32);
        rank_assert(tn_work_wait(tn_all_gather(world, all, y), 0) == TN_OK);
        for (int r = 0; r < tn_group_size(world); r++) {
            rank_assert(memcmp((const float *)tn_data(all) + r, tn_data(y), sizeof(float)) == 0);
        }
    }
    rank_assert(strcmp(tn_backend_of(tn_cpu())->name, argument) == 0);
    return 0;
}

/* Exits without tn_dist_finish. */
RANK(vanish_unfinished) {
    fflush(stdout);
    if (tn_group_rank(world) == atoi(argument)) { raise(SIGKILL); }
    return 0;
}

/* ---- Helpers --------------------------------------------------------------------------------- */

static void pass_with(int n, const char *body, const char *argument, const char *const *extra) {
    ranks_result result = ranks_run(n, body, argument, extra, 30);
    bool ok = ranks_ok(&result);
    ranks_free(&result);
    assert_true(ok);
}

/* ---- Meeting --------------------------------------------------------------------------------- */

/* One process and no variables set: no server, no thread, no port. */
PLAIN_TEST(test_alone) {
    tn_dist_options o = tn_dist_defaults();
    static const char *const names[] = {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        unsetenv(names[i]);
    }
    int threads = tn_threads();
    tn_group *world = tn_dist_init(o);
    assert_non_null(world);
    assert_int_equal(tn_group_size(world), 1);
    assert_int_equal(tn_threads(), threads);
    assert_non_null(tn_dist_store());
    assert_int_equal(tn_store_set(tn_dist_store(), "k", "v", 1), TN_OK);
    assert_int_equal(tn_local_rank(), 0);
    assert_int_equal(tn_restart_count(), 0);
    DIR *tasks = opendir("/proc/self/task");
    int count = -2;
    while (tasks && readdir(tasks)) {
        count++;
    }
    closedir(tasks);
    assert_int_equal(count, 1);
    tn_dist_finish();
    assert_null(tn_world());
    tn_dist_finish();
}

static void set_several(const char *value) {
    setenv("SM_HOSTS", value, 1);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

/* Started on two hosts without a launcher, a process refuses to train alone unless told to. */
PLAIN_TEST(test_several) {
    set_several("[\"algo-1\",\"algo-2\"]");
    assert_null(tn_dist_init(tn_dist_defaults()));
    assert_int_equal(tn_error(), TN_EVALUE);
    static const char *const parts[] = {"SM_HOSTS names 2 hosts", "tern run", "--nnodes N",
                                        "RANK, WORLD_SIZE and MASTER_ADDR"};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        assert_contains(tn_error_message(), parts[i]);
    }
    tn_error_clear();
    assert_non_null(tn_dist_init(TN_WITH(tn_dist, .rank = 0, .ranks = 1)));
    tn_dist_finish();
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    assert_non_null(tn_dist_init(tn_dist_defaults()));
    tn_dist_finish();
    set_several("[\"algo-1\"]");
    assert_non_null(tn_dist_init(tn_dist_defaults()));
    tn_dist_finish();
    unsetenv("SM_HOSTS");
}

/* A batch script that starts the program without srun: it trains as one rank, and says so even
 * where no log is asked for. */
PLAIN_TEST(test_batch_script) {
    static const char *const jobs[] = {"SLURM_NTASKS=4", "SLURM_JOB_NUM_NODES=2"};
    for (size_t i = 0; i < 2; i++) {
        for (int silent = 0; silent < 2; silent++) {
            ranks_result r = ranks_run(1, "meet_others", "",
                                       ENV("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                           silent ? "TERN_LOG=error" : "TERN_LOG", jobs[i]),
                                       60);
            assert_true(ranks_ok(&r));
            assert_says(&r, 0, "rank 0 of 1");
            bool says = strstr(r.output[0], "but this process was started without srun") != NULL;
            assert_int_equal(says, !silent);
            ranks_free(&r);
        }
    }
}

PLAIN_TEST(test_environment) {
    pass_with(1, "meet_others", "", NULL);
    ranks_result r =
        ranks_run(3, "meet_others", "2", ENV("TERN_RESTART_COUNT=4", "TERN_TIMEOUT=30"), 60);
    assert_true(ranks_ok(&r));
    assert_says(&r, 0, "rank 0 of 3, local 0, shm, restarts 4, threads 1");
    assert_says(&r, 2, "rank 2 of 3, local 2, shm, restarts 4, threads 1");
    ranks_free(&r);
}

/* Without the variables for them: local ranks come from the hosts, threads from the cores. */
PLAIN_TEST(test_derived) {
    ranks_result r = ranks_run(2, "meet_others", "",
                               ENV("LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"), 60);
    assert_true(ranks_ok(&r));
    char text[64];
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
    int threads = CPU_COUNT(&cpus) / 2 > 1 ? CPU_COUNT(&cpus) / 2 : 1;
    snprintf(text, sizeof(text), "rank 1 of 2, local 1, shm, restarts 0, threads %d\n", threads);
    assert_says(&r, 1, text);
    ranks_free(&r);
}

PLAIN_TEST(test_pseudo_hosts) {
    ranks_result r = ranks_run(3, "meet_with_options", "shm",
                               ENV("0:TERN_HOST=a", "1:TERN_HOST=b b", "2:TERN_HOST=b b",
                                   "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
                               60);
    assert_true(ranks_ok(&r));
    assert_says(&r, 0, "local 0");
    assert_says(&r, 1, "local 0");
    assert_says(&r, 2, "local 1");
    ranks_free(&r);
}

PLAIN_TEST(test_tcp) {
    char init[600];
    static const char *const none[] = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
    const char *const env[] = {none[0],         none[1],
                               none[2],         none[3],
                               "LOCAL_RANK",    "LOCAL_WORLD_SIZE",
                               "0:TEST_RANK=0", "1:TEST_RANK=1",
                               "2:TEST_RANK=2", NULL};
    snprintf(init, sizeof(init), "tcp://127.0.0.1:%d", ranks_free_port());
    pass_with(3, "meet_with_options", init, env);
}

/* Rank 0 cannot have MASTER_PORT: something that is not part of this job listens there. */
PLAIN_TEST(test_port_taken) {
    char port_text[32], taken[] = "TORCHELASTIC_USE_AGENT_STORE=True";
    int port = 0, fd = tn__net_listen("127.0.0.1", &port, NULL);
    assert_true(fd >= 0);
    snprintf(port_text, sizeof(port_text), "MASTER_PORT=%d", port);
    pass_with(2, "meet_others", "", ENV(port_text, "TORCHELASTIC_RUN_ID=none", taken));
    struct pollfd knocked = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&knocked, 1, 0), 0); /* torchrun's store may choke on our hello */
    pass_with(2, "meet_others", "", ENV(port_text));
    close(fd);

    tn_store_server *other = tn_store_serve("127.0.0.1", port, "another job's token");
    assert_non_null(other);
    pass_with(2, "meet_others", "", ENV(port_text));
    tn_store_server_free(other);
}

/* A stranger has MASTER_PORT and relays everything to the real store, at one of the next ports. No
 * rank sends it more than a hello, and the job runs without it. */
PLAIN_TEST(test_relay) {
    int port = ranks_free_port();
    char port_text[32];
    snprintf(port_text, sizeof(port_text), "MASTER_PORT=%d", port);
    relay *r = relay_start(port, port + 1, 16);
    pass_with(3, "try_relay", "", ENV(port_text));
    relay_result said = relay_end(r);
    assert_true(said.connections >= 3);
    assert_int_equal(said.most, 24);
}

/* Silent strangers have MASTER_PORT and most of the ports after it: they accept connections and
 * read nothing; the first does not even accept any (its queue is full). */
PLAIN_TEST(test_squatters) {
    enum { SQUATTERS = 12, QUEUE = 3 };
    char port_text[32];
    const char *unknown;
    int first = 0, fd[SQUATTERS], queue[QUEUE];
    fd[0] = tn__net_listen("127.0.0.1", &first, NULL);
    assert_true(fd[0] >= 0 && listen(fd[0], 0) == 0);
    for (int i = 1; i < SQUATTERS; i++) {
        int port = first + i;
        fd[i] = port < 65536 ? tn__net_listen("127.0.0.1", &port, NULL) : -1; /* or taken already */
        tn_error_clear();
    }
    struct addrinfo *at = tn__net_resolve("127.0.0.1", first, &unknown);
    for (int i = 0; i < QUEUE; i++) {
        int error;
        queue[i] = tn__net_connect(at, tn__now() + 0.1, &error);
    }
    freeaddrinfo(at);
    snprintf(port_text, sizeof(port_text), "MASTER_PORT=%d", first);
    pass_with(2, "meet_others", "", ENV(port_text));
    for (int i = 0; i < SQUATTERS; i++) {
        close(fd[i]);
    }
    for (int i = 0; i < QUEUE; i++) {
        close(queue[i]);
    }
}

/* As under `tern run`. */
PLAIN_TEST(test_agent) {
    char port[32];
    tn_store_server *server = tn_store_serve("127.0.0.1", 0, "token");
    snprintf(port, sizeof(port), "MASTER_PORT=%d", tn_store_server_port(server));
    for (int attempt = 0; attempt < 2; attempt++) {
        pass_with(3, "meet_others", "0",
                  ENV(port, "TERN_STORE=agent", "TERN_TOKEN=token",
                      attempt ? "TERN_RESTART_COUNT=1" : "TERN_RESTART_COUNT=0"));
    }
    tn_store_server_free(server);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

#define WARNING "this job has no secret"

/* Ranks without a token; `says`: what rank 0 prints, NULL: nothing. */
static void meet_without_token(const char *guess, const char *const *extra, const char *says) {
    ranks_result r = ranks_run(2, "try_guess", guess, extra, 60);
    assert_true(ranks_ok(&r));
    if (says) {
        assert_says(&r, 0, WARNING);
        assert_says(&r, 0, says);
    } else {
        assert_string_equal(r.output[0], "");
    }
    assert_string_equal(r.output[1], "");
    ranks_free(&r);
}

/* All on one host: the user's own token keeps strangers out, without any setup. */
PLAIN_TEST(test_user_token) {
    char config[600], path[700];
    snprintf(config, sizeof(config), "XDG_CONFIG_HOME=%s", temp_path("config"));
    for (int run = 0; run < 2; run++) { /* the first run makes it */
        meet_without_token("closed", ENV("TERN_TOKEN", config), NULL);
    }
    snprintf(path, sizeof(path), "%s/tern/token", temp_path("config"));
    assert_int_equal(chmod(path, 0644), 0);
    meet_without_token("open", ENV("TERN_TOKEN", config), "mode 0644");
    unlink(path);
    snprintf(path, sizeof(path), "%s/tern", temp_path("config"));
    rmdir(path);
    rmdir(temp_path("config"));
}

/* No secret is available: the job runs, and says so in one line. */
PLAIN_TEST(test_guessable) {
    meet_without_token("open", ENV("TERN_TOKEN", "HOME", "XDG_CONFIG_HOME"),
                       "neither XDG_CONFIG_HOME");
    meet_without_token("open", ENV("TERN_TOKEN", "HOME", "XDG_CONFIG_HOME", "TERN_LOG=warn"),
                       "TERN_TOKEN_FILE");
    ranks_result r = ranks_run(2, "try_guess", "open",
                               ENV("TERN_TOKEN", "HOME", "XDG_CONFIG_HOME", "TERN_LOG=error"), 60);
    assert_true(ranks_ok(&r));
    assert_string_equal(r.output[0], ""); /* as TERN_LOG asks */
    ranks_free(&r);
}

PLAIN_TEST(test_token_file) {
    char file[600];
    const char *path = temp_path("secret");
    temp_write(path, "the job's secret\n", 17);
    assert_int_equal(chmod(path, 0600), 0);
    snprintf(file, sizeof(file), "TERN_TOKEN_FILE=%s", path);
    meet_without_token("closed", ENV("TERN_TOKEN", "HOME", "XDG_CONFIG_HOME", file), NULL);
    meet_without_token("closed", ENV(file), NULL); /* TERN_TOKEN comes first */
    assert_int_equal(chmod(path, 0640), 0);
    ranks_result r = ranks_run(2, "try_guess", "closed", ENV("TERN_TOKEN", file), 60);
    for (int rank = 0; rank < 2; rank++) {
        assert_true(WIFEXITED(r.status[rank]) && WEXITSTATUS(r.status[rank]) == 1);
        assert_says(&r, rank, "TERN_TOKEN_FILE: others can access");
        assert_says(&r, rank, "chmod 600");
    }
    ranks_free(&r);
}

/* ---- Failing to meet ------------------------------------------------------------------------- */

/* Ranks 1 and 3 of 4 use another port, and never arrive. */
PLAIN_TEST(test_missing) {
    char other[32];
    snprintf(other, sizeof(other), "1:MASTER_PORT=%d", ranks_free_port());
    char third[32];
    snprintf(third, sizeof(third), "3:%s", other + 2);
    ranks_result r = ranks_run(4, "meet_others", "", ENV("TERN_TIMEOUT=1.5", other, third), 60);
    assert_false(r.timed_out);
    assert_true(r.seconds < 25);
    for (int rank = 0; rank < 4; rank++) {
        assert_true(WIFEXITED(r.status[rank]) && WEXITSTATUS(r.status[rank]) == 1);
        assert_says(&r, rank,
                    rank % 2 ? "no store of this job at 127.0.0.1"
                             : "ranks 1, 3 of 4 have not arrived within 1.");
    }
    ranks_free(&r);
}

/* The timeout holds for any number of ranks: a check of each would take most of a minute. */
PLAIN_TEST(test_very_many) {
    ranks_result r =
        ranks_run(1, "meet_others", "",
                  ENV("WORLD_SIZE=1048576", "LOCAL_WORLD_SIZE", "TERN_TIMEOUT=0.5"), 300);
    assert_says(&r, 0, "ranks 1-");
    assert_says(&r, 0, "of 1048576 have not arrived within ");
    assert_says(&r, 0, "were not checked");
    ranks_free(&r);
}

PLAIN_TEST(test_disagreement) {
    ranks_result r = ranks_run(3, "meet_others", "", ENV("TERN_TIMEOUT=3", "2:RANK=1"), 60);
    assert_false(r.timed_out || r.status[1] == r.status[0] + r.status[2]);
    bool first = strstr(r.output[1], "two processes have rank 1") != NULL;
    assert_says(&r, first ? 1 : 2, "two processes have rank 1");
    ranks_free(&r);

    r = ranks_run(2, "meet_others", "",
                  ENV("TERN_TIMEOUT=3", "1:WORLD_SIZE=5", "1:LOCAL_WORLD_SIZE=5"), 60);
    assert_false(r.timed_out);
    assert_says(&r, 0, "is one of 5 ranks, but here there are 2");
    assert_says(&r, 1, "is one of 5 ranks, but here there are 2");
    ranks_free(&r);

    r = ranks_run(2, "meet_others", "", ENV("TERN_TIMEOUT=3", "RANK=0", "LOCAL_RANK=0"), 60);
    assert_false(r.timed_out);
    bool second = strstr(r.output[1], "another process is rank 0") != NULL;
    assert_says(&r, second ? 1 : 0, "another process is rank 0");
    ranks_free(&r);
}

/* One of three ranks has a lower level: all take it, rank 0 says so, and they compute the same. */
PLAIN_TEST(test_levels) {
    char levels[TN__CPU_LEVELS], *rest = levels, *level;
    tn__cpu_levels(levels, sizeof(levels));
    const char *last = strrchr(levels, ' ');
    char highest[sizeof(levels)];
    snprintf(highest, sizeof(highest), "%s", last ? last + 1 : levels);
    while ((level = strtok_r(rest, " ", &rest))) {
        bool lowest = strcmp(level, "plain") == 0, lower = strcmp(level, highest) != 0;
        for (int rank = 0; rank < 2; rank++) {
            char variable[64], name[32];
            snprintf(variable, sizeof(variable), "%d:TERN_CPU=%s", rank, level);
            snprintf(name, sizeof(name), "%s%s", lowest ? "ref" : "cpu-", lowest ? "" : level);
            ranks_result r = ranks_run(3, "same_bits", name, ENV("TERN_CPU", variable), 60);
            assert_true(ranks_ok(&r));
            for (int i = 0; i < 3; i++) {
                bool says = strstr(r.output[i], "all ranks compute at ") != NULL;
                assert_int_equal(says, lower && i == 0);
            }
            if (lower) {
                char said[64];
                snprintf(said, sizeof(said), "has the CPU's level %s", rank ? level : highest);
                assert_says(&r, 0, said);
                snprintf(said, sizeof(said), "all ranks compute at %s", level);
                assert_says(&r, 0, said);
            }
            ranks_free(&r);
        }
    }
}

/* Two ranks that say these things about their processors. `level`: what they agree on, or NULL. */
static void assert_agree(const char *a, const char *b, const char *level) {
    tn__member members[4] = {{.who = "a:1"}, {.who = "a:2"}, {.who = "b:3"}, {.who = "a:4"}};
    for (int i = 0; i < 4; i++) {
        snprintf(members[i].kinds, sizeof(members[i].kinds), "%s", i == 2 ? b : a);
    }
    char word[TN__KINDS], note[TN__NOTE];
    assert_int_equal(tn__meet_level(members, 4, word, note), level != NULL);
    assert_int_equal(tn_error(), level ? TN_OK : TN_EMISMATCH);
    const char *why = level ? note : tn_error_message();
    if (!level || strcmp(a, b) != 0) {
        assert_contains(why, "rank 0 (a:1)");
        assert_contains(why, "rank 2 (b:3)");
        assert_non_null(level ? strstr(why, level) : strstr(why, b));
    } else {
        assert_string_equal(why, "");
    }
    if (level) { assert_string_equal(word, level); }
    tn_error_clear();
}

PLAIN_TEST(test_kinds) {
    assert_agree("x86_64:plain,v2,v3,v4", "x86_64:plain,v2,v3,v4", "v4");
    assert_agree("x86_64:plain,v2,v3,v4", "x86_64:plain,v2,v3", "v3");
    assert_agree("x86_64:plain,v2", "x86_64:plain,v2,v3,v4-bf16", "v2");
    assert_agree("x86_64:plain,v2,v3,v4", "x86_64:plain,v2,v3,v4-bf16,amx", "v3");
    assert_agree("x86_64:plain,v2,v3,v4-bf16", "x86_64:plain,v2,v3,v4-bf16,amx", "v4-bf16");
    assert_agree("x86_64:plain", "x86_64:plain,v2", "plain");
    assert_agree("x86_64:plain,v2,v3", "x86_64-no-fma:plain,v2", NULL);
    assert_agree("x86_64:plain,v2,v3", "aarch64:plain,neon", NULL);
    assert_agree("x86_64:plain,v2,v3", "?", NULL);
    assert_agree("x86_64:plain,v2,v3", "x86_64", NULL);
}

/* A rank that dies delays rank 0's exit only briefly. */
PLAIN_TEST(test_death) {
    ranks_result r = ranks_run(3, "vanish_unfinished", "1", ENV("TERN_TIMEOUT=20"), 60);
    assert_false(r.timed_out);
    assert_true(WIFSIGNALED(r.status[1]) && r.status[2] == 0 && r.seconds < 30);
    ranks_free(&r);
}

PLAIN_TEST(test_arguments) {
    static const char *const bad[] = {"", "env:/", "tcp:/1", "mpi://"};
    tn_dist_options o = tn_dist_defaults();
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        o.init = bad[i];
        assert_null(tn_dist_init(o));
        assert_contains(tn_error_message(), "init is \"");
        tn_error_clear();
    }
    static const char *const bad_tcp[] = {"tcp://",        "tcp://a",     "tcp://:1",  "tcp://a:0",
                                          "tcp://a:70000", "tcp://::1:5", "tcp://a:1x"};
    o.rank = 1;
    o.ranks = 2;
    o.timeout = 0.1;
    for (size_t i = 0; i < sizeof(bad_tcp) / sizeof(*bad_tcp); i++) {
        o.init = bad_tcp[i];
        assert_null(tn_dist_init(o));
        assert_contains(tn_error_message(), "tcp://HOST:PORT");
        tn_error_clear();
    }
    o = tn_dist_defaults();
    o.init = "tcp://localhost:1";
    assert_null(tn_dist_init(o));
    assert_contains(tn_error_message(), "which rank this is");
    tn_error_clear();
    static const struct { int rank, ranks; } places[] = {{0, -1}, {-1, 2}, {2, 2}, {0, 0}};
    for (int i = 0; i < 4; i++) {
        o = tn_dist_defaults();
        o.rank = places[i].rank;
        o.ranks = places[i].ranks;
        assert_none(tn_dist_init(o), TN_EVALUE, "");
    }
    o = tn_dist_defaults();
    o.timeout = 0;
    assert_null(tn_dist_init(o));
    assert_int_equal(tn_error(), TN_EVALUE);
    assert_null(tn_dist_init(tn_dist_defaults())); /* an error is pending */
    tn_error_clear();
    assert_null(tn_world());
}
