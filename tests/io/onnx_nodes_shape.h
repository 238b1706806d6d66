/* Operators that move, gather and scatter elements (onnx_node.h). */
#ifndef TERN_TESTS_IO_ONNX_NODES_SHAPE_H
#define TERN_TESTS_IO_ONNX_NODES_SHAPE_H

#include "tests/io/onnx_node.h"

/* A size of 0 means x's size, unless allowzero is set. */
static void reshape_node(node *n) {
    int64_t sizes[NODE_NUMBERS];
    int count = numbers_of(n, 1, sizes);
    for (int i = 0; i < count; i++) {
        if (sizes[i] == 0 && !whole_of(n, "allowzero", 0)) {
            sizes[i] = tn_size(n->in[0], i);
        }
    }
    n->out[0] = tn_reshape(n->in[0], tn_dims_from(count, sizes));
}

static void transpose_node(node *n) {
    int64_t order[NODE_NUMBERS];
    int ndim = tn_ndim(n->in[0]);
    if (list_of(n, "perm", order) < 0) {
        for (int i = 0; i < ndim; i++) {
            order[i] = ndim - 1 - i;
        }
    }
    n->out[0] = tn_permute(n->in[0], tn_dims_from(ndim, order));
}

static void expand_node(node *n) {
    int64_t sizes[NODE_NUMBERS];
    int count = numbers_of(n, 1, sizes);
    tn_dims to;
    if (tn_dims_broadcast(tn_shape(n->in[0]), tn_dims_from(count, sizes), &to)) {
        n->out[0] = tn_expand(n->in[0], to);
    }
}

/* A negative step flips x first. */
static void slice_node(node *n) {
    int64_t starts[NODE_NUMBERS], ends[NODE_NUMBERS], axes[NODE_NUMBERS], steps[NODE_NUMBERS];
    int count = numbers_of(n, 1, starts), named = numbers_of(n, 3, axes);
    bool stepped = numbers_of(n, 4, steps) > 0;
    tn_tensor *x = n->in[0];
    numbers_of(n, 2, ends);
    for (int i = 0; i < count; i++) {
        int axis = (int)(named > 0 ? axes[i] : i);
        int64_t step = stepped ? steps[i] : 1, size = tn_size(x, axis);
        if (step < 0) { /* place k is place size - 1 - k of the flipped x */
            x = tn_flip(x, TN_DIMS(axis));
            int64_t start = starts[i] < 0 ? starts[i] + size : starts[i];
            int64_t end = ends[i] < 0 ? (ends[i] < -size ? -1 : ends[i] + size) : ends[i];
            starts[i] = start >= size ? 0 : size - 1 - start;
            ends[i] = size - 1 - end;
            step = -step;
        }
        x = tn_slice(x, axis, starts[i], ends[i], step);
    }
    n->out[0] = x;
}

static void gather_node(node *n) {
    tn_tensor *x = n->in[0], *index = n->in[1];
    int axis = (int)whole_of(n, "axis", 0);
    axis += axis < 0 ? tn_ndim(x) : 0;
    if (!indexed_within(n, index, (double)tn_size(x, axis))) {
        return;
    }
    tn_dims from = tn_shape(x), at = tn_shape(index), to = {0};
    for (int i = 0; i < from.ndim; i++) {
        for (int k = 0; k < (i == axis ? at.ndim : 1); k++) {
            to.size[to.ndim++] = i == axis ? at.size[k] : from.size[i];
        }
    }
    n->out[0] = tn_reshape(tn_index_select(x, axis, tn_reshape(index, TN_DIMS(-1))), to);
}

static void gather_elements_node(node *n) {
    int axis = (int)whole_of(n, "axis", 0);
    if (indexed_within(n, n->in[1], (double)tn_size(n->in[0], axis))) {
        n->out[0] = tn_gather(n->in[0], axis, n->in[1]);
    }
}

static void scatter_elements_node(node *n) {
    int axis = (int)whole_of(n, "axis", 0);
    if (!indexed_within(n, n->in[1], (double)tn_size(n->in[0], axis))) {
        return;
    }
    if (attribute_is(n, "reduction", "none", "add")) {
        n->out[0] = tn_scatter_add(n->in[0], axis, n->in[1], n->in[2]);
    } else {
        note_missing(n, "a reduction other than add");
    }
}

