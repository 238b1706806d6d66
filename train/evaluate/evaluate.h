/* What the evaluations of a language model share: rows of tokens go through the model in batches,
 * ranks take the batches in turn, and what each row costs is sent to all of them in one order.
 *
 *     perplexity: a row is a window          multiple choice: a row is a prompt with one ending
 *
 * The same rows are in the same batch for any number of ranks, so that every row is computed in the
 * same way; and all ranks add up all rows, in the rows' order. So the results are the same bits on
 * any number of ranks.
 */
#ifndef TERN_TRAIN_EVALUATE_EVALUATE_H
#define TERN_TRAIN_EVALUATE_EVALUATE_H

#include "tern/evaluate.h"

/* What a row's targets cost. All are whole numbers but the nats. */
typedef struct tn__row_cost {
    double nats, targets; /* -log p, summed over the targets that count, and how many these are */
    double text_nats, bytes; /* the same for those that are text, and its length */
} tn__row_cost;

typedef struct tn__token_rows tn__token_rows;
struct tn__token_rows {
    const char *operation; /* for errors */
    int64_t count;
    /* How many tokens a row has, at least 1. */
    int64_t (*length)(const tn__token_rows *self, int64_t row);
    /* Writes them to x, and to y what each is to predict (-100: it does not count). */
    tn_status (*get)(const tn__token_rows *self, int64_t row, int64_t *x, int64_t *y);
    /* Takes what a row cost: every row on every rank, in the rows' order. */
    void (*take)(tn__token_rows *self, int64_t row, const tn__row_cost *cost);
    /* [vocab]: how many bytes of text each token is, 0 for special ones; NULL: not wanted
     */
    const int32_t *text_bytes;
    int64_t vocab;
};

/* Puts all rows through m: a call takes `batch` of them, filled up on the right, where a causal
 * model's tokens do not look. m is switched to evaluation, and back. */
tn_status tn__evaluate_rows(void *m, tn__token_rows *rows, tn_evaluate_options options);

#endif
