/* Tables of text as datasets: the rows of a CSV file, in memory as numbers.
 *
 * The columns are chosen once, from the first record; then each record becomes a row. Classes are
 * numbered as they appear; once all have been seen, they are sorted and renumbered.
 */
#include "core/error.h"
#include "core/memory.h"
#include "data/lines.h"
#include "data/rows.h"
#include "data/tokenizer/text_table.h"
#include "text/plain_numbers.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MOST_COLUMNS = 1 << 20 };

/* ---- Records --------------------------------------------------------------------------------- */

/* A file of records (RFC 4180): fields between delimiters, in quotes if they contain a delimiter, a
 * line end or a quote. */
typedef struct csv_file {
    tn__text_lines lines;
    const char *path; /* of the file, for messages */
    char delimiter;
    int64_t line; /* where the record begins, from 1 */
    char *text;   /* its fields without quotes, a 0 after each */
    size_t bytes;
    int64_t capacity;
    size_t *begins; /* of the fields, and one past the last one's 0 */
    int64_t count, begins_capacity;
} csv_file;

static bool raise_quotes(const csv_file *c, int64_t line, const char *what) {
    return tn__fail(TN_EFORMAT, "csv_dataset", "%s: line %lld, column %lld: %s", c->path,
                    (long long)line, (long long)c->count, what);
}

/* Reserves memory for one more line of text; a field is never longer than it is in the file. A
 * record is limited to the longest line, since quotes that never close would take in all that
 * follows. */
static bool hold_line(csv_file *c, size_t bytes) {
    if (c->bytes + bytes > TN__LONGEST_LINE) {
        return tn__fail(TN_EFORMAT, "csv_dataset",
                        "%s: the record that begins in line %lld has more than %d bytes", c->path,
                        (long long)c->line, TN__LONGEST_LINE);
    }
    int64_t wanted = (int64_t)(c->bytes + bytes) + 2;
    return tn__grow(&c->text, wanted, &c->capacity, 1, "csv_dataset");
}

/* Takes the rest of a quoted field, from *at on. It may continue on the next lines; *at is then in
 * the last of them, at the delimiter or the final 0. */
static bool take_quoted(csv_file *c, const char **at) {
    int64_t line = c->lines.number;
    for (;;) {
        char byte = *(*at)++;
        if (byte == 0) {
            size_t bytes;
            const char *ended = c->lines.ended;
            *at = tn__lines_next(&c->lines, &bytes);
            if (!*at) { return !tn__pending() && raise_quotes(c, line, "quotes that do not end"); }
            if (!hold_line(c, bytes + strlen(ended))) { return false; }
            for (; *ended; ended++) {
                c->text[c->bytes++] = *ended;
            }
            continue;
        }
        if (byte == '"' && **at == '"') {
            (*at)++;
        } else if (byte == '"') {
            return **at == 0 || **at == c->delimiter ||
                   raise_quotes(c, c->lines.number,
                                "there is something between the closing quote and the delimiter");
        }
        c->text[c->bytes++] = byte;
    }
}

/* Afterwards *at is at the delimiter or the final 0. */
static void take_plain(csv_file *c, const char **at) {
    const char *end = strchr(*at, c->delimiter);
    end = end ? end : *at + strlen(*at);
    const char *last = end;
    for (; last > *at && (last[-1] == ' ' || last[-1] == '\t'); last--) {}
    size_t bytes = (size_t)(last - *at);
    memcpy(c->text + c->bytes, *at, bytes);
    c->bytes += bytes;
    *at = end;
}

static const char *skip_blanks(const csv_file *c, const char *at) {
    while (*at != c->delimiter && (*at == ' ' || *at == '\t')) {
        at++;
    }
    return at;
}

