/* Recompute (gradient checkpointing): a part of the network that keeps only its inputs and runs
 * again in backward.
 *
 * To the outer graph it is one node with edges to its inputs and to every parameter that it reads.
 * Backward runs the forward again, recorded, with the random numbers of the first time, and
 * differentiates it with tn_grad. The node returns the parameters' gradients, and the outer
 * backward adds them to those from elsewhere.
 *
 * In a backward in halves (halves.h) the forward is repeated once, in the first. Its graph is kept
 * until the second, so that what recompute saved is in memory in between.
 */
#include "autograd/again.h"
#include "autograd/halves.h"
#include "autograd/leaf.h"
#include "autograd/links.h"
#include "autograd/node.h"
#include "core/memory.h"

typedef struct recompute_args {
    tn_forward f;
    void *user;
    void (*free_user)(void *user);
    tn__moment moment; /* of the first forward */
    int inputs;        /* of the node: inputs first, then parameters */
} recompute_args;

static void recompute_finish(void *memory) {
    recompute_args *args = memory;
    if (args->free_user) { args->free_user(args->user); }
}

static tn_values run_again(const recompute_args *args, tn_values in) {
    tn__replay before = tn__replay_begin(&args->moment, true);
    tn_values out = args->f(args->user, in);
    tn__replay_end(&before);
    return out;
}

/* An input for the second forward: detached, unless its history is to be differentiated as well. */
static tn_tensor *fresh_input(tn_op_grad *g, int i, bool rest) {
    tn_tensor *t = tn_op_saved_input(g, i);
    if (!t || t->inert) { return t; }
    if (!g->wants[i] && !(rest && tn__rule_later(g, i))) { return t->node ? tn_detach(t) : t; }
    return tn_grad_mode() ? tn__ops.identity(t) : tn_set_requires_grad(tn_detach(t), true);
}

/* What input i of the node is in the repeated graph, if its gradient is needed: now, or in the
 * second half. Else NULL. */
static tn_tensor *chosen_input(const tn_op_grad *g, tn_values in, int i, bool later) {
    bool needed = later ? tn__rule_later(g, i) : g->wants[i];
    return !needed ? NULL : i < in.n ? in.v[i] : g->node->edges[i].leaf;
}

static int list_inputs(const tn_op_grad *g, tn_values in, bool later, tn_tensor **chosen) {
    int count = 0;
    for (int i = 0; i < g->inputs; i++) {
        tn_tensor *t = chosen_input(g, in, i, later);
        if (t) { chosen[count++] = t; }
    }
    return count;
}

void tn__give_again(tn_op_grad *g, tn_values in, tn_values out, tn__run **rest) {
    tn_tensor *roots[TN_MAX_VALUES], *grads[TN_MAX_VALUES];
    int n = 0;
    for (int i = 0; i < out.n; i++) {
        if (g->dout[i] && tn_requires_grad(out.v[i])) {
            roots[n] = out.v[i];
            grads[n++] = g->dout[i];
        }
    }
    size_t inputs = (size_t)g->inputs;
    tn_tensor **chosen = tn__malloc_for(3 * inputs * sizeof(tn_tensor *), g->op->name);
    if (!chosen) { return; }
    int count = list_inputs(g, in, false, chosen);
    tn_tensor **made = chosen + inputs, **later = made + inputs;
    tn_grad_options options =
        TN_WITH(tn_grad, .create_graph = tn_grad_mode(), .allow_unused = true);
    if (n > 0 && count > 0 && rest) {
        int later_n = list_inputs(g, in, true, later);
        *rest = tn__grad_inputs(roots, grads, n, chosen, count, later, later_n, made);
    } else if (n > 0 && count > 0) {
        tn_grad(roots, grads, n, chosen, count, made, options);
    }
    for (int i = 0, place = 0; n > 0 && i < g->inputs && !tn__pending(); i++) {
        if (chosen_input(g, in, i, false)) { tn_op_give(g, i, made[place++]); }
    }
    free(chosen);
}

/* The second half. */
static void give_rest(tn_op_grad *g, tn__run **rest) {
    const recompute_args *args = g->args;
    tn_tensor **made = tn__malloc_for((size_t)g->inputs * sizeof(tn_tensor *), "recompute");
    bool done = made && tn__grad_rest(*rest, made) == TN_OK;
    for (int i = 0, place = 0; done && i < g->inputs; i++) {
        if (g->wants[i] && (i < args->inputs || g->node->edges[i].leaf)) {
            tn_op_give(g, i, made[place++]);
        }
    }
    if (made) { /* freed */
        *rest = NULL;
    }
    free(made);
}

