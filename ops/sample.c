/* Samples: the inputs on which the suite tests an operation. An operation adds its own special
 * cases; the shapes that break most things (empty, 0-dimensional, size 1, odd sizes larger than a
 * vector register, broadcast pairs) are here.
 */
#include "ops/op.h"
#include "tensor/fields.h"
#include "text/plain_numbers.h"

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
static tn_spec read_holding(const char **at) {
    static const struct {
        const char *word;
        tn_spec spec;
    } kinds[] = {
        {"distinct ", {.kind = TN_SPEC_DISTINCT}},
        {"bool", {.kind = TN_SPEC_BOOL, .low = 0.0, .high = 2.0}},
        {"byte", {.kind = TN_SPEC_BYTE, .low = -127.0, .high = 128.0}},
    };
    tn_spec spec = {.kind = TN_SPEC_REAL};
    const char *p = *at;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].word);
        if (strncmp(p, kinds[i].word, length) == 0) {
            spec = kinds[i].spec;
            p += length;
            break;
        }
    }
    char *end;
    double low = strtod(p, &end);
    if (*end == ':') {
        spec.low = low;
        spec.high = strtod(end + 1, &end);
    }
    if (*end == ',') { *at = end + 1 + strspn(end + 1, " "); }
    return spec;
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

/* Reads "dim=1, keepdim=True" into args. */
static bool read_args(const tn_op *op, const char *at, char *args) {
    while (*at) {
        int name = (int)strcspn(at, "="), i = 0;
        while (i < TN_OP_FIELDS && op->fields[i].name &&
               (strncmp(op->fields[i].name, at, (size_t)name) != 0 || op->fields[i].name[name])) {
            i++;
        }
        if (i == TN_OP_FIELDS || !op->fields[i].name || !at[name]) { return false; }
        at += name + 1;
        if (op->fields[i].kind == TN_FIELD_DIMS) {
            if (!read_dims(&at, (tn_dims *)(args + op->fields[i].offset))) { return false; }
        } else {
            char word[40];
            int quote = *at == '\'', length = (int)strcspn(at, ",");
            snprintf(word, sizeof word, "%.*s", length - 2 * quote, at + quote);
            if (strcmp(word, "True") == 0 || strcmp(word, "False") == 0) { word[0] |= 0x20; }
            if (!tn__field_read(&op->fields[i], args, word)) { return false; }
            at += length;
        }
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
        to->sample.in[i] = read_holding(&holding);
        if (!read_input(at, &to->sample.in[i], to->values[i])) { return false; }
        *at += strspn(*at, " ");
    }
    int length = (int)strcspn(*at, ";");
    snprintf(to->text, sizeof to->text, "%.*s", length, *at);
    *at += length;
    if (op->args_size == 0) { return true; }
    if (op->args_size > sizeof to->args) { return false; }
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
    if (op && op->samples) { list_text(op, s); }
    if (op && op->add_samples) { op->add_samples(s); }
}
