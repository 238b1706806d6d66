/* What kernels are given, and how the statuses that they return become errors.
 *
 * A kernel sees descriptors (operand.h). In a backward the needed gradients are made here, in the
 * dtype in which they will be summed; some kernels add to the sums so far instead (target.h).
 *
 * What runs, the first that can: the operation's forward or the device's own kernel; loops over the
 * host's memory; the composition. On a device other than the CPU the composition precedes the
 * loops. Loops are called in the same way as kernels, with stand-ins for tensors that are not on
 * the CPU, or are bf16 or f16.
 */
#include "autograd/kernel.h"

#include "autograd/links.h"
#include "autograd/node.h"
#include "autograd/operand.h"
#include "autograd/target.h"
#include "tern/sys/device.h"

#include <string.h>

/* ---- Statuses -------------------------------------------------------------------------------- */

/* If the operation has raised a better message, that one stays. */
static void status_raise(const tn_op *op, tn_status status, const tn_backend *kernels,
                         const tn_context *ctx, const tn_tensor *first) {
    if (status == TN_EINDEX) {
        tn__raise(status, op->name, "index %lld at position %lld is out of range",
                  (long long)ctx->bad_value, (long long)ctx->bad_position);
    } else if (status == TN_EUNSUPPORTED) {
        tn__raise(status, op->name, "the %s kernels do not handle %s", kernels->name,
                  first ? tn_dtype_name(first->dtype) : "these dtypes");
    } else if (status == TN_ENOMEM) {
        tn__raise(status, op->name, "out of memory for scratch space");
    } else {
        tn__raise(status, op->name, "the %s kernels failed with %s", kernels->name,
                  tn_status_name(status));
    }
}

/* ---- Kernels of operations ------------------------------------------------------------------- */

/* The device's own kernels of op. */
static inline tn_op_kernel own_kernel(const tn_op *op, const tn_backend *kernels) {
    const tn_op_kernel *own = op->kernel && kernels->fused ? kernels->fused[op->kernel] : NULL;
    return own ? *own : (tn_op_kernel){NULL, NULL};
}

/* What runs op on operands of the device: first this; … */
static inline tn_op_kernel kernel_of(const tn_op *op, const tn_backend *kernels) {
    tn_op_kernel own = own_kernel(op, kernels);
    return (tn_op_kernel){op->forward ? op->forward : own.forward,
                          op->backward_kernel ? op->backward_kernel : own.backward};
}

/* … then the loops over the host's memory, where they may run; and then composition or rule. */
static inline tn_op_kernel loops_of(const tn_op *op, tn_device device) {
    bool here = device.kind == TN_CPU;
    return (tn_op_kernel){here || !op->compose ? op->host.forward : NULL,
                          here || !(op->compose || op->backward) ? op->host.backward : NULL};
}

bool tn__kernel_runs(const tn_op *op, tn_device device, bool backward) {
    tn_op_kernel kernel = kernel_of(op, tn_backend_of(device)), loops = loops_of(op, device);
    return backward ? kernel.backward || loops.backward : kernel.forward || loops.forward;
}

bool tn__kernel_owned(const tn_op *op, tn_device device) {
    tn_op_kernel own = own_kernel(op, tn_backend_of(device));
    return own.forward || own.backward;
}

tn_status tn_op_run(const tn_op *op, const tn_op_call *c) {
    if (!op || !c || !c->kernels || !c->ctx) {
        return tn__raise(TN_EVALUE, "op_run", "the operation, the call or its table is NULL");
    }
    tn_op_kernel own = own_kernel(op, c->kernels);
    tn_status status = own.forward ? own.forward(c) : TN_EUNSUPPORTED;
    bool on_host = op->host.forward && c->ctx->device.kind == TN_CPU;
    return status == TN_EUNSUPPORTED && on_host ? op->host.forward(c) : status;
}

tn_status tn_op_run_back(const tn_op *op, const tn_op_back *b) {
    if (!op || !b || !b->kernels || !b->ctx) {
        return tn__raise(TN_EVALUE, "op_run_back", "the operation, the call or its table is NULL");
    }
    tn_op_kernel own = own_kernel(op, b->kernels);
    tn_status status = own.backward ? own.backward(b) : TN_EUNSUPPORTED;
    bool on_host = op->host.backward && b->ctx->device.kind == TN_CPU;
    return status == TN_EUNSUPPORTED && on_host ? op->host.backward(b) : status;
}

