/* Resizing images, or random windows of them: bilinear, one axis at a time, with a filter as wide
 * as what one new pixel covers, as in torchvision with antialias=True.
 */
#include "core/error.h"
#include "core/memory.h"
#include "tern/transforms.h"

#include <math.h>
#include <string.h>

enum { HEIGHT, WIDTH, LEAST }; /* value[] */

/* The weights of the old pixels, from *first on, in new pixel i of n; returns how many. */
static int64_t filter_of(int64_t in, int64_t n, int64_t i, float *weights, int64_t *first) {
    double scale = (double)in / (double)n, support = scale > 1 ? scale : 1;
    double center = scale * ((double)i + 0.5), sum = 0;
    double from = floor(center - support + 0.5), to = floor(center + support + 0.5);
    *first = from > 0 ? (int64_t)from : 0;
    int64_t count = (to < (double)in ? (int64_t)to : in) - *first;
    for (int64_t k = 0; k < count; k++) {
        double off = fabs(((double)(k + *first) - center + 0.5) / support);
        weights[k] = off < 1 ? (float)(1 - off) : 0;
        sum += (double)weights[k];
    }
    for (int64_t k = 0; k < count; k++) {
        weights[k] = (float)((double)weights[k] / sum);
    }
    return count;
}

/* x (outer, in, inner) -> out (outer, n, inner); weights has `in` elements. */
static void resize_axis(const float *x, int64_t outer, int64_t in, int64_t inner, int64_t n,
                        float *weights, float *out) {
    for (int64_t i = 0; i < n; i++) {
        int64_t first, count = filter_of(in, n, i, weights, &first);
        for (int64_t o = 0; o < outer; o++) {
            const float *from = x + (o * in + first) * inner;
            float *to = out + (o * n + i) * inner;
            for (int64_t k = 0; k < inner; k++) {
                float sum = 0;
                for (int64_t w = 0; w < count; w++) {
                    sum += weights[w] * from[w * inner + k];
                }
                to[k] = sum;
            }
        }
    }
}

static tn_status resize_shape(const tn_transform *t, tn_dims *dims) {
    double height = t->value[HEIGHT], width = t->value[WIDTH];
    if (dims->ndim != 3 || tn_dims_count(*dims) < 1) {
        return tn__raise(TN_ESHAPE, t->kind,
                         "x has %d dimensions or is empty; it should be (C, H, W)", dims->ndim);
    }
    if (!(height >= 1 && height <= 1e6 && width >= 1 && width <= 1e6)) {
        return tn__raise(TN_EVALUE, t->kind, "to %g x %g (1 to 1000000)", height, width);
    }
    dims->size[1] = (int64_t)height;
    dims->size[2] = (int64_t)width;
    return TN_OK;
}

/* A window of an image (C, H, W). */
typedef struct window {
    int64_t top, left, height, width;
} window;

/* Resizes the window to (C, height, width), the last two from value[]. */
static tn_status resize_window(const tn_transform *t, tn_dims dims, const float *x, window v,
                               float *out) {
    int64_t C = dims.size[0], H = dims.size[1], W = dims.size[2];
    int64_t height = (int64_t)t->value[HEIGHT], width = (int64_t)t->value[WIDTH];
    int64_t longer = H > W ? H : W;
    float *rows = tn__malloc_for(
        (size_t)(C * v.height * (v.width + width) + longer) * sizeof(float), t->kind);
    if (!rows) { return TN_ENOMEM; }
    float *wide = rows + C * v.height * v.width, *weights = wide + C * v.height * width;
    for (int64_t r = 0; r < C * v.height; r++) {
        int64_t row = r / v.height * H + v.top + r % v.height;
        memcpy(rows + r * v.width, x + row * W + v.left, (size_t)v.width * sizeof(float));
    }
    resize_axis(rows, C * v.height, v.width, 1, width, weights, wide);
    resize_axis(wide, C, v.height, width, height, weights, out);
    free(rows);
    return TN_OK;
}

/* ---- The whole image ------------------------------------------------------------------------- */

static tn_status resize_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    window all = {.height = dims.size[1], .width = dims.size[2]};
    return resize_window(t, dims, x, all, out);
}

tn_transform tn_image_resize(int64_t height, int64_t width) {
    return (tn_transform){.kind = "image_resize",
                          .shape = resize_shape,
                          .apply = resize_apply,
                          .value = {(double)height, (double)width},
                          .values = 2};
}

/* ---- A random window ------------------------------------------------------------------------- */

enum { ATTEMPTS = 10 };
static const double narrowest = 3.0 / 4, broadest = 4.0 / 3;

/* The largest centred window whose aspect ratio is within the bounds. */
static window middle_window(int64_t H, int64_t W) {
    double ratio = (double)W / (double)H;
    window v = {.height = H, .width = W};
    if (ratio < narrowest) {
        v.height = (int64_t)rint((double)W / narrowest);
    } else if (ratio > broadest) {
        v.width = (int64_t)rint((double)H * broadest);
    }
    v.top = (H - v.height) / 2;
    v.left = (W - v.width) / 2;
    return v;
}

static window draw_window(double least, int64_t H, int64_t W, tn_generator *random) {
    for (int k = 0; k < ATTEMPTS; k++) {
        double area = (double)(H * W) * (least + (1 - least) * tn_random_uniform(random));
        double low = log(narrowest), high = log(broadest);
        double ratio = exp(low + (high - low) * tn_random_uniform(random));
        double height = rint(sqrt(area / ratio)), width = rint(sqrt(area * ratio));
        if (height >= 1 && height <= (double)H && width >= 1 && width <= (double)W) {
            window v = {.height = (int64_t)height, .width = (int64_t)width};
            v.top = (int64_t)(tn_random_uniform(random) * (double)(H - v.height + 1));
            v.left = (int64_t)(tn_random_uniform(random) * (double)(W - v.width + 1));
            return v;
        }
    }
    return middle_window(H, W);
}

static tn_status window_shape(const tn_transform *t, tn_dims *dims) {
    if (!(t->value[LEAST] > 0 && t->value[LEAST] <= 1)) {
        return tn__raise(TN_EVALUE, t->kind, "of %g of the image (more than 0, to 1)",
                         t->value[LEAST]);
    }
    return resize_shape(t, dims);
}

static tn_status window_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    window v = draw_window(t->value[LEAST], dims.size[1], dims.size[2], random);
    return resize_window(t, dims, x, v, out);
}

tn_transform tn_random_resized_crop(int64_t height, int64_t width, double least) {
    return (tn_transform){.kind = "random_resized_crop",
                          .shape = window_shape,
                          .apply = window_apply,
                          .value = {(double)height, (double)width, least},
                          .values = 3};
}
