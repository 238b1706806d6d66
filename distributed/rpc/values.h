/* What goes in and out of a call, as the body of a frame and back. */
#ifndef TERN_DISTRIBUTED_RPC_VALUES_H
#define TERN_DISTRIBUTED_RPC_VALUES_H

#include "distributed/rpc/frame.h"

/* Sets what in h depends on the name (NULL: none) and the values, which are for rank `to`. False
 * after raising: they are no tensors, too many, or larger than the limit. */
bool tn__values_measure(tn__rpc_head *h, int to, const char *name, const tn_values *v,
                        int64_t limit, const char *operation);
/* The frame of a head that was measured. NULL after raising. */
tn__rpc_frame *tn__values_encode(const tn__rpc_head *h, const char *name, const tn_values *v,
                                 const char *operation);
/* The tensors of a frame's body, for the current scope. False after raising TN_EFORMAT: malformed,
 * or another error. */
TN_API bool tn__values_decode(const tn__rpc_frame *f, tn_values *v);

/* Which of them require a gradient. */
uint8_t tn__values_learning(const tn_values *v);

#endif
