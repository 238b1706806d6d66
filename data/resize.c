/* Images made smaller or larger: bilinear, with a filter that is as wide as what one new pixel
 * covers, as torchvision's with antialias. One axis after the other.
 */
#include "core/error.h"
#include "core/memory.h"
#include "tern/transforms.h"

#include <math.h>

enum { HEIGHT, WIDTH }; /* value[] */

/* The weights of the old pixels from *first on for new pixel i of n; returns how many. */
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

/* x (outer, in, inner) -> out (outer, n, inner); weights has room for `in`. */
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

static tn_status resize_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    int64_t C = dims.size[0], H = dims.size[1], W = dims.size[2];
    int64_t height = (int64_t)t->value[HEIGHT], width = (int64_t)t->value[WIDTH];
    int64_t longer = H > W ? H : W;
    float *wide = tn__malloc((size_t)(C * H * width + longer) * sizeof(float));
    if (!wide) {
        return tn__raise(TN_ENOMEM, t->kind, "no memory for an image");
    }
    float *weights = wide + C * H * width;
    resize_axis(x, C * H, W, 1, width, weights, wide);
    resize_axis(wide, C, H, width, height, weights, out);
    free(wide);
    return TN_OK;
}

tn_transform tn_image_resize(int64_t height, int64_t width) {
    return (tn_transform){.kind = "image_resize",
                          .shape = resize_shape,
                          .apply = resize_apply,
                          .value = {(double)height, (double)width},
                          .values = 2};
}
