/* The expressions that cut text into pieces.
 *
 * They are written for Oniguruma (tokenizer.json). What is known to mean
 * the same in PCRE2 is copied; what PCRE2 understands differently is translated (\s is Unicode's
 * White_Space, which PCRE2's own \s is not quite); anything else is rejected by name. So no file
 * gives different ids here, except for characters that are newer than PCRE2's Unicode. Oniguruma
 * itself takes eight times as long to cut a text, counts no steps that go forward, and Debian has
 * no static library of it.
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
#include "text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* STEPS: what a match that is not counted may take; WAY: how far those that are counted may go, so
 * that lines of some hundred spaces are no trouble to \s+$, which tries each of them; FAR: how
 * much further than its piece a match goes before more are counted. GPT-2's expression and similar
 * ones take about ten steps, and four per byte of a megabyte of spaces. */
enum { STEPS = 128, AUDIT = 2048, WAY = 1000000, WAY_A_BYTE = 512, FAR = 16, LONG_TEXT = 16384 };
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

/* ---- From their syntax to PCRE2's ------------------------------------------------------------ */

enum { MOST_DEPTH = 100, MOST_NAME = 64 };
typedef enum before { NOTHING, PLACE, ITEM, REPEAT } before; /* what a repeat would be of */

typedef struct translation {
    const char *at; /* in their expression */
    char *to;
    const char *wrong; /* not NULL: what is at `at` is not understood, and why */
    bool no_memory;
    before before;
    bool first;  /* nothing but options since the group's beginning */
    char letter; /* the letter before this place, where case does not matter; or 0 */
    int depth;   /* groups around */
    struct {
        bool any_case, looks; /* looks: ahead or behind */
    } groups[MOST_DEPTH + 1];
} translation;

static void *allocate_bytes(size_t bytes, void *context) {
    return tn__malloc(bytes);
}

static void free_bytes(void *block, void *context) {
    free(block);
}

/* NULL: *wrong and *at say why. */
static pcre2_code *compile_words(const char *words, uint32_t options, int *wrong, size_t *at) {
    pcre2_general_context *memory = pcre2_general_context_create(allocate_bytes, free_bytes, NULL);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    pcre2_code *code = NULL;
    *wrong = PCRE2_ERROR_NOMEMORY;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
        code = pcre2_compile((PCRE2_SPTR)words, PCRE2_ZERO_TERMINATED, PCRE2_UTF | options, wrong,
                             at, context);
    }
    *wrong = *wrong == PCRE2_ERROR_HEAP_FAILED ? PCRE2_ERROR_NOMEMORY : *wrong;
    pcre2_compile_context_free(context);
    pcre2_general_context_free(memory);
    return code;
}

static void put_words(translation *t, const char *words, size_t bytes) {
    memcpy(t->to, words, bytes);
    t->to += bytes;
}

/* Copies what means the same here. */
static void copy_bytes(translation *t, size_t bytes) {
    put_words(t, t->at, bytes);
    t->at += bytes;
}

/* Whether it is the name of a script. */
static bool is_script(translation *t, const char *name) {
    char words[MOST_NAME + 16];
    int wrong;
    size_t at;
    snprintf(words, sizeof(words), "\\p{sc:%s}", name);
    pcre2_code *code = compile_words(words, 0, &wrong, &at);
    t->no_memory = t->no_memory || (!code && wrong == PCRE2_ERROR_NOMEMORY);
    pcre2_code_free(code);
    return code != NULL;
}

/* "\p{Han}": PCRE2 would take the name of a script for all characters used with it. */
static void take_property(translation *t) {
    const char *from = t->at + 3 + (t->at[2] == '{' && t->at[3] == '^');
    const char *end = t->at[2] == '{' ? strchr(from, '}') : NULL;
    char name[MOST_NAME];
    size_t bytes = 0;
    for (; end && from < end && bytes + 1 < sizeof(name) && isalnum((unsigned char)*from); from++) {
        name[bytes++] = *from;
        from += strspn(from + 1, "_- ");
    }
    name[bytes] = 0;
    if (!end || from != end || bytes == 0) {
        t->wrong = "a property that is not a plain name in braces";
    } else if (t->groups[t->depth].any_case) {
        t->wrong = "a property where case does not matter";
    } else if (bytes == 3 && (name[0] == 'X' || name[0] == 'x')) {
        t->wrong = "a property that is not Unicode's"; /* PCRE2's Xan and the like */
    } else {
        bool negative = (t->at[1] == 'P') != (t->at[3] == '^');
        put_words(t, negative ? "\\P{" : "\\p{", 3);
        put_words(t, "sc:", bytes > 2 && is_script(t, name) ? 3 : 0);
        put_words(t, name, bytes);
        put_words(t, "}", 1);
        t->at = end + 1;
    }
}

