/* What the profiler (profile/) sees of operations: spans with the bytes that it moves and the
 * arithmetic it does, and the modules that made the nodes of backward.
 */
#ifndef TERN_AUTOGRAD_PROFILE_H
#define TERN_AUTOGRAD_PROFILE_H

#include "profile/work.h"
#include "tern/sys/op.h"

/* tn__kernel_forward, and tn__kernel_backward, as spans. */
tn_status tn__profile_forward(tn_op_call *c);
tn_status tn__profile_backward(tn_op_grad *g);

/* Around a node's rule or kernel. */
bool tn__profile_gradient(tn__span *span, const tn_op *op);

/* A run of the engine: its span, and in it the spans of the modules whose nodes are running, as in
 * forward. NULL is fine. */
typedef struct tn__profile_run tn__profile_run;
tn__profile_run *tn__profile_run_begin(void);
void tn__profile_node(tn__profile_run *p, const tn_node *node);
void tn__profile_run_end(tn__profile_run *p);

#endif
