/* Windows and planes for pooling (pool.h). */
#include "ops/pool/pool.h"

#include "core/error.h"

tn_pool_options tn_pool_defaults(void) {
    return (tn_pool_options){.padding = TN_DIMS(0),
                             .dilation = TN_DIMS(1),
                             .count_include_pad = true,
                             .divisor_override = 0,
                             .from_defaults = true};
}

const tn__pool_args tn__pool_plain = {.spatial = 2,
                                      .count_include_pad = true,
                                      .kernel = {1, 1, 1},
                                      .stride = {1, 1, 1},
                                      .dilation = {1, 1, 1},
                                      .in = {1, 1, 1},
                                      .out = {1, 1, 1}};

bool tn__pool_sizes(const char *name, tn__pool_args *args, tn_tensor *x) {
    int ndim = tn_ndim(x);
    if (ndim != args->spatial + 2) {
        return tn__fail(TN_ESHAPE, name,
                        "x is %s (it needs (N, C, …) with %d more dimensions, or (C, …))",
                        tn_shape_text(x), args->spatial);
    }
    for (int i = 0; i < args->spatial; i++) {
        args->in[POOL_SPATIAL - args->spatial + i] = tn_size(x, 2 + i);
    }
    if (tn__pool_volume(args->in) > INT32_MAX) {
        return tn__fail(TN_ESHAPE, name, "x is %s (a channel must have fewer than 2^31 elements)",
                        tn_shape_text(x));
    }
    return true;
}

/* The number of window positions in dimension i; 0 after raising. */
static int64_t window_places(const char *name, const tn__pool_args *a, int i, bool ceil_mode) {
    int64_t reach = a->dilation[i] * (a->kernel[i] - 1) + 1, padded = a->in[i] + 2 * a->padding[i];
    int64_t over = padded - reach + (ceil_mode ? a->stride[i] - 1 : 0);
    int64_t places = over / a->stride[i] + 1;
    /* the last window begins within the input or the padding before it */
    places -= ceil_mode && (places - 1) * a->stride[i] >= a->in[i] + a->padding[i];
    if (over < 0 || places < 1) {
        tn__raise(TN_ESHAPE, name,
                  "the window spans %lld elements, but there are %lld with the padding",
                  (long long)reach, (long long)padded);
        return 0;
    }
    return places;
}

bool tn__pool_window(const char *name, tn__pool_args *args, tn_dims kernel,
                     const tn_pool_options *o) {
    tn_dims stride = o->stride.ndim == 0 ? kernel : o->stride;
    int spatial = args->spatial;
    if (!tn__spread_numbers(name, "the kernel", spatial, kernel, 1, args->kernel) ||
        !tn__spread_numbers(name, "stride", spatial, stride, 1, args->stride) ||
        !tn__spread_numbers(name, "padding", spatial, o->padding, 0, args->padding) ||
        !tn__spread_numbers(name, "dilation", spatial, o->dilation, 1, args->dilation)) {
        return false;
    }
    for (int i = 0; i < POOL_SPATIAL; i++) {
        args->out[i] = window_places(name, args, i, o->ceil_mode);
        if (args->out[i] == 0) { return false; }
    }
    return true;
}

static bool begin_sliding(const char *name, tn__pool_args *args, tn_tensor *x, tn_dims kernel,
                          const tn_pool_options *o) {
    if (!tn__options_made(o->from_defaults, name, "tn_pool")) { return false; }
    args->count_include_pad = o->count_include_pad;
    args->divisor = o->divisor_override;
    if (!tn__pool_sizes(name, args, x) || !tn__pool_window(name, args, kernel, o)) { return false; }
    for (int i = 0; i < POOL_SPATIAL; i++) { /* so that no window is all padding */
        if (args->padding[i] * 2 > args->kernel[i]) {
            return tn__fail(
                TN_EVALUE, name,
                "padding is %lld but the kernel %lld (at most half of that is possible)",
                (long long)args->padding[i], (long long)args->kernel[i]);
        }
    }
    return true;
}

static bool begin_adaptive(const char *name, tn__pool_args *args, tn_tensor *x, tn_dims size) {
    args->adaptive = true;
    if (!tn__pool_sizes(name, args, x) ||
        !tn__spread_numbers(name, "size", args->spatial, size, 0, args->out)) {
        return false;
    }
    if (tn__pool_volume(args->in) == 0 && tn__pool_volume(args->out) != 0) {
        return tn__fail(TN_ESHAPE, name, "x is %s (windows over nothing)", tn_shape_text(x));
    }
    return true;
}

tn_tensor *tn__pool_call(const tn_op *op, const char *name, int spatial, tn_tensor *x,
                         tn_dims kernel, const tn_pool_options *options) {
    if (!tn__usable(x, name)) { return tn_inert(); }
    bool single = tn_ndim(x) == spatial + 1;
    tn__pool_args args = tn__pool_plain;
    args.spatial = spatial;
    x = single ? tn_unsqueeze(x, 0) : x;
    bool ok = options ? begin_sliding(name, &args, x, kernel, options)
                      : begin_adaptive(name, &args, x, kernel);
    if (!ok) { return tn_inert(); }
    tn_tensor *y = tn_apply1(op, &args, x);
    return single ? tn_squeeze(y, 0) : y;
}

tn__planes tn__planes_of(const tn_desc *x, int spatial) {
    tn__planes p = {.data = x->data,
                    .dtype = x->dtype,
                    .channels = x->size[1],
                    .sample = x->stride[0],
                    .channel = x->stride[1]};
    for (int i = 0; i < spatial; i++) {
        p.stride[POOL_SPATIAL - spatial + i] = x->stride[2 + i];
    }
    return p;
}

tn_status tn__pool_host(const tn__pool_args *args, const tn_desc *x, const tn_desc *y,
                        const tn_desc *index, tn__host_piece *piece) {
    tn__pool_job job = {
        .args = args, .x = tn__planes_of(x, args->spatial), .y = tn__planes_of(y, args->spatial)};
    if (index) { job.index = tn__planes_of(index, args->spatial); }
    int64_t each = tn__pool_volume(args->in) + tn__pool_volume(args->out);
    tn__host_pieces(x->size[0] * x->size[1], each, piece, &job);
    return TN_OK;
}

tn_dims tn__pool_dims(tn_dims x, int spatial, const int64_t *size) {
    tn_dims dims = TN_DIMS(x.size[0], x.size[1]);
    for (int i = 0; i < spatial; i++) {
        dims.size[dims.ndim++] = size[POOL_SPATIAL - spatial + i];
    }
    return dims;
}

bool tn__pool_fits(const tn_op_call *c, const int64_t *in) {
    const tn__pool_args *args = c->args;
    tn_dims x = tn_shape(c->in[0]);
    if (!tn_op_float(c, 0)) { return false; }
    return (x.ndim == args->spatial + 2 && tn_dims_equal(x, tn__pool_dims(x, args->spatial, in))) ||
           tn_op_fail(
               c, TN_ESHAPE, "x is %s but the sizes after (N, C) must be %s",
               tn_shape_text(c->in[0]),
               tn__dims_text(tn_dims_from(args->spatial, in + POOL_SPATIAL - args->spatial)));
}

bool tn__pool_shape(tn_op_call *c, const int64_t *in, const int64_t *out) {
    const tn__pool_args *args = c->args;
    return tn__pool_fits(c, in) &&
           tn_op_out(c, tn__pool_dims(tn_shape(c->in[0]), args->spatial, out),
                     tn_dtype_of(c->in[0]));
}
