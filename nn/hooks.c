/* Hooks of modules: the list, running it, and how a module learns of its backward.
 *
 * Backward is seen through identity nodes: one on each output and on each input that is recorded.
 * They share a tn__watch. The first output node that the engine reaches calls backward_before;
 * backward_after is called when every input node has been reached, or at the latest when the
 * outermost backward ends.
 */
#include "nn/call.h"
#include "nn/misuse.h"

#include "core/memory.h"
#include "tern/sys/op.h"

#include <stdlib.h>
#include <string.h>

/* ---- The list -------------------------------------------------------------------------------- */

/* Deletes the hooks that were removed while hooks were running. */
static void sweep_hooks(tn_module_lists *lists) {
    for (int i = 0; lists->hooks_running == 0 && i < lists->hook_count;) {
        tn__module_hook *hook = lists->hooks[i];
        if (!hook->removed) {
            i++;
            continue;
        }
        lists->hook_count--;
        memmove(lists->hooks + i, lists->hooks + i + 1,
                (size_t)(lists->hook_count - i) * sizeof(*lists->hooks));
        if (hook->hooks.free_user) { hook->hooks.free_user(hook->hooks.user); }
        free(hook);
    }
}

void tn__module_drop_hooks(tn_module_lists *lists) {
    for (int i = 0; i < lists->hook_count; i++) {
        lists->hooks[i]->removed = true;
    }
    sweep_hooks(lists);
}

tn_hook tn_module_hook(void *module, tn_module_hooks hooks) {
    tn_module *m = tn__module_of(module, "module_hook");
    if (!m || tn__pending()) { return 0; }
    if (!hooks.before && !hooks.after && !hooks.backward_before && !hooks.backward_after) {
        tn__raise(TN_EVALUE, "module_hook", "%s: all hooks are NULL", m->kind);
        return 0;
    }
    tn_module_lists *lists = tn__module_lists(m, "module_hook");
    if (!lists || !tn__grow(&lists->hooks, lists->hook_count + 1, &lists->hook_capacity,
                            sizeof(*lists->hooks), "module_hook")) {
        return 0;
    }
    tn__module_hook *hook = tn__malloc_for(sizeof(*hook), "module_hook");
    if (!hook) { return 0; }
    *hook = (tn__module_hook){.id = ++lists->last_hook, .hooks = hooks};
    lists->hooks[lists->hook_count++] = hook;
    return hook->id;
}

