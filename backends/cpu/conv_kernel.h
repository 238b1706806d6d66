/* Convolutions as products of matrices that are never materialised; conv_f32.c and conv_f64.c
 * include it with T set to their type.
 *
 * A result is cut into boxes of places (images, depths, rows, columns), flattened to up to COLS
 * columns. For each box and each cut of the input channels:
 *
 *     region   the input below the box, channel by channel, converted and with zeros around it.
 *              With a stride along the rows, each remainder has its own run, so every tap of the
 *              kernel reads the columns of a row side by side
 *     panels   row k = (channel, tap) of WIDE columns: copies of vectors out of the region
 *     sums     ROWS rows of weights, packed once per call, times a panel: the micro kernel
 *
 * The gradient of the weight multiplies the other way around: sums over places of a row of dy times
 * vectors of VL input channels, for which the region has its channels innermost. With few channels
 * the vectors are of (channel, tap), and the panels are transposed.
 *
 * An element is one chain of multiply-adds over k (or over places), cut by the shape alone and
 * computed by one thread: the bits do not depend on the number of threads.
 */
#include "backends/cpu/conv_region.h"

/* ---- Weights --------------------------------------------------------------------------------- */

/* Whether the taps of a channel are contiguous, in their order. */
static bool taps_are_run(const int64_t *tap, int64_t taps) {
    int64_t t = 1;
    while (t < taps && tap[t] == tap[0] + t) {
        t++;
    }
    return t >= taps;
}

/* ROWS rows from `row` on of a group: to[(c taps + t) ROWS + m]. */
static void pack_weights(const conv_job *job, int64_t group, int64_t row, const int64_t *tap,
                         T *to) {
    const conv_weights *w = &job->w;
    conv_side from = {(void *)w->data, w->dtype, 0, 0, {0}, {0}};
    int64_t taps = tap_count(job), rows = min_of(ROWS, job->rows - row),
            first = group * w->group + row * w->row;
    /* `all`: the channels are contiguous as well */
    if (rows == ROWS && w->dtype == PLAIN && taps_are_run(tap, taps)) {
        bool all = w->channel == taps;
        for (int64_t c = 0; c < (all ? 1 : job->channels); c++) {
            transpose_panel(to + c * taps * ROWS, ROWS,
                            (const T *)w->data + first + tap[0] + c * w->channel, w->row,
                            all ? job->channels * taps : taps);
        }
        return;
    }
    for (int64_t c = 0; c < job->channels; c++) {
        for (int64_t t = 0; t < taps; t++, to += ROWS) {
            fill_zero(to, ROWS);
            load_row(to, &from, first + c * w->channel + tap[t], w->row, rows);
        }
    }
}

/* ---- The forward direction ------------------------------------------------------------------- */

/* sums (ROWS, vectors VL), `apart` a row, = A (ROWS, k) x panel, added to them if `adds`. */
INLINE void sum_vectors(const int vectors, int64_t k, const T *a, const T *b, T *sums,
                        int64_t apart, bool adds) {
    sum_tile acc;
    load_sums(acc, ROWS, vectors, adds ? sums : NULL, apart);
    add_product(acc, ROWS, vectors, k, a, 1, ROWS, b, WIDE, VL);
    store_sums(acc, ROWS, vectors, sums, apart);
}

static void sum_panel(int64_t k, const T *a, const T *b, T *sums, int64_t apart, bool adds,
                      int64_t cols) {
    if (cols > 2 * VL) {
        sum_vectors(3, k, a, b, sums, apart, adds);
    } else if (cols > VL) {
        sum_vectors(2, k, a, b, sums, apart, adds);
    } else {
        sum_vectors(1, k, a, b, sums, apart, adds);
    }
}

/* What all threads of a call share, and the size of one thread's memory. */
typedef struct conv_plan {
    const conv_job *job;
    box_plan boxes;
    region largest; /* of any box */
    int64_t taps, cut, row_blocks, block_rows;
    int64_t turn;        /* boxes that a thread takes at a time */
    T *weights;          /* [group][row / ROWS][channel][tap][ROWS] */
    int64_t *weight_tap; /* [taps]: in the weight */
    size_t each;         /* bytes of a thread's memory */
} conv_plan;

typedef struct conv_memory {
    T *regions, *panel, *sums;
    int64_t *tap, *rows;
    move_at *moves;
    int32_t *first;
} conv_memory;

