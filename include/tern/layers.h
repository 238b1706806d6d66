/* Layers: modules of one operation, containers, and recurrent nets. Options as in core.h:
 * TN_WITH(tn_linear, .bias = false).
 *
 * tn_linear_init is for a layer in a struct (TN_ADD); tn_linear_new makes one on the heap with the
 * defaults, and tn_linear_new_with with other options (TN_OWN).
 */
#ifndef TERN_LAYERS_H
#define TERN_LAYERS_H

#include "module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Products, embeddings, dropout ----------------------------------------------------------- */

/* x (…, in) -> (…, out) = x weight^T + bias (tn_linear_op). */
typedef struct tn_linear_options {
    bool bias; /* true */
    tn_dtype dtype;
    bool from_defaults;
} tn_linear_options;
typedef struct tn_linear {
    tn_module base;
    tn_tensor *weight;       /* (out, in): U(-1/sqrt(in), 1/sqrt(in)) */
    tn_tensor *bias;         /* (out): likewise; or NULL */
    tn_tensor *weight_scale; /* (out), for 8-bit weights (tn_quantize); or NULL */
} tn_linear;
TN_API tn_linear_options tn_linear_defaults(void);
TN_API void tn_linear_init(tn_linear *m, int64_t in, int64_t out, tn_linear_options options);
TN_API tn_linear *tn_linear_new(int64_t in, int64_t out);
TN_API tn_linear *tn_linear_new_with(int64_t in, int64_t out, tn_linear_options options);

/* index (…), i64 or i32 in [0, count) -> (…, width): rows of weight (tn_embedding_op). */
typedef struct tn_embedding_options {
    int64_t padding_idx; /* -1: none; this row starts as zeros and gets no gradient */
    tn_dtype dtype;
    bool from_defaults;
} tn_embedding_options;
typedef struct tn_embedding {
    tn_module base;
    tn_tensor *weight;       /* (count, width): normal(0, 1) */
    tn_tensor *weight_scale; /* (count), for 8-bit weights (tn_quantize); or NULL */
    tn_dtype dtype;          /* of the result, with weight_scale */
    int64_t padding_idx;
} tn_embedding;
TN_API tn_embedding_options tn_embedding_defaults(void);
TN_API void tn_embedding_init(tn_embedding *m, int64_t count, int64_t width,
                              tn_embedding_options options);
TN_API tn_embedding *tn_embedding_new(int64_t count, int64_t width);
TN_API tn_embedding *tn_embedding_new_with(int64_t count, int64_t width,
                                           tn_embedding_options options);

/* While training, zeroes elements with probability p; 1d, 2d and 3d zero whole channels of x: (N,
 * C, L), (N, C, H, W), (N, C, D, H, W), or these without N. (PyTorch's Dropout2d takes three
 * dimensions for (N, C, L); here they are (C, H, W).) */
typedef struct tn_dropout {
    tn_module base;
    double p;
    int spatial; /* dimensions of a channel; 0: each element separately */
} tn_dropout;
typedef tn_dropout tn_dropout1d;
typedef tn_dropout tn_dropout2d;
typedef tn_dropout tn_dropout3d;
TN_API void tn_dropout_init(tn_dropout *m, double p);
TN_API void tn_dropout1d_init(tn_dropout1d *m, double p);
TN_API void tn_dropout2d_init(tn_dropout2d *m, double p);
TN_API void tn_dropout3d_init(tn_dropout3d *m, double p);
TN_API tn_dropout *tn_dropout_new(double p);
TN_API tn_dropout1d *tn_dropout1d_new(double p);
TN_API tn_dropout2d *tn_dropout2d_new(double p);
TN_API tn_dropout3d *tn_dropout3d_new(double p);

/* ---- Norms ----------------------------------------------------------------------------------- */

