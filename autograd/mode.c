/* Modes: whether operations are recorded, and whether gradients are checked for NaNs. */
#include "autograd/mode.h"

#include "autograd/links.h"
#include "tensor/tensor.h"

_Thread_local tn__grad_thread tn__grad_self __attribute__((tls_model("initial-exec")));
bool tn__anomaly;

bool tn_grad_mode_begin(bool record) {
    bool before = !tn__grad_self.off;
    tn__grad_self.off = !record;
    return before;
}

void tn_grad_mode_end(const bool *before) {
    if (before) { tn__grad_self.off = !*before; }
}

bool tn_grad_mode(void) {
    return !tn__grad_self.off;
}

bool tn_in_backward(void) {
    return tn__grad_self.backward_depth > 0;
}

bool tn_in_recompute(void) {
    return tn__grad_self.recompute_depth > 0;
}

void tn_set_anomaly(bool on) {
    tn__anomaly = on;
}

bool tn__anomaly_check(tn_tensor *t, const char *operation, const char *what, const char *where) {
    if (tn__pending() || !tn_dtype_is_float(t->dtype) || !tn__ops.has_nan(t)) { return true; }
    return tn__fail(TN_EVALUE, operation, "%s %s has a NaN%s%s", what, tn_shape_text(t),
                    where ? "; its forward was called at " : "", where ? where : "");
}
