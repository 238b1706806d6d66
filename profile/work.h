/* Spans (profile/span.h) with work: the bytes that are moved and the operations that are done. */
#ifndef TERN_PROFILE_WORK_H
#define TERN_PROFILE_WORK_H

#include "profile/span.h"
#include "tern/sys/tensor.h"

/* The machine's limits, as the program gave them to tn_profiler_start. */
typedef struct tn__limits {
    double bytes, flops, half_flops; /* per second; 0: not known. flops: f32; half: bf16 and f16 */
} tn__limits;
extern tn__limits tn__profile_limits;

/* Adds work to a span. The dtype says which peak flops are compared with. */
void tn__profile_work(tn__span *span, tn_dtype dtype, double bytes, double flops);

/* The bytes of t's elements, broadcast ones once; 0 for NULL. */
double tn__profile_bytes(const tn_tensor *t);

/* Adds the shape to the span's note. */
void tn__profile_shape(tn__span *span, const tn_tensor *t);

/* Begins the span of what writes y without tn_apply and moves `bytes`. False: none was begun. */
bool tn__profile_in_place(tn__span *span, const char *name, const tn_tensor *y, double bytes);

/* Ends it, with tn__profile_waits when the device is done. */
void tn__profile_end(tn__span *span, tn_device device);

/* Whether the host waits for a device at the end of a kernel. */
extern bool tn__profile_waits;

#endif
