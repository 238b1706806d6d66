/* Shape rules as text (tn_op.shapes): "... in, out in, out -> ... out".
 *
 * Each call reads the text. A word has the size that the first input with it gives, and later
 * inputs must agree; so have the dimensions of "...". The outputs are made of these sizes.
 */
#include "tensor/tensor.h"
#include "tern/sys/op.h"

#include <stdio.h>
#include <string.h>

typedef struct shape_word {
    const char *text;
    int length;
} shape_word;

/* One operand: a dtype, if the text has one, and a word for each size or "...". */
typedef struct shape_term {
    const char *text;
    shape_word dtype, word[TN_MAX_DIMS + 1];
    int words, rests; /* rests: how often "..." is among the words */
} shape_term;

typedef struct known_size {
    shape_word name;
    int64_t size;
    int input; /* the first that has it, whose text this is */
    const char *term;
} known_size;

typedef struct shape_rule {
    tn_op_call *c;
    known_size size[TN_OP_INPUTS * TN_MAX_DIMS];
    int sizes;
    const int64_t *rest; /* the dimensions of "..." */
    int rest_ndim;
    const char *rest_term;
    int rest_input;  /* the first that has "...", whose text that is; -1: none */
    int dtype_input; /* the first of those that share a dtype; -1: none */
} shape_rule;

static bool is_word(shape_word word, const char *text) {
    return strncmp(word.text, text, (size_t)word.length) == 0 && text[word.length] == 0;
}

static bool is_rest(shape_word word) {
    return word.length == 3 && memcmp(word.text, "...", 3) == 0;
}

/* Of a character; 0: it is in a word. A table, since every call of an operation reads its text. */
enum { ENDS_TERM = 1, ENDS_WORD };
static const unsigned char role[256] = {
    [0] = ENDS_TERM, [','] = ENDS_TERM, ['-'] = ENDS_TERM, [' '] = ENDS_WORD, [':'] = ENDS_WORD};

static bool is_in_word(char c) {
    return role[(unsigned char)c] == 0;
}

static bool ends_term(char c) {
    return role[(unsigned char)c] == ENDS_TERM;
}

