/* Rows, descriptors and kernel errors for operations: see rows.h. */
#include "ops/rows.h"

bool tn__desc_rows(const tn_desc *x, int kept, tn_desc *y) {
    int lead = x->ndim - kept;
    int64_t count = 1, stride = 0;
    bool merges = true;
    for (int i = lead - 1; i >= 0; i--) {
        if (x->size[i] == 1) {
            continue;
        }
        if (count == 1) {
            stride = x->stride[i];
        } else if (x->stride[i] != stride * count) {
            merges = false;
        }
        count *= x->size[i];
    }
    if (count == 1) { /* one row: any stride will do, but an output's is never 0 */
        stride = kept > 0 && x->size[lead] > 0 ? x->size[lead] : 1;
    }
    if (!merges && count != 0) {
        return false;
    }
    *y = (tn_desc){.data = x->data, .dtype = x->dtype, .ndim = kept + 1};
    y->size[0] = count;
    y->stride[0] = stride;
    for (int i = 0; i < kept; i++) {
        y->size[1 + i] = x->size[lead + i];
        y->stride[1 + i] = x->stride[lead + i];
    }
    return true;
}

tn_status tn__rows_open(tn__kernels k, const tn_desc *x, int kept, tn__rows *rows) {
    *rows = (tn__rows){.scratch = NULL};
    if (tn__desc_rows(x, kept, &rows->d)) {
        return TN_OK;
    }
    tn_desc copy = *x;
    int64_t count = 1;
    for (int i = x->ndim - 1; i >= 0; i--) {
        copy.stride[i] = count;
        count *= x->size[i];
    }
    rows->bytes = (size_t)count * tn_dtype_size(x->dtype);
    copy.data = rows->scratch = k.ctx->workspace(k.ctx, rows->bytes);
    if (!copy.data) {
        return TN_ENOMEM;
    }
    rows->d = tn__rows_of(&copy, kept);
    return k.table->copy(k.ctx, &copy, x);
}

void tn__rows_close(tn__kernels k, tn__rows *rows) {
    if (rows->scratch) {
        k.ctx->workspace_free(k.ctx, rows->scratch, rows->bytes);
        rows->scratch = NULL;
    }
}

tn_desc tn__rows_of(const tn_desc *x, int kept) {
    tn_desc y = *x;
    tn__desc_rows(x, kept, &y);
    return y;
}

tn_desc tn__desc_front(const tn_desc *x, int dim) {
    tn_desc y = *x;
    for (int i = dim; i > 0; i--) {
        y.size[i] = x->size[i - 1];
        y.stride[i] = x->stride[i - 1];
    }
    y.size[0] = x->size[dim];
    y.stride[0] = x->stride[dim];
    return y;
}

tn_desc tn__desc_repeat(const tn_desc *scalar, int64_t n) {
    tn_desc y = {.data = scalar->data, .dtype = scalar->dtype, .ndim = 1};
    y.size[0] = n;
    y.stride[0] = 0;
    return y;
}

tn_desc tn__desc_vector(void *data, tn_dtype dtype, int64_t n) {
    tn_desc y = {.data = data, .dtype = dtype, .ndim = 1};
    y.size[0] = n;
    y.stride[0] = 1;
    return y;
}

int64_t tn__row_count(tn_dims dims) {
    return tn_dims_count(tn__dims_leading(dims));
}

tn_dims tn__dims_leading(tn_dims dims) {
    return tn_dims_from(dims.ndim > 0 ? dims.ndim - 1 : 0, dims.size);
}

tn_dims tn__dims_with_last(tn_dims dims, int64_t size) {
    if (dims.ndim > 0) { /* an inert tensor has none */
        dims.size[dims.ndim - 1] = size;
    }
    return dims;
}

int tn__op_dim(const tn_op_call *c, int dim) {
    return tn__dim(c->in[0], dim, c->op->name);
}

tn_status tn__forward_composed(tn_op_call *c, tn_tensor *(*compose)(const tn_op_call *c)) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_tensor *y = compose(c);
    if (tn_is_inert(y)) {
        return tn_error();
    }
    tn_desc from = tn_desc_of(y);
    return c->kernels->copy(c->ctx, &c->y[0], &from);
}

bool tn__grad_kernels(const tn_op_grad *g, tn_tensor *const *t, int n, tn__kernels *k) {
    for (int i = 0; i < n; i++) {
        if (!tn__usable(t[i], g->op->name)) {
            return false;
        }
    }
    tn_device device = tn_device_of(g->dout[0]);
    *k = (tn__kernels){tn_backend_of(device), tn_context_of(device)};
    return true;
}

tn_tensor *tn__grad_new(const tn_op_grad *g, bool wanted, tn_dims dims, tn_dtype dtype) {
    return wanted ? tn__new(dims, dtype, tn_device_of(g->dout[0])) : NULL;
}
