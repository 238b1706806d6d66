/* Operations: what one is made of. For those who write their own;
 * ops/ is written with nothing else.
 *
 * An operation is a descriptor: a shape rule that makes the outputs, a forward that fills them (by
 * the kernel table, by loops of its own or by other operations), a backward made of operations (and
 * one by a kernel or by loops, where that is faster), and sample inputs on which the suite checks
 * all of that. The engine does the rest: it
 * chooses between rule and kernel, describes operands and makes gradients. A function calls an
 * operation through tn_apply. docs/add_an_op.md builds one from nothing.
 */
#ifndef TERN_SYS_OP_H
#define TERN_SYS_OP_H

#include "../autograd.h"
#include "backend.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_op tn_op;
typedef struct tn_op_samples tn_op_samples;

#define TN_OP_INPUTS 8  /* inputs that get a descriptor; a variadic operation may have more */
#define TN_OP_OUTPUTS 8 /* results and extra outputs together */

/* What one call of an operation, or of its gradient, has to do at least: for the profiler. */
typedef struct tn_op_work {
    const void *args;
    const bool *wants;               /* NULL: the operation. Else the gradients of these inputs */
    const tn_dims *x[TN_OP_INPUTS];  /* NULL: absent, not made, or no gradient arrived */
    const tn_dims *y[TN_OP_OUTPUTS]; /* of the gradients that arrived, the same */
    double x_bytes[TN_OP_INPUTS];    /* of `bytes`, what is assumed of the inputs */
    /* As assumed when it is asked: each operand read or written once, and one operation for each
     * element of the largest. */
    double bytes, flops;
} tn_op_work;

/* One call on its way through shape rule and forward. */
typedef struct tn_op_call {
    const tn_op *op;
    const void *args; /* op->args_size bytes */
    int inputs;
    tn_tensor *const *in; /* NULL where an optional input is absent */
    int outputs;          /* made by the shape rule */
    tn_tensor *out[TN_OP_OUTPUTS];
    bool record; /* a gradient may be asked for: make the extra outputs too */
    const tn_backend *kernels;
    tn_context *ctx;
    tn_desc x[TN_OP_INPUTS];  /* descriptors of the inputs … */
    tn_desc y[TN_OP_OUTPUTS]; /* … and outputs: filled before forward is called */
} tn_op_call;

/* Descriptor of input i or output i; NULL where it is absent, or was not made. For forwards. */
static inline const tn_desc *tn_op_x(const tn_op_call *c, int i) {
    return i < c->inputs && i < TN_OP_INPUTS && c->in[i] ? &c->x[i] : NULL;
}
static inline const tn_desc *tn_op_y(const tn_op_call *c, int i) {
    return i < c->outputs ? &c->y[i] : NULL;
}

/* One node on its way through the rule of its gradient. */
typedef struct tn_op_grad {
    const tn_op *op;
    const void *args;
    int inputs, outputs;
    /* NULL where no gradient arrived; dout[0] of an operation with one result never is */
    tn_tensor *dout[TN_OP_OUTPUTS];
    const bool *wants; /* [inputs] */
    bool widened;      /* op->wide is at work: what was bf16 or f16 is read as f32 */
    tn_node *node;
    tn_tensor **din; /* [inputs]: filled by tn_op_give */
} tn_op_grad;

/* One node on its way through its kernel: what that reads and writes. NULL: absent, not saved, not
 * arrived, not wanted. */
typedef struct tn_op_back {
    const void *args;
    const tn_backend *kernels;
    tn_context *ctx;
    const tn_desc *x[TN_OP_INPUTS];   /* inputs, and … */
    const tn_desc *y[TN_OP_OUTPUTS];  /* … outputs that were saved */
    const tn_desc *dy[TN_OP_OUTPUTS]; /* gradients that arrived; for a kernel dy[0] always */
    const tn_desc *dx[TN_OP_INPUTS];  /* gradients to be made: every element is written … */
    bool adds;                        /* … or, where op->adds has the input's bit, added to */
} tn_op_back;

/* For saves and saves_for: what a rule reads. */
#define TN_SAVES_INPUT(i) (1u << (i))
#define TN_SAVES_OUTPUT(i) (1u << (16 + (i)))
#define TN_SAVES_INPUTS 0xffffu /* all of them */

