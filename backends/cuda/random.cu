/* random and dropout: backends/random.h, four elements per thread.
 *
 * A thread draws for the positions 4g … 4g + 3: one philox block,
 * or two where an element takes 64 bits.
 */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"
#include "backends/random.h"
#include "core/philox.h"

/* Operands whose elements a kernel takes in fours. */
struct fours {
    tn__walk walk;
    bool dense; /* every operand is contiguous and aligned for packs of four */
};

/* ---- Numbers --------------------------------------------------------------------------------- */

struct draw {
    tn_random_kind kind;
    uint64_t key, call, first; /* first: the group of four where the output begins */
    double a, b, limit;        /* limit: tn__uniform_limit */
    uint32_t threshold;        /* Bernoulli */
};

/* a + width u, as on the host: the product is rounded separately. */
static __device__ __forceinline__ double shift_uniform(double a, double width, double u) {
    return __dadd_rn(a, __dmul_rn(width, u));
}

/* u in [0, 1) mapped to [a, b). */
static __device__ __forceinline__ double uniform_in(const draw &d, double u) {
    return fmin(shift_uniform(d.a, d.b - d.a, u), d.limit);
}

/* Element i of a group of four f32, bf16 or f16. */
static __device__ __forceinline__ void draw_four(const draw &d, int64_t group, float (&value)[4]) {
    tn_random4 r = tn__philox(d.key, d.call, d.first + (uint64_t)group);
    if (d.kind == TN_BERNOULLI) {
        for (int i = 0; i < 4; i++) {
            value[i] = r.word[i] >> 8 < d.threshold;
        }
    } else if (d.kind == TN_NORMAL) {
        for (int i = 0; i < 4; i += 2) {
            tn__box_muller_f(tn__uniform24(r.word[i]), tn__uniform24(r.word[i + 1]), &value[i],
                             &value[i + 1]);
        }
        for (int i = 0; i < 4; i++) {
            value[i] = (float)shift_uniform(d.a, d.b, value[i]);
        }
    } else {
        for (int i = 0; i < 4; i++) {
            value[i] = (float)uniform_in(d, tn__uniform24(r.word[i]));
        }
    }
}

/* The 64-bit words of a group. */
static __device__ __forceinline__ void draw_words(const draw &d, int64_t group,
                                                  uint64_t (&word)[4]) {
    for (int part = 0; part < 2; part++) {
        tn_random4 r = tn__philox(d.key, d.call, 2 * (d.first + (uint64_t)group) + (uint64_t)part);
        word[2 * part] = tn__word64(r.word[0], r.word[1]);
        word[2 * part + 1] = tn__word64(r.word[2], r.word[3]);
    }
}

static __device__ __forceinline__ void draw_four(const draw &d, int64_t group, double (&value)[4]) {
    uint64_t word[4];
    draw_words(d, group, word);
    for (int i = 0; i < 4; i++) {
        value[i] = tn__uniform53(word[i]);
    }
    if (d.kind == TN_NORMAL) {
        for (int i = 0; i < 4; i += 2) {
            double u = value[i], v = value[i + 1];
            tn__box_muller_d(u, v, &value[i], &value[i + 1]);
        }
    }
    for (int i = 0; i < 4; i++) {
        value[i] = d.kind == TN_BERNOULLI ? value[i] < d.a
                   : d.kind == TN_NORMAL  ? shift_uniform(d.a, d.b, value[i])
                                          : uniform_in(d, value[i]);
    }
}

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Stores elements 4g … 4g + 3 of operand 0, as many as there are. */
template <typename T, typename C>
static __device__ __forceinline__ void store_four(const fours &f, int64_t group,
                                                  const C (&value)[4]) {
    tn__elements<T, 4> pack;
    for (int i = 0; i < 4; i++) {
        pack.at[i] = tn__store<T>(value[i]);
    }
    if (f.dense && 4 * group + 4 <= f.walk.count) {
        ((tn__elements<T, 4> *)f.walk.data[0])[group] = pack;
        return;
    }
    for (int i = 0; i < 4 && 4 * group + i < f.walk.count; i++) {
        int64_t at[1];
        tn__walk_to(f.walk, 4 * group + i, at);
        ((T *)f.walk.data[0])[at[0]] = pack.at[i];
    }
}

template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK) random_kernel(fours f, draw d) {
    int64_t groups = (f.walk.count + 3) / 4, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += step) {
        typename tn__compute<T>::type value[4];
        draw_four(d, g, value);
        store_four<T>(f, g, value);
    }
}

