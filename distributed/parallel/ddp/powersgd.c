/* PowerSGD: a hook with three stages (tn_ddp_options). arXiv:1905.13727, algorithms 1 and 2.
 *
 *     stage 0   M = gradient + error; P = M Q for an orthonormal Q; P and the vectors travel
 *     stage 1   vectors are done; P becomes orthonormal; Q = M^T P travels
 *     stage 2   the gradient is P Q^T; the error M - P Q^T is kept for the next step
 *
 * What is sent of a bucket is one flat tensor in each stage: the pieces of its gradients, in their
 * order. P and Q are stored transposed, (rank, n) and (rank, m): then each vector is a row.
 *
 * P Q^T is P P^T times the mean of all M: exact if P spans the mean's columns. Q, which was
 * multiplied by M^T M since the last step, turns towards the largest singular vectors.
 *
 * State belongs to parameters, not to buckets, which are laid out again after the first backward.
 */
#include "autograd/leaf.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/ddp/ddp.h"
#include "ops/dims.h"
#include "tern/sys/tensor.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* A parameter whose gradient is compressed; n and m 0: it is sent whole. */
typedef struct thin_matrix {
    int64_t n, m, rank;
    tn_tensor *q;     /* (rank, m), a buffer */
    tn_tensor *error; /* (n, m), a buffer; between the stages it is M; NULL without feedback */
    tn_tensor *p;     /* (rank, n), orthonormal, from stage 1 to 2; one reference */
    bool rests;       /* in this step M is 0, and the error waits for the next gradient */
} thin_matrix;

typedef struct powersgd {
    tn_module base;
    tn_powersgd_options options;
    tn_ddp_state *ddp;
    tn_tensor *steps;      /* (1) i64, a buffer on the CPU: synchronised backwards so far */
    thin_matrix *matrices; /* of each parameter of ddp */
} powersgd;

/* ---- Matrices -------------------------------------------------------------------------------- */

/* Whether a row had anything of its own: what is left of it is more than rounding errors. */
static const double OWN_SQUARE = 1e-11;

/* Makes the rows of x (r, n) orthonormal, in place (Gram-Schmidt, each row twice: a row that keeps
 * little is not orthogonal after the first time). A row with nothing of its own becomes 0: rounding
 * errors, made as long as the others, would point anywhere. */
static tn_tensor *make_orthonormal(tn_tensor *x) {
    tn_tensor *largest = tn_max(tn_abs(x), TN_DIMS(1), true);
    tn_div_(x, tn_clamp(largest, FLT_MIN, INFINITY)); /* squares neither vanish nor overflow */
    tn_tensor *before = tn_sum(tn_square(x), TN_DIMS(1), true);
    for (int64_t j = 0; j < tn_shape(x).size[0]; j++) {
        tn_tensor *row = tn_narrow(x, 0, j, 1);
        for (int pass = 0; pass < 2 && j > 0; pass++) {
            tn_tensor *above = tn_narrow(x, 0, 0, j);
            tn_tensor *shares = tn_matmul(row, tn_t(above)); /* (1, j) */
            tn_sub_(row, tn_matmul(shares, above));
        }
        tn_tensor *square = tn_sum(tn_square(row), TN_DIMS(1), true);
        tn_tensor *least = tn_mul_scalar(tn_narrow(before, 0, j, 1), OWN_SQUARE);
        tn_tensor *own = tn_cast(tn_gt(square, least), tn_dtype_of(x));
        tn_mul_(row, tn_mul(own, tn_rsqrt(tn_clamp(square, FLT_MIN, INFINITY))));
    }
    return x;
}

/* Whether nobody takes what arrives of p, so that an error in it would be lost: p is frozen, or its
 * gradient was reduced before. A rank that has joined puts its gradients aside as well, but it
 * sends its errors: it has no next gradient. */
static bool rests_now(const tn_ddp_state *d, const tn__ddp_param *p) {
    return !tn_requires_grad(p->base.leaf) || (p->aside && (p->base.wanted || !d->options.join));
}

