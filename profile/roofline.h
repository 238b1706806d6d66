/* The roofline: the maximum bytes and floating-point operations per second of a machine. */
#ifndef TERN_PROFILE_ROOFLINE_H
#define TERN_PROFILE_ROOFLINE_H

#include "tern/tensor.h"

typedef struct tn__roofline {
    double bytes, flops, half_flops; /* per second; 0: not known. flops: f32; half: bf16 and f16 */
} tn__roofline;

/* For this kind of device: as given, or measured at the first call, which takes about a tenth of a
 * second. */
TN_API tn__roofline tn__roofline_of(tn_device device);
TN_API void tn__roofline_give(tn__roofline given); /* 0: to be measured */
TN_API bool tn__roofline_known(tn_device_kind kind,
                               tn__roofline *limits); /* false: not measured yet */

#endif
