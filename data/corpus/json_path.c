#include "data/corpus/json_path.h"

#include "core/buffer.h"
#include "core/error.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *text, *at;
    bool braces; /* a '}' ends a path */
    const char *operation;
} reader;

static bool raise_wrong(const reader *r, const char *what) {
    tn__raise(TN_EVALUE, r->operation,
              "\"%s\": %s, at byte %zu (a path is like .data[].parts[0][\"a name\"].text)", r->text,
              what, (size_t)(r->at - r->text) + 1);
    return false;
}

static bool is_at_end(const reader *r) {
    return *r->at == 0 || (r->braces && *r->at == '}');
}

static bool take_byte(reader *r, char byte) {
    bool there = *r->at == byte;
    r->at += there;
    return there;
}

/* Takes ownership of the name. */
static bool add_step(reader *r, tn__json_path *p, tn__step step) {
    if (!tn__grow(&p->steps, p->count + 1, &p->capacity, sizeof(*p->steps), r->operation)) {
        free(step.name);
        return false;
    }
    p->steps[p->count++] = step;
    if (step.kind == TN__STEP_EACH) {
        if (p->lists == TN__PATH_LISTS) { return raise_wrong(r, "too many []"); }
        p->after[++p->lists] = p->count;
    }
    return true;
}

static bool add_member(reader *r, tn__json_path *p, const char *name, size_t bytes) {
    tn__buffer copy = {.operation = r->operation};
    tn__buffer_add(&copy, name, bytes);
    char *text = tn__buffer_take(&copy);
    return text && add_step(r, p, (tn__step){.kind = TN__STEP_MEMBER, .name = text});
}

/* ---- One path -------------------------------------------------------------------------------- */

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool read_name(reader *r, tn__json_path *p) {
    const char *first = r->at;
    while (is_letter(*r->at) || (r->at > first && is_digit(*r->at))) {
        r->at++;
    }
    return r->at > first ? add_member(r, p, first, (size_t)(r->at - first))
                         : raise_wrong(r, "a name of letters, digits and _, or one in quotes, "
                                          "should be here");
}

/* After the first quote. \" and \\ are a quote and a backslash. */
static bool read_quoted(reader *r, tn__json_path *p) {
    tn__buffer name = {.operation = r->operation};
    while (*r->at && *r->at != '"') {
        r->at += r->at[0] == '\\' && (r->at[1] == '"' || r->at[1] == '\\');
        tn__buffer_add(&name, r->at++, 1);
    }
    bool closed = take_byte(r, '"');
    char *text = closed ? tn__buffer_take(&name) : NULL;
    tn__buffer_free(&name);
    return closed ? text && add_step(r, p, (tn__step){.kind = TN__STEP_MEMBER, .name = text})
                  : raise_wrong(r, "the closing quote is missing");
}

static bool read_index(reader *r, tn__json_path *p) {
    uint32_t index = 0;
    while (is_digit(*r->at)) {
        if (__builtin_mul_overflow(index, 10, &index) ||
            __builtin_add_overflow(index, (uint32_t)(*r->at - '0'), &index)) {
            return raise_wrong(r, "the number is too large");
        }
        r->at++;
    }
    return add_step(r, p, (tn__step){.kind = TN__STEP_AT, .index = index});
}

/* After '['. */
static bool read_bracket(reader *r, tn__json_path *p) {
    if (take_byte(r, ']')) { return add_step(r, p, (tn__step){.kind = TN__STEP_EACH}); }
    bool name = take_byte(r, '"');
    if (!name && !is_digit(*r->at)) {
        return raise_wrong(r, "], a number or a name in quotes should be here");
    }
    return (name ? read_quoted : read_index)(r, p) &&
           (take_byte(r, ']') || raise_wrong(r, "the closing ] is missing"));
}

static bool read_step(reader *r, tn__json_path *p) {
    if (take_byte(r, '[')) { return read_bracket(r, p); }
    bool first = p->count == 0, dot = take_byte(r, '.');
    if (dot && take_byte(r, '"')) { return read_quoted(r, p); }
    if (dot && first && take_byte(r, '[')) { return read_bracket(r, p); }
    return dot || first ? read_name(r, p) : raise_wrong(r, ". or [ should be here");
}

static bool is_path(const reader *r) {
    return *r->at == '.' || r->at[strcspn(r->at, r->braces ? "[}" : "[")] == '[';
}

static bool read_path(reader *r, tn__json_path *p) {
    if (!is_path(r)) {
        size_t bytes = strcspn(r->at, r->braces ? "}" : "");
        r->at += bytes;
        return add_member(r, p, r->at - bytes, bytes);
    }
    if (r->at[0] == '.' && (r->at[1] == 0 || (r->braces && r->at[1] == '}'))) {
        r->at++; /* the whole value */
        return true;
    }
    while (!is_at_end(r)) {
        if (!read_step(r, p)) { return false; }
    }
    return true;
}

/* ---- Templates --------------------------------------------------------------------------------
 */

static tn__template_part *new_part(reader *r, tn__template *p) {
    if (!tn__grow(&p->parts, p->count + 1, &p->capacity, sizeof(*p->parts), r->operation)) {
        return NULL;
    }
    p->parts[p->count] = (tn__template_part){.literal = NULL};
    return &p->parts[p->count++];
}

/* One character of a literal text. */
static bool read_character(reader *r, tn__buffer *text) {
    static const char written[] = "nt\\", meant[] = "\n\t\\";
    char first = r->at[0], next = r->at[1];
    bool brace = first == '{' || first == '}';
    const char *escape = first == '\\' && next ? strchr(written, next) : NULL;
    if (brace && next != first) { return raise_wrong(r, "a } without a {"); }
    r->at += 1 + (brace || escape);
    return tn__buffer_add(text, escape ? &meant[escape - written] : &first, 1);
}

/* Up to a path or the end. */
static bool read_literal(reader *r, tn__template *p) {
    tn__buffer text = {.operation = r->operation};
    while (*r->at && (*r->at != '{' || r->at[1] == '{')) {
        if (!read_character(r, &text)) {
            tn__buffer_free(&text);
            return false;
        }
    }
    char *literal = tn__buffer_take(&text);
    tn__template_part *part = literal ? new_part(r, p) : NULL;
    if (!part) {
        free(literal);
        return false;
    }
    part->literal = literal;
    return true;
}

static bool read_part(reader *r, tn__template *p) {
    if (r->braces && !(r->at[0] == '{' && r->at[1] != '{')) { return read_literal(r, p); }
    r->at += r->braces;
    tn__template_part *part = new_part(r, p);
    return part && read_path(r, &part->path) &&
           (!r->braces || take_byte(r, '}') || raise_wrong(r, "the closing } is missing"));
}

bool tn__template_read(tn__template *p, const char *text, const char *operation) {
    reader r = {.text = text, .at = text, .operation = operation};
    r.braces = text[strcspn(text, "{}")] != 0;
    bool paths = false;
    do {
        if (!read_part(&r, p)) { return false; }
        paths = paths || !p->parts[p->count - 1].literal;
    } while (*r.at);
    return paths || raise_wrong(&r, "there is no {path} in it");
}

void tn__template_free(tn__template *p) {
    for (int64_t i = 0; i < p->count; i++) {
        tn__json_path *path = &p->parts[i].path;
        for (int64_t s = 0; s < path->count; s++) {
            free(path->steps[s].name);
        }
        free(path->steps);
        free(p->parts[i].literal);
    }
    free(p->parts);
    *p = (tn__template){.parts = NULL};
}
