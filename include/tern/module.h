/* Modules: a model is a struct whose first member is a tn_module.
 *
 *     typedef struct { tn_module base; tn_linear *fc1, *fc2; } mlp;
 *
 *     static tn_tensor *mlp_forward(tn_module *self, tn_tensor *x) {
 *         mlp *net = (mlp *)self;
 *         return tn_call(net->fc2, tn_relu(tn_call(net->fc1, x)));
 *     }
 *
 *     static void mlp_init(mlp *net) {
 *         tn_module_init(net, "mlp", mlp_forward);
 *         TN_OWN(net, fc1, tn_linear_new(784, 128));
 *         TN_OWN(net, fc2, tn_linear_new(128, 10));
 *     }
 *
 * Parameters, buffers and children are registered by name, with the address of the field that holds
 * them. Every tensor a forward reads is an input, a parameter or a registered buffer. A module is
 * called with tn_call (one tensor in, one out) or tn_call_values (several, with a context); both
 * put the same bracket around its forward: hooks before, precision, recompute, a scope, hooks
 * after.
 *
 * Layers are in layers.h, initial values in init.h, attention and transformers in transformer.h.
 * Read next: nn/module.c (initialising and finishing), nn/register.c (registration), nn/call.c (the
 * bracket), nn/linear.c (the smallest module).
 */
#ifndef TERN_MODULE_H
#define TERN_MODULE_H

#include "field.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_module tn_module;

/* What a module computes: from one tensor, or from several with the call's context. */
typedef tn_tensor *(*tn_module_forward)(tn_module *self, tn_tensor *x);
typedef tn_values (*tn_module_forward_values)(tn_module *self, tn_values in, void *context);

/* parameters, buffers, children, hooks */
typedef struct tn_module_lists tn_module_lists;

#define TN_MODULE_NAME 64 /* bytes of a name, with its 0 */

struct tn_module {
    /* alive, broken (building it failed) or finished; first, to detect a wrong pointer */
    uint32_t state;
    bool training;
    bool recompute;    /* keep only the forward's inputs and run it again in backward */
    bool heap;         /* a tn_…_new allocated it: freed with its parent, or by tn_module_free */
    bool ranks_differ; /* local SGD: true between two synchronisations */
    const char *kind;  /* "linear", "mlp": a static string */
    tn_module_forward forward;
    tn_module_forward_values forward_values; /* one of the two */
    void (*finish)(tn_module *self);         /* releases what only this kind owns; may be NULL */
    const tn_field *fields;                  /* its options (see Options below); may be NULL */
    tn_module *parent;
    char name[TN_MODULE_NAME]; /* within the parent; "" for a root */
    tn_module_lists *lists;
    tn_module *place; /* its address when it, or something in it, was first registered */
};

/* `void *m` is a struct that begins with a tn_module, here and in every header: what a program
 * calls takes it, so that no call needs a cast. What the library calls (forwards, hooks, visitors)
 * gets a tn_module *. */

/* ---- Building -------------------------------------------------------------------------------- */

/* Makes the caller's memory a module, whatever its other fields hold: the first call of every init.
 * kind: a static string, for messages and checkpoints. */
TN_API void tn_module_init(void *m, const char *kind, tn_module_forward forward);
TN_API void tn_module_init_values(void *m, const char *kind, tn_module_forward_values forward);

/* Releases parameters, buffers and hooks of m and of its children (not their memory, which is the
 * struct's); fields become NULL. Recomputing m in a backward is an error afterwards. NULL, a struct
 * of zeros and a finished module are fine. */
TN_API void tn_module_finish(void *m);

/* The same on the heap: `bytes` zeros that begin with a tn_module; NULL after an error. So your own
 * kind can be in lists, and be a child that its parent owns:
 *
 *     static block *block_new(int64_t width) {
 *         block *m = tn_module_new(sizeof(*m), "block", block_forward);
 *         TN_OWN(m, fc, tn_linear_new(width, width));
 *         return m;
 *     }
 *
 * Layers have such functions too: tn_linear_new(in, out) and the like with the options of
 * *_defaults(), tn_linear_new_with with others (TN_WITH). (They return NULL if out of memory: a
 * program that continues after errors checks that before it uses a field.) tn_module_free finishes
 * and frees one without an owner; NULL is fine. */
TN_API void *tn_module_new(size_t bytes, const char *kind, tn_module_forward forward);
TN_API void *tn_module_new_values(size_t bytes, const char *kind, tn_module_forward_values forward);
TN_API void tn_module_free(void *m);

