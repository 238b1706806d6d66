/* Convolutions of bf16 on tiles, where channels are last in memory: products with a block of
 * patches, which are gathered for it, whole rows of channels at a time.
 *
 *     patches (pixels, taps channels): what x has around each pixel of y, of all images
 *     y = weights (rows, taps channels) patches^T + bias;    dw = dy^T patches, block after block
 */
#include "backends/cpu/conv.h"
#include "backends/cpu/convert.h"
#include "backends/cpu/gemm.h"

enum { UNIT = 32, MOST_PIXELS = 512, PATCH_ELEMENTS = 1 << 18 };

/* The patches of one group: rows of k = tap channels + c, filled with 0 up to `depth`. */
typedef struct patches {
    conv_side side;
    conv_walk walk[SPATIAL];
    int64_t channels, taps, depth, places, pixels;
} patches;

/* Consecutive pixels that differ in the last dimension only. */
typedef struct pixel_run {
    int64_t count, image, at[SPATIAL];
} pixel_run;

static patches patches_of(const conv_job *job, const conv_side *side, int64_t channels, int64_t g) {
    patches p = {.side = *side, .channels = channels};
    memcpy(p.walk, job->walk, sizeof(p.walk));
    p.side.data = (uint16_t *)side->data + g * channels;
    p.taps = p.walk[0].taps * p.walk[1].taps * p.walk[2].taps;
    p.depth = div_up(p.taps * channels, UNIT) * UNIT;
    p.places = p.walk[0].places * p.walk[1].places * p.walk[2].places;
    p.pixels = job->images * p.places;
    return p;
}

static pixel_run run_from(const patches *p, int64_t q, int64_t end) {
    int64_t place = q % p->places, width = p->walk[2].places;
    pixel_run r = {.image = q / p->places};
    r.at[2] = place % width;
    r.at[1] = place / width % p->walk[1].places;
    r.at[0] = place / width / p->walk[1].places;
    r.count = min_of(width - r.at[2], end - q);
    return r;
}

/* Tap t in dimension d. */
static int64_t tap_in(const conv_walk *w, int64_t t, int d) {
    return d == 2 ? t % w[2].taps : d == 1 ? t / w[2].taps % w[1].taps : t / w[2].taps / w[1].taps;
}

/* Tap t of a run: pixels [first, end) of it lie in x, the first pixel of the run at `from`. */
static const uint16_t *find_tap(const patches *p, const pixel_run *r, int64_t t, int64_t *first,
                                int64_t *end) {
    const conv_side *x = &p->side;
    int64_t at[SPATIAL], step = p->walk[2].step;
    for (int d = 0; d < SPATIAL; d++) {
        const conv_walk *w = &p->walk[d];
        int64_t j = tap_in(p->walk, t, d);
        at[d] = w->origin + r->at[d] * w->step + (w->falls ? w->taps - 1 - j : j) * w->shift;
    }
    bool inside = at[0] >= 0 && at[0] < x->size[0] && at[1] >= 0 && at[1] < x->size[1];
    *first = min_of(at[2] < 0 ? div_up(-at[2], step) : 0, r->count);
    *end = inside && at[2] < x->size[2] ? min_of(div_up(x->size[2] - at[2], step), r->count) : 0;
    return (const uint16_t *)x->data + r->image * x->image + at[0] * x->stride[0] +
           at[1] * x->stride[1] + at[2] * x->stride[2];
}

/* Pixels [q, end) to rows of a block. */
static void gather_patches(const patches *p, int64_t q, int64_t end, uint16_t *to) {
    int64_t step = p->walk[2].step * p->side.stride[2], used = p->taps * p->channels;
    while (q < end) {
        pixel_run r = run_from(p, q, end);
        for (int64_t t = 0; t < p->taps; t++) {
            int64_t first, last;
            const uint16_t *x = find_tap(p, &r, t, &first, &last);
            for (int64_t i = 0; i < r.count; i++) {
                uint16_t *row = to + i * p->depth + t * p->channels;
                if (i >= first && i < last) {
                    memcpy(row, x + i * step, (size_t)p->channels * sizeof(*x));
                } else {
                    memset(row, 0, (size_t)p->channels * sizeof(*x));
                }
            }
        }
        for (int64_t i = 0; i < r.count; i++, to += p->depth) {
            memset(to + used, 0, (size_t)(p->depth - used) * sizeof(*to));
        }
        q += r.count;
    }
}

