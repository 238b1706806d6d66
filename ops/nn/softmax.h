/* What softmax and log_softmax share (softmax.c). */
#ifndef TERN_OPS_NN_SOFTMAX_H
#define TERN_OPS_NN_SOFTMAX_H

#include "backends/softmax.h"
#include "ops/dims.h"

bool tn__softmax_shape(tn_op_call *c);
extern const char tn__softmax_samples[];

/* The host's loops, with or without the logarithm. */
tn_status tn__softmax_host(const tn_op_call *c, bool log_form);
tn_status tn__softmax_host_back(const tn_op_back *b, bool log_form);

#endif
