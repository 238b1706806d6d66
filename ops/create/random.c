/* New tensors of random numbers: one draw of this thread's default generator per call. */
#include "ops/inplace/inplace.h"

static tn_tensor *draw_new(tn_tensor *y, tn_random_kind kind, double a, double b,
                           const char *operation) {
    return tn_is_inert(y) ? y : tn__draw_in_place(y, kind, a, b, NULL, operation);
}

static bool is_drawn(tn_dtype dtype, const char *operation) {
    return tn_dtype_is_float(dtype) ||
           tn__fail(TN_EDTYPE, operation, "the dtype is %s (floating point is needed)",
                    tn_dtype_name(dtype));
}

static tn_tensor *draw_floats(tn_dims dims, tn_dtype dtype, tn_random_kind kind,
                              const char *operation) {
    return is_drawn(dtype, operation)
               ? draw_new(tn__empty(tn_default_device(), dims, dtype, operation), kind, 0.0, 1.0,
                          operation)
               : tn_inert();
}

static tn_tensor *draw_like(const tn_tensor *t, tn_random_kind kind, const char *operation) {
    return tn__readable(t, operation) && is_drawn(t->dtype, operation)
               ? draw_new(tn_empty_like(t), kind, 0.0, 1.0, operation)
               : tn_inert();
}

tn_tensor *tn_rand(tn_dims dims, tn_dtype dtype) {
    return draw_floats(dims, dtype, TN_UNIFORM, "rand");
}

tn_tensor *tn_randn(tn_dims dims, tn_dtype dtype) {
    return draw_floats(dims, dtype, TN_NORMAL, "randn");
}

tn_tensor *tn_rand_like(const tn_tensor *t) {
    return draw_like(t, TN_UNIFORM, "rand_like");
}

tn_tensor *tn_randn_like(const tn_tensor *t) {
    return draw_like(t, TN_NORMAL, "randn_like");
}

/* The bounds reach the kernel as doubles, which hold whole numbers up to 2^53. */
tn_tensor *tn_randint(int64_t low, int64_t high, tn_dims dims, tn_dtype dtype) {
    const int64_t max = INT64_C(1) << 53;
    if (tn_dtype_is_float(dtype) || dtype == TN_BOOL) {
        return tn__refused(TN_EDTYPE, "randint", "the dtype is %s (an integer is needed)",
                           tn_dtype_name(dtype));
    }
    if (low >= high || low < -max || high > max || !tn__fits((double)low, dtype) ||
        !tn__fits((double)(high - 1), dtype)) {
        return tn__refused(
            TN_EVALUE, "randint",
            "low is %lld and high is %lld (low must be below, both within 2^53 and %s)",
            (long long)low, (long long)high, tn_dtype_name(dtype));
    }
    return draw_new(tn__empty(tn_default_device(), dims, dtype, "randint"), TN_INTEGER, (double)low,
                    (double)high, "randint");
}
