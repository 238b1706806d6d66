/* Which GPU a rank has, and how tensors on GPUs are sent. */
#ifndef TERN_DISTRIBUTED_INIT_GPUS_H
#define TERN_DISTRIBUTED_INIT_GPUS_H

#include "distributed/init/members.h"

/* This process's GPUs. None if it uses none, so that their driver is not started. */
void tn__gpus_here(const tn_dist_options *o, tn__member *mine);

/* With the option device: this rank's GPU becomes the default device. False after raising. */
bool tn__gpus_assign(const tn_dist_options *o, int rank, int local_rank);

/* The engine of the world, the same on every rank: "shm", "shm+nccl". `host`: the engine for host
 * memory when the options name none. False after raising. */
bool tn__gpus_engine(const tn_dist_options *o, const tn__member *members, int ranks,
                     const char *host, char *engine, size_t size);

#endif
