/* Which GPU a rank has, and how tensors on GPUs are sent: through NCCL when each rank of each host
 * has a GPU of its own, otherwise staged over host memory. */
#include "distributed/init/gpus.h"

#include "core/error.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>

#define OPERATION "dist_init"

static bool uses_gpus(const tn_dist_options *o) {
    return o->device == TN_CUDA || tn_default_device().kind == TN_CUDA ||
           (o->engine && strstr(o->engine, "nccl"));
}

void tn__gpus_here(const tn_dist_options *o, tn__member *mine) {
    tn_device device = tn_default_device();
    mine->gpus = uses_gpus(o) ? tn_device_count(TN_CUDA) : 0;
    mine->gpu = o->device != TN_CUDA && device.kind == TN_CUDA ? device.index : -1;
    tn__quiet(1);
    mine->nccl = mine->gpus > 0 && tn__nccl_is_there();
    tn__quiet(-1);
    if (tn__pending()) { tn_log_write(TN_LOG_INFO, "%s: %s", OPERATION, tn__error_why()); }
    tn_error_clear();
}

bool tn__gpus_assign(const tn_dist_options *o, int rank, int local_rank) {
    if (o->device == TN_CPU) { return true; }
    int count = tn_device_count(TN_CUDA);
    tn_device device = tn_cuda(count > 0 ? local_rank % count : 0);
    if (tn_set_default_device(device) != TN_OK) { return false; }
    tn_log_write(TN_LOG_INFO, "%s: rank %d, number %d on its host, has %s of %d", OPERATION, rank,
                 local_rank, tn_device_text(device), count);
    return true;
}

/* The first rank without a GPU of its own, or without NCCL; `text` says why. -1: none. */
static int first_without(const tn__member *members, int ranks, char *text, size_t size) {
    for (int r = 0; r < ranks; r++) {
        int neighbours = 0;
        for (int other = 0; other < ranks; other++) {
            bool near = strcmp(members[r].host, members[other].host) == 0;
            neighbours += near;
            if (near && other > r && members[r].gpu >= 0 && members[r].gpu == members[other].gpu) {
                snprintf(text, size, "ranks %d and %d are both on cuda:%d", r, other,
                         members[r].gpu);
                return r;
            }
        }
        if (members[r].gpus < neighbours) {
            snprintf(text, size, "rank %d (%s) is one of %d on its host, which has %d %s", r,
                     members[r].who, neighbours, members[r].gpus,
                     members[r].gpus == 1 ? "GPU" : "GPUs");
            return r;
        }
        if (!members[r].nccl) {
            snprintf(text, size, "rank %d (%s) has no NCCL", r, members[r].who);
            return r;
        }
    }
    return -1;
}

bool tn__gpus_engine(const tn_dist_options *o, const tn__member *members, int ranks,
                     const char *host, char *engine, size_t size) {
    char why[TN__WHO + 128] = "";
    const char *wanted = o->engine;
    bool is_nccl = wanted && strcmp(wanted, "nccl") == 0;
    bool is_staged = wanted && strcmp(wanted, "staged") == 0;
    if (wanted && !is_nccl && !is_staged) {
        snprintf(engine, size, "%s", wanted);
        return true;
    }
    int gpus = 0;
    for (int r = 0; r < ranks; r++) {
        gpus += members[r].gpus;
    }
    if (!wanted && gpus == 0) {
        snprintf(engine, size, "%s", host);
        return true;
    }
    bool fits = !is_staged && first_without(members, ranks, why, sizeof(why)) < 0;
    if (is_nccl && !fits) {
        return tn__fail(
            TN_EDEVICE, OPERATION,
            "the engine is nccl, but %s (NCCL needs a GPU per rank; with staged they can "
            "share one)",
            why);
    }
    if (!wanted && !fits) {
        tn_log_write(TN_LOG_INFO, "%s: tensors on devices are sent staged: %s", OPERATION, why);
    }
    snprintf(engine, size, "%s+%s", host, fits ? "nccl" : "staged");
    return true;
}
