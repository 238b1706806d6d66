/* 3 x 3 convolutions with a step of 1 in fewer multiplications: F(2 x 2, 3 x 3) of Winograd's
 * algorithms (Lavin, Gray 2015, arXiv:1509.09308). conv_f32.c includes it.
 *
 * A square is 2 x 2 places of the result; its patch is the 4 x 4 elements of the input below it.
 * With
 *
 *     V = B' d B      of the patch d of each channel, by additions alone
 *     U = G g G'      of the weights g of each row and channel, once per call
 *
 * the square is A' (sum over channels of U V, point by point) A: 16 multiplications instead of 36,
 * as 16 products of matrices (rows, channels) x (channels, squares). The gradient of the weight is
 * G' (sum over squares of (A dy A') V) G.
 *
 * Squares are the places, and the elements of a patch the taps, of a job with a step of 2, whose
 * boxes, regions and panels are those of conv_region.h.
 *
 * Rounding errors are about half of those of the direct sums, whose chains are nine times as long.
 * An infinity or a NaN in a patch reaches all of its square.
 */

enum { POINTS = 16, PATCH = 4, SQUARE = 2, KERNEL = 3 };

typedef T row_vec __attribute__((vector_size(ROWS * sizeof(T)), aligned(sizeof(T)), may_alias));

/* ---- Transforms: first the columns of a matrix, then its rows -------------------------------- */

/* B' d B of a patch, in place. */
INLINE void patch_line(vec *d, const int apart) {
    vec d0 = d[0], d1 = d[apart], d2 = d[2 * apart], d3 = d[3 * apart];
    d[0] = d0 - d2;
    d[apart] = d1 + d2;
    d[2 * apart] = d2 - d1;
    d[3 * apart] = d1 - d3;
}
INLINE void patch_points(vec *d) {
    UNROLL
    for (int i = 0; i < PATCH; i++) {
        patch_line(d + i, PATCH);
    }
    UNROLL
    for (int i = 0; i < PATCH; i++) {
        patch_line(d + i * PATCH, 1);
    }
}

/* A dy A' of a square: s (2, 2) to v (4, 4). */
INLINE void square_line(vec a, vec b, vec *v, const int apart) {
    v[0] = a;
    v[apart] = a + b;
    v[2 * apart] = a - b;
    v[3 * apart] = -b;
}
INLINE void square_points(const vec *s, vec *v) {
    vec column[PATCH * SQUARE];
    UNROLL
    for (int i = 0; i < SQUARE; i++) {
        square_line(s[i], s[SQUARE + i], column + i, SQUARE);
    }
    UNROLL
    for (int i = 0; i < PATCH; i++) {
        square_line(column[i * SQUARE], column[i * SQUARE + 1], v + i * PATCH, 1);
    }
}

/* A' m A: m (4, 4) to a square. */
INLINE void result_line(const vec *m, const int apart, vec *a, vec *b) {
    *a = m[0] + m[apart] + m[2 * apart];
    *b = m[apart] - m[2 * apart] - m[3 * apart];
}
INLINE void square_result(const vec *m, vec *s) {
    vec half[SQUARE * PATCH];
    UNROLL
    for (int i = 0; i < PATCH; i++) {
        result_line(m + i, PATCH, half + i, half + PATCH + i);
    }
    UNROLL
    for (int i = 0; i < SQUARE; i++) {
        result_line(half + i * PATCH, 1, s + i * SQUARE, s + i * SQUARE + 1);
    }
}

/* G g G' of ROWS kernels: g (3, 3) to u (4, 4). */
INLINE void kernel_line(row_vec g0, row_vec g1, row_vec g2, row_vec *u, const int apart) {
    row_vec outer = g0 + g2;
    u[0] = g0;
    u[apart] = (outer + g1) * (T)0.5;
    u[2 * apart] = (outer - g1) * (T)0.5;
    u[3 * apart] = g2;
}
INLINE void kernel_points(const row_vec *g, row_vec *u) {
    row_vec column[PATCH * KERNEL];
    UNROLL
    for (int i = 0; i < KERNEL; i++) {
        kernel_line(g[i], g[KERNEL + i], g[2 * KERNEL + i], column + i, KERNEL);
    }
    UNROLL
    for (int i = 0; i < PATCH; i++) {
        const row_vec *c = column + i * KERNEL;
        kernel_line(c[0], c[1], c[2], u + i * PATCH, 1);
    }
}

