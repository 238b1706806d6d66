/* The fastest meshes: all that fit are planned, and sorted. */
#include "core/memory.h"
#include "distributed/parallel/plan/plan.h"

#include <stdlib.h>
#include <string.h>

typedef struct search {
    const tn__plan_model *model;
    tn_plan_options o;
    tn_plan *best;
    int count, most;
} search;

/* Keeps it if it is among the fastest. */
static void add_plan(search *s, const tn_plan *plan) {
    int at = s->count;
    while (at > 0 && s->best[at - 1].seconds > plan->seconds) {
        at--;
    }
    if (at == s->most) {
        return;
    }
    s->count += s->count < s->most;
    memmove(&s->best[at + 1], &s->best[at], (size_t)(s->count - at - 1) * sizeof(*plan));
    s->best[at] = *plan;
}

/* A mesh that does not divide the model is passed over; any other error ends the search. */
static void try_case(search *s, const tn_plan_options *o) {
    tn_plan plan;
    tn__quiet(1);
    tn_status status = tn__plan_make(s->model, *o, &plan);
    tn__quiet(-1);
    if (status == TN_OK && plan.fits) {
        add_plan(s, &plan);
    } else if (status == TN_ESHAPE || status == TN_EVALUE) {
        tn_error_clear();
    }
}

/* The ways to share the data's ranks: copies, and shards within them. */
static void try_data(search *s, tn_plan_options *o, int data) {
    for (int shard = 1; shard <= data; shard++) {
        bool offload = o->mesh.sharding.offload;
        if (data % shard != 0) {
            continue;
        }
        o->mesh.shard = shard;
        o->mesh.dp = data / shard;
        /* stages do not matter for copies; in a pipeline, where gradients stay, 1 is no less */
        int last = shard > 1 || offload ? 3 : 1;
        for (int stage = o->mesh.pp > 1 && last > 1 ? 2 : 1; stage <= last; stage++) {
            o->mesh.sharding.stage = stage;
            for (int recompute = s->o.recompute; recompute < 2; recompute++) {
                o->recompute = recompute;
                if (!tn__pending()) {
                    try_case(s, o);
                }
            }
        }
    }
}

int tn_plan_search(void *m, tn_plan_options options, tn_plan *best, int most) {
    static const char operation[] = "plan_search";
    tn__plan_model model = {0};
    search s = {.model = &model, .o = options, .best = best, .most = most};
    if (tn__pending() || !tn__options_made(options.from_defaults, operation, "tn_plan")) {
        return 0;
    }
    /* every number of ranks is tried, so there is a limit */
    if (!best || most < 1 || options.ranks < 1 || options.ranks > 1 << 20 || options.mesh.cp < 1) {
        tn__raise(TN_EVALUE, operation, "%s",
                  !best || most < 1 ? "there is no space for plans"
                                    : "ranks or cp is below 1, or ranks above 1048576");
        return 0;
    }
    if (!tn__plan_read_model(m, &model)) {
        tn__plan_model_free(&model);
        return 0;
    }
    int ranks = options.ranks / options.mesh.cp, host = options.machine.per_host;
    for (int tp = 1; tp <= ranks && tp <= host; tp++) {
        for (int pp = 1; ranks % tp == 0 && pp <= ranks / tp && pp <= model.parts; pp++) {
            tn_plan_options o = options;
            o.mesh.tp = tp;
            o.mesh.pp = pp;
            if (ranks / tp % pp == 0) {
                try_data(&s, &o, ranks / tp / pp);
            }
        }
    }
    tn__plan_model_free(&model);
    return tn__pending() ? 0 : s.count;
}
