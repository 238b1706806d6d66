/* Reading a checkpoint without ranks: the command `tern convert`. */
#ifndef TERN_DISTRIBUTED_PARALLEL_CONVERT_H
#define TERN_DISTRIBUTED_PARALLEL_CONVERT_H

#include "tern/models.h"

/* The step's folder for `from`, which is such a folder or a run's (then its newest step's). The
 * caller frees; NULL after raising. */
TN_API char *tn__saver_find_step(const char *from);

/* Writes such a step as the one-file checkpoint that tn_checkpoint_save would have written for the
 * whole model; with `weights` as a tn_save file. One tensor is in memory at a time. */
TN_API tn_status tn__saver_convert(const char *from, const char *to, bool weights);

/* from: such a step, a one-file checkpoint, or a tn_save file. Returns a model with the saved
 * options, in the saved dtype or options.dtype, for tn_module_free; NULL after raising.
 * TN_EUNSUPPORTED: it is not a language model of models.h. */
TN_API tn_module *tn__saver_model(const char *from, tn_lm_load_options options);

#endif