/* Gathered patches as A (pixels, k); `turned`: as (k, pixels). */
static gemm_side patch_side(const patches *p, const uint16_t *data, bool turned) {
    return (gemm_side){data, TN_BF16, turned ? 1 : p->depth, turned ? p->depth : 1};
}

static int64_t tap_weight(const conv_job *job, int64_t t) {
    const conv_weights *w = &job->w;
    int64_t at = 0;
    for (int d = 0; d < SPATIAL; d++) {
        at += (w->first[d] + tap_in(job->walk, t, d) * w->each[d]) * w->stride[d];
    }
    return at;
}

/* Row m of a group's weights in the order of patches. */
static void gather_weights(const conv_job *job, const patches *p, int64_t g, int64_t m,
                           uint16_t *row) {
    const conv_weights *w = &job->w;
    memset(row, 0, (size_t)p->depth * sizeof(*row));
    for (int64_t t = 0; t < p->taps; t++) {
        const uint16_t *from =
            (const uint16_t *)w->data + g * w->group + m * w->row + tap_weight(job, t);
        for (int64_t c = 0; c < p->channels; c++) {
            row[t * p->channels + c] = from[c * w->channel];
        }
    }
}

/* With few rows or a short sum a tile is mostly empty. */
static bool tiles_fit(const conv_job *job) {
    int64_t taps = job->walk[0].taps * job->walk[1].taps * job->walk[2].taps;
    return tn__cpu_tiles && job->x.dtype == TN_BF16 && job->y.dtype == TN_BF16 &&
           job->w.dtype != TN_F16 && job->x.channel == 1 && job->y.channel == 1 &&
           job->rows >= 16 && taps * job->channels >= UNIT;
}

/* ---- Forward, and the gradient of the input -------------------------------------------------- */

typedef struct forward {
    const conv_job *job;
    const patches *p;
    const uint16_t *weights; /* (rows, depth) */
    int64_t g, block;
} forward;

/* Between sums (pixels, rows) and y: bias to sums, or sums to y. */
static void move_sums(const forward *f, int64_t q0, int64_t n, float *sums, bool to_y) {
    const conv_job *job = f->job;
    const conv_side *y = &job->y;
    int64_t rows = job->rows;
    const uint16_t *bias = job->bias;
    for (int64_t i = 0; i < rows * n && bias && !to_y; i++) {
        sums[i] = from_bf16(bias[(f->g * rows + i % rows) * job->bias_stride]);
    }
    for (int64_t q = 0; q < n && to_y;) {
        pixel_run r = run_from(f->p, q0 + q, q0 + n);
        uint16_t *to = (uint16_t *)y->data + r.image * y->image + f->g * rows +
                       r.at[0] * y->stride[0] + r.at[1] * y->stride[1] + r.at[2] * y->stride[2];
        for (int64_t i = 0; i < r.count; i++) {
            store_f32(to + i * y->stride[2], TN_BF16, 1, sums + (q + i) * rows, rows);
        }
        q += r.count;
    }
}

static tn_status run_pixels(tn_context *ctx, const forward *f, int64_t q, int64_t n) {
    const conv_job *job = f->job;
    int64_t half = f->block * f->p->depth / 2; /* floats that the patches take */
    TN__SCRATCH(float, memory, ctx, half + f->block * job->rows);
    if (!memory) { return TN_ENOMEM; }
    float *sums = memory + half;
    uint16_t *data = (uint16_t *)memory;
    gather_patches(f->p, q, q + n, data);
    gemm_job product = {.m = n,
                        .n = job->rows,
                        .k = f->p->depth,
                        .alpha = 1,
                        .beta = job->bias ? 1 : 0,
                        .a = patch_side(f->p, data, false),
                        .b = {f->weights, TN_BF16, 1, f->p->depth},
                        .c = sums,
                        .ldc = job->rows,
                        .d = sums,
                        .ldd = job->rows,
                        .threads = 1};
    move_sums(f, q, n, sums, false);
    tn_status status = TN_CPU(gemm_bf16)(ctx, &product);
    if (status == TN_OK) { move_sums(f, q, n, sums, true); }
    return status;
}

