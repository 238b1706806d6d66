/* rotary(x, positions): each row rotated by its position, so that the product of two rows depends
 * on their distance (Su et al. 2021, arXiv:2104.09864)
 *
 *     x: (B, H, T, D), D even, f32 f64 bf16 f16       y: like x
 *     positions: (T) or (B, T), i64 i32
 *     pair i of a row is (x[i], x[i + D/2]); angle = position frequency(i), frequency(i) as in
 *     backends/rotary.h:
 *     y[i] = x[i] cos - x[i + D/2] sin        y[i + D/2] = x[i + D/2] cos + x[i] sin
 *     dx = dy rotated back: the same with -angle
 *
 * Pairs are made of the halves of a row, as in Hugging Face's Llama. (In the paper, of neighbours:
 * the same up to the row order of the projection before it.) y has x's order of heads and positions
 * in memory.
 */
#include "ops/nn/rotary.h"

#include "backends/ref/ref.h"
#include "ops/dims.h"

static bool args_fit(const tn_op_call *c, const tn_rotary_args *o) {
    if (!(o->theta > 0.0) || !(o->factor > 0.0)) {
        return tn_op_fail(c, TN_EVALUE, "theta is %g and factor %g (both must be positive)",
                          o->theta, o->factor);
    }
    if (o->factor != 1.0 &&
        (!(o->low_freq_factor < o->high_freq_factor) || o->original_context < 1)) {
        return tn_op_fail(c, TN_EVALUE,
                          "low_freq_factor is %g, high_freq_factor %g and original_context %lld "
                          "(the first must be below the second, the last at least 1)",
                          o->low_freq_factor, o->high_freq_factor, (long long)o->original_context);
    }
    return true;
}

bool tn__rotary_out(tn_op_call *c, int i) {
    const tn_tensor *x = c->in[i];
    if (!tn_op_out_like(c, i)) { return false; }
    tn_tensor *y = c->out[c->outputs - 1];
    if (x->stride[1] < x->stride[2]) {
        y->stride[2] = x->dims.size[1] * x->dims.size[3];
        y->stride[1] = x->dims.size[3];
    }
    return true;
}

bool tn__rotary_fits(tn_op_call *c, int positions) {
    if (!tn_op_float(c, 0) || !tn_op_index(c, positions)) { return false; }
    const char *name = c->op->inputs[0];
    tn_dims x = tn_shape(c->in[0]), p = tn_shape(c->in[positions]);
    if (x.ndim != 4 || x.size[3] % 2 != 0) {
        return tn_op_fail(c, TN_ESHAPE,
                          "%s is %s but needs 4 dimensions, batch, heads, positions and an even "
                          "width",
                          name, tn_shape_text(c->in[0]));
    }
    bool fits = (p.ndim == 1 || (p.ndim == 2 && (p.size[0] == x.size[0] || p.size[0] == 1))) &&
                p.size[p.ndim - 1] == x.size[2];
    if (!fits) {
        return tn_op_fail(c, TN_ESHAPE,
                          "%s is %s but positions are %s (they must be [%lld] or [%lld, %lld])",
                          name, tn_shape_text(c->in[0]), tn_shape_text(c->in[positions]),
                          (long long)x.size[2], (long long)x.size[0], (long long)x.size[2]);
    }
    return args_fit(c, c->args);
}

static bool rotary_shape(tn_op_call *c) {
    return tn__rotary_fits(c, 1) && tn__rotary_out(c, 0);
}

/* Rotates pair i of x's row at `from` into y's row at `to`. */
static void turn_pair(const tn_desc *y, int64_t to, const tn_desc *x, int64_t from, int64_t i,
                      double angle) {
    int64_t half = x->size[3] / 2;
    double a = load_float(x, from + i * x->stride[3]),
           b = load_float(x, from + (i + half) * x->stride[3]);
    store_float(y, to + i * y->stride[3], a * cos(angle) - b * sin(angle));
    store_float(y, to + (i + half) * y->stride[3], b * cos(angle) + a * sin(angle));
}

