/* Transforms of images (C, H, W), as torchvision defines them.
 *
 * A constructor only stores its arguments in `value`; `shape` checks whether images fit when the
 * dataset is made, so `apply` fails only without memory.
 */
#include "core/error.h"
#include "core/memory.h"
#include "tern/transforms.h"

#include <math.h>
#include <string.h>

/* value[] of the transforms that have a size */
enum { HEIGHT, WIDTH, PADDING, LEAST = PADDING };

static bool is_image(const tn_transform *t, const tn_dims *dims) {
    if (dims->ndim != 3 || dims->size[0] < 1 || dims->size[1] < 1 || dims->size[2] < 1) {
        return tn__fail(TN_ESHAPE, t->kind,
                        "x has %d dimensions or is empty; it should be (C, H, W)", dims->ndim);
    }
    return true;
}

/* A height or width that a tensor may have. */
static bool is_length(double v) {
    return v >= 1 && v <= 1e6;
}

/* The result has the height and width of value[]. */
static tn_status sized_shape(const tn_transform *t, tn_dims *dims) {
    if (!is_image(t, dims)) { return tn_error(); }
    if (!is_length(t->value[HEIGHT]) || !is_length(t->value[WIDTH])) {
        return tn__raise(TN_EVALUE, t->kind, "to %g x %g (1 to 1000000)", t->value[HEIGHT],
                         t->value[WIDTH]);
    }
    dims->size[1] = (int64_t)t->value[HEIGHT];
    dims->size[2] = (int64_t)t->value[WIDTH];
    return TN_OK;
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* Copies the window whose first pixel is (top, left) of the image, with zeros outside the image. */
static void copy_window(tn_dims from, const float *x, int64_t height, int64_t width, int64_t top,
                        int64_t left, float *out) {
    int64_t H = from.size[1], W = from.size[2];
    int64_t begin = left < 0 ? -left : 0; /* of the part of a row that is in the image */
    int64_t end = width < W - left ? width : W - left;
    for (int64_t c = 0; c < from.size[0]; c++) {
        for (int64_t i = 0; i < height; i++, out += width) {
            int64_t row = top + i;
            memset(out, 0, (size_t)width * sizeof(float));
            if (row >= 0 && row < H && begin < end) {
                memcpy(out + begin, x + (c * H + row) * W + left + begin,
                       (size_t)(end - begin) * sizeof(float));
            }
        }
    }
}

static tn_status crop_shape(const tn_transform *t, tn_dims *dims) {
    tn_dims before = *dims;
    double padding = t->value[PADDING];
    if (sized_shape(t, dims) != TN_OK) { return tn_error(); }
    if (!(padding >= 0 && padding <= 1e6) || before.size[1] + 2 * padding < t->value[HEIGHT] ||
        before.size[2] + 2 * padding < t->value[WIDTH]) {
        return tn__raise(TN_ESHAPE, t->kind,
                         "a window of %g x %g does not fit into an image of %lld x %lld with %g "
                         "pixels around it",
                         t->value[HEIGHT], t->value[WIDTH], (long long)before.size[1],
                         (long long)before.size[2], padding);
    }
    return TN_OK;
}

static tn_status crop_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                            tn_generator *random) {
    int64_t height = (int64_t)t->value[HEIGHT], width = (int64_t)t->value[WIDTH];
    int64_t padding = (int64_t)t->value[PADDING];
    int64_t top = tn_random_below(random, dims.size[1] + 2 * padding - height + 1) - padding;
    int64_t left = tn_random_below(random, dims.size[2] + 2 * padding - width + 1) - padding;
    copy_window(dims, x, height, width, top, left, out);
    return TN_OK;
}

tn_transform tn_random_crop(int64_t height, int64_t width, int64_t padding) {
    return (tn_transform){.kind = "random_crop",
                          .shape = crop_shape,
                          .apply = crop_apply,
                          .value = {(double)height, (double)width, (double)padding},
                          .values = 3};
}

static tn_status center_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    int64_t height = (int64_t)t->value[HEIGHT], width = (int64_t)t->value[WIDTH];
    int64_t above = dims.size[1] - height, beside = dims.size[2] - width;
    /* half of what is cut off, rounded to even as in Python; half of what is added, rounded down */
    int64_t top = above > 0 ? (int64_t)rint((double)above / 2) : -(-above / 2);
    int64_t left = beside > 0 ? (int64_t)rint((double)beside / 2) : -(-beside / 2);
    copy_window(dims, x, height, width, top, left, out);
    return TN_OK;
}