/* "\x41", "\x{4e00}": -1 if it is neither. Two digits are a byte there, a character here. */
static long take_number(translation *t) {
    bool braces = t->at[2] == '{';
    const char *digits = t->at + 2 + braces;
    size_t bytes = strspn(digits, "0123456789abcdefABCDEF");
    long code = bytes && bytes <= 6 ? strtol(digits, NULL, 16) : -1;
    if (code < 0 || (braces ? digits[bytes] != '}' : bytes < 2)) {
        t->wrong = "a number of a character that is not \\xHH or \\x{H…}";
        return -1;
    }
    if (!braces) {
        char two[3] = {digits[0], digits[1]};
        code = strtol(two, NULL, 16);
        if (code >= 0x80) {
            t->wrong = "a byte of a character";
            return -1;
        }
        bytes = 2;
    }
    copy_bytes(t, 2 + bytes + 2 * (size_t)braces);
    return code;
}

static bool is_letter(long code) {
    return (code | 32) >= 'a' && (code | 32) <= 'z';
}

/* One character, which has this code. Where case does not matter some are equal to two: "ß" to
 * "ss". PCRE2 does not know that. */
static void check_case(translation *t, long code, bool in_class) {
    if (!t->groups[t->depth].any_case) { return; }
    char last = t->letter, letter = is_letter(code) ? (char)(code | 32) : 0;
    if (code >= 0x80 && (code < 0x2000 || code > 0x206f)) { /* but punctuation has no case */
        t->wrong = "a character that is not ASCII where case does not matter";
    } else if (!in_class && letter &&
               ((last == 's' && strchr("st", letter)) || (last == 'f' && strchr("fil", letter)))) {
        t->wrong = "two letters that are also one where case does not matter";
    }
    t->letter = in_class ? 0 : letter;
}

/* An escape; the code of the character that it is, or -1: a kind of characters or a place. */
static long take_escape(translation *t, bool in_class) {
    char c = t->at[1];
    if (c == 's' || c == 'S') { /* Unicode's White_Space, which PCRE2's own \s is not quite */
        put_words(t, c == 's' ? "\\p{Wspace}" : "\\P{Wspace}", 10);
        t->at += 2;
        return -1;
    }
    if (c == 'p' || c == 'P') {
        take_property(t);
        return -1;
    }
    if (c == 'x') { return take_number(t); }
    if (c == 'v') {
        put_words(t, "\\x0b", 4);
        t->at += 2;
        return '\v';
    }
    if (c == 0 ||
        (isalnum((unsigned char)c) && !strchr(in_class ? "dDtnrfae" : "dDtnrfaeAZzR", c))) {
        t->wrong = "an escape that does not mean the same everywhere";
        return -1;
    }
    if (strchr("AZz", c)) { t->before = PLACE; }
    bool kind = isalnum((unsigned char)c) && strchr("dDAZzR", c);
    t->at++;
    put_words(t, "\\", 1);
    if ((unsigned char)c < 0x80) {
        copy_bytes(t, 1);
        return kind ? -1 : is_letter(c) ? 0 : c;
    }
    t->to--; /* a character of several bytes is the same without */
    return -2;
}

/* A character as it is; its code. */
static long take_character(translation *t) {
    int32_t code = 0;
    int bytes = tn__utf8_decode(t->at, strlen(t->at), &code);
    if (bytes == 0) {
        t->wrong = "bytes that are not UTF-8";
        return -1;
    }
    copy_bytes(t, (size_t)bytes);
    return code;
}

/* A character or a kind of them, within a class. False: a kind, which ends no range. */
static bool take_member(translation *t) {
    if (t->at[0] == '[') {
        t->wrong = t->at[1] == ':' ? "a name for a class, which has other characters elsewhere"
                                   : "a class within a class";
        return false;
    }
    if (t->at[0] == '&' && t->at[1] == '&') {
        t->wrong = "an intersection of classes";
        return false;
    }
    long code = -2;
    char kind = t->at[0] == '\\' ? t->at[1] : 's';
    if (t->at[0] == '\\') { code = take_escape(t, true); }
    code = code == -2 ? take_character(t) : code;
    if (!t->wrong && code >= 0) {
        check_case(t, code, true);
    } else if (!t->wrong && t->groups[t->depth].any_case && strchr("SD", kind)) {
        t->wrong = "\\S or \\D in a class where case does not matter";
    }
    return code >= 0;
}