/* In x_rows and y_rows: kernels see the operand as rows, with all dimensions but its last `kept`
 * made one. TN_ROWS(1): (…, c) as (n, c); TN_ROWS(0): (…) as (n). Copied to scratch memory where
 * strides do not allow it. */
#define TN_ROWS(kept) ((kept) + 1)

/* One of an operation's arguments, for what writes it down elsewhere (io/onnx.c):
 *
 *     .fields = {TN_FIELD(scan_args, dim)},
 */
#define TN_OP_FIELDS 12
typedef enum tn_field_kind {
    TN_FIELD_INT,   /* and enums */
    TN_FIELD_INT64, /* one or several */
    TN_FIELD_DOUBLE,
    TN_FIELD_BOOL,
    TN_FIELD_DIMS
} tn_field_kind;
typedef struct tn_op_field {
    const char *name; /* NULL: there is none */
    tn_field_kind kind;
    size_t offset, bytes;
} tn_op_field;
struct tn_op {
    const char *name;
    size_t args_size;
    tn_op_field fields[TN_OP_FIELDS]; /* what args are, as far as somebody needs it */
    int results;                      /* outputs that the caller gets: 1 unless set */
    /* What errors call them: {"logits", "labels"}; those that are named are all that there are.
     * Without names there may be any number. */
    const char *inputs[TN_OP_INPUTS];
    uint32_t optional;                /* bit i: input i may be absent (NULL) */
    uint32_t saves;                   /* what a gradient reads, always … */
    uint32_t saves_for[TN_OP_INPUTS]; /* … and what it reads for the gradient of input i */

    /* Checks the inputs and makes out[0 … outputs-1] with tn_op_out or tn_op_view; outputs beyond
     * `results` are for backward only. Returns false after tn_op_fail. */
    bool (*shape)(tn_op_call *c);

    /* ---- The result ---- */

    /* Fills the outputs. NULL for views, and where compose does it. TN_EINDEX etc. are turned into
     * errors by the caller. */
    tn_status (*forward)(tn_op_call *c);
    size_t needs; /* TN_KERNEL(softmax): the fused entry without which it does not run; 0: none */

    /* Loops of the operation's own over memory of the host, for an operation that no table has.
     * Runs where there is no forward, the table lacks `needs`, or forward says TN_EUNSUPPORTED.
     * x[i] and y[i] lie on the CPU, whatever the device: elsewhere the engine copies them there and
     * back, and runs a composition instead where there is one. bf16 and f16 come as f32 and are
     * rounded once behind it; integers and bool come as they are. kernels and ctx are the CPU's. It
     * writes all of y, with the same bits for any number of threads and whatever TERN_CPU names
     * (ops/host.h has loops that do). With TN_EINDEX it sets ctx->bad_position and bad_value, and y
     * may be anything. At most TN_OP_INPUTS inputs. */
    tn_status (*host)(const tn_op_call *c);

    /* The same result made of other operations: what runs without a forward and a host, and what is
     * differentiated when there is no rule. It returns result 0; others go to c->out[1 …]. */
    tn_tensor *(*compose)(tn_op_call *c);

    /* ---- The gradient: backward or compose, and perhaps one that only computes; or none ---- */

    /* The rule: gives each wanted input its gradient, made of operations, so that it can be
     * differentiated again. Gradients may have the broadcast shape: the engine sums. */
    void (*backward)(tn_op_grad *g);

    /* The same by a kernel, which fills dx. Runs instead of the rule whenever the gradient is not
     * to be differentiated itself and the device's table has `backward_needs` (0: nothing fused).
     * With TN_EUNSUPPORTED, and nothing added, it leaves the work to the rule; without a rule
     * compose is differentiated, and then every input has to be saved. A kernel alone is an error
     * where it does not run. */
    tn_status (*backward_kernel)(const tn_op_back *b);
    size_t backward_needs;

