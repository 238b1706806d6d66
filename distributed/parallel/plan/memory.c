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
#include "distributed/parallel/pipeline/pipeline.h"
#include "distributed/parallel/plan/plan.h"
#include "nn/layout.h"

#include <math.h>

enum { EXACT = 4 /* bytes of a number in f32 */ };

int64_t tn__plan_elements(const tn__plan_case *c, const tn__plan_param *p, int tp) {
    tn_layout l = tn__layout_whole(p->whole);
    if (c->o.mesh.tp > 1 && p->dim >= 0) {
        l.dim = p->dim;
        l.pieces = p->pieces;
        l.slice = tp;
        l.slices = c->o.mesh.tp;
    }
    return tn_dims_count(tn__layout_block(&l));
}

/* The rank of pp that has a part. */
static int rank_of(const tn__plan_case *c, int part) {
    int stage = 0;
    while (stage + 1 < c->stages && part >= c->first[stage + 1]) {
        stage++;
    }
    return stage % c->o.mesh.pp;
}

bool tn__plan_has(const tn__plan_case *c, int pp, int part) {
    return rank_of(c, part) == pp;
}

/* ---- At rest --------------------------------------------------------------------------------- */

/* Elements of a rank. */
typedef struct tally {
    const tn__plan_case *c;
    int pp, part, tp;
    int tensors;     /* parameters */
    int blocks;      /* that have any */
    int64_t stepped; /* of this rank's parts … */
    int64_t stored;  /* … with the spaces between parameters */
    int64_t whole;   /* in all ranks' parts */
    int64_t block;   /* of these in the largest block; 0: there is none */
    int64_t rest;    /* of these in no block */
} tally;

/* Some parameters from one to before another, which lie in one flat buffer: a block's, those that
 * only this rank has, or one that other stages have too. */
typedef struct set {
    int from, to;
    bool block, tied;
} set;

static bool is_member(const tally *t, const set *s, const tn__plan_param *p) {
    bool tied = rank_of(t->c, p->first) != rank_of(t->c, p->last);
    return tn__plan_has_param(t->c, t->pp, p) && p->block == s->block && tied == s->tied;
}

static void add_set(tally *t, const set *s) {
    const tn__plan_case *c = t->c;
    int64_t line = tn__flat_line(TN_F32), total = 0, offset = 0;
    int widest = c->stage ? 0 : t->tp; /* shards of all ranks of tp are laid out alike */
    for (int i = s->from; i < s->to; i++) {
        const tn__plan_param *p = &c->model->params[i];
        if (is_member(t, s, p)) {
            tn__flat_place(&total, tn__plan_elements(c, p, widest), line);
        }
    }
    int64_t each = tn__flat_each(total, c->parts, line), all = each * c->parts;
    for (int i = s->from; i < s->to; i++) {
        const tn__plan_param *p = &c->model->params[i];
        if (is_member(t, s, p)) {
            int64_t at = tn__flat_place(&offset, tn__plan_elements(c, p, widest), line);
            t->stepped += tn__flat_cut_of(at, tn__plan_elements(c, p, t->tp), each, t->part).length;
            t->tensors++;
        }
    }
    t->stored += each;
    t->whole += all;
    t->block = s->block && all > t->block ? all : t->block;
    t->rest += s->block ? 0 : all;
    t->blocks += s->block && all > 0;
}

static tally count_elements(const tn__plan_case *c, int pp, int part, int tp) {
    tally t = {.c = c, .pp = pp, .part = part, .tp = tp};
    const tn__plan_param *params = c->model->params;
    int count = c->model->count;
    for (int i = 0, end; i < count; i = end) {
        end = i + 1;
        while (params[i].block && end < count && params[end].first == params[i].first) {
            end++;
        }
        add_set(&t, &(set){i, end, params[i].block, !params[i].block});
    }
    add_set(&t, &(set){0, count, false, false});
    return t;
}

/* The buffers of gradients. Blocks have two, in turn, or one each where gradients stay for later
 * micro-batches. */
