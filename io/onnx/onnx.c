/* tn_onnx_export: a forward runs once under a tracer (autograd/tracer.h), and each operation that
 * depends on an input or a parameter becomes nodes of a graph (graph.h), by the rules that
 * elementwise.c and its neighbours list. What depends on neither has the same value in every run:
 * it is run and becomes a constant where it is used. For an operation without a rule the operations
 * of its composition are written, if it has one.
 */
#include "io/onnx/graph.h"

#include "core/error.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

/* ---- Rules ----------------------------------------------------------------------------------- */

static const tn__onnx_rule *find_rule(const char *operation) {
    static const tn__onnx_rule *const tables[] = {tn__onnx_elementwise, tn__onnx_reduce,
                                                  tn__onnx_shape,       tn__onnx_nn,
                                                  tn__onnx_windows,     tn__onnx_recurrent};
    for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
        for (const tn__onnx_rule *rule = tables[i]; rule->operation; rule++) {
            if (strcmp(rule->operation, operation) == 0) { return rule; }
        }
    }
    return NULL;
}

/* ---- The tracer ------------------------------------------------------------------------------ */

/* Whether a tensor is more than a constant: it has elements, and is an input, a result, a parameter
 * or a part of one. */
static bool is_variable(const tn__onnx *g, const tn_tensor *t) {
    int value = tn__onnx_known(g, t);
    bool variable =
        value > 0 ? g->values[value - 1].kind != TN__ONNX_CONSTANT : tn__onnx_hidden(g, t);
    return variable && tn_count(t) > 0;
}

static tn__tracer_choice choose_call(tn__tracer *tracer, const tn_op_call *c) {
    const tn__onnx *g = (const tn__onnx *)tracer;
    bool constant = true;
    for (int i = 0; i < c->inputs && constant; i++) {
        constant = !c->in[i] || !is_variable(g, c->in[i]);
    }
    if (constant) { return TN__TRACER_PASS; }
    const tn__onnx_rule *rule = find_rule(c->op->name);
    if (rule && (!rule->fits || rule->fits(c))) { return TN__TRACER_NOTE; }
    if (c->op->compose) { return TN__TRACER_OPEN; }
    tn__raise(TN_EUNSUPPORTED, "onnx_export", "%s %s has no counterpart in ONNX%s", c->op->name,
              c->inputs > 0 && c->in[0] ? tn_shape_text(c->in[0]) : "",
              strcmp(c->op->name, "dropout") == 0 ? " (tn_module_train(m, false))"
              : rule                              ? " with these arguments"
                                                  : "");
    return TN__TRACER_FAIL;
}

static bool note_call(tn__tracer *tracer, const tn_op_call *c) {
    tn__onnx *g = (tn__onnx *)tracer;
    const tn__onnx_rule *rule = find_rule(c->op->name);
    g->operation = c->op->name;
    rule->put(g, c, rule->type);
    return !tn__pending();
}

static bool refuse_change(tn__tracer *tracer, const tn_tensor *y, const char *operation) {
    const tn__onnx *g = (const tn__onnx *)tracer;
    int value = tn__onnx_known(g, y);
    tn__onnx_kind kind = value > 0 ? g->values[value - 1].kind : TN__ONNX_CONSTANT;
    if (kind == TN__ONNX_INPUT || kind == TN__ONNX_RESULT || tn__onnx_hidden(g, y)) {
        return tn__fail(
            TN_EUNSUPPORTED, operation,
            "a tensor is changed in place by %s, which depends on the inputs: ONNX cannot "
            "express that",
            tn_shape_text(y));
    }
    return true;
}

/* ---- Inputs, parameters, outputs ------------------------------------------------------------- */

tn_onnx_options tn_onnx_defaults(void) {
    return (tn_onnx_options){.from_defaults = true};
}

/* The name of input or output i of n: as given, or made from `what`. */
static const char *name_of(const char *const *given, const char *what, int i, int n, char *buffer) {
    if (given) { return given[i]; }
    snprintf(buffer, 32, n > 1 ? "%s_%d" : "%s", what, i);
    return buffer;
}

