/* What rnn, gru and lstm share: see recurrent.h. */
#include "ops/rnn/recurrent.h"

#include "backends/recurrent.h"
#include "core/memory.h"
#include "ops/linalg/linear.h"

#include <stdlib.h>

/* ---- Shapes ---------------------------------------------------------------------------------- */

static int result_count(tn_cell cell) {
    return cell == TN_CELL_LSTM ? 3 : 2;
}

static bool check_dims(tn_op_call *c, int64_t gates) {
    if (!tn_op_shapes(c, "times batch in, rows in, rows units, rows, rows, index: batch, "
                         "batch units, batch units")) {
        return false;
    }
    const tn_tensor *x = c->in[TN__RNN_X], *w = c->in[TN__RNN_W_HH];
    if (tn_size(x, 0) < 1) {
        return tn_op_fail(c, TN_ESHAPE, "x is %s (there must be at least one time)",
                          tn_shape_text(x));
    }
    return tn_size(w, 0) == gates * tn_size(w, 1) ||
           tn_op_fail(c, TN_ESHAPE, "weight_hh is %s but must be (%d units, units)",
                      tn_shape_text(w), (int)gates);
}

bool tn__rnn_shape(tn_op_call *c) {
    tn_cell cell = ((const tn__rnn_args *)c->args)->cell;
    int64_t gates = tn__cell_gates(cell), kept = tn__cell_kept(cell);
    if (!check_dims(c, gates)) { return false; }
    tn_dtype dtype = tn_dtype_of(c->in[TN__RNN_X]), wide = tn__wide_dtype(dtype);
    int64_t units = tn_size(c->in[TN__RNN_W_HH], 1);
    tn_dims x = tn_shape(c->in[TN__RNN_X]), y = tn__dims_with_last(x, units),
            state = TN_DIMS(x.size[1], units);
    bool made = tn_op_out(c, y, dtype);
    for (int i = 1; i < result_count(cell); i++) {
        made = made && tn_op_out(c, state, dtype);
    }
    if (c->record) { made = made && tn_op_out(c, tn__dims_with_last(x, kept * units), wide); }
    for (int i = 1; i < result_count(cell) && c->record; i++) { /* h_before and c_before */
        made = made && tn_op_out(c, y, wide);
    }
    return made;
}

/* ---- Operands -------------------------------------------------------------------------------- */

static bool is_row_major(const tn_desc *d) {
    int64_t count = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        if (d->size[i] != 1 && d->stride[i] != count) { return false; }
        count *= d->size[i];
    }
    return true;
}

/* Makes *x, if present, row-major and, unless it is an index, of this dtype: it stays, or becomes
 * *copy, filled with it. */
static tn_status read_row_major(tn__scratch_pool *p, const tn_desc **x, tn_desc *copy,
                                tn_dtype dtype) {
    if (!*x) { return TN_OK; }
    dtype = tn_dtype_is_float((*x)->dtype) ? dtype : (*x)->dtype;
    if (is_row_major(*x) && (*x)->dtype == dtype) { return TN_OK; }
    *copy = **x;
    *x = copy;
    return tn__scratch_copy(p, copy, dtype);
}

static tn_desc desc_of_sizes(tn_dtype dtype, int64_t times, int64_t rows, int64_t units) {
    return (tn_desc){.dtype = dtype, .ndim = 3, .size = {times, rows, units}};
}

/* (T, B, n) row-major as (T B, columns), the first columns of each row. */
static tn_desc first_columns(const tn_desc *d, int64_t columns) {
    return (tn_desc){.data = d->data,
                     .dtype = d->dtype,
                     .ndim = 2,
                     .size = {d->size[0] * d->size[1], columns},
                     .stride = {d->size[2], 1}};
}

/* The entries compute in f32 or f64. For bf16 and f16 a device's operands become f32 here; on the
 * CPU the engine does that. */