tn_status TN_CPU(conv_tiles)(tn_context *ctx, const conv_job *job) {
    patches p = patches_of(job, &job->x, job->channels, 0);
    if (!tiles_fit(job) || p.pixels == 0) { return TN_EUNSUPPORTED; }
    TN__SCRATCH(uint16_t, weights, ctx, job->rows * p.depth);
    if (!weights) { return TN_ENOMEM; }
    int64_t block = div_up(min_of(MOST_PIXELS, PATCH_ELEMENTS / p.depth), 2 * UNIT) * 2 * UNIT,
            blocks = div_up(p.pixels, block);
    int threads = team_size(max_of(blocks, 2), job->rows * p.depth * p.pixels / 64);
    tn_status result = TN_OK;
    for (int64_t g = 0; g < job->groups; g++) {
        p = patches_of(job, &job->x, job->channels, g);
        forward f = {job, &p, weights, g, block};
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
#pragma omp for schedule(static)
            for (int64_t m = 0; m < job->rows; m++) {
                gather_weights(job, &p, g, m, weights + m * p.depth);
            }
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < blocks; i++) {
                tn_status status =
                    run_pixels(ctx, &f, i * block, min_of(block, p.pixels - i * block));
                if (status != TN_OK) {
#pragma omp atomic write
                    result = status;
                }
            }
        }
    }
    return result;
}

/* ---- The gradient of the weight -------------------------------------------------------------- */

/* dw of a group from its sums (rows, taps channels). */
static void store_weights(const conv_job *job, const patches *p, int64_t g, const float *sums) {
    const conv_weights *w = &job->w;
    for (int64_t m = 0; m < job->rows; m++) {
        for (int64_t t = 0; t < p->taps; t++, sums += p->channels) {
            int64_t at = g * w->group + m * w->row + tap_weight(job, t);
            store_f32((char *)(uintptr_t)w->data + at * (int64_t)size_of(w->dtype), w->dtype,
                      w->channel, sums, p->channels);
        }
    }
}

tn_status TN_CPU(conv_tiles_weight)(tn_context *ctx, const conv_job *job) {
    patches p = patches_of(job, &job->x, job->channels, 0);
    if (!tiles_fit(job)) { return TN_EUNSUPPORTED; }
    enum { PART = 64 };
    int64_t k = p.taps * p.channels, block = MOST_PIXELS;
    int64_t across = div_up(job->rows, UNIT) * UNIT, half = block * (p.depth + across) / 2;
    TN__SCRATCH(float, memory, ctx, half + job->rows * k);
    if (!memory) { return TN_ENOMEM; }
    float *sums = memory + half;
    uint16_t *x_data = (uint16_t *)memory, *y_data = x_data + block * p.depth;
    int threads = team_size(INT32_MAX, job->rows * k * p.pixels / 64);
    tn_status status = TN_OK;
    for (int64_t g = 0; g < job->groups && status == TN_OK; g++) {
        p = patches_of(job, &job->x, job->channels, g);
        patches y = patches_of(job, &job->y, job->rows, g);
        for (int d = 0; d < SPATIAL; d++) {
            y.walk[d] = (conv_walk){.places = job->walk[d].places, .step = 1, .taps = 1};
        }
        y.taps = 1;
        y.depth = across;
        memset(sums, 0, (size_t)(job->rows * k) * sizeof(*sums)); /* of no pixels */
        for (int64_t q = 0; q < p.pixels && status == TN_OK; q += block) {
            int64_t n = min_of(block, p.pixels - q);
#pragma omp parallel for num_threads(threads) if (threads > 1)
            for (int64_t i = 0; i < n; i += PART) {
                int64_t end = q + min_of(i + PART, n);
                gather_patches(&p, q + i, end, x_data + i * p.depth);
                gather_patches(&y, q + i, end, y_data + i * y.depth);
            }
            gemm_job product = {.m = job->rows,
                                .n = k,
                                .k = n,
                                .alpha = 1,
                                .beta = q > 0,
                                .a = patch_side(&y, y_data, true),
                                .b = patch_side(&p, x_data, false),
                                .c = sums,
                                .ldc = k,
                                .d = sums,
                                .ldd = k,
                                .threads = threads};
            status = TN_CPU(gemm_bf16)(ctx, &product);
        }
        store_weights(job, &p, g, sums);
    }
    return status;
}
