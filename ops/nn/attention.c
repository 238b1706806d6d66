/* attention(q, k, v, mask) = softmax(q k^T scale) v
 * (Vaswani et al. 2017, arXiv:1706.03762)
 *
 *     q: (B, H, T, D), k and v: (B, G, S, D), f32 f64 bf16 f16       y: (B, H, T, D)
 *     H a multiple of G: head h reads group h / (H / G)
 *     mask: absent, or bool, broadcasts to (B, H, T, S), true where a key may be seen
 *     causal: query i sees the keys up to i + S - T
 *     P = softmax(…), dP = dy v^T, dS = P (dP - sum(dy y)):
 *     dq = dS k scale        dk = dS^T q scale        dv = P^T dy
 *
 * The kernels go over blocks of keys and save one number per query, lse = log sum exp of its row,
 * from which backward recomputes P block by block: memory is linear in T and S (Dao et al. 2022,
 * arXiv:2205.14135). A query that sees no key gives 0 and has no gradient.
 *
 * Memory order. q, k and v usually are views (B, T, H, D) -> (B, H, T, D) of a projection's rows. y
 * is laid out as (B, T, H, D) too, so that the transpose and reshape to (B, T, H D) that follow are
 * views; dq, dk and dv have the order of their inputs, so that backward needs no copies either. The
 * kernels take any strides.
 */
#include "ops/nn/attention.h"

#include "backends/ref/ref.h"
#include "backends/scratch.h"
#include "ops/dims.h"

#include <math.h>

/* ---- Shared with attention_qkv --------------------------------------------------------------- */

bool tn__attention_mask_fits(const tn_op_call *c, int i, tn_dims scores) {
    const tn_tensor *mask = tn__optional(c, i);
    tn_dims got;
    return !mask ||
           (tn_dims_broadcast(tn_shape(mask), scores, &got) && tn_dims_equal(got, scores)) ||
           tn_op_fail(c, TN_ESHAPE,
                      "mask is %s but must broadcast to (batch, heads, queries, keys) = %s",
                      tn_shape_text(mask), tn__dims_text(scores));
}

/* (B, G, S, D) with each group repeated for the heads that read it: (B, H, S, D). */
static tn_tensor *repeat_groups(tn_tensor *x, int64_t heads) {
    tn_dims d = tn_shape(x);
    if (tn_is_inert(x) || d.size[1] == heads) { return x; }
    tn_tensor *each = tn_expand(
        tn_unsqueeze(x, 2), TN_DIMS(d.size[0], d.size[1], heads / d.size[1], d.size[2], d.size[3]));
    return tn_reshape(each, TN_DIMS(d.size[0], heads, d.size[2], d.size[3]));
}

/* A mask of the visible keys, broadcastable to (B, H, T, S); NULL: all. */
static tn_tensor *seen_keys(tn_device device, tn_tensor *mask, bool causal, int64_t queries,
                            int64_t keys) {
    if (!causal) { return mask; }
    int64_t ahead = keys - queries;
    /* the last key that query i sees */
    tn_tensor *last = tn__arange(device, (double)ahead, (double)(queries + ahead), 1.0, TN_I64);
    tn_tensor *all = tn__arange(device, 0.0, (double)keys, 1.0, TN_I64);
    tn_tensor *past = tn_le(all, tn_unsqueeze(last, 1));
    return mask ? tn_where(mask, past, tn__constant(past, 0.0)) : past;
}

tn_tensor *tn__attention_explicit(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                                  tn_attention_args args) {
    int64_t heads = tn_size(q, 1), queries = tn_size(q, 2), width = tn_size(q, 3),
            keys = tn_size(k, 2);
    double scale = args.scale != 0.0 ? args.scale : width > 0 ? 1.0 / sqrt((double)width) : 1.0;
    q = tn_mul_scalar(q, scale);
    k = repeat_groups(k, heads);
    v = repeat_groups(v, heads);
    tn_tensor *scores = tn_matmul(q, tn_transpose(k, 2, 3)); /* (B, H, T, S) */
    tn_tensor *seen = seen_keys(tn_device_of(q), mask, args.causal, queries, keys);
    if (!seen) { return tn_matmul(tn_softmax(scores, 3), v); }
    /* Not -inf: a row without visible keys is then uniform instead of NaN, and the second where
     * makes it 0. */
    tn_tensor *p = tn_softmax(tn_where(seen, scores, tn__constant(scores, -1e30)), 3);
    return tn_matmul(tn_where(seen, p, tn__constant(scores, 0.0)), v);
}

