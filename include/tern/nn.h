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
 * Read next: nn/module.c (the registry), nn/call.c (the bracket),
 * nn/linear.c (the smallest module).
 */
#ifndef TERN_NN_H
#define TERN_NN_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_module tn_module;

typedef tn_tensor *(*tn_module_forward)(tn_module *self, tn_tensor *x);
typedef tn_values (*tn_module_forward_values)(tn_module *self, tn_values in, void *context);

/* nn/module.c: parameters, buffers, children, hooks */
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
    /* options, as text; may be NULL: below, Options */
    int (*describe)(const tn_module *self, char *text, size_t room);
    tn_module *parent;
    char name[TN_MODULE_NAME]; /* within the parent; "" for a root */
    tn_module_lists *lists;
    tn_module *place; /* where it was when it first was registered, or something in it */
};

/* `void *m` is a struct that begins with a tn_module, here and in every header: what a program
 * calls takes it, so that no call needs a cast. What the library calls (forwards, hooks, visitors)
 * gets a tn_module *. */

/* ---- Building -------------------------------------------------------------------------------- */

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
 * *_defaults(), tn_linear_new_with with others. (Without memory they give NULL: a program that
 * goes on after errors looks at that before it uses a field.) tn_module_free finishes and frees one
 * that nobody owns; NULL is fine. */
TN_API void *tn_module_new(size_t bytes, const char *kind, tn_module_forward forward);
TN_API void *tn_module_new_values(size_t bytes, const char *kind, tn_module_forward_values forward);
TN_API void tn_module_free(void *m);

/* Registers a child, a parameter, a buffer. Names may contain dots ("h.0"); a name used twice in m
 * is TN_EVALUE, a child that has a parent already TN_ESTATE. A child named "" is transparent: no
 * part of any path, so that what it registers stands beside what m does, and shares its names. It
 * gathers some of a module's parts for calling without another name for them. A parameter or buffer
 * is the tensor in *field, set here: the module keeps it, and a parameter requires a gradient from
 * now on. `field` must stay where it is, since sharding and precision exchange the tensor in it:
 * modules do not move after registration, nor does what they were added to. Using one that has (a
 * vector that grew, a struct that was copied or returned) is TN_ESTATE; so is walking the modules
 * above it once that was noticed. Trees are at most 1000 modules deep (TN_EVALUE).
 *
 * A NULL parameter registers nothing and sets *field NULL (no bias). A NULL buffer is registered
 * and empty until tn_module_set_buffer. After a failure, and while an error is pending, *field is
 * inert and m broken: calling it is TN_ESTATE. A child is then added all the same, so that
 * finishing m finishes it; one that cannot be added (its name, memory) is finished at once. A child
 * that a tn_…_new made is m's from then on, and freed where it is finished.
 *
 * tn_module_own adds and returns the child, or NULL where it could not be added. tn_module_append
 * names it by its place: "0", "1", …. */
TN_API tn_status tn_module_add(void *m, const char *name, void *child);
TN_API void *tn_module_own(void *m, const char *name, void *child);
TN_API tn_status tn_module_append(void *m, void *child);

/* A child under the name of its field. TN_ADD: it lies in the struct, and its init was called.
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
 * a checkpoint tells when they have changed, a module of one's own sets `describe` in its init,
 * after tn_module_init. It writes as snprintf does, and returns as snprintf: NAME VALUE, … and
 * behind a ';' what does not change the results of trained weights, such as a dropout. In each item
 * the value is what follows the last space; there is no ',' in either. Names stay the same over the
 * versions of a program, and an option that every shape tells need not be there.
 *
 *     static int pool_describe(const tn_module *self, char *text, size_t room) {
 *         const pool *m = (const pool *)self;
 *         return snprintf(text, room, "window %d; noise %g", m->window, m->noise);
 *     }
 *     ...
 *     tn_module_init(m, "pool", pool_forward);
 *     m->base.describe = pool_describe;
 *
 * Called when weights or checkpoints are saved and loaded. A negative number, or one that is not
 * below `room` (TN_DESCRIBE_ROOM), is TN_EVALUE there. */

/* ---- Parameters of which only a part is here ------------------------------------------------- */

/* Which elements of a parameter are here. `whole`, cut along `dim` into `pieces`, of each of which
 * this rank has the slice-th of `slices`, is a block (dim -1: not cut, the block is the whole). Of
 * the block, flattened, `length` elements from `start` are here. */
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
    tn_status (*sum)(const tn_parts *p, double *values, int n);
    void *group;
    bool counts; /* false where another rank of the group counts the same elements */
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
 * A forward that calls a module which was never added (the module, or all that it is a part of, is
 * nobody's child) is TN_ESTATE when that has a parameter that wants a gradient and that neither an
 * optimiser nor a module around this call has: it would not be stepped, and nothing else would say
 * so. Not under TN_NO_GRAD, nor for what tn_module_set_apart says is meant (m and below; by whoever
 * steps it by hand, for instance). A part of another model may be called as long as no optimiser
 * steps those around the call. */
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
 * NULL), at the latest when the outermost backward ends, also when it fails. So each
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
} tn_entry;

/* Calls f for every parameter (and buffer) of m and below, in order of registration, parents first;
 * the entry lives during the call. f returns false to stop. f may exchange the tensor in the field
 * (it then releases the old one and keeps the new one), but not register anything. Tied names are
 * visited once unless with_shared. Empty buffers are passed over. */
typedef struct tn_walk {
    bool buffers, no_parameters, with_shared;
    bool scratch; /* also the buffers that are not saved; with `buffers` */
} tn_walk;
typedef bool (*tn_entry_visitor)(const tn_entry *entry, void *user);
TN_API void tn_module_each(void *m, tn_walk walk, tn_entry_visitor f, void *user);

