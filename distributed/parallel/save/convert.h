/* A checkpoint in parts as one file, without ranks: the command `tern convert`. */
#ifndef TERN_DISTRIBUTED_PARALLEL_CONVERT_H
#define TERN_DISTRIBUTED_PARALLEL_CONVERT_H

#include "tern/core.h"

/* Writes the checkpoint of one file that tn_checkpoint_save would have written of the whole model;
 * with `weights` the file of tn_save instead. from: the folder of a run, whose newest step it is,
 * or of a step. One tensor is in memory at a time. */
TN_API tn_status tn__saver_convert(const char *from, const char *to, bool weights);

/* The folder of the step that `from` means. The caller frees; NULL after raising. */
TN_API char *tn__saver_find_step(const char *from);

#endif
