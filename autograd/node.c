/* Nodes: recording, saving, releasing. */
#include "autograd/node.h"

#include "autograd/kernel.h"
#include "autograd/leaf.h"
#include "core/memory.h"

#include <string.h>

static uint64_t newest;

tn_node *tn__node_new(const tn_op *op, const void *args, tn_tensor *const *in, int n, int outputs,
                      int saved) {
    size_t args_bytes = (op->args_size + 15) & ~(size_t)15;
    size_t edges_bytes = (size_t)n * sizeof(tn__edge);
    size_t bytes = sizeof(tn_node) + args_bytes + edges_bytes + (size_t)saved * sizeof(tn__saved);
    tn_node *node = tn__malloc_for(bytes, op->name);
    if (!node) {
        if (op->args_finish) { op->args_finish((void *)args); }
        return NULL;
    }
    char *rest = (char *)(node + 1);
    *node = (tn_node){.refs = 1,
                      .inputs = n,
                      .outputs = outputs,
                      .saved_count = saved,
                      .op = op,
                      .module = tn__profiled() ? tn__span_module() : NULL};
    node->age = __atomic_add_fetch(&newest, 1, __ATOMIC_RELAXED);
    node->args = rest;
    node->edges = (tn__edge *)(rest + args_bytes);
    node->saved = (tn__saved *)(rest + args_bytes + edges_bytes);
    if (op->args_size) { memcpy(node->args, args, op->args_size); }
    for (int i = 0; i < saved; i++) {
        node->saved[i] = (tn__saved){0};
    }
    for (int i = 0; i < n; i++) {
        tn__edge *edge = &node->edges[i];
        const tn_tensor *t = in[i];
        *edge = (tn__edge){.present = t != NULL};
        if (!t) { continue; }
        edge->dtype = t->dtype;
        edge->device = t->storage->device;
        edge->dims = t->dims;
        if (t->node) {
            edge->node = t->node;
            edge->output = t->output;
            tn__node_keep(t->node);
        } else if (tn__wants_grad(t)) {
            edge->leaf = tn_keep((tn_tensor *)t);
        }
    }
    return node;
}

void tn__node_attach(tn_node *node, tn_tensor *t, int output) {
    t->node = node;
    t->output = output;
    tn__node_keep(node);
}

void tn__node_save(tn_node *node, int place, tn_tensor *t, uint32_t bit) {
    node->saved[place] =
        (tn__saved){tn_keep(t), __atomic_load_n(&t->version->value, __ATOMIC_RELAXED), bit};
}

/* What must be saved: what is always read, and what the needed gradients read. */
static uint32_t needed_saves(const tn_op_call *c, uint32_t saves) {
    for (int i = 0; i < c->inputs && i < TN_OP_INPUTS; i++) {
        if (c->op->saves_for[i] && c->in[i] && tn_requires_grad(c->in[i])) {
            saves |= c->op->saves_for[i];
        }
    }
    return saves;
}

bool tn__node_record(tn_op_call *c, uint32_t saves) {
    saves = needed_saves(c, saves);
    int count = 0;
    for (int i = 0; i < c->inputs; i++) {
        count += c->in[i] && i < 16 && (saves & TN_SAVES_INPUT(i));
    }
    for (int i = 0; i < c->outputs; i++) {
        count += (saves & TN_SAVES_OUTPUT(i)) != 0;
    }
    int results = tn_op_results(c->op);
    tn_node *node = tn__node_new(c->op, c->args, c->in, c->inputs, results, count);
    if (!node) { return false; }
    int place = 0;
    for (int i = 0; i < c->inputs; i++) {
        if (c->in[i] && i < 16 && (saves & TN_SAVES_INPUT(i))) {
            tn__node_save(node, place++, c->in[i], TN_SAVES_INPUT(i));
        }
    }
    bool ok = true;
    for (int i = 0; i < c->outputs && ok; i++) {
        if (saves & TN_SAVES_OUTPUT(i)) {
            tn_tensor *out = c->out[i];
            tn_tensor *view =
                i < results ? tn__view(out, out->dims, out->stride, out->offset) : out;
            ok = !tn_is_inert(view);
            if (ok) { tn__node_save(node, place++, view, TN_SAVES_OUTPUT(i)); }
            if (view != out) { tn_drop(view); }
        }
    }
    for (int i = 0; i < results && ok; i++) {
        if (tn_dtype_is_float(c->out[i]->dtype)) { tn__node_attach(node, c->out[i], i); }
    }
    tn__node_release(node);
    return ok;
}

/* ---- What a rule reads ----------------------------------------------------------------------- */