/* Modules, m itself first (path ""). A transparent one has the path of the module around it. */
typedef bool (*tn_module_visitor)(tn_module *m, const char *path, void *user);
TN_API void tn_module_each_module(void *m, tn_module_visitor f, void *user);

TN_API int64_t tn_module_count(void *m); /* elements of all parameters; tied ones once */
/* a parameter or buffer; inert and TN_EVALUE when there is none */
TN_API tn_tensor *tn_module_get(void *m, const char *path);
/* NULL and TN_EVALUE when there is none */
TN_API tn_module *tn_module_child(void *m, const char *path);
TN_API int tn_module_children(void *m); /* how many were added to m itself */
/* the i-th of them; NULL and TN_EINDEX outside */
TN_API tn_module *tn_module_at(void *m, int i);
TN_API void tn_module_print(void *m, FILE *file); /* a tree with shapes and counts */
/* tn_graph_dot of t, with the names of m's parameters. */
TN_API tn_status tn_module_graph_dot(void *m, const tn_tensor *t, const char *path) TN_MUST_USE;

TN_API void tn_module_train(void *m, bool training); /* m and below */
/* Parameters and buffers of m and below to a device; before an optimiser is made over them. */
TN_API tn_status tn_module_to(void *m, tn_device device);
TN_API void tn_module_requires_grad(void *m, bool requires_grad);
TN_API void tn_module_zero_grad(void *m);
TN_API void tn_module_set_recompute(void *m, bool on); /* m alone */

/* ---- Initialisation: in place, from the thread's default generator, not recorded ------------- */

/* Shapes: Xavier and Kaiming need two dimensions or more (TN_ESHAPE): (out, in, …). */
TN_API void tn_init_uniform(tn_tensor *t, double low, double high);
TN_API void tn_init_normal(tn_tensor *t, double mean, double std);
/* The normal distribution, cut at the bounds (PyTorch's are mean - 2 and mean + 2 of std 1). */
TN_API void tn_init_trunc_normal(tn_tensor *t, double mean, double std, double low, double high);
TN_API void tn_init_constant(tn_tensor *t, double value);
TN_API void tn_init_xavier_uniform(tn_tensor *t, double gain); /* Glorot, Bengio 2010 */
TN_API void tn_init_xavier_normal(tn_tensor *t, double gain);

/* By what a layer's outputs shrink in the function behind it; param: the slope of leaky ReLU. */
typedef enum tn_nonlinearity {
    TN_GAIN_LINEAR, /* 1; convolutions too */
    TN_GAIN_SIGMOID,
    TN_GAIN_TANH,
    TN_GAIN_RELU,
    TN_GAIN_LEAKY_RELU,
    TN_GAIN_SELU
} tn_nonlinearity;
TN_API double tn_calculate_gain(tn_nonlinearity nonlinearity, double param); /* TN_EVALUE: 0 */

/* He et al. 2015: std = gain / sqrt(fan); uniform in (-b, b), b = sqrt(3) std. The short forms are
 * for leaky ReLU of this slope and the fan in. */
typedef enum tn_fan { TN_FAN_IN, TN_FAN_OUT } tn_fan;
typedef struct tn_kaiming_options {
    double a;                     /* 0: leaky ReLU's slope */
    tn_fan mode;                  /* TN_FAN_IN */
    tn_nonlinearity nonlinearity; /* TN_GAIN_LEAKY_RELU */
} tn_kaiming_options;
TN_API tn_kaiming_options tn_kaiming_defaults(void);
TN_API void tn_init_kaiming_uniform_with(tn_tensor *t, tn_kaiming_options options);
TN_API void tn_init_kaiming_normal_with(tn_tensor *t, tn_kaiming_options options);
TN_API void tn_init_kaiming_uniform(tn_tensor *t, double negative_slope);
TN_API void tn_init_kaiming_normal(tn_tensor *t, double negative_slope);

/* t (n, m): ones on the diagonal. t (out, in, …), 3 to 5 dimensions: convolution with it, channels
 * in `groups`, is the identity as far as there are channels. */
TN_API void tn_init_eye(tn_tensor *t);
TN_API void tn_init_dirac(tn_tensor *t, int64_t groups);
/* As a matrix of t's first dimension and all others: its rows, or its columns where these are
 * fewer, are orthogonal and `gain` long. Saxe et al. 2013, arXiv:1312.6120. */
TN_API void tn_init_orthogonal(tn_tensor *t, double gain);
/* t (n, m): in each column ceil(sparsity n) zeros, elsewhere normal. Martens 2010. */
TN_API void tn_init_sparse(tn_tensor *t, double sparsity, double std);

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
 * so far stay, and a second call goes on. */
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

/* ---- Layers: options from *_defaults(), PyTorch's defaults ----------------------------------- */

typedef struct tn_linear_options {
    bool bias; /* true */
    tn_dtype dtype;
} tn_linear_options;
typedef struct tn_linear {
    tn_module base;
    tn_tensor *weight;       /* (out, in): U(-1/sqrt(in), 1/sqrt(in)) */
    tn_tensor *bias;         /* (out): likewise; or NULL */
    tn_tensor *weight_scale; /* (out), of a weight of bytes (tn_quantize); or NULL */
} tn_linear;
TN_API tn_linear_options tn_linear_defaults(void);
TN_API void tn_linear_init(tn_linear *m, int64_t in, int64_t out, tn_linear_options options);
TN_API tn_linear *tn_linear_new(int64_t in, int64_t out);
TN_API tn_linear *tn_linear_new_with(int64_t in, int64_t out, tn_linear_options options);

