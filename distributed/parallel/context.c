/* Context parallelism: each rank computes with some positions of every sequence.
 *
 *     tokens (B, T)      the root's hook: this rank's t = T / N of them, and their positions
 *     embedding … MLP    each position alone: nothing to do
 *     attention          by heads: (B, H, t, D) of each rank's positions <-> (B, H / N, T, D)
 *                        by keys:  queries of blocks r and 2 N - 1 - r of 2 N; all ranks' keys
 *     loss               of this rank's positions, summed over the ranks
 *
 * Keys stay in the order of positions, so that sums are added as on one rank. Block j of b queries
 * sees j b^2 + b (b + 1) / 2 keys under the causal rule, so each pair sees equally many.
 */
#include "distributed/group/agree.h"
#include "core/memory.h"
#include "distributed/parallel/base.h"
#include "models/language.h"
#include "nn/attention.h"
#include "nn/cache.h"
#include "ops/op.h"
#include "tern/split.h"

#include <stdlib.h>
#include <string.h>

static const tn__parallel_rules context_rules = {.operation = "context_parallel", .deferred = true};

typedef struct splitting { /* the root's hook owns it */
    tn_group *group;
    tn_cp_kind kind;
    const tn__lm_family *family;
    tn__loss_rule inner; /* of tensor parallelism; f NULL: tn_cross_entropy_with */
    bool fits;           /* the model was checked, so its modules may be set */
    tn__compared compared;
    bool whole; /* the root's last call: caches are open, so nothing is split */
} splitting;

/* The number of blocks into which positions are cut. */
static int context_blocks(const tn_group *cp, tn_cp_kind kind) {
    int ranks = tn_group_size(cp);
    return kind == TN_CP_KEYS && ranks > 1 ? 2 * ranks : ranks;
}

