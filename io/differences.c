/* Naming what differs (differences.h). Both texts are split where they lie, into spans. */
#include "io/differences.h"

#include "core/memory.h"
#include "core/plain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 100 }; /* a file made up of differences is not counted to its end */

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
    text[tn__plain_text(text, text, strlen(text), false)] = 0;
    d->count++;
    if (d->warn && !d->quiet) {
        tn_log_write(TN_LOG_WARN, "%s: %s", d->path, text);
    }
    size_t used = strlen(d->text);
    bool first = used == 0, fits = used + strlen(text) + 3 < sizeof(d->text);
    if (first || (fits && d->count <= 4)) {
        snprintf(d->text + used, sizeof(d->text) - used, "%s%s", first ? "" : "; ", text);
    }
}

tn_status tn__differences_end(const tn__differences *d) {
    if (d->count == 0 || d->warn) {
        return TN_OK;
    }
    const char *hint = d->hint ? d->hint : "";
    return tn__raise(TN_EMISMATCH, d->operation, "%s: %s%s%s", d->path, d->text,
                     d->count > 4 ? "; and more" : "", hint);
}

/* ---- Spans ----------------------------------------------------------------------------------- */

typedef struct span {
    const char *at;
    size_t length;
} span;

static span span_of(const char *text) {
    return (span){text, strlen(text)};
}

static bool span_same(span a, span b) {
    return a.length == b.length && memcmp(a.at, b.at, a.length) == 0;
}

/* Takes what stands before the first `mark` off the front of *rest, and the mark. */
static span take_until(span *rest, char mark) {
    const char *end = rest->length ? memchr(rest->at, mark, rest->length) : NULL;
    size_t length = end ? (size_t)(end - rest->at) : rest->length;
    span taken = {rest->at, length};
    rest->at += length + (end != NULL);
    rest->length -= length + (end != NULL);
    return taken;
}

static span trim_spaces(span s) {
    for (; s.length && *s.at == ' '; s.at++, s.length--) {
    }
    for (; s.length && s.at[s.length - 1] == ' '; s.length--) {
    }
    return s;
}

/* For "%.*s": as much of it as a message has room for. */
static int shown_length(span s) {
    return s.length < 80 ? (int)s.length : 80;
}

/* ---- Items ----------------------------------------------------------------------------------- */

typedef struct item {
    span name, value;
} item;

/* The next item of a list; false at its end. */
static bool next_item(span *list, item *i) {
    while (list->length) {
        span whole = trim_spaces(take_until(list, ','));
        if (whole.length) {
            size_t name = whole.length;
            while (name && whole.at[name - 1] != ' ') {
                name--;
            }
            bool named = name > 0;
            i->name = named ? trim_spaces((span){whole.at, name}) : whole;
            i->value = named ? (span){whole.at + name, whole.length - name} : (span){"", 0};
            return true;
        }
    }
    return false;
}

static bool find_item(span list, span name, item *found) {
    while (next_item(&list, found)) {
        if (span_same(found->name, name)) {
            return true;
        }
    }
    return false;
}

static void compare_lists(tn__differences *d, span where, span was, span is, bool only_both) {
    item mine, theirs;
    for (span rest = is; !counted_enough(d) && next_item(&rest, &mine);) {
        bool found = find_item(was, mine.name, &theirs);
        if (found ? !span_same(theirs.value, mine.value) : !only_both) {
            span value = found ? theirs.value : span_of("not set");
            tn__differ(d, "%.*s: %.*s was %.*s but is %.*s", shown_length(where), where.at,
                       shown_length(mine.name), mine.name.at, shown_length(value), value.at,
                       shown_length(mine.value), mine.value.at);
        }
    }
    for (span rest = was; !only_both && !counted_enough(d) && next_item(&rest, &theirs);) {
        if (!find_item(is, theirs.name, &mine)) {
            tn__differ(d, "%.*s: %.*s was %.*s but is not set", shown_length(where), where.at,
                       shown_length(theirs.name), theirs.name.at, shown_length(theirs.value),
                       theirs.value.at);
        }
    }
}