/* G' u G: u (4, 4) to the gradient of a kernel. */
INLINE void slope_line(const vec *u, const int apart, vec *g, const int g_apart) {
    vec sum = (u[apart] + u[2 * apart]) * (T)0.5;
    g[0] = u[0] + sum;
    g[g_apart] = (u[apart] - u[2 * apart]) * (T)0.5;
    g[2 * g_apart] = sum + u[3 * apart];
}
INLINE void kernel_slope(const vec *u, vec *g) {
    vec column[KERNEL * PATCH];
    UNROLL
    for (int i = 0; i < PATCH; i++) {
        slope_line(u + i, PATCH, column + i, PATCH);
    }
    UNROLL
    for (int i = 0; i < KERNEL; i++) {
        slope_line(column + i * PATCH, 1, g + i * KERNEL, 1);
    }
}

/* ---- What both directions need --------------------------------------------------------------- */

/* The job whose places are squares, and whose taps are `taps` of each dimension. */
static conv_job squares_of(const conv_job *job, int64_t taps) {
    conv_job squares = *job;
    for (int d = 1; d < SPATIAL; d++) {
        conv_walk *w = &squares.walk[d];
        w->places = div_up(w->places, SQUARE);
        w->step = SQUARE;
        w->taps = taps;
        w->falls = false;
    }
    return squares;
}

/* Whether the transforms, which cost additions and passes over the caches, are worth it: with few
 * channels, or where much of squares or vectors is outside the result, they are not. */
bool WINOGRAD_FITS(const conv_job *job) {
    enum { LEAST = 32 };
    const conv_walk *w = job->walk;
    bool plain = job->x.dtype == PLAIN && job->y.dtype == PLAIN && job->w.dtype == PLAIN &&
                 job->y.stride[2] == 1 && job->groups == 1;
    bool flat = w[0].places == 1 && w[0].taps == 1 && w[0].origin == 0;
    for (int d = 1; d < SPATIAL; d++) {
        plain = plain && w[d].taps == KERNEL && w[d].step == 1 && w[d].shift == 1;
    }
    if (!plain || !flat || job->rows < LEAST || job->channels < LEAST) { return false; }
    int64_t places = job->images * w[1].places * w[2].places,
            squares = job->images * div_up(w[1].places, SQUARE) * div_up(w[2].places, SQUARE);
    return squares >= VL &&
           5 * POINTS * div_up(squares, VL) <= 4 * KERNEL * KERNEL * div_up(places, VL);
}

/* A region of one channel or row, and a panel of its taps. */
typedef struct patch_memory {
    T *region, *panel;
    int64_t *tap, *rows;
    move_at *moves;
    int32_t *first;
} patch_memory;

static char *divide_patches(char *at, const region *largest, patch_memory *m) {
    m->region = take_bytes(&at, (size_t)(largest->length + WIDE) * sizeof(T));
    m->panel = take_bytes(&at, (size_t)((POINTS + 1) * WIDE) * sizeof(T));
    m->tap = take_bytes(&at, POINTS * sizeof(int64_t));
    m->rows = take_bytes(&at, (size_t)(largest->length / largest->row) * sizeof(int64_t));
    m->moves = take_bytes(&at, (size_t)(COLS + WIDE) * sizeof(move_at));
    m->first = take_bytes(&at, (COLS / WIDE + 2) * sizeof(int32_t));
    return at;
}

/* Prepares panels of a box. Columns after the box are never stored, but must not be slow: memory
 * that was not written may hold subnormal numbers. */
static region begin_patches(const conv_job *squares, const box_at *box, const patch_memory *m) {
    region r = region_below(squares, box->size, true);
    for (int64_t t = 0; t < tap_count(squares); t++) {
        m->tap[t] = tap_in_region(squares, &r, t);
    }
    find_rows(squares, &r, box, m->rows);
    plan_moves(squares, &r, box, m->moves, m->first);
    fill_zero(m->region + r.length, WIDE);
    fill_zero(m->panel, (POINTS + 1) * WIDE);
    return r;
}

/* m->panel (taps, WIDE) of one channel. */
static void copy_patches(const conv_job *squares, const box_at *box, const region *r,
                         const patch_memory *m, int64_t channel) {
    copy_region(squares, r, box, m->rows, channel, m->region);
    pack_rows(m->panel, m->region, r->length, 1, m->tap, tap_count(squares), m->moves, m->first[1]);
}

/* Matrices of the 16 points are one vector more than their size apart: at a multiple of 4 KiB they
 * would share a few lines of the L1 cache. */
