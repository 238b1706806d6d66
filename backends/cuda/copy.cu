/* copy, fill, arange: elements that are moved or converted, not computed.
 *
 * A copy within one dtype moves bytes, whatever they mean. If x and y are dense in different
 * dimensions (a transposition), it goes through square tiles in shared memory, so that both reads
 * and writes are coalesced. Each pair of f32, f64, bf16 and f16 has its own kernel; other pairs are
 * rare and use convert.cuh.
 */
#include "backends/cuda/convert.cuh"
#include "backends/cuda/loop.cuh"

/* ---- One dtype ------------------------------------------------------------------------------- */

template <typename U> struct move_body { /* U: an integer as wide as an element */
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        at.write(0, at.read<U, V>(1));
    }
};

enum { SQUARE = 32, SQUARE_ROWS = 8 };

/* y is dense in dimension 0, x in dimension `line`. The other dimensions are the batch. */
struct turn {
    tn__loop loop;
    int line;
    int64_t across, along, squares; /* squares in dimension 0, in `line`, and in total */
};

/* The offsets of square (0, 0) of batch item `number`. */
static __device__ __forceinline__ void place_item(const turn &t, int64_t number, int64_t *y,
                                                  int64_t *x) {
    for (int d = 1; d < t.loop.ndim; d++) {
        if (d != t.line) {
            int64_t index = number % t.loop.size[d];
            number /= t.loop.size[d];
            *y += index * t.loop.stride[0][d];
            *x += index * t.loop.stride[1][d];
        }
    }
}

template <typename U> __global__ void __launch_bounds__(SQUARE *SQUARE_ROWS) turn_kernel(turn t) {
    TN_SHARED(U, square, SQUARE * (SQUARE + 1));
    int column = threadIdx.x % SQUARE, row = threadIdx.x / SQUARE;
    for (int64_t s = blockIdx.x; s < t.squares; s += gridDim.x) {
        int64_t y_at = 0, x_at = 0, across = s % t.across, along = s / t.across % t.along;
        place_item(t, s / t.across / t.along, &y_at, &x_at);
        /* positions in `line` and in dimension 0 */
        int64_t i0 = along * SQUARE, j0 = across * SQUARE;
        for (int r = row; r < SQUARE; r += SQUARE_ROWS) {
            int64_t i = i0 + column, j = j0 + r;
            if (i < t.loop.size[t.line] && j < t.loop.size[0]) {
                square[r * (SQUARE + 1) + column] =
                    ((const U *)t.loop.data[1])[x_at + i + j * t.loop.stride[1][0]];
            }
        }
        __syncthreads();
        for (int r = row; r < SQUARE; r += SQUARE_ROWS) {
            int64_t i = i0 + r, j = j0 + column;
            if (i < t.loop.size[t.line] && j < t.loop.size[0]) {
                ((U *)t.loop.data[0])[y_at + i * t.loop.stride[0][t.line] + j] =
                    square[column * (SQUARE + 1) + r];
            }
        }
        __syncthreads();
    }
}

/* Whether squares pay off: y is dense in dimension 0, x in another one, both long enough. */
static bool is_turned(const tn__loop *loop, turn *t) {
    if (loop->stride[0][0] != 1 || loop->stride[1][0] <= 1 || loop->size[0] < SQUARE / 2) {
        return false;
    }
    for (int d = 1; d < loop->ndim; d++) {
        if (loop->stride[1][d] == 1 && loop->size[d] >= SQUARE / 2) {
            t->loop = *loop;
            t->line = d;
            t->across = tn__ceil_div(loop->size[0], SQUARE);
            t->along = tn__ceil_div(loop->size[d], SQUARE);
            t->squares =
                tn__cuda_loop_count(loop) / loop->size[0] / loop->size[d] * t->across * t->along;
            return true;
        }
    }
    return false;
}