/* Reads an operand's text up to its comma, "->" or the end, which it returns. */
static const char *read_term(const char *at, shape_term *t) {
    t->text = at;
    t->dtype = (shape_word){"", 0};
    t->words = t->rests = 0;
    while (!ends_term(*at)) {
        const char *word = at;
        while (is_in_word(*at)) {
            at++;
        }
        int length = (int)(at - word);
        if (*at == ':') {
            t->dtype = (shape_word){word, length};
        } else if (length > 0 && t->words <= TN_MAX_DIMS) {
            t->word[t->words] = (shape_word){word, length};
            t->rests += is_rest(t->word[t->words++]);
        }
        at += !ends_term(*at);
    }
    return at;
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

static bool dtype_named(shape_word name, tn_dtype *dtype) {
    for (int i = 0; i < TN_DTYPES; i++) {
        if (is_word(name, tn_dtype_name((tn_dtype)i))) {
            *dtype = (tn_dtype)i;
            return true;
        }
    }
    return false;
}

/* Input i has the dtype of the first input that shares one; that must be floating point, or not. */
static bool shares_dtype(shape_rule *r, int i, bool is_float) {
    const tn_op_call *c = r->c;
    if (r->dtype_input < 0) {
        r->dtype_input = i;
        return !is_float || tn_op_float(c, i);
    }
    const tn_tensor *first = c->in[r->dtype_input], *t = c->in[i];
    return t->dtype == first->dtype ||
           tn_op_fail(c, TN_EDTYPE, "%s is %s but %s is %s (cast one of them)",
                      tn_op_input_name(c->op, r->dtype_input).text, tn_dtype_name(first->dtype),
                      tn_op_input_name(c->op, i).text, tn_dtype_name(t->dtype));
}

static bool check_dtype(shape_rule *r, int i, shape_word wanted) {
    const tn_op_call *c = r->c;
    tn_dtype own = c->in[i]->dtype, dtype;
    if (wanted.length == 0 || is_word(wanted, "any")) {
        return shares_dtype(r, i, wanted.length == 0);
    }
    if (is_word(wanted, "index")) { return tn_op_index(c, i); }
    if (is_word(wanted, "float")) { return tn_op_float(c, i); }
    if (!dtype_named(wanted, &dtype)) {
        return tn_op_fail(c, TN_EVALUE, "its shape rule has '%.*s' for a dtype", wanted.length,
                          wanted.text);
    }
    return own == dtype ||
           tn_op_fail(c, TN_EDTYPE, "%s is %s (%s is needed)", tn_op_input_name(c->op, i).text,
                      tn_dtype_name(own), tn_dtype_name(dtype));
}

static bool same_word(shape_word a, shape_word b) {
    return a.length == b.length && a.text[0] == b.text[0] &&
           memcmp(a.text, b.text, (size_t)a.length) == 0;
}

static const known_size *find_size(const shape_rule *r, shape_word name) {
    for (int i = 0; i < r->sizes; i++) {
        if (same_word(r->size[i].name, name)) { return &r->size[i]; }
    }
    return NULL;
}

typedef struct term_text {
    char text[96];
} term_text;

/* "[..., in]", of the text "float: ... in, …" */
static term_text text_of_term(const char *term) {
    term_text to = {"["};
    size_t n = 1, size = sizeof to.text - 2;
    while (!ends_term(*term)) {
        const char *word = term;
        while (is_in_word(*term)) {
            term++;
        }
        if (term > word && *term != ':' && n < size) {
            n += (size_t)snprintf(to.text + n, size - n, "%s%.*s", n > 1 ? ", " : "",
                                  (int)(term - word), word);
        }
        term += !ends_term(*term);
    }
    strcat(to.text, "]");
    return to;
}

/* Inputs i and j disagree about what the reason says. */
static bool refuse_inputs(const tn_op_call *c, int i, const char *i_term, int j, const char *j_term,
                          const char *reason) {
    term_text first = text_of_term(i_term), second = text_of_term(j_term);
    if (i == j) {
        return tn_op_fail(c, TN_ESHAPE, "%s is %s (it must be %s: %s)",
                          tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]), first.text,
                          reason);
    }
    if (strcmp(first.text, second.text) == 0) {
        return tn_op_fail(c, TN_ESHAPE, "%s is %s but %s is %s (they must be equal)",
                          tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]),
                          tn_op_input_name(c->op, j).text, tn_shape_text(c->in[j]));
    }
    return tn_op_fail(c, TN_ESHAPE, "%s is %s but %s is %s (they must be %s and %s: %s)",
                      tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]),
                      tn_op_input_name(c->op, j).text, tn_shape_text(c->in[j]), first.text,
                      second.text, reason);
}

static bool check_size(shape_rule *r, int i, const char *term, shape_word name, int64_t size) {
    const known_size *known = find_size(r, name);
    if (!known) {
        r->size[r->sizes++] = (known_size){name, size, i, term};
        return true;
    }
    char reason[128];
    if (known->size == size) { return true; }
    snprintf(reason, sizeof reason, "%.*s is %lld and %lld", name.length, name.text,
             (long long)known->size, (long long)size);
    return refuse_inputs(r->c, known->input, known->term, i, term, reason);
}

static bool check_rest(shape_rule *r, int i, const char *term, const int64_t *rest, int ndim) {
    if (r->rest_input < 0) {
        r->rest_input = i;
        r->rest_term = term;
        r->rest = rest;
        r->rest_ndim = ndim;
        return true;
    }
    if (ndim == r->rest_ndim && memcmp(rest, r->rest, (size_t)ndim * sizeof *rest) == 0) {
        return true;
    }
    char reason[128];
    snprintf(reason, sizeof reason, "... is %s and %s",
             tn__dims_text(tn_dims_from(r->rest_ndim, r->rest)),
             tn__dims_text(tn_dims_from(ndim, rest)));
    return refuse_inputs(r->c, r->rest_input, r->rest_term, i, term, reason);
}

