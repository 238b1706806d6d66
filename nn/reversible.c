/* reversible: pairs of modules between two streams; backward keeps only what comes out at the end.
 *
 * A pair is two steps, each of which adds what a module makes of one stream to the other:
 *
 *     y1 = x1 + f(x2)        an even step: stream 0 changes
 *     y2 = x2 + g(y1)        an odd step: stream 1 changes
 *
 * To the graph a step is one node, with edges to both streams and to the module's parameters, so
 * that these get their gradients pair by pair, and ranks exchange them during backward. The nodes
 * of a call share a chain: the streams as they came out, and the moment of each step, with its
 * random numbers. Backward comes to the steps from the last to the first. The rule runs the module
 * again, recorded, on the stream that the step did not change; subtracts the result from the other,
 * which gives the streams as they were before the step; and differentiates the result with tn_grad.
 *
 * The streams are kept in f32 if they arrive in bf16 or f16. Computed back in bf16, what went into
 * the first of 64 pairs would be off so far that its gradient is wrong by 60 %; so it is by 1 %, as
 * without computing back (tests/nn/test_reversible.c).
 *
 * In a backward in halves both halves undo all steps.
 */
#include "autograd/again.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "nn/again.h"
#include "nn/call.h"
#include "nn/layer.h"
#include "nn/misuse.h"
#include "ops/dims.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct chain {
    int32_t refs;           /* atomic: one for each node */
    tn_module_lists *lists; /* one reference */
    bool training;          /* in the forward */
    tn_dtype seen[2];       /* what modules read of each stream; the streams may be wider */
    tn_tensor *last[2];     /* the streams after all steps; one reference each */
    uint32_t version[2];    /* of their elements */
    tn_tensor *now[2];      /* the streams before step `at`; one reference each; NULL: not known */
    int at, first, steps;   /* first: the first with a node */
    tn__moment moments[];   /* [steps] */
} chain;

typedef struct step_args {
    chain *chain; /* one reference */
    int step;
} step_args;

static uint32_t version_of(const tn_tensor *t) {
    return __atomic_load_n(&t->version->value, __ATOMIC_RELAXED);
}

/* ---- The chain ------------------------------------------------------------------------------- */

static void set_now(chain *c, int at, tn_tensor *first, tn_tensor *second) {
    tn__field_set(&c->now[0], first);
    tn__field_set(&c->now[1], second);
    c->at = at;
}

static void release_chain(chain *c) {
    if (!c || __atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL) != 0) { return; }
    set_now(c, 0, NULL, NULL);
    tn_release(c->last[0]);
    tn_release(c->last[1]);
    tn__module_lists_release(c->lists);
    free(c);
}

static chain *new_chain(tn_module *m, int steps, const tn_values *in) {
    tn_module_lists *lists = tn__module_lists(m, m->kind);
    size_t bytes = sizeof(chain) + (size_t)steps * sizeof(tn__moment);
    chain *c = lists ? tn__calloc_for(1, bytes, m->kind) : NULL;
    if (c) {
        c->refs = 1;
        c->lists = tn__module_lists_keep(lists);
        c->training = m->training;
        c->seen[0] = in->v[0]->dtype;
        c->seen[1] = in->v[1]->dtype;
        c->first = c->steps = steps;
    }
    return c;
}

/* ---- A step ---------------------------------------------------------------------------------- */

/* What step k adds to `to`: what its module makes of `from`, in the dtype of `to`. */
static tn_tensor *make_part(const tn_module *m, int k, tn_tensor *from, tn_dtype seen,
                            const tn_tensor *to) {
    tn_module *child = tn__module_in_place(m->lists->children[k], m->kind);
    tn_tensor *part = child ? tn_call(child, tn_cast(from, seen)) : tn_inert();
    if (!tn_is_inert(part) && !tn_dims_equal(part->dims, to->dims)) {
        tn__raise(TN_ESHAPE, m->kind, "\"%s\", %s, made %s of %s, but it is added to %s",
                  m->lists->children[k]->name, m->lists->children[k]->kind, tn_shape_text(part),
                  tn_shape_text(from), tn_shape_text(to));
        part = tn_inert();
    }
    return tn_cast(part, to->dtype);
}

