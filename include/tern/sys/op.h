/* For writing your own operation; ops/ uses nothing else.
 *
 * An operation is a descriptor: a shape rule that makes the outputs, a forward that fills them (by
 * the kernel table, by loops of its own or by other operations), a backward made of operations (and
 * one by a kernel or by loops, where that is faster), and sample inputs on which the suite checks
 * all of these. The engine does the rest: it chooses between rule and kernel, describes operands
 * and makes gradients. A function calls an operation through tn_apply. docs/add_an_op.md builds one
 * from scratch.
 */
#ifndef TERN_SYS_OP_H
#define TERN_SYS_OP_H

#include "../autograd.h"
#include "../field.h"
#include "backend.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_op_samples tn_op_samples;

/* The minimum work of one call of an operation, or of its gradient, for the profiler. */
typedef struct tn_op_work {
    const void *args;
    const bool *wants; /* NULL: for the operation; else for the gradients of these inputs */
    const tn_dims *x[TN_OP_INPUTS];  /* NULL: absent, not made, or no gradient */
    const tn_dims *y[TN_OP_OUTPUTS]; /* outputs, or for a gradient the dy that arrived */
    double x_bytes[TN_OP_INPUTS];    /* the inputs' share of `bytes` */
    /* Preset to the default: each operand read or written once, and one operation per element of
     * the largest. */
    double bytes, flops;
} tn_op_work;

/* The state of one node while its gradient rule runs. */
typedef struct tn_op_grad {
    const tn_op *op;
    const void *args;
    int inputs, outputs;
    /* NULL where no gradient arrived; never dout[0] of an operation with one result */
    tn_tensor *dout[TN_OP_OUTPUTS];
    const bool *wants; /* [inputs] */
    bool widened;      /* TN_OP_WIDE applies: bf16 and f16 are read as f32 */
    tn_node *node;
    struct tn__run *run; /* of the engine */
    tn_tensor **din;     /* [inputs]: filled by tn_op_give */
} tn_op_grad;

/* For saves and saves_for: what a gradient rule reads. */
#define TN_SAVES_INPUT(i) (1u << (i))
#define TN_SAVES_OUTPUT(i) (1u << (16 + (i)))
#define TN_SAVES_INPUTS 0xffffu /* all of them */

/* In x_rows and y_rows: kernels see the operand as rows, with all dimensions but its last `kept`
 * merged. TN_ROWS(1): (…, c) as (n, c); TN_ROWS(0): (…) as (n). Copied to scratch memory if strides
 * do not allow it. */
#define TN_ROWS(kept) ((kept) + 1)

/* For flags. */
enum {
    /* Rule and composition get bf16 and f16 as f32, and their results are rounded once, as in
     * kernels, which compute in f32. */
    TN_OP_WIDE = 1,
    /* The kernel makes every dx, wanted or not. */
    TN_OP_ALL_DX = 2,
    /* dy[0] comes in the dtype of dx. */
    TN_OP_DY_AS_DX = 4,
    /* The result is input 1 in a narrower dtype (a parameter's copy for computing). Its gradients
     * are cast to input 1's dtype before they are summed, and its backward runs as soon as the last
     * has arrived. It reads no elements: the inputs' storages may be empty. */
    TN_OP_LOW_PRECISION_COPY = 8
};

#define TN_OP_FIELDS 12 /* of tn_op.fields */
struct tn_op {
    const char *name;
    size_t args_size;
    tn_field fields[TN_OP_FIELDS]; /* of args, for samples and exporters */
    int results;                   /* outputs returned to the caller: 1 unless set */
    /* Their names in errors: {"logits", "labels"}; with names there are no other inputs, without
     * names any number. */
    const char *inputs[TN_OP_INPUTS];
    uint32_t optional;                /* bit i: input i may be absent (NULL) */
    uint32_t saves;                   /* what every gradient reads … */
    uint32_t saves_for[TN_OP_INPUTS]; /* … and what the gradient of input i reads too */

