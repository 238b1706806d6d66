/* The input is the index of a checkpoint in parts, next to one file with the pieces `a` (f32, 12
 * elements), `m` (bool, 3) and `s` (i64, 1); its digest is corrected first. It is refused with an
 * error, or everything that it lists can be requested in every layout, which returns an error or
 * every element. */
#include "tests/fuzz/folder.h"

#include "io/checkpoint/parts.h"
#include "nn/layout.h"
#include "tern/tern.h"

#include <string.h>
#include <xxhash.h>

enum { ELEMENTS_MOST = 1 << 12 };

static const char *index_folder;

static void make_index_folder(void) {
    TN_SCOPE;
    char path[128];
    index_folder = fuzz_folder_new();
    snprintf(path, sizeof(path), "%s/rank-00000.safetensors", index_folder);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "a", tn_arange(0, 12, 1, TN_F32));
    tn_safetensors_writer_add(w, "m",
                              tn_cast(TN_FROM(((uint8_t[]){1, 0, 1}), TN_DIMS(3), TN_U8), TN_BOOL));
    tn_safetensors_writer_add(w, "s", tn_full(TN_DIMS(1), 7, TN_I64));
    must_hold(tn_safetensors_writer_save(w, path) == TN_OK, "no file");
}

/* io/checkpoint/parts.h defines it; this is a second implementation of it. */
static void put_index_digest(char *text, size_t bytes) {
    char digits[TN__DIGEST_DIGITS + 1];
    if (bytes > TN__INDEX_DIGEST_AT + TN__DIGEST_DIGITS &&
        memcmp(text, TN__INDEX_BEFORE, TN__INDEX_DIGEST_AT) == 0) {
        memset(text + TN__INDEX_DIGEST_AT, '0', TN__DIGEST_DIGITS);
        XXH128_hash_t hash = XXH3_128bits(text, bytes);
        snprintf(digits, sizeof(digits), "%016llx%016llx", (unsigned long long)hash.high64,
                 (unsigned long long)hash.low64);
        memcpy(text + TN__INDEX_DIGEST_AT, digits, TN__DIGEST_DIGITS);
    }
}

/* Bytes after the requested ones do not change. */
static void fetch_one(const tn__index_tensor *t, const tn_layout *mine) {
    size_t size = tn_dtype_size(t->dtype), bytes = (size_t)mine->length * size;
    unsigned char *to = malloc(bytes + 16);
    memset(to, 0xEE, bytes + 16);
    WAS_TAKEN(tn__index_fetch(t, mine, to), NULL, TN_EFORMAT, TN_EIO, TN_ENOMEM);
    for (int i = 0; i < 16; i++) {
        must_hold(to[bytes + (size_t)i] == 0xEE, "bytes after the requested ones");
    }
    free(to);
}

static void fetch_all(const tn__index_tensor *t) {
    tn_layout mine = tn__layout_whole(t->whole);
    if (mine.length > ELEMENTS_MOST) { return; }
    fetch_one(t, &mine);
    mine.start = mine.length / 3;
    mine.length -= mine.start;
    fetch_one(t, &mine);
    if (t->whole.ndim > 0 && t->whole.size[0] % 2 == 0) {
        mine = (tn_layout){.whole = t->whole, .dim = 0, .pieces = 1, .slice = 1, .slices = 2};
        mine.length = tn_dims_count(t->whole) / 2;
        fetch_one(t, &mine);
    }
}

FUZZ(index, make_index_folder) {
    char *text = malloc(bytes + 1);
    memcpy(text, data, bytes);
    put_index_digest(text, bytes);
    tn__index *ix = tn__index_read(index_folder, text, bytes, "fuzz");
    WAS_TAKEN(ix != NULL, NULL, TN_EFORMAT, TN_ENOMEM);
    for (int i = 0; ix && i < ix->count; i++) {
        must_hold(tn__index_find(ix, ix->tensors[i].name) == &ix->tensors[i],
                  "a name is not found");
        fetch_all(&ix->tensors[i]);
    }
    tn__index_free(ix);
    free(text);
}
