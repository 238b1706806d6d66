/* The gradient of a 3 x 3 convolution's weight by Winograd's algorithm; conv_winograd.h explains
 * it.
 *
 * A task adds up the squares of one chunk of boxes for a block of rows and channels:
 *
 *     V        of patches with the channels innermost: vectors of VL channels
 *     dM       A dy A' of the squares of a row
 *     sums     for each point, dM (rows, squares) x V (squares, channels)
 *
 * The sums of the chunks are then added in their order and transformed. Chunks and blocks depend on
 * the shape alone, and so do the bits.
 */

enum { MOST_LANES = 4 }; /* vectors of channels in a block */

typedef struct slope_plan {
    const conv_job *job;
    conv_job squares, outputs; /* of x with its patches; of dy, which is what it reads */
    box_plan boxes;
    region patch, output; /* the largest below a box */
    int64_t lanes, blocks, row_blocks, block_rows, chunks, chunk_boxes;
    int64_t weight_tap[KERNEL * KERNEL];
    int64_t v_apart, dm_apart, sums_apart;
    T *sums; /* [chunk][block][row block][point][row][lanes VL] */
    size_t each;
} slope_plan;

typedef struct slope_memory {
    patch_memory output;
    T *channels, *turned, *v, *dm;
    int64_t *rows;
} slope_memory;

static size_t divide_slope(const slope_plan *p, char *at, slope_memory *m) {
    char *start = at;
    at = divide_patches(at, &p->output, &m->output);
    m->channels = take_bytes(&at, (size_t)(p->patch.length * VL) * sizeof(T));
    m->turned = take_bytes(&at, (size_t)(p->patch.length * VL) * sizeof(T));
    m->v = take_bytes(&at, (size_t)(POINTS * p->v_apart) * sizeof(T));
    m->dm = take_bytes(&at, (size_t)(POINTS * p->dm_apart) * sizeof(T));
    m->rows = take_bytes(&at, (size_t)(p->patch.length / p->patch.row) * sizeof(int64_t));
    return (size_t)(at - start);
}

/* V of a block of channels: [point][square][lanes VL]. */
static void transform_channels(const slope_plan *p, const slope_memory *m, const box_at *box,
                               int64_t block) {
    region r = region_below(&p->squares, box->size, false);
    find_rows(&p->squares, &r, box, m->rows);
    for (int64_t lane = 0; lane < p->lanes; lane++) {
        int64_t channel = (block * p->lanes + lane) * VL;
        if (channel >= p->job->channels) {
            for (int64_t t = 0; t < POINTS; t++) {
                for (int64_t i = 0; i < box->cols; i++) {
                    *(vec_any *)(m->v + t * p->v_apart + (i * p->lanes + lane) * VL) = (vec){0};
                }
            }
            continue;
        }
        turn_channels(&p->squares, &r, box, m->rows, channel,
                      min_of(VL, p->job->channels - channel), m->channels, m->turned);
        T *to = m->v + lane * VL;
        for (int64_t row = 0, i = 0; i < box->cols; row++) {
            const T *from = m->turned + row_in_region(&p->squares, &r, box, row) * VL;
            for (int64_t x = 0; x < box->size[3]; x++, i++, from += SQUARE * VL) {
                vec v[POINTS];
                UNROLL
                for (int t = 0; t < POINTS; t++) {
                    v[t] = *(const vec_any *)(from + (t / PATCH * r.row + t % PATCH) * VL);
                }
                patch_points(v);
                UNROLL
                for (int t = 0; t < POINTS; t++) {
                    *(vec_any *)(to + t * p->v_apart + i * p->lanes * VL) = v[t];
                }
            }
        }
    }
}

/* dM of rows [row, row + rows): [point][row][WIDE]. */
static void transform_outputs(const slope_plan *p, const slope_memory *m, const box_at *box,
                              int64_t row, int64_t rows) {
    region r = begin_patches(&p->outputs, box, &m->output);
    int64_t cols = div_up(box->cols, VL) * VL;
    for (int64_t i = 0; i < rows; i++) {
        T *to = m->dm + i * WIDE;
        if (row + i < p->job->rows) {
            copy_patches(&p->outputs, box, &r, &m->output, row + i);
        } else {
            fill_zero(m->output.panel, SQUARE * SQUARE * WIDE);
        }
        for (int64_t q = 0; q < cols; q += VL) {
            vec s[SQUARE * SQUARE], v[POINTS];
            UNROLL
            for (int t = 0; t < SQUARE * SQUARE; t++) {
                s[t] = *(const vec_any *)(m->output.panel + t * WIDE + q);
            }
            square_points(s, v);
            UNROLL
            for (int t = 0; t < POINTS; t++) {
                *(vec_any *)(to + t * p->dm_apart + q) = v[t];
            }
        }
    }
}

/* sums (ROWS, vectors VL) += dM (ROWS, squares) x V (squares, vectors VL); rows of both are
 * `apart`. */
INLINE void add_squares(const int vectors, int64_t squares, const T *dm, const T *v, T *sums,
                        int64_t apart) {
    sum_tile acc;
    load_sums(acc, ROWS, vectors, NULL, 0);
    add_product(acc, ROWS, vectors, squares, dm, WIDE, 1, v, apart, VL);
    accumulate_sums(acc, ROWS, vectors, sums, apart);
}

