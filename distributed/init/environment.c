#include "distributed/init/environment.h"

#include "core/error.h"
#include "core/memory.h"
#include "distributed/init/nodelist.h"
#include "distributed/store/ports.h"
#include "distributed/store/store.h"
#include "text/json.h"
#include "text/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MOST = 1 << 20, FIRST_PORT = 20000, LAST_PORT = 31999 };

/* Slurm numbers the steps of srun from 0. The batch script and an interactive shell have none, or
 * one from here on: they see the job's SLURM_NTASKS, but are one process. */
#define SLURM_FIRST_SPECIAL_STEP 4294967280

typedef struct reader {
    const char *const *variables;
    int64_t parent;
    tn__environment *e;
    const char *operation; /* for errors */
} reader;

/* ---- Variables ------------------------------------------------------------------------------- */

const char *tn__variable(const char *const *variables, const char *name) {
    size_t length = strlen(name);
    for (; variables && *variables; variables++) {
        if (strncmp(*variables, name, length) == 0 && (*variables)[length] == '=') {
            return (*variables)[length + 1] ? *variables + length + 1 : NULL;
        }
    }
    return NULL;
}

static const char *value_of(const reader *r, const char *name) {
    return tn__variable(r->variables, name);
}

static bool is_set(const reader *r, const char *name) {
    return value_of(r, name) != NULL;
}

static bool number_of(const char *text, int64_t *number) {
    return *text >= '0' && *text <= '9' && tn__whole_from(text, number);
}

/* *number keeps its value if the variable is not set. */
static bool read_number(const reader *r, const char *name, int64_t low, int64_t high, int *number) {
    const char *text = value_of(r, name);
    int64_t found;
    if (!text) { return true; }
    if (!number_of(text, &found) || found < low || found > high) {
        return tn__fail(TN_EVALUE, r->operation,
                        "%s is \"%.60s\" (a whole number from %" PRId64 " to %" PRId64 ")", name,
                        text, low, high);
    }
    *number = (int)found;
    return true;
}