tn_transform tn_center_crop(int64_t height, int64_t width) {
    return (tn_transform){.kind = "center_crop",
                          .shape = sized_shape,
                          .apply = center_apply,
                          .value = {(double)height, (double)width},
                          .values = 2};
}

/* ---- Other sizes ----------------------------------------------------------------------------- *
 *
 * Of images, or of random windows of them: bilinear, one axis at a time, with a filter as wide as
 * what one new pixel covers, as in torchvision with antialias=True. */

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

/* The whole image. */
static tn_status resize_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    window all = {.height = dims.size[1], .width = dims.size[2]};
    return resize_window(t, dims, x, all, out);
}

tn_transform tn_image_resize(int64_t height, int64_t width) {
    return (tn_transform){.kind = "image_resize",
                          .shape = sized_shape,
                          .apply = resize_apply,
                          .value = {(double)height, (double)width},
                          .values = 2};
}

/* A random window. */

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
    return sized_shape(t, dims);
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

/* ---- Left and right -------------------------------------------------------------------------- */

static tn_status flip_shape(const tn_transform *t, tn_dims *dims) {
    if (!(t->value[0] >= 0 && t->value[0] <= 1)) {
        return tn__raise(TN_EVALUE, t->kind, "with probability %g", t->value[0]);
    }
    return is_image(t, dims) ? TN_OK : tn_error();
}

static tn_status flip_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                            tn_generator *random) {
    int64_t rows = dims.size[0] * dims.size[1], W = dims.size[2];
    bool flipped = tn_random_uniform(random) < t->value[0];
    if (!flipped) {
        memcpy(out, x, (size_t)(rows * W) * sizeof(float));
        return TN_OK;
    }
    for (int64_t r = 0; r < rows; r++, x += W, out += W) {
        for (int64_t i = 0; i < W; i++) {
            out[i] = x[W - 1 - i];
        }
    }
    return TN_OK;
}

tn_transform tn_random_horizontal_flip(double p) {
    return (tn_transform){.kind = "random_horizontal_flip",
                          .shape = flip_shape,
                          .apply = flip_apply,
                          .value = {p},
                          .values = 1};
}

/* ---- Colours --------------------------------------------------------------------------------- */

typedef enum colour_change { BRIGHTNESS, CONTRAST, SATURATION, CHANGES } colour_change;

static tn_status jitter_shape(const tn_transform *t, tn_dims *dims) {
    for (int i = 0; i < CHANGES; i++) {
        if (!(t->value[i] >= 0 && isfinite(t->value[i]))) {
            return tn__raise(TN_EVALUE, t->kind, "by %g (0 at least)", t->value[i]);
        }
    }
    if (!is_image(t, dims)) { return tn_error(); }
    if (dims->size[0] != 1 && dims->size[0] != 3) {
        return tn__raise(TN_ESHAPE, t->kind, "an image has %lld channels, but should have 1 or 3",
                         (long long)dims->size[0]);
    }
    return TN_OK;
}

static float clamp_unit(float v) {
    return v < 0 ? 0 : v > 1 ? 1 : v;
}

/* The brightness of pixel i. */
static float gray_of(const float *image, int64_t channels, int64_t pixels, int64_t i) {
    return channels == 1
               ? image[i]
               : 0.2989f * image[i] + 0.587f * image[pixels + i] + 0.114f * image[2 * pixels + i];
}

static float mean_gray(const float *image, int64_t channels, int64_t pixels) {
    double sum = 0;
    for (int64_t i = 0; i < pixels; i++) {
        sum += (double)gray_of(image, channels, pixels, i);
    }
    return (float)(sum / (double)pixels);
}

/* factor x + (1 - factor) gray, where gray is one number for all pixels, or each pixel's own if
 * NULL. */
static void blend_pixels(float *image, int64_t channels, int64_t pixels, double factor,
                         const float *gray) {
    float mine = (float)factor, other = (float)(1 - factor);
    for (int64_t i = 0; i < pixels; i++) {
        float g = gray ? *gray : gray_of(image, channels, pixels, i);
        for (int64_t c = 0; c < channels; c++) {
            float *v = &image[c * pixels + i];
            *v = clamp_unit(mine * *v + other * g);
        }
    }
}

