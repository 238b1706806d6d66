/* Rows of a libsvm file: `label index:value index:value …`, indices from 1 and ascending; missing
 * ones are 0.
 *
 * They stay in memory as they are in the file, without the zeros: such files often have thousands
 * of features but a few dozen numbers per row. The zeros are filled in when an example is read.
 */
#include "core/error.h"
#include "core/memory.h"
#include "data/identity.h"
#include "data/lines.h"
#include "tern/data.h"
#include "text/plain_numbers.h"

#include <stdio.h>
#include <string.h>

typedef struct libsvm {
    tn_dataset base;
    float *labels;   /* (size) */
    int64_t *begins; /* (size + 1): of a row's numbers */
    int32_t *places; /* each number's index in its row, from 0 */
    float *numbers;
    tn_digest digests[4]; /* of labels, rows, indices, numbers */
} libsvm;

typedef struct reading {
    tn__text_lines lines;
    libsvm *d;
    int64_t features, rows, count; /* count: numbers so far */
    int64_t labels_capacity, begins_capacity, places_capacity, numbers_capacity;
} reading;

/* ---- Lines ----------------------------------------------------------------------------------- */

static bool raise_word(const reading *r, const char *word, const char *what) {
    tn__raise(TN_EFORMAT, "libsvm_dataset", "%s: line %lld: \"%.60s\" %s",
              r->lines.stream.file.path, (long long)r->lines.number, word, what);
    return false;
}

/* The next word of the line at *at, followed by a 0; NULL: there is none. */
static char *take_word(char **at) {
    char *word = *at + strspn(*at, " \t");
    char *end = word + strcspn(word, " \t");
    *at = end + (*end != 0);
    *end = 0;
    return end > word ? word : NULL;
}

static bool take_label(reading *r, const char *word) {
    double label;
    if (!tn__is_number(word, strlen(word), &label)) {
        return raise_word(r, word, "is not a label: expected a number");
    }
    if (!tn__grow(&r->d->labels, r->rows + 1, &r->labels_capacity, sizeof(*r->d->labels),
                  "libsvm_dataset") ||
        !tn__grow(&r->d->begins, r->rows + 2, &r->begins_capacity, sizeof(*r->d->begins),
                  "libsvm_dataset")) {
        return false;
    }
    r->d->labels[r->rows] = (float)label;
    r->d->begins[r->rows] = r->count;
    return true;
}

/* INDEX:VALUE, with an index above that of the number before. */
static bool take_pair(reading *r, char *word) {
    char *colon = strchr(word, ':');
    char *end = word;
    double value;
    long long index = *word >= '0' && *word <= '9' ? strtoll(word, &end, 10) : 0;
    if (!colon || end != colon || !tn__is_number(colon + 1, strlen(colon + 1), &value)) {
        return raise_word(r, word, "is not index:value");
    }
    if (index < 1 || index > r->features) {
        tn__raise(TN_EFORMAT, "libsvm_dataset", "%s: line %lld: index %lld, of 1 to %lld features",
                  r->lines.stream.file.path, (long long)r->lines.number, index,
                  (long long)r->features);
        return false;
    }
    if (r->count > r->d->begins[r->rows] && index <= r->d->places[r->count - 1] + 1) {
        return raise_word(r, word, "does not have a higher index than the one before");
    }
    if (!tn__grow(&r->d->places, r->count + 1, &r->places_capacity, sizeof(*r->d->places),
                  "libsvm_dataset") ||
        !tn__grow(&r->d->numbers, r->count + 1, &r->numbers_capacity, sizeof(*r->d->numbers),
                  "libsvm_dataset")) {
        return false;
    }
    r->d->places[r->count] = (int32_t)(index - 1);
    r->d->numbers[r->count++] = (float)value;
    return true;
}

/* A '#' begins a comment. */
static bool take_line(reading *r, char *line) {
    line[strcspn(line, "#")] = 0;
    char *word = take_word(&line);
    if (!word) { return true; }
    if (!take_label(r, word)) { return false; }
    while ((word = take_word(&line))) {
        if (!take_pair(r, word)) { return false; }
    }
    r->d->begins[++r->rows] = r->count;
    return true;
}

static bool take_lines(reading *r) {
    size_t bytes;
    for (char *line; (line = tn__lines_next(&r->lines, &bytes));) {
        if (!take_line(r, line)) { return false; }
    }
    if (r->rows == 0) {
        tn__raise(TN_EFORMAT, "libsvm_dataset", "%s has no rows of data",
                  r->lines.stream.file.path);
    }
    return !tn__pending();
}

/* ---- The dataset ----------------------------------------------------------------------------- */

static tn_status libsvm_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const libsvm *d = (const libsvm *)self;
    float *to = x;
    memset(to, 0, (size_t)self->x_dims.size[0] * sizeof(*to));
    for (int64_t k = d->begins[e.index]; k < d->begins[e.index + 1]; k++) {
        to[d->places[k]] = d->numbers[k];
    }
    *(float *)y = d->labels[e.index];
    return TN_OK;
}

static const tn_field libsvm_fields[] = {
    TN_FIELD_AS("digest of labels", libsvm, digests[0]),
    TN_FIELD_AS("digest of rows", libsvm, digests[1]),
    TN_FIELD_AS("digest of indices", libsvm, digests[2]),
    TN_FIELD_AS("digest of numbers", libsvm, digests[3]),
    {0},
};

static void libsvm_free(tn_dataset *self) {
    libsvm *d = (libsvm *)self;
    free(d->labels);
    free(d->begins);
    free(d->places);
    free(d->numbers);
    free(d);
}

static bool read_rows(reading *r, const char *path) {
    if (!tn__lines_open(&r->lines, path, "libsvm_dataset")) { return false; }
    tn__plain_numbers plain = tn__plain_numbers_begin();
    bool done = take_lines(r);
    tn__plain_numbers_end(plain);
    tn__lines_close(&r->lines);
    return done;
}

tn_dataset *tn_libsvm_dataset(const char *path, int64_t features) {
    if (features < 1 || features > INT32_MAX) {
        tn__raise(TN_EVALUE, "libsvm_dataset", "%lld features", (long long)features);
        return NULL;
    }
    reading r = {.d = tn__calloc_for(1, sizeof(*r.d), "libsvm_dataset"), .features = features};
    if (!r.d) { return NULL; }
    if (!read_rows(&r, path)) {
        libsvm_free(&r.d->base);
        return NULL;
    }
    r.d->base = (tn_dataset){.kind = "libsvm",
                             .size = r.rows,
                             .x_dims = TN_DIMS(features),
                             .y_dims = TN_DIMS(),
                             .x_dtype = TN_F32,
                             .y_dtype = TN_F32,
                             .get = libsvm_get,
                             .fields = libsvm_fields,
                             .free = libsvm_free};
    libsvm *d = r.d;
    size_t rows = (size_t)r.rows, count = (size_t)d->begins[rows];
    d->digests[0] = tn__digest_over(d->labels, rows * sizeof(*d->labels));
    d->digests[1] = tn__digest_over(d->begins, (rows + 1) * sizeof(*d->begins));
    d->digests[2] = tn__digest_over(d->places, count * sizeof(*d->places));
    d->digests[3] = tn__digest_over(d->numbers, count * sizeof(*d->numbers));
    return &r.d->base;
}
