/* What recurrent nets (rnn.c) and their cells (rnn_cell.c) have in common. */
#ifndef TERN_NN_RNN_H
#define TERN_NN_RNN_H

#include "nn/module.h"

/* rnn, gru, lstm, in this order. */
typedef struct tn__rnn_kind {
    const char *name, *cell;
    int gates;
    bool has_c;
} tn__rnn_kind;
extern const tn__rnn_kind tn__rnn_kinds[3];
const tn__rnn_kind *tn__rnn_kind_of(const tn_module *m); /* of a net or a cell */

/* Registers a parameter: U(-1 / sqrt(hidden), 1 / sqrt(hidden)), as in PyTorch. */
void tn__rnn_weight(void *m, const char *name, tn_tensor **field, tn_dims dims, int64_t hidden,
                    tn_dtype dtype);

#endif
