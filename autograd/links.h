/* The few operations that the engine itself needs. ops/ is to the right of autograd/ and fills them
 * in (ops/links.c). */
#ifndef TERN_AUTOGRAD_LINKS_H
#define TERN_AUTOGRAD_LINKS_H

#include "tern/autograd.h"

extern const struct tn__op_links {
    tn_tensor *(*add)(tn_tensor *a, tn_tensor *b);
    tn_tensor *(*add_)(tn_tensor *x, tn_tensor *y);
    tn_tensor *(*sum_to)(tn_tensor *x, tn_dims dims);
    tn_tensor *(*cast)(tn_tensor *x, tn_dtype dtype);
    tn_tensor *(*to)(tn_tensor *x, tn_device device);
    tn_tensor *(*copy)(tn_tensor *x);
    tn_tensor *(*copy_)(tn_tensor *x, tn_tensor *from);
    tn_tensor *(*ones_like)(const tn_tensor *t);
    tn_tensor *(*identity)(tn_tensor *x); /* a view with its own node */
    bool (*has_nan)(tn_tensor *x);
} tn__ops;

#endif
