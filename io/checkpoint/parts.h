/* The index of a checkpoint in parts: its tensors' names, and the pieces of each.
 *
 *     folder/step-000100/index.json               this
 *     folder/step-000100/rank-00003.safetensors   pieces, each of 1 dimension, by name
 *
 *     {"digest":"…","format":"tern-parts-1",
 *      "metadata":{…},                            as in one file (io/checkpoint/metadata.c)
 *      "files":[{"name":"rank-00000.safetensors","bytes":…}, …],
 *      "tensors":{"model.wte.weight":{"dtype":"F32","whole":[50257,768],"pieces":[
 *          {"file":0,"digest":"…","dim":-1,"pieces":1,"slice":0,"slices":1,"start":0,"length":…},
 *          …]}, …}}
 *
 * The digest is XXH3's over the file with '0' in its place; a piece has its own, so that a rank
 * reads only the pieces that overlap its own.
 *
 * An index is not trusted: file names are made here, layouts are checked, and what is read must fit
 * them exactly.
 */
#ifndef TERN_IO_CHECKPOINT_PARTS_H
#define TERN_IO_CHECKPOINT_PARTS_H

#include "core/digest.h"
#include "io/safetensors.h"
#include "io/state.h"
#include "tern/io.h"

#define TN__INDEX_NAME "index.json"
#define TN__INDEX_FORMAT "tern-parts-1"
#define TN__INDEX_BEFORE "{\"digest\":\""
enum {
    TN__INDEX_DIGEST_AT = sizeof(TN__INDEX_BEFORE) - 1,
    TN__INDEX_MOST = 256 << 20, /* bytes: a larger one is not read */
};

typedef struct tn__piece {
    int file;
    const char *digest;
    tn_layout layout;
} tn__piece;

typedef struct tn__index_tensor {
    struct tn__index *index; /* that contains it */
    const char *name;
    tn_dtype dtype;
    tn_dims whole;
    const tn__piece *pieces; /* [count] */
    int count;
} tn__index_tensor;

typedef struct tn__index {
    const char *operation; /* static text, for messages */
    char *path;
    const tn__json *metadata;
    const char *digest;
    tn__index_tensor *tensors; /* [count], by name */
    int count;
    int *damaged; /* NULL; gets the number of a file that a piece could not be read from */

    /* Private. */
    tn__json_file json;
    tn__piece *pieces;
    int piece_count;
    struct {
        char *path;
        int64_t bytes;
        tn_safetensors *open; /* once needed */
    } * files;
    int file_count;
    char *chunk; /* to read through */
} tn__index;

/* Writes the name of a rank's file to text[size]. */
void tn__index_file(int rank, char *text, size_t size);

/* The text of folder/index.json; the caller frees. NULL after raising. */
char *tn__index_text(const char *folder, size_t *bytes, const char *operation);

/* Parses folder/index.json's text, of `bytes`. NULL after raising TN_EFORMAT, TN_ENOMEM. */
TN_API tn__index *tn__index_read(const char *folder, char *text, size_t bytes,
                                 const char *operation);
TN_API void tn__index_free(tn__index *ix); /* NULL is fine */

/* NULL if there is none. */
TN_API const tn__index_tensor *tn__index_find(const tn__index *ix, const char *name);

/* Reads the elements of t that `mine` has, in their order, to `to`. False after raising: TN_EFORMAT
 * (files that do not fit, pieces that overlap or leave gaps, digests), TN_EIO, TN_ENOMEM. */
TN_API bool tn__index_fetch(const tn__index_tensor *t, const tn_layout *mine, void *to);

/* To match a state with. */
tn__source tn__index_source(tn__index *ix);

#endif
