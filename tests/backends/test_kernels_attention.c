/* attention and its backward against ref: trial.h. */
#include "kernels.h"
#include "trial.h"

typedef struct attending {
    tn_desc q, k, v, y, dy, lse, mask;
    bool masked;
    tn_attention_args args;
} attending;
static tn_status call_attention(const tn_backend *t, const tn_desc *const *out, void *user) {
    attending *a = user;
    return run_attention(t, out[0], out[1], &a->q, &a->k, &a->v, a->masked ? &a->mask : NULL,
                         &a->args);
}
static tn_status call_attention_backward(const tn_backend *t, const tn_desc *const *out,
                                         void *user) {
    attending *a = user;
    return run_attention_backward(t, out[0], out[1], out[2], &a->dy, &a->y, &a->lse, &a->q, &a->k,
                                  &a->v, a->masked ? &a->mask : NULL, &a->args);
}

/* B, H, G, Tq, Tk, D */
/* Whether cuDNN may run this call (backends/cuda/sdpa.c); only a real device has it. */
static bool may_be_cudnn(tn_dtype dtype, const int64_t *s, array_layout layout, bool causal,
                         bool masked) {
    const char *wish = getenv("TERN_CUDNN");
    bool on = trial_on_cuda() && !trial_on_emulator() && !(wish && strcmp(wish, "off") == 0);
    bool narrow = dtype == TN_BF16 || dtype == TN_F16;
    bool aligned = !causal || s[3] == s[4] || s[3] == 1;
    return on && narrow && aligned && s[5] % 8 == 0 && layout == DENSE && !masked;
}

static void try_attention(tn_dtype dtype, const int64_t *s, array_layout layout, bool causal,
                          int masked, bool odd) {
    const int64_t q_size[] = {s[0], s[1], s[3], s[5]}, k_size[] = {s[0], s[2], s[4], s[5]},
                  mask_size[] = {1, s[1], s[3], s[4]};
    tn_dtype stat = dtype == TN_F64 ? TN_F64 : TN_F32;
    array q = varied_array(dtype, layout, 4, q_size, 1),
          k = varied_array(dtype, layout, 4, k_size, 2),
          v = varied_array(dtype, layout, 4, k_size, 3);
    array dy = varied_array(dtype, layout, 4, q_size, 4), y = make_array(dtype, layout, 4, q_size),
          lse = make_array(stat, layout, 3, q_size);
    array mask = make_array(TN_BOOL, DENSE, 4, mask_size);
    for (int64_t i = 0; i < mask.count; i++) {
        /* 2: some rows see nothing */
        array_set(&mask, i, (i * 7 + i / 5) % 3 != 0 && (masked < 2 || i / s[4] % 3 != 1));
    }
    /* cuDNN multiplies what a causal mask hides by 0. */
    odd = odd && !(causal && s[3] > 1 && may_be_cudnn(dtype, s, layout, causal, masked));
    if (odd && k.count > 0 && q.count > 0) { /* in the last key and value, and in one row of dy */
        array_set(&v, v.count - 1, NAN);
        array_set(&k, k.count - 1, INFINITY);
        array_set(&dy, dy.count / 2, NAN);
    }
    attending a = {
        .q = q.d, .k = k.d, .v = v.d, .dy = dy.d, .mask = broadcast_along(&mask, 0, s[0])};
    a.args = (tn_attention_args){causal, 1 / sqrt((double)s[5] + 1)};
    a.masked = masked;
    bool double_form = dtype == TN_F64;
    /* cuDNN rounds probabilities to the operands' dtype before the product with v: each by half a
     * step at most, and |v| <= 2. Our kernels do not round them. */
    double rounded = may_be_cudnn(dtype, s, layout, causal, masked) ? step_of(dtype) : 0;
    trial t = {"attention",
               2,
               {y, lse},
               call_attention,
               &a,
               double_form ? 1e-12 : 4e-6,
               double_form ? 1e-12 : 4e-6 + rounded};
    trial_run(&t);
    const tn_backend *ref = tn_backend_named("ref");
    assert_int_equal(call_attention(ref, (const tn_desc *[]){&y.d, &lse.d}, &a), TN_OK);
    a.y = y.d;
    a.lse = lse.d;
    array dq = make_array(dtype, layout, 4, q_size), dk = make_array(dtype, layout, 4, k_size),
          dv = make_array(dtype, layout, 4, k_size);
    trial back = {"attention_backward",
                  3,
                  {dq, dk, dv},
                  call_attention_backward,
                  &a,
                  double_form ? 1e-11 : 3e-5,
                  double_form ? 1e-11 : 3e-5 + step_of(dtype)};
    trial_run(&back);
    trial_forget();
}