typedef struct tn_embedding_options {
    int64_t padding_idx; /* -1: none; this row begins as zeros, and its uses give it no gradient */
    tn_dtype dtype;
} tn_embedding_options;
typedef struct tn_embedding {
    tn_module base;
    tn_tensor *weight;       /* (count, width): normal(0, 1) */
    tn_tensor *weight_scale; /* (count), of a weight of bytes (tn_quantize); or NULL */
    tn_dtype dtype;          /* of the result then */
    int64_t padding_idx;
} tn_embedding;
TN_API tn_embedding_options tn_embedding_defaults(void);
TN_API void tn_embedding_init(tn_embedding *m, int64_t count, int64_t width, tn_dtype dtype);
TN_API void tn_embedding_init_with(tn_embedding *m, int64_t count, int64_t width,
                                   tn_embedding_options options);
TN_API tn_embedding *tn_embedding_new(int64_t count, int64_t width);
TN_API tn_embedding *tn_embedding_new_with(int64_t count, int64_t width,
                                           tn_embedding_options options);

typedef struct tn_norm_options {
    double eps;  /* 1e-5 */
    bool weight; /* true: starts at 1 */
    bool bias;   /* true: starts at 0; RMS norm has none */
    tn_dtype dtype;
} tn_norm_options;
TN_API tn_norm_options tn_norm_defaults(void);
typedef struct tn_layer_norm {
    tn_module base;
    tn_tensor *weight, *bias; /* (width) or NULL */
    double eps;
} tn_layer_norm;
TN_API void tn_layer_norm_init(tn_layer_norm *m, int64_t width, tn_norm_options options);
TN_API tn_layer_norm *tn_layer_norm_new(int64_t width);
TN_API tn_layer_norm *tn_layer_norm_new_with(int64_t width, tn_norm_options options);
typedef struct tn_rms_norm {
    tn_module base;
    tn_tensor *weight;
    double eps;
} tn_rms_norm;
TN_API void tn_rms_norm_init(tn_rms_norm *m, int64_t width, tn_norm_options options);
TN_API tn_rms_norm *tn_rms_norm_new(int64_t width);
TN_API tn_rms_norm *tn_rms_norm_new_with(int64_t width, tn_norm_options options);

/* Each channel less its mean, over its deviation (tn_batch_norm): while training those of the
 * batch, which the running ones follow; afterwards the running ones. x (N, C) or (N, C, L); (N, C,
 * H, W); (N, C, D, H, W). A forward that runs again in backward does not count twice. */
typedef struct tn_batch_norm_options {
    double eps;               /* 1e-5 */
    double momentum;          /* 0.1: running <- (1 - momentum) running + momentum batch */
    bool cumulative;          /* false; true: running ones are means of all batches so far */
    bool affine;              /* true: weight, starts at 1, and bias, at 0 */
    bool track_running_stats; /* true; false: always the batch's statistics */
    tn_dtype dtype;
} tn_batch_norm_options;
typedef struct tn_batch_norm_layer {
    tn_module base;
    tn_tensor *weight, *bias;              /* (C) or NULL */
    tn_tensor *running_mean, *running_var; /* buffers (C), f32 (f64 for f64), or NULL */
    tn_tensor *num_batches_tracked;        /* buffer, i64, 0-dimensional, or NULL */
    tn_batch_norm_options options;
    int64_t channels;
    int least, most; /* dimensions of x */
    /* tn_batch_norm_share; or NULL */
    tn_tensor *(*total)(tn_tensor *x, void *user);
    void *user;
} tn_batch_norm_layer;
typedef tn_batch_norm_layer tn_batch_norm1d;
typedef tn_batch_norm_layer tn_batch_norm2d;
typedef tn_batch_norm_layer tn_batch_norm3d;
TN_API tn_batch_norm_options tn_batch_norm_defaults(void);
TN_API void tn_batch_norm1d_init(tn_batch_norm1d *m, int64_t channels,
                                 tn_batch_norm_options options);
TN_API void tn_batch_norm2d_init(tn_batch_norm2d *m, int64_t channels,
                                 tn_batch_norm_options options);
TN_API void tn_batch_norm3d_init(tn_batch_norm3d *m, int64_t channels,
                                 tn_batch_norm_options options);
TN_API tn_batch_norm1d *tn_batch_norm1d_new(int64_t channels);
TN_API tn_batch_norm1d *tn_batch_norm1d_new_with(int64_t channels, tn_batch_norm_options options);
TN_API tn_batch_norm2d *tn_batch_norm2d_new(int64_t channels);
TN_API tn_batch_norm2d *tn_batch_norm2d_new_with(int64_t channels, tn_batch_norm_options options);
TN_API tn_batch_norm3d *tn_batch_norm3d_new(int64_t channels);
TN_API tn_batch_norm3d *tn_batch_norm3d_new_with(int64_t channels, tn_batch_norm_options options);

/* From now on each batch norm in m and below trains with the statistics of more than its own x:
 * `total` makes of a tensor the sum of those of all who share, differentiable (distributed.h:
 * tn_sync_batch_norm). user must live as long. NULL: its own again. */
TN_API tn_status tn_batch_norm_share(void *m, tn_tensor *(*total)(tn_tensor *x, void *user),
                                     void *user);

/* Of each sample, the channels in groups (tn_group_norm_op), or each alone (tn_instance_norm; x as
 * for batch norm). */
typedef struct tn_group_norm {
    tn_module base;
    tn_tensor *weight, *bias; /* (C) or NULL */
    int64_t groups;
    double eps;
} tn_group_norm;
TN_API void tn_group_norm_init(tn_group_norm *m, int64_t groups, int64_t channels,
                               tn_norm_options options);
TN_API tn_group_norm *tn_group_norm_new(int64_t groups, int64_t channels);
TN_API tn_group_norm *tn_group_norm_new_with(int64_t groups, int64_t channels,
                                             tn_norm_options options);
