/* Einsum's equation as labels: what subscripts.c reads and einsum.c computes. */
#ifndef TERN_OPS_SUBSCRIPTS_H
#define TERN_OPS_SUBSCRIPTS_H

#include "ops/op.h"

/* A label is a letter, 'A' … 'Z' before 'a' … 'z', or, after these, a dimension of "...". */
enum { TN__LETTERS = 52, TN__LABELS = TN__LETTERS + TN_MAX_DIMS };

typedef struct tn__einsum_args {
    char equation[128];
} tn__einsum_args;

/* A list of labels, such as those of an operand's or the result's dimensions. */
typedef struct tn__term {
    int n;
    int label[TN_MAX_DIMS];
} tn__term;

typedef struct tn__einsum_plan {
    tn__term in[TN_OP_INPUTS], out;
    int64_t size[TN__LABELS]; /* -1: in no operand */
} tn__einsum_plan;

/* The first position of the label in a term; -1: not in it. */
int tn__term_place(const tn__term *term, int label);

/* Reads the equation in c's args for c's operands. False after raising. */
bool tn__einsum_read(const tn_op_call *c, tn__einsum_plan *p);

#endif
