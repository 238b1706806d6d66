/* What both kinds of products of a convolution (conv_kernel.h) build from their operands: boxes of
 * places, regions of the input below them, panels.
 */
#include "backends/cpu/conv.h"
#include "backends/cpu/convert.h"
#include "backends/cpu/vectors.h"

enum {
    ROWS = REGISTERS / 4, /* ROWS x 3 vectors of sums stay in registers */
    WIDE = 3 * VL,
    COLS = 16 * WIDE,
    DEPTH = 768 / sizeof(T), /* a panel of DEPTH rows stays in the L1 cache */
};

/* ---- Short rows ------------------------------------------------------------------------------ */

/* Rows are a few vectors long: a call to memcpy would cost more than the copy. The last vector or
 * quad of the n elements overlaps the one before. */
INLINE void copy_row(T *restrict to, const T *restrict from, int64_t n) {
    if (n >= VL) {
        for (int64_t i = 0; i < n; i += VL) {
            int64_t at = min_of(i, n - VL);
            *(vec_any *)(to + at) = *(const vec_any *)(from + at);
        }
    } else if (n >= 4) {
        for (int64_t i = 0; i < n; i += 4) {
            int64_t at = min_of(i, n - 4);
            *(quad *)(to + at) = *(const quad *)(from + at);
        }
    } else if (n > 0) {
        to[0] = from[0];
        to[n / 2] = from[n / 2];
        to[n - 1] = from[n - 1];
    }
}

INLINE void fill_zero(T *to, int64_t n) {
    if (n >= VL) {
        for (int64_t i = 0; i < n; i += VL) {
            *(vec_any *)(to + min_of(i, n - VL)) = (vec){0};
        }
    } else if (n >= 4) {
        for (int64_t i = 0; i < n; i += 4) {
            *(quad *)(to + min_of(i, n - 4)) = (quad){0};
        }
    } else if (n > 0) {
        to[0] = to[n / 2] = to[n - 1] = 0;
    }
}

/* to = from + what */
INLINE void copy_plus(T *restrict to, const T *restrict from, int64_t n, T what) {
    if (n < VL) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = from[i] + what;
        }
        return;
    }
    for (int64_t i = 0; i < n; i += VL) {
        int64_t at = min_of(i, n - VL);
        *(vec_any *)(to + at) = *(const vec_any *)(from + at) + what;
    }
}

/* ---- Boxes ----------------------------------------------------------------------------------- */

/* How results are cut: `size` places along images, depths, rows and columns, `count` boxes. */
typedef struct box_plan {
    int64_t total[4], size[4], count[4], all;
} box_plan;

typedef struct box_at {
    int64_t first[4], size[4];
    int64_t cols; /* places in it */
} box_at;

/* Boxes of up to `most` places. */
static box_plan plan_boxes(const conv_job *job, int64_t most) {
    const conv_walk *w = job->walk;
    box_plan plan = {{job->images, w[0].places, w[1].places, w[2].places}, .all = 1};
    int64_t cols_left = most;
    for (int d = 3; d >= 0; d--) { /* a dimension is cut only if the inner ones are whole */
        int64_t pieces = max_of(div_up(plan.total[d], cols_left), 1);
        plan.size[d] = max_of(div_up(plan.total[d], pieces), 1);
        plan.count[d] = div_up(plan.total[d], plan.size[d]);
        plan.all *= plan.count[d];
        cols_left = plan.count[d] > 1 ? 1 : cols_left / plan.size[d];
    }
    return plan;
}

static box_at find_box(const box_plan *plan, int64_t number) {
    box_at box = {.cols = 1};
    for (int d = 3; d >= 0; d--) {
        box.first[d] = number % plan->count[d] * plan->size[d];
        box.size[d] = min_of(plan->size[d], plan->total[d] - box.first[d]);
        box.cols *= box.size[d];
        number /= plan->count[d];
    }
    return box;
}

/* ---- Regions --------------------------------------------------------------------------------- */

/* The part of the input below a box: `rows` along images, depths and rows. A row is one run of
 * elements, or, if the stride splits it, a run for each remainder that a tap reads. */
typedef struct region {
    int64_t rows[3], split, phases, run, row; /* row: phases of runs */
    int64_t length;                           /* all of it, of one channel */
} region;

/* From the first tap to the last. */
static int64_t reach_of(const conv_walk *w) {
    return w->taps > 0 ? (w->taps - 1) * w->shift : 0;
}