/* The same again, recorded or not. */
static tn_tensor *make_again(const chain *c, int k, tn_tensor *from, bool record) {
    const tn_module *m = tn__again_module(c->lists, c->training, "reversible");
    if (m && c->lists->child_count != c->steps) {
        tn__raise(TN_ESTATE, "reversible", "one of its modules was finished before backward");
        m = NULL;
    }
    if (!m) { return tn_inert(); }
    tn__again_frames frames;
    tn__again_begin(&frames, c->lists);
    tn__replay before = tn__replay_begin(&c->moments[k], record);
    tn_tensor *part = make_part(m, k, from, c->seen[1 - k % 2], c->now[k % 2]);
    tn__replay_end(&before);
    tn__again_end(&frames);
    return part;
}

/* Goes back over step k, which has added `part`. False after raising. */
static bool undo_step(chain *c, int k, tn_tensor *part) {
    tn_tensor *before = tn_sub(c->now[k % 2], part);
    if (tn__pending()) { return false; }
    tn__field_set(&c->now[k % 2], before);
    c->at = k;
    return true;
}

/* Starts from the end. False after raising that the results have changed. */
static bool rewind_chain(chain *c) {
    for (int i = 0; i < 2; i++) {
        uint32_t now = version_of(c->last[i]);
        if (now != c->version[i]) {
            return tn__fail(
                TN_ESTATE, "reversible",
                "result %d, %s, was changed in place, but backward starts from it (version "
                "%u then, %u now)",
                i, tn_shape_text(c->last[i]), c->version[i], now);
        }
    }
    set_now(c, c->steps, c->last[0], c->last[1]);
    return true;
}

/* Makes `now` the streams after step k: as a rule they are there, since the step behind it ran just
 * before. False after raising. */
static bool rewind_to(chain *c, int k) {
    if ((!c->now[0] || c->at < k + 1) && !rewind_chain(c)) { return false; }
    while (c->at > k + 1) {
        TN_SCOPE;
        int step = c->at - 1;
        if (!undo_step(c, step, make_again(c, step, c->now[1 - step % 2], false))) { return false; }
    }
    return true;
}

/* ---- Backward -------------------------------------------------------------------------------- */

static void step_backward(tn_op_grad *g) {
    const step_args *args = g->args;
    chain *c = args->chain;
    if (tn_grad_mode()) {
        tn__raise(
            TN_EUNSUPPORTED, "reversible",
            "its gradient cannot be differentiated again, since what went in is computed back "
            "without its history (a forward that adds f(x2) to x1 and g(y1) to x2 can)");
        return;
    }
    if (!rewind_to(c, args->step)) { return; }
    tn_tensor *from = tn_detach(c->now[1 - args->step % 2]);
    tn_set_requires_grad(from, g->wants[1]);
    tn_tensor *part = make_again(c, args->step, from, true);
    if (tn__pending() || !undo_step(c, args->step, part)) { return; }
    if (args->step == c->first) { set_now(c, 0, NULL, NULL); }
    tn_op_give(g, 0, g->dout[0]);
    tn__give_again(g, (tn_values){2, {NULL, from}}, (tn_values){1, {part}}, NULL);
}

static void finish_step(void *memory) {
    const step_args *args = memory;
    release_chain(args->chain);
}

static const tn_op step_op = {
    .name = "reversible",
    .args_size = sizeof(step_args),
    .backward = step_backward,
    .args_finish = finish_step,
};

/* ---- Forward --------------------------------------------------------------------------------- */

/* Makes y the result of step k's node, if a gradient leads through it. `version`: of the stream
 * that the module read, before it ran. False after raising. */
static bool record_step(chain *c, int k, tn_tensor *const *stream, uint32_t version, tn_tensor *y) {
    const tn_module_lists *child = c->lists->children[k];
    tn__collection in = {.operation = "reversible"};
    bool ok = tn__collect(&in, stream[k % 2]) && tn__collect(&in, stream[1 - k % 2]) &&
              tn__collect_parameters(&in, child->module);
    bool wanted = in.count > 2 || tn_requires_grad(stream[0]) || tn_requires_grad(stream[1]);
    if (ok && wanted && version_of(stream[1 - k % 2]) != version) {
        ok = tn__fail(TN_ESTATE, "reversible",
                      "\"%s\", %s, changed its input in place, which backward then would not find",
                      child->name, child->kind);
    } else if (ok && wanted) {
        __atomic_fetch_add(&c->refs, 1, __ATOMIC_RELAXED);
        step_args args = {c, k};
        tn_node *node = tn__node_new(&step_op, &args, in.tensors, in.count, 1, 0);
        ok = node != NULL;
        if (ok) {
            tn__node_attach(node, y, 0);
            tn__node_release(node);
            c->first = k < c->first ? k : c->first;
        }
    }
    free(in.tensors);
    return ok;
}

