/* The emulator's cuBLASLt against a plain product: every dtype and epilogue,
 * batches, what it refuses. */
#include "tests/emulator/elements.h"
#include "tests/emulator/test_launch.h"

#include <cublasLt.h>
#include <random>
#include <vector>

typedef std::vector<double> matrix; /* column-major, with its leading dimension */

/* One product, as a test specifies it. */
struct product {
    int64_t m = 19, n = 13, k = 37, batch = 1;
    bool transposed_a = false, transposed_b = false;
    cudaDataType_t type = CUDA_R_32F;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    double alpha = 1, beta = 0;
    uint32_t alignment = 16;
    int candidates = 1; /* asked for, and … */
    int candidate = 0;  /* … which of them runs */
    bool scheme_none = false;
    size_t workspace = 1 << 20, missing_workspace = 0;
    int64_t aux_ld = 24;
    size_t shift = 0;                           /* bytes by which A is misaligned */
    size_t bias_shift = 0, late_bias_shift = 0; /* the same for the bias; and after the heuristic */
    bool foreign = false;                       /* a bias and an aux that the epilogue lacks */

    bool has_bias() const {
        return foreign || epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB);
    }
    bool has_aux() const { return foreign || epilogue & 128; }
};

struct outcome {
    cublasStatus_t heuristic, run;
    int count;
    matrix a, b, c, d, bias, aux; /* c: D before the call */
};

static double round_to(cudaDataType_t type, double x) {
    double element;
    put_element(type, &element, 0, x);
    return get_element(type, &element, 0);
}

/* Device memory with these numbers, `shift` bytes in. */
static void *upload_matrix(cudaDataType_t type, const matrix &x, size_t shift) {
    std::vector<char> bytes(x.size() * element_size(type) + shift + 16);
    for (size_t i = 0; i < x.size(); i++) {
        put_element(type, bytes.data() + shift, i, x[i]);
    }
    void *memory;
    assert_int_equal(cudaMalloc(&memory, bytes.size()), cudaSuccess);
    cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
    return (char *)memory + shift;
}

static matrix download_matrix(cudaDataType_t type, const void *memory, size_t count) {
    std::vector<char> bytes(count * element_size(type));
    assert_int_equal(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDeviceToHost),
                     cudaSuccess);
    matrix x(count);
    for (size_t i = 0; i < count; i++) {
        x[i] = get_element(type, bytes.data(), i);
    }
    return x;
}

static matrix random_matrix(cudaDataType_t type, int64_t count, unsigned seed) {
    std::mt19937 source(seed);
    std::uniform_real_distribution<double> uniform(-1, 1);
    matrix x((size_t)count);
    for (double &value : x) {
        value = round_to(type, uniform(source));
    }
    return x;
}

static int64_t rows_a(const product &p) {
    return p.transposed_a ? p.k : p.m;
}
static int64_t rows_b(const product &p) {
    return p.transposed_b ? p.n : p.k;
}

static cublasLtMatrixLayout_t new_layout(const product &p, int64_t rows, int64_t columns,
                                         int64_t ld) {
    cublasLtMatrixLayout_t x;
    cublasLtMatrixLayoutCreate(&x, p.type, (uint64_t)rows, (uint64_t)columns, ld);
    int32_t batch = (int32_t)p.batch;
    int64_t step = ld * columns;
    cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
    cublasLtMatrixLayoutSetAttribute(x, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                     sizeof(step));
    return x;
}

template <typename T>
static void set_detail(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t attribute, T value) {
    cublasLtMatmulDescSetAttribute(d, attribute, &value, sizeof(value));
}

