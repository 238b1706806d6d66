/* Writes the probabilities of next tokens, for test_pypi_sample.py to compare:
 *
 *     dump_sample VOCAB <logits >probabilities
 *
 * Reads rows of f32 logits, each followed by f64 repetition penalty, temperature, top_k, top_p, a
 * count, and that many i32 earlier tokens; writes f32 probabilities, 0 for excluded tokens.
 */
#include "models/generate/sample.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static void need_items(void *to, size_t bytes, size_t count) {
    if (fread(to, bytes, count, stdin) != count) { exit(1); }
}

int main(int argc, char **argv) {
    int64_t vocab = argc > 1 ? atol(argv[1]) : 0;
    float *row = malloc((size_t)vocab * sizeof(*row));
    int32_t *before = malloc((size_t)vocab * sizeof(*before));
    bool *met = malloc((size_t)vocab);
    tn__candidates c;
    if (vocab < 1 || !row || !before || !met || tn__candidates_init(&c, vocab) != TN_OK) {
        return 1;
    }
    while (fread(row, sizeof(*row), (size_t)vocab, stdin) == (size_t)vocab) {
        double how[5];
        need_items(how, sizeof(*how), 5);
        need_items(before, sizeof(*before), (size_t)how[4]);
        for (int64_t i = 0; i < vocab; i++) {
            met[i] = false;
        }
        for (int64_t i = 0; i < (int64_t)how[4]; i++) {
            met[before[i]] = true;
        }
        tn__sample_penalize(row, met, vocab, how[0]);
        tn__sample_candidates(row, vocab, (tn__sampling){how[1], (int64_t)how[2], how[3]}, &c);
        double sum = 0.0;
        for (int64_t i = 0; i < c.count; i++) {
            sum += (double)c.weights[i];
        }
        for (int64_t i = 0; i < vocab; i++) {
            row[i] = 0.0f;
        }
        for (int64_t i = 0; i < c.count; i++) {
            row[c.tokens[i]] = (float)((double)c.weights[i] / sum);
        }
        if (fwrite(row, sizeof(*row), (size_t)vocab, stdout) != (size_t)vocab) { return 1; }
    }
    tn__candidates_finish(&c);
    free(row);
    free(before);
    free(met);
    return fflush(stdout) != 0;
}
