/* Named tensors that are saved and loaded together: a module's, an optimiser's, or both.
 *
 * Loading has two steps: tn__state_match checks every name, shape and dtype against a source and
 * reads, and changes nothing; tn__state_apply copies, and cannot fail. */
#ifndef TERN_IO_STATE_H
#define TERN_IO_STATE_H

#include "core/digest.h"
#include "tern/io.h"
#include "text/json.h"

typedef struct tn__state_item {
    char *name;
    tn_tensor *tensor;                  /* the program's */
    tn_layout layout;                   /* its elements of the whole */
    bool buffer;                        /* a module's buffer: ranks may differ in it */
    tn_tensor *source;                  /* the file's, once matched; NULL: its elements stay */
    char digest[TN__DIGEST_DIGITS + 1]; /* of the bytes, when a saver has written them */
} tn__state_item;

typedef struct tn__state {
    tn__state_item *items;
    int count;
    int64_t capacity;
    bool loads;            /* for loading: deferred tensors get elements first */
    bool deferred;         /* elements need not be made yet (TN_DEFER_INIT) */
    bool parts;            /* parts of parameters are allowed; otherwise they are an error */
    const char *operation; /* static text, for messages */
} tn__state;

/* Adds parameters and buffers of a module, under prefix + name. False after raising. */
bool tn__state_add_module(tn__state *s, void *module, const char *prefix);

/* Whether c can be saved: not NULL, with a valid step. False after raising. */
bool tn__checkpoint_sound(const tn_checkpoint *c, const char *operation);
/* Adds all tensors of a checkpoint: model.NAME, optim.NAME, average.NAME. */
bool tn__state_add(tn__state *s, const tn_checkpoint *c);

/* Whether there is an item of this name. Call tn__state_sort before. */
bool tn__state_has(const tn__state *s, const char *name);
void tn__state_sort(tn__state *s);

bool tn__state_write(const tn__state *s, tn_safetensors_writer *w);

/* What tensors are loaded from: a file, or a checkpoint in parts. */
typedef struct tn__source {
    const char *path;         /* for messages */
    const tn__json *metadata; /* strings by key; NULL: none */
    const char *digest;       /* NULL if it has none */
    int count;
    const char *(*name)(int i, void *user); /* 0 <= i < count */
    /* The shape and dtype of the whole tensor of this name; false: there is none. */
    bool (*find)(const char *name, tn_dims *whole, tn_dtype *dtype, void *user);
    /* The elements that the item has, on the CPU; inert after raising. */
    tn_tensor *(*get)(const tn__state_item *item, void *user);
    void *user;
} tn__source;
TN_API tn__source tn__source_of_file(tn_safetensors *f); /* lent */

/* Raises differences: a missing name (TN_EMISMATCH), a shape (TN_ESHAPE), a dtype (TN_EDTYPE,
 * unless `convert`). In a `deferred` state, tensors without elements get the file's directly. Sorts
 * the items. */
bool tn__state_match(tn__state *s, const tn__source *from, bool convert);
/* Whether the state has every name of the source. False after raising TN_EMISMATCH. */
bool tn__state_has_all(const tn__state *s, const tn__source *from);
void tn__state_apply(tn__state *s);
/* What was read for `name`, in another dtype. Inert after raising: TN_EVALUE for a finite number
 * that the dtype can only have as an infinity. */
tn_tensor *tn__state_cast(tn_tensor *source, tn_dtype wanted, const char *path, const char *name,
                          const char *operation);
void tn__state_free(tn__state *s);

#endif