/* ---- The operation --------------------------------------------------------------------------- */

/* A (B, H, T, D) output whose memory is (B, T, H, D). */
static bool out_by_time(tn_op_call *c, tn_dims d, tn_dtype dtype) {
    if (!tn_op_out(c, d, dtype)) { return false; }
    tn_tensor *y = c->out[c->outputs - 1];
    y->stride[2] = d.size[1] * d.size[3];
    y->stride[1] = d.size[3];
    return true;
}

static bool attention_shape(tn_op_call *c) {
    if (!tn_op_shapes(c, "batch heads queries width, batch groups keys width, "
                         "batch groups keys width, bool: ...")) {
        return false;
    }
    tn_dims q = tn_shape(c->in[0]), k = tn_shape(c->in[1]);
    if (k.size[1] != q.size[1] && (k.size[1] == 0 || q.size[1] % k.size[1] != 0)) {
        return tn_op_fail(c, TN_ESHAPE,
                          "q is %s but k is %s (q's heads, dimension 1, must be a multiple of k's)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    tn_dims scores = TN_DIMS(q.size[0], q.size[1], q.size[2], k.size[2]);
    tn_dtype dtype = tn_dtype_of(c->in[0]);
    return tn__attention_mask_fits(c, 3, scores) && out_by_time(c, q, dtype) &&
           tn_op_out(c, tn_dims_from(3, q.size), tn__wide_dtype(dtype));
}

/* ---- On the host ----------------------------------------------------------------------------- */

/* Where row i of head h in sequence b begins. */
static int64_t row_at(const tn_desc *d, int64_t b, int64_t h, int64_t i) {
    return b * d->stride[0] + h * d->stride[1] + i * d->stride[2];
}

static double dot_rows(const tn_desc *a, int64_t at_a, const tn_desc *b, int64_t at_b) {
    double sum = 0;
    for (int64_t d = 0; d < a->size[3]; d++) {
        sum += load_float(a, at_a + d * a->stride[3]) * load_float(b, at_b + d * b->stride[3]);
    }
    return sum;
}

static bool key_visible(const tn__attention *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (p->causal && j > i + p->k->size[2] - p->q->size[2]) { return false; }
    const tn_desc *mask = p->mask;
    return !mask || load_integer(mask, row_at(mask, b, h, i) + j * mask->stride[3]);
}

static int64_t group_of(const tn__attention *p, int64_t h) {
    return h / (p->q->size[1] / p->k->size[1]);
}

static double key_score(const tn__attention *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return p->scale *
           dot_rows(p->q, row_at(p->q, b, h, i), p->k, row_at(p->k, b, group_of(p, h), j));
}

/* Row i of y; `scores` has space for Tk. */
static void attend_row(const tn__attention *p, int64_t b, int64_t h, int64_t i, double *scores) {
    int64_t keys = p->k->size[2], seen = 0;
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        if (key_visible(p, b, h, i, j)) {
            scores[j] = key_score(p, b, h, i, j);
            max = fmax(max, scores[j]);
            seen++;
        }
    }
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = key_visible(p, b, h, i, j) ? exp(scores[j] - max) : 0;
        sum += scores[j];
    }
    for (int64_t d = 0; d < p->y->size[3]; d++) {
        double value = 0;
        for (int64_t j = 0; j < keys; j++) {
            if (key_visible(p, b, h, i, j)) { /* masked rows may be NaN */
                value += scores[j] *
                         load_float(p->v, row_at(p->v, b, group_of(p, h), j) + d * p->v->stride[3]);
            }
        }
        store_float(p->y, row_at(p->y, b, h, i) + d * p->y->stride[3], seen ? value / sum : 0);
    }
    store_float(p->lse, row_at(p->lse, b, h, i), seen ? max + log(sum) : -INFINITY);
}

static tn_status attention_host(const tn_op_call *c) {
    tn_desc seen;
    const tn__attention p = tn__attention_of(c->x, c->y, c->args, &seen);
    TN__SCRATCH(double, scores, c->ctx, p.k->size[2]);
    if (!scores) { return TN_ENOMEM; }
    for (walk w = walk_over(1, p.lse); w.left > 0; walk_next(&w)) {
        attend_row(&p, w.index[0], w.index[1], w.index[2], scores);
    }
    return TN_OK;
}

