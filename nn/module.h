/* The internals of a module: what it registered, and its hooks. The public side is tern/module.h.
 *
 * The lists live on the heap and are counted: graphs that will call the module again in backward
 * hold them, and see by `module` whether it is still there. Parents and children refer to each
 * other by their lists: modules belong to the program, which may move or free them. A module that
 * has moved is noticed by its own address (tn__module_of) when it is used, and from then on by all
 * holders of its lists (tn__module_in_place): nn/misuse.c.
 */
#ifndef TERN_NN_MODULE_H
#define TERN_NN_MODULE_H

#include "core/error.h"
#include "tern/nn.h"
#include "tern/sys/tensor.h"

#define TN__MODULE_ALIVE 0x6d6f6475u
#define TN__MODULE_BROKEN 0x6d6f6462u /* building it failed */
#define TN__MODULE_FINISHED 0x6d6f6466u

/* A parameter or buffer as it was registered. */
typedef struct tn__record {
    tn_tensor **field; /* holds one reference of the module; NULL in it: an empty buffer */
    bool buffer, scratch;
    bool tied;       /* shares the tensor of another record */
    bool cut;        /* layout was set */
    bool absent;     /* a parameter that only other ranks have: tn__module_set_absent */
    tn_tensor *lent; /* while the field holds a copy of it in another dtype: the parameter itself */
    tn_tensor *part; /* this rank's part of the parameter, one reference; NULL: the whole */
    tn_layout layout;
    const tn_parts *parts;
    char name[TN_MODULE_NAME];
} tn__record;

typedef struct tn__module_hook {
    tn_hook id;
    bool removed; /* goes when no hook of the module is running */
    tn_module_hooks hooks;
} tn__module_hook;

/* The ranks that see the micro-batches of one round, and which of them this one is. */
typedef struct tn__round {
    int ranks, rank;
} tn__round;

/* How a module is distributed over ranks: the beginning of the strategy's state. */
typedef struct tn__strategy {
    const char *name; /* "data parallelism" */
    tn__round round;
} tn__strategy;

/* What a strategy that splits a model over ranks computes instead of a module; f NULL: none. The
 * state belongs to the code that set the rule. */
typedef struct tn__attend_rule { /* in place of tn_attention, of an attention module */
    tn_tensor *(*f)(void *state, tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                    tn_attention_options options);
    void *state;
} tn__attend_rule;
typedef struct tn__loss_rule { /* in place of tn_lm_loss's cross-entropy, of the whole model */
    /* The loss of all targets, also with TN_NONE. */
    tn_tensor *(*f)(void *state, tn_tensor *logits, tn_tensor *targets,
                    tn_cross_entropy_options options);
    void *state;
    /* From what the model returned, of this rank's positions (B, t, …), that of all, (B, T, …);
     * NULL: a rank has all. */
    tn_tensor *(*join)(void *state, tn_tensor *out);
    int64_t multiple; /* with join: T is one of this */
    bool calling;     /* tn_lm_loss is: the logits are for f, of this rank alone */
    void *sequence; /* the tn_group whose ranks have positions of the same sequences; NULL: none */
} tn__loss_rule;

typedef struct tn__stages_rule { /* of a model whose layers are on several ranks, as stages */
    /* What the last stage's rank has, on all of them; a call of all ranks. Aborts after an error.
     * NULL: each rank has all layers. */
    tn_tensor *(*share)(void *state, tn_tensor *x);
    void *state;
    bool last; /* this rank has the last stage: tn_lm_loss gets the logits here */
} tn__stages_rule;

/* Which parts of a model of parts a call runs: [first, end); end 0: all. A context of
 * tn_call_values begins with it where the module is a tn_sequential or a language model. Its input
 * is then the output of the part before `first`. */
typedef struct tn__range {
    int first, end;
} tn__range;

/* The range for a call of m, which has `parts` parts, from its context (NULL: all). Empty after
 * raising if it is out of range. */
tn__range tn__range_of(const tn_module *m, const void *context, int parts);

