/* Recorded environments of launchers and what is read from them; lists of nodes. */
#include "distributed/init/environment.h"
#include "distributed/init/nodelist.h"

#include "tests/support/test.h"

#include <stdlib.h>
#include <string.h>

enum { PARENT = 4711 };

#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static tn__environment read_env(const char *const *variables) {
    tn__environment e;
    if (!tn__environment_read(variables, PARENT, &e, "test")) {
        fail_msg("%s", tn_error_message());
    }
    return e;
}

static void assert_refused(const char *const *variables, const char *part) {
    tn__environment e;
    assert_false(tn__environment_read(variables, PARENT, &e, "test"));
    assert_error(TN_EVALUE, part);
}

static void assert_ranks(const tn__environment *e, const char *launcher, int rank, int ranks,
                         int local_rank, int local_ranks) {
    assert_string_equal(e->launcher, launcher);
    assert_int_equal(e->rank, rank);
    assert_int_equal(e->ranks, ranks);
    assert_int_equal(e->local_rank, local_rank);
    assert_int_equal(e->local_ranks, local_ranks);
}

static void assert_place(const tn__environment *e, const char *host, int port) {
    assert_string_equal(e->host, host);
    assert_int_equal(e->port, port);
    assert_true(*e->job != 0);
}

/* ---- Launchers ------------------------------------------------------------------------------- */

PLAIN_TEST(test_nothing) {
    tn__environment e = read_env(ENV("PATH=/bin", "RANKS=3", "RANK=", "XRANK=1"));
    assert_null(e.launcher);
    assert_true(e.rank == 0 && e.ranks == 1 && e.restarts == 0);
    e = read_env(NULL);
    assert_null(e.launcher);
}

PLAIN_TEST(test_tern_run) {
    tn__environment e = read_env(
        ENV("RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=8", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
            "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29400", "TERN_TOKEN=secret", "TERN_STORE=agent",
            "TERN_RUN_ID=r", "TERN_RESTART_COUNT=2", "TORCHELASTIC_RESTART_COUNT=2",
            "TORCHELASTIC_RUN_ID=r", "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2"));
    assert_ranks(&e, "tern run", 5, 8, 1, 4);
    assert_place(&e, "10.0.0.1", 29400);
    assert_true(e.agent && !e.port_taken && e.restarts == 2);
    assert_string_equal(e.token, "secret");
}

/* PyTorch 1.13, torchrun --nproc_per_node 2, and with --standalone. */
PLAIN_TEST(test_torchrun) {
    tn__environment e = read_env(
        ENV("GROUP_RANK=0", "GROUP_WORLD_SIZE=1", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
            "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500", "NCCL_ASYNC_ERROR_HANDLING=1",
            "OMP_NUM_THREADS=1", "RANK=1", "ROLE_NAME=default", "ROLE_RANK=1", "ROLE_WORLD_SIZE=2",
            "TORCHELASTIC_MAX_RESTARTS=0", "TORCHELASTIC_RESTART_COUNT=0",
            "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=True", "WORLD_SIZE=2"));
    assert_ranks(&e, "torchrun", 1, 2, 1, 2);
    assert_place(&e, "127.0.0.1", 29500);
    assert_true(e.port_taken && !e.agent && e.restarts == 0);

    tn__environment s = read_env(ENV("LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=localhost",
                                     "MASTER_PORT=43799", "RANK=1", "TORCHELASTIC_RESTART_COUNT=3",
                                     "TORCHELASTIC_RUN_ID=4a82ba8f-4c45-4f68-9320-3e6a2710739b",
                                     "TORCHELASTIC_USE_AGENT_STORE=False", "WORLD_SIZE=2"));
    assert_ranks(&s, "torchrun", 1, 2, 1, 2);
    assert_place(&s, "localhost", 43799);
    assert_true(!s.port_taken && s.restarts == 3);
    assert_string_not_equal(s.job, e.job);
}

#define OPENMPI                                                                           \
    "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=345702401",                        \
        "OMPI_MCA_orte_hnp_uri=345702400.0;tcp://192.0.2.2:59831", "PMIX_ID=345702401.1", \
        "PMIX_NAMESPACE=345702401", "OMPI_COMM_WORLD_NODE_RANK=1"