    /* The same by loops over memory of the host, under host's conditions: x, y and dy lie on the
     * CPU, bf16 and f16 come as f32, dx is new memory there (`adds` and `room` are not for it), and
     * on another device a rule or a composition goes before it. Of several results any dy may be
     * NULL, dy[0] too. It may stand alone; then the gradient cannot be differentiated again. */
    tn_status (*host_backward)(const tn_op_back *b);

    /* bf16 and f16 reach rule and composition as f32, and what they give is rounded once: as in
     * kernels, which compute in f32. */
    bool wide;

    /* ---- What kernels are handed ---- */

    uint8_t x_rows[TN_OP_INPUTS];  /* of x[i] and dx[i]: 0 (as it is) or TN_ROWS(kept) … */
    uint8_t y_rows[TN_OP_OUTPUTS]; /* … and of y[i] and dy[i] */

    /* Bit i: dx[i] is made even when nobody wants it; the kernel writes f32 for bf16 and f16 whose
     * tn_op_gradient_dtype is wider; the kernel can add to what is there already (then all with
     * this bit that are wanted are added to, or none). */
    uint32_t always, widens, adds;
    bool dy_as_dx; /* dy[0] comes in the dtype of dx */

    /* Where dx[i] goes, instead of new memory in row-major order: a tensor of input i's shape and
     * dtype. NULL: new memory after all. `made` holds the gradients before it. */
    tn_tensor *(*room)(tn_op_grad *g, int i, tn_tensor *const *made);

    /* ---- The rest ---- */

    /* Releases what args own: when the node dies, or at once when nothing was recorded. */
    void (*args_finish)(void *args);

    void (*samples)(tn_op_samples *s);

    /* Says in w what it has to do where that is not what is assumed; NULL: it is. */
    void (*work)(tn_op_work *w);

    /* The result stands for input 1 in a narrower dtype (a parameter's copy for computing).
     * Gradients that reach it are cast to input 1's dtype before they are summed, and its backward
     * runs as soon as the last is in. It reads no element: the inputs' storages may be empty. */
    bool lends;
};
/* An entry of the kernel table, for needs and backward_needs. */
#define TN_KERNEL(entry) offsetof(tn_backend, entry)

/* How many results a caller gets, and whether it has a gradient. */
static inline int tn_op_results(const tn_op *op) {
    return op->results ? op->results : 1;
}
static inline bool tn_op_differentiable(const tn_op *op) {
    return op->backward || op->backward_kernel || op->host_backward || op->compose;
}

/* ---- Calling --------------------------------------------------------------------------------- */

/* Runs op on in[0 … n-1] and records it when a gradient may be asked for. Inert in,
 * inert out. args is copied. TN_EVALUE names what is missing of a descriptor (its name, its shape
 * rule, what fills its result), args where it has args_size, inputs that it names and does not get,
 * and those that are too many. */
TN_API tn_tensor *tn_apply(const tn_op *op, const void *args, tn_tensor *const *in, int n);
TN_API void tn_apply_many(const tn_op *op, const void *args, tn_tensor *const *in, int n,
                          tn_tensor **results);

/* tn_apply for one, two and three inputs. */
static inline tn_tensor *tn_apply1(const tn_op *op, const void *args, tn_tensor *x) {
    return tn_apply(op, args, &x, 1);
}
static inline tn_tensor *tn_apply2(const tn_op *op, const void *args, tn_tensor *a, tn_tensor *b) {
    tn_tensor *in[2] = {a, b};
    return tn_apply(op, args, in, 2);
}
static inline tn_tensor *tn_apply3(const tn_op *op, const void *args, tn_tensor *a, tn_tensor *b,
                                   tn_tensor *c) {
    tn_tensor *in[3] = {a, b, c};
    return tn_apply(op, args, in, 3);
}

/* ---- In shape rules -------------------------------------------------------------------------- */

/* Makes the next output: new, as input i, as the broadcast of inputs i and j, or a view of input 0.
 * On the device of the first input that is there (the default device without any), or on another.
 * False when that failed. */
TN_API bool tn_op_out(tn_op_call *c, tn_dims dims, tn_dtype dtype);
TN_API bool tn_op_out_on(tn_op_call *c, tn_device device, tn_dims dims, tn_dtype dtype);
TN_API bool tn_op_out_like(tn_op_call *c, int i);
TN_API bool tn_op_out_broadcast(tn_op_call *c, int i, int j, tn_dtype dtype);
TN_API bool tn_op_view(tn_op_call *c, tn_dims dims, const int64_t *stride, int64_t offset);

