/* The kernel table: what a device must be able to do, and the contract of each entry.
 *
 * ref (backends/ref/) fills every entry in scalar C and is the specification: other backends
 * compute the same up to rounding. cpu copies ref's table and overrides entries; other devices have
 * their own table.
 *
 * Contract of every entry
 *   - Operands are plain descriptors. Sizes already agree (the operation has checked); strides are
 *     arbitrary but never negative, and stride 0 (broadcasting) occurs only in inputs. An output
 *     does not overlap an input, except where an entry says that it may be the same memory. Any
 *     size may be 0. Inputs are never written.
 *   - Every element of every output is written; its old value is not read.
 *   - bf16 and f16 are computed in f32 and rounded once. f64 is computed in f64.
 *   - The same bits for any number of threads.
 *   - A dtype an entry does not handle: TN_EUNSUPPORTED and nothing written. An index out of range:
 *     TN_EINDEX, with ctx->bad_position and ctx->bad_value set; outputs are then unspecified.
 *     The only other failure is TN_ENOMEM.
 *   - Entries raise no errors; the operation does, from the status.
 *   - Data is on the context's device: the host does not read it (sys/device.h). There a bad index
 *     is noticed late: the entry returns TN_OK, nothing out of range is touched, and the next call
 *     that waits for the device returns TN_EINDEX (at once with TERN_SYNC=1).
 *
 * Every backend fills all entries, which many operations use. For a single operation a backend can
 * have a faster kernel (tn_op_kernel, `fused`); without one the operation's loops over host memory,
 * or its composition, run instead.
 */
#ifndef TERN_SYS_BACKEND_H
#define TERN_SYS_BACKEND_H

#include "../tensor.h"
#include "steps.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_desc {
    void *data; /* the first element */
    tn_dtype dtype;
    int ndim;
    int64_t size[TN_MAX_DIMS];
    int64_t stride[TN_MAX_DIMS]; /* in elements */
} tn_desc;

/* The context of a kernel: one per thread and device. Device kernels are queued: an entry returns
 * when its work is in the stream, and the next entry sees its results. */
typedef struct tn_context tn_context;
struct tn_context {
    tn_device device;
    void *stream;       /* a cudaStream_t; NULL on the CPU */
    bool deterministic; /* these three: as tensor.h says, on devices other than the CPU */
    bool matmul_tf32;
    bool conv_tf32;
    int64_t bad_position; /* with TN_EINDEX: which index (row-major) was bad, and its value */
    int64_t bad_value;
    /* Scratch memory on the device, only for kernels: the host neither reads nor writes it. NULL if
     * there is none left. It may be freed as soon as the kernels that use it are queued. */
    void *(*workspace)(tn_context *ctx, size_t bytes);
    void (*workspace_free)(tn_context *ctx, void *memory, size_t bytes);
    void *own; /* for the backend */
};

/* ---- Operations ------------------------------------------------------------------------------ *
 * What a kernel of an operation (sys/op.h) gets. */

typedef struct tn_op tn_op;
typedef struct tn_backend tn_backend;

#define TN_OP_INPUTS 8  /* inputs that get a descriptor; a variadic operation may have more */
#define TN_OP_OUTPUTS 8 /* results and extra outputs together */

/* One call, for shape rule and forward. */
typedef struct tn_op_call {
    const tn_op *op;
    const void *args; /* op->args_size bytes */
    int inputs;
    tn_tensor *const *in; /* NULL where an optional input is absent */
    int outputs;          /* made by the shape rule */
    tn_tensor *out[TN_OP_OUTPUTS];
    bool record; /* a gradient may be needed: make the extra outputs too */
    const tn_backend *kernels;
    tn_context *ctx;
    const tn_desc *x[TN_OP_INPUTS];  /* for forwards: the inputs, NULL if absent, … */
    const tn_desc *y[TN_OP_OUTPUTS]; /* … and outputs, NULL if not made */
} tn_op_call;