static void take_class(translation *t) {
    copy_bytes(t, t->at[1] == '^' ? 2 : 1);
    const char *begin = t->at;
    if (*begin == ']') { t->wrong = "']' at the beginning of a class"; }
    while (!t->wrong && *t->at && *t->at != ']') {
        if (*t->at == '-' && t->at != begin && t->at[1] != ']') {
            t->wrong = "'-' in a class that is not between two characters";
            return;
        }
        bool single = take_member(t);
        if (single && t->at[0] == '-' && t->at[1] && t->at[1] != ']') {
            copy_bytes(t, 1);
            const char *end = t->at;
            if (*end == '-' || (!take_member(t) && !t->wrong)) {
                t->at = end;
                t->wrong = "a range that does not end with a character";
            }
        }
    }
    if (*t->at == ']') { copy_bytes(t, 1); }
}

static void open_group(translation *t, const char *words, size_t bytes, bool any_case) {
    if (t->depth == MOST_DEPTH) {
        t->wrong = "groups within more than 100 others";
        return;
    }
    copy_bytes(t, bytes);
    t->depth++;
    t->groups[t->depth].any_case = any_case;
    t->groups[t->depth].looks = strchr("=!<", words[bytes - 1]) != NULL;
    t->before = NOTHING;
    t->first = true;
}

/* "(?i)", "(?mi-x:": their m is PCRE2's s. */
static void take_options(translation *t) {
    const char *end = t->at + 2 + strspn(t->at + 2, "im-");
    bool any_case = t->groups[t->depth].any_case, on = true;
    if (end == t->at + 2 || (*end != ')' && *end != ':')) {
        t->wrong = "a group that does not mean the same everywhere";
    } else if (*end == ')' && !t->first) {
        t->wrong = "an option that does not begin a group";
    }
    if (t->wrong) { return; }
    put_words(t, "(?", 2);
    for (const char *at = t->at + 2; at < end; at++) {
        on = on && *at != '-';
        any_case = *at == 'i' ? on : any_case;
        put_words(t, *at == 'm' ? "s" : at, 1);
    }
    t->at = end;
    if (*end == ')') {
        copy_bytes(t, 1);
        t->groups[t->depth].any_case = any_case;
    } else {
        open_group(t, ":", 1, any_case);
    }
}

static void take_group(translation *t) {
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    bool any_case = t->groups[t->depth].any_case;
    if (t->at[1] != '?' && t->at[1] != '*') {
        open_group(t, "(", 1, any_case);
        return;
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strncmp(t->at, kinds[i], strlen(kinds[i])) == 0) {
            open_group(t, kinds[i], strlen(kinds[i]), any_case);
            return;
        }
    }
    take_options(t);
}

/* "*", "{2,3}?" and the like. */
static void take_repeat(translation *t) {
    const char *at = t->at + 1;
    size_t low = 0, high = 0;
    bool range = true, braces = t->at[0] == '{';
    if (braces) {
        low = strspn(at, "0123456789");
        range = at[low] == ',';
        high = range ? strspn(at + low + 1, "0123456789") : 0;
        at += low + range + high;
    }
    if (braces && (low + high == 0 || *at != '}')) {
        t->wrong = "'{' that is not a number of repeats";
    } else if (t->before == REPEAT) {
        t->wrong = "a repeat of a repeat";
    } else if (t->before != ITEM) {
        t->wrong = "a repeat of nothing";
    } else if (braces && (at[1] == '+' || (at[1] == '?' && !range))) {
        t->wrong = "'+' or '?' after '}', which does not mean the same everywhere";
    } else if (braces && t->letter && strchr("fs", t->letter)) {
        t->wrong = "two letters that are also one where case does not matter";
    }
    if (!t->wrong) {
        put_words(t, low ? "" : "{0", braces && !low ? 2 : 0);
        t->at += braces && !low;
        at += braces;
        at += *at == '?' || (*at == '+' && !braces);
        copy_bytes(t, (size_t)(at - t->at));
        t->before = REPEAT;
        t->letter = 0;
    }
}

