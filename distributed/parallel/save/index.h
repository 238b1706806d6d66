/* What lies where in a checkpoint in parts: the names, and of each the pieces it is made of.
 *
 *     folder/step-000100/index.json               this
 *     folder/step-000100/rank-00003.safetensors   pieces, each of 1 dimension, by name
 *
 *     {"digest":"…","format":"tern-parts-1",
 *      "metadata":{…},                            as in a checkpoint of one file (io/metadata.c)
 *      "files":[{"name":"rank-00000.safetensors","bytes":…}, …],
 *      "tensors":{"model.wte.weight":{"dtype":"F32","whole":[50257,768],"pieces":[
 *          {"file":0,"digest":"…","dim":-1,"pieces":1,"slice":0,"slices":1,"start":0,"length":…},
 *          …]}, …}}
 *
 * The digest is XXH3's of the file with '0' in its place; a piece has its own, so that a rank reads
 * the pieces which meet its own and no more. A checkpoint of one file is an index too: of one file,
 * in which every tensor is one whole piece, with a digest over the whole.
 *
 * An index is believed as little as any file: names of files are made here, layouts are checked,
 * and what is read must fit them exactly.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_INDEX_H
#define TERN_DISTRIBUTED_PARALLEL_INDEX_H

#include "core/digest.h"
#include "io/safetensors.h"
#include "tern/parallel.h"

#define TN__INDEX_NAME "index.json"
#define TN__INDEX_FORMAT "tern-parts-1"
#define TN__INDEX_BEFORE "{\"digest\":\""
enum {
    TN__INDEX_DIGEST_AT = sizeof(TN__INDEX_BEFORE) - 1,
    TN__INDEX_MOST = 256 << 20, /* bytes: a larger one is not read */
};

typedef struct tn__piece {
    int file;
    const char *digest; /* NULL: the file's own holds for it */
    tn_layout layout;
} tn__piece;

typedef struct tn__index_tensor {
    const char *name;
    tn_dtype dtype;
    tn_dims whole;
    const tn__piece *pieces; /* [count] */
    int count;
} tn__index_tensor;

typedef struct tn__index {
    char *path; /* of the index, or of the one file: for messages */
    const tn__labels *labels;
    const char *digest;
    tn__index_tensor *tensors; /* [count], by name */
    int count;

    /* Its own. */
    bool single; /* one file, with whole tensors */
    tn__json_file json;
    tn__labels own_labels;
    tn__piece *pieces;
    struct {
        char *path;
        int64_t bytes;
        tn_safetensors *open; /* since it was needed first */
    } * files;
    int file_count;
    char *chunk; /* to read through */
} tn__index;

/* The name of a rank's file, to text[room]. */
void tn__index_file(int rank, char *text, size_t room);

/* The text of folder/index.json; the caller frees. NULL after raising. */
char *tn__index_text(const char *folder, size_t *bytes, const char *operation);

/* From `bytes` of text that stood in folder/index.json. NULL after raising TN_EFORMAT, TN_ENOMEM.
 */
TN_API tn__index *tn__index_read(const char *folder, const char *text, size_t bytes,
                                 const char *operation);
/* A checkpoint of one file; reads all of it once, for its digest. NULL after raising. */
tn__index *tn__index_of_file(const char *path, const char *operation);
TN_API void tn__index_free(tn__index *ix); /* NULL is fine */

/* NULL: there is none. */
TN_API const tn__index_tensor *tn__index_find(const tn__index *ix, const char *name);

/* Reads the elements of t that `mine` has, in their order, to `to`. False after raising: TN_EFORMAT
 * (files that do not fit, pieces that overlap or leave gaps, digests), TN_EIO, TN_ENOMEM. */
TN_API bool tn__index_fetch(tn__index *ix, const tn__index_tensor *t, const tn_layout *mine,
                            void *to, const char *operation);

/* ---- Layouts as JSON, for the index and for what ranks tell each other ----------------------- */

/* The members from "dim" to "length", without brackets. */
void tn__layout_put(tn__json_text *j, const tn_layout *l);
/* From an object that has them; false: they are not there, or no layout of `whole`. */
bool tn__layout_get(const tn__json *object, const tn_dims *whole, tn_layout *l);
bool tn__dims_get(const tn__json *list, tn_dims *dims);
/* *number from `least` to `most`. */
bool tn__whole_get(const tn__json *object, const char *key, int64_t least, int64_t most,
                   int64_t *number);
const char *tn__text_get(const tn__json *object, const char *key); /* NULL: no text */

#endif
