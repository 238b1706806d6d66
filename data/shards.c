/* Token shards: long token sequences in files of 16-bit numbers, as llm.c and nanoGPT write them.
 *
 * A shard is a file of little-endian uint16 tokens. llm.c's begin with 256 int32: the magic number,
 * the version and the number of tokens; nanoGPT's have no head. Shards are mapped, not read: a
 * corpus may be larger than memory. An example is a window of `length` tokens and the same one
 * further. Windows follow each other without overlap and do not cross from one shard into the next,
 * so what remains at a shard's end, less than a window, is left out.
 */
#include "core/error.h"
#include "core/memory.h"
#include "tern/data.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD_WORDS = 256, HEAD_BYTES = HEAD_WORDS * 4, VERSION = 1 };
enum { MAGIC = 20240520, MAGIC_WIDE = 20240801 /* 32 bits a token */ };

typedef struct shard {
    unsigned char *map; /* the whole file */
    size_t bytes;
    const unsigned char *tokens;
    int64_t count; /* tokens */
    int64_t first; /* number of its first window */
    int64_t windows;
    char *path;
} shard;

typedef struct shards {
    tn_dataset base;
    int64_t length, vocab;
    int count;
    shard list[];
} shards;

/* ---- One file -------------------------------------------------------------------------------- */

static int32_t word_at(const unsigned char *map, int i) {
    const unsigned char *b = map + 4 * i;
    return (int32_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 |
                     (uint32_t)b[3] << 24);
}

static int64_t token_at(const shard *s, int64_t i) {
    return s->tokens[2 * i] | s->tokens[2 * i + 1] << 8;
}

/* Whether the file's beginning has no byte that text has not. Tokens are below 8192 most of the
 * time, so that the upper byte of a pair is a control character; 256 bytes of random tokens look
 * like text once in 10^13. */
static bool looks_like_text(const shard *s) {
    enum { LEAST = 256, MOST = 4096 };
    size_t bytes = s->bytes < MOST ? s->bytes : MOST;
    bool text = bytes >= LEAST;
    for (size_t i = 0; text && i < bytes; i++) {
        text = s->map[i] >= ' ' ? s->map[i] != 0x7f : s->map[i] && strchr("\t\n\r\f", s->map[i]);
    }
    return text;
}

/* A shard without a head could be any file: those that are often taken for one are not. */
static bool check_kind(const shard *s) {
    static const char numpy[] = "\x93NUMPY";
    size_t bytes = sizeof(numpy) - 1;
    const char *kind = NULL;
    if (looks_like_text(s)) {
        kind = "text";
    } else if (s->bytes >= bytes && memcmp(s->map, numpy, bytes) == 0) {
        kind = "a NumPy array";
    } else if (s->bytes >= HEAD_BYTES && word_at(s->map, 0) == MAGIC_WIDE) {
        kind = "a shard of 32-bit tokens";
    }
    if (kind) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s is %s; tokens are wanted, as the numbers of 16 bits that llm.c's and "
                  "nanoGPT's preparations write",
                  s->path, kind);
    }
    return !kind;
}

/* Finds out which kind the mapped file is, and where its tokens are. */
static bool find_tokens(shard *s) {
    if (!check_kind(s)) {
        return false;
    }
    bool headed = s->bytes >= HEAD_BYTES && word_at(s->map, 0) == MAGIC;
    size_t head = headed ? HEAD_BYTES : 0;
    if ((s->bytes - head) % 2 != 0) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: %zu bytes of tokens, which is not a whole number of 16-bit tokens", s->path,
                  s->bytes - head);
        return false;
    }
    s->tokens = s->map + head;
    s->count = (int64_t)((s->bytes - head) / 2);
    if (headed && word_at(s->map, 1) != VERSION) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: version %d of llm.c's format; version %d is read here", s->path,
                  word_at(s->map, 1), VERSION);
        return false;
    }
    if (headed && word_at(s->map, 2) != s->count) {
        tn__raise(TN_EFORMAT, "token_shards", "%s: its head says %d tokens but %lld follow",
                  s->path, word_at(s->map, 2), (long long)s->count);
        return false;
    }
    return true;
}

