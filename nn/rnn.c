/* rnn, gru, lstm: recurrent nets of several layers, in one or both directions
 *
 *     x (T, B, in), or (B, T, in) with batch_first -> y (T, B, D hidden), D = 1, or 2 with both
 *
 * Layer l reads the output of layer l - 1, both directions side by side, through dropout in
 * training. Each layer and direction is one operation (ops/rnn/), with time first. The parameters
 * are PyTorch's: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse and so
 * on.
 */
#include "core/memory.h"
#include "nn/call.h"
#include "nn/layer.h"
#include "nn/rnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const tn__rnn_kind tn__rnn_kinds[] = {
    {"rnn", "rnn_cell", 1, false}, {"gru", "gru_cell", 3, false}, {"lstm", "lstm_cell", 4, true}};

const tn__rnn_kind *tn__rnn_kind_of(const tn_module *m) {
    const tn__rnn_kind *kind = tn__rnn_kinds;
    while (strcmp(kind->name, m->kind) != 0 && strcmp(kind->cell, m->kind) != 0) {
        kind++;
    }
    return kind;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* The inputs of a call; all but x may be absent. */
typedef struct rnn_inputs {
    tn_tensor *x, *h0, *c0, *lengths;
} rnn_inputs;

/* The last states of all layers and directions. */
typedef struct rnn_last {
    tn_tensor **h, **c;
} rnn_last;

static tn_tensor *run_direction(const tn_rnn *m, tn_tensor *x, const rnn_inputs *in, int i,
                                const rnn_last *last) {
    const tn__rnn_kind *kind = tn__rnn_kind_of(&m->base);
    bool reverse = m->directions == 2 && i % 2 == 1;
    tn_tensor *h0 = in->h0 ? tn_select(in->h0, 0, i) : NULL,
              *c0 = in->c0 ? tn_select(in->c0, 0, i) : NULL;
    if (kind->has_c) {
        return tn_lstm_op(x, h0, c0, m->weights[i], in->lengths, reverse, &last->h[i], &last->c[i]);
    }
    return kind->gates == 3
               ? tn_gru_op(x, h0, m->weights[i], in->lengths, reverse, &last->h[i])
               : tn_rnn_op(x, h0, m->weights[i], in->lengths, reverse, m->relu, &last->h[i]);
}

/* Runs all layers; x with time first. */
static tn_tensor *run_layers(const tn_rnn *m, tn_tensor *x, const rnn_inputs *in,
                             const rnn_last *last) {
    for (int layer = 0; layer < m->layers; layer++) {
        tn_tensor *y[2] = {0};
        if (layer > 0 && m->base.training && m->dropout > 0.0) { x = tn_dropout_op(x, m->dropout); }
        for (int d = 0; d < m->directions; d++) {
            y[d] = run_direction(m, x, in, layer * m->directions + d, last);
        }
        x = m->directions == 2 ? tn_cat(y, 2, 2) : y[0];
    }
    return x;
}

/* False after raising. */
static bool check_inputs(const tn_rnn *m, tn_values in, rnn_inputs *each) {
    const tn__rnn_kind *kind = tn__rnn_kind_of(&m->base);
    *each = (rnn_inputs){in.v[0], in.n > 1 ? in.v[1] : NULL, in.n > 2 ? in.v[2] : NULL,
                         in.n > 3 ? in.v[3] : NULL};
    if (in.n < 1 || in.n > 4 || !in.v[0] || (each->c0 && !kind->has_c)) {
        return tn__fail(
            TN_EVALUE, kind->name,
            "%d inputs given; they are x, h0, %s, lengths; all but x may be NULL or, at the "
            "end, left out",
            in.n, kind->has_c ? "c0" : "NULL (c0 of an lstm)");
    }
    const char *order = m->batch_first ? "batch, times, in" : "times, batch, in";
    if (tn_ndim(each->x) != 3 || tn_size(each->x, 2) != m->in) {
        return tn__fail(TN_ESHAPE, kind->name, "x is %s but must be (%s) with in %lld",
                        tn_shape_text(each->x), order, (long long)m->in);
    }
    int64_t states = (int64_t)m->layers * m->directions, batch = tn_size(each->x, !m->batch_first);
    for (int i = 1; i <= 2; i++) {
        tn_tensor *s = i == 1 ? each->h0 : each->c0;
        if (s && !tn_dims_equal(tn_shape(s), TN_DIMS(states, batch, m->hidden))) {
            return tn__fail(
                TN_ESHAPE, kind->name,
                "%s is %s but must be [%lld, %lld, %lld] (layers x directions, batch, hidden) "
                "for x of %s",
                i == 1 ? "h0" : "c0", tn_shape_text(s), (long long)states, (long long)batch,
                (long long)m->hidden, tn_shape_text(each->x));
        }
    }
    return true;
}

static tn_values rnn_forward(tn_module *self, tn_values in, void *context) {
    tn_rnn *m = (tn_rnn *)self;
    rnn_inputs each;
    if (!check_inputs(m, in, &each)) { return tn__no_values(); }
    int states = m->layers * m->directions;
    tn_tensor **memory = tn__calloc_for(2 * (size_t)states, sizeof(*memory), self->kind);
    if (!memory) { return tn__no_values(); }
    rnn_last last = {memory, memory + states};
    tn_tensor *x = m->batch_first ? tn_transpose(each.x, 0, 1) : each.x;
    tn_tensor *y = run_layers(m, x, &each, &last);
    tn_values out = {1, {m->batch_first ? tn_transpose(y, 0, 1) : y}};
    if (in.n > 1) { out.v[out.n++] = tn_stack(last.h, states, 0); }
    if (in.n > 1 && tn__rnn_kind_of(self)->has_c) { out.v[out.n++] = tn_stack(last.c, states, 0); }
    free(memory);
    return out;
}

tn_tensor *tn_rnn_call(void *m, tn_tensor *x, tn_rnn_state *state, tn_tensor *lengths) {
    tn_rnn_state none = {0};
    state = state ? state : &none;
    tn_values out = tn_call_values(m, (tn_values){4, {x, state->h, state->c, lengths}}, NULL);
    state->h = out.n > 1 ? out.v[1] : tn_inert();
    state->c = out.n > 2 ? out.v[2] : NULL;
    return out.v[0];
}

/* ---- Building -------------------------------------------------------------------------------- */

static const tn_field rnn_fields[] = {
    TN_FIELD(tn_rnn, relu),
    TN_FIELD_AS("dropout", tn_rnn, dropout, .training = true),
    {0},
};

static void rnn_finish(tn_module *self) {
    tn_rnn *m = (tn_rnn *)self;
    free(m->weights);
    m->weights = NULL;
}

tn_rnn_options tn_rnn_defaults(void) {
    return (tn_rnn_options){.layers = 1, .bias = true, .dtype = TN_F32, .from_defaults = true};
}

void tn__rnn_weight(void *m, const char *name, tn_tensor **field, tn_dims dims, int64_t hidden,
                    tn_dtype dtype) {
    TN_SCOPE;
    double bound = 1.0 / sqrt((double)hidden);
    tn_tensor *t = tn_empty(dims, dtype);
    tn_init_uniform(t, -bound, bound);
    tn_module_param(m, name, field, t);
}

static void add_weight(tn_rnn *m, const char *name, int i, tn_tensor **field, tn_dims dims,
                       tn_dtype dtype) {
    char full[TN_MODULE_NAME];
    snprintf(full, sizeof(full), "%s_l%d%s", name, i / m->directions,
             m->directions == 2 && i % 2 == 1 ? "_reverse" : "");
    tn__rnn_weight(m, full, field, dims, m->hidden, dtype);
}

static bool check_options(tn_rnn *m, const tn__rnn_kind *kind, int64_t in, int64_t hidden,
                          const tn_rnn_options *o) {
    if (!TN__LAYER_FITS(m, {"in", in, 1, 0}, {"hidden", hidden, 1, INT64_MAX / 4},
                        {"layers", o->layers, 1, TN__MOST_LAYERS}) ||
        !tn__layer_probability(m, "dropout", o->dropout)) {
        return false;
    }
    if (o->relu && kind->gates != 1) {
        return tn__layer_refuse(m, TN_EVALUE, "relu is only for tn_rnn");
    }
    return true;
}

static void init_kind(tn_rnn *m, const tn__rnn_kind *kind, int64_t in, int64_t hidden,
                      tn_rnn_options o) {
    if (!tn__layer_begin(m, sizeof(*m), kind->name, NULL, rnn_forward) ||
        !tn__layer_options(m, o.from_defaults, "tn_rnn") ||
        !check_options(m, kind, in, hidden, &o)) {
        return;
    }
    m->base.fields = rnn_fields;
    m->base.finish = rnn_finish;
    m->in = in;
    m->hidden = hidden;
    m->layers = o.layers;
    m->directions = o.bidirectional ? 2 : 1;
    m->batch_first = o.batch_first;
    m->relu = o.relu;
    m->dropout = o.dropout;
    int count = m->layers * m->directions;
    m->weights = tn__calloc((size_t)count, sizeof(*m->weights));
    if (!m->weights) {
        tn__layer_refuse(m, TN_ENOMEM, "no memory for %d layers", o.layers);
        return;
    }
    int64_t rows = kind->gates * hidden;
    for (int i = 0; i < count; i++) {
        tn_rnn_weights *w = &m->weights[i];
        int64_t width = i < m->directions ? in : m->directions * hidden;
        add_weight(m, "weight_ih", i, &w->weight_ih, TN_DIMS(rows, width), o.dtype);
        add_weight(m, "weight_hh", i, &w->weight_hh, TN_DIMS(rows, hidden), o.dtype);
        if (o.bias) {
            add_weight(m, "bias_ih", i, &w->bias_ih, TN_DIMS(rows), o.dtype);
            add_weight(m, "bias_hh", i, &w->bias_hh, TN_DIMS(rows), o.dtype);
        }
    }
}

#define RNN_KIND(kind, number)                                                                \
    void tn_##kind##_init(tn_##kind *m, int64_t in, int64_t hidden, tn_rnn_options options) { \
        init_kind(m, &tn__rnn_kinds[number], in, hidden, options);                            \
    }                                                                                         \
    TN__LAYER_NEW(kind, tn_rnn, (int64_t in, int64_t hidden), (in, hidden))

RNN_KIND(rnn, 0)
RNN_KIND(gru, 1)
RNN_KIND(lstm, 2)
