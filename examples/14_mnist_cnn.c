/* Handwritten digits, read by a convolutional network:  14_mnist_cnn FOLDER [mlp]
 *
 * FOLDER has the 10,000 images of MNIST's test set (t10k-images-idx3-ubyte and its labels, plain or
 * .gz): 8,000 for training, 2,000 for testing. With `mlp` it trains a network that ignores which
 * pixels are neighbours, for comparison. At the end it draws some misread digits.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <string.h>

enum { IMAGES = 10000, LEARNED = 8000, SIDE = 28, PIXELS = SIDE * SIDE, BATCH = 64 };

/* ---- The models ------------------------------------------------------------------------------ */

/* x (B, 1, 28, 28) -> (B, 10): one score per digit. Each pooling halves the image, so the next
 * convolution sees twice as far. */
static tn_sequential *cnn_new(void) {
    return TN_SEQUENTIAL(tn_conv2d_new_with(1, 16, TN_DIMS(3), tn_conv_strided(1, 1)),
                         tn_batch_norm2d_new(16), TN_FN(tn_relu), tn_max_pool2d_new(2),
                         tn_conv2d_new_with(16, 32, TN_DIMS(3), tn_conv_strided(1, 1)),
                         tn_batch_norm2d_new(32), TN_FN(tn_relu), tn_max_pool2d_new(2),
                         tn_flatten_new(1, -1), tn_linear_new(32 * 7 * 7, 10));
}

static tn_sequential *mlp_new(void) {
    return TN_SEQUENTIAL(tn_flatten_new(1, -1), tn_linear_new(PIXELS, 128), TN_FN(tn_relu),
                         tn_linear_new(128, 10));
}

/* ---- The data -------------------------------------------------------------------------------- */

typedef struct {
    tn_tensor *x, *y; /* (N, 1, 28, 28), (N) */
} digits;

static digits read_digits(const char *folder) {
    tn_dataset *d = tn_mnist(folder, false);
    digits all = {tn_empty(TN_DIMS(IMAGES, 1, SIDE, SIDE), TN_F32),
                  tn_empty(TN_DIMS(IMAGES), TN_I64)};
    float *pixels = tn_data_mut(all.x);
    int64_t *labels = tn_data_mut(all.y);
    for (int64_t i = 0; i < IMAGES && i < d->size; i++) {
        tn_dataset_get(d, i, pixels + i * PIXELS, labels + i);
    }
    tn_dataset_free(d);
    return all;
}

static digits some_digits(digits all, int64_t first, int64_t count) {
    return (digits){tn_narrow(all.x, 0, first, count), tn_narrow(all.y, 0, first, count)};
}

/* ---- Training and testing -------------------------------------------------------------------- */

static void train_model(tn_sequential *net, digits learned, int epochs) {
    tn_optim *opt = tn_adam(net, tn_adam_defaults());
    tn_loader *loader = tn_loader_new(tn_tensor_dataset(learned.x, learned.y), tn_random_sampler(1),
                                      TN_WITH(tn_loader, .batch = BATCH, .epochs = epochs));
    tn_batch b;
    while (tn_loader_next(loader, &b)) {
        TN_SCOPE;
        tn_tensor *loss = tn_cross_entropy(tn_call(net, b.x), b.y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (b.index % 25 == 0) {
            printf("epoch %lld  batch %3lld  loss %.4f\n", (long long)b.epoch, (long long)b.index,
                   tn_item(loss));
        }
    }
    tn_loader_free(loader);
    tn_optim_free(opt);
}

static void draw_digit(tn_tensor *x, int64_t label, int64_t guess) {
    float pixels[PIXELS];
    tn_copy_out(x, pixels);
    printf("\na %lld that was read as %lld\n", (long long)label, (long long)guess);
    for (int i = 0; i < PIXELS; i++) {
        putchar(" .:*#"[(int)(pixels[i] * 4.999f)]);
        if (i % SIDE == SIDE - 1) { putchar('\n'); }
    }
}

/* The fraction read correctly; draws the first two that were not. */
static double test_model(tn_sequential *net, digits kept) {
    TN_SCOPE;
    TN_NO_GRAD;
    tn_module_train(net, false); /* batch norm uses its running statistics */
    int64_t n = tn_size(kept.y, 0), right = 0, drawn = 0;
    for (int64_t i = 0; i < n; i += BATCH) {
        TN_SCOPE;
        int64_t count = n - i < BATCH ? n - i : BATCH, guesses[BATCH], labels[BATCH];
        digits part = some_digits(kept, i, count);
        tn_copy_out(tn_argmax(tn_call(net, part.x), 1, false), guesses);
        tn_copy_out(part.y, labels);
        for (int64_t k = 0; k < count; k++) {
            right += guesses[k] == labels[k];
            if (guesses[k] != labels[k] && drawn++ < 2) {
                draw_digit(tn_select(part.x, 0, k), labels[k], guesses[k]);
            }
        }
    }
    return (double)right / (double)n;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "mlp") != 0)) {
        fprintf(stderr, "%s FOLDER [mlp]\n", argv[0]);
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_seed(1);
    digits all = read_digits(argv[1]);
    tn_sequential *net = argc == 3 ? mlp_new() : cnn_new();
    tn_module_print(net, stdout);
    train_model(net, some_digits(all, 0, LEARNED), argc == 3 ? 10 : 4);
    double share = test_model(net, some_digits(all, LEARNED, IMAGES - LEARNED));
    printf("\n%.1f %% of %d digits that it had never seen were read correctly\n", 100 * share,
           IMAGES - LEARNED);
    tn_module_free(net);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
