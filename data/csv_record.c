#include "data/csv_record.h"

#include "core/error.h"
#include "core/memory.h"

#include <string.h>

bool tn__csv_open(tn__csv *c, const char *path, char delimiter, const char *operation) {
    *c = (tn__csv){.delimiter = delimiter};
    return tn__lines_open(&c->lines, path, operation);
}

void tn__csv_close(tn__csv *c) {
    tn__lines_close(&c->lines);
    free(c->text);
    free(c->begins);
    c->text = NULL;
    c->begins = NULL;
}

static bool raise_quotes(const tn__csv *c, int64_t line, const char *what) {
    return tn__fail(TN_EFORMAT, c->lines.stream.file.operation, "%s: line %lld, column %lld: %s",
                    c->lines.stream.file.path, (long long)line, (long long)c->count, what);
}

/* Reserves memory for one more line of text; a field is never longer than it is in the file. A
 * record is limited to the longest line, since quotes that never close would take in all that
 * follows. */
static bool hold_line(tn__csv *c, size_t bytes) {
    if (c->bytes + bytes > TN__LONGEST_LINE) {
        return tn__fail(TN_EFORMAT, c->lines.stream.file.operation,
                        "%s: the record that begins in line %lld has more than %d bytes",
                        c->lines.stream.file.path, (long long)c->line, TN__LONGEST_LINE);
    }
    int64_t wanted = (int64_t)(c->bytes + bytes) + 2;
    return tn__grow(&c->text, wanted, &c->capacity, 1, c->lines.stream.file.operation);
}

/* Takes the rest of a quoted field, from *at on. It may continue on the next lines; *at is then in
 * the last of them. */
static bool take_quoted(tn__csv *c, const char **at) {
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

static void take_plain(tn__csv *c, const char **at) {
    const char *end = strchr(*at, c->delimiter);
    end = end ? end : *at + strlen(*at);
    const char *last = end;
    for (; last > *at && (last[-1] == ' ' || last[-1] == '\t'); last--) {}
    size_t bytes = (size_t)(last - *at);
    memcpy(c->text + c->bytes, *at, bytes);
    c->bytes += bytes;
    *at = end;
}

static const char *skip_blanks(const tn__csv *c, const char *at) {
    while (*at != c->delimiter && (*at == ' ' || *at == '\t')) {
        at++;
    }
    return at;
}

/* Takes the field at *at; afterwards *at is at the delimiter or the final 0. */
static bool take_field(tn__csv *c, const char **at) {
    *at = skip_blanks(c, *at);
    if (**at == '"') {
        (*at)++;
        return take_quoted(c, at);
    }
    take_plain(c, at);
    return true;
}

static bool take_record(tn__csv *c, const char *at) {
    for (;;) {
        if (!tn__grow(&c->begins, c->count + 2, &c->begins_capacity, sizeof(*c->begins),
                      c->lines.stream.file.operation)) {
            return false;
        }
        c->begins[c->count] = c->bytes;
        if (!take_field(c, &at)) { return false; }
        c->text[c->bytes++] = 0;
        c->begins[++c->count] = c->bytes;
        if (*at == 0) { return true; }
        at++;
    }
}

bool tn__csv_next(tn__csv *c) {
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
