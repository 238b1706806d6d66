#include "data/corpus/records.h"

#include "core/error.h"
#include "core/plain_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Opening --------------------------------------------------------------------------------- */

static bool same_steps(const tn__json_path *a, const tn__json_path *b, int64_t count) {
    bool same = true;
    for (int64_t i = 0; i < count && same; i++) {
        const tn__step *x = &a->steps[i], *y = &b->steps[i];
        same = x->kind == y->kind && x->index == y->index &&
               (x->kind != TN__STEP_MEMBER || strcmp(x->name, y->name) == 0);
    }
    return same;
}

/* Calls f with each path until it returns false. */
static bool each_path(tn__records *r, bool (*f)(tn__records *r, const tn__json_path *p)) {
    bool more = true;
    for (int i = 0; i < 2; i++) {
        for (int64_t part = 0; part < r->texts[i].count && more; part++) {
            const tn__template_part *p = &r->texts[i].parts[part];
            more = p->literal || f(r, &p->path);
        }
    }
    return more;
}

static bool choose_deepest(tn__records *r, const tn__json_path *p) {
    r->has_path = r->has_path || p->count != 1 || p->steps[0].kind != TN__STEP_MEMBER;
    if (!r->deepest || p->lists > r->deepest->lists) { r->deepest = p; }
    return true;
}

static bool check_path(tn__records *r, const tn__json_path *p) {
    int64_t shared = p->after[p->lists];
    if (shared > r->deepest->count || !same_steps(p, r->deepest, shared)) {
        tn__raise(TN_EVALUE, "corpus",
                  "the paths go through different lists: all [] of one must be the first [] of the "
                  "other");
        return false;
    }
    return true;
}

bool tn__records_open(tn__records *r, const tn_corpus_options *o) {
    const char *texts[] = {o->pairs ? o->prompt : o->key, o->pairs ? o->completion : NULL};
    r->pairs = o->pairs;
    for (int i = 0; i < 2; i++) {
        r->made[i].operation = "corpus";
        if (texts[i] && !tn__template_read(&r->texts[i], texts[i], "corpus")) { return false; }
    }
    return each_path(r, choose_deepest) && each_path(r, check_path);
}

void tn__records_close(tn__records *r) {
    for (int i = 0; i < 2; i++) {
        tn__template_free(&r->texts[i]);
        tn__buffer_free(&r->made[i]);
    }
}

void tn__records_begin(tn__records *r, const tn__json *value) {
    r->root = value;
    r->begun = false;
    r->level = 0;
    r->wrong[0] = 0;
}

/* ---- What is wrong --------------------------------------------------------------------------- */

/* A place as a path with the elements' numbers: "data[3].title"; "it" for the whole value. */
static void write_place(const tn__records *r, const tn__json_path *p, int64_t steps, char *text,
                        size_t size) {
    size_t used = 0;
    int list = 0;
    snprintf(text, size, "it");
    for (int64_t i = 0; i < steps && used < size; i++) {
        const tn__step *s = &p->steps[i];
        uint32_t index = s->kind == TN__STEP_EACH ? r->index[list++] : s->index;
        int n = s->kind == TN__STEP_MEMBER
                    ? snprintf(text + used, size - used, "%s%.60s", i ? "." : "", s->name)
                    : snprintf(text + used, size - used, "[%" PRIu32 "]", index);
        used += (size_t)n;
    }
}

/* "PLACE what" */
static const tn__json *say_wrong(tn__records *r, const tn__json_path *p, int64_t steps,
                                 const char *what) {
    char place[200];
    write_place(r, p, steps, place, sizeof(place));
    bool name = p->count == 1 && steps == 1;
    snprintf(r->wrong, sizeof(r->wrong), "%s%s%s %s", name ? "\"" : "", place, name ? "\"" : "",
             what);
    return NULL;
}

/* The names of the first members, for a message about a missing one. */
static void list_keys(const tn__json *object, char *text, size_t size) {
    enum { MOST = 6 };
    size_t used = 0;
    const tn__json *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count && i < MOST && used < size; i++) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s\"%.40s\"", i ? ", " : "", member->key);
        member = tn__json_next(member);
    }
    text[tn__plain_text(text, text, strlen(text))] = 0;
}