/* x (…, width): over the last dimension (tn_layer_norm_op, tn_rms_norm_op). */
typedef struct tn_norm_options {
    double eps;  /* 1e-5 */
    bool weight; /* true: starts at 1 */
    bool bias;   /* true: starts at 0; RMS norm has none */
    tn_dtype dtype;
    bool from_defaults;
} tn_norm_options;
TN_API tn_norm_options tn_norm_defaults(void);
typedef struct tn_layer_norm {
    tn_module base;
    tn_tensor *weight, *bias; /* (width) or NULL */
    double eps;
} tn_layer_norm;
TN_API void tn_layer_norm_init(tn_layer_norm *m, int64_t width, tn_norm_options options);
TN_API tn_layer_norm *tn_layer_norm_new(int64_t width);
TN_API tn_layer_norm *tn_layer_norm_new_with(int64_t width, tn_norm_options options);
typedef struct tn_rms_norm {
    tn_module base;
    tn_tensor *weight;
    double eps;
} tn_rms_norm;
TN_API void tn_rms_norm_init(tn_rms_norm *m, int64_t width, tn_norm_options options);
TN_API tn_rms_norm *tn_rms_norm_new(int64_t width);
TN_API tn_rms_norm *tn_rms_norm_new_with(int64_t width, tn_norm_options options);

/* Subtracts each channel's mean and divides by its deviation (tn_batch_norm): the batch's while
 * training, which also update the running ones; otherwise the running ones. x (N, C) or (N, C, L);
 * (N, C, H, W); (N, C, D, H, W). A recomputed forward does not update them twice. */
typedef struct tn_batch_norm_options {
    double eps;      /* 1e-5 */
    double momentum; /* 0.1: running <- (1 - momentum) running + momentum batch */
    bool cumulative; /* false; true: running statistics are means over all batches so far */
    bool affine;     /* true: weight, starts at 1, and bias, at 0 */
    bool track_running_stats; /* true; false: always the batch's statistics */
    tn_dtype dtype;
    bool from_defaults;
} tn_batch_norm_options;
typedef struct tn_batch_norm_layer {
    tn_module base;
    tn_tensor *weight, *bias;              /* (C) or NULL */
    tn_tensor *running_mean, *running_var; /* buffers (C), f32 (f64 for f64), or NULL */
    tn_tensor *num_batches_tracked;        /* buffer, i64, 0-dimensional, or NULL */
    tn_batch_norm_options options;
    int64_t channels;
    int least, most; /* dimensions of x */
    /* tn_batch_norm_share; or NULL */
    tn_tensor *(*total)(tn_tensor *x, void *user);
    void *user;
} tn_batch_norm_layer;
typedef tn_batch_norm_layer tn_batch_norm1d;
typedef tn_batch_norm_layer tn_batch_norm2d;
typedef tn_batch_norm_layer tn_batch_norm3d;
TN_API tn_batch_norm_options tn_batch_norm_defaults(void);
TN_API void tn_batch_norm1d_init(tn_batch_norm1d *m, int64_t channels,
                                 tn_batch_norm_options options);
TN_API void tn_batch_norm2d_init(tn_batch_norm2d *m, int64_t channels,
                                 tn_batch_norm_options options);
TN_API void tn_batch_norm3d_init(tn_batch_norm3d *m, int64_t channels,
                                 tn_batch_norm_options options);
TN_API tn_batch_norm1d *tn_batch_norm1d_new(int64_t channels);
TN_API tn_batch_norm1d *tn_batch_norm1d_new_with(int64_t channels, tn_batch_norm_options options);
TN_API tn_batch_norm2d *tn_batch_norm2d_new(int64_t channels);
TN_API tn_batch_norm2d *tn_batch_norm2d_new_with(int64_t channels, tn_batch_norm_options options);
TN_API tn_batch_norm3d *tn_batch_norm3d_new(int64_t channels);
TN_API tn_batch_norm3d *tn_batch_norm3d_new_with(int64_t channels, tn_batch_norm_options options);

/* From now on each batch norm in m and below trains with shared statistics: `total` returns the sum
 * of a tensor over all who share, differentiably (distributed.h: tn_sync_batch_norm). user must
 * live as long. NULL: not shared again. */
TN_API tn_status tn_batch_norm_share(void *m, tn_tensor *(*total)(tn_tensor *x, void *user),
                                     void *user);

/* Normalises each sample over groups of channels (tn_group_norm_op), or over each channel
 * (tn_instance_norm; x as for batch norm). */