TRIAL_TEST(test_attention) {
    static const int64_t sizes[][6] = {{1, 1, 1, 1, 1, 1},
                                       {2, 4, 2, 5, 5, 3},
                                       {1, 2, 2, 65, 65, 8},
                                       {2, 2, 1, 3, 70, 33},
                                       {1, 1, 1, 9, 4, 5},
                                       {0, 2, 2, 3, 3, 4},
                                       {1, 2, 2, 0, 3, 4},
                                       {1, 2, 1, 3, 0, 4},
                                       {1, 3, 3, 64, 64, 32},
                                       {1, 1, 1, 130, 133, 16},
                                       {1, 2, 1, 9, 34, 100},
                                       {1, 1, 1, 5, 33, 256},
                                       {1, 2, 2, 3, 4, 0},
                                       {1, 0, 2, 3, 3, 4},
                                       /* one query, some that share their keys, the most that count
                                          as few, one more */
                                       {2, 3, 3, 1, 200, 64},
                                       {1, 4, 1, 2, 150, 40},
                                       {1, 2, 1, 8, 300, 16},
                                       {1, 1, 1, 9, 300, 16},
                                       {1, 2, 1, 4, 64, 16},
                                       {1, 3, 1, 3, 70, 16}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int k = 0; k < 4 * 2 * 2 * 3; k++) {
            if (sizes[s][3] * sizes[s][4] > 5000 && k % 4 != 0 && k > 14) { /* ref is slow */
                continue;
            }
            try_attention(array_floats[k % 4], sizes[s], k / 4 & 1, k / 8 & 1, k / 16, k % 5 == 4);
        }
    }
}

/* Blocks that share a row's keys in unequal parts, since there are more rows, or most of which a
 * causal mask hides; and rows enough that none does. */
TEST_WITH(test_shared_keys, NULL, arrays_free) {
    if (!trial_on_cuda()) { skip(); }
    static const int64_t sizes[][6] = {
        {30, 10, 5, 2, 330, 4}, {1, 2, 1, 20, 300, 4}, {64, 8, 8, 1, 140, 4}};
    for (int i = 0; i < 3; i++) {
        for (int causal = 0; causal < 2; causal++) {
            try_attention(TN_F32, sizes[i], DENSE, causal, 0, causal);
        }
    }
}

/* More rows than a launch has blocks, all of them one broadcast element: refused before anything is
 * touched. 2^32 + 1 blocks would be 1 in a launch's 32 bits. */
TRIAL_TEST(test_too_many_rows) {
    if (!trial_on_cuda()) { skip(); }
    const tn_backend *t = trial_tables()[0];
    array x = varied_array(TN_F32, DENSE, 4, SIZES(1, 1, 1, 1), 1);
    tn_desc many = broadcast_along(&x, 0, ((int64_t)1 << 32) + 1), lse = many;
    lse.ndim = 3;
    tn_attention_args args = {.scale = 1};
    assert_int_equal(run_attention(t, &many, &lse, &many, &many, &many, NULL, &args),
                     TN_EUNSUPPORTED);
    assert_int_equal(run_attention_backward(t, &many, &many, &many, &many, &many, &lse, &many,
                                            &many, &many, NULL, &args),
                     TN_EUNSUPPORTED);
}
