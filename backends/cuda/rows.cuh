/* Rows as kernels read and write them: 16 bytes at a time if a row is dense and aligned, element
 * by element otherwise.
 *
 *     tn__line     one row: address and stride
 *     tn__held     a row in a team's registers, or one that is read again for each pass (ITEMS 0)
 *
 * A kernel has few variants, since each is compiled for every dtype and architecture: only rows of
 * whole packs are held (tn__whole_rows), and one variant that holds none handles all the others.
 *
 * Which thread sums which elements depends on the row's length alone, never on its address: a row
 * gives the same bits wherever it is in memory.
 */
#ifndef TERN_BACKENDS_CUDA_ROWS_CUH
#define TERN_BACKENDS_CUDA_ROWS_CUH

#include "backends/cuda/block.cuh"
#include "backends/cuda/convert.cuh"

/* ---- Packs of a row -------------------------------------------------------------------------- */

/* One row; `packed`: dense and aligned for packs. */
template <typename T> struct tn__line {
    T *data;
    int64_t stride;
    bool packed;
};

template <typename T>
static __device__ __forceinline__ tn__line<T> tn__line_of(T *data, int64_t stride) {
    return {data, stride, stride == 1 && (uintptr_t)data % 16 == 0};
}

/* Elements at … at + V - 1 of n; `fill` beyond the end. WHOLE: the row is whole packs. */
template <bool WHOLE, typename T, typename C>
static __device__ __forceinline__ void tn__pack_load(C *out, tn__line<T> line, int64_t at,
                                                     int64_t n, C fill) {
    const int V = tn__per_load<T>;
    if (WHOLE || (line.packed && at + V <= n)) {
        tn__pack<T> pack = *reinterpret_cast<const tn__pack<T> *>(line.data + at);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            out[k] = tn__load(pack.at[k]);
        }
    } else {
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            out[k] = at + k < n ? tn__load(line.data[(at + k) * line.stride]) : fill;
        }
    }
}

template <bool WHOLE, typename T, typename C>
static __device__ __forceinline__ void tn__pack_store(tn__line<T> line, int64_t at, int64_t n,
                                                      const C *value) {
    const int V = tn__per_load<T>;
    if (WHOLE || (line.packed && at + V <= n)) {
        tn__pack<T> pack;
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            pack.at[k] = tn__store<T>(value[k]);
        }
        *reinterpret_cast<tn__pack<T> *>(line.data + at) = pack;
    } else {
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            if (at + k < n) { line.data[(at + k) * line.stride] = tn__store<T>(value[k]); }
        }
    }
}

/* The dtype of statistics of rows. */
static inline tn_dtype tn__wide(tn_dtype dtype) {
    return dtype == TN_F64 ? TN_F64 : TN_F32;
}

/* ---- A team on a row ------------------------------------------------------------------------- */

/* f(at, p) for each of this thread's packs: p counts them if the row is held. */
template <typename T, int TEAM, int ITEMS, typename F>
static __device__ __forceinline__ void tn__each_pack(int64_t n, F f) {
    const int V = tn__per_load<T>;
    int64_t first = tn__team_lane<TEAM>() * V;
    if (ITEMS > 0) {
        TN_UNROLL
        for (int p = 0; p < ITEMS / V; p++) {
            int64_t at = first + p * TEAM * V;
            if (at < n) { f(at, p); }
        }
    } else {
        TN_NO_UNROLL
        for (int64_t at = first; at < n; at += TEAM * V) {
            f(at, 0);
        }
    }
}

/* ITEMS elements of a row of whole packs in each thread's registers. With ITEMS 0, for any row,
 * only the current pack, which `pack` reads. */
template <typename T, int TEAM, int ITEMS> struct tn__held {
    typedef typename tn__compute<typename std::remove_const<T>::type>::type C;
    C value[ITEMS > 0 ? ITEMS : tn__per_load<T>];

    __device__ __forceinline__ void open(tn__line<T> line, int64_t n, C fill) {
        if (ITEMS > 0) {
            tn__each_pack<T, TEAM, ITEMS>(n, [&](int64_t at, int p) {
                tn__pack_load<true>(value + p * tn__per_load<T>, line, at, n, fill);
            });
        }
    }

    __device__ __forceinline__ C *pack(tn__line<T> line, int64_t at, int p, int64_t n, C fill) {
        if (ITEMS == 0) { tn__pack_load<false>(value, line, at, n, fill); }
        return value + p * (ITEMS > 0 ? tn__per_load<T> : 0);
    }
};

/* y[i] = f(i, x[i]) for a row; y may be x. Packs are used if x and y have the same alignment;
 * otherwise neighbouring threads take neighbouring elements. */
