/* How the ranks of a world find out that all are there, and who is on which host. */
#ifndef TERN_DISTRIBUTED_INIT_MEET_H
#define TERN_DISTRIBUTED_INIT_MEET_H

#include "distributed/init/host.h"
#include "tern/sys/store.h"

enum { TN__WHO = 80, TN__MEET_WHY = 768 };

typedef struct tn__member {
    char host[TN__HOST_KEY];
    char cpus[TN__CPUS];
    int gpus;          /* devices that this process sees, if it uses any */
    int gpu;           /* its default device; -1: not a GPU, or tn_dist_init will choose */
    int nccl;          /* 1: it can load NCCL */
    char who[TN__WHO]; /* "host:pid" */
} tn__member;

/* This process as `mine`, rank of ranks. On TN_OK members[ranks] is what every rank has. Otherwise,
 * with a reason in why[TN__MEET_WHY]: TN_EPEER names the ranks that have not come by the deadline,
 * TN_EMISMATCH two that disagree, or what the store says. */
tn_status tn__meet(tn_store *store, const tn__member *mine, int rank, int ranks, double deadline,
                   tn__member *members, char *why);

#endif
