/* The windows of pooling (tn_pool_args): which elements a place of the result has, and which places
 * have an element. For ref, for the kernels of a GPU and for the operations' own loops. */
#ifndef TERN_BACKENDS_POOL_H
#define TERN_BACKENDS_POOL_H

#include "core/inline.h"
#include "tern/sys/backend.h"

/* The window of one place of the result in one dimension: `count` elements from `first` on,
 * dilation apart; with the padding it is `span` wide. */
typedef struct tn__window {
    int64_t first, count, span;
} tn__window;

TN__INLINE tn__window tn__window_at(const tn_pool_args *a, int dim, int64_t place) {
    int64_t in = a->in[dim];
    if (a->adaptive) {
        int64_t first = place * in / a->out[dim];
        int64_t end = ((place + 1) * in + a->out[dim] - 1) / a->out[dim];
        tn__window w = {first, end - first, end - first};
        return w;
    }
    int64_t dilation = a->dilation[dim], padding = a->padding[dim], kernel = a->kernel[dim];
    int64_t start = place * a->stride[dim] - padding, left = kernel, first = start;
    if (first < 0) {
        int64_t outside = (-first + dilation - 1) / dilation;
        left -= outside;
        first += outside * dilation;
    }
    int64_t inside = first < in ? in - first : 0;
    if (dilation > 1) {
        inside = (inside + dilation - 1) / dilation;
    }
    int64_t span = start + kernel < in + padding ? kernel : in + padding - start;
    tn__window w = {first, left < inside ? left : inside, span};
    return w;
}

/* 1 / the divisor of the window that w[3] make. */
TN__INLINE double tn__window_share(const tn_pool_args *a, const tn__window *w) {
    if (a->divisor > 0) {
        return 1.0 / (double)a->divisor;
    }
    return a->count_include_pad ? 1.0 / (double)(w[0].span * w[1].span * w[2].span)
                                : 1.0 / (double)(w[0].count * w[1].count * w[2].count);
}

/* The places in one dimension whose windows may have element `at`: `count` from `first` on. With
 * dilation some of them pass over it. */
typedef struct tn__places {
    int64_t first, count;
} tn__places;

TN__INLINE tn__places tn__places_of(const tn_pool_args *a, int dim, int64_t at) {
    int64_t in = a->in[dim], out = a->out[dim], first, last;
    if (a->adaptive) {
        first = at * out / in;
        last = ((at + 1) * out - 1) / in;
    } else {
        int64_t stride = a->stride[dim], reach = a->dilation[dim] * (a->kernel[dim] - 1);
        int64_t behind = at + a->padding[dim] - reach; /* where the first of them may begin */
        first = behind > 0 ? (behind + stride - 1) / stride : 0;
        last = (at + a->padding[dim]) / stride;
    }
    last = last < out - 1 ? last : out - 1;
    tn__places p = {first, last < first ? 0 : last - first + 1};
    return p;
}

#endif