static bool take_record(csv_file *c, const char *at) {
    for (;;) {
        if (!tn__grow(&c->begins, c->count + 2, &c->begins_capacity, sizeof(*c->begins),
                      "csv_dataset")) {
            return false;
        }
        c->begins[c->count] = c->bytes;
        at = skip_blanks(c, at);
        if (*at != '"') {
            take_plain(c, &at);
        } else {
            at++;
            if (!take_quoted(c, &at)) { return false; }
        }
        c->text[c->bytes++] = 0;
        c->begins[++c->count] = c->bytes;
        if (*at == 0) { return true; }
        at++;
    }
}

/* The next record; a blank line is not one. False at the end, and after raising. */
static bool next_record(csv_file *c) {
    size_t bytes = 0;
    const char *line;
    do {
        line = tn__lines_next(&c->lines, &bytes);
    } while (line && !*skip_blanks(c, line));
    c->line = c->lines.number;
    c->bytes = 0;
    c->count = 0;
    return line && hold_line(c, bytes) && take_record(c, line);
}

/* Field i of the record: blanks around it are removed unless it was in quotes. */
static const char *field_of(const csv_file *c, int64_t i, size_t *bytes) {
    *bytes = c->begins[i + 1] - c->begins[i] - 1;
    return c->text + c->begins[i];
}

/* Whether text[0 … bytes), which a 0 follows, is a decimal number: "-1.5e3" or "inf", but not
 * "nan". Call between tn__plain_numbers_begin and tn__plain_numbers_end. */
static bool is_number(const char *text, size_t bytes, double *value) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (strcasecmp(digits, "inf") != 0 && strcasecmp(digits, "infinity") != 0 &&
        (bytes == 0 || strspn(text, "0123456789+-.eE") != bytes)) {
        return false; /* strtod accepts more: hexadecimal numbers, nan(…) */
    }
    char *end;
    *value = strtod(text, &end);
    return end == text + bytes;
}

/* ---- Classes --------------------------------------------------------------------------------- */

typedef struct classes {
    bool given; /* by the options; any other is an error */
    tn__text_table table;
    char **texts; /* by number; copies, to which the table points */
    int64_t count, capacity;
} classes;

static void classes_free(classes *c) {
    for (int64_t i = 0; i < c->count; i++) {
        free(c->texts[i]);
    }
    free(c->texts);
    tn__text_table_free(&c->table);
}

/* The number of a class, a new one if it has none yet; -1 after raising. */
static int64_t class_number(classes *c, const char *text, size_t bytes) {
    const tn__text_entry *found = tn__text_find(&c->table, text, bytes);
    if (found) { return found->value; }
    if (!tn__grow(&c->texts, c->count + 1, &c->capacity, sizeof(*c->texts), "csv_dataset")) {
        return -1;
    }
    char *copy = tn__strdup(text);
    tn__text_entry *e = copy ? tn__text_put(&c->table, copy, (uint32_t)bytes) : NULL;
    if (!e) {
        free(copy);
        tn__raise(TN_ENOMEM, "csv_dataset", "no memory for the names of classes");
        return -1;
    }
    e->value = (int32_t)c->count;
    c->texts[c->count] = copy;
    return c->count++;
}

/* Whole numbers by value, then texts by their bytes. */
static int compare_classes(const void *a, const void *b) {
    const char *const texts[] = {*(char *const *)a, *(char *const *)b};
    bool whole[2];
    double value[2] = {0};
    for (int i = 0; i < 2; i++) {
        size_t bytes = strlen(texts[i]);
        whole[i] =
            strspn(texts[i], "+-0123456789") == bytes && is_number(texts[i], bytes, &value[i]);
    }
    if (whole[0] != whole[1]) { return whole[0] ? -1 : 1; }
    return whole[0] && value[0] != value[1] ? (value[0] < value[1] ? -1 : 1)
                                            : strcmp(texts[0], texts[1]);
}