/* What a gradient kernel reads and writes. NULL: absent, not saved, not arrived, not wanted. */
typedef struct tn_op_back {
    const void *args;
    const tn_backend *kernels;
    tn_context *ctx;
    const tn_desc *x[TN_OP_INPUTS];   /* inputs, and … */
    const tn_desc *y[TN_OP_OUTPUTS];  /* … outputs that were saved */
    const tn_desc *dy[TN_OP_OUTPUTS]; /* gradients that arrived; a kernel always has dy[0] */
    const tn_desc *dx[TN_OP_INPUTS];  /* gradients to compute: every element is written … */
    /* … or, bit i, added to dx[i], which has the gradient from other uses of the input: those in
     * op->adds that are wanted, or none. */
    uint32_t adds;
} tn_op_back;

/* The kernels of one operation. Either may be NULL. The contract above applies; the operation's
 * file says what x, y and args are. */
typedef struct tn_op_kernel {
    tn_status (*forward)(const tn_op_call *c);
    tn_status (*backward)(const tn_op_back *b);
} tn_op_kernel;

/* One-argument formulas; k0 and k1 are the entry's constants.
 * The formulas are in backends/formulas.h. */
typedef enum tn_unary {
    TN_NEG,
    TN_ABS,
    TN_SIGN,
    TN_EXP,
    TN_LOG,
    TN_SQRT,
    TN_RSQRT,
    TN_SQUARE,
    TN_RECIPROCAL,
    TN_SIN,
    TN_COS,
    TN_TANH,
    TN_SIGMOID,
    TN_RELU,
    TN_GELU_TANH,
    TN_GELU_ERF,
    TN_ERF,
    TN_SILU,
    TN_ADD_K,   /* x + k0 */
    TN_MUL_K,   /* x * k0 */
    TN_SUB_K,   /* x - k0 */
    TN_DIV_K,   /* x / k0 */
    TN_RSUB_K,  /* k0 - x */
    TN_RDIV_K,  /* k0 / x */
    TN_POW_K,   /* x ^ k0 */
    TN_CLAMP_K, /* min(max(x, k0), k1); NaN stays */
    TN_EXPM1,
    TN_LOG1P,
    TN_FLOOR,
    TN_CEIL,
    TN_ROUND, /* halves to even */
    TN_TAN,
    TN_ASIN,
    TN_ACOS,
    TN_ATAN,
    TN_SINH,
    TN_COSH,
    TN_MISH,
    TN_HARDSWISH,
    TN_LEAKY_RELU_K,       /* x > 0 ? x : k0 x */
    TN_ELU_K,              /* k1 (x > 0 ? x : k0 (exp(x) - 1)) */
    TN_SOFTPLUS_K,         /* log(1 + exp(k0 x)) / k0; x where k0 x > k1 */
    TN_LEAKY_RELU_SLOPE_K, /* the slopes of these three at x … */
    TN_ELU_SLOPE_K,
    TN_SOFTPLUS_SLOPE_K,
    TN_HARDTANH_SLOPE_K, /* … and of CLAMP_K: 1 where k0 < x < k1, else 0 */
    TN_UNARY_COUNT
} tn_unary;

/* Two-argument formulas. The gradient formulas take what their comment says. */
typedef enum tn_binary {
    TN_ADD,
    TN_SUB,
    TN_MUL,
    TN_DIV,
    TN_POW,
    TN_MAXIMUM,        /* NaN wins */
    TN_MINIMUM,        /* NaN wins */
    TN_TANH_GRAD,      /* (y, dy): dy (1 - y y) */
    TN_SIGMOID_GRAD,   /* (y, dy): dy y (1 - y) */
    TN_RELU_GRAD,      /* (x, dy): dy where x > 0, else 0 */
    TN_GELU_TANH_GRAD, /* (x, dy) */
    TN_GELU_ERF_GRAD,  /* (x, dy) */
    TN_SILU_GRAD,      /* (x, dy) */
    TN_ATAN2,          /* the angle of (b, a) */
    TN_MISH_GRAD,      /* (x, dy) */
    TN_HARDSWISH_GRAD, /* (x, dy) */
    TN_FMOD,           /* remainder of a / b truncated: a's sign */
    TN_REMAINDER,      /* remainder of a / b rounded down: b's sign, like Python's % */
    TN_SILU_MUL,       /* a sigmoid(a) b */
    TN_BINARY_COUNT
} tn_binary;

