/* resample(x): one dimension with another number of elements, each a sum of up to four of x's;
 * resample_grad(y): its gradient, each element added to those that it came from
 *
 *     x: any shape, f32 f64 bf16 f16       y: like x, `out` elements along dim instead of `in`
 *     dx = resample_grad(dy), and dy = resample(dx)
 *
 * Nearest: one element; linear: the two around a point; cubic: four, with the weights of Keys 1981
 * for a = -0.75, as in PyTorch; beyond an end the element at that end.
 *
 * Pictures and volumes are interpolated along one dimension after another.
 */
#include "ops/pool/resample.h"

#include "backends/scratch.h"
#include "ops/host.h"

#include <math.h>

/* ---- Which elements -------------------------------------------------------------------------- */

static int64_t clamp_place(int64_t place, int64_t in) {
    return place < 0 ? 0 : place < in ? place : in - 1;
}

/* In f32 for f32, as in PyTorch: its rounding decides which element is nearest. */
static int64_t nearest_place(const tn__resample_args *a, int64_t o, tn_dtype dtype) {
    double scale = a->scale > 0 ? a->scale : (double)a->in / (double)a->out;
    double at = (double)o + (a->how == TN_INTERPOLATE_EXACT ? 0.5 : 0.0);
    at = dtype == TN_F64 ? at * scale : (double)((float)at * (float)scale);
    return clamp_place((int64_t)floor(at), a->in);
}

/* The coordinate in x of the result's element o. */
static double place_in_x(const tn__resample_args *a, int64_t o) {
    if (a->align_corners) {
        return a->out > 1 ? (double)o * (double)(a->in - 1) / (double)(a->out - 1) : 0;
    }
    double scale = a->scale > 0 ? a->scale : (double)a->in / (double)a->out;
    return scale * ((double)o + 0.5) - 0.5;
}

/* The weight of an element at this distance (Keys 1981). */
static double cubic_weight(double distance) {
    const double a = -0.75, d = fabs(distance);
    return d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
}

tn__tap tn__tap_of(const tn__resample_args *a, int64_t result, tn_dtype dtype) {
    double at = place_in_x(a, result);
    tn__tap t = {.count = 1, .weight = {1}};
    if (a->how == TN_INTERPOLATE_CUBIC) {
        t.count = 4;
        for (int k = 0; k < 4; k++) {
            int64_t of_x = (int64_t)floor(at) - 1 + k;
            t.place[k] = clamp_place(of_x, a->in);
            t.weight[k] = cubic_weight(at - (double)of_x);
        }
    } else if (a->how == TN_INTERPOLATE_LINEAR) {
        at = at > 0 ? at : 0;
        t.count = 2;
        t.place[0] = clamp_place((int64_t)at, a->in);
        t.place[1] = clamp_place((int64_t)at + 1, a->in);
        t.weight[1] = at - floor(at);
        t.weight[0] = 1 - t.weight[1];
    } else {
        t.place[0] = nearest_place(a, result, dtype);
    }
    return t;
}

/* ---- The operations -------------------------------------------------------------------------- */

/* Makes the result, with `size` at args->dim, if the input has `from` there. */
static bool make_resized(tn_op_call *c, int64_t from, int64_t size) {
    const tn__resample_args *args = c->args;
    tn_dims dims = tn_shape(c->in[0]);
    if (!tn_op_float(c, 0)) { return false; }
    if (args->dim < 0 || args->dim >= dims.ndim || dims.size[args->dim] != from || args->in < 1 ||
        args->out < 1) {
        return tn_op_fail(c, TN_ESHAPE,
                          "x is %s but dimension %d must have %lld elements, to become %lld",
                          tn_shape_text(c->in[0]), args->dim, (long long)from, (long long)size);
    }
    dims.size[args->dim] = size;
    return tn_op_out(c, dims, tn_dtype_of(c->in[0]));
}

static bool resample_shape(tn_op_call *c) {
    const tn__resample_args *args = c->args;
    return make_resized(c, args->in, args->out);
}

typedef struct resample_job {
    const tn__resample_args *args;
    const tn__tap *taps; /* of each result */
    tn__lines x, y;
} resample_job;

/* Runs piece over a call's lines along args->dim. */
static tn_status run_lines(const tn_op_call *c, tn__host_piece *piece) {
    const tn__resample_args *a = c->args;
    TN__SCRATCH(tn__tap, taps, c->ctx, a->out);
    if (!taps) { return TN_ENOMEM; }
    for (int64_t i = 0; i < a->out; i++) {
        taps[i] = tn__tap_of(a, i, c->x[0]->dtype);
    }
    resample_job job = {.args = a,
                        .taps = taps,
                        .x = tn__lines_along(c->x[0], a->dim),
                        .y = tn__lines_along(c->y[0], a->dim)};
    tn__host_pieces(job.x.count, a->in + a->out, piece, &job);
    return TN_OK;
}

