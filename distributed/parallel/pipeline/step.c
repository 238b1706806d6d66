/* A step of a pipeline: runs this rank's row of the schedule.
 *
 *     F  the stage's forward is a call of the whole model that runs some of its parts, so that
 *        everything attached to the model (precision, sharding, hooks) sees it. Its input, another
 *        stage's output, is a leaf; its output, or the loss, is kept for B
 *     B  backward from that output, with the gradient that the next stage has sent. The leaf's
 *        gradient is sent back
 *     I  the half of B that the stage before waits for: the leaf's gradient alone
 *     W  the other half (autograd/halves.h): those of the parameters. The first stage has no leaf,
 *        so it does everything here
 *
 * Gradients of parameters add up under TN_NO_SYNC until this rank's last B or W, whose gradients
 * are sent as in a step of one micro-batch. With several stages on a rank each has its own last
 * backward, so all gradients are sent together at the end (tn_sync_gradients).
 *
 * Random numbers are those of one rank that runs the micro-batches in turn: before a forward the
 * generator is set to the micro-batch's stream, after the draws of the stages before.
 */
#include "autograd/halves.h"
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/group/values.h"
#include "distributed/parallel/pipeline/pipeline.h"
#include "nn/layer.h"

#include <math.h>
#include <stdlib.h>

/* Between a forward and its backward; one reference each. */
typedef struct graph {
    tn_tensor *in, *out;    /* in: NULL in the first stage */
    tn__run *rest;          /* between I and W; or NULL */
    tn__lm_context context; /* of the call, which a backward may repeat (recompute) */
} graph;

typedef struct step {
    tn_pipeline *p;
    const tn_batch *batches;
    tn_scaler *scaler;
    int micros;
    bool backward;
    bool halves;        /* this rank has W */
    int last;           /* the last stage */
    int left;           /* of this rank's B and W, those that are still to come */
    uint64_t stream;    /* of the first micro-batch */
    uint64_t each;      /* micro-batches in a round: one per rank with different data */
    graph *graphs;      /* [stages x micros] */
    tn_tensor **losses; /* [micros] in the last stage; one reference each, or NULL */
    tn__pipe_sends sends;
    int alive;
} step;

static graph *graph_of(const step *s, tn_pipe_action a) {
    return &s->graphs[(size_t)a.stage * (size_t)s->micros + (size_t)a.micro];
}

/* In the flight recorder, "F0.1" */
static void mark_action(const char *prefix, tn_pipe_action a, double began) {
    char name[64];
    snprintf(name, sizeof(name), "%s%c%d.%d", prefix, a.what, a.stage, a.micro);
    tn_flight_mark(name, began);
}

