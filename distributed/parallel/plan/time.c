/* Seconds of a step.
 *
 *     part       operations / (flops · reached) + bytes / memory speed
 *     message    delay + (n - 1) / n bytes / link       a gather, a scatter, an exchange
 *     forward    the rest's gather, a block's; then each block beside the gather of the next
 *     backward   each block beside the gather of the next and the scatter of the last; then the
 *                last scatters
 *     step       micro-batches in turn, or the simulated pipeline; weights that are gathered and
 *                gradients that travel once; the optimiser, at memory speed
 *
 * A block's sums over tp and exchanges over cp hide behind nothing.
 */
#include "distributed/parallel/plan/plan.h"

#include <math.h>

typedef struct pace {
    const tn__plan_case *c;
    double size, tokens; /* bytes of a number; positions of a micro-batch on a rank */
} pace;

/* Ranks that are `stride` apart exchange messages. */
typedef struct ring {
    int n, stride;
} ring;

/* Seconds for a message of which each of n ranks has, or gets, 1 / n. Ranks of one host that belong
 * to it use their links to other hosts together. */
static double message_seconds(const tn_plan_machine *m, ring r, double bytes) {
    if (r.n < 2) {
        return 0;
    }
    double link = m->host_link, delay = m->host_delay;
    if ((int64_t)r.n * r.stride > m->per_host) {
        int together = r.stride < m->per_host ? m->per_host / r.stride : 1;
        link = fmin(m->host_link, m->network_link * together);
        delay = m->network_delay;
    }
    return delay + (r.n - 1.0) / r.n * bytes / link;
}

static ring tensor_ring(const pace *p) {
    return (ring){p->c->o.mesh.tp, 1};
}

/* The ranks that share parts, or with DDP that have copies. */
static ring data_ring(const pace *p) {
    const tn_spread_options *o = &p->c->o.mesh;
    return (ring){p->c->stage ? p->c->parts : o->dp * o->cp, o->tp};
}

static ring copies_ring(const pace *p) {
    const tn_spread_options *o = &p->c->o.mesh;
    return (ring){p->c->stage ? o->dp : 1, o->tp * o->cp * o->shard};
}

/* ---- Parts ----------------------------------------------------------------------------------- */

typedef struct cost {
    double compute, tensor, context;
} cost;

static double cost_sum(cost a) {
    return a.compute + a.tensor + a.context;
}

static double compute_seconds(const pace *p, double operations, double bytes) {
    const tn_plan_machine *m = &p->c->o.machine;
    return operations / (m->flops * m->reached) + bytes / m->memory_speed;
}

/* What is kept is written and read, and so are the matrices. */
tn__plan_load tn__plan_block(const tn__plan_case *c) {
    const tn__plan_work *w = &c->model->block;
    double tp = c->o.mesh.tp, whole = c->o.mesh.tensor.sequence ? tp : 1;
    double tokens = (double)(c->o.batch * c->positions);
    double products = w->products + w->products_cut / tp;
    double seen = (double)c->o.positions / 2; /* by a position, since attention is causal */
    double kept = w->read + w->kept / whole + w->kept_cut / tp;
    return (tn__plan_load){(2 * products + 4 * seen * (double)c->model->attended / tp) * tokens,
                           (double)tn_dtype_size(c->o.compute) * (2 * kept * tokens + products)};
}

/* Exchanges of cp in a block's attention. */
static double context_seconds(const pace *p) {
    const tn_plan_options *o = &p->c->o;
    double each = p->size * p->tokens / o->mesh.tp;
    double kv = each * (double)p->c->model->attended_kv, q = each * (double)p->c->model->attended;
    ring cp = {o->mesh.cp, o->mesh.tp};
    if (o->mesh.context == TN_CP_KEYS) {
        return 2 * message_seconds(&o->machine, cp, kv * cp.n);
    }
    return 2 * (message_seconds(&o->machine, cp, q) + message_seconds(&o->machine, cp, kv));
}

static cost block_forward(const pace *p) {
    tn__plan_load load = tn__plan_block(p->c);
    double x = p->size * (double)p->c->model->shape.width * p->tokens;
    return (cost){compute_seconds(p, load.operations, load.bytes),
                  4 * message_seconds(&p->c->o.machine, tensor_ring(p), x), context_seconds(p)};
}

