/* Pooling: the largest element, or the mean, of each window; and the gradients, in which an element
 * asks the windows that may have it. */
#include "backends/pool.h"
#include "backends/ref/ref.h"

enum { SPATIAL = 3 };

/* The offset of place[3] in a plane of x (N, C, …); the dimensions that are not there come first.
 */
static int64_t offset_in_plane(const tn_desc *x, const tn_pool_args *a, const int64_t *place) {
    int64_t at = 0;
    for (int i = 0; i < a->spatial; i++) {
        at += place[SPATIAL - a->spatial + i] * x->stride[2 + i];
    }
    return at;
}

static int64_t plane_offset(const tn_desc *x, const int64_t *index) {
    return index[0] * x->stride[0] + index[1] * x->stride[1];
}

/* The place of index (n, c, …). */
static void place_of(const tn_pool_args *a, const int64_t *index, int64_t *place) {
    for (int i = 0; i < SPATIAL; i++) {
        int k = i - (SPATIAL - a->spatial);
        place[i] = k < 0 ? 0 : index[2 + k];
    }
}

static int64_t number_of(const tn_pool_args *a, const int64_t *place) {
    return (place[0] * a->in[1] + place[1]) * a->in[2] + place[2];
}

/* Goes through count[3] indices i in row-major order; false behind the last. */
static bool next_index(const int64_t *count, int64_t *i) {
    for (int d = SPATIAL - 1; d >= 0; d--) {
        if (++i[d] < count[d]) {
            return true;
        }
        i[d] = 0;
    }
    return false;
}

/* The windows of a place; false: without elements. */
static bool windows_of(const tn_pool_args *a, const int64_t *place, tn__window *w, int64_t *count) {
    for (int i = 0; i < SPATIAL; i++) {
        w[i] = tn__window_at(a, i, place[i]);
        count[i] = w[i].count;
    }
    return count[0] > 0 && count[1] > 0 && count[2] > 0;
}

/* The places that may have an element; false: none. */
static bool places_of(const tn_pool_args *a, const int64_t *at, tn__places *p, int64_t *count) {
    for (int i = 0; i < SPATIAL; i++) {
        p[i] = tn__places_of(a, i, at[i]);
        count[i] = p[i].count;
    }
    return count[0] > 0 && count[1] > 0 && count[2] > 0;
}

static bool are_floats(const tn_desc *a, const tn_desc *b) {
    return is_float(a->dtype) && a->dtype == b->dtype;
}

tn_status tn__ref_max_pool(tn_context *ctx, const tn_desc *y, const tn_desc *index,
                           const tn_desc *x, const tn_pool_args *args) {
    (void)ctx;
    if (!are_floats(y, x) || (index && index->dtype != TN_I32)) {
        return TN_EUNSUPPORTED;
    }
    for (walk k = walk_over(2, y, index ? index : y); k.left > 0; walk_next(&k)) {
        int64_t place[SPATIAL], count[SPATIAL], i[SPATIAL] = {0}, number = -1;
        tn__window w[SPATIAL];
        double best = -INFINITY;
        place_of(args, k.index, place);
        for (bool more = windows_of(args, place, w, count); more; more = next_index(count, i)) {
            int64_t at[SPATIAL];
            for (int d = 0; d < SPATIAL; d++) {
                at[d] = w[d].first + i[d] * args->dilation[d];
            }
            double v = load_float(x, plane_offset(x, k.index) + offset_in_plane(x, args, at));
            if (v > best || isnan(v) || number < 0) {
                best = v;
                number = number_of(args, at);
            }
        }
        store_float(y, k.at[0], best);
        if (index) {
            store_integer(index, k.at[1], number);
        }
    }
    return TN_OK;
}

tn_status tn__ref_max_pool_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dy,
                                    const tn_desc *index, const tn_pool_args *args) {
    (void)ctx;
    if (!are_floats(dx, dy) || index->dtype != TN_I32) {
        return TN_EUNSUPPORTED;
    }
    for (walk k = walk_over(1, dx); k.left > 0; walk_next(&k)) {
        int64_t at[SPATIAL], count[SPATIAL], i[SPATIAL] = {0};
        tn__places p[SPATIAL];
        double sum = 0;
        place_of(args, k.index, at);
        for (bool more = places_of(args, at, p, count); more; more = next_index(count, i)) {
            int64_t place[] = {p[0].first + i[0], p[1].first + i[1], p[2].first + i[2]};
            int64_t from = plane_offset(index, k.index) + offset_in_plane(index, args, place);
            if (load_integer(index, from) == number_of(args, at)) {
                sum += load_float(dy, plane_offset(dy, k.index) + offset_in_plane(dy, args, place));
            }
        }
        store_float(dx, k.at[0], sum);
    }
    return TN_OK;
}

tn_status tn__ref_avg_pool(tn_context *ctx, const tn_desc *y, const tn_desc *x,
                           const tn_pool_args *args) {
    (void)ctx;
    if (!are_floats(y, x)) {
        return TN_EUNSUPPORTED;
    }
    for (walk k = walk_over(1, y); k.left > 0; walk_next(&k)) {
        int64_t place[SPATIAL], count[SPATIAL], i[SPATIAL] = {0};
        tn__window w[SPATIAL];
        double sum = 0;
        place_of(args, k.index, place);
        for (bool more = windows_of(args, place, w, count); more; more = next_index(count, i)) {
            int64_t at[] = {w[0].first + i[0], w[1].first + i[1], w[2].first + i[2]};
            sum += load_float(x, plane_offset(x, k.index) + offset_in_plane(x, args, at));
        }
        store_float(y, k.at[0], sum * tn__window_share(args, w));
    }
    return TN_OK;
}

tn_status tn__ref_avg_pool_backward(tn_context *ctx, const tn_desc *dx, const tn_desc *dy,
                                    const tn_pool_args *args) {
    (void)ctx;
    if (!are_floats(dx, dy)) {
        return TN_EUNSUPPORTED;
    }
    for (walk k = walk_over(1, dx); k.left > 0; walk_next(&k)) {
        int64_t at[SPATIAL], count[SPATIAL], inside[SPATIAL], i[SPATIAL] = {0};
        tn__places p[SPATIAL];
        double sum = 0;
        place_of(args, k.index, at);
        for (bool more = places_of(args, at, p, count); more; more = next_index(count, i)) {
            int64_t place[] = {p[0].first + i[0], p[1].first + i[1], p[2].first + i[2]};
            tn__window w[SPATIAL];
            windows_of(args, place, w, inside);
            double part =
                load_float(dy, plane_offset(dy, k.index) + offset_in_plane(dy, args, place));
            sum += part * tn__window_share(args, w);
        }
        store_float(dx, k.at[0], sum);
    }
    return TN_OK;
}
