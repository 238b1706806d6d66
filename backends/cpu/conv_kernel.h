/* Convolutions as products of matrices that are never made; conv_f32.c and conv_f64.c include it
 * with T set to their type.
 *
 * A result is cut in boxes of places (images, depths, rows, columns), flattened to up to COLS
 * columns. For each box and each cut of the input channels:
 *
 *     region   the input below the box, channel by channel, converted and with zeros around it. Of
 *              a stride along the rows, each remainder lies in a run of its own: so every tap of
 *              the kernel sees the columns of a row side by side
 *     panels   row k = (channel, tap) of WIDE columns: copies of vectors out of the region
 *     sums     ROWS rows of weights, packed once a call, times a panel: the products' micro kernel
 *
 * Without a stride the rows of a box lie in the region as they are, but for a few elements between
 * them. Where these are few, their sums are made too and thrown away, and there are no panels: the
 * micro kernel reads the region itself.
 *
 * The gradient of the weight multiplies the other way around: sums over places of a row of dy and
 * vectors of LANES input channels, for which the region has its channels innermost. Where there are
 * few channels the vectors are of (channel, tap), and the panels are turned.
 *
 * An element is one chain of multiply-adds over k (or over places), cut by the shape alone, and one
 * thread has it: the bits do not depend on the number of threads.
 */
#include "backends/cpu/conv_region.h"

/* ---- Weights --------------------------------------------------------------------------------- */

/* ROWS rows from `row` on of a group: to[(c taps + t) ROWS + m]. */
static void pack_weights(const conv_job *job, int64_t group, int64_t row, const int64_t *tap,
                         T *to) {
    const conv_weights *w = &job->w;
    conv_side from = {(void *)w->data, w->dtype, 0, 0, {0}, {0}};
    int64_t taps = tap_count(job), rows = min_of(ROWS, job->rows - row),
            first = group * w->group + row * w->row;
    bool dense = rows == ROWS && w->dtype == PLAIN && tap[taps - 1] - tap[0] == taps - 1;
    if (dense) { /* a channel's taps lie side by side, and perhaps the channels too */
        bool all = w->channel == taps;
        for (int64_t c = 0; c < (all ? 1 : job->channels); c++) {
            turn_panel(to + c * taps * ROWS, ROWS,
                       (const T *)w->data + first + tap[0] + c * w->channel, w->row,
                       all ? job->channels * taps : taps);
        }
        return;
    }
    for (int64_t c = 0; c < job->channels; c++) {
        for (int64_t t = 0; t < taps; t++, to += ROWS) {
            int64_t at = first + c * w->channel + tap[t];
            if (rows == ROWS && w->dtype == PLAIN) {
                UNROLL
                for (int m = 0; m < ROWS; m++) {
                    to[m] = ((const T *)w->data)[at + m * w->row];
                }
            } else {
                fill_zero(to, ROWS);
                load_row(to, &from, at, w->row, rows);
            }
        }
    }
}

/* ---- The forward direction ------------------------------------------------------------------- */

/* Rows of columns that are multiplied: of tap t of channel c at data + c channel + tap[t]. */
typedef struct columns {
    const T *data;
    int64_t channels, channel, taps;
    const int64_t *tap;
} columns;

/* sums (ROWS, vectors VL), APART a row, = A (ROWS, k) x columns, added where `adds`. */
INLINE void sum_tile(const columns *x, const T *restrict a, T *restrict sums, bool adds,
                     const int vectors) {
    vec acc[ROWS][3];
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            acc[i][v] = (vec){0};
            if (adds) {
                acc[i][v] = *(const vec_any *)(sums + i * APART + v * VL);
            }
        }
    }
    const T *channel = x->data;
    for (int64_t c = 0; c < x->channels; c++, channel += x->channel) {
        for (int64_t t = 0; t < x->taps; t++, a += ROWS) {
            vec b[3];
            UNROLL
            for (int v = 0; v < vectors; v++) {
                b[v] = *(const vec_any *)(channel + x->tap[t] + v * VL);
            }
            UNROLL
            for (int i = 0; i < ROWS; i++) {
                UNROLL
                for (int v = 0; v < vectors; v++) {
                    acc[i][v] += a[i] * b[v];
                }
            }
        }
    }
    UNROLL
    for (int i = 0; i < ROWS; i++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            *(vec_any *)(sums + i * APART + v * VL) = acc[i][v];
        }
    }
}

