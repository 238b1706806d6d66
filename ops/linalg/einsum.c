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

#include <string.h>

/* A label is a letter, 'A' … 'Z' before 'a' … 'z', or, after these, a dimension of "...". */
enum { LETTERS = 52, LABELS = LETTERS + TN_MAX_DIMS };

typedef struct einsum_args {
    char equation[128];
} einsum_args;

/* A list of labels, such as those of an operand's or the result's dimensions. */
typedef struct einsum_term {
    int n;
    int label[TN_MAX_DIMS];
} einsum_term;

typedef struct einsum_plan {
    einsum_term in[TN_OP_INPUTS], out;
    int64_t size[LABELS]; /* -1: in no operand */
} einsum_plan;

/* ---- Reading the equation -------------------------------------------------------------------- */

enum { DOTS = -1, TERM_END = -2, NO_SUBSCRIPT = -3 };

/* The first position of the label in a term; -1: not in it. */
static int term_place(const einsum_term *term, int label) {
    for (int i = 0; i < term->n; i++) {
        if (term->label[i] == label) { return i; }
    }
    return -1;
}

static int next_subscript(const char **at) {
    *at += strspn(*at, " ");
    char c = **at;
    if (c == 0 || c == ',' || strncmp(*at, "->", 2) == 0) { return TERM_END; }
    if (strncmp(*at, "...", 3) == 0) {
        *at += 3;
        return DOTS;
    }
    (*at)++;
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? 26 + c - 'a' : NO_SUBSCRIPT;
}

/* Reads a term, in which "..." is the last `dots` of `widest` dimensions. */
static bool read_term(const tn_op_call *c, const char **at, int dots, int widest, einsum_term *term,
                      bool *has_dots) {
    term->n = 0;
    *has_dots = false;
    for (int s = next_subscript(at); s != TERM_END; s = next_subscript(at)) {
        if (s == NO_SUBSCRIPT || (s == DOTS && *has_dots)) {
            return tn_op_fail(c, TN_EVALUE, "'%s': letters and one \"...\" for each operand",
                              ((const einsum_args *)c->args)->equation);
        }
        int first = s == DOTS ? LETTERS + widest - dots : s, many = s == DOTS ? dots : 1;
        *has_dots |= s == DOTS;
        if (term->n + many > TN_MAX_DIMS) {
            return tn_op_fail(c, TN_ESHAPE, "more than %d dimensions", TN_MAX_DIMS);
        }
        for (int i = 0; i < many; i++) {
            term->label[term->n++] = first + i;
        }
    }
    return true;
}

/* Records the sizes of operand k's labels. */
static bool note_sizes(const tn_op_call *c, einsum_plan *p, int k) {
    tn_dims dims = tn_shape(c->in[k]);
    for (int i = 0; i < dims.ndim; i++) {
        int label = p->in[k].label[i], first = term_place(&p->in[k], label);
        int64_t *known = &p->size[label], size = dims.size[i];
        bool twice = first < i && dims.size[first] != size;
        if (twice || (*known >= 0 && *known != size && *known != 1 && size != 1)) {
            return tn_op_fail(c, TN_ESHAPE,
                              "'%s': operand %d is %s, where dimension %d should have size %lld",
                              ((const einsum_args *)c->args)->equation, k, tn_shape_text(c->in[k]),
                              i, (long long)(twice ? dims.size[first] : *known));
        }
        *known = *known < 0 || *known == 1 ? size : *known;
    }
    return true;
}

/* Without "->": the dimensions of "...", then the letters that appear once. */
static bool implied_result(const tn_op_call *c, einsum_plan *p, int widest) {
    p->out.n = 0;
    for (int i = 0; i < LABELS; i++) {
        int label = i < TN_MAX_DIMS ? LETTERS + i : i - TN_MAX_DIMS, times = 0;
        for (int k = 0; k < c->inputs; k++) {
            for (int d = 0; d < p->in[k].n; d++) {
                times += p->in[k].label[d] == label;
            }
        }
        if (i < TN_MAX_DIMS ? i < widest : times == 1) {
            if (p->out.n == TN_MAX_DIMS) {
                return tn_op_fail(c, TN_ESHAPE, "more than %d dimensions", TN_MAX_DIMS);
            }
            p->out.label[p->out.n++] = label;
        }
    }
    return true;
}

static bool read_result(const tn_op_call *c, einsum_plan *p, const char *at, int widest) {
    const char *equation = ((const einsum_args *)c->args)->equation;
    bool has_dots;
    if (*at == 0) { return implied_result(c, p, widest); }
    at += 2;
    if (!read_term(c, &at, widest, widest, &p->out, &has_dots)) { return false; }
    for (int i = 0; i < p->out.n; i++) {
        int label = p->out.label[i];
        if (p->size[label] < 0 || term_place(&p->out, label) < i) {
            return tn_op_fail(c, TN_EVALUE,
                              "'%s': the result has a subscript that no operand has, or one twice",
                              equation);
        }
    }
    return *at == 0 || tn_op_fail(c, TN_EVALUE, "'%s': the result must be one term", equation);
}