/* The parts of a thread's memory, and its size. */
static size_t divide_memory(const conv_plan *p, char *at, conv_memory *m) {
    char *start = at;
    m->regions = take_bytes(&at, (size_t)(p->cut * p->largest.length + WIDE) * sizeof(T));
    m->panel = take_bytes(&at, (size_t)(WIDE * (p->cut * p->taps + 1)) * sizeof(T));
    m->sums = take_bytes(&at, (size_t)(p->block_rows * COLS) * sizeof(T));
    m->tap = take_bytes(&at, (size_t)p->taps * sizeof(int64_t));
    m->rows = take_bytes(&at, (size_t)(p->largest.length / p->largest.row) * sizeof(int64_t));
    m->moves = take_bytes(&at, (size_t)COLS * sizeof(move_at));
    m->first = take_bytes(&at, (COLS / WIDE + 2) * sizeof(int32_t));
    return (size_t)(at - start);
}

static T bias_of(const conv_job *job, int64_t channel) {
    T bias = 0;
    if (job->bias) {
        conv_side from = {(void *)job->bias, job->y.dtype, 0, 0, {0}, {0}};
        load_row(&bias, &from, channel * job->bias_stride, 1, 1);
    }
    return bias;
}

/* Where row number `row` of a box begins in channel 0 of the result. */
static int64_t row_in_result(const conv_job *job, const box_at *box, int64_t row) {
    int64_t y = row % box->size[2], z = row / box->size[2] % box->size[1],
            n = row / box->size[2] / box->size[1];
    return (box->first[0] + n) * job->y.image + (box->first[1] + z) * job->y.stride[0] +
           (box->first[2] + y) * job->y.stride[1] + box->first[3] * job->y.stride[2];
}

/* How many rows of a box follow each other in the result. */
static int64_t rows_in_run(const conv_job *job, const box_at *box) {
    return job->y.stride[1] == box->size[3] * job->y.stride[2] ? box->size[2] : 1;
}

/* Whether the places of a box are contiguous in the result. */
static bool is_run(const conv_job *job, const box_at *box) {
    const conv_side *y = &job->y;
    return y->dtype == PLAIN && y->stride[2] == 1 && box->size[0] * box->size[1] == 1 &&
           rows_in_run(job, box) == box->size[2];
}

/* Columns [from, from + cols) of `rows` channels to the result of a box that is a run. */
static void store_tile(const conv_job *job, const box_at *box, int64_t channel, int64_t rows,
                       int64_t from, int64_t cols, const T *sums) {
    T *to = (T *)job->y.data + row_in_result(job, box, 0) + from;
    for (int64_t i = 0; i < rows; i++) {
        copy_plus(to + (channel + i) * job->y.channel, sums + i * COLS, cols,
                  bias_of(job, channel + i));
    }
}

/* A row of sums, with its bias, to the result. */
static void store_row(const conv_job *job, const box_at *box, int64_t channel, const T *sums) {
    const conv_side *y = &job->y;
    T line[COLS], bias = bias_of(job, channel);
    int64_t rows = rows_in_run(job, box), run = rows * box->size[3];
    for (int64_t row = 0; row * box->size[3] < box->cols; row += rows, sums += run) {
        int64_t at = row_in_result(job, box, row) + channel * y->channel;
        if (y->dtype == PLAIN && y->stride[2] == 1) {
            copy_plus((T *)y->data + at, sums, run, bias);
            continue;
        }
        copy_plus(line, sums, run, bias);
        STORE_T((char *)y->data + at * (int64_t)size_of(y->dtype), y->dtype, y->stride[2], line,
                run);
    }
}

