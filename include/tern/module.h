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
 * are one bracket around its forward: hooks before, precision, recompute, a scope, hooks after.
 *
 * Layers are in layers.h, initial values in init.h, attention and transformers in transformer.h.
 * Read next: nn/module.c (how one begins and ends), nn/register.c (what is in it), nn/call.c (the
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

/* What a module computes: of one tensor, or of several with the call's context. */
typedef tn_tensor *(*tn_module_forward)(tn_module *self, tn_tensor *x);
typedef tn_values (*tn_module_forward_values)(tn_module *self, tn_values in, void *context);

/* parameters, buffers, children, hooks */
typedef struct tn_module_lists tn_module_lists;

#define TN_MODULE_NAME 64 /* bytes of a name, with its 0 */

struct tn_module {
    /* alive, broken (building it failed) or finished; first, so that a wrong pointer is noticed */
    uint32_t state;
    bool training;
    bool recompute;   /* forward keeps only its inputs and runs again in backward */
    bool heap;        /* its memory is a tn_…_new's: freed with the module around it, or below */
    const char *kind; /* "linear", "mlp": static text */
    tn_module_forward forward;
    tn_module_forward_values forward_values; /* one of the two */
    void (*finish)(tn_module *self);         /* releases what only this kind owns; may be NULL */
    const tn_field *fields;                  /* its options; may be NULL: below, Options */
    tn_module *parent;
    char name[TN_MODULE_NAME]; /* within the parent; "" for a root */
    tn_module_lists *lists;
    tn_module *place; /* where it was when it first was registered, or something in it */
};

/* `void *m` is a struct that begins with a tn_module, here and in every header: what a program
 * calls takes it, so that no call needs a cast. What the library calls (forwards, hooks, visitors)
 * gets a tn_module *. */

/* ---- Building -------------------------------------------------------------------------------- */

/* Makes a module of the caller's memory, whose other fields may hold anything: the first call of
 * every init. kind: static text, for messages and checkpoints. */
TN_API void tn_module_init(void *m, const char *kind, tn_module_forward forward);
TN_API void tn_module_init_values(void *m, const char *kind, tn_module_forward_values forward);

/* Releases parameters, buffers and hooks of m and of its children (not their memory, which is the
 * struct's); fields become NULL. A graph that still wants to recompute m is then an error. NULL, a
 * struct of zeros and a module that is finished already are fine. */
TN_API void tn_module_finish(void *m);

/* The same on the heap: `bytes` zeros that begin with a tn_module, NULL after an error. So a kind
 * of one's own can stand in lists, and be a child that the module around it owns:
 *
 *     static block *block_new(int64_t width) {
 *         block *m = tn_module_new(sizeof(*m), "block", block_forward);
 *         TN_OWN(m, fc, tn_linear_new(width, width));
 *         return m;
 *     }
 *
 * Layers have such functions too: tn_linear_new(in, out) and the like with the options of
 * *_defaults(), tn_linear_new_with with others (TN_WITH). (Without memory they give NULL: a program
 * that continues after errors checks that before it uses a field.) tn_module_free finishes and
 * frees one without an owner; NULL is fine. */
TN_API void *tn_module_new(size_t bytes, const char *kind, tn_module_forward forward);
TN_API void *tn_module_new_values(size_t bytes, const char *kind, tn_module_forward_values forward);
TN_API void tn_module_free(void *m);

/* Registers a child, a parameter, a buffer. Names may contain dots ("h.0"); a name used twice in m
 * is TN_EVALUE, a child that has a parent already TN_ESTATE. A child named "" is transparent: no
 * part of any path, so that what it registers shares m's namespace. It gathers some of a module's
 * parts for calling without another name for them. A parameter or buffer is the tensor in *field,
 * set here: the module keeps it, and a parameter requires a gradient from now on. `field` must stay
 * where it is, since sharding and precision exchange the tensor in it: modules do not move after
 * registration, nor does what they were added to. Using one that has (a vector that grew, a struct
 * that was copied or returned) is TN_ESTATE; so is walking the modules above it once that was
 * noticed. Trees are at most 1000 modules deep (TN_EVALUE).
 *
 * A NULL parameter registers nothing and sets *field NULL (no bias). A NULL buffer is registered
 * and empty until tn_module_set_buffer. After a failure, and while an error is pending, *field is
 * inert and m broken: calling it is TN_ESTATE. A child is then added all the same, so that
 * finishing m finishes it; one that cannot be added (its name, memory) is finished at once. A child
 * that a tn_…_new made is m's from then on, and freed where it is finished.
 *
 * tn_module_own adds and returns the child, or NULL where it could not be added. tn_module_append
 * names it by its place: "0", "1", …, or, where children have gone, the next that is free. */
TN_API tn_status tn_module_add(void *m, const char *name, void *child);
TN_API void *tn_module_own(void *m, const char *name, void *child);
TN_API tn_status tn_module_append(void *m, void *child);

/* A child under the name of its field. TN_ADD: it is in the struct, and its init was called.
 * TN_OWN: the field is a pointer, set here to what a tn_…_new made, or NULL.
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

/* A parameter; a buffer, which is saved and no optimiser steps: as above. */
TN_API tn_status tn_module_param(void *m, const char *name, tn_tensor **field, tn_tensor *tensor);
TN_API tn_status tn_module_buffer(void *m, const char *name, tn_tensor **field, tn_tensor *tensor);

/* A buffer that is not part of what is saved (a cache):
 * walks pass over it unless they ask for scratch. */
TN_API tn_status tn_module_scratch(void *m, const char *name, tn_tensor **field, tn_tensor *tensor);

/* Makes parameter `name` of m (registered already, a path like "head.weight") the same tensor as
 * parameter `with` ("wte.weight"). It is counted, stepped and saved once, under `with`. Shapes and
 * dtypes must be the same. */
TN_API tn_status tn_module_tie(void *m, const char *name, const char *with);

/* Exchanges the tensor of a buffer of m (a cache, a running mean, recurrent state; NULL: none): the
 * old one is released, the new one kept. */
TN_API tn_status tn_module_set_buffer(void *m, const char *name, tn_tensor *tensor);

/* Options. Weights say nothing of what else a module computes with: its heads, an epsilon. So that
 * a checkpoint tells when they have changed, a module of one's own names them in a table (field.h),
 * which its init sets after tn_module_init. Offsets are in the module's struct. Names stay the same
 * over the versions of a program; an option that every shape tells need not be there.
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

/* ---- Parameters of which only a part is here ------------------------------------------------- */

/* Which elements of a parameter are here. `whole`, cut along `dim` into `pieces`, of each of which
 * this rank has the slice-th of `slices`, is a block (dim -1: not cut, the block is the whole). Of
 * the block, flattened, `length` elements from `start` are here.
 *
 * `pieces` times `slices` divides the size of dim; with one piece it need not: of n rows each slice
 * has ceil(n / slices), the last ones what is left, perhaps none. */
typedef struct tn_layout {
    tn_dims whole;
    int dim, pieces, slice, slices;
    int64_t start, length;
} tn_layout;

/* The ranks that have the other elements: `sum` makes values[n], which are sums over what is here,
 * sums over what all ranks of the group have, the same bits on each. A chain: ranks that share the
 * block, then those with the other blocks, then other stages of the model. */
typedef struct tn_parts tn_parts;
struct tn_parts {
    const tn_parts *next;
    tn_status (*sum)(const tn_parts *p, double *values, int n); /* NULL: that of `next` will do */
    void *group;
    bool counts; /* false where another rank of the group counts the same elements */
    /* The group's other ranks have other parameters (stages of a pipeline): a norm of all
     * parameters is summed over them, what concerns one parameter is known before. */
    bool others;
    bool copied; /* with others: some of them have this parameter too, all of it (a tied one) */
};

/* For sharding: what is stored of parameter `path` of m, on this rank, between calls. Optimisers
 * step it, clipping measures it, checkpoints have it; the field keeps what forwards read.
 *
 * part: a leaf of layout.length elements in the parameter's dtype, which the module keeps and which
 * wants a gradient where the parameter does. The field then holds the block, as a leaf whose
 * storage may be empty between uses. NULL: the tensor in the field, a block, is what is stored.
 * parts must live as long as the module (NULL: no other rank has more of it). All names of a tied
 * parameter get the same, wherever in the tree they are.
 *
 * TN_ESHAPE, TN_EDTYPE: the field or the part does not fit the layout. TN_ESTATE: an optimiser was
 * made before, or the module is being called. */
TN_API tn_status tn_module_set_part(void *m, const char *path, tn_tensor *part, tn_layout layout,
                                    const tn_parts *parts);

/* ---- Calling --------------------------------------------------------------------------------- */

/* m: a pointer to a struct that begins with tn_module; anything else (NULL, a finished module) is
 * an error that names it.
 *
 * tn_call: one tensor in, one out; a module of values gets one input and no context, and must give
 * one output. tn_call_values: the context reaches the forward as it is; with recompute it must live
 * until backward. Absent inputs are NULL. After an error n is 0 and every v inert. Around the
 * forward, in this order: `before` hooks, precision, recompute, a scope that lets only the results
 * out, `after` hooks.
 *
 * A forward may call its own module again (on a part of its input, say): up to 1000 calls run
 * inside each other in a thread, one more is TN_ESTATE.
 *
 * In a debug build (docs/debug_build.md; other builds do not look) a forward that calls a module
 * which was never added (the module, or all that it is a part of, is nobody's child) is TN_ESTATE
 * when that has a parameter that wants a gradient and that neither an optimiser nor a module around
 * this call has: it would not be stepped, and nothing else would say so. Not under TN_NO_GRAD, nor
 * for what tn_module_set_apart says is meant (m and below; by whoever steps it by hand, for
 * instance). A part of another model may be called as long as no optimiser steps those around the
 * call. */
TN_API tn_tensor *tn_call(void *m, tn_tensor *x);
TN_API tn_values tn_call_values(void *m, tn_values in, void *context);
TN_API void tn_module_set_apart(void *m, bool apart);
TN_API tn_values tn_values_of(tn_tensor *a, tn_tensor *b); /* two of them, or one when b is NULL */

/* Several tensors in, one out: y = TN_CALL(attention, query, key, value). NULL is an absent input,
 * up to 8 fit. TN_VALUES is the list of them. */
TN_API tn_tensor *tn_call_list(void *m, tn_values in);
#define TN_CALL(m, ...) tn_call_list((m), TN_VALUES(__VA_ARGS__))

/* Hooks of one module. `before` may replace the inputs, `after` the outputs (return them unchanged
 * otherwise). In backward: `backward_before` when the gradient of the first output arrives;
 * `backward_after` when the gradients of all inputs that want one are done (those without are
 * NULL), at the latest when the outermost backward ends, even when it fails. So each
 * `backward_before` has its `backward_after`. tn_in_recompute tells whether a forward hook runs for
 * the second time. Hooks run in the order of registration, each in a scope, and see the error when
 * one is pending. */
typedef struct tn_module_hooks {
    tn_values (*before)(tn_module *m, tn_values in, void *user);
    tn_values (*after)(tn_module *m, tn_values in, tn_values out, void *user);
    void (*backward_before)(tn_module *m, void *user);
    void (*backward_after)(tn_module *m, tn_values in_grads, void *user);
    void *user;
    void (*free_user)(void *user); /* when the hooks go; may be NULL */
} tn_module_hooks;
TN_API tn_hook tn_module_hook(void *m, tn_module_hooks hooks);
TN_API void tn_module_unhook(void *m, tn_hook hook);

/* ---- Mixed precision ------------------------------------------------------------------------- */

/* In which dtypes a module keeps its parameters, computes, and sums gradients.
 *
 *     tn_module_set_precision(&net, tn_precision_defaults());    // before the optimiser is made
 *
 * From then on the bracket casts floating inputs to `compute` and lends the forward a copy of each
 * parameter in `compute` (the registered field holds it while the forward runs). A copy is made
 * once for each change of the parameter, not for each call. The parameters themselves, which
 * optimiser, checkpoint and sharding see between calls, stay as they are, and their gradients
 * arrive, are summed and are reduced over ranks in `reduce`. docs/mixed_precision.md. */
typedef struct tn_precision {
    tn_dtype param;   /* TN_F32: of the parameters; others are converted when the policy is set */
    tn_dtype compute; /* TN_BF16 */
    tn_dtype reduce;  /* TN_F32: of the parameters' gradients */
    bool cast_output; /* false: results stay in the dtype that the forward made them in … */
    tn_dtype output;  /* … TN_F32: or become this one, where they are floating */
    bool from_defaults;
} tn_precision;
TN_API tn_precision tn_precision_defaults(void);

/* The policy of m and of everything below it that has none of its own (the innermost wins:
 * compute TN_F32 keeps a part of the network in f32). Before the gradients' first use and, when
 * parameters have to be converted, before an optimiser is made. A module with a policy is called by
 * one thread at a time. Parameters changed through tn_data_mut are seen after tn_copy_ or another
 * operation in place has told of it. TN_ESTATE while m is being called, and where sharding has m or
 * anything around or below it: precision is set before. */
TN_API tn_status tn_module_set_precision(void *m, tn_precision policy);

/* The dtype in which m computes: its policy's,
 * or that of the nearest module around it, or `none`. */
TN_API tn_dtype tn_module_compute_dtype(const void *m, tn_dtype none);

/* ---- Walking --------------------------------------------------------------------------------- */

/* One registered tensor. The last three are what sharding has said with tn_module_set_part; whoever
 * steps, saves, clips or counts reads them. */
typedef struct tn_entry {
    const char *path; /* "h.0.attn.c_attn.weight" */
    tn_module *owner;
    tn_tensor **field; /* what forwards read */
    bool buffer;
    bool scratch;          /* a buffer that is not saved */
    bool shared;           /* a second name of a tied parameter */
    tn_tensor *stored;     /* the tensor of the field, or this rank's part of it */
    tn_layout layout;      /* which elements those are: all of `whole` unless sharded */
    const tn_parts *parts; /* who has the others; NULL: all are here */
    bool absent;           /* another rank has it, and here it has no elements */
} tn_entry;

/* Calls f for every parameter (and buffer) of m and below, in order of registration, parents first;
 * the entry lives during the call. f returns false to stop. f may exchange the tensor in the field
 * (it then releases the old one and keeps the new one), but not register anything. Tied names are
 * visited once unless with_shared. Empty buffers are passed over. */
typedef struct tn_walk {
    bool buffers, no_parameters, with_shared;
    bool scratch; /* also the buffers that are not saved; with `buffers` */
    bool absent;  /* also the parameters that only other ranks have (stages of a pipeline) */
} tn_walk;
typedef bool (*tn_entry_visitor)(const tn_entry *entry, void *user);
TN_API void tn_module_each(void *m, tn_walk walk, tn_entry_visitor f, void *user);

/* Modules, m itself first (path ""). A transparent one has the path of the module around it. */
typedef bool (*tn_module_visitor)(tn_module *m, const char *path, void *user);
TN_API void tn_module_each_module(void *m, tn_module_visitor f, void *user);

TN_API int64_t tn_module_count(void *m); /* elements of all parameters, absent ones too; tied once
                                          */
/* a parameter or buffer; inert and TN_EVALUE when there is none */
TN_API tn_tensor *tn_module_get(void *m, const char *path);
/* NULL and TN_EVALUE when there is none */
TN_API tn_module *tn_module_child(void *m, const char *path);
TN_API int tn_module_children(void *m); /* how many were added to m itself */
/* the i-th of them; NULL and TN_EINDEX outside */
TN_API tn_module *tn_module_at(void *m, int i);
TN_API void tn_module_print(void *m, FILE *file); /* a tree: shapes, counts, what is frozen */
/* tn_graph_dot of t, with the names of m's parameters. */
TN_API tn_status tn_module_graph_dot(void *m, const tn_tensor *t, const char *path);

TN_API void tn_module_train(void *m, bool training); /* m and below */
/* Parameters and buffers of m and below to a device; before an optimiser is made over them. */
TN_API tn_status tn_module_to(void *m, tn_device device);
/* Of all parameters of m and below; false freezes them: they get no gradient, and optimisers pass
 * them over. */
TN_API void tn_module_requires_grad(void *m, bool requires_grad);
/* The parameters that `paths` names want no gradient, or want one again. Paths of parameters, or of
 * modules, which mean all below, with spaces between them; * is anything but a dot ("wte h.0",
 * "h.*.attn", "*"). Return how many have changed, or -1 after an error, and then, but for
 * TN_ENOMEM, none has: TN_EVALUE: a path that names no parameter; TN_EDTYPE: bytes of tn_quantize
 * want a gradient.
 *
 * What is frozen loses its gradient, and an optimiser leaves it alone from then on. An optimiser
 * does not have what was frozen when it was made: after tn_unfreeze make another. Under tn_ddp and
 * tn_fsdp every rank does the same, between steps. */
TN_API int tn_freeze(void *m, const char *paths);
TN_API int tn_unfreeze(void *m, const char *paths);
TN_API void tn_module_zero_grad(void *m);
TN_API void tn_module_set_recompute(void *m, bool on); /* m alone */

/* ---- Building without elements --------------------------------------------------------------- */

/* Until the `}` new tensors of this thread (tn_empty, tn_zeros, tn_ones, tn_full, tn_rand,
 * tn_randn) have shape and dtype but no elements, and remember how those are made: filled or drawn,
 * from which numbers of the generator, and what tn_fill_, tn_normal_, tn_mul_scalar_ and their like
 * did to them after that. So a model is built that no memory could hold, and each part of it is
 * made where it is needed.
 *
 *     {
 *         TN_DEFER_INIT;
 *         tn_gpt_init(&gpt, options);
 *     }
 *     tn_module_materialize(&gpt);   // or tn_fsdp, which makes this rank's part alone
 *
 * The elements have the same bits as those of a model that is built at once, and the generator is
 * left at the same place. A tensor that is read within the block gets its elements there and then.
 * Afterwards reading a parameter without elements is TN_ESTATE and names it, as are an optimiser
 * over it and saving it; loading weights, and copying into it, give it elements. */
#define TN_DEFER_INIT                                                                 \
    __attribute__((cleanup(tn_defer_init_end), unused)) bool TN__UNIQUE(tn__defer_) = \
        tn_defer_init_begin()
TN_API bool tn_defer_init_begin(void); /* returns whether one was open before */
TN_API void tn_defer_init_end(const bool *before);

/* Makes all elements of m and below that are not there yet. After an error (TN_ENOMEM) those made
 * so far stay, and a second call continues. */
TN_API tn_status tn_module_materialize(void *m);

/* ---- Weights of 8 bits ----------------------------------------------------------------------- */

/* Makes the weights of all linears and embeddings in m and below (a classifier that is tied to one
 * too) signed bytes: row j becomes round(w[j, :] / s[j]) with s[j] = max |w[j, :]| / 127, an f32 in
 * the buffer weight_scale. A weight then takes a quarter of the memory of f32, and so of the time
 * of what is bound by reading it; activations stay as they are (f32 or bf16).
 *
 * For inference: no parameter of m wants a gradient afterwards, bytes cannot, and an optimiser
 * that steps one is TN_ESTATE here. tn_save and tn_load take bytes (I8) and scales as they are,
 * into a module that was quantised too. Any module takes part that registers a parameter NAME, a
 * float matrix, and an empty buffer NAME_scale, and whose forward reads it (tn_linear_q8).
 * TN_EVALUE: a weight holds NaN or infinity; TN_EUNSUPPORTED: it is shared with a module that takes
 * no part; TN_ESTATE: it is sharded. After an error m is as it was. */
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
