/* Groups of GPUs: NCCL moves tensors on devices, a host engine the rest.
 *
 * NCCL's part is in the plugin (backends/cuda/nccl.c). The two engines have one queue, so their
 * operations have one order on all ranks. A rank that dies or gives up is noticed by the engine for
 * host memory, which NCCL's engine asks while an operation takes long.
 */
#include "core/error.h"
#include "core/memory.h"
#include "core/plugin.h"
#include "distributed/group/engine/gloo/gloo.h"
#include "distributed/group/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    tn_engine base;
    tn_engine *host, *gpu;
} pair;

/* ---- The plugin ------------------------------------------------------------------------------ */

static const tn_engine_errors errors = {tn_raise, tn_error_take};

static tn_nccl_engine_function *nccl_load(void) {
    char reason[TN_ENGINE_WHY - 64];
    const char *plugin = getenv("TERN_CUDA");
    tn_nccl_engine_function *function = NULL;
    void *symbol = tn__plugin_symbol(plugin && *plugin ? plugin : "cuda", "tern_nccl_engine",
                                     reason, sizeof(reason));
    memcpy(&function, &symbol, sizeof(function));
    if (!function) {
        tn__raise(TN_EUNSUPPORTED, NULL, "the CUDA plugin is not available: %s", reason);
    }
    return function;
}

bool tn__nccl_is_there(void) {
    tn_nccl_engine_function *function = nccl_load();
    if (!function) { return false; }
    if (tn_device_count(TN_CUDA) == 0) {
        return tn__fail(TN_EUNSUPPORTED, NULL, "%s", tn_device_why(TN_CUDA));
    }
    function(TN_ENGINE_VERSION, &errors, NULL);
    return !tn__pending();
}

/* ---- Failing --------------------------------------------------------------------------------- */

/* Whether a rank has given up or is gone, as far as can be known without waiting. The plugin takes
 * the error, perhaps while its group is freed. */
static tn_status check_peers(void *user, bool all) {
    const pair *p = user;
    tn__quiet(1);
    tn_status status = p->host->check(p->host, all);
    tn__quiet(-1);
    return status;
}

static void nccl_stop(tn_engine *base, const char *reason) {
    pair *p = (pair *)base;
    p->host->abort(p->host, reason);
    p->gpu->abort(p->gpu, reason);
}

/* ---- The engine ------------------------------------------------------------------------------ */

static tn_status nccl_run(tn_engine *base, const tn_transfer *t) {
    tn_engine *host = ((pair *)base)->host;
    return host->run(host, t);
}

static tn_status nccl_launch(tn_engine *base, const tn_transfer *t) {
    tn_engine *gpu = ((pair *)base)->gpu;
    return gpu->launch(gpu, t);
}

static tn_status nccl_poll(tn_engine *base, const tn_transfer *t, bool *over) {
    tn_engine *gpu = ((pair *)base)->gpu;
    return gpu->poll(gpu, t, over);
}

static void *nccl_alloc(tn_engine *base, size_t bytes, double deadline) {
    tn_engine *host = ((pair *)base)->host;
    return host->alloc(host, bytes, deadline);
}

static void nccl_release(tn_engine *base, void *memory) {
    tn_engine *host = ((pair *)base)->host;
    host->free(host, memory);
}

static void *device_alloc(tn_engine *base, size_t bytes, double deadline) {
    tn_engine *gpu = ((pair *)base)->gpu;
    return gpu->device_alloc(gpu, bytes, deadline);
}

static void device_release(tn_engine *base, void *memory) {
    tn_engine *gpu = ((pair *)base)->gpu;
    gpu->device_free(gpu, memory);
}

static void nccl_leave(tn_engine *base) {
    pair *p = (pair *)base;
    p->gpu->leave(p->gpu);
    if (p->host->leave) { p->host->leave(p->host); }
}

static void nccl_destroy(tn_engine *base) {
    pair *p = (pair *)base;
    if (p->gpu) { p->gpu->destroy(p->gpu); }
    p->host->destroy(p->host);
    free(p);
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* Every rank says whether it has NCCL, or its pending error, so that none waits for a rank without
 * it. The error of the first that has none is raised. */
static bool all_have_it(const tn_engine_options *o) {
    tn_store_value *values = tn__calloc_for((size_t)o->ranks, sizeof(*values), NULL);
    if (!values) { return false; }
    char mine[TN_ENGINE_WHY];
    snprintf(mine, sizeof(mine), "%s", tn__pending() ? tn__error_why() : "+");
    tn_error_clear();
    bool fine = tn__gloo_meet(o, "nccl/has", mine, strlen(mine), values);
    for (int r = 0; fine && r < o->ranks; r++) {
        const char *text = values[r].data;
        fine = values[r].bytes == 1 && *text == '+';
        if (!fine && r == o->rank) {
            tn__raise(TN_EUNSUPPORTED, NULL, "%s", mine);
        } else if (!fine) {
            tn__raise(TN_EUNSUPPORTED, NULL, "rank %d cannot use NCCL: %.*s", r,
                      values[r].bytes < 400 ? (int)values[r].bytes : 400, text ? text : "");
        }
    }
    tn__gloo_forget(values, o->ranks);
    free(values);
    return fine;
}

static tn_engine *nccl_join(pair *p, const tn_engine_options *options) {
    tn_engine_options o = *options;
    if (tn__nccl_is_there() && o.device.kind != TN_CUDA) {
        tn__raise(TN_EUNSUPPORTED, NULL,
                  "this rank's default device is %s when the group is made (must be a GPU: see the "
                  "option device of tn_dist_init, or tn_set_default_device)",
                  tn_device_text(o.device));
    }
    if (!all_have_it(&o)) { return NULL; }
    o.check = check_peers;
    o.check_user = p;
    return nccl_load()(TN_ENGINE_VERSION, &errors, &o);
}

tn_engine *tn__nccl_new(tn_engine *host, const tn_engine_options *o) {
    bool fits = host->check || tn__fail(TN_EUNSUPPORTED, NULL,
                                        "the engine beside NCCL, %s, has no check", host->name);
    pair *p = fits ? tn__calloc_for(1, sizeof(*p), NULL) : NULL;
    if (!p) {
        host->destroy(host);
        return NULL;
    }
    p->host = host;
    p->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .name = "nccl",
                          .rank = o->rank,
                          .ranks = o->ranks,
                          .vague = true,
                          .devices = 1u << TN_CPU | 1u << TN_CUDA,
                          .queues = 1u << TN_CUDA,
                          .run = nccl_run,
                          .launch = nccl_launch,
                          .poll = nccl_poll,
                          .abort = nccl_stop,
                          .alloc = host->alloc ? nccl_alloc : NULL,
                          .free = host->alloc ? nccl_release : NULL,
                          .leave = nccl_leave,
                          .destroy = nccl_destroy};
    p->gpu = nccl_join(p, o);
    if (!p->gpu) {
        host->abort(host, tn__error_why());
        nccl_destroy(&p->base);
        return NULL;
    }
    p->base.device_alloc = p->gpu->device_alloc ? device_alloc : NULL;
    p->base.device_free = p->gpu->device_alloc ? device_release : NULL;
    return &p->base;
}
