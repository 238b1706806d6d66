/* The records of a CSV file (RFC 4180), one at a time: fields between delimiters, in quotes if they
 * contain a delimiter, a line end or a quote. */
#ifndef TERN_DATA_CSV_RECORD_H
#define TERN_DATA_CSV_RECORD_H

#include "data/lines.h"

typedef struct tn__csv {
    tn__text_lines lines;
    char delimiter;
    int64_t line; /* where the record begins, from 1 */
    char *text;   /* its fields without quotes, a 0 after each */
    size_t bytes;
    int64_t capacity;
    size_t *begins; /* of the fields, and one past the last one's 0 */
    int64_t count, begins_capacity;
} tn__csv;

/* False after raising. */
bool tn__csv_open(tn__csv *c, const char *path, char delimiter, const char *operation);

/* The next record; a blank line is not one. False at the end, and after raising. */
bool tn__csv_next(tn__csv *c);

/* Field i of the record: blanks around it are removed unless it was in quotes. */
static inline const char *tn__csv_field(const tn__csv *c, int64_t i, size_t *bytes) {
    *bytes = c->begins[i + 1] - c->begins[i] - 1;
    return c->text + c->begins[i];
}

void tn__csv_close(tn__csv *c); /* also one that is not open */

#endif
