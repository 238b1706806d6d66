/* cuBLASLt as documented, as far as gemm.c uses it: products of f32, f64, bf16 and f16 with
 * epilogues.
 *
 * Accumulation is in f32 (f64 for f64). The heuristic returns up to three algorithms; they split k
 * into one, two and three parts, so they round differently, and need workspaces, which they
 * overwrite. It refuses what the library refuses and a little more: bf16 and f16 below an alignment
 * of 16 bytes, and a bias or aux that is less aligned than the one that the heuristic saw, with
 * which the library would fault; and what gemm.c does not ask for.
 */
#include "tests/emulator/elements.h"
#include "tests/emulator/runtime.h"

#include <cublasLt.h>
#include <math.h>
#include <string.h>
#include <vector>

using namespace tn_emulator;

namespace {

/* ---- What the handles point at --------------------------------------------------------------- */

struct product {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t transposed[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr;
    int32_t bias_type = -1; /* -1: as D */
    void *aux = nullptr;
    int64_t aux_ld = 0;
};

struct layout {
    uint32_t type;
    uint64_t rows, columns;
    int64_t ld;
    int32_t batch = 1;
    int64_t step = 0;

    int64_t at(int64_t row, int64_t column) const { return row + column * ld; }
};

struct preference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    uint32_t alignment[4] = {256, 256, 256, 256}; /* of A, B, C, D */
};

/* In a cublasLtMatmulAlgo_t. */
struct algorithm {
    uint64_t magic;
    uint32_t parts;        /* of k */
    uint32_t alignment[6]; /* as given for A, B, C, D, and as seen for bias and aux */
    uint64_t workspace;
};
static const uint64_t magic = 0x7465726e67656d6d;
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t));

struct handle {
    int device;
};

template <typename T> static cublasStatus_t take_field(T *field, const void *value, size_t size) {
    if (!value || size != sizeof(*field)) { return CUBLAS_STATUS_INVALID_VALUE; }
    memcpy(field, value, sizeof(*field));
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

/* ---- Handles and descriptions ---------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *result_handle) {
    *result_handle = (cublasLtHandle_t) new handle{current_device()};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    delete (handle *)h;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    default:
        return "an unknown status";
    }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *result_product,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
    product *p = new product;
    p->compute = compute;
    p->scale = scale;
    *result_product = (cublasLtMatmulDesc_t)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p) {
    delete (product *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
    product *p = (product *)description;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take_field(&p->transposed[0], value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take_field(&p->transposed[1], value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take_field(&p->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take_field(&p->bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return take_field(&p->bias_type, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return take_field(&p->aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return take_field(&p->aux_ld, value, size);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *result_layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
    *result_layout = (cublasLtMatrixLayout_t) new layout{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x) {
    delete (layout *)x;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t description,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size) {
    layout *x = (layout *)description;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return take_field(&x->batch, value, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return take_field(&x->step, value, size);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p) {
    *p = (cublasLtMatmulPreference_t) new preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
    delete (preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t description,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size) {
    preference *p = (preference *)description;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take_field(&p->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return take_field(&p->reductions, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return take_field(&p->alignment[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return take_field(&p->alignment[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return take_field(&p->alignment[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return take_field(&p->alignment[3], value, size);
    default:
        return CUBLAS_STATUS_INVALID_VALUE;
    }
}

/* ---- What can be computed -------------------------------------------------------------------- */

/* A product and the layouts of its matrices A, B, C, D, as they were at the call. */
namespace {
struct problem {
    product p;
    layout x[4];
    int64_t m, n, k;
};
} // namespace

static bool has_bias(uint32_t epilogue) {
    return epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
}

static bool has_aux(uint32_t epilogue) {
    return epilogue & 128;
}

static bool known_epilogue(uint32_t epilogue) {
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADB:
        return true;
    default:
        return false;
    }
}

