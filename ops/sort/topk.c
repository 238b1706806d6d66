/* y = the positions along dim of x's k largest (smallest) elements, the best first
 *
 *     x: any shape and dtype, with at least k at dim
 *     y: x's shape with k at dim, i64; no gradient
 *
 * Of equal elements the first ones are taken, in order. NaN is the largest number. A heap holds the
 * k best so far, its top the worst of them: most elements are compared with the top only.
 */
#include "ops/sort/sort.h"

static bool comes_before(tn__sort_item a, tn__sort_item b) {
    return a.key < b.key || (a.key == b.key && a.index < b.index);
}

/* heap[0 … n - 1] is a heap except for its top, which sinks into place. */
static void sink_top(tn__sort_item *heap, int64_t top, int64_t n) {
    tn__sort_item item = heap[top];
    for (int64_t child = 2 * top + 1; child < n; child = 2 * top + 1) {
        child += child + 1 < n && comes_before(heap[child], heap[child + 1]);
        if (!comes_before(item, heap[child])) { break; }
        heap[top] = heap[child];
        top = child;
    }
    heap[top] = item;
}

static inline void topk_of(const tn__sort_job *j, tn_dtype dtype, int64_t line,
                           tn__sort_item *heap) {
    int64_t k = j->items, x = tn__line_at(&j->x, line), y = tn__line_at(&j->y, line);
    for (int64_t i = 0; i < k; i++) {
        heap[i] = tn__sort_item_of(j, dtype, x, i);
    }
    for (int64_t i = k / 2 - 1; i >= 0; i--) {
        sink_top(heap, i, k);
    }
    for (int64_t i = k; i < j->x.length; i++) {
        tn__sort_item item = tn__sort_item_of(j, dtype, x, i);
        if (item.key < heap[0].key) { /* of equal ones the earlier is in the heap */
            heap[0] = item;
            sink_top(heap, 0, k);
        }
    }
    for (int64_t left = k; left > 0; left--) { /* the worst one left goes last */
        ((int64_t *)j->y.data)[y + (left - 1) * j->y.step] = heap[0].index;
        heap[0] = heap[left - 1];
        sink_top(heap, 0, left - 1);
    }
}

static void topk_line(const tn__sort_job *j, int64_t line, tn__sort_item *heap) {
    if (j->x.dtype == TN_F32) {
        topk_of(j, TN_F32, line, heap);
    } else {
        topk_of(j, j->x.dtype, line, heap);
    }
}

static bool topk_shape(tn_op_call *c) {
    const tn__topk_args *args = c->args;
    const tn_tensor *x = c->in[0];
    int dim = tn__dim_of_any(x, args->dim, c->op->name);
    if (dim < 0) { return false; }
    tn_dims y = x->dims;
    int64_t size = y.ndim > 0 ? y.size[dim] : 1;
    if (args->k < 0 || args->k > size || (y.ndim == 0 && args->k != 1)) {
        return tn_op_fail(c, TN_EVALUE, "x is %s: there are no %lld elements in dimension %d",
                          tn_shape_text(x), (long long)args->k, dim);
    }
    if (y.ndim > 0) { y.size[dim] = args->k; }
    return tn_op_out(c, y, TN_I64);
}

static tn_status topk_host(const tn_op_call *c) {
    const tn__topk_args *args = c->args;
    int dim = tn__dim_from_start(args->dim, c->x[0]->ndim);
    tn__sort_job j = {.x = tn__lines_along(c->x[0], dim),
                      .y = tn__lines_along(c->y[0], dim),
                      .descending = args->largest,
                      .items = args->k};
    return tn__sort_lines(c, &j, topk_line);
}

const tn_op tn__op_topk = {
    .name = "topk",
    .inputs = {"x"},
    .args_size = sizeof(tn__topk_args),
    .fields = {TN_FIELD(tn__topk_args, k), TN_FIELD(tn__topk_args, dim),
               TN_FIELD(tn__topk_args, largest)},
    .shape = topk_shape,
    .kernel = TN_FUSED(topk),
    .host = {.forward = topk_host},
    .samples = "{distinct -3:3} [7] k=3, dim=0, largest=True; [3, 4] k=2, dim=-1, largest=False; "
               "[2, 5, 4] k=3, dim=1, largest=True; "
               "[6]=(1, nan, -1, 3, inf, 2) k=4, dim=0, largest=True; "
               "[6]=(1, nan, -1, 3, inf, 2) k=6, dim=0, largest=False; "
               "[3, 4] k=0, dim=0, largest=True; [0, 3] k=2, dim=1, largest=True; "
               "[1] k=1, dim=0, largest=True; [] k=1, dim=-1, largest=True; "
               "[3, 300] k=50, dim=1, largest=True",
};

/* The elements at those positions. */
tn_tensor *tn_topk(tn_tensor *x, int64_t k, int dim, bool largest, tn_tensor **index) {
    tn_tensor *best = tn_apply1(&tn__op_topk, &(tn__topk_args){k, dim, largest}, x);
    if (index) { *index = best; }
    if (tn_is_inert(best)) { return tn_inert(); }
    return tn_ndim(x) == 0 ? tn_identity(x) : tn_gather(x, dim, best);
}