typedef struct tn_instance_norm_layer {
    tn_module base;
    tn_tensor *weight, *bias; /* (C) or NULL */
    double eps;
    int ndim; /* of x; without N one less */
} tn_instance_norm_layer;
typedef tn_instance_norm_layer tn_instance_norm1d;
typedef tn_instance_norm_layer tn_instance_norm2d;
typedef tn_instance_norm_layer tn_instance_norm3d;
/* options.weight and bias are true in tn_norm_defaults; PyTorch's default is false. */
TN_API void tn_instance_norm1d_init(tn_instance_norm1d *m, int64_t channels,
                                    tn_norm_options options);
TN_API void tn_instance_norm2d_init(tn_instance_norm2d *m, int64_t channels,
                                    tn_norm_options options);
TN_API void tn_instance_norm3d_init(tn_instance_norm3d *m, int64_t channels,
                                    tn_norm_options options);
/* PyTorch's defaults: neither weight nor bias. */
TN_API tn_instance_norm1d *tn_instance_norm1d_new(int64_t channels);
TN_API tn_instance_norm1d *tn_instance_norm1d_new_with(int64_t channels, tn_norm_options options);
TN_API tn_instance_norm2d *tn_instance_norm2d_new(int64_t channels);
TN_API tn_instance_norm2d *tn_instance_norm2d_new_with(int64_t channels, tn_norm_options options);
TN_API tn_instance_norm3d *tn_instance_norm3d_new(int64_t channels);
TN_API tn_instance_norm3d *tn_instance_norm3d_new_with(int64_t channels, tn_norm_options options);

