/* ctc: -log of the probability of a sequence of labels, given frames (connectionist temporal
 * classification; Graves et al. 2006, ICML)
 *
 *     x: (T, N, C) log-probabilities, f32 f64 bf16 f16
 *     targets: (N, S), or all concatenated in one dimension; input_lengths and
 *     target_lengths: (N); all i64 or i32
 *     y: 0-dimensional, or (N) with TN_NONE; f64 for f64, else f32
 *
 * With p = log_softmax(x), which is x where x is normalised, and e the target with blanks around
 * and between its labels (L = 2 target_length + 1), over the T_n frames of sequence n:
 *
 *     alpha[t, s] = p[t, e_s] + log(exp alpha[t-1, s] + exp alpha[t-1, s-1] + exp alpha[t-1, s-2])
 *                   the last only where e_s is a label that differs from e_{s-2}
 *     beta[t, s]  the same from the end, without p[t, e_s]
 *     loss = -log(exp alpha[T_n-1, L-1] + exp alpha[T_n-1, L-2])
 *     dx[t, c] = (softmax(x)[t, c] - the sum over e_s = c of exp(alpha + beta + loss)) dloss
 *
 * and 0 after the frames. For the mean each loss is divided by its target's length (at least 1) and
 * by N. A target without an alignment has loss inf, or 0 with zero_infinity, and gradient 0. A
 * sequence with NaN in its frames has loss NaN, and so has its gradient.
 *
 * Normalising again costs little and makes dx the exact derivative of y. It is PyTorch's gradient,
 * which relies on the log_softmax before it.
 */
#include "backends/scratch.h"
#include "ops/host.h"
#include "ops/loss/loss.h"

#include <math.h>
#include <stdlib.h>

enum { X, TARGETS, INPUT_LENGTHS, TARGET_LENGTHS };

/* ---- Shape rule ------------------------------------------------------------------------------ */

static bool check_shapes(tn_op_call *c) {
    if (!tn_op_shapes(c, "times batch classes, index: ..., index: batch, index: batch")) {
        return false;
    }
    tn_dims x = tn_shape(c->in[X]), targets = tn_shape(c->in[TARGETS]);
    return targets.ndim == 1 || (targets.ndim == 2 && targets.size[0] == x.size[1]) ||
           tn_op_fail(c, TN_ESHAPE,
                      "log_probs are %s but targets are %s (batch, labels; or one dimension)",
                      tn_shape_text(c->in[X]), tn_shape_text(c->in[TARGETS]));
}

static bool ctc_shape(tn_op_call *c) {
    const tn_ctc_options *o = c->args;
    if (!check_shapes(c)) { return false; }
    tn_dims x = tn_shape(c->in[X]);
    if (o->blank < 0 || o->blank >= x.size[2]) {
        return tn_op_fail(c, TN_EVALUE, "blank is %lld but log_probs are %s (0 to %lld)",
                          (long long)o->blank, tn_shape_text(c->in[X]), (long long)x.size[2] - 1);
    }
    return tn__loss_reduction(c, o->reduction) &&
           tn_op_out(c, o->reduction == TN_NONE ? TN_DIMS(x.size[1]) : TN_DIMS(),
                     tn__wide_dtype(tn_dtype_of(c->in[X])));
}

/* ---- Sequences ------------------------------------------------------------------------------- */

/* What the loops of a call read and write. */
typedef struct ctc_job {
    const tn_ctc_options *options;
    tn_desc x, targets, input_lengths, target_lengths;
    const tn_desc *y;         /* of a forward … */
    const tn_desc *dx, *dy;   /* … or of a backward */
    int64_t T, N, C, longest; /* the largest target length */
    double *loss;             /* (N) */
    double *memory;           /* (N, `each`) */
    int64_t each;
} ctc_job;

/* One sequence of the batch. */
typedef struct sequence {
    const ctc_job *job;
    int64_t n, frames, labels, states; /* T_n, and L = 2 labels + 1 */
    int64_t place, first;              /* of its labels in targets: row-major, in elements */
    double *norm;                      /* (T): log sum exp of a frame */
    double *alpha;                     /* (T, 2 longest + 1) */
    double *beta, *ahead;              /* (2 longest + 1) */
} sequence;

static int64_t index_at(const tn_desc *d, int64_t i) {
    return tn__host_index(d->data, d->dtype, i * d->stride[d->ndim - 1]);
}

static int64_t length_between(int64_t length, int64_t max) {
    return length < 0 ? 0 : length < max ? length : max;
}

