/* Multiple choice by likelihood: which ending does the model find most likely? (evaluate.h)
 *
 *     log p(ending | prompt) = sum over the ending's tokens of log p(token | all before it)
 *
 * A row is a prompt with one of its endings; the endings of a question follow each other.
 */
#include "core/error.h"
#include "train/evaluate/evaluate.h"
#include "train/evaluate/questions.h"

#include <math.h>
#include <string.h>

static const char operation[] = "evaluate_choices";
enum { NO_TARGET = -100 };

/* The scores compared: the total, per character, per token. */
enum { SUM, PER_CHARACTER, PER_TOKEN, SCORES };

typedef struct choices {
    tn__token_rows rows;
    tn__questions questions;
    int64_t context;
    double best[SCORES];    /* of the current question: the lowest cost, */
    int64_t chosen[SCORES]; /* and which ending has it; -1: none */
    int64_t right[SCORES];  /* questions answered correctly */
} choices;

static const tn__question *question_of(const choices *c, const tn__question_ending *e) {
    return &c->questions.list[e->question];
}

/* How many tokens of the prompt fit before an ending, whose last token is not an input. */
static int64_t prompt_kept(const choices *c, const tn__question_ending *e) {
    int64_t most = c->context + 1 - e->ids.count, count = question_of(c, e)->prompt.count;
    return count < most ? count : most;
}

static int64_t choice_length(const tn__token_rows *self, int64_t row) {
    const choices *c = (const choices *)self;
    const tn__question_ending *e = &c->questions.endings[row];
    return prompt_kept(c, e) + e->ids.count - 1;
}

static tn_status choice_get(const tn__token_rows *self, int64_t row, int64_t *x, int64_t *y) {
    const choices *c = (const choices *)self;
    const tn__question_ending *e = &c->questions.endings[row];
    const tn__ids_part *whole = &question_of(c, e)->prompt;
    int64_t kept = prompt_kept(c, e), T = kept + e->ids.count - 1;
    const int32_t *ids = c->questions.ids.ids, *ending = ids + e->ids.at;
    const int32_t *prompt = ids + whole->at + whole->count - kept;
    for (int64_t t = 0; t < T; t++) {
        x[t] = t < kept ? prompt[t] : ending[t - kept];
        y[t] = t + 1 < kept ? NO_TARGET : ending[t + 1 - kept];
    }
    return TN_OK;
}

static void choice_take(tn__token_rows *self, int64_t row, const tn__row_cost *cost) {
    choices *c = (choices *)self;
    const tn__question_ending *e = &c->questions.endings[row];
    const tn__question *q = question_of(c, e);
    double costs[SCORES] = {[SUM] = cost->nats,
                            [PER_CHARACTER] = cost->nats / (double)e->characters,
                            [PER_TOKEN] = cost->nats / cost->targets};
    for (int s = 0; s < SCORES; s++) {
        if (row == q->first) {
            c->best[s] = (double)INFINITY;
            c->chosen[s] = -1;
        }
        if (costs[s] < c->best[s]) {
            c->best[s] = costs[s];
            c->chosen[s] = row - q->first;
        }
        c->right[s] += row == q->first + q->count - 1 && c->chosen[s] == q->label;
    }
}

tn_status tn_evaluate_choices(void *m, const char *path, const tn_tokenizer *tokenizer,
                              int64_t context, tn_evaluate_options options, tn_choice_scores *out) {
    if (out) { *out = (tn_choice_scores){0}; }
    if (!tn__options_made(options.from_defaults, operation, "tn_evaluate")) { return tn_error(); }
    if (!out || !path || !tokenizer || context < 1) {
        return tn__raise(TN_EVALUE, operation, "%s",
                         !out         ? "the result is NULL"
                         : !path      ? "the path is NULL"
                         : !tokenizer ? "the tokenizer is NULL"
                                      : TN__BEYOND({"context", context, 1, 0}));
    }
    choices c = {.rows = {.operation = operation,
                          .length = choice_length,
                          .get = choice_get,
                          .take = choice_take},
                 .context = context};
    if (!tn__pending() && tn__questions_read(&c.questions, path, tokenizer, context) == TN_OK) {
        c.rows.count = c.questions.ending_count;
        if (tn__evaluate_rows(m, &c.rows, options) == TN_OK) {
            double questions = (double)c.questions.count;
            *out = (tn_choice_scores){.questions = c.questions.count,
                                      .endings = c.questions.ending_count,
                                      .acc = (double)c.right[SUM] / questions,
                                      .acc_norm = (double)c.right[PER_CHARACTER] / questions,
                                      .acc_norm_per_token = (double)c.right[PER_TOKEN] / questions};
        }
    }
    tn__questions_free(&c.questions);
    return tn_error();
}
