/* Writes pooling, interpolation and patches of random shapes, for test_windows.py:
 * dump_windows FILE
 *
 *     "NUMBER|FUNCTION|KEYWORDS/x", …/y, …/gy, …/gx       PyTorch's name and keywords
 */
#include "tests/support/draw.h"
#include "tests/support/dump.h"

enum { CASES = 240 };

static const char *python_bool(bool b) {
    return b ? "True" : "False";
}

/* The result and its gradient, unless the call was refused. */
static void add_case(int number, const char *function, const char *keywords, tn_tensor *x,
                     tn_tensor *y) {
    char name[400];
    if (tn_is_inert(y)) { return; }
    snprintf(name, sizeof(name), "%d|%s|%s", number, function, keywords);
    tn_tensor *gy = tn_randn(tn_shape(y), TN_F64);
    tn_backward_from(&y, &gy, 1, false);
    add_tensor(name, "x", "", x);
    add_tensor(name, "y", "", y);
    add_tensor(name, "gy", "", gy);
    add_tensor(name, "gx", "", tn_grad_of(x));
}

static tn_tensor *draw_picture(int spatial) {
    tn_dims dims = draw_dims(spatial + 2, 1, 3);
    for (int i = 0; i < spatial; i++) {
        dims.size[2 + i] = draw_between(1, 9);
    }
    return tn_set_requires_grad(tn_randn(dims, TN_F64), true);
}

/* Windows that would be refused (larger than the image) are drawn again. */
static bool window_fits(tn_tensor *x, tn_dims kernel, const tn_pool_options *o,
                        bool without_padding) {
    for (int i = 0; i < kernel.ndim; i++) {
        int64_t reach = o->dilation.size[i] * (kernel.size[i] - 1) + 1;
        if (reach > tn_size(x, 2 + i) + (without_padding ? 0 : 2 * o->padding.size[i])) {
            return false;
        }
    }
    return true;
}

static void dump_sliding(int number, bool largest) {
    typedef tn_tensor *(*pool)(tn_tensor * x, tn_dims kernel, tn_pool_options o);
    static const pool functions[2][3] = {{tn_avg_pool1d_op, tn_avg_pool2d_op, tn_avg_pool3d_op},
                                         {tn_max_pool1d_op, tn_max_pool2d_op, tn_max_pool3d_op}};
    int spatial = (int)draw_between(1, 3);
    tn_tensor *x = draw_picture(spatial);
    tn_dims kernel;
    tn_pool_options o = tn_pool_defaults();
    do {
        kernel = draw_dims(spatial, 1, 4);
        o.stride = draw_dims(spatial, 1, 3);
        o.padding = draw_dims(spatial, 0, 2);
        o.dilation = draw_dims(spatial, 1, largest ? 2 : 1);
        for (int i = 0; i < spatial; i++) {
            o.padding.size[i] = o.padding.size[i] * 2 > kernel.size[i] ? 0 : o.padding.size[i];
        }
    } while (!window_fits(x, kernel, &o, !largest && spatial == 3)); /* as PyTorch requires */
    o.ceil_mode = draw_between(0, 1);
    o.count_include_pad = draw_between(0, 1);
    o.divisor_override = spatial > 1 && draw_between(0, 3) == 0 ? 3 : 0;
    char keywords[256], function[32];
    int length = snprintf(keywords, sizeof(keywords),
                          "kernel_size=%s, stride=%s, padding=%s, ceil_mode=%s", tuple_text(kernel),
                          tuple_text(o.stride), tuple_text(o.padding), python_bool(o.ceil_mode));
    if (largest) {
        snprintf(keywords + length, sizeof(keywords) - (size_t)length, ", dilation=%s",
                 tuple_text(o.dilation));
    } else {
        length += snprintf(keywords + length, sizeof(keywords) - (size_t)length,
                           ", count_include_pad=%s", python_bool(o.count_include_pad));
        snprintf(keywords + length, sizeof(keywords) - (size_t)length,
                 o.divisor_override ? ", divisor_override=3" : "");
    }
    snprintf(function, sizeof(function), "%s_pool%dd", largest ? "max" : "avg", spatial);
    add_case(number, function, keywords, x, functions[largest][spatial - 1](x, kernel, o));
}

