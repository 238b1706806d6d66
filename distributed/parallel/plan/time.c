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
 * A block's sums over tp and exchanges over cp hide behind nothing. A backward is twice the work,
 * and with recompute a forward more; of messages as many, or two.
 */
#include "distributed/parallel/plan/plan.h"

#include <math.h>

static const double host_delay = 1e-5, network_delay = 3e-5; /* seconds of a message */

/* Seconds for a message of which each of n ranks, which are `stride` apart, has, or gets, 1 / n.
 * Ranks of one host that belong to it use their links to other hosts together. */
static double message_seconds(const tn__plan_case *c, int n, int stride, double bytes) {
    const tn__plan_machine *m = &c->o.machine;
    double link = m->host_link, delay = host_delay;
    if (n == 1 || bytes == 0) { return 0; }
    if ((int64_t)n * stride > m->per_host) {
        int together = stride < m->per_host ? m->per_host / stride : 1;
        link = fmin(m->host_link, m->network_link * together);
        delay = network_delay;
    }
    return delay + (n - 1.0) / n * bytes / link;
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
    int forwards = gathers ? c->micros : 1, lasts = scatters ? c->micros : 1;
    double come = gather_seconds(c, n->block), again = gathers ? come : 0;
    double go = reduce_seconds(c, n->block), hidden = fmax(0, n->blocks - 1);
    double forward = hidden * fmax(0, come - there) + come + gather_seconds(c, n->rest);
    double backward = hidden * fmax(0, again - back);
    double last = hidden * fmax(0, again + go - back) + go + reduce_seconds(c, n->rest);
    return forwards * forward + (c->micros - lasts) * backward + lasts * last;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static double compute_seconds(const tn__plan_case *c, double operations, double bytes) {
    const tn__plan_machine *m = &c->o.machine;
    return operations / (m->flops * m->reached) + bytes / m->memory_speed;
}

/* Of queries, keys, values and results over cp; or of keys and values of all. */
static double exchange_seconds(const tn__plan_case *c) {
    int tp = c->o.mesh.tp, cp = c->o.mesh.cp;
    double each = c->size * c->tokens / tp;
    double kv = each * c->model->attended_kv, q = each * c->model->attended;
    if (c->o.mesh.context == TN_CP_KEYS) { return 2 * message_seconds(c, cp, tp, kv * cp); }
    return 2 * (message_seconds(c, cp, tp, q) + message_seconds(c, cp, tp, kv));
}

/* Seconds for which stages wait for each other that take so long forward and back, of which W for
 * gradients of weights: the first micro-batch goes through all before the last has work, and as
 * long at the end. With zero bubble a rank does its W meanwhile. */
static double bubble_of(const tn__plan_case *c, double there, double back, double W) {
    const tn_spread_options *m = &c->o.mesh;
    double idle = there + back - (m->pipeline.kind == TN_PIPE_ZERO_BUBBLE ? 2 * W : 0);
    double link = message_seconds(c, 2, c->row, 2 * c->x);
    return m->pp > 1 ? (m->pp - 1) * (idle * m->pp / c->stages + 2 * link) : 0;
}

void tn__plan_time(const tn__plan_case *c, const tn__plan_count *n, int rank,
                   tn__plan_result *plan) {
    const tn__plan_model *m = c->model;
    const tn__plan_machine *machine = &c->o.machine;
    int tp = c->o.mesh.tp, work = c->o.recompute ? 3 : 2, messages = c->o.recompute ? 2 : 1;
    double blocks = n->blocks, tops = c->pp[m->parts - 1] == rank / c->row;
    /* attention is causal: a position sees half of all; what is kept is written and read */
    double products = m->products + (double)c->o.positions * m->attended;
    double block = compute_seconds(c, 2 * products / tp * c->tokens,
                                   2 * c->graph + c->size * m->products / tp);
    double top =
        compute_seconds(c, 2 * m->table / tp * c->tokens,
                        c->size * (3 * (double)m->shape.vocab * c->tokens + m->table) / tp);
    double sum = message_seconds(c, tp, 1, c->x * c->slices);
    double exchange = 4 * sum + exchange_seconds(c);
    double there = block + exchange, back = work * block + messages * exchange;
    tn__plan_result p = *plan;
    p.compute = c->micros * (blocks * (1 + work) * block + tops * 3 * top);
    p.exchange = c->micros * (blocks * (1 + messages) * exchange + tops * 3 * sum);
    p.data = data_seconds(c, n, there, back);
    p.bubble = bubble_of(c, blocks * there + tops * (top + sum),
                         blocks * back + tops * 2 * (top + sum), blocks * block + tops * top);
    /* reads parameters, gradients and two states, writes all but gradients */
    p.optimiser = 4 * 7 * (double)n->stepped / machine->memory_speed;
    p.seconds = p.compute + p.exchange + p.data + p.bubble + p.optimiser;
    double needed = 6 * (m->shape.layers * products + m->table);
    p.utilisation = p.tokens * needed / (p.seconds * machine->flops * c->o.ranks);
    *plan = p.seconds > plan->seconds ? p : *plan;
}
