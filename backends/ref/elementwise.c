/* One element at a time: fill, arange, copy, unary, binary, compare, where. The formulas are in
 * backends/formulas.h; here they run on libm. */
#include "backends/formulas.h"
#include "backends/ref/ref.h"

/* Stores a float or an integer result in whatever dtype y has. */
static void store_converted(const tn_desc *y, int64_t at, double value) {
    if (is_float(y->dtype)) {
        store_float(y, at, value);
    } else {
        store_integer(y, at, y->dtype == TN_BOOL ? value != 0 : to_integer(value));
    }
}

tn_status tn__ref_fill(tn_context *ctx, const tn_desc *y, double value) {
    for (walk w = walk_over(1, y); w.left > 0; walk_next(&w)) {
        store_converted(y, w.at[0], value);
    }
    return TN_OK;
}

tn_status tn__ref_arange(tn_context *ctx, const tn_desc *y, double start, double step) {
    if (y->dtype == TN_BOOL) { return TN_EUNSUPPORTED; }
    for (walk w = walk_over(1, y); w.left > 0; walk_next(&w)) {
        store_converted(y, w.at[0], start + (double)w.position * step);
    }
    return TN_OK;
}

/* Float to a narrow integer goes through int64: truncated, then cut to its width. */
tn_status tn__ref_copy(tn_context *ctx, const tn_desc *y, const tn_desc *x) {
    for (walk w = walk_over(2, y, x); w.left > 0; walk_next(&w)) {
        if (is_float(x->dtype)) {
            store_converted(y, w.at[0], load_float(x, w.at[1]));
        } else if (y->dtype == TN_F64) {
            store_float(y, w.at[0], (double)load_integer(x, w.at[1]));
        } else if (is_float(y->dtype)) {
            /* not through double, which would round twice */
            store_float(y, w.at[0], (float)load_integer(x, w.at[1]));
        } else {
            store_integer(y, w.at[0], load_integer(x, w.at[1]));
        }
    }
    return TN_OK;
}

/* ---- Formulas -------------------------------------------------------------------------------- */

#define RETURN(code, name, formula) \
    case code:                      \
        return formula;
#define ASSIGN(code, name, formula) \
    case code:                      \
        *y = formula;               \
        return true;

static float unary_float(tn_unary f, float x, float k0, float k1) {
    switch (f) {
        TN_UNARY_FORMULAS(RETURN, float, TN_LIBM_F)
    default:
        return NAN;
    }
}

static double unary_double(tn_unary f, double x, double k0, double k1) {
    switch (f) {
        TN_UNARY_FORMULAS(RETURN, double, TN_LIBM_D)
    default:
        return NAN;
    }
}

/* false: f has no integer form. */
static bool unary_integer(tn_unary f, int64_t *y, int64_t x, int64_t k0, int64_t k1) {
    switch (f) {
        TN_UNARY_INTEGER_FORMULAS(ASSIGN)
    default:
        return false;
    }
}

static float binary_float(tn_binary f, float a, float b) {
    switch (f) {
        TN_BINARY_FORMULAS(RETURN, float, TN_LIBM_F)
    default:
        return NAN;
    }
}

static double binary_double(tn_binary f, double a, double b) {
    switch (f) {
        TN_BINARY_FORMULAS(RETURN, double, TN_LIBM_D)
    default:
        return NAN;
    }
}

static bool binary_integer(tn_binary f, int64_t *y, int64_t a, int64_t b) {
    switch (f) {
        TN_BINARY_INTEGER_FORMULAS(ASSIGN)
    default:
        return false;
    }
}

static bool compare_double(tn_compare f, double a, double b) {
    switch (f) {
        TN_COMPARE_FORMULAS(RETURN)
    default:
        return false;
    }
}

static bool compare_integer(tn_compare f, int64_t a, int64_t b) {
    switch (f) {
        TN_COMPARE_FORMULAS(RETURN)
    default:
        return false;
    }
}

tn_status tn__ref_unary(tn_context *ctx, tn_unary f, const tn_desc *y, const tn_desc *x, double k0,
                        double k1) {
    int64_t i = 0, i0 = to_integer(k0), i1 = to_integer(k1);
    if (y->dtype != x->dtype || x->dtype == TN_BOOL ||
        (is_integer(x->dtype) && !unary_integer(f, &i, 0, i0, i1))) {
        return TN_EUNSUPPORTED;
    }
    for (walk w = walk_over(2, y, x); w.left > 0; walk_next(&w)) {
        if (is_integer(x->dtype)) {
            unary_integer(f, &i, load_integer(x, w.at[1]), i0, i1);
            store_integer(y, w.at[0], i);
        } else if (x->dtype == TN_F64) {
            store_float(y, w.at[0], unary_double(f, load_float(x, w.at[1]), k0, k1));
        } else {
            store_float(y, w.at[0],
                        unary_float(f, (float)load_float(x, w.at[1]), (float)k0, (float)k1));
        }
    }
    return TN_OK;
}

tn_status tn__ref_binary(tn_context *ctx, tn_binary f, const tn_desc *y, const tn_desc *a,
                         const tn_desc *b) {
    int64_t i = 0;
    if (y->dtype != a->dtype || y->dtype != b->dtype || y->dtype == TN_BOOL ||
        (is_integer(y->dtype) && !binary_integer(f, &i, 0, 0))) {
        return TN_EUNSUPPORTED;
    }
    for (walk w = walk_over(3, y, a, b); w.left > 0; walk_next(&w)) {
        if (is_integer(y->dtype)) {
            binary_integer(f, &i, load_integer(a, w.at[1]), load_integer(b, w.at[2]));
            store_integer(y, w.at[0], i);
        } else if (y->dtype == TN_F64) {
            store_float(y, w.at[0],
                        binary_double(f, load_float(a, w.at[1]), load_float(b, w.at[2])));
        } else {
            store_float(
                y, w.at[0],
                binary_float(f, (float)load_float(a, w.at[1]), (float)load_float(b, w.at[2])));
        }
    }
    return TN_OK;
}

tn_status tn__ref_compare(tn_context *ctx, tn_compare f, const tn_desc *y, const tn_desc *a,
                          const tn_desc *b) {
    if (y->dtype != TN_BOOL || a->dtype != b->dtype) { return TN_EUNSUPPORTED; }
    for (walk w = walk_over(3, y, a, b); w.left > 0; walk_next(&w)) {
        bool result = is_float(a->dtype)
                          ? compare_double(f, load_float(a, w.at[1]), load_float(b, w.at[2]))
                          : compare_integer(f, load_integer(a, w.at[1]), load_integer(b, w.at[2]));
        store_integer(y, w.at[0], result);
    }
    return TN_OK;
}

tn_status tn__ref_where(tn_context *ctx, const tn_desc *y, const tn_desc *c, const tn_desc *a,
                        const tn_desc *b) {
    if (c->dtype != TN_BOOL || y->dtype != a->dtype || y->dtype != b->dtype) {
        return TN_EUNSUPPORTED;
    }
    for (walk w = walk_over(4, y, c, a, b); w.left > 0; walk_next(&w)) {
        bool first = load_integer(c, w.at[1]);
        move_element(y, w.at[0], first ? a : b, first ? w.at[2] : w.at[3]);
    }
    return TN_OK;
}
