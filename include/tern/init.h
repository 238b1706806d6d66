/* Initialisation, like torch.nn.init: in place, from the thread's default generator, not recorded.
 * Layers start with PyTorch's.
 */
#ifndef TERN_INIT_H
#define TERN_INIT_H

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shapes: Xavier and Kaiming need two dimensions or more (TN_ESHAPE): (out, in, …). */
TN_API void tn_init_uniform(tn_tensor *t, double low, double high);
TN_API void tn_init_normal(tn_tensor *t, double mean, double std);
/* The normal distribution, truncated at the bounds (PyTorch's defaults: -2 and 2). */
TN_API void tn_init_trunc_normal(tn_tensor *t, double mean, double std, double low, double high);
TN_API void tn_init_constant(tn_tensor *t, double value);
TN_API void tn_init_xavier_uniform(tn_tensor *t, double gain); /* Glorot, Bengio 2010 */
TN_API void tn_init_xavier_normal(tn_tensor *t, double gain);

/* The factor by which the activation after a layer shrinks its outputs; param: leaky ReLU's
 * slope. */
typedef enum tn_nonlinearity {
    TN_GAIN_LINEAR, /* 1; convolutions too */
    TN_GAIN_SIGMOID,
    TN_GAIN_TANH,
    TN_GAIN_RELU,
    TN_GAIN_LEAKY_RELU,
    TN_GAIN_SELU
} tn_nonlinearity;
TN_API double tn_calculate_gain(tn_nonlinearity nonlinearity, double param); /* TN_EVALUE: 0 */

/* He et al. 2015: std = gain / sqrt(fan); uniform in (-b, b), b = sqrt(3) std. The short forms are
 * for leaky ReLU of this slope and the fan in. */
typedef enum tn_fan { TN_FAN_IN, TN_FAN_OUT } tn_fan;
typedef struct tn_kaiming_options {
    double a;                     /* 0: leaky ReLU's slope */
    tn_fan mode;                  /* TN_FAN_IN */
    tn_nonlinearity nonlinearity; /* TN_GAIN_LEAKY_RELU */
    bool from_defaults;
} tn_kaiming_options;
TN_API tn_kaiming_options tn_kaiming_defaults(void);
TN_API void tn_init_kaiming_uniform_with(tn_tensor *t, tn_kaiming_options options);
TN_API void tn_init_kaiming_normal_with(tn_tensor *t, tn_kaiming_options options);
TN_API void tn_init_kaiming_uniform(tn_tensor *t, double negative_slope);
TN_API void tn_init_kaiming_normal(tn_tensor *t, double negative_slope);

/* t (n, m): ones on the diagonal. */
TN_API void tn_init_eye(tn_tensor *t);
/* Of t as a matrix (first dimension, all others): the rows, or the columns if there are fewer, are
 * orthogonal and of length `gain`. Saxe et al. 2013, arXiv:1312.6120. */
TN_API void tn_init_orthogonal(tn_tensor *t, double gain);

#ifdef __cplusplus
}
#endif
#endif