template <int TEAM, typename T, typename F>
static __device__ __forceinline__ void tn__row_map(tn__line<T> y, tn__line<T> x, int64_t n, F f) {
    const int V = tn__per_load<T>;
    uintptr_t from = (uintptr_t)x.data, to = (uintptr_t)y.data;
    int64_t head = n, packs = 0;
    if (x.stride == 1 && y.stride == 1 && (from - to) % 16 == 0) {
        int64_t before = (int64_t)((16 - from % 16) % 16 / sizeof(T));
        head = before < n ? before : n;
        packs = (n - head) / V;
    }
    TN_NO_UNROLL
    for (int64_t i = tn__team_lane<TEAM>(); i < n - packs * V; i += TEAM) {
        int64_t at = i < head ? i : i + packs * V;
        y.data[at * y.stride] = tn__store<T>(f(at, tn__load(x.data[at * x.stride])));
    }
    TN_NO_UNROLL
    for (int64_t i = tn__team_lane<TEAM>(); i < packs; i += TEAM) {
        int64_t at = head + i * V;
        tn__pack<T> pack = *reinterpret_cast<const tn__pack<T> *>(x.data + at);
        TN_UNROLL
        for (int k = 0; k < V; k++) {
            pack.at[k] = tn__store<T>(f(at + k, tn__load(pack.at[k])));
        }
        *reinterpret_cast<tn__pack<T> *>(y.data + at) = pack;
    }
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* An operand as a kernel's argument; one that is not there has no data. What a descriptor has after
 * its ndim is left out: the emulator takes each address in the arguments for an operand. */
static inline tn_desc tn__given(const tn_desc *d) {
    tn_desc given = {};
    if (!d) { return given; }
    given.data = d->data;
    given.dtype = d->dtype;
    given.ndim = d->ndim;
    for (int i = 0; i < d->ndim; i++) {
        given.size[i] = d->size[i];
        given.stride[i] = d->stride[i];
    }
    return given;
}

/* A row of an operand (rows, n). */
template <typename T>
static __device__ __forceinline__ tn__line<T> tn__line_at(const tn_desc &d, int64_t row) {
    return tn__line_of(static_cast<T *>(d.data) + row * d.stride[0], d.stride[1]);
}

/* An element of a vector. */
template <typename T> static __device__ __forceinline__ T &tn__at(const tn_desc &d, int64_t i) {
    return static_cast<T *>(d.data)[i * d.stride[0]];
}

/* ---- Launches -------------------------------------------------------------------------------- */

/* Whether every row of d is whole packs: dense, and both ends at multiples of 16 bytes. True for
 * NULL. */
static inline bool tn__whole_rows(const tn_desc *d) {
    if (!d) { return true; }
    int last = d->ndim - 1;
    int64_t bytes = (int64_t)tn__cuda_element(d->dtype);
    bool whole = last >= 0 && d->stride[last] == 1 && d->size[last] * bytes % 16 == 0 &&
                 (uintptr_t)d->data % 16 == 0;
    for (int i = 0; i < last; i++) {
        whole = whole && (d->size[i] == 1 || d->stride[i] * bytes % 16 == 0);
    }
    return whole;
}

/* How rows of a length are processed: by a warp or a block, held in registers or read again. Runs
 * the statement with the constants TEAM and ITEMS. f64 is never held: its main use is gradient
 * checks. */
enum { TN_WARP_BLOCK = 128 };
#define TN_BY_LENGTH(T, n, whole, ...)                                \
    do {                                                              \
        bool held = (whole) && sizeof(T) < 8;                         \
        if (held && (n) <= 1024) {                                    \
            constexpr int TEAM = 32, ITEMS = sizeof(T) < 8 ? 32 : 0;  \
            __VA_ARGS__;                                              \
        } else if (held && (n) <= 4096) {                             \
            constexpr int TEAM = 256, ITEMS = sizeof(T) < 8 ? 16 : 0; \
            __VA_ARGS__;                                              \
        } else if ((n) <= 1024) {                                     \
            constexpr int TEAM = 32, ITEMS = 0;                       \
            __VA_ARGS__;                                              \
        } else {                                                      \
            constexpr int TEAM = 256, ITEMS = 0;                      \
            __VA_ARGS__;                                              \
        }                                                             \
    } while (0)

/* Threads of a block, and blocks for this many rows, with a team for each. */
template <int TEAM> static __host__ __device__ constexpr unsigned tn__team_block() {
    return TEAM == 32 ? TN_WARP_BLOCK : TEAM;
}
template <int TEAM> static inline unsigned tn__team_grid(int64_t rows) {
    return (unsigned)tn__ceil_div(rows, tn__team_block<TEAM>() / TEAM);
}

#endif
