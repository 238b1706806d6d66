/* Rotary positions: pair i of a row, (x[i], x[i + D/2]), is turned by angle = position frequency(i)
 *
 *     y[i]       = x[i] cos(angle) - x[i + D/2] sin(angle)
 *     y[i + D/2] = x[i + D/2] cos(angle) + x[i] sin(angle)
 *
 * The inverse turns by -angle: it is the transpose, and so the gradient.
 */
#include "backends/ref/ref.h"
#include "backends/rotary.h"

/* Pair i of a row of x that begins at `from`, to that of y at `to`. */
static void turn_pair(const tn_desc *y, int64_t to, const tn_desc *x, int64_t from, int64_t i,
                      double angle) {
    int64_t half = x->size[3] / 2;
    double a = load_float(x, from + i * x->stride[3]),
           b = load_float(x, from + (i + half) * x->stride[3]);
    store_float(y, to + i * y->stride[3], a * cos(angle) - b * sin(angle));
    store_float(y, to + (i + half) * y->stride[3], b * cos(angle) + a * sin(angle));
}

tn_status tn__ref_rotary(tn_context *ctx, const tn_desc *y, const tn_desc *x,
                         const tn_desc *positions, const tn_rotary_args *args) {
    (void)ctx;
    if (!is_float(x->dtype) || y->dtype != x->dtype || !is_index(positions->dtype)) {
        return TN_EUNSUPPORTED;
    }
    int64_t half = x->size[3] / 2;
    for (int64_t b = 0; b < x->size[0]; b++) {
        for (int64_t t = 0; t < x->size[2]; t++) {
            double position = (double)load_integer(positions, b * positions->stride[0] +
                                                                  t * positions->stride[1]);
            for (int64_t i = 0; i < half; i++) {
                double angle = position * tn__rotary_frequency(args, i, half);
                for (int64_t h = 0; h < x->size[1]; h++) {
                    turn_pair(y, b * y->stride[0] + h * y->stride[1] + t * y->stride[2], x,
                              b * x->stride[0] + h * x->stride[1] + t * x->stride[2], i,
                              args->inverse ? -angle : angle);
                }
            }
        }
    }
    return TN_OK;
}
