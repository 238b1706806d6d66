/* Attention through cuDNN: which calls it takes, a device's plans, and how they run.
 *
 * Plans are cached by shape and strides (dnn.h). Calls that cuDNN does not take go to our own
 * kernels.
 *
 * Choice of a plan: the heuristic's first, so that each run of a program gives the same bits; in a
 * context that need not be deterministic, or with TERN_AUTOTUNE=1, the fastest of a few (as in
 * gemm.c). A context that need not be deterministic also gets the faster backward, which adds up dq
 * in order of arrival; the deterministic one needs scratch memory that grows with Tq Tk.
 */
#include "backends/cuda/attention.h"
#include "backends/cuda/choices.h"
#include "backends/cuda/dnn.h"
#include "backends/cuda/sdpa_graph.h"
#include "backends/cuda/tune.h"

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

static void *data_of(const tn_desc *d) {
    return d ? d->data : NULL;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static tn_status run_plan(tn_context *ctx, tn__dnn *state, const tn__sdpa_plan *plan,
                          const tn__attention *a, void *workspace) {
    tn__sdpa_data data = {
        .q = a->q->data,
        .k = a->k->data,
        .v = a->v->data,
        .y = a->y->data,
        .lse = a->lse->data,
        .dy = data_of(a->dy),
        .dq = data_of(a->dq),
        .dk = data_of(a->dk),
        .dv = data_of(a->dv),
        .scale = (float)a->scale,
    };
    size_t zeroed = tn__sdpa_zeroed(plan);
    if (zeroed > 0) {
        tn_status status =
            tn__cuda_check(cudaMemsetAsync(workspace, 0, zeroed, tn__cuda_stream(ctx)),
                           "attention's scratch memory");
        if (status != TN_OK) {
            return status;
        }
    }
    const tn__cudnn_table *dnn = tn__cudnn();
    cudnnStatus_t status = tn__sdpa_run(dnn, state->handle, plan, &data, workspace);
    return tn__dnn_status(ctx, status, "cuDNN's attention");
}

static tn_status run_once(tn_context *ctx, tn__dnn *state, const tn__sdpa_plan *plan,
                          const tn__attention *a) {
    size_t bytes = tn__sdpa_workspace(plan);
    void *workspace = tn__cuda_scratch(ctx, bytes);
    if (!workspace) {
        return TN_ENOMEM;
    }
    tn_status status = run_plan(ctx, state, plan, a, workspace);
    tn__cuda_scratch_free(ctx, workspace, bytes);
    return status;
}

typedef struct trial {
    tn__dnn *state;
    tn__sdpa_plan *const *plan;
    const tn__attention *attention;
} trial;

/* Writes the outputs, which the call itself overwrites. */
static bool try_plan(tn_context *ctx, int i, void *user) {
    const trial *t = user;
    return run_once(ctx, t->state, t->plan[i], t->attention) == TN_OK;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static void free_plan(const tn__cudnn_table *dnn, void *plan) {
    tn__sdpa_plan_free(dnn, plan);
}

/* The best of the shape's plans; NULL: cuDNN has none. */
static tn__sdpa_plan *best_plan(tn_context *ctx, tn__dnn *state, const tn__sdpa_shape *shape,
                                const tn__attention *a) {
    char why[TN__DNN_WHY];
    tn__sdpa_plan *plan[TN__SDPA_CHOICES];
    tn__dnn_target target = {.handle = state->handle, .major = tn__cuda_device_of(ctx)->major};
    int count = tn__sdpa_plans(tn__cudnn(), target, shape,
                               tn__cuda_tunes(ctx) ? TN__SDPA_CHOICES : 1, plan, why);
    trial t = {state, plan, a};
    int best = count > 1 ? tn__cuda_fastest(ctx, count, try_plan, &t) : 0;
    for (int i = 0; i < count; i++) {
        if (i != best) {
            tn__sdpa_plan_free(tn__cudnn(), plan[i]);
        }
    }
    if (count == 0) {
        static bool said;
        tn__cuda_say_once(&said,
                          "cuDNN refuses attention of %lld queries, %lld keys, %lld wide%s, which "
                          "runs on a slower kernel: %s",
                          (long long)shape->queries, (long long)shape->keys,
                          (long long)shape->width, shape->backward ? ", backward" : "", why);
        return NULL;
    }
    return plan[best];
}

/* ---- Entries --------------------------------------------------------------------------------- */

static tn_status sdpa_attend(tn_context *ctx, tn__dnn *state, const tn__attention *a) {
    if (!state->handle || !sdpa_fits(a) || !tn__cuda_chosen()->cudnn_attention) {
        return TN_EUNSUPPORTED;
    }
    tn__sdpa_shape shape = shape_of(ctx, a);
    tn__dnn_kept *k = tn__dnn_find(state, &shape, sizeof(shape));
    if (!k) {
        k = tn__dnn_keep(ctx, state, &shape, sizeof(shape), free_plan);
        if (!k) {
            return TN_ENOMEM;
        }
        k->plan = best_plan(ctx, state, &shape, a);
    }
    return k->plan ? run_once(ctx, state, k->plan, a) : TN_EUNSUPPORTED;
}

tn_status tn__cuda_sdpa(tn_context *ctx, const tn__attention *a) {
    tn__dnn *state = tn__dnn_open(ctx);
    if (!state) {
        return TN_ENOMEM;
    }
    tn_status status = sdpa_attend(ctx, state, a);
    tn__dnn_close(state);
    return status;
}

#else

tn_status tn__cuda_sdpa(tn_context *ctx, const tn__attention *a) {
    (void)ctx, (void)a;
    return TN_EUNSUPPORTED;
}

#endif