/* Registers a child, a parameter, a buffer. Names may contain dots ("h.0"); a name used twice in m
 * is TN_EVALUE, a child that already has a parent is TN_ESTATE. A child named "" is transparent:
 * not part of any path, so that what it registers shares m's namespace. It groups some of a
 * module's parts to call them together without renaming them. A parameter or buffer is the tensor
 * in *field, set here: the module keeps it, and a parameter requires a gradient from now on.
 * `field` must stay where it is, since sharding and precision replace the tensor in it: after
 * registration neither a module nor its parents may move. Using one that has moved (a vector that
 * grew, a struct that was copied or returned) is TN_ESTATE; so is walking the modules above it once
 * that was noticed. Trees are at most 1000 modules deep (TN_EVALUE).
 *
 * A NULL parameter registers nothing and sets *field to NULL (no bias). A NULL buffer is registered
 * but empty until tn_module_set_buffer. After a failure, and while an error is pending, *field is
 * inert and m is broken: calling it is TN_ESTATE. A child is then added all the same, so that
 * finishing m finishes it; one that cannot be added (bad name, no memory) is finished at once. A
 * child made by a tn_…_new belongs to m from then on, and is freed when it is finished.
 *
 * tn_module_own adds and returns the child, or NULL if it could not be added. tn_module_append
 * names it by its position: "0", "1", …, or, if children have been removed, the next free
 * number. */
TN_API tn_status tn_module_add(void *m, const char *name, void *child);
TN_API void *tn_module_own(void *m, const char *name, void *child);
TN_API tn_status tn_module_append(void *m, void *child);

/* A child under the name of its field. TN_ADD: the field is the child itself, already initialised.
 * TN_OWN: the field is a pointer, set here to what a tn_…_new returned.
 *
 *     tn_linear_init(&net->fc, 784, 10, tn_linear_defaults());
 *     TN_ADD(net, fc);
 *
 *     TN_OWN(net, fc, tn_linear_new(784, 10));
 */
