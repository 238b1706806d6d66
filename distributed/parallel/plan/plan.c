/* Plans: their options, the sizes of a mesh, what fits a model, and the result. */
#include "core/memory.h"
#include "distributed/parallel/pipeline/pipeline.h"
#include "distributed/parallel/plan/plan.h"
#include "tensor/fields.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static const char operation[] = "plan";

tn_plan_machine tn_plan_machine_defaults(void) {
    return (tn_plan_machine){.per_host = 8,
                             .memory = 80e9,
                             .flops = 312e12,
                             .reached = 0.6,
                             .memory_speed = 1.6e12,
                             .host_link = 235e9,
                             .network_link = 20e9,
                             .from_defaults = true};
}

tn_plan_options tn_plan_defaults(void) {
    return (tn_plan_options){.ranks = 1,
                             .mesh = tn_spread_defaults(),
                             .batch = 1,
                             .compute = TN_BF16,
                             .states = 2,
                             .rank = -1,
                             .machine = tn_plan_machine_defaults(),
                             .from_defaults = true};
}

/* ---- Options --------------------------------------------------------------------------------- */

#define NUMBER(member, from, to) TN_FIELD(tn_plan_options, member, .least = (from), .most = (to))

static const tn_field numbers[] = {NUMBER(ranks, 1, 1 << 20),
                                   NUMBER(batch, 1, 1 << 30),
                                   NUMBER(positions, 0, INT32_MAX),
                                   NUMBER(tokens, 0, 1e18),
                                   NUMBER(states, 0, 16),
                                   NUMBER(mesh.cp, 1, 1 << 20),
                                   NUMBER(mesh.pipeline.chunks, 1, 1 << 10),
                                   NUMBER(mesh.sharding.stage, 1, 3),
                                   NUMBER(mesh.sharding.prefetch, 0, 1 << 10),
                                   NUMBER(machine.per_host, 1, 1 << 20),
                                   NUMBER(machine.memory, 1, DBL_MAX),
                                   NUMBER(machine.flops, 1, DBL_MAX),
                                   NUMBER(machine.reached, 1e-6, 1),
                                   NUMBER(machine.memory_speed, 1, DBL_MAX),
                                   NUMBER(machine.host_link, 1, DBL_MAX),
                                   NUMBER(machine.network_link, 1, DBL_MAX),
                                   {0}};

bool tn__plan_options_fit(const tn__plan_model *model, const tn_plan_options *o) {
    int64_t context = model->shape.context;
    char wrong[192];
    if (!tn__options_made(o->mesh.from_defaults, operation, "tn_spread") ||
        !tn__options_made(o->machine.from_defaults, operation, "tn_plan_machine")) {
        return false;
    }
    if (!tn__fields_fit(numbers, o, wrong, sizeof(wrong))) {
        tn__raise(TN_EVALUE, operation, "%s", wrong);
    } else if (o->rank < -1 || o->rank >= o->ranks) {
        tn__raise(TN_EVALUE, operation, "rank is %d of %d", o->rank, o->ranks);
    } else if (o->positions > context) {
        tn__raise(TN_EVALUE, operation, "%lld positions: the model sees %lld",
                  (long long)o->positions, (long long)context);
    } else if (o->compute != TN_F32 && o->compute != TN_BF16 && o->compute != TN_F16) {
        tn__raise(TN_EVALUE, operation, "compute is %s, not f32, bf16 or f16",
                  tn_dtype_name(o->compute));
    }
    return !tn__pending();
}

/* How many micro-batches a rank has in a step. False after raising. */
static bool find_micros(tn__plan_case *c) {
    const tn_plan_options *o = &c->o;
    int shares = o->mesh.dp * o->mesh.shard; /* at most the ranks */
    double each = (double)o->batch * (double)o->positions * shares, tokens = (double)o->tokens;
    if (fmod(tokens, each) != 0 || tokens / each > 1 << 20) {
        tn__raise(TN_EVALUE, operation,
                  "%.0f tokens are no multiple of %.0f, %lld sequences of %lld on %d ranks with "
                  "data of their own, or above 1048576 times that",
                  tokens, each, (long long)o->batch, (long long)o->positions, shares);
        return false;
    }
    c->micros = tokens > 0 ? (int)(tokens / each) : o->mesh.pp > 1 ? 4 * o->mesh.pp : 1;
    c->step = each * c->micros;
    return true;
}

/* ---- What divides the model ------------------------------------------------------------------ */