/* Sorts the names of classes that were not given, and renumbers the labels. */
static bool sort_classes(classes *c, int64_t *labels, int64_t count) {
    int64_t *places = /* by the old number */
        tn__malloc_for((size_t)c->count * sizeof(*places), "csv_dataset");
    if (!places) { return false; }
    qsort(c->texts, (size_t)c->count, sizeof(*c->texts), compare_classes);
    for (int64_t i = 0; i < c->count; i++) {
        places[tn__text_find(&c->table, c->texts[i], strlen(c->texts[i]))->value] = i;
    }
    for (int64_t i = 0; i < count; i++) {
        labels[i] = places[labels[i]];
    }
    free(places);
    return true;
}

/* ---- Columns --------------------------------------------------------------------------------- */

/* A file being read. */
typedef struct reading {
    const tn_csv_options *options;
    csv_file file;
    float *x; /* (rows, count) */
    union {
        float *numbers;  /* (rows): the target as numbers, or */
        int64_t *labels; /* as classes */
    } y;
    classes classes;
    int64_t *features; /* column numbers, from 0 */
    int64_t count;     /* of features */
    int64_t target;    /* -1: there is none */
    int64_t columns;
    int64_t rows, x_capacity, y_capacity;
    char **header; /* column names; NULL: none */
} reading;

typedef enum taken { ROW_TAKEN, ROW_DROPPED, ROW_FAILED } taken;

static taken raise_at(const reading *r, int64_t column, const char *text, const char *what) {
    const char *name = r->header ? r->header[column] : "";
    tn__raise(TN_EFORMAT, "csv_dataset", "%s: line %lld, column %lld%s%.60s%s: \"%.60s\" %s",
              r->file.path, (long long)r->file.line, (long long)column, *name ? " (" : "", name,
              *name ? ")" : "", text, what);
    return ROW_FAILED;
}

/* The column with this name or, failing that, this number. -1 after raising. */
static int64_t find_column(const reading *r, const char *wanted) {
    int64_t found = -1;
    for (int64_t i = 0; r->header && i < r->columns; i++) {
        if (strcmp(r->header[i], wanted) == 0) {
            if (found >= 0) {
                tn__raise(TN_EVALUE, "csv_dataset", "%s: columns %lld and %lld are both \"%s\"",
                          r->file.path, (long long)found, (long long)i, wanted);
                return -1;
            }
            found = i;
        }
    }
    char *end;
    long number = strtol(wanted, &end, 10);
    if (found < 0 && *wanted && *end == 0 && number >= -r->columns && number < r->columns) {
        found = number < 0 ? number + r->columns : number;
    }
    if (found < 0) {
        char names[256] = "";
        size_t used = 0;
        for (int64_t i = 0; r->header && i < r->columns && used < sizeof(names) - 1; i++) {
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%s\"%.40s\"",
                                     i ? ", " : ": ", r->header[i]);
        }
        tn__raise(TN_EVALUE, "csv_dataset", "%s has no column \"%s\" among its %lld%s%s",
                  r->file.path, wanted, (long long)r->columns, names,
                  used >= sizeof(names) ? " …" : "");
    }
    return found;
}

static bool choose_features(reading *r) {
    const char *const *wanted = r->options->features;
    int64_t most = r->columns;
    for (most = wanted ? 0 : most; wanted && wanted[most]; most++) {}
    r->features = tn__malloc_for((size_t)most * sizeof(*r->features), "csv_dataset");
    if (!r->features) { return false; }
    for (int64_t i = 0; i < most; i++) {
        int64_t column = wanted ? find_column(r, wanted[i]) : i;
        if (column < 0) { return false; }
        if (wanted && column == r->target) {
            return tn__fail(TN_EVALUE, "csv_dataset", "column \"%s\" is a feature and the target",
                            wanted[i]);
        }
        if (column != r->target) { r->features[r->count++] = column; }
    }
    return r->count > 0 ||
           tn__fail(TN_EVALUE, "csv_dataset",
                    "%s: there is no column for x: its first line has %lld field%s, with '%c' "
                    "between",
                    r->file.path, (long long)r->columns, r->columns == 1 ? "" : "s",
                    r->options->delimiter);
}

