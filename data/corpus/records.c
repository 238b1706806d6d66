#include "data/corpus/records.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Options --------------------------------------------------------------------------------- */

static bool raise_path(const char *text, const char *at, const char *what) {
    return tn__fail(TN_EVALUE, "corpus",
                    "\"%s\": %s, at byte %zu (a path is like .data[].parts[0].text)", text, what,
                    (size_t)(at - text) + 1);
}

/* The path's next step, at `at`, and what is behind it. NULL: it is none. */
static const char *take_step(tn__text_part *p, const char *at, const char *end) {
    tn__path_step *s = &p->steps[p->count++];
    bool dot = *at == '.';
    if (*at == '[') {
        const char *c = at + 1;
        for (; *c >= '0' && *c <= '9' && c - at <= 9; c++) {
            s->index = 10 * s->index + (uint32_t)(*c - '0');
        }
        s->kind = c == at + 1 ? TN__STEP_EACH : TN__STEP_ELEMENT;
        s->text = (tn__record_text){at, (size_t)(c + 1 - at)};
        return *c == ']' ? c + 1 : NULL;
    }
    if (!dot && p->count > 1) { return NULL; }
    s->text.at = at + dot;
    s->text.bytes = p->name ? (size_t)(end - at) : strcspn(s->text.at, ".[]{}");
    return s->text.bytes ? s->text.at + s->text.bytes : NULL;
}

/* The path at [at, end) of a text. */
static bool take_path(tn__records *r, const tn__record_template *t, const char *at, const char *end,
                      tn__text_part *p) {
    static const char wanted[] = ".name, [] or [number] should be here";
    p->name = at == end || (*at != '.' && !memchr(at, '[', (size_t)(end - at)));
    if (p->name && at == end) { return raise_path(t->text, at, wanted); }
    at += *at == '.' && (at + 1 == end || at[1] == '['); /* the value, or a list */
    const char *begin = at;
    p->steps = t->steps + (at - t->text); /* each has a byte of the text at least */
    for (const char *next; at < end; at = next) {
        next = take_step(p, at, end);
        if (!next) { return raise_path(t->text, at, wanted); }
        if (p->steps[p->count - 1].kind == TN__STEP_EACH) {
            p->lists++;
            p->rest = p->count;
        }
    }
    if (p->lists > TN__PATH_LISTS) { return raise_path(t->text, begin, "too many []"); }
    r->has_path = r->has_path || !p->name;
    if (!r->deepest || p->lists > r->deepest->lists) { r->deepest = p; }
    return true;
}

/* What a text with braces is made of. Shells have no easy way to write a newline or a tab. */
static bool take_parts(tn__records *r, tn__record_template *t) {
    static const char written[] = "nt\\", meant[] = "\n\t\\";
    bool paths = false;
    for (const char *at = t->text; *at;) {
        tn__text_part *part = &t->parts[t->count++];
        bool brace = *at == '{' || *at == '}', twice = brace && at[1] == *at;
        if (brace && !twice) {
            const char *end = *at == '{' ? strchr(at, '}') : NULL;
            if (!end) { return raise_path(t->text, at, "a { or } alone"); }
            if (!take_path(r, t, at + 1, end, part)) { return false; }
            paths = true;
            at = end + 1;
        } else {
            const char *escape = *at == '\\' && at[1] ? strchr(written, at[1]) : NULL;
            part->literal = escape ? &meant[escape - written] : at;
            at += 1 + (twice || escape);
        }
    }
    return paths || raise_path(t->text, t->text, "there is no {path} in it");
}

static bool take_template(tn__records *r, const char *text, tn__record_template *t) {
    size_t bytes = strlen(text);
    t->made.operation = "corpus";
    t->text = tn__strdup_for(text, "corpus");
    t->steps = t->text ? tn__calloc_for(bytes + 1, sizeof(*t->steps), "corpus") : NULL;
    t->parts = t->steps ? tn__calloc_for(bytes + 1, sizeof(*t->parts), "corpus") : NULL;
    if (!t->parts) { return false; }
    if (text[strcspn(text, "{}")] != 0) { return take_parts(r, t); }
    t->count = 1; /* without braces it is one path */
    return take_path(r, t, t->text, t->text + bytes, t->parts);
}

