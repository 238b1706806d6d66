/* batch_norm(x, w, b) = (x - mean) rstd w + b, per channel over the batch and the spatial
 * dimensions (Ioffe and Szegedy 2015, arXiv:1502.03167)
 *
 *     x: (N, C, …), w and b: (C), each may be absent; f32 f64 bf16 f16       y: like x
 *     mean, var: (C), x's, the variance biased; f32 (f64 for f64); results too
 *     rstd = 1 / sqrt(var + eps), h = (x - mean) rstd, e = dy w, means over all but C:
 *     dx = rstd (e - mean(e) - h mean(e h))        dw = sum dy h        db = sum dy
 *
 * The gradient's kernel takes only dy. If mean or var was used too, the composition is
 * differentiated.
 *
 * batch_norm_given(x, w, b, mean, var) is the same with statistics that do not come from x: (C),
 * x's dtype, or f32 for bf16 and f16; dx = rstd e. It is batch norm in evaluation. mean and var
 * have gradients too (through the composition), so statistics shared by ranks or parts of a batch
 * can be computed by operations and passed in.
 */
#include "backends/batch_norm.h"
#include "core/error.h"
#include "ops/nn/norm.h"

enum { X, W, B, INPUTS, GIVEN_MEAN = INPUTS, GIVEN_VAR, GIVEN_INPUTS };
enum { Y, MEAN, VAR };

