/* 22. Few images, seen many times: 22_augment FOLDER [plain]
 *
 * FOLDER has the 10,000 images of MNIST's test set (t10k-images-idx3-ubyte and its labels, plain or
 * .gz). It trains on 600 of them, without nine out of ten of their nines: a sampler draws the rare
 * ones more often, and transforms change an image each time it is read. With `plain` neither is
 * done, for comparison. At the end it draws an image as the first epochs saw it.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <string.h>

enum { CLASSES = 10, SIDE = 28, PIXELS = SIDE * SIDE, LEARNED = 600, BATCH = 50, EPOCHS = 40 };
enum { RARE = 9, SHOWN = 4 };

/* The first LEARNED examples without nine out of ten nines; weights: equal for each class as a
 * whole. */
static tn_dataset *make_rare(tn_dataset *d, double *weights) {
    int64_t kept[LEARNED], labels[LEARNED], n = 0, count[CLASSES] = {0};
    for (int64_t i = 0; i < LEARNED; i++) {
        float pixels[PIXELS];
        tn_dataset_get(d, i, pixels, &labels[n]);
        if (labels[n] != RARE || i % 10 == 0) {
            count[labels[n]]++;
            kept[n++] = i;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        weights[i] = 1 / (double)count[labels[i]];
    }
    return tn_subset(d, kept, n);
}

static tn_loader *open_loader(tn_dataset *d, tn_sampler order, int64_t epochs) {
    return tn_loader_new(d, order,
                         TN_WITH(tn_loader, .batch = BATCH, .epochs = epochs,
                                 .threads = 2)); /* the same batches as without */
}

static void train_model(tn_sequential *net, tn_loader *loader) {
    tn_optim *opt = tn_adam(net, tn_adam_defaults());
    for (tn_batch b; tn_loader_next(loader, &b);) {
        TN_SCOPE;
        tn_tensor *loss = tn_cross_entropy(tn_call(net, b.x), b.y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (b.index == 0 && b.epoch % 8 == 0) {
            printf("epoch %2lld  loss %.4f\n", (long long)b.epoch, tn_item(loss));
        }
    }
    tn_optim_free(opt);
}

static void test_model(tn_sequential *net, tn_loader *loader) {
    TN_NO_GRAD;
    int64_t right[2] = {0}, all[2] = {0}; /* of other digits; of nines */
    for (tn_batch b; tn_loader_next(loader, &b);) {
        TN_SCOPE;
        int64_t guess[BATCH], label[BATCH];
        tn_copy_out(tn_argmax(tn_call(net, b.x), 1, false), guess);
        tn_copy_out(b.y, label);
        for (int64_t i = 0; i < tn_size(b.y, 0); i++) {
            all[label[i] == RARE]++;
            right[label[i] == RARE] += guess[i] == label[i];
        }
    }
    printf("read correctly: %.1f %% of the nines, %.1f %% of the others\n",
           100.0 * (double)right[1] / (double)all[1], 100.0 * (double)right[0] / (double)all[0]);
}

/* Example i as the first epochs see it, side by side. */
static void draw_example(tn_dataset *d, int64_t i) {
    float seen[SHOWN][SIDE][SIDE];
    int64_t label;
    for (int64_t epoch = 0; epoch < SHOWN; epoch++) {
        d->get(d, (tn_example){.index = i, .epoch = epoch, .place = i}, seen[epoch], &label);
    }
    for (int row = 0; row < SIDE; row++) {
        for (int column = 0; column < SHOWN * SIDE; column++) {
            putchar(" .:*#"[(int)(seen[column / SIDE][row][column % SIDE] * 4.999f)]);
        }
        putchar('\n');
    }
}

int main(int argc, char **argv) {
    bool plain = argc == 3 && strcmp(argv[2], "plain") == 0;
    if (argc != 2 && !plain) {
        fprintf(stderr, "%s FOLDER [plain]\n", argv[0]);
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_seed(1);
    double weights[LEARNED];
    tn_dataset *parts[2]; /* for training, for testing */
    tn_random_split(tn_mnist(argv[1], false), (double[]){LEARNED, 9400}, 2, 1, parts);
    tn_dataset *few = make_rare(parts[0], weights);
    tn_sampler order = tn_random_sampler(1);
    if (!plain) {
        few = TN_TRANSFORMED(few, 1, tn_random_crop(SIDE, SIDE, 2), tn_color_jitter(0.4, 0.4, 0));
        tn_tensor *w = tn_from_data(weights, TN_DIMS(few->size), TN_F64);
        order = tn_weighted_sampler(w, few->size, 1);
    }
    tn_sequential *net = TN_SEQUENTIAL(
        tn_conv2d_new(1, 8, 3), TN_FN(tn_relu), tn_max_pool2d_new(2), tn_conv2d_new(8, 16, 3),
        TN_FN(tn_relu), tn_max_pool2d_new(2), tn_flatten_new(1, -1), tn_linear_new(400, CLASSES));
    tn_loader *learned = open_loader(tn_dataset_keep(few), order, EPOCHS);
    tn_loader *tested = open_loader(parts[1], tn_sequential_sampler(), 1);
    train_model(net, learned);
    draw_example(few, 7);
    test_model(net, tested);
    tn_module_free(net);
    tn_loader_free(learned);
    tn_loader_free(tested);
    tn_dataset_free(few);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