static void recompute_backward(tn_op_grad *g) {
    const recompute_args *args = g->args;
    tn__run **rest = tn__rule_rest(g);
    if (rest && *rest) {
        give_rest(g, rest);
        return;
    }
    tn_values in = {.n = args->inputs};
    for (int i = 0; i < in.n; i++) {
        in.v[i] = fresh_input(g, i, rest != NULL);
        if (in.v[i] && in.v[i]->inert) { return; }
    }
    tn_values out = run_again(args, in);
    if (!tn__pending() && out.n != g->outputs) {
        tn__raise(TN_ESTATE, "recompute", "the forward returned %d values, but %d the first time",
                  out.n, g->outputs);
    }
    if (!tn__pending()) { tn__give_again(g, in, out, rest); }
}

static const tn_op recompute_op = {
    .name = "recompute",
    .args_size = sizeof(recompute_args),
    .backward = recompute_backward,
    .args_finish = recompute_finish,
};

/* The outputs of the first forward as outputs of the node. */
static tn_values attach_outputs(tn_node *node, tn_values out) {
    for (int i = 0; i < out.n; i++) {
        tn_tensor *t = out.v[i];
        if (tn_dtype_is_float(t->dtype)) {
            out.v[i] = tn__view(t, t->dims, t->stride, t->offset);
            if (!out.v[i]->inert) { tn__node_attach(node, out.v[i], i); }
        }
    }
    return out;
}

static bool anything_wanted(tn_values in, tn_tensor *const *params, int n) {
    bool any = false;
    for (int i = 0; i < in.n; i++) {
        any |= tn_requires_grad(in.v[i]);
    }
    for (int i = 0; i < n; i++) {
        any |= tn_requires_grad(params[i]);
    }
    return any && tn_grad_mode();
}

static tn_values inert_values(void) {
    return (tn_values){1, {tn_inert()}};
}

static tn_values record_node(recompute_args args, tn_values in, tn_tensor *const *params,
                             int params_n, tn_values out) {
    int n = in.n + params_n;
    tn_tensor **all = tn__malloc_for((size_t)n * sizeof(tn_tensor *), "recompute");
    if (!all) {
        recompute_finish(&args);
        return inert_values();
    }
    int saved = 0;
    for (int i = 0; i < n; i++) {
        all[i] = i < in.n ? in.v[i] : params[i - in.n];
        saved += i < in.n && all[i];
    }
    tn_node *node = tn__node_new(&recompute_op, &args, all, n, out.n, saved);
    free(all);
    if (!node) { return inert_values(); }
    for (int i = 0, place = 0; i < in.n; i++) {
        if (in.v[i]) { tn__node_save(node, place++, in.v[i], TN_SAVES_INPUT(i)); }
    }
    out = attach_outputs(node, out);
    tn__node_release(node);
    return out;
}

/* The first forward; nothing is recorded if it will be run again. */
static tn_values run_first(tn_forward f, void *user, tn_values in, bool again) {
    if (!tn__enter("recompute")) { return inert_values(); }
    bool before = tn__first_pass_begin(again);
    tn_values out = f(user, in);
    tn__first_pass_end(again, before);
    tn__leave();
    return out;
}

tn_values tn_recompute(tn_forward f, void *user, void (*free_user)(void *user), tn_values in,
                       tn_tensor *const *params, int params_n) {
    recompute_args args = {f, user, free_user, tn__moment_now(), in.n};
    bool bad = !f || in.n < 0 || in.n > TN_MAX_VALUES || params_n < 0 || (params_n > 0 && !params);
    if (!f || params_n < 0 || (params_n > 0 && !params)) {
        tn__raise(TN_EVALUE, "recompute", "the %s NULL", f ? "parameters are" : "forward is");
    } else if (bad) {
        tn__raise(TN_EVALUE, "recompute", "%d inputs given (at most %d)", in.n, TN_MAX_VALUES);
    }
    for (int i = 0; !bad && i < in.n; i++) {
        bad = in.v[i] && !tn__usable(in.v[i], "recompute");
    }
    if (bad || !anything_wanted(in, params, params_n)) {
        tn_values out = bad ? inert_values() : run_first(f, user, in, false);
        recompute_finish(&args);
        return out;
    }
    tn_values out = run_first(f, user, in, true);
    if (out.n < 0 || out.n > TN_MAX_VALUES) {
        tn__raise(TN_EVALUE, "recompute", "the forward returned %d values (at most %d)", out.n,
                  TN_MAX_VALUES);
        recompute_finish(&args);
        return inert_values();
    }
    for (int i = 0; i < out.n; i++) {
        if (!out.v[i] || out.v[i]->inert) {
            recompute_finish(&args);
            return out;
        }
    }
    return record_node(args, in, params, params_n, out);
}
