/* Transforms: what becomes of each example's x as it is read, to normalise and to augment.
 *
 *     tn_dataset *train = TN_TRANSFORMED(tn_cifar10("data/cifar10", true), 1337,
 *                                        tn_random_crop(32, 32, 4), tn_random_horizontal_flip(0.5),
 *                                        tn_color_jitter(0.2, 0.2, 0.2),
 *                                        tn_image_normalize(3, mean, std));
 *
 * They run where examples are read: on a loader's threads. Definitions and arguments are
 * torchvision's. What is random is drawn from tn_example_generator, so that an image looks
 * different in each epoch, and the same for any number of threads and ranks.
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
    const char *kind; /* static text, for messages and checkpoints */

    /* Changes the dimensions of what goes in to those of what comes out; NULL: they are the same.
     * TN_OK, or the status of an error raised with tn_raise. Called once. */
    tn_status (*shape)(const tn_transform *self, tn_dims *dims);

    /* Writes what becomes of x, which has `dims`, row-major, to `out`. Called from several threads
     * at once; all that is random is drawn from `random`. */
    tn_status (*apply)(const tn_transform *self, tn_dims dims, const float *x, float *out,
                       tn_generator *random);

    /* What it was made with: the first `values` tell it from others in a checkpoint. */
    double value[16];
    int values;
    void *user;
};

/* The dataset with `count` transforms, one after the other; x is f32 of fixed size. It takes the
 * dataset; the list is copied. Number k, from 0, draws from tn_example_generator with stream 2^32 +
 * k. Datasets that are transformed twice take two seeds. TN_EDTYPE, TN_ESHAPE, TN_EVALUE. */
TN_API tn_dataset *tn_transformed(tn_dataset *d, const tn_transform *list, int count,
                                  uint64_t seed);
/* TN_TRANSFORMED(d, seed, transform, …): the same with the list written out. */

/* ---- Images: x (C, H, W) in [0, 1] ----------------------------------------------------------- */

/* Zeros, `padding` wide, all around; then a window of height x width where chance has it. */
TN_API tn_transform tn_random_crop(int64_t height, int64_t width, int64_t padding);

/* The window in the middle; of an image that is smaller, with zeros around it. */
TN_API tn_transform tn_center_crop(int64_t height, int64_t width);

/* Left becomes right with probability p. */
TN_API tn_transform tn_random_horizontal_flip(double p);

/* Brightness, contrast and saturation, in an order and by factors of chance: each at least 0, the
 * factor in [max(0, 1 - it), 1 + it]. Of images with one channel or three. Drawn are the order,
 * tn_random_below of 6 (bcs, bsc, cbs, csb, sbc, scb), and then the three factors in their order
 * here, tn_random_uniform each. */
TN_API tn_transform tn_color_jitter(double brightness, double contrast, double saturation);

/* Bilinear, and of a smaller result over all pixels that it covers (antialias). */
TN_API tn_transform tn_image_resize(int64_t height, int64_t width);

/* A window of `least` (torchvision: 0.08) to all of the image's area, whose width is 3/4 to 4/3 of
 * its height, as height x width. Drawn by tn_random_uniform, ten times until it fits: how much of
 * the area, the ratio (its logarithm), then the place from above and from the left; otherwise it is
 * the largest in the middle. */
TN_API tn_transform tn_random_resized_crop(int64_t height, int64_t width, double least);

/* (x - mean[c]) / std[c] for each of C channels, 1 … 8; x (C, …). */
TN_API tn_transform tn_image_normalize(int C, const double *mean, const double *std);

/* ---- Batches --------------------------------------------------------------------------------- */

/* mixup (Zhang et al. 2017, arXiv:1710.09412) as in torchvision: row i of x becomes lambda x[i] +
 * (1 - lambda) x[i-1], the first row's neighbour is the last, and so do the classes: y (B) integers
 * becomes (B, classes) of x's dtype. lambda is one number for the batch, Beta(alpha, alpha), drawn
 * from the seed and the batch's epoch and index, so ranks take seeds of their own; the rest of the
 * batch stays. A loss for such y, which differs from the cross entropy by a constant:
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
