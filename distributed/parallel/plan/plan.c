/* Plans: their options, what fits a model, the whole plan, and the fastest of all meshes. */
#include "distributed/parallel/plan/plan.h"

#include "core/memory.h"
#include "tensor/fields.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char operation[] = "plan";

enum { USUAL = 512 << 10 /* tokens of a step */ };

tn__plan_options tn__plan_defaults(void) {
    return (tn__plan_options){
        .ranks = 1,
        .mesh = tn_spread_defaults(),
        .batch = 1,
        .compute = TN_BF16,
        .rank = -1,
        .machine = {8, 80e9, 312e12, 19.5e12, 0.6, 1.6e12, 235e9, 20e9}, /* as plan.h says them */
    };
}

/* ---- What divides the model ------------------------------------------------------------------ */

static bool must_divide(int ranks, const char *dim, int64_t count, const char *what) {
    return count % ranks == 0 || tn__fail(TN_ESHAPE, operation, "%s=%d does not divide %lld %s",
                                          dim, ranks, (long long)count, what);
}

/* Columns and rows of cut matrices; of a vocabulary the last rank may have fewer, but not none. */
static bool tensor_fits(const tn__plan_case *c) {
    const tn__plan_model *model = c->model;
    int tp = c->o.mesh.tp;
    bool fit = must_divide(tp, "tp", model->shape.heads, "heads") &&
               must_divide(tp, "tp", model->shape.kv_heads, "heads of keys");
    for (int i = 0; i < model->count && fit; i++) {
        const tn_layout *l = &model->params[i].layout;
        if (model->params[i].block && l->dim >= 0) {
            fit = must_divide(tp, "tp", l->whole.size[l->dim] / l->pieces, "rows or columns");
        } else if (tn__plan_block(&model->params[i], tp - 1, tp) <= 0) {
            tn__raise(TN_ESHAPE, operation, "tp=%d leaves no rows of the vocabulary for the last",
                      tp);
            fit = false;
        }
    }
    return fit;
}

static bool positions_fit(const tn__plan_case *c) {
    const tn_spread_options *m = &c->o.mesh;
    int64_t heads = c->model->shape.kv_heads / m->tp, positions = c->o.positions;
    bool keys = m->context == TN_CP_KEYS;
    return must_divide(keys && m->cp > 1 ? 2 * m->cp : m->cp, "cp", positions, "positions") &&
           (keys || must_divide(m->cp, "cp", heads, "heads of keys on a rank")) &&
           (!m->tensor.sequence || must_divide(m->tp, "tp", positions / m->cp, "positions"));
}

/* ---- A mesh ---------------------------------------------------------------------------------- */

/* How many micro-batches a rank has in a step. False after raising. */
static bool find_micros(tn__plan_case *c) {
    const tn__plan_options *o = &c->o;
    int shares = o->mesh.dp * o->mesh.shard; /* at most the ranks */
    double one = (double)o->batch * (double)o->positions, each = one * shares, all = one * o->ranks;
    c->step = o->tokens ? (double)o->tokens : all * ceil(USUAL / all); /* the same for all meshes */
    if (fmod(c->step, each) != 0 || c->step / each > 1 << 20) {
        return tn__fail(
            TN_EVALUE, operation,
            "%.0f tokens are no multiple of %.0f, %lld sequences of %lld on %d ranks with "
            "data of their own, or above 1048576 times that",
            c->step, each, (long long)o->batch, (long long)o->positions, shares);
    }
    c->micros = (int)(c->step / each);
    return true;
}

/* False after raising. */
static bool find_stages(tn__plan_case *c) {
    const tn__plan_model *model = c->model;
    const tn_spread_options *m = &c->o.mesh;
    int64_t stages = m->pp > 1 ? (int64_t)m->pp * m->pipeline.chunks : 1;
    if (model->parts < stages) {
        return tn__fail(TN_EVALUE, operation, "a model of %d parts has not enough for %lld stages",
                        model->parts, (long long)stages);
    }
    c->stages = (int)stages;
    c->first = tn__calloc_for((size_t)c->stages + 1, sizeof(*c->first), operation);
    c->sets = tn__calloc_for((size_t)model->parts, sizeof(*c->sets), operation);
    c->pp = tn__calloc_for((size_t)model->parts, sizeof(*c->pp), operation);
    if (!c->first || !c->sets || !c->pp) { return false; }
    c->first[c->stages] = model->parts;
    tn__pipe_cut(model->costs, model->parts, c->stages, c->first);
    for (int i = 0, stage = 0; i < model->parts; i++) {
        stage += i == c->first[stage + 1];
        c->pp[i] = stage % m->pp;
    }
    if (m->pp > 1) {
        c->schedule = tn_pipe_schedule_new(m->pipeline.kind, m->pp, m->pipeline.chunks, c->micros);
    }
    return !tn__pending();
}

/* What a micro-batch is on a rank; the sizes divide. */
static void find_sizes(tn__plan_case *c) {
    const tn__plan_model *model = c->model;
    const tn__plan_options *o = &c->o;
    int64_t tp = o->mesh.tp, columns = (model->shape.vocab + tp - 1) / tp;
    c->size = (double)tn_dtype_size(o->compute);
    int64_t tokens = o->batch * (o->positions / o->mesh.cp);
    c->tokens = (double)tokens;
    c->slices = o->mesh.tensor.sequence ? o->mesh.tp : 1;
    double kept = model->read + model->kept / c->slices + model->kept_cut / o->mesh.tp;
    c->x = c->size * (double)model->shape.width * c->tokens / c->slices;
    c->graph = c->tokens * c->size * kept;
    c->logits = c->size * (double)columns * c->tokens;
}

