/* Bytes of a rank.
 *
 * At rest they are counted as the strategies lay parameters out: DDP has whole parameters, and
 * their gradients in buckets; sharding has parts of flat buffers (fsdp/units.c), buffers from which
 * whole gradients travel (fsdp/grads.c), and at stages 1 and 2 the whole in the compute dtype.
 *
 * In a step there come what forwards keep, as often as graphs are alive, and the most of three
 * moments: the loss, the top's backward with the gradient of the embedding, a block's backward.
 */
#include "distributed/parallel/flat.h"
#include "distributed/parallel/plan/plan.h"

#include <math.h>
#include <string.h>

enum { EXACT = 4 /* bytes of a number in f32 */ };

/* ---- At rest --------------------------------------------------------------------------------- */

/* A block is a set, and so is a parameter that other stages have, too. */
static int set_of(const tn__plan_case *c, const tn__plan_param *p) {
    bool tied = c->pp[p->first] != c->pp[p->last];
    return p->block ? p->first : tied ? c->model->parts - 1 : 0;
}

int64_t tn__plan_block(const tn__plan_param *p, int tp, int n) {
    tn_layout l = p->layout;
    l.slice = tp;
    l.slices = n;
    return tn_dims_count(tn__layout_block(&l));
}

/* The rank's next parameter after p (NULL: the first), or NULL. */
static const tn__plan_param *next_param(const tn__plan_case *c, int pp, const tn__plan_param *p) {
    const tn__plan_param *end = c->model->params + c->model->count;
    for (p = p ? p + 1 : c->model->params; p < end; p++) {
        if (c->pp[p->first] == pp || c->pp[p->last] == pp) { return p; }
    }
    return NULL;
}

tn__plan_count tn__plan_elements(const tn__plan_case *c, int rank) {
    tn__plan_count n = {0};
    int64_t line = tn__flat_line(TN_F32);
    int tps = c->o.mesh.tp, tp = rank % tps, part = rank / tps % c->parts, pp = rank / c->row;
    int laid = c->stage ? 0 : tp; /* sharding leaves room for the largest block of any rank */
    memset(c->sets, 0, (size_t)c->model->parts * sizeof(*c->sets));
    for (const tn__plan_param *p = NULL; (p = next_param(c, pp, p));) {
        tn__flat_place(&c->sets[set_of(c, p)].total, tn__plan_block(p, laid, tps), line);
    }
    for (int i = 0; i < c->model->parts; i++) {
        c->sets[i].each = tn__flat_each(c->sets[i].total, c->parts, line);
        int64_t all = c->sets[i].each * c->parts;
        bool block = i > 0 && i < c->model->parts - 1;
        n.stored += c->sets[i].each;
        n.whole += all;
        n.block = block && all > n.block ? all : n.block;
        n.rest += block ? 0 : all;
        n.blocks += block && all > 0;
    }
    for (const tn__plan_param *p = NULL; (p = next_param(c, pp, p)); n.tensors++) {
        tn__plan_set *set = &c->sets[set_of(c, p)];
        int64_t at = tn__flat_place(&set->placed, tn__plan_block(p, laid, tps), line);
        n.stepped += tn__flat_cut_of(at, tn__plan_block(p, tp, tps), set->each, part).length;
    }
    return n;
}

static void count_rest(const tn__plan_case *c, const tn__plan_count *n, tn__plan_result *plan) {
    int64_t size = (int64_t)c->size, stored = c->stage ? n->stored : n->stepped;
    int64_t low = size < EXACT ? size * stored : 0, parts = c->stage ? EXACT * stored : 0;
    /* blocks' gradients have two buffers, in turn, or one each if they stay for micro-batches */
    bool stay = c->o.mesh.pp > 1 && c->micros * c->stages / c->o.mesh.pp > 1;
    int64_t buffers = stay && n->blocks > 2 ? n->blocks : 2;
    plan->weights = EXACT * stored;
    plan->copies = low + (c->stage == 1 || c->stage == 2 ? size * n->whole : 0);
    plan->gradients = parts + EXACT * (c->stage < 2 ? n->whole : n->rest + n->block * buffers);
    plan->states = 2 * EXACT * n->stepped + 8 * (int64_t)n->tensors; /* and their steps */
    plan->rest = plan->weights + plan->copies + plan->gradients + plan->states;
    plan->host = c->o.mesh.sharding.offload ? plan->weights + low + parts + plan->states : 0;
}