/* False after raising. */
static bool name_fits(const tn__onnx *g, const char *name, const char *what, int i) {
    if (!name || !*name || *name == '/') {
        return tn__fail(TN_EVALUE, "onnx_export", "the name of %s %d is %s", what, i,
                        name && *name ? "one that begins with '/'" : "empty");
    }
    for (int k = 0; k < g->count; k++) {
        if (strcmp(g->values[k].name, name) == 0) {
            return tn__fail(TN_EVALUE, "onnx_export", "%s %d is called %s, like something else",
                            what, i, name);
        }
    }
    return true;
}

static bool add_inputs(tn__onnx *g, tn_values in, const tn_onnx_options *options) {
    char buffer[32];
    for (int i = 0; i < in.n && !tn__pending(); i++) {
        const char *name = name_of(options->inputs, "input", i, in.n, buffer);
        if (!in.v[i]) { continue; }
        if (!tn__usable(in.v[i], "onnx_export") || !name_fits(g, name, "input", i)) {
            tn__raise(TN_EVALUE, "onnx_export", "input %d is inert", i);
        } else if (tn__onnx_known(g, in.v[i])) {
            tn__raise(TN_EVALUE, "onnx_export", "input %d is another input, or a parameter", i);
        } else {
            tn__onnx_value_add(g, TN__ONNX_INPUT, in.v[i], name);
        }
    }
    return !tn__pending();
}

static bool add_parameter(const tn_entry *entry, void *user) {
    tn__onnx *g = user;
    return tn__onnx_value_add(g, TN__ONNX_PARAM, *entry->field, entry->path) > 0;
}

/* Names the results, by a last node each, which does nothing else. */
static bool add_outputs(tn__onnx *g, tn_values out, const tn_onnx_options *options) {
    char buffer[32];
    tn_op_call last = {.op = tn_op_named("identity"), .inputs = out.n, .in = out.v};
    g->operation = "output";
    for (int i = 0; i < out.n && !tn__pending(); i++) {
        const char *name = name_of(options->outputs, "output", i, out.n, buffer);
        if (!name_fits(g, name, "output", i)) { return false; }
        if (!tn__readable(out.v[i], "onnx_export")) {
            tn__raise(TN_EVALUE, "onnx_export", "output %d is inert", i);
        }
        int value = tn__onnx_in(g, &last, i);
        if (value > 0) {
            g->outputs[g->output_count] = tn__onnx_named(g, value, name);
            last.out[0] = out.v[i];
            tn__onnx_give(g, &last, 0, g->outputs[g->output_count++]);
        }
    }
    return !tn__pending();
}

/* ---- Exporting ------------------------------------------------------------------------------- */

typedef struct forward_call {
    tn_forward f;
    void *user, *module;
    const tn_onnx_options *options;
} forward_call;

/* False after raising. tn__onnx_finish in any case. */
static bool trace_forward(tn__onnx *g, const forward_call *call, tn_values in) {
    TN_SCOPE;
    TN_NO_GRAD;
    *g = (tn__onnx){.tracer = {choose_call, note_call, refuse_change}, .operation = "constant"};
    if (call->module && !tn__pending()) {
        tn_walk all = {.buffers = true, .scratch = true};
        tn_module_each(call->module, all, add_parameter, g);
    }
    if (tn__pending() || !add_inputs(g, in, call->options)) { return false; }
    tn__tracer *before = tn__tracer_begin(&g->tracer);
    tn_values out = call->f(call->user, in);
    tn__tracer_begin(before);
    if ((out.n < 1 || out.n > TN_MAX_VALUES) && !tn__pending()) {
        tn__raise(TN_EVALUE, "onnx_export", "the forward returns %d tensors (must be 1 to %d)",
                  out.n, TN_MAX_VALUES);
    }
    return !tn__pending() && add_outputs(g, out, call->options);
}