    /* The shape rule, as text: what each input and, after "->", each output is; linear has
     *
     *     .shapes = "... in, out in, out -> ... out"
     *
     * A word is a size, "..." any dimensions, and both are the same wherever they occur ("3*width"
     * is only a name). Operands are floating point and share a dtype, unless one comes first, as in
     * "any: rows width, index: ... -> ... width":
     *     any      of inputs: shared, but not only floating point
     *     float    of inputs: any floating point
     *     index    of inputs: i64 or i32
     *     i8 …     this one
     *     wide     of outputs: f64 for f64, else f32
     *
     * A text has less than 160 characters, at most 16 different words, each below 24. It is read
     * once and found by its address: it must stay as it is until the process ends. */
    const char *shapes;

    /* Or a function: checks the inputs and makes out[0 … outputs-1] with tn_op_shapes, tn_op_out or
     * tn_op_view. Returns false after tn_op_fail. Outputs beyond `results` are for backward only;
     * by text they are made if the call is recorded. */
    bool (*shape)(tn_op_call *c);

    /* ---- The result ---- */

    /* The index of its kernels in tn_backend.fused, for the library's operations that have device
     * kernels by ops/list.h; 0: none. */
    int kernel;

    /* Fills the outputs by the entries of c->kernels, or prepares and calls tn_op_run. NULL: the
     * device's own kernel, the host's loops or compose do it, or it is a view. The caller turns
     * TN_EINDEX etc. into errors. */
    tn_status (*forward)(const tn_op_call *c);

    /* The operation's own loops over host memory: its kernels for the device "ref", which define
     * what is correct. They run if there is no forward and the device has no kernel, or that
     * returns TN_EUNSUPPORTED. All operands are on the CPU: for another device the engine copies
     * them there and back, or runs the composition if there is one. bf16 and f16 are passed as f32
     * (from tn_op_run unchanged) and rounded once afterwards; integers and bool are unchanged.
     * kernels and ctx are the CPU's. They write all of y, or dx, which is new memory (`adds`
     * and `dx_out` do not apply), with the same bits for any number of threads and any
     * TERN_CPU (ops/host.h has loops that do). With TN_EINDEX they set ctx->bad_position and
     * bad_value, and y may be anything. At most TN_OP_INPUTS inputs. With several results any dy
     * may be NULL, even dy[0]. */
    tn_op_kernel host;

    /* The same result made of other operations: runs if there is no kernel, and is differentiated
     * if there is no rule. It returns result 0; others go to c->out[1 …]. */
    tn_tensor *(*compose)(tn_op_call *c);

    /* ---- The gradient: backward or compose, and perhaps a kernel; or none ---- */

    /* The rule: gives each wanted input its gradient, made of operations, so that it can be
     * differentiated again. Gradients may have the broadcast shape: the engine sums. A pipeline may
     * call it twice, with other inputs wanted (TN_PIPE_ZERO_BUBBLE). */
    void (*backward)(tn_op_grad *g);

    /* The same by entries of b->kernels, or by preparing and calling tn_op_run_back, which fills
     * dx. NULL: the device's own kernel or the host's loops do it. A kernel runs instead of the
     * rule unless the gradient will itself be differentiated. By returning TN_EUNSUPPORTED, with
     * nothing added, it leaves the work to the rule; without a rule compose is differentiated, and
     * then every input must be saved. A kernel without either is an error if it cannot run, and its
     * gradient cannot be differentiated again. */
    tn_status (*backward_kernel)(const tn_op_back *b);

    uint32_t flags; /* TN_OP_… */

    /* ---- What kernels get ---- */

    uint8_t x_rows[TN_OP_INPUTS];  /* for x[i] and dx[i]: 0 (unchanged) or TN_ROWS(kept) … */
    uint8_t y_rows[TN_OP_OUTPUTS]; /* … and for y[i] and dy[i] */

    /* Bit i: the kernel writes dx[i] in f32 for bf16 and f16 if tn_op_gradient_dtype is wider.
     */
    uint32_t widens;

    /* Bit i: the kernel can add to dx[i]. It adds to all of these that are wanted, or to none
     * (tn_op_back.adds). Without backward_kernel: a device's own can, but not the CPU's. */
    uint32_t adds;