/* M (n, m), this step's. */
static tn_tensor *matrix_now(const thin_matrix *t, tn_tensor *gradient) {
    tn_tensor *m = tn_reshape(gradient, TN_DIMS(t->n, t->m));
    return t->error && !t->rests ? t->error : tn_cast(m, tn__wide_dtype(tn_dtype_of(gradient)));
}

static void draw_q(const powersgd *s, int param, int64_t step) {
    tn_generator g = {.seed = s->options.seed, .stream = (uint64_t)param, .call = (uint64_t)step};
    tn_normal_(s->matrices[param].q, 0.0, 1.0, &g);
}

/* P (rank, n) of this rank. */
static tn_tensor *first_piece(const powersgd *s, int param, int64_t step, tn_tensor *gradient) {
    thin_matrix *t = &s->matrices[param];
    t->rests = rests_now(s->ddp, &s->ddp->params[param]);
    if (t->error && !t->rests) {
        tn_add_(t->error,
                tn_cast(tn_reshape(gradient, TN_DIMS(t->n, t->m)), tn_dtype_of(t->error)));
    }
    if (!s->options.warm_start) {
        draw_q(s, param, step);
    }
    return tn_matmul(make_orthonormal(tn_copy(t->q)), tn_t(matrix_now(t, gradient)));
}

/* Q (rank, m) of this rank, from the mean of all P. */
static tn_tensor *second_piece(thin_matrix *t, tn_tensor *p, tn_tensor *gradient) {
    t->p = tn_keep(make_orthonormal(tn_copy(tn_reshape(p, TN_DIMS(t->rank, t->n)))));
    return tn_matmul(t->p, matrix_now(t, gradient));
}

/* The gradient, the error and the next Q. A row of P that is 0 would make a row of Q 0 for ever: it
 * keeps the old one. After an overflow, as when a scaled loss is too large, nothing is
 * kept of the step but its gradients, which show it. */
static void put_together(const powersgd *s, thin_matrix *t, tn_tensor *q, tn_tensor *gradient) {
    q = tn_reshape(q, TN_DIMS(t->rank, t->m));
    tn_tensor *product = tn_matmul(tn_t(t->p), q);
    tn_tensor *fine = tn_isfinite(tn_sum_all(product));
    if (t->error) {
        bool sum = s->ddp->options.sum;
        tn_add_scaled_(t->error, product, sum ? -1.0 / tn_group_size(s->ddp->base.group) : -1.0);
        tn_copy_(t->error, tn_masked_fill(t->error, tn_logical_not(fine), 0.0));
    }
    tn_copy_(gradient, tn_reshape(product, tn_shape(gradient)));
    if (s->options.warm_start) {
        tn_tensor *length = tn_sum(tn_square(t->p), TN_DIMS(1), true); /* 1 or 0 */
        tn_tensor *keeps = tn_logical_and(fine, tn_gt_scalar(length, 0.5));
        tn_copy_(t->q, tn_where(keeps, q, t->q));
    }
    tn_release(t->p);
    t->p = NULL;
}

/* ---- The stages ------------------------------------------------------------------------------ */

/* The next place in ddp's order, from `place` on, of a parameter in this bucket; -1: none. */
static int next_place(const tn_ddp_state *d, int bucket, int place) {
    while (place < d->placed && d->params[d->order[place]].bucket != bucket) {
        place++;
    }
    return place < d->placed ? place : -1;
}

static bool compresses_any(const powersgd *s, int bucket) {
    const tn_ddp_state *d = s->ddp;
    bool any = false;
    for (int k = next_place(d, bucket, 0); k >= 0; k = next_place(d, bucket, k + 1)) {
        any |= s->matrices[d->order[k]].n > 0;
    }
    return any;
}