static bool takes_dtype(const tn_desc *x, const tn_context *ctx) {
    return !tn__is_narrow(x->dtype) || ctx->device.kind != TN_CPU;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* Output i if it was made in this dtype, else scratch memory of these sizes. */
static const tn_desc *wide_output(const tn_op_call *c, int i, tn__scratch_pool *p,
                                  tn_desc *scratch) {
    if (c->y[i] && c->y[i]->dtype == scratch->dtype) { return c->y[i]; }
    return tn__scratch_take(p, scratch) ? scratch : NULL;
}

/* The gates' shares of the input, x w^T + b. bf16 and f16 are summed in f32. */
static tn_status input_shares(const tn_op_call *c, tn__scratch_pool *p, const tn_desc *shares) {
    const tn_desc *x = c->x[TN__RNN_X], *w = c->x[TN__RNN_W_IH], *b = c->x[TN__RNN_B_IH];
    if (!tn__is_narrow(x->dtype)) { return p->kernels->linear(c->ctx, shares, x, w, b); }
    tn_desc wt = tn_desc_swap(w, 0, 1), rows, to = tn__desc_stacked(shares),
            left = tn__desc_stacked(x), right = tn__desc_stacked(&wt);
    tn_status status = TN_OK;
    if (b) {
        rows = tn_desc_expand(b, shares);
        status = p->kernels->copy(c->ctx, shares, &rows);
    }
    return status == TN_OK ? p->kernels->matmul(c->ctx, &to, &left, &right, 1.0, b ? 1.0 : 0.0)
                           : status;
}

static tn_status run_forward(const tn_op_call *c, tn_recurrent r, tn__scratch_pool *p) {
    const tn_desc *h0 = c->x[TN__RNN_H0], *c0 = c->x[TN__RNN_C0], *out[6] = {NULL};
    int results = result_count(r.cell);
    int64_t T = c->y[0]->size[0], B = c->y[0]->size[1], H = c->y[0]->size[2];
    tn_dtype dtype = tn__wide_dtype(c->y[0]->dtype);
    tn_desc sizes[6], copies[5];
    for (int i = 0; i < 2 * results; i++) { /* y and the states; what is kept */
        int64_t units = i == results ? tn__cell_kept(r.cell) * H : H;
        sizes[i] = desc_of_sizes(dtype, T, B, units);
        if (i > 0 && i < results) {
            sizes[i] = (tn_desc){.dtype = dtype, .ndim = 2, .size = {B, H}};
        }
        out[i] = wide_output(c, i, p, &sizes[i]);
        if (!out[i]) { return TN_ENOMEM; }
    }
    r.gates = out[results];
    r.h_before = out[results + 1];
    r.c_before = results > 2 ? out[results + 2] : NULL;
    const tn_desc **reads[] = {&r.w, &r.b, &r.lengths, &h0, &c0};
    for (int i = 0; i < 5; i++) {
        tn_status status = read_row_major(p, reads[i], &copies[i], dtype);
        if (status != TN_OK) { return status; }
    }
    tn_desc shares = first_columns(r.gates, tn__cell_gates(r.cell) * H);
    tn_status status = input_shares(c, p, &shares);
    if (status == TN_OK) {
        status =
            p->kernels->recurrent(c->ctx, &r, out[0], out[1], results > 2 ? out[2] : NULL, h0, c0);
    }
    for (int i = 0; i < results && status == TN_OK; i++) {
        status = out[i] != c->y[i] ? p->kernels->copy(c->ctx, c->y[i], out[i]) : TN_OK;
    }
    return status;
}

tn_status tn__rnn_forward(const tn_op_call *c) {
    const tn__rnn_args *args = c->args;
    if (!takes_dtype(c->x[TN__RNN_X], c->ctx)) { return TN_EUNSUPPORTED; }
    TN__SCRATCH_POOL(p, c);
    tn_recurrent r = {.cell = args->cell,
                      .reverse = args->reverse,
                      .lengths = c->x[TN__RNN_LENGTHS],
                      .w = c->x[TN__RNN_W_HH],
                      .b = c->x[TN__RNN_B_HH]};
    return run_forward(c, r, &p);
}

/* ---- Backward -------------------------------------------------------------------------------- */

/* The gradients of weight, bias and their input, from the product's. */
static tn_status product_back(const tn_op_back *b, const tn_backend *kernels, const tn_desc *dy,
                              const tn_desc *x, int w, int bias, const tn_desc *dx) {
    tn_op_back product = {.args = b->args, .kernels = kernels, .ctx = b->ctx, .adds = b->adds};
    product.x[0] = x;
    product.x[1] = b->x[w];
    product.dx[0] = dx;
    product.dx[1] = b->dx[w];
    product.dx[2] = b->dx[bias];
    return tn__linear_back(&product, dy);
}

static tn_status run_backward(const tn_op_back *b, tn_recurrent r, tn__scratch_pool *p) {
    int results = result_count(r.cell);
    const tn_desc *dy = b->dy[0], *dhn = b->dy[1], *dcn = results > 2 ? b->dy[2] : NULL,
                  *h = r.h_before;
    tn_desc dp = desc_of_sizes(h->dtype, h->size[0], h->size[1],
                               tn__cell_gates(r.cell) * h->size[2]),
            da = dp, copies[5];
    bool two = r.cell == TN_CELL_GRU;
    if (!tn__scratch_take(p, &dp) || (two && !tn__scratch_take(p, &da))) { return TN_ENOMEM; }
    const tn_desc **reads[] = {&r.w, &r.lengths, &dy, &dhn, &dcn};
    for (int i = 0; i < 5; i++) {
        tn_status status = read_row_major(p, reads[i], &copies[i], h->dtype);
        if (status != TN_OK) { return status; }
    }
    tn_status status = p->kernels->recurrent_backward(
        b->ctx, &r, &dp, two ? &da : NULL, b->dx[TN__RNN_H0], b->dx[TN__RNN_C0], dy, dhn, dcn);
    if (status != TN_OK) { return status; }
    tn_desc shares = first_columns(&dp, dp.size[2]), states = first_columns(h, h->size[2]),
            recurrent = first_columns(two ? &da : &dp, dp.size[2]);
    status = product_back(b, p->kernels, &shares, b->x[TN__RNN_X], TN__RNN_W_IH, TN__RNN_B_IH,
                          b->dx[TN__RNN_X]);
    return status == TN_OK
               ? product_back(b, p->kernels, &recurrent, &states, TN__RNN_W_HH, TN__RNN_B_HH, NULL)
               : status;
}

/* A gradient that bf16 or f16 take, as scratch memory of f32: with the sum so far, if it is added
 * to. */
static tn_status widen_gradient(const tn_op_back *b, int i, tn_op_back *wide, tn__scratch_pool *p,
                                tn_desc *scratch) {
    *scratch = *b->dx[i];
    scratch->dtype = TN_F32;
    if (!tn__scratch_take(p, scratch)) { return TN_ENOMEM; }
    wide->dx[i] = scratch;
    return b->adds >> i & 1 ? p->kernels->copy(b->ctx, scratch, b->dx[i]) : TN_OK;
}

/* The same with f32 in place of bf16 and f16. */
static tn_status run_widened(const tn_op_back *b, tn_recurrent r, tn__scratch_pool *p) {
    static const int read[] = {TN__RNN_X, TN__RNN_W_IH, TN__RNN_W_HH};
    tn_op_back wide = *b;
    tn_desc x[3], dx[TN_OP_INPUTS];
    tn_status status = TN_OK;
    for (int i = 0; i < 3 && status == TN_OK; i++) {
        status = read_row_major(p, &wide.x[read[i]], &x[i], TN_F32);
    }
    for (int i = 0; i < TN_OP_INPUTS && status == TN_OK; i++) {
        if (b->dx[i] && tn__is_narrow(b->dx[i]->dtype)) {
            status = widen_gradient(b, i, &wide, p, &dx[i]);
        }
    }
    r.w = wide.x[TN__RNN_W_HH];
    if (status == TN_OK) { status = run_backward(&wide, r, p); }
    for (int i = 0; i < TN_OP_INPUTS && status == TN_OK; i++) {
        status = wide.dx[i] != b->dx[i] ? p->kernels->copy(b->ctx, b->dx[i], wide.dx[i]) : TN_OK;
    }
    return status;
}

tn_status tn__rnn_backward(const tn_op_back *b) {
    const tn__rnn_args *args = b->args;
    const tn_desc *dh0 = b->dx[TN__RNN_H0], *dc0 = b->dx[TN__RNN_C0];
    if (!takes_dtype(b->x[TN__RNN_X], b->ctx) || (dh0 && !is_row_major(dh0)) ||
        (dc0 && !is_row_major(dc0))) {
        return TN_EUNSUPPORTED;
    }
    int kept = result_count(args->cell);
    TN__SCRATCH_POOL(p, b);
    tn_recurrent r = {.cell = args->cell,
                      .reverse = args->reverse,
                      .lengths = b->x[TN__RNN_LENGTHS],
                      .w = b->x[TN__RNN_W_HH],
                      .b = b->x[TN__RNN_B_HH],
                      .gates = b->y[kept],
                      .h_before = b->y[kept + 1],
                      .c_before = args->cell == TN_CELL_LSTM ? b->y[kept + 2] : NULL};
    return tn__is_narrow(b->x[TN__RNN_X]->dtype) ? run_widened(b, r, &p) : run_backward(b, r, &p);
}

/* ---- Composition ----------------------------------------------------------------------------- */

tn_tensor *tn__rnn_gate(tn_tensor *a, int q, int n) {
    int64_t units = tn_ndim(a) == 2 ? tn_size(a, 1) / n : 0; /* an inert tensor has no dimensions */
    return tn_narrow(a, 1, q * units, units);
}

/* Whether each row is active at time t: bool (B, 1). */
static tn_tensor *living_rows(tn_tensor *lengths, int64_t t) {
    return tn_unsqueeze(tn_gt(lengths, tn__constant(lengths, (double)t)), 1);
}

tn_tensor *tn__rnn_compose(tn_op_call *c, tn__rnn_step step) {
    const tn__rnn_args *args = c->args;
    bool has_c = args->cell == TN_CELL_LSTM;
    tn_tensor *x = c->in[TN__RNN_X], *w = c->in[TN__RNN_W_HH], *b = c->in[TN__RNN_B_HH],
              *lengths = c->in[TN__RNN_LENGTHS], *h0 = c->in[TN__RNN_H0],
              *c0 = has_c ? c->in[TN__RNN_C0] : NULL;
    int64_t times = tn_size(x, 0);
    tn_tensor *zeros = tn__filled(x, TN_DIMS(tn_size(x, 1), tn_size(w, 1)), 0.0),
              *shares = tn_linear_op(x, c->in[TN__RNN_W_IH], c->in[TN__RNN_B_IH]);
    tn__rnn_state s = {h0 ? h0 : zeros, c0 ? c0 : zeros};
    tn_tensor **y = tn__calloc_for((size_t)times, sizeof *y, c->op->name);
    if (!y) { return tn_inert(); }
    for (int64_t i = 0; i < times; i++) {
        int64_t t = args->reverse ? times - 1 - i : i;
        tn__rnn_state next = step(tn_select(shares, 0, t), tn_linear_op(s.h, w, b), s);
        y[t] = next.h;
        if (lengths) {
            tn_tensor *lives = living_rows(lengths, t);
            y[t] = tn_where(lives, next.h, tn__constant(x, 0.0));
            next.h = tn_where(lives, next.h, s.h);
            next.c = has_c ? tn_where(lives, next.c, s.c) : next.c;
        }
        s = next;
    }
    tn_tensor *result = tn_stack(y, (int)times, 0);
    free(y);
    c->out[1] = tn_identity(s.h); /* h0 itself where no row is active */
    if (has_c) { c->out[2] = tn_identity(s.c); }
    return result;
}

/* ---- Calls ----------------------------------------------------------------------------------- */

/* A check in a kernel would have to wait for it, so lengths are checked before. */
static bool check_lengths(const tn_op *op, tn_tensor *x, tn_tensor *lengths) {
    if (!lengths || tn_dtype_is_float(tn_dtype_of(lengths)) || tn_ndim(x) != 3) {
        return true; /* the shape rule reports the error */
    }
    int64_t *value = tn__read_indices(lengths, op->name), times = tn_size(x, 0);
    bool ok = value != NULL;
    for (int64_t i = 0; i < tn_count(lengths) && ok; i++) {
        if (value[i] < 1 || value[i] > times) {
            tn__raise(TN_EVALUE, op->name, "lengths[%lld] is %lld but x is %s (1 to %lld times)",
                      (long long)i, (long long)value[i], tn_shape_text(x), (long long)times);
            ok = false;
        }
    }
    free(value);
    return ok;
}

tn_tensor *tn__rnn_apply(const tn_op *op, tn__rnn_args args, tn_tensor *x, tn_tensor *h0,
                         tn_tensor *c0, tn_rnn_weights w, tn_tensor *lengths, tn_tensor **hn,
                         tn_tensor **cn) {
    tn_tensor *in[] = {x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, lengths, h0, c0};
    tn_tensor *results[3] = {tn_inert(), tn_inert(), tn_inert()};
    if (check_lengths(op, x, lengths)) {
        tn_apply_many(op, &args, in, args.cell == TN_CELL_LSTM ? 8 : 7, results);
    }
    if (hn) { *hn = results[1]; }
    if (cn) { *cn = results[2]; }
    return results[0];
}

/* ---- Work ------------------------------------------------------------------------------------ */

/* One product with weight_hh always goes back through the times. */
void tn__rnn_work(tn_op_work *w) {
    double rows = (double)(w->x[TN__RNN_X]->size[0] * w->x[TN__RNN_X]->size[1]);
    double steps = 2 * rows * tn__work_count(w->x[TN__RNN_W_HH]);
    tn__work_product(w, rows * tn__work_count(w->x[TN__RNN_W_IH]),
                     1u << TN__RNN_X | 1u << TN__RNN_W_IH);
    w->flops += w->wants && w->wants[TN__RNN_W_HH] ? 2 * steps : steps;
}
