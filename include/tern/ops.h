/* Operations: functions that compute new elements, with gradients unless stated otherwise.
 *
 * Inputs of one call share a dtype and a device; nothing is promoted silently (tn_cast converts).
 * Shapes broadcast as in NumPy where a function says so. A failing call returns an inert tensor;
 * see core.h. Each operation is one file under ops/.
 */
#ifndef TERN_OPS_H
#define TERN_OPS_H

#include "autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Elementwise: floats; broadcasting ------------------------------------------------------- */

/* add, sub, mul, maximum, minimum: integers too */
TN_API tn_tensor *tn_add(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_sub(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_mul(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_div(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_pow(tn_tensor *a, tn_tensor *b);
/* NaN wins; at equal values each gets half the gradient */
TN_API tn_tensor *tn_maximum(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_minimum(tn_tensor *a, tn_tensor *b);
/* a % b: remainder has b's sign, like % in Python and PyTorch, fmod has a's, like C. Integers too,
 * with x % 0 = x, which PyTorch refuses */
TN_API tn_tensor *tn_remainder(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_fmod(tn_tensor *a, tn_tensor *b);

TN_API tn_tensor *tn_add_scalar(tn_tensor *x, double k);  /* x + k */
TN_API tn_tensor *tn_mul_scalar(tn_tensor *x, double k);  /* x k */
TN_API tn_tensor *tn_sub_scalar(tn_tensor *x, double k);  /* x - k */
TN_API tn_tensor *tn_div_scalar(tn_tensor *x, double k);  /* x / k */
TN_API tn_tensor *tn_rsub_scalar(tn_tensor *x, double k); /* k - x */
TN_API tn_tensor *tn_rdiv_scalar(tn_tensor *x, double k); /* k / x */
TN_API tn_tensor *tn_pow_scalar(tn_tensor *x, double k);  /* x ^ k */
/* for integers k must fit their dtype and not be 0 */
TN_API tn_tensor *tn_remainder_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_fmod_scalar(tn_tensor *x, double k);
/* gradient dy where low <= x <= high; 0 elsewhere and at NaN */
TN_API tn_tensor *tn_clamp(tn_tensor *x, double low, double high);

TN_API tn_tensor *tn_neg(tn_tensor *x);
TN_API tn_tensor *tn_abs(tn_tensor *x);
TN_API tn_tensor *tn_sign(tn_tensor *x); /* gradient 0 */
TN_API tn_tensor *tn_exp(tn_tensor *x);
TN_API tn_tensor *tn_log(tn_tensor *x);
TN_API tn_tensor *tn_sqrt(tn_tensor *x);
TN_API tn_tensor *tn_rsqrt(tn_tensor *x); /* 1 / sqrt(x) */
TN_API tn_tensor *tn_square(tn_tensor *x);
TN_API tn_tensor *tn_sin(tn_tensor *x);
TN_API tn_tensor *tn_cos(tn_tensor *x);
TN_API tn_tensor *tn_erf(tn_tensor *x);
TN_API tn_tensor *tn_tanh(tn_tensor *x);
TN_API tn_tensor *tn_sigmoid(tn_tensor *x);
TN_API tn_tensor *tn_relu(tn_tensor *x); /* NaN stays; gradient 0 there (PyTorch: dy) and at 0 */
TN_API tn_tensor *tn_silu(tn_tensor *x); /* x sigmoid(x) */
/* silu(a) b: a gate and what it lets through, in one pass. a and b have the same shape. */
TN_API tn_tensor *tn_silu_mul(tn_tensor *a, tn_tensor *b);
/* x Phi(x), using erf (Hendrycks and Gimpel 2016, arXiv:1606.08415) */
TN_API tn_tensor *tn_gelu(tn_tensor *x);
TN_API tn_tensor *tn_gelu_tanh(tn_tensor *x); /* its tanh approximation, as in GPT-2 */

TN_API tn_tensor *tn_leaky_relu(tn_tensor *x, double slope); /* PyTorch's default: 0.01 */
TN_API tn_tensor *tn_elu(tn_tensor *x, double alpha);        /* 1 */
TN_API tn_tensor *tn_selu(tn_tensor *x);
/* log(1 + exp(beta x)) / beta, x itself where beta x > threshold (1, 20); beta is not 0 */
TN_API tn_tensor *tn_softplus(tn_tensor *x, double beta, double threshold);
TN_API tn_tensor *tn_logsigmoid(tn_tensor *x);
TN_API tn_tensor *tn_mish(tn_tensor *x); /* x tanh(softplus(x)) */
/* clamp, but with gradient 0 at the bounds (PyTorch's: -1, 1) */
TN_API tn_tensor *tn_hardtanh(tn_tensor *x, double low, double high);
TN_API tn_tensor *tn_relu6(tn_tensor *x);       /* hardtanh between 0 and 6 */
TN_API tn_tensor *tn_hardsigmoid(tn_tensor *x); /* relu6(x + 3) / 6 */
/* x relu6(x + 3) / 6; the gradient is 0 at -3 and dy at 3, as beyond them (like PyTorch since 2) */
TN_API tn_tensor *tn_hardswish(tn_tensor *x);

TN_API tn_tensor *tn_expm1(tn_tensor *x); /* exp(x) - 1 */
TN_API tn_tensor *tn_log1p(tn_tensor *x); /* log(1 + x) */
TN_API tn_tensor *tn_reciprocal(tn_tensor *x);
TN_API tn_tensor *tn_floor(tn_tensor *x); /* floor, ceil, round: gradient 0 */
TN_API tn_tensor *tn_ceil(tn_tensor *x);
TN_API tn_tensor *tn_round(tn_tensor *x); /* halves to even */
TN_API tn_tensor *tn_tan(tn_tensor *x);
TN_API tn_tensor *tn_asin(tn_tensor *x);
TN_API tn_tensor *tn_acos(tn_tensor *x);
TN_API tn_tensor *tn_atan(tn_tensor *x);
TN_API tn_tensor *tn_atan2(tn_tensor *a, tn_tensor *b); /* the angle of the point (b, a) */
TN_API tn_tensor *tn_sinh(tn_tensor *x);
TN_API tn_tensor *tn_cosh(tn_tensor *x);

/* Comparisons: any dtype, result bool, no gradient. */
TN_API tn_tensor *tn_eq(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_ne(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_lt(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_le(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_gt(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_ge(tn_tensor *a, tn_tensor *b);
/* With a number, which is first rounded to x's dtype. TN_EVALUE: a k that an integer or bool x
 * cannot hold */
TN_API tn_tensor *tn_eq_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_ne_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_lt_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_le_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_gt_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_ge_scalar(tn_tensor *x, double k);

/* For bools, which broadcast; result bool, no gradient. */
TN_API tn_tensor *tn_logical_and(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_or(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_xor(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_not(tn_tensor *x);

/* Tests of elements: any dtype, result bool, no gradient. */
TN_API tn_tensor *tn_isnan(tn_tensor *x);
TN_API tn_tensor *tn_isinf(tn_tensor *x);
TN_API tn_tensor *tn_isfinite(tn_tensor *x);

/* Compare whole tensors: same shape, dtype and elements (NaN equals nothing); or |a - b| <= atol +
 * rtol |b|. False for different shapes or inert tensors. */
TN_API bool tn_equal(tn_tensor *a, tn_tensor *b);
TN_API bool tn_all_close(tn_tensor *a, tn_tensor *b, double rtol, double atol);
TN_API bool tn_allclose(tn_tensor *a, tn_tensor *b); /* with PyTorch's rtol 1e-5, atol 1e-8 */

/* condition: bool; all three broadcast */
TN_API tn_tensor *tn_where(tn_tensor *condition, tn_tensor *a, tn_tensor *b);
/* mask: bool, broadcasts to x */
TN_API tn_tensor *tn_masked_fill(tn_tensor *x, tn_tensor *mask, double value);

/* ---- Creation; more in tensor.h -------------------------------------------------------------- */

/* `steps` numbers from start to end, both included; integers truncate. */
TN_API tn_tensor *tn_linspace(double start, double end, int64_t steps, tn_dtype dtype);
/* (rows, columns): 1 on the diagonal, 0 elsewhere */
TN_API tn_tensor *tn_eye(int64_t rows, int64_t columns, tn_dtype dtype);
/* 0 … n - 1 in random order, i64; drawn from this thread's default generator. */
TN_API tn_tensor *tn_randperm(int64_t n);
/* tn_split into at most `chunks` pieces; as in PyTorch, there may be fewer: 6 in 4 chunks gives 3
 * of 2. */
TN_API int tn_chunk(tn_tensor *t, int chunks, int dim, tn_tensor **out, int most);

/* ---- Copies ---------------------------------------------------------------------------------- */

TN_API tn_tensor *tn_copy(tn_tensor *x);       /* a contiguous copy */
TN_API tn_tensor *tn_contiguous(tn_tensor *x); /* x itself if it is contiguous */
/* x itself if it has that dtype; gradient between float dtypes */
TN_API tn_tensor *tn_cast(tn_tensor *x, tn_dtype dtype);
/* x itself if it is there; the gradient goes back to x's device */
TN_API tn_tensor *tn_to(tn_tensor *x, tn_device device);
TN_API tn_tensor *tn_cat(tn_tensor *const *t, int n, int dim);
TN_API tn_tensor *tn_stack(tn_tensor *const *t, int n, int dim); /* a new dimension */
/* TN_CAT(dim, a, b, …), TN_STACK(dim, a, b, …): the same with the list written out. */
TN_API tn_tensor *tn_identity(tn_tensor *x); /* a view with its own node: a place for hooks */

/* ---- Rearranging: any dtype ------------------------------------------------------------------ */

/* reversed along dims; TN_DIMS(): none */
TN_API tn_tensor *tn_flip(tn_tensor *x, tn_dims dims);
/* shifted cyclically by shifts[i] along dims[i]; TN_DIMS() as dims: all elements as one row */
TN_API tn_tensor *tn_roll(tn_tensor *x, tn_dims shifts, tn_dims dims);
/* x tiled times[i] times along dimension i; extra times make new leading dimensions
 */
TN_API tn_tensor *tn_repeat(tn_tensor *x, tn_dims times);
/* each slice along dim repeated `times` times in a row */
TN_API tn_tensor *tn_repeat_interleave(tn_tensor *x, int64_t times, int dim);
/* (…, m, n): 0 above (tril) or below (triu) a diagonal; 0 is the main one, 1 the next to the
 * right */
TN_API tn_tensor *tn_tril(tn_tensor *x, int64_t diagonal);
TN_API tn_tensor *tn_triu(tn_tensor *x, int64_t diagonal);

/* pads: how many elements to add before and after the last dimension, then the one before it, …:
 * negative numbers remove elements. CONSTANT: `value`; REFLECT: mirrored at the edge, without it;
 * REPLICATE: the edge repeated; CIRCULAR: from the other end. */
typedef enum tn_pad_mode {
    TN_PAD_CONSTANT,
    TN_PAD_REFLECT,
    TN_PAD_REPLICATE,
    TN_PAD_CIRCULAR
} tn_pad_mode;
TN_API tn_tensor *tn_pad(tn_tensor *x, tn_dims pads, tn_pad_mode mode, double value);

/* ---- In place, not recorded ------------------------------------------------------------------- *
 * For optimisers and data. x must not be a recorded result, and not a leaf that requires a gradient
 * while recording is on (TN_ESTATE). Each counts as a change of x: backward through an operation
 * that saved x is then an error. They return x. */

/* from broadcasts; dtypes and devices may differ */
TN_API tn_tensor *tn_copy_(tn_tensor *x, tn_tensor *from);
TN_API tn_tensor *tn_fill_(tn_tensor *x, double value);
TN_API tn_tensor *tn_zero_(tn_tensor *x);
TN_API tn_tensor *tn_add_(tn_tensor *x, tn_tensor *y); /* y broadcasts */
TN_API tn_tensor *tn_sub_(tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_mul_(tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_div_(tn_tensor *x, tn_tensor *y);
TN_API tn_tensor *tn_add_scaled_(tn_tensor *x, tn_tensor *y, double k); /* x + k y */
TN_API tn_tensor *tn_add_scalar_(tn_tensor *x, double k);
TN_API tn_tensor *tn_mul_scalar_(tn_tensor *x, double k);
TN_API tn_tensor *tn_clamp_(tn_tensor *x, double low, double high);
/* Drawn from g, or from the thread's default generator if it is NULL. Uniform in [low, high), with
 * low rounded to x's dtype; rounding never gives `high` (low == high gives low). */
TN_API tn_tensor *tn_uniform_(tn_tensor *x, double low, double high, tn_generator *g);
TN_API tn_tensor *tn_normal_(tn_tensor *x, double mean, double std, tn_generator *g);

/* ---- Reductions: over one dimension, several, or all ----------------------------------------- */

/* dims: which (negative: from the end); TN_DIMS(): all. keepdim keeps them with size 1. For
 * 0-dimensional tensors dims may be 0 or -1, here and in softmax.
 *
 * The mean of bools is the fraction that is true, so an accuracy is
 * tn_item(tn_mean_all(tn_eq(tn_argmax(scores, -1, false), labels))). */
TN_API tn_tensor *tn_sum(tn_tensor *x, tn_dims dims, bool keepdim);  /* integers, bools: to i64 */
TN_API tn_tensor *tn_mean(tn_tensor *x, tn_dims dims, bool keepdim); /* of bools: f32 */
/* equal maxima share the gradient evenly */
TN_API tn_tensor *tn_max(tn_tensor *x, tn_dims dims, bool keepdim);
TN_API tn_tensor *tn_min(tn_tensor *x, tn_dims dims, bool keepdim);
/* divides by count - correction; if that is not positive: inf, or NaN for equal elements */
TN_API tn_tensor *tn_var(tn_tensor *x, tn_dims dims, int correction, bool keepdim);
/* sqrt(var), and the p-norm for any p, even INFINITY. Gradient 0 where they are 0 */
TN_API tn_tensor *tn_std(tn_tensor *x, tn_dims dims, int correction, bool keepdim);
TN_API tn_tensor *tn_norm(tn_tensor *x, double p, tn_dims dims, bool keepdim);
/* any dtype; integers and bools give i64. The gradient is exact even where elements are 0 */
TN_API tn_tensor *tn_prod(tn_tensor *x, tn_dims dims, bool keepdim);
TN_API tn_tensor *tn_cumsum(tn_tensor *x, int dim);
TN_API tn_tensor *tn_cumprod(tn_tensor *x, int dim);
TN_API tn_tensor *tn_logsumexp(tn_tensor *x, tn_dims dims, bool keepdim);
/* cumulative along one dimension: x's shape */
TN_API tn_tensor *tn_logcumsumexp(tn_tensor *x, int dim);
TN_API tn_tensor *tn_sum_all(tn_tensor *x); /* 0-dimensional */
TN_API tn_tensor *tn_mean_all(tn_tensor *x);
/* i64, the first maximum; no gradient */
TN_API tn_tensor *tn_argmax(tn_tensor *x, int dim, bool keepdim);
TN_API tn_tensor *tn_argmin(tn_tensor *x, int dim, bool keepdim); /* the first minimum */
TN_API tn_tensor *tn_any(tn_tensor *x);                           /* bool to 0-dimensional bool */
TN_API tn_tensor *tn_all(tn_tensor *x);

/* Sums x down to a shape that broadcasts to x's: undoes a broadcast. */
TN_API tn_tensor *tn_sum_to(tn_tensor *x, tn_dims dims);

/* ---- Linear algebra -------------------------------------------------------------------------- */

/* (…, m, k) x (…, k, n) -> (…, m, n); leading dimensions broadcast. A 1-dimensional argument is a
 * row (a) or column (b) that is removed from the result, as in NumPy. */
TN_API tn_tensor *tn_matmul(tn_tensor *a, tn_tensor *b);

/* Sums of products by subscripts: "bij,bjk->bik". A letter names a dimension; "..." any that
 * broadcast; a letter twice in an operand takes its diagonal; letters missing from the result are
 * summed. Without "->" the result has the letters that appear once, in alphabetical order. Up to 8
 * operands, combined from left to right by matrix products. */
TN_API tn_tensor *tn_einsum(const char *equation, tn_tensor *const *t, int n);
/* TN_EINSUM(equation, a, b, …): the same with the operands written out. */

/* a (…, I), b (…, J), weight (O, I, J), bias (O) or NULL -> (…, O) = a weight b + bias. */
TN_API tn_tensor *tn_bilinear(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias);

/* x (…, in), weight (out, in), bias (out) or NULL -> (…, out) = x weight^T + bias. */
TN_API tn_tensor *tn_linear_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
/* The same, then gelu_tanh: in one kernel if the device has one. */
TN_API tn_tensor *tn_linear_gelu(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
/* And then a second linear: x (…, in), weight1 (hidden, in), weight2 (out, hidden) -> (…, out). The
 * biases may be NULL. */
TN_API tn_tensor *tn_mlp_op(tn_tensor *x, tn_tensor *weight1, tn_tensor *bias1, tn_tensor *weight2,
                            tn_tensor *bias2);
/* With a weight of signed bytes (i8), whose row j is multiplied by scale[j] (scale (out), any
 * float): for linears after tn_quantize. For inference: x, scale and bias have gradients, which are
 * slow, the weight has none. */
TN_API tn_tensor *tn_linear_q8(tn_tensor *x, tn_tensor *weight, tn_tensor *scale, tn_tensor *bias);

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* How a kernel slides. stride, padding, dilation and output_padding: one number for all dimensions,
 * TN_DIMS(2), or one for each, TN_DIMS(2, 1). */
typedef struct tn_conv_options {
    tn_dims stride, padding, dilation; /* 1, 0, 1 */
    /* false; PyTorch's padding="same": keeps x's sizes, with stride 1 */
    bool same;
    tn_dims output_padding; /* 0; for conv_transpose: enlarges the result at its end by this */
    int64_t groups;         /* 1; in and out channels are split into this many independent groups */
    bool bias;              /* true; only for layers: functions take a bias argument */
    tn_dtype dtype;         /* f32; only for layers: of the parameters */
    bool from_defaults;
} tn_conv_options;
TN_API tn_conv_options tn_conv_defaults(void);
/* The defaults with this stride and padding, as most layers need. */
TN_API tn_conv_options tn_conv_strided(int64_t stride, int64_t padding);

/* x (N, C, in…), weight (O, C / groups, k…), bias (O) or NULL -> (N, O, out…), over 1, 2 or 3
 * dimensions; out = (in + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down. x may lack
 * N, and then so does the result. An infinity or a NaN in x may also reach results next to those
 * that it enters: kernels of 3 x 3 compute several at once. TN_ESHAPE: channels and groups do not
 * fit; the kernel is larger than the padded input. TN_EVALUE: stride, dilation or groups below 1,
 * padding below 0. */
TN_API tn_tensor *tn_conv1d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               tn_conv_options options);
TN_API tn_tensor *tn_conv2d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               tn_conv_options options);
TN_API tn_tensor *tn_conv3d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               tn_conv_options options);

/* x (N, C, in…), weight (C, O / groups, k…), bias (O) or NULL -> (N, O, out…): the gradient of a
 * convolution; out = (in - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1. Dumoulin,
 * Visin 2016, arXiv:1603.07285. TN_EVALUE also: output_padding is not below stride or dilation. */
TN_API tn_tensor *tn_conv_transpose1d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_conv_options options);
TN_API tn_tensor *tn_conv_transpose2d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_conv_options options);
TN_API tn_tensor *tn_conv_transpose3d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_conv_options options);

/* ---- Picking elements ------------------------------------------------------------------------ */

/* index: i64 or i32; TN_EINDEX names a value out of range. Negative values are out of range. */

/* index 1-dimensional */
TN_API tn_tensor *tn_index_select(tn_tensor *x, int dim, tn_tensor *index);
/* index has x's ndim, and sizes up to x's except at dim; here and in scatter_add 0-dimensional
 * tensors count as size 1 */
TN_API tn_tensor *tn_gather(tn_tensor *x, int dim, tn_tensor *index);
/* weight (V, C), index (…) -> (…, C) */
TN_API tn_tensor *tn_embedding_op(tn_tensor *weight, tn_tensor *index);

/* x with src's elements added at index: x[.., index[.., j, ..], ..] += src[.., j, ..] at dim.
 * Floats. index has x's ndim, and at most src's sizes. */
TN_API tn_tensor *tn_scatter_add(tn_tensor *x, int dim, tn_tensor *index, tn_tensor *src);
/* x with values at x[index[0], index[1], …], where the n indices broadcast to one shape and values
 * to that plus the rest of x's dimensions. accumulate: adds (floats); otherwise replaces, and for
 * repeated positions the last wins (in PyTorch: any). An index out of range is noticed at once. */
TN_API tn_tensor *tn_index_put(tn_tensor *x, tn_tensor *const *index, int n, tn_tensor *values,
                               bool accumulate);
/* The indices where x is not 0, (count, x's ndim) i64. Waits for x's device; no gradient. */
TN_API tn_tensor *tn_nonzero(tn_tensor *x);

/* index (…) -> (…, classes) i64: 1 at each index, else 0. classes -1: the largest index plus 1. An
 * index out of range is noticed at once, on any device. */
TN_API tn_tensor *tn_one_hot(tn_tensor *index, int64_t classes);

/* 1 with probability p, else 0, in p's shape and dtype (floats): drawn from the thread's default
 * generator. No gradient. */
TN_API tn_tensor *tn_bernoulli(tn_tensor *p);

/* Indices, i64, drawn with weights (n) or (rows, n), floats, which need not sum to 1: (count) or
 * (rows, count). Without replacement the indices of a row differ, and have weights above 0. One
 * draw from the thread's default generator; waits for the weights' device. */
TN_API tn_tensor *tn_multinomial(tn_tensor *weights, int64_t count, bool replacement);

/* ---- Sorting: any dtype ---------------------------------------------------------------------- */

/* Equal elements keep their order, even when descending (PyTorch's stable=True); NaN is the largest
 * number, and 0 equals -0. */

/* sorted along dim; *index (unless NULL): where each element was, i64 */
TN_API tn_tensor *tn_sort(tn_tensor *x, int dim, bool descending, tn_tensor **index);
TN_API tn_tensor *tn_argsort(tn_tensor *x, int dim, bool descending);
/* the k largest (or smallest) along dim, in order; of equal ones the earlier first */
TN_API tn_tensor *tn_topk(tn_tensor *x, int64_t k, int dim, bool largest, tn_tensor **index);
/* x's distinct elements, ascending; *inverse (unless NULL): the index of each element of x among
 * them, in x's shape; *counts (unless NULL): how often each occurs. Every NaN is distinct. Waits
 * for x's device; no gradient. */
TN_API tn_tensor *tn_unique(tn_tensor *x, tn_tensor **inverse, tn_tensor **counts);

/* ---- Networks -------------------------------------------------------------------------------- */

/* exp(x) / sum exp(x) along dim, and its logarithm, without overflow. Any number of dimensions. */
TN_API tn_tensor *tn_softmax(tn_tensor *x, int dim);
TN_API tn_tensor *tn_log_softmax(tn_tensor *x, int dim);

/* Over the last dimension (C): weight and bias (C) or NULL. Ba, Kiros,
 * Hinton 2016, arXiv:1607.06450. */
TN_API tn_tensor *tn_layer_norm_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps);

/* layer_norm(a + b), and the sum itself in *sum (unless NULL): a residual connection and the norm
 * after it, in one kernel if the device has one. a and b have the same shape. */
TN_API tn_tensor *tn_add_layer_norm(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias,
                                    double eps, tn_tensor **sum);

/* x weight / sqrt(mean(x x) + eps) over the last dimension. Zhang,
 * Sennrich 2019, arXiv:1910.07467. */
TN_API tn_tensor *tn_rms_norm_op(tn_tensor *x, tn_tensor *weight, double eps);
/* rms_norm(a + b), and the sum itself in *sum (unless NULL), like tn_add_layer_norm. */
TN_API tn_tensor *tn_add_rms_norm(tn_tensor *a, tn_tensor *b, tn_tensor *weight, double eps,
                                  tn_tensor **sum);

/* Normalises each channel of x (N, C, …): (x - mean) / sqrt(var + eps) weight + bias; these are
 * (C), or NULL. `training`: mean and variance are the batch's, over all dimensions but C, and
 * update the running ones, if not NULL: running <- (1 - momentum) running + momentum batch (the
 * variance unbiased). Otherwise the running ones are used, and must not be NULL. They are (C), f32
 * (f64 for f64), and change in place. TN_EVALUE: training with one element per channel. Ioffe,
 * Szegedy 2015, arXiv:1502.03167. */
TN_API tn_tensor *tn_batch_norm(tn_tensor *x, tn_tensor *running_mean, tn_tensor *running_var,
                                tn_tensor *weight, tn_tensor *bias, bool training, double momentum,
                                double eps);

/* The same without a batch: for every sample, over `groups` groups of channels (Wu, He 2018,
 * arXiv:1803.08494), or over each channel (Ulyanov et al. 2016, arXiv:1607.08022). weight and bias
 * (C) or NULL. C must be a multiple of groups; a single element to normalise is TN_EVALUE. */
TN_API tn_tensor *tn_group_norm_op(tn_tensor *x, int64_t groups, tn_tensor *weight, tn_tensor *bias,
                                   double eps);
TN_API tn_tensor *tn_instance_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps);

/* Zero with probability p, the rest scaled by 1 / (1 - p). Takes one draw from the thread's default
 * generator if p > 0. */
TN_API tn_tensor *tn_dropout_op(tn_tensor *x, double p);

/* softmax(q k^T scale) v. q (B, H, T, D), k and v (B, G, S, D), H a multiple of G (grouped heads).
 * mask: NULL, or bool, broadcasts to (B, H, T, S), true where a key may be seen. causal: query i
 * also sees keys only up to i + S - T. scale 0: 1 / sqrt(D).
 *
 * Keys that a query does not see do not affect its result and get no gradient from it, even if they
 * are NaN (except with create_graph, and with a causal mask in bf16 or f16 on a GPU, where cuDNN
 * computes: both multiply them by 0). A query that sees nothing gives zeros and gets zero
 * gradients, where a softmax of nothing would give NaN.
 *
 * Memory is linear in T and S: no T x S matrix is kept (Dao et al. 2022, arXiv:2205.14135). As
 * there, backward recomputes the probabilities from one float per query: for scores of about s they
 * are accurate to s roundings. */
typedef struct tn_attention_options {
    bool causal;
    double scale;
    bool from_defaults;
} tn_attention_options;
TN_API tn_attention_options tn_attention_defaults(void); /* not causal, scale 0 */
TN_API tn_tensor *tn_attention(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                               tn_attention_options options);

/* Self-attention over one projection's rows: qkv (B, T, 3 C) holds q, k and v side by side, each C
 * = heads D wide -> (B, T, C). mask broadcasts to (B, heads, T, T). The same numbers as
 * tn_attention of the three parts, without copying them in backward. */
TN_API tn_tensor *tn_attention_qkv(tn_tensor *qkv, int heads, tn_tensor *mask,
                                   tn_attention_options options);

/* Rotary positions: rotates each row of x (B, H, T, D), D even, by its position, so that the
 * product of a query's and a key's row depends on their distance. positions: (T) or (B, T), i64 or
 * i32. The rotated pairs are (i, i + D/2), as in Hugging Face's Llama. Su et al. 2021,
 * arXiv:2104.09864; the factor, for longer contexts, is Llama 3.1's (arXiv:2407.21783). */
typedef struct tn_rotary_options {
    double theta;             /* 10000: pair i of n turns theta^(-i / n) radians per position */
    double factor;            /* 1: slow pairs turn this many times more slowly still */
    double low_freq_factor;   /* 1: pairs with fewer turns in original_context are slow, … */
    double high_freq_factor;  /* 4: … those with more are fast; in between they blend */
    int64_t original_context; /* 8192 */
    bool from_defaults;
} tn_rotary_options;
TN_API tn_rotary_options tn_rotary_defaults(void);
TN_API tn_tensor *tn_rotary(tn_tensor *x, tn_tensor *positions, tn_rotary_options options);

/* ---- Pooling --------------------------------------------------------------------------------- */

/* How a window slides. kernel, stride, padding, dilation: one number for all dimensions,
 * TN_DIMS(2), or one for each, TN_DIMS(2, 1). */
typedef struct tn_pool_options {
    tn_dims stride;           /* TN_DIMS(): the kernel's size */
    tn_dims padding;          /* 0; at most half the kernel */
    tn_dims dilation;         /* 1; max_pool only */
    bool ceil_mode;           /* false; true: also a last window that is partly outside */
    bool count_include_pad;   /* true; avg_pool only: padding counts as zeros */
    int64_t divisor_override; /* what avg_pool divides sums by; 0: the window's size */
    bool from_defaults;
} tn_pool_options;
TN_API tn_pool_options tn_pool_defaults(void);

/* x (N, C, in…) -> (N, C, out…): the maximum of each window (NaN wins, the first of equals gets the
 * gradient), or the mean; out = (in + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down,
 * or up with ceil_mode. x may lack N, and then so does the result. TN_ESHAPE: the window is larger
 * than the padded input; TN_EVALUE: numbers out of range. */
TN_API tn_tensor *tn_max_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_max_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_max_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_avg_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_avg_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_avg_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);

/* Pooling to a given size: window i is from floor(i in / out) to ceil((i + 1) in / out). */
TN_API tn_tensor *tn_adaptive_max_pool1d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_max_pool2d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_max_pool3d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_avg_pool1d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_avg_pool2d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_avg_pool3d_op(tn_tensor *x, tn_dims size);

/* ---- Interpolation, patches ------------------------------------------------------------------ */

typedef enum tn_interpolation {
    TN_INTERPOLATE_NEAREST, /* PyTorch's "nearest": rounded down */
    TN_INTERPOLATE_EXACT,   /* the nearest by pixel centres */
    TN_INTERPOLATE_LINEAR,  /* linear, bilinear or trilinear, by x's dimensions */
    TN_INTERPOLATE_CUBIC,   /* bicubic, Keys 1981 */
    TN_INTERPOLATE_AREA     /* tn_adaptive_avg_pool2d_op and the like */
} tn_interpolation;
typedef struct tn_interpolate_options {
    tn_dims size;          /* of the result, one number for all dimensions or one for each … */
    double scale_factor;   /* … or the factor by which it is larger */
    tn_interpolation mode; /* TN_INTERPOLATE_NEAREST */
    bool align_corners;    /* false; true: first and last elements stay the same (linear, cubic) */
    bool from_defaults;
} tn_interpolate_options;
TN_API tn_interpolate_options tn_interpolate_defaults(void);
/* x (N, C, in…) -> (N, C, out…), 1 to 3 dimensions, cubic 2. TN_EVALUE: both size and scale_factor,
 * or neither; a size below 1. */
TN_API tn_tensor *tn_interpolate(tn_tensor *x, tn_interpolate_options options);

/* One number for both dimensions, or one for each. */
typedef struct tn_unfold_options {
    tn_dims dilation, padding, stride; /* 1, 0, 1 */
    bool from_defaults;
} tn_unfold_options;
TN_API tn_unfold_options tn_unfold_defaults(void);
/* x (N, C, H, W) -> (N, C kh kw, places): the patches under a kernel, as columns; tn_fold adds
 * patches up to an image of `size`, at least 1. Without N, the result has none either. */
TN_API tn_tensor *tn_unfold(tn_tensor *x, tn_dims kernel, tn_unfold_options options);
TN_API tn_tensor *tn_fold(tn_tensor *x, tn_dims size, tn_dims kernel, tn_unfold_options options);

/* ---- Recurrent nets: one layer in one direction ---------------------------------------------- */

/* x (T, B, I) -> y (T, B, H), the state h after each of the T times, and the last one in *hn (B, H)
 * (unless NULL). h0 and c0: the initial state, (B, H); NULL: zeros. `reverse`: from time T - 1 to
 * 0. lengths: NULL, or (B) i64 or i32, 1 … T in any order (else TN_EVALUE): row b has lengths[b]
 * times; y is 0 after them, the last state is that of the row's own last time, and with `reverse`
 * the row begins at its own end. All times run in one kernel if the device has one.
 *
 * The weights, with G = 1, 3, 4 gates of rnn, gru, lstm in PyTorch's order: weight_ih (G H, I),
 * weight_hh (G H, H), and bias_ih and bias_hh (G H) or NULL. For several layers, both directions
 * and batch_first: tn_rnn, tn_gru, tn_lstm (layers.h). */
typedef struct tn_rnn_weights {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
} tn_rnn_weights;

/* h' = tanh(w_ih x + b_ih + w_hh h + b_hh), or with relu */
TN_API tn_tensor *tn_rnn_op(tn_tensor *x, tn_tensor *h0, tn_rnn_weights w, tn_tensor *lengths,
                            bool reverse, bool relu, tn_tensor **hn);
/* Cho et al. 2014, arXiv:1406.1078; gates r, z, n, with r where PyTorch has it: n = tanh(p2 + r
 * a2) */
TN_API tn_tensor *tn_gru_op(tn_tensor *x, tn_tensor *h0, tn_rnn_weights w, tn_tensor *lengths,
                            bool reverse, tn_tensor **hn);
/* Hochreiter, Schmidhuber 1997; gates i, f, g, o */
TN_API tn_tensor *tn_lstm_op(tn_tensor *x, tn_tensor *h0, tn_tensor *c0, tn_rnn_weights w,
                             tn_tensor *lengths, bool reverse, tn_tensor **hn, tn_tensor **cn);

/* ---- Losses: 0-dimensional, or one value per row with TN_NONE -------------------------------- */

/* reductions: TN_MEAN, TN_SUM, TN_NONE */

/* same shapes; NONE: x's shape */
TN_API tn_tensor *tn_mse(tn_tensor *x, tn_tensor *target, tn_reduction how);
TN_API tn_tensor *tn_l1(tn_tensor *x, tn_tensor *target, tn_reduction how);
/* with d = |x - target|: d^2 / (2 beta) below beta, d - beta / 2 above (beta not negative;
 * PyTorch's default: 1) */
TN_API tn_tensor *tn_smooth_l1(tn_tensor *x, tn_tensor *target, tn_reduction how, double beta);
/* d^2 / 2 up to delta, delta (d - delta / 2) beyond (delta above 0; 1) */
TN_API tn_tensor *tn_huber(tn_tensor *x, tn_tensor *target, tn_reduction how, double delta);
/* target (log target - x): x and (with log_target) target are log-probabilities. PyTorch's
 * "batchmean" is TN_SUM divided by the number of rows. */
TN_API tn_tensor *tn_kl_div(tn_tensor *x, tn_tensor *target, tn_reduction how, bool log_target);

/* x: probabilities; target: in [0, 1]; weight: NULL, or broadcasts to x. Logarithms are at least
 * -100, and their slopes at most 1e12, as in PyTorch. TN_EVALUE names an element of x or target
 * that is NaN or outside [0, 1]; on a device, to avoid waiting for it, the loss of such an x is
 * NaN. */
TN_API tn_tensor *tn_bce(tn_tensor *x, tn_tensor *target, tn_tensor *weight, tn_reduction how);

/* The same for sigmoid(x), without its overflow and rounding. The weights are options. */
typedef struct tn_bce_options {
    tn_reduction reduction; /* TN_MEAN */
    tn_tensor *weight;      /* NULL; broadcasts to x */
    tn_tensor *pos_weight;  /* NULL; broadcasts to x: the weight of a target of 1 */
    bool from_defaults;
} tn_bce_options;
TN_API tn_bce_options tn_bce_defaults(void);
TN_API tn_tensor *tn_bce_with_logits(tn_tensor *x, tn_tensor *target, tn_reduction how);
TN_API tn_tensor *tn_bce_with_logits_with(tn_tensor *x, tn_tensor *target, tn_bce_options options);

/* log_probabilities (…, C), labels (…) i64 or i32. The mean is over the weights of the rows that
 * are not ignored. NONE: (…). TN_EINDEX names a label outside [0, C). */
typedef struct tn_nll_options {
    tn_reduction reduction; /* TN_MEAN */
    int64_t ignore_index;   /* -100 */
    tn_tensor *weight;      /* NULL; (C) */
    bool from_defaults;
} tn_nll_options;
TN_API tn_nll_options tn_nll_defaults(void);
TN_API tn_tensor *tn_nll(tn_tensor *log_probabilities, tn_tensor *labels, tn_reduction how);
TN_API tn_tensor *tn_nll_with(tn_tensor *log_probabilities, tn_tensor *labels,
                              tn_nll_options options);

/* sum a b / (max(|a|, eps) max(|b|, eps)) along dim, which is removed; a and b broadcast (eps not
 * negative; 1e-8) */
TN_API tn_tensor *tn_cosine_similarity(tn_tensor *a, tn_tensor *b, int dim, double eps);
/* (…, C) each: max(0, d(anchor, positive) - d(anchor, negative) + margin). NONE: (…). Balntas et
 * al. 2016 (swap too). */
typedef struct tn_triplet_options {
    tn_reduction reduction; /* TN_MEAN */
    double margin;          /* 1 */
    double p;               /* 2: the norm of d(u, v) = |u - v + eps| */
    double eps;             /* 1e-6 */
    bool swap; /* false; true: use d(positive, negative) where it is less than d(anchor, negative)
                */
    bool from_defaults;
} tn_triplet_options;
TN_API tn_triplet_options tn_triplet_defaults(void);
TN_API tn_tensor *tn_triplet_margin(tn_tensor *anchor, tn_tensor *positive, tn_tensor *negative,
                                    tn_triplet_options options);

/* logits (…, C), labels (…) i64 or i32. The mean is over the rows that are not ignored. NONE: (…).
 * bf16 and f16 logits give an f32 loss. TN_EINDEX names a label outside [0, C). Logits of ignored
 * rows may be anything: loss and gradient are 0 there, even for NaN (in PyTorch the gradient is
 * NaN). */
typedef struct tn_cross_entropy_options {
    tn_reduction reduction; /* TN_MEAN */
    int64_t ignore_index;   /* -100 */
    double label_smoothing; /* 0 */
    /* false; true: backward overwrites the logits with their gradient, so they must have no other
     * use */
    bool consume_logits;
    tn_tensor *weight; /* (C), the weight of each class, in the mean too. NULL: 1. Not fused
                        */
    bool from_defaults;
} tn_cross_entropy_options;
TN_API tn_cross_entropy_options tn_cross_entropy_defaults(void);
TN_API tn_tensor *tn_cross_entropy(tn_tensor *logits, tn_tensor *labels, tn_reduction how);
TN_API tn_tensor *tn_cross_entropy_with(tn_tensor *logits, tn_tensor *labels,
                                        tn_cross_entropy_options options);

/* Connectionist temporal classification: the loss of a label sequence without alignment to frames.
 * Graves et al. 2006 (ICML).
 *
 * log_probs (T, N, C): a log_softmax of the net's output (normalised here if it is not). targets:
 * (N, S), or concatenated in one dimension; input_lengths (N), 0 to T, and target_lengths (N): how
 * much of each counts; all i64 or i32. The mean is over the losses divided by their target's
 * length, as in PyTorch; NONE: (N). bf16 and f16 give an f32 loss. A target without a possible
 * alignment has loss inf, or 0 with zero_infinity, and gradient 0 (PyTorch: NaN, or 0). TN_EINDEX
 * names a label outside [0, C), TN_EVALUE an invalid length. It has no second derivative. */
typedef struct tn_ctc_options {
    int64_t blank;          /* 0: the class that means no label */
    tn_reduction reduction; /* TN_MEAN */
    bool zero_infinity;     /* false */
    bool from_defaults;
} tn_ctc_options;
TN_API tn_ctc_options tn_ctc_defaults(void);
TN_API tn_tensor *tn_ctc(tn_tensor *log_probs, tn_tensor *targets, tn_tensor *input_lengths,
                         tn_tensor *target_lengths, tn_ctc_options options);

#ifdef __cplusplus
}
typedef std::initializer_list<tn_tensor *> tn__tensors;
static inline tn_tensor *tn__cat_cxx(int dim, tn__tensors t) {
    return tn_cat(t.begin(), (int)t.size(), dim);
}
static inline tn_tensor *tn__stack_cxx(int dim, tn__tensors t) {
    return tn_stack(t.begin(), (int)t.size(), dim);
}
static inline tn_tensor *tn__einsum_cxx(const char *equation, tn__tensors t) {
    return tn_einsum(equation, t.begin(), (int)t.size());
}
#define TN_CAT(dim, ...) tn__cat_cxx(dim, {__VA_ARGS__})
#define TN_STACK(dim, ...) tn__stack_cxx(dim, {__VA_ARGS__})
#define TN_EINSUM(equation, ...) tn__einsum_cxx(equation, {__VA_ARGS__})
#else
#define TN__TENSORS(...) \
    (tn_tensor *[]){__VA_ARGS__}, (int)(sizeof((tn_tensor *[]){__VA_ARGS__}) / sizeof(tn_tensor *))
#define TN_CAT(dim, ...) tn_cat(TN__TENSORS(__VA_ARGS__), dim)
#define TN_STACK(dim, ...) tn_stack(TN__TENSORS(__VA_ARGS__), dim)
#define TN_EINSUM(equation, ...) tn_einsum(equation, TN__TENSORS(__VA_ARGS__))
#endif
#endif