/* Sends the next pieces, and uses those that have arrived; after stage 2 there are none. */
static tn_work *pass_stage(tn_group *g, powersgd *s, const tn_ddp_bucket *b, int stage,
                           int64_t step) {
    const tn_ddp_state *d = s->ddp;
    tn_tensor **pieces = tn__calloc_for((size_t)b->count, sizeof(*pieces), "powersgd");
    int n = 0;
    int64_t at = 0; /* in what has arrived */
    for (int k = next_place(d, b->index, 0); pieces && k >= 0; k = next_place(d, b->index, k + 1)) {
        thin_matrix *t = &s->matrices[d->order[k]];
        tn_tensor *view = d->params[d->order[k]].view, *piece = NULL, *came = NULL;
        bool thin = t->n > 0;
        if (stage > 0 && (thin || stage == 1)) {
            int64_t count = !thin ? tn_count(view) : t->rank * (stage == 1 ? t->n : t->m);
            came = tn_narrow(b->arrived, 0, at, count);
            at += count;
        }
        if (thin && stage == 0) {
            piece = first_piece(s, (int)d->order[k], step, view);
        } else if (thin && stage == 1) {
            piece = second_piece(t, came, view);
        } else if (thin) {
            put_together(s, t, came, view);
        } else if (stage == 0) {
            piece = tn_cast(view, tn__wide_dtype(tn_dtype_of(view)));
        } else if (stage == 1) {
            tn_copy_(view, tn_reshape(came, tn_shape(view)));
        }
        if (piece) {
            pieces[n++] = tn_reshape(piece, TN_DIMS(-1));
        }
    }
    tn_tensor *flat = n > 0 ? tn_cat(pieces, n, 0) : NULL;
    free(pieces);
    return flat ? tn_all_reduce(g, flat, b->how) : NULL;
}

static tn_work *powersgd_hook(tn_group *g, tn_ddp_bucket *b, int stage, void *user) {
    TN_SCOPE;
    powersgd *s = user;
    if (stage > 0) {
        return b->arrived ? pass_stage(g, s, b, stage, 0) : NULL;
    }
    if (tn_group_size(g) == 1) {
        return NULL;
    }
    int64_t step = (int64_t)tn_item(s->steps);
    if (b->last) {
        tn_fill_(s->steps, (double)step + 1.0);
    }
    if (step < s->options.start_step || !compresses_any(s, b->index)) {
        return tn_all_reduce(g, b->flat, b->how);
    }
    return pass_stage(g, s, b, stage, step);
}

/* ---- Attaching ------------------------------------------------------------------------------- */

tn_powersgd_options tn_powersgd_defaults(void) {
    return (tn_powersgd_options){.rank = 1,
                                 .start_step = 1000,
                                 .min_compression_rate = 2.0,
                                 .error_feedback = true,
                                 .warm_start = true,
                                 .from_defaults = true};
}

/* Of a parameter that requires a gradient now. */
static thin_matrix matrix_of(const powersgd *s, const tn_tensor *leaf) {
    tn_dims shape = tn_shape(leaf);
    int64_t n = shape.ndim > 1 ? shape.size[0] : 0, m = n > 0 ? tn_count(leaf) / n : 0;
    int64_t rank = s->options.rank < n ? s->options.rank : n;
    rank = rank < m ? rank : m;
    double thin = (double)rank * (double)(n + m) * s->options.min_compression_rate;
    bool fits = tn_requires_grad(leaf) && m > 0 && thin < (double)n * (double)m;
    return fits ? (thin_matrix){.n = n, .m = m, .rank = rank} : (thin_matrix){0};
}

/* By the number of the parameter: "q.0", "error.0". */
static void add_matrix(powersgd *s, int param) {
    thin_matrix *t = &s->matrices[param];
    const tn_tensor *leaf = s->ddp->params[param].base.leaf;
    *t = matrix_of(s, leaf);
    if (t->n == 0) {
        return;
    }
    TN_SCOPE;
    tn_device before = tn_default_device();
    tn_set_default_device(tn_device_of(leaf));
    tn_dtype dtype = tn__wide_dtype(leaf->leaf->grad_dtype);
    char name[TN_MODULE_NAME];
    snprintf(name, sizeof(name), "q.%d", param);
    tn_module_buffer(s, name, &t->q, tn_empty(TN_DIMS(t->rank, t->m), dtype));
    draw_q(s, param, 0);
    if (s->options.error_feedback) {
        snprintf(name, sizeof(name), "error.%d", param);
        tn_module_buffer(s, name, &t->error, tn_zeros(TN_DIMS(t->n, t->m), dtype));
    }
    tn_set_default_device(before);
}