/* All [] of each path are the first of the deepest one. */
static bool check_lists(const tn__records *r, const tn__record_template *t) {
    for (int i = 0; i < t->count; i++) {
        const tn__text_part *p = &t->parts[i];
        for (int k = 0; k < p->rest; k++) {
            tn__record_text step = p->steps[k].text, deep = r->deepest->steps[k].text;
            if (step.bytes != deep.bytes || memcmp(step.at, deep.at, step.bytes) != 0) {
                return raise_path(t->text, p->steps[0].text.at,
                                  "the paths go through different lists: all [] of one must be the "
                                  "first [] of the other");
            }
        }
    }
    return true;
}

bool tn__records_open(tn__records *r, const tn_corpus_options *o) {
    const char *texts[] = {o->pairs ? o->prompt : o->key, o->completion};
    r->count = o->pairs ? 2 : 1;
    for (int i = 0; i < r->count; i++) {
        if (!take_template(r, texts[i], &r->templates[i])) { return false; }
    }
    return check_lists(r, &r->templates[0]) && check_lists(r, &r->templates[1]);
}

void tn__records_close(tn__records *r) {
    for (int i = 0; i < r->count; i++) {
        tn__record_template *t = &r->templates[i];
        free(t->text);
        free(t->steps);
        free(t->parts);
        tn__buffer_free(&t->made);
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

/* The path's first steps, with the elements' numbers: "data[3].title"; of none, "it". */
static void write_place(const tn__records *r, const tn__text_part *p, int steps, tn__buffer *b) {
    int list = 0;
    if (steps == 0) { tn__buffer_text(b, "it"); }
    for (const tn__path_step *s = p->steps; s < p->steps + steps; s++) {
        if (s->kind == TN__STEP_EACH) {
            tn__buffer_format(b, "[%" PRIu32 "]", r->index[list++]);
        } else {
            tn__buffer_text(b, s > p->steps && s->kind == TN__STEP_MEMBER ? "." : "");
            tn__buffer_add(b, s->text.at, s->text.bytes);
        }
    }
}

/* "PLACE what" */
static const tn__json *say_wrong(const tn__records *r, const tn__text_part *p, int steps,
                                 const char *what) {
    tn__buffer place = {.operation = "corpus"};
    write_place(r, p, steps, &place);
    const char *quote = p->name ? "\"" : "";
    if (!place.failed) {
        tn__raise(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %s%.200s%s %s", r->path, r->line,
                  quote, place.at, quote, what);
    }
    tn__buffer_free(&place);
    return NULL;
}

static const tn__json *say_missing(const tn__records *r, const tn__text_part *p, int at,
                                   const tn__json *object) {
    enum { MOST = 6 };
    tn__buffer b = {.operation = "corpus"};
    tn__record_text name = p->steps[at].text;
    tn__buffer_format(&b, "there is no \"%.*s\" in ", (int)name.bytes, name.at);
    write_place(r, p, at, &b);
    const tn__json *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count && i < MOST; i++, member = tn__json_next(member)) {
        tn__buffer_format(&b, "%s\"%.40s\"", i ? ", " : ", but ", member->key);
    }
    tn__buffer_text(&b, object->count ? "" : ", but nothing");
    const char *hint = r->has_path     ? ""
                       : r->count == 1 ? " (--key chooses another key)"
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

static const tn__json *say_no_object(const tn__records *r, const tn__text_part *p, int at,
                                     const tn__json *value) {
    if (at > 0) { return say_wrong(r, p, at, "is not an object"); }
    tn__raise(TN_EFORMAT, "corpus", "%s: line %" PRId64 ": %s", r->path, r->line,
              value->kind != TN__JSON_LIST ? "it is not an object: {\"text\": \"…\"}"
              : r->count == 2 ? "this is a JSON list, not JSON lines, of which each is an object "
                                "(--prompt '.[].prompt' --completion '.[].completion' read a list)"
                              : "this is a JSON list, not JSON lines, of which each is an object "
                                "(--key '.[].text' reads a list)");
    return NULL;
}

/* ---- Following a path ------------------------------------------------------------------------ */

/* The member to which the step `at` leads. NULL after raising. */
static const tn__json *find_member(const tn__records *r, const tn__text_part *p, int at,
                                   const tn__json *object) {
    if (object->kind != TN__JSON_OBJECT) { return say_no_object(r, p, at, object); }
    tn__record_text name = p->steps[at].text;
    const tn__json *found = NULL, *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count; i++, member = tn__json_next(member)) {
        bool same =
            strlen(member->key) == name.bytes && memcmp(member->key, name.at, name.bytes) == 0;
        if (same && found) { return say_wrong(r, p, at + 1, "is there twice"); }
        found = same ? member : found;
    }
    return found ? found : say_missing(r, p, at, object);
}

/* The value to which the steps from *at lead, up to the next [], where *at then is, or the end.
 * NULL when it is not there, or after raising. */
static const tn__json *follow_path(const tn__records *r, const tn__text_part *p, int *at,
                                   const tn__json *value) {
    for (; value && *at < p->count && p->steps[*at].kind != TN__STEP_EACH; ++*at) {
        if (p->steps[*at].kind == TN__STEP_MEMBER) {
            value = find_member(r, p, *at, value);
        } else if (value->kind == TN__JSON_LIST) {
            value = tn__json_at(value, p->steps[*at].index);
        } else {
            return say_wrong(r, p, *at, "is not a list");
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
    const tn__text_part *p = r->deepest;
    while (r->level < p->lists) {
        int at = r->level > 0 ? r->behind[r->level - 1] : 0;
        const tn__json *list = follow_path(r, p, &at, chosen_of(r, r->level));
        if (list && list->kind != TN__JSON_LIST) { list = say_wrong(r, p, at, "is not a list"); }
        if (!list || list->count == 0) { return false; }
        r->index[r->level] = 0;
        r->size[r->level] = list->count;
        r->behind[r->level] = at + 1;
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
static bool find_text(const tn__records *r, const tn__text_part *p, tn__record_text *text) {
    int at = p->rest;
    const tn__json *value = follow_path(r, p, &at, chosen_of(r, p->lists));
    if (value && value->kind != TN__JSON_TEXT) {
        value = say_wrong(r, p, p->count, "is not a text");
    }
    if (value) { *text = (tn__record_text){value->text, value->bytes}; }
    return value != NULL;
}

/* As above. */
static bool make_text(const tn__records *r, tn__record_template *t, tn__record_text *text) {
    if (t->count == 1) { return find_text(r, t->parts, text); }
    t->made.bytes = 0;
    for (const tn__text_part *part = t->parts; part < t->parts + t->count; part++) {
        tn__record_text piece = {part->literal, 1};
        if (!part->literal && !find_text(r, part, &piece)) { return false; }
        tn__buffer_add(&t->made, piece.at, piece.bytes);
    }
    *text = (tn__record_text){t->made.at, t->made.bytes};
    return !t->made.failed;
}

bool tn__records_next(tn__records *r, tn__record_text texts[2]) {
    texts[1] = (tn__record_text){NULL, 0};
    while (r->root && !tn__pending()) {
        if (r->begun && !choose_next(r)) {
            r->root = NULL;
            return false;
        }
        r->begun = true;
        if (enter_lists(r) && make_text(r, &r->templates[0], &texts[0]) &&
            (r->count == 1 || make_text(r, &r->templates[1], &texts[1]))) {
            return true;
        }
    }
    return false;
}
