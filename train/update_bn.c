/* Running statistics for weights that were not trained with, usually an average. */
#include "core/error.h"
#include "core/memory.h"
#include "nn/module.h"
#include "tern/train.h"

#include <stdlib.h>
#include <string.h>

/* The batch norms of a model, and what they said about running statistics. */
typedef struct norm_list {
    struct {
        tn_batch_norm_layer *layer;
        bool cumulative;
    } * norms; /* [count] */
    int64_t count, capacity;
} norm_list;

static tn_batch_norm_layer *norm_of(tn_module *m) {
    static const char kind[] = "batch_norm";
    tn_batch_norm_layer *layer = (tn_batch_norm_layer *)m;
    bool is_one = strncmp(m->kind, kind, strlen(kind)) == 0;
    return is_one && layer->options.track_running_stats ? layer : NULL;
}

/* Resets a norm's statistics, which will be means over all batches. */
static bool reset_statistics(tn_module *m, const char *path, void *user) {
    norm_list *list = user;
    tn_batch_norm_layer *layer = norm_of(m);
    if (!layer) { return true; }
    if (!tn__grow(&list->norms, list->count + 1, &list->capacity, sizeof(*list->norms),
                  "update_bn")) {
        return false;
    }
    list->norms[list->count].layer = layer;
    list->norms[list->count++].cumulative = layer->options.cumulative;
    layer->options.cumulative = true;
    tn_zero_(layer->running_mean);
    tn_fill_(layer->running_var, 1.0);
    tn_zero_(layer->num_batches_tracked);
    return true;
}

tn_status tn_update_bn(tn_loader *loader, void *m) {
    if (tn__pending() || !loader) {
        return tn__raise(TN_EVALUE, "update_bn", "the loader is NULL");
    }
    TN_NO_GRAD;
    tn__modes modes;
    norm_list list = {0};
    tn_module_each_module(m, reset_statistics, &list);
    bool set = tn__modes_set(m, true, "update_bn", &modes);
    tn_batch b;
    if (tn_loader_where(loader).index == tn_loader_batches(loader)) {
        tn_loader_next(loader, &b); /* the end of the previous pass */
    }
    while (list.count > 0 && set && tn_loader_next(loader, &b)) {
        TN_SCOPE;
        tn_call(m, b.x);
    }
    tn__modes_restore(m, &modes);
    for (int64_t i = 0; i < list.count; i++) {
        list.norms[i].layer->options.cumulative = list.norms[i].cumulative;
    }
    free(list.norms);
    return tn_error();
}
