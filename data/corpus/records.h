/* The documents in a JSON value: for each element of the lists that the options' paths go through,
 * the text of a document, or the prompt and the completion of a pair. tn_corpus_options has the
 * notation of paths.
 *
 * One path goes through all the lists, the others through the first of the same ones: a question's
 * context is the one of the paragraph that it is in. */
#ifndef TERN_DATA_CORPUS_RECORDS_H
#define TERN_DATA_CORPUS_RECORDS_H

#include "core/buffer.h"
#include "tern/data.h"
#include "text/json.h"

enum { TN__PATH_LISTS = 16 /* at most, of one path, whose elements are all taken */ };

typedef struct tn__record_text {
    const char *at; /* no 0 follows */
    size_t bytes;
} tn__record_text;

/* A part of an option's text. */
typedef struct tn__json_path {
    const char *begin, *end;
    int lists; /* how often it has [] */
    bool name; /* no path, but the name of a member */
} tn__json_path;

/* Zeros to begin with. */
typedef struct tn__records {
    bool pairs;
    bool has_path;         /* not only names of members */
    char *texts[2];        /* copies of the options' */
    tn__json_path deepest; /* the path that goes through all the lists */

    const tn__json *root; /* the value; NULL: none, or all its documents have been returned */
    const char *path;     /* of the file that it is in, for errors, and */
    int64_t line;         /* where it begins, from 1 */
    bool begun;
    int level; /* lists of which an element has been chosen: */
    const tn__json *at[TN__PATH_LISTS];
    uint32_t index[TN__PATH_LISTS], size[TN__PATH_LISTS]; /* its index, and the list's size */
    tn__buffer made[2];                                   /* texts of several parts */
} tn__records;

/* False after raising TN_EVALUE or TN_ENOMEM. */
bool tn__records_open(tn__records *r, const tn_corpus_options *o);
void tn__records_close(tn__records *r);

/* The value, of a line of the file at `path`, must live until the next call. */
void tn__records_begin(tn__records *r, const tn__json *value, const char *path, int64_t line);

/* The next document's texts, lent until the next call. False at the end, and after raising:
 * TN_EFORMAT, which says where the value is not what the paths say; TN_ENOMEM. */
bool tn__records_next(tn__records *r, tn__record_text texts[2]);

#endif