static bool map_shard(shard *s, const char *path) {
    struct stat about;
    s->path = tn__strdup(path);
    if (!s->path) {
        tn__raise(TN_ENOMEM, "token_shards", "no memory");
        return false;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool known = fd >= 0 && fstat(fd, &about) == 0;
    if (known && about.st_size > 0) {
        s->bytes = (size_t)about.st_size;
        s->map = mmap(NULL, s->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        s->map = s->map == MAP_FAILED ? NULL : s->map;
    }
    int why = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (!s->map) {
        tn__raise(known && about.st_size == 0 ? TN_EFORMAT : TN_EIO, "token_shards", "%s: %s", path,
                  known && about.st_size == 0 ? "the file is empty" : strerror(why));
        return false;
    }
    return find_tokens(s);
}

static void unmap_shard(shard *s) {
    if (s->map) {
        munmap(s->map, s->bytes);
    }
    free(s->path);
}

/* ---- The dataset ----------------------------------------------------------------------------- */

/* The shard that has this window, by bisection. */
static const shard *shard_of(const shards *d, int64_t window) {
    int low = 0, high = d->count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (d->list[middle].first <= window) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return &d->list[low];
}

static tn_status shards_get(tn_dataset *self, int64_t i, void *x, void *y) {
    const shards *d = (const shards *)self;
    const shard *s = shard_of(d, i);
    int64_t *input = x, *target = y, from = (i - s->first) * d->length;
    for (int64_t t = 0; t <= d->length; t++) {
        int64_t at = from + t, token = token_at(s, at);
        if (token >= d->vocab) {
            return tn_raise(TN_EFORMAT, "%s: token %lld is %lld but the vocabulary has %lld",
                            s->path, (long long)at, (long long)token, (long long)d->vocab);
        }
        if (t < d->length) {
            input[t] = token;
        }
        if (t > 0) {
            target[t - 1] = token;
        }
    }
    return TN_OK;
}

static void shards_free(tn_dataset *self) {
    shards *d = (shards *)self;
    for (int i = 0; i < d->count; i++) {
        unmap_shard(&d->list[i]);
    }
    free(d);
}

/* Maps the files in the order of their names. False after raising. */
static bool map_all(shards *d, char **paths, int count) {
    for (int i = 0; i < count; i++) {
        shard *s = &d->list[i];
        d->count++;
        if (!map_shard(s, paths[i])) {
            return false;
        }
        s->first = d->base.size;
        s->windows = s->count > 0 ? (s->count - 1) / d->length : 0;
        d->base.size += s->windows;
    }
    return true;
}

static tn_dataset *open_paths(char **paths, int count, const char *pattern, int64_t length,
                              int64_t vocab) {
    shards *d = tn__calloc(1, sizeof(*d) + (size_t)count * sizeof(d->list[0]));
    if (!d) {
        tn__raise(TN_ENOMEM, "token_shards", "no memory for %d files", count);
        return NULL;
    }
    d->base = (tn_dataset){.kind = "token shards",
                           .x_dims = TN_DIMS(length),
                           .y_dims = TN_DIMS(length),
                           .x_dtype = TN_I64,
                           .y_dtype = TN_I64,
                           .get = shards_get,
                           .free = shards_free};
    d->length = length;
    d->vocab = vocab;
    bool whole = map_all(d, paths, count);
    if (whole && d->base.size == 0) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: no file has the %lld tokens that a window of %lld takes", pattern,
                  (long long)length + 1, (long long)length);
    }
    if (!whole || d->base.size == 0) {
        shards_free(&d->base);
        return NULL;
    }
    return &d->base;
}

tn_dataset *tn_token_shards(const char *pattern, int64_t length, int64_t vocab) {
    if (!pattern || length < 1 || vocab < 1) {
        tn__raise(TN_EVALUE, "token_shards",
                  "the pattern is %s, the window %lld, the vocabulary %lld (at least 1)",
                  pattern ? pattern : "NULL", (long long)length, (long long)vocab);
        return NULL;
    }
    glob_t found;
    int status = glob(pattern, 0, NULL, &found);
    if (status != 0) {
        tn__raise(status == GLOB_NOSPACE ? TN_ENOMEM : TN_EIO, "token_shards", "%s: %s", pattern,
                  status == GLOB_NOMATCH   ? "there is no such file"
                  : status == GLOB_NOSPACE ? "no memory"
                                           : "a folder cannot be read");
        return NULL;
    }
    tn_dataset *d = open_paths(found.gl_pathv, (int)found.gl_pathc, pattern, length, vocab);
    globfree(&found);
    return d;
}
