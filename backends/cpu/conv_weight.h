/* The gradient of a convolution's weight; conv_kernel.h explains it. */

/* ---- The gradient of the weight -------------------------------------------------------------- */

/* Like conv_plan. A block is `lanes` VL channels, or all of them if there are few. A place of the
 * region has `vectors` vectors for it; three of them and ROWS rows of dy make one tile of sums. */
typedef struct weight_plan {
    const conv_job *job;
    box_plan boxes;
    region largest;
    bool few; /* few channels: vectors are of (channel, tap) */
    int64_t taps, lanes, vectors, blocks, row_blocks, block_rows;
    size_t each;
} weight_plan;

typedef struct weight_memory {
    T *regions, *panels, *turned, *dy, *sums;
    int64_t *tap, *rows, *weight_tap, *vector;
    int32_t *place, *first;
    move_at *moves;
} weight_memory;

/* How many vectors of VL channels a place has for one tap. */
static int64_t lanes_of(const conv_job *job, int64_t taps) {
    int64_t all = div_up(job->channels, VL), most = taps >= 3 ? 1 : 3;
    return div_up(all, div_up(all, most));
}

static size_t divide_weight_memory(const weight_plan *p, char *at, weight_memory *m) {
    char *start = at;
    int64_t length = p->largest.length;
    m->regions = take_bytes(&at, (size_t)(VL * length + WIDE) * sizeof(T));
    m->panels = take_bytes(&at, p->few ? (size_t)((p->vectors * VL + 1) * WIDE) * sizeof(T) : 0);
    m->turned =
        take_bytes(&at, (size_t)(p->few ? p->vectors * COLS : p->lanes * length) * VL * sizeof(T));
    m->dy = take_bytes(&at, (size_t)(p->block_rows * COLS) * sizeof(T));
    m->sums = take_bytes(&at, (size_t)(p->block_rows * p->vectors * VL) * sizeof(T));
    m->tap = take_bytes(&at, (size_t)p->taps * sizeof(int64_t));
    m->rows = take_bytes(&at, (size_t)(length / p->largest.row) * sizeof(int64_t));
    m->weight_tap = take_bytes(&at, (size_t)p->taps * sizeof(int64_t));
    m->vector = take_bytes(&at, (size_t)p->vectors * sizeof(int64_t));
    m->place = take_bytes(&at, (size_t)COLS * sizeof(int32_t));
    m->moves = take_bytes(&at, (size_t)COLS * sizeof(move_at));
    m->first = take_bytes(&at, (COLS / WIDE + 2) * sizeof(int32_t));
    return (size_t)(at - start);
}

/* sums (ROWS, vectors VL), `apart` a row, += the sum over places of a column of dy times vectors.
 */
INLINE void add_tile(int64_t places, const T *restrict dy, const T *restrict x,
                     const int32_t *restrict place, const int64_t *vector, T *restrict sums,
                     int64_t apart, const int vectors) {
    sum_tile acc;
    load_sums(acc, ROWS, vectors, NULL, 0);
    for (int64_t p = 0; p < places; p++) {
        vec b[3];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            b[v] = *(const vec_any *)(x + vector[v] + place[p]);
        }
        UNROLL
        for (int i = 0; i < ROWS; i++) {
            UNROLL
            for (int v = 0; v < vectors; v++) {
                acc[i][v] += dy[i * COLS + p] * b[v];
            }
        }
    }
    accumulate_sums(acc, ROWS, vectors, sums, apart);
}

/* Row `channel` of dy for a box: its places side by side. */
static void load_places(const conv_job *job, const box_at *box, int64_t channel, T *to) {
    const conv_side *y = &job->y;
    int64_t rows = rows_in_run(job, box), run = rows * box->size[3];
    for (int64_t row = 0; row * box->size[3] < box->cols; row += rows, to += run) {
        load_row(to, y, row_in_result(job, box, row) + channel * y->channel, y->stride[2], run);
    }
}

/* Regions of `count` channels from `channel` on, zero-padded to VL of them; `rows` from
 * find_rows. */
static void copy_channels(const conv_job *job, const region *r, const box_at *box,
                          const int64_t *rows, int64_t channel, int64_t count, T *to) {
    for (int64_t c = 0; c < count; c++) {
        copy_region(job, r, box, rows, channel + c, to + c * r->length);
    }
    fill_zero(to + count * r->length, (VL - count) * r->length);
}