static double key_probability(const tn__attention *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return exp(key_score(p, b, h, i, j) - load_float(p->lse, row_at(p->lse, b, h, i)));
}

/* ds[i, j] for probability[i, j] = w. */
static double score_gradient(const tn__attention *p, int64_t b, int64_t h, int64_t i, int64_t j,
                             double w) {
    int64_t at = row_at(p->dy, b, h, i);
    double delta = dot_rows(p->dy, at, p->y, row_at(p->y, b, h, i));
    return w * (dot_rows(p->dy, at, p->v, row_at(p->v, b, group_of(p, h), j)) - delta);
}

/* sum[d] += factor row[d] */
static void add_row(double *sum, double factor, const tn_desc *d, int64_t at) {
    for (int64_t i = 0; i < d->size[3]; i++) {
        sum[i] += factor * load_float(d, at + i * d->stride[3]);
    }
}

static void store_row(const tn_desc *d, int64_t at, double factor, const double *sum) {
    for (int64_t i = 0; i < d->size[3]; i++) {
        store_float(d, at + i * d->stride[3], factor * sum[i]);
    }
}

/* Row i of dq. */
static void query_gradient(const tn__attention *p, const tn_desc *dq, int64_t b, int64_t h,
                           int64_t i, double *sum) {
    memset(sum, 0, (size_t)dq->size[3] * sizeof *sum);
    for (int64_t j = 0; j < p->k->size[2]; j++) {
        if (key_visible(p, b, h, i, j)) {
            double ds = score_gradient(p, b, h, i, j, key_probability(p, b, h, i, j));
            add_row(sum, ds, p->k, row_at(p->k, b, group_of(p, h), j));
        }
    }
    store_row(dq, row_at(dq, b, h, i), p->scale, sum);
}

/* Row j of group g's dk and dv. */
static void key_gradient(const tn__attention *p, const tn_desc *dk, const tn_desc *dv, int64_t b,
                         int64_t g, int64_t j, double *sum_k, double *sum_v) {
    int64_t heads = p->q->size[1] / p->k->size[1];
    memset(sum_k, 0, (size_t)dk->size[3] * sizeof *sum_k);
    memset(sum_v, 0, (size_t)dv->size[3] * sizeof *sum_v);
    for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
        for (int64_t i = 0; i < p->q->size[2]; i++) {
            if (key_visible(p, b, h, i, j)) {
                double w = key_probability(p, b, h, i, j);
                add_row(sum_k, score_gradient(p, b, h, i, j, w), p->q, row_at(p->q, b, h, i));
                add_row(sum_v, w, p->dy, row_at(p->dy, b, h, i));
            }
        }
    }
    store_row(dk, row_at(dk, b, g, j), p->scale, sum_k);
    store_row(dv, row_at(dv, b, g, j), 1, sum_v);
}

static tn_status attention_host_back(const tn_op_back *b) {
    tn_desc seen;
    const tn__attention p = tn__attention_back_of(b, &seen);
    int64_t width = p.q->size[3];
    TN__SCRATCH(double, sums, b->ctx, 2 * width);
    if (!sums) { return TN_ENOMEM; }
    tn_desc query_rows = rows_of(p.dq), key_rows = rows_of(p.dk);
    for (walk w = walk_over(1, &query_rows); w.left > 0; walk_next(&w)) {
        query_gradient(&p, p.dq, w.index[0], w.index[1], w.index[2], sums);
    }
    for (walk w = walk_over(1, &key_rows); w.left > 0; walk_next(&w)) {
        key_gradient(&p, p.dk, p.dv, w.index[0], w.index[1], w.index[2], sums, sums + width);
    }
    return TN_OK;
}

/* ---- Backward, composition, samples ---------------------------------------------------------- */

/* A gradient with the same memory order of heads and positions as its input. */
static tn_tensor *attention_dx_out(tn_op_grad *g, int i, tn_tensor *const *made) {
    tn_tensor *x = tn_op_saved_input(g, i);
    if (tn_is_inert(x)) { return x; }
    tn_tensor *d = tn__new(x->dims, x->dtype, x->storage->device);
    if (!tn_is_inert(d) && x->stride[1] < x->stride[2]) {
        d->stride[2] = d->dims.size[1] * d->dims.size[3];
        d->stride[1] = d->dims.size[3];
    }
    return d;
}

static tn_tensor *attention_compose(tn_op_call *c) {
    const tn_attention_args *args = c->args;
    return tn__attention_explicit(c->in[0], c->in[1], c->in[2], tn__optional(c, 3), *args);
}

