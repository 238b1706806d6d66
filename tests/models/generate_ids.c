/* What test_pypi_generate.py compares: the most likely continuations of prompts, in one batch.
 *
 *     generate_ids FOLDER MAX_NEW MIN_NEW PENALTY STOP PROMPT...
 *
 * A prompt is 3,1,4; a STOP of -1 is none. Writes a line of tokens for each prompt.
 */
#include <stdio.h>
#include <stdlib.h>

#include <tern/tern.h>

enum { MOST = 16, LONGEST = 512 };

static tn_prompt read_prompt(const char *text) {
    int32_t *ids = malloc(LONGEST * sizeof(*ids));
    int64_t count = 0;
    for (char *at = (char *)text; ids && *at && count < LONGEST; at += *at == ',') {
        ids[count++] = (int32_t)strtol(at, &at, 10);
    }
    return (tn_prompt){ids, count};
}

int main(int argc, char **argv) {
    if (argc < 7 || argc > 6 + MOST) { return 64; }
    tn_on_error(tn_error_exit);
    tn_module *m = tn_lm_load(argv[1], tn_lm_load_defaults());
    tn_prompt prompts[MOST];
    int n = argc - 6;
    for (int i = 0; i < n; i++) {
        prompts[i] = read_prompt(argv[6 + i]);
    }
    tn_generate_options o = TN_WITH(tn_generate, .temperature = 0.0, .max_new = atoi(argv[2]),
                                    .min_new = atoi(argv[3]), .repetition_penalty = atof(argv[4]));
    int32_t stop = atoi(argv[5]);
    o.stop_tokens = &stop;
    o.stop_token_count = stop >= 0;
    tn_generated out[MOST];
    tn_generate(m, prompts, n, o, out);
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < out[i].tokens.count; k++) {
            printf("%d ", out[i].tokens.ids[k]);
        }
        printf("\n");
        free((void *)prompts[i].ids);
    }
    tn_generated_free(out, n);
    tn_module_free(m);
    return 0;
}
