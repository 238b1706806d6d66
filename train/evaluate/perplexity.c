/* perplexity = exp(sum of -log p / targets), over the windows of a dataset (evaluate.h).
 *
 *     bits per byte = sum of -log2 p over targets that are text / bytes of that text
 *
 * Sums are made row by row in f64 and added in the rows' order.
 */
#include "core/error.h"
#include "core/memory.h"
#include "train/evaluate/evaluate.h"

#include <math.h>
#include <string.h>

static const char operation[] = "evaluate_perplexity";

typedef struct windows {
    tn__token_rows rows;
    tn_dataset *dataset;
    tn__row_cost sum;
} windows;

static int64_t window_length(const tn__token_rows *self, int64_t row) {
    return ((const windows *)self)->dataset->x_dims.size[0];
}

static tn_status window_get(const tn__token_rows *self, int64_t row, int64_t *x, int64_t *y) {
    tn_dataset *d = ((const windows *)self)->dataset;
    return tn_dataset_get(d, row, x, y);
}

static void window_take(tn__token_rows *self, int64_t row, const tn__row_cost *cost) {
    tn__row_cost *sum = &((windows *)self)->sum;
    sum->nats += cost->nats;
    sum->targets += cost->targets;
    sum->text_nats += cost->text_nats;
    sum->bytes += cost->bytes;
}

/* Each token's bytes of text; NULL after raising. */
static int32_t *count_text_bytes(const tn_tokenizer *t, int64_t vocab) {
    int32_t *counts = tn__calloc_for((size_t)vocab, sizeof(*counts), operation);
    if (!counts) { return NULL; }
    for (int64_t id = 0; id < vocab; id++) {
        size_t bytes = 0;
        const char *text = tn_tokenizer_bytes(t, id, &bytes);
        bool special = text && tn_tokenizer_special(t, text) == id;
        counts[id] = text && !special ? (int32_t)bytes : 0;
    }
    return counts;
}

/* False after raising. */
static bool windows_fit(const tn_dataset *d) {
    if (!d || !d->get) {
        return tn__fail(TN_EVALUE, operation, "the dataset is NULL or has no get");
    }
    bool tokens = d->x_dims.ndim == 1 && d->y_dims.ndim == 1 && d->x_dims.size[0] >= 1 &&
                  d->x_dims.size[0] == d->y_dims.size[0];
    if (!tokens || d->x_dtype != TN_I64 || d->y_dtype != TN_I64) {
        return tn__fail(
            TN_ESHAPE, operation,
            "the examples of the dataset \"%s\" must be i64 tokens and as many i64 targets, "
            "of one dimension",
            d->kind);
    }
    return true;
}

static tn_status say_perplexity(const windows *w, tn_perplexity *out) {
    if (w->sum.targets == 0) {
        return tn__raise(TN_EVALUE, operation, "no target counts: all are -100");
    }
    *out = (tn_perplexity){.windows = w->rows.count,
                           .tokens = (int64_t)w->sum.targets,
                           .loss = w->sum.nats / w->sum.targets,
                           .bytes = (int64_t)w->sum.bytes,
                           .bits_per_byte = w->sum.text_nats / log(2) / w->sum.bytes};
    out->perplexity = exp(out->loss);
    return TN_OK;
}

tn_status tn_evaluate_perplexity(void *m, tn_dataset *dataset, const tn_tokenizer *tokenizer,
                                 tn_evaluate_options options, tn_perplexity *out) {
    if (!out) { return tn__raise(TN_EVALUE, operation, "the result is NULL"); }
    *out = (tn_perplexity){0};
    if (tn__pending() || !tn__options_made(options.from_defaults, operation, "tn_evaluate") ||
        !windows_fit(dataset)) {
        return tn_error();
    }
    int64_t vocab = tokenizer ? tn_tokenizer_size(tokenizer) : 0;
    int32_t *text_bytes = tokenizer ? count_text_bytes(tokenizer, vocab) : NULL;
    windows w = {.rows = {.operation = operation,
                          .count = dataset->size,
                          .length = window_length,
                          .get = window_get,
                          .take = window_take,
                          .text_bytes = text_bytes,
                          .vocab = vocab},
                 .dataset = dataset};
    if (tn_error() == TN_OK && tn__evaluate_rows(m, &w.rows, options) == TN_OK) {
        say_perplexity(&w, out);
    }
    free(text_bytes);
    return tn_error();
}
