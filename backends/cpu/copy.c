/* fill, copy, where and compare: they move or compare elements. */
#include "backends/cpu/convert.h"
#include "backends/cpu/loop.h"
#include "backends/formulas.h"

/* ---- Moving elements of 1, 2, 4 or 8 bytes --------------------------------------------------- */

#define MOVERS(T)                                                                                 \
    static void move_##T(T *y, int64_t sy, const T *x, int64_t sx, int64_t n) {                   \
        if (sy == 1 && sx == 1) {                                                                 \
            memcpy(y, x, (size_t)n * sizeof(T));                                                  \
        } else if (sy == 1 && sx == 0) {                                                          \
            T value = x[0];                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                     \
                y[i] = value;                                                                     \
            }                                                                                     \
        } else {                                                                                  \
            for (int64_t i = 0; i < n; i++) {                                                     \
                y[i * sy] = x[i * sx];                                                            \
            }                                                                                     \
        }                                                                                         \
    }                                                                                             \
    /* y (m, n) with rows ldy apart = x (n, m) transposed, in squares: whole lines are read,      \
     * transposed in a buffer and written, since rows that are a power of two apart compete for   \
     * the same cache sets. The next square's lines are fetched: a processor follows lines, not   \
     * rows. */                                                                                   \
    static void turn_##T(T *restrict y, int64_t ldy, const T *restrict x, int64_t ldx, int64_t m, \
                         int64_t n) {                                                             \
        enum { SQUARE = 16 };                                                                     \
        T square[SQUARE][SQUARE];                                                                 \
        for (int64_t j0 = 0; j0 < n; j0 += SQUARE) {                                              \
            int64_t columns = min_of(SQUARE, n - j0);                                             \
            for (int64_t i0 = 0; i0 < m; i0 += SQUARE) {                                          \
                int64_t rows = min_of(SQUARE, m - i0);                                            \
                if (rows == SQUARE && columns == SQUARE) {                                        \
                    for (int j = 0; j < SQUARE; j++) {                                            \
                        const T *from = x + (j0 + j) * ldx + i0;                                  \
                        __builtin_prefetch(from + SQUARE * ldx);                                  \
                        memcpy(square[j], from, sizeof square[j]);                                \
                    }                                                                             \
                    for (int i = 0; i < SQUARE; i++) {                                            \
                        T line[SQUARE];                                                           \
                        __builtin_prefetch(y + (i0 + i) * ldy + j0 + SQUARE, 1);                  \
                        for (int j = 0; j < SQUARE; j++) {                                        \
                            line[j] = square[j][i];                                               \
                        }                                                                         \
                        memcpy(y + (i0 + i) * ldy + j0, line, sizeof line);                       \
                    }                                                                             \
                    continue;                                                                     \
                }                                                                                 \
                for (int64_t i = 0; i < rows; i++) {                                              \
                    for (int64_t j = 0; j < columns; j++) {                                       \
                        y[(i0 + i) * ldy + j0 + j] = x[(j0 + j) * ldx + i0 + i];                  \
                    }                                                                             \
                }                                                                                 \
            }                                                                                     \
        }                                                                                         \
    }                                                                                             \
    static void select_##T(T *y, const uint8_t *c, const T *a, const T *b, int64_t n,             \
                           const int64_t *s) {                                                    \
        if (s[0] == 1 && s[1] == 1 && s[2] == 1 && s[3] == 1) {                                   \
            _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                 \
                T p = a[i], q = b[i];                                                             \
                y[i] = c[i] ? p : q;                                                              \
            }                                                                                     \
            return;                                                                               \
        }                                                                                         \
        for (int64_t i = 0; i < n; i++) {                                                         \
            y[i * s[0]] = c[i * s[1]] ? a[i * s[2]] : b[i * s[3]];                                \
        }                                                                                         \
    }
MOVERS(uint8_t)
MOVERS(uint16_t)
MOVERS(uint32_t)
MOVERS(uint64_t)

#define BY_SIZE(bytes, CALL) \
    switch (bytes) {         \
    case 1:                  \
        CALL(uint8_t);       \
        break;               \
    case 2:                  \
        CALL(uint16_t);      \
        break;               \
    case 4:                  \
        CALL(uint32_t);      \
        break;               \
    default:                 \
        CALL(uint64_t);      \
        break;               \
    }