/* Reads the equation in c's args for c's operands. False after raising. */
static bool read_equation(const tn_op_call *c, einsum_plan *p) {
    const char *equation = ((const einsum_args *)c->args)->equation, *at = equation;
    const char *start[TN_OP_INPUTS];
    int dots[TN_OP_INPUTS], widest = 0;
    bool has_dots;
    memset(p->size, -1, sizeof p->size);
    if (c->inputs < 1 || c->inputs > TN_OP_INPUTS) {
        return tn_op_fail(c, TN_EVALUE, "%d operands (1 to %d)", c->inputs, TN_OP_INPUTS);
    }
    for (int k = 0; k < c->inputs; k++) {
        start[k] = at;
        if (!read_term(c, &at, 0, 0, &p->in[k], &has_dots)) { return false; }
        dots[k] = tn_ndim(c->in[k]) - p->in[k].n;
        widest = dots[k] > widest ? dots[k] : widest;
        if (dots[k] < 0 || (dots[k] > 0 && !has_dots)) {
            return tn_op_fail(c, TN_ESHAPE, "'%s': operand %d is %s but has %d subscripts",
                              equation, k, tn_shape_text(c->in[k]), p->in[k].n);
        }
        if ((*at == ',') != (k + 1 < c->inputs)) {
            return tn_op_fail(c, TN_EVALUE, "'%s' is not for %d operands", equation, c->inputs);
        }
        at += *at == ',';
    }
    for (int k = 0; k < c->inputs; k++) {
        if (!read_term(c, &start[k], dots[k], widest, &p->in[k], &has_dots) ||
            !note_sizes(c, p, k)) {
            return false;
        }
    }
    return read_result(c, p, at, widest);
}

static bool einsum_shape(tn_op_call *c) {
    einsum_plan p = {0};
    if (!read_equation(c, &p) || !tn_op_same_dtype(c) || !tn_op_float(c, 0)) { return false; }
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
    einsum_term term;
} einsum_factor;

static void add_label(einsum_term *term, int label) {
    if (term->n < TN_MAX_DIMS) { /* reshape refuses more */
        term->label[term->n++] = label;
    }
}

/* f's tensor with its dimensions in the order of these labels. */
static tn_tensor *in_order(const einsum_factor *f, const einsum_term *order) {
    tn_dims dims = {.ndim = order->n};
    bool same = true;
    for (int i = 0; i < order->n; i++) {
        dims.size[i] = term_place(&f->term, order->label[i]);
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
        einsum_term rest = {0};
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
    einsum_term rest = {0};
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
static tn_tensor *as_matrices(const einsum_factor *f, const einsum_term *batch,
                              const einsum_term *rows, const einsum_term *columns,
                              const int64_t *size) {
    const einsum_term *const part[] = {batch, rows, columns};
    einsum_term order = {0};
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
    einsum_term batch = {0}, inner = {0}, left = {0}, right = {0}, all = {0};
    int64_t size[LABELS];
    for (int i = 0; i < a->term.n; i++) {
        int label = a->term.label[i], other = term_place(&b->term, label);
        size[label] = tn_size(a->t, i);
        if (other >= 0 && size[label] == 1) { size[label] = tn_size(b->t, other); }
        add_label(other < 0 ? &left : needed[label] ? &batch : &inner, label);
    }
    for (int i = 0; i < b->term.n; i++) {
        int label = b->term.label[i];
        if (term_place(&a->term, label) < 0) {
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
    const einsum_term *const part[] = {&batch, &left, &right};
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

static void mark_labels(bool *needed, const einsum_term *term) {
    for (int i = 0; i < term->n; i++) {
        needed[term->label[i]] = true;
    }
}

/* Whether a result takes more than one rounding step, which then run in f32. */
static bool has_steps(const einsum_plan *p, int n) {
    for (int k = 0; k < n && n == 2; k++) {
        for (int i = 0; i < p->in[k].n; i++) {
            int label = p->in[k].label[i];
            if (term_place(&p->in[1 - k], label) < 0 && term_place(&p->out, label) < 0) {
                return true;
            }
        }
    }
    return n > 2;
}

static tn_tensor *einsum_compose(tn_op_call *c) {
    einsum_plan p = {0};
    if (!read_equation(c, &p)) { return tn_inert(); }
    tn_dtype own = tn_dtype_of(c->in[0]);
    tn_dtype dtype = has_steps(&p, c->inputs) ? tn__wide_dtype(own) : own;
    einsum_factor sum = {0};
    for (int k = 0; k < c->inputs; k++) {
        bool needed[LABELS] = {false};
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
        bool here[LABELS];
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
    .args_size = sizeof(einsum_args),
    .fields = {TN_FIELD(einsum_args, equation)},
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
    einsum_args args = {""};
    if (!equation || strlen(equation) >= sizeof args.equation) {
        return tn__refused(TN_EVALUE, "einsum", "the equation is NULL or longer than %d characters",
                           (int)sizeof args.equation - 1);
    }
    strcpy(args.equation, equation);
    return tn_apply(&tn__op_einsum, &args, t, n);
}