/* Raises "name: text" and returns false. */
TN_API bool tn_op_fail(const tn_op_call *c, tn_status status, const char *format, ...)
    TN_PRINTF(3, 4);

/* What errors call input i: "labels"; "input 1" when the descriptor does not say. */
typedef struct tn_input_name {
    char text[32];
} tn_input_name;
TN_API tn_input_name tn_op_input_name(const tn_op *op, int i);

/* False after raising: inputs (those present) must share a dtype; must be floating point; must be
 * i64 or i32. */
TN_API bool tn_op_same_dtype(const tn_op_call *c);
TN_API bool tn_op_float(const tn_op_call *c, int i);
TN_API bool tn_op_index(const tn_op_call *c, int i);

/* ---- In forwards ----------------------------------------------------------------------------- */

/* t as the kernels see it; x repeated (stride 0) to y's sizes. */
TN_API tn_desc tn_desc_of(const tn_tensor *t);
TN_API tn_desc tn_desc_expand(const tn_desc *x, const tn_desc *y);
TN_API tn_desc tn_desc_swap(const tn_desc *x, int a, int b); /* dimensions a and b exchanged */

/* ---- In backwards ---------------------------------------------------------------------------- */

/* The tensor that was saved; raises TN_ESTATE and returns inert when it was changed since. */
TN_API tn_tensor *tn_op_saved_input(tn_op_grad *g, int i);
TN_API tn_tensor *tn_op_saved_output(tn_op_grad *g, int i);
TN_API tn_dims tn_op_input_dims(const tn_op_grad *g, int i); /* whether it was saved or not */
TN_API tn_dtype tn_op_input_dtype(const tn_op_grad *g, int i);
TN_API tn_device tn_op_input_device(const tn_op_grad *g, int i);

/* The input's dtype, or a wider one in which its gradients are summed (a parameter's, behind a copy
 * that was lent): a rule may give either, and f32 for bf16 and f16. */
TN_API tn_dtype tn_op_gradient_dtype(const tn_op_grad *g, int i);

/* Gives input i its gradient, in the input's shape or one that broadcasting made of it. What is
 * given several times is summed; one that is not wanted, or inert, is passed over. */
TN_API void tn_op_give(tn_op_grad *g, int i, tn_tensor *gradient);

/* The gradient gathered so far for input i (in tn_op_gradient_dtype), when this run alone owns it
 * and it may be added to in place; else NULL. Then the rule adds into it and gives nothing. */
TN_API tn_tensor *tn_op_pending(tn_op_grad *g, int i);

/* ---- Samples --------------------------------------------------------------------------------- */

/* What an input of a sample has. */
typedef enum tn_spec_kind {
    TN_SPEC_REAL,
    TN_SPEC_DISTINCT,
    TN_SPEC_INDEX,
    TN_SPEC_BOOL,
    TN_SPEC_BYTE,
    TN_SPEC_VALUES,
    TN_SPEC_ABSENT
} tn_spec_kind;

/* How to make one input. */
typedef struct tn_spec {
    tn_spec_kind kind;
    tn_dims dims;
    /* REAL: uniform; DISTINCT: no two closer than (high - low) / (2 count); INDEX:
     * integers in [low, high); BYTE: the same as i8 */
    double low, high;
    const double *values; /* VALUES: tn_dims_count(dims) of them */
} tn_spec;

typedef struct tn_sample {
    /* the arguments as Python keywords, for the comparison with PyTorch:
     * "dim=1, keepdim=True"; "" for none */
    const char *text;
    const void *args;
    int inputs;
    tn_spec in[TN_OP_INPUTS];
    bool no_second; /* the second derivative is not defined here (kinks) */
} tn_sample;

/* Who gets the samples: the suite. */
struct tn_op_samples {
    void (*add)(tn_op_samples *s, const tn_sample *sample);
    void *user;
};

