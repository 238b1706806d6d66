/* The expressions that cut text into pieces.
 *
 * They are written for Oniguruma (tokenizer.json) or Rust's regex (tiktoken). What PCRE2
 * understands differently is translated (\s is Unicode's White_Space, which PCRE2's own \s is not
 * quite), or rejected by name, so that no file gives different ids here.
 *
 * An expression may take very long: exponential time, or for each piece a scan to the text's end.
 * PCRE2 counts its steps but not how far each goes, and has no limit for all pieces of a text
 * together. So a match that takes many steps is repeated with an expression that calls back at each
 * of its items; the callback adds up how far the match has gone, back and forth, and a text has a
 * budget in proportion to its length. One match in AUDIT is counted as well, more if matches go far
 * beyond their pieces, and the first ones of a long text.
 */
#include "data/tokenizer/pattern.h"

#include "core/error.h"
#include "core/memory.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

/* STEPS: what a match that is not counted may take; WAY: how far those that are counted may go.
 * GPT-2's expression and similar ones take about ten steps, and four per byte of a megabyte of
 * spaces. */
enum { STEPS = 128, AUDIT = 2048, WAY = 100000, WAY_A_BYTE = 16, LONG_TEXT = 16384 };
enum { LEAST_STACK = 32 * 1024, MOST_STACK = 16 * 1024 * 1024 };

struct tn__pattern {
    char *text;
    bool literal;
    pcre2_code *code, *counted; /* the same twice; the second calls back */
    bool jit, counted_jit;
};

