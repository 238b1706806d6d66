/* rotary against ref: trial.h. */
#include "kernels.h"
#include "trial.h"

typedef struct turning {
    tn_desc x, positions;
    tn_rotary_args args;
} turning;

static tn_status call_rotary(const tn_backend *t, const tn_desc *const *out, void *user) {
    turning *a = user;
    return run_rotary(t, out[0], &a->x, &a->positions, &a->args);
}

/* Case k of a shape B, H, T, D: bits for layouts, for positions (shared by the batch in i64, or one
 * row per sample in i32), for the scaling and the inverse. */
static void try_rotary(tn_dtype dtype, const int64_t *s, int k) {
    const int64_t each[] = {k & 1 ? s[0] : 1, s[2]};
    array x = varied_array(dtype, k >> 1 & 1, 4, s, 1), y = make_array(dtype, k >> 2 & 1, 4, s);
    array positions = make_array(k & 1 ? TN_I32 : TN_I64, k >> 1 & 1, 2, each);
    for (int64_t i = 0; i < positions.count; i++) {
        array_set(&positions, i, (double)((i * 37 + i / 3) % 2000));
    }
    turning a = {.x = x.d,
                 .positions = k & 1 ? positions.d : broadcast_along(&positions, 0, s[0]),
                 .args = {10000.0, k & 2 ? 8.0 : 1.0, 1.0, 4.0, 1024, k & 4}};
    trial t = {"rotary", 1, {y}, call_rotary, &a, dtype == TN_F64 ? 1e-12 : 1e-6, 1e-7};
    trial_run(&t);
    trial_forget();
}

TRIAL_TEST(test_rotary) {
    if (!KERNEL_OWN(trial_tables()[0], rotary)) {
        skip(); /* a table that leaves it to the composition */
    }
    static const int64_t shapes[][4] = {{0, 2, 3, 4}, {2, 0, 3, 4}, {2, 2, 0, 4},  {2, 2, 3, 0},
                                        {1, 1, 1, 2}, {2, 3, 5, 6}, {3, 2, 7, 34}, {2, 4, 70, 64}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        for (int k = 0; k < 4 * 8; k++) {
            try_rotary(array_floats[k / 8], shapes[i], k % 8);
        }
    }
}
