/* tokens_so_far.json: the whole shards of an unfinished run, so that the same command goes on. For
 * each it has a digest of the file, and where in the texts its last token is: the number of the
 * batch (encoders.h). The parts of earlier batches need not be encoded again, and of this batch as
 * many tokens are left out as the shards already have.
 *
 * It is written anew after each shard. A shard that came too late to be in it is made again. */
#ifndef TERN_DATA_CORPUS_SO_FAR_H
#define TERN_DATA_CORPUS_SO_FAR_H

#include "core/digest.h"
#include "data/corpus/sources.h"
#include "tern/tokenizer.h"

#define TN__SO_FAR_JSON "tokens_so_far.json"

enum { TN__SPLITS = 2 };
extern const char *const tn__split_names[TN__SPLITS]; /* "train", "val" */

/* A split after a whole shard. Before the first one: zeros, but for `last`. */
typedef struct tn__point {
    int64_t shards, tokens; /* of the whole shards */
    int64_t batch;          /* in which the last of them ends; and before this batch: */
    int64_t before;         /* tokens of the split */
    int64_t last;           /* the piece that was written last; TN__NO_PIECE: none */
    int64_t longest;        /* pair, in tokens */
} tn__point;
enum { TN__NO_PIECE = -2 /* no piece comes after it, not even the first */ };

/* Zeros to begin with. */
typedef struct tn__so_far {
    const char *folder;
    char of[TN__DIGEST_DIGITS + 1]; /* what the texts and options are: tn__tokens_identity */
    struct tn__made *list;          /* the whole shards, in the order in which they were made */
    int64_t count, capacity;
} tn__so_far;

/* Writes a digest of all that the shards depend on: digits[TN__DIGEST_DIGITS + 1]. `here`: also of
 * names and times of the files, which need not be the same on another host. False after raising. */
bool tn__tokens_identity(const tn_tokenizer *t, int32_t eot, const tn_tokens_options *o,
                         const tn__sources *texts, bool here, char *digits);

/* Takes from the folder's file the shards that are of the same texts and options and have not
 * changed; points[TN__SPLITS] are where the splits go on. A file that is missing, damaged or of
 * something else is none. False after raising. */
bool tn__so_far_read(tn__so_far *s, tn__point *points);

/* Notes a shard, and writes the file. False after raising. */
bool tn__so_far_add(tn__so_far *s, int split, tn__point after, const char *path);

void tn__so_far_free(tn__so_far *s);

#endif
