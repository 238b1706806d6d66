/* The axes of a plot: the range of the numbers, and round ticks inside it. */
#ifndef TERN_TRAIN_SHOW_AXIS_H
#define TERN_TRAIN_SHOW_AXIS_H

#include "tern/train.h"

typedef struct tn__axis {
    double low, high;   /* low < high */
    double first, step; /* ticks: first, first + step, … up to high */
    int decimals;       /* in a tick's label; negative: use %g */
} tn__axis;

/* Infinite numbers, NaN and those whose differences would be infinite are not drawn. */
static inline bool tn__drawable(double x, double y) {
    return x >= -1e300 && x <= 1e300 && y >= -1e300 && y <= 1e300;
}

/* Whether every curve has the points that its count says; false after raising. */
bool tn__plot_fits(const tn_plot *plot, const char *operation);

/* The axes of all drawable points, each with about `ticks` ticks. False when there is none. */
bool tn__plot_axes(const tn_plot *plot, int x_ticks, int y_ticks, tn__axis *x, tn__axis *y);

void tn__axis_label(const tn__axis *a, double value, char *text, size_t size);

#endif