static bool keep_header(reading *r) {
    r->header = tn__calloc_for((size_t)r->columns, sizeof(*r->header), "csv_dataset");
    for (int64_t i = 0; r->header && i < r->columns; i++) {
        size_t bytes;
        r->header[i] = tn__strdup_for(field_of(&r->file, i, &bytes), "csv_dataset");
        if (!r->header[i]) { return false; }
    }
    return r->header != NULL;
}

/* Uses the record that has just been read, the file's first. */
static bool choose_columns(reading *r) {
    r->columns = r->file.count;
    if (r->columns > MOST_COLUMNS) {
        return tn__fail(TN_EFORMAT, "csv_dataset",
                        "%s has %lld columns; this reader takes %d at most", r->file.path,
                        (long long)r->columns, MOST_COLUMNS);
    }
    if (r->options->header && !keep_header(r)) { return false; }
    r->target = r->options->target ? find_column(r, r->options->target) : -1;
    return (r->target >= 0 || !r->options->target) && choose_features(r);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Whether a text marks a missing number, as in pandas and UCI's data sets. */
static bool is_missing(const char *text, size_t bytes) {
    static const char *const words[] = {"NA",   "N/A",  "#N/A", "NaN",  "nan", "-NaN", "-nan",
                                        "NULL", "null", "None", "<NA>", "n/a", "?"};
    bool missing = bytes == 0;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words) && !missing; i++) {
        missing = strcmp(text, words[i]) == 0;
    }
    return missing;
}

/* What becomes of a row without a value in this column. */
static taken lack_value(const reading *r, int64_t column, const char *text) {
    if (r->options->missing == TN_MISSING_DROP) { return ROW_DROPPED; }
    return raise_at(r, column, text, "is a missing value");
}

/* A number of the record; a missing one is NaN if the options and `may_lack` allow it. */
static taken take_number(const reading *r, int64_t column, bool may_lack, float *to) {
    size_t bytes;
    const char *text = field_of(&r->file, column, &bytes);
    double value;
    if (is_number(text, bytes, &value)) {
        *to = (float)value;
        return ROW_TAKEN;
    }
    if (!is_missing(text, bytes)) { return raise_at(r, column, text, "is not a number"); }
    if (r->options->missing != TN_MISSING_NAN || !may_lack) { return lack_value(r, column, text); }
    *to = NAN;
    return ROW_TAKEN;
}

static taken take_class(reading *r) {
    size_t bytes;
    const char *text = field_of(&r->file, r->target, &bytes);
    if (bytes == 0) { return lack_value(r, r->target, text); }
    if (r->classes.given && !tn__text_find(&r->classes.table, text, bytes)) {
        return raise_at(r, r->target, text, "is not one of the classes");
    }
    int64_t number = class_number(&r->classes, text, bytes);
    r->y.labels[r->rows] = number;
    return number < 0 ? ROW_FAILED : ROW_TAKEN;
}

static bool has_classes(const reading *r) {
    return r->target >= 0 && r->options->target_kind == TN_CSV_CLASSES;
}

static bool hold_row(reading *r) {
    int64_t rows = r->rows + 1;
    size_t row = (size_t)r->count * sizeof(*r->x);
    size_t each = has_classes(r) ? sizeof(*r->y.labels) : sizeof(*r->y.numbers);
    return tn__grow(&r->x, rows, &r->x_capacity, row, "csv_dataset") &&
           tn__grow(&r->y, rows, &r->y_capacity, each, "csv_dataset");
}

