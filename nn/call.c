/* The bracket: everything that happens around a module's forward, in one place and one order.
 *
 *     before hooks  ->  precision  ->  recompute  ->  scope { forward }  ->  after hooks
 *
 * The scope lets only the results out, so what backward does not need is gone when a call returns.
 * A module without hooks, policy and recompute pays for the scope and for its name in error
 * messages, nothing else.
 */
#include "autograd/kernel.h"
#include "core/memory.h"
#include "core/scope.h"
#include "nn/again.h"
#include "nn/call.h"
#include "nn/misuse.h"
#include "profile/span.h"
#include "tensor/recipe.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- Values ---------------------------------------------------------------------------------- */

tn_values tn__no_values(void) {
    tn_values none = {0};
    for (int i = 0; i < TN_MAX_VALUES; i++) {
        none.v[i] = tn_inert();
    }
    return none;
}

void tn__return_values(const tn_values *values) {
    for (int i = 0; i < values->n; i++) {
        if (values->v[i]) { tn_return(values->v[i]); }
    }
}

tn_values tn_values_of(tn_tensor *a, tn_tensor *b) {
    return b ? (tn_values){2, {a, b}} : (tn_values){1, {a}};
}

/* What a forward returned, if valid; otherwise raises and returns nothing. */
static tn_values checked_results(const tn_module *m, tn_values out) {
    if (out.n < 0 || out.n > TN_MAX_VALUES) {
        tn__raise(TN_EVALUE, m->kind, "the forward returned %d values (at most %d)", out.n,
                  TN_MAX_VALUES);
        return tn__no_values();
    }
    for (int i = 0; i < out.n; i++) {
        if (!out.v[i]) {
            tn__raise(TN_EVALUE, m->kind, "result %d of the forward is NULL", i);
            return tn__no_values();
        }
        if (tn_is_inert(out.v[i])) { return tn__no_values(); }
    }
    return out;
}

/* ---- The forward, in its scope --------------------------------------------------------------- */

static tn_values call_forward(tn_module *m, tn_values in, void *context) {
    tn_scope scope = tn_scope_begin(m->kind, TN__FORWARD_SCOPE);
    tn__self.frames->module = m;
    tn_values out =
        m->forward ? (tn_values){1, {m->forward(m, in.v[0])}} : m->forward_values(m, in, context);
    tn__self.frames->module = NULL;
    out = checked_results(m, out);
    tn__return_values(&out);
    tn_scope_end(&scope);
    return out;
}

/* ---- The bracket ----------------------------------------------------------------------------- */

/* False after raising, and for an inert input. */
static bool may_call(tn_module *m, const tn_values *in) {
    if (m->state == TN__MODULE_BROKEN) {
        return tn__fail(TN_ESTATE, m->kind,
                        "the module is not complete: an error was raised while it was built");
    }
    if (in->n < 0 || in->n > TN_MAX_VALUES || (m->forward && in->n != 1)) {
        return tn__fail(TN_EVALUE, m->kind, "%d inputs given, but the module takes %s", in->n,
                        m->forward ? "1" : "0 to 8");
    }
    for (int i = 0; i < in->n; i++) {
        /* a forward of values knows which of its inputs may be absent */
        bool optional = !m->forward;
        if (!(optional && !in->v[i]) && !tn__usable(in->v[i], m->kind)) { return false; }
    }
    return tn__module_at_home(m);
}

static tn_values call_recompute(tn_module *m, tn_values in, void *context);

/* The forward, or call_recompute, with the copies that the module's policy asks for in the
 * fields. */
static tn_values call_lent(tn_module *m, tn_values in, void *context,
                           tn_values (*call)(tn_module *m, tn_values in, void *context)) {
    bool ok;
    tn_module_lists *lists = m->lists;
    bool lent = tn__precision_begin(m, &ok);
    tn_values out = ok ? call(m, in, context) : tn__no_values();
    if (lent) { tn__precision_end(lists); }
    return out;
}

/* The bracket of a module with hooks, a policy or recompute: all they make except the results dies
 * with its own scope. */
