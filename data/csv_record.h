/* The records of a CSV file (RFC 4180), one after the other: fields between delimiters, in quotes
 * where they have a delimiter, a line's end or a quote in them. */
#ifndef TERN_DATA_CSV_RECORD_H
#define TERN_DATA_CSV_RECORD_H

#include "data/lines.h"

typedef struct tn__csv {
    tn__lines lines;
    char delimiter;
    int64_t line; /* where the record begins, from 1 */
    char *text;   /* its fields without quotes, a 0 behind each */
    size_t bytes;
    int64_t room;
    size_t *begins; /* of the fields, and where the last one's 0 ends */
    int64_t count, begins_room;
} tn__csv;

/* False after raising. */
bool tn__csv_open(tn__csv *c, const char *path, char delimiter, const char *operation);

/* The next record; a line of nothing but blanks is none. False at the end, and after raising. */
bool tn__csv_next(tn__csv *c);

/* Field i of the record: what was not in quotes has no blanks around it. */
static inline const char *tn__csv_field(const tn__csv *c, int64_t i, size_t *bytes) {
    *bytes = c->begins[i + 1] - c->begins[i] - 1;
    return c->text + c->begins[i];
}

void tn__csv_close(tn__csv *c); /* one that is not open, too */

#endif