/* One box of one group, rows [row, row + rows) of it. */
static void run_box(const conv_plan *p, const conv_memory *m, int64_t number, int64_t group,
                    int64_t row, int64_t rows) {
    const conv_job *job = p->job;
    box_at box = find_box(&p->boxes, number);
    region r = region_below(job, box.size, true);
    for (int64_t t = 0; t < p->taps; t++) {
        m->tap[t] = tap_in_region(job, &r, t);
    }
    find_rows(job, &r, &box, m->rows);
    plan_moves(job, &r, &box, m->moves, m->first);
    bool runs = is_run(job, &box);
    int64_t panels = div_up(box.cols, WIDE), all = job->channels * p->taps;
    const T *weights = p->weights + (group * div_up(job->rows, ROWS) * ROWS + row) * all;
    for (int64_t c = 0; c < job->channels && p->taps > 0; c += p->cut) {
        int64_t cut = min_of(p->cut, job->channels - c), k = cut * p->taps;
        for (int64_t i = 0; i < cut; i++) {
            copy_region(job, &r, &box, m->rows, group * job->channels + c + i,
                        m->regions + i * r.length);
        }
        for (int64_t b = 0; b < panels; b++) {
            int64_t cols = box.cols - b * WIDE;
            if (cols < WIDE) { fill_zero(m->panel, WIDE * k); }
            pack_rows(m->panel, m->regions, r.length, cut, m->tap, p->taps, m->moves + m->first[b],
                      m->first[b + 1] - m->first[b]);
            for (int64_t i = 0; i < rows; i += ROWS) {
                T *sums = m->sums + i * COLS + b * WIDE;
                sum_panel(k, weights + i * all + c * p->taps * ROWS, m->panel, sums, COLS, c > 0,
                          cols);
                if (runs && c + cut == job->channels) { /* while they are in the cache */
                    store_tile(job, &box, group * job->rows + row + i,
                               min_of(ROWS, job->rows - row - i), b * WIDE, min_of(WIDE, cols),
                               sums);
                }
            }
        }
    }
    for (int64_t i = 0; i < min_of(rows, job->rows - row) && !(runs && all > 0); i++) {
        if (all == 0) { fill_zero(m->sums + i * COLS, COLS); }
        store_row(job, &box, group * job->rows + row + i, m->sums + i * COLS);
    }
}

static void run_thread(const conv_plan *p, char *memory) {
    const conv_job *job = p->job;
    conv_memory m;
    divide_memory(p, memory, &m);
    int64_t tiles = div_up(job->rows, ROWS), k = job->channels * p->taps;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < (k > 0 ? job->groups * tiles : 0); i++) {
        pack_weights(job, i / tiles, i % tiles * ROWS, p->weight_tap, p->weights + i * ROWS * k);
    }
    int64_t blocks = p->row_blocks * job->groups;
#pragma omp for schedule(dynamic, p->turn) /* neighbours read the same rows */
    for (int64_t i = 0; i < p->boxes.all * blocks; i++) {
        int64_t block = i % blocks, row = block % p->row_blocks * p->block_rows;
        run_box(p, &m, i / blocks, block / p->row_blocks, row,
                min_of(p->block_rows, tiles * ROWS - row));
    }
}

/* How many rows of a group a task has. With few `tasks` of all of them the rows are cut too, so
 * that all threads have work; each block of rows then packs its own panels. */
static int64_t cut_rows(const conv_job *job, int64_t tasks, int threads) {
    int64_t tiles = div_up(job->rows, ROWS), pieces = 1;
    while (tasks * pieces < 2 * threads && pieces * 2 <= tiles) {
        pieces *= 2;
    }
    return div_up(tiles, pieces) * ROWS;
}

tn_status CONV(tn_context *ctx, const conv_job *job) {
    int64_t work = work_of(job);
    if (work == 0) { return TN_OK; }
    conv_plan p = {.job = job, .taps = tap_count(job), .boxes = plan_boxes(job, COLS)};
    p.largest = region_below(job, p.boxes.size, true);
    p.cut = max_of(1, min_of(job->channels, DEPTH / max_of(p.taps, 1)));
    p.cut = job->channels > 0 ? div_up(job->channels, div_up(job->channels, p.cut)) : 1;
    int threads = team_size(INT32_MAX, work / 16);
    int64_t tasks = p.boxes.all * job->groups;
    p.block_rows = cut_rows(job, tasks, threads);
    p.row_blocks = div_up(job->rows, p.block_rows);
    p.turn = max_of(1, tasks * p.row_blocks / (16 * threads));
    conv_memory unused;
    p.each = divide_memory(&p, NULL, &unused);
    size_t weights = round_up(
               (size_t)(job->groups * div_up(job->rows, ROWS) * ROWS * job->channels * p.taps) *
               sizeof(T)),
           taps = round_up((size_t)p.taps * sizeof(int64_t));
    TN__SCRATCH(char, memory, ctx, weights + taps + (size_t)threads * p.each);
    if (!memory) { return TN_ENOMEM; }
    p.weights = (T *)memory;
    p.weight_tap = (int64_t *)(memory + weights);
    find_weight_taps(job, p.weight_tap);
#pragma omp parallel num_threads(threads) if (threads > 1)
    run_thread(&p, memory + weights + taps + (size_t)omp_get_thread_num() * p.each);
    return TN_OK;
}
