/* A language model from what a checkpoint says of it: the text about its modules (nn/describe.c),
 * and the shapes of its parameters. */
#ifndef TERN_MODELS_WEIGHTS_DESCRIBED_H
#define TERN_MODELS_WEIGHTS_DESCRIBED_H

#include "models/language.h"

struct tn__described {
    const char *path, *operation; /* of the checkpoint, for messages */
    const char *text;
    int tensors; /* how many parameters there are; no model has more layers */
    /* The shape of a parameter by its path; false: there is none. */
    bool (*shape)(const char *parameter, tn_dims *dims, void *user);
    void *user;
};

/* A model of the family that the text tells, without elements; for tn_lm_free. NULL after raising
 * TN_EFORMAT, TN_EUNSUPPORTED (no language model), TN_ENOMEM. */
TN_API tn_module *tn__described_model(const tn__described *d, tn_dtype dtype);

/* ---- For families ---------------------------------------------------------------------------- */

/* An option of the module at `module` ("." is the model): a number, whole and from `least` on, or
 * any that is finite; or a text. False after raising. */
bool tn__described_whole(const tn__described *d, const char *module, const char *name,
                         int64_t least, int64_t *number);
bool tn__described_real(const tn__described *d, const char *module, const char *name,
                        double *number);
bool tn__described_activation(const tn__described *d, const char *module,
                              tn_activation *activation);

/* Whether there may be so many layers. False after raising. */
bool tn__described_layers(const tn__described *d, int64_t layers);

/* The size of a dimension of a parameter. False after raising. */
bool tn__described_size(const tn__described *d, const char *parameter, int dim, int64_t *size);

#endif
