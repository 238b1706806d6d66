/* Calling an operation: checks, shape rule, forward, recording.
 * Every operation of the library goes through tn_apply. */
#include "autograd/kernel.h"
#include "autograd/leaf.h"
#include "autograd/links.h"
#include "autograd/mode.h"
#include "autograd/node.h"
#include "autograd/profile.h"
#include "autograd/tracer.h"
#include "core/memory.h"
#include "tern/sys/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Shape rules ----------------------------------------------------------------------------- */

bool tn_op_fail(const tn_op_call *c, tn_status status, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return tn__fail(status, c->op->name, "%s", text);
}

tn_input_name tn_op_input_name(const tn_op *op, int i) {
    tn_input_name name;
    const char *known = op && i >= 0 && i < TN_OP_INPUTS ? op->inputs[i] : NULL;
    if (known) {
        snprintf(name.text, sizeof name.text, "%s", known);
    } else {
        snprintf(name.text, sizeof name.text, "input %d", i);
    }
    return name;
}

static bool add_output(tn_op_call *c, tn_tensor *t) {
    if (t->inert) { return false; }
    if (c->outputs >= TN_OP_OUTPUTS) {
        return tn_op_fail(c, TN_EVALUE, "the shape rule makes more than %d outputs", TN_OP_OUTPUTS);
    }
    c->out[c->outputs++] = t;
    return true;
}

/* Where the operation runs: where its first input is. */
static tn_device device_of(const tn_op_call *c) {
    for (int i = 0; i < c->inputs; i++) {
        if (c->in[i]) { return c->in[i]->storage->device; }
    }
    return tn_default_device();
}

bool tn_op_out(tn_op_call *c, tn_dims dims, tn_dtype dtype) {
    return tn_op_out_on(c, device_of(c), dims, dtype);
}

bool tn_op_out_on(tn_op_call *c, tn_device device, tn_dims dims, tn_dtype dtype) {
    return add_output(c, tn__new(dims, dtype, device));
}

/* False after raising: the rule reads an input that the call does not have. */
static bool has_input(const tn_op_call *c, int i) {
    return (i >= 0 && i < c->inputs && c->in[i]) ||
           tn_op_fail(c, TN_EVALUE, "the rule needs %s but %d inputs are given",
                      tn_op_input_name(c->op, i).text, c->inputs);
}

bool tn_op_out_like(tn_op_call *c, int i) {
    return has_input(c, i) && tn_op_out(c, c->in[i]->dims, c->in[i]->dtype);
}

/* Which dimension keeps a and b from broadcasting, counted in the longer shape. */
static int dims_clash(tn_dims a, tn_dims b, int64_t *left, int64_t *right) {
    int n = a.ndim > b.ndim ? a.ndim : b.ndim;
    for (int i = 1; i <= n; i++) {
        *left = i <= a.ndim ? a.size[a.ndim - i] : 1;
        *right = i <= b.ndim ? b.size[b.ndim - i] : 1;
        if (*left != *right && *left != 1 && *right != 1) { return n - i; }
    }
    return -1;
}

bool tn_op_out_broadcast(tn_op_call *c, int i, int j, tn_dtype dtype) {
    if (!has_input(c, i) || !has_input(c, j)) { return false; }
    const tn_tensor *a = c->in[i], *b = c->in[j];
    if (tn_dims_equal(a->dims, b->dims)) { return tn_op_out(c, a->dims, dtype); }
    tn_dims dims;
    if (!tn_dims_broadcast(a->dims, b->dims, &dims)) {
        int64_t left = 1, right = 1;
        int dim = dims_clash(a->dims, b->dims, &left, &right);
        return tn_op_fail(
            c, TN_ESHAPE, "%s is %s but %s is %s (dimension %d: %lld and %lld do not broadcast)",
            tn_op_input_name(c->op, i).text, tn_shape_text(a), tn_op_input_name(c->op, j).text,
            tn_shape_text(b), dim, (long long)left, (long long)right);
    }
    return tn_op_out(c, dims, dtype);
}