void tn__differ_items(tn__differences *d, const char *where, const char *was, const char *is) {
    compare_lists(d, span_of(where), span_of(was), span_of(is), false);
}

/* ---- Models ---------------------------------------------------------------------------------- */

/* "PATH: KIND, OPTIONS; TRAINING" */
typedef struct line {
    span path, kind, options, training;
} line;

typedef struct lines {
    line *at; /* by path */
    size_t count;
} lines;

static line line_of(span text) {
    line l = {.path = take_until(&text, ':')};
    span before = take_until(&text, ';');
    l.training = text;
    l.kind = trim_spaces(take_until(&before, ','));
    l.options = before;
    return l;
}

static int compare_paths(const void *a, const void *b) {
    span x = ((const line *)a)->path, y = ((const line *)b)->path;
    int order = memcmp(x.at, y.at, x.length < y.length ? x.length : y.length);
    return order ? order : (x.length > y.length) - (x.length < y.length);
}

/* at is NULL after TN_ENOMEM. */
static lines split_lines(const char *text, const char *operation) {
    size_t most = 1;
    for (const char *c = text; *c; c++) {
        most += *c == '\n';
    }
    lines all = {.at = tn__malloc(most * sizeof(*all.at))};
    if (!all.at) {
        tn__raise(TN_ENOMEM, operation, "no memory to compare %zu modules", most);
        return all;
    }
    for (span rest = span_of(text); rest.length;) {
        span one = take_until(&rest, '\n');
        if (one.length) {
            all.at[all.count++] = line_of(one);
        }
    }
    qsort(all.at, all.count, sizeof(*all.at), compare_paths);
    return all;
}

/* The model itself goes by its kind. */
static span name_of(const line *l) {
    return l->path.length == 1 && *l->path.at == '.' ? l->kind : l->path;
}

static void compare_modules(tn__differences *d, const line *was, const line *is,
                            bool weights_alone) {
    span where = name_of(is);
    bool same_kind = span_same(was->kind, is->kind);
    if (!same_kind && !weights_alone) {
        tn__differ(d, "%.*s: was a %.*s but is a %.*s", shown_length(where), where.at,
                   shown_length(was->kind), was->kind.at, shown_length(is->kind), is->kind.at);
    }
    if (same_kind) {
        compare_lists(d, where, was->options, is->options, weights_alone);
    }
    if (same_kind && !weights_alone) {
        compare_lists(d, where, was->training, is->training, false);
    }
}

static void tell_alone(tn__differences *d, const line *l, const char *how) {
    tn__differ(d, "%.*s: %s (%.*s)", shown_length(name_of(l)), name_of(l).at, how,
               shown_length(l->kind), l->kind.at);
}

/* Both sides are sorted: one walk over both. */
static void compare_all(tn__differences *d, lines was, lines is, bool weights_alone) {
    size_t i = 0, k = 0;
    while ((i < was.count || k < is.count) && !counted_enough(d)) {
        int order = i == was.count ? 1 : k == is.count ? -1 : compare_paths(&was.at[i], &is.at[k]);
        if (order == 0) {
            compare_modules(d, &was.at[i++], &is.at[k++], weights_alone);
        } else if (order < 0) {
            i++;
            if (!weights_alone) {
                tell_alone(d, &was.at[i - 1], "was there but is not");
            }
        } else {
            k++;
            if (!weights_alone) {
                tell_alone(d, &is.at[k - 1], "is new");
            }
        }
    }
}

bool tn__differ_models(tn__differences *d, const char *was, const char *is, bool weights_alone) {
    lines theirs = split_lines(was, d->operation);
    lines mine = theirs.at ? split_lines(is, d->operation) : (lines){0};
    bool done = theirs.at && mine.at;
    if (done) {
        compare_all(d, theirs, mine, weights_alone);
    }
    free(theirs.at);
    free(mine.at);
    return done;
}
