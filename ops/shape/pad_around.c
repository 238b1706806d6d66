/* y = x with some of its own elements before and after, along some dimensions
 *
 *     x: any shape and dtype; pads: as in pad
 *     reflect: from the edge back, without the edge; fewer than x has
 *     replicate: the edge, repeated
 *     circular: from the other end; at most as many as x has
 *     y: x's sizes plus the pads
 *     dx = the sum of dy over the positions to which an element went
 */
#include "ops/shape/pad.h"

#include "core/memory.h"

#include <stdlib.h>

static bool pad_around_shape(tn_op_call *c) {
    const tn__pad_args *args = c->args;
    tn_dims x = c->in[0]->dims;
    if (args->mode != TN_PAD_REFLECT && args->mode != TN_PAD_REPLICATE &&
        args->mode != TN_PAD_CIRCULAR) {
        return tn_op_fail(c, TN_EVALUE, "mode %d is not a tn_pad_mode", (int)args->mode);
    }
    for (int i = 0; i < args->pads.ndim && i < TN_MAX_DIMS && i / 2 < x.ndim; i++) {
        int64_t size = x.size[x.ndim - 1 - i / 2], pad = args->pads.size[i];
        int64_t cut = i + 1 < args->pads.ndim || i % 2 ? args->pads.size[i ^ 1] : 0;
        int64_t max = args->mode == TN_PAD_REFLECT    ? size - 1
                      : args->mode == TN_PAD_CIRCULAR ? size + (cut < 0 ? cut : 0)
                      : size > 0                      ? INT64_MAX
                                                      : 0;
        if (pad > 0 && pad > max) {
            return tn_op_fail(c, TN_EVALUE,
                              "x is %s: a pad of %lld in dimension %d has nothing to copy",
                              tn_shape_text(c->in[0]), (long long)pad, x.ndim - 1 - i / 2);
        }
    }
    return tn__pad_shape(c);
}

/* Which of `size` elements goes to position i, which may be before or after them. Elements that
 * negative pads remove do not wrap around. */
static int64_t source_of(tn_pad_mode mode, int64_t i, int64_t size, int64_t before,
                         int64_t behind) {
    int64_t begin = before < 0 ? -before : 0, end = size + (behind < 0 ? behind : 0);
    switch (mode) {
    case TN_PAD_REFLECT:
        return i < 0 ? -i : i >= size ? 2 * (size - 1) - i : i;
    case TN_PAD_REPLICATE:
        return i < 0 ? 0 : i >= size ? size - 1 : i;
    default:
        return i < begin ? i + end - begin : i >= end ? i - (end - begin) : i;
    }
}

static tn_tensor *pad_dim(tn_tensor *x, int dim, int64_t before, int64_t behind, tn_pad_mode mode) {
    int64_t size = tn_size(x, dim), padded = size + before + behind;
    int64_t *source = tn__calloc_for((size_t)padded, sizeof *source, "pad");
    if (!source) { return tn_inert(); }
    for (int64_t i = 0; i < padded; i++) {
        source[i] = source_of(mode, i - before, size, before, behind);
    }
    tn_tensor *index = tn_to(tn_from_data(source, TN_DIMS(padded), TN_I64), tn_device_of(x));
    free(source);
    return tn_index_select(x, dim, index);
}

static tn_tensor *pad_around_compose(tn_op_call *c) {
    const tn__pad_args *args = c->args;
    tn_tensor *x = tn_identity(c->in[0]);
    for (int i = 0; i < args->pads.ndim / 2; i++) {
        int64_t before = args->pads.size[2 * i], behind = args->pads.size[2 * i + 1];
        if (before || behind) { x = pad_dim(x, tn_ndim(x) - 1 - i, before, behind, args->mode); }
    }
    return x;
}

static const char *const pad_modes[] = {"constant", "reflect", "replicate", "circular", NULL};

const tn_op tn__op_pad_around = {
    .name = "pad_around",
    .inputs = {"x"},
    .args_size = sizeof(tn__pad_args),
    .fields = {TN_FIELD_AS("pad", tn__pad_args, pads),
               TN_FIELD(tn__pad_args, mode, .names = pad_modes)},
    .shape = pad_around_shape,
    .compose = pad_around_compose,
    .samples = "[2, 4] pad=[3, 2], mode='reflect'; [2, 4] pad=[5, 2], mode='replicate'; "
               "[2, 4] pad=[4, 2], mode='circular'; [2, 3, 4] pad=[1,2,2,0], mode='reflect'; "
               "[2, 3, 4] pad=[1, 2, 1, 0], mode='replicate'; "
               "[2, 3, 4] pad=[1, 2, 2, 0], mode='circular'; [2, 1] pad=[1, 1], mode='replicate'; "
               "[1, 1] pad=[0, 0], mode='reflect'; [3, 67] pad=[9, 3], mode='reflect'",
};
