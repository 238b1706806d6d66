/* Convolutions, driven through bench_serve by conv.py:
 *
 *   conv layer N C O SIZE KERNEL STRIDE PADDING    one layer on square images; steps are in turn
 *                                                  its forward, its input's gradient, its weight's
 *   conv cnn|resnet18 BATCH FOLDER                 a step of training with SGD, on one batch;
 *                                                  initial weights and the batch go to FOLDER
 *
 * cnn is two convolutions and two linears on 28 x 28 (MNIST), resnet18 the network of He et al.
 * 2015 (arXiv:1512.03385) with the first layer for 32 x 32 (CIFAR). peers/torch_conv.py is the same
 * in PyTorch.
 */
#include "bench/bench.h"

#include <tern/sys/backend.h>
#include <tern/sys/op.h>

/* ---- One layer ------------------------------------------------------------------------------- */

typedef struct layer {
    tn_tensor *x, *w, *y, *dx, *dw, *dy;
    tn_conv_args args;
    int turn;
} layer;

/* (N, C, H, W) as kernels need it, with a depth of 1. */
static tn_desc volume_of(const tn_tensor *t) {
    tn_desc d = tn_desc_of(t), v = d;
    v.ndim = 5;
    v.size[2] = v.stride[2] = 1;
    for (int i = 2; i < 4; i++) {
        v.size[i + 1] = d.size[i];
        v.stride[i + 1] = d.stride[i];
    }
    return v;
}

static double layer_step(void *user) {
    layer *l = user;
    const tn_backend *k = tn_backend_of(tn_cpu());
    tn_context *ctx = tn_context_of(tn_cpu());
    tn_desc x = volume_of(l->x), w = volume_of(l->w), y = volume_of(l->y), dx = volume_of(l->dx),
            dw = volume_of(l->dw), dy = volume_of(l->dy);
    switch (l->turn++ % 3) {
    case 0:
        return k->conv(ctx, &y, &x, &w, NULL, &l->args);
    case 1:
        return k->conv_backward_input(ctx, &dx, &dy, &w, NULL, &l->args);
    default:
        return k->conv_backward_weight(ctx, &dw, NULL, &dy, &x, &l->args);
    }
}

static int serve_layer(char **argv) {
    int64_t n[7];
    for (int i = 0; i < 7; i++) {
        n[i] = atoll(argv[i]);
    }
    int64_t stride = n[5], padding = n[6], out = (n[3] + 2 * padding - n[4]) / stride + 1;
    layer l = {.args = {{1, stride, stride}, {0, padding, padding}, {1, 1, 1}, 1}};
    l.x = tn_randn(TN_DIMS(n[0], n[1], n[3], n[3]), TN_F32);
    l.w = tn_randn(TN_DIMS(n[2], n[1], n[4], n[4]), TN_F32);
    l.dy = tn_randn(TN_DIMS(n[0], n[2], out, out), TN_F32);
    l.y = tn_zeros(tn_shape(l.dy), TN_F32);
    l.dx = tn_zeros(tn_shape(l.x), TN_F32);
    l.dw = tn_zeros(tn_shape(l.w), TN_F32);
    return bench_serve(layer_step, &l);
}

/* ---- Networks -------------------------------------------------------------------------------- */

typedef struct block {
    tn_module base;
    tn_conv2d *conv1, *conv2;
    tn_batch_norm2d *bn1, *bn2;
    tn_sequential *downsample; /* NULL if the sizes stay the same */
} block;

static tn_conv2d *conv_of(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    tn_conv_options o = tn_conv_strided(stride, kernel / 2);
    o.bias = false;
    return tn_conv2d_new_with(in, out, TN_DIMS(kernel), o);
}

static tn_tensor *block_forward(tn_module *self, tn_tensor *x) {
    block *m = (block *)self;
    tn_tensor *h = tn_relu(tn_call(m->bn1, tn_call(m->conv1, x)));
    h = tn_call(m->bn2, tn_call(m->conv2, h));
    return tn_relu(tn_add(h, m->downsample ? tn_call(m->downsample, x) : x));
}

static block *block_new(int64_t in, int64_t out, int64_t stride) {
    block *m = tn_module_new(sizeof(*m), "block", block_forward);
    TN_OWN(m, conv1, conv_of(in, out, 3, stride));
    TN_OWN(m, bn1, tn_batch_norm2d_new(out));
    TN_OWN(m, conv2, conv_of(out, out, 3, 1));
    TN_OWN(m, bn2, tn_batch_norm2d_new(out));
    if (in != out) {
        TN_OWN(m, downsample, TN_SEQUENTIAL(conv_of(in, out, 1, stride), tn_batch_norm2d_new(out)));
    }
    return m;
}

static tn_sequential *make_resnet18(void) {
    return TN_SEQUENTIAL(
        conv_of(3, 64, 3, 1), tn_batch_norm2d_new(64), TN_FN(tn_relu), block_new(64, 64, 1),
        block_new(64, 64, 1), block_new(64, 128, 2), block_new(128, 128, 1), block_new(128, 256, 2),
        block_new(256, 256, 1), block_new(256, 512, 2), block_new(512, 512, 1),
        tn_adaptive_avg_pool2d_new(TN_DIMS(1)), tn_flatten_new(1, -1), tn_linear_new(512, 10));
}

static tn_sequential *make_cnn(void) {
    return TN_SEQUENTIAL(tn_conv2d_new(1, 32, 3), TN_FN(tn_relu), tn_conv2d_new(32, 64, 3),
                         TN_FN(tn_relu), tn_max_pool2d_new(2), tn_flatten_new(1, -1),
                         tn_linear_new(9216, 128), TN_FN(tn_relu), tn_linear_new(128, 10));
}

typedef struct trainer {
    tn_sequential *net;
    tn_optim *opt;
    tn_tensor *x, *y;
} trainer;

static double train_step(void *user) {
    trainer *t = user;
    TN_SCOPE;
    tn_tensor *loss = tn_cross_entropy(tn_call(t->net, t->x), t->y, TN_MEAN);
    tn_backward(loss);
    tn_optim_step(t->opt);
    tn_optim_zero_grad(t->opt);
    return tn_item(loss);
}

static int serve_network(bool deep, int64_t batch, const char *folder) {
    trainer t = {.net = deep ? make_resnet18() : make_cnn()};
    t.x = deep ? tn_randn(TN_DIMS(batch, 3, 32, 32), TN_F32)
               : tn_randn(TN_DIMS(batch, 1, 28, 28), TN_F32);
    t.y = tn_randint(0, 10, TN_DIMS(batch), TN_I64);
    bench_share(t.net, folder, t.x, t.y);
    tn_sgd_options o = tn_sgd_defaults();
    o.lr = 0.01;
    o.momentum = 0.9;
    t.opt = tn_sgd(t.net, o);
    int status = bench_serve(train_step, &t);
    tn_optim_free(t.opt);
    tn_module_free(t.net);
    return status;
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    tn_seed(1);
    TN_SCOPE;
    if (argc == 9 && strcmp(argv[1], "layer") == 0) { return serve_layer(argv + 2); }
    if (argc == 4 && (strcmp(argv[1], "cnn") == 0 || strcmp(argv[1], "resnet18") == 0)) {
        return serve_network(argv[1][0] == 'r', atoll(argv[2]), argv[3]);
    }
    fprintf(stderr, "usage: see bench/conv.c   (run bench/conv.py)\n");
    return 2;
}