static taken take_row(reading *r) {
    if (r->file.count != r->columns) {
        tn__raise(TN_EFORMAT, "csv_dataset", "%s: line %lld has %lld fields, the first has %lld",
                  r->file.path, (long long)r->file.line, (long long)r->file.count,
                  (long long)r->columns);
        return ROW_FAILED;
    }
    if (!hold_row(r)) { return ROW_FAILED; }
    taken t = ROW_TAKEN;
    for (int64_t i = 0; i < r->count && t == ROW_TAKEN; i++) {
        t = take_number(r, r->features[i], true, r->x + r->rows * r->count + i);
    }
    if (t == ROW_TAKEN && r->target >= 0) {
        t = has_classes(r) ? take_class(r)
                           : take_number(r, r->target, false, r->y.numbers + r->rows);
    }
    r->rows += t == ROW_TAKEN;
    return t;
}

static bool take_rows(reading *r) {
    bool first = true, done = true;
    while (done && next_record(&r->file)) {
        done = !first || choose_columns(r);
        if (done && !(first && r->options->header)) { done = take_row(r) != ROW_FAILED; }
        first = false;
    }
    if (!done || tn__pending()) { return false; }
    return r->rows > 0 ||
           tn__fail(TN_EFORMAT, "csv_dataset", "%s has no rows of data", r->file.path);
}

/* ---- The dataset ----------------------------------------------------------------------------- */

static bool give_classes(reading *r) {
    const char *const *given = r->options->classes;
    for (int64_t i = 0; given && given[i]; i++) {
        int64_t number = class_number(&r->classes, given[i], strlen(given[i]));
        if (number < 0) { return false; }
        if (number != i) {
            return tn__fail(TN_EVALUE, "csv_dataset", "class \"%s\" occurs twice", given[i]);
        }
    }
    r->classes.given = given != NULL;
    return true;
}

static bool check_options(const tn_csv_options *o) {
    if (!tn__options_made(o->from_defaults, "csv_dataset", "tn_csv")) { return false; }
    if (o->delimiter == 0 || strchr("\r\n\"", o->delimiter)) {
        return tn__fail(TN_EVALUE, "csv_dataset", "the delimiter cannot be byte %d", o->delimiter);
    }
    return true;
}

static tn_dataset *make_dataset(reading *r) {
    TN_SCOPE;
    classes *c = &r->classes;
    bool has = has_classes(r);
    if (has &&
        ((!c->given && !sort_classes(c, r->y.labels, r->rows)) ||
         !tn__grow(&c->texts, c->count + 1, &c->capacity, sizeof(*c->texts), "csv_dataset"))) {
        return NULL;
    }
    if (has) { c->texts[c->count] = NULL; }
    tn_tensor *x = tn__rows_adopt(&r->x, TN_DIMS(r->rows, r->count), TN_F32);
    tn_tensor *y =
        r->target < 0 ? NULL : tn__rows_adopt(&r->y, TN_DIMS(r->rows), has ? TN_I64 : TN_F32);
    return tn__rows_dataset("csv", x, y, has ? (const char *const *)c->texts : NULL);
}

static void end_reading(reading *r) {
    for (int64_t i = 0; r->header && i < r->columns; i++) {
        free(r->header[i]);
    }
    free(r->header);
    free(r->features);
    free(r->x);
    free(r->y.labels);
    classes_free(&r->classes);
    tn__lines_close(&r->file.lines);
    free(r->file.text);
    free(r->file.begins);
}

tn_csv_options tn_csv_defaults(void) {
    return (tn_csv_options){
        .delimiter = ',', .header = true, .target = "-1", .from_defaults = true};
}

tn_dataset *tn_csv_dataset(const char *path, tn_csv_options options) {
    reading r = {.options = &options, .file = {.path = path, .delimiter = options.delimiter}};
    if (!check_options(&options) || !tn__lines_open(&r.file.lines, path, "csv_dataset")) {
        return NULL;
    }
    tn__plain_numbers plain = tn__plain_numbers_begin();
    tn_dataset *d = give_classes(&r) && take_rows(&r) ? make_dataset(&r) : NULL;
    tn__plain_numbers_end(plain);
    end_reading(&r);
    return d;
}