/* Pooling (tn_max_pool2d_op and the like): windows, and windows that make a result of a size. */
typedef struct tn_pool {
    tn_module base;
    tn_tensor *(*f)(tn_tensor *x, tn_dims kernel, tn_pool_options options);
    tn_dims kernel;
    tn_pool_options options;
} tn_pool;
typedef tn_pool tn_max_pool1d;
typedef tn_pool tn_max_pool2d;
typedef tn_pool tn_max_pool3d;
typedef tn_pool tn_avg_pool1d;
typedef tn_pool tn_avg_pool2d;
typedef tn_pool tn_avg_pool3d;
TN_API void tn_max_pool1d_init(tn_max_pool1d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_max_pool2d_init(tn_max_pool2d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_max_pool3d_init(tn_max_pool3d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_avg_pool1d_init(tn_avg_pool1d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_avg_pool2d_init(tn_avg_pool2d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_avg_pool3d_init(tn_avg_pool3d *m, tn_dims kernel, tn_pool_options options);
TN_API tn_max_pool1d *tn_max_pool1d_new(int64_t kernel);
TN_API tn_max_pool1d *tn_max_pool1d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_max_pool2d *tn_max_pool2d_new(int64_t kernel);
TN_API tn_max_pool2d *tn_max_pool2d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_max_pool3d *tn_max_pool3d_new(int64_t kernel);
TN_API tn_max_pool3d *tn_max_pool3d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_avg_pool1d *tn_avg_pool1d_new(int64_t kernel);
TN_API tn_avg_pool1d *tn_avg_pool1d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_avg_pool2d *tn_avg_pool2d_new(int64_t kernel);
TN_API tn_avg_pool2d *tn_avg_pool2d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_avg_pool3d *tn_avg_pool3d_new(int64_t kernel);
TN_API tn_avg_pool3d *tn_avg_pool3d_new_with(tn_dims kernel, tn_pool_options options);
typedef struct tn_adaptive_pool {
    tn_module base;
    tn_tensor *(*f)(tn_tensor *x, tn_dims size);
    tn_dims size;
} tn_adaptive_pool;
typedef tn_adaptive_pool tn_adaptive_max_pool1d;
typedef tn_adaptive_pool tn_adaptive_max_pool2d;
typedef tn_adaptive_pool tn_adaptive_max_pool3d;
typedef tn_adaptive_pool tn_adaptive_avg_pool1d;
typedef tn_adaptive_pool tn_adaptive_avg_pool2d;
typedef tn_adaptive_pool tn_adaptive_avg_pool3d;
TN_API void tn_adaptive_max_pool1d_init(tn_adaptive_max_pool1d *m, tn_dims size);
TN_API void tn_adaptive_max_pool2d_init(tn_adaptive_max_pool2d *m, tn_dims size);
TN_API void tn_adaptive_max_pool3d_init(tn_adaptive_max_pool3d *m, tn_dims size);
TN_API void tn_adaptive_avg_pool1d_init(tn_adaptive_avg_pool1d *m, tn_dims size);
TN_API void tn_adaptive_avg_pool2d_init(tn_adaptive_avg_pool2d *m, tn_dims size);
TN_API void tn_adaptive_avg_pool3d_init(tn_adaptive_avg_pool3d *m, tn_dims size);
TN_API tn_adaptive_max_pool1d *tn_adaptive_max_pool1d_new(int64_t size);
TN_API tn_adaptive_max_pool2d *tn_adaptive_max_pool2d_new(int64_t size);
TN_API tn_adaptive_max_pool3d *tn_adaptive_max_pool3d_new(int64_t size);
TN_API tn_adaptive_avg_pool1d *tn_adaptive_avg_pool1d_new(int64_t size);
TN_API tn_adaptive_avg_pool2d *tn_adaptive_avg_pool2d_new(int64_t size);
TN_API tn_adaptive_avg_pool3d *tn_adaptive_avg_pool3d_new(int64_t size);

/* tn_flatten in a sequential: PyTorch's is tn_flatten_new(1, -1). */
typedef struct tn_flatten_layer {
    tn_module base;
    int first, last;
} tn_flatten_layer;
TN_API void tn_flatten_init(tn_flatten_layer *m, int first, int last);
TN_API tn_flatten_layer *tn_flatten_new(int first, int last);
/* Dimension dim becomes several: (N, 12, …) with dim 1 and TN_DIMS(3, 4) -> (N, 3, 4, …). */
typedef struct tn_unflatten_layer {
    tn_module base;
    int dim;
    tn_dims sizes;
} tn_unflatten_layer;
TN_API void tn_unflatten_init(tn_unflatten_layer *m, int dim, tn_dims sizes);
TN_API tn_unflatten_layer *tn_unflatten_new(int dim, tn_dims sizes);
/* Convolutions (ops.h has shapes and options): kernel is one size for all dimensions, TN_DIMS(3),
 * or one for each. One struct for all. */
typedef struct tn_conv {
    tn_module base;
    tn_tensor *weight; /* (out, in / groups, k…); transposed (in, out / groups, k…): U(-b, b) with
                        * b = 1 / sqrt of the product of all sizes but the first */
    tn_tensor *bias;   /* (out): likewise; or NULL */
    tn_conv_options options;
    int spatial; /* 1, 2, 3 dimensions */
    bool transposed;
} tn_conv;
typedef tn_conv tn_conv1d;
typedef tn_conv tn_conv2d;
typedef tn_conv tn_conv3d;
typedef tn_conv tn_conv_transpose1d;
typedef tn_conv tn_conv_transpose2d;
typedef tn_conv tn_conv_transpose3d;
TN_API void tn_conv1d_init(tn_conv1d *m, int64_t in, int64_t out, tn_dims kernel,
                           tn_conv_options options);
TN_API void tn_conv2d_init(tn_conv2d *m, int64_t in, int64_t out, tn_dims kernel,
                           tn_conv_options options);
TN_API void tn_conv3d_init(tn_conv3d *m, int64_t in, int64_t out, tn_dims kernel,
                           tn_conv_options options);
TN_API void tn_conv_transpose1d_init(tn_conv_transpose1d *m, int64_t in, int64_t out,
                                     tn_dims kernel, tn_conv_options options);
TN_API void tn_conv_transpose2d_init(tn_conv_transpose2d *m, int64_t in, int64_t out,
                                     tn_dims kernel, tn_conv_options options);
TN_API void tn_conv_transpose3d_init(tn_conv_transpose3d *m, int64_t in, int64_t out,
                                     tn_dims kernel, tn_conv_options options);
/* The same on the heap:
 *     TN_OWN(net, conv1, tn_conv2d_new(3, 64, TN_DIMS(3), tn_conv_with(1, 1))); */
TN_API tn_conv1d *tn_conv1d_new(int64_t in, int64_t out, tn_dims kernel, tn_conv_options options);
TN_API tn_conv2d *tn_conv2d_new(int64_t in, int64_t out, tn_dims kernel, tn_conv_options options);
TN_API tn_conv3d *tn_conv3d_new(int64_t in, int64_t out, tn_dims kernel, tn_conv_options options);
TN_API tn_conv_transpose1d *tn_conv_transpose1d_new(int64_t in, int64_t out, tn_dims kernel,
                                                    tn_conv_options options);
TN_API tn_conv_transpose2d *tn_conv_transpose2d_new(int64_t in, int64_t out, tn_dims kernel,
                                                    tn_conv_options options);
TN_API tn_conv_transpose3d *tn_conv_transpose3d_new(int64_t in, int64_t out, tn_dims kernel,
                                                    tn_conv_options options);

typedef struct tn_dropout {
    tn_module base;
    double p; /* active while training */
} tn_dropout;
TN_API void tn_dropout_init(tn_dropout *m, double p);
TN_API tn_dropout *tn_dropout_new(double p);

/* ---- Containers ------------------------------------------------------------------------------ */

/* Modules one after the other, each one tensor in and out. Names "0", "1", ….
 *
 *     tn_sequential *net =
 *         TN_SEQUENTIAL(tn_linear_new(784, 128), TN_FN(tn_relu), tn_linear_new(128, 10));
 *     … tn_call(net, x) …
 *     tn_module_free(net); // and what it owns
 */
typedef struct tn_sequential {
    tn_module base;
} tn_sequential;
TN_API void tn_sequential_init(tn_sequential *m);
TN_API tn_sequential *tn_sequential_new(void);
TN_API tn_sequential *tn_sequential_of(void *const *children, int n);
TN_API tn_status tn_sequential_add(tn_sequential *m, void *child);

/* Modules that a forward around them calls: in a loop (tn_module_append, tn_module_at), or by name
 * (tn_module_own, tn_module_child). A list has no forward of its own: calling it is
 * TN_EUNSUPPORTED.
 *
 *     TN_OWN(net, h, tn_module_list_new());                       // "h.0.fc.weight", …
 *     for (int i = 0; i < layers; i++) {
 *         tn_module_append(net->h, block_new(width));
 *     }
 */
typedef struct tn_module_list {
    tn_module base;
} tn_module_list;
TN_API void tn_module_list_init(tn_module_list *m);
TN_API tn_module_list *tn_module_list_new(void);

/* A function as a module (an activation in a sequential). TN_FN(tn_relu) makes one of that kind,
 * "relu", on the heap; TN_FN_WITH(tn_mul_scalar, 0.5) one of a function of x and a number. */
typedef struct tn_function {
    tn_module base;
    tn_tensor *(*f)(tn_tensor *x); /* one of the two */
    tn_tensor *(*f_with)(tn_tensor *x, double number);
    double number;
} tn_function;
TN_API void tn_function_init(tn_function *m, const char *kind, tn_tensor *(*f)(tn_tensor *x));
TN_API tn_function *tn_function_new(const char *kind, tn_tensor *(*f)(tn_tensor *x));
TN_API tn_function *tn_function_new_with(const char *kind,
                                         tn_tensor *(*f)(tn_tensor *x, double number),
                                         double number);
#define TN_FN(f) tn_function_new(#f, (f))
#define TN_FN_WITH(f, number) tn_function_new_with(#f, (f), (number))

/* ---- Recurrent nets -------------------------------------------------------------------------- */

/* Recurrent nets: x (T, B, in), or (B, T, in) with batch_first -> y (T, B, hidden), the last
 * layer's states after each time; (T, B, 2 hidden) with both directions. PyTorch's names:
 * weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, …_l0_reverse, …. Each layer and direction is
 * one operation (tn_lstm_op).
 *
 * With tn_call_values the inputs are x, h0, c0 (lstm's alone) and lengths, all but x NULL or
 * missing, and the results, from two inputs on, y, hn and, of lstm, cn. States are
 * (layers x directions, B, hidden), NULL: zeros. lengths: (B) i64 or i32 in any order: row b has
 * lengths[b] times, as in a packed sequence; y is 0 behind them, the last states are those of the
 * row's last time, and the second direction begins there. tn_rnn_call says the same with a state
 * that goes on from call to call:
 *
 *     tn_rnn_state s = {0};
 *     y = tn_rnn_call(net->lstm, x, &s, NULL);    // s: the first state (NULL: 0), then the last
 */
typedef struct tn_rnn_options {
    int layers;         /* 1 */
    bool bias;          /* true */
    bool batch_first;   /* false */
    double dropout;     /* 0: while training, on what goes from layer to layer */
    bool bidirectional; /* false */
    bool relu;          /* false: tanh; of tn_rnn alone */
    tn_dtype dtype;
} tn_rnn_options;
typedef struct tn_rnn {
    tn_module base;
    tn_rnn_weights *weights; /* (layers x directions): U(-1/sqrt(hidden), 1/sqrt(hidden)) */
    int64_t in, hidden;
    int layers, directions;
    bool batch_first, relu;
    double dropout;
} tn_rnn;
typedef struct tn_rnn tn_gru;
typedef struct tn_rnn tn_lstm;
typedef struct tn_rnn_state {
    tn_tensor *h, *c; /* c: lstm's */
} tn_rnn_state;
TN_API tn_rnn_options tn_rnn_defaults(void);
TN_API void tn_rnn_init(tn_rnn *m, int64_t in, int64_t hidden, tn_rnn_options options);
TN_API void tn_gru_init(tn_gru *m, int64_t in, int64_t hidden, tn_rnn_options options);
TN_API void tn_lstm_init(tn_lstm *m, int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_rnn *tn_rnn_new(int64_t in, int64_t hidden);
TN_API tn_gru *tn_gru_new(int64_t in, int64_t hidden);
TN_API tn_lstm *tn_lstm_new(int64_t in, int64_t hidden);
TN_API tn_rnn *tn_rnn_new_with(int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_gru *tn_gru_new_with(int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_lstm *tn_lstm_new_with(int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_tensor *tn_rnn_call(void *m, tn_tensor *x, tn_rnn_state *state, tn_tensor *lengths);

/* One step: x (B, in), h and c (B, hidden) or NULL -> h', with tn_call, or with tn_call_values,
 * whose inputs are x, h and, of lstm_cell, c, and whose results are h' and, of lstm_cell, c'. Names
 * are PyTorch's: weight_ih, weight_hh, bias_ih, bias_hh. */
typedef struct tn_rnn_cell_options {
    bool bias; /* true */
    bool relu; /* false: tanh; of tn_rnn_cell alone */
    tn_dtype dtype;
} tn_rnn_cell_options;
typedef struct tn_rnn_cell {
    tn_module base;
    tn_rnn_weights weights;
    int64_t in;
    bool relu;
} tn_rnn_cell;
typedef struct tn_rnn_cell tn_gru_cell;
typedef struct tn_rnn_cell tn_lstm_cell;
TN_API tn_rnn_cell_options tn_rnn_cell_defaults(void);
TN_API void tn_rnn_cell_init(tn_rnn_cell *m, int64_t in, int64_t hidden,
                             tn_rnn_cell_options options);
TN_API void tn_gru_cell_init(tn_gru_cell *m, int64_t in, int64_t hidden,
                             tn_rnn_cell_options options);
TN_API void tn_lstm_cell_init(tn_lstm_cell *m, int64_t in, int64_t hidden,
                              tn_rnn_cell_options options);
TN_API tn_rnn_cell *tn_rnn_cell_new(int64_t in, int64_t hidden);
TN_API tn_gru_cell *tn_gru_cell_new(int64_t in, int64_t hidden);
TN_API tn_lstm_cell *tn_lstm_cell_new(int64_t in, int64_t hidden);

/* ---- Attention ------------------------------------------------------------------------------- */

/* Keys and values of earlier positions, so that text can be made one position at a time.
 *
 *     TN_NO_GRAD;
 *     tn_cache_begin(&gpt, (tn_attention_cache_options){.batch = 1, .length = 1024});
 *     ...                                  // each call: the tokens behind those of earlier calls
 *     tn_cache_end(&gpt);
 *
 * begin gives every attention of m and below an empty cache, in place of one that it has. While
 * there is one and nothing is recorded (TN_NO_GRAD), x holds the next T positions, which attend to
 * those before too: masks are then (…, T, S) with S = positions before + T. Another batch, and a
 * position beyond `length`, are TN_EVALUE. rewind keeps the first `filled` positions of each cache
 * (0: empty; more than one holds is TN_EVALUE). end takes NULL, and works while an error is
 * pending. The tensors are made by the first call: no memory is an error there.
 *
 * Sequences of different lengths lie in one batch when the shorter ones are padded on the left: a
 * mask (B, 1, 1, S) that is false at the padding, and positions that begin behind it (models.h). */
typedef struct tn_attention_cache_options {
    int64_t batch;  /* sequences in every call */
    int64_t length; /* most positions */
} tn_attention_cache_options;
typedef struct tn_kv_cache {
    tn_tensor *k, *v;      /* (B, G, length, D) scratch buffers; NULL before the first call */
    int64_t batch, length; /* 0: no cache */
    int64_t filled;        /* positions in it */
} tn_kv_cache;
TN_API tn_status tn_cache_begin(void *m, tn_attention_cache_options options);
TN_API tn_status tn_cache_rewind(void *m, int64_t filled);
TN_API void tn_cache_end(void *m);

/* Self-attention with one projection to q, k, v and one back: x (B, T, C) -> (B, T, C). Names are
 * GPT-2's: c_attn, c_proj. With tn_call_values a second input is a mask: bool, broadcasts to
 * (B, H, T, S), true where a position may be seen; a third, positions, is not looked at. */
typedef struct tn_self_attention_options {
    int heads;
    bool causal;    /* true */
    bool bias;      /* true */
    double dropout; /* 0: on the result */
    tn_dtype dtype;
} tn_self_attention_options;
typedef struct tn_self_attention {
    tn_module base;
    tn_linear c_attn, c_proj;
    tn_dropout drop;
    int heads;
    bool causal;
    tn_kv_cache cache;
} tn_self_attention;
TN_API tn_self_attention_options tn_self_attention_defaults(void);
TN_API void tn_self_attention_init(tn_self_attention *m, int64_t width,
                                   tn_self_attention_options options);

typedef enum tn_activation {
    TN_ACT_GELU,
    TN_ACT_GELU_TANH,
    TN_ACT_RELU,
    TN_ACT_SILU
} tn_activation;

/* c_proj(activation(c_fc(x))): (…, C) -> (…, C). */
typedef struct tn_mlp_options {
    int64_t hidden;           /* 0: 4 width */
    bool bias;                /* true */
    double dropout;           /* 0: on the result */
    tn_activation activation; /* TN_ACT_GELU_TANH */
    tn_dtype dtype;
} tn_mlp_options;
typedef struct tn_mlp {
    tn_module base;
    tn_linear c_fc, c_proj;
    tn_dropout drop;
    tn_activation activation;
} tn_mlp;
TN_API tn_mlp_options tn_mlp_defaults(void);
TN_API void tn_mlp_init(tn_mlp *m, int64_t width, tn_mlp_options options);

/* Self-attention whose heads share keys and values in groups, with rotary positions: x (B, T, C) ->
 * (B, T, C). Names are Llama's: q_proj, k_proj, v_proj, o_proj. Ainslie et al. 2023,
 * arXiv:2305.13245. With tn_call_values a second input is a mask, as in tn_self_attention, and a
 * third are positions, (T) or (B, T), i64 or i32; without them 0, 1, …, or those behind what the
 * cache holds. */
typedef struct tn_grouped_attention_options {
    int heads;          /* 1 */
    int kv_heads;       /* 0: as heads, which must be a multiple of it */
    int64_t head_width; /* 0: width / heads; even */
    bool causal;        /* true */
    bool bias;          /* false */
    tn_rotary_options rotary;
    tn_dtype dtype;
} tn_grouped_attention_options;
typedef struct tn_grouped_attention {
    tn_module base;
    tn_linear q_proj, k_proj, v_proj, o_proj;
    int64_t head_width;
    bool causal;
    tn_rotary_options rotary;
    tn_kv_cache cache;
} tn_grouped_attention;
TN_API tn_grouped_attention_options tn_grouped_attention_defaults(void);
TN_API void tn_grouped_attention_init(tn_grouped_attention *m, int64_t width,
                                      tn_grouped_attention_options options);

/* down_proj(silu(gate_proj(x)) up_proj(x)): (…, C) -> (…, C). Shazeer 2020, arXiv:2002.05202. */
typedef struct tn_gated_mlp_options {
    bool bias; /* false */
    tn_dtype dtype;
} tn_gated_mlp_options;
typedef struct tn_gated_mlp {
    tn_module base;
    tn_linear gate_proj, up_proj, down_proj;
} tn_gated_mlp;
TN_API tn_gated_mlp_options tn_gated_mlp_defaults(void);
TN_API void tn_gated_mlp_init(tn_gated_mlp *m, int64_t width, int64_t hidden,
                              tn_gated_mlp_options options);

/* Attention of the positions of a query to those of a key and a value: query (B, T, C), key
 * (B, S, kdim), value (B, S, vdim) -> (B, T, C). Names are those of PyTorch's MultiheadAttention;
 * the batch comes first, as with its batch_first. Vaswani et al. 2017, arXiv:1706.03762.
 *
 *     y = tn_call(m, x);                                       // self-attention
 *     y = TN_CALL(m, query, key, value);
 *     y = TN_CALL(m, query, key, value, key_padding_mask, mask);
 *
 * Masks are bool and, as in PyTorch and unlike tn_attention's, TRUE WHERE A KEY IS NOT SEEN:
 * key_padding_mask (B, S); mask (T, S), (B heads, T, S) or what broadcasts to (B, heads, T, S).
 * The weights are no result. Where everything is hidden, attention gives zeros (PyTorch: NaN). */
typedef struct tn_multi_head_attention_options {
    double dropout;     /* 0: of the weights */
    bool bias;          /* true */
    int64_t kdim, vdim; /* 0: C */
    bool causal;        /* false; true: query i sees keys up to i + S - T */
    tn_dtype dtype;
} tn_multi_head_attention_options;
typedef struct tn_multi_head_attention {
    tn_module base;
    tn_tensor *in_proj_weight; /* (3 C, C): of query, key and value; NULL where kdim or vdim … */
    tn_tensor *q_proj_weight, *k_proj_weight, *v_proj_weight; /* … differ from C; else these are */
    tn_tensor *in_proj_bias;                                  /* (3 C) or NULL: starts at 0 */
    tn_linear out_proj;
    int heads;
    bool causal;
    double dropout;
} tn_multi_head_attention;
TN_API tn_multi_head_attention_options tn_multi_head_attention_defaults(void);
TN_API void tn_multi_head_attention_init(tn_multi_head_attention *m, int64_t width, int heads,
                                         tn_multi_head_attention_options options);
TN_API tn_multi_head_attention *tn_multi_head_attention_new(int64_t width, int heads);
TN_API tn_multi_head_attention *tn_multi_head_attention_new_with(
    int64_t width, int heads, tn_multi_head_attention_options options);

/* (length, length), true where position i must not see position j > i: a mask for these modules. */
TN_API tn_tensor *tn_causal_mask(int64_t length);

/* (length, width): sin(t r) and cos(t r) beside each other at position t, of rates r from 1 down to
 * about 1/10000 (arXiv:1706.03762, 3.5). To be added to embeddings. */
TN_API tn_tensor *tn_sinusoids(int64_t length, int64_t width, tn_dtype dtype);

/* The encoder and decoder of PyTorch's Transformer, with its parameters' names; the batch comes
 * first. Inputs stand in PyTorch's order; all masks are as above, and may be absent:
 *
 *     encoder: TN_CALL(m, src, mask, src_key_padding_mask)                        (B, S, C)
 *     decoder: TN_CALL(m, tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask,
 *                      memory_key_padding_mask)                                   (B, T, C)
 *     both:    TN_CALL(m, src, tgt, src_mask, tgt_mask, memory_mask, src_key_padding_mask,
 *                      tgt_key_padding_mask, memory_key_padding_mask)             (B, T, C) */
typedef struct tn_transformer_options {
    int64_t hidden;           /* 2048: dim_feedforward */
    double dropout;           /* 0.1 */
    tn_activation activation; /* TN_ACT_RELU */
    double eps;               /* 1e-5: of the norms */
    bool norm_first;          /* false: x = norm(x + f(x)); true: x + f(norm(x)) */
    bool bias;                /* true */
    bool causal;              /* false; true: positions (of the decoder, if there is one) see those
                                 before alone, without a mask */
    bool final_norm;          /* false: of a stack alone; tn_transformer always has both */
    tn_dtype dtype;
} tn_transformer_options;
typedef struct tn_transformer_encoder_layer {
    tn_module base;
    tn_multi_head_attention self_attn;
    tn_linear linear1, linear2;
    tn_layer_norm norm1, norm2;
    tn_dropout dropout, dropout1, dropout2;
    bool norm_first;
    tn_activation activation;
} tn_transformer_encoder_layer;
typedef struct tn_transformer_decoder_layer {
    tn_module base;
    tn_multi_head_attention self_attn, multihead_attn;
    tn_linear linear1, linear2;
    tn_layer_norm norm1, norm2, norm3;
    tn_dropout dropout, dropout1, dropout2, dropout3;
    bool norm_first;
    tn_activation activation;
} tn_transformer_decoder_layer;
typedef struct tn_transformer_encoder {
    tn_module base;
    tn_module_list *layers;
    tn_layer_norm *norm; /* or NULL */
} tn_transformer_encoder;
typedef struct tn_transformer_decoder {
    tn_module base;
    tn_module_list *layers;
    tn_layer_norm *norm; /* or NULL */
} tn_transformer_decoder;
typedef struct tn_transformer {
    tn_module base;
    tn_transformer_encoder *encoder;
    tn_transformer_decoder *decoder;
} tn_transformer;
TN_API tn_transformer_options tn_transformer_defaults(void);
TN_API void tn_transformer_encoder_layer_init(tn_transformer_encoder_layer *m, int64_t width,
                                              int heads, tn_transformer_options options);
TN_API void tn_transformer_decoder_layer_init(tn_transformer_decoder_layer *m, int64_t width,
                                              int heads, tn_transformer_options options);
TN_API void tn_transformer_encoder_init(tn_transformer_encoder *m, int64_t width, int heads,
                                        int layers, tn_transformer_options options);
TN_API tn_transformer_encoder *tn_transformer_encoder_new(int64_t width, int heads, int layers);
TN_API tn_transformer_encoder *tn_transformer_encoder_new_with(int64_t width, int heads, int layers,
                                                               tn_transformer_options options);
TN_API void tn_transformer_decoder_init(tn_transformer_decoder *m, int64_t width, int heads,
                                        int layers, tn_transformer_options options);
TN_API tn_transformer_decoder *tn_transformer_decoder_new(int64_t width, int heads, int layers);
TN_API tn_transformer_decoder *tn_transformer_decoder_new_with(int64_t width, int heads, int layers,
                                                               tn_transformer_options options);
TN_API void tn_transformer_init(tn_transformer *m, int64_t width, int heads, int encoder_layers,
                                int decoder_layers, tn_transformer_options options);
TN_API tn_transformer *tn_transformer_new(int64_t width, int heads, int encoder_layers,
                                          int decoder_layers);
TN_API tn_transformer *tn_transformer_new_with(int64_t width, int heads, int encoder_layers,
                                               int decoder_layers, tn_transformer_options options);

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
static inline tn_sequential *tn__sequential_cxx(std::initializer_list<void *> children) {
    return tn_sequential_of(children.begin(), (int)children.size());
}
#define TN_SEQUENTIAL(...) tn__sequential_cxx({__VA_ARGS__})
#else
#define TN_VALUES(...) \
    ((tn_values){(int)(sizeof((tn_tensor *[]){__VA_ARGS__}) / sizeof(tn_tensor *)), {__VA_ARGS__}})
#define TN_SEQUENTIAL(...)                    \
    tn_sequential_of((void *[]){__VA_ARGS__}, \
                     (int)(sizeof((void *[]){__VA_ARGS__}) / sizeof(void *)))
#endif
#endif
