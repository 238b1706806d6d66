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

/* One number for all dimensions, or one for each, into the last `spatial` of three. */
bool tn__conv_spread(const char *name, const char *what, int spatial, tn_dims given, int64_t min,
                     int64_t *all) {
    if (given.ndim != 1 && given.ndim != spatial) {
        tn__raise(TN_EVALUE, name, "%s has %d numbers (1 or %d are needed)", what, given.ndim,
                  spatial);
        return false;
    }
    for (int i = 0; i < spatial; i++) {
        int64_t n = given.size[given.ndim == 1 ? 0 : i];
        if (n < min || n > INT32_MAX) {
            tn__raise(TN_EVALUE, name, "%s is %lld (it must be from %lld to %d)", what,
                      (long long)n, (long long)min, INT32_MAX);
            return false;
        }
        all[CONV_SPATIAL - spatial + i] = n;
    }
    return true;
}

bool tn__conv_begin(const char *name, int spatial, const tn_conv_options *options,
                    tn__conv_call *call) {
    *call = (tn__conv_call){.kernel = {.stride = {1, 1, 1}, .dilation = {1, 1, 1}},
                            .spatial = spatial,
                            .size = TN_DIMS()};
    if (!tn__options_made(options->from_defaults, name, "tn_conv")) { return false; }
    if (options->groups < 1) {
        tn__raise(TN_EVALUE, name, "groups is %lld (it must be at least 1)",
                  (long long)options->groups);
        return false;
    }
    call->kernel.groups = options->groups;
    return tn__conv_spread(name, "stride", spatial, options->stride, 1, call->kernel.stride) &&
           tn__conv_spread(name, "padding", spatial, options->padding, 0, call->kernel.padding) &&
           tn__conv_spread(name, "dilation", spatial, options->dilation, 1, call->kernel.dilation);
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

bool tn__conv_rank(const tn_op_call *c, int input, const char *layout) {
    const tn__conv_call *call = c->args;
    if (tn_ndim(c->in[input]) == call->spatial + 2) { return true; }
    return tn_op_fail(c, TN_ESHAPE, "%s is %s but needs %d dimensions: %s and %d of the kernel",
                      tn_op_input_name(c->op, input).text, tn_shape_text(c->in[input]),
                      call->spatial + 2, layout, call->spatial);
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

/* ---- Samples --------------------------------------------------------------------------------- */

/* Each dimension count; strides, paddings, dilations and groups, alone and together; a kernel of
 * one element, of even sizes, as large as the input; a padding of more than the kernel; elements at
 * the end that the kernel does not reach; an empty batch; more channels and positions than a vector
 * register holds. */
const tn__conv_case *tn__conv_cases(void) {
    static const tn__conv_case all[CONV_CASES] = {
        {"size=(7,), kernel=(3,)",
         {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 1, {0, {0}}},
         {3, {2, 3, 7}},
         {3, {4, 3, 3}}},
        {"size=(8,), kernel=(4,), stride=(2,), padding=(1,)",
         {{{1, 1, 2}, {0, 0, 1}, {1, 1, 1}, 1}, 1, {0, {0}}},
         {3, {2, 2, 8}},
         {3, {3, 2, 4}}},
        {"size=(9,), kernel=(3,), stride=(3,), padding=(4,), dilation=(2,), groups=2",
         {{{1, 1, 3}, {0, 0, 4}, {1, 1, 2}, 2}, 1, {0, {0}}},
         {3, {2, 4, 9}},
         {3, {6, 2, 3}}},
        {"size=(5, 6), kernel=(3, 2)",
         {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {2, 3, 5, 6}},
         {4, {4, 3, 3, 2}}},
        {"size=(4, 5), kernel=(3, 3), padding=(1, 1)",
         {{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {1, 2, 4, 5}},
         {4, {3, 2, 3, 3}}},
        {"size=(7, 6), kernel=(3, 3), stride=(2, 2), padding=(1, 1)",
         {{{1, 2, 2}, {0, 1, 1}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {2, 2, 7, 6}},
         {4, {3, 2, 3, 3}}},
        {"size=(6, 5), kernel=(2, 3), stride=(2, 1), padding=(0, 2), dilation=(1, 2)",
         {{{1, 2, 1}, {0, 0, 2}, {1, 1, 2}, 1}, 2, {0, {0}}},
         {4, {2, 2, 6, 5}},
         {4, {2, 2, 2, 3}}},
        {"size=(5, 4), kernel=(1, 1), stride=(2, 2)",
         {{{1, 2, 2}, {0, 0, 0}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {2, 3, 5, 4}},
         {4, {5, 3, 1, 1}}},
        {"size=(4, 3), kernel=(3, 3), padding=(1, 1), groups=4",
         {{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 4}, 2, {0, {0}}},
         {4, {2, 4, 4, 3}},
         {4, {4, 1, 3, 3}}},
        {"size=(3, 3), kernel=(3, 3), padding=(1, 1), groups=2",
         {{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 2}, 2, {0, {0}}},
         {4, {1, 4, 3, 3}},
         {4, {6, 2, 3, 3}}},
        {"size=(3, 4), kernel=(3, 4)",
         {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {2, 2, 3, 4}},
         {4, {3, 2, 3, 4}}},
        {"size=(2, 1), kernel=(2, 2), padding=(3, 3)",
         {{{1, 1, 1}, {0, 3, 3}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {1, 1, 2, 1}},
         {4, {1, 1, 2, 2}}},
        {"size=(4, 4), kernel=(3, 3), padding=(1, 1)",
         {{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {0, 2, 4, 4}},
         {4, {3, 2, 3, 3}}},
        {"size=(5, 9), kernel=(3, 3), padding=(1, 1)",
         {{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}, 1}, 2, {0, {0}}},
         {4, {1, 17, 5, 9}},
         {4, {19, 17, 3, 3}}},
        {"size=(3, 4, 3), kernel=(2, 2, 2)",
         {{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, 1}, 3, {0, {0}}},
         {5, {2, 2, 3, 4, 3}},
         {5, {3, 2, 2, 2, 2}}},
        {"size=(3, 4, 6), kernel=(3, 3, 2), stride=(1, 2, 2), padding=(1, 0, 1), dilation=(1, 1, "
         "2), groups=2",
         {{{1, 2, 2}, {1, 0, 1}, {1, 1, 2}, 2}, 3, {0, {0}}},
         {5, {1, 4, 3, 4, 6}},
         {5, {2, 2, 3, 3, 2}}},
    };
    return all;
}

tn_dims tn__conv_case_result(const tn__conv_case *k) {
    tn_dims y = TN_DIMS(k->x.size[0], k->w.size[0]);
    const int64_t *stride = tn__conv_last(k->call.kernel.stride, k->call.spatial),
                  *padding = tn__conv_last(k->call.kernel.padding, k->call.spatial),
                  *dilation = tn__conv_last(k->call.kernel.dilation, k->call.spatial);
    for (int i = 0; i < k->call.spatial; i++) {
        int64_t span = dilation[i] * (k->w.size[i + 2] - 1) + 1;
        y.size[y.ndim++] = (k->x.size[i + 2] + 2 * padding[i] - span) / stride[i] + 1;
    }
    return y;
}
