/* Printing as NumPy lays arrays out: nested brackets, columns of one width, lines of at most 75
 * characters, "..." in the middle of tensors with more than 1000 elements.
 *
 * Each element is written by itself, in the fewest digits that read back as it, at most 8 (all of
 * them if it is the only one). The first of two passes over the elements finds the widest; the
 * second writes them, to the right of their columns, through a small sink, to a file or into a
 * buffer, so a text of any length needs no memory.
 */
#include "tensor/half.h"
#include "tensor/tensor.h"
#include "text/plain_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 75, SUMMARY_ABOVE = 1000, EDGE = 3, DIGITS = 8, ALL_DIGITS = 17, WORD = 40 };

typedef struct sink {
    FILE *file; /* NULL: into text */
    char *text;
    size_t size, length;
} sink;

typedef struct printer {
    sink *out;
    const tn_tensor *t;
    bool summary;
    int width;  /* of a column */
    int column; /* characters on the line */
} printer;

static void put_text(sink *out, const char *text, size_t length) {
    if (out->file) {
        fwrite(text, 1, length, out->file);
    } else if (out->length < out->size) {
        size_t fits = out->size - out->length;
        memcpy(out->text + out->length, text, length < fits ? length : fits);
    }
    out->length += length;
}

static void put_spaces(sink *out, int count) {
    while (count-- > 0) {
        put_text(out, " ", 1);
    }
}

/* ---- One element ----------------------------------------------------------------------------- */

/* Whether `text`, read as `dtype`, is x. */
static bool reads_back(const char *text, double x, tn_dtype dtype) {
    switch (dtype) {
    case TN_F32:
        return strtof(text, NULL) == (float)x;
    case TN_BF16:
        return tn__bf16_to_float(tn__bf16_from_float(strtof(text, NULL))) == (float)x;
    case TN_F16:
        return tn__f16_to_float(tn__f16_from_float(strtof(text, NULL))) == (float)x;
    default:
        return strtod(text, NULL) == x;
    }
}

/* "0.1", "1.", "1.5e-05": at most `most` digits; with an exponent below 1e-4 and from 10^most on.
 * Returns its length. */
