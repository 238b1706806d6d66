/* What a person sees of a training run: a progress line and a loss curve. */
#ifndef TERN_TRAIN_H
#define TERN_TRAIN_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Progress: one line that is redrawn on a terminal; a line every few seconds elsewhere ----------------------------------------------- */

typedef struct tn_progress tn_progress;

/* `unit`: "tok". NULL after TN_ENOMEM; every function takes NULL. */
TN_API tn_progress *tn_progress_new(FILE *file, int64_t start, int64_t total, const char *unit);
TN_API void tn_progress_step(tn_progress *p, int64_t step, double loss, int64_t units); /* units done in this step */
TN_API void tn_progress_free(tn_progress *p); /* finishes the line */

/* ---- Curves ------------------------------------------------------------------------------------------------------------------------ */

typedef struct tn_curve {
    const char *name;
    const double *x, *y; /* NaN breaks the line */
    int64_t count;
} tn_curve;
typedef struct tn_plot {
    const char *title, *x_label, *y_label;
    const tn_curve *curves;
    int count;
} tn_plot;

/* Braille or ASCII in the terminal, `columns` by `rows` characters. */
TN_API void tn_plot_text(const tn_plot *plot, FILE *file, int columns, int rows);
TN_API tn_status tn_plot_svg(const tn_plot *plot, const char *path) TN_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
