/* What the operations of loss/ refuse; a part of test_errors.c. */
#ifndef TERN_TESTS_OPS_ERRORS_LOSSES_H
#define TERN_TESTS_OPS_ERRORS_LOSSES_H

#include <math.h>

#include "tests/ops/errors.h"

TEST(loss_errors) {
    refused(tn_mse(F(2), D(2), TN_MEAN));
    refused(tn_mse(I(2), I(2), TN_MEAN));
    refused(tn_mse(F(2), F(2, 1), TN_MEAN));
    refused(tn_mse(F(2), F(2), (tn_reduction)9));
    refused(tn_mse(F(2), F(2), TN_MAX));
    refused(tn_cross_entropy(F(2, 3), I(2), TN_PRODUCT));
    refused(tn_cross_entropy(I(2, 3), I(2), TN_MEAN));
    refused(tn_cross_entropy(F(2, 3), F(2), TN_MEAN));
    refused(tn_cross_entropy(F(2, 3), I(3), TN_MEAN));
    refused(tn_cross_entropy(F(2, 3), I(2), (tn_reduction)9));
    refused(tn_cross_entropy(F(2, 3), NULL, TN_MEAN));
    tn_cross_entropy_options o = TN_WITH(tn_cross_entropy, .label_smoothing = 1.5);
    refused(tn_cross_entropy_with(F(2, 3), I(2), o));
}

typedef struct distance {
    const char *name;
    tn_tensor *(*f)(tn_tensor *x, tn_tensor *target, tn_reduction how);
} distance;

static tn_tensor *smooth_l1(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_smooth_l1(x, target, how, 1.0);
}
static tn_tensor *huber_loss(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_huber(x, target, how, 1.0);
}
static tn_tensor *bce_loss(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_bce(x, target, NULL, how);
}
static tn_tensor *kl_div(tn_tensor *x, tn_tensor *target, tn_reduction how) {
    return tn_kl_div(x, target, how, false);
}

TEST(distance_errors) {
    static const distance all[] = {
        {"l1", tn_l1},     {"smooth_l1", smooth_l1}, {"huber", huber_loss},
        {"bce", bce_loss}, {"kl_div", kl_div},       {"bce_with_logits", tn_bce_with_logits},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const distance *d = &all[i];
        refused(d->f(F(2), D(2), TN_MEAN));
        refused(d->f(I(2), I(2), TN_MEAN));
        refused(d->f(F(2), F(2, 1), TN_MEAN));
        refused(d->f(F(2), F(2), TN_MAX));
    }
    refused(tn_smooth_l1(F(2), F(2), TN_MEAN, -1.0));
    refused(tn_smooth_l1(F(2), F(2), TN_MEAN, NAN));
    refused(tn_huber(F(2), F(2), TN_MEAN, 0.0));
    refused(tn_huber(F(2), F(2), TN_MEAN, NAN));
    refused(tn_bce(F(2, 3), F(2, 3), F(2), TN_MEAN));
    refused(tn_bce(F(3), F(3), F(2, 3), TN_NONE));
    tn_bce_options o = TN_WITH(tn_bce, .pos_weight = F(2));
    refused(tn_bce_with_logits_with(F(2, 3), F(2, 3), o));
}

TEST(labelled_loss_errors) {
    tn_tensor *x = F(2, 3), *labels = I(2);
    tn_nll_options n = tn_nll_defaults();
    refused(tn_nll(I(2, 3), labels, TN_MEAN));
    refused(tn_nll(x, F(2), TN_MEAN));
    refused(tn_nll(x, I(3), TN_MEAN));
    refused(tn_nll(x, labels, TN_MAX));
    n.weight = F(2);
    refused(tn_nll_with(x, labels, n));
    tn_cross_entropy_options o = TN_WITH(tn_cross_entropy, .weight = F(2));
    refused(tn_cross_entropy_with(x, labels, o));
    o.weight = F(3);
    o.label_smoothing = NAN;
    refused(tn_cross_entropy_with(x, labels, o));
}

TEST(margin_errors) {
    tn_tensor *x = F(2, 3);
    refused(tn_cosine_similarity(x, D(2, 3), 1, 1e-8));
    refused(tn_cosine_similarity(x, F(2, 4), 1, 1e-8));
    refused(tn_cosine_similarity(x, F(3), 2, 1e-8));
    refused(tn_cosine_similarity(x, x, 1, NAN));
    tn_triplet_options o = tn_triplet_defaults();
    refused(tn_triplet_margin(x, x, D(2, 3), o));
    refused(tn_triplet_margin(x, F(3), x, o));
    o.margin = NAN;
    refused(tn_triplet_margin(x, x, x, o));
    o.p = 0.0;
    refused(tn_triplet_margin(x, x, x, o));
}

TEST(ctc_errors) {
    tn_ctc_options o = tn_ctc_defaults();
    tn_tensor *x = F(3, 2, 4), *targets = I(2, 1), *n = I(2);
    refused(tn_ctc(F(3, 2), targets, n, n, o));
    refused(tn_ctc(I(3, 2, 4), targets, n, n, o));
    refused(tn_ctc(x, I(3, 1), n, n, o));
    refused(tn_ctc(x, targets, I(3), n, o));
    tn_tensor *long_ones = tn_full(TN_DIMS(2), 5.0, TN_I64), *ones = tn_ones(TN_DIMS(2), TN_I64);
    refused(tn_ctc(x, targets, long_ones, n, o));
    refused(tn_ctc(x, targets, n, long_ones, o));
    refused(tn_ctc(x, I(3), ones, ones, o));
    o.blank = 4;
    refused(tn_ctc(x, targets, ones, n, o));
    o.blank = 1;
    o.reduction = TN_MAX;
    refused(tn_ctc(x, targets, ones, n, o));
}

#endif