static tn__saved *find_saved(const tn_node *node, uint32_t bit) {
    for (int i = 0; i < node->saved_count; i++) {
        if (node->saved[i].bit == bit) { return &node->saved[i]; }
    }
    return NULL;
}

static tn_tensor *read_saved(tn_op_grad *g, uint32_t bit, const char *what, int i) {
    tn__saved *saved = find_saved(g->node, bit);
    if (!saved || !saved->tensor) {
        if (saved || tn__node_spent(g->node)) {
            tn__raise(
                TN_ESTATE, g->op->name,
                "backward a second time through a graph that was freed (retain_graph keeps it)");
        } else {
            tn__raise(TN_ESTATE, g->op->name,
                      "backward asks for %s %d, which the operation does not declare in saves",
                      what, i);
        }
        return tn_inert();
    }
    uint32_t now = __atomic_load_n(&saved->tensor->version->value, __ATOMIC_RELAXED);
    if (now != saved->version) {
        tn__raise(TN_ESTATE, g->op->name,
                  "%s %d, %s, was changed in place after it was saved for backward (version %u "
                  "then, %u now)",
                  what, i, tn_shape_text(saved->tensor), saved->version, now);
        return tn_inert();
    }
    return saved->tensor;
}

tn_tensor *tn_op_saved_input(tn_op_grad *g, int i) {
    if (i < 0 || i >= g->inputs || i >= 16) {
        tn__raise(TN_EVALUE, g->op->name, "backward reads input %d of %d (16 can be saved)", i,
                  g->inputs);
        return tn_inert();
    }
    if (!g->node->edges[i].present) { return NULL; }
    tn_tensor *t = read_saved(g, TN_SAVES_INPUT(i), "input", i);
    return g->widened ? tn__widened(t) : t;
}

tn_tensor *tn_op_saved_output(tn_op_grad *g, int i) {
    if (i < 0 || i >= TN_OP_OUTPUTS) {
        tn__raise(TN_EVALUE, g->op->name, "backward reads output %d of %d", i, g->outputs);
        return tn_inert();
    }
    tn_tensor *t = read_saved(g, TN_SAVES_OUTPUT(i), "output", i);
    if (tn_grad_mode() && !t->inert && i < g->outputs) { /* it will be differentiated through */
        t = tn__view(t, t->dims, t->stride, t->offset);
        if (!t->inert) { tn__node_attach(g->node, t, i); }
    }
    return g->widened ? tn__widened(t) : t;
}

tn_dims tn_op_input_dims(const tn_op_grad *g, int i) {
    return i >= 0 && i < g->inputs ? g->node->edges[i].dims : (tn_dims){.ndim = -1};
}

tn_dtype tn_op_input_dtype(const tn_op_grad *g, int i) {
    return i >= 0 && i < g->inputs ? g->node->edges[i].dtype : TN_F32;
}

tn_device tn_op_input_device(const tn_op_grad *g, int i) {
    return i >= 0 && i < g->inputs ? g->node->edges[i].device : tn_cpu();
}

/* ---- Release --------------------------------------------------------------------------------- */

void tn__node_keep(tn_node *node) {
    __atomic_fetch_add(&node->refs, 1, __ATOMIC_RELAXED);
}

void tn__node_free_saved(tn_node *node) {
    if (node->freed) { return; }
    node->freed = true;
    for (int i = 0; i < node->saved_count; i++) {
        tn_tensor *t = node->saved[i].tensor;
        node->saved[i].tensor = NULL;
        tn_release(t);
    }
    if (node->op->args_finish) { node->op->args_finish(node->args); }
}

static void destroy_node(tn_node *node) {
    tn__node_free_saved(node);
    for (int i = 0; i < node->inputs; i++) {
        tn_release(node->edges[i].leaf);
        if (node->edges[i].node) { tn__node_release(node->edges[i].node); }
    }
    tn__hooks_free(node->hooks);
    free(node->where);
    free(node);
}

/* Destroying a node releases others, through edges and through saved tensors. They queue here
 * instead of recursing. */
void tn__node_release(tn_node *node) {
    static _Thread_local tn_node *queue;
    static _Thread_local bool draining;
    if (__atomic_sub_fetch(&node->refs, 1, __ATOMIC_ACQ_REL) != 0) { return; }
    node->doomed = queue;
    queue = node;
    if (draining) { return; }
    draining = true;
    while (queue) {
        tn_node *next = queue;
        queue = next->doomed;
        destroy_node(next);
    }
    draining = false;
}

__attribute__((constructor)) static void link_tensor(void) {
    tn__autograd.node_release = tn__node_release;
    tn__autograd.leaf_free = tn__leaf_free;
}
