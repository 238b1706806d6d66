/* The fastest meshes: all that fit are planned, and sorted. */
#include "distributed/parallel/plan/plan.h"

#include <string.h>

static const char operation[] = "plan_search";

typedef struct search {
    const tn__plan_model *model;
    bool recompute; /* in every plan */
    tn_plan *best;  /* [most], fastest first */
    int count, most;
} search;

/* Keeps a plan if it is among the fastest. */
static void add_plan(search *s, const tn_plan *plan) {
    int at = s->count;
    while (at > 0 && s->best[at - 1].seconds > plan->seconds) {
        at--;
    }
    if (at < s->most) {
        s->count += s->count < s->most;
        memmove(&s->best[at + 1], &s->best[at], (size_t)(s->count - at - 1) * sizeof(*plan));
        s->best[at] = *plan;
    }
}

/* With and without recompute. A mesh that does not divide the model is passed over; any other error
 * ends the search. */
static void try_mesh(search *s, tn_plan_options o) {
    for (int recompute = s->recompute; recompute < 2 && !tn__pending(); recompute++) {
        tn_plan plan;
        o.recompute = recompute;
        tn__quiet(1);
        tn_status status = tn__plan_make(s->model, o, &plan);
        tn__quiet(-1);
        if (status == TN_OK && plan.fits) {
            add_plan(s, &plan);
        } else if (status == TN_ESHAPE || status == TN_EVALUE) {
            tn_error_clear();
        }
    }
}

/* The ways to share the data's ranks: copies, and shards within them. Stages do not matter for
 * copies; in a pipeline, where gradients stay, stage 1 needs no less than 2. */
static void try_data(search *s, tn_plan_options o, int data) {
    for (o.mesh.shard = 1; o.mesh.shard <= data; o.mesh.shard++) {
        bool shards = o.mesh.shard > 1 || o.mesh.sharding.offload;
        int first = o.mesh.pp > 1 && shards ? 2 : 1, last = shards ? 3 : 1;
        o.mesh.dp = data / o.mesh.shard;
        for (int stage = first; stage <= last && data % o.mesh.shard == 0; stage++) {
            o.mesh.sharding.stage = stage;
            try_mesh(s, o);
        }
    }
}

static void try_all(search *s, tn_plan_options o) {
    int ranks = o.ranks / o.mesh.cp, parts = s->model->parts;
    for (int tp = 1; tp <= ranks && tp <= o.machine.per_host; tp++) {
        for (int pp = 1; pp <= ranks / tp && pp <= parts; pp++) {
            o.mesh.tp = tp;
            o.mesh.pp = pp;
            if (ranks % (tp * pp) == 0) { try_data(s, o, ranks / tp / pp); }
        }
    }
}

int tn_plan_search(void *m, tn_plan_options options, tn_plan *best, int most) {
    tn__plan_model model = {0};
    search s = {.model = &model, .recompute = options.recompute, .best = best, .most = most};
    bool made = tn__options_made(options.from_defaults, operation, "tn_plan");
    if (made && (!best || most < 1)) {
        tn__raise(TN_EVALUE, operation, "there is no space for plans");
    } else if (made && tn__plan_read_model(m, &model) && tn__plan_options_fit(&model, &options)) {
        try_all(&s, options);
    }
    tn__plan_model_free(&model);
    return tn__pending() ? 0 : s.count;
}