/* ---- Stand-ins on the host ------------------------------------------------------------------- */

static const tn_device the_host = {TN_CPU, 0};

/* Warns, once for each operation, that its loops take a device's tensors to the host and their
 * results back: right, but slow, and the device waits. */
static void say_host(const tn_op *op, tn_device device) {
    enum { MAX_SAID = 64 };
    static const tn_op *said[MAX_SAID]; /* atomic */
    for (int i = 0; i < MAX_SAID && device.kind != TN_CPU; i++) {
        const tn_op *known = NULL;
        if (__atomic_compare_exchange_n(&said[i], &known, op, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            tn_log_write(TN_LOG_WARN, "%s has no kernel for this on %s: it runs on the host",
                         op->name, tn_device_text(device));
            return;
        }
        if (known == op) { return; }
    }
}

/* What host loops write in place of t, if they cannot use t itself; it is copied to t afterwards.
 */
static tn_tensor *host_writes(tn_tensor *t) {
    bool takes = t->storage->device.kind == TN_CPU && !tn__is_narrow(t->dtype);
    return takes ? t : tn__new(t->dims, tn__is_narrow(t->dtype) ? TN_F32 : t->dtype, the_host);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Runs `kernel` on operands where they are. `others`: something else can run instead, so
 * TN_EUNSUPPORTED is not raised. */
static tn_status forward_run(tn_op_call *c, tn_status (*kernel)(const tn_op_call *), bool others) {
    tn_desc x[TN_OP_INPUTS], y[TN_OP_OUTPUTS];
    tn__scratch_pool s;
    tn__scratch_begin(&s, c->kernels, c->ctx);
    tn_status status = TN_OK;
    memset(c->x, 0, sizeof c->x);
    memset(c->y, 0, sizeof c->y);
    for (int i = 0; i < c->inputs && i < TN_OP_INPUTS && status == TN_OK; i++) {
        if (c->in[i]) {
            status = tn__operand_read(&s, &x[i], c->in[i], c->op->x_rows[i], c->in[i]->dtype);
            c->x[i] = &x[i];
        }
    }
    for (int i = 0; i < c->outputs; i++) {
        tn__operand_write(&y[i], c->out[i], c->op->y_rows[i]);
        c->y[i] = &y[i];
    }
    if (status == TN_OK) { status = kernel(c); }
    tn__scratch_end(&s);
    if (status != TN_OK && !(status == TN_EUNSUPPORTED && others && !tn__pending())) {
        status_raise(c->op, status, c->kernels, c->ctx, c->inputs > 0 ? c->in[0] : NULL);
    }
    return status;
}

static tn_status host_forward(tn_op_call *c) {
    if (c->inputs > TN_OP_INPUTS) {
        tn_op_fail(c, TN_EUNSUPPORTED, "host loops take at most %d inputs", TN_OP_INPUTS);
        return TN_EUNSUPPORTED;
    }
    TN_SCOPE;
    TN_NO_GRAD;
    say_host(c->op, c->ctx->device);
    tn_tensor *in[TN_OP_INPUTS] = {0};
    tn_op_call h = *c;
    h.in = in;
    h.kernels = tn_backend_of(the_host);
    h.ctx = tn_context_of(the_host);
    for (int i = 0; i < c->inputs; i++) {
        in[i] = c->in[i] ? tn__widened(tn__ops.to(c->in[i], the_host)) : NULL;
    }
    for (int i = 0; i < c->outputs; i++) {
        h.out[i] = host_writes(c->out[i]);
    }
    tn_status status =
        tn__pending() ? tn_error() : forward_run(&h, c->op->host.forward, c->op->compose);
    for (int i = 0; i < c->outputs && status == TN_OK && !tn__pending(); i++) {
        if (h.out[i] != c->out[i]) { tn__ops.copy_(c->out[i], h.out[i]); }
    }
    return status == TN_OK ? tn_error() : status;
}

/* An operation without a kernel makes views of its first input, which need no filling. */
static tn_status check_views(const tn_op_call *c) {
    const tn_tensor *x = c->inputs > 0 ? c->in[0] : NULL;
    for (int i = 0; i < c->outputs; i++) {
        if ((!x || c->out[i]->storage != x->storage) && tn_count(c->out[i]) > 0) {
            tn_op_fail(c, TN_EVALUE,
                       "output %d is not a view of input 0, and nothing fills it: forward, host "
                       "and compose are NULL",
                       i);
        }
    }
    return tn_error();
}

tn_status tn__kernel_forward(tn_op_call *c) {
    const tn_op *op = c->op;
    tn_op_kernel kernel = kernel_of(op, c->kernels), loops = loops_of(op, c->ctx->device);
    if (!kernel.forward && !loops.forward) {
        return op->compose ? TN_EUNSUPPORTED : check_views(c);
    }
    tn_status status = TN_EUNSUPPORTED;
    if (kernel.forward) { status = forward_run(c, kernel.forward, loops.forward || op->compose); }
    return status == TN_EUNSUPPORTED && loops.forward && !tn__pending() ? host_forward(c) : status;
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* A kernel's call, and the tensors that its descriptors describe. */
typedef struct backward_pass {
    tn_op_back b;
    tn__scratch_pool s;
    tn_desc x[TN_OP_INPUTS], y[TN_OP_OUTPUTS], dy[TN_OP_OUTPUTS], dx[TN_OP_INPUTS];
    tn_tensor *made[TN_OP_INPUTS]; /* what dx describes */
    tn__target how[TN_OP_INPUTS];
    bool host; /* for loops over the host's memory */
} backward_pass;

/* The dtype in which the gradient of input i is written. */
static tn_dtype dtype_of_dx(const tn_op_grad *g, const backward_pass *p, int i) {
    tn_dtype own = tn_op_input_dtype(g, i), summed = tn_op_gradient_dtype(g, i);
    bool wider = p->host || ((summed == TN_F32 || summed == TN_F64) && (g->op->widens >> i & 1));
    return tn__is_narrow(own) && wider ? TN_F32 : own;
}

/* Finds sums to add to, for all wanted inputs of op->adds or for none. */
static void find_sums(tn_op_grad *g, backward_pass *p) {
    bool can = !p->host && (g->op->backward_kernel || p->b.ctx->device.kind != TN_CPU);
    for (int i = 0; i < g->inputs && can; i++) {
        if (g->op->adds >> i & 1 && g->wants[i]) {
            p->made[i] = tn__target_sum(g, i, dtype_of_dx(g, p, i), &p->how[i]);
            can = p->made[i];
        }
    }
    if (!can) { memset(p->made, 0, sizeof p->made); }
}

/* Where the gradient of input i goes; dx describes it. False after raising. */
static bool make_gradient(tn_op_grad *g, backward_pass *p, int i) {
    if (!p->made[i]) {
        p->made[i] = tn__target_memory(g, i, dtype_of_dx(g, p, i), p->b.ctx->device,
                                       p->host ? NULL : p->made, &p->how[i]);
    }
    if (p->made[i]->inert) { return false; }
    if (!tn__operand_write(&p->dx[i], p->made[i], g->op->x_rows[i]) && p->how[i]) {
        return tn__fail(TN_EVALUE, g->op->name, "dx_out returns strides that do not allow rows");
    }
    if (p->how[i] >= TN__TARGET_ADD) { p->b.adds |= 1u << i; }
    p->b.dx[i] = &p->dx[i];
    return true;
}

static bool make_gradients(tn_op_grad *g, backward_pass *p) {
    find_sums(g, p);
    for (int i = 0; i < g->inputs; i++) {
        bool always = g->op->flags & TN_OP_ALL_DX && g->node->edges[i].present &&
                      tn_dtype_is_float(tn_op_input_dtype(g, i));
        if ((g->wants[i] || always) && !make_gradient(g, p, i)) { return false; }
    }
    return true;
}

/* The dtype in which dy[k] is passed to the kernel, if it is not its own; else NULL. */
static const tn_dtype *dtype_of_dy(const tn_op_grad *g, const backward_pass *p, int k) {
    for (int i = 0; g->op->flags & TN_OP_DY_AS_DX && k == 0 && i < g->inputs; i++) {
        if (p->b.dx[i]) { return &p->dx[i].dtype; }
    }
    return NULL;
}

/* Describes t, or its stand-in, in d. dtype NULL: as it is. TN_ESTATE: it cannot be read; raised.
 */
static tn_status read_operand(const tn_op_grad *g, backward_pass *p, tn_tensor *t, int rows,
                              const tn_dtype *dtype, tn_desc *d) {
    if (!tn__usable(t, g->op->name)) { return TN_ESTATE; }
    t = p->host ? tn__widened(tn__ops.to(t, the_host)) : t;
    return t->inert ? TN_ESTATE : tn__operand_read(&p->s, d, t, rows, dtype ? *dtype : t->dtype);
}

/* Reads what was saved and the gradients that arrived. */
static tn_status read_operands(tn_op_grad *g, backward_pass *p) {
    const tn_op *op = g->op;
    tn_status status = TN_OK;
    for (int k = 0; k < g->node->saved_count && status == TN_OK; k++) {
        int bit = __builtin_ctz(g->node->saved[k].bit), i = bit % 16;
        bool input = bit == i;
        tn_tensor *t = input ? tn_op_saved_input(g, i) : tn_op_saved_output(g, i);
        tn_desc *d = input ? &p->x[i] : &p->y[i];
        (input ? p->b.x : p->b.y)[i] = d;
        status = read_operand(g, p, t, (input ? op->x_rows : op->y_rows)[i], NULL, d);
    }
    for (int k = 0; k < g->outputs && status == TN_OK; k++) {
        if (g->dout[k]) {
            p->b.dy[k] = &p->dy[k];
            status = read_operand(g, p, g->dout[k], op->y_rows[k], dtype_of_dy(g, p, k), &p->dy[k]);
        }
    }
    return status;
}

static void give_gradients(tn_op_grad *g, backward_pass *p) {
    for (int i = 0; i < g->inputs; i++) {
        tn_tensor *dx = p->made[i];
        if (!dx || !g->wants[i]) { continue; }
        if (p->how[i] != TN__TARGET_FRESH) { tn__touch(dx); }
        if (p->how[i] == TN__TARGET_CONTINUE) { tn__target_continued(g, i); }
        if (p->how[i] <= TN__TARGET_FILL) {
            tn_op_give(g, i, p->host ? tn__ops.to(dx, tn_op_input_device(g, i)) : dx);
        }
    }
}

/* Runs `kernel` on operands on `device`; loops: those for the host, which an operation may also
 * have as its kernel. TN_EUNSUPPORTED, if there are others that may run, is not raised. */
static tn_status backward_run(tn_op_grad *g, tn_status (*kernel)(const tn_op_back *), bool loops,
                              tn_device device, bool others) {
    backward_pass p;
    p.b = (tn_op_back){
        .args = g->args, .kernels = tn_backend_of(device), .ctx = tn_context_of(device)};
    tn__scratch_begin(&p.s, p.b.kernels, p.b.ctx);
    p.host = loops;
    memset(p.made, 0, sizeof p.made);
    tn_status status = make_gradients(g, &p) ? read_operands(g, &p) : tn_error();
    if (status == TN_OK) { status = kernel(&p.b); }
    tn__scratch_end(&p.s);
    if (status == TN_EUNSUPPORTED && others && !tn__pending()) { return TN_EUNSUPPORTED; }
    if (status == TN_OK) {
        give_gradients(g, &p);
    } else {
        status_raise(g->op, status, p.b.kernels, p.b.ctx, g->dout[0]);
    }
    return tn_error();
}

tn_status tn__kernel_backward(tn_op_grad *g) {
    const tn_op *op = g->op;
    if (g->inputs > TN_OP_INPUTS) { return TN_EUNSUPPORTED; }
    tn_device device = tn__gradient_device(g);
    tn_op_kernel kernel = kernel_of(op, tn_backend_of(device)), loops = loops_of(op, device);
    if (kernel.backward && g->dout[0]) {
        bool others = op->backward || op->compose || loops.backward;
        tn_status status = backward_run(g, kernel.backward, false, device, others);
        if (status != TN_EUNSUPPORTED || tn__pending()) { return status; }
    }
    if (!loops.backward) { return TN_EUNSUPPORTED; }
    TN_SCOPE;
    TN_NO_GRAD;
    say_host(op, device);
    return backward_run(g, loops.backward, true, the_host, op->backward || op->compose);
}

tn_tensor *tn__widened(tn_tensor *t) {
    return t && tn__is_narrow(t->dtype) ? tn__ops.cast(t, TN_F32) : t;
}
