/* One batch: its tensors, the host memory where they are written, the examples, and padding after
 * those that are shorter than the longest.
 *
 * On the CPU the examples are read into the tensors' own memory. For a device they are read into
 * staging memory (stage.h), and copies from there are queued at once, in a stream of their own.
 */
#include "data/collate.h"
#include "core/error.h"
#include "data/sampler.h"

#include <string.h>

bool tn__dims_join(tn_dims *mine, tn_dims other, bool sequences) {
    if (mine->ndim != other.ndim) { return false; }
    if (sequences && mine->ndim > 0 && mine->size[0] != other.size[0]) {
        mine->size[0] = other.size[0] = -1;
    }
    return mine->ndim < 0 ||
           memcmp(mine->size, other.size, (size_t)mine->ndim * sizeof(*mine->size)) == 0;
}

/* ---- The tensors ----------------------------------------------------------------------------- */

/* A tensor for `count` examples, kept for the caller; NULL after raising. */
static tn_tensor *batch_tensor(const tn__collator *c, tn_dims one, tn_dtype dtype, int64_t count) {
    tn_dims dims = {.ndim = one.ndim + 1, .size = {count}};
    memcpy(dims.size + 1, one.size, (size_t)one.ndim * sizeof(int64_t));
    tn_tensor *t = tn_empty_on(c->device, dims, dtype);
    return tn_is_inert(t) ? NULL : tn_keep(t);
}

static int64_t example_at(const tn__collator *c, int64_t epoch, int64_t position) {
    return tn_sampler_at(&c->sampler, c->dataset->size, epoch, position);
}

/* How long an example is; -1 after raising. */
static int64_t length_of(const tn__collator *c, int64_t example, bool of_y) {
    tn_dataset *d = c->dataset;
    int64_t length = example < 0 ? -1 : d->length(d, example, of_y);
    if (length < 0 && !tn__pending()) {
        tn__raise(TN_EVALUE, "loader",
                  "the length of example %lld of the dataset \"%s\" is %lld (0 at least)",
                  (long long)example, d->kind, (long long)length);
    }
    return tn__pending() ? -1 : length;
}

/* The dimensions of one example, as long as the longest of the batch. False after raising. */
static bool fit_longest(const tn__collator *c, int64_t epoch, int64_t first, int64_t count,
                        bool of_y, tn_dims *dims) {
    *dims = of_y ? c->dataset->y_dims : c->dataset->x_dims;
    if (tn__dims_vary(*dims)) {
        dims->size[0] = 0;
        for (int64_t i = 0; i < count; i++) {
            int64_t length = length_of(c, example_at(c, epoch, first + i), of_y);
            if (length < 0) { return false; }
            dims->size[0] = length > dims->size[0] ? length : dims->size[0];
        }
    }
    return true;
}

/* The tensors of a batch, uninitialised. False after raising. */
static bool make_tensors(const tn__collator *c, int64_t epoch, int64_t first, int64_t count,
                         tn__collated *into) {
    const tn_dataset *d = c->dataset;
    bool wanted[TN__BATCH_PARTS] = {
        [TN__BATCH_X] = true,
        [TN__BATCH_Y] = d->y_dims.ndim >= 0,
        [TN__BATCH_VALID] = !tn_sampler_is_real(&c->sampler, d->size, first + count - 1),
        [TN__BATCH_LENGTHS] = tn__dims_vary(d->x_dims),
        [TN__BATCH_Y_LENGTHS] = tn__dims_vary(d->y_dims)};
    tn_dims dims[TN__BATCH_PARTS] = {{0}};
    const tn_dtype dtypes[TN__BATCH_PARTS] = {d->x_dtype, d->y_dtype, TN_BOOL, TN_I64, TN_I64};
    if (!fit_longest(c, epoch, first, count, false, &dims[TN__BATCH_X]) ||
        !fit_longest(c, epoch, first, count, true, &dims[TN__BATCH_Y])) {
        return false;
    }
    for (int k = 0; k < TN__BATCH_PARTS; k++) {
        into->part[k] = wanted[k] ? batch_tensor(c, dims[k], dtypes[k], count) : NULL;
        if (wanted[k] && !into->part[k]) { return false; }
    }
    return true;
}

void tn__collated_release(tn__collated *b) {
    tn__stage_join(&b->stage);
    for (int k = 0; k < TN__BATCH_PARTS; k++) {
        tn_release(b->part[k]);
        b->part[k] = NULL;
    }
}

/* ---- Where the host writes ------------------------------------------------------------------- */

typedef struct page {
    char *part[TN__BATCH_PARTS]; /* NULL if the batch has no such part */
} page;

static size_t part_bytes(const tn_tensor *t) { /* the parts of a stage begin at multiples of 64 */
    return t ? ((size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)) + 63) / 64 * 64 : 0;
}

/* The tensors' own memory on the CPU, else staging memory. False after raising. */
static bool open_page(const tn__collator *c, tn__collated *into, page *p) {
    char *memory = NULL;
    if (c->device.kind != TN_CPU) {
        size_t bytes = 0;
        for (int k = 0; k < TN__BATCH_PARTS; k++) {
            bytes += part_bytes(into->part[k]);
        }
        memory = tn__stage_begin(&into->stage, c->device, bytes);
        if (!memory) { return false; }
    }
    for (int k = 0; k < TN__BATCH_PARTS; k++) {
        tn_tensor *t = into->part[k];
        p->part[k] = !t ? NULL : memory ? memory : tn_data_mut(t);
        memory = memory ? memory + part_bytes(t) : NULL;
    }
    return true;
}

