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

static int64_t larger_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

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

/* The stage of a part. */
static int stage_of(const tn__plan_case *c, int part) {
    int stage = 0;
    while (stage + 1 < c->stages && part >= c->first[stage + 1]) {
        stage++;
    }
    return stage;
}

bool tn__plan_has(const tn__plan_case *c, int pp, int part) {
    return stage_of(c, part) % c->o.mesh.pp == pp;
}

/* ---- At rest --------------------------------------------------------------------------------- */

/* Elements of a rank. */
typedef struct tally {
    const tn__plan_case *c;
    int pp, part, tp;
    int tensors;     /* parameters */
    int64_t whole;   /* elements that are whole at times */
    int64_t stored;  /* of a rank's parts, with the spaces between parameters … */
    int64_t stepped; /* … and without */
    int64_t buffers; /* of gradients */
    int64_t block;   /* of the largest block, in all its parts; 0: there is none */
    int64_t rest;    /* of what is in no block */
    int blocks;
} tally;

/* The parameters of the model from one to before another that are of the rank, and in blocks or
 * not, and tied over stages or not: they lie in one buffer. */
typedef struct choice {
    int from, to;
    bool block, tied;
} choice;

static bool is_chosen(const tally *t, const choice *which, const tn__plan_param *p) {
    bool first = tn__plan_has(t->c, t->pp, p->first), last = tn__plan_has(t->c, t->pp, p->last);
    bool tied =
        stage_of(t->c, p->first) % t->c->o.mesh.pp != stage_of(t->c, p->last) % t->c->o.mesh.pp;
    return (first || last) && p->block == which->block && tied == which->tied;
}

/* DDP: each is whole, and its gradient begins at a cache line. */
static void add_whole(tally *t, const choice *which) {
    for (int i = which->from; i < which->to; i++) {
        const tn__plan_param *p = &t->c->model->params[i];
        if (is_chosen(t, which, p)) {
            int64_t count = tn__plan_elements(t->c, p, t->tp);
            t->tensors++;
            t->stored += count;
            t->stepped += count;
            tn__flat_place(&t->buffers, count, tn__flat_line(TN_F32));
        }
    }
}

/* A set of sharding. */
static void add_set(tally *t, const choice *which) {
    const tn__plan_model *model = t->c->model;
    int64_t line = tn__flat_line(TN_F32), total = 0, offset = 0;
    for (int i = which->from; i < which->to; i++) {
        if (is_chosen(t, which, &model->params[i])) {
            tn__flat_place(&total, tn__plan_elements(t->c, &model->params[i], 0), line);
        }
    }
    int64_t each = tn__flat_each(total, t->c->parts, line), all = each * t->c->parts;
    for (int i = which->from; i < which->to; i++) {
        const tn__plan_param *p = &model->params[i];
        if (is_chosen(t, which, p)) {
            int64_t at = tn__flat_place(&offset, tn__plan_elements(t->c, p, 0), line);
            t->stepped +=
                tn__flat_cut_of(at, tn__plan_elements(t->c, p, t->tp), each, t->part).length;
            t->tensors++;
        }
    }
    t->stored += each;
    t->whole += all;
    t->block = which->block ? larger_of(t->block, all) : t->block;
    t->rest += which->block ? 0 : all;
    t->blocks += which->block && all > 0;
    t->buffers += which->block && t->c->stage > 1 ? 0 : all;
}

static tally count_elements(const tn__plan_case *c, int pp, int part, int tp) {
    tally t = {.c = c, .pp = pp, .part = part, .tp = tp};
    void (*add)(tally *, const choice *) = c->stage ? add_set : add_whole;
    int count = c->model->count;
    for (int i = 0, end; i < count; i = end) { /* block by block, and one tied one by one */
        const tn__plan_param *p = &c->model->params[i];
        end = i + 1;
        while (p->block && end < count && c->model->params[end].block &&
               c->model->params[end].first == p->first) {
            end++;
        }
        add(&t, &(choice){i, end, p->block, !p->block});
    }
    add(&t, &(choice){0, count, false, false});
    return t;
}

