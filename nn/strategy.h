/* What others keep with a module: how it is distributed over ranks, what is computed in place of
 * it, and whether an optimiser has its parameters. */
#ifndef TERN_NN_STRATEGY_H
#define TERN_NN_STRATEGY_H

#include "tern/nn.h"

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

/* The round of the strategy on m, around or below it; one rank if there is none. */
TN_API tn__round tn__strategy_round(const tn_module *m);
/* The module of lists itself or the nearest around it that has a strategy; NULL: none. */
const tn_module_lists *tn__strategy_around(const tn_module_lists *lists);
/* Calls f for each module in and below lists that has a strategy. */
typedef void (*tn__strategy_visitor)(const tn_module_lists *lists, void *user);
void tn__strategies_below(const tn_module_lists *lists, tn__strategy_visitor f, void *user);

/* Whether an optimiser holds a parameter of m, perhaps under another name in the tree around m. If
 * so, writes the parameter's path. */
bool tn__module_stepped(tn_module *m, char *path, size_t size);

#endif
