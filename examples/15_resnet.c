/* ResNet-18 (He et al. 2015, arXiv:1512.03385) for images of CIFAR-10's shape:
 *
 *     15_resnet [STEPS [WIDTH [FOLDER]]]        60 steps, 16 channels in the first layer
 *
 * FOLDER has CIFAR-10's binary files (data_batch_1.bin and so on). Without it the images are
 * noisy stripes in ten directions. The paper's width, 64, takes 16 times as long.
 */
#include <tern/tern.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 32, VALUES = 3 * SIDE * SIDE, CLASSES = 10, BATCH = 32, SHOWN = 3 };

/* ---- The model ------------------------------------------------------------------------------- */

typedef struct {
    tn_module base;
    tn_conv2d *conv1, *conv2;
    tn_batch_norm2d *bn1, *bn2;
    tn_sequential *downsample; /* NULL if x already has the right shape */
} basic_block;

/* x (B, in, H, W) -> (B, out, H / stride, W / stride) */
static tn_tensor *block_forward(tn_module *self, tn_tensor *x) {
    basic_block *b = (basic_block *)self;
    tn_tensor *h = tn_relu(tn_call(b->bn1, tn_call(b->conv1, x)));
    h = tn_call(b->bn2, tn_call(b->conv2, h));
    return tn_relu(tn_add(h, b->downsample ? tn_call(b->downsample, x) : x));
}

static tn_conv2d *conv_new(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    tn_conv_options o = tn_conv_strided(stride, kernel / 2);
    o.bias = false; /* the batch norm after it has one */
    return tn_conv2d_new_with(in, out, TN_DIMS(kernel), o);
}

static basic_block *block_new(int64_t in, int64_t out, int64_t stride) {
    basic_block *b = tn_module_new(sizeof(*b), "basic_block", block_forward);
    TN_OWN(b, conv1, conv_new(in, out, 3, stride));
    TN_OWN(b, bn1, tn_batch_norm2d_new(out));
    TN_OWN(b, conv2, conv_new(out, out, 3, 1));
    TN_OWN(b, bn2, tn_batch_norm2d_new(out));
    if (stride != 1 || in != out) {
        TN_OWN(b, downsample,
               TN_SEQUENTIAL(conv_new(in, out, 1, stride), tn_batch_norm2d_new(out)));
    }
    return b;
}

typedef struct {
    tn_module base;
    tn_conv2d *conv1;
    tn_batch_norm2d *bn1;
    tn_sequential *layer1, *layer2, *layer3, *layer4;
    tn_linear *fc;
} resnet;

/* x (B, 3, 32, 32) -> (B, classes) */
static tn_tensor *resnet_forward(tn_module *self, tn_tensor *x) {
    resnet *net = (resnet *)self;
    tn_tensor *h = tn_relu(tn_call(net->bn1, tn_call(net->conv1, x)));
    h = tn_call(net->layer2, tn_call(net->layer1, h));
    h = tn_call(net->layer4, tn_call(net->layer3, h));
    return tn_call(net->fc, tn_mean(h, TN_DIMS(2, 3), false));
}

static tn_sequential *stage_new(int64_t in, int64_t out, int64_t stride) {
    return TN_SEQUENTIAL(block_new(in, out, stride), block_new(out, out, 1));
}

static void resnet_init(resnet *net, int64_t width, int64_t classes) {
    tn_module_init(net, "resnet", resnet_forward);
    TN_OWN(net, conv1, conv_new(3, width, 3, 1));
    TN_OWN(net, bn1, tn_batch_norm2d_new(width));
    TN_OWN(net, layer1, stage_new(width, width, 1));
    TN_OWN(net, layer2, stage_new(width, 2 * width, 2));
    TN_OWN(net, layer3, stage_new(2 * width, 4 * width, 2));
    TN_OWN(net, layer4, stage_new(4 * width, 8 * width, 2));
    TN_OWN(net, fc, tn_linear_new(8 * width, classes));
}

/* ---- The data -------------------------------------------------------------------------------- */

/* Photos scaled to -1 … 1, or stripes without photos; and their labels. */
static void draw_batch(tn_dataset *photos, tn_tensor *images, tn_tensor *labels) {
    int64_t *label = tn_data_mut(labels);
    tn_generator *g = tn_default_generator();
    for (int n = 0; n < BATCH; n++) {
        float *x = (float *)tn_data_mut(images) + (int64_t)n * VALUES;
        int64_t drawn = (int64_t)(tn_random_uniform(g) * (photos ? (double)photos->size : CLASSES));
        label[n] = drawn;
        if (photos) { tn_dataset_get(photos, drawn, x, &label[n]); }
        double angle = 3.14159 * (double)label[n] / CLASSES, phase = 6.28319 * tn_random_uniform(g);
        for (int i = 0; i < VALUES; i++) {
            double across = cos(angle) * (i % SIDE) + sin(angle) * (i / SIDE % SIDE);
            double stripes = 0.5 * sin(0.7 * across + phase) + tn_random_uniform(g) - 0.5;
            x[i] = photos ? 2 * x[i] - 1 : (float)stripes;
        }
    }
}

/* An image's first channel, every second row. */
static void print_image(const float *x) {
    for (int i = 0; i < SIDE * SIDE; i += i % SIDE == SIDE - 1 ? SIDE + 1 : 1) {
        putchar(" .:*#"[x[i] < -0.6F ? 0 : x[i] > 0.6F ? 4 : (int)((x[i] + 0.6F) / 0.3F + 0.5F)]);
        fputs(i % SIDE == SIDE - 1 ? "\n" : "", stdout);
    }
}

/* ---- Training -------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_seed(1);
    tn_dataset *photos = argc > 3 ? tn_cifar10(argv[3], true) : NULL;
    resnet net;
    resnet_init(&net, argc > 2 ? atoi(argv[2]) : 16, CLASSES);
    printf("ResNet-18 with %lld parameters\n", (long long)tn_module_count(&net));
    tn_optim *opt = tn_adamw(&net, tn_adamw_defaults());
    tn_tensor *x = tn_empty(TN_DIMS(BATCH, 3, SIDE, SIDE), TN_F32);
    tn_tensor *y = tn_empty(TN_DIMS(BATCH), TN_I64);
    for (int step = 1; step <= (argc > 1 ? atoi(argv[1]) : 60); step++) {
        TN_SCOPE;
        draw_batch(photos, x, y);
        tn_tensor *loss = tn_cross_entropy(tn_call(&net, x), y, TN_MEAN);
        tn_backward(loss);
        tn_optim_step(opt);
        tn_optim_zero_grad(opt);
        if (step % 10 == 0) { printf("step %3d  loss %.4f\n", step, tn_item(loss)); }
    }
    tn_module_train(&net, false); /* batch norm uses its running statistics */
    draw_batch(photos, x, y);
    tn_tensor *guess = tn_argmax(tn_call(&net, x), 1, false);
    for (int64_t i = 0; i < SHOWN; i++) {
        printf("\nclass %g, classified as %g\n", tn_at(y, TN_DIMS(i)), tn_at(guess, TN_DIMS(i)));
        print_image((const float *)tn_data(x) + i * VALUES);
    }
    double right = tn_item(tn_mean_all(tn_eq(guess, y)));
    printf("\n%.0f %% of %d new images are classified correctly\n", 100 * right, BATCH);
    tn_dataset_free(photos);
    tn_optim_free(opt);
    tn_module_finish(&net);
    return fflush(stdout) || ferror(stdout); /* failing to print is a failure */
}