typedef struct operands {
    const tn_desc *y, *x, *a, *b;
    tn_compare compare;
} operands;

static void move_body(const void *user, const element_loop *loop, const int64_t *off, int64_t n) {
    const operands *o = user;
    int64_t sy = inner_stride(loop, 0), sx = inner_stride(loop, 1);
#define MOVE(T) move_##T((T *)desc_at(o->y, off[0]), sy, (const T *)desc_at(o->x, off[1]), sx, n)
    BY_SIZE(size_of(o->y->dtype), MOVE)
#undef MOVE
}

/* ---- Copy ------------------------------------------------------------------------------------ */

/* Between float dtypes. f64 to f64 never gets here; f64 to bf16 and f16 is rounded through f32, as
 * everywhere. */
static void convert_body(const void *user, const element_loop *loop, const int64_t *off,
                         int64_t n) {
    const operands *o = user;
    int64_t sy = inner_stride(loop, 0), sx = inner_stride(loop, 1);
    if (o->x->dtype == TN_F32 && sx == 1) {
        store_f32(desc_at(o->y, off[0]), o->y->dtype, sy, (const float *)desc_at(o->x, off[1]), n);
        return;
    }
    if (o->y->dtype == TN_F32 && sy == 1) {
        load_f32((float *)desc_at(o->y, off[0]), desc_at(o->x, off[1]), o->x->dtype, sx, n);
        return;
    }
    float buffer[TILE];
    for (int64_t i = 0; i < n; i += TILE) {
        int64_t m = min_of(TILE, n - i);
        load_f32(buffer, desc_at(o->x, off[1] + i * sx), o->x->dtype, sx, m);
        store_f32(desc_at(o->y, off[0] + i * sy), o->y->dtype, sy, buffer, m);
    }
}

/* The dimension along which x is contiguous while y is along its last; -1 if this is not a
 * transposition. */
static int turned_dim(const element_loop *loop) {
    int last = loop->ndim - 1;
    if (loop->ndim < 2 || loop->stride[0][last] != 1 || loop->stride[1][last] <= 1) { return -1; }
    for (int d = 0; d < last; d++) {
        if (loop->stride[1][d] == 1) {
            return loop->size[d] >= 4 && loop->size[last] >= 4 ? d : -1;
        }
    }
    return -1;
}

/* Transposes bands of dimension `dim` by the whole last one, for each index of the others. */
static void turn_all(const element_loop *loop, int dim, const tn_desc *y, const tn_desc *x) {
    enum { BAND = 128 };
    int last = loop->ndim - 1;
    int64_t m = loop->size[dim], n = loop->size[last], bands = div_up(m, BAND),
            others = loop->count / (m * n);
    int threads = team_size(bands * others, loop->count);
    size_t bytes = size_of(y->dtype);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < bands * others; task++) {
        int64_t i0 = task % bands * BAND, rest = task / bands;
        int64_t to = i0 * loop->stride[0][dim], from = i0;
        for (int d = last - 1; d >= 0; d--) {
            if (d != dim) {
                to += rest % loop->size[d] * loop->stride[0][d];
                from += rest % loop->size[d] * loop->stride[1][d];
                rest /= loop->size[d];
            }
        }
#define TURN(T)                                                                      \
    turn_##T((T *)desc_at(y, to), loop->stride[0][dim], (const T *)desc_at(x, from), \
             loop->stride[1][last], min_of(BAND, m - i0), n)
        BY_SIZE(bytes, TURN)
#undef TURN
    }
}

tn_status TN_CPU(copy)(tn_context *ctx, const tn_desc *y, const tn_desc *x) {
    operands o = {.y = y, .x = x};
    element_loop loop;
    if (y->dtype == x->dtype) {
        TN_CPU(loop_init)(&loop, 2, (const tn_desc *[]){y, x});
        int dim = turned_dim(&loop);
        if (dim >= 0 && loop.count > 0) {
            turn_all(&loop, dim, y, x);
        } else {
            TN_CPU(loop_run)(&loop, move_body, &o);
        }
        return TN_OK;
    }
    if (!is_float(y->dtype) || !is_float(x->dtype)) { return TN_CPU(ref)->copy(ctx, y, x); }
    TN_CPU(loop_init)(&loop, 2, (const tn_desc *[]){y, x});
    TN_CPU(loop_run)(&loop, convert_body, &o);
    return TN_OK;
}

