/* What the operations of loss/ refuse; a part of test_errors.c. */
#ifndef TERN_TESTS_OPS_ERRORS_LOSSES_H
#define TERN_TESTS_OPS_ERRORS_LOSSES_H

#include <math.h>

#include "tests/ops/errors.h"

PLAIN_TEST(loss_errors) {
    TN_SCOPE;
    refused_with(tn_mse(F(2), D(2), TN_MEAN), TN_EDTYPE, "mse: x is f32 but target is f64");
    refused_with(tn_mse(I(2), I(2), TN_MEAN), TN_EDTYPE, "mse: the dtype of x is i64");
    refused_with(tn_mse(F(2), F(2, 1), TN_MEAN), TN_ESHAPE, "mse: x is [2] but target is [2, 1]");
    refused_with(tn_mse(F(2), F(2), (tn_reduction)9), TN_EVALUE, "mse: reduction is 9");
    refused_with(tn_mse(F(2), F(2), TN_MAX), TN_EVALUE, "(TN_MEAN, TN_SUM or TN_NONE)");
    refused_with(tn_cross_entropy(F(2, 3), I(2), TN_PRODUCT), TN_EVALUE,
                 "(TN_MEAN, TN_SUM or TN_NONE)");
    refused_with(tn_cross_entropy(I(2, 3), I(2), TN_MEAN), TN_EDTYPE,
                 "cross_entropy: the dtype of logits is i64");
    refused_with(tn_cross_entropy(F(2, 3), F(2), TN_MEAN), TN_EDTYPE,
                 "cross_entropy: the dtype of labels is f32");
    refused_with(tn_cross_entropy(F(2, 3), I(3), TN_MEAN), TN_ESHAPE,
                 "cross_entropy: logits are [2, 3] but labels are [3]");
    refused_with(tn_cross_entropy(F(2, 3), I(2), (tn_reduction)9), TN_EVALUE,
                 "cross_entropy: reduction is 9");
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    o.label_smoothing = 1.5;
    refused_with(tn_cross_entropy_with(F(2, 3), I(2), o), TN_EVALUE,
                 "cross_entropy: label_smoothing is 1.5");
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

PLAIN_TEST(distance_errors) {
    TN_SCOPE;
    static const distance all[] = {
        {"l1", tn_l1},     {"smooth_l1", smooth_l1}, {"huber", huber_loss},
        {"bce", bce_loss}, {"kl_div", kl_div},       {"bce_with_logits", tn_bce_with_logits},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const distance *d = &all[i];
        refused_by(d->f(F(2), D(2), TN_MEAN), d->name, TN_EDTYPE, "x is f32 but target is f64");
        refused_by(d->f(I(2), I(2), TN_MEAN), d->name, TN_EDTYPE, "the dtype of x is i64");
        refused_by(d->f(F(2), F(2, 1), TN_MEAN), d->name, TN_ESHAPE,
                   "x is [2] but target is [2, 1] (they must be equal)");
        refused_by(d->f(F(2), F(2), TN_MAX), d->name, TN_EVALUE, "reduction is ");
    }
    refused_with(tn_smooth_l1(F(2), F(2), TN_MEAN, -1.0), TN_EVALUE, "smooth_l1: beta is -1");
    refused_with(tn_smooth_l1(F(2), F(2), TN_MEAN, NAN), TN_EVALUE, "smooth_l1: beta is nan");
    refused_with(tn_huber(F(2), F(2), TN_MEAN, 0.0), TN_EVALUE, "huber: delta is 0");
    refused_with(tn_huber(F(2), F(2), TN_MEAN, NAN), TN_EVALUE, "huber: delta is nan");
    refused_with(tn_bce(F(2, 3), F(2, 3), F(2), TN_MEAN), TN_ESHAPE,
                 "bce: x is [2, 3] but weight is [2] (it must broadcast to that)");
    refused_with(tn_bce(F(3), F(3), F(2, 3), TN_NONE), TN_ESHAPE,
                 "bce: x is [3] but weight is [2, 3]");
    tn_bce_options o = tn_bce_defaults();
    o.pos_weight = F(2);
    refused_with(tn_bce_with_logits_with(F(2, 3), F(2, 3), o), TN_ESHAPE,
                 "bce_with_logits: x is [2, 3] but pos_weight is [2]");
}

PLAIN_TEST(labelled_loss_errors) {
    TN_SCOPE;
    tn_tensor *x = F(2, 3), *labels = I(2);
    tn_nll_options n = tn_nll_defaults();
    refused_with(tn_nll(I(2, 3), labels, TN_MEAN), TN_EDTYPE,
                 "nll: the dtype of log_probabilities is i64");
    refused_with(tn_nll(x, F(2), TN_MEAN), TN_EDTYPE, "nll: the dtype of labels is f32");
    refused_with(tn_nll(x, I(3), TN_MEAN), TN_ESHAPE,
                 "nll: log_probabilities is [2, 3] but labels are [3]");
    refused_with(tn_nll(x, labels, TN_MAX), TN_EVALUE, "nll: reduction is ");
    n.weight = F(2);
    refused_with(tn_nll_with(x, labels, n), TN_ESHAPE,
                 "nll: log_probabilities is [2, 3] but weight is f32 [2]");
    tn_cross_entropy_options o = tn_cross_entropy_defaults();
    o.weight = F(2);
    refused_with(tn_cross_entropy_with(x, labels, o), TN_ESHAPE,
                 "weighted_cross_entropy: logits is [2, 3] but weight is f32 [2]");
    o.weight = F(3);
    o.label_smoothing = NAN;
    refused_with(tn_cross_entropy_with(x, labels, o), TN_EVALUE,
                 "weighted_cross_entropy: label_smoothing is nan");
    refused_with(tn_multi_margin(x, labels, 3, 1.0, NULL, TN_MEAN), TN_EVALUE,
                 "multi_margin: p is 3");
    refused_with(tn_multi_margin(x, labels, 1, NAN, NULL, TN_MEAN), TN_EVALUE,
                 "multi_margin: margin is nan");
    refused_with(tn_multi_margin(x, I(3), 1, 1.0, NULL, TN_MEAN), TN_ESHAPE,
                 "multi_margin: x is [2, 3] but labels are [3]");
}

PLAIN_TEST(margin_errors) {
    TN_SCOPE;
    tn_tensor *x = F(2, 3), *y = F(2);
    refused_with(tn_cosine_similarity(x, D(2, 3), 1, 1e-8), TN_EDTYPE,
                 "cosine_similarity: a is f32 but b is f64");
    refused_with(tn_cosine_similarity(x, F(2, 4), 1, 1e-8), TN_ESHAPE,
                 "cosine_similarity: a is [2, 3] but b is [2, 4]");
    refused_with(
        tn_cosine_similarity(x, F(3), 2, 1e-8), TN_EINDEX,
        "cosine_similarity: a is [2, 3] and b is [3] but dim is 2 (there are 2 dimensions)");
    refused_with(tn_cosine_similarity(x, x, 1, NAN), TN_EVALUE, "cosine_similarity: eps is nan");
    refused_with(tn_cosine_embedding(x, D(2, 3), y, 0.0, TN_MEAN), TN_EDTYPE,
                 "cosine_embedding: a is f32 but b is f64");
    refused_with(tn_cosine_embedding(x, x, F(3), 0.0, TN_MEAN), TN_ESHAPE,
                 "cosine_embedding: a is [2, 3], b [2, 3] and y [3]");
    refused_with(tn_cosine_embedding(x, x, y, NAN, TN_MEAN), TN_EVALUE,
                 "cosine_embedding: margin is nan");
    refused_with(tn_margin_ranking(x, x, y, 0.0, TN_MEAN), TN_ESHAPE,
                 "margin_ranking: a is [2, 3] but y is [2]");
    refused_with(tn_margin_ranking(y, D(2), y, 0.0, TN_MEAN), TN_EDTYPE,
                 "margin_ranking: a is f32 but b is f64");
    refused_with(tn_margin_ranking(y, y, y, NAN, TN_MEAN), TN_EVALUE,
                 "margin_ranking: margin is nan");
    tn_triplet_options o = tn_triplet_defaults();
    refused_with(tn_triplet_margin(x, x, D(2, 3), o), TN_EDTYPE,
                 "triplet_margin: anchor is f32 but negative is f64");
    refused_with(tn_triplet_margin(x, F(3), x, o), TN_ESHAPE,
                 "triplet_margin: anchor is [2, 3], positive [3] and negative [2, 3]");
    o.margin = NAN;
    refused_with(tn_triplet_margin(x, x, x, o), TN_EVALUE, "triplet_margin: margin is nan");
    o.p = 0.0;
    refused_with(tn_triplet_margin(x, x, x, o), TN_EVALUE, "triplet_margin: p is 0");
}

PLAIN_TEST(ctc_errors) {
    TN_SCOPE;
    tn_ctc_options o = tn_ctc_defaults();
    tn_tensor *x = F(3, 2, 4), *targets = I(2, 1), *n = I(2);
    refused_with(tn_ctc(F(3, 2), targets, n, n, o), TN_ESHAPE,
                 "ctc: log_probs are [3, 2] but must be (times, batch, classes)");
    refused_with(tn_ctc(I(3, 2, 4), targets, n, n, o), TN_EDTYPE,
                 "ctc: the dtype of log_probs is i64");
    refused_with(tn_ctc(x, I(3, 1), n, n, o), TN_ESHAPE,
                 "ctc: log_probs are [3, 2, 4] but targets are [3, 1]");
    refused_with(tn_ctc(x, targets, I(3), n, o), TN_ESHAPE,
                 "ctc: log_probs are [3, 2, 4] but input_lengths are [3]");
    tn_tensor *long_ones = tn_full(TN_DIMS(2), 5.0, TN_I64), *ones = tn_ones(TN_DIMS(2), TN_I64);
    refused_with(tn_ctc(x, targets, long_ones, n, o), TN_EVALUE,
                 "ctc: input_lengths[0] is 5 but log_probs are [3, 2, 4] (0 to 3)");
    refused_with(tn_ctc(x, targets, n, long_ones, o), TN_EVALUE,
                 "ctc: target_lengths[0] is 5 but targets are [2, 1] (0 to 1)");
    refused_with(tn_ctc(x, I(3), ones, ones, o), TN_EVALUE,
                 "ctc: target_lengths add up to 2 but targets are [3]");
    o.blank = 4;
    refused_with(tn_ctc(x, targets, ones, n, o), TN_EVALUE,
                 "ctc: blank is 4 but log_probs are [3, 2, 4] (0 to 3)");
    o.blank = 1;
    o.reduction = TN_MAX;
    refused_with(tn_ctc(x, targets, ones, n, o), TN_EVALUE, "ctc: reduction is");
}

#endif
