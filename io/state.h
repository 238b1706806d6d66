/* Named tensors that are saved and loaded together: a module's, an optimiser's, or both.
 *
 * Loading has two halves: tn__state_match checks every name, shape and dtype against the file and
 * prepares what has to be converted, and changes nothing; tn__state_apply copies,
 * and cannot fail. */
#ifndef TERN_IO_STATE_H
#define TERN_IO_STATE_H

#include "tern/io.h"

typedef struct tn__state_item {
    char *name;
    tn_tensor *tensor; /* the program's */
    tn_layout layout;  /* which elements of the whole it has */
    bool buffer;       /* of a module: ranks may differ in it */
    tn_tensor *source; /* the file's, once matched; NULL: its elements stay */
} tn__state_item;

typedef struct tn__state {
    tn__state_item *items;
    int count, room;
    bool loads;            /* it is loaded into: what has no elements yet gets them first */
    bool deferred;         /* elements need not be made yet (TN_DEFER_INIT) */
    bool parts;            /* whoever collects can do with parts; otherwise they are an error */
    const char *operation; /* static text, for messages */
} tn__state;

/* Parameters and buffers of a module, state of an optimiser, under prefix + name.
 * False after raising. */
bool tn__state_add_module(tn__state *s, void *module, const char *prefix);
bool tn__state_add_optim(tn__state *s, tn_optim *optim, const char *prefix);

/* Whether c can be saved: it is there, and its step is one. False after raising. */
bool tn__checkpoint_sound(const tn_checkpoint *c, const char *operation);
/* All tensors of a checkpoint: model.NAME, optim.NAME, average.NAME. */
bool tn__state_add(tn__state *s, const tn_checkpoint *c);

/* Whether there is an item of this name. tn__state_sort before. */
bool tn__state_has(const tn__state *s, const char *name);
void tn__state_sort(tn__state *s);

bool tn__state_write(const tn__state *s, tn_safetensors_writer *w);

/* What differs between state and file is raised: a missing or surplus name (TN_EMISMATCH; surplus
 * is fine with `partial`), a shape (TN_ESHAPE), a dtype (TN_EDTYPE, unless `convert`). */
bool tn__state_match(tn__state *s, const tn_safetensors *f, bool convert, bool partial);
void tn__state_apply(tn__state *s);
void tn__state_free(tn__state *s);

#endif