/* ---- Fill: ref makes the one element, which is then repeated --------------------------------- */

tn_status TN_CPU(fill)(tn_context *ctx, const tn_desc *y, double value) {
    uint64_t element = 0;
    tn_desc one = {.data = &element, .dtype = y->dtype, .ndim = 1, .size = {1}, .stride = {1}};
    tn_status status = TN_CPU(ref)->fill(ctx, &one, value);
    if (status != TN_OK) { return status; }
    tn_desc x = *y;
    x.data = &element;
    for (int d = 0; d < x.ndim; d++) {
        x.stride[d] = 0;
    }
    operands o = {.y = y, .x = &x};
    element_loop loop;
    TN_CPU(loop_init)(&loop, 2, (const tn_desc *[]){y, &x});
    TN_CPU(loop_run)(&loop, move_body, &o);
    return TN_OK;
}

/* ---- Where and compare ----------------------------------------------------------------------- */

static void where_body(const void *user, const element_loop *loop, const int64_t *off, int64_t n) {
    const operands *o = user;
    int64_t s[4] = {inner_stride(loop, 0), inner_stride(loop, 1), inner_stride(loop, 2),
                    inner_stride(loop, 3)};
    const uint8_t *c = (const uint8_t *)desc_at(o->x, off[1]);
#define SELECT(T)                                                               \
    select_##T((T *)desc_at(o->y, off[0]), c, (const T *)desc_at(o->a, off[2]), \
               (const T *)desc_at(o->b, off[3]), n, s)
    BY_SIZE(size_of(o->y->dtype), SELECT)
#undef SELECT
}

tn_status TN_CPU(where)(tn_context *ctx, const tn_desc *y, const tn_desc *c, const tn_desc *a,
                        const tn_desc *b) {
    if (c->dtype != TN_BOOL || a->dtype != y->dtype || b->dtype != y->dtype) {
        return TN_CPU(ref)->where(ctx, y, c, a, b);
    }
    operands o = {.y = y, .x = c, .a = a, .b = b};
    element_loop loop;
    TN_CPU(loop_init)(&loop, 4, (const tn_desc *[]){y, c, a, b});
    TN_CPU(loop_run)(&loop, where_body, &o);
    return TN_OK;
}

#define COMPARE_LOOP(code, name, formula)                                                      \
    static void compare_##name(uint8_t *y, const float *left, const float *right, int64_t n) { \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) {                                  \
            float a = left[i], b = right[i];                                                   \
            y[i] = (formula);                                                                  \
        }                                                                                      \
    }
TN_COMPARE_FORMULAS(COMPARE_LOOP)
#define COMPARE_NAME(code, name, formula) [code] = compare_##name,
static void (*const compare_loops[TN_COMPARE_COUNT])(uint8_t *, const float *, const float *,
                                                     int64_t) = {TN_COMPARE_FORMULAS(COMPARE_NAME)};

static void compare_body(const void *user, const element_loop *loop, const int64_t *off,
                         int64_t n) {
    const operands *o = user;
    int64_t sy = inner_stride(loop, 0), sa = inner_stride(loop, 1), sb = inner_stride(loop, 2);
    float left[TILE], right[TILE];
    uint8_t out[TILE];
    for (int64_t i = 0; i < n; i += TILE) {
        int64_t m = min_of(TILE, n - i);
        load_f32(left, desc_at(o->a, off[1] + i * sa), o->a->dtype, sa, m);
        load_f32(right, desc_at(o->b, off[2] + i * sb), o->b->dtype, sb, m);
        compare_loops[o->compare](out, left, right, m);
        move_uint8_t((uint8_t *)desc_at(o->y, off[0] + i * sy), sy, out, 1, m);
    }
}

tn_status TN_CPU(compare)(tn_context *ctx, tn_compare f, const tn_desc *y, const tn_desc *a,
                          const tn_desc *b) {
    if (!is_f32_like(a->dtype) || b->dtype != a->dtype || y->dtype != TN_BOOL) {
        return TN_CPU(ref)->compare(ctx, f, y, a, b);
    }
    operands o = {.y = y, .a = a, .b = b, .compare = f};
    element_loop loop;
    TN_CPU(loop_init)(&loop, 3, (const tn_desc *[]){y, a, b});
    TN_CPU(loop_run)(&loop, compare_body, &o);
    return TN_OK;
}