struct tn_module_lists {
    int32_t refs;        /* atomic */
    tn_module *module;   /* where it is; NULL once it is finished */
    tn_module_lists *up; /* of the parent; NULL for a root */
    int height;          /* the greatest depth of the tree below it so far */
    const char *kind;
    char name[TN_MODULE_NAME]; /* as in the module */
    tn__record **records;
    tn_module_lists **children;
    tn__module_hook **hooks;
    int record_count, child_count, hook_count;
    int64_t record_capacity, child_capacity, hook_capacity;
    int hooks_running;
    int stepped; /* atomic: how many parameters of the module itself optimisers hold */
    tn_hook last_hook;
    tn__strategy *strategy; /* of a hook of the module, whose free_user frees it; NULL: none */
    tn__attend_rule attend;
    tn__loss_rule loss;
    tn__stages_rule stages;
    const void *split;       /* of tensor parallelism, whose forward the module has then */
    tn_precision *precision; /* the policy that was set here, or NULL */
    tn_kv_cache *cache;      /* of an attention: tn_cache_begin begins it; or NULL */
    bool apart;              /* others' forwards may call it: tn_module_set_apart */
    bool lending;            /* the fields hold the policy's copies: a call is in progress */
    bool unit; /* its parameters exist only while it is called (sharding): it lends its own, after
                  its `before` hooks, not the modules around it */
};

/* m as a module, or NULL after raising: not a module, finished, or moved. */
tn_module *tn__module_of(void *m, const char *operation);

/* Whether a call of m with x would do nothing but run this forward with this weight, and x's device
 * has a kernel of its own for the operation `fused` (TN_FUSED), which may then stand for the call
 * and what follows it. */
bool tn__may_fuse(const tn_module *m, tn_module_forward forward, const tn_tensor *weight,
                  const tn_tensor *x, int fused);

/* ---- Modules that have moved: nn/misuse.c ---------------------------------------------------- */

/* A module in which nothing was registered may move. */
static inline bool tn__module_moved(const tn_module *m) {
    return m->place && m->place != m;
}

/* Notes that the module of this place was seen elsewhere; that it was used here again; and asks
 * whether it, or one around it, was seen elsewhere. */
void tn__module_left(const tn_module *place);
void tn__module_is_back(const tn_module *place);
bool tn__module_has_left(const tn_module_lists *lists);
extern bool tn__modules_moved; /* atomic: some have left and are not back */
static inline bool tn__any_moved(void) {
    return __builtin_expect(__atomic_load_n(&tn__modules_moved, __ATOMIC_RELAXED), false);
}

/* Whether the module of these lists is still where it was: not finished, not seen
 * elsewhere, and not overwritten. (Memory that was freed and not used again looks like a module.)
 */
static inline bool tn__module_is_valid(const tn_module_lists *lists) {
    const tn_module *m = lists->module;
    return m && !(tn__any_moved() && tn__module_has_left(lists)) &&
           (m->state == TN__MODULE_ALIVE || m->state == TN__MODULE_BROKEN) && m->place == m &&
           m->lists == lists;
}

/* The unfinished module of lists, or NULL after raising that it has moved. */
tn_module *tn__module_in_place(tn_module_lists *lists, const char *operation);

/* The outermost module around m, or m itself. NULL after raising that it has moved. */
tn_module *tn__module_root(tn_module *m, const char *operation);

#ifdef TN_DEBUG_TENSORS
/* For a call of m: false after raising that the forward which makes it calls a module that was
 * never added. nn/misuse.c. */
bool tn__module_at_home(tn_module *m);
#else
static inline bool tn__module_at_home(const tn_module *m) {
    return true;
}
#endif

/* Finishes a module without a parent, and frees it if its owner would. */
void tn__module_end(tn_module *m);

/* Begins the init of a layer: `bytes` zeros, then tn_module_init or tn_module_init_values. False
 * after raising (m is NULL). */
bool tn__layer_begin(void *m, size_t bytes, const char *kind, tn_module_forward forward,
                     tn_module_forward_values forward_values);