/* Comparisons; results are bool. */
typedef enum tn_compare { TN_EQ, TN_NE, TN_LT, TN_LE, TN_GT, TN_GE, TN_COMPARE_COUNT } tn_compare;

typedef enum tn_random_kind {
    TN_UNIFORM,  /* a + (b - a) u, u in [0, 1); never rounded up to b */
    TN_NORMAL,   /* a + b z */
    TN_INTEGER,  /* integers in [a, b) */
    TN_BERNOULLI /* 1 with probability a, else 0 */
} tn_random_kind;

/* Identifies one draw: element i of the output (row-major) is a function of (seed, stream, call,
 * first + i). first, a multiple of 4, is where in the draw the output begins: 0, or more for a part
 * of a tensor, which so has the same bits as in the whole. */
typedef struct tn_random_key {
    uint64_t seed, stream, call, first;
} tn_random_key;

/* A layer of a recurrent net in one direction: T times of B rows of H units. w (G H, H) and b (G H,
 * or NULL) are the recurrent weights of G gates, one after another. With p the gates' shares of the
 * input, a = p + w h + b, h and c the state before, h' and c' after:
 *
 *     TANH, RELU  G 1   h' = f(a)                                              kept: h'
 *     GRU         G 3   r = s(a0), z = s(a1), m = w2 h + b2, n = tanh(p2 + r m),
 *                       h' = (1 - z) n + z h                                   kept: r z n m
 *     LSTM        G 4   i = s(a0), f = s(a1), g = tanh(a2), o = s(a3),
 *                       c' = f c + i g, h' = o tanh(c')                        kept: i f g o
 *
 * `gates` (T, B, K H) gets the K that are kept. lengths (B) i64 or i32, or NULL: row b is active at
 * times t < lengths[b]; otherwise its state does not change. `reverse`: from time T - 1 to 0.
 * h_before and c_before (T, B, H; c_before only for LSTM, else NULL): the state before each time,
 * in the order of times. All operands are row-major; all but lengths are of one dtype, f32 or
 * f64. */
typedef enum tn_cell { TN_CELL_TANH, TN_CELL_RELU, TN_CELL_GRU, TN_CELL_LSTM } tn_cell;
typedef struct tn_recurrent {
    tn_cell cell;
    bool reverse;
    const tn_desc *lengths, *w, *b;
    const tn_desc *gates, *h_before, *c_before;
} tn_recurrent;

/* How a convolution's kernel slides over dimensions 2, 3 and 4 of (N, C, D, H, W): output position
 * p and offset i read x at p stride - padding + i dilation, 0 outside. */
typedef struct tn_conv_args {
    int64_t stride[3], padding[3], dilation[3];
    int64_t groups; /* channels are split into this many parts, each convolved separately */
} tn_conv_args;

/* Of this table. TN_DEVICE_VERSION, by which plugins are checked, changes with it. */
#define TN_BACKEND_VERSION 7

struct tn_backend {
    size_t size;      /* sizeof(tn_backend) of the build that filled it */
    uint32_t version; /* TN_BACKEND_VERSION */
    const char *name;

    /* The device's own kernels of operations, by tn_op.kernel; NULL entries: none. */
    const tn_op_kernel *const *fused;

