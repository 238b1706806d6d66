#define _GNU_SOURCE
#include "tensor/fields.h"

#include "text/number.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <string.h>

/* ---- Writing --------------------------------------------------------------------------------- */

tn__members tn__members_begin(tn__buffer *to) {
    tn__members m = {.to = to, .from = to->bytes};
    tn__buffer_text(to, "{");
    return m;
}

void tn__members_end(tn__members *m) {
    tn__buffer_text(m->to, "}");
}

/* A string of the program's, for a UTF-8 file that people read. */
static void put_string(tn__buffer *to, const char *text) {
    size_t from = to->bytes;
    tn__json_put_string(to, text);
    for (size_t i = from; i < to->bytes; i++) {
        to->at[i] = (char)(to->at[i] >= ' ' && to->at[i] <= '~' ? to->at[i] : '?');
    }
}

void tn__member_name(tn__members *m, const char *name) {
    tn__buffer_text(m->to, m->to->bytes > m->from + 1 ? "," : "");
    put_string(m->to, name);
    tn__buffer_text(m->to, ":");
}

/* The same; a name that the object already has gets the next number. */
static void put_name(tn__members *m, const char *name) {
    tn__buffer *to = m->to;
    size_t before = to->bytes, at = before + (before > m->from + 1), from = m->from;
    tn__member_name(m, name);
    for (int k = 2; !to->failed; k++) {
        const char *there = memmem(to->at + from, before - from, to->at + at, to->bytes - at);
        if (!there) { return; }
        from = (size_t)(there - to->at);
        to->bytes = at;
        put_string(to, name);
        to->bytes--; /* the quote */
        tn__buffer_format(to, " %d\":", k);
    }
}