/* An input of each kind; index: below n. values must live as long as the samples are read. */
static inline tn_spec tn_spec_real(tn_dims dims, double low, double high) {
    tn_spec spec = {TN_SPEC_REAL, dims, low, high, NULL};
    return spec;
}
static inline tn_spec tn_spec_distinct(tn_dims dims, double low, double high) {
    tn_spec spec = {TN_SPEC_DISTINCT, dims, low, high, NULL};
    return spec;
}
static inline tn_spec tn_spec_index(tn_dims dims, int64_t n) {
    tn_spec spec = {TN_SPEC_INDEX, dims, 0.0, (double)n, NULL};
    return spec;
}
static inline tn_spec tn_spec_bool(tn_dims dims) {
    tn_spec spec = {TN_SPEC_BOOL, dims, 0.0, 2.0, NULL};
    return spec;
}
static inline tn_spec tn_spec_byte(tn_dims dims) { /* -127 … 127 */
    tn_spec spec = {TN_SPEC_BYTE, dims, -127.0, 128.0, NULL};
    return spec;
}
static inline tn_spec tn_spec_values(tn_dims dims, const double *values) {
    tn_spec spec = {TN_SPEC_VALUES, dims, 0.0, 0.0, values};
    return spec;
}
TN_API void tn_sample_add(tn_op_samples *s, const tn_sample *sample);

/* Samples that most operations want: vectors, matrices, a 0-d, an empty and a size-1 tensor, values
 * in [low, high]. */
TN_API void tn_sample_unary(tn_op_samples *s, double low, double high);
/* The same for two inputs, with the pairs of shapes that broadcast in different ways. */
TN_API void tn_sample_binary(tn_op_samples *s, double low, double high, double low2, double high2);

/* ---- The registry ---------------------------------------------------------------------------- */

/* The library's operations in ops/list.h's order; the count. */
TN_API int tn_op_count(void);
TN_API const tn_op *tn_op_at(int i);
TN_API const tn_op *tn_op_named(const char *name); /* NULL when there is none */

/* Runs the suite on one operation: gradient check in f64 on every sample and layout (transposed,
 * sliced, broadcast), every float dtype against f64, recorded and dropped without a leak; operands
 * in every order that their dimensions can have in memory; gradients of some of the inputs, the
 * others not wanted. TN_OK, or the error that names sample and layout. With TERN_OP_CHECK=brief in
 * the environment, for slow devices: each sample in one layout, and its gradient in one direction.
 * On another device than the CPU samples take turns at the orders. */
TN_API tn_status tn_op_check(const tn_op *op);

#ifdef __cplusplus
}
template <typename T> constexpr tn_field_kind tn__field_kind_cxx(const T *) {
    static_assert(__is_enum(T), "TN_FIELD: a member is a number, a bool, tn_dims, or an enum");
    return TN_FIELD_INT;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const int *) {
    return TN_FIELD_INT;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const unsigned *) {
    return TN_FIELD_INT;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const int64_t *) {
    return TN_FIELD_INT64;
}
template <size_t n> constexpr tn_field_kind tn__field_kind_cxx(const int64_t (*)[n]) {
    return TN_FIELD_INT64;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const double *) {
    return TN_FIELD_DOUBLE;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const bool *) {
    return TN_FIELD_BOOL;
}
template <> constexpr tn_field_kind tn__field_kind_cxx(const tn_dims *) {
    return TN_FIELD_DIMS;
}
#define TN_FIELD(type, member)                                                                   \
    {                                                                                            \
#member, tn__field_kind_cxx((decltype(((type *)0)->member) *)0), offsetof(type, member), \
            sizeof(((type *)0)->member)                                                          \
    }
#else
#define TN_FIELD(type, member)                                                          \
    {                                                                                   \
#member,                                                                              \
     _Generic(((type *)0)->member, int: TN_FIELD_INT, unsigned: TN_FIELD_INT,              \
              int64_t: TN_FIELD_INT64, int64_t *: TN_FIELD_INT64, double: TN_FIELD_DOUBLE, \
              bool: TN_FIELD_BOOL, tn_dims: TN_FIELD_DIMS),                                \
     offsetof(type, member), sizeof(((type *)0)->member) \
    }
#endif
#endif
