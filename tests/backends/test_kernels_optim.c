/* step, sum_squares and clip against ref: trial.h. */
#include "trial.h"

/* Five spans of all kinds; out[0] … are the memory of parameters and the three states. The span has
 * as many of these; a master copy is in the last one's memory. */
typedef struct stepping {
    tn_step step;
    int states;
    bool master;
    array grad;
} stepping;

static tn_status call_step(const tn_backend *t, const tn_desc *const *out, void *user) {
    const stepping *s = user;
    tn_optim_span spans[5];
    const int64_t counts[5] = {1, 0, 16385, 100, 3000};
    size_t wide = tn_dtype_size(out[1]->dtype);
    for (int64_t i = 0, from = 0; i < 5; from += counts[i++]) {
        spans[i] = (tn_optim_span){
            .param = (char *)out[0]->data + from * (int64_t)tn_dtype_size(out[0]->dtype),
            .param_dtype = out[0]->dtype,
            .grad = (char *)s->grad.d.data + from * (int64_t)tn_dtype_size(s->grad.d.dtype),
            .grad_dtype = s->grad.d.dtype,
            .count = counts[i],
        };
        for (int k = 0; k < TN_SPAN_STATES; k++) {
            float *memory = (float *)((char *)out[1 + k]->data + from * (int64_t)wide);
            spans[i].state[k] = k < s->states ? memory : NULL;
            if (k == 2 && s->master) { spans[i].master = memory; }
        }
    }
    return TRIAL_CALL(t, step, spans, 5, &s->step);
}

/* Every rule; each also with a master copy, if there is room; RMSPROP without its second and third
 * state, MOMENTUM without Nesterov's look ahead, RADAM without a variance. */
TRIAL_TEST(test_steps) {
    static const int states[] = {0, 1, 2, 3, 3, 1, 2, 2, 2, 1};
    const int64_t n = 1 + 16385 + 100 + 3000;
    for (int k = 0; k < 10 * 16; k++) {
        tn_dtype dtype = array_floats[k % 4], wide = dtype == TN_F64 ? TN_F64 : TN_F32;
        tn_step_rule rule = (tn_step_rule)(k / 16);
        bool fewer = k & 4;
        array clip = make_array(TN_F64, DENSE, 1, SIZES(1));
        array_set(&clip, 0, 0.75);
        stepping s = {.states = rule == TN_STEP_RMSPROP && fewer ? 1 : states[rule],
                      .grad =
                          varied_array(k & 1 && wide == TN_F32 ? TN_F32 : dtype, DENSE, 1, &n, 3)};
        s.master = k & 8 && wide == TN_F32 && states[rule] < 3;
        s.step = (tn_step){.rule = rule,
                           .lr = 1e-2,
                           .beta1 = rule == TN_STEP_RMSPROP && fewer ? 1 : 0.9,
                           .beta2 = 0.98,
                           .eps = 1e-3,
                           .extra = fewer && rule != TN_STEP_RMSPROP ? 0 : 0.5,
                           .add = 0.1,
                           .shrink = 0.9,
                           .grad_scale = 0.5,
                           .clip = k & 2 ? clip.d.data : NULL};
        array p = varied_array(dtype, DENSE, 1, &n, 1), a = varied_array(wide, DENSE, 1, &n, 2),
              b = varied_array(wide, DENSE, 1, &n, 4), c = varied_array(wide, DENSE, 1, &n, 5);
        for (int64_t i = 0; i < n; i++) { /* squares, and a mean whose square is less */
            array_set(&a, i, rule == TN_STEP_LION ? array_get(&a, i) : fabs(array_get(&a, i)) + 2);
            array_set(&b, i, fabs(array_get(&b, i)) + 0.01);
            array_set(&c, i, array_get(&c, i) / 16);
        }
        trial t = {"step", 4, {p, a, b, c}, call_step, &s, wide == TN_F64 ? 1e-13 : 4e-6, 0};
        trial_run(&t);
        trial_forget();
    }
}

static tn_status call_clip(const tn_backend *t, const tn_desc *const *out, void *user) {
    const array *sums = user;
    return TRIAL_CALL(t, clip, sums->d.data, (int)sums->count, 1.5, out[0]->data);
}

/* A norm above what is wanted, below, NaN, infinite; none. The order of the sum counts: 2^60 + 1.
 */
TRIAL_TEST(test_clip) {
    const double all[][3] = {{4, 9, 3},        {0.25, 0.5, 0},   {1, NAN, 1},
                             {1, INFINITY, 1}, {0x1p60, 1, 128}, {128, 1, 0x1p60}};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        array sums = make_array(TN_F64, DENSE, 1, SIZES(3));
        for (int i = 0; i < 3; i++) {
            array_set(&sums, i, all[k][i]);
        }
        trial t = {"clip", 1, {make_array(TN_F64, DENSE, 1, SIZES(2))}, call_clip, &sums, 0, 0};
        trial_run(&t);
        trial_forget();
    }
}

/* More spans than a launch takes, all dtypes side by side, spans without elements, long ones. */
enum { SQUARES = 300 };

typedef struct squared {
    array of[4]; /* one for each dtype */
    int64_t count[SQUARES];
} squared;

static tn_status call_squares(const tn_backend *t, const tn_desc *const *out, void *user) {
    squared *s = user;
    tn_span spans[SQUARES];
    for (int i = 0; i < SQUARES; i++) {
        const tn_desc *x = &s->of[i % 4].d;
        int64_t from = i % 3; /* not always aligned */
        spans[i] = (tn_span){(char *)x->data + from * (int64_t)tn_dtype_size(x->dtype), x->dtype,
                             s->count[i]};
    }
    return TRIAL_CALL(t, sum_squares, spans, SQUARES, out[0]->data);
}

TRIAL_TEST(test_sum_squares) {
    const int64_t n = 3 * 8192 + 10, spans = SQUARES;
    squared s;
    for (int i = 0; i < SQUARES; i++) {
        s.count[i] = i % 50 == 7 ? n - 2 - i % 5 : i % 11 == 0 ? 0 : i;
    }
    for (int k = 0; k < 4; k++) {
        s.of[k] = varied_array(array_floats[k], DENSE, 1, &n, k);
    }
    trial t = {"sum_squares", 1, {make_array(TN_F64, DENSE, 1, &spans)}, call_squares, &s, 1e-6, 0};
    trial_run(&t);
    trial_forget();
}

/* One span of more pieces than a block has threads. */
static tn_status call_long_square(const tn_backend *t, const tn_desc *const *out, void *user) {
    const array *x = user;
    tn_span span = {x->d.data, x->d.dtype, x->count};
    return TRIAL_CALL(t, sum_squares, &span, 1, out[0]->data);
}

TRIAL_TEST(test_long_square) {
    const int64_t n = 260 * 8192 + 10;
    array x = varied_array(TN_BF16, DENSE, 1, &n, 1);
    trial t = {"sum_squares", 1, {make_array(TN_F64, DENSE, 1, SIZES(1))}, call_long_square, &x,
               1e-6,          0};
    trial_run(&t);
    trial_forget();
}
