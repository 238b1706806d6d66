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

typedef enum tn__step_kind { TN__STEP_MEMBER, TN__STEP_ELEMENT, TN__STEP_EACH } tn__step_kind;

typedef struct tn__path_step {
    tn__step_kind kind;
    tn__record_text text; /* a member's name, or "[0]", or "[]" */
    uint32_t index;       /* of the element */
} tn__path_step;

/* Of an option's text: one byte, or a path. */
typedef struct tn__text_part {
    const char *literal;
    tn__path_step *steps; /* of the path */
    int count;
    int lists; /* how often it has [] */
    int rest;  /* the step behind the last [] */
    bool name; /* no path, but the name of a member */
} tn__text_part;

/* What an option says. */
typedef struct tn__record_template {
    char *text; /* a copy of the option */
    tn__path_step *steps;
    tn__text_part *parts;
    int count;       /* of parts; 1: a path */
    tn__buffer made; /* the parts' texts */
} tn__record_template;

/* Zeros to begin with. */
typedef struct tn__records {
    tn__record_template templates[2];
    int count;                    /* of templates; 2: pairs */
    bool has_path;                /* not only names of members */
    const tn__text_part *deepest; /* the path that goes through all the lists */

    const tn__json *root; /* the value; NULL: none, or all its documents have been returned */
    const char *path;     /* of the file that it is in, for errors, and */
    int64_t line;         /* where it begins, from 1 */
    bool begun;
    int level; /* lists of which an element has been chosen: */
    const tn__json *at[TN__PATH_LISTS];
    uint32_t index[TN__PATH_LISTS], size[TN__PATH_LISTS]; /* its index, and the list's size */
    int behind[TN__PATH_LISTS];                           /* the step after [] */
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