/* Sends a page to the device, unless it is the tensors' memory. */
static tn_status send_page(const tn__collator *c, tn__collated *into, const page *p) {
    if (c->device.kind == TN_CPU) { return TN_OK; }
    for (int k = 0; k < TN__BATCH_PARTS; k++) {
        if (p->part[k] && tn__stage_send(&into->stage, into->part[k], p->part[k]) != TN_OK) {
            return tn_error();
        }
    }
    return tn__stage_end(&into->stage);
}

/* ---- The examples ---------------------------------------------------------------------------- */

/* A row of a batch: x or y of one example. */
typedef struct row_format {
    size_t bytes;       /* of the row */
    size_t step;        /* bytes of one index of the first dimension, if it varies */
    const char *filler; /* one element of padding */
    size_t element;     /* bytes of an element */
} row_format;

static row_format format_of(const tn_tensor *t, tn_dims dims, const char *filler) {
    row_format r = {.filler = filler};
    if (t) {
        r.element = tn_dtype_size(tn_dtype_of(t));
        r.bytes = (size_t)tn_count(t) / (size_t)tn_size(t, 0) * r.element;
        r.step = r.element;
        for (int i = 1; i < dims.ndim; i++) {
            r.step *= (size_t)dims.size[i];
        }
    }
    return r;
}

static void pad_row(char *row, row_format r, int64_t length) {
    for (size_t at = (size_t)length * r.step; at < r.bytes; at += r.element) {
        memcpy(row + at, r.filler, r.element);
    }
}

/* Stores the length of row i, which holds `example`, in the batch, and pads the row. False after
 * raising. */
static bool finish_row(const tn__collator *c, int64_t example, int64_t i, bool of_y, row_format r,
                       const page *p) {
    char *lengths = p->part[of_y ? TN__BATCH_Y_LENGTHS : TN__BATCH_LENGTHS];
    if (lengths) {
        int64_t length = length_of(c, example, of_y);
        if (length < 0) { return false; }
        ((int64_t *)lengths)[i] = length;
        pad_row(p->part[of_y ? TN__BATCH_Y : TN__BATCH_X] + (size_t)i * r.bytes, r, length);
    }
    return true;
}

static tn_status read_example(tn_dataset *d, tn_example e, void *x, void *y) {
    tn_status status = e.index < 0 ? tn_error() : d->get(d, e, x, y);
    if (status != TN_OK || tn_error() != TN_OK) {
        return tn__raise(status, "loader",
                         "example %lld of the dataset \"%s\" failed without saying why",
                         (long long)e.index, d->kind);
    }
    return TN_OK;
}

static tn_status read_examples(const tn__collator *c, int64_t epoch, int64_t first, int64_t count,
                               const tn__collated *b, const page *p) {
    tn_dataset *d = c->dataset;
    char *x = p->part[TN__BATCH_X], *y = p->part[TN__BATCH_Y];
    row_format x_row = format_of(b->part[TN__BATCH_X], d->x_dims, c->x_pad);
    row_format y_row = format_of(b->part[TN__BATCH_Y], d->y_dims, c->y_pad);
    for (int64_t i = 0; i < count; i++) {
        tn_example e = {.index = example_at(c, epoch, first + i),
                        .epoch = epoch,
                        .place = tn__sampler_place(&c->sampler, d->size, first + i)};
        if (read_example(d, e, x + (size_t)i * x_row.bytes,
                         y ? y + (size_t)i * y_row.bytes : NULL) != TN_OK ||
            !finish_row(c, e.index, i, false, x_row, p) ||
            !finish_row(c, e.index, i, true, y_row, p)) {
            return tn_error();
        }
        if (p->part[TN__BATCH_VALID]) {
            p->part[TN__BATCH_VALID][i] = tn_sampler_is_real(&c->sampler, d->size, first + i);
        }
    }
    return TN_OK;
}

void tn__collate(const tn__collator *c, int64_t epoch, int64_t first, int64_t count,
                 tn__collated *into) {
    TN_SCOPE;
    page p;
    if (!make_tensors(c, epoch, first, count, into) || !open_page(c, into, &p) ||
        read_examples(c, epoch, first, count, into, &p) != TN_OK ||
        send_page(c, into, &p) != TN_OK) {
        tn__collated_release(into);
    }
}

static bool write_element(char *to, double value, tn_dtype dtype) {
    tn_tensor *t = tn_full(TN_DIMS(), value, dtype);
    if (!tn_is_inert(t)) { tn_copy_out(t, to); }
    return !tn__pending();
}

bool tn__collator_pads(tn__collator *c, double x_pad, double y_pad) {
    TN_SCOPE;
    const tn_dataset *d = c->dataset;
    return (!tn__dims_vary(d->x_dims) || write_element(c->x_pad, x_pad, d->x_dtype)) &&
           (!tn__dims_vary(d->y_dims) || write_element(c->y_pad, y_pad, d->y_dtype));
}