/* Twice the work, and with recompute a forward more; as many messages. */
static cost block_backward(const pace *p) {
    cost f = block_forward(p), b = {2 * f.compute, f.tensor, f.context};
    if (p->c->o.recompute) {
        b = (cost){3 * f.compute, 2 * f.tensor, 2 * f.context};
    }
    return b;
}

static cost top_forward(const pace *p) {
    const tn__plan_work *w = &p->c->model->top;
    double products = w->products + w->products_cut / p->c->o.mesh.tp;
    double logits = p->size * (double)p->c->model->shape.vocab / p->c->o.mesh.tp * p->tokens;
    double x = p->size * (double)p->c->model->shape.width * p->tokens;
    return (cost){compute_seconds(p, 2 * products * p->tokens, 3 * logits + p->size * products),
                  message_seconds(&p->c->o.machine, tensor_ring(p), x), 0};
}

/* ---- Passes ---------------------------------------------------------------------------------- */

/* What a rank of one place along pp does. */
typedef struct stage_work {
    int blocks;
    bool top;
    double block, rest; /* elements */
} stage_work;

static stage_work work_of(const tn__plan_case *c, int pp) {
    stage_work w = {.top = tn__plan_has(c, pp, c->model->parts - 1)};
    for (int i = 1; i < c->model->parts - 1; i++) {
        w.blocks += tn__plan_has(c, pp, i);
    }
    for (int i = 0; i < c->model->count; i++) {
        const tn__plan_param *p = &c->model->params[i];
        if (tn__plan_has(c, pp, p->first) || tn__plan_has(c, pp, p->last)) {
            *(p->block ? &w.block : &w.rest) += (double)tn__plan_elements(c, p, 0);
        }
    }
    w.block /= w.blocks ? w.blocks : 1;
    return w;
}

/* Seconds for the messages of a block and of the rest. */
typedef struct traffic {
    double block, rest;
} traffic;

/* `bytes` of each element, over the rings of data: gathered, or summed and scattered. */
static traffic gather_traffic(const pace *p, const stage_work *w) {
    const tn_plan_machine *m = &p->c->o.machine;
    return (traffic){message_seconds(m, data_ring(p), p->size * w->block),
                     message_seconds(m, data_ring(p), p->size * w->rest)};
}

static double sum_seconds(const pace *p, double elements) {
    const tn_plan_machine *m = &p->c->o.machine;
    double bytes = 4 * elements, part = bytes / p->c->parts;
    return (p->c->stage ? 1 : 2) * message_seconds(m, data_ring(p), bytes) +
           2 * message_seconds(m, copies_ring(p), part);
}

static traffic sum_traffic(const pace *p, const stage_work *w) {
    return (traffic){sum_seconds(p, w->block), sum_seconds(p, w->rest)};
}

/* Seconds that blocks of this cost wait for messages before, beside and after them. */
static double pass_waits(const pace *p, const stage_work *w, double block, traffic gathers,
                         traffic sums, bool backward) {
    double beside = gathers.block + sums.block, more = w->blocks > 1 ? w->blocks - 1 : 0;
    double hidden = p->c->o.machine.overlap ? fmin(block, beside) : 0;
    double waits = more * (beside - hidden) + gathers.rest + sums.rest;
    if (w->blocks > 0) { /* forward begins with a gather; backward ends with a sum */
        waits += backward ? sums.block : gathers.block;
    }
    return waits;
}

/* ---- A step ---------------------------------------------------------------------------------- */

typedef struct passes {
    cost forward, backward;               /* of a micro-batch */
    double waits_forward, waits_backward; /* in each micro-batch … */
    double once;                          /* … and in a step */
    double elements;
} passes;

static cost add_costs(cost a, double times, cost b) {
    return (cost){a.compute + times * b.compute, a.tensor + times * b.tensor,
                  a.context + times * b.context};
}

