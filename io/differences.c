/* Naming what differs (differences.h). Values are compared as strings, and as numbers if both are
 * real numbers. */
#include "io/differences.h"

#include "core/memory.h"
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

static void compare_options(tn__differences *d, const char *where, const tn__json *was,
                            const tn__json *is, bool only_both) {
    static const tn__json nothing = {.kind = TN__JSON_OBJECT};
    was = was && was->kind == TN__JSON_OBJECT ? was : &nothing;
    is = is && is->kind == TN__JSON_OBJECT ? is : &nothing;
    const tn__json *mine = tn__json_first(is), *theirs = tn__json_first(was);
    for (uint32_t i = 0; i < is->count && !counted_enough(d); i++, mine = tn__json_next(mine)) {
        const tn__json *other = tn__json_get(was, mine->key);
        if (other ? !same_values(other, mine) : !only_both) {
            char before[32], now[32];
            tn__differ(d, "%.80s: %.80s was %.80s but is %.80s", where, mine->key,
                       shown_value(other, mine, before), shown_value(mine, other, now));
        }
    }
    for (uint32_t i = 0; i < was->count && !only_both && !counted_enough(d);
         i++, theirs = tn__json_next(theirs)) {
        if (!tn__json_get(is, theirs->key)) {
            tn__differ(d, "%.80s: %.80s was %.80s but is not set", where, theirs->key,
                       text_of(theirs));
        }
    }
}

typedef struct both {
    tn__json_file was, is;
} both;

static bool read_both(both *b, const tn__differences *d, const char *was, const char *is) {
    if (!tn__description_read(&b->was, was, d->path, d->operation)) { return false; }
    if (!tn__description_read(&b->is, is, "the program", d->operation)) {
        tn__json_free(&b->was);
        return false;
    }
    return true;
}

static void free_both(both *b) {
    tn__json_free(&b->was);
    tn__json_free(&b->is);
}

bool tn__differ_options(tn__differences *d, const char *where, const char *was, const char *is) {
    both b;
    if (!read_both(&b, d, was, is)) { return false; }
    compare_options(d, where, b.was.values, b.is.values, false);
    free_both(&b);
    return true;
}

/* ---- Models ---------------------------------------------------------------------------------- */

typedef struct modules {
    const tn__json **at; /* by path */
    size_t count;
} modules;

static int compare_paths(const void *a, const void *b) {
    return strcmp((*(const tn__json *const *)a)->key, (*(const tn__json *const *)b)->key);
}

/* at is NULL after TN_ENOMEM. */
static modules list_modules(const tn__json *model, const char *operation) {
    modules all = {.at = tn__malloc((model->count + 1) * sizeof(*all.at)), .count = model->count};
    if (!all.at) {
        tn__raise(TN_ENOMEM, operation, "no memory to compare %u modules", (unsigned)model->count);
        return all;
    }
    const tn__json *module = tn__json_first(model);
    for (size_t i = 0; i < all.count; i++, module = tn__json_next(module)) {
        all.at[i] = module;
    }
    qsort(all.at, all.count, sizeof(*all.at), compare_paths);
    return all;
}

static const char *kind_of(const tn__json *module) {
    const tn__json *kind = tn__json_get(module, "kind");
    return kind && kind->text ? kind->text : "";
}

/* The model itself is named by its kind. */
static const char *name_of(const tn__json *module) {
    return strcmp(module->key, ".") == 0 ? kind_of(module) : module->key;
}

static void compare_modules(tn__differences *d, const tn__json *was, const tn__json *is,
                            bool weights_alone) {
    const char *where = name_of(is);
    bool same_kind = strcmp(kind_of(was), kind_of(is)) == 0;
    if (!same_kind && !weights_alone) {
        tn__differ(d, "%.80s: was a %.80s but is a %.80s", where, kind_of(was), kind_of(is));
    }
    if (same_kind) {
        compare_options(d, where, tn__json_get(was, "options"), tn__json_get(is, "options"),
                        weights_alone);
    }
    if (same_kind && !weights_alone) {
        compare_options(d, where, tn__json_get(was, "training"), tn__json_get(is, "training"),
                        false);
    }
}

static void tell_alone(tn__differences *d, const tn__json *module, const char *how) {
    tn__differ(d, "%.80s: %s (%.80s)", name_of(module), how, kind_of(module));
}

/* Both sides are sorted: one pass over both. */
static void compare_all(tn__differences *d, modules was, modules is, bool weights_alone) {
    size_t i = 0, k = 0;
    while ((i < was.count || k < is.count) && !counted_enough(d)) {
        int order = i == was.count ? 1 : k == is.count ? -1 : compare_paths(&was.at[i], &is.at[k]);
        if (order == 0) {
            compare_modules(d, was.at[i++], is.at[k++], weights_alone);
        } else if (order < 0) {
            i++;
            if (!weights_alone) { tell_alone(d, was.at[i - 1], "was there but no longer is"); }
        } else {
            k++;
            if (!weights_alone) { tell_alone(d, is.at[k - 1], "is new"); }
        }
    }
}

bool tn__differ_models(tn__differences *d, const char *was, const char *is, bool weights_alone) {
    both b;
    if (!read_both(&b, d, was, is)) { return false; }
    modules theirs = list_modules(b.was.values, d->operation);
    modules mine = theirs.at ? list_modules(b.is.values, d->operation) : (modules){0};
    bool done = theirs.at && mine.at;
    if (done) { compare_all(d, theirs, mine, weights_alone); }
    free(theirs.at);
    free(mine.at);
    free_both(&b);
    return done;
}
