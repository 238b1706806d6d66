/* What losses composed of operations share: their reduction and shapes. */
#ifndef TERN_OPS_LOSS_H
#define TERN_OPS_LOSS_H

#include "ops/op.h"
#include "ops/reduce/reduce.h"

/* Arguments of a loss with at most one constant. Others' begin with the reduction too. */
typedef struct tn__loss_args {
    tn_reduction how;
    double k;
} tn__loss_args;

/* Shape rules. The reduction is TN_MEAN, TN_SUM or TN_NONE; floats of one dtype; and input 1 has
 * input 0's shape, to which later inputs, weights, broadcast if present. The output is like input 0
 * with TN_NONE, else 0-dimensional. */
bool tn__loss_reduction(const tn_op_call *c, tn_reduction how);
bool tn__loss_shape(tn_op_call *c);

/* The same, with these dims as the output's for TN_NONE. */
bool tn__loss_out(tn_op_call *c, tn_reduction how, tn_dims each);

/* Input 1 is labels: i64 or i32, in input 0's shape without its last dimension, C; input 2, if
 * present, is (C), any float. The output has this dtype. */
bool tn__loss_labels(tn_op_call *c, tn_reduction how, tn_dtype dtype);

/* The reduction, a member of args, as samples name it. */
extern const char *const tn__reduction_names[];
#define TN__REDUCTION(type, member) \
    TN_FIELD_AS("reduction", type, member, .names = tn__reduction_names)

/* A loss of x and target, as a row: args_, which begin with the reduction `how`, its other fields
 * in the end. The file has NAME_compose, and the function. */
#define TN_LOSS(op_, args_, shape_, samples_, ...)                                  \
    const tn_op tn__op_##op_ = {.name = #op_,                                       \
                                .inputs = {"x", "target"},                          \
                                .args_size = sizeof(args_),                         \
                                .fields = {TN__REDUCTION(args_, how), __VA_ARGS__}, \
                                .shape = shape_,                                    \
                                .compose = op_##_compose,                           \
                                .flags = TN_OP_WIDE,                                \
                                .samples = samples_,                                \
                                .sample_args = &(const args_){.how = TN_MEAN}};

/* In compositions: weight[label], in the labels' shape and the dtype of x. */
tn_tensor *tn__loss_weights(tn_tensor *weight, tn_tensor *label, const tn_tensor *x);

/* The mean or the sum of the losses, or each. */
tn_tensor *tn__loss_reduced(tn_tensor *each, tn_reduction how);

#endif