static int64_t gradient_buffers(const tn__plan_case *c, const tally *t) {
    if (c->stage < 2) {
        return t->whole;
    }
    bool stay = c->o.mesh.pp > 1 && c->micros * c->stages / c->o.mesh.pp > 1;
    return t->rest + t->block * (stay && t->blocks > 2 ? t->blocks : 2);
}

static void count_rest(const tn__plan_case *c, const tally *t, tn_plan *plan) {
    int64_t size = (int64_t)c->size, stored = c->stage ? t->stored : t->stepped;
    int64_t low = size < EXACT ? size * stored : 0, parts = c->stage ? EXACT * stored : 0;
    plan->weights = EXACT * stored;
    plan->copies = low + (c->stage == 1 || c->stage == 2 ? size * t->whole : 0);
    plan->gradients = parts + EXACT * gradient_buffers(c, t);
    plan->states = EXACT * c->o.states * t->stepped;
    if (c->o.states > 1) { /* and how often each was stepped, as Adam needs to know */
        plan->states += 8 * (int64_t)t->tensors;
    }
    plan->rest = plan->weights + plan->copies + plan->gradients + plan->states;
    if (c->o.mesh.sharding.offload) {
        plan->host = plan->weights + low + parts + plan->states;
    }
}

/* ---- What forwards keep ---------------------------------------------------------------------- */

double tn__plan_kept(const tn__plan_case *c, const tn__plan_work *w) {
    double tp = c->o.mesh.tp, whole = c->o.mesh.tensor.sequence ? tp : 1;
    return w->read + w->kept / whole + w->kept_cut / tp;
}

static double bytes_kept(const tn__plan_case *c, const tn__plan_work *w) {
    double whole = c->o.mesh.tensor.sequence ? c->o.mesh.tp : 1;
    return c->tokens * (c->size * tn__plan_kept(c, w) + EXACT * w->sums / whole);
}

static double block_kept(const tn__plan_case *c) {
    double heads = EXACT * (double)c->model->shape.heads / c->o.mesh.tp;
    return bytes_kept(c, &c->model->block) + heads * c->tokens;
}

/* An x between blocks. */
static double x_bytes(const tn__plan_case *c) {
    return c->between * c->tokens;
}

static double logits_bytes(const tn__plan_case *c) {
    int64_t tp = c->o.mesh.tp, columns = (c->model->shape.vocab + tp - 1) / tp;
    return c->size * (double)columns * c->tokens;
}

static int blocks_of(const tn__plan_case *c, int stage) {
    int first = c->first[stage] > 1 ? c->first[stage] : 1, last = c->model->parts - 1;
    int end = c->first[stage + 1] < last ? c->first[stage + 1] : last;
    return end > first ? end - first : 0;
}

/* Bytes that one forward of the stage keeps until its backward. */
static double stage_kept(const tn__plan_case *c, int stage) {
    tn__plan_work top = c->model->top;
    top.kept_cut = 0; /* the logits, whose place their gradient takes */
    double each = c->o.recompute ? x_bytes(c) : block_kept(c);
    double bytes = x_bytes(c) + blocks_of(c, stage) * each;
    return bytes + (stage == c->stages - 1 ? bytes_kept(c, &top) + logits_bytes(c) : 0);
}

/* Bytes by which the first half of a backward changes what is kept of a block, until the second:
 * its graph, whole if it was to be repeated, has freed what attention and activation keep, but has
 * the gradients of what linears and norms give. That is 4 C more (model.c). */
static double waiting_of(const tn__plan_case *c) {
    return 4 * x_bytes(c) + (c->o.recompute ? block_kept(c) - x_bytes(c) : 0);
}