INLINE int64_t points_apart(int64_t elements) {
    return elements + VL;
}

/* ---- The forward direction ------------------------------------------------------------------- */

typedef struct winograd_plan {
    const conv_job *job;
    conv_job squares;
    box_plan boxes;
    region largest; /* of any box */
    int64_t row_blocks, block_rows;
    int64_t order[KERNEL * KERNEL]; /* where the weights of tap t are among packed ones */
    int64_t weight_tap[KERNEL * KERNEL];
    T *weights; /* U: [point][row / ROWS][channel][ROWS] */
    int64_t weights_apart, v_apart, sums_apart;
    size_t each;
} winograd_plan;

typedef struct winograd_memory {
    patch_memory patches;
    T *kernels; /* [channel][tap][ROWS] */
    T *v;       /* [point][channel][WIDE] */
    T *sums;    /* [point][row][WIDE] */
} winograd_memory;

static size_t divide_winograd(const winograd_plan *p, char *at, winograd_memory *m) {
    char *start = at;
    at = divide_patches(at, &p->largest, &m->patches);
    m->kernels = take_bytes(&at, (size_t)(p->job->channels * KERNEL * KERNEL * ROWS) * sizeof(T));
    m->v = take_bytes(&at, (size_t)(POINTS * p->v_apart) * sizeof(T));
    m->sums = take_bytes(&at, (size_t)(POINTS * p->sums_apart) * sizeof(T));
    return (size_t)(at - start);
}

/* U of ROWS rows. */
static void transform_kernels(const winograd_plan *p, const winograd_memory *m, int64_t tile) {
    int64_t channels = p->job->channels;
    pack_weights(p->job, 0, tile * ROWS, p->weight_tap, m->kernels);
    for (int64_t c = 0; c < channels; c++) {
        row_vec g[KERNEL * KERNEL], u[POINTS];
        UNROLL
        for (int t = 0; t < KERNEL * KERNEL; t++) {
            g[t] = *(row_vec *)(m->kernels + (c * KERNEL * KERNEL + p->order[t]) * ROWS);
        }
        kernel_points(g, u);
        UNROLL
        for (int t = 0; t < POINTS; t++) {
            *(row_vec *)(p->weights + t * p->weights_apart + (tile * channels + c) * ROWS) = u[t];
        }
    }
}

/* V of a box. */
static void transform_patches(const winograd_plan *p, const winograd_memory *m, const box_at *box) {
    region r = begin_patches(&p->squares, box, &m->patches);
    int64_t cols = div_up(box->cols, VL) * VL;
    for (int64_t c = 0; c < p->job->channels; c++) {
        copy_patches(&p->squares, box, &r, &m->patches, c);
        for (int64_t i = 0; i < cols; i += VL) {
            vec v[POINTS];
            UNROLL
            for (int t = 0; t < POINTS; t++) {
                v[t] = *(const vec_any *)(m->patches.panel + t * WIDE + i);
            }
            patch_points(v);
            UNROLL
            for (int t = 0; t < POINTS; t++) {
                *(vec_any *)(m->v + t * p->v_apart + c * WIDE + i) = v[t];
            }
        }
    }
}

/* The squares of row `row` of the sums, to two lines of twice as many places. */
static void untransform_row(const winograd_plan *p, const T *sums, int64_t cols,
                            T lines[SQUARE][SQUARE * WIDE]) {
    for (int64_t i = 0; i < cols; i += VL) {
        vec m[POINTS], s[SQUARE * SQUARE];
        UNROLL
        for (int t = 0; t < POINTS; t++) {
            m[t] = *(const vec_any *)(sums + t * p->sums_apart + i);
        }
        square_result(m, s);
        UNROLL
        for (int y = 0; y < SQUARE; y++) {
            const vec left = s[y * SQUARE], right = s[y * SQUARE + 1];
            T *line = lines[y] + SQUARE * i;
#pragma omp simd
            for (int q = 0; q < VL; q++) {
                line[SQUARE * q] = left[q];
                line[SQUARE * q + 1] = right[q];
            }
        }
    }
}

