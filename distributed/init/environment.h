/* What the environment says about this process among the others: who started it, its rank, and
 * where the ranks meet. A function of a list of variables only, so that recorded environments of
 * launchers can be replayed; and of SageMaker's file, where there is one. */
#ifndef TERN_DISTRIBUTED_INIT_ENVIRONMENT_H
#define TERN_DISTRIBUTED_INIT_ENVIRONMENT_H

#include "core/buffer.h"
#include "distributed/init/token.h"

enum {
    TN__HOST = 256,
    TN__SEVERAL = 128,
    TN__PORTS_TRIED = 17 /* by rank 0, the agreed one first */
};

typedef struct tn__environment {
    /* "tern run", "torchrun", "OpenMPI", "MPICH", "Slurm", "the environment"; NULL: no launcher
     * found, so there is one rank */
    const char *launcher;
    /* with launcher NULL: what suggests several ranks nevertheless, or "" */
    char several[TN__SEVERAL];
    bool alone; /* … although a single process is usual there */
    int rank, ranks;
    int local_rank, local_ranks; /* -1: not set */
    int restarts;

    bool agent; /* the launcher serves the store at host:port; else rank 0's process does */
    char host[TN__HOST];   /* "": not known; no_host then says what to do */
    char second[TN__HOST]; /* another address to try, or "" */
    const char *no_host;
    int port;
    bool port_taken; /* by the launcher itself: the store is at one of the next ports */
    int last_port;   /* no later port can have the store: 65535, or the last of TERN_PORTS */

    bool one_host;       /* all ranks are on this host */
    char job[TN__TOKEN]; /* the same for all ranks, different for other jobs; others can guess it */
    char token[TN__TOKEN];  /* "": not set */
    const char *token_file; /* points into the variables; NULL: not set */
    const char *secret;     /* what the launcher has given to this job's ranks only, or NULL */
    int world; /* not from the environment: how many worlds this process has left so far */
} tn__environment;

/* As `world`: the ranks meet for something else, and may still make worlds. */
enum { TN__OWN_WORLD = -1 };

/* `variables`: "NAME=VALUE" strings, ended by NULL. `parent`: a number shared by the ranks that
 * mpirun has started on this host. False after raising TN_EVALUE: a variable makes no sense. */
TN_API bool tn__environment_read(const char *const *variables, int64_t parent, tn__environment *e,
                                 const char *operation);

/* Whether a service has started the program on several hosts without making them ranks; then `text`
 * says so: "SM_HOSTS names 2 hosts". */
TN_API bool tn__environment_hosts(const char *const *variables, char text[TN__SEVERAL]);

/* Whether this is a batch script of Slurm, or a shell of salloc, on one of several hosts: srun has
 * not started it. `text`: "SLURM_JOB_NUM_NODES is 2". */
TN_API bool tn__environment_unstarted(const char *const *variables, char text[TN__SEVERAL]);

/* SageMaker's hosts; false: it has not started this program, or does not say which host this is. */
typedef struct tn__sagemaker {
    int64_t hosts, index; /* of this one; 0 has the first of their names: */
    char first[TN__HOST];
    int64_t gpus;             /* of this host; 0: none, or not known */
    char interface[TN__HOST]; /* of the network between them, or "" */
} tn__sagemaker;
TN_API bool tn__environment_sagemaker(const char *const *variables, tn__sagemaker *s);

/* The value; NULL if unset or empty. */
TN_API const char *tn__variable(const char *const *variables, const char *name);

/* The string after `at`, each ending with 0; NULL: the first one. NULL: there is none. */
TN_API char *tn__string_after(const tn__buffer *from, char *at);

/* This process's variables for execve, with settings laid over them, strings that end with 0:
 * "NAME=VALUE" sets one, "NAME" takes it away. The list is the caller's, its strings are not. NULL
 * if the settings have failed, or after raising. */
TN_API char **tn__environment_with(const tn__buffer *settings);

/* Whether a host's name means this host. */
TN_API bool tn__host_is_near(const char *host);

#endif