static void finish_matrices(tn_module *m) {
    powersgd *s = (powersgd *)m;
    for (int i = 0; s->matrices && i < s->ddp->base.count; i++) {
        tn_release(s->matrices[i].p);
    }
    free(s->matrices);
}

static const tn_field powersgd_fields[] = {
    TN_FIELD_OPTION(powersgd, rank),
    TN_FIELD_OPTION(powersgd, start_step, .training = true),
    TN_FIELD_OPTION(powersgd, min_compression_rate),
    TN_FIELD_OPTION(powersgd, error_feedback),
    TN_FIELD_OPTION(powersgd, warm_start),
    TN_FIELD_OPTION(powersgd, seed),
    {0},
};

static powersgd *make_state(tn_ddp_state *d, const tn_powersgd_options *o) {
    TN_SCOPE;
    TN_NO_GRAD;
    powersgd *s = tn_module_new(sizeof(*s), "powersgd", tn__no_forward);
    if (!s) {
        return NULL;
    }
    s->base.finish = finish_matrices;
    s->base.fields = powersgd_fields;
    s->options = *o;
    s->ddp = d;
    s->matrices = tn__calloc_for((size_t)d->base.count + 1, sizeof(*s->matrices), "powersgd");
    if (s->matrices) {
        TN__ON_CPU;
        tn_module_buffer(s, "steps", &s->steps, tn_zeros(TN_DIMS(1), TN_I64));
    }
    for (int i = 0; s->matrices && i < d->base.count && !tn__pending(); i++) {
        add_matrix(s, i);
    }
    return s;
}

/* False after raising. */
static bool may_compress(const tn_ddp_state *d, const tn_powersgd_options *o) {
    static const char name[] = "ddp_powersgd";
    const char *wrong = NULL;
    tn__options_made(o->from_defaults, name, "tn_powersgd");
    if (tn__pending()) {
        return false;
    }
    if (!d) {
        tn__raise(TN_EVALUE, name, "the state is NULL (it is what tn_ddp returned)");
    } else if (d->options.hook) {
        tn__raise(TN_ESTATE, name, "there is a hook already");
    } else if (d->base.running || d->stats.steps > 0) {
        tn__raise(TN_ESTATE, name, "a backward has begun: call it right after tn_ddp");
    } else if ((wrong = TN__BEYOND({"rank", o->rank, 1, 0}, {"start_step", o->start_step, 0, 0}))) {
        tn__raise(TN_EVALUE, name, "%s", wrong);
    } else if (!(o->min_compression_rate >= 0.0)) {
        tn__raise(TN_EVALUE, name, "min_compression_rate is %g (it must be at least 0)",
                  o->min_compression_rate);
    }
    return !tn__pending();
}

tn_module *tn_ddp_powersgd(tn_ddp_state *d, tn_powersgd_options o) {
    bool fits = may_compress(d, &o), differ = false;
    powersgd *s = NULL;
    if (fits) {
        char text[256];
        snprintf(text, sizeof(text),
                 "rank %lld\nstart_step %lld\nmin_compression_rate %.17g\nerror_feedback %d\n"
                 "warm_start %d\nseed %llu",
                 (long long)o.rank, (long long)o.start_step, o.min_compression_rate,
                 o.error_feedback, o.warm_start, (unsigned long long)o.seed);
        fits = tn__parallel_compare(d->base.module, d->base.group, text, "ddp_powersgd", &differ);
    }
    s = fits ? make_state(d, &o) : NULL;
    if (tn__pending()) {
        tn_module_free(s);
        if (d && !differ) {
            tn_group_abort(d->base.group, tn_error_message());
        }
        return NULL;
    }
    d->options.hook = powersgd_hook;
    d->options.hook_user = s;
    d->powersgd = s;
    return &s->base;
}
