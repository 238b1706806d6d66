/* What tn_pad's two operations share: pad.c, with a value; pad_around.c, with x's own elements. */
#ifndef TERN_OPS_PAD_H
#define TERN_OPS_PAD_H

#include "ops/shape/shape.h"

typedef struct tn__pad_args {
    tn_dims pads;
    tn_pad_mode mode;
    double value;
} tn__pad_args;

bool tn__pad_shape(tn_op_call *c);

#endif