/* OpenMPI 4.1, mpirun -n 2. */
PLAIN_TEST(test_openmpi) {
    tn__environment e =
        read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=1",
                     "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"));
    assert_ranks(&e, "OpenMPI", 1, 2, 1, 2);
    assert_true(e.port >= 20000 && e.port < 32000);
    assert_place(&e, "127.0.0.1", e.port);
    tn__environment zero =
        read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=0", "PMIX_RANK=0",
                     "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2"));
    assert_string_equal(zero.job, e.job);
    assert_int_equal(zero.port, e.port);
    tn__environment other =
        read_env(ENV("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "PMIX_NAMESPACE=345702402",
                     "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2"));
    assert_string_not_equal(other.job, e.job);

    assert_null(e.secret);
#define KEY "OMPI_MCA_orte_precondition_transports="
    e = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", KEY "89880e5046a53fc3-0d0fb78d0e6b204a"));
    assert_string_equal(e.secret, "89880e5046a53fc3-0d0fb78d0e6b204a");
    e = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", KEY "0000000000000000-0000000000000000"));
    assert_null(e.secret);
    e = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", KEY "1-2"));
    assert_null(e.secret);
    e = read_env(ENV("RANK=0", "WORLD_SIZE=2", KEY "89880e5046a53fc3-0d0fb78d0e6b204a"));
    assert_null(e.secret); /* ranks of other launchers may have different keys */

    tn__environment two =
        read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                     "OMPI_COMM_WORLD_LOCAL_SIZE=1"));
    assert_string_equal(two.host, "");
    assert_contains(two.no_host, "MASTER_ADDR");
    two = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                       "OMPI_COMM_WORLD_LOCAL_SIZE=1", "MASTER_ADDR=node7", "MASTER_PORT=1234"));
    assert_place(&two, "node7", 1234);

    /* SageMaker's mpirun: rank 0 is on the first host */
#define SM "SM_HOSTS=[\"algo-2\",\"algo-1\"]", "SM_CURRENT_HOST=algo-2"
    two = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                       "OMPI_COMM_WORLD_LOCAL_SIZE=1", SM));
    assert_place(&two, "algo-1", two.port);
    assert_false(two.one_host);
    two = read_env(ENV("PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1", SM));
    assert_place(&two, "algo-1", two.port);
    two = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                       "OMPI_COMM_WORLD_LOCAL_SIZE=2", SM));
    assert_place(&two, "127.0.0.1", two.port); /* all on one of them */
    two = read_env(ENV(OPENMPI, "OMPI_COMM_WORLD_RANK=1", SM, "MASTER_ADDR=node7"));
    assert_place(&two, "node7", two.port);
    two = read_env(ENV("RANK=1", "WORLD_SIZE=2", SM)); /* whose rank 0 may be anywhere */
    assert_string_equal(two.host, "");
}

/* MPICH 4.0, mpirun -n 2: it has no job identifier, so the process of mpirun identifies the job. */
PLAIN_TEST(test_mpich) {
    const char *const recorded[] = {"HYDI_CONTROL_FD=7", "MPIR_CVAR_CH3_INTERFACE_HOSTNAME=vm",
                                    "MPI_LOCALNRANKS=2", "MPI_LOCALRANKID=1",
                                    "PMI_FD=8",          "PMI_RANK=1",
                                    "PMI_SIZE=2",        NULL};
    tn__environment e = read_env(recorded), other;
    assert_ranks(&e, "MPICH", 1, 2, 1, 2);
    assert_place(&e, "127.0.0.1", e.port);
    assert_true(tn__environment_read(recorded, PARENT + 1, &other, "test"));
    assert_string_not_equal(other.job, e.job);

    e = read_env(ENV("MPI_LOCALNRANKS=1", "MPI_LOCALRANKID=0", "PMI_RANK=1", "PMI_SIZE=2"));
    assert_string_equal(e.host, "");
    assert_contains(e.no_host, "MASTER_ADDR");
    e = read_env(
        ENV("MPI_LOCALNRANKS=1", "MPI_LOCALRANKID=0", "PMI_RANK=1", "PMI_SIZE=2", "MASTER_ADDR=a"));
    const char *const host[] = {"MPI_LOCALNRANKS=1", "MPI_LOCALRANKID=0", "PMI_RANK=0",
                                "PMI_SIZE=2",        "MASTER_ADDR=a",     NULL};
    assert_true(tn__environment_read(host, PARENT + 1, &other, "test"));
    assert_string_equal(other.job, e.job); /* on each host mpirun is another process */
}