/* The buffers of blocks: two, in turn, or one each where gradients stay for later micro-batches. */
static int64_t block_buffers(const tn__plan_case *c, const tally *t) {
    bool stay = c->o.mesh.pp > 1 && c->micros * c->stages / c->o.mesh.pp > 1;
    return c->stage > 1 && t->blocks > 0 ? t->block * (stay && t->blocks > 2 ? t->blocks : 2) : 0;
}

static void count_rest(const tn__plan_case *c, const tally *t, tn_plan *plan) {
    int64_t size = (int64_t)tn_dtype_size(c->o.compute), low = size < EXACT ? size : 0;
    int64_t buffers = EXACT * (t->buffers + block_buffers(c, t));
    plan->weights = EXACT * t->stored;
    plan->copies = low * t->stored;
    if (c->stage == 1 || c->stage == 2) {
        plan->copies += size * t->whole;
    }
    plan->gradients = buffers + (c->stage ? EXACT * t->stored : 0);
    plan->states = EXACT * c->o.states * t->stepped;
    if (c->o.states > 1) { /* and how often each was stepped, as Adam needs to know */
        plan->states += 8 * (int64_t)t->tensors;
    }
    plan->rest = plan->weights + plan->copies + plan->gradients + plan->states;
    if (c->o.mesh.sharding.offload) {
        plan->host = plan->weights + low * t->stored + EXACT * t->stored + plan->states;
    }
}

/* ---- In a step ------------------------------------------------------------------------------- */

static double tokens_of(const tn__plan_case *c) {
    return (double)(c->o.batch * c->positions);
}

/* Bytes for each position that are kept of a part. */
static double kept_of(const tn__plan_case *c, const tn__plan_work *w) {
    double tp = c->o.mesh.tp, whole = c->o.mesh.tensor.sequence ? tp : 1;
    return (double)tn_dtype_size(c->o.compute) * (w->read + w->kept / whole + w->kept_cut / tp) +
           EXACT * w->sums / whole;
}

static double block_kept(const tn__plan_case *c) {
    double heads = EXACT * (double)c->model->shape.heads / c->o.mesh.tp;
    return kept_of(c, &c->model->block) + heads;
}

/* Of an x between blocks. */
static double bytes_between(const tn__plan_case *c) {
    double whole = c->o.mesh.tensor.sequence ? c->o.mesh.tp : 1;
    return (double)tn_dtype_size(c->o.compute) * (double)c->model->shape.width / whole;
}

static double logits_bytes(const tn__plan_case *c) {
    int64_t tp = c->o.mesh.tp, columns = (c->model->shape.vocab + tp - 1) / tp;
    return (double)tn_dtype_size(c->o.compute) * (double)columns;
}

static int blocks_of(const tn__plan_case *c, int stage) {
    int first = c->first[stage] > 1 ? c->first[stage] : 1, last = c->model->parts - 1;
    int end = c->first[stage + 1] < last ? c->first[stage + 1] : last;
    return end > first ? end - first : 0;
}

double tn__plan_kept(const tn__plan_case *c, int stage) {
    tn__plan_work top = c->model->top;
    top.kept_cut = 0; /* the logits, whose place their gradient takes */
    double each = c->o.recompute ? bytes_between(c) : block_kept(c);
    double bytes = bytes_between(c) + blocks_of(c, stage) * each;
    if (stage == c->stages - 1) {
        bytes += kept_of(c, &top) + logits_bytes(c);
    }
    return bytes * tokens_of(c);
}

/* Bytes by which the first half of a backward changes what is kept of a block, until the second:
 * its graph, whole if it was to be repeated, has freed what attention and activation keep, but has
 * the gradients of what linears and norms give. That is 4 C more (model.c). */
static double waiting_of(const tn__plan_case *c) {
    double each = 4 * bytes_between(c);
    each += c->o.recompute ? block_kept(c) - bytes_between(c) : 0;
    return each * tokens_of(c);
}

