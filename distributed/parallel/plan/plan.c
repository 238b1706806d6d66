/* Plans: their options, the sizes of a mesh, what fits a model, and the result. */
#include "core/memory.h"
#include "distributed/parallel/pipeline/pipeline.h"
#include "distributed/parallel/plan/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char operation[] = "plan";

tn_plan_machine tn_plan_machine_defaults(void) {
    return (tn_plan_machine){.per_host = 8,
                             .memory = 80e9,
                             .flops = 312e12,
                             .reached = 0.6,
                             .memory_speed = 1.6e12,
                             .host_link = 235e9,
                             .host_delay = 1e-5,
                             .network_link = 20e9,
                             .network_delay = 3e-5,
                             .shared = 1,
                             .overlap = true,
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

/* ---- Sizes ----------------------------------------------------------------------------------- */

static bool is_finite(const tn_plan_machine *m) {
    const double rates[] = {m->memory,       m->flops,     m->reached,
                            m->memory_speed, m->host_link, m->network_link};
    bool sound = m->per_host > 0 && m->shared >= 1 && isfinite(m->shared) && m->host_delay >= 0 &&
                 m->network_delay >= 0 && isfinite(m->host_delay + m->network_delay);
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        sound &= isfinite(rates[i]) && rates[i] > 0;
    }
    return sound;
}

static bool options_fit(const tn_plan_options *o) {
    const tn_spread_options *m = &o->mesh;
    const char *wrong = o->ranks < 1                                     ? "ranks is below 1"
                        : o->mesh.pp < 1 || m->cp < 1 || m->tp < 1       ? "pp, cp or tp is below 1"
                        : m->dp < 0 || m->shard < 0                      ? "dp or shard is below 0"
                        : o->mesh.pipeline.chunks < 1                    ? "chunks is below 1"
                        : o->batch < 1 || o->batch > 1 << 30             ? "batch is out of range"
                        : o->positions < 0 || o->tokens < 0              ? "a number is below 0"
                        : o->states < 0 || o->states > 16                ? "states is not 0 to 16"
                        : o->rank < -1 || o->rank >= o->ranks            ? "there is no such rank"
                        : m->sharding.stage < 1 || m->sharding.stage > 3 ? "stage is not 1, 2 or 3"
                        : o->compute != TN_F32 && o->compute != TN_BF16 && o->compute != TN_F16
                            ? "compute is not f32, bf16 or f16"
                        : !is_finite(&o->machine) ? "a number of the machine is out of range"
                                                  : NULL;
    if (wrong) {
        tn__raise(TN_EVALUE, operation, "%s", wrong);
    }
    return !wrong;
}

/* How many micro-batches a rank has in a step. False after raising. */
static bool find_micros(tn__plan_case *c) {
    const tn_plan_options *o = &c->o;
    int shares = o->mesh.dp * o->mesh.shard; /* at most the ranks */
    double all = (double)o->batch * (double)o->positions * shares * 4 * o->mesh.pp;
    if (all > 1e18) {
        tn__raise(TN_EVALUE, operation, "a step of %g tokens", all);
        return false;
    }
    int64_t each = o->batch * o->positions * shares;
    if (o->tokens == 0) {
        c->micros = o->mesh.pp > 1 ? 4 * o->mesh.pp : 1;
        c->o.tokens = each * c->micros;
        return true;
    }
    if (o->tokens % each != 0 || o->tokens / each > 1 << 20) {
        tn__raise(TN_EVALUE, operation,
                  "%lld tokens are no multiple of %lld: %lld sequences of %lld on %d ranks with "
                  "data of their own",
                  (long long)o->tokens, (long long)each, (long long)o->batch,
                  (long long)o->positions, shares);
        return false;
    }
    c->micros = (int)(o->tokens / each);
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
    bool fit = tp == 1 || (must_divide(tp, "tp", model->shape.heads, "heads") &&
                           must_divide(tp, "tp", model->shape.kv_heads, "heads of keys"));
    for (int i = 0; i < model->count && fit && tp > 1; i++) {
        const tn__plan_param *p = &model->params[i];
        if (p->block && p->dim >= 0) {
            fit = must_divide(tp, "tp", p->whole.size[p->dim] / p->pieces, "rows or columns");
        } else if (p->dim >= 0 && tn__plan_elements(c, p, tp - 1) <= 0) {
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
    if (c->o.positions > shape->context) {
        tn__raise(TN_EVALUE, operation, "%lld positions: the model sees %lld",
                  (long long)c->o.positions, (long long)shape->context);
        return false;
    }
    bool keys = m->context == TN_CP_KEYS;
    return tensor_fits(c) &&
           must_divide(keys && m->cp > 1 ? 2 * m->cp : m->cp, "cp", c->o.positions, "positions") &&
           (keys || must_divide(m->cp, "cp", shape->kv_heads / m->tp, "heads of keys on a rank")) &&
           (!m->tensor.sequence || must_divide(m->tp, "tp", c->o.positions / m->cp, "positions"));
}

/* ---- Stages ---------------------------------------------------------------------------------- */

static void case_free(tn__plan_case *c) {
    tn_pipe_schedule_free(c->schedule);
    free(c->first);
}

/* False after raising. */
static bool find_stages(tn__plan_case *c) {
    const tn__plan_model *model = c->model;
    c->stages = c->o.mesh.pp * (c->o.mesh.pp > 1 ? c->o.mesh.pipeline.chunks : 1);
    if (model->parts < c->stages) {
        tn__raise(TN_EVALUE, operation, "a model of %d parts has not enough for %d stages",
                  model->parts, c->stages);
        return false;
    }
    c->first = tn__calloc_for((size_t)c->stages + 1, sizeof(*c->first), operation);
    if (!c->first) {
        return false;
    }
    c->first[c->stages] = model->parts;
    tn__pipe_cut(model->costs, model->parts, c->stages, c->first);
    if (c->o.mesh.pp > 1) {
        c->schedule = tn_pipe_schedule_new(c->o.mesh.pipeline.kind, c->o.mesh.pp,
                                           c->o.mesh.pipeline.chunks, c->micros);
        c->halves = c->o.mesh.pipeline.kind == TN_PIPE_ZERO_BUBBLE;
    }
    return !tn__pending();
}

/* What is known of a mesh before the model is laid on it. False after raising. */
static bool case_begin(tn__plan_case *c) {
    tn_plan_options *o = &c->o;
    o->positions = o->positions ? o->positions : c->model->shape.context;
    if (!tn__options_made(o->mesh.from_defaults, operation, "tn_spread") ||
        !tn__options_made(o->machine.from_defaults, operation, "tn_plan_machine") ||
        !options_fit(o) || !tn__spread_sizes(&o->mesh, o->ranks)) {
        return false;
    }
    bool shards = o->mesh.shard > 1 || o->mesh.sharding.offload;
    c->parts = shards ? o->mesh.shard * o->mesh.cp : 1;
    c->stage = shards ? o->mesh.sharding.stage : 0;
    c->positions = o->positions / o->mesh.cp;
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
    const tn_spread_options *m = &c->o.mesh;
    int stride = c->o.ranks / c->o.mesh.pp, rank = c->o.rank, within = c->stage ? c->parts : 1;
    if (rank >= 0) {
        tn__plan_memory(c, rank / stride, rank / m->tp % within, rank % m->tp, plan);
        plan->rank = rank;
        return;
    }
    tn_plan most = *plan;
    for (int pp = 0; pp < c->o.mesh.pp; pp++) {
        tn__plan_memory(c, pp, 0, 0, plan);
        plan->rank = pp * stride;
        most = pp == 0 || plan->peak > most.peak ? *plan : most;
    }
    *plan = most;
}

tn_status tn__plan_make(const tn__plan_model *model, tn_plan_options options, tn_plan *plan) {
    tn__plan_case c = {.model = model, .o = options};
    *plan = (tn_plan){0};
    if (case_begin(&c)) {
        const tn_spread_options *m = &c.o.mesh;
        *plan = (tn_plan){.pp = c.o.mesh.pp,
                          .dp = m->dp,
                          .shard = m->shard,
                          .cp = m->cp,
                          .tp = m->tp,
                          .stage = c.stage,
                          .recompute = c.o.recompute,
                          .micros = c.micros,
                          .parameters = model->shape.parameters,
                          .tokens = (double)c.o.tokens};
        find_memory(&c, plan);
        plan->fits = (double)plan->peak <= c.o.machine.memory;
        if (tn__plan_time(&c, plan)) {
            plan->limit = limit_of(plan);
        } else {
            *plan = (tn_plan){0};
        }
    }
    case_free(&c);
    return tn_error();
}

tn_status tn_plan_of(void *m, tn_plan_options options, tn_plan *plan) {
    if (!plan) {
        return tn__raise(TN_EVALUE, operation, "the plan is NULL");
    }
    *plan = (tn_plan){0};
    tn__plan_model model = {0};
    if (!tn__pending() && tn__options_made(options.from_defaults, operation, "tn_plan") &&
        tn__plan_read_model(m, &model)) {
        tn__plan_make(&model, options, plan);
    }
    tn__plan_model_free(&model);
    return tn_error();
}