    /* Returns where dx[i] goes, instead of new memory in row-major order: a tensor of input i's
     * shape and dtype, whose strides allow rows if x_rows asks for them. NULL: new memory. `made`
     * has the gradients before it. */
    tn_tensor *(*dx_out)(tn_op_grad *g, int i, tn_tensor *const *made);

    /* ---- The rest ---- */

    /* Releases what args own: when the node is freed, or at once if nothing was recorded. */
    void (*args_finish)(void *args);

    /* Inputs for the suite, as in its messages: shapes, then the arguments as Python keywords.
     *
     *     "[3, 4] [5, 4] [5]; [3, 4] [5, 4] -"        "-": absent
     *     "[2, 3] dim=0; [3] dim=-1, keepdim=True"    members of args, as `fields` names them
     *     "[4, 3] [2]<4; [3]=(1, nan, -inf)"          integers below 4; these values
     *     "{-1:1, bool} [3] [3]; [2] [2]"             what the inputs of all that follow hold
     *     "*; * * dim=0"      each of the usual shapes: a vector, empty, …; two inputs alike
     *     "** **"             each of the usual pairs of shapes that broadcast
     *
     * They hold uniform numbers from -3 to 3 at first; in braces, for each input (the last also for
     * others): "-1:1", "distinct -1:1" (no two alike), "whole 1:5" (indices from 1 to 4), "bool",
     * "byte". "{once …}": these have no second derivative there. A member of several numbers gets
     * those of a text as its last. */
    const char *samples;

    /* The arguments that a text does not name; NULL: 0. */
    const void *sample_args;

    /* Adds what a text cannot say: after those of the text. */
    void (*add_samples)(tn_op_samples *s);

    /* Sets in w the work where it differs from the default; NULL: it does not. */
    void (*work)(tn_op_work *w);
};

/* For forward and backward_kernel: runs the device's own kernel of `op`, or its host loops on the
 * CPU, on the operands in c or b. TN_EUNSUPPORTED: there is none, or not for these dtypes.
 * TN_EVALUE: op, c, b, their kernels or ctx are NULL. */
TN_API tn_status tn_op_run(const tn_op *op, const tn_op_call *c);
TN_API tn_status tn_op_run_back(const tn_op *op, const tn_op_back *b);

/* The number of results returned, and whether the operation has a gradient. */
static inline int tn_op_results(const tn_op *op) {
    return op->results ? op->results : 1;
}
static inline bool tn_op_differentiable(const tn_op *op) {
    return op->backward || op->backward_kernel || op->host.backward || op->compose;
}

/* ---- Calling --------------------------------------------------------------------------------- */

/* Runs op on in[0 … n-1] and records it if a gradient may be needed. Inert in, inert out. args is
 * copied. TN_EVALUE names what a descriptor lacks (its name, its shape rule, a way to fill its
 * result), missing args (if args_size is set), missing named inputs, and inputs too many. */
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

/* Follows a text like tn_op.shapes. Without "->" it only checks the inputs. */
TN_API bool tn_op_shapes(tn_op_call *c, const char *text);

/* Makes the next output: new, as input i, as the broadcast of inputs i and j, or a view of input 0.
 * On the device of the first input present (without any, the default device), or on another. False
 * on failure. */
TN_API bool tn_op_out(tn_op_call *c, tn_dims dims, tn_dtype dtype);
TN_API bool tn_op_out_on(tn_op_call *c, tn_device device, tn_dims dims, tn_dtype dtype);
TN_API bool tn_op_out_like(tn_op_call *c, int i);
TN_API bool tn_op_out_broadcast(tn_op_call *c, int i, int j, tn_dtype dtype);
TN_API bool tn_op_view(tn_op_call *c, tn_dims dims, const int64_t *stride, int64_t offset);

/* Raises "name: text" and returns false. */
TN_API bool tn_op_fail(const tn_op_call *c, tn_status status, const char *format, ...)
    TN_PRINTF(3, 4);

/* The name of input i in errors: "labels", or "input 1" if the descriptor has no names. */
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