static cublasLtMatmulDesc_t new_description(const product &p, void *bias, void *aux) {
    bool wide = p.type == CUDA_R_64F;
    cublasLtMatmulDesc_t d;
    cublasLtMatmulDescCreate(&d, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                             wide ? CUDA_R_64F : CUDA_R_32F);
    set_detail<int32_t>(d, CUBLASLT_MATMUL_DESC_TRANSA, p.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_detail<int32_t>(d, CUBLASLT_MATMUL_DESC_TRANSB, p.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set_detail<uint32_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    if (p.has_bias()) { set_detail(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias); }
    if (p.has_aux()) {
        set_detail(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
        set_detail(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.aux_ld);
    }
    return d;
}

template <typename T>
static void set_wish(cublasLtMatmulPreference_t w, cublasLtMatmulPreferenceAttributes_t attribute,
                     T value) {
    cublasLtMatmulPreferenceSetAttribute(w, attribute, &value, sizeof(value));
}

static cublasLtMatmulPreference_t new_preference(const product &p) {
    cublasLtMatmulPreference_t w;
    cublasLtMatmulPreferenceCreate(&w);
    set_wish<uint64_t>(w, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p.workspace);
    if (p.scheme_none) {
        set_wish<uint32_t>(w, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           CUBLASLT_REDUCTION_SCHEME_NONE);
    }
    set_wish(w, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignment);
    set_wish(w, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.alignment);
    set_wish(w, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.alignment);
    set_wish(w, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.alignment);
    return w;
}

static outcome run_product(const product &p) {
    outcome o;
    int64_t m = p.m, n = p.n, columns_a = p.m * p.k / rows_a(p), columns_b = p.k * p.n / rows_b(p);
    o.a = random_matrix(p.type, (rows_a(p) + 2) * columns_a * p.batch, 1);
    o.b = random_matrix(p.type, (rows_b(p) + 1) * columns_b * p.batch, 2);
    o.c = random_matrix(p.type, (m + 3) * n * p.batch, 3);
    o.bias = random_matrix(p.type, m > n ? m : n, 4);
    o.aux = random_matrix(p.type, p.aux_ld * n, 5);
    void *a = upload_matrix(p.type, o.a, p.shift), *b = upload_matrix(p.type, o.b, 0),
         *d = upload_matrix(p.type, o.c, 0);
    void *aux = upload_matrix(p.type, o.aux, 0), *workspace;
    void *used = upload_matrix(p.type, o.bias, p.bias_shift + p.late_bias_shift);
    void *shown = (char *)used - p.late_bias_shift, *bias = (char *)shown - p.bias_shift;
    cudaMalloc(&workspace, p.workspace + 1);

    cublasLtHandle_t handle;
    cublasLtCreate(&handle);
    cublasLtMatmulDesc_t description = new_description(p, shown, aux);
    cublasLtMatrixLayout_t la = new_layout(p, rows_a(p), columns_a, rows_a(p) + 2);
    cublasLtMatrixLayout_t lb = new_layout(p, rows_b(p), columns_b, rows_b(p) + 1);
    cublasLtMatrixLayout_t ld = new_layout(p, m, n, m + 3);
    cublasLtMatmulPreference_t wishes = new_preference(p);
    cublasLtMatmulHeuristicResult_t found[4];
    o.heuristic = cublasLtMatmulAlgoGetHeuristic(handle, description, la, lb, ld, ld, wishes,
                                                 p.candidates, found, &o.count);
    o.run = CUBLAS_STATUS_NOT_INITIALIZED;
    if (o.count > p.candidate) {
        const auto &chosen = found[p.candidate];
        float alpha = (float)p.alpha, beta = (float)p.beta;
        bool wide = p.type == CUDA_R_64F;
        if (p.has_bias()) { set_detail(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, used); }
        o.run =
            cublasLtMatmul(handle, description, wide ? (const void *)&p.alpha : &alpha, a, la, b,
                           lb, wide ? (const void *)&p.beta : &beta, d, ld, d, ld, &chosen.algo,
                           workspace, chosen.workspaceSize - p.missing_workspace, nullptr);
        /* what was set before the call counts */
        set_detail(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (void *)nullptr);
        o.d = download_matrix(p.type, d, o.c.size());
        o.bias = download_matrix(p.type, used, o.bias.size());
        o.aux = download_matrix(p.type, aux, o.aux.size());
    }
    cublasLtMatmulPreferenceDestroy(wishes);
    cublasLtMatrixLayoutDestroy(la);
    cublasLtMatrixLayoutDestroy(lb);
    cublasLtMatrixLayoutDestroy(ld);
    cublasLtMatmulDescDestroy(description);
    cublasLtDestroy(handle);
    for (void *memory : {(void *)((char *)a - p.shift), b, d, bias, aux, workspace}) {
        assert_int_equal(cudaFree(memory), cudaSuccess);
    }
    return o;
}

/* ---- The same by definition ------------------------------------------------------------------ */

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double gelu_slope(double x) {
    double h = 1e-6;
    return (gelu_tanh(x + h) - gelu_tanh(x - h)) / (2 * h);
}

static void assert_near(const product &p, const char *what, double given, double expected) {
    double unit = p.type == CUDA_R_64F    ? 1e-14
                  : p.type == CUDA_R_32F  ? 1e-6
                  : p.type == CUDA_R_16BF ? 1.0 / 256
                                          : 1.0 / 2048;
    if (!(fabs(given - expected) <= 4 * unit * (1 + fabs(expected)))) {
        fail_msg("%s is %.9g, not %.9g", what, given, expected);
    }
}

static double at_a(const product &p, const outcome &o, int64_t s, int64_t i, int64_t l) {
    int64_t ld = rows_a(p) + 2, columns = p.m * p.k / rows_a(p);
    return o.a[(size_t)(s * ld * columns + (p.transposed_a ? l + i * ld : i + l * ld))];
}
static double at_b(const product &p, const outcome &o, int64_t s, int64_t l, int64_t j) {
    int64_t ld = rows_b(p) + 1, columns = p.k * p.n / rows_b(p);
    return o.b[(size_t)(s * ld * columns + (p.transposed_b ? j + l * ld : l + j * ld))];
}

static void check_sums(const product &p, const outcome &o) {
    for (int64_t i = 0; i < p.n; i++) {
        double expected = 0;
        for (int64_t l = 0; l < p.k; l++) {
            expected += at_b(p, o, 0, l, i);
        }
        assert_near(p, "a sum", o.bias[(size_t)i], expected);
    }
}

static void check_product(const product &p) {
    outcome o = run_product(p);
    assert_int_equal(o.heuristic, CUBLAS_STATUS_SUCCESS);
    assert_int_equal(o.run, CUBLAS_STATUS_SUCCESS);
    matrix bias = random_matrix(p.type, (int64_t)o.bias.size(), 4),
           aux = random_matrix(p.type, (int64_t)o.aux.size(), 5);
    int64_t ld = p.m + 3;
    int e = p.epilogue;
    for (int64_t s = 0; s < p.batch; s++) {
        for (int64_t j = 0; j < p.n; j++) {
            for (int64_t i = 0; i < p.m; i++) {
                double sum = 0;
                for (int64_t l = 0; l < p.k; l++) {
                    sum += at_a(p, o, s, i, l) * at_b(p, o, s, l, j);
                }
                size_t at = (size_t)(s * ld * p.n + i + j * ld),
                       at_aux = (size_t)(i + j * p.aux_ld);
                double x = p.alpha * sum + p.beta * o.c[at];
                x += e & CUBLASLT_EPILOGUE_BIAS ? bias[(size_t)i] : 0;
                if (e == CUBLASLT_EPILOGUE_GELU_AUX || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                    assert_near(p, "aux", o.aux[at_aux], x);
                }
                if (e & CUBLASLT_EPILOGUE_GELU) {
                    x = gelu_tanh(x);
                } else if (e == CUBLASLT_EPILOGUE_DGELU) {
                    x *= gelu_slope(aux[at_aux]);
                }
                assert_near(p, "D", o.d[at], x);
            }
            for (int64_t i = p.m; i < ld; i++) { /* between the columns */
                size_t at = (size_t)(s * ld * p.n + i + j * ld);
                assert_true(o.d[at] == o.c[at]);
            }
        }
    }
    if (e == CUBLASLT_EPILOGUE_BGRADB) { check_sums(p, o); }
}

static const cudaDataType_t types[] = {CUDA_R_32F, CUDA_R_64F, CUDA_R_16BF, CUDA_R_16F};

TEST_WITH(test_products, reset_emulator, nullptr) {
    for (cudaDataType_t type : types) {
        for (int i = 0; i < 4; i++) {
            product p;
            p.type = type;
            p.transposed_a = i & 1;
            p.transposed_b = i & 2;
            check_product(p);
            p.batch = 3;
            p.alpha = 0.5;
            p.beta = -2;
            check_product(p);
        }
    }
}

TEST_WITH(test_epilogues, reset_emulator, nullptr) {
    for (int e : {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
                  CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                  CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADB}) {
        for (cudaDataType_t type : {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F}) {
            product p;
            p.type = type;
            p.epilogue = (cublasLtEpilogue_t)e;
            p.transposed_a = e != CUBLASLT_EPILOGUE_DGELU;
            p.transposed_b = e == CUBLASLT_EPILOGUE_BGRADB;
            p.alpha = 0.25;
            check_product(p);
        }
    }
}

/* Several algorithms: right, and each with its own bits. */
TEST_WITH(test_algorithms, reset_emulator, nullptr) {
    product p;
    p.candidates = 4;
    p.k = 1000;
    outcome first = run_product(p);
    assert_int_equal(first.count, 3);
    p.candidate = 2;
    outcome third = run_product(p);
    assert_true(first.d != third.d);
    assert_near(p, "D", third.d[0], first.d[0]);
    p.candidate = 0;
    assert_true(run_product(p).d == first.d);
    p.scheme_none = true; /* k in one piece */
    assert_int_equal(run_product(p).count, 1);
    p.scheme_none = false;
    p.workspace = 100;
    assert_int_equal(run_product(p).count, 1);
}

TEST_WITH(test_refusals, reset_emulator, nullptr) {
    product p;
    p.type = CUDA_R_16BF;
    p.alignment = 8;
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_NOT_SUPPORTED);
    p = product();
    p.shift = 4; /* the heuristic was told 16 */
    assert_int_equal(run_product(p).run, CUBLAS_STATUS_INVALID_VALUE);
    p.alignment = 4;
    check_product(p);
    p = product();
    p.missing_workspace = 1;
    assert_int_equal(run_product(p).run, CUBLAS_STATUS_INVALID_VALUE);
    p = product();
    p.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    for (int64_t aux_ld : {0, 16, 20}) {
        p.aux_ld = aux_ld;
        assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_INVALID_VALUE);
    }
    p = product();
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    p.late_bias_shift = 16; /* the heuristic saw 256 */
    assert_int_equal(run_product(p).run, CUBLAS_STATUS_INVALID_VALUE);
    p.bias_shift = 16; /* …, and now 16 */
    assert_int_equal(run_product(p).run, CUBLAS_STATUS_SUCCESS);
    p.bias_shift = 8;
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_INVALID_VALUE);
    p = product();
    p.foreign = true;
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_INVALID_VALUE);
    p = product();
    p.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_NOT_SUPPORTED);
    p.epilogue = CUBLASLT_EPILOGUE_BGRADA; /* which gemm.c does not ask for */
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_NOT_SUPPORTED);
    p = product();
    p.type = CUDA_R_64F;
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_NOT_SUPPORTED);
    p.epilogue = CUBLASLT_EPILOGUE_RELU;
    p.type = CUDA_R_32F;
    assert_int_equal(run_product(p).heuristic, CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(
        cublasLtMatmulDescSetAttribute(nullptr, CUBLASLT_MATMUL_DESC_FAST_ACCUM, nullptr, 0),
        CUBLAS_STATUS_INVALID_VALUE);
}
