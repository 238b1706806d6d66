/* Seconds of a step.
 *
 *     part       operations / (flops · reached) + bytes / memory speed
 *     message    delay + (n - 1) / n bytes / link       a gather, a scatter, an exchange
 *     forward    each block beside the gather of the next; the rest's and the first one's alone
 *     backward   each block beside the gather of the next and the sums of the last; the rest's and
 *                the last one's alone
 *     step       micro-batches in turn; the bubble of a pipeline; weights that are gathered and
 *                gradients that travel once; the optimiser, at memory speed
 *
 * A block's sums over tp and exchanges over cp hide behind nothing.
 */
#include "distributed/parallel/plan/plan.h"

#include <math.h>

static const double host_delay = 1e-5, network_delay = 3e-5; /* seconds of a message */

/* Seconds for a message of which each of n ranks, which are `stride` apart, has, or gets, 1 / n.
 * Ranks of one host that belong to it use their links to other hosts together. */
static double message_seconds(const tn__plan_case *c, int n, int stride, double bytes) {
    const tn_plan_machine *m = &c->o.machine;
    double link = m->host_link, delay = host_delay;
    if ((int64_t)n * stride > m->per_host) {
        int together = stride < m->per_host ? m->per_host / stride : 1;
        link = fmin(m->host_link, m->network_link * together);
        delay = network_delay;
    }
    return n > 1 ? delay + (n - 1.0) / n * bytes / link : 0;
}

/* ---- A forward ------------------------------------------------------------------------------- */

/* Seconds of a micro-batch. */
typedef struct forward_seconds {
    double block, exchange; /* a block's computing; its sums over tp and exchanges over cp */
    double top, top_sum;    /* the same of the top */
} forward_seconds;

static double compute_seconds(const tn__plan_case *c, double operations, double numbers) {
    const tn_plan_machine *m = &c->o.machine;
    return operations / (m->flops * m->reached) + c->size * numbers / m->memory_speed;
}

/* Multiplications of a block for a position, which sees half of all, since attention is causal. */
static double block_products(const tn__plan_case *c) {
    return c->model->products + (double)(c->o.positions * c->model->attended);
}

/* Over cp there are queries, keys, values and results to exchange, or keys and values of all. What
 * is kept is written and read, and so are the matrices. */
static forward_seconds forward_of(const tn__plan_case *c) {
    const tn__plan_model *m = c->model;
    int tp = c->o.mesh.tp, cp = c->o.mesh.cp;
    double each = c->size * c->tokens / tp, table = tn__plan_top(m);
    double kv = each * (double)m->attended_kv, q = each * (double)m->attended;
    double sum = message_seconds(c, tp, 1, c->x * c->slices);
    double over_cp = c->o.mesh.context == TN_CP_KEYS
                         ? 2 * message_seconds(c, cp, tp, kv * cp)
                         : 2 * (message_seconds(c, cp, tp, q) + message_seconds(c, cp, tp, kv));
    return (forward_seconds){
        .block = compute_seconds(c, 2 * block_products(c) / tp * c->tokens,
                                 2 * tn__plan_kept(c) * c->tokens + m->products / tp),
        .exchange = 4 * sum + over_cp,
        .top = compute_seconds(c, 2 * table / tp * c->tokens,
                               (3 * (double)m->shape.vocab * c->tokens + table) / tp),
        .top_sum = sum};
}

/* ---- Messages of data ------------------------------------------------------------------------ */

/* Whole weights come to the ranks that share them. */
static double gather_seconds(const tn__plan_case *c, int64_t elements) {
    return c->stage ? message_seconds(c, c->parts, c->o.mesh.tp, c->size * (double)elements) : 0;
}

/* Whole gradients are summed over the ranks that share parts, and the parts of these sums over
 * copies; with DDP over all that have copies. */
static double reduce_seconds(const tn__plan_case *c, int64_t elements) {
    const tn_spread_options *m = &c->o.mesh;
    double bytes = 4 * (double)elements;
    if (!c->stage) { return 2 * message_seconds(c, m->dp * m->cp, m->tp, bytes); }
    return message_seconds(c, c->parts, m->tp, bytes) +
           2 * message_seconds(c, m->dp, m->tp * m->cp * m->shard, bytes / c->parts);
}