bool tn_op_view(tn_op_call *c, tn_dims dims, const int64_t *stride, int64_t offset) {
    return has_input(c, 0) && add_output(c, tn__view(c->in[0], dims, stride, offset));
}

bool tn_op_same_dtype(const tn_op_call *c) {
    int first = -1;
    for (int i = 0; i < c->inputs; i++) {
        const tn_tensor *t = c->in[i];
        if (t && first >= 0 && t->dtype != c->in[first]->dtype) {
            return tn_op_fail(c, TN_EDTYPE, "%s is %s but %s is %s (cast one of them)",
                              tn_op_input_name(c->op, first).text,
                              tn_dtype_name(c->in[first]->dtype), tn_op_input_name(c->op, i).text,
                              tn_dtype_name(t->dtype));
        }
        first = t && first < 0 ? i : first;
    }
    return true;
}

bool tn_op_float(const tn_op_call *c, int i) {
    if (!has_input(c, i)) { return false; }
    if (!tn_dtype_is_float(c->in[i]->dtype)) {
        return tn_op_fail(c, TN_EDTYPE, "the dtype of %s is %s but must be f32, f64, bf16 or f16",
                          tn_op_input_name(c->op, i).text, tn_dtype_name(c->in[i]->dtype));
    }
    return true;
}

bool tn_op_index(const tn_op_call *c, int i) {
    if (!has_input(c, i)) { return false; }
    tn_dtype dtype = c->in[i]->dtype;
    if (dtype != TN_I64 && dtype != TN_I32) {
        return tn_op_fail(c, TN_EDTYPE, "the dtype of %s is %s but indices must be i64 or i32",
                          tn_op_input_name(c->op, i).text, tn_dtype_name(dtype));
    }
    return true;
}

/* ---- The call -------------------------------------------------------------------------------- */

/* Whether n inputs are too many: an operation that names its inputs takes no others. */
static inline bool has_more(const tn_op *op, int n) {
    return n > 0 && op->inputs[0] && (n > TN_OP_INPUTS || !op->inputs[n - 1]);
}

/* The first input from n on that may not be absent; TN_OP_INPUTS: none. */
static inline int first_wanted(const tn_op *op, int n) {
    while (n < TN_OP_INPUTS && op->inputs[n] && op->optional >> n & 1) {
        n++;
    }
    return n < TN_OP_INPUTS && op->inputs[n] ? n : TN_OP_INPUTS;
}

__attribute__((cold)) static bool refuse_count(const tn_op_call *c) {
    const tn_op *op = c->op;
    bool more = has_more(op, c->inputs);
    int i = more ? c->inputs : first_wanted(op, c->inputs);
    while (more && (i >= TN_OP_INPUTS || !op->inputs[i])) {
        i--;
    }
    return tn_op_fail(c, TN_EVALUE, "%d inputs given, but %s is %s", c->inputs,
                      tn_op_input_name(op, i).text, more ? "its last" : "missing");
}

/* Whether their number is right, and all are usable and on one device. */
static bool check_inputs(const tn_op_call *c) {
    if (has_more(c->op, c->inputs) || first_wanted(c->op, c->inputs) < TN_OP_INPUTS) {
        return refuse_count(c);
    }
    int first = -1;
    for (int i = 0; i < c->inputs; i++) {
        const tn_tensor *t = c->in[i];
        if (!t) {
            if (!(i < 32 && (c->op->optional >> i & 1))) {
                return tn_op_fail(c, TN_EVALUE, "%s must not be NULL",
                                  tn_op_input_name(c->op, i).text);
            }
            continue;
        }
        /* an operation that lends a copy reads neither it nor its parameter: readers of the result
         * do */
        if (c->op->flags & TN_OP_LOW_PRECISION_COPY ? !tn__readable(t, c->op->name)
                                                    : !tn__usable(t, c->op->name)) {
            return false;
        }
        first = first < 0 ? i : first;
        const tn_tensor *other = c->in[first];
        if (!tn__same_device(t->storage->device, other->storage->device)) {
            return tn_op_fail(
                c, TN_EDEVICE, "%s %s is on %s but %s %s is on %s (tn_to one of them)",
                tn_op_input_name(c->op, first).text, tn_shape_text(other),
                tn_device_text(other->storage->device), tn_op_input_name(c->op, i).text,
                tn_shape_text(t), tn_device_text(t->storage->device));
        }
    }
    return true;
}

