/* Matrix products through cuBLASLt: plans, the cache of plans, and the choice of an algorithm.
 *
 * A plan is cuBLASLt's description of one kind of product with the algorithm that was chosen for
 * it. It is made at the first call and found again by its key: everything about the product except
 * the addresses, of which only the alignment matters, and beta: cuBLASLt plans without it, and a
 * product that is added should sum in the order of the same product alone.
 *
 * Choice of an algorithm: cuBLASLt's heuristic ranks up to 8. The first is taken, so that each run
 * of a program gives the same bits: algorithms sum in different orders, and which one is
 * fastest, by nanoseconds, may change from run to run. They are timed only if the context need not
 * be deterministic, or with TERN_AUTOTUNE=1 (TERN_AUTOTUNE=0: never). k may be split over blocks if
 * partial sums go through the workspace in the compute type and are added in a fixed order.
 *
 * f32 is computed in TF32 only if the context allows it.
 */
#include "backends/cuda/gemm.h"
#include "backends/cuda/tune.h"

#include <cublasLt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 8192, /* of the table; a power of 2 */
    PLANS = 4096, /* when full, all are dropped: the program's shapes keep changing */
    CANDIDATES = 8,
    ALIGNMENT = 16
};
static const uint64_t WORKSPACE = (uint64_t)32 << 20; /* at most; as NVIDIA advises for Hopper */

/* All fields have 8 bytes: no padding, so keys are compared as bytes. */
typedef struct plan_key {
    int64_t m, n, k, batch;
    int64_t ld[3], step[3], alignment[3]; /* of a, b, d */
    int64_t aux_ld, aux_alignment;
    int64_t dtype, out, epilogue;
    int64_t transposed_a, transposed_b, biased, timed, tf32;
} plan_key;

typedef struct plan {
    plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
    bool usable; /* false: cuBLASLt has no algorithm; cached as well */
} plan;

/* One per device. A plan's addresses are set for each call, so calls are made one at a time. */
typedef struct gemm_state {
    pthread_mutex_t lock;
    cublasLtHandle_t handle;
    plan *slot[SLOTS];
    int plans;
} gemm_state;

static tn_status blas_failed(cublasStatus_t status, const char *what) {
    tn__cuda_note("%s: %s", what, cublasLtGetStatusString(status));
    return status == CUBLAS_STATUS_ALLOC_FAILED ? TN_ENOMEM : TN_EDEVICE;
}

/* The same for a product, with the runtime's message if the device had failed before it. */
static tn_status failed_in(const tn_context *ctx, cublasStatus_t status) {
    static const char *const what = "cublasLtMatmul";
    cudaError_t error = cudaStreamQuery(tn__cuda_stream(ctx));
    if (error != cudaSuccess && error != cudaErrorNotReady) { return tn__cuda_check(error, what); }
    (void)cudaGetLastError(); /* clears cudaErrorNotReady, which is not an error */
    return blas_failed(status, what);
}