/* Bytes of forwards whose backward is still to come, at most, in this rank's row. */
static double most_kept(const tn__plan_case *c, int pp, int *alive) {
    double now = 0, most = 0;
    int graphs = 0;
    *alive = 0;
    if (!c->schedule) {
        *alive = 1;
        return stage_kept(c, 0);
    }
    for (int i = 0; i < c->schedule->counts[pp]; i++) {
        tn_pipe_action a = c->schedule->rows[pp][i];
        int change = a.what == 'F' ? 1 : a.what == 'B' || a.what == 'W' ? -1 : 0;
        int waits = a.what == 'I' ? 1 : a.what == 'W' ? -1 : 0;
        int blocks = a.stage > 0 ? blocks_of(c, a.stage) : 0; /* the first stage's I does nothing */
        graphs += change;
        now += change * stage_kept(c, a.stage) + waits * blocks * waiting_of(c);
        /* the last graph that is repeated is counted where it is made (block_bytes) */
        double made = waits > 0 && blocks > 0 && c->o.recompute ? waiting_of(c) : 0;
        most = fmax(most, now - made);
        *alive = graphs > *alive ? graphs : *alive;
    }
    return most;
}

/* ---- What comes and goes --------------------------------------------------------------------- */

/* Of messages between stages: outputs that have come, with their gradients, and gradients. */
static double messages_bytes(const tn__plan_case *c, int pp) {
    int last = c->o.mesh.pp - 1;
    int ahead = 1 + TN__PIPE_AHEAD < c->micros ? 1 + TN__PIPE_AHEAD : c->micros;
    bool begins = pp == 0 && c->stages == last + 1, ends = pp == last && c->stages == last + 1;
    return last > 0 ? ((begins ? 0 : ahead + 1) + (ends ? 0 : ahead)) * x_bytes(c) : 0;
}

/* A backward of the largest block. With recompute its graph is whole once more, and all of its
 * gradients come out of it together, while the part of the block above arrives, if it cannot be
 * added where parts are. */
static double block_bytes(const tn__plan_case *c, const tally *t) {
    const tn__plan_work *w = &c->model->block;
    double tp = c->o.mesh.tp, bytes = EXACT * (w->widest * c->tokens + w->matrix) / tp;
    if (!c->o.recompute) {
        return bytes;
    }
    double graph = block_kept(c), gradients = EXACT * w->products / tp;
    bool arrives = c->stage > 1 && c->o.mesh.pp == 1 && c->micros > 1;
    double part = arrives ? EXACT * (double)t->block / c->parts : 0;
    return 3 * x_bytes(c) + fmax(graph + bytes, graph / 2 + gradients) + part;
}

/* The most bytes of the step that are neither kept nor weights; below 0 where what is kept has been
 * freed by then. What a processor's kernels need for themselves is not among them. */
static double most_working(const tn__plan_case *c, const tally *t, int pp) {
    double x = x_bytes(c), logits = logits_bytes(c), most = 0;
    double table = EXACT * c->model->top.products / c->o.mesh.tp;
    bool first = tn__plan_has(c, pp, 0), last = tn__plan_has(c, pp, c->model->parts - 1);
    double over = last && !c->halves ? x + logits : 0; /* freed before a block's backward */
    if (last) {
        most = fmax(logits, table + 2 * x);
    }
    most = fmax(most, block_bytes(c, t) - over);
    if (first) { /* the stem's */
        double width = (double)c->model->shape.width;
        most = fmax(most, table + EXACT * width * c->tokens - stage_kept(c, 0));
    }
    return most + messages_bytes(c, pp);
}

void tn__plan_memory(const tn__plan_case *c, int pp, int part, int tp, tn_plan *plan) {
    tally t = count_elements(c, pp, part, tp);
    count_rest(c, &t, plan);
    if (c->stage == 3) {
        int64_t units = t.rest + (1 + c->o.mesh.sharding.prefetch) * t.block;
        units = units < t.whole && !c->halves ? units : t.whole;
        plan->gathered = units * (int64_t)c->size;
    }
    plan->activations = llround(most_kept(c, pp, &plan->alive));
    plan->working = llround(most_working(c, &t, pp));
    plan->peak = plan->rest - plan->host + plan->gathered + plan->activations + plan->working;
}
