/* The time of one transform on one example, in us: images 3 x 32 x 32 and 3 x 224 x 224. Prints
 * lines NAME US; bench/transforms.py adds PyTorch's. */
#include "bench.h"

enum { IMAGES = 64, ROUNDS = 5 };

/* The best of some rounds over all images: get of the transformed dataset, which also copies. */
static void time_transform(const char *name, tn_tensor *x, tn_transform t) {
    int64_t side = tn_size(x, 2), count = side < 100 ? 20 * IMAGES : IMAGES;
    tn_dataset *d = tn_transformed(tn_tensor_dataset(x, NULL), &t, 1, 1);
    float *out = malloc((size_t)tn_dims_count(d->x_dims) * sizeof(float));
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = bench_now();
        for (int64_t i = 0; i < count; i++) {
            d->get(d, (tn_example){.index = i % IMAGES, .epoch = round, .place = i}, out, NULL);
        }
        double each = (bench_now() - begin) / (double)count * 1e6;
        best = round == 0 || each < best ? each : best;
    }
    printf("%s_%d %.3f\n", name, (int)side, best);
    free(out);
    tn_dataset_free(d);
}

int main(void) {
    static const double mean[] = {0.5, 0.5, 0.5}, std[] = {0.2, 0.2, 0.2};
    tn_on_error(tn_error_exit);
    for (int64_t side = 32; side <= 224; side += 192) {
        TN_SCOPE;
        tn_tensor *x = tn_rand(TN_DIMS(IMAGES, 3, side, side), TN_F32);
        time_transform("crop", x, tn_random_crop(side, side, 4));
        time_transform("flip", x, tn_random_horizontal_flip(0.5));
        time_transform("jitter", x, tn_color_jitter(0.2, 0.2, 0.2));
        time_transform("normalize", x, tn_image_normalize(3, mean, std));
        time_transform("resize", x, tn_image_resize(side * 3 / 4, side * 3 / 4));
    }
    return 0;
}
