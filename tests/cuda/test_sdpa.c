/* Attention's graphs for cuDNN, on a machine without a GPU: cuDNN builds plans for devices that are
 * only described, over a stand-in for the driver (tests/emulator/driver/). That shows that the
 * graphs are accepted and what scratch memory they ask for; only a GPU can show the numbers.
 */
#include "backends/cuda/sdpa_graph.h"

#include "tests/cuda/described.h"
#include "tests/support/test.h"

#include <string.h>

#if TN_HAVE_CUDNN && TN__DNN_DESCRIBED

/* A fused (B, T, H + 2 G, D) projection, causal, bf16. */
static tn__sdpa_shape shape_of(int64_t batch, int64_t heads, int64_t groups, int64_t time,
                               int64_t width) {
    int64_t row = (heads + 2 * groups) * width, y = heads * width;
    return (tn__sdpa_shape){
        .batch = batch,
        .heads = heads,
        .groups = groups,
        .queries = time,
        .keys = time,
        .width = width,
        .q = {time * row, width, row, 1},
        .k = {time * row, width, row, 1},
        .v = {time * row, width, row, 1},
        .y = {time * y, width, y, 1},
        .dy = {time * y, width, y, 1},
        .dq = {time * row, width, row, 1},
        .dk = {time * row, width, row, 1},
        .dv = {time * row, width, row, 1},
        .causal = true,
        .deterministic = true,
    };
}

/* The scratch memory of the first plan; fails if there is none. */
static size_t workspace_of(cudnnBackendDescriptor_t device, const tn__sdpa_shape *shape,
                           size_t *zeroed) {
    tn__dnn_plan plan;
    char why[TN__DNN_WHY];
    tn__dnn_target target = {.described = device};
    if (tn__sdpa_plans(dnn, target, shape, 1, &plan, why) != 1) { fail_msg("no plan: %s", why); }
    dnn->BackendDestroyDescriptor(plan.plan);
    *zeroed = tn__sdpa_zeroed(shape);
    return tn__sdpa_workspace(shape, &plan);
}

/* The plans of training; `fast`: also the backward that is not deterministic. */
static void expect_plans(const char *name, bool fast) {
    cudnnBackendDescriptor_t device = described_device(name);
    tn__sdpa_shape s = shape_of(8, 12, 12, 1024, 64);
    int64_t rows = 8 * 12 * 1024;
    size_t zeroed;
    size_t forward = workspace_of(device, &s, &zeroed);
    assert_true(forward < 1 << 20); /* no Tq x Tk matrix */
    assert_int_equal(zeroed, 0);
    s.backward = true;
    size_t exact = workspace_of(device, &s, &zeroed);
    assert_int_equal(zeroed, 0);
    assert_true(exact >= (size_t)rows * 4 && exact < (size_t)1 << 30);
    if (fast) {
        s.deterministic = false;
        size_t bytes = workspace_of(device, &s, &zeroed);
        assert_int_equal(zeroed, rows * 64 * 4);
        assert_true(bytes >= (size_t)rows * 65 * 4 && bytes < (size_t)64 << 20);
    }
    dnn->BackendDestroyDescriptor(device);
}

PLAIN_TEST(test_a100) {
    expect_plans("a100", false);
}
PLAIN_TEST(test_h200) {
    expect_plans("h200", true);
}
PLAIN_TEST(test_b200) {
    expect_plans("b200", false);
}

/* cuDNN versions that get this wrong, though they build a plan, are not used for it; `number`: the
 * first version that is, 0: none. */
static void expect_from(int number, const char *word, tn__dnn_target target,
                        const tn__sdpa_shape *shape) {
    tn__cudnn_table old = *dnn;
    tn__dnn_plan plan;
    char why[TN__DNN_WHY];
    old.number = number > 0 ? number - 1 : dnn->number;
    assert_int_equal(tn__sdpa_plans(&old, target, shape, 1, &plan, why), 0);
    if (!strstr(why, word)) { fail_msg("refused for another reason: %s", why); }
    if (number > 0) {
        old.number = number;
        assert_int_equal(tn__sdpa_plans(&old, target, shape, 1, &plan, why), 1);
        dnn->BackendDestroyDescriptor(plan.plan);
    }
}

PLAIN_TEST(test_versions) {
    tn__dnn_target h200 = {.described = described_device("h200"), .major = 9};
    tn__dnn_target b200 = {.described = described_device("b200"), .major = 10};
    tn__sdpa_shape s = shape_of(1, 2, 2, 128, 64);
    expect_from(91002, "wrong", h200, &s);
    s.backward = true;
    expect_from(91801, "deterministic", b200, &s);
    s.dy[1] = 128 * 64; /* laid out as (B, H, T, D), y as (B, T, H, D) */
    s.dy[2] = 64;
    expect_from(90501, "strides", h200, &s);
    s = shape_of(1, 2, 2, 130, 64);
    s.backward = true;
    expect_from(91501, "128", h200, &s);
    s = shape_of(1, 2, 2, 1, 64);
    s.backward = true;
    expect_from(0, "single key", h200, &s);
    s = shape_of(65536, 1, 1, 16, 64);
    expect_from(0, "65535", h200, &s);
    s = shape_of(1, 65536, 65536, 16, 64);
    expect_from(0, "65535", h200, &s);
    dnn->BackendDestroyDescriptor(h200.described);
    dnn->BackendDestroyDescriptor(b200.described);
}

/* Grouped wide heads backward; forward in f16, grouped, without a causal mask, Tq != Tk. */
PLAIN_TEST(test_shapes) {
    cudnnBackendDescriptor_t device = described_device("h200");
    size_t zeroed;
    tn__sdpa_shape s = shape_of(2, 12, 4, 256, 128);
    s.backward = true;
    workspace_of(device, &s, &zeroed);
    s = shape_of(2, 4, 2, 256, 64);
    s.f16 = true;
    s.causal = false;
    s.keys = 384;
    s.k[0] = s.v[0] = 384 * 8 * 64;
    workspace_of(device, &s, &zeroed);
    dnn->BackendDestroyDescriptor(device);
}

/* A refusal has a reason, and leaves nothing behind. */
PLAIN_TEST(test_refused) {
    cudnnBackendDescriptor_t device = described_device("h200");
    tn__dnn_plan plan;
    char why[TN__DNN_WHY];
    tn__dnn_target target = {.described = device};
    tn__sdpa_shape s = shape_of(2, 4, 4, 128, 1000); /* wider than any engine takes */
    s.backward = true;
    assert_int_equal(tn__sdpa_plans(dnn, target, &s, 1, &plan, why), 0);
    assert_non_null(strstr(why, "cuDNN"));
    s = shape_of(2, 4, 3, 128, 64); /* 4 heads do not read 3 groups */
    assert_int_equal(tn__sdpa_plans(dnn, target, &s, 1, &plan, why), 0);
    assert_non_null(strstr(why, "cuDNN"));
    dnn->BackendDestroyDescriptor(device);
}

#endif

int main(void) {
    return described_run("attention's plans");
}
