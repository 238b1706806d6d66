/* What the readers of a tokenizer's files share. */
#ifndef TERN_DATA_TOKENIZER_LOAD_H
#define TERN_DATA_TOKENIZER_LOAD_H

#include "data/tokenizer/build.h"
#include "text/json.h"

/* An object of ids by token; `key` is its name in the file. */
bool tn__build_vocab(tn__build *b, const tn__json *vocab, const char *key);

/* Whether this is a tokenizer.json, not a vocabulary; the tokenizer read from it. */
bool tn__is_tokenizer_json(const tn__json *whole);
tn_tokenizer *tn__load_tokenizer_json(const tn__json *whole, const char *path);

/* "left right": the next pair. */
bool tn__build_line(tn__build *b, const char *line, size_t bytes, const char *where);

#endif