static sequence sequence_at(const ctc_job *j, int64_t n) {
    bool joined = j->targets.ndim == 1;
    int64_t first = 0, target_size = joined ? j->targets.size[0] : j->targets.size[1];
    for (int64_t i = 0; i < n && joined; i++) {
        first += length_between(index_at(&j->target_lengths, i), target_size - first);
    }
    sequence s = {.job = j,
                  .n = n,
                  .frames = length_between(index_at(&j->input_lengths, n), j->T),
                  .labels = length_between(index_at(&j->target_lengths, n), target_size - first),
                  .place = joined ? first : n * target_size,
                  .first = (joined ? first : n) * j->targets.stride[0]};
    s.states = 2 * s.labels + 1;
    s.norm = j->memory + n * j->each;
    s.alpha = s.norm + j->T;
    s.beta = s.alpha + j->T * (2 * j->longest + 1);
    s.ahead = s.beta + 2 * j->longest + 1;
    return s;
}

/* e_s */
static int64_t state_class(const sequence *q, int64_t s) {
    const tn_desc *d = &q->job->targets;
    return s % 2 == 0
               ? q->job->options->blank
               : tn__host_index(d->data, d->dtype, q->first + s / 2 * d->stride[d->ndim - 1]);
}

/* Whether state s follows s - 2 directly. */
static bool may_skip(const sequence *q, int64_t s) {
    return s % 2 == 1 && s > 1 && state_class(q, s) != state_class(q, s - 2);
}

static double log_prob(const sequence *q, int64_t t, int64_t c) {
    const tn_desc *x = &q->job->x;
    int64_t at = t * x->stride[0] + q->n * x->stride[1] + c * x->stride[2];
    return tn__host_load(x->data, x->dtype, at) - q->norm[t];
}

static double log_add(double a, double b) {
    double top = a > b ? a : b;
    return top == -INFINITY ? top : top + log1p(exp(-fabs(a - b)));
}

static void normalise_frames(const sequence *q) {
    for (int64_t t = 0; t < q->frames; t++) {
        double top = -INFINITY, sum = 0;
        q->norm[t] = 0;
        for (int64_t c = 0; c < q->job->C; c++) {
            double p = log_prob(q, t, c);
            top = p > top ? p : top;
        }
        for (int64_t c = 0; c < q->job->C; c++) {
            sum += exp(log_prob(q, t, c) - top);
        }
        q->norm[t] = sum == 0 ? -INFINITY : top + log(sum);
    }
}

/* Fills norm and alpha, and returns the loss. */
static double walk_forward(const sequence *q) {
    int64_t L = q->states, width = 2 * q->job->longest + 1;
    if (q->frames == 0) { return q->labels == 0 ? 0 : INFINITY; }
    normalise_frames(q);
    for (int64_t t = 0; t < q->frames; t++) {
        const double *before = q->alpha + (t - 1) * width;
        double *now = q->alpha + t * width;
        for (int64_t s = 0; s < L; s++) {
            double sum = t == 0 ? (s < 2 ? 0 : -INFINITY) : before[s];
            if (t > 0 && s > 0) { sum = log_add(sum, before[s - 1]); }
            if (t > 0 && may_skip(q, s)) { sum = log_add(sum, before[s - 2]); }
            now[s] = sum + log_prob(q, t, state_class(q, s));
        }
    }
    const double *last = q->alpha + (q->frames - 1) * width;
    return -(L > 1 ? log_add(last[L - 1], last[L - 2]) : last[0]);
}

/* Moves beta one frame back. */
static void step_back(const sequence *q, int64_t t) {
    int64_t L = q->states;
    for (int64_t s = 0; s < L; s++) {
        q->ahead[s] = q->beta[s] + log_prob(q, t, state_class(q, s));
    }
    for (int64_t s = 0; s < L; s++) {
        double sum = q->ahead[s];
        if (s + 1 < L) { sum = log_add(sum, q->ahead[s + 1]); }
        if (s + 2 < L && may_skip(q, s + 2)) { sum = log_add(sum, q->ahead[s + 2]); }
        q->beta[s] = sum;
    }
}

static void dx_store(const sequence *q, int64_t t, int64_t c, double value, bool add) {
    const tn_desc *dx = q->job->dx;
    int64_t at = t * dx->stride[0] + q->n * dx->stride[1] + c * dx->stride[2];
    tn__host_store(dx->data, dx->dtype, at,
                   value + (add ? tn__host_load(dx->data, dx->dtype, at) : 0));
}

