/* What conv.h declares: options into arguments, shapes, descriptors, and the samples' cases. */
#include "ops/conv/conv.h"

#include "core/error.h"

/* ---- Options --------------------------------------------------------------------------------- */

tn_conv_options tn_conv_defaults(void) {
    return tn_conv_strided(1, 0);
}

tn_conv_options tn_conv_strided(int64_t stride, int64_t padding) {
    return (tn_conv_options){.stride = TN_DIMS(stride),
                             .padding = TN_DIMS(padding),
                             .dilation = TN_DIMS(1),
                             .output_padding = TN_DIMS(0),
                             .groups = 1,
                             .bias = true,
                             .dtype = TN_F32,
                             .from_defaults = true};
}

const tn__conv_call tn__conv_plain = {
    .kernel = {.stride = {1, 1, 1}, .dilation = {1, 1, 1}, .groups = 1}, .spatial = 2};

bool tn__conv_begin(const char *name, int spatial, const tn_conv_options *options,
                    tn__conv_call *call) {
    *call = tn__conv_plain;
    call->spatial = spatial;
    if (!tn__options_made(options->from_defaults, name, "tn_conv")) { return false; }
    if (options->groups < 1) {
        return tn__fail(TN_EVALUE, name, "groups is %lld (it must be at least 1)",
                        (long long)options->groups);
    }
    call->kernel.groups = options->groups;
    tn_conv_args *k = &call->kernel;
    return tn__spread_numbers(name, "stride", spatial, options->stride, 1, k->stride) &&
           tn__spread_numbers(name, "padding", spatial, options->padding, 0, k->padding) &&
           tn__spread_numbers(name, "dilation", spatial, options->dilation, 1, k->dilation);
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

tn_dims tn__conv_sizes(tn_dims dims) {
    return tn_dims_from(dims.ndim - 2, dims.size + 2);
}

tn_dims tn__conv_dims(int64_t first, int64_t second, tn_dims sizes) {
    tn_dims dims = TN_DIMS(first, second);
    for (int i = 0; i < sizes.ndim; i++) {
        dims.size[dims.ndim++] = sizes.size[i];
    }
    return dims;
}

static bool rank_fits(const tn_op_call *c, int input, const char *layout) {
    const tn__conv_call *call = c->args;
    if (tn_ndim(c->in[input]) == call->spatial + 2) { return true; }
    return tn_op_fail(c, TN_ESHAPE, "%s is %s but needs %d dimensions: %s and %d of the kernel",
                      tn_op_input_name(c->op, input).text, tn_shape_text(c->in[input]),
                      call->spatial + 2, layout, call->spatial);
}

bool tn__conv_inputs(const tn_op_call *c, const char *layout0, const char *layout1) {
    return tn_op_same_dtype(c) && tn_op_float(c, 0) && rank_fits(c, 0, layout0) &&
           rank_fits(c, 1, layout1);
}

bool tn__conv_bias(const tn_op_call *c, int64_t channels) {
    tn_tensor *b = tn__optional(c, 2);
    if (!b || (tn_ndim(b) == 1 && tn_size(b, 0) == channels)) { return true; }
    return tn_op_fail(c, TN_ESHAPE, "weight is %s, which makes %lld channels, but bias is %s",
                      tn_shape_text(c->in[1]), (long long)channels, tn_shape_text(b));
}

const tn_desc *tn__conv_volume(const tn_desc *x, tn_desc *out) {
    if (!x) { return NULL; }
    *out = (tn_desc){.data = x->data, .dtype = x->dtype, .ndim = 2 + CONV_SPATIAL};
    int missing = out->ndim - x->ndim;
    for (int i = 0; i < out->ndim; i++) {
        int from = i < 2 ? i : i - missing;
        bool exists = i < 2 || from >= 2;
        out->size[i] = exists ? x->size[from] : 1;
        out->stride[i] = exists ? x->stride[from] : 1;
    }
    return out;
}

tn_tensor *tn__conv_batched(tn_tensor *x, int spatial, bool *single) {
    *single = x && !tn_is_inert(x) && tn_ndim(x) == spatial + 1;
    return *single ? tn_unsqueeze(x, 0) : x;
}

void tn__conv_give(tn_op_grad *g, int i, const tn_op *op, tn_tensor *a, tn_tensor *b) {
    tn__conv_call call = *(const tn__conv_call *)g->args;
    call.size = tn__conv_sizes(tn_op_input_dims(g, i));
    tn_op_give(g, i, tn_apply2(op, &call, a, b));
}

tn_tensor *tn__conv_bias_grad(tn_tensor *dy) {
    tn_dims but_channels = TN_DIMS(0);
    for (int i = 2; i < tn_ndim(dy); i++) {
        but_channels.size[but_channels.ndim++] = i;
    }
    return tn_sum(dy, but_channels, false);
}

/* ---- Work ------------------------------------------------------------------------------------ */

void tn__conv_work(tn_op_work *w, const tn_dims *places, const tn_dims *kernel) {
    double channels = places && places->size[1] > 0 ? (double)places->size[1] : 1;
    tn__work_product(w, tn__work_count(places) / channels * tn__work_count(kernel),
                     1u << 0 | 1u << 1);
}
