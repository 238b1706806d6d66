/* Samples: the inputs on which the suite tests an operation. An operation adds its own special
 * cases; the shapes that break most things (empty, 0-dimensional, size 1, odd sizes larger than a
 * vector register, broadcast pairs) are here.
 */
#include "ops/op.h"
#include "tensor/fields.h"
#include "text/plain_numbers.h"

#include <ctype.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tn_dims shapes[] = {
    {1, {7}},       {2, {3, 4}}, {3, {2, 3, 4}}, {0, {0}},     {1, {0}},
    {3, {2, 0, 3}}, {1, {1}},    {2, {1, 1}},    {2, {5, 67}},
};

static const tn_dims pairs[][2] = {
    {{1, {7}}, {1, {7}}},    {{2, {3, 4}}, {2, {3, 4}}},   {{2, {3, 4}}, {1, {4}}},
    {{1, {4}}, {2, {3, 4}}}, {{2, {3, 1}}, {2, {1, 4}}},   {{2, {3, 4}}, {2, {3, 1}}},
    {{0, {0}}, {2, {2, 3}}}, {{2, {2, 3}}, {0, {0}}},      {{3, {2, 1, 3}}, {2, {4, 1}}},
    {{1, {1}}, {1, {5}}},    {{0, {0}}, {0, {0}}},         {{1, {0}}, {1, {1}}},
    {{2, {2, 0}}, {1, {0}}}, {{2, {5, 67}}, {2, {5, 67}}}, {{2, {5, 67}}, {1, {67}}},
};

void tn_sample_add(tn_op_samples *s, const tn_sample *sample) {
    if (s && s->add && sample) { s->add(s, sample); }
}

void tn_sample_unary(tn_op_samples *s, double low, double high) {
    tn__sample_unary_with(s, low, high, "", NULL);
}

void tn__sample_unary_with(tn_op_samples *s, double low, double high, const char *text,
                           const void *args) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        tn_sample sample = {
            .text = text, .args = args, .inputs = 1, .in = {tn_spec_real(shapes[i], low, high)}};
        tn_sample_add(s, &sample);
    }
}

void tn_sample_binary(tn_op_samples *s, double low, double high, double low2, double high2) {
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        tn_sample sample = {
            .text = "",
            .inputs = 2,
            .in = {tn_spec_real(pairs[i][0], low, high), tn_spec_real(pairs[i][1], low2, high2)},
        };
        tn_sample_add(s, &sample);
    }
}

void tn__sample_values(tn_op_samples *s, const double *values, int n, bool second) {
    tn_sample sample = {
        .text = "", .inputs = 1, .in = {tn_spec_values(TN_DIMS(n), values)}, .no_second = !second};
    tn_sample_add(s, &sample);
}

void tn__sample_values2(tn_op_samples *s, const double *a, const double *b, int n, bool second) {
    tn_sample sample = {
        .text = "",
        .inputs = 2,
        .in = {tn_spec_values(TN_DIMS(n), a), tn_spec_values(TN_DIMS(n), b)},
        .no_second = !second,
    };
    tn_sample_add(s, &sample);
}

/* ---- Samples as text ------------------------------------------------------------------------- */

enum { MOST_VALUES = 32, MOST_ARGS = 256 };

/* One sample, and the memory that it points to. */
typedef struct listed_sample {
    tn_sample sample;
    double values[TN_OP_INPUTS][MOST_VALUES];
    char text[200];
    _Alignas(max_align_t) char args[MOST_ARGS];
} listed_sample;

/* Reads "[3, 4]" or "(1, nan)". The number of its numbers, or -1: it is not at most `most`. */
static int read_numbers(const char **at, double *number, int most) {
    int n = 0;
    const char *p = *at + 1;
    if (**at != '[' && **at != '(') { return -1; }
    while (*p != ']' && *p != ')') {
        char *end = NULL;
        if (n == most) { return -1; }
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

/* Reads what an input holds: "-1:1", "distinct -1:1", "bool" …, and goes past its comma: the last
 * is for all that follow. */
static bool read_holding(const char **at, tn_spec *spec) {
    static const struct {
        const char *word;
        tn_spec spec;
    } kinds[] = {
        {"distinct ", {.kind = TN_SPEC_DISTINCT}},
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

/* Reads an input: "-", or "[3, 4]" and perhaps "<5" or "=(1, 2)". */
static bool read_input(const char **at, tn_spec *spec, double *values) {
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
        return read_numbers(at, values, MOST_VALUES) == tn_dims_count(spec->dims);
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

/* Reads "1", "True", "'mean'" or "[1, 2]" into the member of args. */
static bool read_arg(const tn_field *f, const char **at, char *args) {
    if (f->kind == TN_FIELD_DIMS) { return read_dims(at, (tn_dims *)(args + f->offset)); }
    char word[40];
    int quote = **at == '\'', length = (int)strcspn(*at, ",");
    snprintf(word, sizeof word, "%.*s", length - 2 * quote, *at + quote);
    if (f->kind == TN_FIELD_BOOL) { word[0] = (char)tolower(word[0]); }
    *at += length;
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
    while (**at == '[' || **at == '-') {
        int i = to->sample.inputs++;
        if (i == TN_OP_INPUTS) { return false; }
        tn_spec *spec = &to->sample.in[i];
        if (!read_holding(&holding, spec) || !read_input(at, spec, to->values[i])) { return false; }
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

static void list_text(const tn_op *op, tn_op_samples *s) {
    const char *holding = "-3:3";
    for (const char *at = op->samples; *at; at += strspn(at, "; ")) {
        if (*at == '{') {
            holding = at + 1;
            at += strcspn(at, "}");
            at += strspn(at, "} ");
        }
        listed_sample listed;
        const char *from = at;
        tn__plain_numbers numbers = tn__plain_numbers_begin();
        bool read = read_sample(op, &at, holding, &listed);
        tn__plain_numbers_end(numbers);
        if (!read) {
            tn__raise(TN_EVALUE, op->name, "its samples cannot be read from here on: %.60s", from);
            return;
        }
        tn_sample_add(s, &listed.sample);
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