/* dx of the sequence, from the gradient `dloss` of its loss, which walk_forward returned. */
static void walk_backward(const sequence *q, double loss, double dloss) {
    int64_t L = q->states, width = 2 * q->job->longest + 1;
    for (int64_t t = 0; t < q->job->T; t++) {
        bool counts = t < q->frames && loss != INFINITY;
        for (int64_t c = 0; c < q->job->C; c++) {
            double share = isnan(loss) ? loss : exp(log_prob(q, t, c));
            dx_store(q, t, c, counts ? share * dloss : 0, false);
        }
    }
    for (int64_t s = 0; s < L; s++) {
        q->beta[s] = s + 2 < L ? -INFINITY : 0;
    }
    for (int64_t t = q->frames - 1; t >= 0 && isfinite(loss); t--) {
        for (int64_t s = 0; s < L; s++) {
            double share = exp(q->alpha[t * width + s] + q->beta[s] + loss);
            dx_store(q, t, state_class(q, s), -share * dloss, true);
        }
        step_back(q, t);
    }
}

/* ---- Calling the loops ----------------------------------------------------------------------- */

/* The weight of one sequence's loss in the result. */
static double loss_weight(const ctc_job *j, int64_t n) {
    int64_t labels = index_at(&j->target_lengths, n);
    return j->options->reduction == TN_MEAN ? 1.0 / (double)(labels > 1 ? labels : 1) / (double)j->N
                                            : 1.0;
}

static void run_sequences(const void *user, int64_t first, int64_t end) {
    const ctc_job *j = user;
    for (int64_t n = first; n < end; n++) {
        sequence q = sequence_at(j, n);
        j->loss[n] = walk_forward(&q);
        if (j->dx) {
            int64_t at = j->dy->ndim > 0 ? n * j->dy->stride[0] : 0;
            walk_backward(&q, j->loss[n],
                          tn__host_load(j->dy->data, j->dy->dtype, at) * loss_weight(j, n));
        }
    }
}

/* Whether every label in use is a class. */
static tn_status check_labels(tn_context *ctx, const ctc_job *j) {
    for (int64_t n = 0; n < j->N; n++) {
        sequence q = sequence_at(j, n);
        for (int64_t s = 1; s < q.states; s += 2) {
            int64_t c = state_class(&q, s);
            if (c < 0 || c >= j->C) { return tn__host_bad_index(ctx, q.place + s / 2, c); }
        }
    }
    return TN_OK;
}

static void store_losses(const ctc_job *j) {
    const tn_desc *y = j->y;
    double sum = 0;
    for (int64_t n = 0; n < j->N; n++) {
        double loss = j->options->zero_infinity && j->loss[n] == INFINITY ? 0 : j->loss[n];
        if (j->options->reduction == TN_NONE) {
            tn__host_store(y->data, y->dtype, n * y->stride[0], loss);
        }
        sum += loss * loss_weight(j, n);
    }
    if (j->options->reduction != TN_NONE) {
        tn__host_store(y->data, y->dtype, 0,
                       j->N == 0 && j->options->reduction == TN_MEAN ? NAN : sum);
    }
}

/* job: with its options, and what is made. */
static tn_status run_job(tn_context *ctx, const tn_desc *const *x, ctc_job job) {
    ctc_job *j = &job;
    j->x = *x[X];
    j->targets = *x[TARGETS];
    j->input_lengths = *x[INPUT_LENGTHS];
    j->target_lengths = *x[TARGET_LENGTHS];
    j->T = j->x.size[0];
    j->N = j->x.size[1];
    j->C = j->x.size[2];
    for (int64_t n = 0; n < j->N; n++) {
        int64_t labels = sequence_at(j, n).labels;
        j->longest = labels > j->longest ? labels : j->longest;
    }
    int64_t width = 2 * j->longest + 1;
    j->each = j->T + (j->T + 2) * width;
    tn_status status = check_labels(ctx, j);
    if (status != TN_OK) { return status; }
    TN__SCRATCH(double, memory, ctx, j->N + j->N * j->each);
    if (!memory) { return TN_ENOMEM; }
    j->loss = memory;
    j->memory = memory + j->N;
    tn__host_pieces(j->N, j->T * (j->C + 8 * width), run_sequences, j);
    if (j->y) { store_losses(j); }
    return TN_OK;
}

static tn_status ctc_host(const tn_op_call *c) {
    return run_job(c->ctx, c->x, (ctc_job){.options = c->args, .y = c->y[0]});
}

