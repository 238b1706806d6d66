/* einsum("ij,jk->ik", a, b): y[i][k] = sum over j of a[i][j] b[j][k]; any subscripts
 *
 *     operands: as many dimensions as they have subscripts; same dtype, f32 f64 bf16 f16
 *     y: the subscripts after "->"; without it those that appear once, in the order of their codes
 *
 * "..." is any dimensions before, between or after, which broadcast. A subscript repeated in an
 * operand takes its diagonal. What is not in y is summed. Sizes 1 broadcast, as in PyTorch.
 *
 * Operands are joined from left to right: what no later one needs is summed as soon as possible,
 * and two of them become one product of matrices: (batch, left, inner) x (batch, inner, right).
 */
#include "ops/dims.h"
#include "ops/linalg/subscripts.h"

#include <string.h>

static bool einsum_shape(tn_op_call *c) {
    tn__einsum_plan p;
    if (!tn__einsum_read(c, &p) || !tn_op_same_dtype(c) || !tn_op_float(c, 0)) { return false; }
    tn_dims dims = {.ndim = p.out.n};
    for (int i = 0; i < p.out.n; i++) {
        dims.size[i] = p.size[p.out.label[i]];
    }
    return tn_op_out(c, dims, tn_dtype_of(c->in[0]));
}

/* ---- Joining operands ------------------------------------------------------------------------ */

/* The product of some operands, as one tensor. */
typedef struct einsum_factor {
    tn_tensor *t;
    tn__term term;
} einsum_factor;

static void add_label(tn__term *term, int label) {
    if (term->n < TN_MAX_DIMS) { /* reshape refuses more */
        term->label[term->n++] = label;
    }
}

/* f's tensor with its dimensions in the order of these labels. */
static tn_tensor *in_order(const einsum_factor *f, const tn__term *order) {
    tn_dims dims = {.ndim = order->n};
    bool same = true;
    for (int i = 0; i < order->n; i++) {
        dims.size[i] = tn__term_place(&f->term, order->label[i]);
        same = same && dims.size[i] == i;
    }
    return same ? f->t : tn_permute(f->t, dims);
}

/* Two equal labels become one, the last: (…, n, n) as (…, n n), of which every (n + 1)-th is
 * taken. */
static void take_diagonals(einsum_factor *f) {
    for (int i = 0; i < f->term.n; i++) {
        int twin = f->term.n - 1;
        while (twin > i && f->term.label[twin] != f->term.label[i]) {
            twin--;
        }
        if (twin == i) { continue; }
        tn_dims order = {0}, flat = {0};
        tn__term rest = {0};
        int64_t n = tn_size(f->t, i);
        for (int d = 0; d < f->term.n; d++) {
            if (d != i && d != twin) {
                order.size[order.ndim++] = d;
                flat.size[flat.ndim++] = tn_size(f->t, d);
                add_label(&rest, f->term.label[d]);
            }
        }
        add_label(&rest, f->term.label[i]);
        order.size[order.ndim++] = i;
        order.size[order.ndim++] = twin;
        flat.size[flat.ndim++] = n * n;
        f->t = tn_slice(tn_reshape(tn_permute(f->t, order), flat), flat.ndim - 1, 0, n * n, n + 1);
        f->term = rest;
        i = -1; /* the dimensions have moved */
    }
}

/* Sums what is not needed. */
static void sum_lone(einsum_factor *f, const bool *needed) {
    tn_dims lone = {0};
    tn__term rest = {0};
    for (int i = 0; i < f->term.n; i++) {
        if (needed[f->term.label[i]]) {
            add_label(&rest, f->term.label[i]);
        } else {
            lone.size[lone.ndim++] = i;
        }
    }
    if (lone.ndim > 0) {
        f->t = tn_sum(f->t, lone, false);
        f->term = rest;
    }
}

/* f as a stack of matrices: (batch…, product of rows, product of columns). `size`: to which both
 * operands' sizes broadcast. */
static tn_tensor *as_matrices(const einsum_factor *f, const tn__term *batch, const tn__term *rows,
                              const tn__term *columns, const int64_t *size) {
    const tn__term *const part[] = {batch, rows, columns};
    tn__term order = {0};
    tn_dims full = {0}, dims = {0};
    for (int k = 0; k < 3; k++) {
        int64_t product = 1;
        for (int i = 0; i < part[k]->n; i++) {
            int label = part[k]->label[i];
            add_label(&order, label);
            full.size[full.ndim++] = size[label];
            product *= size[label];
            if (k == 0) { dims.size[dims.ndim++] = size[label]; }
        }
        if (k > 0 && dims.ndim < TN_MAX_DIMS) { dims.size[dims.ndim++] = product; }
    }
    return tn_reshape(tn_expand(in_order(f, &order), full), dims);
}

/* a becomes the product of a and b, summed over the labels that both have and no later one
 * needs. */
