/* What an expression for Oniguruma (tokenizer.json) is for PCRE2. What is known to mean the same is
 * copied; what PCRE2 understands differently is translated (\s is Unicode's White_Space, which
 * PCRE2's own \s is not quite); anything else is refused by name. So no file gives different ids
 * here, except for characters that are newer than PCRE2's Unicode. */
#include "core/error.h"
#include "core/memory.h"
#include "data/tokenizer/pattern.h"
#include "text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

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
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)words, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &wrong, &at, NULL);
    t->no_memory |= !code && wrong == PCRE2_ERROR_HEAP_FAILED;
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

char *tn__pattern_translate(const char *text, const char *operation, const char *where) {
    translation t = {.at = text, .first = true};
    char *words = tn__malloc(strlen(text) * sizeof("\\p{Wspace}") + 1);
    t.to = words;
    while (words && *t.at && !t.wrong) {
        take_item(&t);
    }
    if (!words || t.no_memory) {
        tn__raise(TN_ENOMEM, operation, "no memory for the pattern");
    } else if (t.wrong) {
        tn__raise(TN_EFORMAT, operation, TN__PATTERN_WRONG, where, t.wrong, (size_t)(t.at - text));
    } else {
        *t.to = 0;
        return words;
    }
    free(words);
    return NULL;
}
