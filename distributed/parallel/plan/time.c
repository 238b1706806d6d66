/* Seconds of a step.
 *
 *     part       operations / (flops · reached) + bytes / memory speed
 *     message    delay + (n - 1) / n bytes / link       a gather, a scatter, an exchange
 *     forward    each block beside the gather of the next; the rest's and the first one's alone
 *     backward   each block beside the gather of the next and the sums of the last; the rest's and
 *                the last one's alone
 *     step       micro-batches in turn, or the simulated pipeline; weights that are gathered and
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

/* ---- Forwards -------------------------------------------------------------------------------- */

/* Seconds of one forward of a micro-batch. */
typedef struct forward_seconds {
    double block, tensor, context; /* a block's computing, sums over tp, exchanges over cp */
    double top, top_tensor;        /* the same of the top */
} forward_seconds;

static double compute_seconds(const tn__plan_case *c, double operations, double numbers) {
    const tn_plan_machine *m = &c->o.machine;
    return operations / (m->flops * m->reached) + c->size * numbers / m->memory_speed;
}

static double context_seconds(const tn__plan_case *c) {
    int tp = c->o.mesh.tp, cp = c->o.mesh.cp;
    double each = c->size * c->tokens / tp;
    double kv = each * (double)c->model->attended_kv, q = each * (double)c->model->attended;
    return c->o.mesh.context == TN_CP_KEYS
               ? 2 * message_seconds(c, cp, tp, kv * cp)
               : 2 * (message_seconds(c, cp, tp, q) + message_seconds(c, cp, tp, kv));
}

/* Multiplications of a block for a position, which sees half of all, since attention is causal. */
static double block_products(const tn__plan_case *c) {
    return c->model->block.products + (double)(c->o.positions * c->model->attended);
}

/* What is kept is written and read, and so are the matrices. */
static forward_seconds forward_of(const tn__plan_case *c) {
    const tn__plan_work *block = &c->model->block, *top = &c->model->top;
    int tp = c->o.mesh.tp;
    double tokens = c->tokens, vocab = (double)c->model->shape.vocab;
    double sum = message_seconds(c, tp, 1, c->size * (double)c->model->shape.width * tokens);
    return (forward_seconds){
        .block = compute_seconds(c, 2 * block_products(c) / tp * tokens,
                                 2 * tn__plan_kept(c, block) * tokens + block->products / tp),
        .tensor = 4 * sum,
        .context = context_seconds(c),
        .top = compute_seconds(c, 2 * top->products / tp * tokens,
                               (3 * vocab * tokens + top->products) / tp),
        .top_tensor = sum};
}

/* ---- Messages of data ------------------------------------------------------------------------ */

/* Whole weights come to the ranks that share them. */
static double gather_seconds(const tn__plan_case *c, int64_t elements) {
    return c->stage ? message_seconds(c, c->parts, c->o.mesh.tp, c->size * (double)elements) : 0;
}

/* Whole gradients are summed over the ranks that share parts, and the parts of these sums over
 * copies; with DDP over all that have copies. */
static double sum_seconds(const tn__plan_case *c, int64_t elements) {
    const tn_spread_options *m = &c->o.mesh;
    double bytes = 4 * (double)elements;
    if (!c->stage) { return 2 * message_seconds(c, m->dp * m->cp, m->tp, bytes); }
    return message_seconds(c, c->parts, m->tp, bytes) +
           2 * message_seconds(c, m->dp, m->tp * m->cp * m->shard, bytes / c->parts);
}

/* Seconds for which a pass waits: all blocks but one compute, `seconds` each, while `beside` is on
 * its way; nothing hides `alone`. */
static double pass_waits(const tn__plan_count *n, double seconds, double beside, double alone) {
    double more = n->blocks > 1 ? n->blocks - 1 : 0;
    return more * fmax(0, beside - seconds) + alone;
}

/* In a step of blocks that take so long forward and back. */
static double data_seconds(const tn__plan_case *c, const tn__plan_count *n, double there,
                           double back) {
    bool gathers = c->stage == 3, scatters = c->stage > 1 && c->o.mesh.pp == 1;
    double come = n->blocks ? gather_seconds(c, n->block) : 0;
    double go = n->blocks ? sum_seconds(c, n->block) : 0, again = gathers ? come : 0;
    double forward = pass_waits(n, there, come, come + gather_seconds(c, n->rest));
    double backward = pass_waits(n, back, again, 0);
    double last = pass_waits(n, back, again + go, go + sum_seconds(c, n->rest)); /* sends them */
    int forwards = gathers ? c->micros : 1, lasts = scatters ? c->micros : 1;
    return forwards * forward + (c->micros - lasts) * backward + lasts * last;
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* The rank of pp with the most to compute, if the top is worth so many blocks. */
static int slowest_of(const tn__plan_case *c, double top) {
    int slowest = 0;
    double most = -1;
    for (int pp = 0; pp < c->o.mesh.pp; pp++) {
        double work = c->rank[c->model->parts - 1] == pp ? top : 0;
        for (int i = 1; i < c->model->parts - 1; i++) {
            work += c->rank[i] == pp;
        }
        slowest = work > most ? pp : slowest;
        most = fmax(most, work);
    }
    return slowest;
}

/* Seconds for which stages wait for each other that all take so long forward and back, of which W
 * for gradients of weights. NaN after raising. */
static double bubble_of(const tn__plan_case *c, double there, double back, double W) {
    if (!c->schedule) { return 0; }
    int chunks = c->stages / c->o.mesh.pp, apart = c->o.ranks / c->o.mesh.pp;
    tn_pipe_cost cost = {there / chunks, (back - W) / chunks, W / chunks,
                         message_seconds(c, 2, apart, 2 * c->x)};
    tn_pipe_outcome outcome;
    tn_status status = tn_pipe_simulate(c->schedule, cost, &outcome, NULL);
    return status == TN_OK ? outcome.seconds - c->micros * (there + back) : NAN;
}

/* A backward is twice the work, and with recompute a forward more; of messages as many, or two. */
bool tn__plan_time(const tn__plan_case *c, tn_plan *plan) {
    forward_seconds f = forward_of(c);
    int work = c->o.recompute ? 3 : 2, messages = c->o.recompute ? 2 : 1;
    double there = f.block + f.tensor + f.context, top = f.top + f.top_tensor;
    double back = work * f.block + messages * (f.tensor + f.context);
    int pp = slowest_of(c, 3 * top / (there + back));
    tn__plan_count n = tn__plan_elements(c, pp, 0, 0);
    double blocks = n.blocks, tops = c->rank[c->model->parts - 1] == pp;
    plan->compute = c->micros * (blocks * (1 + work) * f.block + tops * 3 * f.top);
    plan->tensor = c->micros * (blocks * (1 + messages) * f.tensor + tops * 3 * f.top_tensor);
    plan->context = c->micros * blocks * (1 + messages) * f.context;
    plan->data = data_seconds(c, &n, there, back);
    plan->bubble = bubble_of(c, blocks * there + tops * top, blocks * back + tops * 2 * top,
                             blocks * f.block + tops * f.top);
    /* reads parameters, gradients and states, writes all but gradients */
    plan->optimiser = 4 * (3 + 2.0 * c->o.states) * (double)n.stepped / c->o.machine.memory_speed;
    plan->seconds =
        plan->compute + plan->tensor + plan->context + plan->data + plan->bubble + plan->optimiser;
    double needed = 6 * (c->model->shape.layers * block_products(c) + c->model->top.products);
    plan->utilisation = plan->tokens * needed / (plan->seconds * c->o.machine.flops * c->o.ranks);
    return !tn__pending();
}
