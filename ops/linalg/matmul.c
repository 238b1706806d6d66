/* matmul(a, b) = a b over the last two dimensions
 *
 *     a: (…, m, k), b: (…, k, n), f32 f64 bf16 f16       y: (…, m, n)
 *     Leading (batch) dimensions broadcast. A 1-dimensional a is one row (1, k), a 1-dimensional b
 *     one column (k, 1); the size 1 is dropped from y.
 *     da = dy b^T        db = a^T dy        (summed over broadcast batch dimensions by the engine)
 *
 * The kernel multiplies stacks of matrices with any strides, so transposed and sliced inputs are
 * never copied. Here the batch dimensions are reduced to the one that it takes: see struct stack.
 */
#include "ops/dims.h"

/* The product as the kernel will see it: matrices a (m, k), b (k, n), y (m, n), and the
 * dimensions they are stacked in. */
typedef struct stack {
    tn_desc a, b, y; /* 3 dimensions: [0] is the stack's innermost dimension, set for each call */
    int ndim;        /* batch dimensions left */
    int64_t size[TN_MAX_DIMS];
    int64_t step[3][TN_MAX_DIMS]; /* their strides in a, b and y */
} stack;

static bool matmul_shape(tn_op_call *c) {
    if (!tn_op_same_dtype(c) || !tn_op_float(c, 0)) { return false; }
    tn_dims a = tn_shape(c->in[0]), b = tn_shape(c->in[1]), y, batch_a, batch_b;
    if (a.ndim == 0 || b.ndim == 0) {
        return tn_op_fail(c, TN_ESHAPE, "a is %s and b is %s (both need a dimension)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    if (a.size[a.ndim - 1] != b.size[b.ndim > 1 ? b.ndim - 2 : 0]) {
        return tn_op_fail(c, TN_ESHAPE,
                          "a is %s but b is %s (a's last dimension must equal b's %s)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]),
                          b.ndim > 1 ? "last but one" : "only one");
    }
    batch_a = tn_dims_from(a.ndim > 2 ? a.ndim - 2 : 0, a.size);
    batch_b = tn_dims_from(b.ndim > 2 ? b.ndim - 2 : 0, b.size);
    if (!tn_dims_broadcast(batch_a, batch_b, &y)) {
        return tn_op_fail(c, TN_ESHAPE,
                          "a is %s but b is %s (the dimensions before the last two must broadcast)",
                          tn_shape_text(c->in[0]), tn_shape_text(c->in[1]));
    }
    if (a.ndim > 1) { y.size[y.ndim++] = a.size[a.ndim - 2]; }
    if (b.ndim > 1) { y.size[y.ndim++] = b.size[b.ndim - 1]; }
    return tn_op_out(c, y, c->in[0]->dtype);
}

/* Dimensions `row` and `column` of x as a matrix in [1] and [2]; -1: a missing dimension, of size
 * 1. */
static tn_desc matrix_of(const tn_desc *x, int row, int column) {
    tn_desc y = {
        .data = x->data, .dtype = x->dtype, .ndim = 3, .size = {1, 1, 1}, .stride = {1, 1, 1}};
    if (row >= 0) {
        y.size[1] = x->size[row];
        y.stride[1] = x->stride[row];
    }
    if (column >= 0) {
        y.size[2] = x->size[column];
        y.stride[2] = x->stride[column];
    }
    return y;
}

/* Stride of x in batch dimension i of `of`: 0 where x repeats. x has `batch` such dimensions,
 * aligned at the end. */
static int64_t batch_stride(const tn_desc *x, int batch, int i, int of) {
    int at = i - (of - batch);
    return at < 0 || x->size[at] == 1 ? 0 : x->stride[at];
}

/* Batch dimensions of size 1 are dropped, and neighbours merged where all three operands allow
 * it. */
static void stack_collapse(stack *s, const tn_op_call *c, int batch, int batch_a, int batch_b) {
    for (int i = 0; i < batch; i++) {
        int64_t size = c->y[0]->size[i];
        int64_t step[3] = {batch_stride(c->x[0], batch_a, i, batch),
                           batch_stride(c->x[1], batch_b, i, batch), c->y[0]->stride[i]};
        if (size == 1) { continue; }
        bool joins = s->ndim > 0;
        for (int t = 0; t < 3 && joins; t++) {
            joins = s->step[t][s->ndim - 1] == step[t] * size;
        }
        s->ndim += !joins;
        s->size[s->ndim - 1] = joins ? s->size[s->ndim - 1] * size : size;
        for (int t = 0; t < 3; t++) {
            s->step[t][s->ndim - 1] = step[t];
        }
    }
}

/* One b for all: the stack's dimensions become more rows of a single, larger product. */
static void stack_fold_rows(stack *s) {
    while (s->ndim > 0) {
        int i = s->ndim - 1;
        int64_t rows = s->a.size[1];
        bool folds = s->step[1][i] == 0 && (rows == 1 || (s->step[0][i] == rows * s->a.stride[1] &&
                                                          s->step[2][i] == rows * s->y.stride[1]));
        if (!folds) { return; }
        if (rows == 1) {
            s->a.stride[1] = s->step[0][i];
            s->y.stride[1] = s->step[2][i];
        }
        s->a.size[1] = s->y.size[1] = rows * s->size[i];
        s->ndim = i;
    }
}

/* The kernel takes the largest stack dimension; this loops over the others. */
static tn_status stack_run(stack *s, const tn_op_call *c) {
    int largest = 0;
    for (int i = 1; i < s->ndim; i++) {
        largest = s->size[i] > s->size[largest] ? i : largest;
    }
    tn_desc *operand[3] = {&s->a, &s->b, &s->y};
    int64_t calls = 1;
    for (int i = 0; i < s->ndim; i++) {
        calls *= i == largest ? 1 : s->size[i];
    }
    for (int t = 0; t < 3 && s->ndim > 0; t++) {
        operand[t]->size[0] = s->size[largest];
        operand[t]->stride[0] = s->step[t][largest];
    }
    for (int64_t call = 0; call < calls; call++) {
        tn_desc now[3] = {s->a, s->b, s->y};
        int64_t rest = call;
        for (int i = s->ndim - 1; i >= 0; i--) {
            if (i != largest) {
                for (int t = 0; t < 3; t++) {
                    int64_t elements = rest % s->size[i] * s->step[t][i];
                    now[t].data =
                        (char *)now[t].data + elements * (int64_t)tn_dtype_size(now[t].dtype);
                }
                rest /= s->size[i];
            }
        }
        tn_status status = c->kernels->matmul(c->ctx, &now[2], &now[0], &now[1], 1.0, 0.0);
        if (status != TN_OK) { return status; }
    }
    return TN_OK;
}

static tn_status matmul_forward(const tn_op_call *c) {
    const tn_desc *a = c->x[0], *b = c->x[1], *y = c->y[0];
    bool row = a->ndim == 1, column = b->ndim == 1;
    int batch = y->ndim - !row - !column;
    for (int i = 0; i < y->ndim; i++) {
        if (y->size[i] == 0) { return TN_OK; }
    }
    stack s = {
        .a = matrix_of(a, row ? -1 : a->ndim - 2, a->ndim - 1),
        .b = matrix_of(b, column ? 0 : b->ndim - 2, column ? -1 : b->ndim - 1),
        .y = matrix_of(y, row ? -1 : batch, column ? -1 : y->ndim - 1),
    };
    stack_collapse(&s, c, batch, row ? 0 : a->ndim - 2, column ? 0 : b->ndim - 2);
    stack_fold_rows(&s);
    return stack_run(&s, c);
}

static void matmul_backward(tn_op_grad *g) {
    tn_dims da = tn_op_input_dims(g, 0), db = tn_op_input_dims(g, 1);
    bool row = da.ndim == 1, column = db.ndim == 1;
    tn_tensor *dy = g->dout[0];
    if (column) { dy = tn_unsqueeze(dy, tn_ndim(dy)); }
    if (row) { dy = tn_unsqueeze(dy, tn_ndim(dy) - 1); }
    if (g->wants[0]) {
        tn_tensor *b = tn_op_saved_input(g, 1);
        tn_tensor *d = tn_matmul(dy, tn_t(column ? tn_unsqueeze(b, 1) : b));
        tn_op_give(g, 0, row ? tn_squeeze(d, tn_ndim(d) - 2) : d);
    }
    if (g->wants[1]) {
        tn_tensor *a = tn_op_saved_input(g, 0);
        a = row ? tn_unsqueeze(a, 0) : a;
        /* One b for a stack of a: one product includes the sum over the stack, without a (…, k,
         * n). */
        bool shared = db.ndim <= 2;
        tn_tensor *d =
            shared ? tn_matmul(tn_t(tn__as_rows(a)), tn__as_rows(dy)) : tn_matmul(tn_t(a), dy);
        tn_op_give(g, 1, column ? tn_squeeze(d, tn_ndim(d) - 1) : d);
    }
}

static void matmul_work(tn_op_work *w) {
    const tn_dims *a = w->x[0];
    tn__work_product(w, tn__work_count(w->y[0]) * (double)a->size[a->ndim - 1], 1u << 0 | 1u << 1);
}

const tn_op tn__op_matmul = {
    .name = "matmul",
    .inputs = {"a", "b"},
    .saves_for = {TN_SAVES_INPUT(1), TN_SAVES_INPUT(0)},
    .shape = matmul_shape,
    .forward = matmul_forward,
    .backward = matmul_backward,
    /* Plain, 1-dimensional on either side, stacks that broadcast each way, empty in each
     * dimension, size 1, and larger than a kernel's block. */
    .samples = "{-1:1} [3, 4] [4, 5]; [4] [4]; [4] [4, 3]; [3, 4] [4]; [3] [2, 3, 4]; "
               "[2, 4, 3] [3]; [2, 3, 4] [2, 4, 2]; [2, 3, 4] [4, 2]; [3, 4] [2, 4, 2]; "
               "[2, 1, 3, 2] [3, 2, 4]; [2, 3, 2, 2] [2, 1, 2, 3]; [1, 2, 3] [4, 3, 2]; "
               "[0, 3] [3, 2]; [2, 0] [0, 3]; [0, 2, 3] [3, 2]; [1, 1] [1, 1]; [3, 1, 2] [2, 1]; "
               "[9, 70] [70, 17]",
    .work = matmul_work,
};

tn_tensor *tn_matmul(tn_tensor *a, tn_tensor *b) {
    return tn_apply2(&tn__op_matmul, NULL, a, b);
}