static bool check_input(shape_rule *r, int i, const shape_term *t) {
    const tn_dims *dims = &r->c->in[i]->dims;
    int rest = dims->ndim - (t->words - t->rests), at = 0;
    if (!check_dtype(r, i, t->dtype)) { return false; }
    if (t->rests > 1) {
        return tn_op_fail(r->c, TN_EVALUE, "its shape rule has ... twice for %s",
                          tn_op_input_name(r->c->op, i).text);
    }
    if (rest < 0 || (rest > 0 && !t->rests)) {
        return tn_op_fail(r->c, TN_ESHAPE, "%s is %s (it must be %s)",
                          tn_op_input_name(r->c->op, i).text, tn_shape_text(r->c->in[i]),
                          text_of_term(t->text).text);
    }
    for (int k = 0; k < t->words; k++) {
        bool fits = is_rest(t->word[k]) ? check_rest(r, i, t->text, dims->size + at, rest)
                                        : check_size(r, i, t->text, t->word[k], dims->size[at]);
        if (!fits) { return false; }
        at += is_rest(t->word[k]) ? rest : 1;
    }
    return true;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static bool add_sizes(shape_rule *r, tn_dims *dims, const int64_t *size, int n) {
    if (dims->ndim + n > TN_MAX_DIMS && r->rest_input < 0) {
        return tn_op_fail(r->c, TN_ESHAPE, "the result would have more than %d dimensions",
                          TN_MAX_DIMS);
    }
    if (dims->ndim + n > TN_MAX_DIMS) {
        return tn_op_fail(r->c, TN_ESHAPE,
                          "%s is %s (the result would have more than %d dimensions)",
                          tn_op_input_name(r->c->op, r->rest_input).text,
                          tn_shape_text(r->c->in[r->rest_input]), TN_MAX_DIMS);
    }
    for (int i = 0; i < n; i++) {
        dims->size[dims->ndim++] = size[i];
    }
    return true;
}

static bool make_output(shape_rule *r, const shape_term *t) {
    tn_dims dims = {0};
    for (int k = 0; k < t->words; k++) {
        const known_size *known = is_rest(t->word[k]) ? NULL : find_size(r, t->word[k]);
        if (!known && (!is_rest(t->word[k]) || r->rest_input < 0)) {
            return tn_op_fail(r->c, TN_EVALUE, "no input has the size '%.*s' of its result",
                              t->word[k].length, t->word[k].text);
        }
        if (!add_sizes(r, &dims, known ? &known->size : r->rest, known ? 1 : r->rest_ndim)) {
            return false;
        }
    }
    tn_dtype dtype = r->dtype_input >= 0 ? r->c->in[r->dtype_input]->dtype : TN_F32;
    if (is_word(t->dtype, "wide")) {
        dtype = dtype == TN_F64 ? TN_F64 : TN_F32;
    } else if (t->dtype.length > 0) {
        dtype_named(t->dtype, &dtype);
    }
    return tn_op_out(r->c, dims, dtype);
}

bool tn_op_shapes(tn_op_call *c, const char *text) {
    shape_rule r;
    shape_term t;
    if (!text) { return tn_op_fail(c, TN_EVALUE, "its shape rule is NULL"); }
    r.c = c;
    r.sizes = 0;
    r.rest_input = r.dtype_input = -1;
    const char *at = text;
    int i = 0;
    for (bool more = true; more; i++) {
        at = read_term(at, &t);
        if (i < c->inputs && c->in[i] && !check_input(&r, i, &t)) { return false; }
        more = *at == ',';
        at += more;
    }
    if (i < c->inputs) {
        return tn_op_fail(c, TN_EVALUE, "%d inputs given, but \"%s\" has %d", c->inputs, text, i);
    }
    if (!*at) { return true; } /* the caller makes the outputs */
    if (at[1] != '>') {
        return tn_op_fail(c, TN_EVALUE, "its shape rule \"%s\" has a - that is no ->", text);
    }
    at++;
    do {
        at = read_term(at + 1, &t);
        bool is_extra = c->outputs >= tn_op_results(c->op);
        if ((c->record || !is_extra) && !make_output(&r, &t)) { return false; }
    } while (*at == ',');
    return true;
}
