/* Operands as kernels see them (operand.h). */
#include "autograd/operand.h"

#include "backends/desc.h"

tn_desc tn_desc_of(const tn_tensor *t) {
    tn_desc d;
    tn__desc_fill(&d, t ? t : tn_inert());
    return d;
}

tn_desc tn_desc_expand(const tn_desc *x, const tn_desc *y) {
    if (!x || !y || x->ndim > y->ndim || y->ndim > TN_MAX_DIMS) {
        tn__raise(TN_EVALUE, "desc_expand", "the descriptors are NULL or their sizes do not fit");
        return tn_desc_of(NULL);
    }
    return tn__desc_spread(x, y->ndim, y->size);
}

tn_desc tn_desc_swap(const tn_desc *x, int a, int b) {
    if (!x || a < 0 || b < 0 || a >= x->ndim || b >= x->ndim) {
        tn__raise(TN_EINDEX, "desc_swap", "dimensions %d and %d of a descriptor with %d", a, b,
                  x ? x->ndim : 0);
        return tn_desc_of(NULL);
    }
    return tn__desc_swapped(x, a, b);
}

bool tn__desc_to_rows(tn_desc *d, int kept) {
    int lead = d->ndim - kept;
    int64_t count = 1, stride = 0;
    bool merges = lead >= 0;
    for (int i = lead - 1; i >= 0; i--) {
        if (d->size[i] == 1) { continue; }
        if (count == 1) {
            stride = d->stride[i];
        } else if (d->stride[i] != stride * count) {
            merges = false;
        }
        count *= d->size[i];
    }
    if (lead < 0 || (!merges && count != 0)) { return false; }
    if (count == 1) { /* one row: any stride will do, but an output's is never 0 */
        stride = kept > 0 && d->size[lead] > 0 ? d->size[lead] : 1;
    }
    for (int i = kept; i > 0 && lead == 0; i--) { /* the kept ones move up */
        d->size[i] = d->size[i - 1];
        d->stride[i] = d->stride[i - 1];
    }
    for (int i = 0; i < kept && lead > 1; i++) {
        d->size[1 + i] = d->size[lead + i];
        d->stride[1 + i] = d->stride[lead + i];
    }
    d->ndim = kept + 1;
    d->size[0] = count;
    d->stride[0] = stride;
    return true;
}

bool tn__scratch_take(tn__scratch_pool *s, tn_desc *d) {
    int64_t count = tn__desc_densify(d);
    size_t bytes = (size_t)(count > 0 ? count : 1) * tn_dtype_size(d->dtype); /* never 0 */
    d->data = s->ctx->workspace(s->ctx, bytes);
    if (!d->data) { return false; }
    s->piece[s->count].memory = d->data;
    s->piece[s->count++].bytes = bytes;
    return true;
}

tn_status tn__scratch_copy(tn__scratch_pool *s, tn_desc *d, tn_dtype dtype) {
    tn_desc from = *d;
    d->dtype = dtype;
    return tn__scratch_take(s, d) ? s->kernels->copy(s->ctx, d, &from) : TN_ENOMEM;
}

tn_status tn__operand_convert(tn__scratch_pool *s, tn_desc *d, int rows, tn_dtype dtype) {
    if (dtype == d->dtype && (!rows || tn__desc_to_rows(d, rows - 1))) { return TN_OK; }
    tn_status status = tn__scratch_copy(s, d, dtype);
    if (status == TN_OK && rows) { tn__desc_to_rows(d, rows - 1); }
    return status;
}