/* Bytes of forwards whose backward is still to come, at most, in this rank's row. */
static double most_kept(const tn__plan_case *c, int pp, int *alive) {
    double now = 0, most = 0;
    int graphs = 0;
    *alive = 0;
    if (!c->schedule) {
        *alive = 1;
        return tn__plan_kept(c, 0);
    }
    for (int i = 0; i < c->schedule->counts[pp]; i++) {
        tn_pipe_action a = c->schedule->rows[pp][i];
        int change = a.what == 'F' ? 1 : a.what == 'B' || a.what == 'W' ? -1 : 0;
        int waits = a.what == 'I' ? 1 : a.what == 'W' ? -1 : 0;
        int blocks = a.stage > 0 ? blocks_of(c, a.stage) : 0; /* the first stage's I does nothing */
        graphs += change;
        now += change * tn__plan_kept(c, a.stage) + waits * blocks * waiting_of(c);
        /* the last graph that is repeated is counted where it is made (block_bytes) */
        double made = waits > 0 && blocks > 0 && c->o.recompute ? waiting_of(c) : 0;
        most = fmax(most, now - made);
        *alive = graphs > *alive ? graphs : *alive;
    }
    return most;
}

/* Of messages between stages: outputs that have come, with their gradients, and gradients. */
static double messages_bytes(const tn__plan_case *c, int pp) {
    int ahead = 1 + TN__PIPE_AHEAD < c->micros ? 1 + TN__PIPE_AHEAD : c->micros;
    bool first = pp == 0 && c->stages == c->o.mesh.pp,
         last = pp == c->o.mesh.pp - 1 && c->stages == c->o.mesh.pp;
    return ((first ? 0 : ahead + 1) + (last ? 0 : ahead)) * bytes_between(c) * tokens_of(c);
}

/* A backward of the largest block. With recompute its graph is whole once more, and all of its
 * gradients come out of it together, while the part of the block above arrives, if it cannot be
 * added where parts are. */
static double block_bytes(const tn__plan_case *c, const tally *t) {
    const tn__plan_work *w = &c->model->block;
    double tokens = tokens_of(c), tp = c->o.mesh.tp;
    double bytes = EXACT * (w->widest / tp * tokens + fmax(w->matrix, w->matrix_cut / tp));
    if (!c->o.recompute) {
        return bytes;
    }
    double graph = block_kept(c) * tokens;
    double gradients = EXACT * (w->products + w->products_cut / tp);
    bool arrives = c->stage > 1 && c->o.mesh.pp == 1 && c->micros > 1;
    double part = arrives ? EXACT * (double)t->block / c->parts : 0;
    return 3 * bytes_between(c) * tokens + fmax(graph + bytes, graph / 2 + gradients) + part;
}

/* The most bytes of the step that are neither kept nor weights; below 0 where what is kept has been
 * freed by then. What a processor's kernels need for themselves is not among them. */
static double most_working(const tn__plan_case *c, const tally *t, int pp) {
    const tn__plan_work *top = &c->model->top;
    double tokens = tokens_of(c), tp = c->o.mesh.tp, logits = logits_bytes(c) * tokens;
    double x = bytes_between(c) * tokens, most = 0;
    double table = EXACT * (top->products + top->products_cut / tp);
    bool first = tn__plan_has(c, pp, 0), last = tn__plan_has(c, pp, c->model->parts - 1);
    double over = last && !c->halves ? x + logits : 0; /* freed before a block's backward */
    if (last) {
        most = fmax(logits, table + 2 * x);
    }
    most = fmax(most, block_bytes(c, t) - over);
    if (first) { /* the stem's */
        most = fmax(most,
                    table + EXACT * (double)c->model->shape.width * tokens - tn__plan_kept(c, 0));
    }
    return most + (c->o.mesh.pp > 1 ? messages_bytes(c, pp) : 0);
}

void tn__plan_memory(const tn__plan_case *c, int pp, int part, int tp, tn_plan *plan) {
    tally t = count_elements(c, pp, part, tp);
    count_rest(c, &t, plan);
    if (c->stage == 3) {
        int64_t units = t.rest + (1 + c->o.mesh.sharding.prefetch) * t.block;
        units = units < t.whole && !c->halves ? units : t.whole;
        plan->gathered = units * (int64_t)tn_dtype_size(c->o.compute);
    }
    plan->activations = llround(most_kept(c, pp, &plan->alive));
    plan->working = llround(most_working(c, &t, pp));
    plan->peak = plan->rest - plan->host + plan->gathered + plan->activations + plan->working;
}
