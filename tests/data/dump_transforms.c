/* Transforms, padding and mixup for PyTorch to repeat: dump_transforms FILE
 *
 * CASE/x, y    images that went in and came out, each read once in epoch 2: (N, C, H, W)
 * CASE/draws   (N, …) what the transform drew, as transforms.h says: integers and uniform numbers
 * pad/i, pad/x, pad/lengths, mixup/…
 */
#include "tests/support/dump.h"

enum { N = 12, DRAWS = 22, SEED = 11, EPOCH = 2 };

/* What transform 0 of a list draws for example i: an integer below each of `below`, or a uniform
 * number if that is 0. */
static tn_tensor *draws_of(const int64_t *below, int count) {
    tn_tensor *t = tn_zeros(TN_DIMS(N, DRAWS), TN_F64);
    double *at = tn_data_mut(t);
    for (int64_t i = 0; i < N; i++) {
        tn_example e = {.index = i, .epoch = EPOCH, .place = i + 100};
        tn_generator g = tn_example_generator(e, SEED);
        g.stream = UINT64_C(1) << 32;
        for (int k = 0; k < count; k++) {
            at[i * DRAWS + k] =
                below[k] ? (double)tn_random_below(&g, below[k]) : tn_random_uniform(&g);
        }
    }
    return t;
}

static void dump_case(const char *name, int64_t C, int64_t H, int64_t W, tn_transform t,
                      const int64_t *below, int count) {
    TN_SCOPE;
    tn_tensor *x = tn_rand(TN_DIMS(N, C, H, W), TN_F32);
    tn_dataset *d = tn_transformed(tn_tensor_dataset(x, NULL), &t, 1, SEED);
    const int64_t *size = d->x_dims.size;
    tn_tensor *y = tn_zeros(TN_DIMS(N, size[0], size[1], size[2]), TN_F32);
    for (int64_t i = 0; i < N; i++) {
        tn_example e = {.index = i, .epoch = EPOCH, .place = i + 100};
        d->get(d, e, (float *)tn_data_mut(y) + i * tn_dims_count(d->x_dims), NULL);
    }
    add_tensor(name, "x", "", x);
    add_tensor(name, "y", "", y);
    add_tensor(name, "draws", "", draws_of(below, count));
    tn_dataset_free(d);
}

static void dump_images(void) {
    static const double mean[] = {0.4914, 0.4822, 0.4465}, std[] = {0.2470, 0.2435, 0.2616};
    dump_case("crop", 3, 9, 7, tn_random_crop(8, 10, 2), (int64_t[]){6, 2}, 2);
    dump_case("flip", 3, 5, 7, tn_random_horizontal_flip(0.4), (int64_t[]){0}, 1);
    dump_case("jitter", 3, 8, 6, tn_color_jitter(0.4, 1.5, 0.7), (int64_t[]){6, 0, 0, 0}, 4);
    dump_case("jitter1", 1, 8, 6, tn_color_jitter(0.4, 0.5, 0.7), (int64_t[]){6, 0, 0, 0}, 4);
    dump_case("normalize", 3, 4, 4, tn_image_normalize(3, mean, std), NULL, 0);
    dump_case("center", 2, 9, 8, tn_center_crop(4, 5), NULL, 0);
    dump_case("center_pad", 2, 5, 8, tn_center_crop(8, 3), NULL, 0);
    dump_case("smaller", 3, 32, 30, tn_image_resize(13, 7), NULL, 0);
    dump_case("larger", 2, 5, 6, tn_image_resize(12, 6), NULL, 0);
    const int64_t uniform[DRAWS] = {0};
    dump_case("window", 3, 20, 30, tn_random_resized_crop(8, 9, 0.08), uniform, DRAWS);
    dump_case("window_high", 1, 30, 6, tn_random_resized_crop(8, 9, 0.9), uniform, DRAWS);
    dump_case("window_broad", 1, 5, 40, tn_random_resized_crop(4, 4, 0.5), uniform, DRAWS);
    dump_case("both", 1, 20, 5, tn_image_resize(3, 11), NULL, 0);
}

/* Sequences of different lengths, and the batch of all of them. */
static void dump_padding(void) {
    TN_SCOPE;
    tn_tensor *x[N];
    for (int i = 0; i < N; i++) {
        char number[8];
        x[i] = tn_randn(TN_DIMS(draw_whole(0, 9), 3), TN_F32);
        snprintf(number, sizeof(number), "%d", i);
        add_tensor("pad", number, "", x[i]);
    }
    tn_loader_options o = TN_WITH(tn_loader, .batch = N, .x_pad = -2.5);
    tn_loader *l = tn_loader_new(tn_sequence_dataset(x, NULL, N), tn_sequential_sampler(), o);
    tn_batch b;
    if (tn_loader_next(l, &b)) {
        add_tensor("pad", "x", "", b.x);
        add_tensor("pad", "lengths", "", b.lengths);
    }
    tn_loader_free(l);
}

static void dump_mixup(void) {
    TN_SCOPE;
    tn_batch b = {.x = tn_randn(TN_DIMS(5, 3, 2), TN_F32),
                  .y = tn_randint(0, 4, TN_DIMS(5), TN_I64)};
    tn_tensor *logits = tn_set_requires_grad(tn_randn(TN_DIMS(5, 4), TN_F32), true);
    add_tensor("mixup", "x", "", b.x);
    add_tensor("mixup", "y", "", b.y);
    b = tn_mixup(b, 4, 1.0, 3);
    tn_backward(tn_div_scalar(tn_kl_div(tn_log_softmax(logits, 1), b.y, TN_SUM, false), 5));
    add_tensor("mixup", "mixed_x", "", b.x);
    add_tensor("mixup", "mixed_y", "", b.y);
    add_tensor("mixup", "logits", "", logits);
    add_tensor("mixup", "grad", "", tn_grad_of(logits));
}

int main(int argc, char **argv) {
    if (argc != 2) { return 64; }
    tn_on_error(tn_error_exit);
    writer = tn_safetensors_writer_new();
    tn_seed(5);
    dump_images();
    dump_padding();
    dump_mixup();
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