__global__ void __launch_bounds__(TN__LOOP_BLOCK)
    integer_kernel(tn__walk walk, tn_dtype dtype, draw d, uint64_t low, uint64_t range) {
    int64_t groups = (walk.count + 3) / 4, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += step) {
        uint64_t word[4];
        draw_words(d, g, word);
        for (int i = 0; i < 4 && 4 * g + i < walk.count; i++) {
            int64_t at[1];
            tn__walk_to(walk, 4 * g + i, at);
            tn__put_integer(walk.data[0], dtype, at[0], (int64_t)(low + tn__below(word[i], range)));
        }
    }
}

/* Words below draw.threshold drop their element. y may be the memory of x. */
template <typename T>
__global__ void __launch_bounds__(TN__LOOP_BLOCK)
    dropout_kernel(fours f, draw d, typename tn__compute<T>::type scale) {
    typedef typename tn__compute<T>::type C;
    int64_t groups = (f.walk.count + 3) / 4, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; g < groups; g += step) {
        tn_random4 r = tn__philox(d.key, d.call, d.first + (uint64_t)g);
        tn__elements<T, 4> x;
        if (f.dense && 4 * g + 4 <= f.walk.count) {
            x = ((const tn__elements<T, 4> *)f.walk.data[1])[g];
        } else {
            for (int i = 0; i < 4; i++) {
                int64_t at[2], last = f.walk.count - 1;
                tn__walk_to(f.walk, 4 * g + i < last ? 4 * g + i : last, at);
                x.at[i] = ((const T *)f.walk.data[1])[at[1]];
            }
        }
        C value[4];
        for (int i = 0; i < 4; i++) {
            value[i] = r.word[i] >> 8 >= d.threshold ? tn__load(x.at[i]) * scale : (C)0;
        }
        store_four<T>(f, g, value);
    }
}

/* ---- Entries --------------------------------------------------------------------------------- */

static fours fours_of(int operands, const tn_desc *const *op) {
    fours f = {tn__cuda_walk(operands, op), true};
    for (int k = 0; k < operands; k++) {
        uintptr_t align = tn__cuda_element(op[k]->dtype) * 4;
        f.dense = f.dense && f.walk.ndim == 1 && f.walk.stride[k][0] == 1 &&
                  (uintptr_t)f.walk.data[k] % (align < 16 ? align : 16) == 0;
    }
    return f;
}

static draw draw_of(tn_random_kind kind, tn_random_key key, double a, double b, tn_dtype dtype) {
    return draw{kind,
                tn__philox_key(key.seed, key.stream),
                key.call,
                key.first / 4,
                a,
                b,
                kind == TN_UNIFORM ? tn__uniform_limit(dtype, a, b) : 0,
                tn__threshold24(a)};
}

tn_status tn__cuda_random(tn_context *ctx, const tn_desc *y, tn_random_kind kind, tn_random_key key,
                          double a, double b) {
    if (kind == TN_INTEGER ? !tn__is_integer(y->dtype) : !tn__is_float(y->dtype)) {
        return TN_EUNSUPPORTED;
    }
    fours f = fours_of(1, &y);
    draw d = draw_of(kind, key, a, b, y->dtype);
    if (f.walk.count == 0) { return TN_OK; }
    unsigned grid = tn__loop_grid(ctx, tn__ceil_div(f.walk.count, 4));
    if (kind == TN_INTEGER) {
        uint64_t low = (uint64_t)tn__to_integer(a), range = (uint64_t)tn__to_integer(b) - low;
        return TN_LAUNCH(ctx, integer_kernel, grid, TN__LOOP_BLOCK, 0, f.walk, y->dtype, d, low,
                         range);
    }
    TN_FLOATS(y->dtype, return TN_LAUNCH(ctx, (random_kernel<T>), grid, TN__LOOP_BLOCK, 0, f, d));
}

tn_status tn__cuda_dropout(tn_context *ctx, const tn_desc *y, const tn_desc *x, double p,
                           tn_random_key key) {
    if (!tn__is_float(y->dtype) || x->dtype != y->dtype) { return TN_EUNSUPPORTED; }
    const tn_desc *op[] = {y, x};
    fours f = fours_of(2, op);
    draw d = draw_of(TN_BERNOULLI, key, p, 0, y->dtype);
    if (f.walk.count == 0) { return TN_OK; }
    unsigned grid = tn__loop_grid(ctx, tn__ceil_div(f.walk.count, 4));
    double scale = 1 / (1 - p);
    TN_FLOATS(y->dtype, return TN_LAUNCH(ctx, (dropout_kernel<T>), grid, TN__LOOP_BLOCK, 0, f, d,
                                         (typename tn__compute<T>::type)scale));
}
