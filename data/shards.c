/* Token shards: long token sequences in files of 16-bit numbers, as llm.c and nanoGPT write them.
 *
 * A shard is a file of little-endian uint16 tokens. llm.c's begin with 256 int32: the magic number,
 * the version and the number of tokens; nanoGPT's have no head. An example is a
 * window of `length` tokens and the same one further, read when it is asked for: a corpus may be
 * larger than memory. For training, windows follow each other without overlap and do not cross from
 * one shard into the next, so what remains at a shard's end, less than a window, is left out. For
 * evaluation they slide: each target counts once, up to the end.
 */
#include "core/error.h"
#include "core/digest.h"
#include "core/memory.h"
#include "core/reader.h"
#include "tern/data.h"

#include <endian.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { HEAD_WORDS = 256, HEAD_BYTES = HEAD_WORDS * 4, VERSION = 1 };
enum { BEGINNING = 4096 /* what tells kinds of files apart */ };
enum { KEPT_OPEN = 256 /* at most: there are larger corpora than a process may have files open */ };
enum { MAGIC = 20240520, MAGIC_WIDE = 20240801 /* 32 bits a token */ };

typedef struct shard {
    tn__reader file; /* closed between examples when there are very many */
    ino_t inode;
    dev_t device;
    size_t head;   /* where the tokens begin */
    int64_t count; /* tokens */
    int64_t first; /* number of its first window */
    int64_t windows;
    char *path;
} shard;

typedef struct shards {
    tn_dataset base;
    int64_t length, vocab;
    int64_t stride; /* tokens from one window's beginning to the next one's; `length` or less */
    bool sliding;   /* each target once, up to the file's end */
    char digest[TN__DIGEST_DIGITS + 1]; /* "": nobody has asked yet */
    int count;
    shard list[];
} shards;

/* ---- One file -------------------------------------------------------------------------------- */

/* Its beginning, as far as there is one. */
typedef struct beginning {
    unsigned char at[BEGINNING];
    size_t bytes;
} beginning;

static int32_t word_at(const beginning *b, int i) {
    const unsigned char *at = b->at + 4 * i;
    return (int32_t)((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                     (uint32_t)at[3] << 24);
}

/* Whether the file's beginning has no byte that text has not. Tokens are below 8192 most of the
 * time, so that the upper byte of a pair is a control character; 256 bytes of random tokens look
 * like text once in 10^13. */
static bool looks_like_text(const beginning *b) {
    enum { LEAST = 256 };
    bool text = b->bytes >= LEAST;
    for (size_t i = 0; text && i < b->bytes; i++) {
        text = b->at[i] >= ' ' ? b->at[i] != 0x7f : b->at[i] && strchr("\t\n\r\f", b->at[i]);
    }
    return text;
}

/* A shard without a head could be any file: those that are often taken for one are not. */
static bool check_kind(const shard *s, const beginning *b) {
    static const char numpy[] = "\x93NUMPY";
    size_t bytes = sizeof(numpy) - 1;
    const char *kind = NULL;
    if (looks_like_text(b)) {
        kind = "text";
    } else if (b->bytes >= bytes && memcmp(b->at, numpy, bytes) == 0) {
        kind = "a NumPy array";
    } else if (b->bytes >= HEAD_BYTES && word_at(b, 0) == MAGIC_WIDE) {
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

/* Finds out which kind the file is, and where its tokens are. */
static bool find_tokens(shard *s, const beginning *b) {
    if (!check_kind(s, b)) {
        return false;
    }
    bool headed = b->bytes >= HEAD_BYTES && word_at(b, 0) == MAGIC;
    s->head = headed ? HEAD_BYTES : 0;
    size_t bytes = s->file.bytes - s->head;
    if (bytes % 2 != 0) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: %zu bytes of tokens, which is not a whole number of 16-bit tokens", s->path,
                  bytes);
        return false;
    }
    s->count = (int64_t)(bytes / 2);
    if (headed && word_at(b, 1) != VERSION) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: version %d of llm.c's format; version %d is read here", s->path,
                  word_at(b, 1), VERSION);
        return false;
    }
    if (headed && word_at(b, 2) != s->count) {
        tn__raise(TN_EFORMAT, "token_shards", "%s: its head says %d tokens but %lld follow",
                  s->path, word_at(b, 2), (long long)s->count);
        return false;
    }
    return true;
}

/* Opens the file for the first time. */
static bool shard_begin(shard *s, const char *path) {
    struct stat about;
    s->file.fd = -1;
    s->path = tn__strdup(path);
    if (!s->path) {
        tn__raise(TN_ENOMEM, "token_shards", "no memory");
        return false;
    }
    if (!tn__reader_open(&s->file, s->path, "token_shards")) {
        return false;
    }
    if (fstat(s->file.fd, &about) != 0 || about.st_size == 0) {
        tn__raise(TN_EFORMAT, "token_shards", "%s: the file is empty", path);
        return false;
    }
    s->inode = about.st_ino;
    s->device = about.st_dev;
    beginning b = {.bytes = s->file.bytes < BEGINNING ? s->file.bytes : BEGINNING};
    return tn__reader_get(&s->file, 0, b.at, b.bytes) && find_tokens(s, &b);
}

