#include "data/lines.h"

#include "core/error.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { READ_AT_ONCE = 1 << 18 };

/* ---- Lines ----------------------------------------------------------------------------------- */

/* At least one byte more, if the file has one. */
static bool read_more(tn__text_lines *l) {
    if (l->begin > 0) {
        memmove(l->buffer, l->buffer + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->begin = 0;
    }
    int64_t wanted = (int64_t)l->end + READ_AT_ONCE + 1;
    if (!tn__grow(&l->buffer, wanted, &l->capacity, 1, l->stream.file.operation)) { return false; }
    size_t left = (size_t)l->capacity - 1 - l->end; /* one byte is for a 0 */
    int64_t got = tn__stream_read(&l->stream, l->buffer + l->end, left);
    if (got < 0) { return false; }
    l->all_read = (size_t)got < left;
    l->end += (size_t)got;
    return true;
}

bool tn__lines_hold(tn__text_lines *l, size_t bytes) {
    while (l->end - l->begin < bytes && !l->all_read) {
        if (!read_more(l)) { return false; }
    }
    return true;
}

static bool check_kind(const tn__stream *s) {
    if (s->kind.form == TN__FORM_TEXT) { return true; }
    return tn__fail(TN_EFORMAT, s->file.operation, "%s%s%s; expected text (also .gz or .zst)",
                    s->file.path, s->unpacker ? ", decompressed, is " : " is ",
                    s->kind.form == TN__FORM_BINARY ? "binary (it has zero bytes)" : s->kind.is);
}

bool tn__lines_open(tn__text_lines *l, const char *path, const char *operation) {
    static const char mark[] = "\xef\xbb\xbf"; /* UTF-8's byte order mark */
    *l = (tn__text_lines){.stream.file.fd = -1};
    if (!tn__stream_open(&l->stream, path, operation)) { return false; }
    if (!check_kind(&l->stream) || !read_more(l)) {
        tn__lines_close(l);
        return false;
    }
    bool marked = l->end >= 3 && memcmp(l->buffer, mark, 3) == 0;
    l->begin = marked ? 3 : 0;
    return true;
}

/* The length of the next line without its end; of all that is left if it has none. -1 after
 * raising. */
static int64_t find_end(tn__text_lines *l) {
    for (size_t seen = 0;;) {
        const char *from = l->buffer + l->begin;
        size_t left = l->end - l->begin;
        while (seen < left && from[seen] != '\n' && from[seen] != '\r') {
            seen++;
        }
        if (seen > TN__LONGEST_LINE) {
            tn__raise(TN_EFORMAT, l->stream.file.operation, "%s: line %lld has more than %d bytes",
                      l->stream.file.path, (long long)l->number, TN__LONGEST_LINE);
            return -1;
        }
        bool whole = seen < left && (from[seen] == '\n' || seen + 1 < left); /* a "\n" may follow */
        if (whole || l->all_read) { return (int64_t)seen; }
        if (!read_more(l)) { return -1; }
    }
}

char *tn__lines_next(tn__text_lines *l, size_t *bytes) {
    if (l->all_read && l->begin == l->end) { return NULL; }
    l->number++;
    int64_t length = find_end(l);
    if (length < 0 || (length == 0 && l->begin == l->end)) { return NULL; }
    char *line = l->buffer + l->begin;
    size_t rest = l->end - l->begin - (size_t)length;
    l->ended = rest == 0                              ? ""
               : line[length] == '\n'                 ? "\n"
               : rest > 1 && line[length + 1] == '\n' ? "\r\n"
                                                      : "\r";
    l->begin += (size_t)length + strlen(l->ended);
    line[length] = 0;
    if (memchr(line, 0, (size_t)length)) {
        tn__raise(TN_EFORMAT, l->stream.file.operation,
                  "%s: line %lld has a zero byte, which text does not have", l->stream.file.path,
                  (long long)l->number);
        return NULL;
    }
    *bytes = (size_t)length;
    return line;
}

void tn__lines_close(tn__text_lines *l) {
    free(l->buffer);
    l->buffer = NULL;
    tn__stream_close(&l->stream);
}