void tn_module_unhook(void *module, tn_hook id) {
    tn_module *m = tn__module_of(module, "module_unhook");
    for (int i = 0; m && m->lists && i < m->lists->hook_count; i++) {
        if (m->lists->hooks[i]->id == id) { m->lists->hooks[i]->removed = true; }
    }
    if (m && m->lists) { sweep_hooks(m->lists); }
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Hooks may add and remove hooks, and finish their module: the list is kept while they run and
 * swept afterwards. */
static void running_begin(tn_module_lists *lists) {
    tn__module_lists_keep(lists);
    lists->hooks_running++;
}

static void running_end(tn_module_lists *lists) {
    lists->hooks_running--;
    sweep_hooks(lists);
    tn__module_lists_release(lists);
}

/* Calls a forward hook in a scope of its own, which its values outlive. */
static tn_values call_forward_hook(const tn__module_hook *hook, tn_module *m, tn_values in,
                                   const tn_values *out) {
    TN_SCOPE;
    tn_values values = out ? hook->hooks.after(m, in, *out, hook->hooks.user)
                           : hook->hooks.before(m, in, hook->hooks.user);
    if (values.n < 0 || values.n > TN_MAX_VALUES) {
        tn__raise(TN_EVALUE, m->kind, "a hook returned %d values (at most %d)", values.n,
                  TN_MAX_VALUES);
        return tn__no_values();
    }
    tn__return_values(&values);
    return values;
}

/* Calls the `before` hooks, or with out the `after` hooks. Returns what they leave of these values.
 */
static tn_values run_forward_hooks(tn_module *m, tn_values in, tn_values *out) {
    tn_module_lists *lists = m->lists;
    tn_values *values = out ? out : &in;
    if (!lists || lists->hook_count == 0) { return *values; }
    running_begin(lists);
    for (int i = 0, n = lists->hook_count; i < n; i++) {
        const tn__module_hook *hook = lists->hooks[i];
        if (!hook->removed && (out ? hook->hooks.after != NULL : hook->hooks.before != NULL)) {
            *values = call_forward_hook(hook, m, in, out);
        }
    }
    running_end(lists);
    return *values;
}

tn_values tn__hooks_before(tn_module *m, tn_values in) {
    return run_forward_hooks(m, in, NULL);
}

tn_values tn__hooks_after(tn_module *m, tn_values in, tn_values out) {
    return run_forward_hooks(m, in, &out);
}

/* Runs backward_before, or with in_grads backward_after. */
static void run_backward_hooks(tn_module_lists *lists, const tn_values *in_grads) {
    if (lists->module && !tn__module_in_place(lists, "backward")) { return; }
    running_begin(lists);
    for (int i = 0, n = lists->hook_count; i < n && lists->module; i++) {
        const tn__module_hook *hook = lists->hooks[i];
        if (hook->removed) { continue; }
        TN_SCOPE;
        if (in_grads && hook->hooks.backward_after) {
            hook->hooks.backward_after(lists->module, *in_grads, hook->hooks.user);
        } else if (!in_grads && hook->hooks.backward_before) {
            hook->hooks.backward_before(lists->module, hook->hooks.user);
        }
    }
    running_end(lists);
}

/* ---- Watching a backward --------------------------------------------------------------------- */

struct tn__watch {
    int32_t refs;           /* atomic: the call, each node, a running backward */
    tn_module_lists *lists; /* one reference */
    int inputs;             /* of the call */
    uint32_t wanted;        /* bit i: input i has a node */
    uint32_t arrived;       /* in this backward */
    bool begun, done;
    tn_tensor *grads[TN_MAX_VALUES]; /* one reference each, until backward_after has seen them */
};

typedef struct watch_args {
    tn__watch *watch; /* one reference */
    int input;        /* -1 on an output */
} watch_args;

static void watch_keep(tn__watch *watch) {
    __atomic_fetch_add(&watch->refs, 1, __ATOMIC_RELAXED);
}

static void drop_grads(tn__watch *watch) {
    for (int i = 0; i < TN_MAX_VALUES; i++) {
        tn_release(watch->grads[i]);
        watch->grads[i] = NULL;
    }
}

static void watch_release(tn__watch *watch) {
    if (watch && __atomic_fetch_sub(&watch->refs, 1, __ATOMIC_ACQ_REL) == 1) {
        drop_grads(watch);
        tn__module_lists_release(watch->lists);
        free(watch);
    }
}

static void notify_after(tn__watch *watch) {
    watch->done = true;
    tn_values grads = {.n = watch->inputs};
    memcpy(grads.v, watch->grads, sizeof(grads.v));
    run_backward_hooks(watch->lists, &grads);
    drop_grads(watch);
}

/* The end of the outermost backward: calls the hooks that have not been called, and resets for a
 * second backward. */
static void backward_ended(void *user) {
    tn__watch *watch = user;
    if (!watch->done) { notify_after(watch); }
    watch->begun = watch->done = false;
    watch->arrived = 0;
    watch_release(watch);
}

static void output_reached(tn__watch *watch) {
    if (watch->begun) { return; }
    watch_keep(watch);
    if (tn_after_backward(backward_ended, watch) != TN_OK) {
        watch_release(watch);
        return;
    }
    watch->begun = true;
    run_backward_hooks(watch->lists, NULL);
}

static void input_reached(tn__watch *watch, int input, tn_tensor *grad) {
    if (!watch->begun || watch->done) { return; }
    tn_release(watch->grads[input]);
    watch->grads[input] = tn_keep(grad);
    watch->arrived |= 1u << input;
    if (watch->arrived == watch->wanted) { notify_after(watch); }
}

static bool same_view(tn_op_call *c) {
    return tn_op_view(c, c->in[0]->dims, c->in[0]->stride, c->in[0]->offset);
}

static void watch_backward(tn_op_grad *g) {
    const watch_args *args = g->args;
    if (args->input < 0) {
        output_reached(args->watch);
    } else {
        input_reached(args->watch, args->input, g->dout[0]);
    }
    tn_op_give(g, 0, g->dout[0]);
}

static void watch_args_finish(void *args) {
    watch_release(((watch_args *)args)->watch);
}

/* An identity with a node. Not in the registry: its node carries callbacks, and its rule is the
 * gradient unchanged. */
static const tn_op watch_op = {
    .name = "module_hooks",
    .args_size = sizeof(watch_args),
    .shape = same_view,
    .backward = watch_backward,
    .args_finish = watch_args_finish,
};

static tn_tensor *watch_tensor(tn__watch *watch, tn_tensor *t, int input) {
    watch_keep(watch);
    watch_args args = {watch, input};
    return tn_apply1(&watch_op, &args, t);
}

static bool needs_backward(const tn_module_lists *lists) {
    for (int i = 0; lists && i < lists->hook_count; i++) {
        if (lists->hooks[i]->hooks.backward_before || lists->hooks[i]->hooks.backward_after) {
            return true;
        }
    }
    return false;
}

tn__watch *tn__watch_inputs(tn_module *m, tn_values *in) {
    if (!tn_grad_mode() || !needs_backward(m->lists)) { return NULL; }
    tn__watch *watch = tn__calloc_for(1, sizeof(*watch), m->kind);
    if (!watch) { return NULL; }
    *watch = (tn__watch){.refs = 1, .lists = tn__module_lists_keep(m->lists), .inputs = in->n};
    for (int i = 0; i < in->n; i++) {
        if (in->v[i] && tn_requires_grad(in->v[i])) {
            in->v[i] = watch_tensor(watch, in->v[i], i);
            watch->wanted |= 1u << i;
        }
    }
    return watch;
}

void tn__watch_outputs(tn__watch *watch, tn_values *out) {
    for (int i = 0; watch && i < out->n; i++) {
        if (out->v[i] && tn_requires_grad(out->v[i])) {
            out->v[i] = watch_tensor(watch, out->v[i], -1);
        }
    }
    watch_release(watch);
}