/* ---- In a step ------------------------------------------------------------------------------- */

static int blocks_of(const tn__plan_case *c, int stage) {
    int blocks = c->first[stage + 1] - c->first[stage];
    return blocks - (stage == 0) - (stage == c->stages - 1);
}

/* Bytes that one forward of the stage keeps until its backward: what enters it, and the top. */
static double stage_kept(const tn__plan_case *c, int stage) {
    double bytes = c->x + blocks_of(c, stage) * (c->o.recompute ? c->x : c->graph);
    return bytes + (stage == c->stages - 1 ? c->x + c->logits : 0);
}

/* Bytes by which the first half of a backward changes what is kept of a block, until the second:
 * its graph, whole if it was to be repeated, has freed what attention and activation keep, but has
 * the gradients of what linears and norms give. That is 4 C more (model.c). */
static double waiting_of(const tn__plan_case *c) {
    return 4 * c->x + (c->o.recompute ? c->graph - c->x : 0);
}

/* Bytes of forwards whose backward is still to come, at most, in this rank's row. */
static double most_kept(const tn__plan_case *c, int pp) {
    if (!c->schedule) { return stage_kept(c, 0); }
    double now = 0, most = 0;
    for (int i = 0; i < c->schedule->counts[pp]; i++) {
        tn_pipe_action a = c->schedule->rows[pp][i];
        int graphs = a.what == 'F' ? 1 : a.what == 'B' || a.what == 'W' ? -1 : 0;
        int waits = a.what == 'I' ? 1 : a.what == 'W' ? -1 : 0;
        int blocks = a.stage > 0 ? blocks_of(c, a.stage) : 0; /* the first stage's I does nothing */
        now += graphs * stage_kept(c, a.stage) + waits * blocks * waiting_of(c);
        /* the last graph that is repeated is counted where it is made (most_working) */
        double made = waits > 0 && blocks > 0 && c->o.recompute ? waiting_of(c) : 0;
        most = fmax(most, now - made);
    }
    return most;
}

/* The most bytes of the step that are neither kept nor weights: in a block's backward, where with
 * recompute its graph is whole once more; in the top's, with the gradient of its table; in the
 * stem's, when what was kept is free again; and messages between stages: outputs that have come,
 * with their gradients, and gradients. What a processor's kernels need is not among them. */
static double most_working(const tn__plan_case *c, int pp) {
    double tp = c->o.mesh.tp, table = EXACT * c->model->table / tp;
    double most = EXACT * c->model->products / tp + (c->o.recompute ? c->graph : 0);
    if (c->pp[0] == pp) { most = fmax(most, table - stage_kept(c, 0)); }
    if (c->pp[c->model->parts - 1] == pp) { most = fmax(most, fmax(table, c->logits)); }
    int ahead = 1 + TN__PIPE_AHEAD < c->micros ? 1 + TN__PIPE_AHEAD : c->micros;
    bool both = c->stages > c->o.mesh.pp, below = both || pp > 0,
         above = both || pp + 1 < c->stages;
    return most + (below * (ahead + 1) + above * ahead) * c->x;
}

void tn__plan_memory(const tn__plan_case *c, const tn__plan_count *n, int rank,
                     tn__plan_result *plan) {
    tn__plan_result p = *plan;
    p.rank = rank;
    bool halves = c->schedule && c->o.mesh.pipeline.kind == TN_PIPE_ZERO_BUBBLE;
    int64_t units = n->rest + (1 + c->o.mesh.sharding.prefetch) * n->block;
    units = units < n->whole && !halves ? units : n->whole;
    count_rest(c, n, &p);
    p.gathered = c->stage == 3 ? units * (int64_t)c->size : 0;
    p.activations = llround(most_kept(c, rank / c->row));
    p.working = llround(most_working(c, rank / c->row));
    p.peak = p.rest - p.host + p.gathered + p.activations + p.working;
    *plan = p.peak > plan->peak ? p : *plan;
}