    /* y = value, every dtype. */
    tn_status (*fill)(tn_context *ctx, const tn_desc *y, double value);
    /* y = start + i step, i in row-major order. Every dtype but bool. */
    tn_status (*arange)(tn_context *ctx, const tn_desc *y, double start, double step);
    /* y = x converted to y's dtype; any pair of dtypes. Float to integer truncates; to bool is x !=
     * 0. Same sizes. */
    tn_status (*copy)(tn_context *ctx, const tn_desc *y, const tn_desc *x);
    /* y = f(x); y may be x's memory with x's strides. Floats; integers too for NEG ABS SIGN SQUARE
     * RELU and the K forms ADD MUL RSUB CLAMP. */
    tn_status (*unary)(tn_context *ctx, tn_unary f, const tn_desc *y, const tn_desc *x, double k0,
                       double k1);
    /* y = f(a, b), all of y's size (inputs broadcast by stride 0) and one dtype; y may be a's or
     * b's memory with its strides. Floats; integers too for ADD SUB MUL DIV (towards zero, x / 0 =
     * 0) MAXIMUM MINIMUM FMOD REMAINDER (a where b is 0). */
    tn_status (*binary)(tn_context *ctx, tn_binary f, const tn_desc *y, const tn_desc *a,
                        const tn_desc *b);
    /* y (bool) = a ? b. Every dtype. */
    tn_status (*compare)(tn_context *ctx, tn_compare f, const tn_desc *y, const tn_desc *a,
                         const tn_desc *b);
    /* y = c ? a : b; c is bool. Every dtype. */
    tn_status (*where)(tn_context *ctx, const tn_desc *y, const tn_desc *c, const tn_desc *a,
                       const tn_desc *b);
    /* f: all of tn_reduction but PRODUCT and NONE. y has x's ndim; where y's size is 1 and x's is
     * not, x is reduced (x's size may be 0: SUM 0, MEAN NaN, MAX and MIN are not called). Floats;
     * integers too for SUM MAX MIN, with y i64 for SUM and x's dtype for MAX and MIN; ANY and ALL:
     * bool to bool. SUM_SQUARES of f32, bf16 and f16 also into f64. NaN wins in MAX and MIN. Sums
     * keep an error of about log(n) roundings (lanes, bands, or better), not n. */
    tn_status (*reduce)(tn_context *ctx, tn_reduction f, const tn_desc *y, const tn_desc *x);
    /* y (i64, size 1 at dim) = position of the first maximum; a NaN counts as the maximum. Floats
     * and integers. */
    tn_status (*argmax)(tn_context *ctx, const tn_desc *y, const tn_desc *x, int dim);
    /* y = alpha a b + beta y (beta 0: y is not read). 3 dimensions: a (n, m, k), b (n, k, p), y (n,
     * m, p); stride 0 along n in a or b broadcasts. f32 f64 bf16 f16. y may be f32 where a and b
     * are bf16 or f16; or TN_EUNSUPPORTED. */
    tn_status (*matmul)(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                        double alpha, double beta);
    /* y[i, ...] = x[index[i], ...]. index: 1 dimension, i64 or i32. Every dtype. TN_EINDEX. */
    tn_status (*gather_rows)(tn_context *ctx, const tn_desc *y, const tn_desc *x,
                             const tn_desc *index);
    /* y[index[i], ...] += src[i, ...], in the order of i (so the sum is reproducible). Reads y.
     * Floats. TN_EINDEX. */
    tn_status (*scatter_add_rows)(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                                  const tn_desc *src);
    /* y[.., j, ..] = x[.., index[.., j, ..], ..] at dim; y and index have the same size. Every
     * dtype. TN_EINDEX. */
    tn_status (*gather)(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *index,
                        int dim);
    /* y[.., index[.., j, ..], ..] += src[.., j, ..] in row-major order. Reads y. Floats.
     * TN_EINDEX. */
    tn_status (*scatter_add)(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                             const tn_desc *src, int dim);
    /* Element i (row-major) from tn_philox(key, i / 4).word[i % 4] for 24-bit uniforms (f32 and
     * smaller); f64 and integers use two words: tn_philox(key, i / 2), words 2(i % 2)
     * and 2(i % 2) + 1. Normals: Box-Muller on pairs. See backends/random.h.
     * Floats; INTEGER: integers. */
    tn_status (*random)(tn_context *ctx, const tn_desc *y, tn_random_kind kind, tn_random_key key,
                        double a, double b);
    /* y = keep(i) ? x / (1 - p) : 0, keep(i) with probability 1 - p from key; y may be x's memory.
     * Its own backward (dy -> dx). Floats. */
    tn_status (*dropout)(tn_context *ctx, const tn_desc *y, const tn_desc *x, double p,
                         tn_random_key key);
    /* One step over all spans, in place, in one pass. Parameters f32 f64 bf16 f16; state f32 (for
     * f64 parameters f64, with the pointer cast). */
    tn_status (*step)(tn_context *ctx, const tn_optim_span *spans, int count, const tn_step *step);
    /* sums[i], f64 and where the spans are, = the sum of squares of span i: reduce's for each, in
     * as few launches as possible. Floats. */
    tn_status (*sum_squares)(tn_context *ctx, const tn_span *spans, int count, double *sums);
    /* clip[0] = the square root of sums[0] + … + sums[count - 1], added in this order; clip[1] =
     * min(1, most / (clip[0] + 1e-6)), or 1 if clip[0] is not finite. All are f64 and on the
     * device. */
    tn_status (*clip)(tn_context *ctx, const double *sums, int count, double most, double *clip);