static int float_word(char *word, double x, tn_dtype dtype, int most) {
    if (!isfinite(x)) {
        return snprintf(word, WORD, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    }
    snprintf(word, WORD, "%.*e", most - 1, x);
    double rounded = strtod(word, NULL);
    int digits = 0;
    do {
        snprintf(word, WORD, "%.*e", digits++, x);
    } while (!reads_back(word, x, dtype) && strtod(word, NULL) != rounded);
    int exponent = atoi(strchr(word, 'e') + 1), places = digits - 1 - exponent;
    return exponent < -4 || exponent >= most
               ? (int)strlen(word)
               : snprintf(word, WORD, "%#.*f", places > 0 ? places : 0, x);
}

static int element_word(char *word, const tn_tensor *t, int64_t position) {
    if (t->dtype == TN_I64 && t->storage->device.kind == TN_CPU) { /* a double does not hold all */
        long long number = ((const int64_t *)t->storage->data)[position];
        return snprintf(word, WORD, "%lld", number);
    }
    double x = tn__element(t, position);
    if (tn_dtype_is_float(t->dtype)) {
        return float_word(word, x, t->dtype, t->dims.ndim == 0 ? ALL_DIGITS : DIGITS);
    }
    return t->dtype == TN_BOOL ? snprintf(word, WORD, "%s", x != 0 ? "True" : "False")
                               : snprintf(word, WORD, "%.0f", x);
}

/* ---- The layout ------------------------------------------------------------------------------ */

/* The index after i that is printed; in a summary the middle is left out. */
static int64_t next_index(const printer *p, int64_t i, int64_t size) {
    return p->summary && size > 2 * EDGE && i == EDGE - 1 ? size - EDGE : i + 1;
}

static void find_width(printer *p, int dim, int64_t position) {
    if (dim == p->t->dims.ndim) {
        char word[WORD];
        int length = element_word(word, p->t, position);
        p->width = length > p->width ? length : p->width;
        return;
    }
    int64_t size = p->t->dims.size[dim];
    for (int64_t i = 0; i < size; i = next_index(p, i, size)) {
        find_width(p, dim + 1, position + i * p->t->stride[dim]);
    }
}

/* Puts a word on the line, after a space unless it is the first, or on a new line if it does not
 * fit; as many columns stay free for brackets. */
static void put_word(printer *p, const char *word, int length, int width, int indent) {
    bool first = p->column == indent;
    if (!first && p->column + 1 + width > WIDTH - indent) {
        put_text(p->out, "\n", 1);
        put_spaces(p->out, indent);
        p->column = indent;
        first = true;
    }
    put_spaces(p->out, !first + width - length);
    put_text(p->out, word, (size_t)length);
    p->column += !first + width;
}

static void put_row(printer *p, int dim, int64_t position) {
    int64_t size = p->t->dims.size[dim], next;
    char word[WORD];
    p->column = dim + 1;
    for (int64_t i = 0; i < size; i = next) {
        int length = element_word(word, p->t, position + i * p->t->stride[dim]);
        put_word(p, word, length, p->width, dim + 1);
        next = next_index(p, i, size);
        if (next > i + 1) { put_word(p, "...", 3, 3, dim + 1); }
    }
}

/* Between what is in dimension dim: blank lines, one for each dimension but two after it. */
static void put_gap(printer *p, int dim) {
    put_text(p->out, "\n\n\n\n\n\n\n\n", (size_t)(p->t->dims.ndim - dim) - 1);
    put_spaces(p->out, dim + 1);
}

static void put_level(printer *p, int dim, int64_t position) {
    int64_t size = p->t->dims.size[dim], next;
    bool row = dim == p->t->dims.ndim - 1;
    put_text(p->out, "[", 1);
    if (row) { put_row(p, dim, position); }
    for (int64_t i = 0; !row && i < size; i = next) {
        if (i > 0) { put_gap(p, dim); }
        put_level(p, dim + 1, position + i * p->t->stride[dim]);
        next = next_index(p, i, size);
        if (next > i + 1) {
            put_gap(p, dim);
            put_text(p->out, "...", 3);
        }
    }
    put_text(p->out, "]", 1);
}

static void write_text(sink *out, const tn_tensor *t, const char *operation) {
    if (!tn__readable(t, operation)) {
        if (t) { put_text(out, "inert", 5); }
        return;
    }
    if (!tn__usable(t, operation)) { return; }
    int64_t count = tn_dims_count(t->dims);
    tn__plain_numbers numbers = tn__plain_numbers_begin();
    if (count == 0) {
        put_text(out, "[]", 2);
    } else if (t->dims.ndim == 0) {
        char word[WORD];
        put_text(out, word, (size_t)element_word(word, t, t->offset));
    } else {
        printer p = {.out = out, .t = t, .summary = count > SUMMARY_ABOVE};
        find_width(&p, 0, t->offset);
        put_level(&p, 0, t->offset);
    }
    tn__plain_numbers_end(numbers);
}

size_t tn_format(const tn_tensor *t, char *text, size_t size) {
    sink out = {.text = text, .size = text ? size : 0};
    write_text(&out, t, "format");
    if (text && out.size > 0) { text[out.length < size ? out.length : size - 1] = 0; }
    return out.length;
}

void tn_fprint(FILE *file, const tn_tensor *t) {
    if (!file) {
        tn__raise(TN_EVALUE, "fprint", "the file is NULL");
        return;
    }
    sink out = {.file = file};
    write_text(&out, t, "fprint");
    put_text(&out, "\n", 1);
}

void tn_print(const tn_tensor *t) {
    tn_fprint(stdout, t);
}
