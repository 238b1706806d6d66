/* What a model is made of, as text (nn/describe.c has the format). */
#ifndef TERN_NN_DESCRIBE_H
#define TERN_NN_DESCRIBE_H

#include "tern/nn.h"
#include "text/json.h"

/* The caller frees; NULL after raising. */
char *tn__module_describe(void *m, const char *operation);

/* Reads such a text from a file, or another object of options. False after raising TN_EFORMAT,
 * TN_ENOMEM; tn__json_free otherwise. */
bool tn__description_read(tn__json_file *f, const char *text, const char *path,
                          const char *operation);

/* The fields of language models' layers. */
extern const tn_field tn__layer_norm_fields[], tn__rms_norm_fields[];
extern const tn_field tn__grouped_attention_fields[];
extern const char *const tn__activation_names[]; /* "gelu_tanh"; NULL after the last */

#endif
