/* What the profiler sees of operations: spans (core/span.h) with the bytes that an operation has to
 * move and the operations that it has to do, and the modules that made what backward runs through.
 * The public side is tern/profiler.h.
 */
#ifndef TERN_AUTOGRAD_PROFILE_H
#define TERN_AUTOGRAD_PROFILE_H

#include "core/span.h"
#include "tern/profiler.h"
#include "tern/sys/op.h"

/* As tn__span_begin, for an operation. Looks first what the machine can do, when that is not known
 * yet: inside a span it would be part of it. */
bool tn__profile_begin(tn__span *span, tn__span_kind kind, const char *name);

/* Adds to a span: work on a device. What flops are compared with depends on the dtype. */
void tn__profile_work(tn__span *span, tn_device device, tn_dtype dtype, double bytes, double flops);

/* The bytes of the elements behind a tensor that lie apart; 0 for NULL. */
double tn__profile_bytes(const tn_tensor *t);

/* For what changes or makes y without tn_apply, and moves so many bytes. False: not seen. */
bool tn__profile_in_place(tn__span *span, const char *name, const tn_tensor *y, double bytes);

/* Ends it, on a device that is waited for when the device is done. */
void tn__profile_end(tn__span *span, tn_device device);

/* tn__kernel_forward, and tn__kernel_backward, as spans. */
tn_status tn__profile_forward(tn_op_call *c);
tn_status tn__profile_backward(tn_op_grad *g);

/* Around a node's rule or kernel. */
bool tn__profile_gradient(tn__span *span, const tn_op *op);

/* A run of the engine: its span, and in it those of the modules to which the nodes belong that run
 * now, as in forward. NULL is fine. */
typedef struct tn__profile_run tn__profile_run;
tn__profile_run *tn__profile_run_begin(void);
void tn__profile_node(tn__profile_run *p, const tn_node *node);
void tn__profile_run_end(tn__profile_run *p);

/* ---- The machine's limits: limits.c ---------------------------------------------------------- */

typedef struct tn__limits {
    double bytes, flops, half_flops; /* a second; 0: not known. flops: f32; half: bf16 and f16 */
} tn__limits;

/* Of a kind of device: as given, or measured at the first call, which takes about a tenth of a
 * second. */
TN_API tn__limits tn__limits_of(tn_device device);
TN_API void tn__limits_give(tn__limits given); /* 0: to be measured */
TN_API bool tn__limits_known(tn_device_kind kind,
                             tn__limits *limits); /* false: nobody has asked yet */

/* Whether the host waits for a device at the end of a kernel. */
extern bool tn__profile_waits;

/* profiler_environment.c: with TERN_PROFILE, from now on SIGINT and SIGTERM do not end the process
 * before it has reported. */
void tn__profiler_watch(void);

#endif
