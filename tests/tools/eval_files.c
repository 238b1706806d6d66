/* eval_files FOLDER: what `tern eval` reads, for its tests. FOLDER gets a small GPT with the
 * tokenizer of bytes, and shards. */
#include <stdio.h>
#include <stdlib.h>
#include <tern/tern.h>

#include "tests/support/byte_vocab.h"

static void write_tokens(const char *folder) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/val_0.bin", folder);
    FILE *file = fopen(path, "wb");
    for (int i = 0; file && i < 150; i++) {
        uint16_t token = (uint16_t)((7 * i + i * i % 31) % 256);
        fwrite(&token, sizeof(token), 1, file);
    }
    if (!file || fclose(file) != 0) { exit(1); }
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    if (argc != 2) { return 64; }
    tn_gpt gpt;
    tn_gpt_options o =
        TN_WITH(tn_gpt, .vocab = BYTE_VOCAB, .context = 24, .layers = 2, .heads = 2, .width = 32);
    tn_seed(1);
    tn_gpt_init(&gpt, o);
    if (tn_lm_save(&gpt, argv[1]) != TN_OK) { return 1; }
    tn_module_finish(&gpt);
    tn_tokenizer_free(byte_vocab_load(argv[1]));
    write_tokens(argv[1]);
    return 0;
}
