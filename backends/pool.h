/* What the kernels of max_pool, avg_pool and avg_unpool read (ops/pool/): tn_pool_args, and the
 * windows that they describe: which elements a place of the result covers, and which places cover
 * an element. */
#ifndef TERN_BACKENDS_POOL_H
#define TERN_BACKENDS_POOL_H

#include "core/inline.h"
#include "tern/sys/backend.h"

/* Windows over the dimensions after (N, C), of which there are `spatial`: 1, 2 or 3. Arguments
 * always have three: missing ones come first, and have size 1. Place p of the result covers the
 * elements p stride - padding + i dilation, 0 <= i < kernel, as far as they exist; adaptive: those
 * from p in / out (rounded down) to (p + 1) in / out (up), and dilation is 1. */
typedef struct tn_pool_args {
    int spatial;
    bool adaptive;          /* then kernel, stride, padding and divisor are not read */
    bool count_include_pad; /* a mean divides by the window with its padding */
    int64_t divisor;        /* > 0: a mean divides by it */
    int64_t kernel[3], stride[3], padding[3], dilation[3];
    int64_t in[3], out[3]; /* sizes of what is pooled, and of the result */
} tn_pool_args;

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
    if (dilation > 1) { inside = (inside + dilation - 1) / dilation; }
    int64_t span = start + kernel < in + padding ? kernel : in + padding - start;
    tn__window w = {first, left < inside ? left : inside, span};
    return w;
}

/* 1 / the divisor of the window that w[0], w[1] and w[2] make. */
TN__INLINE double tn__window_share(const tn_pool_args *a, const tn__window *w) {
    if (a->divisor > 0) { return 1.0 / (double)a->divisor; }
    return a->count_include_pad ? 1.0 / (double)(w[0].span * w[1].span * w[2].span)
                                : 1.0 / (double)(w[0].count * w[1].count * w[2].count);
}

/* The places in one dimension whose windows may cover element `at`: `count` from `first` on. With
 * dilation some of them skip it. */
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
