/* A tokenizer in the making: tokens and pairs by name, as files have them. Errors name the file. */
#ifndef TERN_DATA_TOKENIZER_BUILD_H
#define TERN_DATA_TOKENIZER_BUILD_H

#include "core/plain_text.h"
#include "data/tokenizer/tokenizer.h"

/* How a token's bytes are written. */
typedef enum tn__spelling {
    TN__AS_IS,
    TN__IN_ALPHABET, /* byte_alphabet.h; a token with other characters stays as it is, idle */
} tn__spelling;

typedef struct tn__named_token {
    const char *text; /* lent until the end */
    uint32_t bytes;
    int32_t id;
    tn__token_kind kind;
    bool made; /* by a pair */
    bool late; /* as in tn__token */
} tn__named_token;

typedef struct tn__build {
    const char *operation, *path; /* for messages */
    tn__spelling spelling;
    tn__named_token *tokens;
    uint32_t count;
    int64_t capacity;
    tn__text_table by_text; /* of each token: its place in `tokens` */
    tn_tokenizer *t;
    int32_t rank; /* of the next pair */
} tn__build;

/* All of these return false after raising; call tn__build_end in any case. */
bool tn__build_begin(tn__build *b, const char *operation, const char *path, tn__spelling spelling);

/* A token of the model (TN__TOKEN_BYTES), or one that is added; an added one may be of the model
 * too, with the same id. */
bool tn__build_token(tn__build *b, const char *text, size_t bytes, int64_t id, tn__token_kind kind);

/* Makes the added token of this text, which must be there, late. */
void tn__build_late(tn__build *b, const char *text, size_t bytes);

/* The next pair in rank, by the names of its tokens; `where`: its place, "merges.txt:17". */
bool tn__build_pair(tn__build *b, const char *left, size_t left_bytes, const char *right,
                    size_t right_bytes, const char *where);

/* Tokens of several bytes that no pair makes are special. */
void tn__build_mark_special(tn__build *b);
bool tn__build_pattern(tn__build *b, const char *text, bool literal);

/* The tokenizer; NULL after raising, and when `done` is false. Frees b. */
tn_tokenizer *tn__build_end(tn__build *b, bool done);

#endif
