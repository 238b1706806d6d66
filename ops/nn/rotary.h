/* What rotary and rotary_qkv share, and the latter into a cache. */
#ifndef TERN_OPS_NN_ROTARY_H
#define TERN_OPS_NN_ROTARY_H

#include "backends/rotary.h"
#include "ops/op.h"

/* Input 0 (B, H, T, D), the positions, which are that input, and the arguments. False after
 * raising. */
bool tn__rotary_fits(tn_op_call *c, int positions);

/* An output like input i, with the same memory order of heads and positions. */
bool tn__rotary_out(tn_op_call *c, int i);

tn_rotary_args tn__rotary_args_of(const tn_rotary_options *options);

/* q (B, H, T, D) rotated; k (B, G, T, D), rotated, and v go into `keys` and `values`, of k's shape,
 * which is not recorded. NULL, without an error and with nothing written, if q's device has no
 * kernel for that, or for these operands; inert after raising. */
tn_tensor *tn__rotary_append(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *positions,
                             const tn_rotary_options *options, tn_tensor *keys, tn_tensor *values);

#endif