static bool wants_grad(const tn_op_call *c) {
    if (tn__grad_self.off || !tn_op_differentiable(c->op)) { return false; }
    for (int i = 0; i < c->inputs; i++) {
        if (tn_requires_grad(c->in[i])) { return true; }
    }
    return false;
}

/* The shape rule has checked the inputs and set the results' shapes; its own outputs are not
 * needed. */
static bool run_composition(tn_op_call *c, int results) {
    tn_dtype dtype[TN_OP_OUTPUTS];
    bool wide = c->op->flags & TN_OP_WIDE;
    if (wide && c->inputs > TN_OP_INPUTS) {
        return tn_op_fail(c, TN_EUNSUPPORTED, "a composition takes at most %d inputs",
                          TN_OP_INPUTS);
    }
    for (int i = 0; i < results; i++) {
        dtype[i] = c->out[i]->dtype;
    }
    for (int i = 0; i < c->outputs; i++) {
        tn_drop(c->out[i]);
        c->out[i] = NULL;
    }
    TN_SCOPE;
    if (!tn__enter(c->op->name)) { /* it may be composed of itself */
        return false;
    }
    tn_tensor *in[TN_OP_INPUTS], *const *given = c->in;
    for (int i = 0; i < c->inputs && wide; i++) {
        in[i] = tn__widened(c->in[i]);
    }
    c->in = wide ? in : given;
    c->out[0] = c->op->compose(c);
    c->in = given;
    tn__leave();
    c->outputs = results;
    for (int i = 0; i < results; i++) {
        tn_tensor *y = c->out[i];
        if (!y) { return tn_op_fail(c, TN_EVALUE, "the composition did not make result %d", i); }
        if (y->inert) { return false; }
        c->out[i] = y->dtype == dtype[i] ? y : tn__ops.cast(y, dtype[i]);
        tn_return(c->out[i]);
    }
    return true;
}

static void note_where(tn_op_call *c) {
    if (c->out[0]->node && !c->out[0]->node->where) {
        char place[256];
        tn__place(place, sizeof place);
        c->out[0]->node->where = tn__strdup(place);
    }
}

/* After the shape rule. *taken: a node now owns what args own. */
static bool run_shaped(tn_op_call *c, bool *taken) {
    int results = tn_op_results(c->op);
    tn_status status = tn__profiled() ? tn__profile_forward(c) : tn__kernel_forward(c);
    if (status == TN_EUNSUPPORTED && c->op->compose && !tn__pending()) {
        return run_composition(c, results);
    }
    if (status != TN_OK) { return false; }
    *taken = c->record;
    if (c->record && !tn__node_record(c, c->op->saves)) { return false; }
    for (int i = results; i < c->outputs; i++) {
        tn_drop(c->out[i]);
    }
    if (tn__anomaly && !tn__grad_self.in_rule) {
        note_where(c);
        for (int i = 0; i < results; i++) {
            if (!tn__anomaly_check(c->out[i], c->op->name, "the result", NULL)) { return false; }
        }
    }
    return true;
}

/* As the tracer chooses: whole, and then noted, or as its composition. Nothing inside a whole call
 * is traced. */
static bool run_traced(tn_op_call *c, bool *taken) {
    tn__tracer *tracer = tn__grad_self.tracer;
    tn__tracer_choice choice = tracer->choose(tracer, c);
    if (choice == TN__TRACER_FAIL || choice == TN__TRACER_OPEN) {
        return choice == TN__TRACER_OPEN && run_composition(c, tn_op_results(c->op));
    }
    tn__tracer_begin(NULL);
    bool ok = run_shaped(c, taken) && (choice == TN__TRACER_PASS || tracer->note(tracer, c));
    tn__tracer_begin(tracer);
    return ok;
}

