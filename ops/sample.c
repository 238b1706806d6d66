/* Samples: the inputs on which the suite tests an operation, read from its text. The usual shapes,
 * which break most things, are here: empty, 0-dimensional, size 1, odd sizes larger than a vector
 * register, broadcast pairs.
 */
#include "ops/op.h"
#include "tensor/fields.h"
#include "text/plain_numbers.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_dims usual_shapes[] = {
    {1, {7}},       {2, {3, 4}}, {3, {2, 3, 4}}, {0, {0}},     {1, {0}},
    {3, {2, 0, 3}}, {1, {1}},    {2, {1, 1}},    {2, {5, 67}},
};

static const tn_dims usual_pairs[][2] = {
    {{1, {7}}, {1, {7}}},    {{2, {3, 4}}, {2, {3, 4}}},   {{2, {3, 4}}, {1, {4}}},
    {{1, {4}}, {2, {3, 4}}}, {{2, {3, 1}}, {2, {1, 4}}},   {{2, {3, 4}}, {2, {3, 1}}},
    {{0, {0}}, {2, {2, 3}}}, {{2, {2, 3}}, {0, {0}}},      {{3, {2, 1, 3}}, {2, {4, 1}}},
    {{1, {1}}, {1, {5}}},    {{0, {0}}, {0, {0}}},         {{1, {0}}, {1, {1}}},
    {{2, {2, 0}}, {1, {0}}}, {{2, {5, 67}}, {2, {5, 67}}}, {{2, {5, 67}}, {1, {67}}},
};

enum {
    USUAL_SHAPES = sizeof usual_shapes / sizeof *usual_shapes,
    USUAL_PAIRS = sizeof usual_pairs / sizeof *usual_pairs
};

void tn_sample_add(tn_op_samples *s, const tn_sample *sample) {
    if (s && s->add && sample) { s->add(s, sample); }
}

/* ---- Samples as text ------------------------------------------------------------------------- */

enum { MAX_VALUES = 32, MAX_ARGS = 256 };

/* One sample, and the memory that it points to. */
typedef struct listed_sample {
    tn_sample sample;
    double values[TN_OP_INPUTS][MAX_VALUES];
    char text[200];
    int turn, turns; /* of the usual shapes, the one that it has */
    _Alignas(max_align_t) char args[MAX_ARGS];
} listed_sample;

/* Reads "[3, 4]" or "(1, nan)". The number of its numbers, or -1: there are more than `max`. */
static int read_numbers(const char **at, double *number, int max) {
    int n = 0;
    const char *p = *at + 1;
    if (**at != '[' && **at != '(') { return -1; }
    while (*p != ']' && *p != ')') {
        char *end = NULL;
        if (n == max) { return -1; }
        number[n++] = strtod(p, &end);
        if (end == p) { return -1; }
        p = end + strspn(end, ", ");
    }
    *at = p + 1;
    return n;
}

static bool read_dims(const char **at, tn_dims *dims) {
    double size[TN_MAX_DIMS];
    dims->ndim = read_numbers(at, size, TN_MAX_DIMS);
    for (int i = 0; i < dims->ndim; i++) {
        dims->size[i] = (int64_t)size[i];
    }
    return dims->ndim >= 0;
}

/* Reads what an input holds: "-1:1", "whole 1:5", "bool" …, and goes past its comma: the last is
 * for all that follow. */
static bool read_holding(const char **at, tn_spec *spec) {
    static const struct {
        const char *word;
        tn_spec spec;
    } kinds[] = {
        {"distinct ", {.kind = TN_SPEC_DISTINCT}},
        {"whole ", {.kind = TN_SPEC_INDEX}},
        {"bool", {.kind = TN_SPEC_BOOL, .low = 0.0, .high = 2.0}},
        {"byte", {.kind = TN_SPEC_BYTE, .low = -127.0, .high = 128.0}},
    };
    const char *p = *at;
    *spec = (tn_spec){.kind = TN_SPEC_REAL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].word);
        if (strncmp(p, kinds[i].word, length) == 0) {
            *spec = kinds[i].spec;
            p += length;
            break;
        }
    }
    char *end;
    double low = strtod(p, &end);
    if (*end == ':') {
        spec->low = low;
        spec->high = strtod(end + 1, &end);
    }
    bool whole = *end == 0 || *end == ',' || *end == '}';
    if (*end == ',') { *at = end + 1 + strspn(end + 1, " "); }
    return whole;
}

/* Reads "*" or "**": each of the usual shapes, or of the usual pairs. */
static bool read_usual(const char **at, int i, listed_sample *to) {
    size_t stars = strspn(*at, "*");
    *at += stars;
    to->turns = stars == 1 ? USUAL_SHAPES : USUAL_PAIRS;
    to->sample.in[i].dims = stars == 1 ? usual_shapes[to->turn] : usual_pairs[to->turn][i % 2];
    return stars == 1 || (stars == 2 && i < 2);
}

/* Reads input i: "-", "*", or "[3, 4]" and perhaps "<5" or "=(1, 2)". */
static bool read_input(const char **at, int i, listed_sample *to) {
    tn_spec *spec = &to->sample.in[i];
    double *values = to->values[i];
    if (**at == '*') { return read_usual(at, i, to); }
    if (**at == '-') {
        (*at)++;
        spec->kind = TN_SPEC_ABSENT;
        return true;
    }
    if (!read_dims(at, &spec->dims)) { return false; }
    if (**at == '<') {
        *spec = tn_spec_index(spec->dims, strtoll(*at + 1, (char **)at, 10));
    } else if (**at == '=') {
        *spec = tn_spec_values(spec->dims, values);
        (*at)++;
        return read_numbers(at, values, MAX_VALUES) == tn_dims_count(spec->dims);
    }
    return true;
}