static void add_points(const slope_plan *p, const slope_memory *m, T *sums, int64_t squares,
                       int64_t rows) {
    int64_t apart = p->lanes * VL;
    for (int64_t t = 0; t < POINTS; t++) {
        for (int64_t i = 0; i < rows; i += ROWS) {
            const T *dm = m->dm + t * p->dm_apart + i * WIDE, *v = m->v + t * p->v_apart;
            T *to = sums + t * p->sums_apart + i * apart;
            if (p->lanes == 1) {
                add_squares(1, squares, dm, v, to, apart);
            } else if (p->lanes == 3) {
                add_squares(3, squares, dm, v, to, apart);
            } else {
                for (int64_t q = 0; q < p->lanes; q += 2) {
                    add_squares(2, squares, dm, v + q * VL, to + q * VL, apart);
                }
            }
        }
    }
}

/* The gradient of row `row` and the VL channels from `channel` on, from the sums of all chunks. */
static void store_slope(const slope_plan *p, int64_t row, int64_t channel) {
    const conv_weights *w = &p->job->w;
    int64_t block = channel / VL / p->lanes, lane = channel / VL % p->lanes, apart = p->lanes * VL,
            from = ((block * p->row_blocks + row / p->block_rows) * POINTS) * p->sums_apart +
                   row % p->block_rows * apart + lane * VL,
            chunk = p->blocks * p->row_blocks * POINTS * p->sums_apart;
    vec u[POINTS], g[KERNEL * KERNEL];
    UNROLL
    for (int t = 0; t < POINTS; t++) {
        u[t] = (vec){0};
        for (int64_t i = 0; i < p->chunks; i++) {
            u[t] += *(const vec_any *)(p->sums + i * chunk + from + t * p->sums_apart);
        }
    }
    kernel_slope(u, g);
    T *to = (T *)w->data + row * w->row + channel * w->channel;
    for (int64_t c = 0; c < min_of(VL, p->job->channels - channel); c++, to += w->channel) {
        UNROLL
        for (int t = 0; t < KERNEL * KERNEL; t++) {
            to[p->weight_tap[t]] = g[t][c];
        }
    }
}

static void run_slope_thread(const slope_plan *p, char *memory) {
    slope_memory m;
    divide_slope(p, memory, &m);
    int64_t tiles = div_up(p->job->rows, ROWS), blocks = p->blocks * p->row_blocks,
            lanes = div_up(p->job->channels, VL);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < p->chunks * blocks; i++) {
        int64_t chunk = i / blocks, block = i % blocks / p->row_blocks,
                row = i % p->row_blocks * p->block_rows,
                rows = min_of(p->block_rows, tiles * ROWS - row);
        T *sums = p->sums + i * POINTS * p->sums_apart;
        memset(sums, 0, (size_t)(POINTS * p->sums_apart) * sizeof(T));
        for (int64_t b = chunk * p->chunk_boxes;
             b < min_of((chunk + 1) * p->chunk_boxes, p->boxes.all); b++) {
            box_at box = find_box(&p->boxes, b);
            transform_channels(p, &m, &box, block);
            transform_outputs(p, &m, &box, row, rows);
            add_points(p, &m, sums, box.cols, rows);
        }
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < p->job->rows * lanes; i++) {
        store_slope(p, i / lanes, i % lanes * VL);
    }
}

/* Blocks whose sums stay in the L2 cache, and chunks of at least LEAST_BOXES boxes: up to TASKS of
 * both, which bounds the memory of the sums. */
static void plan_slope(slope_plan *p) {
    enum { MOST_BLOCK_ROWS = 128, LEAST_BOXES = 16, TASKS = 32 };
    const conv_job *job = p->job;
    p->squares = squares_of(job, PATCH);
    p->outputs = squares_of(job, SQUARE);
    p->outputs.x = job->y;
    p->outputs.walk[1].origin = p->outputs.walk[2].origin = 0;
    p->boxes = plan_boxes(&p->squares, WIDE);
    p->patch = region_below(&p->squares, p->boxes.size, false);
    p->output = region_below(&p->outputs, p->boxes.size, true);
    int64_t vectors = div_up(job->channels, VL), tiles = div_up(job->rows, ROWS);
    p->lanes = div_up(vectors, div_up(vectors, MOST_LANES));
    p->blocks = div_up(vectors, p->lanes);
    p->block_rows = div_up(tiles, div_up(tiles * ROWS, MOST_BLOCK_ROWS)) * ROWS;
    p->row_blocks = div_up(tiles * ROWS, p->block_rows);
    int64_t most = max_of(1, TASKS / (p->blocks * p->row_blocks));
    p->chunk_boxes = div_up(p->boxes.all, min_of(most, div_up(p->boxes.all, LEAST_BOXES)));
    p->chunks = div_up(p->boxes.all, p->chunk_boxes);
    p->v_apart = points_apart(p->lanes * VL * WIDE);
    p->dm_apart = points_apart(p->block_rows * WIDE);
    p->sums_apart = points_apart(p->block_rows * p->lanes * VL);
    find_weight_taps(job, p->weight_tap);
}

tn_status WINOGRAD_WEIGHT(tn_context *ctx, const conv_job *job) {
    slope_plan p = {.job = job};
    plan_slope(&p);
    int threads = team_size(INT32_MAX, work_of(job) / 16);
    slope_memory unused;
    p.each = divide_slope(&p, NULL, &unused);
    size_t sums =
        round_up((size_t)(p.chunks * p.blocks * p.row_blocks * POINTS * p.sums_apart) * sizeof(T));
    TN__SCRATCH(char, memory, ctx, sums + (size_t)threads * p.each);
    if (!memory) { return TN_ENOMEM; }
    p.sums = (T *)memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
    run_slope_thread(&p, memory + sums + (size_t)omp_get_thread_num() * p.each);
    return TN_OK;
}
