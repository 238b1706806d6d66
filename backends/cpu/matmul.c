/* matmul and linear: any strides become operands of the blocked product (gemm.h), which packs them as they come. What it
 * cannot write directly (bf16, f16, an output without unit columns or rows) goes through an f32 or f64 temporary.
 */
#include "backends/cpu/convert.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/table.h"

static bool handled(tn_dtype dtype) {
    return is_float(dtype);
}

/* Threads for one product: about 45 multiply-adds take a nanosecond. */
static int product_team(int64_t m, int64_t n, int64_t k) {
    return team(m * n > 64 ? INT32_MAX : 1, m * n * k / 16);
}

static tn_status product(tn_context *ctx, tn_dtype compute, const gemm_job *job) {
    return compute == TN_F64 ? TN_CPU(gemm_f64)(ctx, job) : TN_CPU(gemm_f32)(ctx, job);
}

/* y = alpha t + beta d row by row, in y's dtype; d has y's dtype and strides (it may be y), or is not read. */
static void finish_rows(const tn_desc *y, int64_t y_offset, int64_t m, int64_t n, int64_t row,
                        int64_t col, const void *temporary, double alpha, double beta) {
    float sum[TILE], old[TILE];
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j += TILE) {
            int64_t w = min64(TILE, n - j);
            char *to = at(y, y_offset + i * row + j * col);
            if (y->dtype == TN_F64) {
                const double *t = (const double *)temporary + i * n + j;
                double *out = (double *)to;
                for (int64_t l = 0; l < w; l++) {
                    out[l * col] = alpha * t[l] + (beta == 0 ? 0 : beta * out[l * col]);
                }
                continue;
            }
            const float *t = (const float *)temporary + i * n + j;
            if (beta != 0) {
                load_f32(old, to, y->dtype, col, w);
            }
            for (int64_t l = 0; l < w; l++) {
                sum[l] = (float)alpha * t[l] + (beta == 0 ? 0 : (float)beta * old[l]);
            }
            store_f32(to, y->dtype, col, sum, w);
        }
    }
}

/* One product into y at an offset; `bias` (f32 or f64, contiguous) is added to each row, or NULL. */
static tn_status one_product(tn_context *ctx, const tn_desc *y, int64_t offset, int64_t row,
                             int64_t col, gemm_job job, const void *bias) {
    int64_t m = job.m, n = job.n;
    bool direct = y->dtype == TN_F32 || y->dtype == TN_F64;
    if (direct && (col == 1 || n <= 1)) {
        job.c = at(y, offset);
        job.ldc = row;
        job.d = bias ? bias : job.c;
        job.ldd = bias ? 0 : row;
        job.beta = bias ? 1 : job.beta;
        return product(ctx, y->dtype, &job);
    }
    if (direct && !bias && (row == 1 || m <= 1)) {
        gemm_side a = {job.b.data, job.b.dtype, job.b.col, job.b.row},
                  b = {job.a.data, job.a.dtype, job.a.col, job.a.row};
        job.m = n;
        job.n = m;
        job.a = a;
        job.b = b;
        job.c = at(y, offset);
        job.ldc = col;
        job.d = job.c;
        job.ldd = col;
        return product(ctx, y->dtype, &job);
    }
    tn_dtype compute = y->dtype == TN_F64 ? TN_F64 : TN_F32;
    size_t bytes = (size_t)(m * n) * size_of(compute);
    void *temporary = scratch(ctx, bytes);
    if (!temporary) {
        return TN_ENOMEM;
    }
    double alpha = job.alpha, beta = job.beta;
    job.c = temporary;
    job.ldc = n;
    job.alpha = 1;
    job.beta = bias ? 1 : 0;
    job.d = bias;
    job.ldd = 0;
    tn_status status = product(ctx, compute, &job);
    if (status == TN_OK) {
        finish_rows(y, offset, m, n, row, col, temporary, alpha, bias ? 0 : beta);
    }
    scratch_free(ctx, temporary, bytes);
    return status;
}

static gemm_side side(const tn_desc *d, int64_t offset, int64_t row, int64_t col) {
    return (gemm_side){at(d, offset), d->dtype, row, col};
}

static tn_status item(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                      gemm_job job, int64_t i) {
    job.a = side(a, i * a->stride[0], a->stride[1], a->stride[2]);
    job.b = side(b, i * b->stride[0], b->stride[1], b->stride[2]);
    return one_product(ctx, y, i * y->stride[0], y->stride[1], y->stride[2], job, NULL);
}

tn_status TN_CPU(matmul)(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                         double alpha, double beta) {
    bool widens = y->dtype == TN_F32 && (a->dtype == TN_BF16 || a->dtype == TN_F16);
    if (!handled(y->dtype) || !(a->dtype == y->dtype || widens) || b->dtype != a->dtype) {
        return TN_CPU(ref)->matmul(ctx, y, a, b, alpha, beta);
    }
    int64_t batch = y->size[0];
    gemm_job job = {.m = y->size[1], .n = y->size[2], .k = a->size[2], .alpha = alpha, .beta = beta};
    int64_t each = job.m * job.n * job.k;
    /* Many small products: an item to a thread. The bits are the same either way. */
    int outside = batch > 1 && each < 128 * 128 * 128 ? team(batch, batch * each / 16) : 1;
    job.threads = outside > 1 ? 1 : product_team(job.m, job.n, job.k);
    tn_status result = TN_OK;
    if (outside == 1) {
        /* Not a parallel region of one: a team inside of any region gets threads that are made for it and end with it. */
        for (int64_t i = 0; i < batch && result == TN_OK; i++) {
            result = item(ctx, y, a, b, job, i);
        }
        return result;
    }
#pragma omp parallel for num_threads(outside) schedule(static)
    for (int64_t i = 0; i < batch; i++) {
        tn_status status = item(ctx, y, a, b, job, i);
        if (status != TN_OK) {
#pragma omp atomic write
            result = status;
        }
    }
    return result;
}

tn_status TN_CPU(linear)(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                         const tn_desc *b) {
    if (!handled(y->dtype) || x->dtype != y->dtype || w->dtype != y->dtype ||
        (b && b->dtype != y->dtype)) {
        return TN_CPU(ref)->linear(ctx, y, x, w, b);
    }
    int64_t m = x->size[0], n = w->size[0], k = x->size[1];
    tn_dtype compute = y->dtype == TN_F64 ? TN_F64 : TN_F32;
    const void *bias = b ? b->data : NULL;
    size_t bytes = (size_t)n * size_of(compute);
    void *copy = NULL;
    if (b && n > 0 && (b->dtype != compute || b->stride[0] != 1)) {
        copy = scratch(ctx, bytes);
        if (!copy) {
            return TN_ENOMEM;
        }
        if (compute == TN_F64) {
            load_f64(copy, b->data, TN_F64, b->stride[0], n);
        } else {
            load_f32(copy, b->data, b->dtype, b->stride[0], n);
        }
        bias = copy;
    }
    gemm_job job = {.m = m, .n = n, .k = k, .alpha = 1, .threads = product_team(m, n, k)};
    job.a = side(x, 0, x->stride[0], x->stride[1]);
    job.b = side(w, 0, w->stride[1], w->stride[0]);
    tn_status status = one_product(ctx, y, 0, y->stride[0], y->stride[1], job, bias);
    scratch_free(ctx, copy, bytes);
    return status;
}