template <typename U> static tn_status copy_bits(tn_context *ctx, tn__operands &op) {
    tn__loop loop = tn__cuda_loop(2, op);
    turn t;
    if (tn__cuda_loop_count(&loop) > 0 && is_turned(&loop, &t)) {
        int64_t most = (int64_t)tn__cuda_device_of(ctx)->processors * 64;
        unsigned grid = (unsigned)(t.squares < most ? t.squares : most);
        return TN_LAUNCH(ctx, (turn_kernel<U>), grid, SQUARE * SQUARE_ROWS, 0, t);
    }
    return tn__loop_packed<tn__per_load<U>>(ctx, loop, move_body<U>{});
}

/* ---- Two dtypes ------------------------------------------------------------------------------ */

template <typename T, typename S> struct convert_body {
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        tn__elements<S, V> x = at.read<S, V>(1);
        tn__elements<T, V> y;
        for (int i = 0; i < V; i++) {
            y.at[i] = tn__store<T>((typename tn__compute<T>::type)tn__load(x.at[i]));
        }
        at.write(0, y);
    }
};

struct convert_any {
    tn_dtype to, from;
    bool from_float;
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        const void *x = at.plan.data[1];
        void *y = at.plan.data[0];
        if (from_float) {
            tn__put(y, to, at.at[0], tn__get_float(x, from, at.at[1]));
            return;
        }
        int64_t value = tn__get_integer(x, from, at.at[1]);
        if (to == TN_F64) {
            tn__put(y, to, at.at[0], (double)value);
        } else if (to == TN_F32 || to == TN_BF16 || to == TN_F16) {
            tn__put(y, to, at.at[0], (float)value); /* not via double, which would round twice */
        } else {
            tn__put_integer(y, to, at.at[0], value);
        }
    }
};

template <typename To> static tn_status convert_floats(tn_context *ctx, tn__operands &op) {
    TN_FLOATS(op[1]->dtype, return tn__loop_run<4>(ctx, 2, op, convert_body<To, T>{}));
}

tn_status tn__cuda_copy(tn_context *ctx, const tn_desc *y, const tn_desc *x) {
    tn__operands op = {y, x};
    bool from_float = tn__is_float(x->dtype);
    if (y->dtype != x->dtype && from_float && tn__is_float(y->dtype)) {
        TN_FLOATS(y->dtype, return convert_floats<T>(ctx, op));
    }
    if (y->dtype != x->dtype) {
        return tn__loop_run<1>(ctx, 2, op, convert_any{y->dtype, x->dtype, from_float});
    }
    TN_WIDTHS(x->dtype, return copy_bits<T>(ctx, op));
}

/* ---- Fill and arange ------------------------------------------------------------------------- */

template <typename U> struct fill_body { /* U: an integer as wide as an element */
    tn_dtype dtype;
    double value;
    template <int V> __device__ __forceinline__ void run(const tn__loop_place &at) const {
        alignas(8) unsigned char bytes[8];
        U element;
        tn__put(bytes, dtype, 0, value);
        memcpy(&element, bytes, sizeof(U));
        tn__elements<U, V> y;
        for (int i = 0; i < V; i++) {
            y.at[i] = element;
        }
        at.write(0, y);
    }
};

tn_status tn__cuda_fill(tn_context *ctx, const tn_desc *y, double value) {
    tn__operands op = {y};
    TN_WIDTHS(y->dtype,
              return tn__loop_run<tn__per_load<T>>(ctx, 1, op, fill_body<T>{y->dtype, value}));
}

/* Product and sum are each rounded, as on the host: no fused multiply-add. */
__global__ void __launch_bounds__(TN__LOOP_BLOCK)
    arange_kernel(tn__walk walk, tn_dtype dtype, double start, double step) {
    int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < walk.count; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t at[1];
        tn__walk_to(walk, i, at);
        tn__put(walk.data[0], dtype, at[0], __dadd_rn(start, __dmul_rn((double)i, step)));
    }
}

tn_status tn__cuda_arange(tn_context *ctx, const tn_desc *y, double start, double step) {
    if (y->dtype == TN_BOOL) { return TN_EUNSUPPORTED; }
    tn__walk walk = tn__cuda_walk(1, &y);
    return walk.count == 0 ? TN_OK
                           : TN_LAUNCH(ctx, arange_kernel, tn__loop_grid(ctx, walk.count),
                                       TN__LOOP_BLOCK, 0, walk, y->dtype, start, step);
}
