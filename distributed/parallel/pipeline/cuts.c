/* Where to cut a model by how long its parts take: each runs forward and backward by itself, on
 * what the part before gives it. So one part's graph is alive at a time. */
#include "distributed/group/agree.h"
#include "core/clock.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/pipeline/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 3 }; /* after a first one, which allocates */
static const char operation[] = "pipeline_cuts";

static tn_tensor *call_part(tn_pipeline *p, int part, tn_tensor *x, int64_t tokens) {
    tn_tensor *positions = NULL;
    if (p->family && part > 0) {
        positions = tn__lm_positions(p->module, x, 0, tokens, p->family->shape(p->module).context);
    }
    tn__lm_context context = {.range = {part, part + 1}};
    return tn_call_values(p->module, tn_values_of(x, positions), &context).v[0];
}

/* Forward and backward once; the output is owned by the caller's scope. */
static tn_tensor *run_part(tn_pipeline *p, int part, tn_tensor *x, tn_tensor *y, int64_t tokens) {
    TN_SCOPE;
    const tn_pipeline_options *o = &p->options;
    bool grows = part > 0 && tn_dtype_is_float(tn_dtype_of(x));
    x = grows ? tn_set_requires_grad(tn_detach(x), true) : x;
    tn_tensor *out = call_part(p, part, x, tokens), *root = out;
    if (part == p->parts - 1) {
        root = o->loss ? o->loss(out, y, o->user) : tn__lm_loss_of(p->module, out, y);
    }
    if (!tn__pending() && tn_requires_grad(root)) {
        tn_tensor *ones = tn_ones_like(root);
        tn_backward_from(&root, &ones, 1, false);
    }
    tn_device_synchronize(tn_device_of(root));
    return tn_return(tn_detach(out));
}

/* seconds[parts], of the fastest try. */
static void time_parts(tn_pipeline *p, const tn_batch *b, double *seconds) {
    TN_SCOPE;
    tn_tensor *x = b->x;
    int64_t tokens = p->family && tn_ndim(x) == 2 ? tn_size(x, 1) : 0;
    for (int i = 0; i < p->parts && !tn__pending(); i++) {
        tn_tensor *out = NULL;
        seconds[i] = INFINITY;
        for (int k = 0; k <= TRIES && !tn__pending(); k++) {
            double began = tn__now();
            out = run_part(p, i, x, b->y, tokens);
            double took = tn__now() - began;
            seconds[i] = k > 0 && took < seconds[i] ? took : seconds[i];
        }
        x = out;
    }
}

/* The slowest rank's, on every rank. False after raising. */
static bool share_seconds(tn_group *g, double *seconds, int parts) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *all = tn_from_data(seconds, TN_DIMS(parts), TN_F64);
    if (tn_group_size(g) > 1) { tn_work_wait(tn_all_reduce(g, all, TN_MAX), 0); }
    if (!tn__pending()) { memcpy(seconds, tn_data(all), (size_t)parts * sizeof(*seconds)); }
    return !tn__pending();
}

static void find_cuts(tn_pipeline *p, const tn_batch *b, int stages, int *cuts) {
    double *seconds = tn__calloc_for((size_t)p->parts, sizeof(*seconds), operation);
    int *first = tn__calloc_for((size_t)stages, sizeof(*first), operation);
    tn_generator before = *tn_default_generator();
    if (seconds && first) {
        time_parts(p, b, seconds);
        tn_module_zero_grad(p->module);
    }
    *tn_default_generator() = before;
    if (tn__pending() || !seconds || !first) {
        tn_group_abort(p->group, tn_error_message());
    } else if (share_seconds(p->group, seconds, p->parts)) {
        tn__pipe_cut(seconds, p->parts, stages, first);
        for (int s = 1; s < stages; s++) {
            cuts[s - 1] = first[s];
        }
    }
    free(seconds);
    free(first);
}

tn_status tn_pipeline_cuts(void *m, tn_group *g, tn_batch batch, tn_pipeline_options options,
                           int stages, int *cuts) {
    tn_pipeline p = {.module = m, .group = g, .options = options};
    const tn__parallel_rules rules = {.operation = operation};
    if (!tn__agree_begin(g, operation)) { return tn_error(); }
    if (tn__parallel_may_attach(m, g, &rules) &&
        tn__options_made(options.from_defaults, operation, "tn_pipeline") &&
        tn__parallel_unsplit(m, operation)) {
        p.parts = tn__pipe_count_parts(&p);
        if (!tn__pending() && (stages < 1 || stages > p.parts || !cuts || !batch.x)) {
            tn__raise(TN_EVALUE, operation, "%d stages of %d parts%s%s", stages, p.parts,
                      cuts ? "" : ", cuts is NULL", batch.x ? "" : ", x is NULL");
        }
    }
    char text[32];
    snprintf(text, sizeof(text), "%d stages", stages);
    if (tn__parallel_agree(m, g, text, operation) == TN_OK) { find_cuts(&p, &batch, stages, cuts); }
    return tn_error();
}