/* The inputs, with `batch` rows where they have batches: the example's, repeated. */
static tn_values with_batch(tn_values in, uint32_t which, int64_t batch) {
    for (int i = 0; i < in.n; i++) {
        tn_tensor *x = in.v[i];
        if (x && which >> i & 1) {
            tn_dims times = {.ndim = tn_ndim(x)};
            for (int d = 0; d < times.ndim; d++) {
                times.size[d] = d == 0 ? (batch + tn_size(x, 0) - 1) / tn_size(x, 0) : 1;
            }
            in.v[i] = tn_narrow(tn_repeat(x, times), 0, 0, batch);
        }
    }
    return in;
}

/* The rows of the inputs that have batches; -1 after raising. */
static int64_t batch_of(tn_values in, uint32_t which) {
    int64_t batch = -1;
    for (int i = 0; i < in.n; i++) {
        tn_tensor *x = which >> i & 1 ? in.v[i] : NULL;
        int64_t rows = x && tn_ndim(x) > 0 ? tn_size(x, 0) : 0;
        if (x && (rows == 0 || (batch >= 0 && rows != batch))) {
            tn__raise(TN_ESHAPE, "onnx_export",
                      "input %d is %s and does not have the batch size of the others", i,
                      tn_shape_text(x));
            return -1;
        }
        batch = x ? rows : batch;
    }
    if (batch < 0) { tn__raise(TN_EVALUE, "onnx_export", "batch_inputs names no input"); }
    return batch;
}

/* Traces with three batch sizes, from 2 on, since size 1 may take another path. */
static bool trace_batches(tn__onnx *g, const forward_call *call, tn_values in) {
    TN_SCOPE;
    TN_NO_GRAD;
    uint32_t which = call->options->batch_inputs;
    int64_t batch = batch_of(in, which);
    tn__onnx more[2] = {{.count = 0}};
    if (batch < 0) { return false; }
    batch = batch < 2 ? 2 : batch;
    bool ok = trace_forward(g, call, with_batch(in, which, batch)) &&
              trace_forward(&more[0], call, with_batch(in, which, batch + 1)) &&
              trace_forward(&more[1], call, with_batch(in, which, batch + 2)) &&
              tn__onnx_vary(g, &more[0], &more[1], batch);
    tn__onnx_finish(&more[0]);
    tn__onnx_finish(&more[1]);
    return ok;
}

tn_status tn_onnx_export_function(tn_forward f, void *user, void *m, tn_values in, const char *path,
                                  tn_onnx_options options) {
    forward_call call = {f, user, m, &options};
    tn__onnx g = {.count = 0};
    tn__options_made(options.from_defaults, "onnx_export", "tn_onnx");
    if (!tn__pending() && !f) {
        tn__raise(TN_EVALUE, "onnx_export", "the function is NULL");
    } else if (in.n < 0 || in.n > TN_MAX_VALUES) {
        tn__raise(TN_EVALUE, "onnx_export", "%d inputs (must be 0 to %d)", in.n, TN_MAX_VALUES);
    }
    if (!tn__pending() &&
        (options.batch_inputs ? trace_batches(&g, &call, in) : trace_forward(&g, &call, in))) {
        tn__onnx_save(&g, path);
    }
    tn__onnx_finish(&g);
    return tn_error();
}

static tn_values call_module(void *user, tn_values in) {
    return tn_call_values(user, in, NULL);
}

static bool find_training(tn_module *m, const char *path, void *user) {
    const tn_module **found = user;
    *found = m->training ? m : NULL;
    return !m->training;
}

tn_status tn_onnx_export(void *m, tn_values in, const char *path, tn_onnx_options options) {
    const tn_module *training = NULL;
    if (!tn__pending()) { tn_module_each_module(m, find_training, &training); }
    if (training && !tn__pending()) {
        tn__raise(TN_ESTATE, "onnx_export",
                  "%s is in training mode (call tn_module_train(m, false) first)", training->kind);
    }
    return tn__pending() ? tn_error()
                         : tn_onnx_export_function(call_module, m, m, in, path, options);
}
