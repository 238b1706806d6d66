/* Matrix products that cuBLASLt does not take: any strides, any alignment, k = 0.
 *
 * A block computes a TILE x TILE part of y, a thread 4 x 4 of its elements. Both operands pass
 * through shared memory in steps of DEPTH along k, converted on the way to the type of the sums.
 * One thread adds up each sum in the order of k, so its bits are always the same.
 */
#include "backends/cuda/gemm.h"
#include "backends/cuda/kernel.h"

namespace {

const int TILE = 64, DEPTH = 16, SIDE = 16, EACH = TILE / SIDE; /* SIDE x SIDE threads */

struct matrices {
    const void *data;
    int64_t batch, row, column; /* strides */
};

struct product {
    matrices y, a, b;
    const void *bias; /* or NULL */
    int64_t bias_step;
    int64_t rows, columns, depth; /* of one product */
    int64_t tiles_down, tiles_across;
    double alpha, beta;
};

/* Element (i, j) of one matrix in the type of the sums; 0 outside. */
template <typename T, typename C>
__device__ C matrix_element(const matrices &x, int64_t n, int64_t i, int64_t j, int64_t rows,
                            int64_t columns) {
    if (i >= rows || j >= columns) { return C(0); }
    return tn__load(static_cast<const T *>(x.data)[n * x.batch + i * x.row + j * x.column]);
}

/* A TILE x DEPTH part of a, and DEPTH x TILE of b, each stored with k as the outer index. */
template <typename T, typename C>
__device__ void load_tiles(const product &p, int64_t n, int64_t top, int64_t left, int64_t k, C *a,
                           C *b) {
    for (int at = (int)threadIdx.x; at < TILE * DEPTH; at += SIDE * SIDE) {
        /* Neighbouring threads read neighbours in memory, however the operand is stored. */
        int across = at % DEPTH, down = at / DEPTH;
        int i = p.a.column <= p.a.row ? down : at % TILE,
            t = p.a.column <= p.a.row ? across : at / TILE;
        a[t * TILE + i] = matrix_element<T, C>(p.a, n, top + i, k + t, p.rows, p.depth);
        int j = p.b.row < p.b.column ? down : at % TILE;
        t = p.b.row < p.b.column ? across : at / TILE;
        b[t * TILE + j] = matrix_element<T, C>(p.b, n, k + t, left + j, p.depth, p.columns);
    }
}

template <typename Y, typename C>
__device__ void store_element(const product &p, int64_t n, int64_t i, int64_t j, C sum) {
    if (i >= p.rows || j >= p.columns) { return; }
    Y *y = static_cast<Y *>(const_cast<void *>(p.y.data)) + n * p.y.batch + i * p.y.row +
           j * p.y.column;
    C value = C(p.alpha) * sum;
    if (p.beta != 0) { value += C(p.beta) * tn__load(*y); }
    if (p.bias) { value += tn__load(static_cast<const Y *>(p.bias)[j * p.bias_step]); }
    *y = tn__store<Y>(value);
}

template <typename T, typename Y>
__global__ void __launch_bounds__(SIDE *SIDE) matmul_kernel(product p) {
    typedef typename tn__compute<T>::type C;
    TN_SHARED(C, a, TILE * DEPTH);
    TN_SHARED(C, b, TILE * DEPTH);
    int64_t tile = blockIdx.x, tiles = p.tiles_down * p.tiles_across;
    int64_t n = tile / tiles;
    int64_t top = tile % tiles / p.tiles_across * TILE, left = tile % p.tiles_across * TILE;
    int row = (int)threadIdx.x / SIDE, column = (int)threadIdx.x % SIDE;
    C sum[EACH][EACH] = {};
    for (int64_t k = 0; k < p.depth; k += DEPTH) {
        load_tiles<T, C>(p, n, top, left, k, a, b);
        __syncthreads();
        for (int t = 0; t < DEPTH; t++) {
            for (int i = 0; i < EACH; i++) {
                for (int j = 0; j < EACH; j++) {
                    sum[i][j] += a[t * TILE + row + i * SIDE] * b[t * TILE + column + j * SIDE];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; i++) {
        for (int j = 0; j < EACH; j++) {
            store_element<Y, C>(p, n, top + row + i * SIDE, left + column + j * SIDE, sum[i][j]);
        }
    }
}

matrices matrices_of(const tn_desc *x) {
    return {x->data, x->stride[0], x->stride[1], x->stride[2]};
}

template <typename T, typename Y>
tn_status launch(tn_context *ctx, unsigned blocks, const product &p) {
    return TN_LAUNCH(ctx, (matmul_kernel<T, Y>), blocks, SIDE * SIDE, 0, p);
}

} // namespace

tn_status tn__cuda_product(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                           const tn_desc *bias, double alpha, double beta) {
    product p = {};
    p.y = matrices_of(y);
    p.a = matrices_of(a);
    p.b = matrices_of(b);
    p.bias = bias ? bias->data : nullptr;
    p.bias_step = bias ? bias->stride[0] : 0;
    p.rows = y->size[1];
    p.columns = y->size[2];
    p.depth = a->size[2];
    p.tiles_down = tn__ceil_div(p.rows, TILE);
    p.tiles_across = tn__ceil_div(p.columns, TILE);
    p.alpha = alpha;
    p.beta = beta;
    int64_t blocks = y->size[0] * p.tiles_down * p.tiles_across;
    if (blocks == 0) { return TN_OK; }
    if (blocks > INT32_MAX) {
        tn__cuda_note("matmul: the result has too many elements for one launch");
        return TN_EUNSUPPORTED;
    }
    if (y->dtype != a->dtype) { /* bf16 or f16 summed in f32 */
        return a->dtype == TN_BF16 ? launch<tn__bf16, float>(ctx, (unsigned)blocks, p)
                                   : launch<tn__half, float>(ctx, (unsigned)blocks, p);
    }
    TN_FLOATS(y->dtype, return launch<T, T>(ctx, (unsigned)blocks, p));
    return TN_OK;
}
