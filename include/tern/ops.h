/* Operations: what computes new elements, with gradients unless it says otherwise.
 *
 * Inputs of one call share a dtype and a device; nothing is promoted silently (tn_cast converts).
 * Shapes broadcast as NumPy's where a function says so. A failing call returns an inert tensor; see
 * core.h. Each operation is one file under ops/.
 */
#ifndef TERN_OPS_H
#define TERN_OPS_H

#include "autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Elementwise: floats; broadcasting ------------------------------------------------------- */

/* add, sub, mul, maximum, minimum: also integers */
TN_API tn_tensor *tn_add(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_sub(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_mul(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_div(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_pow(tn_tensor *a, tn_tensor *b);
/* NaN wins; at equal values each gets half the gradient */
TN_API tn_tensor *tn_maximum(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_minimum(tn_tensor *a, tn_tensor *b);
/* a % b: remainder has b's sign, as Python's % and PyTorch's, fmod a's, as C's. Also integers, of
 * which x % 0 is x, where PyTorch refuses */
TN_API tn_tensor *tn_remainder(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_fmod(tn_tensor *a, tn_tensor *b);

TN_API tn_tensor *tn_add_scalar(tn_tensor *x, double k);  /* x + k */
TN_API tn_tensor *tn_mul_scalar(tn_tensor *x, double k);  /* x k */
TN_API tn_tensor *tn_sub_scalar(tn_tensor *x, double k);  /* x - k */
TN_API tn_tensor *tn_div_scalar(tn_tensor *x, double k);  /* x / k */
TN_API tn_tensor *tn_rsub_scalar(tn_tensor *x, double k); /* k - x */
TN_API tn_tensor *tn_rdiv_scalar(tn_tensor *x, double k); /* k / x */
TN_API tn_tensor *tn_pow_scalar(tn_tensor *x, double k);  /* x ^ k */
/* of integers a k that they can hold, and not 0 */
TN_API tn_tensor *tn_remainder_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_fmod_scalar(tn_tensor *x, double k);
/* gradient dy where low <= x <= high, the bounds included; 0 elsewhere and at NaN */
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
/* x Phi(x), by erf (Hendrycks and Gimpel 2016, arXiv:1606.08415) */
TN_API tn_tensor *tn_gelu(tn_tensor *x);
TN_API tn_tensor *tn_gelu_tanh(tn_tensor *x); /* its tanh approximation, GPT-2's */

TN_API tn_tensor *tn_leaky_relu(tn_tensor *x, double slope); /* PyTorch's default: 0.01 */
TN_API tn_tensor *tn_elu(tn_tensor *x, double alpha);        /* 1 */
TN_API tn_tensor *tn_selu(tn_tensor *x);
/* log(1 + exp(beta x)) / beta, x itself where beta x > threshold (1, 20); beta is not 0 */
TN_API tn_tensor *tn_softplus(tn_tensor *x, double beta, double threshold);
TN_API tn_tensor *tn_logsigmoid(tn_tensor *x);
TN_API tn_tensor *tn_mish(tn_tensor *x); /* x tanh(softplus(x)) */
/* clamp, with no gradient at the bounds (-1, 1) */
TN_API tn_tensor *tn_hardtanh(tn_tensor *x, double low, double high);
TN_API tn_tensor *tn_relu6(tn_tensor *x);       /* hardtanh between 0 and 6 */
TN_API tn_tensor *tn_hardsigmoid(tn_tensor *x); /* relu6(x + 3) / 6 */
/* x relu6(x + 3) / 6; the gradient is 0 at -3 and dy at 3, as outside (PyTorch's, since 2) */
TN_API tn_tensor *tn_hardswish(tn_tensor *x);

TN_API tn_tensor *tn_expm1(tn_tensor *x); /* exp(x) - 1 */
TN_API tn_tensor *tn_log1p(tn_tensor *x); /* log(1 + x) */
TN_API tn_tensor *tn_reciprocal(tn_tensor *x);
TN_API tn_tensor *tn_floor(tn_tensor *x); /* of all three the gradient is 0 */
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
/* With a number, which is rounded to x's dtype first. TN_EVALUE: an integer or bool x, and a k that
 * it cannot hold */
TN_API tn_tensor *tn_eq_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_ne_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_lt_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_le_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_gt_scalar(tn_tensor *x, double k);
TN_API tn_tensor *tn_ge_scalar(tn_tensor *x, double k);

/* Of bools, which broadcast; result bool, no gradient. */
TN_API tn_tensor *tn_logical_and(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_or(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_xor(tn_tensor *a, tn_tensor *b);
TN_API tn_tensor *tn_logical_not(tn_tensor *x);

/* What kind of number: any dtype, result bool, no gradient. */
TN_API tn_tensor *tn_isnan(tn_tensor *x);
TN_API tn_tensor *tn_isinf(tn_tensor *x);
TN_API tn_tensor *tn_isfinite(tn_tensor *x);

/* Whole tensors, as an answer and not a tensor: same shape, dtype and elements (NaN equals
 * nothing); or |a - b| <= atol + rtol |b|. False for different shapes or inert tensors. */
TN_API bool tn_equal(tn_tensor *a, tn_tensor *b);
TN_API bool tn_all_close(tn_tensor *a, tn_tensor *b, double rtol, double atol);
TN_API bool tn_allclose(tn_tensor *a, tn_tensor *b); /* with PyTorch's rtol 1e-5, atol 1e-8 */

/* condition: bool; all three broadcast */
TN_API tn_tensor *tn_where(tn_tensor *condition, tn_tensor *a, tn_tensor *b);
/* mask: bool, broadcasts to x */
TN_API tn_tensor *tn_masked_fill(tn_tensor *x, tn_tensor *mask, double value);

/* ---- Made: more of it in tensor.h ------------------------------------------------------------ */

/* `steps` numbers from start to end, both included; integers truncate. */
TN_API tn_tensor *tn_linspace(double start, double end, int64_t steps, tn_dtype dtype);
/* (rows, columns): 1 on the diagonal, 0 elsewhere */
TN_API tn_tensor *tn_eye(int64_t rows, int64_t columns, tn_dtype dtype);
/* 0 … n - 1 in random order, i64; drawn from this thread's default generator. */
TN_API tn_tensor *tn_randperm(int64_t n);
/* tn_split with pieces of such a size that there are at most `chunks`; as in PyTorch, fewer where
 * the size does not divide: 6 in 4 chunks are 3 of 2. */
TN_API int tn_chunk(tn_tensor *t, int chunks, int dim, tn_tensor **out, int most);

/* ---- Copies ---------------------------------------------------------------------------------- */

TN_API tn_tensor *tn_copy(tn_tensor *x);       /* a contiguous copy */
TN_API tn_tensor *tn_contiguous(tn_tensor *x); /* x itself when it is contiguous */
/* x itself when it has that dtype; gradient between float dtypes */
TN_API tn_tensor *tn_cast(tn_tensor *x, tn_dtype dtype);
/* x itself when it is there; the gradient goes back to x's device */
TN_API tn_tensor *tn_to(tn_tensor *x, tn_device device);
TN_API tn_tensor *tn_cat(tn_tensor *const *t, int n, int dim);
TN_API tn_tensor *tn_stack(tn_tensor *const *t, int n, int dim); /* a new dimension */
/* TN_CAT(dim, a, b, …), TN_STACK(dim, a, b, …): the same with the list written out. */
TN_API tn_tensor *tn_identity(tn_tensor *x); /* a view with its own node: a place for hooks */

/* ---- Rearranged: any dtype ------------------------------------------------------------------- */

/* reversed along dims; TN_DIMS() is none of them */
TN_API tn_tensor *tn_flip(tn_tensor *x, tn_dims dims);
/* moved by shifts[i] along dims[i], around the end; TN_DIMS() as dims: all elements as one row */
TN_API tn_tensor *tn_roll(tn_tensor *x, tn_dims shifts, tn_dims dims);
/* x times[i] times side by side along dimension i; more times than dimensions make new leading ones
 */
TN_API tn_tensor *tn_repeat(tn_tensor *x, tn_dims times);
/* each slice along dim `times` times in a row */
TN_API tn_tensor *tn_repeat_interleave(tn_tensor *x, int64_t times, int dim);
/* (…, m, n): 0 above, below a diagonal; 1 is one to the right of the one that begins at (0, 0) */
TN_API tn_tensor *tn_tril(tn_tensor *x, int64_t diagonal);
TN_API tn_tensor *tn_triu(tn_tensor *x, int64_t diagonal);

/* pads: how many elements before and after the last dimension, then the one before it, …: negative
 * numbers take elements away. CONSTANT: of this value; REFLECT: back from the edge, without it;
 * REPLICATE: the edge again and again; CIRCULAR: from the other end. value is CONSTANT's. */
typedef enum tn_pad_mode {
    TN_PAD_CONSTANT,
    TN_PAD_REFLECT,
    TN_PAD_REPLICATE,
    TN_PAD_CIRCULAR
} tn_pad_mode;
TN_API tn_tensor *tn_pad(tn_tensor *x, tn_dims pads, tn_pad_mode mode, double value);

/* ---- In place: not recorded ------------------------------------------------------------------- *
 * For optimisers and data. x must not be a recorded result, and not a leaf that requires a gradient
 * while recording is on (TN_ESTATE). Each counts as a change of x: backward through something that
 * saved x is then an error. Return x. */

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
/* Drawn from g, or the thread's default generator when it is NULL. Uniform in [low, high), where
 * low is rounded to x's dtype; `high` is not reached by rounding (low == high gives low). */
TN_API tn_tensor *tn_uniform_(tn_tensor *x, double low, double high, tn_generator *g);
TN_API tn_tensor *tn_normal_(tn_tensor *x, double mean, double std, tn_generator *g);

/* ---- Reductions: over one dimension, several, or all ----------------------------------------- */

/* dims: which (negative counts from the end); TN_DIMS() is all of them. keepdim leaves size 1.
 * 0 and -1 may also be said of 0-dimensional tensors, here and in softmax: all of it.
 *
 * The mean of bools is the share of true ones, so an accuracy is
 * tn_item(tn_mean_all(tn_eq(tn_argmax(scores, -1, false), labels))). */
TN_API tn_tensor *tn_sum(tn_tensor *x, tn_dims dims, bool keepdim);  /* integers, bools: to i64 */
TN_API tn_tensor *tn_mean(tn_tensor *x, tn_dims dims, bool keepdim); /* of bools: f32 */
/* equal largest elements share the gradient evenly */
TN_API tn_tensor *tn_max(tn_tensor *x, tn_dims dims, bool keepdim);
TN_API tn_tensor *tn_min(tn_tensor *x, tn_dims dims, bool keepdim);
/* divides by count - correction; inf, or NaN for equal elements, when that is not positive */
TN_API tn_tensor *tn_var(tn_tensor *x, tn_dims dims, int correction, bool keepdim);
/* sqrt(var), and the p-norm: p any number, INFINITY too. Gradient 0 where they are 0 */
TN_API tn_tensor *tn_std(tn_tensor *x, tn_dims dims, int correction, bool keepdim);
TN_API tn_tensor *tn_norm(tn_tensor *x, double p, tn_dims dims, bool keepdim);
/* any dtype; integers and bools give i64. The gradient is right where elements are 0, too */
TN_API tn_tensor *tn_prod(tn_tensor *x, tn_dims dims, bool keepdim);
TN_API tn_tensor *tn_cumsum(tn_tensor *x, int dim);
TN_API tn_tensor *tn_cumprod(tn_tensor *x, int dim);
TN_API tn_tensor *tn_logsumexp(tn_tensor *x, tn_dims dims, bool keepdim);
/* of the elements so far along one dimension: x's shape */
TN_API tn_tensor *tn_logcumsumexp(tn_tensor *x, int dim);
TN_API tn_tensor *tn_sum_all(tn_tensor *x); /* 0-dimensional */
TN_API tn_tensor *tn_mean_all(tn_tensor *x);
/* i64, the first largest; no gradient */
TN_API tn_tensor *tn_argmax(tn_tensor *x, int dim, bool keepdim);
TN_API tn_tensor *tn_argmin(tn_tensor *x, int dim, bool keepdim); /* the first smallest */
TN_API tn_tensor *tn_any(tn_tensor *x);                           /* bool to 0-dimensional bool */
TN_API tn_tensor *tn_all(tn_tensor *x);

/* Sums x down to a shape that broadcasts to x's: what undoes a broadcast. */
TN_API tn_tensor *tn_sum_to(tn_tensor *x, tn_dims dims);

/* ---- Linear algebra -------------------------------------------------------------------------- */

/* (…, m, k) x (…, k, n) -> (…, m, n); leading dimensions broadcast. A 1-dimensional argument is a
 * row (a) or column (b) that is removed from the result, as in NumPy. */
TN_API tn_tensor *tn_matmul(tn_tensor *a, tn_tensor *b);

/* Sums of products by subscripts: "bij,bjk->bik". A letter names a dimension; "..." some that
 * broadcast; a letter twice in an operand is its diagonal; what the result does not name is summed.
 * Without "->" the result has the letters that appear once, in alphabetical order. Up to 8
 * operands, which are joined from left to right by products of matrices. */
TN_API tn_tensor *tn_einsum(const char *equation, tn_tensor *const *t, int n);
/* TN_EINSUM(equation, a, b, …): the same with the operands written out. */

/* a (…, I), b (…, J), weight (O, I, J), bias (O) or NULL -> (…, O) = a weight b + bias. */
TN_API tn_tensor *tn_bilinear(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias);

/* x (…, in), weight (out, in), bias (out) or NULL -> (…, out) = x weight^T + bias. */
TN_API tn_tensor *tn_linear_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
/* The same, then gelu_tanh: in one kernel where the device has one. */
TN_API tn_tensor *tn_linear_gelu(tn_tensor *x, tn_tensor *weight, tn_tensor *bias);
/* With a weight of signed bytes (i8), whose row j counts scale[j] times (scale (out), any float):
 * what tn_quantize makes of linears. For inference: x, scale and bias have gradients, which are not
 * fast, the weight has none. */
TN_API tn_tensor *tn_linear_q8(tn_tensor *x, tn_tensor *weight, tn_tensor *scale, tn_tensor *bias);

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* How a kernel slides. stride, padding, dilation and output_padding: one number for all dimensions,
 * TN_DIMS(2), or one for each, TN_DIMS(2, 1). */
typedef struct tn_conv_options {
    tn_dims stride, padding, dilation; /* 1, 0, 1 */
    /* false; PyTorch's padding="same": padding is what keeps x's sizes, with stride 1 */
    bool same;
    tn_dims output_padding; /* 0; of conv_transpose: the result is so much larger at its ends */
    int64_t groups;         /* 1; in and out channels are in so many parts, each on its own */
    bool bias;              /* true; of a layer: the functions are given theirs */
    tn_dtype dtype;         /* f32; of a layer's parameters */
    bool from_defaults;
} tn_conv_options;
TN_API tn_conv_options tn_conv_defaults(void);
/* The defaults with this stride and padding, what most layers need. */
TN_API tn_conv_options tn_conv_strided(int64_t stride, int64_t padding);

/* x (N, C, in…), weight (O, C / groups, k…), bias (O) or NULL -> (N, O, out…), over 1, 2 or 3
 * dimensions; out = (in + 2 padding - dilation (k - 1) - 1) / stride + 1, rounded down. x may come
 * without N: so does the result then. TN_ESHAPE: channels and groups do not fit; the kernel is
 * larger than the padded input. TN_EVALUE: stride, dilation or groups below 1, padding below 0. */
TN_API tn_tensor *tn_conv1d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               tn_conv_options options);
TN_API tn_tensor *tn_conv2d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               tn_conv_options options);
TN_API tn_tensor *tn_conv3d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                               tn_conv_options options);

/* x (N, C, in…), weight (C, O / groups, k…), bias (O) or NULL -> (N, O, out…): what the gradient of
 * a convolution does; out = (in - 1) stride - 2 padding + dilation (k - 1) + output_padding + 1.
 * Dumoulin, Visin 2016, arXiv:1603.07285. TN_EVALUE also: output_padding is not below stride or
 * dilation. */
TN_API tn_tensor *tn_conv_transpose1d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_conv_options options);
TN_API tn_tensor *tn_conv_transpose2d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_conv_options options);
TN_API tn_tensor *tn_conv_transpose3d_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                         tn_conv_options options);

/* ---- Picking elements ------------------------------------------------------------------------ */

/* index: i64 or i32; TN_EINDEX names a value outside. Negative values are outside. */

/* index 1-dimensional */
TN_API tn_tensor *tn_index_select(tn_tensor *x, int dim, tn_tensor *index);
/* index has x's ndim, sizes up to x's but at dim; here and in scatter_add what has no dimensions
 * stands for one of size 1 */
TN_API tn_tensor *tn_gather(tn_tensor *x, int dim, tn_tensor *index);
/* weight (V, C), index (…) -> (…, C) */
TN_API tn_tensor *tn_embedding_op(tn_tensor *weight, tn_tensor *index);

/* x, and src's elements added where index says: x[.., index[.., j, ..], ..] += src[.., j, ..] at
 * dim. Floats. index has x's ndim, and at most src's sizes. */
TN_API tn_tensor *tn_scatter_add(tn_tensor *x, int dim, tn_tensor *index, tn_tensor *src);
/* x with values at x[index[0], index[1], …], where the n indices broadcast to one shape and values
 * to it and the rest of x's. accumulate: added to what is there (floats); otherwise in its place,
 * of equal places the last (in PyTorch: any). An index outside is noticed at once. */
TN_API tn_tensor *tn_index_put(tn_tensor *x, tn_tensor *const *index, int n, tn_tensor *values,
                               bool accumulate);
/* Where x is not 0, (count, x's ndim) i64. Waits for x's device; no gradient. */
TN_API tn_tensor *tn_nonzero(tn_tensor *x);

/* index (…) -> (…, classes) i64: 1 at each index, else 0. classes -1: the largest index and 1. Here
 * an index outside is noticed at once, on any device. */
TN_API tn_tensor *tn_one_hot(tn_tensor *index, int64_t classes);

/* 1 with probability p, else 0, in p's shape and dtype (floats): drawn from the thread's default
 * generator. No gradient. */
TN_API tn_tensor *tn_bernoulli(tn_tensor *p);

/* Places, i64, drawn with weights (n) or (rows, n), floats, which need not sum to 1: (count) or
 * (rows, count). Without replacement a row's places differ, and have weights above 0. One draw of
 * the thread's default generator; waits for the weights' device. */
TN_API tn_tensor *tn_multinomial(tn_tensor *weights, int64_t count, bool replacement);

/* ---- Sorting: any dtype ---------------------------------------------------------------------- */

/* Equal elements keep their order, descending too (PyTorch's stable=True); NaN is the largest
 * number, and 0 equals -0. */

/* sorted along dim; *index (unless NULL): where each element stood, i64 */
TN_API tn_tensor *tn_sort(tn_tensor *x, int dim, bool descending, tn_tensor **index);
TN_API tn_tensor *tn_argsort(tn_tensor *x, int dim, bool descending);
/* the k largest (or smallest) along dim, the first of them first; of equal ones the earlier */
TN_API tn_tensor *tn_topk(tn_tensor *x, int64_t k, int dim, bool largest, tn_tensor **index);
/* x's different elements, ascending; *inverse (unless NULL): where each of x is among them, in x's
 * shape; *counts (unless NULL): how often each is there. Every NaN is different. Waits for x's
 * device; no gradient. */
TN_API tn_tensor *tn_unique(tn_tensor *x, tn_tensor **inverse, tn_tensor **counts);

/* ---- Networks -------------------------------------------------------------------------------- */

/* exp(x) / sum exp(x) along dim, and its logarithm, without overflow. Any number of dimensions. */
TN_API tn_tensor *tn_softmax(tn_tensor *x, int dim);
TN_API tn_tensor *tn_log_softmax(tn_tensor *x, int dim);

/* Over the last dimension (C): weight and bias (C) or NULL. Ba, Kiros,
 * Hinton 2016, arXiv:1607.06450. */
TN_API tn_tensor *tn_layer_norm_op(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps);

/* layer_norm(a + b), and the sum itself in *sum (unless NULL): a residual connection and the norm
 * after it, in one kernel where the device has one. a and b have one shape. */
TN_API tn_tensor *tn_add_layer_norm(tn_tensor *a, tn_tensor *b, tn_tensor *weight, tn_tensor *bias,
                                    double eps, tn_tensor **sum);

/* x weight / sqrt(mean(x x) + eps) over the last dimension. Zhang,
 * Sennrich 2019, arXiv:1910.07467. */
TN_API tn_tensor *tn_rms_norm_op(tn_tensor *x, tn_tensor *weight, double eps);

/* Each channel of x (N, C, …) less its mean, over its deviation sqrt(var + eps), times weight, plus
 * bias: (C) each, or NULL. `training`: mean and variance are the batch's, over all dimensions but
 * C, and the running ones, where they are not NULL, follow them, running <- (1 - momentum) running
 * + momentum batch (the variance unbiased). Otherwise the running ones are used, and must be there.
 * These are (C), f32 (f64 for f64), changed in place. TN_EVALUE: training with one element a
 * channel. Ioffe, Szegedy 2015, arXiv:1502.03167. */
TN_API tn_tensor *tn_batch_norm(tn_tensor *x, tn_tensor *running_mean, tn_tensor *running_var,
                                tn_tensor *weight, tn_tensor *bias, bool training, double momentum,
                                double eps);

/* The same without a batch: of every sample, the channels in `groups` (Wu, He 2018,
 * arXiv:1803.08494), or each channel alone (Ulyanov et al. 2016, arXiv:1607.08022). weight and bias
 * (C) or NULL. C must be a multiple of groups; one element alone is TN_EVALUE. */
TN_API tn_tensor *tn_group_norm_op(tn_tensor *x, int64_t groups, tn_tensor *weight, tn_tensor *bias,
                                   double eps);
TN_API tn_tensor *tn_instance_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps);

/* Zero with probability p, the rest scaled by 1 / (1 - p). Draws one call from the thread's default
 * generator when p > 0. */
TN_API tn_tensor *tn_dropout_op(tn_tensor *x, double p);

/* softmax(q k^T scale) v. q (B, H, T, D), k and v (B, G, S, D), H a multiple of G (grouped heads).
 * mask: NULL, or bool, broadcasts to (B, H, T, S), true where a key may be seen. causal: query i
 * sees keys up to i + S - T, of those that the mask leaves. scale 0: 1 / sqrt(D).
 *
 * What a query does not see has no influence on its result and gets no gradient from it, NaN
 * included (a gradient made with create_graph multiplies it by 0). A query that sees nothing gives
 * zeros and gets zeros, where a softmax of nothing would give NaN.
 *
 * Memory is linear in T and S: no T x S matrix is kept (Dao et al. 2022, arXiv:2205.14135).
 * Backward makes the probabilities again from one float a query, as there: for scores of about s
 * they are right to s roundings. */
typedef struct tn_attention_options {
    bool causal;
    double scale;
    bool from_defaults;
} tn_attention_options;
TN_API tn_attention_options tn_attention_defaults(void); /* not causal, scale 0 */
TN_API tn_tensor *tn_attention(tn_tensor *q, tn_tensor *k, tn_tensor *v, tn_tensor *mask,
                               tn_attention_options options);

/* Self-attention over one projection's rows: qkv (B, T, 3 C) holds q, k and v side by side, each
 * C = heads D wide -> (B, T, C). mask broadcasts to (B, heads, T, T). The same numbers as
 * tn_attention on the three parts, without their copies in backward. */
TN_API tn_tensor *tn_attention_qkv(tn_tensor *qkv, int heads, tn_tensor *mask,
                                   tn_attention_options options);

/* Rotary positions: each row of x (B, H, T, D), D even, turned by its position, so that the product
 * of a query's and a key's row depends on how far they are apart. positions: (T) or (B, T), i64 or
 * i32. The pairs that turn are (i, i + D/2), as in Hugging Face's Llama. Su et al. 2021,
 * arXiv:2104.09864; the factor, for longer contexts, is Llama 3.1's (arXiv:2407.21783). */
typedef struct tn_rotary_options {
    double theta;             /* 10000: pair i of n turns theta^(-i / n) radians a position */
    double factor;            /* 1: slow pairs turn so many times more slowly still */
    double low_freq_factor;   /* 1: slow are those with fewer turns in original_context, … */
    double high_freq_factor;  /* 4: … fast those with more; between them is a blend */
    int64_t original_context; /* 8192 */
    bool from_defaults;
} tn_rotary_options;
TN_API tn_rotary_options tn_rotary_defaults(void);
TN_API tn_tensor *tn_rotary(tn_tensor *x, tn_tensor *positions, tn_rotary_options options);

/* ---- Pooling --------------------------------------------------------------------------------- */

/* How a window slides. kernel, stride, padding, dilation: one number for all dimensions,
 * TN_DIMS(2), or one for each, TN_DIMS(2, 1). */
typedef struct tn_pool_options {
    tn_dims stride;           /* TN_DIMS(): as the kernel */
    tn_dims padding;          /* 0; at most half the kernel */
    tn_dims dilation;         /* 1; of max_pool */
    bool ceil_mode;           /* false; true: a last window that is partly outside counts too */
    bool count_include_pad;   /* true; of avg_pool: padding counts as zeros */
    int64_t divisor_override; /* 0: the size of the window; of avg_pool: what sums are divided by */
    bool from_defaults;
} tn_pool_options;
TN_API tn_pool_options tn_pool_defaults(void);

/* x (N, C, in…) -> (N, C, out…): of each window the largest element (NaN wins, the first of equals
 * has the gradient), or the mean; out = (in + 2 padding - dilation (k - 1) - 1) / stride + 1,
 * rounded down, or up with ceil_mode. x may come without N: so does the result then. TN_ESHAPE: the
 * window is larger than the padded input; TN_EVALUE: numbers out of range. */
TN_API tn_tensor *tn_max_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_max_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_max_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_avg_pool1d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_avg_pool2d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);
TN_API tn_tensor *tn_avg_pool3d_op(tn_tensor *x, tn_dims kernel, tn_pool_options options);