static tn_status ctc_host_backward(const tn_op_back *b) {
    return run_job(b->ctx, b->x, (ctc_job){.options = b->args, .dx = b->dx[X], .dy = b->dy[0]});
}

const tn_op tn__op_ctc = {
    .name = "ctc",
    .inputs = {"log_probs", "targets", "input_lengths", "target_lengths"},
    .args_size = sizeof(tn_ctc_options),
    .fields = {TN__REDUCTION(tn_ctc_options, reduction), TN_FIELD(tn_ctc_options, zero_infinity)},
    .saves = TN_SAVES_INPUTS,
    .shape = ctc_shape,
    .host = {ctc_host, ctc_host_backward},
    /* Each reduction, targets padded and concatenated, a single class besides the blank (every
     * label repeats), no labels, one frame, no sequence. */
    .samples = "{-2:2, whole 1:4, whole 4:7, whole 0:3} [6, 2, 4] [2, 2] [2] [2]; "
               "{-2:2, whole 1:2, whole 6:7, whole 0:4} [6, 3, 2] [3, 3] [3] [3] reduction='sum'; "
               "{-2:2, whole 1:4, whole 4:6, whole 2:3} [5, 3, 4] [6] [3] [3] reduction='none', "
               "zero_infinity=True; "
               "{-2:2, whole 1:3, whole 1:4, whole 0:1} [3, 2, 3] [2, 0] [2] [2]; "
               "{-2:2, whole 1:3, whole 1:2, whole 0:1} [1, 1, 3] [1, 0] [1] [1] reduction='sum'; "
               "{-2:2, whole 1:3, whole 2:5, whole 0:2} [4, 0, 3] [0, 1] [0] [0] reduction='sum'; "
               "{-2:2, whole 1:7, whole 12:21, whole 0:7} [20, 5, 7] [5, 6] [5] [5]",
    .sample_args = &(const tn_ctc_options){.reduction = TN_MEAN, .from_defaults = true},
};

tn_ctc_options tn_ctc_defaults(void) {
    return (tn_ctc_options){.blank = 0, .reduction = TN_MEAN, .from_defaults = true};
}

/* False after raising: lengths[n] is not in 0 … max. */
static bool check_lengths(const char *what, const int64_t *lengths, int64_t n, int64_t max,
                          const char *than, tn_tensor *t) {
    for (int64_t i = 0; i < n; i++) {
        if (lengths[i] < 0 || lengths[i] > max) {
            return tn__fail(TN_EVALUE, "ctc", "%s[%lld] is %lld but %s are %s (0 to %lld)", what,
                            (long long)i, (long long)lengths[i], than, tn_shape_text(t),
                            (long long)max);
        }
    }
    return true;
}

/* For operands whose shapes fit; the shape rule reports others. */
static bool check_values(tn_tensor *x, tn_tensor *targets, tn_tensor *frames, tn_tensor *labels) {
    if (tn_is_inert(x) || tn_ndim(x) != 3 || tn_count(frames) != tn_size(x, 1) ||
        tn_count(labels) != tn_size(x, 1) || tn_ndim(targets) < 1) {
        return true;
    }
    int64_t n = tn_size(x, 1), target_size = tn_size(targets, tn_ndim(targets) - 1), sum = 0;
    int64_t *own = tn__read_indices(frames, "ctc"), *wanted = tn__read_indices(labels, "ctc");
    bool ok = own && wanted &&
              check_lengths("input_lengths", own, n, tn_size(x, 0), "log_probs", x) &&
              check_lengths("target_lengths", wanted, n, target_size, "targets", targets);
    for (int64_t i = 0; i < n && ok; i++) {
        sum += wanted[i];
    }
    if (ok && tn_ndim(targets) == 1 && sum != target_size) {
        tn__raise(TN_EVALUE, "ctc", "target_lengths add up to %lld but targets are %s",
                  (long long)sum, tn_shape_text(targets));
        ok = false;
    }
    free(own);
    free(wanted);
    return ok;
}

tn_tensor *tn_ctc(tn_tensor *log_probs, tn_tensor *targets, tn_tensor *input_lengths,
                  tn_tensor *target_lengths, tn_ctc_options options) {
    tn_tensor *in[] = {log_probs, targets, input_lengths, target_lengths};
    if (!tn__options_made(options.from_defaults, "ctc", "tn_ctc") ||
        !check_values(log_probs, targets, input_lengths, target_lengths)) {
        return tn_inert();
    }
    return tn_apply(&tn__op_ctc, &options, in, 4);
}
