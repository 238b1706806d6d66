/* y = the indices along dim that sort x
 *
 *     x: any shape and dtype       y: x's shape, i64; no gradient
 *
 * Stable: equal elements keep their order, even if descending. NaN is the largest number, and equal
 * to itself. Sorted by digits of 8 bits from the last to the first; digits that all elements share,
 * such as most of a small integer's, are skipped.
 */
#include "ops/sort/sort.h"

#include "backends/scratch.h"

#include <string.h>

enum { FEW = 32, DIGITS = 8, RADIX = 256, AT_ONCE = 1 << 18 };

/* ---- Lines ----------------------------------------------------------------------------------- */

typedef struct line_pieces {
    const tn__sort_job *job;
    tn__sort_line *line;
} line_pieces;

static void run_lines(const void *user, int64_t first, int64_t end) {
    const line_pieces *p = user;
    for (int64_t i = first; i < end; i++) {
        p->line(p->job, p->job->first + i, p->job->buffers + i * p->job->items);
    }
}

tn_status tn__sort_lines(const tn_op_call *c, tn__sort_job *j, tn__sort_line *line) {
    int64_t batch = AT_ONCE / (j->items + 1) + 1;
    batch = batch < j->x.count ? batch : j->x.count;
    if (batch * j->items == 0) { return TN_OK; }
    TN__SCRATCH(tn__sort_item, buffers, c->ctx, batch * j->items);
    if (!buffers) { return TN_ENOMEM; }
    j->buffers = buffers;
    line_pieces pieces = {j, line};
    for (j->first = 0; j->first < j->x.count; j->first += batch) {
        int64_t left = j->x.count - j->first;
        /* each element is read, keyed and moved, about ten accesses */
        tn__host_pieces(left < batch ? left : batch, 10 * j->x.length, run_lines, &pieces);
    }
    return TN_OK;
}

/* ---- Sorting --------------------------------------------------------------------------------- */

static void insert_items(tn__sort_item *a, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        tn__sort_item item = a[i];
        int64_t k = i;
        for (; k > 0 && a[k - 1].key > item.key; k--) {
            a[k] = a[k - 1];
        }
        a[k] = item;
    }
}

static inline int digit_of(tn__sort_item item, int digit) {
    return (int)(item.key >> (8 * digit) & (RADIX - 1));
}

/* Sorts a; the result is in a or in spare, whichever it returns. */
static tn__sort_item *sort_items(tn__sort_item *a, tn__sort_item *spare, int64_t n) {
    if (n <= FEW) {
        insert_items(a, n);
        return a;
    }
    int64_t count[DIGITS][RADIX];
    memset(count, 0, sizeof count);
    for (int64_t i = 0; i < n; i++) {
        for (int d = 0; d < DIGITS; d++) {
            count[d][digit_of(a[i], d)]++;
        }
    }
    for (int d = 0; d < DIGITS; d++) {
        if (count[d][digit_of(a[0], d)] == n) { continue; }
        int64_t place[RADIX], sum = 0;
        for (int k = 0; k < RADIX; k++) {
            place[k] = sum;
            sum += count[d][k];
        }
        for (int64_t i = 0; i < n; i++) {
            spare[place[digit_of(a[i], d)]++] = a[i];
        }
        tn__sort_item *sorted = spare;
        spare = a;
        a = sorted;
    }
    return a;
}

static void argsort_line(const tn__sort_job *j, int64_t line, tn__sort_item *buffer) {
    int64_t n = j->x.length, x = tn__line_at(&j->x, line), y = tn__line_at(&j->y, line);
    for (int64_t k = 0; k < n; k++) {
        buffer[k] = tn__sort_item_of(j, j->x.dtype, x, k);
    }
    const tn__sort_item *sorted = sort_items(buffer, buffer + n, n);
    for (int64_t k = 0; k < n; k++, y += j->y.step) {
        ((int64_t *)j->y.data)[y] = sorted[k].index;
    }
}

/* ---- The operation --------------------------------------------------------------------------- */

static bool argsort_shape(tn_op_call *c) {
    const tn_tensor *x = c->in[0];
    int dim = tn__dim_of_any(x, ((const tn__argsort_args *)c->args)->dim, c->op->name);
    return dim >= 0 && tn_op_out(c, x->dims, TN_I64);
}

static tn_status argsort_host(const tn_op_call *c) {
    const tn__argsort_args *args = c->args;
    int dim = tn__dim_from_start(args->dim, c->x[0]->ndim);
    tn__sort_job j = {.x = tn__lines_along(c->x[0], dim),
                      .y = tn__lines_along(c->y[0], dim),
                      .descending = args->descending};
    j.items = 2 * j.x.length;
    return tn__sort_lines(c, &j, argsort_line);
}

const tn_op tn__op_argsort = {
    .name = "argsort",
    .inputs = {"x"},
    .args_size = sizeof(tn__argsort_args),
    .fields = {TN_FIELD(tn__argsort_args, dim), TN_FIELD(tn__argsort_args, descending)},
    .shape = argsort_shape,
    .kernel = TN_FUSED(argsort),
    .host = {.forward = argsort_host},
    /* Ties, NaN, both zeros; and enough elements for the sort by digits. */
    .samples = "[7] dim=0, descending=False; [3, 4] dim=-1, descending=True; "
               "[2, 3, 4] dim=1, descending=False; "
               "[10]=(1, nan, -0, 3, 0, 3, -inf, nan, 1, -2) dim=0, descending=False; "
               "[10]=(1, nan, -0, 3, 0, 3, -inf, nan, 1, -2) dim=0, descending=True; "
               "[3, 0] dim=1, descending=False; [0, 3] dim=1, descending=False; "
               "[1] dim=0, descending=False; [] dim=-1, descending=False; "
               "[3, 300] dim=1, descending=False; [70, 5] dim=0, descending=True",
};

tn_tensor *tn_argsort(tn_tensor *x, int dim, bool descending) {
    return tn_apply1(&tn__op_argsort, &(tn__argsort_args){dim, descending}, x);
}

/* The elements at those positions. A 0-dimensional x is sorted already. */
tn_tensor *tn_sort(tn_tensor *x, int dim, bool descending, tn_tensor **index) {
    tn_tensor *order = tn_argsort(x, dim, descending);
    if (index) { *index = order; }
    if (tn_is_inert(order)) { return tn_inert(); }
    return tn_ndim(x) == 0 ? tn_identity(x) : tn_gather(x, dim, order);
}
