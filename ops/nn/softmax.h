/* What softmax and log_softmax share (softmax.c). */
#ifndef TERN_OPS_NN_SOFTMAX_H
#define TERN_OPS_NN_SOFTMAX_H

#include "ops/dims.h"

typedef struct tn__softmax_args {
    int dim;
} tn__softmax_args;

bool tn__softmax_shape(tn_op_call *c);
void tn__softmax_samples(tn_op_samples *s);

#endif