#define SLURM                                                                             \
    "SLURMD_NODENAME=n2", "SLURM_JOBID=1", "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1-2]", \
        "SLURM_JOB_NUM_NODES=2", "SLURM_LAUNCH_NODE_IPADDR=192.0.2.9", "SLURM_NNODES=2",  \
        "SLURM_NODELIST=n[1-2]", "SLURM_NPROCS=4", "SLURM_NTASKS=4", "SLURM_TASKS_PER_NODE=3,1"
#define SLURM_STEP                                                                       \
    "SLURM_NODEID=1", "SLURM_STEPID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[1-2]", \
        "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_TASKS_PER_NODE=3,1"

/* Slurm 22.05, srun -N2 -n4. */
PLAIN_TEST(test_slurm) {
    tn__environment e = read_env(ENV(SLURM, SLURM_STEP, "SLURM_PROCID=3", "SLURM_LOCALID=0"));
    assert_ranks(&e, "Slurm", 3, 4, 0, -1);
    assert_place(&e, "n1", e.port);
    assert_string_equal(e.second, "192.0.2.9");
    tn__environment zero = read_env(ENV(SLURM, SLURM_STEP, "SLURM_PROCID=0", "SLURM_LOCALID=0"));
    assert_string_equal(zero.job, e.job);
    assert_int_equal(zero.port, e.port);

    e = read_env(
        ENV(SLURM, SLURM_STEP, "SLURM_PROCID=3", "SLURM_LOCALID=0", "MASTER_ADDR=10.1.1.1"));
    assert_string_equal(e.host, "10.1.1.1");

    e = read_env(ENV("SLURM_STEP_ID=7", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                     "SLURM_LOCALID=1", "SLURM_JOB_ID=12", "SLURM_STEP_NODELIST=gpu07"));
    assert_place(&e, "127.0.0.1", e.port); /* one node */
    assert_contains(e.job, "12.7");

    assert_refused(ENV("SLURM_STEP_ID=7", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                       "SLURM_STEP_NODELIST=n[1-"),
                   "not a node list");
    e = read_env(ENV("SLURM_STEP_ID=7", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"));
    assert_string_equal(e.host, "");
    assert_contains(e.no_host, "MASTER_ADDR");
}

/* The batch script, and a shell of salloc, see the job's numbers but are one process. */
PLAIN_TEST(test_slurm_without_srun) {
    tn__environment e = read_env(ENV(SLURM, "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NODEID=0"));
    assert_null(e.launcher);
    assert_int_equal(e.ranks, 1);
    e = read_env(ENV(SLURM, "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_STEP_ID=4294967290"));
    assert_null(e.launcher);
}

static void assert_several(const char *const *variables, const char *text, bool alone) {
    tn__environment e = read_env(variables);
    assert_null(e.launcher);
    assert_string_equal(e.several, text);
    assert_int_equal(e.alone, alone);
}

/* Environments that start a program several times without making the copies ranks. */
PLAIN_TEST(test_several) {
    assert_several(ENV("SM_HOSTS=[\"algo-1\",\"algo-2\"]", "SM_CURRENT_HOST=algo-1"),
                   "SM_HOSTS names 2 hosts", false);
    assert_several(ENV("SM_HOSTS=[\"algo-1\"]", "SM_CURRENT_HOST=algo-1"), "", false);
    static const char *const no_lists[] = {"SM_HOSTS=[\"a\", \"b\"",
                                           "SM_HOSTS=algo-1,algo-2",
                                           "SM_HOSTS=7",
                                           "SM_HOSTS=[]",
                                           "SM_HOSTS={}",
                                           "TF_CONFIG={}",
                                           "TF_CONFIG={\"cluster\": [[1, 2], {}]}",
                                           "TF_CONFIG={\"cluster\": {\"worker\": 5}}"};
    for (size_t i = 0; i < sizeof(no_lists) / sizeof(*no_lists); i++) {
        assert_several(ENV(no_lists[i]), "", false);
    }
    assert_several(
        ENV("TF_CONFIG={\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"b:1\", \"c:1\"]}, "
            "\"task\": {\"type\": \"worker\", \"index\": 1}}"),
        "TF_CONFIG names 3 hosts", false);
    assert_several(ENV("CLUSTER_SPEC={\"cluster\": {\"workerpool0\": [\"a:2222\"], "
                       "\"workerpool1\": [\"b:2222\"]}, \"environment\": \"cloud\", "
                       "\"task\": {\"type\": \"workerpool1\", \"index\": 0}}"),
                   "CLUSTER_SPEC names 2 hosts", false);
    assert_several(ENV("CLUSTER_SPEC={\"cluster\": {\"workerpool0\": [\"a:2222\"]}}"), "", false);
    assert_several(ENV("TF_CONFIG={\"cluster\": {\"chief\": [\"a:1\"]}}"), "", false);
    assert_several(ENV("PET_NNODES=2", "PET_NODE_RANK=1", "PET_MASTER_ADDR=a"),
                   "PET_NNODES names 2 hosts", false);
    assert_several(ENV("PET_NNODES=1:4"), "PET_NNODES names 4 hosts", false);
    assert_several(ENV("PET_NNODES=1", "PET_NPROC_PER_NODE=auto"), "", false);
    assert_several(ENV("AWS_BATCH_JOB_NUM_NODES=3", "AWS_BATCH_JOB_NODE_INDEX=0"),
                   "AWS_BATCH_JOB_NUM_NODES names 3 hosts", false);
    assert_several(ENV("SKYPILOT_NUM_NODES=2"), "SKYPILOT_NUM_NODES names 2 hosts", false);
    assert_several(ENV("MV2_COMM_WORLD_SIZE=4", "MV2_COMM_WORLD_RANK=1"),
                   "MV2_COMM_WORLD_SIZE is 4", false);
    assert_several(ENV("PMI_SIZE=2"), "PMI_SIZE is 2", false);
    assert_several(ENV("PMI_SIZE=x"), "", false);
    assert_several(ENV("SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=8"),
                   "SLURM_STEP_NUM_TASKS is 4", false);
    /* still one process of a job: a batch script, with what it inherited, and salloc */
    assert_several(
        ENV(SLURM, "SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID=0", "SLURM_STEP_ID=4294967291"),
        "SLURM_NTASKS is 4", true);
    assert_several(ENV(SLURM), "SLURM_NTASKS is 4", true);
    assert_several(ENV("SLURM_NTASKS=1"), "", false);
    assert_several(ENV("SLURM_JOB_NUM_NODES=2", "SLURM_JOB_ID=7"), "SLURM_JOB_NUM_NODES is 2",
                   true);
    assert_several(ENV("SLURM_JOB_NUM_NODES=1", "SLURM_JOB_ID=7"), "", false);

    tn__environment e = read_env(ENV("SM_HOSTS=[\"algo-1\",\"algo-2\"]", "RANK=1", "WORLD_SIZE=2"));
    assert_string_equal(e.several, "");
    assert_ranks(&e, "the environment", 1, 2, -1, -1);
}

/* mpirun starts its daemons with srun; a program may be started with `tern run` inside any of
 * them. */
PLAIN_TEST(test_nested) {
    tn__environment e = read_env(ENV(SLURM, SLURM_STEP, "SLURM_PROCID=1", OPENMPI,
                                     "OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=2"));
    assert_string_equal(e.launcher, "OpenMPI");
    e = read_env(
        ENV(SLURM, SLURM_STEP, "SLURM_PROCID=1", "PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALNRANKS=2"));
    assert_string_equal(e.launcher, "MPICH");
    e = read_env(ENV(SLURM, SLURM_STEP, "SLURM_PROCID=1", "PMI_RANK=1", "PMI_SIZE=4"));
    assert_string_equal(e.launcher, "Slurm"); /* srun --mpi=pmi2 */
    e = read_env(ENV(SLURM, SLURM_STEP, "SLURM_PROCID=1", "RANK=0", "WORLD_SIZE=1"));
    assert_int_equal(e.ranks, 1);
}

/* Whether all ranks are on this host, and where the token comes from. */
PLAIN_TEST(test_one_host) {
    assert_true(read_env(ENV("RANK=0", "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2")).one_host);
    assert_false(read_env(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a")).one_host);
    assert_true(read_env(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1")).one_host);
    assert_false(read_env(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.example.org")).one_host);
    assert_true(read_env(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost")).one_host);
    assert_true(read_env(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=::1")).one_host);
    assert_false(read_env(ENV(SLURM, SLURM_STEP, "SLURM_PROCID=3", "SLURM_LOCALID=0")).one_host);
    assert_true(read_env(ENV("SLURM_STEP_ID=7", "SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2",
                             "SLURM_STEP_NUM_NODES=1", "MASTER_ADDR=n7"))
                    .one_host);
    tn__environment e = read_env(ENV("RANK=0", "WORLD_SIZE=2", "TERN_TOKEN_FILE=/a/b"));
    assert_string_equal(e.token_file, "/a/b");
    assert_string_equal(e.token, "");
    int port = e.port;
    e = read_env(ENV("RANK=0", "WORLD_SIZE=2", "TERN_TOKEN=t"));
    assert_null(e.token_file);
    assert_int_equal(e.port, port); /* the port is not derived from a secret */
}

/* ---- Invalid environments -------------------------------------------------------------------- */

PLAIN_TEST(test_refused) {
    assert_refused(ENV("RANK=0"), "RANK is set, but WORLD_SIZE is not");
    assert_refused(ENV("WORLD_SIZE=2"), "WORLD_SIZE is set, but RANK is not");
    static const char *const numbers[] = {"RANK=x",  "RANK=-1", "RANK=1.0",
                                          "RANK= 1", "RANK=1 ", "RANK=99999999999999999999999",
                                          "RANK=0x1"};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        assert_refused(ENV(numbers[i], "WORLD_SIZE=2"), "RANK is \"");
    }
    assert_refused(ENV("RANK=2", "WORLD_SIZE=2"), "ranks count from 0");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=0"), "WORLD_SIZE is \"0\"");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"),
                   "LOCAL_RANK is 2");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=3"),
                   "LOCAL_WORLD_SIZE is 3");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=0"),
                   "MASTER_PORT is \"0\"");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "MASTER_PORT=65536"),
                   "MASTER_PORT");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "TERN_STORE=file"), "TERN_STORE is \"file\"");
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "TERN_RESTART_COUNT=-1"), "TERN_RESTART_COUNT");
    static const char *const timeouts[] = {"TERN_TIMEOUT=x",   "TERN_TIMEOUT=0",
                                           "TERN_TIMEOUT=-1",  "TERN_TIMEOUT=5s",
                                           "TERN_TIMEOUT=inf", "TERN_TIMEOUT=nan"};
    for (size_t i = 0; i < sizeof(timeouts) / sizeof(*timeouts); i++) {
        assert_refused(ENV(timeouts[i]), "TERN_TIMEOUT");
    }
    char text[600] = "TERN_TOKEN=";
    memset(text + strlen(text), 't', 400);
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", text), "TERN_TOKEN has 400");
    memcpy(text, "MASTER_ADDR=", 12);
    assert_refused(ENV("RANK=0", "WORLD_SIZE=2", text), "MASTER_ADDR has");

    tn__environment e = read_env(ENV("RANK=0", "WORLD_SIZE=2"));
    assert_string_equal(e.host, "");
    assert_contains(e.no_host, "MASTER_ADDR is not set");
    e = read_env(ENV("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2"));
    assert_string_equal(e.host, "127.0.0.1");
}

/* ---- Lists of nodes -------------------------------------------------------------------------- */

static void assert_list(const char *list, const char *first, bool several) {
    char name[64];
    bool more;
    assert_true(tn__nodelist_first(list, name, sizeof(name), &more));
    assert_string_equal(name, first);
    assert_int_equal(more, several);
}

PLAIN_TEST(test_nodelist) {
    assert_list("n1", "n1", false);
    assert_list("n[1]", "n1", false);
    assert_list("n[07-07]x", "n07x", false);
    assert_list("a-b.example_1,c", "a-b.example_1", true);
    assert_list("n[1-3,07-09],gpu5", "n1", true);
    assert_list("n[3,1]", "n3", true);
    assert_list("n[098-101]x", "n098x", true);
    assert_list("r[0]n[1,3]", "r0n1", true);
    assert_list("r[2-3]n[1],s[5]", "r2n1", true);
    assert_list("[1-2]", "1", true);
    assert_list("n[1-1000]m[1-1000]", "n1m1", true);
    assert_list("n[999999999999999999]", "n999999999999999999", false);

    char name[8];
    bool more;
    assert_false(tn__nodelist_first("a-long-name-1", name, sizeof(name), &more));
    assert_false(tn__nodelist_first("a-long-1", name, sizeof(name), &more));
    assert_true(tn__nodelist_first("long[1]x,a-long-name", name, sizeof(name), &more));
    assert_string_equal(name, "long1x");
}

PLAIN_TEST(test_bad_nodelist) {
    static const char *const bad[] = {
        "",
        ",",
        "a,",
        ",a",
        "a,,b",
        "n[",
        "n]",
        "n[]",
        "n[1",
        "n[1-",
        "n[1-]",
        "n[-1]",
        "n[3-1]",
        "n[1,]",
        "n[1-[2-3]]",
        "n[[1]]",
        "n[a-b]",
        "n[1-2-3]",
        "a b",
        "a\n",
        "n[9999999999999999999]",
        "n[0-18446744073709551615]",
        "\xc3\xa4",
    };
    char name[64];
    bool more;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (tn__nodelist_first(bad[i], name, sizeof(name), &more)) {
            fail_msg("\"%s\" is taken for a list", bad[i]);
        }
    }
    assert_false(tn__nodelist_first(NULL, name, sizeof(name), &more));
}