static void join_factors(einsum_factor *a, const einsum_factor *b, const bool *needed) {
    tn__term batch = {0}, inner = {0}, left = {0}, right = {0}, all = {0};
    int64_t size[TN__LABELS];
    for (int i = 0; i < a->term.n; i++) {
        int label = a->term.label[i], other = tn__term_place(&b->term, label);
        size[label] = tn_size(a->t, i);
        if (other >= 0 && size[label] == 1) { size[label] = tn_size(b->t, other); }
        add_label(other < 0 ? &left : needed[label] ? &batch : &inner, label);
    }
    for (int i = 0; i < b->term.n; i++) {
        int label = b->term.label[i];
        if (tn__term_place(&a->term, label) < 0) {
            size[label] = tn_size(b->t, i);
            add_label(&right, label);
        }
    }
    if (batch.n + left.n + right.n > TN_MAX_DIMS || batch.n + 2 > TN_MAX_DIMS) {
        tn__raise(TN_ESHAPE, "einsum", "a product of two operands has more than %d dimensions",
                  TN_MAX_DIMS);
        a->t = tn_inert();
        return;
    }
    tn_tensor *u = as_matrices(a, &batch, &left, &inner, size);
    tn_tensor *v = as_matrices(b, &batch, &inner, &right, size);
    tn_tensor *y = inner.n > 0 ? tn_matmul(u, v) : tn_mul(u, v); /* (…, m, 1) (…, 1, n) */
    const tn__term *const part[] = {&batch, &left, &right};
    tn_dims dims = {0};
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < part[k]->n; i++) {
            add_label(&all, part[k]->label[i]);
            dims.size[dims.ndim++] = size[part[k]->label[i]];
        }
    }
    a->t = tn_reshape(y, dims);
    a->term = all;
}

static void mark_labels(bool *needed, const tn__term *term) {
    for (int i = 0; i < term->n; i++) {
        needed[term->label[i]] = true;
    }
}

/* Whether a result takes more than one rounding step, which then run in f32. */
static bool has_steps(const tn__einsum_plan *p, int n) {
    for (int k = 0; k < n && n == 2; k++) {
        for (int i = 0; i < p->in[k].n; i++) {
            int label = p->in[k].label[i];
            if (tn__term_place(&p->in[1 - k], label) < 0 && tn__term_place(&p->out, label) < 0) {
                return true;
            }
        }
    }
    return n > 2;
}

static tn_tensor *einsum_compose(tn_op_call *c) {
    tn__einsum_plan p;
    if (!tn__einsum_read(c, &p)) { return tn_inert(); }
    tn_dtype own = tn_dtype_of(c->in[0]);
    tn_dtype dtype = has_steps(&p, c->inputs) ? tn__wide_dtype(own) : own;
    einsum_factor sum = {0};
    for (int k = 0; k < c->inputs; k++) {
        bool needed[TN__LABELS] = {false};
        mark_labels(needed, &p.out);
        for (int later = k + 1; later < c->inputs; later++) {
            mark_labels(needed, &p.in[later]);
        }
        einsum_factor next = {tn_cast(c->in[k], dtype), p.in[k]};
        take_diagonals(&next);
        if (k == 0) {
            sum_lone(&next, needed);
            sum = next;
            continue;
        }
        bool here[TN__LABELS];
        memcpy(here, needed, sizeof here);
        mark_labels(here, &sum.term);
        sum_lone(&next, here);
        join_factors(&sum, &next, needed);
    }
    tn_tensor *y = in_order(&sum, &p.out);
    return y == c->in[0] ? tn_identity(y) : y;
}

const tn_op tn__op_einsum = {
    .name = "einsum",
    .args_size = sizeof(tn__einsum_args),
    .fields = {TN_FIELD(tn__einsum_args, equation)},
    .shape = einsum_shape,
    .compose = einsum_compose,
    /* Products of all kinds, diagonals, sums, "..." that broadcast, nothing to sum over. */
    .samples = "{-1:1} [3, 4] [4, 5] equation='ij,jk->ik'; [3, 4] [4, 67] equation='ij,jk'; "
               "[2, 3, 4] [2, 5, 4] equation='bij,bkj->bik'; "
               "[2, 2, 3, 4] [2, 2, 3, 4] equation='bhqd,bhkd->bhqk'; "
               "[2, 1, 2, 3] [3, 3, 2] equation='...ij,...jk->...ik'; "
               "[2, 3] [3, 1] equation='i...,j...'; [3, 4] equation='ij -> ji'; "
               "[3, 4] equation='ij->ij'; [3, 4] equation='ij->'; [3, 3] equation='ii'; "
               "[4, 4] equation='ii->i'; [2, 3, 2, 2] equation='ijik->kj'; "
               "[3, 3, 3] equation='iii->i'; [3] [4] equation='i,j->ij'; "
               "[3, 4] [3, 4] equation='ij,ij->'; [3, 4] [1] equation='ij,j'; "
               "[2, 3] [3, 4] [4, 2] equation='ab , bc , cd -> ad'; "
               "[3, 2] [2, 4] [3, 4] equation='bi,ij,bj->b'; [2, 3] [3, 2] equation='Ba,aB'; "
               "[3, 0] [0, 2] equation='ij,jk->ik'; [] [2, 2] [1, 2, 2] equation=',i...,jii'; "
               "[] equation=''; [] equation='->'; "
               "[1, 2, 3, 2] [3] [1, 2] equation='j...li,l,...'; "
               "[1, 3, 3] [1] equation='i...ll,j...->il...'; "
               "[3, 3, 3] [3, 3, 2] [3, 3, 3] equation='ii...j,ll...,lj...l->j...'; "
               "[2, 2] [3, 2] equation='ij,...->...'; [1, 3, 1, 2] [3] equation='lj...,i->ji...'",
};

tn_tensor *tn_einsum(const char *equation, tn_tensor *const *t, int n) {
    tn__einsum_args args = {""};
    if (!equation || strlen(equation) >= sizeof args.equation) {
        return tn__refused(TN_EVALUE, "einsum", "the equation is NULL or longer than %d characters",
                           (int)sizeof args.equation - 1);
    }
    strcpy(args.equation, equation);
    return tn_apply(&tn__op_einsum, &args, t, n);
}
