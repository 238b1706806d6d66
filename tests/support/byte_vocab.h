/* A tokenizer without merges: a token for each byte, and <|endoftext|>, from GPT-2's two files. */
#ifndef TERN_TESTS_SUPPORT_BYTE_VOCAB_H
#define TERN_TESTS_SUPPORT_BYTE_VOCAB_H

#include "data/tokenizer/byte_alphabet.h"
#include "tern/tokenizer.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTE_VOCAB = 257 };

/* Byte b is token b. Writes the two files to an existing folder; NULL after an error. */
static inline tn_tokenizer *byte_vocab_load(const char *folder) {
    const tn__byte_alphabet letters = tn__byte_alphabet_make();
    char path[1024];
    snprintf(path, sizeof(path), "%s/vocab.json", folder);
    FILE *vocab = fopen(path, "w");
    for (int b = 0; vocab && b < 256; b++) {
        fprintf(vocab, "%s\"\\u%04x\": %d", b ? ", " : "{", (unsigned)letters.character[b], b);
    }
    snprintf(path, sizeof(path), "%s/merges.txt", folder);
    FILE *merges = vocab ? fopen(path, "w") : NULL;
    bool written = merges && fprintf(vocab, ", \"<|endoftext|>\": 256}\n") > 0 &&
                   fprintf(merges, "#version: 0.2\n") > 0;
    written = (!vocab || fclose(vocab) == 0) && written;
    written = (!merges || fclose(merges) == 0) && written;
    return written ? tn_tokenizer_load(folder) : NULL;
}

/* The files and the folder. */
static inline void byte_vocab_remove(const char *folder) {
    static const char *const names[] = {"vocab.json", "merges.txt"};
    char path[1024];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

#endif
