/* Pooling windows, and the places whose windows have a given element, agree (backends/pool.h). */
#include "arrays.h"

#include "backends/pool.h"

/* N, C and the arguments; windows that overlap, leave gaps, hang over the edge, are dilated, have a
 * given divisor, or are adaptive. */
typedef struct shape {
    int64_t n, c;
    tn_pool_args args;
} shape;

static const shape shapes[] = {
    {2, 3, {2, false, true, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 6, 4}, {1, 3, 2}}},
    {1, 2, {2, false, false, 0, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 7, 5}, {1, 4, 3}}},
    {1, 2, {2, false, true, 0, {1, 3, 3}, {1, 1, 1}, {0, 1, 1}, {1, 1, 1}, {1, 7, 9}, {1, 7, 9}}},
    {2, 1, {2, false, true, 5, {1, 2, 3}, {1, 3, 1}, {0, 0, 1}, {1, 1, 1}, {1, 6, 7}, {1, 2, 7}}},
    {2, 1, {2, false, true, 0, {1, 2, 3}, {1, 3, 1}, {0, 0, 1}, {1, 1, 2}, {1, 6, 7}, {1, 2, 5}}},
    {1, 1, {2, false, true, 0, {1, 2, 2}, {1, 1, 1}, {0, 1, 1}, {1, 3, 3}, {1, 2, 2}, {1, 1, 1}}},
    {1, 1, {2, false, true, 0, {1, 3, 2}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 5, 6}, {1, 3, 4}}},
    {2, 3, {1, false, true, 0, {1, 1, 3}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 9}, {1, 1, 7}}},
    {1, 2, {3, false, true, 0, {2, 2, 2}, {2, 1, 2}, {1, 0, 0}, {1, 1, 1}, {4, 3, 4}, {3, 2, 2}}},
    {0, 2, {2, false, true, 0, {1, 2, 2}, {1, 2, 2}, {0, 0, 0}, {1, 1, 1}, {1, 4, 4}, {1, 2, 2}}},
    {2, 2, {2, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 7, 5}, {1, 3, 2}}},
    {3, 2, {2, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 4, 4}, {1, 1, 1}}},
    {1, 2, {1, true, false, 0, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 3}, {1, 1, 5}}},
    {3, 9, {2, false, true, 0, {1, 3, 3}, {1, 2, 2}, {0, 1, 1}, {1, 1, 1}, {1, 20, 9}, {1, 10, 5}}},
};
enum { SHAPES = sizeof(shapes) / sizeof(*shapes) };

/* tn__places_of against the windows themselves, for each element. */
PLAIN_TEST(test_places_have_the_element) {
    for (int i = 0; i < SHAPES; i++) {
        const tn_pool_args *a = &shapes[i].args;
        for (int d = 0; d < 3; d++) {
            for (int64_t at = 0; at < a->in[d]; at++) {
                tn__places found = tn__places_of(a, d, at);
                for (int64_t p = 0; p < a->out[d]; p++) {
                    tn__window w = tn__window_at(a, d, p);
                    int64_t apart = at - w.first;
                    bool has = apart >= 0 && apart % a->dilation[d] == 0 &&
                               apart / a->dilation[d] < w.count;
                    bool named = p >= found.first && p < found.first + found.count;
                    assert_true(named || !has);
                    assert_true(has || !named || a->dilation[d] > 1);
                }
            }
        }
    }
}
