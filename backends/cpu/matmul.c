/* matmul and linear: operands with any strides go to the blocked product (gemm.h), which packs
 * them. What it cannot write directly (f16, bf16 where the processor does not multiply it, an
 * output without column or row stride 1) goes through an f32 or f64 temporary. The product for few
 * rows (few_rows.h) is tried first.
 */
#include "backends/cpu/convert.h"
#include "backends/cpu/few_rows.h"
#include "backends/cpu/gemm.h"

/* Threads for one product: about 45 multiply-adds take a nanosecond. */
static int product_team(int64_t m, int64_t n, int64_t k) {
    return team_size(m * n > 64 ? INT32_MAX : 1, m * n * k / 16);
}

static tn_status run_product(tn_context *ctx, tn_dtype compute, const gemm_job *job) {
    if (compute == TN_F64) { return TN_CPU(gemm_f64)(ctx, job); }
    tn_status status = job->a.dtype == TN_BF16 ? TN_CPU(gemm_bf16)(ctx, job) : TN_EUNSUPPORTED;
    return status == TN_EUNSUPPORTED ? TN_CPU(gemm_f32)(ctx, job) : status;
}

/* A bf16 product whose sums are rounded as they are stored. TN_EUNSUPPORTED: this processor does
 * not multiply bf16, y is not bf16, or is added to. */
static tn_status rounded_product(tn_context *ctx, const tn_desc *y, int64_t offset, int64_t row,
                                 gemm_job job) {
    if (y->dtype != TN_BF16 || job.beta != 0) { return TN_EUNSUPPORTED; }
    job.c = desc_at(y, offset);
    job.ldc = row;
    job.beta = job.d ? 1 : 0;
    job.rounds = true;
    return TN_CPU(gemm_bf16)(ctx, &job);
}

/* n elements of y from an offset, `col` apart, = alpha t + beta y; y is not read when beta is 0. t
 * is f64 if y is, else f32. */
static void finish_row(const tn_desc *y, int64_t offset, int64_t col, int64_t n, const void *from,
                       double alpha, double beta) {
    float sum[TILE], old[TILE];
    for (int64_t j = 0; j < n; j += TILE) {
        int64_t w = min_of(TILE, n - j);
        char *to = desc_at(y, offset + j * col);
        if (y->dtype == TN_F64) {
            const double *t = (const double *)from + j;
            double *out = (double *)to;
            for (int64_t l = 0; l < w; l++) {
                out[l * col] = alpha * t[l] + (beta == 0 ? 0 : beta * out[l * col]);
            }
            continue;
        }
        const float *t = (const float *)from + j;
        if (beta != 0) { load_f32(old, to, y->dtype, col, w); }
        for (int64_t l = 0; l < w; l++) {
            sum[l] = (float)alpha * t[l] + (beta == 0 ? 0 : (float)beta * old[l]);
        }
        store_f32(to, y->dtype, col, sum, w);
    }
}

/* Into a temporary with column stride 1, then to y. */
static tn_status through_temporary(tn_context *ctx, const tn_desc *y, int64_t offset, int64_t row,
                                   int64_t col, gemm_job job) {
    int64_t m = job.m, n = job.n;
    tn_dtype compute = y->dtype == TN_F64 ? TN_F64 : TN_F32;
    TN__SCRATCH(char, temporary, ctx, (size_t)(m * n) * size_of(compute));
    if (!temporary) { return TN_ENOMEM; }
    double alpha = job.alpha, beta = job.beta;
    job.c = temporary;
    job.ldc = n;
    job.alpha = 1;
    job.beta = job.d ? 1 : 0;
    tn_status status = run_product(ctx, compute, &job);
    if (status == TN_OK) {
        int threads = job.threads == 1 ? 1 : team_size(m, m * n / 4);
#pragma omp parallel for num_threads(threads) if (threads > 1)
        for (int64_t i = 0; i < m; i++) {
            finish_row(y, offset + i * row, col, n, temporary + (size_t)(i * n) * size_of(compute),
                       alpha, beta);
        }
    }
    return status;
}

/* The most rows for few_rows. With tiles, bf16 keeps what memory bounds: four. In f32, where
 * packing w would take longer than the product, twice as many: 9 to 16 rows of w (2304, 768) and
 * (768, 3072) are 1.1 to 2.5 times as fast (Emerald Rapids, v3 and v4, one and two threads). */
static int64_t most_few_rows(const gemm_job *job) {
    enum { LARGE = 1 << 20 };
    if (tn__cpu_tiles && job->a.dtype == TN_BF16) { return 4; }
    bool twice = job->a.dtype == TN_F32 && job->n * job->k >= LARGE;
    return twice ? 2 * FEW_ROWS : FEW_ROWS;
}

/* By few_rows.h: few rows of a, and contiguous columns of b. TN_EUNSUPPORTED: not for few_rows. */
static tn_status by_few_rows(tn_context *ctx, const tn_desc *y, int64_t offset, int64_t row,
                             int64_t col, const gemm_job *job) {
    if (y->dtype == TN_F64 || job->m < 1 || job->m > most_few_rows(job) || job->n < 1 ||
        job->k < 1 || (job->b.row != 1 && job->k > 1)) {
        return TN_EUNSUPPORTED;
    }
    few_rows_job few = {.m = job->m,
                        .n = job->n,
                        .k = job->k,
                        .alpha = job->alpha,
                        .beta = job->beta,
                        .x = job->a,
                        .w = {job->b.data, job->b.dtype, job->b.col, 1},
                        .bias = job->d,
                        .y = desc_at(y, offset),
                        .dtype = y->dtype,
                        .row = row,
                        .col = col,
                        .threads = job->threads};
    return TN_CPU(few_rows)(ctx, &few);
}

