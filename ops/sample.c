/* Samples: the inputs on which the suite tests an operation. An operation adds its own special
 * cases; the shapes that break most things (empty, 0-dimensional, size 1, odd sizes larger than a
 * vector register, broadcast pairs) are here.
 */
#include "ops/op.h"

static const tn_dims shapes[] = {
    {1, {7}},       {2, {3, 4}}, {3, {2, 3, 4}}, {0, {0}},     {1, {0}},
    {3, {2, 0, 3}}, {1, {1}},    {2, {1, 1}},    {2, {5, 67}},
};

static const tn_dims pairs[][2] = {
    {{1, {7}}, {1, {7}}},    {{2, {3, 4}}, {2, {3, 4}}},   {{2, {3, 4}}, {1, {4}}},
    {{1, {4}}, {2, {3, 4}}}, {{2, {3, 1}}, {2, {1, 4}}},   {{2, {3, 4}}, {2, {3, 1}}},
    {{0, {0}}, {2, {2, 3}}}, {{2, {2, 3}}, {0, {0}}},      {{3, {2, 1, 3}}, {2, {4, 1}}},
    {{1, {1}}, {1, {5}}},    {{0, {0}}, {0, {0}}},         {{1, {0}}, {1, {1}}},
    {{2, {2, 0}}, {1, {0}}}, {{2, {5, 67}}, {2, {5, 67}}}, {{2, {5, 67}}, {1, {67}}},
};

void tn_sample_add(tn_op_samples *s, const tn_sample *sample) {
    if (s && s->add && sample) { s->add(s, sample); }
}

void tn_sample_unary(tn_op_samples *s, double low, double high) {
    tn__sample_unary_with(s, low, high, "", NULL);
}

void tn__sample_unary_with(tn_op_samples *s, double low, double high, const char *text,
                           const void *args) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_sample sample = {
            .text = text, .args = args, .inputs = 1, .in = {tn_spec_real(shapes[i], low, high)}};
        tn_sample_add(s, &sample);
    }
}

void tn_sample_binary(tn_op_samples *s, double low, double high, double low2, double high2) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        tn_sample sample = {
            .text = "",
            .inputs = 2,
            .in = {tn_spec_real(pairs[i][0], low, high), tn_spec_real(pairs[i][1], low2, high2)},
        };
        tn_sample_add(s, &sample);
    }
}

void tn__sample_values(tn_op_samples *s, const double *values, int n, bool second) {
    tn_sample sample = {
        .text = "", .inputs = 1, .in = {tn_spec_values(TN_DIMS(n), values)}, .no_second = !second};
    tn_sample_add(s, &sample);
}

void tn__sample_values2(tn_op_samples *s, const double *a, const double *b, int n, bool second) {
    tn_sample sample = {
        .text = "",
        .inputs = 2,
        .in = {tn_spec_values(TN_DIMS(n), a), tn_spec_values(TN_DIMS(n), b)},
        .no_second = !second,
    };
    tn_sample_add(s, &sample);
}