/* For a layer's tn_…_new, around its init: zeros on the heap, NULL after TN_ENOMEM; and from then
 * on their owner frees them (NULL stays NULL). */
void *tn__layer_alloc(size_t bytes);
/* Whether it made this memory, which was not freed; and frees it. m may be any address. */
bool tn__layer_here(const void *m);
void tn__layer_free(void *m);
void *tn__layer_on_heap(void *m);

/* Defines a function that makes a layer on the heap: `function` is its head, and `init` fills m.
 *
 *     TN__LAYER_HEAP(tn_dropout, tn_dropout_new(double p), tn_dropout_init(m, p))
 */
#define TN__LAYER_HEAP(type, function, init)   \
    type *function {                           \
        type *m = tn__layer_alloc(sizeof(*m)); \
        init;                                  \
        return tn__layer_on_heap(m);           \
    }

/* Defines tn_LAYER_new_with and tn_LAYER_new from tn_LAYER_init, whose last parameter is
 * KIND_options; KIND_defaults are those of tn_LAYER_new. "with" is: with options.
 *
 *     TN__LAYER_NEW(linear, tn_linear, (int64_t in, int64_t out), (in, out))
 */
#define TN__LAYER_NEW(layer, kind, parameters, arguments)                                          \
    TN__LAYER_HEAP(tn_##layer, tn_##layer##_new_with(TN__LIST parameters, kind##_options options), \
                   tn_##layer##_init(m, TN__LIST arguments, options))                              \
    tn_##layer *tn_##layer##_new parameters {                                                      \
        return tn_##layer##_new_with(TN__LIST arguments, kind##_defaults());                       \
    }
#define TN__LIST(...) __VA_ARGS__

/* A linear without a bias whose weight is this tensor, another module's: for a head that is tied to
 * an embedding (tn_module_tie, once both are in one tree). */
void tn__linear_share(tn_linear *m, tn_tensor *weight);

/* Raises "kind: text" about a layer's options and marks it broken: calling it is an error. */
void tn__layer_refuse(void *m, tn_status status, const char *format, ...) TN_PRINTF(3, 4);

/* tn__options_made for a layer: where they are not, m is broken. */
bool tn__layer_options(void *m, bool made, const char *what);

/* The lists of m, made on first use; NULL after TN_ENOMEM. */
tn_module_lists *tn__module_lists(tn_module *m, const char *operation);
/* One more reference: whatever may outlive the module holds its lists and checks lists->module. */
static inline tn_module_lists *tn__module_lists_keep(tn_module_lists *lists) {
    __atomic_fetch_add(&lists->refs, 1, __ATOMIC_RELAXED);
    return lists;
}
void tn__module_lists_release(tn_module_lists *lists);

/* The record at a path below m; NULL when there is none (nothing is raised), or after raising that
 * a child has moved. *owner may be NULL. */
tn__record *tn__module_find(tn_module *m, const char *path, tn_module **owner);

/* Puts `new` in place of a parameter, under all its names in the tree around m. False after raising
 * that a module has moved. */
bool tn__module_exchange(tn_module *m, tn_tensor *old, tn_tensor *new, const char *operation);

/* Which modules of a tree were in training mode. */
typedef struct tn__modes {
    bool *training; /* [count] in the order of tn_module_each_module */
    int64_t count, capacity, restored;
    const char *operation;
} tn__modes;
/* As tn_module_train, until each module gets its own mode back; that is due after an error too.
 * False after raising. */
bool tn__modes_set(void *m, bool training, const char *operation, tn__modes *modes);
void tn__modes_restore(void *m, tn__modes *modes);

/* Removes every hook (the module is finished). */
void tn__module_drop_hooks(tn_module_lists *lists);

/* ---- What others keep with a module: nn/strategy.c ------------------------------------------- */

/* The round of the strategy on m, around or below it; one rank if there is none. */
TN_API tn__round tn__strategy_round(const tn_module *m);
/* The module of lists itself or the nearest around it that has a strategy; NULL: none. */
const tn_module_lists *tn__strategy_around(const tn_module_lists *lists);
/* Calls f for each module in and below lists that has a strategy. */
typedef void (*tn__strategy_visitor)(const tn_module_lists *lists, void *user);
void tn__strategies_below(const tn_module_lists *lists, tn__strategy_visitor f, void *user);