static void shard_end(shard *s) {
    tn__reader_close(&s->file);
    free(s->path);
}

/* Opens it again, for one example. It must be the same file, since its windows were counted. */
static bool open_again(const shard *s, tn__reader *r) {
    struct stat about;
    if (!tn__reader_open(r, s->path, "token_shards")) {
        return false;
    }
    if (fstat(r->fd, &about) == 0 && about.st_ino == s->inode && about.st_dev == s->device) {
        return true;
    }
    tn__raise(TN_EIO, "token_shards", "%s is another file than it was", s->path);
    tn__reader_close(r);
    return false;
}

static bool shard_get(const shard *s, int64_t from, int64_t count, void *tokens) {
    tn__reader again = {.fd = -1};
    bool kept = s->file.fd >= 0;
    bool done = (kept || open_again(s, &again)) &&
                tn__reader_get(kept ? &s->file : &again, s->head + 2 * (size_t)from, tokens,
                               2 * (size_t)count);
    tn__reader_close(&again);
    return done;
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

static int64_t token_at(const unsigned char *tokens, int64_t i) {
    uint16_t token;
    memcpy(&token, tokens + 2 * i, sizeof(token));
    return le16toh(token);
}

static tn_status raise_outside(const shards *d, const shard *s, const unsigned char *tokens,
                               int64_t from) {
    int64_t i = 0;
    while (token_at(tokens, i) < d->vocab) {
        i++;
    }
    return tn_raise(TN_EFORMAT,
                    "%s: token %" PRId64 " is %" PRId64 " but the vocabulary has %" PRId64, s->path,
                    from + i, token_at(tokens, i), d->vocab);
}

/* The n tokens from `from` on to x, and those one further to y. The file's tokens lie in y, which
 * is larger than they are, until they are spread. */
static tn_status read_window(const shards *d, const shard *s, int64_t from, int64_t n, int64_t *x,
                             int64_t *y) {
    const unsigned char *tokens = (const unsigned char *)y;
    if (!shard_get(s, from, n + 1, y)) {
        return tn_error();
    }
    int64_t last = token_at(tokens, n), most = last;
    for (int64_t t = 0; t < n; t++) {
        x[t] = token_at(tokens, t);
        most = x[t] > most ? x[t] : most;
    }
    if (most >= d->vocab) {
        return raise_outside(d, s, tokens, from);
    }
    memcpy(y, x + 1, (size_t)(n - 1) * sizeof(*y));
    y[n - 1] = last;
    return TN_OK;
}

static tn_status shards_get(tn_dataset *self, int64_t i, void *x, void *y) {
    const shards *d = (const shards *)self;
    const shard *s = shard_of(d, i);
    return read_window(d, s, (i - s->first) * d->stride, d->length, x, y);
}

/* The last window may reach beyond the file's end, and all but the first repeat targets. */
static tn_status sliding_get(tn_dataset *self, int64_t i, void *x, void *y) {
    enum { NO_TOKEN = 0, NO_TARGET = -100 };
    const shards *d = (const shards *)self;
    const shard *s = shard_of(d, i);
    int64_t *input = x, *target = y, from = (i - s->first) * d->stride;
    int64_t there = s->count - 1 - from, n = there < d->length ? there : d->length;
    if (read_window(d, s, from, n, input, target) != TN_OK) {
        return tn_error();
    }
    for (int64_t t = n; t < d->length; t++) {
        input[t] = NO_TOKEN;
        target[t] = NO_TARGET;
    }
    for (int64_t t = 0; from > 0 && t < d->length - d->stride; t++) {
        target[t] = NO_TARGET;
    }
    return TN_OK;
}

/* ---- What tells one corpus from another ------------------------------------------------------ */

enum { PAGE = 4096, PAGES_MOST = 64, PAGES_LEAST = 2, PAGES_ALL = 1024 };

/* Pages of each file: some 1000 of all together, which a disk reads in seconds. */
static int64_t pages_each(const shards *d) {
    int pages = PAGES_ALL / d->count;
    return pages < PAGES_LEAST ? PAGES_LEAST : pages > PAGES_MOST ? PAGES_MOST : pages;
}

/* The file's size, its first page, its last, and those at even distances between; of a file that
 * has no more than these, everything. False after raising. */
static bool digest_shard(tn__digest *digest, const shard *s, int64_t pages) {
    enum { TOKENS = PAGE / 2 };
    unsigned char page[PAGE];
    uint64_t size = htole64((uint64_t)s->count);
    tn__digest_add(digest, &size, sizeof(size));
    int64_t there = (s->count + TOKENS - 1) / TOKENS;
    pages = there < pages ? there : pages;
    for (int64_t i = 0; i < pages; i++) {
        int64_t from = (pages > 1 ? (there - 1) * i / (pages - 1) : 0) * TOKENS;
        int64_t count = s->count - from < TOKENS ? s->count - from : TOKENS;
        if (!shard_get(s, from, count, page)) {
            return false;
        }
        tn__digest_add(digest, page, 2 * (size_t)count);
    }
    return true;
}

/* To d->digest. False after raising. */
static bool digest_all(shards *d) {
    tn__digest *digest = tn__digest_new();
    if (!digest) {
        tn__raise(TN_ENOMEM, "token_shards", "no memory for a digest");
        return false;
    }
    bool done = true;
    for (int i = 0; done && i < d->count; i++) {
        done = digest_shard(digest, &d->list[i], pages_each(d));
    }
    if (done) {
        tn__digest_text(digest, d->digest);
    }
    tn__digest_free(digest);
    return done;
}

static int shards_describe(tn_dataset *self, char *text, size_t room) {
    shards *d = (shards *)self;
    if (!d->digest[0] && !digest_all(d)) {
        return -1;
    }
    return snprintf(text, room, "files %d, digest %s", d->count, d->digest);
}

/* ---- Making it ------------------------------------------------------------------------------- */

static void shards_free(tn_dataset *self) {
    shards *d = (shards *)self;
    for (int i = 0; i < d->count; i++) {
        shard_end(&d->list[i]);
    }
    free(d);
}

/* A quarter of what this process may have open. */
static int files_kept_open(void) {
    struct rlimit limit;
    bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    return known && limit.rlim_cur / 4 < KEPT_OPEN ? (int)(limit.rlim_cur / 4) : KEPT_OPEN;
}

/* How many windows a file of `count` tokens has. */
static int64_t windows_of(const shards *d, int64_t count) {
    int64_t targets = count > 0 ? count - 1 : 0;
    if (!d->sliding) {
        return targets / d->length;
    }
    int64_t behind = targets - d->length; /* what the first window leaves over */
    return targets == 0 ? 0 : behind <= 0 ? 1 : 1 + (behind - 1) / d->stride + 1;
}

/* Opens the files in the order of their names. False after raising. */
static bool open_all(shards *d, char **paths, int count) {
    const int kept = files_kept_open();
    for (int i = 0; i < count; i++) {
        shard *s = &d->list[i];
        d->count++;
        if (!shard_begin(s, paths[i])) {
            return false;
        }
        if (i >= kept) {
            tn__reader_close(&s->file);
        }
        s->first = d->base.size;
        s->windows = windows_of(d, s->count);
        d->base.size += s->windows;
    }
    return true;
}

/* `plan` says which windows. */
static tn_dataset *open_paths(char **paths, int count, const char *pattern, const shards *plan) {
    shards *d = tn__calloc(1, sizeof(*d) + (size_t)count * sizeof(d->list[0]));
    if (!d) {
        tn__raise(TN_ENOMEM, "token_shards", "no memory for %d files", count);
        return NULL;
    }
    *d = *plan;
    d->base = (tn_dataset){.kind = d->sliding ? "sliding token shards" : "token shards",
                           .x_dims = TN_DIMS(d->length),
                           .y_dims = TN_DIMS(d->length),
                           .x_dtype = TN_I64,
                           .y_dtype = TN_I64,
                           .get = d->sliding ? sliding_get : shards_get,
                           .describe = shards_describe,
                           .free = shards_free};
    bool whole = open_all(d, paths, count);
    if (whole && d->base.size == 0) {
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: no file has the %lld tokens that a window of %lld takes", pattern,
                  d->sliding ? 2LL : (long long)d->length + 1, (long long)d->length);
    }
    if (!whole || d->base.size == 0) {
        shards_free(&d->base);
        return NULL;
    }
    return &d->base;
}

static tn_dataset *open_pattern(const char *pattern, const shards *plan) {
    if (!pattern || plan->length < 1 || plan->vocab < 1) {
        tn__raise(TN_EVALUE, "token_shards",
                  "the pattern is %s, the window %lld, the vocabulary %lld (at least 1)",
                  pattern ? pattern : "NULL", (long long)plan->length, (long long)plan->vocab);
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
    tn_dataset *d = open_paths(found.gl_pathv, (int)found.gl_pathc, pattern, plan);
    globfree(&found);
    return d;
}

tn_dataset *tn_token_shards(const char *pattern, int64_t length, int64_t vocab) {
    shards plan = {.length = length, .vocab = vocab, .stride = length};
    return open_pattern(pattern, &plan);
}

tn_dataset *tn_sliding_shards(const char *pattern, int64_t length, int64_t stride, int64_t vocab) {
    if (stride < 1 || stride > length) {
        tn__raise(TN_EVALUE, "sliding_shards",
                  "the stride is %lld; it is in [1, %lld], the window's length", (long long)stride,
                  (long long)length);
        return NULL;
    }
    shards plan = {.length = length, .vocab = vocab, .stride = stride, .sliding = true};
    return open_pattern(pattern, &plan);
}
