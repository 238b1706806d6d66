/* Shape rules as text (tn_op.shapes): "... in, out in, out -> ... out".
 *
 * A text is read once, into a shape_rule, where words are numbers. A word has the size that the
 * first input with it gives, and later inputs must agree; so have the dimensions of "...". The
 * outputs are made of these sizes.
 */
#include "tensor/tensor.h"
#include "tern/sys/op.h"

#include <stdio.h>
#include <string.h>

enum { RULE_TEXT = 160, RULE_WORDS = 17, RULE_TERMS = TN_OP_INPUTS + TN_OP_OUTPUTS };
enum { REST = 0 }; /* the number of "..." */

/* What an operand's dtype must be: one of tn_dtype, or one of these. */
enum { DTYPE_WIDE = TN_DTYPES, DTYPE_FLOAT, DTYPE_INDEX, DTYPE_SHARED, DTYPE_SHARED_FLOAT };

/* One operand, with a word for each of its sizes but those of "...". */
typedef struct shape_term {
    uint8_t dtype, words, lead; /* lead: of the words, those before "...", or all */
    bool rest;                  /* it has "..." */
    uint8_t word[TN_MAX_DIMS];
} shape_term;

typedef struct shape_word {
    const char *text;
    int length;
} shape_word;

typedef struct shape_rule {
    char text[RULE_TEXT];
    char name[RULE_WORDS][24]; /* of a word, by its number */
    int names, inputs, terms;  /* the outputs' terms follow those of the inputs */
    shape_term term[RULE_TERMS];
} shape_rule;

/* ---- Reading --------------------------------------------------------------------------------- */

static bool is_word(shape_word word, const char *text) {
    return strncmp(word.text, text, (size_t)word.length) == 0 && text[word.length] == 0;
}

/* The dtype of this name, which an input, or an output, can have; -1: there is none. */
static int dtype_named(shape_word name, bool is_output) {
    static const char *const others[] = {"wide", "float", "index", "any"};
    for (int i = 0; i < TN_DTYPES; i++) {
        if (is_word(name, tn_dtype_name((tn_dtype)i))) { return i; }
    }
    for (int i = is_output ? 0 : 1; i < (is_output ? 1 : 4); i++) {
        if (is_word(name, others[i])) { return DTYPE_WIDE + i; }
    }
    return -1;
}

/* False after raising: the rule's text does not say a shape. */
static bool refuse_text(const tn_op_call *c, const shape_rule *r, const char *what) {
    return tn_op_fail(c, TN_EVALUE, "its shape rule \"%s\" has %s", r->text, what);
}

static bool read_word(shape_rule *r, const tn_op_call *c, shape_term *t, shape_word word) {
    int k = 0;
    while (k < r->names && !is_word(word, r->name[k])) {
        k++;
    }
    if (k == REST && t->rest) { return refuse_text(c, r, "... twice in one operand"); }
    if (k == RULE_WORDS || t->words == TN_MAX_DIMS) { return refuse_text(c, r, "too many words"); }
    if (word.length >= (int)sizeof *r->name) { return refuse_text(c, r, "too long a word"); }
    if (k == r->names) { memcpy(r->name[r->names++], word.text, (size_t)word.length); }
    if (k == REST) {
        t->rest = true;
    } else {
        t->word[t->words++] = (uint8_t)k;
        t->lead += !t->rest;
    }
    return true;
}

static bool read_dtype(const tn_op_call *c, shape_term *t, shape_word word, bool is_output) {
    int dtype = dtype_named(word, is_output);
    t->dtype = (uint8_t)dtype;
    return dtype >= 0 || tn_op_fail(c, TN_EVALUE, "its shape rule has '%.*s' for a dtype",
                                    word.length, word.text);
}

/* Reads an operand up to its comma, "->" or the end, where *at is then. False after raising. */
static bool read_term(shape_rule *r, const tn_op_call *c, const char **at) {
    if (r->terms == RULE_TERMS) { return refuse_text(c, r, "too many operands"); }
    shape_term *t = &r->term[r->terms++];
    t->dtype = DTYPE_SHARED_FLOAT;
    for (;; ++*at) {
        shape_word word = {*at, (int)strcspn(*at, " :,-")};
        *at += word.length;
        bool ok = **at == ':'       ? read_dtype(c, t, word, r->inputs > 0)
                  : word.length > 0 ? read_word(r, c, t, word)
                                    : true;
        if (!ok) { return false; }
        if (!**at || **at == ',' || **at == '-') { return true; }
    }
}

