/* For what calls a module again in backward: recompute (call.c) and reversible pairs. */
#ifndef TERN_NN_AGAIN_H
#define TERN_NN_AGAIN_H

#include "nn/module.h"

/* In backward the modules around a module are not running, but an error's text still names them:
 * the nearest, and last the module itself. */
enum { TN__AGAIN_MAX = 16 };
typedef struct tn__again_frames {
    tn__frame frames[TN__AGAIN_MAX];
    int count;
} tn__again_frames;
void tn__again_begin(tn__again_frames *f, const tn_module_lists *lists);
void tn__again_end(tn__again_frames *f);

/* The module of lists, which a graph holds, and whose forward ran with this `training`; NULL after
 * raising that it is finished, has moved, or was switched. */
tn_module *tn__again_module(tn_module_lists *lists, bool training, const char *operation);

/* A list of tensors: what a node has edges to. The caller frees `tensors`. */
typedef struct tn__collection {
    tn_tensor **tensors;
    int count;
    int64_t capacity;
    const char *operation; /* for TN_ENOMEM */
    bool failed;
} tn__collection;
bool tn__collect(tn__collection *c, tn_tensor *t); /* false after raising, like the next */
/* The parameters of m and those below it that need a gradient. */
bool tn__collect_parameters(tn__collection *c, tn_module *m);

#endif