#define PORTS "TERN_PORTS=30000-30100"
#define TWO "RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a"

/* Rank 0 looks for a port among those that a firewall lets through. */
PLAIN_TEST(test_ports) {
    tn__environment e = read_env(ENV(TWO, PORTS));
    assert_true(e.port >= 30000 && e.port <= 30084 && e.last_port == 30100);
    e = read_env(ENV(TWO, "TERN_PORTS=30000-30003"));
    assert_true(e.port == 30000 && e.last_port == 30003);
    e = read_env(ENV(TWO, PORTS, "MASTER_PORT=30100"));
    assert_true(e.port == 30100 && e.last_port == 30100);
    assert_refused(ENV(TWO, PORTS, "MASTER_PORT=29500"),
                   "MASTER_PORT is 29500, which is not one of TERN_PORTS, 30000-30100");
    assert_refused(ENV(TWO, "TERN_PORTS=30000"), "TERN_PORTS is \"30000\": should be FIRST-LAST");
    e = read_env(ENV(TWO, PORTS, "MASTER_PORT=29500", "TERN_STORE=agent")); /* only dialled */
    assert_int_equal(e.port, 29500);
    e = read_env(ENV(TWO, "MASTER_PORT=29500"));
    assert_int_equal(e.last_port, 65535);

    static const char *const outside[] = {"MASTER_PORT=29500", "MASTER_PORT=30100"};
    for (int i = 0; i < 2; i++) { /* where torchrun listens */
        e = read_env(ENV(TWO, PORTS, outside[i], "TORCHELASTIC_USE_AGENT_STORE=True"));
        assert_true(e.port >= 30000 && e.port <= 30084 && !e.port_taken);
    }
    e = read_env(ENV(TWO, PORTS, "MASTER_PORT=30007", "TORCHELASTIC_USE_AGENT_STORE=True"));
    assert_true(e.port == 30007 && e.port_taken);
}

