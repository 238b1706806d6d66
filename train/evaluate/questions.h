/* The questions of a JSON lines file, as tokens (tn_evaluate_choices describes a line). */
#ifndef TERN_TRAIN_EVALUATE_QUESTIONS_H
#define TERN_TRAIN_EVALUATE_QUESTIONS_H

#include "tern/tokenizer.h"

/* Some of `ids`. */
typedef struct tn__ids_part {
    int64_t at, count;
} tn__ids_part;

typedef struct tn__question_ending {
    tn__ids_part ids;
    int64_t characters; /* of the text, without the space before it */
    int64_t question;
} tn__question_ending;

typedef struct tn__question {
    tn__ids_part prompt;
    int64_t first, count; /* its endings */
    int64_t label;        /* the right one: 0 … count-1 */
} tn__question;

typedef struct tn__questions {
    tn_ids ids;
    tn__question *list;
    tn__question_ending *endings;
    int64_t count, capacity, ending_count, ending_capacity;
} tn__questions;

/* Reads into *q, which must be zeroed; call tn__questions_free even after an error. */
tn_status tn__questions_read(tn__questions *q, const char *path, const tn_tokenizer *tokenizer,
                             int64_t context);
void tn__questions_free(tn__questions *q);

#endif
