/* The files beside a folder's weights that say how texts become tokens (hf.h). */
#include "core/folder.h"
#include "models/weights/hf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "added_tokens.json",
                                    "special_tokens_map.json",
                                    "generation_config.json"};

bool tn__hf_is_words(const char *name) {
    bool found = false;
    for (size_t i = 0; !found && i < sizeof(names) / sizeof(names[0]); i++) {
        found = strcmp(name, names[i]) == 0;
    }
    return found;
}

bool tn__hf_copy_words(const char *from, const char *to, const char *operation) {
    bool copied = true;
    for (size_t i = 0; copied && i < sizeof(names) / sizeof(names[0]); i++) {
        char *source = tn__folder_path(from, names[i], operation);
        char *target = source ? tn__folder_path(to, names[i], operation) : NULL;
        copied =
            target && (access(source, F_OK) != 0 || tn__hf_copy_file(source, target, operation));
        free(source);
        free(target);
    }
    return copied;
}
