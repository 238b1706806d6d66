/* Tensor parallelism: what its files share. The public side is tern/split.h.
 *
 *     tensor.c    attaching: which modules a plan names, what is refused, cutting parameters
 *     styles.c    what each style does in a forward: read it first
 *     loss.c      cross-entropy of logits whose columns are on several ranks
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_TENSOR_H
#define TERN_DISTRIBUTED_PARALLEL_TENSOR_H

#include "distributed/parallel/base.h"
#include "nn/layout.h"
#include "tern/split.h"

/* A module that is cut. Belongs to it: freed with the root's hook. */
typedef struct tn__tp {
    tn_module *root;
    tn_group *group;
    tn_parts links[4]; /* of cut parameters to the ranks with the other blocks, and beyond these …
                        */
    int link_count;    /* … to the other stages of a pipeline, whose chains are three */
    int64_t classes;   /* columns of the logits on all ranks; 0: the plan cuts none */
    bool sequence;     /* as in the options */
    int around;        /* tn__grad_thread.note before the root's call */
    tn__compared compared;
    const tn_tp_rule *plan; /* while attaching, as the places' rules */
    struct tn__tp_place *places;
    int count;
    int64_t capacity;
} tn__tp;

/* A module that a rule names. */
typedef struct tn__tp_place {
    tn__tp *of;
    tn_module *module;
    char *path;
    const tn_tp_rule *rule;
    tn_module_forward forward; /* the module's own, which a style has replaced; or NULL */
    int64_t whole, first;      /* VOCAB, LOGITS: rows on all ranks, and the first of this rank's */
} tn__tp_place;

/* The dimension of the weight that a style cuts, -1: none; and into how many pieces first. */
static inline int tn__tp_cut_dim(tn_tp_style style) {
    bool rows = style == TN_TP_COLUMN || style == TN_TP_VOCAB || style == TN_TP_LOGITS;
    return rows ? 0 : style == TN_TP_ROW ? 1 : -1;
}

static inline int tn__tp_pieces(const tn_tp_rule *rule) {
    return rule->pieces > 1 ? rule->pieces : 1;
}

/* Which of n rows, or columns, a rank of g has: as a layout of one piece cuts them. Rank 0 has no
 * fewer than the others. */
static inline tn__slice tn__tp_slice(const tn_group *g, int rank, int64_t n) {
    tn_layout cut = {
        .whole = TN_DIMS(n), .dim = 0, .pieces = 1, .slice = rank, .slices = tn_group_size(g)};
    return tn__layout_slice(&cut);
}

/* The module computes as its style says from now on. False after raising. */
bool tn__tp_apply(tn__tp_place *place);

/* The hooks of the root, whose free_user frees tp. False after raising; then nothing is freed. */
bool tn__tp_hook_root(tn__tp *tp, void (*free_user)(void *tp));

#endif