/* Windows that make a result of this size: from floor(i in / out) to ceil((i + 1) in / out). */
TN_API tn_tensor *tn_adaptive_max_pool1d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_max_pool2d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_max_pool3d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_avg_pool1d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_avg_pool2d_op(tn_tensor *x, tn_dims size);
TN_API tn_tensor *tn_adaptive_avg_pool3d_op(tn_tensor *x, tn_dims size);

/* ---- Interpolation, patches ------------------------------------------------------------------ */

typedef enum tn_interpolation {
    TN_INTERPOLATE_NEAREST, /* PyTorch's "nearest": rounded down */
    TN_INTERPOLATE_EXACT,   /* the nearest of middles */
    TN_INTERPOLATE_LINEAR,  /* linear, bilinear, trilinear: as x has dimensions */
    TN_INTERPOLATE_CUBIC,   /* bicubic, Keys 1981 */
    TN_INTERPOLATE_AREA     /* tn_adaptive_avg_pool2d_op and its kin */
} tn_interpolation;
typedef struct tn_interpolate_options {
    tn_dims size;          /* of the result, one number for all dimensions or one for each … */
    double scale_factor;   /* … or so many times as large */
    tn_interpolation mode; /* TN_INTERPOLATE_NEAREST */
    bool align_corners;    /* false; true: first and last elements are kept (linear, cubic) */
    bool from_defaults;
} tn_interpolate_options;
TN_API tn_interpolate_options tn_interpolate_defaults(void);
/* x (N, C, in…) -> (N, C, out…), 1 to 3 dimensions, cubic 2. TN_EVALUE: both of size and
 * scale_factor, or neither; a size below 1. */