static void dump_adaptive(int number) {
    typedef tn_tensor *(*pool)(tn_tensor * x, tn_dims size);
    static const pool functions[2][3] = {
        {tn_adaptive_avg_pool1d_op, tn_adaptive_avg_pool2d_op, tn_adaptive_avg_pool3d_op},
        {tn_adaptive_max_pool1d_op, tn_adaptive_max_pool2d_op, tn_adaptive_max_pool3d_op}};
    int spatial = (int)draw_between(1, 3), largest = (int)draw_between(0, 1);
    tn_tensor *x = draw_picture(spatial);
    tn_dims size = draw_dims(spatial, 1, 11);
    char keywords[256], function[32];
    snprintf(keywords, sizeof(keywords), "output_size=%s", tuple_text(size));
    snprintf(function, sizeof(function), "adaptive_%s_pool%dd", largest ? "max" : "avg", spatial);
    add_case(number, function, keywords, x, functions[largest][spatial - 1](x, size));
}

static void dump_interpolation(int number) {
    static const char *const modes[] = {"nearest", "nearest-exact", "linear", "bicubic", "area"};
    static const char *const linear[] = {"linear", "bilinear", "trilinear"};
    tn_interpolate_options o = tn_interpolate_defaults();
    o.mode = (tn_interpolation)draw_between(TN_INTERPOLATE_NEAREST, TN_INTERPOLATE_AREA);
    int spatial = o.mode == TN_INTERPOLATE_CUBIC ? 2 : (int)draw_between(1, 3), length;
    bool scaled = o.mode != TN_INTERPOLATE_AREA && draw_between(0, 2) == 0;
    char keywords[256];
    o.align_corners =
        (o.mode == TN_INTERPOLATE_LINEAR || o.mode == TN_INTERPOLATE_CUBIC) && draw_between(0, 1);
    tn_tensor *x = draw_picture(spatial);
    length = snprintf(keywords, sizeof(keywords), "mode='%s'",
                      o.mode == TN_INTERPOLATE_LINEAR ? linear[spatial - 1] : modes[o.mode]);
    if (o.mode == TN_INTERPOLATE_LINEAR || o.mode == TN_INTERPOLATE_CUBIC) {
        length += snprintf(keywords + length, sizeof(keywords) - (size_t)length,
                           ", align_corners=%s", python_bool(o.align_corners));
    }
    if (scaled) {
        o.scale_factor = (double)draw_between(8, 24) / 8;
        snprintf(keywords + length, sizeof(keywords) - (size_t)length, ", scale_factor=%g",
                 o.scale_factor);
    } else {
        o.size = draw_dims(spatial, 1, 13);
        snprintf(keywords + length, sizeof(keywords) - (size_t)length, ", size=%s",
                 tuple_text(o.size));
    }
    add_case(number, "interpolate", keywords, x, tn_interpolate(x, o));
}

static void dump_patches(int number) {
    tn_tensor *x = draw_picture(2);
    tn_dims kernel;
    tn_unfold_options o = tn_unfold_defaults();
    tn_pool_options window = tn_pool_defaults();
    do {
        kernel = draw_dims(2, 1, 4);
        window.padding = o.padding = draw_dims(2, 0, 3);
        window.dilation = o.dilation = draw_dims(2, 1, 2);
        o.stride = draw_dims(2, 1, 3);
    } while (!window_fits(x, kernel, &window, false));
    char keywords[256];
    snprintf(keywords, sizeof(keywords), "kernel_size=%s, stride=%s, padding=%s, dilation=%s",
             tuple_text(kernel), tuple_text(o.stride), tuple_text(o.padding),
             tuple_text(o.dilation));
    tn_tensor *y = tn_unfold(x, kernel, o);
    add_case(number, "unfold", keywords, x, y);
    tn_tensor *z = tn_set_requires_grad(tn_randn(tn_shape(y), TN_F64), true);
    tn_dims size = TN_DIMS(tn_size(x, 2), tn_size(x, 3));
    char more[320];
    snprintf(more, sizeof(more), "output_size=%s, %s", tuple_text(size), keywords);
    add_case(number, "fold", more, z, tn_fold(z, size, kernel, o));
}

int main(int argc, char **argv) {
    if (!dump_begin(argc, argv)) { return 1; }
    for (int i = 0; i < CASES; i++) {
        switch (i % 6) {
        case 0:
        case 1:
            dump_sliding(i, i % 6);
            break;
        case 2:
            dump_adaptive(i);
            break;
        case 3:
            dump_patches(i);
            break;
        default:
            dump_interpolation(i);
        }
    }
    return tn_safetensors_writer_save(writer, argv[1]) == TN_OK ? 0 : 1;
}