typedef struct tn_group_norm {
    tn_module base;
    tn_tensor *weight, *bias; /* (C) or NULL */
    int64_t groups;
    double eps;
} tn_group_norm;
TN_API void tn_group_norm_init(tn_group_norm *m, int64_t groups, int64_t channels,
                               tn_norm_options options);
TN_API tn_group_norm *tn_group_norm_new(int64_t groups, int64_t channels);
TN_API tn_group_norm *tn_group_norm_new_with(int64_t groups, int64_t channels,
                                             tn_norm_options options);
typedef struct tn_instance_norm_layer {
    tn_module base;
    tn_tensor *weight, *bias; /* (C) or NULL */
    double eps;
    int ndim; /* of x; one less without N */
} tn_instance_norm_layer;
typedef tn_instance_norm_layer tn_instance_norm1d;
typedef tn_instance_norm_layer tn_instance_norm2d;
typedef tn_instance_norm_layer tn_instance_norm3d;
/* options.weight and bias are true in tn_norm_defaults; PyTorch's default is false. */
TN_API void tn_instance_norm1d_init(tn_instance_norm1d *m, int64_t channels,
                                    tn_norm_options options);
TN_API void tn_instance_norm2d_init(tn_instance_norm2d *m, int64_t channels,
                                    tn_norm_options options);
TN_API void tn_instance_norm3d_init(tn_instance_norm3d *m, int64_t channels,
                                    tn_norm_options options);
/* PyTorch's defaults: neither weight nor bias. */
TN_API tn_instance_norm1d *tn_instance_norm1d_new(int64_t channels);
TN_API tn_instance_norm1d *tn_instance_norm1d_new_with(int64_t channels, tn_norm_options options);
TN_API tn_instance_norm2d *tn_instance_norm2d_new(int64_t channels);
TN_API tn_instance_norm2d *tn_instance_norm2d_new_with(int64_t channels, tn_norm_options options);
TN_API tn_instance_norm3d *tn_instance_norm3d_new(int64_t channels);
TN_API tn_instance_norm3d *tn_instance_norm3d_new_with(int64_t channels, tn_norm_options options);

/* ---- Convolutions ---------------------------------------------------------------------------- */

/* Convolutions (ops.h has shapes and options): kernel is one size for all dimensions, TN_DIMS(3),
 * or one for each. One struct for all. */
typedef struct tn_conv {
    tn_module base;
    tn_tensor *weight; /* (out, in / groups, k…); transposed (in, out / groups, k…): U(-b, b) with
                        * b = 1 / sqrt of the product of all sizes but the first */
    tn_tensor *bias;   /* (out): likewise; or NULL */
    tn_conv_options options;
    int spatial; /* 1, 2, 3 dimensions */
    bool transposed;
} tn_conv;
typedef tn_conv tn_conv1d;
typedef tn_conv tn_conv2d;
typedef tn_conv tn_conv3d;
typedef tn_conv tn_conv_transpose1d;
typedef tn_conv tn_conv_transpose2d;
typedef tn_conv tn_conv_transpose3d;
TN_API void tn_conv1d_init(tn_conv1d *m, int64_t in, int64_t out, tn_dims kernel,
                           tn_conv_options options);
TN_API void tn_conv2d_init(tn_conv2d *m, int64_t in, int64_t out, tn_dims kernel,
                           tn_conv_options options);
TN_API void tn_conv3d_init(tn_conv3d *m, int64_t in, int64_t out, tn_dims kernel,
                           tn_conv_options options);
TN_API void tn_conv_transpose1d_init(tn_conv_transpose1d *m, int64_t in, int64_t out,
                                     tn_dims kernel, tn_conv_options options);
TN_API void tn_conv_transpose2d_init(tn_conv_transpose2d *m, int64_t in, int64_t out,
                                     tn_dims kernel, tn_conv_options options);
TN_API void tn_conv_transpose3d_init(tn_conv_transpose3d *m, int64_t in, int64_t out,
                                     tn_dims kernel, tn_conv_options options);
/* The same on the heap, with the defaults or with others:
 *
 *     TN_OWN(net, conv1, tn_conv2d_new(3, 64, 3));
 *     TN_OWN(net, conv2, tn_conv2d_new_with(64, 64, TN_DIMS(3), tn_conv_strided(2, 1)));
 */
