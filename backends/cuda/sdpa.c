/* The kernels of attention: cuDNN's flash attention if it takes the call, our own (attention.cu)
 * otherwise, and for a few queries.
 *
 * Plans are kept by shape and strides (dnn.h). A plan takes tenths of a second to make, and prompts
 * have any length: under a causal mask they are padded to one of a few lengths, in forward and
 * backward alike, so that a call recomputed gives the same bits.
 *
 * A context that need not be deterministic gets the faster backward, which adds up dq in order of
 * arrival; the deterministic one needs scratch memory that grows with Tq Tk.
 */
#include "backends/cuda/attention.h"
#include "backends/cuda/choices.h"
#include "backends/cuda/dnn.h"
#include "backends/cuda/sdpa_graph.h"
#include "backends/desc.h"

#if TN_HAVE_CUDNN

/* ---- The call -------------------------------------------------------------------------------- */

/* Rows of at least 16 bytes at multiples of 16 bytes: what the tensor cores' kernels load. */
static bool rows_loadable(const tn_desc *d) {
    bool fits = (uintptr_t)d->data % 16 == 0 && d->stride[3] == 1;
    for (int i = 0; i < 3; i++) {
        fits = fits && (d->size[i] == 1 || (d->stride[i] > 0 && d->stride[i] % 8 == 0));
    }
    return fits;
}

/* Dense, and aligned as the graph says. */
static bool dense_rows(const tn_desc *lse) {
    int64_t heads = lse->size[1], rows = lse->size[2];
    return (uintptr_t)lse->data % 16 == 0 && (lse->stride[2] == 1 || rows == 1) &&
           (lse->stride[1] == rows || heads == 1) &&
           (lse->stride[0] == heads * rows || lse->size[0] == 1);
}

/* Whether cuDNN takes this call, except for the limits of its version (sdpa_graph.c). cuDNN aligns
 * a causal mask with the first key, the kernel table with the last. */
static bool sdpa_fits(const tn__attention *a) {
    const tn_desc *operand[] = {a->q, a->k, a->v, a->y, a->dy, a->dq, a->dk, a->dv};
    int64_t queries = a->q->size[2], keys = a->k->size[2], width = a->q->size[3];
    bool narrow = a->q->dtype == TN_BF16 || a->q->dtype == TN_F16;
    bool some = a->q->size[0] > 0 && a->q->size[1] > 0 && queries > 0 && keys > 0;
    bool wide_enough = width > 0 && width % 8 == 0 && width <= 256;
    bool aligned = !a->causal || queries == keys || queries == 1;
    bool good = narrow && some && wide_enough && aligned && !a->mask && dense_rows(a->lse);
    for (int i = 0; i < 8; i++) {
        good = good && (!operand[i] || rows_loadable(operand[i]));
    }
    return good;
}

/* Strides; those of dimensions of size 1 as if dense, since they have no meaning. */
static void strides_of(int64_t *stride, const tn_desc *d) {
    int64_t dense = 1;
    for (int i = 3; i >= 0 && d; i--) {
        stride[i] = d->size[i] == 1 ? dense : d->stride[i];
        dense *= d->size[i];
    }
}