/* Waits for what this action of another rank sends. */
static tn_tensor *wait_for(tn_pipeline *p, tn_pipe_action a) {
    double began = tn_flight_now();
    tn_tensor *t = a.what == 'F' ? tn__pipe_take(p, &p->outputs, a.stage, a.micro)
                                 : tn__pipe_take(p, &p->gradients, a.stage - 1, a.micro);
    mark_action("wait for ", a, began);
    return t;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* For the first stage, the batch's x; for later ones, what the stage before has sent. */
static tn_tensor *stage_input(step *s, tn_pipe_action a) {
    if (a.stage == 0) {
        tn_tensor *x = s->batches[a.micro].x;
        if (!x) {
            tn__raise(TN_EVALUE, "pipeline", "x is NULL");
            return tn_inert();
        }
        return x;
    }
    tn_tensor *x = wait_for(s->p, (tn_pipe_action){'F', a.stage - 1, a.micro});
    bool grows = s->backward && tn_dtype_is_float(tn_dtype_of(x));
    return grows ? tn_set_requires_grad(x, true) : x;
}

/* Returns the stage's output. Notes the whole sequence's length and the draws so far for the next
 * stage. */
static tn_tensor *call_stage(step *s, tn_pipe_action a, tn_tensor *x) {
    tn_pipeline *p = s->p;
    int64_t tokens = p->family && tn_ndim(x) == 2 ? tn_size(x, 1) : 0; /* of the first stage */
    tn__pipe_boundary before =
        a.stage > 0 ? p->boundaries[a.stage - 1] : (tn__pipe_boundary){.positions = tokens};
    int64_t T = before.positions;
    tn_tensor *positions = NULL;
    if (p->family && a.stage > 0) { /* x may be a part of the sequence, and does not tell which */
        int64_t context = p->family->shape(p->module).context;
        positions = tn__lm_positions(p->module, x, 0, T, context);
    }
    tn_generator *generator = tn_default_generator();
    generator->stream = s->stream + (uint64_t)a.micro * s->each;
    generator->call = before.draws;
    tn__lm_context *context = &graph_of(s, a)->context;
    context->range = (tn__range){p->first[a.stage], p->first[a.stage + 1]};
    p->module->lists->loss.calling = true;
    tn_tensor *y = tn_call_values(p->module, tn_values_of(x, positions), context).v[0];
    p->module->lists->loss.calling = false;
    p->boundaries[a.stage].draws = generator->call;
    p->boundaries[a.stage].positions = T;
    return y;
}

/* The micro-batch's share of the mean, ready for backward. */
static tn_tensor *share_of_loss(step *s, tn_pipe_action a, tn_tensor *out) {
    const tn_pipeline_options *o = &s->p->options;
    tn_tensor *y = s->batches[a.micro].y;
    if (!y) {
        tn__raise(TN_EVALUE, "pipeline", "y is NULL");
        return tn_inert();
    }
    tn_tensor *loss = o->loss ? o->loss(out, y, o->user) : tn__lm_loss_of(s->p->module, out, y);
    if (!tn__pending() && tn_count(loss) != 1) {
        tn__raise(TN_ESHAPE, "pipeline", "the loss is %s, not one number", tn_shape_text(loss));
    }
    s->losses[a.micro] = tn_keep(tn_detach(loss));
    if (!s->backward) { return loss; }
    tn_tensor *share = tn_mul_scalar(loss, 1.0 / s->micros);
    return s->scaler ? tn_scaler_scale(s->scaler, share) : share;
}

static void run_forward(step *s, tn_pipe_action a) {
    TN_SCOPE;
    tn_tensor *x = stage_input(s, a);
    tn_tensor *y = tn__pending() ? x : call_stage(s, a, x);
    if (!tn__pending()) {
        if (a.stage == s->last) {
            y = share_of_loss(s, a, y);
        } else {
            tn__pipe_send_output(s->p, &s->sends, a.stage, y);
        }
    }
    if (!tn__pending() && s->backward) {
        graph_of(s, a)->in = a.stage > 0 ? tn_keep(x) : NULL;
        graph_of(s, a)->out = tn_keep(y);
        s->alive++;
        s->p->alive = s->alive > s->p->alive ? s->alive : s->p->alive;
    }
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* Counts this B or W: whether it makes the rank's last gradients, which are then sent meanwhile. */
static bool makes_last(step *s) {
    return --s->left == 0 && s->p->stages == tn_group_size(s->p->group);
}

/* 'B', or 'I'. */
static void run_backward(step *s, tn_pipe_action a) {
    TN_SCOPE;
    graph *g = graph_of(s, a);
    bool whole = a.what == 'B';
    tn_tensor *dy =
        a.stage < s->last ? wait_for(s->p, (tn_pipe_action){a.what, a.stage + 1, a.micro}) : NULL;
    TN_NO_SYNC(whole && makes_last(s) ? NULL : s->p->module);
    bool grows = !tn__pending() && tn_requires_grad(g->out); /* not if all before it is frozen */
    if (grows && whole) {
        tn_backward_from(&g->out, &dy, 1, false);
    } else if (grows) {
        g->rest = tn__backward_input(g->out, dy, g->in);
    }
    if (!tn__pending() && g->in) {
        tn_tensor *dx = tn_grad_of(g->in);
        dx = dx ? dx
                : tn_zero_(tn_empty_on(tn_device_of(g->in), tn_shape(g->in), tn_dtype_of(g->in)));
        tn__pipe_send_gradient(s->p, &s->sends, dx);
    }
    tn_release(g->in);
    tn_release(g->out);
    g->in = g->out = NULL;
    s->alive -= whole;
}

static void run_weights(step *s, tn_pipe_action a) {
    graph *g = graph_of(s, a);
    TN_NO_SYNC(makes_last(s) ? NULL : s->p->module);
    if (g->rest) {
        tn__backward_rest(g->rest);
        g->rest = NULL;
    }
    s->alive--;
}

/* ---- The row --------------------------------------------------------------------------------- */

static void run_action(step *s, tn_pipe_action a) {
    const tn_pipeline_options *o = &s->p->options;
    char name[64];
    snprintf(name, sizeof(name), "%s of stage %d, micro-batch %d",
             a.what == 'F'   ? "forward"
             : a.what == 'W' ? "gradients of parameters"
                             : "backward",
             a.stage, a.micro);
    tn__frame frame = {.name = name}; /* for errors */
    double began = tn_flight_now();
    if (o->on_action) { o->on_action(a, false, o->user); }
    tn__frame_push(&frame);
    if (a.what == 'F' && !tn__pending()) {
        run_forward(s, a);
    } else if (a.what == 'W' && !tn__pending()) {
        run_weights(s, a);
    } else if (!tn__pending()) {
        run_backward(s, a);
    }
    tn__frame_pop(&frame);
    mark_action("", a, began);
    if (o->on_action) { o->on_action(a, true, o->user); }
}

static void run_row(step *s) {
    const tn_pipe_schedule *schedule = s->p->schedule;
    int rank = tn_group_rank(s->p->group);
    for (int i = 0; i < schedule->counts[rank] && !tn__pending(); i++) {
        tn_pipe_action a = schedule->rows[rank][i];
        if (a.what == 'F' || s->backward) { run_action(s, a); }
    }
}

/* ---- What stages share ----------------------------------------------------------------------- */

static tn_tensor *tie_stored(const tn_pipeline *p, const tn__pipe_tie *tie) {
    const tn__record *record = tn__module_find(p->module, tie->path);
    return record ? tn__record_stored(record) : NULL;
}

/* A gradient that was summed in an earlier step is not summed again. */
static void put_aside(tn_pipeline *p) {
    TN_NO_GRAD;
    for (int i = 0; i < p->tie_count; i++) {
        tn_tensor *stored = tie_stored(p, &p->ties[i]);
        tn_tensor *grad = stored && tn_requires_grad(stored) ? tn_grad_of(stored) : NULL;
        TN_SCOPE;
        p->ties[i].aside = grad ? tn_keep(tn_copy(grad)) : NULL;
        if (grad) { tn_zero_grad(stored); }
    }
}

/* Whether any of the ranks has a gradient of this step. False after raising. */
static bool any_gradient(const tn__pipe_tie *tie, const tn_tensor *stored) {
    bool trained = stored && tn_requires_grad(stored);
    int32_t all[] = {trained, trained && tn_grad_of(stored)};
    if (tn__pending() || tn__reduce_values(tie->group, all, 2, TN_I32, TN_SUM) != TN_OK) {
        return false;
    }
    if (all[0] > 0 && all[0] < tn_group_size(tie->group)) {
        return tn__fail(TN_EMISMATCH, "pipeline", "%s is frozen on some of the ranks that share it",
                        tie->path);
    }
    return all[1] > 0;
}

/* Where some rank has a gradient, all get the sum: the first stage has none if it is detached. */
static void sum_ties(tn_pipeline *p) {
    TN_SCOPE;
    TN_NO_GRAD;
    for (int i = 0; i < p->tie_count; i++) {
        tn__pipe_tie *tie = &p->ties[i];
        tn_tensor *stored = tie_stored(p, tie);
        bool sums = !tn__pending() && any_gradient(tie, stored);
        if (sums && !tn_grad_of(stored)) {
            tn_set_grad(stored, tn_zero_(tn_empty_on(tn_device_of(stored), tn_shape(stored),
                                                     stored->leaf->grad_dtype)));
        }
        if (sums && !tn__pending()) {
            tn_work_wait(tn_all_reduce(tie->group, tn_grad_of(stored), TN_SUM), 0);
        }
        if (tie->aside && !tn__pending() && tn_grad_of(stored)) {
            tn_add_(tn_grad_of(stored), tie->aside);
        } else if (tie->aside && !tn__pending()) {
            tn_set_grad(stored, tie->aside);
        }
        tn_release(tie->aside);
        tie->aside = NULL;
    }
}

/* Running statistics (batch norm) change on their stage's rank, but rank 0 saves them, so all ranks
 * get them. */
static void share_buffers(tn_pipeline *p) {
    for (int i = 0; i < p->parts && tn_group_size(p->group) > 1; i++) {
        int owner = tn_pipeline_stage(p, i) % tn_group_size(p->group);
        tn__parallel_share(tn__pipe_part(p, i), p->group, owner, false);
    }
}

/* ---- A step ---------------------------------------------------------------------------------- */

static void change_hold(const tn_module_lists *lists, void *change) {
    tn__parallel *p = (tn__parallel *)lists->strategy;
    if (p->rules->hold) { p->rules->hold(p, *(int *)change); }
}

/* W reads parameters that a backward, which it takes I for, frees behind itself (tn_fsdp's stage
 * 3): so they stay from a step's first forward to its end. */
static void hold_parameters(const step *s, int change) {
    if (s->halves) { tn__strategies_below(s->p->module->lists, change_hold, &change); }
}

/* The schedule for n micro-batches. False after raising. */
static bool find_schedule(tn_pipeline *p, int n) {
    if (p->schedule && p->schedule->micros == n) { return true; }
    if (p->options.schedule) {
        return tn__fail(TN_EVALUE, "pipeline", "%d micro-batches, but the schedule is of %d", n,
                        p->options.schedule->micros);
    }
    tn_pipe_schedule_free(p->schedule);
    int ranks = tn_group_size(p->group);
    p->schedule = tn_pipe_schedule_new(p->options.kind, ranks, p->stages / ranks, n);
    return p->schedule != NULL;
}

/* False after raising; then nothing was put aside. */
static bool step_begin(step *s) {
    tn_pipeline *p = s->p;
    if (tn__pending() || !find_schedule(p, s->micros)) { return false; }
    tn__round round = tn__strategy_round(p->module);
    tn__round_begin(round);
    s->stream = tn_default_generator()->stream;
    s->each = (uint64_t)round.ranks;
    int rank = tn_group_rank(p->group);
    for (int i = 0; i < p->schedule->counts[rank]; i++) {
        char what = p->schedule->rows[rank][i].what;
        s->left += what == 'B' || what == 'W';
        s->halves |= what == 'W' && s->backward;
    }
    size_t micros = (size_t)s->micros;
    s->graphs = tn__calloc_for((size_t)p->stages * micros, sizeof(*s->graphs), "pipeline");
    s->losses = tn__calloc_for(micros, sizeof(tn_tensor *), "pipeline");
    p->alive = 0;
    p->backward = s->backward;
    if (!s->graphs || !s->losses || !tn__pipe_links_begin(p, &s->sends)) { return false; }
    if (s->backward) { put_aside(p); }
    return true;
}

/* The mean over micro-batches, known to the last stage's rank, on all ranks; NaN after raising. */
static double mean_loss(const step *s) {
    TN_SCOPE;
    double sum = 0;
    for (int i = 0; i < s->micros && !tn__pending(); i++) {
        sum += s->losses[i] ? tn_item(s->losses[i]) : 0;
    }
    tn__reduce_values(s->p->group, &sum, 1, TN_F64, TN_SUM);
    return tn__pending() ? NAN : sum / s->micros;
}

static void step_end(step *s) {
    tn__pipe_links_end(s->p, &s->sends);
    for (int i = 0; i < s->p->stages * s->micros && s->graphs; i++) {
        tn_release(s->graphs[i].in);
        tn_release(s->graphs[i].out);
        tn__rest_free(s->graphs[i].rest);
    }
    for (int i = 0; i < s->micros && s->losses; i++) {
        tn_release(s->losses[i]);
    }
    free(s->graphs);
    free(s->losses);
}

/* Runs everything from the first action to the loss; on every rank, even after an error. */
static double run_step(step *s) {
    tn_pipeline *p = s->p;
    bool begun = step_begin(s);
    if (begun) {
        p->running = true;
        hold_parameters(s, 1);
        run_row(s);
        hold_parameters(s, -1);
        p->running = false;
    }
    if (tn__pending()) { tn__pipe_abort(p); }
    bool several = p->stages > tn_group_size(p->group);
    if (s->backward && (several || tn__pending())) { /* after an error it ends the others' wait */
        tn_sync_gradients(p->module);
    }
    if (s->backward && begun) {
        sum_ties(p);
        share_buffers(p);
    }
    double loss = begun ? mean_loss(s) : NAN;
    if (tn__pending()) { tn__pipe_abort(p); }
    step_end(s);
    if (begun) { /* where one rank's generator would be */
        tn_default_generator()->stream = s->stream + (uint64_t)s->micros * s->each;
        tn_default_generator()->call = 0;
    }
    return loss;
}

static bool call_fits(const tn_pipeline *p, const tn_batch *batches, int n) {
    if (!p || !batches || n < 1) {
        const char *wrong = !p ? "the pipeline is NULL" : "there are no micro-batches";
        tn__raise(TN_EVALUE, "pipeline", "%s", wrong);
    }
    if (p && tn__pending()) { tn__pipe_abort(p); }
    return !tn__pending();
}

double tn_pipeline_step(tn_pipeline *p, const tn_batch *batches, int n, tn_scaler *scaler) {
    if (!call_fits(p, batches, n)) { return NAN; }
    step s = {.p = p,
              .batches = batches,
              .scaler = scaler,
              .micros = n,
              .backward = true,
              .last = p->stages - 1};
    return run_step(&s);
}

double tn_pipeline_loss(tn_pipeline *p, const tn_batch *batches, int n) {
    if (!call_fits(p, batches, n)) { return NAN; }
    TN_NO_GRAD;
    step s = {.p = p, .batches = batches, .micros = n, .last = p->stages - 1};
    tn_generator before = *tn_default_generator();
    double loss = run_step(&s);
    *tn_default_generator() = before;
    return loss;
}
