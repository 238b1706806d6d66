/* Evaluating a language model: perplexity, and multiple choice by likelihood.
 *
 *     tn_dataset *windows = tn_sliding_shards("val_*.bin", 1024, 512, 50257);
 *     tn_perplexity p;
 *     if (tn_evaluate_perplexity(&gpt, windows, NULL, tn_evaluate_defaults(), &p) == TN_OK) {
 *         printf("%.2f\n", p.perplexity);
 *     }
 *     tn_dataset_free(windows);
 *
 * A model here is any module that maps tokens (B, T) i64 to logits (B, T, vocab) and is causal:
 * rows of different length are padded on the right. `tern eval` does this for a folder of weights.
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
    /* 4: rows (windows, or prompts with an ending) per call of the model; a call's logits take
     * 4 batch T vocab bytes in f32 */
    int64_t batch;
    /* NULL: only this process. Otherwise its ranks take the batches in turn; each calls with the
     * same arguments and gets the same result, bit for bit that of one rank. A sharded model
     * (tn_fsdp) is called equally often by all of them. Ranks that share each matrix
     * (tn_tensor_parallel), each sequence (tn_context_parallel) or the layers (tn_pipeline_new)
     * need the same batches: in a mesh the group is tn_spread_data, every rank calls, and any other
     * group is TN_EVALUE, or TN_EMISMATCH with the layers. Rows are
     * then padded to a length that the ranks of a sequence divide, within the model's context. */
    tn_group *group;
    FILE *progress; /* NULL; else rank 0 shows its progress there */
    bool from_defaults;
} tn_evaluate_options;
TN_API tn_evaluate_options tn_evaluate_defaults(void);

/* ---- Perplexity ------------------------------------------------------------------------------ */

typedef struct tn_perplexity {
    int64_t windows;
    int64_t tokens;    /* targets that count: those other than -100 */
    double loss;       /* the mean of -log p over them, in nats */
    double perplexity; /* exp(loss) */
    /* With a tokenizer: the loss of all targets that represent text, in bits, divided by the bytes
     * of that text; special tokens represent none. For comparing models with different
     * vocabularies. Otherwise 0 and NaN. */
    int64_t bytes;
    double bits_per_byte;
} tn_perplexity;

/* The perplexity of m over a dataset, x (T) tokens and y (T) the next token for each, i64; -100
 * does not count. The windows decide what is measured: tn_sliding_shards counts every token once.
 * With stride = context it is what nanoGPT and llm.c report; with a shorter stride each token has
 * more context and the figure is lower, at context / stride times the cost. Hugging Face's page on
 * perplexity also feeds the last token of each window, whose prediction it ignores: its figures for
 * max_length are those for windows of max_length - 1 here.
 *
 * NaN if the model gives NaN. TN_EVALUE if no target counts or a target is not a token of the
 * tokenizer; what the dataset and the model raise. *out is zeros after an error. */
TN_API tn_status tn_evaluate_perplexity(void *m, tn_dataset *windows, const tn_tokenizer *tokenizer,
                                        tn_evaluate_options options, tn_perplexity *out);

/* ---- Multiple choice ------------------------------------------------------------------------- */

typedef struct tn_choice_scores {
    int64_t questions, endings;
    /* Fraction of questions whose right ending has the highest: */
    double acc;                /* log p(ending | prompt) */
    double acc_norm;           /* log p / characters, like lm-evaluation-harness's acc_norm */
    double acc_norm_per_token; /* log p / tokens, like llm.c's acc_norm */
} tn_choice_scores;

/* Scores m on the questions of a JSON lines file, with the fields of HellaSwag (Zellers et al.
 * 2019, arXiv:1905.07830): "ctx", the prompt; "endings", at least two; "label", the right one's
 * number from 0 (a number, or a string with one). Other fields are ignored, empty lines skipped. An
 * ending is tokenised with a space in front (unless it begins with one), and follows the prompt's
 * tokens, whose beginning is cut off if both together, without the last token, have more than the
 * `context` that m sees at once. Of equal scores the first one counts.
 *
 * TN_EIO; TN_EFORMAT names file and line: invalid JSON, a field that is missing or of the wrong
 * type, a prompt or an ending without a token, an ending longer than the context. *out is zeros
 * after an error. */
TN_API tn_status tn_evaluate_choices(void *m, const char *path, const tn_tokenizer *tokenizer,
                                     int64_t context, tn_evaluate_options options,
                                     tn_choice_scores *out);

#ifdef __cplusplus
}
#endif
#endif