/* Seconds for which a step waits whose blocks take so long forward and back. Messages of all blocks
 * but one go beside the computing of another. */
static double data_seconds(const tn__plan_case *c, const tn__plan_count *n, double there,
                           double back) {
    bool gathers = c->stage == 3, scatters = c->stage > 1 && c->o.mesh.pp == 1;
    int forwards = gathers ? c->micros : 1, lasts = scatters ? c->micros : 1,
        hidden = n->blocks - 1;
    if (hidden < 0) {
        return forwards * gather_seconds(c, n->rest) + lasts * reduce_seconds(c, n->rest);
    }
    double come = gather_seconds(c, n->block), again = gathers ? come : 0;
    double go = reduce_seconds(c, n->block);
    double forward = hidden * fmax(0, come - there) + come + gather_seconds(c, n->rest);
    double backward = hidden * fmax(0, again - back);
    double last = hidden * fmax(0, again + go - back) + go + reduce_seconds(c, n->rest);
    return forwards * forward + (c->micros - lasts) * backward + lasts * last;
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* The rank of pp with the most to compute, if the top is worth so many blocks. */
static int slowest_of(const tn__plan_case *c, double top) {
    int slowest = 0, parts = c->model->parts;
    double most = 0;
    for (int pp = 0; pp < c->o.mesh.pp; pp++) {
        double work = c->rank[parts - 1] == pp ? top : 0;
        for (int i = 1; i < parts - 1; i++) {
            work += c->rank[i] == pp;
        }
        slowest = work > most ? pp : slowest;
        most = fmax(most, work);
    }
    return slowest;
}

/* Seconds for which stages wait for each other that take so long forward and back, of which W for
 * gradients of weights: the first micro-batch goes through all before the last has work, and as
 * long at the end. With zero bubble a rank does its W meanwhile. */
static double bubble_of(const tn__plan_case *c, double there, double back, double W) {
    const tn_spread_options *m = &c->o.mesh;
    double idle = there + back - (m->pipeline.kind == TN_PIPE_ZERO_BUBBLE ? 2 * W : 0);
    double link = message_seconds(c, 2, c->o.ranks / m->pp, 2 * c->x);
    return m->pp > 1 ? (m->pp - 1) * (idle * m->pp / c->stages + 2 * link) : 0;
}

/* A backward is twice the work, and with recompute a forward more; of messages as many, or two. */
void tn__plan_time(const tn__plan_case *c, tn_plan *plan) {
    int work = c->o.recompute ? 3 : 2, messages = c->o.recompute ? 2 : 1;
    forward_seconds f = forward_of(c);
    double there = f.block + f.exchange, back = work * f.block + messages * f.exchange;
    double top = f.top + f.top_sum;
    int pp = slowest_of(c, 3 * top / (there + back));
    tn__plan_count n = tn__plan_elements(c, pp * (c->o.ranks / c->o.mesh.pp));
    double blocks = n.blocks, tops = c->rank[c->model->parts - 1] == pp;
    plan->compute = c->micros * (blocks * (1 + work) * f.block + tops * 3 * f.top);
    plan->exchange = c->micros * (blocks * (1 + messages) * f.exchange + tops * 3 * f.top_sum);
    plan->data = data_seconds(c, &n, there, back);
    plan->bubble = bubble_of(c, blocks * there + tops * top, blocks * back + tops * 2 * top,
                             blocks * f.block + tops * f.top);
    /* reads parameters, gradients and two states, writes all but gradients */
    plan->optimiser = 4 * 7 * (double)n.stepped / c->o.machine.memory_speed;
    plan->seconds = plan->compute + plan->exchange + plan->data + plan->bubble + plan->optimiser;
    double needed = 6 * (c->model->shape.layers * block_products(c) + tn__plan_top(c->model));
    plan->utilisation = plan->tokens * needed / (plan->seconds * c->o.machine.flops * c->o.ranks);
}