static bool read_text(const reader *r, const char *name, char *text, size_t size) {
    const char *value = value_of(r, name);
    if (value && strlen(value) >= size) {
        return tn__fail(TN_EVALUE, r->operation, "%s has %zu characters (at most %zu)", name,
                        strlen(value), size - 1);
    }
    if (value) { strcpy(text, value); }
    return true;
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

/* The variables in which a launcher gives these. */
typedef struct names {
    const char *launcher, *rank, *ranks, *local_rank, *local_ranks;
} names;

static const names plain = {"the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                            "LOCAL_WORLD_SIZE"};
static const names openmpi = {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
static const names mpich = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
/* SLURM_STEP_NUM_TASKS, not SLURM_NTASKS: srun may start fewer than the job has. */
static const names slurm = {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                            "(none)"};
static const names slurm_old = {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "(none)"};

static bool is_slurm_step(const reader *r) {
    const char *step = value_of(r, "SLURM_STEP_ID");
    step = step ? step : value_of(r, "SLURM_STEPID");
    int64_t number;
    return step && number_of(step, &number) && number < SLURM_FIRST_SPECIAL_STEP &&
           is_set(r, "SLURM_PROCID");
}

/* What has started this process. Of nested launchers the inner one counts: mpirun starts its own
 * daemons with srun, and `tern run` may be started by any of them. NULL: none. */
static const names *find_launcher(const reader *r) {
    if (is_set(r, "RANK") || is_set(r, "WORLD_SIZE")) { return &plain; }
    if (is_set(r, "OMPI_COMM_WORLD_RANK")) { return &openmpi; }
    if (is_set(r, "PMI_RANK") && (is_set(r, "MPI_LOCALNRANKS") || !is_slurm_step(r))) {
        return &mpich;
    }
    if (is_slurm_step(r)) { return is_set(r, slurm.ranks) ? &slurm : &slurm_old; }
    return NULL;
}

static bool read_ranks(const reader *r, const names *n) {
    tn__environment *e = r->e;
    if (!is_set(r, n->rank) || !is_set(r, n->ranks)) {
        bool has_rank = is_set(r, n->rank);
        return tn__fail(TN_EVALUE, r->operation, "%s is set, but %s is not",
                        has_rank ? n->rank : n->ranks, has_rank ? n->ranks : n->rank);
    }
    if (!read_number(r, n->ranks, 1, RANKS_MOST, &e->ranks) ||
        !read_number(r, n->rank, 0, RANKS_MOST, &e->rank) ||
        !read_number(r, n->local_rank, 0, RANKS_MOST, &e->local_rank) ||
        !read_number(r, n->local_ranks, 1, RANKS_MOST, &e->local_ranks)) {
        return false;
    }
    if (e->rank >= e->ranks) {
        return tn__fail(TN_EVALUE, r->operation, "%s is %d, but %s is %d (ranks count from 0)",
                        n->rank, e->rank, n->ranks, e->ranks);
    }
    if (e->local_ranks > e->ranks || (e->local_ranks > 0 && e->local_rank >= e->local_ranks)) {
        return tn__fail(TN_EVALUE, r->operation, "%s is %d and %s is %d, of %d ranks",
                        n->local_rank, e->local_rank, n->local_ranks, e->local_ranks, e->ranks);
    }
    return true;
}

/* ---- Several, but which is this? ------------------------------------------------------------- */

/* Variables of services that start a program on several hosts, with the number of hosts: "2",
 * "1:2". */
static const char *const host_counts[] = {"PET_NNODES", "AWS_BATCH_JOB_NUM_NODES",
                                          "SKYPILOT_NUM_NODES"};
/* The variable for how many ranks a launcher has started; only a process with `rank` is one of
 * them. */
static const struct {
    const char *ranks, *rank;
} rank_counts[] = {
    {"OMPI_COMM_WORLD_SIZE", NULL},
    {"PMI_SIZE", NULL},
    {"MV2_COMM_WORLD_SIZE", NULL},
    {"JSM_NAMESPACE_SIZE", NULL},
    {"FLUX_JOB_SIZE", NULL},
    {"LOCAL_WORLD_SIZE", NULL},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
};

/* More than one; false for values that make no sense. */
static bool names_several(const reader *r, const char *name, int64_t *count) {
    const char *text = value_of(r, name), *colon = text ? strchr(text, ':') : NULL;
    return text && number_of(colon ? colon + 1 : text, count) && *count > 1;
}

static int64_t count_texts(const tn__json *list) {
    int64_t count = 0;
    const tn__json *v = tn__json_first(list);
    for (uint32_t i = 0; list->kind == TN__JSON_LIST && i < list->count; i++) {
        count += v->kind == TN__JSON_TEXT;
        v = tn__json_next(v);
    }
    return count;
}

/* A list of hosts, or {"cluster": {ROLE: a list of addresses, …}}. */
static int64_t count_listed(const char *text) {
    tn__json_file json;
    if (!text || !tn__json_read_any(&json, text, strlen(text))) { return 0; }
    int64_t count = count_texts(json.values);
    const tn__json *cluster =
        json.values->kind == TN__JSON_OBJECT ? tn__json_get(json.values, "cluster") : NULL;
    if (cluster && cluster->kind == TN__JSON_OBJECT) {
        const tn__json *role = tn__json_first(cluster);
        for (uint32_t i = 0; i < cluster->count; i++) {
            count += count_texts(role);
            role = tn__json_next(role);
        }
    }
    tn__json_free(&json);
    return count;
}

bool tn__environment_hosts(const char *const *variables, char text[TN__SEVERAL]) {
    /* SageMaker's; Vertex AI's, by either name */
    static const char *const lists[] = {"SM_HOSTS", "TF_CONFIG", "CLUSTER_SPEC"};
    const reader r = {.variables = variables};
    const char *name = NULL;
    int64_t count = 0;
    for (size_t i = 0; !name && i < sizeof(host_counts) / sizeof(*host_counts); i++) {
        name = names_several(&r, host_counts[i], &count) ? host_counts[i] : NULL;
    }
    for (size_t i = 0; !name && i < sizeof(lists) / sizeof(*lists); i++) {
        count = count_listed(value_of(&r, lists[i]));
        name = count > 1 ? lists[i] : NULL;
    }
    tn__sagemaker s;
    if (!name && tn__environment_sagemaker(variables, &s) && s.hosts > 1) {
        name = "resourceconfig.json";
        count = s.hosts;
    }
    if (!name && is_slurm_step(&r) && names_several(&r, "SLURM_STEP_NUM_NODES", &count)) {
        name = "SLURM_STEP_NUM_NODES";
    }
    *text = 0;
    if (name) { snprintf(text, TN__SEVERAL, "%s names %" PRId64 " hosts", name, count); }
    return name != NULL;
}

bool tn__environment_unstarted(const char *const *variables, char text[TN__SEVERAL]) {
    const reader r = {.variables = variables};
    int64_t count;
    bool several = !is_slurm_step(&r) && names_several(&r, "SLURM_JOB_NUM_NODES", &count);
    *text = 0;
    if (several) { snprintf(text, TN__SEVERAL, "SLURM_JOB_NUM_NODES is %" PRId64, count); }
    return several;
}

/* Called if no variable gives a rank. */
static void look_for_others(const reader *r) {
    tn__environment *e = r->e;
    int64_t count;
    if (tn__environment_hosts(r->variables, e->several)) { return; }
    for (size_t i = 0; i < sizeof(rank_counts) / sizeof(*rank_counts); i++) {
        const char *ranks = rank_counts[i].ranks, *rank = rank_counts[i].rank;
        if (names_several(r, ranks, &count) && !(rank && is_set(r, rank))) {
            snprintf(e->several, TN__SEVERAL, "%s is %" PRId64, ranks, count);
            return;
        }
    }
    e->alone = tn__environment_unstarted(r->variables, e->several);
    if (names_several(r, "SLURM_NTASKS", &count)) { /* tells more */
        snprintf(e->several, TN__SEVERAL, "SLURM_NTASKS is %" PRId64, count);
        e->alone = true;
    }
}

/* ---- Job and port ---------------------------------------------------------------------------- */

/* A name that is the same for all ranks of a job, and as different as possible for other jobs. */
static void derive_job(const reader *r, const names *n) {
    tn__environment *e = r->e;
    const char *host = value_of(r, "MASTER_ADDR"), *port = value_of(r, "MASTER_PORT");
    const char *run = value_of(r, "TORCHELASTIC_RUN_ID"), *id = value_of(r, "SLURM_JOB_ID");
    char job[160] = "";
    if (n == &openmpi) {
        const char *name = value_of(r, "PMIX_NAMESPACE");
        name = name ? name : value_of(r, "OMPI_MCA_ess_base_jobid");
        snprintf(job, sizeof(job), "openmpi %.120s", name ? name : "");
    } else if (n == &mpich) {
        snprintf(job, sizeof(job), "mpich %" PRId64, host ? 0 : r->parent);
    } else if (n == &slurm || n == &slurm_old) {
        const char *step = value_of(r, "SLURM_STEP_ID");
        snprintf(job, sizeof(job), "slurm %.60s.%.60s", id ? id : "", step ? step : "");
    } else {
        snprintf(job, sizeof(job), "env %.120s", run ? run : "");
    }
    snprintf(e->job, sizeof(e->job), "tern %s %.60s %.10s", job, host ? host : "",
             port ? port : "");
}

/* OpenMPI 4's mpirun draws 128 random bits for each job and gives them to its ranks, as a key for
 * their transports: "0123456789abcdef-0123456789abcdef". */
static const char *launcher_secret(const reader *r, const names *n) {
    const char *key = n == &openmpi ? value_of(r, "OMPI_MCA_orte_precondition_transports") : NULL;
    return key && strlen(key) >= 32 && strspn(key, "0-") < strlen(key) ? key : NULL;
}

/* The port if none is given: one of TERN_PORTS, with those behind it that rank 0 may need; or below
 * those that the system gives to clients. */
static int derive_port(const char *job, const tn__ports *open) {
    int first = open->first ? open->first : FIRST_PORT;
    int count = (open->first ? open->last - TN__PORTS_TRIED + 1 : LAST_PORT) - first + 1;
    uint32_t hash = 2166136261u;
    for (; *job; job++) {
        hash = (hash ^ (unsigned char)*job) * 16777619u;
    }
    return first + (count > 1 ? (int)(hash % (uint32_t)count) : 0);
}

/* torchrun's own store is at MASTER_PORT, and ours behind it: elsewhere among TERN_PORTS if there
 * is no room for it. */
static bool read_port(const reader *r) {
    tn__environment *e = r->e;
    tn__ports open;
    if (!read_number(r, "MASTER_PORT", 1, 65535, &e->port) ||
        tn__ports_read("TERN_PORTS", value_of(r, "TERN_PORTS"), &open, r->operation) != TN_OK) {
        return false;
    }
    e->last_port = open.first ? open.last : 65535;
    if (e->port && e->port_taken && !tn__ports_have(&open, e->port + 1)) {
        e->port = 0;
        e->port_taken = false;
    }
    if (e->port && !e->agent && !e->port_taken && !tn__ports_have(&open, e->port)) {
        return tn__fail(TN_EVALUE, r->operation,
                        "MASTER_PORT is %d, which is not one of TERN_PORTS, %d-%d", e->port,
                        open.first, open.last);
    }
    e->port = e->port ? e->port : derive_port(e->job, &open);
    return true;
}

/* ---- Host ------------------------------------------------------------------------------------ */

bool tn__host_is_near(const char *host) {
    bool number = strspn(host, "0123456789.") == strlen(host);
    return (number && strncmp(host, "127.", 4) == 0) || strcmp(host, "::1") == 0 ||
           strcmp(host, "localhost") == 0;
}

static bool slurm_host(const reader *r) {
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                        "SLURM_NODELIST"};
    tn__environment *e = r->e;
    for (int i = 0; i < 3; i++) {
        const char *list = value_of(r, lists[i]);
        if (!list) { continue; }
        bool several;
        if (!tn__nodelist_first(list, e->host, sizeof(e->host), &several)) {
            return tn__fail(TN_EVALUE, r->operation, "%s is \"%.80s\", which is not a node list",
                            lists[i], list);
        }
        if (!several) {
            strcpy(e->host, "127.0.0.1");
            return true;
        }
        return read_text(r, "SLURM_LAUNCH_NODE_IPADDR", e->second, sizeof(e->second));
    }
    return true;
}

/* Where the ranks meet when MASTER_ADDR is not set. */
static bool find_host(const reader *r, const names *n) {
    tn__environment *e = r->e;
    if (e->ranks == e->local_ranks) {
        strcpy(e->host, "127.0.0.1");
        return true;
    }
    if (n == &slurm || n == &slurm_old) {
        e->no_host = "Slurm gives no node list: set MASTER_ADDR to the address of rank 0's host";
        return slurm_host(r);
    }
    tn__sagemaker service; /* its mpirun starts rank 0 on the first host */
    if ((n == &openmpi || n == &mpich) && tn__environment_sagemaker(r->variables, &service)) {
        strcpy(e->host, service.first);
    } else if (n == &openmpi) {
        e->no_host = "mpirun starts ranks on several hosts: set MASTER_ADDR to the address of rank "
                     "0's host (mpirun -x MASTER_ADDR=…)";
    } else if (n == &mpich) {
        e->no_host = "mpirun starts ranks on several hosts: set MASTER_ADDR to the address of rank "
                     "0's host (mpirun -genv MASTER_ADDR …)";
    } else {
        e->no_host = "MASTER_ADDR is not set: the address of rank 0's host";
    }
    return true;
}

static bool read_place(const reader *r, const names *n) {
    tn__environment *e = r->e;
    const char *store = value_of(r, "TERN_STORE"),
               *used = value_of(r, "TORCHELASTIC_USE_AGENT_STORE");
    if (store && strcmp(store, "agent") != 0) {
        return tn__fail(TN_EVALUE, r->operation,
                        "TERN_STORE is \"%.60s\" (must be \"agent\" or unset)", store);
    }
    e->agent = store != NULL;
    e->port_taken = !e->agent && used && strcmp(used, "True") == 0;
    if (!read_text(r, "MASTER_ADDR", e->host, sizeof(e->host)) || !read_port(r) ||
        (!*e->host && !find_host(r, n))) {
        return false;
    }
    const char *nodes = n == &slurm ? value_of(r, "SLURM_STEP_NUM_NODES") : NULL;
    e->one_host = e->ranks == e->local_ranks || tn__host_is_near(e->host) ||
                  (nodes && strcmp(nodes, "1") == 0);
    return true;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static bool read_timeout(const reader *r) {
    const char *text = value_of(r, "TERN_TIMEOUT");
    char *end = NULL;
    double seconds = text ? strtod(text, &end) : 1;
    if (!(seconds > 0) || isinf(seconds) || (end && *end)) {
        return tn__fail(TN_EVALUE, r->operation, "TERN_TIMEOUT is \"%.60s\" (seconds, more than 0)",
                        text);
    }
    return true;
}

bool tn__environment_read(const char *const *variables, int64_t parent, tn__environment *e,
                          const char *operation) {
    reader r = {.variables = variables, .parent = parent, .e = e, .operation = operation};
    *e = (tn__environment){.ranks = 1, .local_rank = -1, .local_ranks = -1};
    const names *n = find_launcher(&r);
    if (!read_timeout(&r) || !read_text(&r, "TERN_TOKEN", e->token, sizeof(e->token))) {
        return false;
    }
    if (!n) {
        look_for_others(&r);
        return true;
    }
    e->token_file = value_of(&r, "TERN_TOKEN_FILE");
    e->secret = launcher_secret(&r, n);
    derive_job(&r, n);
    const char *restarts =
        is_set(&r, "TERN_RESTART_COUNT") ? "TERN_RESTART_COUNT" : "TORCHELASTIC_RESTART_COUNT";
    e->launcher = n != &plain                         ? n->launcher
                  : is_set(&r, "TERN_STORE")          ? "tern run"
                  : is_set(&r, "TORCHELASTIC_RUN_ID") ? "torchrun"
                                                      : n->launcher;
    return read_ranks(&r, n) && read_number(&r, restarts, 0, INT32_MAX, &e->restarts) &&
           read_place(&r, n);
}

/* ---- What another program is given ----------------------------------------------------------- */

char *tn__string_after(const tn__buffer *from, char *at) {
    char *next = at ? at + strlen(at) + 1 : from->at;
    return next < from->at + from->bytes ? next : NULL;
}

/* Whether one of the settings is for the variable "NAME=VALUE". */
static bool is_laid_over(const tn__buffer *settings, const char *variable) {
    bool found = false;
    for (char *setting = NULL; !found && (setting = tn__string_after(settings, setting));) {
        size_t length = strcspn(setting, "=");
        found = strncmp(setting, variable, length) == 0 && variable[length] == '=';
    }
    return found;
}

char **tn__environment_with(const tn__buffer *settings) {
    extern char **environ;
    size_t count = 0, kept = 0;
    while (environ[count]) {
        count++;
    }
    char **list = settings->failed ? NULL
                                   : tn__calloc_for(count + settings->bytes + 1, sizeof(*list),
                                                    settings->operation);
    for (size_t i = 0; list && i < count; i++) {
        if (!is_laid_over(settings, environ[i])) { list[kept++] = environ[i]; }
    }
    for (char *setting = NULL; list && (setting = tn__string_after(settings, setting));) {
        if (strchr(setting, '=')) { list[kept++] = setting; }
    }
    return list;
}
