#include "data/corpus/records.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Paths ----------------------------------------------------------------------------------- */

typedef struct step {
    tn__record_text name; /* of a member; empty: of a list */
    bool each;            /* all its elements, or */
    uint32_t index;       /* this one */
} step;

/* After '['. */
static bool take_bracket(const char **at, step *s) {
    uint32_t digits = 0;
    for (; **at >= '0' && **at <= '9' && digits < 9; digits++) {
        s->index = 10 * s->index + (uint32_t)(*(*at)++ - '0');
    }
    s->each = digits == 0;
    return *(*at)++ == ']';
}

/* The step at *at, which is then behind it. False: it is none. */
static bool take_step(const tn__json_path *p, const char **at, step *s) {
    bool dot = **at == '.' && !p->name;
    *s = (step){.each = false};
    if (**at == '[' && !p->name) { return ++*at < p->end && take_bracket(at, s); }
    if (!dot && *at > p->begin) { return false; }
    s->name.at = *at + dot;
    s->name.bytes = p->name ? (size_t)(p->end - p->begin) : strcspn(s->name.at, ".[]{}");
    *at = s->name.at + s->name.bytes;
    return s->name.bytes > 0;
}

static tn__json_path path_of(const char *text, size_t bytes) {
    tn__json_path p = {.begin = text, .end = text + bytes};
    p.name = bytes == 0 || (*text != '.' && !memchr(text, '[', bytes));
    p.begin += bytes && *text == '.' && (bytes == 1 || text[1] == '['); /* the value, or a list */
    for (const char *c = p.begin; c + 1 < p.end; c++) {
        p.lists += !p.name && c[0] == '[' && c[1] == ']';
    }
    return p;
}

/* Behind the n-th [], from 1; 0: where the path begins. */
static const char *after_list(const tn__json_path *p, int n) {
    const char *at = p->begin;
    for (; n > 0; n--) {
        at = strstr(at, "[]") + 2;
    }
    return at;
}

/* ---- Options --------------------------------------------------------------------------------- */

/* A text without braces is one path. */
static bool has_braces(const char *text) {
    return text[strcspn(text, "{}")] != 0;
}

/* Of a text with braces what comes next: a path, or a byte, which is then in *literal. Shells have
 * no easy way to write a newline or a tab. False: a brace has no other. */
static bool take_part(const char **at, tn__json_path *p, const char **literal) {
    static const char written[] = "nt\\", meant[] = "\n\t\\";
    const char *first = *at, *end;
    bool brace = *first == '{' || *first == '}', twice = brace && first[1] == *first;
    const char *escape = *first == '\\' && first[1] ? strchr(written, first[1]) : NULL;
    *literal = escape ? &meant[escape - written] : first;
    *at += 1 + (twice || escape);
    if (!brace || twice) { return true; }
    end = *first == '{' ? strchr(first, '}') : NULL;
    if (!end) { return false; }
    *literal = NULL;
    *p = path_of(first + 1, (size_t)(end - first) - 1);
    *at = end + 1;
    return true;
}

static bool raise_path(const char *text, const char *at, const char *what) {
    return tn__fail(TN_EVALUE, "corpus",
                    "\"%s\": %s, at byte %zu (a path is like .data[].parts[0].text)", text, what,
                    (size_t)(at - text) + 1);
}

static bool check_path(tn__records *r, const char *text, tn__json_path p) {
    static const char wanted[] = ".name, [] or [number] should be here";
    step s;
    if (p.name && p.begin == p.end) { return raise_path(text, p.begin, wanted); }
    for (const char *at = p.begin, *before = at; at < p.end; before = at) {
        if (!take_step(&p, &at, &s)) { return raise_path(text, before, wanted); }
    }
    if (p.lists > TN__PATH_LISTS) { return raise_path(text, p.begin, "too many []"); }
    r->has_path = r->has_path || !p.name;
    if (!r->deepest.begin || p.lists > r->deepest.lists) { r->deepest = p; }
    return true;
}

/* All its [] are the first of the deepest path. */
static bool check_lists(tn__records *r, const char *text, tn__json_path p) {
    const char *deep = r->deepest.begin;
    const char *end = after_list(&p, p.lists), *deep_end = after_list(&r->deepest, p.lists);
    deep += p.lists && *deep == '.';
    p.begin += p.lists && *p.begin == '.';
    if (end - p.begin != deep_end - deep || memcmp(p.begin, deep, (size_t)(end - p.begin)) != 0) {
        return raise_path(text, p.begin,
                          "the paths go through different lists: all [] of one must be the first "
                          "[] of the other");
    }
    return true;
}

