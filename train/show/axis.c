/* The axes of a plot (axis.h). */
#include "train/show/axis.h"

#include "core/error.h"

#include <math.h>

/* 1, 2 or 5 times a power of ten. */
static double round_step(double rough) {
    double power = pow(10, floor(log10(rough))), lead = rough / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static tn__axis axis_of(double low, double high, int ticks) {
    double middle = low / 2 + high / 2, least = fmax(fabs(middle) * 1e-9, 1e-300);
    if (!(high - low > least)) { /* one value, or nearly so */
        double around = fabs(middle) > 1e-290 ? fabs(middle) * 0.1 : 1;
        low = middle - around;
        high = middle + around;
    }
    tn__axis a = {.low = low, .high = high};
    a.step = round_step((a.high - a.low) / (ticks > 1 ? ticks : 1));
    a.first = ceil(a.low / a.step - 1e-9) * a.step;
    double digits = -floor(log10(a.step) + 1e-9);
    bool plain = fmax(fabs(a.low), fabs(a.high)) < 1e7 && digits < 7;
    a.decimals = !plain ? -1 : digits > 0 ? (int)digits : 0;
    return a;
}

bool tn__plot_fits(const tn_plot *plot, const char *operation) {
    if (!plot || (plot->count > 0 && !plot->curves)) {
        return tn__fail(TN_EVALUE, operation, "the %s NULL", plot ? "curves are" : "plot is");
    }
    for (int i = 0; i < plot->count; i++) {
        const tn_curve *curve = &plot->curves[i];
        if (curve->count > 0 && (!curve->x || !curve->y)) {
            return tn__fail(TN_EVALUE, operation, "curve %d has %lld points but %s is NULL", i,
                            (long long)curve->count, curve->x ? "y" : "x");
        }
    }
    return true;
}

bool tn__plot_axes(const tn_plot *plot, int x_ticks, int y_ticks, tn__axis *x, tn__axis *y) {
    double low_x = INFINITY, high_x = -INFINITY, low_y = INFINITY, high_y = -INFINITY;
    for (int c = 0; c < plot->count; c++) {
        const tn_curve *curve = &plot->curves[c];
        for (int64_t i = 0; i < curve->count; i++) {
            if (tn__drawable(curve->x[i], curve->y[i])) {
                low_x = fmin(low_x, curve->x[i]);
                high_x = fmax(high_x, curve->x[i]);
                low_y = fmin(low_y, curve->y[i]);
                high_y = fmax(high_y, curve->y[i]);
            }
        }
    }
    if (low_x > high_x) { return false; }
    *x = axis_of(low_x, high_x, x_ticks);
    *y = axis_of(low_y, high_y, y_ticks);
    return true;
}

void tn__axis_label(const tn__axis *a, double value, char *text, size_t size) {
    if (fabs(value) < a->step * 1e-6) { value = 0; /* not "-0" */ }
    if (a->decimals < 0) {
        snprintf(text, size, "%.4g", value);
    } else {
        snprintf(text, size, "%.*f", a->decimals, value);
    }
}