TN_API tn_conv1d *tn_conv1d_new(int64_t in, int64_t out, int64_t kernel);
TN_API tn_conv1d *tn_conv1d_new_with(int64_t in, int64_t out, tn_dims kernel,
                                     tn_conv_options options);
TN_API tn_conv2d *tn_conv2d_new(int64_t in, int64_t out, int64_t kernel);
TN_API tn_conv2d *tn_conv2d_new_with(int64_t in, int64_t out, tn_dims kernel,
                                     tn_conv_options options);
TN_API tn_conv3d *tn_conv3d_new(int64_t in, int64_t out, int64_t kernel);
TN_API tn_conv3d *tn_conv3d_new_with(int64_t in, int64_t out, tn_dims kernel,
                                     tn_conv_options options);
TN_API tn_conv_transpose1d *tn_conv_transpose1d_new(int64_t in, int64_t out, int64_t kernel);
TN_API tn_conv_transpose1d *tn_conv_transpose1d_new_with(int64_t in, int64_t out, tn_dims kernel,
                                                         tn_conv_options options);
TN_API tn_conv_transpose2d *tn_conv_transpose2d_new(int64_t in, int64_t out, int64_t kernel);
TN_API tn_conv_transpose2d *tn_conv_transpose2d_new_with(int64_t in, int64_t out, tn_dims kernel,
                                                         tn_conv_options options);
TN_API tn_conv_transpose3d *tn_conv_transpose3d_new(int64_t in, int64_t out, int64_t kernel);
TN_API tn_conv_transpose3d *tn_conv_transpose3d_new_with(int64_t in, int64_t out, tn_dims kernel,
                                                         tn_conv_options options);

/* ---- Pooling --------------------------------------------------------------------------------- */

/* Pooling (tn_max_pool2d_op and the like): by windows, or adaptive, to a given size: one for all
 * dimensions, TN_DIMS(1), or one for each. */