/* The squares of a box in channel `channel` of the result. */
static void store_squares(const conv_job *job, const box_at *box, int64_t channel,
                          T lines[SQUARE][SQUARE * WIDE]) {
    T bias = bias_of(job, channel);
    int64_t width = min_of(SQUARE * box->size[3], job->walk[2].places - SQUARE * box->first[3]);
    for (int64_t i = 0; i < box->size[0] * box->size[2]; i++) {
        int64_t image = box->first[0] + i / box->size[2],
                row = SQUARE * (box->first[2] + i % box->size[2]);
        T *to = (T *)job->y.data + image * job->y.image + channel * job->y.channel +
                row * job->y.stride[1] + SQUARE * box->first[3];
        for (int64_t y = 0; y < min_of(SQUARE, job->walk[1].places - row); y++) {
            copy_plus(to + y * job->y.stride[1], lines[y] + i * SQUARE * box->size[3], width, bias);
        }
    }
}

/* One box, rows [row, row + rows) of it. */
static void run_squares(const winograd_plan *p, const winograd_memory *m, int64_t number,
                        int64_t row, int64_t rows) {
    const conv_job *job = p->job;
    box_at box = find_box(&p->boxes, number);
    int64_t channels = job->channels, cut = div_up(channels, div_up(channels, DEPTH));
    transform_patches(p, m, &box);
    for (int64_t t = 0; t < POINTS; t++) {
        const T *weights = p->weights + t * p->weights_apart + row * channels;
        for (int64_t c = 0; c < channels; c += cut) {
            for (int64_t i = 0; i < rows; i += ROWS) {
                sum_panel(min_of(cut, channels - c), weights + i * channels + c * ROWS,
                          m->v + t * p->v_apart + c * WIDE, m->sums + t * p->sums_apart + i * WIDE,
                          WIDE, c > 0, box.cols);
            }
        }
    }
    for (int64_t i = 0; i < min_of(rows, job->rows - row); i++) {
        T lines[SQUARE][SQUARE * WIDE];
        untransform_row(p, m->sums + i * WIDE, box.cols, lines);
        store_squares(job, &box, row + i, lines);
    }
}

static void run_winograd_thread(const winograd_plan *p, char *memory) {
    winograd_memory m;
    divide_winograd(p, memory, &m);
    int64_t tiles = div_up(p->job->rows, ROWS);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < tiles; i++) {
        transform_kernels(p, &m, i);
    }
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < p->boxes.all * p->row_blocks; i++) {
        int64_t row = i % p->row_blocks * p->block_rows;
        run_squares(p, &m, i / p->row_blocks, row, min_of(p->block_rows, tiles * ROWS - row));
    }
}

/* The order of taps: by their places in the input, and as they are in the weight. */
static void order_taps(winograd_plan *p) {
    const conv_walk *w = p->job->walk;
    for (int64_t t = 0; t < KERNEL * KERNEL; t++) {
        int64_t y = t / KERNEL, x = t % KERNEL;
        p->order[t] = tap_offset(&w[1], y) * KERNEL + tap_offset(&w[2], x);
    }
    find_weight_taps(p->job, p->weight_tap);
}

tn_status WINOGRAD(tn_context *ctx, const conv_job *job) {
    enum { LEAST_ROWS = 64 }; /* each block of rows transforms the patches again */
    winograd_plan p = {.job = job, .squares = squares_of(job, PATCH)};
    p.boxes = plan_boxes(&p.squares, WIDE);
    p.largest = region_below(&p.squares, p.boxes.size, true);
    order_taps(&p);
    int threads = team_size(INT32_MAX, work_of(job) / 16);
    int64_t tiles = div_up(job->rows, ROWS), pieces = 1;
    while (threads > 1 && p.boxes.all * pieces < 3 * threads &&
           tiles * ROWS >= 2 * pieces * LEAST_ROWS) {
        pieces *= 2;
    }
    p.block_rows = div_up(tiles, pieces) * ROWS;
    p.row_blocks = div_up(tiles * ROWS, p.block_rows);
    p.weights_apart = points_apart(tiles * ROWS * job->channels);
    p.v_apart = points_apart(job->channels * WIDE);
    p.sums_apart = points_apart(p.block_rows * WIDE);
    winograd_memory unused;
    p.each = divide_winograd(&p, NULL, &unused);
    size_t weights = round_up((size_t)(POINTS * p.weights_apart) * sizeof(T));
    TN__SCRATCH(char, memory, ctx, weights + (size_t)threads * p.each);
    if (!memory) { return TN_ENOMEM; }
    p.weights = (T *)memory;
#pragma omp parallel num_threads(threads) if (threads > 1)
    run_winograd_thread(&p, memory + weights + (size_t)omp_get_thread_num() * p.each);
    return TN_OK;
}
