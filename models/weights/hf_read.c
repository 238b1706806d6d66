/* Elements of a tensor in a file, for one rank (hf_read.h).
 *
 * A layout's runs are themselves ranges of the file. If a matrix is transposed in the file, a row
 * there is a column here: from each such row the layout's elements are read, and put into their
 * rows.
 */
#include "models/weights/hf_read.h"

#include "core/error.h"
#include "core/memory.h"
#include "nn/layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static size_t element_size(const tn_safetensors *f, const char *name) {
    tn_dtype dtype;
    tn__safetensors_find_dtype(tn_safetensors_dtype(f, name), &dtype);
    return tn_dtype_size(dtype);
}

/* ---- Transposed ------------------------------------------------------------------------------ */

/* One dimension of a block: index i of it is index `place(i)` of the whole, and up to `left(i)`
 * indices from there on are consecutive in both. */
typedef struct axis {
    int64_t count, piece, slice, first; /* of the block, a piece, a slice; the slice's begin */
} axis;

static axis axis_of(const tn_layout *l, int dim) {
    int64_t size = l->whole.size[dim];
    if (l->dim != dim) { return (axis){.count = size, .piece = size, .slice = size}; }
    tn__slice slice = tn__layout_slice(l);
    return (axis){.count = l->pieces * slice.count,
                  .piece = size / l->pieces,
                  .slice = slice.count,
                  .first = slice.first};
}

static int64_t axis_place(const axis *a, int64_t i) {
    return i / a->slice * a->piece + a->first + i % a->slice;
}

/* The smallest row whose element in column `column` is not before `at`, counted from the block's
 * first element. */
static int64_t row_from(int64_t at, int64_t column, int64_t columns) {
    return at <= column ? 0 : (at - column + columns - 1) / columns;
}

/* Copies `n` consecutive elements of the file to every step-th position. */
static void scatter_elements(void *to, const void *from, int64_t n, int64_t step, size_t size) {
    for (int64_t k = 0; k < n; k++) {
        if (size == 2) {
            ((uint16_t *)to)[k * step] = ((const uint16_t *)from)[k];
        } else if (size == 4) {
            ((uint32_t *)to)[k * step] = ((const uint32_t *)from)[k];
        } else {
            memcpy((char *)to + (size_t)(k * step) * size, (const char *)from + (size_t)k * size,
                   size);
        }
    }
}

static bool read_transposed(const tn_safetensors *f, const char *name, const tn_layout *l,
                            char *to) {
    size_t size = element_size(f, name);
    axis rows = axis_of(l, 0), columns = axis_of(l, 1);
    assert(rows.slice > 0 && columns.count > 0); /* there is an element */
    char *chunk = tn__malloc((size_t)rows.slice * size);
    bool read = chunk != NULL;
    if (!chunk) {
        tn__raise(TN_ENOMEM, "safetensors", "%s: no memory to read \"%s\"", tn__safetensors_path(f),
                  name);
    }
    for (int64_t c = 0; read && c < columns.count; c++) {
        int64_t line = axis_place(&columns, c) * l->whole.size[0];
        int64_t end = row_from(l->start + l->length, c, columns.count);
        for (int64_t r = row_from(l->start, c, columns.count), n; read && r < end; r += n) {
            n = rows.slice - r % rows.slice;
            n = n < end - r ? n : end - r;
            read = tn__safetensors_read(f, name, (size_t)(line + axis_place(&rows, r)) * size,
                                        chunk, (size_t)n * size);
            if (read) {
                scatter_elements(to + (size_t)(r * columns.count + c - l->start) * size, chunk, n,
                                 columns.count, size);
            }
        }
    }
    free(chunk);
    return read;
}

bool tn__hf_read(const tn_safetensors *f, const char *name, const tn_layout *layout,
                 bool transposed, void *to) {
    if (layout->length == 0) { return true; }
    return transposed ? read_transposed(f, name, layout, to)
                      : tn__safetensors_read_layout(f, name, layout, to);
}