/* Indices (…, k) as k indices. */
static void scatter_nd_node(node *n) {
    bool add = attribute_is(n, "reduction", "none", "add");
    tn_tensor *index = n->in[1], *each[TN_MAX_DIMS];
    int count = (int)tn_size(index, -1);
    if (!add && !attribute_is(n, "reduction", "none", "none")) {
        note_missing(n, "a reduction other than add");
        return;
    }
    for (int i = 0; i < count; i++) {
        each[i] = tn_select(index, -1, i);
    }
    n->out[0] = tn_index_put(n->in[0], each, count, n->in[2], add);
}

static void concat_node(node *n) {
    n->out[0] = tn_cat(n->in, n->inputs, (int)whole_of(n, "axis", 0));
}

/* Into parts of the given sizes, or one part per output. */
static void split_node(node *n) {
    int64_t sizes[NODE_NUMBERS], at = 0;
    int axis = (int)whole_of(n, "axis", 0);
    int64_t all = tn_size(n->in[0], axis), each = (all + n->outputs - 1) / n->outputs;
    bool given = numbers_of(n, 1, sizes) >= 0 || list_of(n, "split", sizes) >= 0;
    for (int i = 0; i < n->outputs; i++) {
        int64_t size = given ? sizes[i] : each < all - at ? each : all - at;
        n->out[i] = tn_narrow(n->in[0], axis, at, size);
        at += size;
    }
}

/* The largest axis first, so that the others keep their numbers. */
static void squeeze_node(node *n) {
    tn_dims axes = axes_of(n, 1);
    tn_tensor *x = n->in[0];
    int ndim = tn_ndim(x);
    for (int d = ndim - 1; d >= 0; d--) {
        bool named = axes.ndim == 0 && tn_size(x, d) == 1;
        for (int i = 0; i < axes.ndim; i++) {
            named = named || axes.size[i] == d || axes.size[i] + ndim == d;
        }
        x = named ? tn_squeeze(x, d) : x;
    }
    n->out[0] = x;
}

static void unsqueeze_node(node *n) {
    tn_dims axes = axes_of(n, 1);
    tn_tensor *x = n->in[0];
    int ndim = tn_ndim(x) + axes.ndim;
    for (int d = 0; d < ndim; d++) {
        for (int i = 0; i < axes.ndim; i++) {
            if (axes.size[i] == d || axes.size[i] + ndim == d) {
                x = tn_unsqueeze(x, d);
            }
        }
    }
    n->out[0] = x;
}

static void flatten_node(node *n) {
    int64_t rows = 1;
    int axis = (int)whole_of(n, "axis", 1), ndim = tn_ndim(n->in[0]);
    for (int i = 0; i < (axis < 0 ? axis + ndim : axis); i++) {
        rows *= tn_size(n->in[0], i);
    }
    n->out[0] = tn_reshape(n->in[0], TN_DIMS(rows, -1));
}

static void tile_node(node *n) {
    int64_t times[NODE_NUMBERS];
    int count = numbers_of(n, 1, times);
    n->out[0] = tn_repeat(n->in[0], tn_dims_from(count, times));
}

/* `pads` has all begins, then all ends, for all axes or some. */
static void pad_node(node *n) {
    int64_t pads[NODE_NUMBERS], axes[NODE_NUMBERS];
    int ndim = tn_ndim(n->in[0]), named = numbers_of(n, 3, axes),
        count = numbers_of(n, 1, pads) / 2;
    tn_dims last_first = {.ndim = 2 * ndim};
    if (last_first.ndim > TN_MAX_DIMS) {
        note_missing(n, "more than 4 dimensions");
        return;
    }
    for (int i = 0; i < count; i++) {
        int64_t axis = named > 0 ? axes[i] : i, k = ndim - 1 - (axis < 0 ? axis + ndim : axis);
        last_first.size[2 * k] = pads[i];
        last_first.size[2 * k + 1] = pads[count + i];
    }
    while (last_first.ndim > 1 && last_first.size[last_first.ndim - 1] == 0 &&
           last_first.size[last_first.ndim - 2] == 0) {
        last_first.ndim -= 2;
    }
    tn_pad_mode mode = attribute_is(n, "mode", "constant", "reflect") ? TN_PAD_REFLECT
                       : attribute_is(n, "mode", "constant", "edge")  ? TN_PAD_REPLICATE
                       : attribute_is(n, "mode", "constant", "wrap")  ? TN_PAD_CIRCULAR
                                                                      : TN_PAD_CONSTANT;
    n->out[0] = tn_pad(n->in[0], last_first, mode, number_of(n, 2, 0.0));
}