static void sum_columns(const columns *x, const T *a, T *sums, bool adds, int64_t cols) {
    if (cols > 2 * VL) {
        sum_tile(x, a, sums, adds, 3);
    } else if (cols > VL) {
        sum_tile(x, a, sums, adds, 2);
    } else {
        sum_tile(x, a, sums, adds, 1);
    }
}

/* What all threads of a call share, and the memory of one. */
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
    m->regions = (T *)at;
    at += round_up((size_t)(p->cut * p->largest.length + WIDE) * sizeof(T));
    m->panel = (T *)at;
    at += round_up((size_t)(WIDE * (p->cut * p->taps + 1)) * sizeof(T));
    m->sums = (T *)at;
    at += round_up((size_t)(p->block_rows * APART) * sizeof(T));
    m->tap = (int64_t *)at;
    at += round_up((size_t)p->taps * sizeof(int64_t));
    m->rows = (int64_t *)at;
    at += round_up((size_t)(p->largest.length / p->largest.row) * sizeof(int64_t));
    m->moves = (move_at *)at;
    at += round_up((size_t)COLS * sizeof(move_at));
    m->first = (int32_t *)at;
    at += round_up((COLS / WIDE + 2) * sizeof(int32_t));
    return (size_t)(at - start);
}

/* A channel's sums, with its bias, to the result; the rows of the box are `step` apart. */
static void store_sums(const conv_job *job, const box_at *box, int64_t channel, const T *sums,
                       int64_t step) {
    const conv_side *y = &job->y;
    T bias = 0;
    if (job->bias) {
        conv_side from = {(void *)job->bias, y->dtype, 0, 0, {0}, {0}};
        load_row(&bias, &from, channel * job->bias_stride, 1, 1);
    }
    int64_t run = box->size[3], rows = box->size[2];
    if (rows == 1 || (step == run && y->stride[1] == run * y->stride[2])) {
        run *= rows;
        step *= rows;
        rows = 1;
    }
    T line[COLS];
    for (int64_t n = 0; n < box->size[0]; n++) {
        for (int64_t z = 0; z < box->size[1]; z++) {
            for (int64_t r = 0; r < rows; r++, sums += step) {
                int64_t at = (box->first[0] + n) * y->image + channel * y->channel +
                             (box->first[1] + z) * y->stride[0] +
                             (box->first[2] + r) * y->stride[1] + box->first[3] * y->stride[2];
                if (y->dtype == PLAIN && y->stride[2] == 1) {
                    copy_plus((T *)y->data + at, sums, run, bias);
                    continue;
                }
                copy_plus(line, sums, run, bias);
                STORE_T((char *)y->data + at * (int64_t)size_of(y->dtype), y->dtype, y->stride[2],
                        line, run);
            }
        }
    }
}

/* Panel `number` of a box, made of `cut` regions. */
static columns pack_panel(const conv_plan *p, const conv_memory *m, const region *r, int64_t number,
                          int64_t cut, int64_t cols) {
    static const int64_t beginning = 0;
    if (cols < WIDE) {
        fill_zero(m->panel, WIDE * cut * p->taps);
    }
    pack_rows(m->panel, m->regions, r->length, cut, m->tap, p->taps, m->moves + m->first[number],
              m->first[number + 1] - m->first[number]);
    return (columns){m->panel, cut * p->taps, WIDE, 1, &beginning};
}