TN_API tn_tensor *tn_interpolate(tn_tensor *x, tn_interpolate_options options);

/* One number for both dimensions, or one for each. */
typedef struct tn_unfold_options {
    tn_dims dilation, padding, stride; /* 1, 0, 1 */
    bool from_defaults;
} tn_unfold_options;
TN_API tn_unfold_options tn_unfold_defaults(void);
/* x (N, C, H, W) -> (N, C kh kw, places): the patches under a kernel, as columns; and patches added
 * up to a picture of `size`, at least 1. Without N: so is the result. */
TN_API tn_tensor *tn_unfold(tn_tensor *x, tn_dims kernel, tn_unfold_options options);
TN_API tn_tensor *tn_fold(tn_tensor *x, tn_dims size, tn_dims kernel, tn_unfold_options options);

/* ---- Recurrent nets: one layer in one direction ---------------------------------------------- */

/* x (T, B, I) -> y (T, B, H), the state h after each of the T times, and the last one in *hn (B, H)
 * (NULL: not wanted). h0 and c0: the first state, (B, H); NULL: zeros. `reverse`: from time T - 1
 * to 0. lengths: NULL, or (B) i64 or i32, 1 … T in any order (else TN_EVALUE): row b has lengths[b]
 * times; y is 0 after them, the last state is that of the row's own last time, and with `reverse`
 * the row begins at its own end. All times run in one kernel where the device has it.
 *
 * The weights, with G = 1, 3, 4 gates of rnn, gru, lstm in PyTorch's order: weight_ih (G H, I),
 * weight_hh (G H, H), and bias_ih and bias_hh (G H) or NULL. Several layers, both directions and
 * batches in front: tn_rnn, tn_gru, tn_lstm (layers.h). */