static tn_status rotary_host(const tn_op_call *c) {
    const tn_desc *x = c->x[0], *y = c->y[0], positions = tn__rotary_positions(x, c->x[1]);
    const tn_rotary_args *args = c->args;
    int64_t half = x->size[3] / 2;
    for (int64_t b = 0; b < x->size[0]; b++) {
        for (int64_t t = 0; t < x->size[2]; t++) {
            double position =
                (double)load_integer(&positions, b * positions.stride[0] + t * positions.stride[1]);
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

static void rotary_backward(tn_op_grad *g) {
    tn_rotary_args args = *(const tn_rotary_args *)g->args;
    args.inverse = !args.inverse;
    tn_op_give(g, 0, tn_apply2(&tn__op_rotary, &args, g->dout[0], tn_op_saved_input(g, 1)));
}

/* (1 or B, 1, T, D / 2) in f64 */
static tn_tensor *angles_of(const tn_rotary_args *args, const tn_tensor *x, tn_tensor *positions) {
    int64_t half = tn_size(x, 3) / 2;
    tn_tensor *frequency = tn_empty_on(tn_cpu(), TN_DIMS(half), TN_F64);
    double *f = tn_data_mut(frequency);
    for (int64_t i = 0; i < half && !tn_is_inert(frequency); i++) {
        f[i] = tn__rotary_frequency(args, i, half) * (args->inverse ? -1.0 : 1.0);
    }
    tn_dims each =
        TN_DIMS(tn_ndim(positions) == 2 ? tn_size(positions, 0) : 1, 1, tn_size(x, 2), 1);
    return tn_mul(tn_reshape(tn_cast(positions, TN_F64), each), tn_to(frequency, tn_device_of(x)));
}

static tn_tensor *rotary_compose(tn_op_call *c) {
    tn_tensor *x = c->in[0], *angles = angles_of(c->args, x, c->in[1]);
    tn_tensor *cosine = tn_cast(tn_cos(angles), tn_dtype_of(x)),
              *sine = tn_cast(tn_sin(angles), tn_dtype_of(x));
    int64_t half = tn_size(x, 3) / 2;
    tn_tensor *a = tn_narrow(x, 3, 0, half), *b = tn_narrow(x, 3, half, half);
    tn_tensor *turned[2] = {tn_sub(tn_mul(a, cosine), tn_mul(b, sine)),
                            tn_add(tn_mul(b, cosine), tn_mul(a, sine))};
    return tn_cat(turned, 2, 3);
}

const tn_op tn__op_rotary = {
    .name = "rotary",
    .inputs = {"x", "positions"},
    .args_size = sizeof(tn_rotary_args),
    .fields = {TN_FIELD(tn_rotary_args, theta), TN_FIELD(tn_rotary_args, factor),
               TN_FIELD(tn_rotary_args, original_context), TN_FIELD(tn_rotary_args, inverse)},
    .saves = TN_SAVES_INPUT(1),
    .shape = rotary_shape,
    .kernel = TN_FUSED(rotary),
    .host = {.forward = rotary_host},
    .compose = rotary_compose,
    .backward = rotary_backward,
    .flags = TN_OP_WIDE,
    /* Positions per column, and per element; far ones; all three kinds of pairs of Llama 3's
     * scaling (of these 4 pairs the first is not scaled, the last two rotate more slowly); empty
     * in every dimension. */
    .samples = "{-1.5:1.5} [2, 2, 3, 4] [3]<10; [2, 3, 3, 6] [2, 3]<10; "
               "[2, 2, 3, 4] [1, 3]<10 inverse=True; "
               "[1, 2, 5, 8] [1, 5]<100 theta=500.0, factor=8.0, original_context=64; "
               "[1, 1, 70, 2] [70]<5000; [3, 2, 2, 34] [3, 2]<3; [1, 2, 0, 4] [0]<1; "
               "[0, 2, 3, 4] [3]<4; [1, 2, 3, 0] [3]<4",
    .sample_args = &(const tn_rotary_args){10000.0, 1.0, 1.0, 4.0, 8192, false},
};

tn_rotary_options tn_rotary_defaults(void) {
    return (tn_rotary_options){.theta = 10000.0,
                               .factor = 1.0,
                               .low_freq_factor = 1.0,
                               .high_freq_factor = 4.0,
                               .original_context = 8192,
                               .from_defaults = true};
}

tn_rotary_args tn__rotary_args_of(const tn_rotary_options *options) {
    return (tn_rotary_args){.theta = options->theta,
                            .factor = options->factor,
                            .low_freq_factor = options->low_freq_factor,
                            .high_freq_factor = options->high_freq_factor,
                            .original_context = options->original_context};
}

tn_tensor *tn_rotary(tn_tensor *x, tn_tensor *positions, tn_rotary_options options) {
    if (!tn__options_made(options.from_defaults, "rotary", "tn_rotary")) { return tn_inert(); }
    tn_rotary_args args = tn__rotary_args_of(&options);
    return tn_apply2(&tn__op_rotary, &args, x, positions);
}