/* Whether cuBLASLt does not support the product, rather than failed. Nothing was queued. */
static bool is_refusal(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* ---- State ----------------------------------------------------------------------------------- */

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static tn_status state_of(tn_context *ctx, gemm_state **state) {
    tn__cuda_device *device = tn__cuda_device_of(ctx);
    tn_status status = TN_OK;
    pthread_mutex_lock(&making);
    if (!device->gemm) {
        gemm_state *made = calloc(1, sizeof(*made));
        cublasStatus_t created = made ? cublasLtCreate(&made->handle) : CUBLAS_STATUS_ALLOC_FAILED;
        if (created != CUBLAS_STATUS_SUCCESS) {
            free(made);
            status = blas_failed(created, "cublasLtCreate");
        } else {
            pthread_mutex_init(&made->lock, NULL);
            device->gemm = made;
        }
    }
    *state = device->gemm;
    pthread_mutex_unlock(&making);
    return status;
}

static void plan_free(plan *p) {
    if (p) {
        cublasLtMatmulDescDestroy(p->product);
        cublasLtMatrixLayoutDestroy(p->a);
        cublasLtMatrixLayoutDestroy(p->b);
        cublasLtMatrixLayoutDestroy(p->d);
        free(p);
    }
}

/* The slot of this key: the plan's, or the free one where it belongs. */
static plan **slot_of(gemm_state *state, const plan_key *key) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a over words */
    const int64_t *words = (const int64_t *)key;
    for (size_t i = 0; i < sizeof(*key) / sizeof(*words); i++) {
        hash = (hash ^ (uint64_t)words[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    size_t at = hash % SLOTS;
    while (state->slot[at] && memcmp(&state->slot[at]->key, key, sizeof(*key)) != 0) {
        at = (at + 1) % SLOTS;
    }
    return &state->slot[at];
}

static void forget_all(gemm_state *state) {
    for (int i = 0; i < SLOTS; i++) {
        plan_free(state->slot[i]);
        state->slot[i] = NULL;
    }
    state->plans = 0;
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static int64_t alignment_of(const void *address) {
    uintptr_t bits = (uintptr_t)address;
    uintptr_t lowest = bits & (~bits + 1);
    return lowest == 0 || lowest > ALIGNMENT ? ALIGNMENT : (int64_t)lowest;
}

static bool has_aux(const tn__gemm *g) {
    return g->epilogue == TN__GEMM_GELU_AUX || g->epilogue == TN__GEMM_GELU_SLOPE;
}

static plan_key key_of(const tn_context *ctx, const tn__gemm *g) {
    bool aux = has_aux(g);
    return (plan_key){
        .m = g->m,
        .n = g->n,
        .k = g->k,
        .batch = g->batch,
        .ld = {g->a.ld, g->b.ld, g->d.ld},
        .step = {g->a.batch, g->b.batch, g->d.batch},
        .alignment = {alignment_of(g->a.data), alignment_of(g->b.data), alignment_of(g->d.data)},
        .aux_ld = aux ? g->aux_ld : 0,
        .aux_alignment = aux ? alignment_of(g->aux) : 0,
        .dtype = g->dtype,
        .out = g->out,
        .epilogue = g->epilogue,
        .transposed_a = g->a.transposed,
        .transposed_b = g->b.transposed,
        .biased = g->bias != NULL,
        .timed = tn__cuda_tunes(ctx),
        .tf32 = g->dtype == TN_F32 && ctx->matmul_tf32,
    };
}

static cudaDataType_t type_of(tn_dtype dtype) {
    switch (dtype) {
    case TN_F64:
        return CUDA_R_64F;
    case TN_BF16:
        return CUDA_R_16BF;
    case TN_F16:
        return CUDA_R_16F;
    default:
        return CUDA_R_32F;
    }
}

static cublasComputeType_t compute_of(const plan_key *key) {
    if (key->dtype == TN_F64) { return CUBLAS_COMPUTE_64F; }
    return key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

static cublasLtEpilogue_t epilogue_of(const tn__gemm *g) {
    switch (g->epilogue) {
    case TN__GEMM_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case TN__GEMM_GELU:
        return g->bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case TN__GEMM_GELU_AUX:
        return g->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case TN__GEMM_GELU_SLOPE:
        return CUBLASLT_EPILOGUE_DGELU;
    case TN__GEMM_COLUMN_SUMS:
        return CUBLASLT_EPILOGUE_BGRADB;
    default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* Keeps the first failure in a series of calls. */
static void keep_first(cublasStatus_t *status, cublasStatus_t next) {
    *status = *status == CUBLAS_STATUS_SUCCESS ? next : *status;
}

static void set_product(cublasStatus_t *status, cublasLtMatmulDesc_t product,
                        cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size) {
    keep_first(status, cublasLtMatmulDescSetAttribute(product, attribute, value, size));
}

/* The layout of a column-major matrix. */
static void make_layout(cublasStatus_t *status, cublasLtMatrixLayout_t *layout, const tn__gemm *g,
                        const tn__gemm_matrix *x, tn_dtype dtype, int64_t rows, int64_t columns) {
    if (*status != CUBLAS_STATUS_SUCCESS) { return; }
    *status = cublasLtMatrixLayoutCreate(layout, type_of(dtype),
                                         (uint64_t)(x->transposed ? columns : rows),
                                         (uint64_t)(x->transposed ? rows : columns), x->ld);
    if (g->batch > 1 && *status == CUBLAS_STATUS_SUCCESS) {
        int32_t batch = (int32_t)g->batch;
        *status = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                   &batch, sizeof(batch));
        keep_first(status, cublasLtMatrixLayoutSetAttribute(
                               *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &x->batch,
                               sizeof(x->batch)));
    }
}

/* The addresses of what the epilogue reads and writes. */
static void set_addresses(cublasStatus_t *status, plan *p, const tn__gemm *g, const void *bias,
                          const void *aux) {
    if (g->bias) {
        set_product(status, p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias));
    }
    if (has_aux(g)) {
        set_product(status, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                    sizeof(aux));
    }
}

/* The heuristic takes the alignment of bias and aux from their addresses, and its answer is
 * used for every later call: so it sees addresses with the least alignment that theirs may have. */
static const void *least_aligned(const void *address) {
    return (const void *)((uintptr_t)address | ALIGNMENT);
}

static cublasStatus_t plan_describe(plan *p, const tn__gemm *g) {
    cudaDataType_t scale = g->dtype == TN_F64 ? CUDA_R_64F : CUDA_R_32F;
    cublasStatus_t status = cublasLtMatmulDescCreate(&p->product, compute_of(&p->key), scale);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    int32_t a = g->a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t b = g->b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = epilogue_of(g);
    set_product(&status, p->product, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a));
    set_product(&status, p->product, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b));
    set_product(&status, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (g->bias) {
        int32_t bias = type_of(g->epilogue == TN__GEMM_COLUMN_SUMS ? g->out : g->dtype);
        set_product(&status, p->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias, sizeof(bias));
    }
    if (has_aux(g)) {
        set_product(&status, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &g->aux_ld,
                    sizeof(g->aux_ld));
    }
    set_addresses(&status, p, g, least_aligned(g->bias), least_aligned(g->aux));
    make_layout(&status, &p->a, g, &g->a, g->dtype, g->m, g->k);
    make_layout(&status, &p->b, g, &g->b, g->dtype, g->k, g->n);
    make_layout(&status, &p->d, g, &g->d, g->out, g->m, g->n);
    return status;
}

/* ---- Choosing -------------------------------------------------------------------------------- */

static void set_preference(cublasStatus_t *status, cublasLtMatmulPreference_t preference,
                           cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                           size_t size) {
    keep_first(status, cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size));
}

/* The heuristic's algorithms, best first. *count 0: there is none. */
static cublasStatus_t find_candidates(gemm_state *state, plan *p,
                                      cublasLtMatmulHeuristicResult_t *found, int *count) {
    static const cublasLtMatmulPreferenceAttributes_t alignments[3] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    *count = 0;
    cublasLtMatmulPreference_t preference;
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    uint32_t splits = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set_preference(&status, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE,
                   sizeof(WORKSPACE));
    set_preference(&status, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &splits,
                   sizeof(splits));
    for (int i = 0; i < 3; i++) {
        uint32_t bytes = (uint32_t)p->key.alignment[i];
        set_preference(&status, preference, alignments[i], &bytes, sizeof(bytes));
    }
    uint32_t d = (uint32_t)p->key.alignment[2]; /* C is D */
    set_preference(&status, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &d, sizeof(d));
    int all = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
        status =
            cublasLtMatmulAlgoGetHeuristic(state->handle, p->product, p->a, p->b, p->d, p->d,
                                           preference, p->key.timed ? CANDIDATES : 1, found, &all);
        all = status == CUBLAS_STATUS_SUCCESS ? all : 0;
        if (is_refusal(status) || status == CUBLAS_STATUS_INVALID_VALUE) {
            status = CUBLAS_STATUS_SUCCESS; /* the answer is: none */
        }
    }
    for (int i = 0; i < all; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) { found[(*count)++] = found[i]; }
    }
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

static cublasStatus_t enqueue_product(const tn_context *ctx, gemm_state *state, const plan *p,
                                      const tn__gemm *g, const cublasLtMatmulAlgo_t *algorithm,
                                      void *d, double beta, void *workspace, size_t bytes) {
    float alpha32 = (float)g->alpha, beta32 = (float)beta;
    bool wide = g->dtype == TN_F64;
    return cublasLtMatmul(state->handle, p->product,
                          wide ? (const void *)&g->alpha : (const void *)&alpha32, g->a.data, p->a,
                          g->b.data, p->b, wide ? (const void *)&beta : (const void *)&beta32, d,
                          p->d, d, p->d, algorithm, workspace, bytes, tn__cuda_stream(ctx));
}

typedef struct trial {
    gemm_state *state;
    const plan *plan;
    const tn__gemm *gemm;
    const cublasLtMatmulHeuristicResult_t *found;
    void *d;
} trial;

static bool try_candidate(tn_context *ctx, int i, void *user) {
    const trial *t = user;
    size_t bytes = t->found[i].workspaceSize;
    TN__SCRATCH(char, workspace, ctx, bytes);
    return workspace && enqueue_product(ctx, t->state, t->plan, t->gemm, &t->found[i].algo, t->d, 0,
                                        workspace, bytes) == CUBLAS_STATUS_SUCCESS;
}

/* The fastest of several. They write the real output, which the call itself then overwrites, or
 * scratch memory if the output is also read. */
static int fastest_of(tn_context *ctx, gemm_state *state, plan *p, const tn__gemm *g,
                      const cublasLtMatmulHeuristicResult_t *found, int count) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    set_addresses(&status, p, g, g->bias, g->aux);
    size_t last = (size_t)((g->batch - 1) * g->d.batch + (g->n - 1) * g->d.ld + g->m);
    TN__SCRATCH_IF(g->beta != 0, char, apart, ctx, (last * tn__cuda_element(g->out)));
    trial t = {state, p, g, found, g->beta != 0 ? apart : g->d.data};
    bool runs = status == CUBLAS_STATUS_SUCCESS && t.d;
    return runs ? tn__cuda_fastest(ctx, count, try_candidate, &t) : 0;
}

static tn_status plan_make(tn_context *ctx, gemm_state *state, const plan_key *key,
                           const tn__gemm *g, plan **result) {
    plan *p = calloc(1, sizeof(*p));
    if (!p) {
        tn__cuda_note("there is no host memory for a product's plan");
        return TN_ENOMEM;
    }
    p->key = *key;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int count = 0;
    cublasStatus_t status = plan_describe(p, g);
    if (status == CUBLAS_STATUS_SUCCESS) { status = find_candidates(state, p, found, &count); }
    if (status != CUBLAS_STATUS_SUCCESS) {
        plan_free(p);
        return blas_failed(status, "cuBLASLt's plan of a product");
    }
    if (count > 0) {
        int chosen = count > 1 ? fastest_of(ctx, state, p, g, found, count) : 0;
        p->algorithm = found[chosen].algo;
        p->workspace = found[chosen].workspaceSize;
        p->usable = true;
    }
    *result = p;
    return TN_OK;
}

static tn_status plan_of(tn_context *ctx, gemm_state *state, const tn__gemm *g, plan **result) {
    plan_key key = key_of(ctx, g);
    plan **slot = slot_of(state, &key);
    if (!*slot) {
        plan *made = NULL;
        tn_status status = plan_make(ctx, state, &key, g, &made);
        if (status != TN_OK) { return status; }
        if (state->plans == PLANS) {
            forget_all(state);
            slot = slot_of(state, &key);
        }
        *slot = made;
        state->plans++;
    }
    *result = *slot;
    return TN_OK;
}

/* ---- One product ----------------------------------------------------------------------------- */

static tn_status run_product(tn_context *ctx, gemm_state *state, const tn__gemm *g) {
    plan *p;
    tn_status status = plan_of(ctx, state, g, &p);
    if (status != TN_OK || !p->usable) { return status != TN_OK ? status : TN_EUNSUPPORTED; }
    TN__SCRATCH(char, workspace, ctx, p->workspace);
    if (!workspace) { return TN_ENOMEM; }
    cublasStatus_t queued = CUBLAS_STATUS_SUCCESS;
    set_addresses(&queued, p, g, g->bias, g->aux);
    if (queued == CUBLAS_STATUS_SUCCESS) {
        queued = enqueue_product(ctx, state, p, g, &p->algorithm, g->d.data, g->beta, workspace,
                                 p->workspace);
    }
    if (is_refusal(queued)) { /* the heuristic was wrong */
        p->usable = false;
        return TN_EUNSUPPORTED;
    }
    return queued == CUBLAS_STATUS_SUCCESS ? tn__cuda_launched(ctx, "cublasLtMatmul")
                                           : failed_in(ctx, queued);
}

tn_status tn__cuda_gemm(tn_context *ctx, const tn__gemm *g) {
    gemm_state *state;
    if (g->batch > INT32_MAX) { return TN_EUNSUPPORTED; }
    tn_status status = state_of(ctx, &state);
    if (status == TN_OK) {
        pthread_mutex_lock(&state->lock);
        status = run_product(ctx, state, g);
        pthread_mutex_unlock(&state->lock);
    }
    return status;
}
