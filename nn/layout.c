/* Layouts as runs (layout.h).
 *
 * A block is made of bands: for each of the `outer` indices before `dim` and each of its pieces one
 * slice, a range of indices of the dimension with all that comes after it. A band has no gaps in
 * the whole, and bands are in the same order in both. So an element is found with one division.
 */
#include "nn/layout.h"

tn_layout tn__layout_whole(tn_dims whole) {
    return (tn_layout){
        .whole = whole, .dim = -1, .pieces = 1, .slices = 1, .length = tn_dims_count(whole)};
}

/* The product of the sizes from dimension `first` to before `last`. */
static int64_t count_between(const tn_dims *d, int first, int last) {
    int64_t count = 1;
    for (int i = first; i < last; i++) {
        count *= d->size[i];
    }
    return count;
}

static bool dims_sound(const tn_dims *d) {
    int64_t product = 1; /* without the zeros: strides are computed from it */
    if (d->ndim < 0 || d->ndim > TN_MAX_DIMS) { return false; }
    for (int i = 0; i < d->ndim; i++) {
        if (d->size[i] < 0 ||
            (d->size[i] && __builtin_mul_overflow(product, d->size[i], &product))) {
            return false;
        }
    }
    return true;
}

static bool cut_sound(const tn_layout *l) {
    if (l->dim < 0) { return l->dim == -1; }
    int64_t cuts = (int64_t)l->pieces * l->slices;
    return l->dim < l->whole.ndim && l->pieces > 0 && l->slices > 0 && l->slice >= 0 &&
           l->slice < l->slices && (l->pieces == 1 || l->whole.size[l->dim] % cuts == 0);
}

tn__slice tn__layout_slice(const tn_layout *l) {
    int64_t piece = l->whole.size[l->dim] / l->pieces;
    int64_t each = piece / l->slices + (piece % l->slices != 0), first = l->slice * each;
    int64_t left = piece > first ? piece - first : 0;
    return (tn__slice){first < piece ? first : piece, left < each ? left : each};
}

tn_dims tn__layout_block(const tn_layout *l) {
    tn_dims block = l->whole;
    if (l->dim >= 0) { block.size[l->dim] = l->pieces * tn__layout_slice(l).count; }
    return block;
}

bool tn__layout_sound(const tn_layout *l) {
    if (!dims_sound(&l->whole) || !cut_sound(l)) { return false; }
    int64_t block = tn_dims_count(tn__layout_block(l));
    return l->start >= 0 && l->length >= 0 && l->length <= block && l->start <= block - l->length;
}

tn_layout tn__layout_plain(const tn_layout *l) {
    tn_layout plain = *l;
    if (l->dim < 0) {
        plain.pieces = plain.slices = 1;
        plain.slice = 0;
    }
    return plain;
}

bool tn__layout_equal(const tn_layout *a, const tn_layout *b) {
    return tn_dims_equal(a->whole, b->whole) && a->dim == b->dim && a->pieces == b->pieces &&
           a->slice == b->slice && a->slices == b->slices && a->start == b->start &&
           a->length == b->length;
}

tn__layout_span tn__layout_run(const tn_layout *l, int64_t here) {
    int64_t at = l->start + here; /* in the block */
    if (l->dim < 0) {
        return (tn__layout_span){.whole = at, .here = here, .length = l->length - here};
    }
    tn__slice slice = tn__layout_slice(l);
    int64_t inner = count_between(&l->whole, l->dim + 1, l->whole.ndim);
    int64_t piece = l->whole.size[l->dim] / l->pieces * inner, band = slice.count * inner;
    if (band == 0) { /* an empty slice */
        return (tn__layout_span){.whole = at, .here = here};
    }
    int64_t left = band - at % band, rest = l->length - here;
    return (tn__layout_span){.whole = at / band * piece + slice.first * inner + at % band,
                             .here = here,
                             .length = left < rest ? left : rest};
}

bool tn__layouts_next(const tn_layout *a, const tn_layout *b, tn__common *c) {
    int64_t i = c->a + c->length, k = c->b + c->length;
    while (i < a->length && k < b->length) {
        tn__layout_span x = tn__layout_run(a, i), y = tn__layout_run(b, k);
        int64_t x_end = x.whole + x.length, y_end = y.whole + y.length;
        int64_t begin = x.whole > y.whole ? x.whole : y.whole, end = x_end < y_end ? x_end : y_end;
        if (begin < end) {
            *c = (tn__common){i + begin - x.whole, k + begin - y.whole, end - begin};
            return true;
        }
        if (x_end <= y_end) {
            i += x.length;
        } else {
            k += y.length;
        }
    }
    return false;
}