typedef struct tn_pool {
    tn_module base;
    tn_tensor *(*f)(tn_tensor *x, tn_dims kernel, tn_pool_options options);
    tn_dims kernel;
    tn_pool_options options;
} tn_pool;
typedef tn_pool tn_max_pool1d;
typedef tn_pool tn_max_pool2d;
typedef tn_pool tn_max_pool3d;
typedef tn_pool tn_avg_pool1d;
typedef tn_pool tn_avg_pool2d;
typedef tn_pool tn_avg_pool3d;
TN_API void tn_max_pool1d_init(tn_max_pool1d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_max_pool2d_init(tn_max_pool2d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_max_pool3d_init(tn_max_pool3d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_avg_pool1d_init(tn_avg_pool1d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_avg_pool2d_init(tn_avg_pool2d *m, tn_dims kernel, tn_pool_options options);
TN_API void tn_avg_pool3d_init(tn_avg_pool3d *m, tn_dims kernel, tn_pool_options options);
TN_API tn_max_pool1d *tn_max_pool1d_new(int64_t kernel);
TN_API tn_max_pool1d *tn_max_pool1d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_max_pool2d *tn_max_pool2d_new(int64_t kernel);
TN_API tn_max_pool2d *tn_max_pool2d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_max_pool3d *tn_max_pool3d_new(int64_t kernel);
TN_API tn_max_pool3d *tn_max_pool3d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_avg_pool1d *tn_avg_pool1d_new(int64_t kernel);
TN_API tn_avg_pool1d *tn_avg_pool1d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_avg_pool2d *tn_avg_pool2d_new(int64_t kernel);
TN_API tn_avg_pool2d *tn_avg_pool2d_new_with(tn_dims kernel, tn_pool_options options);
TN_API tn_avg_pool3d *tn_avg_pool3d_new(int64_t kernel);
TN_API tn_avg_pool3d *tn_avg_pool3d_new_with(tn_dims kernel, tn_pool_options options);
typedef struct tn_adaptive_pool {
    tn_module base;
    tn_tensor *(*f)(tn_tensor *x, tn_dims size);
    tn_dims size;
} tn_adaptive_pool;
typedef tn_adaptive_pool tn_adaptive_max_pool1d;
typedef tn_adaptive_pool tn_adaptive_max_pool2d;
typedef tn_adaptive_pool tn_adaptive_max_pool3d;
typedef tn_adaptive_pool tn_adaptive_avg_pool1d;
typedef tn_adaptive_pool tn_adaptive_avg_pool2d;
typedef tn_adaptive_pool tn_adaptive_avg_pool3d;
TN_API void tn_adaptive_max_pool1d_init(tn_adaptive_max_pool1d *m, tn_dims size);
TN_API void tn_adaptive_max_pool2d_init(tn_adaptive_max_pool2d *m, tn_dims size);
TN_API void tn_adaptive_max_pool3d_init(tn_adaptive_max_pool3d *m, tn_dims size);
TN_API void tn_adaptive_avg_pool1d_init(tn_adaptive_avg_pool1d *m, tn_dims size);
TN_API void tn_adaptive_avg_pool2d_init(tn_adaptive_avg_pool2d *m, tn_dims size);
TN_API void tn_adaptive_avg_pool3d_init(tn_adaptive_avg_pool3d *m, tn_dims size);
TN_API tn_adaptive_max_pool1d *tn_adaptive_max_pool1d_new(tn_dims size);
TN_API tn_adaptive_max_pool2d *tn_adaptive_max_pool2d_new(tn_dims size);
TN_API tn_adaptive_max_pool3d *tn_adaptive_max_pool3d_new(tn_dims size);
TN_API tn_adaptive_avg_pool1d *tn_adaptive_avg_pool1d_new(tn_dims size);
TN_API tn_adaptive_avg_pool2d *tn_adaptive_avg_pool2d_new(tn_dims size);
TN_API tn_adaptive_avg_pool3d *tn_adaptive_avg_pool3d_new(tn_dims size);

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* tn_flatten in a sequential: PyTorch's is tn_flatten_new(1, -1). */
typedef struct tn_flatten_layer {
    tn_module base;
    int first, last;
} tn_flatten_layer;
TN_API void tn_flatten_init(tn_flatten_layer *m, int first, int last);
TN_API tn_flatten_layer *tn_flatten_new(int first, int last);
/* Dimension dim becomes several: (N, 12, …) with dim 1 and TN_DIMS(3, 4) -> (N, 3, 4, …). */
typedef struct tn_unflatten_layer {
    tn_module base;
    int dim;
    tn_dims sizes;
} tn_unflatten_layer;
TN_API void tn_unflatten_init(tn_unflatten_layer *m, int dim, tn_dims sizes);
TN_API tn_unflatten_layer *tn_unflatten_new(int dim, tn_dims sizes);

/* tn_interpolate: tn_upsample_new(2) makes x twice as large, by nearest neighbour. */
typedef struct tn_upsample {
    tn_module base;
    tn_interpolate_options options;
} tn_upsample;
TN_API void tn_upsample_init(tn_upsample *m, tn_interpolate_options options);
TN_API tn_upsample *tn_upsample_new(double scale_factor);
TN_API tn_upsample *tn_upsample_new_with(tn_interpolate_options options);

/* ---- Containers ------------------------------------------------------------------------------ */

/* Modules in sequence, each with one tensor in and out. Names "0", "1", ….
 *
 *     tn_sequential *net =
 *         TN_SEQUENTIAL(tn_linear_new(784, 128), TN_FN(tn_relu), tn_linear_new(128, 10));
 *     … tn_call(net, x) …
 *     tn_module_free(net); // and what it owns
 */
typedef struct tn_sequential {
    tn_module base;
} tn_sequential;
TN_API void tn_sequential_init(tn_sequential *m);
TN_API tn_sequential *tn_sequential_new(void);
TN_API tn_sequential *tn_sequential_of(void *const *children, int n);
TN_API tn_status tn_sequential_add(tn_sequential *m, void *child);

/* Modules that the parent's forward calls: in a loop (tn_module_append, tn_module_at), or by name
 * (tn_module_own, tn_module_child). A list has no forward: calling it is TN_EUNSUPPORTED.
 *
 *     TN_OWN(net, h, tn_module_list_new());                       // "h.0.fc.weight", …
 *     for (int i = 0; i < layers; i++) {
 *         tn_module_append(net->h, block_new(width));
 *     }
 */
typedef struct tn_module_list {
    tn_module base;
} tn_module_list;
TN_API void tn_module_list_init(tn_module_list *m);
TN_API tn_module_list *tn_module_list_new(void);

/* Pairs of modules between two streams, whose backward needs no more memory for 64 pairs than for
 * 4 (Gomez et al. 2017, arXiv:1707.04585). Two tensors in, two out, with n times
 *
 *     y1 = x1 + f(x2)
 *     y2 = x2 + g(y1)
 *
 * Only the last y1 and y2 are kept. Backward subtracts again what each pair has added, running its
 * modules once more with the same random numbers, as with tn_module_set_recompute. f[i] and g[i]
 * are modules of one tensor, which belong to m from then on, as "0.f", "0.g", "1.f", …. They return
 * the shape of the stream that they are added to (TN_ESHAPE), and leave their input as it is
 * (TN_ESTATE).
 *
 *     tn_reversible *r = tn_reversible_new(f, g, 64);
 *     tn_values y = tn_call_values(r, TN_VALUES(x, x), NULL);   // then tn_add(y.v[0], y.v[1])
 *
 * Bits: the forward's are those of the formula. What backward computes back differs from what went
 * in by rounding, and so do the gradients. Streams that come as bf16 or f16 are therefore f32 in
 * between, and only what the modules read, and the last y1 and y2, are rounded.
 *
 * The parameters, and the last y1 and y2, must not change before backward, nor may m be switched
 * between training and evaluation (TN_ESTATE). A gradient of the gradient is TN_EUNSUPPORTED. */
typedef struct tn_reversible {
    tn_module base;
    int pairs;
} tn_reversible;
TN_API void tn_reversible_init(tn_reversible *m, void *const *f, void *const *g, int n);
TN_API tn_reversible *tn_reversible_new(void *const *f, void *const *g, int n);

/* A function as a module (an activation in a sequential). TN_FN(tn_relu) makes one of that kind,
 * "relu", on the heap; TN_FN_WITH(tn_mul_scalar, 0.5) one from a function of x and a number. */
typedef struct tn_function {
    tn_module base;
    tn_tensor *(*f)(tn_tensor *x); /* one of the two */
    tn_tensor *(*f_with)(tn_tensor *x, double number);
    double number;
} tn_function;
TN_API void tn_function_init(tn_function *m, const char *kind, tn_tensor *(*f)(tn_tensor *x));
TN_API tn_function *tn_function_new(const char *kind, tn_tensor *(*f)(tn_tensor *x));
TN_API tn_function *tn_function_new_with(const char *kind,
                                         tn_tensor *(*f)(tn_tensor *x, double number),
                                         double number);
#define TN_FN(f) tn_function_new(#f, (f))
#define TN_FN_WITH(f, number) tn_function_new_with(#f, (f), (number))

/* ---- Recurrent nets -------------------------------------------------------------------------- */

/* Recurrent nets: x (T, B, in), or (B, T, in) with batch_first -> y (T, B, hidden), the last
 * layer's state at each time; (T, B, 2 hidden) with both directions. PyTorch's names: weight_ih_l0,
 * weight_hh_l0, bias_ih_l0, bias_hh_l0, …_l0_reverse, …. Each layer and direction is one operation
 * (tn_lstm_op).
 *
 * With tn_call_values the inputs are x, h0, c0 (only lstm) and lengths, all but x optional, and the
 * results, if there are at least two inputs, y, hn and (lstm) cn. States are (layers x directions,
 * B, hidden), NULL: zeros. lengths: (B) i64 or i32 in any order: row b has lengths[b] times, as in
 * a packed sequence; y is 0 after them, the last states are those at the row's last time, and the
 * reverse direction begins there. tn_rnn_call does the same with a state that carries over from
 * call to call, or with NULL, which starts from zeros and discards the last state:
 *
 *     tn_rnn_state s = {0};
 *     y = tn_rnn_call(net->lstm, x, &s, NULL);    // s: the first state (NULL: 0), then the last
 */
typedef struct tn_rnn_options {
    int layers;         /* 1 */
    bool bias;          /* true */
    bool batch_first;   /* false */
    double dropout;     /* 0: while training, between layers */
    bool bidirectional; /* false */
    bool relu;          /* false: tanh; only tn_rnn */
    tn_dtype dtype;
    bool from_defaults;
} tn_rnn_options;
typedef struct tn_rnn {
    tn_module base;
    tn_rnn_weights *weights; /* (layers x directions): U(-1/sqrt(hidden), 1/sqrt(hidden)) */
    int64_t in, hidden;
    int layers, directions;
    bool batch_first, relu;
    double dropout;
} tn_rnn;
typedef struct tn_rnn tn_gru;
typedef struct tn_rnn tn_lstm;
typedef struct tn_rnn_state {
    tn_tensor *h, *c; /* c: only lstm */
} tn_rnn_state;
TN_API tn_rnn_options tn_rnn_defaults(void);
TN_API void tn_rnn_init(tn_rnn *m, int64_t in, int64_t hidden, tn_rnn_options options);
TN_API void tn_gru_init(tn_gru *m, int64_t in, int64_t hidden, tn_rnn_options options);
TN_API void tn_lstm_init(tn_lstm *m, int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_rnn *tn_rnn_new(int64_t in, int64_t hidden);
TN_API tn_gru *tn_gru_new(int64_t in, int64_t hidden);
TN_API tn_lstm *tn_lstm_new(int64_t in, int64_t hidden);
TN_API tn_rnn *tn_rnn_new_with(int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_gru *tn_gru_new_with(int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_lstm *tn_lstm_new_with(int64_t in, int64_t hidden, tn_rnn_options options);
TN_API tn_tensor *tn_rnn_call(void *m, tn_tensor *x, tn_rnn_state *state, tn_tensor *lengths);

/* One step: x (B, in), h and c (B, hidden) or NULL -> h', with tn_call; or with tn_call_values,
 * whose inputs are x, h and (lstm_cell) c, and whose results are h' and (lstm_cell) c'. Names are
 * PyTorch's: weight_ih, weight_hh, bias_ih, bias_hh. */
typedef struct tn_rnn_cell_options {
    bool bias; /* true */
    bool relu; /* false: tanh; only tn_rnn_cell */
    tn_dtype dtype;
    bool from_defaults;
} tn_rnn_cell_options;
typedef struct tn_rnn_cell {
    tn_module base;
    tn_rnn_weights weights;
    int64_t in;
    bool relu;
} tn_rnn_cell;
typedef struct tn_rnn_cell tn_gru_cell;
typedef struct tn_rnn_cell tn_lstm_cell;
TN_API tn_rnn_cell_options tn_rnn_cell_defaults(void);
TN_API void tn_rnn_cell_init(tn_rnn_cell *m, int64_t in, int64_t hidden,
                             tn_rnn_cell_options options);
TN_API void tn_gru_cell_init(tn_gru_cell *m, int64_t in, int64_t hidden,
                             tn_rnn_cell_options options);
TN_API void tn_lstm_cell_init(tn_lstm_cell *m, int64_t in, int64_t hidden,
                              tn_rnn_cell_options options);
TN_API tn_rnn_cell *tn_rnn_cell_new(int64_t in, int64_t hidden);
TN_API tn_gru_cell *tn_gru_cell_new(int64_t in, int64_t hidden);
TN_API tn_lstm_cell *tn_lstm_cell_new(int64_t in, int64_t hidden);

#ifdef __cplusplus
}
static inline tn_sequential *tn__sequential_cxx(std::initializer_list<void *> children) {
    return tn_sequential_of(children.begin(), (int)children.size());
}
#define TN_SEQUENTIAL(...) tn__sequential_cxx({__VA_ARGS__})
#else
#define TN_SEQUENTIAL(...)                    \
    tn_sequential_of((void *[]){__VA_ARGS__}, \
                     (int)(sizeof((void *[]){__VA_ARGS__}) / sizeof(void *)))
#endif
#endif
