/* config.json of a Hugging Face folder: options by key, each checked when it is asked for.
 *
 * A key that is missing or null has the default of transformers. A value that cannot be used is
 * TN_EFORMAT, which names the file, the key and its value; these functions then return false.
 */
#ifndef TERN_MODELS_WEIGHTS_HF_CONFIG_H
#define TERN_MODELS_WEIGHTS_HF_CONFIG_H

#include "tern/models.h"
#include "text/json.h"

typedef struct tn__hf_config {
    char *path; /* of the file, for messages */
    const char *operation;
    tn__json_file json;
    const tn__json *object; /* where keys are looked for: the whole, or an object within it */
    double dropout;         /* 0: the config's only tells how others trained */
} tn__hf_config;

/* Opens a file of the folder, "config.json". False after raising; then there is nothing to free. */
bool tn__hf_config_open(tn__hf_config *c, const char *folder, const char *file,
                        const char *operation);
void tn__hf_config_free(tn__hf_config *c);

/* Raises that the value of `key` is not `wanted`: "a whole number from 1 to 9". Returns false. */
bool tn__hf_config_bad(const tn__hf_config *c, const char *key, const char *wanted);

/* Whether the key is there and not null. */
bool tn__hf_config_has(const tn__hf_config *c, const char *key);

bool tn__hf_config_whole(const tn__hf_config *c, const char *key, int64_t absent, int64_t most,
                         int64_t *number); /* from 1 on */
bool tn__hf_config_real(const tn__hf_config *c, const char *key, double absent, double *number);
bool tn__hf_config_flag(const tn__hf_config *c, const char *key, bool absent, bool *flag);
/* How many layers: a model whose weights are `tensors` has at most as many. */
bool tn__hf_config_layers(const tn__hf_config *c, const char *key, int64_t absent, int tensors,
                          int64_t *layers);
/* A string, which lives as long as the config. */
bool tn__hf_config_text(const tn__hf_config *c, const char *key, const char *absent,
                        const char **text);

/* Whether the flag has the value that models here support, which is also its default. */
bool tn__hf_config_must(const tn__hf_config *c, const char *key, bool flag);

/* The activation that transformers calls by this name. */
bool tn__hf_config_activation(const tn__hf_config *c, const char *key, const char *absent,
                              tn_activation *activation);
const char *tn__hf_activation_name(tn_activation activation);

/* The options within the object `key`, empty if it is missing. There is nothing to free. */
bool tn__hf_config_within(const tn__hf_config *c, const char *key, tn__hf_config *within);

#endif