static const tn__json *say_missing(tn__records *r, const tn__json_path *p, int64_t step,
                                   const tn__json *object) {
    char keys[256] = "nothing", place[120];
    list_keys(object, keys, sizeof(keys));
    write_place(r, p, step, place, sizeof(place));
    const char *hint = !r->pairs && !r->has_path ? " (--key chooses another key)"
                       : r->pairs && tn__json_get(object, "messages")
                           ? " (chats are not supported: each model has its own template)"
                           : "";
    snprintf(r->wrong, sizeof(r->wrong), "there is no \"%.60s\" in %s, but %s%s",
             p->steps[step].name, place, keys, hint);
    return NULL;
}

static const tn__json *say_no_object(tn__records *r, const tn__json_path *p, int64_t step,
                                     const tn__json *value) {
    if (step > 0) { return say_wrong(r, p, step, "is not an object"); }
    snprintf(r->wrong, sizeof(r->wrong), "%s",
             value->kind != TN__JSON_LIST ? "it is not an object: {\"text\": \"…\"}"
             : r->pairs ? "this is a JSON list, not JSON lines, of which each is an object "
                          "(--prompt '.[].prompt' --completion '.[].completion' read a list)"
                        : "this is a JSON list, not JSON lines, of which each is an object "
                          "(--key '.[].text' reads a list)");
    return NULL;
}

/* ---- Following a path ------------------------------------------------------------------------ */

/* The member that a step names. NULL when something is wrong. */
static const tn__json *find_member(tn__records *r, const tn__json_path *p, int64_t step,
                                   const tn__json *object) {
    if (object->kind != TN__JSON_OBJECT) { return say_no_object(r, p, step, object); }
    const tn__json *found = NULL, *member = tn__json_first(object);
    for (uint32_t i = 0; i < object->count; i++, member = tn__json_next(member)) {
        if (strcmp(member->key, p->steps[step].name) != 0) { continue; }
        if (found) {
            char why[100];
            snprintf(why, sizeof(why), "has \"%.60s\" twice", p->steps[step].name);
            return say_wrong(r, p, step, why);
        }
        found = member;
    }
    return found ? found : say_missing(r, p, step, object);
}

/* The list whose elements steps [first, last) choose, or the value that they lead to. NULL when it
 * is not there, or something is wrong. */
static const tn__json *follow_path(tn__records *r, const tn__json_path *p, int64_t first,
                                   int64_t last, const tn__json *value) {
    for (int64_t i = first; i < last && value; i++) {
        if (p->steps[i].kind == TN__STEP_MEMBER) {
            value = find_member(r, p, i, value);
        } else if (value->kind == TN__JSON_LIST) {
            value = tn__json_at(value, p->steps[i].index);
        } else {
            return say_wrong(r, p, i, "is not a list");
        }
    }
    return value;
}

/* The element that was chosen of a path's `lists`-th list. */
static const tn__json *chosen_of(const tn__records *r, int lists) {
    return lists > 0 ? r->at[lists - 1] : r->root;
}

/* Chooses the first element of each list within the ones that have been chosen. False: one is empty
 * or not there, or something is wrong. */
static bool enter_lists(tn__records *r) {
    const tn__json_path *p = r->deepest;
    while (r->level < p->lists) {
        int64_t end = p->after[r->level + 1] - 1;
        const tn__json *list = follow_path(r, p, p->after[r->level], end, chosen_of(r, r->level));
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

/* False: it is not there, or something is wrong. */
static bool find_text(tn__records *r, const tn__json_path *p, tn__record_text *text) {
    const tn__json *value = follow_path(r, p, p->after[p->lists], p->count, chosen_of(r, p->lists));
    if (value && value->kind != TN__JSON_TEXT) {
        value = say_wrong(r, p, p->count, "is not a text");
    }
    if (value) { *text = (tn__record_text){value->text, value->bytes}; }
    return value != NULL;
}

/* As above, and false after raising. */
static bool make_text(tn__records *r, int number, tn__record_text *text) {
    const tn__template *t = &r->texts[number];
    tn__buffer *made = &r->made[number];
    made->bytes = 0;
    for (int64_t i = 0; i < t->count; i++) {
        tn__record_text part = {.at = t->parts[i].literal};
        if (part.at) {
            part.bytes = strlen(part.at);
        } else if (!find_text(r, &t->parts[i].path, &part)) {
            return false;
        }
        if (t->count == 1) {
            *text = part;
            return true;
        }
        tn__buffer_add(made, part.at, part.bytes);
    }
    *text = (tn__record_text){made->at, made->bytes};
    return !made->failed;
}

bool tn__records_next(tn__records *r, tn__record_text texts[2]) {
    texts[1] = (tn__record_text){NULL, 0};
    while (r->root && !r->wrong[0] && !tn__pending()) {
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