static region region_below(const conv_job *job, const int64_t *size, bool split) {
    const conv_walk *w = job->walk;
    region r = {.rows = {size[0]}, .split = split ? w[2].step : 1};
    for (int d = 0; d < 2; d++) {
        r.rows[d + 1] = (size[d + 1] - 1) * w[d].step + reach_of(&w[d]) + 1;
    }
    int64_t reach = reach_of(&w[2]);
    r.phases = min_of(r.split, reach + 1);
    r.run = (size[3] - 1) * (w[2].step / r.split) + reach / r.split + 1;
    r.row = r.phases * r.run;
    r.length = r.rows[0] * r.rows[1] * r.rows[2] * r.row;
    return r;
}

/* Whether a tap of some place reads row `row` of a region. */
static bool row_is_seen(const conv_walk *w, int64_t row) {
    for (int64_t j = 0; j < min_of(w->taps, w->step) && w->step > 1; j++) {
        if (row >= j * w->shift && (row - j * w->shift) % w->step == 0) { return true; }
    }
    return w->step == 1;
}

/* n elements of the input, as T. */
INLINE void load_row(T *restrict to, const conv_side *x, int64_t at, int64_t stride, int64_t n) {
    if (x->dtype == PLAIN) {
        const T *restrict from = (const T *)x->data + at;
        if (stride == 1) {
            copy_row(to, from, n);
        } else if (stride == 2) { /* compilers have vectors for it */
            for (int64_t i = 0; i < n; i++) {
                to[i] = from[2 * i];
            }
        } else {
            for (int64_t i = 0; i < n; i++) {
                to[i] = from[i * stride];
            }
        }
    } else {
        LOAD_T(to, (const char *)x->data + at * (int64_t)size_of(x->dtype), x->dtype, stride, n);
    }
}

/* The part of a region's row that is inside the input: elements low … high-1 of run `phase`, the
 * first of which is element `from` of the input's row. */
typedef struct row_part {
    int64_t low, high, from;
} row_part;

static row_part part_inside(const conv_job *job, const region *r, const box_at *box,
                            int64_t phase) {
    const conv_walk *w = &job->walk[2];
    int64_t from = w->origin + box->first[3] * w->step + phase, size = job->x.size[2];
    row_part part = {.low = from < 0 ? div_up(-from, r->split) : 0,
                     .high = from < size ? div_up(size - from, r->split) : 0};
    part.low = min_of(part.low, r->run);
    part.high = max_of(min_of(part.high, r->run), part.low);
    part.from = from + part.low * r->split;
    return part;
}

/* Where the rows of a region are in the input, in order; -1: outside, or no tap reads it. */
static void find_rows(const conv_job *job, const region *r, const box_at *box, int64_t *at) {
    const conv_walk *w = job->walk;
    const conv_side *x = &job->x;
    for (int64_t n = 0; n < r->rows[0]; n++) {
        for (int64_t z = 0; z < r->rows[1]; z++) {
            int64_t depth = w[0].origin + box->first[1] * w[0].step + z;
            bool inside = depth >= 0 && depth < x->size[0] && row_is_seen(&w[0], z);
            for (int64_t y = 0; y < r->rows[2]; y++) {
                int64_t line = w[1].origin + box->first[2] * w[1].step + y;
                bool both = inside && line >= 0 && line < x->size[1] && row_is_seen(&w[1], y);
                *at++ = both ? (box->first[0] + n) * x->image + depth * x->stride[0] +
                                   line * x->stride[1]
                             : -1;
            }
        }
    }
}

/* The region of one channel; `rows` from find_rows. */
static void copy_region(const conv_job *job, const region *r, const box_at *box,
                        const int64_t *rows, int64_t channel, T *to) {
    /* Lines of the cache are fetched for a later channel: channels are too far apart for the
     * processor to foresee the next. */
    enum { AHEAD = 2, LINE = 64 };
    const conv_side *x = &job->x;
    int64_t count = r->rows[0] * r->rows[1] * r->rows[2], each = (int64_t)size_of(x->dtype);
    for (int64_t p = 0; p < r->phases; p++) {
        row_part part = part_inside(job, r, box, p);
        int64_t from = channel * x->channel + part.from * x->stride[2], n = part.high - part.low;
        T *run = to + p * r->run;
        for (int64_t i = 0; i < count; i++, run += r->row) {
            if (rows[i] < 0 || n < r->run) { fill_zero(run, r->run); }
            if (rows[i] >= 0) {
                __builtin_prefetch((const char *)x->data +
                                   (rows[i] + from + AHEAD * x->channel) * each + LINE * p);
                load_row(run + part.low, x, rows[i] + from, r->split * x->stride[2], n);
            }
        }
    }
}

