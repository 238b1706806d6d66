/* Around a training loop: a progress line, the history of the loss, curves,
 * and stopping when asked to.
 *
 * Each stands alone; the loop stays the program's. examples/04_char_gpt.c uses them all.
 */
#ifndef TERN_TRAIN_H
#define TERN_TRAIN_H

#include "io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Progress: one line that is redrawn on a terminal; a line every few seconds elsewhere ---- */

typedef struct tn_progress tn_progress;

/* For steps start … total-1, written to `file`. `unit` is what is counted in a step ("tok"). NULL
 * after TN_ENOMEM; every function takes NULL. */
TN_API tn_progress *tn_progress_new(FILE *file, int64_t start, int64_t total, const char *unit);
/* a step is done, with its units */
TN_API void tn_progress_step(tn_progress *p, int64_t step, double loss, int64_t units);

/* Also shows the model FLOPs utilisation, "MFU 45 %": of the device's `peak` floating-point
 * operations a second, those that the model's mathematics takes, `flops` for each unit (Chowdhery
 * et al. 2022, arXiv:2204.02311, appendix B). 0: not shown. */
TN_API void tn_progress_utilisation(tn_progress *p, double flops, double peak);

/* The median time of a step so far, in milliseconds; 0 before the first. A step's time runs from
 * the call of tn_progress_step before it, or from tn_progress_resume, which leaves out what the
 * program did since then (a save, say). */
TN_API double tn_progress_median_ms(const tn_progress *p);
TN_API void tn_progress_resume(tn_progress *p);

/* More to show where there is room for it: "lr 0.0006   memory 1.2 GB". NULL: nothing. */
TN_API void tn_progress_note(tn_progress *p, const char *text);
/* Takes a redrawn line away, so that the program can print one; the next step draws it again. */
TN_API void tn_progress_clear(tn_progress *p);
TN_API void tn_progress_free(tn_progress *p); /* finishes the line */

/* ---- Curves ---------------------------------------------------------------------------------- */

typedef struct tn_curve {
    const char *name;
    const double *x, *y; /* NaN and what is beyond 1e300 break the line */
    int64_t count;
    bool faint; /* thin and pale: raw numbers behind their mean */
} tn_curve;
typedef struct tn_plot {
    const char *title, *x_label, *y_label; /* may be NULL */
    const tn_curve *curves;
    int count;
} tn_plot;

/* In characters: braille dots where the locale is UTF-8, ASCII elsewhere. `rows` lines (names that
 * need a line of their own are more) of `columns`, or of the terminal's where that is narrower. */
TN_API void tn_plot_text(const tn_plot *plot, FILE *file, int columns, int rows);

/* As a picture that any browser shows. Written as io.h says. */
TN_API tn_status tn_plot_svg(const tn_plot *plot, const char *path) TN_MUST_USE;

/* ---- History: what was measured at every step, as a CSV file that survives a crash ----------- */

typedef struct tn_history tn_history;

/* start 0: a new file. Otherwise the file's rows of steps 0 … start-1 are read and what follows
 * them, half a row perhaps, is cut off: with a checkpoint of `start` steps, the file ends up the
 * same as without the interruption. NULL after TN_EIO, or TN_EFORMAT when rows are missing. Call
 * tn_history_sync before the checkpoint is saved, so that it never has more steps than the file. */
TN_API tn_history *tn_history_open(const char *path, int64_t start);
/* A value of the next step, with 9 digits, which is exact for f32. The first column is "loss"; a
 * name that is new (31 characters, without spaces, commas and quotes) is another one, empty in the
 * rows of the steps before. */
TN_API tn_status tn_history_put(tn_history *h, const char *name, double value);
/* Writes the row. Here and in tn_history_sync a file that was deleted or changed meanwhile is
 * written anew, with all rows; where that cannot be, it is an error. TN_ESTATE: an empty row. */
TN_API tn_status tn_history_step(tn_history *h);
TN_API tn_status tn_history_add(tn_history *h, double loss); /* both */
TN_API tn_status tn_history_sync(tn_history *h) TN_MUST_USE;
TN_API void tn_history_free(tn_history *h); /* NULL is fine */

/* As curves, valid until the next call with h: a column, which has points where it has values; the
 * loss as it is, or the mean of `window` steps around each. Where the window reaches beyond the
 * first or last step, a straight line through its steps takes the mean's place. */
TN_API tn_curve tn_history_column(const tn_history *h, const char *column, const char *name);
TN_API tn_curve tn_history_curve(const tn_history *h, const char *name);
TN_API tn_curve tn_history_smooth(tn_history *h, const char *name, int64_t window);

/* ---- Stopping -------------------------------------------------------------------------------- */

/* From now on the first SIGINT or SIGTERM only makes tn_stop_asked true, so that the loop can end
 * after a whole step and save; the second ends the process as usual. */
TN_API void tn_stop_on_signals(void);
TN_API bool tn_stop_asked(void);
/* The exit status of a program that stopped before its end: 128 + the number of the signal that
 * asked, as shells and schedulers write it; 143, as after SIGTERM, when another rank was asked. */
TN_API int tn_stop_status(void);

#ifdef __cplusplus
}
#endif
#endif