/* Two products forward; five backward, which recomputes the scores. */
void tn__attention_work(tn_op_work *w, double queries, double keys, double width, bool causal) {
    double product = 2 * queries * keys * width * (causal ? 0.5 : 1);
    w->flops = product * (w->wants ? 5 : 2);
}

static void attention_work(tn_op_work *w) {
    const tn_attention_args *args = w->args;
    const tn_dims *q = w->x[0], *k = w->x[1];
    tn__attention_work(w, (double)(q->size[0] * q->size[1] * q->size[2]), (double)k->size[2],
                       (double)q->size[3], args->causal && q->size[2] == k->size[2]);
}

const tn_op tn__op_attention = {
    .name = "attention",
    .inputs = {"q", "k", "v", "mask"},
    .args_size = sizeof(tn_attention_args),
    .fields = {TN_FIELD(tn_attention_args, causal), TN_FIELD(tn_attention_args, scale)},
    .optional = 1u << 3,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(0) | TN_SAVES_OUTPUT(1),
    .shape = attention_shape,
    .kernel = TN_FUSED(attention),
    .host = {attention_host, attention_host_back},
    .compose = attention_compose,
    .flags = TN_OP_WIDE | TN_OP_ALL_DX,
    .dx_out = attention_dx_out,
    /* More queries than keys (causal: some see nothing) and fewer; grouped heads; masks that
     * broadcast in each dimension, with two keys so that some rows are empty; a mask that is all
     * false; no queries, no keys; more keys than a block. */
    .samples = "{-1.5:1.5, -1.5:1.5, -1.5:1.5, bool} [2, 2, 3, 4] [2, 2, 3, 4] [2, 2, 3, 4] -; "
               "[1, 2, 3, 4] [1, 2, 5, 4] [1, 2, 5, 4] - scale=0.25; "
               "[2, 2, 4, 3] [2, 2, 4, 3] [2, 2, 4, 3] - causal=True; "
               "[1, 2, 2, 3] [1, 2, 5, 3] [1, 2, 5, 3] - causal=True; "
               "[1, 2, 5, 3] [1, 2, 2, 3] [1, 2, 2, 3] - causal=True, scale=0.5; "
               "[1, 4, 3, 2] [1, 2, 3, 2] [1, 2, 3, 2] -; "
               "[2, 3, 3, 2] [2, 1, 4, 2] [2, 1, 4, 2] - causal=True; "
               "[2, 2, 3, 2] [2, 2, 4, 2] [2, 2, 4, 2] [2, 2, 3, 4]; "
               "[2, 2, 3, 2] [2, 2, 4, 2] [2, 2, 4, 2] [2, 1, 1, 4]; "
               "[2, 2, 3, 2] [2, 1, 3, 2] [2, 1, 3, 2] [3, 3] causal=True; "
               "[2, 2, 4, 3] [2, 2, 2, 3] [2, 2, 2, 3] [2, 1, 4, 2]; "
               "[1, 1, 1, 1] [1, 1, 1, 1] [1, 1, 1, 1] -; "
               "[1, 2, 0, 3] [1, 2, 2, 3] [1, 2, 2, 3] -; "
               "[1, 2, 2, 3] [1, 2, 0, 3] [1, 2, 0, 3] -; "
               "[0, 2, 2, 3] [0, 2, 2, 3] [0, 2, 2, 3] -; "
               "[1, 1, 70, 2] [1, 1, 70, 2] [1, 1, 70, 2] - causal=True; "
               "[1, 1, 2, 9] [1, 1, 67, 9] [1, 1, 67, 9] [2, 67]; "
               "{-1:1, -1:1, -1:1, bool 0:1} [1, 1, 2, 3] [1, 1, 2, 3] [1, 1, 2, 3] [2, 2]",
    .work = attention_work,
};

tn_attention_options tn_attention_defaults(void) {
    return (tn_attention_options){.causal = false, .scale = 0.0, .from_defaults = true};
}

tn_tensor *tn_attention(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                        tn_attention_options options) {
    if (!tn__options_made(options.from_defaults, "attention", "tn_attention")) {
        return tn_inert();
    }
    return tn_apply(&tn__op_attention,
                    &(tn_attention_args){.causal = options.causal, .scale = options.scale},
                    (tn_tensor *[]){q, k, v, mask}, 4);
}