static inline void resample_lines(const resample_job *job, int64_t first, int64_t end,
                                  tn_dtype dtype, int count) {
    for (int64_t i = first; i < end; i++) {
        int64_t x = tn__line_at(&job->x, i), y = tn__line_at(&job->y, i);
        for (int64_t o = 0; o < job->y.length; o++, y += job->y.step) {
            const tn__tap *t = &job->taps[o];
            double sum = 0;
            for (int k = 0; k < count; k++) {
                int64_t at = x + t->place[k] * job->x.step;
                sum += t->weight[k] * tn__host_load(job->x.data, dtype, at);
            }
            tn__host_store(job->y.data, dtype, y, sum);
        }
    }
}

static void resample_piece(const void *user, int64_t first, int64_t end) {
    const resample_job *job = user;
    if (job->x.dtype == TN_F64) {
        resample_lines(job, first, end, TN_F64, job->taps->count);
    } else if (job->taps->count == 1) {
        resample_lines(job, first, end, TN_F32, 1);
    } else if (job->taps->count == 2) {
        resample_lines(job, first, end, TN_F32, 2);
    } else {
        resample_lines(job, first, end, TN_F32, 4);
    }
}

static tn_status resample_host(const tn_op_call *c) {
    return run_lines(c, resample_piece);
}

static void resample_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_resample_grad, g->args, g->dout[0]));
}

static const char *const modes[] = {"nearest", "nearest-exact", "linear", "bicubic", NULL};

#define RESAMPLE_FIELDS                                                                            \
    TN_FIELD(tn__resample_args, dim), TN_FIELD_AS("mode", tn__resample_args, how, .names = modes), \
        TN_FIELD(tn__resample_args, align_corners), TN_FIELD_AS("step", tn__resample_args, scale), \
        TN_FIELD_AS("given", tn__resample_args, in), TN_FIELD_AS("size", tn__resample_args, out)

/* Up and down, by factors of 2 and fractions, with a step other than the sizes'; from and to one
 * element; a dimension with others around it. of(x, y) chooses between the shape of resample's
 * input, and of its gradient's. */
/* clang-format off */
#define SAMPLES(of) \
    "{-2:2} " \
    of("[3, 4]", "[3, 8]") " dim=1, mode='nearest', given=4, size=8; " \
    of("[2, 7, 3]", "[2, 3, 3]") " dim=1, mode='nearest', given=7, size=3; " \
    of("[3, 5]", "[3, 7]") " dim=1, mode='nearest-exact', given=5, size=7; " \
    of("[4, 3]", "[7, 3]") " dim=0, mode='linear', given=4, size=7; " \
    of("[2, 6]", "[2, 4]") " dim=1, mode='linear', given=6, size=4, align_corners=True; " \
    of("[2, 5, 2]", "[2, 8, 2]") " dim=1, mode='linear', given=5, size=8, " \
    "step=0.58823529411764708; " \
    of("[3, 1]", "[3, 3]") " dim=1, mode='linear', given=1, size=3, align_corners=True; " \
    of("[3, 4]", "[3, 1]") " dim=1, mode='linear', given=4, size=1, align_corners=True; " \
    of("[3, 5]", "[3, 9]") " dim=1, mode='bicubic', given=5, size=9; " \
    of("[2, 6, 2]", "[2, 4, 2]") " dim=1, mode='bicubic', given=6, size=4, align_corners=True; " \
    of("[0, 4]", "[0, 8]") " dim=1, mode='linear', given=4, size=8"
#define OF_X(x, y) x
#define OF_Y(x, y) y
/* clang-format on */

const tn_op tn__op_resample = {
    .name = "resample",
    .inputs = {"x"},
    .args_size = sizeof(tn__resample_args),
    .fields = {RESAMPLE_FIELDS},
    .shape = resample_shape,
    .host = {.forward = resample_host},
    .backward = resample_backward,
    .samples = SAMPLES(OF_X),
};

static bool resample_grad_shape(tn_op_call *c) {
    const tn__resample_args *args = c->args;
    return make_resized(c, args->out, args->in);
}

static inline void scatter_lines(const resample_job *job, int64_t first, int64_t end,
                                 tn_dtype dtype) {
    for (int64_t i = first; i < end; i++) {
        int64_t x = tn__line_at(&job->x, i), y = tn__line_at(&job->y, i), step = job->y.step;
        for (int64_t k = 0; k < job->y.length; k++) {
            tn__host_store(job->y.data, dtype, y + k * step, 0);
        }
        for (int64_t o = 0; o < job->x.length; o++, x += job->x.step) {
            double value = tn__host_load(job->x.data, dtype, x);
            for (int k = 0; k < job->taps[o].count; k++) {
                int64_t at = y + job->taps[o].place[k] * step;
                double sum = tn__host_load(job->y.data, dtype, at);
                tn__host_store(job->y.data, dtype, at, sum + job->taps[o].weight[k] * value);
            }
        }
    }
}
TN__PIECE(scatter_piece, scatter_lines, resample_job)

