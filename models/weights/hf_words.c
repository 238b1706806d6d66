/* The files beside a folder's weights that say how texts become tokens (hf.h). */
#include "core/file.h"
#include "core/folder.h"
#include "core/reader.h"
#include "models/weights/hf.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool copy_file(const char *from, const char *to, const char *operation) {
    tn__file f;
    size_t bytes;
    char *data = tn__read_whole(from, &bytes, operation);
    bool copied = false;
    if (data && tn__file_begin(&f, to, operation)) {
        tn__file_put(&f, data, bytes);
        copied = tn__file_commit(&f) == TN_OK;
    }
    free(data);
    return copied;
}

bool tn__hf_copy_words(const char *from, const char *to, const char *operation) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "added_tokens.json",
                                        "special_tokens_map.json",
                                        "generation_config.json"};
    bool copied = true, other = strcmp(from, to) != 0;
    for (size_t i = 0; other && copied && i < sizeof(names) / sizeof(names[0]); i++) {
        char *source = tn__folder_path(from, names[i], operation);
        char *target = source ? tn__folder_path(to, names[i], operation) : NULL;
        copied = target && (access(source, F_OK) != 0 || copy_file(source, target, operation));
        free(source);
        free(target);
    }
    return copied;
}
