/* Spans with work: what is moved and computed in them, compared with the machine's limits. */
#include "profile/work.h"

#include "tern/sys/device.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool tn__profile_waits;
tn__limits tn__profile_limits;

void tn__profile_end(tn__span *span, tn_device device) {
    const tn_device_table *devices = tn__profile_waits ? tn__device_table(device) : NULL;
    if (devices) { devices->synchronize(device.index); }
    tn__span_end(span);
}

/* ---- Work ------------------------------------------------------------------------------------ */

void tn__profile_work(tn__span *span, tn_dtype dtype, double bytes, double flops) {
    tn__limits most = tn__profile_limits;
    double rate = dtype == TN_BF16 || dtype == TN_F16 ? most.half_flops
                  : dtype == TN_F64                   ? most.flops / 2
                                                      : most.flops;
    span->bytes += bytes;
    span->flops += flops;
    span->least += fmax(most.bytes > 0 ? bytes / most.bytes : 0, rate > 0 ? flops / rate : 0);
}

/* Distinct elements: a dimension of stride 0 counts once. */
static double count_apart(const tn_tensor *t) {
    double count = 1;
    for (int i = 0; i < t->dims.ndim; i++) {
        count *= t->stride[i] == 0 && t->dims.size[i] > 1 ? 1 : (double)t->dims.size[i];
    }
    return count;
}

double tn__profile_bytes(const tn_tensor *t) {
    return t && !t->inert ? count_apart(t) * (double)tn_dtype_size(t->dtype) : 0;
}

void tn__profile_shape(tn__span *span, const tn_tensor *t) {
    size_t used = strlen(span->note);
    if (t && !t->inert) {
        snprintf(span->note + used, sizeof(span->note) - used, "%s%s", used ? " " : "",
                 tn_shape_text(t));
    }
}

bool tn__profile_in_place(tn__span *span, const char *name, const tn_tensor *y, double bytes) {
    if (!tn__span_begin(span, TN__SPAN_OP, name)) { return false; }
    tn__profile_shape(span, y);
    tn__profile_work(span, y->dtype, bytes, count_apart(y));
    return true;
}
