/* What a tokenizer is, for the files that make, use and save one. */
#ifndef TERN_DATA_TOKENIZER_TOKENIZER_H
#define TERN_DATA_TOKENIZER_TOKENIZER_H

#include "core/alive.h"
#include "core/buffer.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/text_table.h"
#include "data/tokenizer/cut.h"

typedef enum tn__token_kind {
    TN__TOKEN_NONE,    /* a hole: no token has this id */
    TN__TOKEN_BYTES,   /* of the model: joined from bytes */
    TN__TOKEN_IDLE,    /* of the model, but no text becomes it */
    TN__TOKEN_ADDED,   /* found in the text before it is cut */
    TN__TOKEN_SPECIAL, /* the same, but only when the caller asks */
} tn__token_kind;

typedef struct tn__token {
    uint32_t at, bytes; /* in texts */
    tn__token_kind kind;
    bool late; /* of an added token: found only in what the others leave */
} tn__token;

/* Ids that the file puts around a text. */
enum { TN__MOST_AROUND = 8 };
typedef struct tn__around {
    int32_t before[TN__MOST_AROUND], after[TN__MOST_AROUND];
    int before_count, after_count;
} tn__around;

struct tn_tokenizer {
    tn__alive alive;
    char *texts;       /* of all tokens, a 0 after each */
    tn__token *tokens; /* [size] */
    int32_t size;
    int32_t of_byte[256]; /* -1: no token */
    tn__pairs pairs;
    tn__text_table pieces; /* those that are one token, with nothing to join */
    bool whole;            /* a piece that is a token is that token, whatever joining would give */
    bool prefix_space;     /* a text that does not begin with a space gets one */
    int32_t *added;        /* ids of added and special tokens, by their bytes */
    int added_count;
    bool has_late;
    uint8_t begins[256]; /* whether one of these begins with this byte */
    tn__patterns patterns;
    tn__around around;
};

/* After its allocation. */
void tn__tokenizer_begin(tn_tokenizer *t);
/* Whether the tokenizer, which is not NULL, was not freed; false after raising. */
bool tn__tokenizer_here(const tn_tokenizer *t, const char *operation);

/* The usual token that ends a text, "<|endoftext|>" or another; -1: none. */
int32_t tn__tokenizer_end(const tn_tokenizer *t);

/* Puts its tokenizer.json. False after raising. */
bool tn__tokenizer_put(tn__buffer *to, const tn_tokenizer *t);

/* The token at text[0 … bytes) that is found before the text is cut, the longest; -1: none. */
int32_t tn__added_at(const tn_tokenizer *t, const char *text, size_t bytes, bool special,
                     bool late);

/* One piece: appends its ids to `out`. False after raising. */
bool tn__encode_piece(const tn_tokenizer *t, const char *text, size_t bytes, tn__bpe_scratch *s,
                      tn_ids *out);

#endif