/* One product into y at an offset. job.d is NULL, or a bias (contiguous f32 or f64) that is added
 * to each row; beta is then 0. */
static tn_status one_product(tn_context *ctx, const tn_desc *y, int64_t offset, int64_t row,
                             int64_t col, gemm_job job) {
    int64_t m = job.m, n = job.n;
    bool direct = y->dtype == TN_F32 || y->dtype == TN_F64, columns = col == 1 || n <= 1;
    if (!columns && !job.d && (row == 1 || m <= 1)) { /* the transpose has column stride 1 */
        gemm_side a = {job.b.data, job.b.dtype, job.b.col, job.b.row},
                  b = {job.a.data, job.a.dtype, job.a.col, job.a.row};
        job.m = n;
        job.n = m;
        job.a = a;
        job.b = b;
        return one_product(ctx, y, offset, col, row, job);
    }
    tn_status status = by_few_rows(ctx, y, offset, row, col, &job);
    if (status == TN_EUNSUPPORTED && columns) {
        status = rounded_product(ctx, y, offset, row, job);
    }
    if (status != TN_EUNSUPPORTED) { return status; }
    if (!direct || !columns) { return through_temporary(ctx, y, offset, row, col, job); }
    job.c = desc_at(y, offset);
    job.ldc = row;
    if (job.d) {
        job.beta = 1;
    } else {
        job.d = job.c;
        job.ldd = row;
    }
    return run_product(ctx, y->dtype, &job);
}

static gemm_side side_of(const tn_desc *d, int64_t offset, int64_t row, int64_t col) {
    return (gemm_side){desc_at(d, offset), d->dtype, row, col};
}

static tn_status run_item(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                          gemm_job job, int64_t i) {
    job.a = side_of(a, i * a->stride[0], a->stride[1], a->stride[2]);
    job.b = side_of(b, i * b->stride[0], b->stride[1], b->stride[2]);
    return one_product(ctx, y, i * y->stride[0], y->stride[1], y->stride[2], job);
}

tn_status TN_CPU(matmul)(tn_context *ctx, const tn_desc *y, const tn_desc *a, const tn_desc *b,
                         double alpha, double beta) {
    bool widens = y->dtype == TN_F32 && (a->dtype == TN_BF16 || a->dtype == TN_F16);
    if (!is_float(y->dtype) || !(a->dtype == y->dtype || widens) || b->dtype != a->dtype) {
        return TN_CPU(ref)->matmul(ctx, y, a, b, alpha, beta);
    }
    int64_t batch = y->size[0];
    gemm_job job = {
        .m = y->size[1], .n = y->size[2], .k = a->size[2], .alpha = alpha, .beta = beta};
    int64_t each = job.m * job.n * job.k;
    /* Many small products: one item per thread. The bits are the same either way. */
    int outside = batch > 1 && each < 128 * 128 * 128 ? team_size(batch, batch * each / 16) : 1;
    job.threads = outside > 1 ? 1 : product_team(job.m, job.n, job.k);
    tn_status result = TN_OK;
    if (outside == 1) {
        /* Not in a parallel region of one thread: the threads of a nested team are created for it
         * and end with it. */
        for (int64_t i = 0; i < batch && result == TN_OK; i++) {
            result = run_item(ctx, y, a, b, job, i);
        }
        return result;
    }
#pragma omp parallel for num_threads(outside) schedule(static)
    for (int64_t i = 0; i < batch; i++) {
        tn_status status = run_item(ctx, y, a, b, job, i);
        if (status != TN_OK) {
#pragma omp atomic write
            result = status;
        }
    }
    return result;
}

tn_status TN_CPU(linear)(tn_context *ctx, const tn_desc *y, const tn_desc *x, const tn_desc *w,
                         const tn_desc *b) {
    if (!is_float(y->dtype) || x->dtype != y->dtype || w->dtype != y->dtype ||
        (b && b->dtype != y->dtype)) {
        return TN_CPU(ref)->linear(ctx, y, x, w, b);
    }
    int64_t m = x->size[0], n = w->size[0], k = x->size[1];
    tn_dtype compute = y->dtype == TN_F64 ? TN_F64 : TN_F32;
    bool copies = b && n > 0 && (b->dtype != compute || b->stride[0] != 1);
    TN__SCRATCH_IF(copies, double, copy, ctx, n);
    if (copies && !copy) { return TN_ENOMEM; }
    if (copies && compute == TN_F64) {
        load_f64(copy, b->data, TN_F64, b->stride[0], n);
    } else if (copies) {
        load_f32((float *)copy, b->data, b->dtype, b->stride[0], n);
    }
    gemm_job job = {.m = m, .n = n, .k = k, .alpha = 1, .threads = product_team(m, n, k)};
    job.a = side_of(x, 0, x->stride[0], x->stride[1]);
    job.b = side_of(w, 0, w->stride[1], w->stride[0]);
    job.d = copies ? copy : b ? b->data : NULL;
    return one_product(ctx, y, 0, y->stride[0], y->stride[1], job);
}
