/* The expressions that cut text into pieces: for Oniguruma, in tokenizer.json, translated for PCRE2
 * (pattern_syntax.c). Oniguruma itself takes eight times as long to cut a text, and Debian has no
 * static library of it.
 *
 * An expression may backtrack for exponential time. PCRE2 limits the steps of a match; all matches
 * of a text together have a budget in proportion to its length. A match has few steps at first,
 * which nearly all need; one that takes more is repeated with twice as many, which the budget pays.
 * (A step may go far: an expression that looks to the text's end from each of its pieces takes
 * quadratic time.)
 */
#include "data/tokenizer/pattern.h"

#include "core/error.h"
#include "core/memory.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* GPT-2's expression and similar ones take about ten steps, and four per byte of a megabyte of
 * spaces; lines of some hundred spaces are no trouble to \s+$, which tries each of them. */
enum { STEPS = 128, BUDGET = 1000000, BUDGET_A_BYTE = 1024 };
enum { LEAST_STACK = 32 * 1024, MOST_STACK = 16 * 1024 * 1024 };

struct tn__pattern {
    char *text;
    bool literal;
    pcre2_code *code;
    bool jit;
};

struct tn__matching {
    pcre2_match_context *context;
    pcre2_match_data *found;
    const size_t *where;    /* the match's beginning and end */
    pcre2_jit_stack *stack; /* NULL: the thread's own, which is enough for nearly all */
    const char *part;
    size_t at, bytes; /* where the part is in the text; the text's length */
    size_t left;      /* steps of the budget */
};

#define LLAMA3                                                                \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" \
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define SHORTENED "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

static const struct {
    const char *name, *text;
} named[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {"llama3", LLAMA3},
    {"cl100k", LLAMA3},
    {"o200k", "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" SHORTENED
              "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER "]*" SHORTENED
              "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

const char *tn__pattern_named(const char *name) {
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        if (strcmp(named[i].name, name) == 0) { return named[i].text; }
    }
    return NULL;
}

bool tn__pattern_has_name(const char *text) {
    bool found = false;
    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        found = found || strcmp(named[i].text, text) == 0;
    }
    return found;
}

/* ---- Compiling ------------------------------------------------------------------------------- */

static void *allocate_bytes(size_t bytes, void *context) {
    return tn__malloc(bytes);
}

static void free_bytes(void *block, void *context) {
    free(block);
}

static pcre2_general_context *memory_context(void) {
    return pcre2_general_context_create(allocate_bytes, free_bytes, NULL);
}

