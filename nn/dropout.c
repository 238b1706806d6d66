/* dropout: while training, zero with probability p and the rest scaled by 1 / (1 - p).
 * Otherwise x itself. */
#include "core/number.h"
#include "nn/module.h"

static tn_tensor *dropout_forward(tn_module *self, tn_tensor *x) {
    double p = ((tn_dropout *)self)->p;
    return self->training && p > 0.0 ? tn_dropout_op(x, p) : x;
}

static int dropout_describe(const tn_module *self, char *text, size_t room) {
    return snprintf(text, room, "; p %s", tn__number_of(((const tn_dropout *)self)->p).text);
}

void tn_dropout_init(tn_dropout *m, double p) {
    if (!tn__layer_begin(m, sizeof(*m), "dropout", dropout_forward, NULL)) {
        return;
    }
    m->base.describe = dropout_describe;
    m->p = p;
    if (!(p >= 0.0 && p <= 1.0)) {
        tn__layer_refuse(m, TN_EVALUE, "p is %g (a probability is in [0, 1])", p);
    }
}

tn_dropout *tn_dropout_new(double p) {
    tn_dropout *m = tn__layer_alloc(sizeof(*m));
    tn_dropout_init(m, p);
    return tn__layer_on_heap(m);
}
