/* The common part of evaluating a language model: rows of tokens go through the model in batches,
 * ranks take batches in turn, and each row's cost is sent to all ranks in one order.
 *
 *     perplexity: a row is a window          multiple choice: a row is a prompt with one ending
 *
 * Batches do not depend on the number of ranks, so every row is computed in the same way; and all
 * ranks add up all rows in order. So results have the same bits on any number of ranks.
 */
#ifndef TERN_TRAIN_EVALUATE_EVALUATE_H
#define TERN_TRAIN_EVALUATE_EVALUATE_H

#include "tern/evaluate.h"

/* The cost of a row's targets. All but the nats are integers. */
typedef struct tn__row_cost {
    double nats, targets;    /* -log p, summed over the targets that count; their number */
    double text_nats, bytes; /* the same for targets that are text; its length */
} tn__row_cost;

typedef struct tn__token_rows tn__token_rows;
struct tn__token_rows {
    const char *operation; /* for errors */
    int64_t count;
    /* How many tokens a row has, at least 1. */
    int64_t (*length)(const tn__token_rows *self, int64_t row);
    /* Writes them to x, and their targets to y (-100: does not count). */
    tn_status (*get)(const tn__token_rows *self, int64_t row, int64_t *x, int64_t *y);
    /* Takes a row's cost: every row on every rank, in order. */
    void (*take)(tn__token_rows *self, int64_t row, const tn__row_cost *cost);
    /* [vocab]: how many bytes of text each token is, 0 for special ones; NULL: unused */
    const int32_t *text_bytes;
    int64_t vocab;
};

/* Puts all rows through m, `batch` per call, padded on the right, which a causal model's tokens do
 * not see. m is in evaluation mode meanwhile. */
tn_status tn__evaluate_rows(void *m, tn__token_rows *rows, tn_evaluate_options options);

#endif