static bool must_divide(int ranks, const char *dim, int64_t count, const char *what) {
    if (count % ranks != 0) {
        tn__raise(TN_ESHAPE, operation, "%s=%d does not divide %lld %s", dim, ranks,
                  (long long)count, what);
    }
    return !tn__pending();
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

static bool model_fits(const tn__plan_case *c) {
    const tn_spread_options *m = &c->o.mesh;
    const tn_lm_shape *shape = &c->model->shape;
    bool keys = m->context == TN_CP_KEYS;
    return tensor_fits(c) &&
           must_divide(keys && m->cp > 1 ? 2 * m->cp : m->cp, "cp", c->o.positions, "positions") &&
           (keys || must_divide(m->cp, "cp", shape->kv_heads / m->tp, "heads of keys on a rank")) &&
           (!m->tensor.sequence || must_divide(m->tp, "tp", c->o.positions / m->cp, "positions"));
}

/* ---- A mesh ---------------------------------------------------------------------------------- */

/* False after raising. */
static bool find_stages(tn__plan_case *c) {
    const tn__plan_model *model = c->model;
    const tn_spread_options *m = &c->o.mesh;
    int64_t stages = m->pp > 1 ? (int64_t)m->pp * m->pipeline.chunks : 1;
    if (model->parts < stages) {
        tn__raise(TN_EVALUE, operation, "a model of %d parts has not enough for %lld stages",
                  model->parts, (long long)stages);
        return false;
    }
    c->stages = (int)stages;
    c->first = tn__calloc_for((size_t)c->stages + 1, sizeof(*c->first), operation);
    c->sets = tn__calloc_for((size_t)model->parts, sizeof(*c->sets), operation);
    c->rank = tn__calloc_for((size_t)model->parts, sizeof(*c->rank), operation);
    if (!c->first || !c->sets || !c->rank) { return false; }
    c->first[c->stages] = model->parts;
    tn__pipe_cut(model->costs, model->parts, c->stages, c->first);
    for (int i = 0, stage = 0; i < model->parts; i++) {
        stage += i == c->first[stage + 1];
        c->rank[i] = stage % m->pp;
    }
    if (m->pp > 1) {
        c->schedule = tn_pipe_schedule_new(m->pipeline.kind, m->pp, m->pipeline.chunks, c->micros);
        c->halves = m->pipeline.kind == TN_PIPE_ZERO_BUBBLE;
    }
    return !tn__pending();
}

/* Lays the mesh on the model. False after raising. */
static bool find_case(tn__plan_case *c) {
    tn_plan_options *o = &c->o;
    tn_spread_options *m = &o->mesh;
    if (!tn__spread_sizes(m, o->ranks)) { return false; }
    o->positions = o->positions ? o->positions : c->model->shape.context;
    bool shards = m->shard > 1 || m->sharding.offload;
    c->parts = shards ? m->shard * m->cp : 1;
    c->stage = shards ? m->sharding.stage : 0;
    c->size = (double)tn_dtype_size(o->compute);
    int64_t positions = o->positions / m->cp;
    c->tokens = (double)(o->batch * positions);
    c->slices = m->tensor.sequence ? m->tp : 1;
    c->x = c->size * (double)c->model->shape.width * c->tokens / c->slices;
    return model_fits(c) && find_micros(c) && find_stages(c);
}

/* ---- The result ------------------------------------------------------------------------------ */

static const char *limit_of(const tn_plan *plan) {
    const struct {
        double seconds;
        const char *name;
    } shares[] = {{plan->compute, "computing"},
                  {plan->tensor, "sums of tensor parallelism"},
                  {plan->context, "exchanges of context parallelism"},
                  {plan->data, "weights and gradients on their way"},
                  {plan->bubble, "waiting for other stages"},
                  {plan->optimiser, "the optimiser"}};
    int most = 0;
    for (int i = 1; i < (int)(sizeof(shares) / sizeof(shares[0])); i++) {
        most = shares[i].seconds > shares[most].seconds ? i : most;
    }
    return plan->fits ? shares[most].name : "memory";
}

/* The stage that needs most, or the rank that was asked for. */
static void find_memory(const tn__plan_case *c, tn_plan *plan) {
    int tp = c->o.mesh.tp, stride = c->o.ranks / c->o.mesh.pp, rank = c->o.rank;
    if (rank >= 0) {
        tn__plan_memory(c, rank / stride, rank / tp % c->parts, rank % tp, plan);
        plan->rank = rank;
        return;
    }
    tn_plan most = {0};
    for (int pp = 0; pp < c->o.mesh.pp; pp++) {
        tn__plan_memory(c, pp, 0, 0, plan);
        plan->rank = pp * stride;
        most = plan->peak > most.peak ? *plan : most;
    }
    *plan = most;
}

tn_status tn__plan_make(const tn__plan_model *model, tn_plan_options options, tn_plan *plan) {
    tn__plan_case c = {.model = model, .o = options};
    const tn_spread_options *m = &c.o.mesh;
    *plan = (tn_plan){0};
    if (find_case(&c)) {
        *plan = (tn_plan){.pp = m->pp,
                          .dp = m->dp,
                          .shard = m->shard,
                          .cp = m->cp,
                          .tp = m->tp,
                          .stage = c.stage,
                          .recompute = c.o.recompute,
                          .micros = c.micros,
                          .parameters = model->shape.parameters,
                          .tokens = c.step};
        find_memory(&c, plan);
        plan->fits = (double)plan->peak <= c.o.machine.memory;
        plan->limit = tn__plan_time(&c, plan) ? limit_of(plan) : NULL;
    }
    if (tn__pending()) { *plan = (tn_plan){0}; }
    tn_pipe_schedule_free(c.schedule);
    free(c.first);
    free(c.rank);
    free(c.sets);
    return tn_error();
}

tn_status tn_plan_of(void *m, tn_plan_options options, tn_plan *plan) {
    if (!plan) { return tn__raise(TN_EVALUE, operation, "the plan is NULL"); }
    *plan = (tn_plan){0};
    tn__plan_model model = {0};
    if (tn__options_made(options.from_defaults, operation, "tn_plan") &&
        tn__plan_read_model(m, &model) && tn__plan_options_fit(&model, &options)) {
        tn__plan_make(&model, options, plan);
    }
    tn__plan_model_free(&model);
    return tn_error();
}
