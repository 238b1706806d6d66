/* Operations on more than 2^31 elements: the logits of 65536 tokens, (65536, 50304) in bf16, on a
 * GPU that has room for four of them. Rows on both sides of element 2^31, the first and the last
 * are compared with the CPU's. Elsewhere the same on a few rows, so that the test is tried. */
#include "tests/support/test.h"

#include <tern/tern.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double GIB = 1 << 30, NEEDED = 40;
enum { TRIED = 5 };

static int64_t rows = 64, columns = 96;
static int64_t tried[TRIED]; /* the rows that are compared */

static void choose_size(void) {
    tn_device_info info;
    const char *where = getenv("TERN_CUDA_TEST");
    bool real = where && strcmp(where, "real") == 0 && tn_default_device().kind == TN_CUDA;
    if (real && tn_device_describe(tn_default_device(), &info) == TN_OK &&
        (double)info.memory > NEEDED * GIB) {
        rows = 65536;
        columns = 50304;
    }
    int64_t middle = rows == 64 ? rows / 2 : ((int64_t)1 << 31) / columns;
    int64_t all[TRIED] = {0, middle - 1, middle, middle + 1, rows - 1};
    memcpy(tried, all, sizeof(all));
    fprintf(stderr, "%lld x %lld elements on %s\n", (long long)rows, (long long)columns,
            tn_device_text(tn_default_device()));
}

/* Rows `tried` of t on the CPU. */
static tn_tensor *tried_rows(tn_tensor *t) {
    tn_tensor *part[TRIED];
    for (int i = 0; i < TRIED; i++) {
        part[i] = tn_to(tn_narrow(tn_detach(t), 0, tried[i], 1), tn_cpu());
    }
    return tn_cat(part, TRIED, 0);
}

/* `near`: what cancellation may leave of a sum, besides the rounding to bf16. */
static void expect_near(tn_tensor *whole, tn_tensor *want, double near, const char *what) {
    assert_string_equal(tn_error_message(), "");
    tn_tensor *got = tn_cast(tried_rows(whole), TN_F64);
    if (!tn_all_close(got, tn_cast(tn_detach(want), TN_F64), 2e-2, near)) {
        fail_msg("%s: a row is not the CPU's", what);
    }
}

static void expect_rows(tn_tensor *whole, tn_tensor *want, const char *what) {
    expect_near(whole, want, 1e-5, what);
}

static tn_tensor *random_logits(void) {
    return tn_normal_(tn_empty(TN_DIMS(rows, columns), TN_BF16), 0, 2, NULL);
}

TEST(elements_and_copies) {
    tn_tensor *x = random_logits(), *host = tried_rows(x);
    assert_true(tn_item(tn_max(tn_reshape(tn_abs(host), TN_DIMS(-1)), TN_DIMS(0), false)) > 1);
    expect_rows(tn_tanh(x), tn_tanh(host), "tanh");
    expect_rows(tn_add(x, tn_narrow(x, 0, 0, 1)), tn_add(host, tn_narrow(host, 0, 0, 1)),
                "a row added to all");
    tn_tensor *turned = tn_contiguous(tn_transpose(x, 0, 1)); /* (columns, rows) */
    expect_rows(tn_transpose(turned, 0, 1), host, "a transposed copy");
}

TEST(row_reductions) {
    tn_tensor *x = random_logits(), *host = tried_rows(x);
    expect_rows(tn_argmax(x, 1, true), tn_argmax(host, 1, true), "argmax");
    expect_rows(tn_max(x, TN_DIMS(1), true), tn_max(host, TN_DIMS(1), true), "max");
    expect_rows(tn_softmax(x, 1), tn_softmax(host, 1), "softmax");
    tn_drop(x);
    tn_tensor *ones = tn_ones(TN_DIMS(rows, columns), TN_BF16);
    assert_true(tn_item(tn_mean_all(ones)) == 1);
    tn_tensor *sums = tn_sum(ones, TN_DIMS(0), false); /* a power of two: exact in bf16 */
    assert_true(tn_item(tn_all(tn_eq(sums, tn_full(TN_DIMS(1), (double)rows, TN_BF16)))) == 1);
}

TEST(row_losses) {
    tn_tensor *x = tn_set_requires_grad(random_logits(), true);
    tn_tensor *host = tn_set_requires_grad(tried_rows(x), true);
    tn_tensor *labels = tn_randint(0, columns, TN_DIMS(rows), TN_I64);
    tn_tensor *loss = tn_cross_entropy(x, labels, TN_NONE);
    tn_tensor *host_loss = tn_cross_entropy(host, tried_rows(labels), TN_NONE);
    expect_rows(loss, host_loss, "cross-entropy");
    expect_rows(tn_gather(x, 1, tn_unsqueeze(labels, 1)),
                tn_gather(host, 1, tn_unsqueeze(tried_rows(labels), 1)), "the logits of labels");
    tn_backward(tn_sum_all(loss));
    tn_backward(tn_sum_all(host_loss));
    expect_rows(tn_grad_of(x), tn_grad_of(host), "the gradient of cross-entropy");
}

TEST(wide_products) {
    tn_tensor *x = tn_randn(TN_DIMS(rows, 16), TN_BF16),
              *w = tn_randn(TN_DIMS(columns, 16), TN_BF16);
    tn_tensor *host_w = tn_to(w, tn_cpu());
    tn_tensor *y = tn_linear_op(x, w, NULL);
    expect_rows(y, tn_linear_op(tried_rows(x), host_w, NULL), "a product");
    /* from that many columns, which are summed over */
    expect_near(tn_matmul(y, w), tn_matmul(tried_rows(y), host_w), 0.1, "a product with it");
}

int main(void) {
    choose_size();
    return tests_run(NULL, NULL);
}
