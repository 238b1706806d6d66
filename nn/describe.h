/* What a model is made of, as text. */
#ifndef TERN_NN_DESCRIBE_H
#define TERN_NN_DESCRIBE_H

#include "tern/nn.h"

/* One line for m and for each module below it (nn/describe.c tells how it reads). The caller frees;
 * NULL after raising. */
char *tn__module_describe(void *m, const char *operation);

const char *tn__activation_name(tn_activation activation); /* "gelu_tanh" */

#endif