static tn__sdpa_shape shape_of(const tn_context *ctx, const tn__attention *a) {
    tn__sdpa_shape s = {
        .batch = a->q->size[0],
        .heads = a->q->size[1],
        .groups = a->k->size[1],
        .queries = a->q->size[2],
        .keys = a->k->size[2],
        .width = a->q->size[3],
        .f16 = a->q->dtype == TN_F16,
        /* One query sees every key. */
        .causal = a->causal && a->q->size[2] > 1,
        .backward = a->dq != NULL,
        .deterministic = ctx->deterministic,
    };
    strides_of(s.q, a->q);
    strides_of(s.k, a->k);
    strides_of(s.v, a->v);
    strides_of(s.y, a->y);
    strides_of(s.dy, a->dy);
    strides_of(s.dq, a->dq);
    strides_of(s.dk, a->dk);
    strides_of(s.dv, a->dv);
    return s;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static tn_status run_plan(tn_context *ctx, tn__dnn *dnn, const tn__dnn_work *work,
                          const tn__dnn_plan *plan) {
    TN__SCRATCH(char, workspace, ctx, tn__sdpa_workspace(work->shape, plan));
    if (!workspace) { return TN_ENOMEM; }
    size_t zeroed = tn__sdpa_zeroed(work->shape);
    if (zeroed > 0) {
        tn_status status =
            tn__cuda_check(cudaMemsetAsync(workspace, 0, zeroed, tn__cuda_stream(ctx)),
                           "attention's scratch memory");
        if (status != TN_OK) { return status; }
    }
    cudnnStatus_t status =
        tn__sdpa_run(tn__cudnn(), dnn->handle, work->shape, plan, work->data, workspace);
    return tn__dnn_status(ctx, status, "cuDNN's attention");
}

static void say_refused(const void *key, const char *why) {
    static bool said;
    const tn__sdpa_shape *shape = key;
    tn__cuda_say_once(&said,
                      "cuDNN refuses attention of %lld queries, %lld keys, %lld wide%s, which runs "
                      "on a slower kernel: %s",
                      (long long)shape->queries, (long long)shape->keys, (long long)shape->width,
                      shape->backward ? ", backward" : "", why);
}

static tn__dnn_work work_of(const tn__sdpa_shape *shape, const tn__attention *a) {
    return (tn__dnn_work){shape, a, sizeof(*shape), tn__sdpa_plans, run_plan, say_refused};
}

static tn_status run_exact(tn_context *ctx, tn__dnn *dnn, const tn__attention *a) {
    tn__sdpa_shape shape = shape_of(ctx, a);
    tn__dnn_work work = work_of(&shape, a);
    const tn__dnn_plan *plan;
    tn_status status = tn__dnn_find(ctx, dnn, &work, &plan);
    return status == TN_OK ? run_plan(ctx, dnn, &work, plan) : status;
}

/* ---- Lengths --------------------------------------------------------------------------------- */

enum { STEP = 64, STEPS = 4, OPERANDS = 9 };

/* The next length that has plans: a multiple of 64 up to 512, and then STEPS lengths from each
 * power of two to the next. */
static int64_t planned_length(int64_t length) {
    int64_t step = STEP;
    while (length > 2 * STEPS * step) {
        step *= 2;
    }
    return (length + step - 1) / step * step;
}

/* A call with more rows, whose operands are in one block of scratch memory; the first `inputs` of
 * them are read. */
typedef struct padded_call {
    tn__attention a;
    tn_desc d[OPERANDS];
    const tn_desc *from[OPERANDS];
    size_t place[OPERANDS]; /* in the block */
    int inputs, count;
    int64_t rows;
    size_t bytes, input_bytes;
} padded_call;

static void pad_operand(padded_call *p, const tn_desc **operand, bool is_read) {
    const tn_desc *from = *operand;
    tn_desc *d = &p->d[p->count];
    *d = *from;
    d->size[2] = p->rows;
    p->place[p->count] = p->bytes;
    p->bytes += ((size_t)tn__desc_densify(d) * tn__cuda_element(d->dtype) + 255) / 256 * 256;
    p->input_bytes = is_read ? p->bytes : p->input_bytes;
    p->inputs += is_read;
    p->from[p->count++] = from;
    *operand = d;
}

/* All but the block. */
static void pad_call(padded_call *p, const tn__attention *a) {
    *p = (padded_call){.a = *a, .rows = planned_length(a->q->size[2])};
    bool backward = a->dq != NULL;
    pad_operand(p, &p->a.q, true);
    pad_operand(p, &p->a.k, true);
    pad_operand(p, &p->a.v, true);
    if (backward) { pad_operand(p, &p->a.dy, true); }
    pad_operand(p, &p->a.y, backward);
    pad_operand(p, &p->a.lse, backward);
    if (backward) {
        pad_operand(p, &p->a.dq, false);
        pad_operand(p, &p->a.dk, false);
        pad_operand(p, &p->a.dv, false);
    }
}

/* The rows of the call itself, into the block or back. */
static tn_status copy_rows(tn_context *ctx, const padded_call *p, int first, int last) {
    tn_status status = TN_OK;
    for (int i = first; i < last && status == TN_OK; i++) {
        tn_desc inside = p->d[i];
        inside.size[2] = p->from[i]->size[2];
        status = i < p->inputs ? tn__cuda_copy(ctx, &inside, p->from[i])
                               : tn__cuda_copy(ctx, p->from[i], &inside);
    }
    return status;
}

/* Rows of zeros after the last make this one of the lengths that have plans: no query sees them
 * under a causal mask, and as queries they have no gradient. */
static tn_status run_padded(tn_context *ctx, tn__dnn *dnn, const tn__attention *a) {
    padded_call p;
    pad_call(&p, a);
    tn__sdpa_shape shape = shape_of(ctx, &p.a);
    tn__dnn_work work = work_of(&shape, &p.a);
    if (tn__dnn_refused(dnn, &work)) { return TN_EUNSUPPORTED; }
    TN__SCRATCH(char, block, ctx, p.bytes);
    if (!block) { return TN_EUNSUPPORTED; /* our own kernels need none */ }
    for (int i = 0; i < p.count; i++) {
        p.d[i].data = block + p.place[i];
    }
    const tn__dnn_plan *plan;
    tn_status status = tn__dnn_find(ctx, dnn, &work, &plan);
    if (status == TN_OK) {
        status = tn__cuda_check(cudaMemsetAsync(block, 0, p.input_bytes, tn__cuda_stream(ctx)),
                                "attention's padding");
    }
    status = status == TN_OK ? copy_rows(ctx, &p, 0, p.inputs) : status;
    status = status == TN_OK ? run_plan(ctx, dnn, &work, plan) : status;
    return status == TN_OK ? copy_rows(ctx, &p, p.inputs, p.count) : status;
}

static tn_status sdpa_attend(tn_context *ctx, tn__dnn *state, const tn__attention *a) {
    if (!state->handle || !sdpa_fits(a) || !tn__cuda_chosen()->cudnn_attention) {
        return TN_EUNSUPPORTED;
    }
    int64_t queries = a->q->size[2];
    bool pads = a->causal && queries == a->k->size[2] && queries != planned_length(queries) &&
                tn__cuda_chosen()->padded_lengths;
    return pads ? run_padded(ctx, state, a) : run_exact(ctx, state, a);
}

/* Forward and, if there is a dq, backward. TN_EUNSUPPORTED: cuDNN is missing or does not take this
 * call, and nothing was queued. */
static tn_status run_sdpa(tn_context *ctx, const tn__attention *a) {
    tn__dnn *state = tn__dnn_open(ctx);
    if (!state) { return TN_ENOMEM; }
    tn_status status = sdpa_attend(ctx, state, a);
    tn__dnn_close(state);
    return status;
}

#else

static tn_status run_sdpa(tn_context *ctx, const tn__attention *a) {
    return TN_EUNSUPPORTED;
}

#endif

/* ---- Entries --------------------------------------------------------------------------------- */

static tn_status attention_forward(const tn_op_call *c) {
    tn_desc seen;
    const tn__attention a = tn__attention_of(c->x, c->y, c->args, &seen);
    bool few = a.q->size[2] <= tn__cuda_chosen()->few_queries;
    tn_status status = few ? TN_EUNSUPPORTED : run_sdpa(c->ctx, &a);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_attention(c->ctx, &a) : status;
}

static tn_status attention_backward(const tn_op_back *b) {
    tn_desc seen;
    const tn__attention a = tn__attention_back_of(b, &seen);
    tn_status status = run_sdpa(b->ctx, &a);
    return status == TN_EUNSUPPORTED ? tn__cuda_own_attention_backward(b->ctx, &a) : status;
}

const tn_op_kernel tn__cuda_op_attention = {attention_forward, attention_backward};