static void change_colours(float *image, int64_t channels, int64_t pixels, colour_change what,
                           double factor) {
    float gray = what == CONTRAST ? mean_gray(image, channels, pixels) : 0;
    if (what != SATURATION) {
        blend_pixels(image, channels, pixels, factor, &gray);
    } else if (channels == 3) { /* gray has no colours to lose */
        blend_pixels(image, channels, pixels, factor, NULL);
    }
}

static tn_status jitter_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                              tn_generator *random) {
    static const colour_change orders[][CHANGES] = {
        {BRIGHTNESS, CONTRAST, SATURATION}, {BRIGHTNESS, SATURATION, CONTRAST},
        {CONTRAST, BRIGHTNESS, SATURATION}, {CONTRAST, SATURATION, BRIGHTNESS},
        {SATURATION, BRIGHTNESS, CONTRAST}, {SATURATION, CONTRAST, BRIGHTNESS}};
    int64_t pixels = dims.size[1] * dims.size[2];
    const colour_change *order = orders[tn_random_below(random, 6)];
    double factor[CHANGES];
    for (int i = 0; i < CHANGES; i++) {
        double low = t->value[i] < 1 ? 1 - t->value[i] : 0, high = 1 + t->value[i];
        factor[i] = low + tn_random_uniform(random) * (high - low);
    }
    memcpy(out, x, (size_t)(dims.size[0] * pixels) * sizeof(float));
    for (int k = 0; k < CHANGES; k++) {
        if (t->value[order[k]] > 0) {
            change_colours(out, dims.size[0], pixels, order[k], factor[order[k]]);
        }
    }
    return TN_OK;
}

tn_transform tn_color_jitter(double brightness, double contrast, double saturation) {
    return (tn_transform){.kind = "color_jitter",
                          .shape = jitter_shape,
                          .apply = jitter_apply,
                          .value = {brightness, contrast, saturation},
                          .values = CHANGES};
}

/* ---- Numbers --------------------------------------------------------------------------------- */

enum { MOST_CHANNELS = 8 };

/* value[] is the means, then the standard deviations. */
static tn_status normalize_shape(const tn_transform *t, tn_dims *dims) {
    int64_t C = t->values / 2;
    if (C == 0) {
        return tn__raise(TN_EVALUE, t->kind,
                         "expected means and deviations for 1 to %d channels, neither of them NULL",
                         MOST_CHANNELS);
    }
    if (dims->ndim < 1 || dims->size[0] != C) {
        return tn__raise(TN_ESHAPE, t->kind, "x has %lld channels, but there are means for %lld",
                         (long long)(dims->ndim < 1 ? 0 : dims->size[0]), (long long)C);
    }
    for (int64_t c = 0; c < C; c++) {
        if (!isfinite(t->value[c]) || !(t->value[C + c] > 0)) {
            return tn__raise(TN_EVALUE, t->kind, "mean %g and std %g of channel %lld", t->value[c],
                             t->value[C + c], (long long)c);
        }
    }
    return TN_OK;
}

static tn_status normalize_apply(const tn_transform *t, tn_dims dims, const float *x, float *out,
                                 tn_generator *random) {
    int64_t C = dims.size[0], each = C ? tn_dims_count(dims) / C : 0;
    for (int64_t c = 0; c < C; c++, x += each, out += each) {
        float mean = (float)t->value[c], std = (float)t->value[C + c];
        for (int64_t i = 0; i < each; i++) {
            out[i] = (x[i] - mean) / std;
        }
    }
    return TN_OK;
}

tn_transform tn_image_normalize(int C, const double *mean, const double *std) {
    tn_transform t = {
        .kind = "image_normalize", .shape = normalize_shape, .apply = normalize_apply};
    bool fits = C >= 1 && C <= MOST_CHANNELS && mean && std;
    for (int c = 0; fits && c < C; c++) {
        t.value[c] = mean[c];
        t.value[C + c] = std[c];
    }
    t.values = fits ? 2 * C : 0; /* normalize_shape rejects 0 */
    return t;
}