/* Lays the mesh on the model. False after raising. */
static bool find_case(tn__plan_case *c) {
    tn__plan_options *o = &c->o;
    tn_spread_options *m = &o->mesh;
    if (!tn__spread_sizes(m, o->ranks)) { return false; }
    if (o->compute == TN_F32) { o->machine.flops = o->machine.flops_f32; }
    bool shards = m->shard > 1 || m->sharding.offload;
    c->parts = shards ? m->shard * m->cp : 1;
    c->stage = shards ? m->sharding.stage : 0;
    c->row = o->ranks / m->pp;
    find_sizes(c);
    return tensor_fits(c) && positions_fit(c) && find_micros(c) && find_stages(c);
}

/* ---- A plan ---------------------------------------------------------------------------------- */

/* Bytes of the rank that was asked for, or of the first one of the stage that needs most; seconds
 * of the slowest stage. With options that fit. */
static tn_status make_plan(const tn__plan_model *model, tn__plan_options options,
                           tn__plan_result *plan) {
    tn__plan_case c = {.model = model, .o = options};
    const tn_spread_options *m = &c.o.mesh;
    *plan = (tn__plan_result){0};
    if (find_case(&c)) {
        *plan = (tn__plan_result){.pp = m->pp,
                                  .dp = m->dp,
                                  .shard = m->shard,
                                  .cp = m->cp,
                                  .tp = m->tp,
                                  .stage = c.stage,
                                  .recompute = options.recompute,
                                  .micros = c.micros,
                                  .parameters = model->shape.parameters,
                                  .tokens = c.step};
        for (int first = 0; first < c.o.ranks; first += c.row) {
            bool asked = c.o.rank >= first && c.o.rank < first + c.row;
            int rank = asked ? c.o.rank : first;
            tn__plan_count n = tn__plan_elements(&c, rank);
            if (asked || c.o.rank < 0) { tn__plan_memory(&c, &n, rank, plan); }
            tn__plan_time(&c, &n, rank, plan);
        }
        plan->fits = (double)plan->peak <= c.o.machine.memory;
    }
    tn_pipe_schedule_free(c.schedule);
    free(c.first);
    free(c.pp);
    free(c.sets);
    return tn_error();
}

/* Whatever the mesh. False after raising. */
static bool begin_plan(void *m, tn__plan_model *model, tn__plan_options *o) {
    if (!tn__plan_read_model(m, model)) { return false; }
    if (o->positions == 0) { o->positions = model->shape.context; }
    return o->positions <= model->shape.context ||
           tn__fail(TN_EVALUE, operation, "%lld positions: the model sees %lld",
                    (long long)o->positions, (long long)model->shape.context);
}

tn_status tn__plan_of(void *m, tn__plan_options options, tn__plan_result *plan) {
    tn__plan_model model;
    *plan = (tn__plan_result){0};
    if (begin_plan(m, &model, &options)) { make_plan(&model, options, plan); }
    tn__plan_model_free(&model);
    return tn_error();
}

/* ---- All meshes ------------------------------------------------------------------------------ */

typedef struct search {
    const tn__plan_model *model;
    tn__plan_result *best; /* [most], fastest first */
    int count, most;
} search;

/* Keeps a plan if it is among the fastest. */
static void add_plan(search *s, const tn__plan_result *plan) {
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
static void try_mesh(search *s, tn__plan_options o) {
    for (int recompute = o.recompute; recompute < 2 && !tn__pending(); recompute++) {
        tn__plan_result plan;
        o.recompute = recompute;
        tn__quiet(1);
        tn_status status = make_plan(s->model, o, &plan);
        tn__quiet(-1);
        if (status == TN_OK && plan.fits) {
            add_plan(s, &plan);
        } else if (status == TN_ESHAPE || status == TN_EVALUE) {
            tn_error_clear();
        }
    }
}

/* The stages of sharding. They do not matter for copies; in a pipeline, where gradients stay, stage
 * 1 needs no less than 2. */
static void try_stages(search *s, tn__plan_options o) {
    bool shards = o.mesh.shard > 1 || o.mesh.sharding.offload;
    int *stage = &o.mesh.sharding.stage, last = shards ? 3 : 1;
    for (*stage = shards && o.mesh.pp > 1 ? 2 : 1; *stage <= last; ++*stage) {
        try_mesh(s, o);
    }
}

static void try_all(search *s, tn__plan_options o) {
    tn_spread_options *m = &o.mesh;
    int ranks = o.ranks / m->cp;
    for (m->tp = 1; m->tp <= ranks && m->tp <= o.machine.per_host; m->tp++) {
        for (m->pp = 1; m->pp <= ranks / m->tp && m->pp <= s->model->parts; m->pp++) {
            int data = ranks / m->tp / m->pp;
            for (m->shard = 1; m->shard <= data && data * m->tp * m->pp == ranks; m->shard++) {
                m->dp = data / m->shard;
                if (m->dp * m->shard == data) { try_stages(s, o); }
            }
        }
    }
}

int tn__plan_search(void *m, tn__plan_options options, tn__plan_result *best, int most) {
    tn__plan_model model;
    search s = {.model = &model, .best = best, .most = most};
    if (begin_plan(m, &model, &options)) { try_all(&s, options); }
    tn__plan_model_free(&model);
    return tn__pending() ? 0 : s.count;
}