/* The vectors of a block below a box, with few channels: its panels, transposed. */
static void turn_panels(const weight_plan *p, const weight_memory *m, const region *r,
                        const box_at *box, int64_t group) {
    int64_t k = p->job->channels * p->taps;
    copy_channels(p->job, r, box, m->rows, group * p->job->channels, p->job->channels, m->regions);
    plan_moves(p->job, r, box, m->moves, m->first);
    fill_zero(m->panels + k * WIDE, (p->vectors * VL - k) * WIDE);
    for (int64_t b = 0; b * WIDE < box->cols; b++) {
        pack_rows(m->panels, m->regions, r->length, p->job->channels, m->tap, p->taps,
                  m->moves + m->first[b], m->first[b + 1] - m->first[b]);
        fill_zero(m->panels + k * WIDE, k < p->vectors * VL ? VL : 0); /* after the last move */
        for (int64_t v = 0; v < p->vectors; v++) {
            transpose_panel(m->turned + (v * COLS + b * WIDE) * VL, VL, m->panels + v * VL * WIDE,
                            WIDE, WIDE);
        }
    }
    for (int64_t v = 0; v < p->vectors; v++) {
        m->vector[v] = v * COLS * VL;
    }
    for (int64_t i = 0; i < box->cols; i++) {
        m->place[i] = (int32_t)(i * VL);
    }
}

/* The region of VL channels, with the channels innermost, straight from the input. */
static void turn_input(const conv_job *job, const region *r, const box_at *box, const int64_t *rows,
                       int64_t channel, T *to) {
    const conv_side *x = &job->x;
    row_part part = part_inside(job, r, box, 0);
    int64_t count = r->rows[0] * r->rows[1] * r->rows[2], from = channel * x->channel + part.from;
    for (int64_t i = 0; i < count; i++, to += r->run * VL) {
        if (rows[i] < 0) {
            fill_zero(to, r->run * VL);
            continue;
        }
        fill_zero(to, part.low * VL);
        transpose_panel(to + part.low * VL, VL, (const T *)x->data + rows[i] + from, x->channel,
                        part.high - part.low);
        fill_zero(to + part.high * VL, (r->run - part.high) * VL);
    }
}

/* The same for up to VL channels; `regions` is memory for them. */
static void turn_channels(const conv_job *job, const region *r, const box_at *box,
                          const int64_t *rows, int64_t channel, int64_t count, T *regions, T *to) {
    if (count == VL && job->x.dtype == PLAIN && job->x.stride[2] == 1) {
        turn_input(job, r, box, rows, channel, to);
    } else {
        copy_channels(job, r, box, rows, channel, count, regions);
        transpose_panel(to, VL, regions, r->length, r->length);
    }
}

/* The vectors of a block below a box, with many channels: its regions, transposed. */
static void turn_regions(const weight_plan *p, const weight_memory *m, const region *r,
                         const box_at *box, int64_t group, int64_t block) {
    const conv_job *job = p->job;
    for (int64_t j = 0; j < p->lanes; j++) {
        int64_t first = (block * p->lanes + j) * VL,
                count = max_of(min_of(VL, job->channels - first), 0);
        turn_channels(job, r, box, m->rows, group * job->channels + first, count, m->regions,
                      m->turned + j * r->length * VL);
        for (int64_t t = 0; t < p->taps; t++) {
            m->vector[j * p->taps + t] = (j * r->length + m->tap[t]) * VL;
        }
    }
    for (int64_t row = 0, i = 0; i < box->cols; row++) {
        int64_t from = row_in_region(job, r, box, row);
        for (int64_t x = 0; x < box->size[3]; x++) {
            m->place[i++] = (int32_t)((from + x * job->walk[2].step) * VL);
        }
    }
}

