/* Evaluating a language model: perplexity, and multiple choice by likelihood.
 *
 *     tn_dataset *windows = tn_sliding_shards("val_*.bin", 1024, 512, 50257);
 *     tn_perplexity p;
 *     if (tn_evaluate_perplexity(&gpt, windows, NULL, tn_evaluate_defaults(), &p) == TN_OK) {
 *         printf("%.2f\n", p.perplexity);
 *     }
 *     tn_dataset_free(windows);
 *
 * A model here is any module that makes of tokens (B, T) i64 logits (B, T, vocab) and is causal:
 * rows of different length are filled up on the right. `tern eval` does this for a folder of
 * weights.
 *
 * Read next: train/evaluate/evaluate.c.
 */
#ifndef TERN_EVALUATE_H
#define TERN_EVALUATE_H

#include "distributed.h"
#include "tokenizer.h"
#include "train.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_evaluate_options {
    int64_t batch; /* 4: rows (windows, or prompts with an ending) in a call of the model; a call's
                      logits take 4 batch T vocab bytes in f32 */
    /* NULL: this process alone. Otherwise its ranks take the batches in turn; each calls with the
     * same arguments and gets the same result, to the last bit that of one rank. A model in parts
     * (tn_fsdp) is called equally often by all of them. */
    tn_group *group;
    FILE *progress; /* NULL; else rank 0 shows there how far it is */
    bool from_defaults;
} tn_evaluate_options;
TN_API tn_evaluate_options tn_evaluate_defaults(void);

/* ---- Perplexity ------------------------------------------------------------------------------ */

typedef struct tn_perplexity {
    int64_t windows;
    int64_t tokens;    /* targets that count: those that are not -100 */
    double loss;       /* the mean of -log p over them, in nats */
    double perplexity; /* exp(loss) */
    /* With a tokenizer: the sum over the targets that represent text, in bits, divided by the bytes
     * of that text. Special tokens represent none. It compares models with different vocabularies.
     * Otherwise 0 and NaN. */
    int64_t bytes;
    double bits_per_byte;
} tn_perplexity;

/* Of m over the examples of a dataset, x (T) tokens and y (T) what each is to predict, i64; -100
 * does not count. The windows decide what is measured: tn_sliding_shards counts every token once.
 * With stride = context it is what nanoGPT and llm.c report; with a shorter one each token has
 * more before it and the figure is lower, and costs context / stride times as much. Hugging Face's
 * page on perplexity feeds the last token of each window, too, whose prediction it leaves out: its
 * figures for max_length are those for windows of max_length - 1 here.
 *
 * NaN where the model gives NaN. TN_EVALUE when no target counts or a target is no token of the
 * tokenizer; what the dataset and the model raise. *out is zeros after an error. */
TN_API tn_status tn_evaluate_perplexity(void *m, tn_dataset *windows, const tn_tokenizer *tokenizer,
                                        tn_evaluate_options options, tn_perplexity *out);

/* ---- Multiple choice ------------------------------------------------------------------------- */

typedef struct tn_choice_scores {
    int64_t questions, endings;
    /* Shares of the questions whose right ending is that with the highest: */
    double acc;                /* log p(ending | prompt) */
    double acc_norm;           /* log p / characters, as lm-evaluation-harness's acc_norm has it */
    double acc_norm_per_token; /* log p / tokens, as llm.c's acc_norm */
} tn_choice_scores;

/* Of m over the questions of a file of JSON lines, with the fields of HellaSwag (Zellers et al.
 * 2019, arXiv:1905.07830): "ctx", the prompt; "endings", at least two; "label", the right one's
 * number from 0 (a number, or a text with one). Other fields are not looked at, empty lines left
 * out. An ending's tokens are those of a space and the ending (of the ending alone if it begins
 * with a space), after those of the prompt, whose beginning is cut off where both together have
 * more than the `context` that m sees at once, but for its last token. Of equal scores the first
 * one counts.
 *
 * TN_EIO; TN_EFORMAT names file and line: JSON that is wrong, a field that is missing or of another
 * kind, a prompt or an ending without a token, an ending longer than the context. *out is zeros
 * after an error. */
TN_API tn_status tn_evaluate_choices(void *m, const char *path, const tn_tokenizer *tokenizer,
                                     int64_t context, tn_evaluate_options options,
                                     tn_choice_scores *out);

#ifdef __cplusplus
}
#endif
#endif