static passes passes_of(const pace *p, int pp) {
    const tn__plan_case *c = p->c;
    stage_work w = work_of(c, pp);
    cost f = block_forward(p), b = block_backward(p), top = top_forward(p);
    passes s = {.elements = w.block * w.blocks + w.rest};
    s.forward = add_costs((cost){0}, w.blocks, f);
    s.backward = add_costs((cost){0}, w.blocks, b);
    if (w.top) {
        s.forward = add_costs(s.forward, 1, top);
        s.backward = add_costs(s.backward, 2, top);
    }
    traffic none = {0}, gathers = c->stage ? gather_traffic(p, &w) : none,
            sums = sum_traffic(p, &w);
    bool gathered = c->stage == 3, scattered = c->stage > 1 && c->o.mesh.pp == 1;
    double forward = cost_sum(f), backward = cost_sum(b);
    traffic again = gathered ? gathers : none;
    again.rest = 0; /* it stays whole from forward to backward */
    s.waits_forward = pass_waits(p, &w, forward, gathered ? gathers : none, none, false);
    s.waits_backward = pass_waits(p, &w, backward, again, scattered ? sums : none, true);
    if (!gathered) {
        s.once += pass_waits(p, &w, forward, gathers, none, false);
    }
    if (!scattered) { /* beside the last micro-batch's backward */
        s.once += pass_waits(p, &w, backward, again, sums, true) - s.waits_backward;
    }
    return s;
}

/* How much of a wait for other stages remains where ranks that wait leave processors to others: all
 * of it if no two ranks share one, none if as many as there are stages do. */
static double wait_share(const tn__plan_case *c) {
    double pp = c->o.mesh.pp, shared = fmin(c->o.machine.shared, pp);
    return pp > 1 ? (pp / shared - 1) / (pp - 1) : 1;
}

/* A micro-batch after the other, or in a pipeline whose stages all cost as the slowest. */
static bool run_micros(const pace *p, const passes *s, tn_plan *plan) {
    const tn__plan_case *c = p->c;
    double F = cost_sum(s->forward) + s->waits_forward;
    double B = cost_sum(s->backward) + s->waits_backward;
    double seconds = c->micros * (F + B), busy = seconds;
    if (c->schedule) {
        ring neighbours = {2, c->o.ranks / c->o.mesh.pp};
        double whole = c->o.mesh.tensor.sequence ? c->o.mesh.tp : 1;
        double x = 2 * p->size * (double)c->model->shape.width / whole * p->tokens;
        int chunks = c->stages / c->o.mesh.pp;
        double W = s->forward.compute; /* as much as the forward, and no message */
        tn_pipe_cost seconds_of = {F / chunks, (B - W) / chunks, W / chunks,
                                   message_seconds(&c->o.machine, neighbours, x)};
        tn_pipe_outcome outcome;
        if (tn_pipe_simulate(c->schedule, seconds_of, &outcome, NULL) != TN_OK) {
            return false;
        }
        seconds = outcome.seconds;
    }
    cost each = add_costs(s->forward, 1, s->backward);
    plan->compute = c->micros * each.compute;
    plan->tensor = c->micros * each.tensor;
    plan->context = c->micros * each.context;
    plan->data = c->micros * (s->waits_forward + s->waits_backward) + s->once;
    plan->bubble = (seconds - busy) * wait_share(c);
    plan->seconds = busy + plan->bubble + s->once;
    return true;
}

/* The operations of forward and backward, without what is computed twice. */
static double model_operations(const tn__plan_case *c) {
    const tn__plan_model *m = c->model;
    double products = m->block.products + m->block.products_cut +
                      2 * (double)c->o.positions / 2 * (double)m->attended;
    return 6 * (m->shape.layers * products + m->top.products + m->top.products_cut);
}

bool tn__plan_time(const tn__plan_case *c, tn_plan *plan) {
    pace p = {c, (double)tn_dtype_size(c->o.compute), (double)(c->o.batch * c->positions)};
    passes slowest = {0};
    double most = -1;
    for (int pp = 0; pp < c->o.mesh.pp; pp++) {
        passes s = passes_of(&p, pp);
        double seconds = cost_sum(s.forward) + cost_sum(s.backward);
        if (seconds > most) {
            most = seconds;
            slowest = s;
        }
    }
    if (!run_micros(&p, &slowest, plan)) {
        return false;
    }
    /* reads parameters, gradients and states, writes all but gradients */
    double numbers = 3 + 2.0 * c->o.states, parts = c->stage ? c->parts : 1;
    plan->optimiser = 4 * numbers * slowest.elements / parts / c->o.machine.memory_speed;
    plan->seconds += plan->optimiser;
    double machine = c->o.machine.flops * c->o.ranks;
    plan->utilisation = plan->tokens * model_operations(c) / (plan->seconds * machine);
    return true;
}
