/* Learning rates for a batch that is N times as large. */
#include "core/error.h"
#include "tern/parallel.h"

#include <math.h>

static double scaled_lr(double lr, double factor, int n, const char *operation) {
    if (n < 1) {
        tn__raise(TN_EVALUE, operation, "%d ranks (at least 1)", n);
        return lr;
    }
    return lr * factor;
}

double tn_lr_linear(double lr, int n) {
    return scaled_lr(lr, n, n, "lr_linear");
}

double tn_lr_sqrt(double lr, int n) {
    return scaled_lr(lr, sqrt(n), n, "lr_sqrt");
}