#define TN_ADD(m, field) tn_module_add((m), #field, &(m)->field)
#define TN_OWN(m, field, child) \
    ((m)->field = (child),      \
     tn_module_own((m), #field, (m)->field) != NULL ? (void)0 : (void)((m)->field = NULL))

/* Register a parameter, or a buffer, which is saved but not optimised; see above. */
TN_API tn_status tn_module_param(void *m, const char *name, tn_tensor **field, tn_tensor *tensor);
TN_API tn_status tn_module_buffer(void *m, const char *name, tn_tensor **field, tn_tensor *tensor);

/* A buffer that is not saved (a cache): walks skip it unless they ask for scratch. */
TN_API tn_status tn_module_scratch(void *m, const char *name, tn_tensor **field, tn_tensor *tensor);

/* Ties parameter `name` of m (already registered, a path like "head.weight") to parameter `with`
 * ("wte.weight"): the same tensor, counted, stepped and saved once, under `with`. Shapes and dtypes
 * must be the same. */
TN_API tn_status tn_module_tie(void *m, const char *name, const char *with);

/* Replaces the tensor of a buffer of m (a cache, a running mean, recurrent state; NULL: none): the
 * old one is released, the new one kept. */
TN_API tn_status tn_module_set_buffer(void *m, const char *name, tn_tensor *tensor);

/* Options. Weights do not show what else a module computes with: the number of heads, an epsilon.
 * So that a checkpoint notices when these have changed, your own module lists them in a table
 * (field.h), which its init sets after tn_module_init. Offsets are in the module's struct. Names
 * must not change between versions of a program; options that show in the shapes may be left out.
 *
 *     static const tn_field pool_fields[] = {
 *         TN_FIELD(pool, window),
 *         TN_FIELD(pool, noise, .training = true),
 *         {0},
 *     };
 *     ...
 *     tn_module_init(m, "pool", pool_forward);
 *     m->base.fields = pool_fields;
 */

/* ---- Parameters of which only a part is on this rank ----------------------------------------- */

/* Which elements of a parameter are here. `whole` is cut along `dim` into `pieces`, and each piece
 * into `slices`; this rank's block has number `slice` of each piece (dim -1: not cut, the block is
 * the whole). Of the flattened block, `length` elements from `start` are here.
 *
 * `pieces` times `slices` divides the size of dim, except that with one piece it need not: each
 * slice of n rows has ceil(n / slices), the last ones what is left, perhaps none. */
typedef struct tn_layout {
    tn_dims whole;
    int dim, pieces, slice, slices;
    int64_t start, length;
} tn_layout;

/* The ranks that have the other elements: `sum` adds up values[n], sums over what is here, over all
 * ranks of the group, with the same bits on each. A chain: first the ranks that share the block,
 * then those with the other blocks, then other stages of the model. */
typedef struct tn_parts tn_parts;
struct tn_parts {
    const tn_parts *next;
    tn_status (*sum)(const tn_parts *p, double *values, int n); /* NULL: that of `next` suffices */
    void *group;
    bool counts; /* false if another rank of the group counts the same elements */
    /* The group's other ranks have other parameters (stages of a pipeline): only sums over all
     * parameters, such as a norm, go over them. */
    bool others;
    bool copied; /* with others: some of them have all of this parameter too (a tied one) */
};

/* For sharding: the part of parameter `path` of m that this rank stores between calls. Optimisers
 * step it, clipping measures it, checkpoints save it; the field keeps what forwards read.
 *
 * part: a leaf of layout.length elements in the parameter's dtype, which the module keeps and which
 * requires a gradient if the parameter does. The field then holds the block, as a leaf whose
 * storage may be empty between uses. NULL: the tensor in the field, a block, is what is stored.
 * parts must live as long as the module (NULL: no other rank has more of it). All names of a tied
 * parameter get the same part, wherever in the tree they are.
 *
 * TN_ESHAPE, TN_EDTYPE: the field or the part does not fit the layout. TN_ESTATE: an optimiser
 * already exists, or the module is being called. */
TN_API tn_status tn_module_set_part(void *m, const char *path, tn_tensor *part, tn_layout layout,
                                    const tn_parts *parts);

/* ---- Calling --------------------------------------------------------------------------------- */

/* m: a pointer to a struct that begins with tn_module; anything else (NULL, a finished module) is
 * an error that names it.
 *
 * tn_call: one tensor in, one out; a module with a forward_values gets one input and no context,
 * and must return one output. tn_call_values: passes the context to the forward unchanged; with
 * recompute it must live until backward. Absent inputs are NULL. After an error n is 0 and every v
 * inert. Around the forward, in this order: `before` hooks, precision, recompute, a scope that
 * returns only the results, `after` hooks.
 *
 * A forward may call its own module again (on a part of its input, say); more than 1000 nested
 * calls in a thread are TN_ESTATE.
 *
 * In a debug build (docs/debug_build.md; other builds do not check) it is TN_ESTATE if a forward
 * calls a module that was never added to the model around the call, and that has a parameter which
 * requires a gradient but belongs to no optimiser and no module around the call: it would silently
 * not be trained. Not under TN_NO_GRAD, nor where tn_module_set_apart marks it as intended (for m
 * and below; to step it by hand, for instance). A part of another model may be called as long as no
 * optimiser steps the modules around the call. */
TN_API tn_tensor *tn_call(void *m, tn_tensor *x);
TN_API tn_values tn_call_values(void *m, tn_values in, void *context);
TN_API void tn_module_set_apart(void *m, bool apart);
TN_API tn_values tn_values_of(tn_tensor *a, tn_tensor *b); /* both, or only a if b is NULL */

/* Several tensors in, one out: y = TN_CALL(attention, query, key, value). NULL is an absent input;
 * at most 8. TN_VALUES makes the list. */
TN_API tn_tensor *tn_call_list(void *m, tn_values in);
#define TN_CALL(m, ...) tn_call_list((m), TN_VALUES(__VA_ARGS__))

/* Hooks of one module. `before` may replace the inputs, `after` the outputs (return them unchanged
 * otherwise). In backward: `backward_before` when the gradient of the first output arrives;
 * `backward_after` when the gradients of all inputs that require one are done (the others are
 * NULL), at the latest when the outermost backward ends, even if it fails. So each
 * `backward_before` has its `backward_after`. tn_in_recompute tells whether a forward hook runs for
 * the second time. Hooks run in the order of registration, each in its own scope, even while an
 * error is pending. */
typedef struct tn_module_hooks {
    tn_values (*before)(tn_module *m, tn_values in, void *user);
    tn_values (*after)(tn_module *m, tn_values in, tn_values out, void *user);
    void (*backward_before)(tn_module *m, void *user);
    void (*backward_after)(tn_module *m, tn_values in_grads, void *user);
    void *user;
    void (*free_user)(void *user); /* when the hooks are removed; may be NULL */
} tn_module_hooks;
TN_API tn_hook tn_module_hook(void *m, tn_module_hooks hooks);
TN_API void tn_module_unhook(void *m, tn_hook hook);

/* ---- Mixed precision ------------------------------------------------------------------------- */

/* The dtypes in which a module keeps its parameters, computes, and sums gradients.
 *
 *     tn_module_set_precision(&net, tn_precision_defaults());    // before the optimiser is made
 *
 * From then on the bracket casts floating inputs to `compute` and lends the forward a copy of each
 * parameter in `compute` (the registered field holds it while the forward runs). A copy is made
 * once per change of the parameter, not per call. The parameters themselves, which optimiser,
 * checkpoint and sharding see between calls, stay as they are, and their gradients are computed,
 * accumulated and reduced over ranks in `reduce`. docs/mixed_precision.md. */
typedef struct tn_precision {
    tn_dtype param;   /* TN_F32: of the parameters; converted when the policy is set */
    tn_dtype compute; /* TN_BF16 */
    tn_dtype reduce;  /* TN_F32: of the parameters' gradients */
    bool cast_output; /* false: results keep the dtype in which the forward made them … */
    tn_dtype output;  /* … true: floating results become this, TN_F32 */
    bool from_defaults;
} tn_precision;
TN_API tn_precision tn_precision_defaults(void);

/* Sets the policy of m and of everything below it that has none of its own (the innermost wins:
 * compute TN_F32 keeps a part of the network in f32). Call it before the gradients' first use and,
 * if parameters have to be converted, before an optimiser is made. A module with a policy is called
 * by one thread at a time. Changes through tn_data_mut are seen only after tn_copy_ or another
 * in-place operation on the parameter. TN_ESTATE while m is being called, and once m or anything
 * around or below it is sharded: set precision first. */
TN_API tn_status tn_module_set_precision(void *m, tn_precision policy);

/* The dtype in which m computes: of its own policy, or of the nearest module around it that has
 * one, or `none`. */
TN_API tn_dtype tn_module_compute_dtype(const void *m, tn_dtype none);

/* ---- Walking --------------------------------------------------------------------------------- */

/* One registered tensor. Sharding sets the last ones with tn_module_set_part; stepping, saving,
 * clipping and counting read them. */
typedef struct tn_entry {
    const char *path; /* "h.0.attn.c_attn.weight" */
    tn_module *owner;
    tn_tensor **field; /* what forwards read */
    bool buffer;
    bool scratch;          /* a buffer that is not saved */
    bool shared;           /* a second name of a tied parameter */
    tn_tensor *stored;     /* the tensor of the field, or this rank's part of it */
    tn_layout layout;      /* which elements `stored` has: all of `whole` unless sharded */
    const tn_parts *parts; /* who has the others; NULL: no other rank */
    bool absent;           /* another rank has it; no elements here */
} tn_entry;

/* Calls f for every parameter (and buffer) of m and below, in order of registration, parents first;
 * the entry is valid during the call. f returns false to stop. f may replace the tensor in the
 * field (it then releases the old one and keeps the new one), but not register anything. Tied
 * parameters are visited once unless with_shared. Empty buffers are skipped. */
typedef struct tn_walk {
    bool buffers, no_parameters, with_shared;
    bool scratch; /* also buffers that are not saved; with `buffers` */
    bool absent;  /* also parameters that only other ranks have (stages of a pipeline) */
} tn_walk;
typedef bool (*tn_entry_visitor)(const tn_entry *entry, void *user);
TN_API void tn_module_each(void *m, tn_walk walk, tn_entry_visitor f, void *user);

/* Visits modules, m itself first (path ""). A transparent one has its parent's path. */
typedef bool (*tn_module_visitor)(tn_module *m, const char *path, void *user);
TN_API void tn_module_each_module(void *m, tn_module_visitor f, void *user);

TN_API int64_t tn_module_count(void *m); /* the number of parameters: elements of all, absent ones
                                          * too; tied ones once */
/* a parameter or buffer; inert and TN_EVALUE if there is none */
TN_API tn_tensor *tn_module_get(void *m, const char *path);
/* NULL and TN_EVALUE if there is none */
TN_API tn_module *tn_module_child(void *m, const char *path);
TN_API int tn_module_children(void *m); /* how many m itself has */
/* the i-th of them; NULL and TN_EINDEX out of range */
TN_API tn_module *tn_module_at(void *m, int i);
TN_API void tn_module_print(void *m, FILE *file); /* a tree: shapes, counts, what is frozen */
/* tn_graph_dot of t with the names of m's parameters. */
TN_API tn_status tn_module_graph_dot(void *m, const tn_tensor *t, const char *path);

TN_API void tn_module_train(void *m, bool training); /* m and below; false: evaluation mode */
/* Moves parameters and buffers of m and below to a device; call it before making an optimiser over
 * them. TN_ESTATE: one is tied to a parameter that is not below m. */
TN_API tn_status tn_module_to(void *m, tn_device device);
/* For all parameters of m and below; false freezes them: they get no gradient, and optimisers skip
 * them. */
TN_API void tn_module_requires_grad(void *m, bool requires_grad);
/* Parameters named by `paths` no longer require a gradient, or do again. Paths of parameters, or of
 * modules, which mean all below, separated by spaces; * matches anything but a dot ("wte h.0",
 * "h.*.attn", "*"). Return how many have changed, or -1 after an error, when (except for TN_ENOMEM)
 * none has. TN_EVALUE: a path that names no parameter; TN_EDTYPE: weights of tn_quantize cannot
 * have a gradient.
 *
 * Freezing drops the gradient, and an optimiser leaves the parameter alone from then on. An
 * optimiser does not have what was frozen when it was made: after tn_unfreeze make another. Under
 * tn_ddp and tn_fsdp every rank must do the same, between steps. */
TN_API int tn_freeze(void *m, const char *paths);
TN_API int tn_unfreeze(void *m, const char *paths);
TN_API void tn_module_zero_grad(void *m);
/* Only m. Backward runs its forward again: parameters must not change before, nor may m be switched
 * between training and evaluation (TN_ESTATE). */
TN_API void tn_module_set_recompute(void *m, bool on);

/* ---- Building without elements --------------------------------------------------------------- */

/* Until the `}` new tensors of this thread (tn_empty, tn_zeros, tn_ones, tn_full, tn_rand,
 * tn_randn) have shape and dtype but no elements, and remember how those are made: filled or drawn,
 * from which of the generator's numbers, and what tn_fill_, tn_normal_, tn_mul_scalar_ and the like
 * did to them afterwards. So you can build a model that does not fit in memory, and make each part
 * of it where it is needed.
 *
 *     {
 *         TN_DEFER_INIT;
 *         tn_gpt_init(&gpt, options);
 *     }
 *     tn_module_materialize(&gpt);   // or tn_fsdp, which makes only this rank's part
 *
 * The elements have the same bits as without this, and the generator ends in the same state. A
 * tensor that is read within the block gets its elements at that moment. Afterwards, reading a
 * parameter without elements, making an optimiser over it or saving it is TN_ESTATE and names it;
 * loading weights or copying into it gives it elements. */
#define TN_DEFER_INIT                                                                 \
    __attribute__((cleanup(tn_defer_init_end), unused)) bool TN__UNIQUE(tn__defer_) = \
        tn_defer_init_begin()
TN_API bool tn_defer_init_begin(void); /* returns whether one was already open */
TN_API void tn_defer_init_end(const bool *before);

/* Makes all elements of m and below that are not there yet. After an error (TN_ENOMEM) those made
 * so far stay, and a second call continues. */
TN_API tn_status tn_module_materialize(void *m);

/* ---- 8-bit weights --------------------------------------------------------------------------- */

/* Turns the weights of all linears and embeddings in m and below (and a classifier tied to one)
 * into signed bytes: row j becomes round(w[j, :] / s[j]) with s[j] = max |w[j, :]| / 127, an f32 in
 * the buffer weight_scale. A weight then takes a quarter of the memory of f32, and a quarter of the
 * time if reading it is the bottleneck; activations stay as they are (f32 or bf16).
 *
 * For inference: no parameter of m requires a gradient afterwards (bytes cannot), and it is
 * TN_ESTATE if an optimiser has one. tn_save and tn_load take bytes (I8) and scales as they are;
 * tn_load needs a module that was quantised too. Any module takes part that registers a parameter
 * NAME, a float matrix, and an empty buffer NAME_scale, and whose forward reads it (tn_linear_q8).
 * TN_EVALUE: a weight holds NaN or infinity; TN_EUNSUPPORTED: it is shared with a module that takes
 * no part; TN_ESTATE: it is sharded. After an error m is as it was. Of a model on stages
 * (tn_pipeline_new) each rank turns what it has. */
TN_API tn_status tn_quantize(void *m);

#ifdef __cplusplus
}
static inline tn_values tn__values_cxx(std::initializer_list<tn_tensor *> tensors) {
    tn_values values = {(int)tensors.size(), {}};
    for (size_t i = 0; i < tensors.size() && i < TN_MAX_VALUES; i++) {
        values.v[i] = tensors.begin()[i];
    }
    return values;
}
#define TN_VALUES(...) tn__values_cxx({__VA_ARGS__})
#else
#define TN_VALUES(...) \
    ((tn_values){(int)(sizeof((tn_tensor *[]){__VA_ARGS__}) / sizeof(tn_tensor *)), {__VA_ARGS__}})
#endif
#endif
