/* Makes a folder with a small GPT-2 that knows one text by heart, and its tokenizer, for which
 * every byte is a token:
 *
 *     speaker FOLDER TEXT
 *
 * After a prompt of n bytes it continues with the text from byte n on, whatever the prompt was, and
 * ends with <|endoftext|>: the embedding of a position is the token that comes after it, that of a
 * token is the token itself, and nothing else adds anything.
 */
#include "tests/support/byte_vocab.h"

#include <string.h>
#include <sys/stat.h>

#include <tern/tern.h>

static bool clear_entry(const tn_entry *entry, void *user) {
    if (tn_ndim(*entry->field) == 2) { tn_init_constant(*entry->field, 0.0); }
    return true;
}

int main(int argc, char **argv) {
    if (argc != 3) { return 64; }
    tn_on_error(tn_error_exit);
    const unsigned char *text = (const unsigned char *)argv[2];
    int64_t count = (int64_t)strlen(argv[2]);
    tn_gpt gpt;
    tn_gpt_options o = TN_WITH(tn_gpt, .vocab = BYTE_VOCAB, .width = BYTE_VOCAB,
                               .context = 2 * count + 8, .layers = 1, .heads = 1);
    tn_gpt_init(&gpt, o);
    {
        TN_SCOPE;
        TN_NO_GRAD;
        tn_tensor *tokens = tn_module_get(&gpt, "wte.weight"),
                  *positions = tn_module_get(&gpt, "wpe.weight");
        tn_module_each(&gpt, (tn_walk){0}, clear_entry, NULL);
        for (int64_t i = 0; i < BYTE_VOCAB; i++) {
            tn_fill_(tn_select(tn_select(tokens, 0, i), 0, i), 1.0);
        }
        for (int64_t p = 0; p < o.context; p++) {
            int64_t next = p + 1 < count ? text[p + 1] : BYTE_VOCAB - 1;
            tn_fill_(tn_select(tn_select(positions, 0, p), 0, next), 9.0);
        }
    }
    if (tn_lm_save(&gpt, argv[1]) != TN_OK) { return 1; }
    tn_tokenizer_free(byte_vocab_load(argv[1]));
    tn_module_finish(&gpt);
    return 0;
}