static bool batch_norm_shape(tn_op_call *c) {
    return tn__eps_fits(c, ((const tn_batch_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "batch channels ..., channels, channels -> batch channels ..., "
                           "wide: channels, wide: channels");
}

/* ---- On the host ----------------------------------------------------------------------------- */

/* How many elements a channel has. */
static int64_t channel_count(const tn_desc *x) {
    int64_t count = x->size[0];
    for (int i = 2; i < x->ndim; i++) {
        count *= x->size[i];
    }
    return count;
}

/* The offset of a channel's element i, in row-major order. */
static int64_t channel_offset(const tn_desc *x, int64_t channel, int64_t i) {
    int64_t offset = channel * x->stride[1];
    for (int k = x->ndim - 1; k >= 2; k--) {
        offset += i % x->size[k] * x->stride[k];
        i /= x->size[k];
    }
    return offset + i * x->stride[0];
}

static double channel_at(const tn_desc *x, int64_t channel, int64_t i) {
    return load_float(x, channel_offset(x, channel, i));
}

static void channel_moments(const tn_desc *x, int64_t channel, double *mean, double *var) {
    int64_t m = channel_count(x);
    double first = m > 0 ? channel_at(x, channel, 0) : 0, sum = 0, squares = 0;
    first = isfinite(first) ? first : 0; /* what differs from infinity is no number */
    for (int64_t i = 0; i < m; i++) {
        sum += channel_at(x, channel, i) - first; /* 0 if all are equal */
    }
    *mean = first + sum / (double)m;
    for (int64_t i = 0; i < m; i++) {
        squares += (channel_at(x, channel, i) - *mean) * (channel_at(x, channel, i) - *mean);
    }
    *var = squares / (double)m;
}

static tn_status batch_norm_host(const tn_op_call *call) {
    const tn_desc *x = call->x[X], *y = call->y[Y], *w = call->x[W], *b = call->x[B];
    tn__batch_moments s = tn__batch_moments_of(call->x, call->y, call->args);
    for (int64_t c = 0; c < x->size[1]; c++) {
        double m = tn__vector_load(s.mean, c, 0), v = tn__vector_load(s.var, c, 0);
        if (!s.given) {
            channel_moments(x, c, &m, &v);
            tn__vector_store(s.mean, c, m);
            tn__vector_store(s.var, c, v);
        }
        double r = 1 / sqrt(v + s.eps);
        for (int64_t i = 0; i < channel_count(x); i++) {
            store_float(y, channel_offset(y, c, i),
                        (channel_at(x, c, i) - m) * r * tn__vector_load(w, c, 1) +
                            tn__vector_load(b, c, 0));
        }
    }
    return TN_OK;
}

static tn_status batch_norm_host_back(const tn_op_back *b) {
    if (tn__batch_norm_refuses(b)) { return TN_EUNSUPPORTED; }
    const tn_desc *x = b->x[X], *dy = b->dy[Y], *w = b->x[W], *dx = b->dx[X];
    tn__batch_moments s = tn__batch_moments_of(b->x, b->y, b->args);
    int64_t count = channel_count(x);
    for (int64_t c = 0; c < x->size[1]; c++) {
        double m = tn__vector_load(s.mean, c, 0),
               r = 1 / sqrt(tn__vector_load(s.var, c, 0) + s.eps);
        double sum = 0, sum_h = 0;
        for (int64_t i = 0; i < count; i++) {
            sum += channel_at(dy, c, i);
            sum_h += channel_at(dy, c, i) * (channel_at(x, c, i) - m) * r;
        }
        double part = s.given ? 0 : sum / (double)count,
               part_h = s.given ? 0 : sum_h / (double)count;
        for (int64_t i = 0; i < count && dx; i++) {
            double h = (channel_at(x, c, i) - m) * r;
            store_float(dx, channel_offset(dx, c, i),
                        tn__vector_load(w, c, 1) * r * (channel_at(dy, c, i) - part - h * part_h));
        }
        tn__vector_store(b->dx[W], c, sum_h);
        tn__vector_store(b->dx[B], c, sum);
    }
    return TN_OK;
}

/* ---- Composition ----------------------------------------------------------------------------- */

/* (C) -> (1, C, 1, …), which broadcasts to x. */
static tn_tensor *over_channels(tn_tensor *vector, int ndim) {
    tn_dims dims = {.ndim = ndim};
    for (int i = 0; i < ndim; i++) {
        dims.size[i] = i == 1 ? tn_count(vector) : 1;
    }
    return tn_reshape(vector, dims);
}

/* centred / sqrt(var + eps) weight + bias; var broadcasts to it. */
static tn_tensor *scale_centred(const tn_op_call *c, tn_tensor *centred, tn_tensor *var) {
    const tn_batch_norm_args *args = c->args;
    tn_tensor *w = tn__optional(c, W), *b = tn__optional(c, B);
    tn_tensor *y = tn_mul(centred, tn_rsqrt(tn_add_scalar(var, args->eps)));
    y = w ? tn_mul(y, over_channels(w, tn_ndim(y))) : y;
    return b ? tn_add(y, over_channels(b, tn_ndim(y))) : y;
}

/* All dimensions but the channels. */
static tn_dims dims_of_channel(const tn_tensor *x) {
    tn_dims dims = {.ndim = tn_ndim(x) - 1};
    for (int i = 1; i < dims.ndim; i++) {
        dims.size[i] = i + 1;
    }
    return dims;
}

static tn_tensor *batch_norm_compose(tn_op_call *c) {
    tn_dims over = dims_of_channel(c->in[X]), channels = TN_DIMS(tn_size(c->in[X], 1));
    tn_tensor *x = tn__from_first(c->in[X], over), *shift = tn_mean(x, over, true);
    tn_tensor *centred = tn_sub(x, shift), *var = tn_mean(tn_square(centred), over, true);
    c->out[MEAN] = tn_mean(c->in[X], over, false);
    c->out[VAR] = tn_reshape(var, channels);
    return scale_centred(c, centred, var);
}

const tn_op tn__op_batch_norm = {
    .name = "batch_norm",
    .inputs = {"x", "weight", "bias"},
    .args_size = sizeof(tn_batch_norm_args),
    .fields = {TN_FIELD(tn_batch_norm_args, eps)},
    .results = 3,
    .optional = 1u << W | 1u << B,
    .saves = TN_SAVES_INPUTS | TN_SAVES_OUTPUT(MEAN) | TN_SAVES_OUTPUT(VAR),
    .shape = batch_norm_shape,
    .kernel = TN_FUSED(batch_norm),
    .host = {batch_norm_host, batch_norm_host_back},
    .compose = batch_norm_compose,
    .flags = TN_OP_WIDE,
    .widens = 1u << W | 1u << B,
    /* Each combination of weight and bias; one position, one row, odd sizes, rows longer than
     * the fast kernel's chunk; far from 0. */
    .samples = "{-2:2, 0.5:1.5, -1:1} [6, 3] [3] [3] eps=1e-05; "
               "{3:7, 0.5:1.5, -1:1} [3, 2, 4] [2] [2] eps=1e-05; "
               "{-2:2, 0.5:1.5, -1:1} [2, 3, 3, 2] [3] [3] eps=1e-05; "
               "[2, 3, 3, 2] [3] - eps=1e-05; [2, 3, 3, 2] - - eps=1e-05; "
               "[2, 3, 3, 2] - [3] eps=1e-05; "
               "{3:7, 0.5:1.5, -1:1} [2, 2, 1, 3, 2] [2] [2] eps=1e-05; "
               "{-2:2, 0.5:1.5, -1:1} [1, 2, 5, 7] [2] [2] eps=1e-05; "
               "{3:7, 0.5:1.5, -1:1} [2, 0, 3] [0] [0] eps=1e-05; "
               "{-2:2, 0.5:1.5, -1:1} [300, 2] [2] [2] eps=1e-05; "
               "{3:7, 0.5:1.5, -1:1} [2, 1, 2100] [1] [1] eps=1e-05; "
               "{-2:2, 0.5:1.5, -1:1} [130, 1, 17] [1] [1] eps=1e-05; "
               "{3:7, 0.5:1.5, -1:1} [1, 3, 1] [3] [3] eps=0.1",
};

/* With x's own statistics, which it stores in *mean and *var (biased); they are differentiable. */
static tn_tensor *apply_own(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps,
                            tn_tensor **mean, tn_tensor **var) {
    tn_tensor *in[INPUTS] = {x, weight, bias}, *results[TN_OP_OUTPUTS];
    tn_apply_many(&tn__op_batch_norm, &(tn_batch_norm_args){eps}, in, INPUTS, results);
    *mean = results[MEAN];
    *var = results[VAR];
    return results[Y];
}

/* ---- With given statistics ------------------------------------------------------------------- */

static bool batch_norm_given_shape(tn_op_call *c) {
    tn_dtype dtype = tn_dtype_of(c->in[X]), wide = tn__wide_dtype(dtype);
    for (int i = GIVEN_MEAN; i <= GIVEN_VAR; i++) {
        tn_dtype own = tn_dtype_of(c->in[i]);
        if (own != dtype && own != wide) {
            return tn_op_fail(c, TN_EDTYPE, "x is %s but %s is %s (it must be %s)",
                              tn_dtype_name(dtype), tn_op_input_name(c->op, i).text,
                              tn_dtype_name(own), tn_dtype_name(wide));
        }
    }
    return tn__eps_fits(c, ((const tn_batch_norm_args *)c->args)->eps) &&
           tn_op_shapes(c, "batch channels ..., channels, channels, float: channels, "
                           "float: channels -> batch channels ...");
}

static tn_tensor *batch_norm_given_compose(tn_op_call *c) {
    int ndim = tn_ndim(c->in[X]);
    tn_tensor *centred = tn_sub(c->in[X], over_channels(c->in[GIVEN_MEAN], ndim));
    return scale_centred(c, centred, over_channels(c->in[GIVEN_VAR], ndim));
}

const tn_op tn__op_batch_norm_given = {
    .name = "batch_norm_given",
    .inputs = {"x", "weight", "bias", "mean", "var"},
    .args_size = sizeof(tn_batch_norm_args),
    .fields = {TN_FIELD(tn_batch_norm_args, eps)},
    .optional = 1u << W | 1u << B,
    .saves = TN_SAVES_INPUTS,
    .shape = batch_norm_given_shape,
    .kernel = TN_FUSED(batch_norm_given),
    .host = {batch_norm_host, batch_norm_host_back},
    .compose = batch_norm_given_compose,
    .flags = TN_OP_WIDE,
    .widens = 1u << W | 1u << B,
    /* With both, without bias, without either; no rows, one position, rows longer than the fast
     * kernel's chunk. */
    .samples = "{-2:2, 0.5:1.5, -1:1, -0.5:0.5, 0.5:1.5} [4, 3] [3] [3] [3] [3] eps=1e-05; "
               "[2, 3, 3, 2] [3] [3] [3] [3] eps=1e-05; [2, 3, 3, 2] [3] - [3] [3] eps=1e-05; "
               "[2, 3, 3, 2] - - [3] [3] eps=1e-05; [0, 2, 3] [2] [2] [2] [2] eps=1e-05; "
               "[1, 2, 2100] [2] [2] [2] [2] eps=1e-05; [2, 2, 1, 3, 2] [2] [2] [2] [2] eps=1e-05",
};

/* ---- With running statistics ----------------------------------------------------------------- */

/* running <- (1 - momentum) running + momentum batch, the variance unbiased. */
static void follow_batch(tn_tensor *running_mean, tn_tensor *running_var, tn_tensor *mean,
                         tn_tensor *var, int64_t count, double momentum) {
    if (running_mean) {
        tn_mul_scalar_(running_mean, 1.0 - momentum);
        tn_add_scaled_(running_mean, mean, momentum);
    }
    if (running_var) {
        tn_mul_scalar_(running_var, 1.0 - momentum);
        tn_add_scaled_(running_var, var, momentum * (double)count / (double)(count - 1));
    }
}

/* False after raising. */
static bool running_fits(tn_tensor *x, tn_tensor *running, const char *name) {
    if (running && (!tn__usable(running, "batch_norm") || tn_ndim(running) != 1 ||
                    tn_size(running, 0) != tn_size(x, 1) ||
                    tn_dtype_of(running) != tn__wide_dtype(tn_dtype_of(x)))) {
        return tn__fail(TN_ESHAPE, "batch_norm",
                        "x is %s %s but %s is %s %s (it must be %s, one for each channel)",
                        tn_dtype_name(tn_dtype_of(x)), tn_shape_text(x), name,
                        tn_dtype_name(tn_dtype_of(running)), tn_shape_text(running),
                        tn_dtype_name(tn__wide_dtype(tn_dtype_of(x))));
    }
    return true;
}

tn_tensor *tn_batch_norm(tn_tensor *x, tn_tensor *running_mean, tn_tensor *running_var,
                         tn_tensor *weight, tn_tensor *bias, bool training, double momentum,
                         double eps) {
    if (!training) {
        tn_tensor *in[GIVEN_INPUTS] = {x, weight, bias, running_mean, running_var};
        return tn_apply(&tn__op_batch_norm_given, &(tn_batch_norm_args){eps}, in, GIVEN_INPUTS);
    }
    if (!tn__usable(x, "batch_norm") ||
        (tn_ndim(x) > 1 && (!running_fits(x, running_mean, "running_mean") ||
                            !running_fits(x, running_var, "running_var")))) {
        return tn_inert();
    }
    int64_t channels = tn_ndim(x) > 1 ? tn_size(x, 1) : 1;
    int64_t count = channels > 0 ? tn_count(x) / channels : 2;
    if (count < 2 && tn_ndim(x) > 1) {
        return tn__refused(TN_EVALUE, "batch_norm",
                           "x is %s (training needs more than one element of each channel)",
                           tn_shape_text(x));
    }
    tn_tensor *mean, *var, *y = apply_own(x, weight, bias, eps, &mean, &var);
    if (!tn_is_inert(y)) {
        TN_SCOPE;
        follow_batch(running_mean, running_var, mean, var, count, momentum);
    }
    return tn_error() == TN_OK ? y : tn_inert();
}

/* ---- Per sample ---------------------------------------------------------------------------- */

/* The parts of x become the channels of a batch of one; weight and bias have one for each. */
static tn_tensor *norm_parts(tn_tensor *x, int64_t parts, tn_tensor *weight, tn_tensor *bias,
                             double eps) {
    tn_tensor *y = tn_reshape(x, TN_DIMS(1, parts, parts > 0 ? tn_count(x) / parts : 0));
    y = tn_batch_norm(y, NULL, NULL, weight, bias, true, 0.0, eps);
    return tn_reshape(y, tn_shape(x));
}

tn_tensor *tn_group_norm_op(tn_tensor *x, int64_t groups, tn_tensor *weight, tn_tensor *bias,
                            double eps) {
    tn_dims dims = tn_shape(x);
    if (!tn__usable(x, "group_norm")) { return tn_inert(); }
    if (dims.ndim < 2 || groups < 1 || groups > dims.size[1] || dims.size[1] % groups != 0) {
        return tn__refused(
            dims.ndim < 2 ? TN_ESHAPE : TN_EVALUE, "group_norm",
            "x is %s and groups is %lld (it needs (N, C, …), C a multiple of groups)",
            tn_shape_text(x), (long long)groups);
    }
    tn_tensor *y = norm_parts(x, dims.size[0] * groups, NULL, NULL, eps);
    y = weight ? tn_mul(y, over_channels(weight, dims.ndim)) : y;
    return bias ? tn_add(y, over_channels(bias, dims.ndim)) : y;
}

/* A weight or bias (C) repeated for n samples: (n C). */
static tn_tensor *for_each_sample(tn_tensor *vector, int64_t n) {
    if (!vector) { return NULL; }
    int64_t channels = tn_count(vector);
    return tn_reshape(tn_expand(vector, TN_DIMS(n, channels)), TN_DIMS(n * channels));
}

tn_tensor *tn_instance_norm(tn_tensor *x, tn_tensor *weight, tn_tensor *bias, double eps) {
    tn_dims dims = tn_shape(x);
    if (!tn__usable(x, "instance_norm")) { return tn_inert(); }
    if (dims.ndim < 3) {
        return tn__refused(TN_ESHAPE, "instance_norm", "x is %s (it needs (N, C, …))",
                           tn_shape_text(x));
    }
    int64_t n = dims.size[0];
    return norm_parts(x, n * dims.size[1], for_each_sample(weight, n), for_each_sample(bias, n),
                      eps);
}
