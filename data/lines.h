/* A text file, plain or compressed (.gz, .zst), from its beginning to its end, line by line or as
 * its reader takes it from the buffer. Only a part of the file is in memory. */
#ifndef TERN_DATA_LINES_H
#define TERN_DATA_LINES_H

#include "data/corpus/stream.h"

enum { TN__LONGEST_LINE = 64 << 20 };

typedef struct tn__text_lines {
    tn__stream stream;
    char *buffer;
    int64_t capacity;  /* of the buffer */
    size_t begin, end; /* buffer[begin … end): read but not yet returned */
    bool all_read;     /* the file has been read to its end */
    int64_t number;    /* of the last line that was returned, from 1 */
    const char *ended; /* what ended it: "\n", "\r\n", "\r", or "" at the file's end */
} tn__text_lines;

/* False after raising; TN_EFORMAT if it is not text. */
bool tn__lines_open(tn__text_lines *l, const char *path, const char *operation);

/* The next line without its end ("\n", "\r\n" or "\r", as in Python's text files), followed by a 0;
 * a byte order mark at the file's beginning is skipped. Lent until the next call, and may be
 * written to. NULL at the end, and after raising: TN_EFORMAT for zero bytes and lines of more than
 * 64 MiB. */
char *tn__lines_next(tn__text_lines *l, size_t *bytes);

/* Reads until the buffer has `bytes`, less only at the file's end. False after raising. */
bool tn__lines_hold(tn__text_lines *l, size_t bytes);

void tn__lines_close(tn__text_lines *l); /* also one that is not open */

#endif
