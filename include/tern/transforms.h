/* Transforms: applied to each example's x as it is read, to normalise and to augment.
 *
 *     tn_dataset *train = TN_TRANSFORMED(tn_cifar10("data/cifar10", true), 1337,
 *                                        tn_random_crop(32, 32, 4), tn_random_horizontal_flip(0.5),
 *                                        tn_color_jitter(0.2, 0.2, 0.2),
 *                                        tn_image_normalize(3, mean, std));
 *
 * They run where examples are read: on a loader's threads. Definitions and arguments are
 * torchvision's. Randomness comes from tn_example_generator, so that an image looks different in
 * each epoch, but the same for any number of threads and ranks.
 *
 * Read next: data/transforms.c, data/augment.c.
 */
#ifndef TERN_TRANSFORMS_H
#define TERN_TRANSFORMS_H

#include "data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* By value. For your own, fill it. */
typedef struct tn_transform tn_transform;
struct tn_transform {
    const char *kind; /* a static string, for messages and checkpoints */

    /* Changes the input's dimensions to the output's; NULL: they are the same. TN_OK, or the status
     * of an error raised with tn_raise. Called once. */
    tn_status (*shape)(const tn_transform *self, tn_dims *dims);

    /* Transforms x, of size `dims` and row-major, into `out`. Called from several threads at once;
     * any randomness comes from `random`. */
    tn_status (*apply)(const tn_transform *self, tn_dims dims, const float *x, float *out,
                       tn_generator *random);

    /* Its parameters: a checkpoint compares the first `values` of them. */
    double value[16];
    int values;
    void *user;
};

/* The dataset with `count` transforms applied in order; x is f32 of fixed size. It takes the
 * dataset; the list is copied. Number k, from 0, draws from tn_example_generator with stream 2^32 +
 * k. A dataset transformed twice needs two seeds. TN_EDTYPE, TN_ESHAPE, TN_EVALUE. */
TN_API tn_dataset *tn_transformed(tn_dataset *d, const tn_transform *list, int count,
                                  uint64_t seed);
/* TN_TRANSFORMED(d, seed, transform, …): the same with the list written out. */

/* ---- Images: x (C, H, W) in [0, 1] ----------------------------------------------------------- */

/* Pads with `padding` zeros on all sides, then takes a random window of height x width. */
TN_API tn_transform tn_random_crop(int64_t height, int64_t width, int64_t padding);

/* The window in the middle; a smaller image is padded with zeros. */
TN_API tn_transform tn_center_crop(int64_t height, int64_t width);

/* Mirrors left and right with probability p. */
TN_API tn_transform tn_random_horizontal_flip(double p);

/* Changes brightness, contrast and saturation in random order by random factors: for an argument a,
 * at least 0, the factor is in [max(0, 1 - a), 1 + a]. For images with one channel or three. Draws
 * the order, tn_random_below of 6 (bcs, bsc, cbs, csb, sbc, scb), then the factors in the order of
 * the arguments, tn_random_uniform each. */
TN_API tn_transform tn_color_jitter(double brightness, double contrast, double saturation);

/* Bilinear; shrinking averages over all pixels that are covered (antialias). */
TN_API tn_transform tn_image_resize(int64_t height, int64_t width);

/* Takes a random window with a fraction of `least` (torchvision: 0.08) to 1 of the image's area and
 * a width of 3/4 to 4/3 of its height, and resizes it to height x width. Drawn by
 * tn_random_uniform, up to ten times until it fits: the fraction, the logarithm of the ratio, then
 * top and left; if none fits, it is the largest in the middle. */
TN_API tn_transform tn_random_resized_crop(int64_t height, int64_t width, double least);

/* (x - mean[c]) / std[c] for each of C channels, 1 … 8; x (C, …). */
TN_API tn_transform tn_image_normalize(int C, const double *mean, const double *std);

/* ---- Batches --------------------------------------------------------------------------------- */

/* mixup (Zhang et al. 2017, arXiv:1710.09412) as in torchvision: row i of x becomes lambda x[i] +
 * (1 - lambda) x[i-1] (the last row precedes the first), and y likewise: integers (B) become
 * probabilities (B, classes) of x's dtype. lambda is one number for the batch, Beta(alpha, alpha),
 * drawn from the seed and the batch's epoch and index, so each rank needs its own seed; the rest of
 * the batch does not change. A loss for such y, which differs from the cross entropy by a constant:
 * tn_div_scalar(tn_kl_div(tn_log_softmax(logits, 1), y, TN_SUM, false), B). x and y are inert after
 * TN_ESHAPE, TN_EDTYPE, TN_EVALUE, TN_EINDEX. */
TN_API tn_batch tn_mixup(tn_batch b, int64_t classes, double alpha, uint64_t seed);

#ifdef __cplusplus
}
static inline tn_dataset *tn__transformed_cxx(tn_dataset *d, uint64_t seed,
                                              std::initializer_list<tn_transform> list) {
    return tn_transformed(d, list.begin(), (int)list.size(), seed);
}
#define TN_TRANSFORMED(dataset, seed, ...) tn__transformed_cxx(dataset, seed, {__VA_ARGS__})
#else
#define TN_TRANSFORMED(dataset, seed, ...)                                                    \
    tn_transformed(dataset, (const tn_transform[]){__VA_ARGS__},                              \
                   (int)(sizeof((const tn_transform[]){__VA_ARGS__}) / sizeof(tn_transform)), \
                   seed)
#endif
#endif