tn_tensor *tn_context_slice(tn_group *cp, tn_cp_kind kind, tn_tensor *x, int dim) {
    static const char operation[] = "context_slice";
    int ranks = tn_group_size(cp), blocks = context_blocks(cp, kind);
    int at = tn__usable(x, operation) ? tn__dim(x, dim, operation) : -1;
    if (at >= 0 && (tn_group_rank(cp) < 0 || tn_size(x, at) % blocks != 0)) {
        tn__raise(TN_ESHAPE, operation, "x is %s: rank %d of %d needs a multiple of %d in dim %d",
                  tn_shape_text(x), tn_group_rank(cp), ranks, blocks, at);
    } else if ((unsigned)kind > TN_CP_KEYS) {
        tn__raise(TN_EVALUE, operation, "the kind is %d (TN_CP_HEADS or TN_CP_KEYS)", (int)kind);
    }
    if (at < 0 || tn__pending()) {
        tn_group_abort(cp, tn_error_message());
        return tn_inert();
    }
    int64_t b = tn_size(x, at) / blocks, rank = tn_group_rank(cp);
    tn_tensor *block = tn_narrow(x, at, rank * b, b);
    return blocks > ranks ? TN_CAT(at, block, tn_narrow(x, at, (blocks - 1 - rank) * b, b)) : block;
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Heads (3), rows (2) or columns (1) of a mask; where its size is 1, or it lacks the dimension, it
 * is for all. */
static tn_tensor *mask_part(tn_tensor *mask, int from_end, int64_t start, int64_t length) {
    int dim = mask ? tn_ndim(mask) - from_end : -1;
    return dim < 0 || tn_size(mask, dim) == 1 ? mask : tn_narrow(mask, dim, start, length);
}

/* (n, m, …) -> (n m, …), and then (T, B, H, D) -> (B, H, T, D): views. */
static tn_tensor *positions_inside(tn_tensor *x) {
    tn_dims d = tn_shape(x);
    x = tn_reshape(x, TN_DIMS(d.size[0] * d.size[1], d.size[2], d.size[3], d.size[4]));
    return tn_permute(x, TN_DIMS(1, 2, 0, 3));
}

/* q, k or v (B, H, t, D) -> (N, t, B, H / N, D): what each rank gets. */
static tn_tensor *split_heads(tn_tensor *x, int ranks) {
    tn_dims d = tn_shape(x);
    tn_dims apart = TN_DIMS(d.size[0], ranks, d.size[1] / ranks, d.size[2], d.size[3]);
    return tn_permute(tn_reshape(x, apart), TN_DIMS(1, 3, 0, 2, 4));
}

/* (B, H / N, T, D) of this rank's heads -> (B, H, t, D) of its positions. Memory is (B, t, H, D),
 * as tn_attention's, so that what follows is a view. */
static tn_tensor *join_heads(tn_group *g, tn_tensor *y) {
    tn_dims d = tn_shape(y);
    int64_t ranks = tn_group_size(g), t = d.size[2] / ranks;
    y = tn_reshape(y, TN_DIMS(d.size[0], d.size[1], ranks, t, d.size[3]));
    y = tn_dist_all_to_all(g, tn_permute(y, TN_DIMS(2, 0, 3, 1, 4))); /* (N, B, t, H / N, D) */
    y = tn_permute(y, TN_DIMS(1, 2, 0, 3, 4));
    return tn_transpose(tn_reshape(y, TN_DIMS(d.size[0], t, ranks * d.size[1], d.size[3])), 1, 2);
}

static tn_tensor *attend_heads(tn_group *g, tn_tensor *q, tn_tensor *k, tn_tensor *v,
                               tn_tensor *mask, tn_attention_options options) {
    int n = tn_group_size(g);
    int64_t h = tn_size(q, 1) / n, kv = tn_size(k, 1) / n;
    tn_tensor *mine = TN_CAT(3, split_heads(q, n), split_heads(k, n), split_heads(v, n));
    tn_tensor *all = positions_inside(tn_dist_all_to_all(g, mine)); /* (B, h + 2 kv, T, D) */
    mask = mask_part(mask, 3, tn_group_rank(g) * h, h);
    return join_heads(g, tn_attention(tn_narrow(all, 1, 0, h), tn_narrow(all, 1, h, kv),
                                      tn_narrow(all, 1, h + kv, kv), mask, options));
}

/* x (t, …) of this rank -> all ranks' in the order of positions, (n, m, …) with n m = T. */
static tn_tensor *gather_positions(tn_group *g, tn_cp_kind kind, tn_tensor *x) {
    tn_tensor *all = tn_dist_all_gather(g, x);
    if (kind == TN_CP_HEADS) { return all; }
    int64_t b = tn_size(x, 0) / 2; /* of each rank an early block and a late one */
    tn_tensor *late = tn_flip(tn_narrow(all, 1, b, b), TN_DIMS(0));
    return TN_CAT(0, tn_narrow(all, 1, 0, b), late);
}

/* k and v (B, G, t, D) of this rank -> (B, 2 G, T, D) */
static tn_tensor *gather_keys(tn_group *g, tn_tensor *k, tn_tensor *v) {
    tn_dims order = TN_DIMS(2, 0, 1, 3);
    tn_tensor *mine = TN_CAT(2, tn_permute(k, order), tn_permute(v, order)); /* (t, B, 2 G, D) */
    return positions_inside(gather_positions(g, TN_CP_KEYS, mine));
}

static tn_tensor *attend_keys(tn_group *g, tn_tensor *q, tn_tensor *k, tn_tensor *v,
                              tn_tensor *mask, tn_attention_options options) {
    int64_t b = tn_size(q, 2) / 2, kv = tn_size(k, 1), rank = tn_group_rank(g);
    int64_t starts[] = {rank * b, (2 * tn_group_size(g) - 1 - rank) * b};
    tn_tensor *all = gather_keys(g, k, v), *y[2];
    k = tn_narrow(all, 1, 0, kv);
    v = tn_narrow(all, 1, kv, kv);
    for (int i = 0; i < 2; i++) {
        /* the causal rule lets the last query see the last key */
        int64_t seen = options.causal ? starts[i] + b : tn_size(all, 2);
        tn_tensor *part = mask_part(mask_part(mask, 2, starts[i], b), 1, 0, seen);
        y[i] = tn_attention(tn_narrow(q, 2, i * b, b), tn_narrow(k, 2, 0, seen),
                            tn_narrow(v, 2, 0, seen), part, options);
        y[i] = tn_transpose(y[i], 1, 2);
    }
    return tn_transpose(tn_cat(y, 2, 1), 1, 2); /* memory is (B, t, H, D) here too */
}

static tn_tensor *attend_split(void *state, tn_tensor *q, tn_tensor *k, tn_tensor *v,
                               tn_tensor *mask, tn_attention_options options) {
    const splitting *s = state;
    if ((s->whole && !tn_in_recompute()) || tn__pending()) {
        return tn_attention(q, k, v, mask, options);
    }
    return s->kind == TN_CP_KEYS ? attend_keys(s->group, q, k, v, mask, options)
                                 : attend_heads(s->group, q, k, v, mask, options);
}

/* ---- Around the whole model ------------------------------------------------------------------ */

/* Takes this rank's positions of tokens (B, T). A later stage's input, (B, t, C), has only these
 * already. */
static tn_values begin_call(tn_module *m, tn_values in, void *user) {
    splitting *s = user;
    s->whole = tn__cache_open(s->family->cache(m));
    if (s->whole || in.n < 1 || !in.v[0] || tn_ndim(in.v[0]) < 2) { return in; }
    bool tokens = tn_ndim(in.v[0]) == 2;
    if (in.n < 2 || !in.v[1]) {
        int64_t T = tn_size(in.v[0], 1) * (tokens ? 1 : tn_group_size(s->group));
        in.v[1] = tn__lm_positions(m, in.v[0], 0, T, s->family->shape(m).context);
    }
    in.n = in.n < 2 ? 2 : in.n;
    const tn_tensor *whole = in.v[0];
    in.v[0] = tokens ? tn_context_slice(s->group, s->kind, in.v[0], 1) : in.v[0];
    in.v[1] = tn_context_slice(s->group, s->kind, in.v[1], -1);
    if (!tn__pending()) {
        tn__parallel_same_input(s->group, whole, m, &s->compared, context_rules.operation);
    }
    return in;
}

/* An error on one rank, such as a token outside the vocabulary, would leave the others waiting in
 * attention. */
static tn_values end_call(tn_module *m, tn_values in, tn_values out, void *user) {
    const splitting *s = user;
    if (tn__pending() && !s->whole) { tn_group_abort(s->group, tn_error_message()); }
    return out;
}

/* (B, t, …) -> (B, T, …) */
static tn_tensor *join_positions(void *state, tn_tensor *x) {
    const splitting *s = state;
    if (s->whole || !tn__usable(x, context_rules.operation)) { return x; }
    x = gather_positions(s->group, s->kind, tn_transpose(x, 0, 1));
    return tn_transpose(tn_flatten(x, 0, 1), 0, 1);
}

/* The mean over the rows of all ranks, which every rank counts in the whole targets; or with
 * TN_NONE all rows. In backward its gradient arrives N times, once from each rank, and is averaged
 * over cp with the parameters' gradients. */
static tn_tensor *loss_of_all(void *state, tn_tensor *logits, tn_tensor *targets,
                              tn_cross_entropy_options options) {
    const splitting *s = state;
    bool rows = options.reduction == TN_NONE;
    options.reduction = s->whole || rows ? options.reduction : TN_SUM;
    tn_tensor *mine = s->whole ? targets : tn_context_slice(s->group, s->kind, targets, -1);
    tn_tensor *loss = s->inner.f ? s->inner.f(s->inner.state, logits, mine, options)
                                 : tn_cross_entropy_with(logits, mine, options);
    if (s->whole || rows) { return s->whole ? loss : join_positions(state, loss); }
    tn_tensor *counts = tn_ne_scalar(targets, (double)options.ignore_index);
    tn_tensor *valid = tn_sum_all(tn_cast(counts, tn_dtype_of(loss)));
    return tn_dist_all_reduce(s->group, tn_div(loss, valid));
}

/* ---- Attaching ------------------------------------------------------------------------------- */

/* A module with a cache is an attention. A first walk checks all of them, a second sets them. */
static bool visit_attention(tn_module *m, const char *path, void *user) {
    splitting *s = user;
    if (!m->lists || !m->lists->cache) { return true; }
    if (s->fits) {
        m->lists->attend = (tn__attend_rule){.f = attend_split, .state = s};
    } else if (m->lists->attend.f) {
        tn__raise(TN_ESTATE, context_rules.operation, "%s is split already", path);
    } else if (s->kind == TN_CP_HEADS) {
        tn__parallel_divides(s->group, tn__kv_heads(m), "heads of keys and values", path,
                             "; with TN_CP_KEYS any number", context_rules.operation);
    }
    return !tn__pending();
}

/* All ranks have agreed. False after raising. */
static bool split_positions(tn_module *m, const splitting *fit) {
    splitting *s = tn__calloc_for(1, sizeof(*s), context_rules.operation);
    tn_module_hooks hooks = {.before = begin_call, .after = end_call, .user = s, .free_user = free};
    if (!s || !tn_module_hook(m, hooks)) {
        free(s);
        return false;
    }
    *s = *fit;
    s->inner = m->lists->loss;
    m->lists->loss = (tn__loss_rule){.f = loss_of_all,
                                     .state = s,
                                     .join = join_positions,
                                     .multiple = context_blocks(s->group, s->kind),
                                     .sequence = s->group};
    s->fits = true;
    tn_module_each_module(m, visit_attention, s);
    return true;
}

tn_status tn_context_parallel(void *m, tn_group *cp, tn_cp_kind kind) {
    const char *operation = context_rules.operation;
    if (!tn__agree_begin(cp, operation)) { return tn_error(); }
    splitting fit = {.group = cp, .kind = kind};
    if ((unsigned)kind > TN_CP_KEYS) {
        tn__raise(TN_EVALUE, operation, "the kind is %d (TN_CP_HEADS or TN_CP_KEYS)", (int)kind);
    } else if (tn__parallel_may_attach(m, cp, &context_rules)) {
        fit.family = tn__lm_family_of(m, operation);
    }
    const char *text = kind == TN_CP_KEYS ? "keys" : "heads";
    if (tn__parallel_make_same(m, cp, NULL, &context_rules, text)) {
        tn_module_each_module(m, visit_attention, &fit); /* the same on all ranks */
    }
    if (!tn__pending() && tn_group_size(cp) > 1 && !split_positions(m, &fit)) {
        tn_group_abort(cp, tn_error_message());
    }
    return tn_error();
}