static void trilu_node(node *n) {
    int64_t diagonal = (int64_t)number_of(n, 1, 0.0);
    n->out[0] = whole_of(n, "upper", 1) ? tn_triu(n->in[0], diagonal) : tn_tril(n->in[0], diagonal);
}

static void nonzero_node(node *n) {
    n->out[0] = tn_contiguous(tn_transpose(tn_nonzero(n->in[0]), 0, 1));
}

static void unique_node(node *n) {
    if (!text_of(n, "axis", NULL) && must_be(n, "sorted", 1) && n->outputs == 1) {
        n->out[0] = tn_unique(n->in[0], NULL, NULL);
    } else if (!*n->missing) {
        note_missing(n, "an axis, or the places of the first");
    }
}

static void topk_node(node *n) {
    bool largest = whole_of(n, "largest", 1) != 0;
    int axis = (int)whole_of(n, "axis", -1);
    n->out[0] = tn_topk(n->in[0], (int64_t)number_of(n, 1, 1), axis, largest, &n->out[1]);
}

static void one_hot_node(node *n) {
    tn_tensor *values = n->in[2];
    int axis = (int)whole_of(n, "axis", -1), ndim = tn_ndim(n->in[0]) + 1;
    int64_t depth = (int64_t)number_of(n, 1, 0);
    if (!indexed_within(n, n->in[0], (double)depth)) {
        return;
    }
    tn_tensor *index = tn_cast(n->in[0], TN_I64), *order = tn_one_hot(index, depth);
    tn_dims to = {.ndim = ndim};
    axis += axis < 0 ? ndim : 0;
    for (int i = 0, k = 0; i < ndim; i++) {
        to.size[i] = i == axis ? ndim - 1 : k++;
    }
    tn_tensor *hot = tn_ne(order, tn_zeros_like(order));
    n->out[0] = tn_where(tn_permute(hot, to), tn_select(values, 0, 1), tn_select(values, 0, 0));
}

static void range_node(node *n) {
    n->out[0] = tn_arange(number_of(n, 0, 0), number_of(n, 1, 0), number_of(n, 2, 1),
                          tn_dtype_of(n->in[0]));
}

static void eye_like_node(node *n) {
    tn_dtype dtype = tn_dtype_of(n->in[0]);
    int64_t number = whole_of(n, "dtype", 0);
    if (must_be(n, "k", 0)) {
        dtype = number ? dtype_named(n, number) : dtype;
        n->out[0] = tn_eye(tn_size(n->in[0], 0), tn_size(n->in[0], 1), dtype);
    }
}

static const node_case shape_nodes[] = {
    {"Concat", concat_node},
    {"Expand", expand_node},
    {"EyeLike", eye_like_node},
    {"Flatten", flatten_node},
    {"Gather", gather_node},
    {"GatherElements", gather_elements_node},
    {"NonZero", nonzero_node},
    {"OneHot", one_hot_node},
    {"Pad", pad_node},
    {"Range", range_node},
    {"Reshape", reshape_node},
    {"ScatterElements", scatter_elements_node},
    {"ScatterND", scatter_nd_node},
    {"Slice", slice_node},
    {"Split", split_node},
    {"Squeeze", squeeze_node},
    {"Tile", tile_node},
    {"TopK", topk_node},
    {"Transpose", transpose_node},
    {"Trilu", trilu_node},
    {"Unique", unique_node},
    {"Unsqueeze", unsqueeze_node},
    {0},
};

#endif