static bool read_rule(shape_rule *r, const tn_op_call *c, const char *text) {
    *r = (shape_rule){.name = {[REST] = "..."}, .names = 1};
    const char *at = r->text;
    if (snprintf(r->text, sizeof r->text, "%s", text) >= (int)sizeof r->text) {
        return refuse_text(c, r, "too long a text");
    }
    while (read_term(r, c, &at)) {
        if (*at == ',') {
            at++;
        } else if (*at == '-' && (at[1] != '>' || r->inputs > 0)) {
            return refuse_text(c, r, "a - that is no ->");
        } else {
            r->inputs = r->inputs > 0 ? r->inputs : r->terms;
            if (!*at) { return true; }
            at += 2;
        }
    }
    return false;
}

/* ---- Rules that were read -------------------------------------------------------------------- */

enum { EMPTY, BUSY, READY };
enum { KEPT_RULES = 64, KEPT_TRIES = 4 };

static struct {
    int state;        /* atomic; it only grows */
    const char *text; /* of the operation that has this rule; NULL: a function's */
    shape_rule rule;
} kept[KEPT_RULES];

/* Where a rule is kept: in one of KEPT_TRIES places, by the address of its text. */
static inline size_t place_of_rule(const char *text, int try) {
    uint64_t hash = (uint64_t)(uintptr_t)text * 0x9E3779B97F4A7C15u >> 32;
    return (size_t)(hash + (uint64_t)try) % KEPT_RULES;
}

/* fixed: the text is its operation's, and does not change; others are compared. */
static inline const shape_rule *find_rule(const char *text, bool fixed) {
    for (int i = 0; i < KEPT_TRIES; i++) {
        size_t k = place_of_rule(text, i);
        bool ready = __atomic_load_n(&kept[k].state, __ATOMIC_ACQUIRE) == READY;
        if (ready && (fixed ? kept[k].text == text : strcmp(kept[k].rule.text, text) == 0)) {
            return &kept[k].rule;
        }
    }
    return NULL;
}

