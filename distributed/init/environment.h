/* What the environment says about this process among the others: who started it, its rank, and
 * where the ranks meet. A function of a list of variables alone, so that recorded environments of
 * launchers can be replayed. */
#ifndef TERN_DISTRIBUTED_INIT_ENVIRONMENT_H
#define TERN_DISTRIBUTED_INIT_ENVIRONMENT_H

#include "distributed/init/token.h"

enum { TN__HOST = 256, TN__SEVERAL = 128 };

typedef struct tn__environment {
    /* "tern run", "torchrun", "OpenMPI", "MPICH", "Slurm", "the environment"; NULL: nothing says
     * anything, so there is one rank */
    const char *launcher;
    /* with launcher NULL: what suggests several ranks nevertheless, or "" */
    char several[TN__SEVERAL];
    bool alone; /* … although a single process is usual there */
    int rank, ranks;
    int local_rank, local_ranks; /* -1: not said */
    int restarts;

    bool agent; /* the launcher serves the store at host:port; else rank 0's process does */
    char host[TN__HOST];   /* "": not known; no_host then says what to do */
    char second[TN__HOST]; /* another address to try, or "" */
    const char *no_host;
    int port;
    bool port_taken; /* by the launcher itself: the store is at one of the next */

    bool one_host;         /* all ranks are on this host */
    char job[TN__TOKEN];   /* the same for all ranks, another for other jobs: others can guess it */
    char token[TN__TOKEN]; /* "": not said */
    const char *token_file; /* into the variables; NULL: not said */
    const char *secret;     /* what the launcher has given to this job's ranks only, or NULL */
    int world; /* not from the environment: how many worlds this process has left before */
} tn__environment;

/* `variables`: "NAME=VALUE" texts, ended by NULL. `parent`: a number that the ranks which mpirun
 * has started on this host share. TN_OK, or TN_EVALUE with a reason: a variable that makes no
 * sense. */
TN_API tn_status tn__environment_read(const char *const *variables, int64_t parent,
                                      tn__environment *e, char *why);

/* Whether a service that starts a program on several hosts says so, in `text`, without making ranks
 * of them: "SM_HOSTS names 2 hosts". */
TN_API bool tn__environment_hosts(const char *const *variables, char text[TN__SEVERAL]);

/* The value; NULL if unset or empty. */
TN_API const char *tn__variable(const char *const *variables, const char *name);

/* Whether a host's name means this host. */
TN_API bool tn__host_is_near(const char *host);

#endif
