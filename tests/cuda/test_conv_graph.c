/* Convolutions' graphs for cuDNN, on a machine without a GPU: as test_sdpa.c. This shows that an
 * engine takes a graph; only a GPU can show the numbers. */
#include "backends/cuda/conv_graph.h"

#include "tests/cuda/described.h"
#include "tests/support/test.h"

#include <string.h>

#if TN_HAVE_CUDNN && TN__DNN_DESCRIBED

/* The leak sanitizer calls this: cuDNN keeps the cuBLASLt handles that its engines make while they
 * check whether they support a graph. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:cublasLtCreate";
}

static tn__conv_extent dense_extent(int64_t n, int64_t c, int64_t h, int64_t w) {
    return (tn__conv_extent){{n, c, h, w}, {c * h * w, h * w, w, 1}};
}

/* x (n, c, side, side), a kernel of k x k, o channels out, all of them sliding by `stride`. */
static tn__conv_shape picture_shape(tn__conv_result result, int64_t type, int64_t n, int64_t c,
                                    int64_t side, int64_t o, int64_t k, int64_t stride,
                                    int64_t groups) {
    int64_t pad = k / 2, out = (side + 2 * pad - k) / stride + 1;
    return (tn__conv_shape){.result = result,
                            .ndim = 4,
                            .type = type,
                            .deterministic = true,
                            .y = dense_extent(n, o, out, out),
                            .x = dense_extent(n, c, side, side),
                            .w = dense_extent(o, c / groups, k, k),
                            .stride = {stride, stride},
                            .before = {pad, pad},
                            .after = {pad, pad},
                            .dilation = {1, 1}};
}

static void expect_plan(cudnnBackendDescriptor_t device, const tn__conv_shape *shape,
                        const char *what) {
    tn__dnn_plan plan;
    char why[TN__DNN_WHY] = "";
    tn__dnn_target target = {.described = device};
    if (tn__conv_plans(dnn, target, shape, 1, &plan, why) != 1) {
        fail_msg("no plan for %s, result %d: %s", what, (int)shape->result, why);
    }
    assert_true(plan.workspace >= 0 && plan.workspace < (int64_t)4 << 30);
    dnn->BackendDestroyDescriptor(plan.plan);
}

/* ResNet's first layer and a later one, forward and both gradients, as they are trained: each in
 * f32, which no engine may round, in bf16 and in f16. */
static void expect_resnet(const char *name) {
    cudnnBackendDescriptor_t device = described_device(name);
    static const int64_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_HALF};
    for (int t = 0; t < 3; t++) {
        for (int r = TN__CONV_Y; r <= TN__CONV_W; r++) {
            tn__conv_shape first = picture_shape(r, types[t], 32, 3, 32, 64, 3, 1, 1);
            expect_plan(device, &first, "a first layer");
            tn__conv_shape later = picture_shape(r, types[t], 32, 64, 16, 128, 3, 2, 1);
            expect_plan(device, &later, "a later layer");
        }
    }
    dnn->BackendDestroyDescriptor(device);
}

PLAIN_TEST(test_a100) {
    expect_resnet("a100");
}
PLAIN_TEST(test_h200) {
    expect_resnet("h200");
}
PLAIN_TEST(test_b200) {
    expect_resnet("b200");
}

/* The bias before rounding; TF32; channels in groups; three dimensions. */
PLAIN_TEST(test_forms) {
    cudnnBackendDescriptor_t device = described_device("h200");
    tn__conv_shape s = picture_shape(TN__CONV_Y, CUDNN_DATA_BFLOAT16, 8, 16, 14, 32, 5, 1, 1);
    s.with_bias = true;
    expect_plan(device, &s, "a bias");
    s = picture_shape(TN__CONV_X, CUDNN_DATA_HALF, 8, 16, 14, 32, 4, 2, 1);
    expect_plan(device, &s, "a transposed convolution");
    s = picture_shape(TN__CONV_W, CUDNN_DATA_FLOAT, 8, 16, 14, 32, 3, 1, 1);
    s.tf32 = true;
    expect_plan(device, &s, "a gradient in f32 of what was bf16");
    s = picture_shape(TN__CONV_Y, CUDNN_DATA_FLOAT, 8, 16, 14, 32, 3, 1, 4);
    expect_plan(device, &s, "groups");
    s = (tn__conv_shape){.ndim = 5,
                         .type = CUDNN_DATA_FLOAT,
                         .deterministic = true,
                         .y = {{2, 8, 6, 6, 6}, {1728, 216, 36, 6, 1}},
                         .x = {{2, 4, 8, 8, 8}, {2048, 512, 64, 8, 1}},
                         .w = {{8, 4, 3, 3, 3}, {108, 27, 9, 3, 1}},
                         .stride = {1, 1, 1},
                         .dilation = {1, 1, 1}};
    expect_plan(device, &s, "three dimensions");
    dnn->BackendDestroyDescriptor(device);
}

/* A refusal has a reason. */
PLAIN_TEST(test_refused) {
    cudnnBackendDescriptor_t device = described_device("h200");
    tn__dnn_plan plan;
    char why[TN__DNN_WHY];
    tn__dnn_target target = {.described = device};
    tn__conv_shape s = picture_shape(TN__CONV_Y, CUDNN_DATA_FLOAT, 2, 4, 8, 8, 3, 1, 1);
    s.y = dense_extent(2, 8, 5, 8); /* not the size of the result */
    assert_int_equal(tn__conv_plans(dnn, target, &s, 1, &plan, why), 0);
    assert_non_null(strstr(why, "cuDNN"));
    dnn->BackendDestroyDescriptor(device);
}

#endif

int main(void) {
    return described_run("convolutions' plans");
}
