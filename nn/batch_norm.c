/* batch_norm1d, 2d, 3d: one module; they differ in the dimensions they take.
 *
 * The running statistics are buffers with their own dtype, which a mixed-precision policy leaves
 * alone. Where statistics are shared (tn_batch_norm_share), mean and variance are made of
 * operations, so that their gradients reach every rank that contributed.
 */
#include "nn/layer.h"

tn_batch_norm_options tn_batch_norm_defaults(void) {
    return (tn_batch_norm_options){.eps = 1e-5,
                                   .momentum = 0.1,
                                   .affine = true,
                                   .track_running_stats = true,
                                   .dtype = TN_F32,
                                   .from_defaults = true};
}

/* The weight of this batch in the running statistics; counts it. */
static double count_batch(tn_batch_norm_layer *m) {
    tn_add_scalar_(m->num_batches_tracked, 1.0);
    return m->options.cumulative ? 1.0 / tn_item(m->num_batches_tracked) : m->options.momentum;
}

/* (1, C, 1, …), so that it broadcasts to x. */
static tn_tensor *over_channels(tn_tensor *vector, const tn_tensor *x) {
    tn_dims dims = {.ndim = tn_ndim(x)};
    for (int i = 0; i < dims.ndim; i++) {
        dims.size[i] = i == 1 ? tn_size(x, 1) : 1;
    }
    return tn_reshape(vector, dims);
}

/* running <- (1 - momentum) running + momentum now */
static void follow_batch(tn_tensor *running, tn_tensor *now, double momentum) {
    tn_mul_scalar_(running, 1.0 - momentum);
    tn_add_scaled_(running, now, momentum);
}

/* With shared statistics: sums first, then squares around the common mean. */
static tn_tensor *shared_forward(tn_batch_norm_layer *m, tn_tensor *x, bool follows,
                                 double momentum) {
    int64_t channels = tn_size(x, 1), own = channels ? tn_count(x) / channels : 0;
    tn_dims over = {.ndim = tn_ndim(x) - 1};
    for (int i = 1; i < over.ndim; i++) {
        over.size[i] = i + 1;
    }
    tn_tensor *wide = tn_cast(x, tn_dtype_of(x) == TN_F64 ? TN_F64 : TN_F32);
    tn_tensor *size = tn_full(TN_DIMS(1), (double)own, tn_dtype_of(wide));
    tn_tensor *parts[] = {tn_sum(wide, over, false), tn_to(size, tn_device_of(x))};
    tn_tensor *sums = m->total(tn_cat(parts, 2, 0), m->user);
    tn_tensor *count = tn_detach(tn_narrow(sums, 0, channels, 1));
    if (own < 2 && !(tn_item(count) >= 2.0)) { /* on all that share, or on none */
        tn__raise(TN_EVALUE, m->base.kind,
                  "x is %s (training needs more than one element of each channel)",
                  tn_shape_text(x));
        return tn_inert();
    }
    tn_tensor *mean = tn_div(tn_narrow(sums, 0, 0, channels), count);
    tn_tensor *centred = tn_sub(wide, over_channels(mean, x));
    tn_tensor *squares = m->total(tn_sum(tn_square(centred), over, false), m->user);
    if (follows) {
        TN_NO_GRAD;
        follow_batch(m->running_mean, tn_detach(mean), momentum);
        follow_batch(m->running_var, tn_div(tn_detach(squares), tn_sub_scalar(count, 1.0)),
                     momentum);
    }
    return tn_batch_norm(x, mean, tn_div(squares, count), m->weight, m->bias, false, 0.0,
                         m->options.eps);
}