/* One box of one group, rows [row, row + rows) of it. */
static void run_box(const conv_plan *p, const conv_memory *m, int64_t number, int64_t group,
                    int64_t row, int64_t rows) {
    const conv_job *job = p->job;
    box_at box = find_box(job, &p->boxes, number);
    region r = region_below(job, box.size, true);
    for (int64_t t = 0; t < p->taps; t++) {
        m->tap[t] = tap_in_region(job, &r, t);
    }
    find_rows(job, &r, &box, m->rows);
    bool lies = lies_in_region(job, &r, &box);
    if (!lies) {
        plan_moves(job, &r, &box, m->moves, m->first);
    }
    int64_t step = lies ? r.row : box.size[3], cols = lies ? columns_between(&r, &box) : box.cols,
            all = job->channels * p->taps;
    const T *weights = p->weights + (group * div_up(job->rows, ROWS) * ROWS + row) * all;
    for (int64_t c = 0; c < job->channels && p->taps > 0; c += p->cut) {
        int64_t cut = min_of(p->cut, job->channels - c);
        for (int64_t i = 0; i < cut; i++) {
            copy_region(job, &r, &box, m->rows, group * job->channels + c + i,
                        m->regions + i * r.length);
        }
        fill_zero(m->regions + cut * r.length, WIDE); /* a last vector reaches there */
        for (int64_t from = 0; from < cols; from += WIDE) {
            columns x = {m->regions + from, cut, r.length, p->taps, m->tap};
            if (!lies) {
                x = pack_panel(p, m, &r, from / WIDE, cut, cols - from);
            }
            for (int64_t i = 0; i < rows; i += ROWS) {
                sum_columns(&x, weights + i * all + c * p->taps * ROWS, m->sums + i * APART + from,
                            c > 0, cols - from);
            }
        }
    }
    for (int64_t i = 0; i < min_of(rows, job->rows - row); i++) {
        if (all == 0) {
            fill_zero(m->sums + i * APART, APART);
        }
        store_sums(job, &box, group * job->rows + row + i, m->sums + i * APART, step);
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

/* Few boxes: the rows are cut too, so that all threads have work; each then packs for itself. */
static void cut_rows(conv_plan *p, int threads) {
    int64_t tiles = div_up(p->job->rows, ROWS), pieces = 1;
    int64_t tasks = p->boxes.all * p->job->groups;
    while (tasks * pieces < 2 * threads && pieces * 2 <= tiles) {
        pieces *= 2;
    }
    p->block_rows = div_up(tiles, pieces) * ROWS;
    p->row_blocks = div_up(tiles * ROWS, p->block_rows);
    p->turn = max_of(1, tasks * p->row_blocks / (16 * threads));
}

tn_status CONV(tn_context *ctx, const conv_job *job) {
    int64_t work = work_of(job);
    if (work == 0) {
        return TN_OK;
    }
    conv_plan p = {.job = job, .taps = tap_count(job), .boxes = plan_boxes(job)};
    p.largest = region_below(job, p.boxes.size, true);
    p.cut = max_of(1, min_of(job->channels, DEPTH / max_of(p.taps, 1)));
    p.cut = job->channels > 0 ? div_up(job->channels, div_up(job->channels, p.cut)) : 1;
    int threads = team_size(INT32_MAX, work / 16);
    cut_rows(&p, threads);
    conv_memory unused;
    p.each = divide_memory(&p, NULL, &unused);
    size_t weights = round_up(
               (size_t)(job->groups * div_up(job->rows, ROWS) * ROWS * job->channels * p.taps) *
               sizeof(T)),
           taps = round_up((size_t)p.taps * sizeof(int64_t)),
           bytes = 64 + weights + taps + (size_t)threads * p.each;
    char *memory = scratch_take(ctx, bytes);
    if (!memory) {
        return TN_ENOMEM;
    }
    char *at = (char *)round_up((size_t)memory);
    p.weights = (T *)at;
    p.weight_tap = (int64_t *)(at + weights);
    for (int64_t t = 0; t < p.taps; t++) {
        p.weight_tap[t] = tap_in_weight(job, t);
    }
    at += weights + taps;
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        run_thread(&p, at + (size_t)omp_get_thread_num() * p.each);
    } else {
        run_thread(&p, at);
    }
    scratch_free(ctx, memory, bytes);
    return TN_OK;
}