/* Calls f with each path of a text until it returns false. */
static bool each_path(tn__records *r, const char *text,
                      bool (*f)(tn__records *r, const char *text, tn__json_path p)) {
    if (!has_braces(text)) { return f(r, text, path_of(text, strlen(text))); }
    bool paths = false;
    for (const char *at = text; *at;) {
        tn__json_path p;
        const char *literal, *before = at;
        if (!take_part(&at, &p, &literal)) { return raise_path(text, before, "a { or } alone"); }
        if (!literal && !f(r, text, p)) { return false; }
        paths = paths || !literal;
    }
    return paths || raise_path(text, text, "there is no {path} in it");
}

bool tn__records_open(tn__records *r, const tn_corpus_options *o) {
    const char *texts[] = {o->pairs ? o->prompt : o->key, o->completion};
    r->pairs = o->pairs;
    for (int i = 0; i < 1 + o->pairs; i++) {
        r->made[i].operation = "corpus";
        r->texts[i] = tn__strdup_for(texts[i], "corpus");
        if (!r->texts[i] || !each_path(r, r->texts[i], check_path)) { return false; }
    }
    return each_path(r, r->texts[0], check_lists) &&
           (!o->pairs || each_path(r, r->texts[1], check_lists));
}

void tn__records_close(tn__records *r) {
    for (int i = 0; i < 2; i++) {
        free(r->texts[i]);
        tn__buffer_free(&r->made[i]);
    }
}

void tn__records_begin(tn__records *r, const tn__json *value, const char *path, int64_t line) {
    r->root = value;
    r->path = path;
    r->line = line;
    r->begun = false;
    r->level = 0;
}

/* ---- What is wrong --------------------------------------------------------------------------- */

/* The path up to `end`, with the elements' numbers: "data[3].title"; "it" for the whole value. */
static void write_place(const tn__records *r, const tn__json_path *p, const char *end,
                        tn__buffer *b) {
    int list = 0;
    if (end == p->begin) { tn__buffer_text(b, "it"); }
    for (const char *at = p->begin + (*p->begin == '.'); at < end; at++) {
        if (at > p->begin && at[0] == ']' && at[-1] == '[') {
            tn__buffer_format(b, "%" PRIu32, r->index[list++]);
        }
        tn__buffer_add(b, at, 1);
    }
}

/* "PLACE what" */
static const tn__json *say_wrong(const tn__records *r, const tn__json_path *p, const char *end,
                                 const char *what) {
    tn__buffer place = {.operation = "corpus"};
    write_place(r, p, end, &place);
    const char *quote = p->name ? "\"" : "";
    if (!place.failed) {
        tn__raise(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %s%.200s%s %s", r->path, r->line,
                  quote, place.at, quote, what);
    }
    tn__buffer_free(&place);
    return NULL;
}

static const tn__json *say_missing(const tn__records *r, const tn__json_path *p, const char *at,
                                   const step *s, const tn__json *object) {
    enum { MOST = 6 };
    tn__buffer b = {.operation = "corpus"};
    tn__buffer_format(&b, "there is no \"%.*s\" in ", (int)s->name.bytes, s->name.at);
    write_place(r, p, at, &b);
    const tn__json *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count && i < MOST; i++, member = tn__json_next(member)) {
        tn__buffer_format(&b, "%s\"%.40s\"", i ? ", " : ", but ", member->key);
    }
    tn__buffer_text(&b, object->count ? "" : ", but nothing");
    const char *hint = r->has_path ? ""
                       : !r->pairs ? " (--key chooses another key)"
                       : tn__json_get(object, "messages")
                           ? " (chats are not supported: each model has its own template)"
                           : "";
    if (!b.failed) {
        b.at[tn__plain_text(b.at, b.at, b.bytes)] = 0;
        tn__raise(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %.400s%s", r->path, r->line, b.at,
                  hint);
    }
    tn__buffer_free(&b);
    return NULL;
}

static const tn__json *say_no_object(const tn__records *r, const tn__json_path *p, const char *at,
                                     const tn__json *value) {
    if (at > p->begin) { return say_wrong(r, p, at, "is not an object"); }
    tn__raise(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %s", r->path, r->line,
              value->kind != TN__JSON_LIST ? "it is not an object: {\"text\": \"…\"}"
              : r->pairs ? "this is a JSON list, not JSON lines, of which each is an object "
                           "(--prompt '.[].prompt' --completion '.[].completion' read a list)"
                         : "this is a JSON list, not JSON lines, of which each is an object "
                           "(--key '.[].text' reads a list)");
    return NULL;
}