/* The offset in a region of tap (0, 0, 0) for the first place in row number `row` of a box. */
static int64_t row_in_region(const conv_job *job, const region *r, const box_at *box, int64_t row) {
    int64_t y = row % box->size[2], z = row / box->size[2] % box->size[1],
            n = row / box->size[2] / box->size[1];
    return ((n * r->rows[1] + z * job->walk[0].step) * r->rows[2] + y * job->walk[1].step) * r->row;
}

static int64_t tap_offset(const conv_walk *w, int64_t j) {
    return (w->falls ? w->taps - 1 - j : j) * w->shift;
}

/* The offset of tap number t from there. */
static int64_t tap_in_region(const conv_job *job, const region *r, int64_t t) {
    const conv_walk *w = job->walk;
    int64_t x = tap_offset(&w[2], t % w[2].taps), y = tap_offset(&w[1], t / w[2].taps % w[1].taps),
            z = tap_offset(&w[0], t / w[2].taps / w[1].taps);
    return (z * r->rows[2] + y) * r->row + x % r->split * r->run + x / r->split;
}

/* ---- Panels ---------------------------------------------------------------------------------- */

/* A vector's worth of columns of one row of the box: from the region to a row of a panel. What
 * follows the row is copied too, and overwritten by the next move. */
typedef struct move_at {
    int32_t to, from;
} move_at;

/* The moves of each panel: first[panel] … first[panel + 1] - 1. */
static void plan_moves(const conv_job *job, const region *r, const box_at *box, move_at *moves,
                       int32_t *first) {
    int32_t count = 0;
    int64_t panel = -1;
    for (int64_t row = 0, col = 0; col < box->cols; row++) {
        int64_t from = row_in_region(job, r, box, row);
        for (int64_t x = 0; x < box->size[3];) {
            if (col / WIDE != panel) { first[++panel] = count; }
            int64_t n = min_of(min_of(VL, box->size[3] - x), WIDE - col % WIDE);
            moves[count++] = (move_at){(int32_t)(col % WIDE), (int32_t)(from + x)};
            x += n;
            col += n;
        }
    }
    first[panel + 1] = count;
}

/* Rows of a panel: `taps` for each of `channels` regions. */
INLINE void pack_moves(T *restrict to, const T *restrict regions, int64_t length, int64_t channels,
                       const int64_t *tap, int64_t taps, const move_at *moves, const int count) {
    for (int64_t i = 0; i < channels; i++, regions += length) {
        for (int64_t t = 0; t < taps; t++, to += WIDE) {
            UNROLL
            for (int m = 0; m < count; m++) {
                *(vec_any *)(to + moves[m].to) =
                    *(const vec_any *)(regions + tap[t] + moves[m].from);
            }
        }
    }
}

/* The same with a compile-time count for panels of one or two rows of places, the most common. */
static void pack_rows(T *restrict to, const T *restrict regions, int64_t length, int64_t channels,
                      const int64_t *tap, int64_t taps, const move_at *moves, int32_t count) {
    move_at local[4] = {{0, 0}};
    for (int32_t m = 0; m < min_of(count, 4); m++) {
        local[m] = moves[m];
    }
    if (count == 3) {
        pack_moves(to, regions, length, channels, tap, taps, local, 3);
    } else if (count == 4) {
        pack_moves(to, regions, length, channels, tap, taps, local, 4);
    } else {
        pack_moves(to, regions, length, channels, tap, taps, moves, count);
    }
}

/* ---- Taps, sizes, memory --------------------------------------------------------------------- */

static int64_t tap_count(const conv_job *job) {
    return job->walk[0].taps * job->walk[1].taps * job->walk[2].taps;
}

/* Where the taps of row 0, channel 0 are in the weight. */
static void find_weight_taps(const conv_job *job, int64_t *at) {
    for (int64_t t = 0; t < tap_count(job); t++) {
        int64_t rest = t;
        at[t] = 0;
        for (int d = SPATIAL - 1; d >= 0; d--) {
            int64_t j = rest % job->walk[d].taps;
            at[t] += (job->w.first[d] + j * job->w.each[d]) * job->w.stride[d];
            rest /= job->walk[d].taps;
        }
    }
}

static int64_t work_of(const conv_job *job) {
    return job->images * job->walk[0].places * job->walk[1].places * job->walk[2].places *
           job->groups * job->rows * (job->channels * tap_count(job) + 1);
}

static size_t round_up(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* The next bytes of a thread's memory, or, from NULL, of what it needs. */
static void *take_bytes(char **at, size_t bytes) {
    void *taken = *at;
    *at += round_up(bytes);
    return taken;
}