static const tn_field *find_arg(const tn_op *op, const char *name, size_t length) {
    for (int i = 0; i < TN_OP_FIELDS && op->fields[i].name; i++) {
        const char *known = op->fields[i].name;
        if (strlen(known) == length && memcmp(known, name, length) == 0) { return &op->fields[i]; }
    }
    return NULL;
}

/* Reads "'mean'", or what is before a comma. */
static void read_word(const char **at, char *word, size_t size) {
    bool quoted = **at == '\'';
    const char *from = *at + quoted;
    int length = (int)strcspn(from, quoted ? "'" : ",");
    snprintf(word, size, "%.*s", length, from);
    *at = from + length + (quoted && from[length]);
}

/* Reads "1", "inf", "True", "'mean'" or "[1, 2]" into the member of args; of several numbers into
 * the last ones. */
static bool read_arg(const tn_field *f, const char **at, char *args) {
    if (f->kind == TN_FIELD_DIMS) { return read_dims(at, (tn_dims *)(args + f->offset)); }
    if (f->kind == TN_FIELD_INT64 && f->bytes > sizeof(int64_t)) {
        tn_dims last;
        bool read = read_dims(at, &last) && (size_t)last.ndim * sizeof(int64_t) <= f->bytes;
        size_t bytes = read ? (size_t)last.ndim * sizeof(int64_t) : 0;
        memcpy(args + f->offset + f->bytes - bytes, last.size, bytes);
        return read;
    }
    if (f->kind == TN_FIELD_DOUBLE) {
        const char *from = *at;
        *(double *)(args + f->offset) = strtod(from, (char **)at);
        return *at > from && (!**at || **at == ',');
    }
    if (f->kind == TN_FIELD_CHARS) {
        read_word(at, args + f->offset, f->bytes);
        return true;
    }
    char word[40];
    read_word(at, word, sizeof word);
    if (f->kind == TN_FIELD_BOOL) { word[0] = (char)tolower(word[0]); }
    return tn__field_read(f, args, word);
}

/* Reads "dim=1, keepdim=True" into args. */
static bool read_args(const tn_op *op, const char *at, char *args) {
    while (*at) {
        size_t length = strcspn(at, "=");
        const tn_field *f = find_arg(op, at, length);
        at += length + (at[length] == '=');
        if (!f || !read_arg(f, &at, args)) { return false; }
        at += strspn(at, ", ");
    }
    return true;
}

/* Reads the sample from `at` on, up to its ';' or the end. */
static bool read_sample(const tn_op *op, const char **at, const char *holding, listed_sample *to) {
    bool once = strncmp(holding, "once", 4) == 0;
    to->sample = (tn_sample){.text = to->text, .no_second = once};
    holding += once ? 4 + strspn(holding + 4, " ") : 0;
    while (**at && strchr("[-*", **at)) {
        int i = to->sample.inputs++;
        if (i == TN_OP_INPUTS) { return false; }
        bool read = read_holding(&holding, &to->sample.in[i]) && read_input(at, i, to);
        if (!read) { return false; }
        *at += strspn(*at, " ");
    }
    int length = (int)strcspn(*at, ";");
    snprintf(to->text, sizeof to->text, "%.*s", length, *at);
    *at += length;
    if (op->args_size == 0) { return length == 0; }
    if (op->args_size > sizeof to->args || length >= (int)sizeof to->text) { return false; }
    memset(to->args, 0, sizeof to->args);
    if (op->sample_args) { memcpy(to->args, op->sample_args, op->args_size); }
    to->sample.args = to->args;
    return read_args(op, to->text, to->args);
}

/* Reads the sample that begins at *at for each of its turns, and goes past it. */
static bool list_sample(const tn_op *op, const char **at, const char *holding, tn_op_samples *s) {
    listed_sample listed = {.turns = 1};
    for (const char *from = *at; listed.turn < listed.turns; listed.turn++) {
        *at = from;
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        bool read = read_sample(op, at, holding, &listed);
        tn__plain_numbers_end(numbers);
        if (!read) {
            return tn__fail(TN_EVALUE, op->name, "its samples cannot be read from here on: %.60s",
                            from);
        }
        tn_sample_add(s, &listed.sample);
    }
    return true;
}

static void list_text(const tn_op *op, tn_op_samples *s) {
    const char *holding = "-3:3";
    for (const char *at = op->samples; *at; at += strspn(at, "; ")) {
        if (*at == '{') {
            holding = at + 1;
            at += strcspn(at, "}");
            at += strspn(at, "} ");
        }
        if (!list_sample(op, &at, holding, s)) { return; }
    }
}

void tn_op_list_samples(const tn_op *op, tn_op_samples *s) {
    if (!op || !s) {
        tn__raise(TN_EVALUE, "op_list_samples", "%s is NULL",
                  op ? "the receiver" : "the operation");
        return;
    }
    if (op->samples) { list_text(op, s); }
    if (op->add_samples) { op->add_samples(s); }
}
