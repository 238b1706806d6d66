/* What attention and attention_qkv share: checks, and the composition (docs/words.md). */
#ifndef TERN_OPS_NN_ATTENTION_H
#define TERN_OPS_NN_ATTENTION_H

#include "backends/attention.h"
#include "ops/op.h"

/* Input i, if present, broadcasts to scores (B, H, T, S); false after raising. */
bool tn__attention_mask_fits(const tn_op_call *c, int i, tn_dims scores);

/* For the profiler: the total number of queries, of keys that each may see, and their width. */
void tn__attention_work(tn_op_work *w, double queries, double keys, double width, bool causal);

/* softmax(q k^T scale) v by products, where and softmax, storing the T x S matrix. Differentiable
 * to any order. */
tn_tensor *tn__attention_explicit(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                                  tn_attention_args args);

#endif