static tn_status resample_grad_host(const tn_op_call *c) {
    return run_lines(c, scatter_piece);
}

static void resample_grad_backward(tn_op_grad *g) {
    tn_op_give(g, 0, tn_apply1(&tn__op_resample, g->args, g->dout[0]));
}

const tn_op tn__op_resample_grad = {
    .name = "resample_grad",
    .inputs = {"x"},
    .args_size = sizeof(tn__resample_args),
    .fields = {RESAMPLE_FIELDS},
    .shape = resample_grad_shape,
    .host = {.forward = resample_grad_host},
    .backward = resample_grad_backward,
    .samples = SAMPLES(OF_Y),
};

/* ---- Interpolation --------------------------------------------------------------------------- */

tn_interpolate_options tn_interpolate_defaults(void) {
    return (tn_interpolate_options){.mode = TN_INTERPOLATE_NEAREST, .from_defaults = true};
}

/* The new size of spatial dimension i: 0 after raising. */
static int64_t size_along(const tn_interpolate_options *o, int i, int64_t in) {
    double size = o->size.ndim == 0   ? floor((double)in * o->scale_factor)
                  : o->size.ndim == 1 ? (double)o->size.size[0]
                                      : (double)o->size.size[i];
    if (!(size >= 1 && size <= INT32_MAX) || in < 1) {
        tn__raise(TN_EVALUE, "interpolate",
                  "%lld elements would become %g (both must be at least 1)", (long long)in, size);
        return 0;
    }
    return (int64_t)size;
}

/* False after raising. */
static bool options_fit(tn_tensor *x, const tn_interpolate_options *o) {
    int spatial = tn_ndim(x) - 2;
    bool corners =
        !o->align_corners || o->mode == TN_INTERPOLATE_LINEAR || o->mode == TN_INTERPOLATE_CUBIC;
    if (spatial < 1 || spatial > 3 || (o->mode == TN_INTERPOLATE_CUBIC && spatial != 2)) {
        tn__raise(TN_ESHAPE, "interpolate",
                  "x is %s (it needs (N, C, …) with 1 to 3 more dimensions; cubic 2)",
                  tn_shape_text(x));
        return false;
    }
    if (o->mode < TN_INTERPOLATE_NEAREST || o->mode > TN_INTERPOLATE_AREA || !corners ||
        (o->size.ndim == 0) == (o->scale_factor == 0) ||
        (o->size.ndim > 1 && o->size.ndim != spatial)) {
        tn__raise(TN_EVALUE, "interpolate",
                  "%d sizes, scale_factor %g, align_corners %d (give either size, 1 or %d numbers, "
                  "or scale_factor; align_corners with linear and cubic)",
                  o->size.ndim, o->scale_factor, o->align_corners, spatial);
        return false;
    }
    return true;
}

/* The mean of the part of x that each result covers. */
static tn_tensor *pool_area(tn_tensor *x, tn_dims size) {
    int spatial = size.ndim;
    return spatial == 1   ? tn_adaptive_avg_pool1d_op(x, size)
           : spatial == 2 ? tn_adaptive_avg_pool2d_op(x, size)
                          : tn_adaptive_avg_pool3d_op(x, size);
}

tn_tensor *tn_interpolate(tn_tensor *x, tn_interpolate_options o) {
    if (!tn__usable(x, "interpolate") ||
        !tn__options_made(o.from_defaults, "interpolate", "tn_interpolate") ||
        !options_fit(x, &o)) {
        return tn_inert();
    }
    tn_dtype dtype = tn_dtype_of(x);
    tn_dims size = {.ndim = tn_ndim(x) - 2};
    for (int i = 0; i < size.ndim; i++) {
        size.size[i] = size_along(&o, i, tn_size(x, 2 + i));
        if (size.size[i] == 0) { return tn_inert(); }
    }
    if (o.mode == TN_INTERPOLATE_AREA) { return pool_area(x, size); }
    /* no rounding to bf16 or f16 between two dimensions */
    bool narrow = tn__is_narrow(dtype);
    tn_tensor *y = narrow ? tn_cast(x, TN_F32) : x;
    for (int i = 0; i < size.ndim; i++) {
        tn__resample_args args = {2 + i,
                                  o.mode,
                                  o.align_corners,
                                  o.size.ndim ? 0 : 1.0 / o.scale_factor,
                                  tn_size(x, 2 + i),
                                  size.size[i]};
        /* as in PyTorch, linear with the same size is x whatever the scale */
        if (args.in != args.out || (args.scale > 0 && o.mode != TN_INTERPOLATE_LINEAR)) {
            y = tn_apply1(&tn__op_resample, &args, y);
        }
    }
    return narrow ? tn_cast(y, dtype) : y == x ? tn_identity(x) : y;
}