/* What stream k % 2 is after step k. c NULL: nothing is recorded. */
static tn_tensor *run_step(const tn_module *m, chain *c, int k, tn_tensor *const *stream,
                           tn_dtype seen) {
    TN_SCOPE;
    tn_tensor *from = stream[1 - k % 2];
    uint32_t version = version_of(from);
    if (c) { c->moments[k] = tn__moment_now(); }
    bool before = tn__first_pass_begin(c != NULL);
    tn_tensor *y = tn_add(stream[k % 2], make_part(m, k, from, seen, stream[k % 2]));
    tn__first_pass_end(c != NULL, before);
    bool ok = !tn_is_inert(y) && (!c || record_step(c, k, stream, version, y));
    return ok ? tn_return(y) : tn_inert();
}

/* False after raising. */
static bool inputs_fit(const tn_reversible *m, const tn_values *in) {
    const char *kind = m->base.kind;
    if (in->n != 2 || !in->v[0] || !in->v[1]) {
        return tn__fail(TN_EVALUE, kind,
                        "it takes two tensors: tn_call_values(m, TN_VALUES(x1, x2), NULL)");
    }
    for (int i = 0; i < 2; i++) {
        if (!tn_dtype_is_float(in->v[i]->dtype)) {
            return tn__fail(TN_EDTYPE, kind, "input %d is %s (f32, f64, bf16 or f16)", i,
                            tn_dtype_name(in->v[i]->dtype));
        }
    }
    if (m->base.lists->child_count != 2 * m->pairs) {
        return tn__fail(TN_ESTATE, kind, "%d of its %d modules are left",
                        m->base.lists->child_count, 2 * m->pairs);
    }
    return true;
}

/* Runs the steps on the streams. False after raising. */
static bool run_steps(const tn_reversible *m, chain *c, const tn_values *in, tn_tensor **stream) {
    for (int k = 0; k < 2 * m->pairs; k++) {
        tn_tensor *read = stream[k % 2];
        stream[k % 2] = run_step(&m->base, c, k, stream, in->v[1 - k % 2]->dtype);
        if (tn_is_inert(stream[k % 2])) { return false; }
        if (read != in->v[0] && read != in->v[1]) { tn_drop(read); }
    }
    for (int i = 0; c && i < 2; i++) {
        c->last[i] = tn_keep(tn_detach(stream[i]));
        c->version[i] = version_of(stream[i]);
    }
    return !tn__pending();
}

static tn_values reversible_forward(tn_module *self, tn_values in, void *context) {
    const tn_reversible *m = (tn_reversible *)self;
    if (!inputs_fit(m, &in)) { return tn__no_values(); }
    chain *c = tn_grad_mode() ? new_chain(self, 2 * m->pairs, &in) : NULL;
    if (tn__pending()) {
        release_chain(c);
        return tn__no_values();
    }
    tn_tensor *stream[2];
    for (int i = 0; i < 2; i++) {
        stream[i] = tn_cast(in.v[i], tn__wide_dtype(in.v[i]->dtype));
    }
    bool ok = !tn__pending() && run_steps(m, c, &in, stream);
    release_chain(c);
    for (int i = 0; ok && i < 2; i++) {
        stream[i] = tn_cast(stream[i], in.v[i]->dtype);
    }
    return ok && !tn__pending() ? (tn_values){2, {stream[0], stream[1]}} : tn__no_values();
}

/* ---- Making ---------------------------------------------------------------------------------- */

enum { MAX_PAIRS = INT32_MAX / 2 /* a step for each module */ };

void tn_reversible_init(tn_reversible *m, void *const *f, void *const *g, int n) {
    if (tn__layer_begin(m, sizeof(*m), "reversible", NULL, reversible_forward)) {
        m->pairs = n;
        if (n < 1 || n > MAX_PAIRS || !f || !g) {
            tn__layer_refuse(m, TN_EVALUE, "%d pairs (1 to %d)%s", n, MAX_PAIRS,
                             f && g ? "" : "; f or g is NULL");
        }
    }
    /* Even without an m: what it cannot own is finished. */
    for (int i = 0; i < n && n <= MAX_PAIRS && (f || g); i++) {
        char name[TN_MODULE_NAME];
        snprintf(name, sizeof(name), "%d.f", i);
        if (f) { tn_module_add(m, name, f[i]); }
        snprintf(name, sizeof(name), "%d.g", i);
        if (g) { tn_module_add(m, name, g[i]); }
    }
}

TN__LAYER_HEAP(tn_reversible, tn_reversible_new(void *const *f, void *const *g, int n),
               tn_reversible_init(m, f, g, n))
