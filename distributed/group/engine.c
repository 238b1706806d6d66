/* Engines by name, and operations as text. */
#include "core/descriptor.h"
#include "core/error.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    tn_engine *(*make)(const tn_engine_options *options);
} engines[] = {
    {"local", tn__local_new},
    {"shm", tn__shm_new},
    {"gloo", tn__gloo_new},
};

enum { ENGINES = sizeof(engines) / sizeof(engines[0]) };

/* An engine for host memory; NULL after raising. */
static tn_engine *host_engine(const char *name, size_t length, const tn_engine_options *options) {
    for (int i = 0; i < ENGINES; i++) {
        if (strlen(engines[i].name) == length && memcmp(engines[i].name, name, length) == 0) {
            return engines[i].make(options);
        }
    }
    char names[80];
    for (int i = 0, used = 0; i < ENGINES; i++) {
        used += snprintf(names + used, sizeof(names) - (size_t)used, " %s", engines[i].name);
    }
    return tn__fail_null(
        TN_EVALUE, NULL,
        "there is no engine \"%.*s\"; there are%s, and for tensors on devices one of "
        "them with +staged or +nccl appended",
        (int)(length < 40 ? length : 40), name, names);
}

tn_engine *tn_engine_new(const char *name, const tn_engine_options *options) {
    name = name ? name : "(NULL)";
    if (!options || !options->store) {
        return tn__fail_null(TN_EVALUE, NULL, "there is no store in which the ranks could meet");
    }
    size_t length = strcspn(name, "+");
    const char *devices = name[length] ? name + length + 1 : NULL;
    if (devices && strcmp(devices, "staged") != 0 && strcmp(devices, "nccl") != 0) {
        return tn__fail_null(
            TN_EVALUE, NULL,
            "there is no engine \"%.40s\" for tensors on devices; there are staged and nccl",
            devices);
    }
    tn__streams_hold();
    tn_engine *engine = host_engine(name, length, options);
    if (engine && devices) {
        engine =
            strcmp(devices, "nccl") == 0 ? tn__nccl_new(engine, options) : tn__staged_new(engine);
    }
    tn__streams_let_go();
    return engine;
}

const char *tn_collective_name(tn_collective kind) {
    static const char *const names[TN_COLLECTIVES] = {
        [TN_ALL_REDUCE] = "all_reduce",
        [TN_ALL_GATHER] = "all_gather",
        [TN_REDUCE_SCATTER] = "reduce_scatter",
        [TN_BROADCAST] = "broadcast",
        [TN_REDUCE_TO_ROOT] = "reduce_to",
        [TN_GATHER] = "gather_to",
        [TN_SCATTER] = "scatter_from",
        [TN_ALL_TO_ALL] = "all_to_all",
        [TN_SEND] = "send",
        [TN_RECV] = "recv",
        [TN_BARRIER] = "barrier",
    };
    return (unsigned)kind < TN_COLLECTIVES ? names[kind] : "unknown";
}

static const char *reduce_name(tn_reduction how) {
    switch (how) {
    case TN_MEAN:
        return "mean";
    case TN_SUM:
        return "sum";
    case TN_PRODUCT:
        return "product";
    case TN_MIN:
        return "min";
    case TN_MAX:
        return "max";
    default:
        return "unknown";
    }
}

void tn__transfer_text(const tn_transfer *t, char *text, size_t size) {
    const char *name = tn_collective_name(t->kind), *dtype = tn_dtype_name(t->dtype);
    long long count = (long long)t->count;
    switch (t->kind) {
    case TN_ALL_REDUCE:
    case TN_REDUCE_SCATTER:
        snprintf(text, size, "%s %s [%lld] %s", name, dtype, count, reduce_name(t->reduce));
        break;
    case TN_REDUCE_TO_ROOT:
        snprintf(text, size, "%s %s [%lld] %s to rank %d", name, dtype, count,
                 reduce_name(t->reduce), t->root);
        break;
    case TN_BROADCAST:
    case TN_SCATTER:
    case TN_RECV:
        snprintf(text, size, "%s %s [%lld] from rank %d", name, dtype, count, t->root);
        break;
    case TN_GATHER:
    case TN_SEND:
        snprintf(text, size, "%s %s [%lld] to rank %d", name, dtype, count, t->root);
        break;
    case TN_BARRIER:
        snprintf(text, size, "barrier");
        break;
    default:
        snprintf(text, size, "%s %s [%lld]", name, dtype, count);
    }
}