struct tn__matching {
    pcre2_match_context *context, *counting; /* NULL until a match is counted */
    pcre2_match_data *found;
    const size_t *where;    /* the match's beginning and end */
    pcre2_jit_stack *stack; /* NULL: the thread's own, which is enough for nearly all */
    const char *part;
    size_t at, bytes;      /* where the part is in the text; the text's length */
    unsigned every, until; /* one match in `every` is audited; `until`: matches until then */
    size_t place, left;    /* where the counted match is, and how far it may still go */
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
        if (strcmp(named[i].name, name) == 0) {
            return named[i].text;
        }
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

/* ---- From their syntax to PCRE2's ------------------------------------------------------------ */

static void *allocate_bytes(size_t bytes, void *context) {
    (void)context;
    return tn__malloc(bytes);
}

static void free_bytes(void *block, void *context) {
    (void)context;
    free(block);
}

/* "{1,3}+" at `at` */
static bool repeats_more(const char *at) {
    size_t count = at[0] == '{' ? strspn(at + 1, "0123456789,") : 0;
    return count && at[count + 1] == '}' && at[count + 2] == '+';
}

/* What is at `at` and means something else to PCRE2; NULL: nothing. */
static const char *foreign_at(const char *at, bool in_class) {
    if (at[0] == '\\' && at[1] && strchr(in_class ? "hHwW" : "hHwWbBKGOyY", at[1])) {
        return "an escape that does not mean the same everywhere";
    }
    if (in_class && at[0] == '&' && at[1] == '&') {
        return "an intersection of classes";
    }
    if (in_class && at[0] == '[') {
        return at[1] == ':' ? "a name for a class, which has other characters elsewhere"
                            : "a class within a class";
    }
    if (!in_class && repeats_more(at)) {
        return "'+' after '}', which is possessive for some and repeats for others";
    }
    return NULL;
}

/* The expression in PCRE2's syntax, for the caller to free. NULL: *wrong and *place say why, or
 * there is no memory if *wrong is NULL. */
static char *translate_pattern(const char *text, const char **wrong, size_t *place) {
    static const char space[] = "\\p{Wspace}", other[] = "\\P{Wspace}";
    char *words = tn__malloc(strlen(text) * sizeof(space) + 1), *to = words;
    bool in_class = false;
    *wrong = NULL;
    for (const char *at = text; words && *at; at++) {
        *wrong = foreign_at(at, in_class);
        if (*wrong) {
            *place = (size_t)(at - text);
            free(words);
            return NULL;
        }
        if (at[0] == '\\' && (at[1] == 's' || at[1] == 'S')) {
            memcpy(to, at[1] == 's' ? space : other, sizeof(space) - 1);
            to += sizeof(space) - 1;
            at++;
            continue;
        }
        in_class = in_class ? *at != ']' : *at == '[';
        *to++ = *at;
        if (at[0] == '\\' && at[1]) {
            *to++ = *++at;
        }
    }
    if (words) {
        *to = 0;
    }
    return words;
}

static void raise_pattern(const char *operation, const char *where, const char *what, size_t at) {
    tn__raise(TN_EFORMAT, operation, "%s: the pattern is not understood: %s (at byte %zu of it)",
              where, what, at);
}

static pcre2_code *compile_words(const char *words, bool literal, bool counted,
                                 const char *operation, const char *where) {
    pcre2_general_context *memory = pcre2_general_context_create(allocate_bytes, free_bytes, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_code *code = NULL;
    int wrong = PCRE2_ERROR_NOMEMORY;
    size_t at = 0;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        uint32_t options =
            PCRE2_UTF | (counted ? PCRE2_AUTO_CALLOUT : 0) |
            (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
        code =
            pcre2_compile((PCRE2_SPTR)words, PCRE2_ZERO_TERMINATED, options, &wrong, &at, context);
    }
    if (!code && (!context || wrong == PCRE2_ERROR_NOMEMORY || wrong == PCRE2_ERROR_HEAP_FAILED)) {
        tn__raise(TN_ENOMEM, operation, "no memory for the pattern");
    } else if (!code) {
        char text[128];
        pcre2_get_error_message(wrong, (PCRE2_UCHAR *)text, sizeof(text));
        raise_pattern(operation, where, text, at);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    return code;
}

tn__pattern *tn__pattern_new(const char *text, bool literal, const char *operation,
                             const char *where) {
    const char *wrong = NULL;
    size_t place = 0;
    char *words = literal ? tn__strdup(text) : translate_pattern(text, &wrong, &place);
    if (wrong) {
        raise_pattern(operation, where, wrong, place);
        return NULL;
    }
    tn__pattern *p = words ? tn__calloc(1, sizeof(*p)) : NULL;
    char *copy = p ? tn__strdup(text) : NULL;
    if (!copy) {
        tn__raise(TN_ENOMEM, operation, "no memory for the pattern");
    } else {
        p->code = compile_words(words, literal, false, operation, where);
        p->counted = p->code ? compile_words(words, literal, true, operation, where) : NULL;
    }
    free(words);
    if (!p || !p->counted) {
        free(copy);
        if (p) {
            pcre2_code_free(p->code);
        }
        free(p);
        return NULL;
    }
    p->text = copy;
    p->literal = literal;
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    p->counted_jit = pcre2_jit_compile(p->counted, PCRE2_JIT_COMPLETE) == 0;
    return p;
}

void tn__pattern_free(tn__pattern *p) {
    if (p) {
        pcre2_code_free(p->code);
        pcre2_code_free(p->counted);
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

/* Called at each item of the expression: adds the distance from the last one. */
static int count_way(pcre2_callout_block *block, void *user) {
    tn__matching *m = user;
    size_t here = block->current_position;
    size_t way = (here > m->place ? here - m->place : m->place - here) + 1;
    m->place = here;
    if (way > m->left) {
        return PCRE2_ERROR_MATCHLIMIT;
    }
    m->left -= way;
    return 0;
}

tn__matching *tn__matching_new(void) {
    tn__matching *m = tn__calloc(1, sizeof(*m));
    pcre2_general_context *memory =
        m ? pcre2_general_context_create(allocate_bytes, free_bytes, NULL) : NULL;
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
    pcre2_set_match_limit(m->context, STEPS);
    return m;
}

void tn__matching_begin(tn__matching *m, size_t bytes) {
    m->bytes = bytes;
    m->every = m->until = bytes < LONG_TEXT ? AUDIT : 1;
    m->left = WAY + WAY_A_BYTE * bytes;
}

void tn__matching_part(tn__matching *m, const char *part, size_t at) {
    m->part = part;
    m->at = at;
}

void tn__matching_free(tn__matching *m) {
    if (m) {
        pcre2_match_data_free(m->found);
        pcre2_match_context_free(m->context);
        pcre2_match_context_free(m->counting);
        pcre2_jit_stack_free(m->stack);
        free(m);
    }
}

static int match_once(const pcre2_code *code, bool jit, pcre2_match_context *context,
                      tn__matching *m, const char *text, size_t bytes, size_t at) {
    return jit ? pcre2_jit_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, m->found,
                                 context)
               : pcre2_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, m->found,
                             context);
}

static int match_counted(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                         size_t at) {
    if (!m->counting) {
        m->counting = pcre2_match_context_copy(m->context); /* with its stack */
        if (!m->counting) {
            return PCRE2_ERROR_NOMEMORY;
        }
        pcre2_set_match_limit(m->counting, UINT32_MAX);
        pcre2_set_callout(m->counting, count_way, m);
    }
    m->place = at;
    return match_once(p->counted, p->counted_jit, m->counting, m, text, bytes, at);
}

/* Audits more often if matches go much further than their pieces, otherwise less and less. */
static int match_audited(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                         size_t at) {
    size_t left = m->left;
    int status = match_counted(p, m, text, bytes, at);
    size_t piece = status < 0 ? 0 : m->where[1] - at;
    bool far = left - m->left > WAY_A_BYTE * (piece + STEPS);
    m->every = far ? 1 + m->every / 8 : m->every + m->every / 2 + 1;
    m->every = m->every < AUDIT ? m->every : AUDIT;
    m->until = m->every;
    return status;
}

static int find_match(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                      size_t at) {
    if (--m->until == 0) {
        return match_audited(p, m, text, bytes, at);
    }
    int status = match_once(p->code, p->jit, m->context, m, text, bytes, at);
    return status == PCRE2_ERROR_MATCHLIMIT ? match_counted(p, m, text, bytes, at) : status;
}

/* A larger stack in place of the thread's own; false: there is one already, or no memory. */
static bool enlarge_stack(tn__matching *m) {
    if (m->stack) {
        return false;
    }
    m->stack = pcre2_jit_stack_create(LEAST_STACK, MOST_STACK, NULL);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    if (m->counting) {
        pcre2_jit_stack_assign(m->counting, NULL, m->stack);
    }
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
        if (status == PCRE2_ERROR_JIT_STACKLIMIT && enlarge_stack(m)) {
            continue;
        }
        if (status == PCRE2_ERROR_NOMATCH) {
            return bytes;
        }
        if (status < 0) {
            raise_matching(p, m, status, text + at);
            return 0;
        }
        size_t begin = m->where[0] < at ? at : m->where[0], end = m->where[1];
        if (begin > at) {
            return begin;
        }
        if (end > at) {
            return end;
        }
        if (from == bytes) {
            return bytes;
        }
        from = behind_character(text, bytes, from); /* an empty match takes nothing */
    }
}