/* What another program is started with: "NAME=VALUE" sets a variable, "NAME" takes it away. */
TEST(test_settings_over_the_environment) {
    static const char settings[] = "TERN_TEST_A=2\0TERN_TEST_B\0TERN_TEST_C=4";
    tn__buffer b = {.operation = "test"};
    setenv("TERN_TEST_A", "1", 1);
    setenv("TERN_TEST_B", "1", 1);
    setenv("TERN_TEST_AB", "1", 1);
    assert_true(tn__buffer_add(&b, settings, sizeof(settings)));
    char **list = tn__environment_with(&b);
    assert_non_null(list);
    const char *const *variables = (const char *const *)list;
    assert_string_equal(tn__variable(variables, "TERN_TEST_A"), "2");
    assert_null(tn__variable(variables, "TERN_TEST_B"));
    assert_string_equal(tn__variable(variables, "TERN_TEST_AB"), "1");
    assert_string_equal(tn__variable(variables, "TERN_TEST_C"), "4");
    int given = 0;
    for (char **entry = list; *entry; entry++) {
        given += strncmp(*entry, "TERN_TEST_A=", strlen("TERN_TEST_A=")) == 0;
    }
    assert_int_equal(given, 1);
    free(list);
    tn__buffer_free(&b);
    unsetenv("TERN_TEST_A");
    unsetenv("TERN_TEST_B");
    unsetenv("TERN_TEST_AB");
}
