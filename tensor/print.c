/* Printing as NumPy prints: nested brackets, columns of one width, lines of at most 75 characters,
 * "..." in the middle of tensors with more than 1000 elements.
 *
 * Two passes over the same elements. The first finds the style: integers get the widest one's
 * width; floats align their points, and are printed scientifically when the largest is 1e8 or more,
 * the smallest below 1e-4 or their ratio above 1000. The second writes through a small sink, to a
 * file or into a buffer, so a text of any length needs no memory.
 */
#include "tensor/decimal.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

enum { WIDTH = 75, SUMMARY_ABOVE = 1000, EDGE = 3, PLACES = 8, WORD = 400 };

typedef struct sink {
    FILE *file; /* NULL: into text */
    char *text;
    size_t size, length;
} sink;

/* How every element is written. */
typedef struct style {
    bool is_float, scientific, scalar;
    int left, right;     /* characters before the point (with the sign), digits after it */
    int exponent_digits; /* scientific */
    int whole;           /* floats: the width of a column */
    int width;           /* integers and bool */
} style;

typedef struct printer {
    sink *out;
    const tn_tensor *t;
    style style;
    bool summary;
    int column; /* characters on the line, including blanks not written yet */
    int blanks; /* pending, after a word and its separator: a line that ends here drops them */
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

static int places_of(tn__decimal d) {
    int places = d.digits - 1 - d.exponent;
    return places > 0 ? places : 0;
}

/* "-12.5", padded to the style's columns. Returns its length. */
static int write_positional(char *word, tn__decimal d, int left, int right) {
    char number[WORD];
    int n = 0, whole = d.exponent >= 0 ? d.exponent + 1 : 1;
    if (d.negative) { number[n++] = '-'; }
    for (int i = 0; i < whole; i++) {
        int at = d.exponent >= 0 ? i : -1;
        number[n++] = at >= 0 && at < d.digits ? d.digit[at] : '0';
    }
    int before = n;
    number[n++] = '.';
    for (int place = 1; place <= places_of(d); place++) {
        int at = d.exponent + place;
        number[n++] = at >= 0 && at < d.digits ? d.digit[at] : '0';
    }
    int pad_left = left > before ? left - before : 0, after = n - before - 1;
    int pad_right = right > after ? right - after : 0;
    return snprintf(word, WORD, "%*s%.*s%*s", pad_left, "", n, number, pad_right, "");
}

/* "-1.250e-05": `places` digits after the point, filled with zeros. */
static int write_scientific(char *word, tn__decimal d, int left, int places, int exponent_digits) {
    char number[WORD];
    int n = snprintf(number, sizeof(number), "%s%c.", d.negative ? "-" : "", d.digit[0]);
    for (int i = 1; i <= places; i++) {
        number[n++] = i < d.digits ? d.digit[i] : '0';
    }
    int before = d.negative ? 2 : 1;
    int power = d.exponent < 0 ? -d.exponent : d.exponent;
    return snprintf(word, WORD, "%*s%.*se%c%0*d", left > before ? left - before : 0, "", n, number,
                    d.exponent < 0 ? '-' : '+', exponent_digits, power);
}

/* A 0-dimensional float, as Python writes a number: all its digits. */
static int scalar_float(char *word, double x, tn_dtype dtype) {
    tn__decimal d = tn__decimal_of(x, dtype, TN__MOST_DIGITS, true);
    if (x != 0 && (fabs(x) < 1e-4 || fabs(x) >= 1e16)) {
        int n = snprintf(word, WORD, "%s%c", d.negative ? "-" : "", d.digit[0]);
        n += snprintf(word + n, (size_t)(WORD - n), "%s%se%c%02d", d.digits > 1 ? "." : "",
                      d.digit + 1, d.exponent < 0 ? '-' : '+',
                      d.exponent < 0 ? -d.exponent : d.exponent);
        return n;
    }
    int n = write_positional(word, d, 0, 0);
    if (places_of(d) == 0) { n += snprintf(word + n, (size_t)(WORD - n), "0"); }
    return n;
}

static int float_word(char *word, double x, const printer *p) {
    const style *s = &p->style;
    if (!isfinite(x)) {
        const char *name = isnan(x) ? "nan" : x < 0 ? "-inf" : "inf";
        return snprintf(word, WORD, "%*s", s->scalar ? 0 : s->whole, name);
    }
    if (s->scalar) { return scalar_float(word, x, p->t->dtype); }
    /* all get as many digits as the longest needs: real ones, not zeros */
    if (s->scientific) {
        return write_scientific(word, tn__decimal_rounded(x, s->right + 1), s->left, s->right,
                                s->exponent_digits);
    }
    return write_positional(word, tn__decimal_of(x, p->t->dtype, PLACES, false), s->left, s->right);
}

/* Integers directly: a double does not hold every i64. */
static long long integer_at(const tn_tensor *t, int64_t position) {
    return t->dtype == TN_I64 ? ((const int64_t *)t->storage->data)[position]
                              : (long long)tn__element(t, position);
}

static int element_word(char *word, const printer *p, int64_t position) {
    if (p->style.is_float) { return float_word(word, tn__element(p->t, position), p); }
    if (p->t->dtype == TN_BOOL) {
        return snprintf(word, WORD, "%*s", p->style.width,
                        tn__element(p->t, position) != 0 ? "True" : "False");
    }
    return snprintf(word, WORD, "%*lld", p->style.width, integer_at(p->t, position));
}

/* ---- The style ------------------------------------------------------------------------------- */

/* Calls `see` for each element that will be printed. */
static void each_element(const printer *p, int dim, int64_t position,
                         void (*see)(const printer *p, int64_t position, void *to), void *to) {
    if (dim == p->t->dims.ndim) {
        see(p, position, to);
        return;
    }
    int64_t size = p->t->dims.size[dim];
    for (int64_t i = 0; i < size; i++) {
        if (p->summary && size > 2 * EDGE && i == EDGE) { i = size - EDGE; }
        each_element(p, dim + 1, position + i * p->t->stride[dim], see, to);
    }
}

typedef struct range {
    double least, most; /* of the finite nonzero ones, without sign */
    bool any;
} range;

static void see_range(const printer *p, int64_t position, void *to) {
    range *r = to;
    double x = fabs(tn__element(p->t, position));
    if (isfinite(x) && x != 0) {
        r->least = r->any && r->least < x ? r->least : x;
        r->most = r->any && r->most > x ? r->most : x;
        r->any = true;
    }
}

typedef struct extent {
    int left, right, exponent_digits;
    bool finite, other, minus_infinity;
} extent;

static int larger_of(int a, int b) {
    return a > b ? a : b;
}

static void see_extent(const printer *p, int64_t position, void *to) {
    extent *e = to;
    double x = tn__element(p->t, position);
    if (!isfinite(x)) {
        e->other = true;
        e->minus_infinity |= isinf(x) && x < 0;
        return;
    }
    bool is_scientific = p->style.scientific;
    tn__decimal d = tn__decimal_of(x, p->t->dtype, PLACES, is_scientific);
    e->finite = true;
    if (is_scientific) {
        e->left = larger_of(e->left, 1 + d.negative);
        e->right = larger_of(e->right, d.digits - 1);
        e->exponent_digits =
            larger_of(e->exponent_digits, d.exponent >= 100 || d.exponent <= -100 ? 3 : 2);
    } else {
        e->left = larger_of(e->left, d.negative + (d.exponent > 0 ? d.exponent + 1 : 1));
        e->right = larger_of(e->right, places_of(d));
    }
}

static void see_width(const printer *p, int64_t position, void *to) {
    int *width = to;
    char word[WORD];
    *width = larger_of(*width, snprintf(word, sizeof(word), "%lld", integer_at(p->t, position)));
}

static void find_style(printer *p) {
    style *s = &p->style;
    s->scalar = p->t->dims.ndim == 0;
    s->is_float = tn_dtype_is_float(p->t->dtype);
    if (!s->is_float) {
        s->width = p->t->dtype == TN_BOOL && !s->scalar ? 5 : 0;
        if (p->t->dtype != TN_BOOL) { each_element(p, 0, p->t->offset, see_width, &s->width); }
        return;
    }
    range r = {0};
    each_element(p, 0, p->t->offset, see_range, &r);
    s->scientific = r.any && (r.most >= 1e8 || r.least < 1e-4 || r.most / r.least > 1000);
    extent e = {0};
    each_element(p, 0, p->t->offset, see_extent, &e);
    s->left = e.left;
    s->exponent_digits = e.exponent_digits;
    s->right = e.right;
    int after = s->scientific ? 2 + e.exponent_digits + e.right : e.right;
    if (e.other) { /* "nan" and "inf" take the whole column */
        s->left = larger_of(s->left, 3 + e.minus_infinity - (after + 1));
    }
    s->whole = s->left + 1 + after;
}

/* ---- The layout ------------------------------------------------------------------------------ */

/* Puts a word and a separator on the line, or on a new one if it does not fit; `last` columns stay
 * free for brackets. */
static void put_word(printer *p, const char *word, int length, int indent, int last) {
    if (p->column + length > WIDTH - last && p->column > indent) {
        put_text(p->out, "\n", 1);
        p->blanks = p->column = indent;
    }
    put_spaces(p->out, p->blanks);
    int visible = length;
    while (visible > 0 && word[visible - 1] == ' ') {
        visible--;
    }
    put_text(p->out, word, (size_t)visible);
    p->blanks = length - visible + 1;
    p->column += length + 1;
}

static void put_row(printer *p, int dim, int64_t position) {
    int64_t size = p->t->dims.size[dim];
    char word[WORD];
    p->column = dim + 1;
    p->blanks = 0;
    for (int64_t i = 0; i < size; i++) {
        if (p->summary && size > 2 * EDGE && i == EDGE) {
            put_word(p, "...", 3, dim + 1, dim + 1);
            i = size - EDGE;
        }
        int length = element_word(word, p, position + i * p->t->stride[dim]);
        put_word(p, word, length, dim + 1, dim + 1);
    }
    put_spaces(p->out, p->blanks - 1);
}

static void put_level(printer *p, int dim, int64_t position) {
    int left = p->t->dims.ndim - dim;
    int64_t size = p->t->dims.size[dim];
    put_text(p->out, "[", 1);
    if (left == 1) { put_row(p, dim, position); }
    for (int64_t i = 0; left > 1 && i < size; i++) {
        if (i > 0) {
            put_text(p->out, "\n\n\n\n\n\n\n\n", (size_t)left - 1);
            put_spaces(p->out, dim + 1);
        }
        if (p->summary && size > 2 * EDGE && i == EDGE) {
            put_text(p->out, "...", 3);
            put_text(p->out, "\n\n\n\n\n\n\n\n", (size_t)left - 1);
            put_spaces(p->out, dim + 1);
            i = size - EDGE;
        }
        put_level(p, dim + 1, position + i * p->t->stride[dim]);
    }
    put_text(p->out, "]", 1);
}

static void write_text(sink *out, const tn_tensor *t, const char *operation) {
    if (!tn__readable(t, operation)) {
        if (t) { put_text(out, "inert", 5); }
        return;
    }
    int64_t count = tn_dims_count(t->dims);
    if (!tn__usable(t, operation)) { return; }
    if (count == 0) {
        put_text(out, "[]", 2);
        return;
    }
    printer p = {.out = out, .t = t, .summary = count > SUMMARY_ABOVE};
    find_style(&p);
    if (t->dims.ndim == 0) {
        char word[WORD];
        int length = element_word(word, &p, t->offset);
        put_text(out, word, (size_t)length);
    } else {
        put_level(&p, 0, t->offset);
    }
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
