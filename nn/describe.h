/* What a model is made of, as text. */
#ifndef TERN_NN_DESCRIBE_H
#define TERN_NN_DESCRIBE_H

#include "tern/nn.h"

/* One line for m and for each module below it (nn/describe.c tells how it reads). The caller frees;
 * NULL after raising. */
char *tn__module_describe(void *m, const char *operation);

/* Puts "NAME 2x1" behind the first `length` bytes of an item's text, with ", " where that is not 0:
 * a number for each dimension, and nothing where there is none. The length then, as snprintf has
 * it. */
int tn__describe_dims(char *text, size_t room, int length, const char *name, tn_dims dims);

const char *tn__activation_name(tn_activation activation); /* "gelu_tanh" */

#endif
