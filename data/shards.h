/* Shards: the format of token files.
 *
 * A header of 256 little-endian int32, then the tokens, little-endian. The header's first words are
 *
 *     magic       version  word 2   word 3   tokens
 *     20240520    1        tokens            uint16    llm.c's
 *     20240801    7        tokens            uint32    llm.c's for vocabularies beyond 65536
 *     20261122    1        tokens   pairs    uint32    Tern's, for fine-tuning
 *
 * In the last of these the top bit of a token says that it is not a target: nothing is learned from
 * predicting it. After the tokens come the ends of the pairs, in tokens, as uint64. llm.c's
 * programs reject such a file instead of training on the prompts.
 *
 * Further words of the header, which no reader of tokens needs, say what `tern tokens` made the
 * shard from: a tn__shard_note, from word 4 on, little-endian. Other shards have zeros. */
#ifndef TERN_DATA_SHARDS_H
#define TERN_DATA_SHARDS_H

#include "core/digest.h"
#include "tern/data.h"

#include <inttypes.h>

#define TN__SHARD_NAME "%s_%06" PRId64 ".bin" /* a prefix, and which shard */

enum { TN__SHARD_WORDS = 256, TN__SHARD_HEAD = TN__SHARD_WORDS * 4 };

enum { TN__MAGIC_NARROW = 20240520, TN__MAGIC_WIDE = 20240801, TN__MAGIC_PAIRS = 20261122 };
enum { TN__VERSION_NARROW = 1, TN__VERSION_WIDE = 7, TN__VERSION_PAIRS = 1 };

enum { TN__NARROW_VOCAB = 65536 };        /* at most, for 16 bits */
#define TN__NO_TARGET (UINT32_C(1) << 31) /* the top bit of a token of a pair */

typedef struct tn__shard_note {
    uint32_t documents;
    uint32_t with_end;          /* texts that contain the end token's text */
    uint64_t text;              /* bytes */
    uint64_t longest;           /* pair, in tokens */
    char of[TN__DIGEST_DIGITS]; /* a digest of all that it depends on */
} tn__shard_note;

/* What is added next belongs to shard `number`: the one before is completed. `of` is
 * [TN__DIGEST_DIGITS]. */
tn_status tn__shards_writer_at(tn_shards_writer *w, int64_t number, const char *of);

/* Of the shard to which something was added last; the caller counts. */
tn__shard_note *tn__shards_writer_note(tn_shards_writer *w);

/* The note of a shard, and how many tokens it has. A file of anything else has zeros. False after
 * raising. */
bool tn__shard_look(const char *path, tn__shard_note *note, int64_t *tokens);

#endif