/* Without a free place it is read again at the next call. */
static void keep_rule(const shape_rule *rule, const char *text, bool fixed) {
    for (int i = 0; i < KEPT_TRIES; i++) {
        size_t k = place_of_rule(text, i);
        int empty = EMPTY;
        if (__atomic_compare_exchange_n(&kept[k].state, &empty, BUSY, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            kept[k].text = fixed ? text : NULL;
            kept[k].rule = *rule;
            __atomic_store_n(&kept[k].state, READY, __ATOMIC_RELEASE);
            return;
        }
    }
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

/* One call of an operation, checked by its rule. */
typedef struct shape_check {
    tn_op_call *c;
    const shape_rule *rule;
    int64_t size[RULE_WORDS]; /* of each word; -1: not known yet; of "...", or NULL: */
    const int64_t *rest;
    int rest_ndim;
    int dtype_input; /* the first of those that share a dtype; -1: none */
    tn_dtype dtype;  /* which they share; f32: none do */
} shape_check;

/* The first input that shares its dtype; it must be floating point, or not. */
static bool begins_dtype(shape_check *s, int i, int wanted) {
    s->dtype_input = i;
    s->dtype = s->c->in[i]->dtype;
    return wanted == DTYPE_SHARED || tn_dtype_is_float(s->dtype) || tn_op_float(s->c, i);
}

static bool refuse_dtype(const shape_check *s, int i) {
    const tn_op_call *c = s->c;
    return tn_op_fail(c, TN_EDTYPE, "%s is %s but %s is %s (cast one of them)",
                      tn_op_input_name(c->op, s->dtype_input).text, tn_dtype_name(s->dtype),
                      tn_op_input_name(c->op, i).text, tn_dtype_name(c->in[i]->dtype));
}

static inline bool check_dtype(shape_check *s, int i, int wanted) {
    const tn_op_call *c = s->c;
    tn_dtype dtype = c->in[i]->dtype;
    if (wanted >= DTYPE_SHARED) {
        return s->dtype_input < 0  ? begins_dtype(s, i, wanted)
               : dtype != s->dtype ? refuse_dtype(s, i)
                                   : true;
    }
    if (wanted == DTYPE_FLOAT) { return tn_op_float(c, i); }
    if (wanted == DTYPE_INDEX) { return tn_op_index(c, i); }
    return dtype == (tn_dtype)wanted ||
           tn_op_fail(c, TN_EDTYPE, "%s is %s (%s is needed)", tn_op_input_name(c->op, i).text,
                      tn_dtype_name(dtype), tn_dtype_name((tn_dtype)wanted));
}

typedef struct term_text {
    char text[96];
} term_text;

/* "[..., in]" */
static term_text text_of_term(const shape_rule *r, int i) {
    const shape_term *t = &r->term[i];
    term_text to = {"["};
    size_t n = 1, size = sizeof to.text - 1;
    for (int k = 0; k < t->words + t->rest && n < size; k++) {
        int word = k < t->lead ? t->word[k] : k == t->lead ? REST : t->word[k - 1];
        n += (size_t)snprintf(to.text + n, size - n, "%s%s", k ? ", " : "", r->name[word]);
    }
    strcat(to.text, "]");
    return to;
}

/* The first input that has the word; -1: none. */
static int first_with(const shape_check *s, int word) {
    for (int i = 0; i < s->c->inputs; i++) {
        const shape_term *t = &s->rule->term[i];
        bool has = word == REST ? t->rest : memchr(t->word, word, t->words) != NULL;
        if (has && s->c->in[i]) { return i; }
    }
    return -1;
}

/* Input i disagrees with an earlier one about a word, and says what the text does. */
__attribute__((cold)) static bool refuse_input(const shape_check *s, int word, int i,
                                               const char *sizes) {
    const tn_op_call *c = s->c;
    int first = first_with(s, word);
    term_text wanted = text_of_term(s->rule, first), other = text_of_term(s->rule, i);
    if (first == i) {
        return tn_op_fail(c, TN_ESHAPE, "%s is %s (it must be %s: %s)",
                          tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]), wanted.text,
                          sizes);
    }
    char pair[352] = "they must be equal";
    if (strcmp(wanted.text, other.text) != 0) {
        snprintf(pair, sizeof pair, "they must be %s and %s: %s", wanted.text, other.text, sizes);
    }
    return tn_op_fail(c, TN_ESHAPE, "%s is %s but %s is %s (%s)",
                      tn_op_input_name(c->op, first).text, tn_shape_text(c->in[first]),
                      tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]), pair);
}

__attribute__((cold)) static bool refuse_size(const shape_check *s, int word, int i, int64_t size) {
    char sizes[96];
    snprintf(sizes, sizeof sizes, "%s is %lld and %lld", s->rule->name[word],
             (long long)s->size[word], (long long)size);
    return refuse_input(s, word, i, sizes);
}

/* Checks the sizes of n words. */
static inline bool check_sizes(shape_check *s, int i, const uint8_t *word, const int64_t *size,
                               int n) {
    for (int k = 0; k < n; k++) {
        int64_t *known = &s->size[word[k]];
        if (*known != size[k]) {
            if (*known >= 0) { return refuse_size(s, word[k], i, size[k]); }
            *known = size[k];
        }
    }
    return true;
}

__attribute__((cold)) static bool refuse_rest(const shape_check *s, int i, tn_dims rest) {
    char sizes[128];
    snprintf(sizes, sizeof sizes, "... is %s and %s",
             tn__dims_text(tn_dims_from(s->rest_ndim, s->rest)), tn__dims_text(rest));
    return refuse_input(s, REST, i, sizes);
}

static bool check_rest(shape_check *s, int i, const int64_t *rest, int ndim) {
    if (!s->rest) {
        s->rest = rest;
        s->rest_ndim = ndim;
        return true;
    }
    bool same = ndim == s->rest_ndim;
    for (int k = 0; k < ndim && same; k++) {
        same = rest[k] == s->rest[k];
    }
    return same || refuse_rest(s, i, tn_dims_from(ndim, rest));
}

