/* 13. A program that only generates: from a folder of weights and a prompt, text as it is
 * generated.
 *
 *     13_generate DIR                            continues each line that it reads. DIR is a
 *                                                Hugging Face folder: GPT-2 or Llama
 *     13_generate DIR "Once upon a time"         continues this
 *     13_generate DIR "Once upon a time" int8    with 8-bit weights (bf16: 16-bit)
 *
 * Shows: loading, a tokenizer, sampling, a callback that prints whole characters, and what ends a
 * text.
 *
 * This is a program to deploy on another machine, as a single file:
 *
 *     cc -O2 -static 13_generate.c $(pkg-config --static --cflags --libs tern) -o 13_generate
 *
 * It has the kernels for all CPU levels, and chooses at run time. (The linker warns that libgomp
 * wants to load plugins for accelerators, which a static program cannot do.)
 */
#include <tern/tern.h>

#include <stdio.h>
#include <string.h>

typedef struct writer {
    tn_module *model;
    tn_tokenizer *tokenizer;
    tn_lm_specials specials; /* the tokens that begin and end texts */
    tn_utf8_stream stream;   /* a token may end inside a character */
} writer;

static bool print_token(const tn_generated_token *token, void *user) {
    writer *w = user;
    char text[4096];
    for (size_t at = 0, n; at < token->bytes;
         at += n) { /* usually a few bytes; long ones in parts */
        n = token->bytes - at < 1024 ? token->bytes - at : 1024;
        fwrite(text, 1, tn_utf8_put(&w->stream, token->text + at, n, text), stdout);
    }
    if (token->last) { fwrite(text, 1, tn_utf8_end(&w->stream, text), stdout); }
    return fflush(stdout) == 0; /* false ends the text */
}

static void answer_prompt(writer *w, const char *prompt) {
    tn_ids ids = {0};
    tn_tokenizer_encode_framed(w->tokenizer, prompt, strlen(prompt), true, &ids);

    tn_generated text;
    tn_generate(w->model, &(tn_prompt){ids.ids, ids.count}, 1,
                TN_WITH(tn_generate, .max_new = 200, .temperature = 0.8, .top_k = 200,
                        .tokenizer = w->tokenizer, .stop_tokens = w->specials.ends,
                        .stop_token_count = w->specials.end_count, .on_token = print_token,
                        .user = w),
                &text);
    putchar('\n');
    tn_generated_free(&text, 1);
    tn_ids_free(&ids);
}

int main(int argc, char **argv) {
    const char *dtype = argc > 3 ? argv[3] : "";
    if (argc < 2 || argc > 4 ||
        (*dtype && strcmp(dtype, "int8") != 0 && strcmp(dtype, "bf16") != 0)) {
        fprintf(stderr, "usage: %s DIR [PROMPT [int8|bf16]]\n", argv[0]);
        return 64;
    }
    tn_on_error(tn_error_exit); /* a script's choice: the first error is printed and ends it */

    tn_lm_load_options load = tn_lm_load_defaults();
    if (strcmp(dtype, "bf16") == 0) {
        load.as_stored = false;
        load.dtype = TN_BF16;
    }
    writer w = {.model = tn_lm_load(argv[1], load)};
    w.tokenizer = tn_tokenizer_load(argv[1]);
    tn_lm_specials_of(w.model, w.tokenizer, argv[1], &w.specials);
    tn_module_train(w.model, false); /* no dropout */
    if (strcmp(dtype, "int8") == 0) {
        tn_quantize(w.model); /* a scale per row; a quarter of the memory, and of the time */
    }

    char line[4096];
    if (argc > 2) { answer_prompt(&w, argv[2]); }
    while (argc == 2 && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = 0;
        answer_prompt(&w, line);
    }

    tn_tokenizer_free(w.tokenizer);
    tn_module_free(w.model);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