void tn__member_put(tn__members *m, const char *name, const char *value, bool text) {
    tn__buffer *to = m->to;
    put_name(m, name);
    if (text) {
        put_string(to, value);
    } else {
        tn__buffer_text(to, value);
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

bool tn__field_whole(const tn_field *f, const void *from, int64_t *number) {
    const char *at = (const char *)from + f->offset;
    bool one = f->kind == TN_FIELD_INT64 && f->bytes == sizeof(int64_t);
    if (f->kind == TN_FIELD_INT) {
        *number = *(const int *)at;
    } else if (f->kind == TN_FIELD_BOOL) {
        *number = *(const bool *)at;
    } else if (one) {
        *number = *(const int64_t *)at;
    }
    return one || f->kind == TN_FIELD_INT || f->kind == TN_FIELD_BOOL;
}

tn_dims tn__field_sizes(const tn_field *f, const void *from) {
    const char *at = (const char *)from + f->offset;
    tn_dims dims = {0};
    if (f->kind == TN_FIELD_DIMS) {
        memcpy(&dims, at, sizeof(dims));
    } else if (f->kind == TN_FIELD_INT64) {
        dims.ndim = (int)(f->bytes / sizeof(int64_t));
        memcpy(dims.size, at, f->bytes);
    }
    return dims;
}

/* A value as text, in `buffer` if it must be formatted. */
typedef struct shown {
    char buffer[32 * TN_MAX_DIMS];
    const char *text;
    bool number, zero; /* written without quotes; it is 0, false or "" */
} shown;

static void show_whole(shown *s, const tn_field *f, int64_t number, bool json) {
    static const char *const words[] = {"false", "true", NULL};
    const char *const *names = f->names                           ? f->names
                               : f->kind == TN_FIELD_BOOL && json ? words
                                                                  : NULL;
    int64_t i = 0;
    for (; names && names[i] && i < number; i++) {}
    bool named = names && names[i] && i == number;
    snprintf(s->buffer, sizeof(s->buffer), "%" PRId64, number);
    s->text = named ? names[i] : s->buffer;
    s->number = !named || names == words;
    s->zero = number == 0;
}

/* "2x1" */
static void show_sizes(shown *s, tn_dims dims) {
    for (int i = 0, used = 0; i < dims.ndim; i++) {
        used += snprintf(s->buffer + used, sizeof(s->buffer) - (size_t)used, "%s%" PRId64,
                         i ? "x" : "", dims.size[i]);
    }
    s->number = dims.ndim == 1;
}

/* False: it is not written. */
static bool show_field(const tn_field *f, const void *from, bool json, shown *s) {
    const char *at = (const char *)from + f->offset;
    int64_t number;
    s->buffer[0] = 0;
    s->text = s->buffer;
    s->number = s->zero = false;
    if (f->unless && *((const bool *)from + f->unless - 1)) { return false; }
    if (tn__field_whole(f, from, &number)) {
        show_whole(s, f, number, json);
    } else if (f->kind == TN_FIELD_DOUBLE) {
        tn__number n = tn__number_of(*(const double *)at);
        memcpy(s->buffer, n.text, sizeof(n.text));
        s->number = isfinite(*(const double *)at);
        s->zero = *(const double *)at == 0;
    } else if (f->kind == TN_FIELD_DIMS || f->kind == TN_FIELD_INT64) {
        show_sizes(s, tn__field_sizes(f, from));
        return *s->text != 0;
    } else if (f->kind == TN_FIELD_UINT64) {
        snprintf(s->buffer, sizeof(s->buffer), "%" PRIu64, *(const uint64_t *)at);
        s->number = true;
        s->zero = *(const uint64_t *)at == 0;
    } else {
        s->text = f->kind == TN_FIELD_TEXT     ? *(const char *const *)at
                  : f->kind == TN_FIELD_DIGEST ? ((const tn_digest *)at)->text
                                               : at;
        s->text = s->text ? s->text : "";
        s->zero = !*s->text;
    }
    return !(f->optional && s->zero);
}

void tn__fields_put(tn__members *m, const tn_field *fields, const void *at, bool training) {
    shown s;
    for (const tn_field *f = fields; f && f->name; f++) {
        if (f->training == training && show_field(f, at, true, &s)) {
            tn__member_put(m, f->name, s.text, !s.number);
        }
    }
}

void tn__fields_put_words(tn__buffer *to, const tn_field *fields, const void *at) {
    shown s;
    for (const tn_field *f = fields; f->name; f++) {
        show_field(f, at, false, &s);
        tn__buffer_format(to, "%s%s", f > fields ? " " : "", s.text);
    }
}

/* ---- Digests --------------------------------------------------------------------------------- */

enum { UNKNOWN, COMING, KNOWN };

bool tn__digest_known(const tn_digest *d) {
    return __atomic_load_n(&d->state, __ATOMIC_ACQUIRE) == KNOWN;
}

void tn__digest_note(tn_digest *d, const char *text) {
    int unknown = UNKNOWN;
    if (__atomic_compare_exchange_n(&d->state, &unknown, COMING, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        memcpy(d->text, text, sizeof(d->text));
        __atomic_store_n(&d->state, KNOWN, __ATOMIC_RELEASE);
    }
    while (!tn__digest_known(d)) {
        sched_yield();
    }
}

/* ---- Ranges ---------------------------------------------------------------------------------- */

static bool in_range(const tn_field *f, double number) {
    return f->most == f->least ? isfinite(number) : number >= f->least && number <= f->most;
}

void tn__field_range(const tn_field *f, char *text, size_t size) {
    double end = nextafter(f->most, INFINITY);
    bool open = end == floor(end) && f->most != floor(f->most);
    size_t used = 0;
    for (int i = 0; f->names && f->names[i] && used < size; i++) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "one of ", f->names[i]);
    }
    if (f->names) { return; }
    if (f->most == f->least) {
        snprintf(text, size, "%s", f->kind == TN_FIELD_BOOL ? "true or false" : "a number");
    } else if (f->most >= DBL_MAX) {
        snprintf(text, size, "at least %.10g", f->least);
    } else if (f->least <= -DBL_MAX) {
        snprintf(text, size, "at most %.10g", f->most);
    } else {
        snprintf(text, size, "%.10g to %s%.10g", f->least, open ? "below " : "",
                 open ? end : f->most);
    }
}

bool tn__fields_fit(const tn_field *fields, const void *at, char *text, size_t size) {
    for (const tn_field *f = fields; f && f->name; f++) {
        int64_t whole;
        double number = tn__field_whole(f, at, &whole) ? (double)whole
                        : f->kind == TN_FIELD_DOUBLE
                            ? *(const double *)((const char *)at + f->offset)
                            : f->least;
        if (!in_range(f, number)) {
            char range[128];
            tn__field_range(f, range, sizeof(range));
            snprintf(text, size, "%s is %g (%s)", f->name, number, range);
            return false;
        }
    }
    return true;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool read_int(const tn_field *f, const char *text, int64_t least, int64_t most,
                     int64_t *number) {
    for (*number = 0; f->names && f->names[*number] && *number <= most; ++*number) {
        if (strcmp(f->names[*number], text) == 0) { return true; }
    }
    return !f->names && tn__whole_from(text, number) && *number >= least && *number <= most &&
           in_range(f, (double)*number);
}

static bool read_bool(const tn_field *f, const char *text, bool *yes) {
    int64_t number = strcmp(text, "true") == 0;
    bool read = number || strcmp(text, "false") == 0 || read_int(f, text, 0, 1, &number);
    *yes = number != 0;
    return read;
}

bool tn__field_read(const tn_field *f, void *to, const char *text) {
    char *at = (char *)to + f->offset;
    int64_t number = 0;
    bool read = false;
    if (!(*text >= '0' && *text <= '9') && *text != '-' && f->kind != TN_FIELD_INT &&
        f->kind != TN_FIELD_BOOL) {
        return false; /* strtod and strtoll would accept leading spaces and signs, and words */
    }
    switch (f->kind) {
    case TN_FIELD_INT:
        read = read_int(f, text, INT32_MIN, INT32_MAX, &number);
        *(int *)at = (int)number;
        return read;
    case TN_FIELD_BOOL:
        return read_bool(f, text, (bool *)at);
    case TN_FIELD_INT64:
        return f->bytes == sizeof(int64_t) &&
               read_int(f, text, INT64_MIN, INT64_MAX, (int64_t *)at);
    case TN_FIELD_UINT64: {
        char *end;
        errno = 0;
        *(uint64_t *)at = strtoull(text, &end, 10);
        return *text != '-' && !*end && errno == 0;
    }
    case TN_FIELD_DOUBLE:
        return tn__real_from(text, (double *)at) && in_range(f, *(double *)at);
    default:
        return false;
    }
}

static bool read_word(const tn_field *f, void *at, const char *word, size_t length) {
    bool is_name = f->kind == TN_FIELD_CHARS;
    char number[40] = "", *to = is_name ? (char *)at + f->offset : number;
    bool fits = length > 0 && length < (is_name ? f->bytes : sizeof(number));
    for (size_t i = 0; fits && i < length; i++) {
        fits = word[i] > ' ' && word[i] <= '~';
    }
    memcpy(to, word, fits ? length : 0);
    to[fits ? length : 0] = 0;
    return fits && (is_name || tn__field_read(f, at, number));
}

const tn_field *tn__fields_read_words(const tn_field *fields, void *at, const char **text) {
    for (const tn_field *f = fields; f->name; f++) {
        size_t length = strcspn(*text, " \n");
        if (!read_word(f, at, *text, length)) { return f; }
        *text += length + (f[1].name && (*text)[length] == ' ');
    }
    return NULL;
}