static bool call_run(tn_op_call *c, bool *taken) {
    if (!check_inputs(c)) { return false; }
    tn_device device = device_of(c);
    c->kernels = tn_backend_of(device);
    c->ctx = tn_context_of(device);
    c->record = wants_grad(c);
    int results = tn_op_results(c->op);
    if (!(c->op->shape ? c->op->shape(c) : tn_op_shapes(c, c->op->shapes))) { return false; }
    if (c->outputs < results) {
        return tn_op_fail(c, TN_EVALUE, "the shape rule makes %d of %d results", c->outputs,
                          results);
    }
    return tn__grad_self.tracer ? run_traced(c, taken) : run_shaped(c, taken);
}

/* Whether a descriptor and the call's arguments are complete. */
static inline bool is_callable(const tn_op *op, const void *args, tn_tensor *const *in, int n,
                               tn_tensor **results) {
    return op && (op->shape || op->shapes) && op->name &&
           (args || (!op->args_size && !op->args_finish)) && n >= 0 && (n == 0 || in) && results &&
           op->results >= 0 && op->results <= TN_OP_OUTPUTS;
}

/* Raises what is missing. */
__attribute__((cold)) static void refuse_call(const tn_op *op, const void *args,
                                              tn_tensor *const *in, int n, tn_tensor **results) {
    const char *name = op && op->name ? op->name : "apply";
    int count = op ? tn_op_results(op) : 1;
    if (!op || !op->name || !(op->shape || op->shapes)) {
        tn__raise(TN_EVALUE, name, "%s is NULL (an operation needs a name and a shape rule)",
                  !op         ? "the operation"
                  : !op->name ? "its name"
                              : "its shape");
    } else if (op->results < 0 || op->results > TN_OP_OUTPUTS) {
        tn__raise(TN_EVALUE, name, "it has %d results (must be 0, which means 1, to %d)",
                  op->results, TN_OP_OUTPUTS);
    } else if (!args && (op->args_size || op->args_finish)) {
        tn__raise(TN_EVALUE, name, "args is NULL, but its %s",
                  op->args_size ? "args_size is not 0" : "args_finish releases them");
    } else {
        tn__raise(TN_EVALUE, name, "%d inputs, and the %s NULL", n,
                  n > 0 && !in ? "list of them is" : "results are");
    }
    for (int i = 0; results && i < TN_OP_OUTPUTS && (i == 0 || i < count); i++) {
        results[i] = tn_inert();
    }
    if (op && op->args_finish && args) { op->args_finish((void *)args); }
}

void tn_apply_many(const tn_op *op, const void *args, tn_tensor *const *in, int n,
                   tn_tensor **results) {
    if (!is_callable(op, args, in, n, results)) {
        refuse_call(op, args, in, n, results);
        return;
    }
    tn_op_call c;
    c.op = op;
    c.args = args;
    c.inputs = n;
    c.in = in;
    c.outputs = 0;
    c.record = false;
    bool taken = false;
    tn__span span;
    bool seen = tn__profiled() && tn__span_begin(&span, TN__SPAN_OP, op->name);
    bool ok = call_run(&c, &taken);
    if (seen) { tn__span_end(&span); }
    if (!taken && op->args_finish) { op->args_finish((void *)args); }
    int count = tn_op_results(op);
    for (int i = 0; i < count; i++) {
        results[i] = ok ? c.out[i] : tn_inert();
    }
}

tn_tensor *tn_apply(const tn_op *op, const void *args, tn_tensor *const *in, int n) {
    tn_tensor *results[TN_OP_OUTPUTS] = {NULL};
    tn_apply_many(op, args, in, n, results);
    return results[0];
}
