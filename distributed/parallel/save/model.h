/* The model of a checkpoint, made from what it says of it: the command `tern convert`. */
#ifndef TERN_DISTRIBUTED_PARALLEL_MODEL_H
#define TERN_DISTRIBUTED_PARALLEL_MODEL_H

#include "tern/models.h"

/* from: the folder of a run, whose newest step it is, or of a step; a checkpoint of one file; or a
 * file of tn_save. A model of the options and the dtype that were saved, or in options.dtype, for
 * tn_lm_free; NULL after raising. TN_EUNSUPPORTED: it is no language model of models.h. */
TN_API tn_module *tn__saver_model(const char *from, tn_lm_load_options options);

#endif