static bool check_input(shape_check *s, int i) {
    const shape_term *t = &s->rule->term[i];
    const tn_tensor *x = s->c->in[i];
    int rest = x->dims.ndim - t->words, lead = t->lead;
    if (!check_dtype(s, i, t->dtype)) { return false; }
    if (t->rest ? rest < 0 : rest != 0) {
        return tn_op_fail(s->c, TN_ESHAPE, "%s is %s (it must be %s)",
                          tn_op_input_name(s->c->op, i).text, tn_shape_text(x),
                          text_of_term(s->rule, i).text);
    }
    const int64_t *size = x->dims.size;
    return check_sizes(s, i, t->word, size, lead) &&
           (!t->rest || check_rest(s, i, size + lead, rest)) &&
           check_sizes(s, i, t->word + lead, size + lead + rest, t->words - lead);
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* The size of a word is not known; NULL: there are too many dimensions. */
__attribute__((cold)) static bool refuse_output(const shape_check *s, const char *word) {
    const tn_op_call *c = s->c;
    int i = first_with(s, REST);
    if (word) { return tn_op_fail(c, TN_EVALUE, "no input has the size '%s' of its result", word); }
    if (i < 0) {
        return tn_op_fail(c, TN_ESHAPE, "the result would have more than %d dimensions",
                          TN_MAX_DIMS);
    }
    return tn_op_fail(c, TN_ESHAPE, "%s is %s (the result would have more than %d dimensions)",
                      tn_op_input_name(c->op, i).text, tn_shape_text(c->in[i]), TN_MAX_DIMS);
}

static tn_dtype dtype_of_output(const shape_check *s, int wanted) {
    if (wanted < TN_DTYPES) { return (tn_dtype)wanted; }
    return wanted == DTYPE_WIDE && s->dtype != TN_F64 ? TN_F32 : s->dtype;
}

/* Appends the sizes of n words. */
static inline bool put_sizes(const shape_check *s, const uint8_t *word, int n, tn_dims *to) {
    for (int k = 0; k < n; k++) {
        if (s->size[word[k]] < 0) { return refuse_output(s, s->rule->name[word[k]]); }
        to->size[to->ndim++] = s->size[word[k]];
    }
    return true;
}

static inline bool make_output(const shape_check *s, const shape_term *t) {
    tn_dims dims = {0};
    if (t->rest && !s->rest) { return refuse_output(s, s->rule->name[REST]); }
    if (t->words + (t->rest ? s->rest_ndim : 0) > TN_MAX_DIMS) { return refuse_output(s, NULL); }
    if (!put_sizes(s, t->word, t->lead, &dims)) { return false; }
    /* with the constant it is a few moves (tn_dims_from) */
    for (int i = 0; i < TN_MAX_DIMS && t->rest && i < s->rest_ndim; i++) {
        dims.size[dims.ndim++] = s->rest[i];
    }
    return put_sizes(s, t->word + t->lead, t->words - t->lead, &dims) &&
           tn_op_out(s->c, dims, dtype_of_output(s, t->dtype));
}

bool tn_op_shapes(tn_op_call *c, const char *text) {
    if (!text) { return tn_op_fail(c, TN_EVALUE, "its shape rule is NULL"); }
    shape_rule read;
    bool fixed = text == c->op->shapes;
    const shape_rule *r = find_rule(text, fixed);
    if (!r) {
        if (!read_rule(&read, c, text)) { return false; }
        keep_rule(&read, text, fixed);
        r = &read;
    }
    if (c->inputs > r->inputs) {
        return tn_op_fail(c, TN_EVALUE, "%d inputs given, but \"%s\" has %d", c->inputs, text,
                          r->inputs);
    }
    shape_check s;
    s.c = c;
    s.rule = r;
    s.dtype_input = -1;
    s.dtype = TN_F32;
    s.rest = NULL;
    s.rest_ndim = 0;
    memset(s.size, -1, sizeof s.size);
    for (int i = 0, n = c->inputs; i < n; i++) {
        if (c->in[i] && !check_input(&s, i)) { return false; }
    }
    for (int i = r->inputs; i < r->terms; i++) {
        bool is_extra = c->outputs >= tn_op_results(c->op);
        if ((c->record || !is_extra) && !make_output(&s, &r->term[i])) { return false; }
    }
    return true;
}