static bool known_types(const problem &q) {
    uint32_t in = q.x[0].type, out = q.x[3].type;
    bool same = q.x[1].type == in && q.x[2].type == out;
    if (in == CUDA_R_64F) {
        return same && out == in && q.p.compute == CUBLAS_COMPUTE_64F && q.p.scale == CUDA_R_64F;
    }
    bool wide = in == CUDA_R_32F, narrow = in == CUDA_R_16BF || in == CUDA_R_16F;
    bool compute =
        q.p.compute == CUBLAS_COMPUTE_32F || (wide && q.p.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
    return same && (wide || narrow) && (out == in || (narrow && out == CUDA_R_32F)) && compute &&
           q.p.scale == CUDA_R_32F;
}

static bool known_sizes(const problem &q) {
    const layout &a = q.x[0], &b = q.x[1], &d = q.x[3];
    bool ta = q.p.transposed[0] != CUBLAS_OP_N, tb = q.p.transposed[1] != CUBLAS_OP_N;
    bool right = q.m > 0 && q.n > 0 && q.k > 0 && (ta ? a.columns : a.rows) == d.rows &&
                 (tb ? b.columns : b.rows) == (uint64_t)q.k &&
                 (tb ? b.rows : b.columns) == d.columns && q.x[2].rows == d.rows &&
                 q.x[2].columns == d.columns;
    for (const layout &x : q.x) {
        right = right && x.ld >= (int64_t)x.rows && x.batch == d.batch && x.batch > 0;
    }
    return right;
}

/* Bytes, at most 256. */
static uint32_t alignment_of(const void *address) {
    uint32_t low = (uint32_t)((uintptr_t)address % 256);
    return low == 0 ? 256 : low & -low;
}

static cublasStatus_t check_problem(const problem &q) {
    uint32_t e = q.p.epilogue, out = q.x[3].type;
    if (!known_sizes(q)) { return CUBLAS_STATUS_INVALID_VALUE; }
    if (!known_types(q) || !known_epilogue(e)) { return CUBLAS_STATUS_NOT_SUPPORTED; }
    if ((q.p.bias && !has_bias(e)) || (q.p.aux && !has_aux(e))) { /* "is NOT allowed for {}" */
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (e == CUBLASLT_EPILOGUE_BGRADB && q.p.transposed[1] == CUBLAS_OP_N) {
        return CUBLAS_STATUS_NOT_SUPPORTED; /* "BGRADB only works with transposed B" */
    }
    if (e == CUBLASLT_EPILOGUE_DEFAULT) { return CUBLAS_STATUS_SUCCESS; }
    bool type = q.p.bias_type == -1 || q.p.bias_type == (int32_t)out;
    if (out == CUDA_R_64F || !type || q.x[3].batch > 1) { return CUBLAS_STATUS_NOT_SUPPORTED; }
    if (has_aux(e) &&
        (!q.p.aux || (uintptr_t)q.p.aux % 16 != 0 || q.p.aux_ld % 8 != 0 || q.p.aux_ld < q.m)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    bool bias = !has_bias(e) || (q.p.bias && alignment_of(q.p.bias) >= 16);
    return bias ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static problem make_problem(cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t a,
                            cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                            cublasLtMatrixLayout_t d) {
    problem q = {*(product *)p, {*(layout *)a, *(layout *)b, *(layout *)c, *(layout *)d}, 0, 0, 0};
    q.m = (int64_t)q.x[3].rows;
    q.n = (int64_t)q.x[3].columns;
    q.k = (int64_t)(q.p.transposed[0] != CUBLAS_OP_N ? q.x[0].rows : q.x[0].columns);
    return q;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t p,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wishes, int wanted,
                                              cublasLtMatmulHeuristicResult_t *found, int *count) {
    static const uint64_t workspaces[3] = {1 << 10, 256 << 10, 0};
    *count = 0;
    problem q = make_problem(p, a, b, c, d);
    cublasStatus_t status = wanted < 1 ? CUBLAS_STATUS_INVALID_VALUE : check_problem(q);
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    const preference *w = (const preference *)wishes;
    for (int i = 0; i < 4; i++) {
        size_t least = element_size(q.x[i].type) == 2 ? 16 : element_size(q.x[i].type);
        if (w->alignment[i] < least) { return CUBLAS_STATUS_NOT_SUPPORTED; }
    }
    for (uint32_t i = 0; i < 3 && *count < wanted; i++) {
        bool splits = i == 0 || w->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
        if (!splits || workspaces[i] > w->workspace) { continue; }
        cublasLtMatmulHeuristicResult_t *r = &found[(*count)++];
        memset(r, 0, sizeof(*r));
        algorithm chosen = {magic, i + 1, {0}, workspaces[i]};
        memcpy(chosen.alignment, w->alignment, sizeof(w->alignment));
        chosen.alignment[4] = alignment_of(q.p.bias);
        chosen.alignment[5] = alignment_of(q.p.aux);
        memcpy(&r->algo, &chosen, sizeof(chosen));
        r->workspaceSize = workspaces[i];
        r->state = CUBLAS_STATUS_SUCCESS;
        r->wavesCount = 1;
    }
    return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- Computing ------------------------------------------------------------------------------- */

/* The tanh form, and its derivative. */
static const double root = 0.7978845608028654, cubic = 0.044715; /* sqrt(2 / pi) */

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(root * (x + cubic * x * x * x)));
}

static double gelu_slope(double x) {
    double t = tanh(root * (x + cubic * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * cubic * x * x);
}

/* To TF32: the nearest number with 10 bits after the point. */
static double round_factor(double x) {
    int exponent;
    double mantissa = frexp(x, &exponent);
    return ldexp(nearbyint(ldexp(mantissa, 11)), exponent - 11);
}

/* op(x) as rows x columns in row-major order. */
template <typename T>
static std::vector<T> gather_matrix(const layout &x, bool transposed, const void *data,
                                    int64_t rows, int64_t columns) {
    std::vector<T> out((size_t)(rows * columns));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            out[(size_t)(i * columns + j)] =
                (T)get_element(x.type, data, transposed ? x.at(j, i) : x.at(i, j));
        }
    }
    return out;
}

/* One row of op(A) op(B), k in `parts`. */
template <typename T>
static void row_product(T *row, const T *a, const T *b, int64_t n, int64_t k, uint32_t parts,
                        T *partial) {
    memset(row, 0, (size_t)n * sizeof(T));
    for (uint32_t part = 0; part < parts; part++) {
        memset(partial, 0, (size_t)n * sizeof(T));
        for (int64_t l = k * part / parts; l < k * (part + 1) / parts; l++) {
            for (int64_t j = 0; j < n; j++) {
                partial[j] += a[l] * b[l * n + j];
            }
        }
        for (int64_t j = 0; j < n; j++) {
            row[j] += partial[j];
        }
    }
}

/* The sums over k of op(B)'s columns. */
template <typename T> static void store_input_sums(const problem &q, const std::vector<T> &b) {
    for (int64_t i = 0; i < q.n; i++) {
        T sum = 0;
        for (int64_t l = 0; l < q.k; l++) {
            sum += b[(size_t)(l * q.n + i)];
        }
        put_element(q.x[3].type, q.p.bias, i, (double)sum);
    }
}

namespace {
struct operands {
    double alpha, beta;
    const char *a, *b, *c;
    char *d;
};
} // namespace

/* Finishes one element from its accumulator. */
static double finish_element(const problem &q, double value, int64_t i, int64_t j) {
    uint32_t e = q.p.epilogue, type = q.x[3].type;
    if (e & CUBLASLT_EPILOGUE_BIAS) { value += get_element(type, q.p.bias, i); }
    if (e & CUBLASLT_EPILOGUE_GELU) {
        if (has_aux(e)) { put_element(type, q.p.aux, i + j * q.p.aux_ld, value); }
        return gelu_tanh(value);
    }
    return e == CUBLASLT_EPILOGUE_DGELU
               ? value * gelu_slope(get_element(type, q.p.aux, i + j * q.p.aux_ld))
               : value;
}

template <typename T>
static void multiply_matrices(const problem &q, const operands &o, uint32_t parts) {
    std::vector<T> row((size_t)q.n), partial((size_t)q.n);
    for (int64_t s = 0; s < q.x[3].batch; s++) {
        auto data = [&](int which, const char *first) {
            return first + s * q.x[which].step * (int64_t)element_size(q.x[which].type);
        };
        std::vector<T> a =
            gather_matrix<T>(q.x[0], q.p.transposed[0] != CUBLAS_OP_N, data(0, o.a), q.m, q.k);
        std::vector<T> b =
            gather_matrix<T>(q.x[1], q.p.transposed[1] != CUBLAS_OP_N, data(1, o.b), q.k, q.n);
        for (std::vector<T> *x : {&a, &b}) {
            for (size_t i = 0; q.p.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && i < x->size(); i++) {
                (*x)[i] = (T)round_factor((double)(*x)[i]);
            }
        }
        char *d = o.d + s * q.x[3].step * (int64_t)element_size(q.x[3].type);
        for (int64_t i = 0; i < q.m; i++) {
            row_product(row.data(), &a[(size_t)(i * q.k)], b.data(), q.n, q.k, parts,
                        partial.data());
            for (int64_t j = 0; j < q.n; j++) {
                T value = (T)o.alpha * row[(size_t)j];
                if (o.beta != 0) {
                    value += (T)o.beta * (T)get_element(q.x[2].type, data(2, o.c), q.x[2].at(i, j));
                }
                put_element(q.x[3].type, d, q.x[3].at(i, j),
                            finish_element(q, (double)value, i, j));
            }
        }
        if (q.p.epilogue == CUBLASLT_EPILOGUE_BGRADB) { store_input_sums(q, b); }
    }
}

static bool is_aligned(const algorithm &chosen, const problem &q, const operands &o) {
    const char *data[4] = {o.a, o.b, o.beta != 0 ? o.c : nullptr, o.d};
    bool good = o.a && o.b && o.d && (o.beta == 0 || o.c);
    for (int i = 0; i < 4; i++) {
        good = good && (uintptr_t)data[i] % chosen.alignment[i] == 0;
    }
    good = good && (!has_bias(q.p.epilogue) || alignment_of(q.p.bias) >= chosen.alignment[4]);
    return good && (!has_aux(q.p.epilogue) || alignment_of(q.p.aux) >= chosen.alignment[5]);
}

/* The epilogues of known_epilogue, as the manual names them. */
static const char *epilogue_text(uint32_t epilogue) {
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
        return "BIAS";
    case CUBLASLT_EPILOGUE_GELU:
        return "GELU";
    case CUBLASLT_EPILOGUE_GELU_BIAS:
        return "GELU_BIAS";
    case CUBLASLT_EPILOGUE_GELU_AUX:
        return "GELU_AUX";
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        return "GELU_AUX_BIAS";
    case CUBLASLT_EPILOGUE_DGELU:
        return "DGELU";
    case CUBLASLT_EPILOGUE_BGRADB:
        return "BGRADB";
    default:
        return "DEFAULT";
    }
}

/* Each matrix once; D twice if it is also read. */
static bool record_product(const problem &q, bool accumulates) {
    double m = (double)q.m, n = (double)q.n, k = (double)q.k, batch = q.x[3].batch;
    double in = (double)element_size(q.x[0].type), out = (double)element_size(q.x[3].type);
    double written = out * m * n * (1 + accumulates + has_aux(q.p.epilogue));
    return record("product %s %.0f %.0f", epilogue_text(q.p.epilogue),
                  batch * (in * (m * k + k * n) + written), 2 * batch * m * n * k);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t p, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *chosen,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream_handle) {
    problem q = make_problem(p, a_layout, b_layout, c_layout, d_layout);
    cublasStatus_t status =
        alpha && beta && chosen ? check_problem(q) : CUBLAS_STATUS_INVALID_VALUE;
    if (status != CUBLAS_STATUS_SUCCESS) { return status; }
    bool wide = q.p.scale == CUDA_R_64F;
    operands o = {wide ? *(const double *)alpha : *(const float *)alpha,
                  wide ? *(const double *)beta : *(const float *)beta,
                  (const char *)a,
                  (const char *)b,
                  (const char *)c,
                  (char *)d};
    algorithm own;
    memcpy(&own, chosen, sizeof(own));
    if (own.magic != magic || !is_aligned(own, q, o) || workspace_bytes < own.workspace ||
        (own.workspace > 0 && (!workspace || (uintptr_t)workspace % 16 != 0))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    std::lock_guard<std::mutex> guard(lock);
    auto s = stream_of(stream_handle);
    if (!s || s->device != ((handle *)h)->device || s->device != current_device()) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (record_product(q, o.beta != 0)) { return CUBLAS_STATUS_SUCCESS; }
    push(
        s,
        [=] {
            if (own.workspace > 0) { memset(workspace, 0xFF, own.workspace); }
            if (q.x[0].type == CUDA_R_64F) {
                multiply_matrices<double>(q, o, own.parts);
            } else {
                multiply_matrices<float>(q, o, own.parts);
            }
        },
        1u << s->device);
    return stuck(s->device) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
