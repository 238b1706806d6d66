/* Spans (profile/span.h) with work: the bytes that are moved and the operations that are done. */
#ifndef TERN_PROFILE_WORK_H
#define TERN_PROFILE_WORK_H

#include "profile/span.h"
#include "tern/sys/tensor.h"

/* As tn__span_begin, for an operation. Looks first what the machine can do, when that is not known
 * yet: inside a span it would be part of it. */
bool tn__profile_begin(tn__span *span, tn__span_kind kind, const char *name);

/* Adds to a span: work on a device. What flops are compared with depends on the dtype. */
void tn__profile_work(tn__span *span, tn_device device, tn_dtype dtype, double bytes, double flops);

/* The bytes of the elements behind a tensor that lie apart; 0 for NULL. */
double tn__profile_bytes(const tn_tensor *t);

/* Adds the shape to the span's note. */
void tn__profile_shape(tn__span *span, const tn_tensor *t);

/* For what changes or makes y without tn_apply, and moves so many bytes. False: not seen. */
bool tn__profile_in_place(tn__span *span, const char *name, const tn_tensor *y, double bytes);

/* Ends it, on a device that is waited for when the device is done. */
void tn__profile_end(tn__span *span, tn_device device);

/* Whether the host waits for a device at the end of a kernel. */
extern bool tn__profile_waits;

#endif
