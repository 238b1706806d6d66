/* Tokenizers: text to token ids and back, by byte-level BPE (Sennrich et al. 2016,
 * arXiv:1508.07909; over bytes: Radford et al. 2019), as used by GPT-2 and Llama 3.
 *
 *     tn_tokenizer *t = tn_tokenizer_load("gpt2");             // a Hugging Face folder
 *     tn_ids ids = {0};
 *     tn_tokenizer_encode(t, text, strlen(text), false, &ids); // ids.ids[0 … ids.count)
 *     size_t bytes;
 *     char *again = tn_tokenizer_decode(t, ids.ids, ids.count, &bytes);
 *     tn_text_free(again);
 *     tn_ids_free(&ids);
 *     tn_tokenizer_free(t);
 *
 * A text is cut into pieces by a regular expression, and the bytes of a piece are joined pair by
 * pair, best pair first, until the vocabulary has no token for any pair. The ids are those of
 * Hugging Face's `tokenizers` with add_special_tokens=False.
 *
 * Any bytes can be encoded, and decoding gives them back. Invalid UTF-8: each maximal run of bytes
 * that belong to no character is a separate piece, and the text before and after it is encoded as
 * if it were alone.
 *
 * A tokenizer does not change once it is made: any number of threads can use it at the same time.
 *
 * Read next: data/tokenizer/tokenizer.c, data/tokenizer/bpe.c.
 */
#ifndef TERN_TOKENIZER_H
#define TERN_TOKENIZER_H

#include "data.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_tokenizer tn_tokenizer;

/* `path` is a Hugging Face folder, or a file: tokenizer.json (byte-level BPE: GPT-2's kind and
 * Llama 3's), or vocab.json or merges.txt, which need each other and use GPT-2's pattern. NULL
 * after TN_EIO, TN_EFORMAT (the message names file, place or key) or TN_ENOMEM. */
TN_API tn_tokenizer *tn_tokenizer_load(const char *path);

TN_API void tn_tokenizer_free(tn_tokenizer *t); /* NULL is fine */

TN_API int64_t tn_tokenizer_size(const tn_tokenizer *t); /* ids are 0 … size-1; for NULL: 0 */

/* The id of a special token, "<|endoftext|>"; -1 if there is none of this name. Special tokens are
 * those marked in the file; for vocab.json and merges.txt the tokens that no merge produces. */
TN_API int32_t tn_tokenizer_special(const tn_tokenizer *t, const char *text);

/* ---- Encoding -------------------------------------------------------------------------------- */

/* A growing list of ids, zero-initialised; ids is malloc'ed. */
typedef struct tn_ids {
    int32_t *ids;
    int64_t count, capacity;
} tn_ids;
TN_API void tn_ids_free(tn_ids *ids); /* leaves zeros */

/* Appends the ids of text[0 … bytes) to out. `special`: true turns the text of a special token (the
 * longest, if several match) into that token; false treats it as ordinary text, as untrusted input
 * must be. After an error `out` is unchanged: TN_EVALUE (a byte for which the vocabulary has no
 * token; a piece above 2 GiB), TN_ENOMEM. */
TN_API tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, size_t bytes,
                                     bool special, tn_ids *out);

/* The same, and around it the tokens that the file puts before and after a text, as
 * `tokenizer(text)` of transformers: those of the post processor of tokenizer.json. They are no
 * part of the text: `special` does not matter to them. */
TN_API tn_status tn_tokenizer_encode_framed(const tn_tokenizer *t, const char *text, size_t bytes,
                                            bool special, tn_ids *out);

typedef struct tn_rows_options {
    int64_t max_length; /* 0: any. Of a longer text the first ids are taken */
    int64_t multiple;   /* 1. Of this L is a multiple: ranks that share a row split it evenly */
    int64_t pad;        /* -1: <|endoftext|>, <|end_of_text|> or </s>, the first that exists */
    bool special;       /* false: as in tn_tokenizer_encode */
    bool from_defaults;
} tn_rows_options;
TN_API tn_rows_options tn_rows_defaults(void);

/* A batch of texts: (n, L) i64 on the CPU, where L is the longest row, rounded up to a multiple of
 * `multiple`, also beyond max_length. Row i begins with lengths[i] ids of text i; `pad` follows.
 * lengths: (n) i64, or NULL: not wanted. tn_lm_targets makes targets of both. As `tokenizer(texts,
 * padding=True, truncation=True, pad_to_multiple_of=multiple, add_special_tokens=False)` of
 * transformers, with lengths in the place of a mask. TN_EVALUE, TN_ENOMEM. */
TN_API tn_tensor *tn_tokenizer_encode_rows(const tn_tokenizer *t, const char *const *texts,
                                           int64_t n, tn_rows_options o, tn_tensor **lengths);

/* ---- Decoding -------------------------------------------------------------------------------- */

/* The bytes of one token, which live as long as the tokenizer; a 0 follows them. They need not be
 * whole characters. An id in range without a token has no bytes. NULL and TN_EINDEX out of
 * range. */
TN_API const char *tn_tokenizer_bytes(const tn_tokenizer *t, int64_t id, size_t *bytes);

/* The bytes of n tokens and a 0; free them with tn_text_free. NULL after TN_EINDEX, TN_ENOMEM. */
TN_API char *tn_tokenizer_decode(const tn_tokenizer *t, const int32_t *ids, int64_t n,
                                 size_t *bytes);

/* Whole characters from tokens that may end inside one, for display. Zero-initialised. The total
 * output is the text with U+FFFD for invalid UTF-8, as from bytes.decode("utf-8", "replace") in
 * Python, however it was divided. */