static tn_values full_bracket(tn_module *m, tn_values in, void *context) {
    tn_scope scope = tn_scope_begin(m->kind, TN__FORWARD_SCOPE);
    in = tn__hooks_before(m, in);
    tn__watch *watch = tn__watch_inputs(m, &in);
    tn_values out = tn__no_values();
    /* a hook may have changed the module and its inputs */
    if (tn__module_of(m, "call") && may_call(m, &in) && tn__precision_inputs(m, &in)) {
        bool again = m->recompute && tn_grad_mode();
        out = call_lent(m, in, context, again ? call_recompute : call_forward);
        if (m->state == TN__MODULE_ALIVE) { tn__precision_outputs(m, &out); }
    }
    out = checked_results(m, tn__hooks_after(m, in, out));
    tn__watch_outputs(watch, &out);
    tn__return_values(&out);
    tn_scope_end(&scope);
    return out;
}

/* Whether the forward is all that there is to a call. */
static bool is_plain(const tn_module *m, const tn_values *in) {
    bool hooked = m->lists && m->lists->hook_count > 0;
    return !m->recompute && !hooked && tn__precision_idle(m, in);
}

tn_values tn_call_values(void *module, tn_values in, void *context) {
    tn_module *m = tn__module_of(module, "call");
    if (!m) { return tn__no_values(); }
    tn__frame frame = {.name = m->parent ? m->name : m->kind};
    tn__frame_push(&frame);
    tn__span span;
    bool named = frame.name && frame.name[0]; /* a transparent one is part of the one around it */
    bool seen = tn__profiled() && named && tn__span_begin(&span, TN__SPAN_MODULE, frame.name);
    tn_values out;
    bool entered = tn__enter(m->kind);
    if (!entered || !may_call(m, &in)) {
        out = tn__no_values();
    } else if (is_plain(m, &in)) {
        out = call_forward(m, in, context);
    } else {
        out = full_bracket(m, in, context);
    }
    if (entered) { tn__leave(); }
    if (seen) { tn__span_end(&span); }
    tn__frame_pop(&frame);
    return out;
}

tn_tensor *tn_call_list(void *module, tn_values in) {
    tn_values out = tn_call_values(module, in, NULL);
    if (out.n <= 1 && out.v[0]) { return out.v[0]; /* after an error: inert */ }
    tn__raise(TN_EVALUE, "call", "%s returns %d values: call it with tn_call_values",
              ((tn_module *)module)->kind, out.n);
    return tn_inert();
}

tn_tensor *tn_call(void *m, tn_tensor *x) {
    return tn_call_list(m, (tn_values){1, {x}});
}

/* Whether the weight is as it is read: not missing, converted, or without elements. */
static bool reads_weight(const tn_tensor *weight, const tn_tensor *x) {
    return weight && weight->dtype == x->dtype && !tn__deferred(weight);
}

bool tn__may_fuse(const tn_module *m, tn_module_forward forward, const tn_tensor *weight,
                  const tn_tensor *x, const tn_op *op) {
    const tn_module_lists *l = m->lists;
    bool bare = m->state == TN__MODULE_ALIVE && m->forward == forward && !m->recompute &&
                (!l || (l->hook_count == 0 && !l->precision)) && !tn__module_moved(m);
    return bare && !tn_is_inert(x) && reads_weight(weight, x) &&
           tn__kernel_owned(op, x->storage->device);
}

/* ---- Recompute ------------------------------------------------------------------------------- */

/* What a graph keeps in order to call the forward again. */
typedef struct again {
    tn_module_lists *lists; /* one reference */
    void *context;
    bool training;
    bool second; /* the first time is over */
} again;

static void free_again(void *user) {
    again *a = user;
    tn__module_lists_release(a->lists);
    free(a);
}

static tn_values forward_again(void *user, tn_values in) {
    again *a = user;
    tn_module *m = tn__again_module(a->lists, a->training, "recompute");
    if (!m) { return tn__no_values(); }
    if (!a->second) {
        a->second = true;
        return call_forward(m, in, a->context);
    }
    tn__again_frames frames;
    tn__again_begin(&frames, a->lists);
    tn_values out = call_lent(m, in, a->context, call_forward);
    tn__again_end(&frames);
    return out;
}

static tn_values call_recompute(tn_module *m, tn_values in, void *context) {
    tn_module_lists *lists = tn__module_lists(m, "recompute");
    again *a = lists ? tn__malloc_for(sizeof(*a), "recompute") : NULL;
    if (!a) { return tn__no_values(); }
    *a =
        (again){.lists = tn__module_lists_keep(lists), .context = context, .training = m->training};
    tn__collection params = {.operation = "recompute"};
    tn_values out = tn__no_values();
    if (tn__collect_parameters(&params, m)) {
        out = tn_recompute(forward_again, a, free_again, in, params.tensors, params.count);
    } else {
        free_again(a);
    }
    free(params.tensors);
    return checked_results(m, out);
}