/* The layers of a model at most: more are a mistake, found before memory is taken for them. */
enum { TN__MOST_LAYERS = 10000 };

/* The forward of what is a module for its tensors alone: it has none. */
TN_API tn_tensor *tn__no_forward(tn_module *self, tn_tensor *x);
/* That of a list of modules. */
tn_values tn__list_forward(tn_module *self, tn_values in, void *context);

/* Whether an optimiser holds a parameter of m, perhaps under another name in the tree around m. If
 * so, writes the parameter's path. */
bool tn__module_stepped(tn_module *m, char *path, size_t size);

/* ---- Hooks around a call: nn/hooks.c --------------------------------------------------------- */

tn_values tn__hooks_before(tn_module *m, tn_values in);
tn_values tn__hooks_after(tn_module *m, tn_values in, tn_values out);

/* One recorded call whose module has backward hooks. */
typedef struct tn__watch tn__watch;

/* NULL when no hook asks for backward or nothing is recorded (or after TN_ENOMEM). Puts identity
 * nodes on *in. */
tn__watch *tn__watch_inputs(tn_module *m, tn_values *in);
/* Puts identity nodes on *out and releases watch, which the nodes then hold. NULL is fine. */
void tn__watch_outputs(tn__watch *watch, tn_values *out);

/* ---- Precision around a call: nn/precision.c ------------------------------------------------- */

/* The policy of m: its own, or the nearest of the modules around it; NULL: none. */
const tn_precision *tn__precision_of(const tn_module *m);

/* Whether a call of m on these inputs has nothing to cast and nothing to lend. */
bool tn__precision_idle(const tn_module *m, const tn_values *in);

/* Casts floating inputs. False after raising. */
bool tn__precision_inputs(const tn_module *m, tn_values *in);

/* Puts copies into the fields of m and of what is below it, and the parameters back. `begin`
 * returns true if it did so; then `end` must follow, even after an error; *ok is false after
 * raising. */
bool tn__precision_begin(tn_module *m, bool *ok);
void tn__precision_end(tn_module_lists *lists);

/* Casts the outputs where the policy of m itself says so. */
void tn__precision_outputs(const tn_module *m, tn_values *out);

/* The parameter of a record, whatever its field holds now. */
static inline tn_tensor *tn__record_tensor(const tn__record *record) {
    return record->lent ? record->lent : *record->field;
}
/* What is here between calls: the part or the parameter. */
static inline tn_tensor *tn__record_stored(const tn__record *record) {
    return record->part ? record->part : tn__record_tensor(record);
}

/* Sets what is stored under the record's name. layout NULL: all of the field's tensor. */
void tn__record_set_part(tn__record *record, tn_tensor *part, const tn_layout *layout,
                         const tn_parts *parts);

/* Parameter `path` of m, under all its names, loses its elements, or the recipe it had for them:
 * other ranks have it (stages of a pipeline). Names, shapes, options, tn_module_count and the
 * comparison with weight folders stay; walks skip it unless they ask for tn_walk.absent, so that
 * nothing steps, saves, sends or makes it. TN_ESTATE: an optimiser holds it, a part of it is here,
 * or its module is being called. */
TN_API tn_status tn__module_set_absent(tn_module *m, const char *path);

/* The record of an entry, whose module must still exist. */
tn__record *tn__entry_record(const tn_entry *entry);
static inline tn_tensor *tn__entry_tensor(const tn_entry *entry) {
    return tn__record_tensor(tn__entry_record(entry));
}
static inline tn_tensor *tn__entry_stored(const tn_entry *entry) {
    return tn__record_stored(tn__entry_record(entry));
}

/* Nothing but inert tensors: what a failed call returns. */
tn_values tn__no_values(void);

/* Moves results out of the current scope. */
void tn__return_values(const tn_values *values);

#endif