    /* y (N, O, …) from x (N, C, …), w (O, C / groups, …) and b (O) or NULL, where … are always
     * three dimensions: y[n, o, p] = b[o] + sum over c and i of x[n, c, p stride - padding + i
     * dilation] w[o, c, i]. The sizes of y, which may be any, give the range of p. f32 f64 bf16
     * f16, all of one dtype. */
    tn_status (*conv)(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                      const tn_desc *b, const tn_conv_args *args);
    /* dx[n, c, q] = b[c] + sum over o, i and the p of dy where p stride - padding + i dilation = q,
     * of dy[n, o, p] w[o, c, i]: the gradient of conv's x, and the transposed convolution, which
     * has the bias b (C) or NULL. */
    tn_status (*conv_backward_input)(tn_context *ctx, const tn_desc *dx, const tn_desc *dy,
                                     const tn_desc *w, const tn_desc *b, const tn_conv_args *args);
    /* dw (like w) = sum over n and p of dy[n, o, p] x[n, c, …], and db (O) = the sums of dy's
     * channels; one of them may be NULL (not wanted), and x if dw is. Both may be f32 where dy and
     * x are bf16 or f16. */
    tn_status (*conv_backward_weight)(tn_context *ctx, const tn_desc *dw, const tn_desc *db,
                                      const tn_desc *dy, const tn_desc *x,
                                      const tn_conv_args *args);

    /* y (n, out) = x (n, in) w^T + b; w (out, in); b (out) or NULL. f32 f64 bf16 f16. */
    tn_status (*linear)(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                        const tn_desc *b);
    /* y (T, B, H): h' of each time, 0 where the row is not active; hn and cn (B, H): the final
     * state. On entry the first G H of each row of r->gates are the input's shares p; they are
     * overwritten with what is kept (anything where the row is not active), h_before and c_before
     * with the states. h0 and c0 (B, H) may be NULL: zeros. c0 and cn are NULL except for LSTM. */
    tn_status (*recurrent)(tn_context *ctx, const tn_recurrent *r, const tn_desc *y,
                           const tn_desc *hn, const tn_desc *cn, const tn_desc *h0,
                           const tn_desc *c0);
    /* dp (T, B, G H) and da (T, B, G H): the gradients of the input's shares p and of w h + b, 0
     * where the row is not active. They differ only for GRU; else da is NULL. dh0 and dc0 (B, H)
     * may be NULL (not wanted), and so may dy, dhn and dcn (zeros). */
    tn_status (*recurrent_backward)(tn_context *ctx, const tn_recurrent *r, const tn_desc *dp,
                                    const tn_desc *da, const tn_desc *dh0, const tn_desc *dc0,
                                    const tn_desc *dy, const tn_desc *dhn, const tn_desc *dcn);
};

/* The table for a device; NULL if there is none. The CPU's is the best that this machine can run,
 * up to the level in TERN_CPU: plain (ref); v2, v3, v4, amx on x86-64, neon on aarch64. TN_EVALUE,
 * in the thread that asks first, if TERN_CPU is not one of this machine's levels. */
TN_API const tn_backend *tn_backend_of(tn_device device);

/* Tables by name, for tests and benchmarks: "ref", "cpu" (the best that this machine can run and
 * TERN_CPU permits), "cpu-v2", "cpu-v3", "cpu-v4", "cpu-amx", "cpu-neon" (NULL if it cannot or may
 * not), "cpu-amx-twin" (amx's products in plain C), "cuda". */
TN_API const tn_backend *tn_backend_named(const char *name);

/* Sets this process's CPU kernels (NULL: the best again, after rereading TERN_CPU). For tests. */
TN_API void tn_backend_use(const tn_backend *table);

/* This thread's context for kernels on `device`. */
TN_API tn_context *tn_context_of(tn_device device);

#ifdef __cplusplus
}
#endif
#endif
