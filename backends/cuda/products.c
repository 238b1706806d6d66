/* The entries matmul and linear, and the kernels of linear_gelu, of mlp's slope and of the
 * gradients of linear's weight and bias: row-major operands with any strides, in cuBLASLt's
 * column-major terms.
 *
 * Row-major y (m, p) is column-major y^T (p, m) in memory, and y = a b means y^T = b^T a^T: so
 * cuBLASLt's first operand is b, its second a. An operand whose last stride is 1 is already stored
 * as its transpose; one whose second-to-last stride is 1 (a transposed view) is transposed by
 * cuBLASLt. Others are copied first. Our own kernel (matmul.cu) does whatever cuBLASLt refuses.
 */
#include "backends/cuda/choices.h"
#include "backends/cuda/gemm.h"
#include "backends/desc.h"

/* What a product does besides multiplying. */
typedef struct extras {
    double alpha, beta;
    tn__gemm_epilogue epilogue;
    const tn_desc *bias; /* of the columns of y, an input; or NULL */
    void *sums;          /* the sums of a's rows over k, an output; or NULL */
    const tn_desc *aux;  /* like y, an output or an input; or NULL */
} extras;

/* d[0] is never NULL. */
static bool same_floats(int count, const tn_desc *const *d) {
    for (int i = 1; i < count; i++) {
        if (d[i] && d[i]->dtype != d[0]->dtype) { return false; }
    }
    return tn__is_float(d[0]->dtype);
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* x as a column-major matrix: not transposed if memory holds x^T, as it does for row-major x. The
 * stride of a dimension of size 1 has no meaning. */
static bool columns_of(const tn_desc *x, tn__gemm_matrix *m) {
    int64_t rows = x->size[1], columns = x->size[2];
    *m = (tn__gemm_matrix){.data = x->data, .batch = x->size[0] > 1 ? x->stride[0] : 0};
    if ((x->stride[2] == 1 || columns == 1) && (x->stride[1] >= columns || rows == 1)) {
        m->ld = rows == 1 ? columns : x->stride[1];
        return true;
    }
    if ((x->stride[1] == 1 || rows == 1) && (x->stride[2] >= rows || columns == 1)) {
        m->ld = columns == 1 ? rows : x->stride[2];
        m->transposed = true;
        return true;
    }
    return false;
}

/* x as cuBLASLt can read it: itself, or a dense copy in scratch memory, which the caller ends. */
static tn_status operand_open(tn_context *ctx, const tn_desc *x, tn__gemm_matrix *m,
                              tn__workspace *scratch) {
    if (columns_of(x, m)) { return TN_OK; }
    tn_desc copy = *x;
    if (x->stride[0] == 0) { copy.size[0] = 1; /* the same matrix for the whole batch */ }
    tn_status status = tn__cuda_stand_in(ctx, &copy, x->dtype, true, scratch);
    columns_of(&copy, m);
    return status;
}

/* ---- Products -------------------------------------------------------------------------------- */

/* One b for a whole batch of a: the batch becomes more rows of one product. */
static void fold_batch(tn_desc *y, tn_desc *a, tn_desc *b) {
    int64_t batch = y->size[0], rows = y->size[1];
    bool folds = batch > 1 && b->stride[0] == 0 && a->stride[0] == rows * a->stride[1] &&
                 y->stride[0] == rows * y->stride[1];
    if (folds) {
        y->size[1] = a->size[1] = batch * rows;
        y->size[0] = a->size[0] = b->size[0] = 1;
    }
}

/* The product through cuBLASLt; TN_EUNSUPPORTED: it cannot, and nothing was written. */
static tn_status fast_product(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                              const extras *e) {
    tn__gemm g = {
        .dtype = a->dtype,
        .out = y->dtype,
        .m = y->size[2],
        .n = y->size[1],
        .k = a->size[2],
        .batch = y->size[0],
        .alpha = e->alpha,
        .beta = e->beta,
        .epilogue = e->epilogue,
        .bias = e->bias ? e->bias->data : e->sums,
        .aux = e->aux ? e->aux->data : NULL,
        .aux_ld = e->aux ? e->aux->stride[0] : 0,
    };
    if (g.k == 0 || !columns_of(y, &g.d) || g.d.transposed) { return TN_EUNSUPPORTED; }
    tn__workspace of_a = {NULL}, of_b = {NULL};
    tn_status status = operand_open(ctx, b, &g.a, &of_b);
    if (status == TN_OK) { status = operand_open(ctx, a, &g.b, &of_a); }
    if (status == TN_OK) { status = tn__cuda_gemm(ctx, &g); }
    tn__workspace_end(&of_a);
    tn__workspace_end(&of_b);
    return status;
}

static bool is_empty(const tn_desc *y) {
    return y->size[0] == 0 || y->size[1] == 0 || y->size[2] == 0;
}

tn_status tn__cuda_matmul(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                          double alpha, double beta) {
    if (!tn__cuda_sums_into(y->dtype, a->dtype) || b->dtype != a->dtype) { return TN_EUNSUPPORTED; }
    if (is_empty(y)) { return TN_OK; }
    tn_desc d = *y, left = *a, right = *b;
    tn__gemm_matrix as_it_lies;
    if (columns_of(&d, &as_it_lies) && as_it_lies.transposed) { /* y^T = b^T a^T */
        d = tn__desc_swapped(y, 1, 2);
        left = tn__desc_swapped(b, 1, 2);
        right = tn__desc_swapped(a, 1, 2);
    }
    fold_batch(&d, &left, &right);
    extras e = {.alpha = alpha, .beta = beta};
    tn_status status = fast_product(ctx, &d, &left, &right, &e);
    return status == TN_EUNSUPPORTED ? tn__cuda_product(ctx, y, a, b, NULL, alpha, beta) : status;
}

/* ---- Linear ---------------------------------------------------------------------------------- */

/* Whether cuBLASLt can read or write this vector or matrix in an epilogue. */
static bool is_aligned(const void *data) {
    return (uintptr_t)data % 16 == 0;
}

/* Whether a vector is dense as well. */
static bool is_dense_vector(const tn_desc *b) {
    return is_aligned(b->data) && (b->stride[0] == 1 || b->size[0] == 1);
}

/* y = x w^T + b with a cuBLASLt epilogue, which reads b itself or a dense copy. */
static tn_status fast_linear(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                             const tn_desc *b, extras e) {
    tn_desc y1 = tn__desc_batched(y), x1 = tn__desc_batched(x), w1 = tn__desc_batched(w),
            wt = tn__desc_swapped(&w1, 1, 2), bias;
    tn__workspace scratch = {NULL};
    tn_status status = TN_OK;
    e.alpha = 1;
    e.bias = b;
    if (b && !is_dense_vector(b)) {
        bias = *b;
        e.bias = &bias;
        status = tn__cuda_stand_in(ctx, &bias, b->dtype, true, &scratch);
    }
    if (status == TN_OK) { status = fast_product(ctx, &y1, &x1, &wt, &e); }
    tn__workspace_end(&scratch);
    return status;
}

tn_status tn__cuda_linear(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                          const tn_desc *b) {
    if (!same_floats(4, (const tn_desc *[]){y, x, w, b})) { return TN_EUNSUPPORTED; }
    if (y->size[0] == 0 || y->size[1] == 0) { return TN_OK; }
    extras e = {.epilogue = b ? TN__GEMM_BIAS : TN__GEMM_PLAIN};
    tn_status status = fast_linear(ctx, y, x, w, b, e);
    if (status != TN_EUNSUPPORTED) { return status; }
    tn_desc y1 = tn__desc_batched(y), x1 = tn__desc_batched(x), w1 = tn__desc_batched(w),
            wt = tn__desc_swapped(&w1, 1, 2);
    return tn__cuda_product(ctx, &y1, &x1, &wt, b, 1, 0);
}

/* Whether y and pre are laid out so that the product's epilogue can write both. */
static bool gelu_fits(const tn_desc *y, const tn_desc *pre) {
    return !pre || (pre->stride[1] == 1 && pre->stride[0] % 8 == 0 &&
                    pre->stride[0] >= pre->size[1] && is_aligned(pre->data) && is_aligned(y->data));
}

/* cuBLASLt's GELU is accurate enough only for bf16 and f16; f32 and f64 use the formula of the
 * other kernels, after the product. */
static tn_status linear_gelu_forward(const tn_op_call *c) {
    const tn_desc *y = c->y[0], *pre = c->y[1];
    if (y->size[0] == 0 || y->size[1] == 0) { return TN_OK; }
    bool narrow = y->dtype == TN_BF16 || y->dtype == TN_F16;
    if (!narrow || !gelu_fits(y, pre) || !tn__cuda_chosen()->gelu_in_product) {
        return TN_EUNSUPPORTED;
    }
    extras e = {.epilogue = pre ? TN__GEMM_GELU_AUX : TN__GEMM_GELU, .aux = pre};
    return fast_linear(c->ctx, y, c->x[0], c->x[1], c->x[2], e);
}

const tn_op_kernel tn__cuda_op_linear_gelu = {linear_gelu_forward, NULL};

/* Only dp = (dy w2) gelu'(p), in dx[0] (ops/linalg/mlp.c). */
static tn_status hidden_gradient(const tn_op_back *b) {
    const tn_desc *dp = b->dx[0], *dy = b->dy[0], *w2 = b->x[3], *pre = b->y[1];
    if (dp->size[0] == 0 || dp->size[1] == 0) { return TN_OK; }
    bool narrow = dp->dtype == TN_BF16 || dp->dtype == TN_F16;
    if (!narrow || !gelu_fits(dp, pre) || !tn__cuda_chosen()->slope_in_product) {
        return TN_EUNSUPPORTED;
    }
    tn_desc dp1 = tn__desc_batched(dp), dy1 = tn__desc_batched(dy), w = tn__desc_batched(w2);
    extras e = {.alpha = 1, .epilogue = TN__GEMM_GELU_SLOPE, .aux = pre};
    return fast_product(b->ctx, &dp1, &dy1, &w, &e);
}

const tn_op_kernel tn__cuda_op_mlp = {NULL, hidden_gradient};

/* ---- The gradients of linear's weight and bias ----------------------------------------------- */

/* db = the sums of dy's columns, also into a wider dtype */
static tn_status column_sums(tn_context *ctx, const tn_desc *db, const tn_desc *dy) {
    tn_desc row = tn__desc_of_matrix(db->data, db->dtype, 1, db->size[0]);
    row.stride[1] = db->stride[0];
    return tn__cuda_reduce(ctx, TN_SUM, &row, dy);
}

/* dw and db in one product; db is overwritten. */
static tn_status weight_and_sums(tn_context *ctx, const tn_desc *dw, const tn_desc *db,
                                 const tn_desc *dy, const tn_desc *x, double beta) {
    tn_desc dw1 = tn__desc_batched(dw), dy1 = tn__desc_batched(dy), x1 = tn__desc_batched(x),
            dyt = tn__desc_swapped(&dy1, 1, 2);
    if (db && is_dense_vector(db) && !is_empty(&dw1) && tn__cuda_chosen()->sums_in_product) {
        extras e = {.alpha = 1, .beta = beta, .epilogue = TN__GEMM_COLUMN_SUMS, .sums = db->data};
        tn_status status = fast_product(ctx, &dw1, &dyt, &x1, &e);
        if (status != TN_EUNSUPPORTED) { return status; }
    }
    tn_status status = tn__cuda_matmul(ctx, &dw1, &dyt, &x1, 1, beta);
    return status == TN_OK && db ? column_sums(ctx, db, dy) : status;
}

/* dw and db (or NULL) from dy and x; added to what is there if b->adds. */
static tn_status linear_backward(const tn_op_back *b) {
    tn_context *ctx = b->ctx;
    const tn_desc *dw = b->dx[1], *db = b->dx[2], *dy = b->dy[0], *x = b->x[0];
    if (!b->adds || !db) { return weight_and_sums(ctx, dw, db, dy, x, b->adds ? 1 : 0); }
    /* cuBLASLt stores these sums, it does not add them */
    TN__SCRATCH(char, memory, ctx, (size_t)db->size[0] * tn__cuda_element(db->dtype));
    if (!memory) { return TN_ENOMEM; }
    tn_desc fresh = tn__desc_of_span(memory, db->dtype, db->size[0]);
    tn_status status = weight_and_sums(ctx, dw, &fresh, dy, x, 1);
    return status == TN_OK ? tn__cuda_binary(ctx, TN_ADD, db, db, &fresh) : status;
}

const tn_op_kernel tn__cuda_op_linear = {NULL, linear_backward};