/* False after raising. */
static bool compile_pattern(tn__pattern *p, const char *words, const char *operation,
                            const char *where) {
    uint32_t options =
        p->literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    int wrong = PCRE2_ERROR_NOMEMORY;
    size_t at = 0;
    pcre2_general_context *memory = memory_context();
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
        p->code = pcre2_compile((PCRE2_SPTR)words, PCRE2_ZERO_TERMINATED, PCRE2_UTF | options,
                                &wrong, &at, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    if (!p->code && (wrong == PCRE2_ERROR_NOMEMORY || wrong == PCRE2_ERROR_HEAP_FAILED)) {
        return tn__fail(TN_ENOMEM, operation, "no memory for the pattern");
    }
    if (!p->code) {
        char text[128];
        pcre2_get_error_message(wrong, (PCRE2_UCHAR *)text, sizeof(text));
        return tn__fail(TN_EFORMAT, operation, TN__PATTERN_WRONG, where, text, at);
    }
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    return true;
}

tn__pattern *tn__pattern_new(const char *text, bool literal, const char *operation,
                             const char *where) {
    tn__pattern *p = tn__calloc_for(1, sizeof(*p), operation);
    if (!p) { return NULL; }
    p->literal = literal;
    p->text = tn__strdup_for(text, operation);
    char *words = p->text && !literal ? tn__pattern_translate(text, operation, where) : NULL;
    bool done = p->text && (literal || words) &&
                compile_pattern(p, literal ? text : words, operation, where);
    free(words);
    if (!done) {
        tn__pattern_free(p);
        return NULL;
    }
    return p;
}

void tn__pattern_free(tn__pattern *p) {
    if (p) {
        pcre2_code_free(p->code);
        free(p->text);
        free(p);
    }
}

const char *tn__pattern_text(const tn__pattern *p) {
    return p->text;
}

bool tn__pattern_is_literal(const tn__pattern *p) {
    return p->literal;
}

/* ---- Matching -------------------------------------------------------------------------------- */

tn__matching *tn__matching_new(void) {
    tn__matching *m = tn__calloc(1, sizeof(*m));
    pcre2_general_context *memory = m ? memory_context() : NULL;
    if (memory) {
        m->context = pcre2_match_context_create(memory);
        m->found = pcre2_match_data_create(1, memory);
    }
    pcre2_general_context_free(memory);
    if (!m || !m->context || !m->found) {
        tn__matching_free(m);
        tn__raise(TN_ENOMEM, "tokenizer_encode", "no memory");
        return NULL;
    }
    m->where = pcre2_get_ovector_pointer(m->found);
    return m;
}

void tn__matching_begin(tn__matching *m, size_t bytes) {
    m->bytes = bytes;
    m->left = BUDGET + BUDGET_A_BYTE * bytes;
}

void tn__matching_part(tn__matching *m, const char *part, size_t at) {
    m->part = part;
    m->at = at;
}

void tn__matching_free(tn__matching *m) {
    if (m) {
        pcre2_match_data_free(m->found);
        pcre2_match_context_free(m->context);
        pcre2_jit_stack_free(m->stack);
        free(m);
    }
}

static int find_match(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                      size_t at) {
    for (uint32_t steps = STEPS;; steps *= 2) {
        pcre2_set_match_limit(m->context, steps);
        int status = (p->jit ? pcre2_jit_match : pcre2_match)(
            p->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, m->found, m->context);
        if (status != PCRE2_ERROR_MATCHLIMIT || steps > INT32_MAX || 2 * steps > m->left) {
            return status;
        }
        m->left -= 2 * steps;
    }
}

/* A larger stack in place of the thread's own; false: there is one already, or no memory. */
static bool enlarge_stack(tn__matching *m) {
    if (m->stack) { return false; }
    m->stack = pcre2_jit_stack_create(LEAST_STACK, MOST_STACK, NULL);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m->stack != NULL;
}

static void raise_matching(const tn__pattern *p, const tn__matching *m, int status,
                           const char *place) {
    char what[128] = "it takes too many steps";
    if (status != PCRE2_ERROR_MATCHLIMIT) {
        pcre2_get_error_message(status, (PCRE2_UCHAR *)what, sizeof(what));
    }
    tn__raise(status == PCRE2_ERROR_NOMEMORY ? TN_ENOMEM : TN_EFORMAT, "tokenizer_encode",
              "the tokenizer's pattern \"%.160s%s\" cannot cut byte %zu of a text of %zu: %s",
              p->text, strlen(p->text) > 160 ? "…" : "", m->at + (size_t)(place - m->part),
              m->bytes, what);
}

static size_t behind_character(const char *text, size_t bytes, size_t at) {
    at++;
    while (at < bytes && (text[at] & 0xc0) == 0x80) {
        at++;
    }
    return at;
}

size_t tn__pattern_next(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                        size_t at) {
    for (size_t from = at;;) {
        int status = find_match(p, m, text, bytes, from);
        if (status == PCRE2_ERROR_JIT_STACKLIMIT && enlarge_stack(m)) { continue; }
        if (status == PCRE2_ERROR_NOMATCH) { return bytes; }
        if (status < 0) {
            raise_matching(p, m, status, text + at);
            return 0;
        }
        size_t begin = m->where[0] < at ? at : m->where[0], end = m->where[1];
        if (begin > at) { return begin; }
        if (end > at) { return end; }
        if (from == bytes) { return bytes; }
        from = behind_character(text, bytes, from); /* an empty match takes nothing */
    }
}
