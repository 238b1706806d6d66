/* Engines by name, and the texts of operations. */
#include "distributed/group/group.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    tn_engine *(*make)(const tn_engine_options *options, char *why);
} engines[] = {
    {"local", tn__local_new},
    {"shm", tn__shm_new},
    {"gloo", tn__gloo_new},
};

enum { ENGINES = sizeof(engines) / sizeof(engines[0]) };

tn_engine *tn_engine_new(const char *name, const tn_engine_options *options, char *why) {
    for (int i = 0; name && i < ENGINES; i++) {
        if (strcmp(engines[i].name, name) == 0) {
            return engines[i].make(options, why);
        }
    }
    size_t length = (size_t)snprintf(why, TN_ENGINE_WHY, "there is no engine \"%.40s\"; there are",
                                     name ? name : "(NULL)");
    for (int i = 0; i < ENGINES; i++) {
        length += (size_t)snprintf(why + length, TN_ENGINE_WHY - length, " %s", engines[i].name);
    }
    return NULL;
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

static const char *reduce_name(tn_reduce how) {
    switch (how) {
    case TN_REDUCE_MEAN:
        return "mean";
    case TN_REDUCE_SUM:
        return "sum";
    case TN_REDUCE_PRODUCT:
        return "product";
    case TN_REDUCE_MIN:
        return "min";
    case TN_REDUCE_MAX:
        return "max";
    }
    return "unknown";
}

void tn__transfer_text(const tn_transfer *t, char *text, size_t room) {
    const char *name = tn_collective_name(t->kind), *dtype = tn_dtype_name(t->dtype);
    long long count = (long long)t->count;
    switch (t->kind) {
    case TN_ALL_REDUCE:
    case TN_REDUCE_SCATTER:
        snprintf(text, room, "%s %s [%lld] %s", name, dtype, count, reduce_name(t->reduce));
        break;
    case TN_REDUCE_TO_ROOT:
        snprintf(text, room, "%s %s [%lld] %s to rank %d", name, dtype, count,
                 reduce_name(t->reduce), t->root);
        break;
    case TN_BROADCAST:
    case TN_SCATTER:
    case TN_RECV:
        snprintf(text, room, "%s %s [%lld] from rank %d", name, dtype, count, t->root);
        break;
    case TN_GATHER:
    case TN_SEND:
        snprintf(text, room, "%s %s [%lld] to rank %d", name, dtype, count, t->root);
        break;
    case TN_BARRIER:
        snprintf(text, room, "barrier");
        break;
    default:
        snprintf(text, room, "%s %s [%lld]", name, dtype, count);
    }
}
