/* What is in a checkpoint, without ranks: the command `tern convert`. */
#ifndef TERN_DISTRIBUTED_PARALLEL_CONVERT_H
#define TERN_DISTRIBUTED_PARALLEL_CONVERT_H

#include "tern/models.h"

/* The folder of the step that `from` means: that of a run, whose newest step it is, or of a step.
 * The caller frees; NULL after raising. */
TN_API char *tn__saver_find_step(const char *from);

/* Writes such a step as the checkpoint of one file that tn_checkpoint_save would have written of
 * the whole model; with `weights` as the file of tn_save. One tensor is in memory at a time. */
TN_API tn_status tn__saver_convert(const char *from, const char *to, bool weights);

/* from: such a step, a checkpoint of one file, or a file of tn_save. A model of the options and the
 * dtype that were saved, or in options.dtype, for tn_lm_free; NULL after raising. TN_EUNSUPPORTED:
 * it is not a language model of models.h. */
TN_API tn_module *tn__saver_model(const char *from, tn_lm_load_options options);

#endif
