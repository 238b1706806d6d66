/* Attention: y = softmax(scale q k^T, masked) v, and its gradients.
 * No Tq x Tk matrix exists anywhere.
 *
 *     q, y, dq (B, H, Tq, D)       k, v, dk, dv (B, G, Tk, D)       lse (B, H, Tq)
 *     s[i, j] = scale q[i] . k[j]            lse[i] = log sum over visible j of exp(s[i, j])
 *     p[i, j] = exp(s[i, j] - lse[i])        y[i] = sum over j of p[i, j] v[j]
 *
 * Backward recomputes p from lse. With delta[i] = dy[i] . y[i] and ds[i, j] = p[i, j] (dy[i] . v[j]
 * - delta[i]):
 *
 *     dq[i] = scale sum over j of ds[i, j] k[j]
 *     dk[j] = scale sum over heads of the group, and over i, of ds[i, j] q[i]
 *     dv[j] =       sum over heads of the group, and over i, of p[i, j] dy[i]
 *
 * (The recomputation is that of Rabe and Staats 2021, arXiv:2112.05682; Dao et al. 2022,
 * arXiv:2205.14135.)
 */
#include "backends/ref/ref.h"

/* Where row i of head h of sequence b begins. */
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

/* One attention call; what backward does not have yet is NULL in forward. */
typedef struct problem {
    const tn_desc *q, *k, *v, *y, *dy, *lse;
    const tn_attention_args *args;
} problem;

static bool key_visible(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (p->args->causal && j > i + p->k->size[2] - p->q->size[2]) {
        return false;
    }
    const tn_desc *mask = p->args->mask;
    return !mask || load_integer(mask, row_at(mask, b, h, i) + j * mask->stride[3]);
}

static int64_t group_of(const problem *p, int64_t h) {
    return h / (p->q->size[1] / p->k->size[1]);
}

static double key_score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return p->args->scale *
           dot_rows(p->q, row_at(p->q, b, h, i), p->k, row_at(p->k, b, group_of(p, h), j));
}

static bool all_floats(int count, const tn_desc *const *d) {
    for (int i = 0; i < count; i++) {
        if (!is_float(d[i]->dtype)) {
            return false;
        }
    }
    return true;
}

/* Row i of y; `scores` has room for Tk. */
static void attend_row(const problem *p, int64_t b, int64_t h, int64_t i, double *scores) {
    int64_t keys = p->k->size[2], seen = 0;
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        if (key_visible(p, b, h, i, j)) {
            scores[j] = key_score(p, b, h, i, j);
            most = fmax(most, scores[j]);
            seen++;
        }
    }
    for (int64_t j = 0; j < keys; j++) {
        scores[j] = key_visible(p, b, h, i, j) ? exp(scores[j] - most) : 0;
        sum += scores[j];
    }
    for (int64_t d = 0; d < p->y->size[3]; d++) {
        double value = 0;
        for (int64_t j = 0; j < keys; j++) {
            if (key_visible(p, b, h, i, j)) { /* what is masked may be NaN */
                value += scores[j] *
                         load_float(p->v, row_at(p->v, b, group_of(p, h), j) + d * p->v->stride[3]);
            }
        }
        store_float(p->y, row_at(p->y, b, h, i) + d * p->y->stride[3], seen ? value / sum : 0);
    }
    store_float(p->lse, row_at(p->lse, b, h, i), seen ? most + log(sum) : -INFINITY);
}

tn_status tn__ref_attention(tn_context *ctx, const tn_desc *y, const tn_desc *lse, const tn_desc *q,
                            const tn_desc *k, const tn_desc *v, const tn_attention_args *args) {
    if (!all_floats(5, (const tn_desc *[]){y, lse, q, k, v})) {
        return TN_EUNSUPPORTED;
    }
    problem p = {.q = q, .k = k, .v = v, .y = y, .lse = lse, .args = args};
    size_t bytes = (size_t)(k->size[2] + 1) * sizeof(double);
    double *scores = ctx->workspace(ctx, bytes);
    if (!scores) {
        return TN_ENOMEM;
    }
    for (walk w = walk_over(1, lse); w.left > 0; walk_next(&w)) {
        attend_row(&p, w.index[0], w.index[1], w.index[2], scores);
    }
    ctx->workspace_free(ctx, scores, bytes);
    return TN_OK;
}

static double key_probability(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    return exp(key_score(p, b, h, i, j) - load_float(p->lse, row_at(p->lse, b, h, i)));
}

/* ds[i, j] for probability[i, j] = w. */
static double score_gradient(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j,
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
static void query_gradient(const problem *p, const tn_desc *dq, int64_t b, int64_t h, int64_t i,
                           double *sum) {
    memset(sum, 0, (size_t)dq->size[3] * sizeof *sum);
    for (int64_t j = 0; j < p->k->size[2]; j++) {
        if (key_visible(p, b, h, i, j)) {
            double ds = score_gradient(p, b, h, i, j, key_probability(p, b, h, i, j));
            add_row(sum, ds, p->k, row_at(p->k, b, group_of(p, h), j));
        }
    }
    store_row(dq, row_at(dq, b, h, i), p->args->scale, sum);
}

/* Row j of dk and dv of group g. */
static void key_gradient(const problem *p, const tn_desc *dk, const tn_desc *dv, int64_t b,
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
    store_row(dk, row_at(dk, b, g, j), p->args->scale, sum_k);
    store_row(dv, row_at(dv, b, g, j), 1, sum_v);
}

tn_status tn__ref_attention_backward(tn_context *ctx, const tn_desc *dq, const tn_desc *dk,
                                     const tn_desc *dv, const tn_desc *dy, const tn_desc *y,
                                     const tn_desc *lse, const tn_desc *q, const tn_desc *k,
                                     const tn_desc *v, const tn_attention_args *args) {
    if (!all_floats(9, (const tn_desc *[]){dq, dk, dv, dy, y, lse, q, k, v})) {
        return TN_EUNSUPPORTED;
    }
    problem p = {.q = q, .k = k, .v = v, .y = y, .dy = dy, .lse = lse, .args = args};
    int64_t width = q->size[3];
    size_t bytes = (size_t)(2 * width + 1) * sizeof(double);
    double *sums = ctx->workspace(ctx, bytes);
    if (!sums) {
        return TN_ENOMEM;
    }
    tn_desc query_rows = rows_of(dq), key_rows = rows_of(dk);
    for (walk w = walk_over(1, &query_rows); w.left > 0; walk_next(&w)) {
        query_gradient(&p, dq, w.index[0], w.index[1], w.index[2], sums);
    }
    for (walk w = walk_over(1, &key_rows); w.left > 0; walk_next(&w)) {
        key_gradient(&p, dk, dv, w.index[0], w.index[1], w.index[2], sums, sums + width);
    }
    ctx->workspace_free(ctx, sums, bytes);
    return TN_OK;
}