static tn_tensor *batch_norm_forward(tn_module *self, tn_tensor *x) {
    tn_batch_norm_layer *m = (tn_batch_norm_layer *)self;
    int ndim = tn_ndim(x);
    if (!tn_is_inert(x) && (ndim < m->least || ndim > m->most || tn_size(x, 1) != m->channels)) {
        tn__raise(TN_ESHAPE, self->kind, "x is %s (it needs %d%s dimensions and %lld channels)",
                  tn_shape_text(x), m->least, m->least < m->most ? " or 3" : "",
                  (long long)m->channels);
        return tn_inert();
    }
    const tn_batch_norm_options *o = &m->options;
    bool own = self->training || !o->track_running_stats;
    bool follows = self->training && o->track_running_stats && !tn_in_recompute();
    double momentum = follows ? count_batch(m) : 0.0;
    if (own && m->total) { return shared_forward(m, x, follows, momentum); }
    bool reads = follows || !own;
    return tn_batch_norm(x, reads ? m->running_mean : NULL, reads ? m->running_var : NULL,
                         m->weight, m->bias, own, momentum, o->eps);
}

static const char *const momenta[] = {"", "cumulative", NULL};
static const tn_field batch_norm_fields[] = {
    TN_FIELD_OPTION(tn_batch_norm_layer, eps),
    TN_FIELD_OPTION(tn_batch_norm_layer, momentum, .training = true,
                    .unless = TN_UNLESS(tn_batch_norm_layer, options.cumulative)),
    TN_FIELD_AS("momentum", tn_batch_norm_layer, options.cumulative, .training = true,
                .optional = true, .names = momenta),
    {0},
};

static void batch_norm_init(tn_batch_norm_layer *m, const char *kind, int least, int most,
                            int64_t channels, tn_batch_norm_options options) {
    if (!tn__layer_begin(m, sizeof(*m), kind, batch_norm_forward, NULL) ||
        !tn__layer_options(m, options.from_defaults, "tn_batch_norm") ||
        !TN__LAYER_FITS(m, {"channels", channels, 1, 0}) || !tn__layer_eps(m, options.eps)) {
        return;
    }
    TN_SCOPE;
    m->base.fields = batch_norm_fields;
    m->options = options;
    m->channels = channels;
    m->least = least;
    m->most = most;
    tn_dims dims = TN_DIMS(channels);
    tn_dtype wide = options.dtype == TN_F64 ? TN_F64 : TN_F32;
    bool affine = options.affine, track = options.track_running_stats;
    tn_module_param(m, "weight", &m->weight, affine ? tn_ones(dims, options.dtype) : NULL);
    tn_module_param(m, "bias", &m->bias, affine ? tn_zeros(dims, options.dtype) : NULL);
    tn_module_buffer(m, "running_mean", &m->running_mean, track ? tn_zeros(dims, wide) : NULL);
    tn_module_buffer(m, "running_var", &m->running_var, track ? tn_ones(dims, wide) : NULL);
    tn_module_buffer(m, "num_batches_tracked", &m->num_batches_tracked,
                     track ? tn_zeros(TN_DIMS(), TN_I64) : NULL);
}

#define BATCH_NORM(name, least, most)                                                      \
    void tn_##name##_init(tn_##name *m, int64_t channels, tn_batch_norm_options options) { \
        batch_norm_init(m, #name, least, most, channels, options);                         \
    }                                                                                      \
    TN__LAYER_NEW(name, tn_batch_norm, (int64_t channels), (channels))
BATCH_NORM(batch_norm1d, 2, 3)
BATCH_NORM(batch_norm2d, 4, 4)
BATCH_NORM(batch_norm3d, 5, 5)

/* ---- Shared statistics ----------------------------------------------------------------------- */

typedef struct sharing {
    tn_tensor *(*total)(tn_tensor *x, void *user);
    void *user;
} sharing;

static bool share_statistics(tn_module *m, const char *path, void *user) {
    const sharing *s = user;
    if (m->forward == batch_norm_forward) {
        ((tn_batch_norm_layer *)m)->total = s->total;
        ((tn_batch_norm_layer *)m)->user = s->user;
    }
    return true;
}

tn_status tn_batch_norm_share(void *m, tn_tensor *(*total)(tn_tensor *x, void *user), void *user) {
    sharing s = {total, user};
    tn_module_each_module(m, share_statistics, &s);
    return tn_error();
}
