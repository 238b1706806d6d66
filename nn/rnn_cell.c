/* rnn_cell, gru_cell, lstm_cell: one step of a recurrent net, for loops that decide what comes
 * next.
 *
 *     x (B, in), h and c (B, hidden) or NULL: zeros -> h' (B, hidden) and, of lstm_cell, c'
 *
 * The operations are those of the layers, with one time step. Names are PyTorch's: weight_ih,
 * weight_hh, bias_ih, bias_hh.
 */
#include "nn/call.h"
#include "nn/layer.h"
#include "nn/rnn.h"

static tn_values cell_forward(tn_module *self, tn_values in, void *context) {
    const tn_rnn_cell *m = (const tn_rnn_cell *)self;
    const tn__rnn_kind *kind = tn__rnn_kind_of(self);
    tn_tensor *h = in.n > 1 ? in.v[1] : NULL, *c = in.n > 2 ? in.v[2] : NULL;
    if (in.n < 1 || in.n > (kind->has_c ? 3 : 2) || !in.v[0]) {
        tn__raise(TN_EVALUE, self->kind, "%d inputs given; they are x and optionally h%s", in.n,
                  kind->has_c ? " and c" : "");
        return tn__no_values();
    }
    if (tn_ndim(in.v[0]) != 2 || tn_size(in.v[0], 1) != m->in) {
        tn__raise(TN_ESHAPE, self->kind, "x is %s but must be (batch, in) with in %lld",
                  tn_shape_text(in.v[0]), (long long)m->in);
        return tn__no_values();
    }
    tn_tensor *x = tn_unsqueeze(in.v[0], 0), *hn, *cn = NULL; /* (1, B, in) */
    if (kind->has_c) {
        tn_lstm_op(x, h, c, m->weights, NULL, false, &hn, &cn);
    } else if (kind->gates == 3) {
        tn_gru_op(x, h, m->weights, NULL, false, &hn);
    } else {
        tn_rnn_op(x, h, m->weights, NULL, false, m->relu, &hn);
    }
    return tn_values_of(hn, cn);
}

static const tn_field cell_fields[] = {TN_FIELD(tn_rnn_cell, relu), {0}};

tn_rnn_cell_options tn_rnn_cell_defaults(void) {
    return (tn_rnn_cell_options){.bias = true, .dtype = TN_F32, .from_defaults = true};
}

static void init_kind(tn_rnn_cell *m, const tn__rnn_kind *kind, int64_t in, int64_t hidden,
                      tn_rnn_cell_options o) {
    if (!tn__layer_begin(m, sizeof(*m), kind->cell, NULL, cell_forward) ||
        !tn__layer_options(m, o.from_defaults, "tn_rnn_cell") ||
        !TN__LAYER_FITS(m, {"in", in, 1, 0}, {"hidden", hidden, 1, INT64_MAX / 4})) {
        return;
    }
    if (o.relu && kind->gates != 1) {
        tn__layer_refuse(m, TN_EVALUE, "relu is only for tn_rnn_cell");
        return;
    }
    m->base.fields = cell_fields;
    m->in = in;
    m->relu = o.relu;
    tn_rnn_weights *w = &m->weights;
    int64_t rows = kind->gates * hidden;
    tn__rnn_weight(m, "weight_ih", &w->weight_ih, TN_DIMS(rows, in), hidden, o.dtype);
    tn__rnn_weight(m, "weight_hh", &w->weight_hh, TN_DIMS(rows, hidden), hidden, o.dtype);
    if (o.bias) {
        tn__rnn_weight(m, "bias_ih", &w->bias_ih, TN_DIMS(rows), hidden, o.dtype);
        tn__rnn_weight(m, "bias_hh", &w->bias_hh, TN_DIMS(rows), hidden, o.dtype);
    }
}

#define CELL_KIND(kind, number)                                                                    \
    void tn_##kind##_init(tn_##kind *m, int64_t in, int64_t hidden, tn_rnn_cell_options options) { \
        init_kind(m, &tn__rnn_kinds[number], in, hidden, options);                                 \
    }                                                                                              \
    TN__LAYER_HEAP(tn_##kind, tn_##kind##_new(int64_t in, int64_t hidden),                         \
                   tn_##kind##_init(m, in, hidden, tn_rnn_cell_defaults()))

CELL_KIND(rnn_cell, 0)
CELL_KIND(gru_cell, 1)
CELL_KIND(lstm_cell, 2)
