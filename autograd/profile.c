/* Spans around operations, their gradients, and the modules in backward: profile.h. */
#include "autograd/profile.h"

#include "autograd/kernel.h"
#include "autograd/node.h"
#include "core/memory.h"
#include "tern/sys/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double count_dims(const tn_dims *dims) {
    return dims ? (double)tn_dims_count(*dims) : 0;
}

/* An operation's work, as its descriptor says; else one per element of the largest operand. */
static void ask_work(const tn_op *op, tn_op_work *work) {
    for (int i = 0; i < TN_OP_INPUTS; i++) {
        work->flops = fmax(work->flops, count_dims(work->x[i]));
    }
    for (int i = 0; i < TN_OP_OUTPUTS; i++) {
        work->flops = fmax(work->flops, count_dims(work->y[i]));
    }
    if (op->work) { op->work(work); }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static bool begin_kernel(tn__span *span, const tn_backend *kernels, const tn_op *op) {
    char name[64];
    snprintf(name, sizeof(name), "%s %s", kernels->name, op->name);
    return tn__span_begin(span, TN__SPAN_KERNEL, name);
}

bool tn__profile_gradient(tn__span *span, const tn_op *op) {
    char name[64];
    snprintf(name, sizeof(name), "%s backward", op->name);
    return tn__span_begin(span, TN__SPAN_GRADIENT, name);
}

tn_status tn__profile_forward(tn_op_call *c) {
    tn__span span;
    bool view =
        c->inputs > 0 && c->in[0] && c->outputs > 0 && c->in[0]->storage == c->out[0]->storage;
    if (!tn__kernel_runs(c->op, c->ctx->device, false) || view ||
        !begin_kernel(&span, c->kernels, c->op)) {
        return tn__kernel_forward(c);
    }
    tn_op_work work = {.args = c->args};
    for (int i = 0; i < c->inputs && i < TN_OP_INPUTS; i++) {
        if (c->in[i]) {
            work.x[i] = &c->in[i]->dims;
            work.x_bytes[i] = tn__profile_bytes(c->in[i]);
            work.bytes += work.x_bytes[i];
            tn__profile_shape(&span, c->in[i]);
        }
    }
    for (int i = 0; i < c->outputs; i++) {
        work.y[i] = &c->out[i]->dims;
        work.bytes += tn__profile_bytes(c->out[i]);
    }
    ask_work(c->op, &work);
    const tn_tensor *like = c->inputs > 0 && c->in[0] ? c->in[0] : c->out[0];
    if (like) { tn__profile_work(&span, like->dtype, work.bytes, work.flops); }
    tn_status status = tn__kernel_forward(c);
    tn__profile_end(&span, c->ctx->device);
    return status;
}

tn_status tn__profile_backward(tn_op_grad *g) {
    tn__span span;
    tn_device device = g->dout[0] ? g->dout[0]->storage->device : tn_cpu();
    if (!g->dout[0] || !tn__kernel_runs(g->op, device, true) ||
        !begin_kernel(&span, tn_backend_of(device), g->op)) {
        return tn__kernel_backward(g);
    }
    tn_op_work work = {.args = g->args, .wants = g->wants};
    for (int i = 0; i < g->inputs && i < TN_OP_INPUTS; i++) {
        const tn__edge *edge = &g->node->edges[i];
        if (edge->present) {
            work.x[i] = &edge->dims;
            work.x_bytes[i] = g->wants[i] ? count_dims(&edge->dims) *
                                                (double)tn_dtype_size(tn_op_gradient_dtype(g, i))
                                          : 0;
            work.bytes += work.x_bytes[i];
        }
    }
    for (int k = 0; k < g->outputs; k++) {
        if (g->dout[k]) {
            work.y[k] = &g->dout[k]->dims;
            work.bytes += tn__profile_bytes(g->dout[k]);
            tn__profile_shape(&span, g->dout[k]);
        }
    }
    for (int i = 0; i < g->node->saved_count; i++) {
        work.bytes += tn__profile_bytes(g->node->saved[i].tensor);
    }
    ask_work(g->op, &work);
    tn_dtype dtype = g->dout[0]->dtype;
    tn_status status = tn__kernel_backward(g);
    if (status != TN_EUNSUPPORTED) { /* otherwise the rule does it, with operations of its own */
        tn__profile_work(&span, dtype, work.bytes, work.flops);
    }
    tn__profile_end(&span, device);
    return status;
}

/* ---- Modules in backward --------------------------------------------------------------------- *
 *
 * A node knows the module whose forward made it. Before it runs, the spans of modules that it is
 * not in end, and those of modules that it is in begin: a backward's trace mirrors the forward's.
 */

enum { DEEPEST = 32 };

struct tn__profile_run {
    tn__span span;
    int around; /* modules whose forward is running around the run, as in recompute */
    int depth;
    const tn__site *module[DEEPEST]; /* of which around … depth-1 have spans */
    tn__span spans[DEEPEST];
};

/* The modules around a site and itself, outermost first; at most DEEPEST of the innermost. */
static int module_chain(const tn__site *site, const tn__site **chain) {
    int count = 0;
    for (const tn__site *at = site; at && count < DEEPEST; at = at->up) {
        count += at->kind == TN__SPAN_MODULE && at->up;
    }
    int place = count;
    for (const tn__site *at = site; at && place > 0; at = at->up) {
        if (at->kind == TN__SPAN_MODULE && at->up) { chain[--place] = at; }
    }
    return count;
}

tn__profile_run *tn__profile_run_begin(void) {
    tn__profile_run *p = tn__malloc(sizeof(*p));
    if (!p) { return NULL; }
    p->depth = p->around = module_chain(tn__span_module(), p->module);
    if (!tn__span_begin(&p->span, TN__SPAN_BACKWARD, "backward")) {
        free(p);
        return NULL;
    }
    return p;
}

static void leave_modules(tn__profile_run *p, int depth) {
    while (p->depth > depth) {
        tn__span_end(&p->spans[--p->depth]);
    }
}

void tn__profile_node(tn__profile_run *p, const tn_node *node) {
    const tn__site *chain[DEEPEST];
    int count = module_chain(node->module, chain), same = 0;
    while (same < count && same < p->depth &&
           strcmp(chain[same]->name, p->module[same]->name) == 0) {
        same++;
    }
    leave_modules(p, same > p->around ? same : p->around);
    if (same < p->around) { /* not below the modules around the run */
        return;
    }
    for (int i = same; i < count; i++) {
        p->module[i] = chain[i];
        if (!tn__span_begin(&p->spans[i], TN__SPAN_MODULE, chain[i]->name)) { return; }
        p->depth = i + 1;
    }
}

void tn__profile_run_end(tn__profile_run *p) {
    leave_modules(p, p->around);
    tn__span_end(&p->span);
    free(p);
}
