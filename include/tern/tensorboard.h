/* Event files for TensorBoard: scalars, histograms, texts and images of a run, like
 * torch.utils.tensorboard's SummaryWriter.
 *
 *     tn_summary_writer *board = tn_summary_writer_new("runs/first", -1);
 *     for (int64_t step = 0; step < steps; step++) {
 *         ...
 *         tn_summary_add_scalar(board, "loss/train", tn_item(loss), step);
 *     }
 *     tn_summary_writer_free(board);
 *
 *     tensorboard --logdir runs                                          // shows it
 *
 * The part of a tag before its first / is the group in which it is shown. Each call appends one
 * record with one write, so what was added survives kill -9; TensorBoard ignores a partly written
 * record. A tn_run writes its measurements by itself: tn_run_options.tensorboard.
 *
 * Read next: io/tensorboard/tensorboard.c. docs/tensorboard.md shows the result.
 */
#ifndef TERN_TENSORBOARD_H
#define TERN_TENSORBOARD_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_summary_writer tn_summary_writer;

/* A new file in the folder, which is made if missing. purge_step: hides what earlier files of the
 * folder have from this step on (a run that continues after a crash repeats these steps); -1: hides
 * nothing. For one thread at a time. NULL after TN_EIO, TN_EVALUE or TN_ENOMEM. */
TN_API tn_summary_writer *tn_summary_writer_new(const char *folder, int64_t purge_step);
TN_API void tn_summary_writer_free(tn_summary_writer *w); /* NULL is fine */

/* All of these accept a NULL writer and then do nothing: for ranks that write no file. TN_EVALUE: a
 * tag that is NULL, empty or not UTF-8, a text that is NULL or not UTF-8, an unsuitable tensor;
 * TN_EIO: it was not written, and the file is as before; TN_ENOMEM. */
TN_API tn_status tn_summary_add_scalar(tn_summary_writer *w, const char *tag, double value,
                                       int64_t step);
/* The distribution of the elements, in TensorFlow's buckets, each 10 % wider than the one before.
 * NaN and infinities are left out; if nothing remains, nothing is written. */
TN_API tn_status tn_summary_add_histogram(tn_summary_writer *w, const char *tag,
                                          const tn_tensor *values, int64_t step);
TN_API tn_status tn_summary_add_text(tn_summary_writer *w, const char *tag, const char *text,
                                     int64_t step); /* Markdown */
/* (C, H, W) with C 1 (grey) or 3 (red, green, blue), or (H, W): u8, or floats from 0 to 1 (clamped;
 * NaN is 0). */
TN_API tn_status tn_summary_add_image(tn_summary_writer *w, const char *tag,
                                      const tn_tensor *pixels, int64_t step);
/* Waits until everything is on disk, against a crash of the machine. */
TN_API tn_status tn_summary_flush(tn_summary_writer *w);

#ifdef __cplusplus
}
#endif
#endif