static void take_item(translation *t) {
    char c = t->at[0];
    bool first = t->first;
    t->first = false;
    if (strchr("*+?{", c)) {
        take_repeat(t);
    } else if (c == '(') {
        t->first = first;
        take_group(t);
    } else if (c == ')') {
        t->before = t->groups[t->depth].looks ? PLACE : ITEM;
        t->depth -= t->depth > 0; /* PCRE2 says so if it was not open */
        copy_bytes(t, 1);
    } else if (c == '|' || c == '^' || c == '$') {
        t->before = c == '|' ? NOTHING : PLACE;
        t->letter = 0;
        copy_bytes(t, 1);
    } else if (c == '[' || c == '.') {
        t->before = ITEM;
        if (c == '.') {
            copy_bytes(t, 1);
        } else {
            take_class(t);
        }
        t->letter = 0;
    } else {
        t->before = ITEM;
        long code = c == '\\' ? take_escape(t, false) : -2;
        code = code == -2 ? take_character(t) : code;
        if (!t->wrong) { check_case(t, code, false); }
    }
}

static void raise_pattern(const char *operation, const char *where, const char *what, size_t at) {
    tn__raise(TN_EFORMAT, operation, "%s: the pattern is not understood: %s (at byte %zu of it)",
              where, what, at);
}

/* The expression in PCRE2's syntax, for the caller to free. NULL after raising. Only what is known
 * to mean the same passes. */
static char *translate_pattern(const char *text, const char *operation, const char *where) {
    translation t = {.at = text, .first = true};
    char *words = tn__malloc(strlen(text) * sizeof("\\p{Wspace}") + 1);
    t.to = words;
    while (words && *t.at && !t.wrong) {
        take_item(&t);
    }
    if (!words || t.no_memory) {
        tn__raise(TN_ENOMEM, operation, "no memory for the pattern");
    } else if (t.wrong) {
        raise_pattern(operation, where, t.wrong, (size_t)(t.at - text));
    } else {
        *t.to = 0;
        return words;
    }
    free(words);
    return NULL;
}

static pcre2_code *compile_pattern(const char *words, uint32_t options, const char *operation,
                                   const char *where) {
    int wrong;
    size_t at = 0;
    pcre2_code *code = compile_words(words, options, &wrong, &at);
    if (!code && wrong == PCRE2_ERROR_NOMEMORY) {
        tn__raise(TN_ENOMEM, operation, "no memory for the pattern");
    } else if (!code) {
        char text[128];
        pcre2_get_error_message(wrong, (PCRE2_UCHAR *)text, sizeof(text));
        raise_pattern(operation, where, text, at);
    }
    return code;
}

tn__pattern *tn__pattern_new(const char *text, bool literal, const char *operation,
                             const char *where) {
    char *words = literal ? tn__strdup(text) : translate_pattern(text, operation, where);
    uint32_t options =
        literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    if (!words && !literal) { return NULL; }
    tn__pattern *p = words ? tn__calloc(1, sizeof(*p)) : NULL;
    char *copy = p ? tn__strdup(text) : NULL;
    if (!copy) {
        tn__raise(TN_ENOMEM, operation, "no memory for the pattern");
    } else {
        p->code = compile_pattern(words, options, operation, where);
        p->counted =
            p->code ? compile_pattern(words, options | PCRE2_AUTO_CALLOUT, operation, where) : NULL;
    }
    free(words);
    if (!p || !p->counted) {
        free(copy);
        if (p) { pcre2_code_free(p->code); }
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
    if (way > m->left) { return PCRE2_ERROR_MATCHLIMIT; }
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
        if (!m->counting) { return PCRE2_ERROR_NOMEMORY; }
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
    bool far = left - m->left > FAR * (piece + STEPS);
    m->every = far ? 1 + m->every / 8 : m->every + m->every / 2 + 1;
    m->every = m->every < AUDIT ? m->every : AUDIT;
    m->until = m->every;
    return status;
}

static int find_match(const tn__pattern *p, tn__matching *m, const char *text, size_t bytes,
                      size_t at) {
    if (--m->until == 0) { return match_audited(p, m, text, bytes, at); }
    int status = match_once(p->code, p->jit, m->context, m, text, bytes, at);
    return status == PCRE2_ERROR_MATCHLIMIT ? match_counted(p, m, text, bytes, at) : status;
}

/* A larger stack in place of the thread's own; false: there is one already, or no memory. */
static bool enlarge_stack(tn__matching *m) {
    if (m->stack) { return false; }
    m->stack = pcre2_jit_stack_create(LEAST_STACK, MOST_STACK, NULL);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    if (m->counting) { pcre2_jit_stack_assign(m->counting, NULL, m->stack); }
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