/* ---- Following a path ------------------------------------------------------------------------ */

/* The member of the step at `at`. NULL after raising. */
static const tn__json *find_member(const tn__records *r, const tn__json_path *p, const char *at,
                                   const step *s, const tn__json *object) {
    if (object->kind != TN__JSON_OBJECT) { return say_no_object(r, p, at, object); }
    const tn__json *found = NULL, *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count; i++, member = tn__json_next(member)) {
        bool same = strlen(member->key) == s->name.bytes &&
                    memcmp(member->key, s->name.at, s->name.bytes) == 0;
        if (same && found) { return say_wrong(r, p, s->name.at + s->name.bytes, "is there twice"); }
        found = same ? member : found;
    }
    return found ? found : say_missing(r, p, at, s, object);
}

/* The value to which the steps [at, end) lead. NULL when it is not there, or after raising. */
static const tn__json *follow_path(const tn__records *r, const tn__json_path *p, const char *at,
                                   const char *end, const tn__json *value) {
    step s;
    while (at < end && value) {
        const char *before = at;
        take_step(p, &at, &s);
        if (s.name.bytes > 0) {
            value = find_member(r, p, before, &s, value);
        } else if (value->kind == TN__JSON_LIST) {
            value = tn__json_at(value, s.index);
        } else {
            return say_wrong(r, p, before, "is not a list");
        }
    }
    return value;
}

/* The element that was chosen of a path's `lists`-th list. */
static const tn__json *chosen_of(const tn__records *r, int lists) {
    return lists > 0 ? r->at[lists - 1] : r->root;
}

/* Chooses the first element of each list within the ones that have been chosen. False: one is empty
 * or not there, or after raising. */
static bool enter_lists(tn__records *r) {
    const tn__json_path *p = &r->deepest;
    while (r->level < p->lists) {
        const char *from = after_list(p, r->level), *end = after_list(p, r->level + 1) - 2;
        const tn__json *list = follow_path(r, p, from, end, chosen_of(r, r->level));
        if (list && list->kind != TN__JSON_LIST) { list = say_wrong(r, p, end, "is not a list"); }
        if (!list || list->count == 0) { return false; }
        r->index[r->level] = 0;
        r->size[r->level] = list->count;
        r->at[r->level++] = tn__json_first(list);
    }
    return true;
}

/* Chooses the next element of the innermost list that has one. */
static bool choose_next(tn__records *r) {
    for (; r->level > 0; r->level--) {
        int i = r->level - 1;
        if (++r->index[i] < r->size[i]) {
            r->at[i] = tn__json_next(r->at[i]);
            return true;
        }
    }
    return false;
}

/* ---- Texts ----------------------------------------------------------------------------------- */

/* False: it is not there, or after raising. */
static bool find_text(const tn__records *r, tn__json_path p, tn__record_text *text) {
    const char *from = after_list(&p, p.lists);
    const tn__json *value = follow_path(r, &p, from, p.end, chosen_of(r, p.lists));
    if (value && value->kind != TN__JSON_TEXT) { value = say_wrong(r, &p, p.end, "is not a text"); }
    if (value) { *text = (tn__record_text){value->text, value->bytes}; }
    return value != NULL;
}

/* As above. */
static bool make_text(tn__records *r, int number, tn__record_text *text) {
    const char *at = r->texts[number];
    tn__buffer *made = &r->made[number];
    if (!has_braces(at)) { return find_text(r, path_of(at, strlen(at)), text); }
    made->bytes = 0;
    while (*at) {
        tn__json_path p;
        tn__record_text part = {.bytes = 1};
        take_part(&at, &p, &part.at);
        if (!part.at && !find_text(r, p, &part)) { return false; }
        tn__buffer_add(made, part.at, part.bytes);
    }
    *text = (tn__record_text){made->at, made->bytes};
    return !made->failed;
}

bool tn__records_next(tn__records *r, tn__record_text texts[2]) {
    texts[1] = (tn__record_text){NULL, 0};
    while (r->root && !tn__pending()) {
        if (r->begun && !choose_next(r)) {
            r->root = NULL;
            return false;
        }
        r->begun = true;
        if (enter_lists(r) && make_text(r, 0, &texts[0]) &&
            (!r->pairs || make_text(r, 1, &texts[1]))) {
            return true;
        }
    }
    return false;
}
