/* A language model from the description of its modules (nn/describe.c) in a checkpoint. */
#ifndef TERN_MODELS_WEIGHTS_DESCRIBED_H
#define TERN_MODELS_WEIGHTS_DESCRIBED_H

#include "models/language.h"
#include "text/json.h"

struct tn__described {
    const char *path, *operation; /* of the checkpoint, for messages */
    const char *text;             /* the description */
    int tensors;                  /* how many parameters there are; no model has more layers */
    tn__json_file description;    /* what tn__described_model has read of `text` */
};

/* A model of the family that the text names, without elements; for tn_module_free. NULL after
 * raising TN_EFORMAT, TN_EUNSUPPORTED (not a language model), TN_ENOMEM. */
TN_API tn_module *tn__described_model(const tn__described *d, tn_dtype dtype);

/* ---- For families ---------------------------------------------------------------------------- */

/* Fills the members of `at` from the options of the module at `module` ("." is the model). Fields
 * that are always written must be present. False after raising. */
bool tn__described_read(const tn__described *d, const char *module, const tn_field *fields,
                        void *at);

/* Whether there may be that many layers. False after raising. */
bool tn__described_layers(const tn__described *d, int64_t layers);

#endif