typedef struct tn_rnn_weights {
    tn_tensor *weight_ih, *weight_hh, *bias_ih, *bias_hh;
} tn_rnn_weights;

/* h' = tanh(w_ih x + b_ih + w_hh h + b_hh), or relu of it */
TN_API tn_tensor *tn_rnn_op(tn_tensor *x, tn_tensor *h0, tn_rnn_weights w, tn_tensor *lengths,
                            bool reverse, bool relu, tn_tensor **hn);
/* Cho et al. 2014, arXiv:1406.1078; gates r, z, n, r at PyTorch's place: n = tanh(p2 + r a2) */
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
/* with d = |x - target|: d^2 / (2 beta) below beta, d - beta / 2 above (PyTorch's default: 1; not
 * negative) */
TN_API tn_tensor *tn_smooth_l1(tn_tensor *x, tn_tensor *target, tn_reduction how, double beta);
/* d^2 / 2 up to delta, delta (d - delta / 2) beyond (1; more than 0) */
TN_API tn_tensor *tn_huber(tn_tensor *x, tn_tensor *target, tn_reduction how, double delta);
/* target (log target - x): x and, with log_target, target are logarithms of probabilities.
 * PyTorch's "batchmean" is TN_SUM divided by the number of rows. */
TN_API tn_tensor *tn_kl_div(tn_tensor *x, tn_tensor *target, tn_reduction how, bool log_target);