/* Adds one box to the sums of a block of channels and rows. */
static void add_box(const weight_plan *p, const weight_memory *m, int64_t number, int64_t group,
                    int64_t block, int64_t row, int64_t rows) {
    const conv_job *job = p->job;
    box_at box = find_box(&p->boxes, number);
    region r = region_below(job, box.size, p->few);
    for (int64_t t = 0; t < p->taps; t++) {
        m->tap[t] = tap_in_region(job, &r, t);
    }
    find_rows(job, &r, &box, m->rows);
    if (p->few) {
        turn_panels(p, m, &r, &box, group);
    } else {
        turn_regions(p, m, &r, &box, group, block);
    }
    for (int64_t i = 0; i < rows; i++) {
        if (row + i < job->rows) {
            load_places(job, &box, group * job->rows + row + i, m->dy + i * COLS);
        } else {
            fill_zero(m->dy + i * COLS, COLS);
        }
    }
    int64_t apart = p->vectors * VL;
    for (int64_t i = 0; i < rows; i += ROWS) {
        const T *dy = m->dy + i * COLS;
        T *sums = m->sums + i * apart;
        int64_t v = 0;
        for (; v + 3 <= p->vectors; v += 3) {
            add_tile(box.cols, dy, m->turned, m->place, m->vector + v, sums + v * VL, apart, 3);
        }
        if (p->vectors - v == 2) {
            add_tile(box.cols, dy, m->turned, m->place, m->vector + v, sums + v * VL, apart, 2);
        } else if (p->vectors - v == 1) {
            add_tile(box.cols, dy, m->turned, m->place, m->vector + v, sums + v * VL, apart, 1);
        }
    }
}

/* The sums of a block to the weight's gradient. */
static void store_weights(const weight_plan *p, const weight_memory *m, int64_t group,
                          int64_t block, int64_t row, int64_t rows) {
    const conv_job *job = p->job;
    const conv_weights *w = &job->w;
    int64_t channels = p->few ? job->channels : p->lanes * VL;
    int64_t count = min_of(channels, job->channels - block * channels);
    for (int64_t i = 0; i < min_of(rows, job->rows - row); i++) {
        const T *sums = m->sums + i * p->vectors * VL;
        for (int64_t c = 0; c < count; c++) {
            int64_t at =
                group * w->group + (row + i) * w->row + (block * channels + c) * w->channel;
            for (int64_t t = 0; t < p->taps; t++) {
                T value =
                    p->few ? sums[c * p->taps + t] : sums[(c / VL * p->taps + t) * VL + c % VL];
                int64_t to = at + m->weight_tap[t];
                if (w->dtype == PLAIN) {
                    ((T *)w->data)[to] = value;
                } else {
                    STORE_T((char *)w->data + to * (int64_t)size_of(w->dtype), w->dtype, 1, &value,
                            1);
                }
            }
        }
    }
}

static void run_weight_thread(const weight_plan *p, char *memory) {
    weight_memory m;
    divide_weight_memory(p, memory, &m);
    find_weight_taps(p->job, m.weight_tap);
    int64_t tiles = div_up(p->job->rows, ROWS);
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < p->job->groups * p->blocks * p->row_blocks; i++) {
        int64_t row = i % p->row_blocks * p->block_rows, block = i / p->row_blocks % p->blocks,
                group = i / p->row_blocks / p->blocks,
                rows = min_of(p->block_rows, tiles * ROWS - row);
        fill_zero(m.sums, rows * p->vectors * VL);
        for (int64_t b = 0; b < p->boxes.all; b++) {
            add_box(p, &m, b, group, block, row, rows);
        }
        store_weights(p, &m, group, block, row, rows);
    }
}

static void plan_weight(weight_plan *p, int threads) {
    const conv_job *job = p->job;
    int64_t k = job->channels * p->taps;
    p->lanes = lanes_of(job, p->taps);
    p->blocks = div_up(job->channels, p->lanes * VL);
    p->vectors = p->lanes * p->taps;
    p->few = 2 * job->channels <= VL && 3 * div_up(k, VL) <= 2 * p->vectors;
    if (p->few) {
        p->blocks = 1;
        p->vectors = div_up(k, VL);
    }
    p->block_rows = cut_rows(job, job->groups * p->blocks, threads);
    p->row_blocks = div_up(job->rows, p->block_rows);
}

tn_status CONV_WEIGHT(tn_context *ctx, const conv_job *job) {
    int64_t taps = tap_count(job);
    if (job->groups * job->rows * job->channels * taps == 0) { return TN_OK; }
    int threads = team_size(INT32_MAX, work_of(job) / 16);
    weight_plan p = {.job = job, .taps = taps, .boxes = plan_boxes(job, COLS)};
    plan_weight(&p, threads);
    p.largest = region_below(job, p.boxes.size, p.few);
    weight_memory unused;
    p.each = divide_weight_memory(&p, NULL, &unused);
    TN__SCRATCH(char, memory, ctx, (size_t)threads *p.each);
    if (!memory) { return TN_ENOMEM; }
#pragma omp parallel num_threads(threads) if (threads > 1)
    run_weight_thread(&p, memory + (size_t)omp_get_thread_num() * p.each);
    return TN_OK;
}
