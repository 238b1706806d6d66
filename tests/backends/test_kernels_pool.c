/* Pooling against ref: trial.h. */
#include "trial.h"

#include "backends/pool.h"

typedef struct pooled {
    tn_desc x, dy, index;
    tn_pool_args args;
    bool with_index;
} pooled;

static tn_status call_max(const tn_backend *t, const tn_desc *const *out, void *user) {
    pooled *p = user;
    return TRIAL_CALL(t, max_pool, out[0], p->with_index ? out[1] : NULL, &p->x, &p->args);
}
static tn_status call_max_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    pooled *p = user;
    return TRIAL_CALL(t, max_pool_backward, out[0], &p->dy, &p->index, &p->args);
}
static tn_status call_avg(const tn_backend *t, const tn_desc *const *out, void *user) {
    pooled *p = user;
    return TRIAL_CALL(t, avg_pool, out[0], &p->x, &p->args);
}
static tn_status call_avg_backward(const tn_backend *t, const tn_desc *const *out, void *user) {
    pooled *p = user;
    return TRIAL_CALL(t, avg_pool_backward, out[0], &p->dy, &p->args);
}

/* N, C and how many dimensions; windows that overlap, leave gaps, hang over the edge, are dilated
 * (for the largest alone), have a divisor of their own, and are cut from sizes. */
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

static bool is_dilated(const tn_pool_args *a) {
    return a->dilation[0] * a->dilation[1] * a->dilation[2] > 1;
}

/* Case k: bits for the layouts of inputs and outputs, and for what is special about x. */
static void try_shape(const shape *s, tn_dtype dtype, int k) {
    int ndim = 2 + s->args.spatial;
    int64_t in[5] = {s->n, s->c}, out[5] = {s->n, s->c};
    for (int i = 0; i < s->args.spatial; i++) {
        in[2 + i] = s->args.in[3 - s->args.spatial + i];
        out[2 + i] = s->args.out[3 - s->args.spatial + i];
    }
    array_layout from = k & 1 ? SPREAD : DENSE, to = k >> 1 & 1 ? SPREAD : DENSE;
    array x = varied(dtype, from, ndim, in, 1), dy = varied(dtype, from, ndim, out, 2),
          y = make(dtype, to, ndim, out), dx = make(dtype, to, ndim, in),
          index = make(TN_I32, from, ndim, out), found = make(TN_I32, to, ndim, out);
    if (k & 4) { /* NaN, infinities and ties */
        spoil(&x);
    }
    pooled p = {.x = x.d, .dy = dy.d, .index = index.d, .args = s->args};
    for (int i = 0; i < 2; i++) {
        p.with_index = i == 1;
        trial largest = {"max_pool", 1 + i, {y, found}, call_max, &p, 0, 0};
        trial_run(&largest);
    }
    const tn_backend *ref = tn_backend_named("ref");
    assert_int_equal(ref->max_pool(trial_context(ref), &y.d, &index.d, &x.d, &s->args), TN_OK);
    double step = dtype == TN_F64 ? 0x1p-50 : 0x1p-20;
    trial back = {"max_pool_backward", 1, {dx}, call_max_backward, &p, step, step};
    trial_run(&back);
    if (!is_dilated(&s->args) && !(k & 4)) {
        trial mean = {"avg_pool", 1, {y}, call_avg, &p, step, step};
        trial_run(&mean);
        trial spread = {"avg_pool_backward", 1, {dx}, call_avg_backward, &p, step, step};
        trial_run(&spread);
    }
    trial_forget();
}

static void test_windows(void **state) {
    (void)state;
    if (!trial_tables()[0]->max_pool) {
        skip(); /* a table that leaves it to the operations' own loops */
    }
    for (int i = 0; i < SHAPES; i++) {
        for (int k = 0; k < 8; k++) {
            for (int t = 0; t < 4; t++) {
                try_shape(&shapes[i], array_floats[t], k);
            }
        }
    }
}

/* tn__places_of against the windows themselves, for each element. */
static void test_places_have_the_element(void **state) {
    (void)state;
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

static void test_refused(void **state) {
    (void)state;
    const tn_backend *table = trial_tables()[0];
    const int64_t *one = SIZES(1, 1, 1);
    array x = varied(TN_F32, DENSE, 3, one, 1), whole = make(TN_I64, DENSE, 3, one),
          wide = make(TN_F64, DENSE, 3, one);
    tn_pool_args args = {1,         false,     true,      0,         {1, 1, 1},
                         {1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    assert_int_equal(TRIAL_CALL(table, max_pool, &x.d, NULL, &wide.d, &args), TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, max_pool, &x.d, &whole.d, &x.d, &args), TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, max_pool_backward, &x.d, &x.d, &whole.d, &args),
                     TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, avg_pool, &whole.d, &whole.d, &args), TN_EUNSUPPORTED);
    assert_int_equal(TRIAL_CALL(table, avg_pool_backward, &wide.d, &x.d, &args), TN_EUNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRIAL_TEST(test_windows),
        TRIAL_TEST(test_places_have_the_element),
        TRIAL_TEST(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
