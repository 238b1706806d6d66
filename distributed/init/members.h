/* How the ranks of a world find out that all are there, and who is on which host. */
#ifndef TERN_DISTRIBUTED_INIT_MEMBERS_H
#define TERN_DISTRIBUTED_INIT_MEMBERS_H

#include "distributed/init/host.h"
#include "tern/distributed.h"
#include "tern/sys/store.h"

enum { TN__WHO = 80, TN__NOTE = 512 };

typedef struct tn__member {
    char host[TN__HOST_KEY];
    char cpus[TN__CPUS];
    char kinds[TN__KINDS];
    int gpus;          /* devices that this process sees, if it uses any */
    int gpu;           /* its default device; -1: not a GPU, or tn_dist_init will choose */
    int nccl;          /* 1: it can load NCCL */
    char who[TN__WHO]; /* "host:pid" */
} tn__member;

/* The key, by start and rank, under which a launcher that serves the store says that a rank has
 * ended successfully. The value is "RANKS WHO". Others then need not wait for the rank until the
 * deadline.
 */
#define TN__ENDED_KEY "run/%d/ended.%d"

typedef struct tn__meeting {
    tn_store *store;    /* with the world's prefix */
    tn_store *launcher; /* without: for TN__ENDED_KEY */
    int restarts;
    int rank, ranks;
    double deadline;
} tn__meeting;

/* Joins this process, described by `mine`. On TN_OK every rank has the same members[ranks].
 * Otherwise raises: TN_EPEER names ranks that ended or were not there by the deadline, TN_EMISMATCH
 * two that disagree; or it is the store's error. */
tn_status tn__meet(const tn__meeting *m, const tn__member *mine, tn__member *members);

/* The level of the CPU's kernels at which all ranks get the same bits, the highest that every one
 * has, into word; `note` names two ranks that differ, or is "". False after raising TN_EMISMATCH:
 * there is none. */
TN_API bool tn__meet_level(const tn__member *members, int ranks, char word[TN__KINDS],
                           char note[TN__NOTE]);

#endif