/* t as kernels see it; x broadcast (stride 0) to y's sizes. */
TN_API tn_desc tn_desc_of(const tn_tensor *t);
TN_API tn_desc tn_desc_expand(const tn_desc *x, const tn_desc *y);
TN_API tn_desc tn_desc_swap(const tn_desc *x, int a, int b); /* swaps dimensions a and b */

/* ---- In backwards ---------------------------------------------------------------------------- */

/* The saved tensor; raises TN_ESTATE and returns inert if it has changed since. */
TN_API tn_tensor *tn_op_saved_input(tn_op_grad *g, int i);
TN_API tn_tensor *tn_op_saved_output(tn_op_grad *g, int i);
TN_API tn_dims tn_op_input_dims(const tn_op_grad *g, int i); /* even if it was not saved */
TN_API tn_dtype tn_op_input_dtype(const tn_op_grad *g, int i);
TN_API tn_device tn_op_input_device(const tn_op_grad *g, int i);

/* The input's dtype, or a wider one in which its gradients are summed (the parameter's, if the
 * input is its low-precision copy): a rule may give either, and f32 for bf16 and f16. */
TN_API tn_dtype tn_op_gradient_dtype(const tn_op_grad *g, int i);

/* Gives input i its gradient, in the input's shape or one it was broadcast to. Several are summed;
 * one that is not wanted, or inert, is ignored. */
TN_API void tn_op_give(tn_op_grad *g, int i, tn_tensor *gradient);

/* The gradient accumulated so far for input i (in tn_op_gradient_dtype), if only this run owns it,
 * so that the rule may add to it in place and give nothing; else NULL. */
TN_API tn_tensor *tn_op_pending(tn_op_grad *g, int i);

/* ---- Samples --------------------------------------------------------------------------------- */

/* The kind of a sample's input. */
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
    /* the arguments as Python keywords, to compare with PyTorch: "dim=1, keepdim=True"; "" for
     * none */
    const char *text;
    const void *args;
    int inputs;
    tn_spec in[TN_OP_INPUTS];
    bool no_second; /* the second derivative is not defined here (kinks) */
} tn_sample;

/* The receiver of samples: the suite. A sample is there during the call. */
struct tn_op_samples {
    void (*add)(tn_op_samples *s, const tn_sample *sample);
    void *user;
};

/* An input of each kind; index: below n. values must live while the samples are used. */
static inline tn_spec tn_spec_real(tn_dims dims, double low, double high) {
    tn_spec spec = {TN_SPEC_REAL, dims, low, high, NULL};
    return spec;
}
static inline tn_spec tn_spec_index(tn_dims dims, int64_t n) {
    tn_spec spec = {TN_SPEC_INDEX, dims, 0.0, (double)n, NULL};
    return spec;
}
static inline tn_spec tn_spec_values(tn_dims dims, const double *values) {
    tn_spec spec = {TN_SPEC_VALUES, dims, 0.0, 0.0, values};
    return spec;
}
TN_API void tn_sample_add(tn_op_samples *s, const tn_sample *sample);

/* ---- The registry ---------------------------------------------------------------------------- */

/* The library's operations in the order of ops/list.h. */
TN_API int tn_op_count(void);
TN_API const tn_op *tn_op_at(int i);
TN_API const tn_op *tn_op_named(const char *name); /* NULL if there is none */

/* Gives all samples of an operation to s. */
TN_API void tn_op_list_samples(const tn_op *op, tn_op_samples *s);

/* Runs the suite on one operation: gradient check in f64 on every sample and layout (transposed,
 * sliced, broadcast), every float dtype against f64, recording and dropping without a leak;
 * operands with every order of dimensions in memory; gradients of only some inputs. TN_OK, or an
 * error that names sample and layout. With TERN_OP_CHECK=brief in the environment, for slow
 * devices: each sample in one layout, and its gradient in one direction. On devices other than the
 * CPU samples take turns at the orders. */
TN_API tn_status tn_op_check(const tn_op *op);

#ifdef __cplusplus
}
#endif
#endif
