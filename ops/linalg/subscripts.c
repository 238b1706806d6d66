/* Reads einsum's equation (subscripts.h): terms, the sizes of their labels, and the result's term,
 * explicit or implied.
 */
#include "ops/linalg/subscripts.h"

#include <string.h>

enum { DOTS = -1, TERM_END = -2, NO_SUBSCRIPT = -3 };

int tn__term_place(const tn__term *term, int label) {
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
static bool read_term(const tn_op_call *c, const char **at, int dots, int widest, tn__term *term,
                      bool *has_dots) {
    term->n = 0;
    *has_dots = false;
    for (int s = next_subscript(at); s != TERM_END; s = next_subscript(at)) {
        if (s == NO_SUBSCRIPT || (s == DOTS && *has_dots)) {
            return tn_op_fail(c, TN_EVALUE, "'%s': letters and one \"...\" for each operand",
                              ((const tn__einsum_args *)c->args)->equation);
        }
        int first = s == DOTS ? TN__LETTERS + widest - dots : s, many = s == DOTS ? dots : 1;
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
static bool note_sizes(const tn_op_call *c, tn__einsum_plan *p, int k) {
    tn_dims dims = tn_shape(c->in[k]);
    for (int i = 0; i < dims.ndim; i++) {
        int label = p->in[k].label[i], first = tn__term_place(&p->in[k], label);
        int64_t *known = &p->size[label], size = dims.size[i];
        bool twice = first < i && dims.size[first] != size;
        if (twice || (*known >= 0 && *known != size && *known != 1 && size != 1)) {
            return tn_op_fail(
                c, TN_ESHAPE, "'%s': operand %d is %s, where dimension %d should have size %lld",
                ((const tn__einsum_args *)c->args)->equation, k, tn_shape_text(c->in[k]), i,
                (long long)(twice ? dims.size[first] : *known));
        }
        *known = *known < 0 || *known == 1 ? size : *known;
    }
    return true;
}

/* Without "->": the dimensions of "...", then the letters that appear once. */
static bool implied_result(const tn_op_call *c, tn__einsum_plan *p, int widest) {
    p->out.n = 0;
    for (int i = 0; i < TN__LABELS; i++) {
        int label = i < TN_MAX_DIMS ? TN__LETTERS + i : i - TN_MAX_DIMS, times = 0;
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

static bool read_result(const tn_op_call *c, tn__einsum_plan *p, const char *at, int widest) {
    const char *equation = ((const tn__einsum_args *)c->args)->equation;
    bool has_dots;
    if (*at == 0) { return implied_result(c, p, widest); }
    at += 2;
    if (!read_term(c, &at, widest, widest, &p->out, &has_dots)) { return false; }
    for (int i = 0; i < p->out.n; i++) {
        int label = p->out.label[i];
        if (p->size[label] < 0 || tn__term_place(&p->out, label) < i) {
            return tn_op_fail(c, TN_EVALUE,
                              "'%s': the result has a subscript that no operand has, or one twice",
                              equation);
        }
    }
    return *at == 0 || tn_op_fail(c, TN_EVALUE, "'%s': the result must be one term", equation);
}

bool tn__einsum_read(const tn_op_call *c, tn__einsum_plan *p) {
    const char *equation = ((const tn__einsum_args *)c->args)->equation, *at = equation;
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