typedef struct tn_utf8_stream {
    char held[4]; /* the beginning of a character */
    int count;
} tn_utf8_stream;

/* Writes to out the characters that these bytes complete, and returns how many bytes it wrote: at
 * most TN_UTF8_BOUND(bytes). */
#define TN_UTF8_BOUND(bytes) (3 * ((size_t)(bytes) + 3))
TN_API size_t tn_utf8_put(tn_utf8_stream *s, const char *from, size_t bytes, char *out);

/* At the end of the text: the replacement for an incomplete character. At most 3 bytes. */
TN_API size_t tn_utf8_end(tn_utf8_stream *s, char *out);

/* ---- Making and saving ----------------------------------------------------------------------- */

typedef struct tn_tokenizer_train_options {
    int64_t vocab;     /* 50257: the maximum, including the 256 bytes and the special tokens */
    int64_t min_count; /* 0: pairs that occur less often do not become tokens */
    /* "gpt2": the pattern that cuts text; also "cl100k", "llama3", "o200k", or an expression of
     * Oniguruma's, as in tokenizer.json (docs/tokenizer.md). */
    const char *pattern;
    /* {"<|endoftext|>"}: special tokens, whose ids follow the others. */
    const char *const *special;
    int special_count; /* 1 */
    bool from_defaults;
} tn_tokenizer_train_options;
TN_API tn_tokenizer_train_options tn_tokenizer_train_defaults(void);

/* A vocabulary from texts[0 … n) of bytes[i] each: the bytes, in GPT-2's order, then repeatedly the
 * merge of the most frequent pair. The merges are those of `tokenizers` (BpeTrainer) for the same
 * texts. Time grows with the length of the texts, memory with the distinct pieces in them. NULL
 * after TN_EVALUE, TN_EFORMAT (the pattern), TN_ENOMEM. */
TN_API tn_tokenizer *tn_tokenizer_train(const char *const *texts, const size_t *bytes, int64_t n,
                                        tn_tokenizer_train_options o);

/* Writes into a folder, which is made if missing: tokenizer.json and tokenizer_config.json, for
 * `tokenizers` and `transformers`. Files of these names are replaced. TN_EIO, TN_ENOMEM. */
TN_API tn_status tn_tokenizer_save(const tn_tokenizer *t, const char *folder);

/* ---- Texts to shards ------------------------------------------------------------------------- */

/* The progress of tn_tokens_make, and at the end its result. */
typedef struct tn_tokens_made {
    int64_t files, bytes, read; /* input files and their bytes */
    int64_t text;               /* bytes of text */
    int64_t with_end;           /* texts that contain the end token's text, as ordinary text */
    int64_t documents;          /* or pairs */
    int64_t longest;            /* pair, in tokens */
    int64_t train, val;         /* tokens, including those between documents */
    int64_t train_shards, val_shards; /* known at the end */
    int64_t kept;                     /* shards of an unfinished run that were not made again */
} tn_tokens_made;

typedef struct tn_tokens_options {
    tn_corpus_options corpus; /* how to read the texts */
    const char *eot; /* NULL: <|endoftext|>, <|end_of_text|> or </s>, the first that exists */

    /* The fraction of documents for validation, below 1: one of every 1 / val consecutive
     * documents, chosen by its number and the seed. From a plain text that is one document, pieces
     * are drawn. Or the first val_documents. Both 0: none. */
    double val;
    int64_t val_documents;
    uint64_t seed; /* 1337 */

    int64_t shard_bytes; /* 400000000: of text, for each shard; at most 10^9 */
    int threads;         /* 0: tn_threads() */
    bool overwrite;      /* false: a folder that has shards is TN_ESTATE */
    void (*progress)(const tn_tokens_made *so_far,
                     void *user); /* several times a second, or NULL */
    void *user;
    bool from_defaults;
} tn_tokens_options;
TN_API tn_tokens_options tn_tokens_defaults(void);

/* Makes shards of tokens from texts: `out`/train_000000.bin and so on, val_000000.bin, and a
 * tokens.json that says what they are. Files are read as by tn_corpus_open and written as by
 * tn_shards_writer; tokens are those of tn_tokenizer_encode with `special` false. `eot` comes
 * before every document, as in llm.c, and where a piece of a text follows one drawn for validation.
 * A pair's tokens are the prompt's, the completion's and `eot`; an empty prompt becomes `eot`.
 *
 * The same bytes for any number of threads. A shard ends when it has `shard_bytes` of text; it is
 * written whole or not at all, and tokens.json says whether all are complete. After a crash the
 * same call, with the same tokenizer and files that have not changed, goes on: it keeps the shards
 * that are there, whose headers say what they are from, and makes the others. A different call
 * starts over, and nothing of the first remains. Only one call at a time writes into a folder.
 * `made` may be NULL.
 *
 * TN_EVALUE, TN_EIO, TN_EFORMAT (file and line), TN_ENOMEM, TN_ESTATE. */
TN_API tn_status tn_tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                                const char *out, tn_tokens_options options, tn_tokens_made *made);

/* Checks that the files matching `pattern` have this tokenizer's tokens, if a tokens.json beside
 * them tells: another one's are TN_EMISMATCH. TN_EVALUE, TN_EIO, TN_EFORMAT. */
TN_API tn_status tn_token_shards_check(const char *pattern, const tn_tokenizer *tokenizer);

#ifdef __cplusplus
}
#endif
#endif