/* x: probabilities; target: in [0, 1]; weight: NULL, or broadcasts to x. Logarithms end at -100:
 * with gradient 0 there (PyTorch: as if x (1 - x) were 1e-12). TN_EVALUE names an element of x
 * or target that is outside [0, 1], or NaN; on a device, which would have to be waited for, the
 * loss of such an x is NaN. */
TN_API tn_tensor *tn_bce(tn_tensor *x, tn_tensor *target, tn_tensor *weight, tn_reduction how);

/* The same of sigmoid(x), without its overflow and rounding. Its weights are options. */
typedef struct tn_bce_options {
    tn_reduction reduction; /* TN_MEAN */
    tn_tensor *weight;      /* NULL; broadcasts to x */
    tn_tensor *pos_weight;  /* NULL; broadcasts to x: what a target of 1 counts */
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

/* sum a b / (max(|a|, eps) max(|b|, eps)) along dim, which is removed; a and b broadcast (1e-8;
 * not negative) */
TN_API tn_tensor *tn_cosine_similarity(tn_tensor *a, tn_tensor *b, int dim, double eps);
/* a and b (…, C), y (…): 1 - cos where y > 0, max(0, cos - margin) elsewhere. NONE: (…) */
TN_API tn_tensor *tn_cosine_embedding(tn_tensor *a, tn_tensor *b, tn_tensor *y, double margin,
                                      tn_reduction how);
/* max(0, margin - y (a - b)); y is 1 or -1; the same shapes */
TN_API tn_tensor *tn_margin_ranking(tn_tensor *a, tn_tensor *b, tn_tensor *y, double margin,
                                    tn_reduction how);
/* x (…, C), labels (…), weight NULL or (C): the mean over the classes of
 * max(0, margin - x[label] + x[c])^p, c not the label; p is 1 or 2. NONE: (…) */
TN_API tn_tensor *tn_multi_margin(tn_tensor *x, tn_tensor *labels, int p, double margin,
                                  tn_tensor *weight, tn_reduction how);
/* (…, C) each: max(0, d(anchor, positive) - d(anchor, negative) + margin). NONE: (…). Balntas et
 * al. 2016 (swap too). */
typedef struct tn_triplet_options {
    tn_reduction reduction; /* TN_MEAN */
    double margin;          /* 1 */
    double p;               /* 2: the norm of d(u, v) = |u - v + eps| */
    double eps;             /* 1e-6 */
    bool swap;              /* d(positive, negative) instead, where it is less. false */
    bool from_defaults;
} tn_triplet_options;
TN_API tn_triplet_options tn_triplet_defaults(void);
TN_API tn_tensor *tn_triplet_margin(tn_tensor *anchor, tn_tensor *positive, tn_tensor *negative,
                                    tn_triplet_options options);

/* logits (…, C), labels (…) i64 or i32. The mean is over the rows that are not ignored. NONE: (…).
 * bf16 and f16 logits give an f32 loss. TN_EINDEX names a label outside [0, C). Logits of ignored
 * rows may be anything: loss and gradient are 0 there,
 * also for NaN (in PyTorch the gradient is NaN). */
typedef struct tn_cross_entropy_options {
    tn_reduction reduction; /* TN_MEAN */
    int64_t ignore_index;   /* -100 */
    double label_smoothing; /* 0 */
    /* backward writes the gradient over the logits: they must have no other use. false */
    bool consume_logits;
    tn_tensor *weight; /* (C), what each class counts, in the mean as well. NULL: 1. Not one kernel
                        */
    bool from_defaults;
} tn_cross_entropy_options;
TN_API tn_cross_entropy_options tn_cross_entropy_defaults(void);
TN_API tn_tensor *tn_cross_entropy(tn_tensor *logits, tn_tensor *labels, tn_reduction how);
TN_API tn_tensor *tn_cross_entropy_with(tn_tensor *logits, tn_tensor *labels,
                                        tn_cross_entropy_options options);

/* Connectionist temporal classification: what a sequence of labels costs that no frame is known to
 * say. Graves et al. 2006 (ICML).
 *
 * log_probs (T, N, C): a log_softmax of what a net gives (what is not normalised, is here).
 * targets: (N, S), or the targets concatenated in one dimension; input_lengths (N), 0 to T, and
 * target_lengths (N): how much of them counts; all i64 or i32. The mean is over the losses divided
 * by their target's length, as in PyTorch; NONE: (N). bf16 and f16 give an f32 loss. A target that
 * fits no alignment has loss inf, or 0 with zero_infinity, and gradient 0 (PyTorch: NaN, or 0).
 * TN_EINDEX names a label outside [0, C), TN_EVALUE a length that does not fit. */
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
