/* Writes convolutions of random shapes, for test_convs.py: dump_convs FILE
 *
 *     "NUMBER|FUNCTION|KEYWORDS/x", …/w, …/b, …/y, …/gy       PyTorch's name and keywords
 *     …/gx, …/gw, …/gb                                        gradients of the sum of y gy
 *     …/pw                            gradient of the sum of gx^2: a gradient penalty
 */
#include "tests/support/draw.h"
#include "tests/support/dump.h"

enum { CASES = 160 };

typedef tn_tensor *(*convolution)(tn_tensor *x, tn_tensor *weight, tn_tensor *bias,
                                  tn_conv_options options);

static tn_tensor *random_leaf(tn_dims dims) {
    return tn_set_requires_grad(tn_randn(dims, TN_F64), true);
}

static void add_case(const char *name, convolution f, tn_tensor *x, tn_tensor *w, tn_tensor *b,
                     tn_conv_options o) {
    tn_tensor *y = f(x, w, b, o), *gy = tn_randn(tn_shape(y), TN_F64), *gx;
    tn_grad_options keep = TN_WITH(tn_grad, .create_graph = true);
    tn_grad(&y, &gy, 1, &x, 1, &gx, keep);
    tn_backward(tn_sum_all(tn_square(gx)));
    add_tensor(name, "pw", "", tn_grad_of(w));
    tn_zero_grad(w);
    tn_zero_grad(x);
    y = f(x, w, b, o);
    tn_backward_from(&y, &gy, 1, false);
    add_tensor(name, "x", "", x);
    add_tensor(name, "w", "", w);
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_tensor(name, "gx", "", tn_grad_of(x));
    add_tensor(name, "gw", "", tn_grad_of(w));
    if (b) {
        add_tensor(name, "b", "", b);
        add_tensor(name, "gb", "", tn_grad_of(b));
    }
}

/* Whether the result has at least one element in each dimension. */
static bool kernel_fits(bool transposed, tn_dims size, tn_dims kernel, const tn_conv_options *o) {
    for (int i = 0; i < kernel.ndim; i++) {
        int64_t span = o->dilation.size[i] * (kernel.size[i] - 1) + 1,
                out = transposed ? (size.size[i] - 1) * o->stride.size[i] + span +
                                       o->output_padding.size[i]
                                 : size.size[i] + 2 * o->padding.size[i];
        if (out < (transposed ? 1 + 2 * o->padding.size[i] : span)) { return false; }
    }
    return true;
}

static void dump_case(int number) {
    static const convolution functions[2][3] = {
        {tn_conv1d_op, tn_conv2d_op, tn_conv3d_op},
        {tn_conv_transpose1d_op, tn_conv_transpose2d_op, tn_conv_transpose3d_op}};
    int spatial = (int)draw_between(1, 3), transposed = number % 2;
    tn_conv_options o = tn_conv_defaults();
    tn_dims size, kernel;
    do {
        size = draw_dims(spatial, 1, spatial == 1 ? 70 : 11);
        kernel = draw_dims(spatial, 1, 4);
        o.stride = draw_dims(spatial, 1, 3);
        o.padding = draw_dims(spatial, 0, 4);
        o.dilation = draw_dims(spatial, 1, 3);
        o.output_padding = draw_dims(spatial, 0, 0);
        for (int i = 0; i < spatial && transposed; i++) {
            o.output_padding.size[i] = draw_between(0, o.stride.size[i] - 1);
        }
    } while (!kernel_fits(transposed, size, kernel, &o));
    o.groups = draw_between(0, 2) ? 1 : draw_between(2, 3);
    /* now and then more channels than a vector has elements, or an empty batch */
    int64_t most = draw_between(0, 7) ? 3 : 20,
            batch = draw_between(0, 15) ? draw_between(1, 3) : 0;
    int64_t in = draw_between(1, most), out = draw_between(1, most);
    tn_dims x = TN_DIMS(batch, in * o.groups),
            w = transposed ? TN_DIMS(in * o.groups, out) : TN_DIMS(out * o.groups, in);
    for (int i = 0; i < spatial; i++) {
        x.size[x.ndim++] = size.size[i];
        w.size[w.ndim++] = kernel.size[i];
    }
    char name[400], more[80] = "";
    if (transposed) {
        snprintf(more, sizeof(more), ", output_padding=%s", tuple_text(o.output_padding));
    }
    snprintf(name, sizeof(name), "%d|%s%dd|stride=%s, padding=%s, dilation=%s, groups=%lld%s",
             number, transposed ? "conv_transpose" : "conv", spatial, tuple_text(o.stride),
             tuple_text(o.padding), tuple_text(o.dilation), (long long)o.groups, more);
    tn_tensor *b = draw_between(0, 1) ? random_leaf(TN_DIMS(out * o.groups)) : NULL;
    add_case(name, functions[transposed][spatial - 1], random_leaf(x), random_leaf(w), b, o);
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    for (int i = 0; i < CASES; i++) {
        TN_SCOPE;
        dump_case(i);
    }
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
