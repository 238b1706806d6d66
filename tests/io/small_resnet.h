/* ResNet-18 (He et al. 2015, arXiv:1512.03385), as examples/15_resnet.c has it. */
#ifndef TERN_TESTS_IO_SMALL_RESNET_H
#define TERN_TESTS_IO_SMALL_RESNET_H

#include "tern/tern.h"

typedef struct {
    tn_module base;
    tn_conv2d *conv1, *conv2;
    tn_batch_norm2d *bn1, *bn2;
    tn_sequential *downsample; /* NULL where x fits as it is */
} basic_block;

/* x (B, in, H, W) -> (B, out, H / stride, W / stride): what is added to x */
static tn_tensor *block_forward(tn_module *self, tn_tensor *x) {
    basic_block *b = (basic_block *)self;
    tn_tensor *h = tn_relu(tn_call(b->bn1, tn_call(b->conv1, x)));
    h = tn_call(b->bn2, tn_call(b->conv2, h));
    return tn_relu(tn_add(h, b->downsample ? tn_call(b->downsample, x) : x));
}

static tn_conv2d *conv_new(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
    tn_conv_options o = tn_conv_strided(stride, kernel / 2);
    o.bias = false; /* batch norm, which follows, has one */
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

static inline void resnet_init(resnet *net, int64_t width, int64_t classes) {
    tn_module_init(net, "resnet", resnet_forward);
    TN_OWN(net, conv1, conv_new(3, width, 3, 1));
    TN_OWN(net, bn1, tn_batch_norm2d_new(width));
    TN_OWN(net, layer1, stage_new(width, width, 1));
    TN_OWN(net, layer2, stage_new(width, 2 * width, 2));
    TN_OWN(net, layer3, stage_new(2 * width, 4 * width, 2));
    TN_OWN(net, layer4, stage_new(4 * width, 8 * width, 2));
    TN_OWN(net, fc, tn_linear_new(8 * width, classes));
}

#endif
