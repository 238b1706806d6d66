/* Naming what differs (differences.h). Values are compared as strings, and as numbers if both are
 * real numbers. */
#include "io/differences.h"

#include "core/plain_text.h"
#include "nn/describe.h"
#include "text/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 100 }; /* counting stops here, against malicious files */

/* ---- Collecting ------------------------------------------------------------------------------ */

static bool counted_enough(const tn__differences *d) {
    return d->count >= MOST;
}

void tn__differ(tn__differences *d, const char *format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    text[tn__plain_text(text, text, strlen(text))] = 0;
    d->count++;
    if (d->warn && !d->quiet) { tn_log_write(TN_LOG_WARN, "%s: %s", d->path, text); }
    size_t used = strlen(d->text);
    bool first = used == 0, fits = used + strlen(text) + 3 < sizeof(d->text);
    if (first || (fits && d->count <= 4)) {
        snprintf(d->text + used, sizeof(d->text) - used, "%s%s", first ? "" : "; ", text);
    }
}

_Thread_local const char *tn__continue_hint = " (tn_checkpoint.other_run: continue nevertheless)";

tn_status tn__differences_end(const tn__differences *d) {
    if (d->count == 0 || d->warn) { return TN_OK; }
    const char *hint = d->hint ? d->hint : "";
    return tn__raise(TN_EMISMATCH, d->operation, "%s: %s%s%s", d->path, d->text,
                     d->count > 4 ? "; and more" : "", hint);
}

/* ---- Options --------------------------------------------------------------------------------- */

static const char *text_of(const tn__json *value) {
    return !value ? "not set" : value->text ? value->text : "more than one value";
}

/* Values that differ, for people: "6e-05" where the file has "5.9999999999999995e-05", unless the
 * other then looks the same. */
static const char *shown_value(const tn__json *value, const tn__json *other, char text[32]) {
    const char *full = text_of(value);
    double number, second;
    char beside[32] = "";
    bool real = full[strspn(full, "-0123456789")] && tn__real_from(full, &number);
    if (!real) { return full; }
    snprintf(text, 32, "%.6g", number);
    if (tn__real_from(text_of(other), &second)) {
        snprintf(beside, sizeof(beside), "%.6g", second);
    }
    return strcmp(text, beside) == 0 ? full : text;
}

static bool same_values(const tn__json *a, const tn__json *b) {
    const char *x = text_of(a), *y = text_of(b);
    double first, second;
    bool whole = !x[strspn(x, "-0123456789")] && !y[strspn(y, "-0123456789")];
    return strcmp(x, y) == 0 ||
           (!whole && tn__real_from(x, &first) && tn__real_from(y, &second) && first == second);
}

/* What two objects have under a name; one of them may be NULL. */
typedef void compare_pair(tn__differences *d, const char *where, const tn__json *was,
                          const tn__json *is, bool only_both);

/* The member of this name, which is usually `guess`, at the same place as in another object. */
static const tn__json *find_member(const tn__json *object, const tn__json *guess,
                                   const char *name) {
    bool here = guess < object + object->values && strcmp(guess->key, name) == 0;
    return here ? guess : tn__json_get(object, name);
}

/* Compares what each of the names has: those of `is`, then those that only `was` has. */
static void compare_members(tn__differences *d, const char *where, const tn__json *was,
                            const tn__json *is, bool only_both, compare_pair *compare) {
    static const tn__json nothing = {.kind = TN__JSON_OBJECT, .values = 1};
    was = was && was->kind == TN__JSON_OBJECT ? was : &nothing;
    is = is && is->kind == TN__JSON_OBJECT ? is : &nothing;
    const tn__json *old = tn__json_first(was), *new = tn__json_first(is);
    for (uint32_t i = 0; i < is->count && !counted_enough(d); i++, new = tn__json_next(new)) {
        compare(d, where, find_member(was, old, new->key), new, only_both);
        old = i < was->count ? tn__json_next(old) : old;
    }
    old = tn__json_first(was);
    new = tn__json_first(is);
    for (uint32_t i = 0; i < was->count && !counted_enough(d); i++, old = tn__json_next(old)) {
        if (!find_member(is, new, old->key)) { compare(d, where, old, NULL, only_both); }
        new = i < is->count ? tn__json_next(new) : new;
    }
}

static void compare_option(tn__differences *d, const char *where, const tn__json *was,
                           const tn__json *is, bool only_both) {
    char before[32], now[32];
    if (was && is ? !same_values(was, is) : !only_both) {
        tn__differ(d, "%.80s: %.80s was %.80s but is %.80s", where, (is ? is : was)->key,
                   shown_value(was, is, before), shown_value(is, was, now));
    }
}

/* The same for objects in these texts. False after raising: one is none. */
static bool compare_texts(tn__differences *d, const char *where, const char *was, const char *is,
                          bool only_both, compare_pair *compare) {
    tn__json_file theirs, mine;
    if (!tn__description_read(&theirs, was, d->path, d->operation)) { return false; }
    bool read = tn__description_read(&mine, is, "the program", d->operation);
    if (read) {
        compare_members(d, where, theirs.values, mine.values, only_both, compare);
        tn__json_free(&mine);
    }
    tn__json_free(&theirs);
    return read;
}

bool tn__differ_options(tn__differences *d, const char *where, const char *was, const char *is) {
    return compare_texts(d, where, was, is, false, compare_option);
}

/* ---- Models ---------------------------------------------------------------------------------- */

static const char *kind_of(const tn__json *module) {
    const tn__json *kind = tn__json_get(module, "kind");
    return kind && kind->text ? kind->text : "";
}

/* The model itself is named by its kind. */
static const char *name_of(const tn__json *module) {
    return strcmp(module->key, ".") == 0 ? kind_of(module) : module->key;
}

static void compare_module(tn__differences *d, const char *model, const tn__json *was,
                           const tn__json *is, bool weights_alone) {
    const char *where = name_of(is ? is : was);
    const char *before = was ? kind_of(was) : NULL, *now = is ? kind_of(is) : NULL;
    if (before && now && strcmp(before, now) == 0) {
        compare_members(d, where, tn__json_get(was, "options"), tn__json_get(is, "options"),
                        weights_alone, compare_option);
        if (weights_alone) { return; }
        compare_members(d, where, tn__json_get(was, "training"), tn__json_get(is, "training"),
                        false, compare_option);
    } else if (!weights_alone && before && now) {
        tn__differ(d, "%.80s: was a %.80s but is a %.80s", where, before, now);
    } else if (!weights_alone) {
        tn__differ(d, "%.80s: %s (%.80s)", where, is ? "is new" : "was there but no longer is",
                   is ? now : before);
    }
}

bool tn__differ_models(tn__differences *d, const char *was, const char *is, bool weights_alone) {
    return compare_texts(d, NULL, was, is, weights_alone, compare_module);
}
