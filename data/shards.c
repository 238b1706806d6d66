/* Token shards: long token sequences in files, as llm.c and nanoGPT write them (shards.h).
 *
 * A file's header, if it has one, says what kind of shard it is; nanoGPT's files have none and are
 * uint16 tokens from the beginning. An example is a window of `length` tokens and the window one
 * token later, read on demand: a corpus may be larger than memory. For training, windows follow
 * each other without overlap and do not cross from one shard into the next, so what remains at a
 * shard's end, less than a window, is left out. For evaluation they slide: each target counts once,
 * up to the end. In a shard of pairs, in both cases, a window is one prompt with its completion.
 */
#include "core/digest.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "text/text.h"
#include "data/corpus/kind.h"
#include "data/identity.h"
#include "data/shards.h"
#include "data/corpus/tokens_json.h"
#include "tern/data.h"

#include <endian.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum { KEPT_OPEN = 256 /* at most: a corpus may have more files than a process may open */ };
enum { NO_TARGET = -100 };

typedef struct shard {
    tn__reader file; /* closed between examples if there are very many files */
    ino_t inode;
    dev_t device;
    size_t head;   /* where the tokens begin */
    int width;     /* bytes of a token */
    uint32_t mark; /* of tokens that are not targets: TN__NO_TARGET in shards of pairs, else 0 */
    int64_t count; /* tokens */
    int64_t pairs; /* 0 in a shard of another kind */
    int64_t first; /* number of its first window */
    char *path;
} shard;

typedef struct shards {
    tn_dataset base;
    int64_t length, vocab;
    int64_t stride; /* tokens from one window's beginning to the next one's; `length` or less */
    bool sliding;   /* each target once, up to the file's end */
    tn_digest digest;
    int count;
    shard list[];
} shards;

/* ---- One file -------------------------------------------------------------------------------- */

/* The first bytes of a file, or all of a shorter one. */
typedef struct beginning {
    unsigned char at[TN__KIND_BYTES];
    size_t bytes;
} beginning;

static uint32_t word_at(const beginning *b, int i) {
    uint32_t word;
    memcpy(&word, b->at + 4 * i, sizeof(word));
    return le32toh(word);
}

/* Whether it is text. A short .bin that looks like text may be tokens. */
static bool is_text(const shard *s, const beginning *b) {
    enum { SURE = 256 };
    return tn__looks_like_text(b->at, b->bytes) &&
           (b->bytes >= SURE || !tn__ends_with(s->path, ".bin"));
}

/* A shard without a header could be any file: rejects those that are often mistaken for one. */
static bool check_kind(const shard *s, const beginning *b) {
    tn__kind kind = tn__kind_of(b->at, b->bytes, s->file.bytes);
    bool packed = kind.form == TN__FORM_GZIP || kind.form == TN__FORM_ZSTD;
    if (packed || (kind.form == TN__FORM_TEXT && is_text(s, b))) {
        return tn__fail(TN_EFORMAT, "token_shards",
                        "%s is %s, not tokens: %s`tern tokens %s --tokenizer … --out …` makes them",
                        s->path, kind.is, packed ? "if it has text in it, " : "", s->path);
    }
    return kind.form != TN__FORM_OTHER ||
           tn__fail(TN_EFORMAT, "token_shards",
                    "%s is %s, not tokens as `tern tokens`, llm.c and nanoGPT write them", s->path,
                    kind.is);
}

/* What the header of each kind says. */
static const struct form {
    uint32_t magic, version;
    int width;
    uint32_t mark;
} forms[] = {
    {TN__MAGIC_NARROW, TN__VERSION_NARROW, 2, 0},
    {TN__MAGIC_WIDE, TN__VERSION_WIDE, 4, 0},
    {TN__MAGIC_PAIRS, TN__VERSION_PAIRS, 4, TN__NO_TARGET},
};
enum { FORMS = sizeof(forms) / sizeof(forms[0]) };

/* NULL: it has no header. */
static const struct form *form_of(const beginning *b) {
    for (int i = 0; i < FORMS && b->bytes >= TN__SHARD_HEAD; i++) {
        if (word_at(b, 0) == forms[i].magic) { return &forms[i]; }
    }
    return NULL;
}

/* Checks the header against what follows it. */
static bool check_head(shard *s, const beginning *b, const struct form *form) {
    if (word_at(b, 1) != form->version) {
        return tn__fail(TN_EFORMAT, "token_shards",
                        "%s: version %" PRIu32 " of this format; version %" PRIu32 " is read here",
                        s->path, word_at(b, 1), form->version);
    }
    size_t said = word_at(b, 2), pairs = form->mark ? word_at(b, 3) : 0;
    size_t bytes = s->file.bytes - s->head;
    if (said * (size_t)form->width + pairs * sizeof(uint64_t) != bytes) {
        return form->mark
                   ? tn__fail(TN_EFORMAT, "token_shards",
                              "%s: its header says %zu tokens and %zu pairs, but %zu bytes follow",
                              s->path, said, pairs, bytes)
                   : tn__fail(TN_EFORMAT, "token_shards",
                              "%s: its header says %zu tokens but %zu follow", s->path, said,
                              bytes / (size_t)form->width);
    }
    s->count = (int64_t)said;
    s->pairs = (int64_t)pairs;
    return true;
}

/* Finds out what kind of file it is and where its tokens are. */
static bool find_tokens(shard *s, const beginning *b) {
    if (!check_kind(s, b)) { return false; }
    const struct form *form = form_of(b);
    s->head = form ? TN__SHARD_HEAD : 0;
    s->width = form ? form->width : 2;
    s->mark = form ? form->mark : 0;
    size_t bytes = s->file.bytes - s->head;
    if (bytes % (size_t)s->width != 0) {
        return tn__fail(TN_EFORMAT, "token_shards",
                        "%s: %zu bytes of tokens, which is not a whole number of %d-bit tokens",
                        s->path, bytes, 8 * s->width);
    }
    if (form) { return check_head(s, b, form); }
    s->count = (int64_t)(bytes / 2);
    return true;
}

/* Opens the file for the first time. */
static bool shard_begin(shard *s, const char *path) {
    struct stat about;
    s->file.fd = -1;
    s->path = tn__strdup_for(path, "token_shards");
    if (!s->path) { return false; }
    if (!tn__reader_open(&s->file, s->path, "token_shards")) { return false; }
    if (fstat(s->file.fd, &about) != 0 || about.st_size == 0) {
        return tn__fail(TN_EFORMAT, "token_shards", "%s: the file is empty", path);
    }
    s->inode = about.st_ino;
    s->device = about.st_dev;
    beginning b = {.bytes = s->file.bytes < sizeof(b.at) ? s->file.bytes : sizeof(b.at)};
    return tn__reader_get(&s->file, 0, b.at, b.bytes) && find_tokens(s, &b);
}

/* Opens it again, for one example. It must still be the file whose windows were counted. */
static bool open_again(const shard *s, tn__reader *r) {
    struct stat about;
    if (!tn__reader_open(r, s->path, "token_shards")) { return false; }
    if (fstat(r->fd, &about) == 0 && about.st_ino == s->inode && about.st_dev == s->device) {
        return true;
    }
    tn__raise(TN_EIO, "token_shards", "%s is no longer the same file", s->path);
    tn__reader_close(r);
    return false;
}

/* The open file, or `again`, opened. NULL after raising. tn__reader_close(again) in any case. */
static const tn__reader *reader_of(const shard *s, tn__reader *again) {
    *again = (tn__reader){.fd = -1};
    if (s->file.fd >= 0) { return &s->file; }
    return open_again(s, again) ? again : NULL;
}

/* Reads `bytes` of the file, from `at` after its header. */
static bool shard_read(const shard *s, size_t at, void *to, size_t bytes) {
    tn__reader again;
    const tn__reader *r = reader_of(s, &again);
    bool done = r && tn__reader_get(r, s->head + at, to, bytes);
    tn__reader_close(&again);
    return done;
}

/* Where pair i is, in tokens. False after raising. */
static bool pair_get(const shard *s, int64_t i, int64_t *from, int64_t *to) {
    uint64_t ends[2] = {0, 0};
    int64_t first = i > 0 ? i - 1 : 0;
    size_t at = (size_t)s->width * (size_t)s->count + sizeof(uint64_t) * (size_t)first;
    size_t bytes = sizeof(uint64_t) * (size_t)(i - first + 1);
    if (!shard_read(s, at, i > 0 ? ends : ends + 1, bytes)) { return false; }
    uint64_t begin = le64toh(ends[0]), end = le64toh(ends[1]);
    if (begin >= end || end > (uint64_t)s->count) {
        return tn__fail(TN_EFORMAT, "token_shards",
                        "%s: pair %" PRId64 " should be between tokens %" PRIu64 " and %" PRIu64
                        " of %" PRId64,
                        s->path, i, begin, end, s->count);
    }
    *from = (int64_t)begin;
    *to = (int64_t)end;
    return true;
}

/* ---- The dataset ----------------------------------------------------------------------------- */

/* The shard that contains this window, by bisection. */
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

/* Token i, with its mark. */
static int64_t token_at(const shard *s, const unsigned char *tokens, int64_t i) {
    uint16_t narrow;
    uint32_t wide;
    if (s->width == sizeof(narrow)) {
        memcpy(&narrow, tokens + sizeof(narrow) * (size_t)i, sizeof(narrow));
        return le16toh(narrow);
    }
    memcpy(&wide, tokens + sizeof(wide) * (size_t)i, sizeof(wide));
    return le32toh(wide);
}

static tn_status raise_outside(const shards *d, const shard *s, const unsigned char *tokens,
                               int64_t from) {
    int64_t i = 0;
    while ((token_at(s, tokens, i) & ~(int64_t)s->mark) < d->vocab) {
        i++;
    }
    return tn__raise(TN_EFORMAT, "token_shards",
                     "%s: token %" PRId64 " is %" PRId64 " but the vocabulary has %" PRId64,
                     s->path, from + i, token_at(s, tokens, i) & ~(int64_t)s->mark, d->vocab);
}

/* Reads n tokens, from `from` on, to x, and as targets those one token later to y. The file's
 * tokens are first read into y, which has room for them, and then widened. */
static tn_status read_window(const shards *d, const shard *s, int64_t from, int64_t n, int64_t *x,
                             int64_t *y) {
    const unsigned char *tokens = (const unsigned char *)y;
    const int64_t id = ~(int64_t)s->mark;
    size_t width = (size_t)s->width;
    if (!shard_read(s, width * (size_t)from, y, width * (size_t)(n + 1))) { return tn_error(); }
    int64_t last = token_at(s, tokens, n), most = last & id;
    for (int64_t t = 0; t < n; t++) {
        x[t] = token_at(s, tokens, t);
        most = (x[t] & id) > most ? x[t] & id : most;
    }
    if (most >= d->vocab) { return raise_outside(d, s, tokens, from); }
    for (int64_t t = 0; t < n; t++) {
        int64_t next = t + 1 < n ? x[t + 1] : last;
        y[t] = next & s->mark ? NO_TARGET : next;
        x[t] &= id;
    }
    return TN_OK;
}

/* After a window's end there is nothing to predict, and nothing to predict it from. */
static void fill_up(int64_t from, int64_t to, int64_t *x, int64_t *y) {
    enum { NO_TOKEN = 0 };
    for (int64_t t = from; t < to; t++) {
        x[t] = NO_TOKEN;
        y[t] = NO_TARGET;
    }
}

/* Reads pair i to the window's beginning; of one that is too long, only the end. */
static tn_status read_pair(const shards *d, const shard *s, int64_t i, int64_t *x, int64_t *y) {
    int64_t from, to;
    if (!pair_get(s, i, &from, &to)) { return tn_error(); }
    from = to - from > d->length + 1 ? to - (d->length + 1) : from;
    int64_t n = to - from - 1;
    if (n > 0 && read_window(d, s, from, n, x, y) != TN_OK) { return tn_error(); }
    fill_up(n, d->length, x, y);
    return TN_OK;
}

/* The last window may reach beyond the file's end, and windows that slide, but the first, repeat
 * targets. */
static tn_status shards_get(tn_dataset *self, tn_example e, void *x, void *y) {
    const shards *d = (const shards *)self;
    const shard *s = shard_of(d, e.index);
    if (s->mark) { return read_pair(d, s, e.index - s->first, x, y); }
    int64_t *input = x, *target = y, from = (e.index - s->first) * d->stride;
    int64_t there = s->count - 1 - from, n = there < d->length ? there : d->length;
    if (read_window(d, s, from, n, input, target) != TN_OK) { return tn_error(); }
    fill_up(n, d->length, input, target);
    for (int64_t t = 0; from > 0 && t < d->length - d->stride; t++) {
        target[t] = NO_TARGET;
    }
    return TN_OK;
}

/* ---- A corpus's identity --------------------------------------------------------------------- */

/* Adds the file's size and pages of it: about 1000 of all files, which a disk reads in seconds.
 * False after raising. */
static bool digest_shard(tn__digest *digest, const shard *s, int files) {
    enum { PAGES_ALL = 1024, PAGES_MOST = 64, PAGES_LEAST = 2 };
    size_t pages = PAGES_ALL / (size_t)files, bytes = (size_t)s->width * (size_t)s->count;
    pages = pages < PAGES_LEAST ? PAGES_LEAST : pages > PAGES_MOST ? PAGES_MOST : pages;
    uint64_t size = htole64((uint64_t)s->count);
    tn__digest_add(digest, &size, sizeof(size));
    tn__reader again;
    const tn__reader *r = reader_of(s, &again);
    bool done = r && tn__reader_digest(r, s->head, bytes, pages, digest);
    tn__reader_close(&again);
    return done;
}

static tn_status shards_digest(tn_dataset *self, char text[33]) {
    const shards *d = (const shards *)self;
    tn__digest *digest = tn__digest_new("token_shards");
    if (!digest) { return TN_ENOMEM; }
    bool done = true;
    for (int i = 0; done && i < d->count; i++) {
        done = digest_shard(digest, &d->list[i], d->count);
    }
    if (done) { tn__digest_text(digest, text); }
    tn__digest_free(digest);
    return tn_error();
}

static const tn_field shards_fields[] = {
    TN_FIELD_AS("files", shards, count),
    TN_FIELD(shards, digest),
    {0},
};

/* ---- Making it ------------------------------------------------------------------------------- */

static void shards_free(tn_dataset *self) {
    shards *d = (shards *)self;
    for (int i = 0; i < d->count; i++) {
        tn__reader_close(&d->list[i].file);
        free(d->list[i].path);
    }
    free(d);
}

/* A quarter of the files that this process may have open, at most KEPT_OPEN. */
static int files_kept_open(void) {
    struct rlimit limit;
    bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    return known && limit.rlim_cur / 4 < KEPT_OPEN ? (int)(limit.rlim_cur / 4) : KEPT_OPEN;
}

static int64_t windows_of(const shards *d, const shard *s) {
    int64_t targets = s->count > 0 ? s->count - 1 : 0;
    if (s->mark) { return s->pairs; }
    if (!d->sliding) { return targets / d->length; }
    int64_t rest = targets - d->length; /* what the first window leaves */
    return targets == 0 ? 0 : rest <= 0 ? 1 : 1 + (rest - 1) / d->stride + 1;
}

/* Opens the files in the order of their names. False after raising. */
static bool open_all(shards *d, char **paths, int count) {
    const int kept = files_kept_open();
    for (int i = 0; i < count; i++) {
        shard *s = &d->list[i];
        d->count++;
        if (!shard_begin(s, paths[i]) || !tn__tokens_allow(paths[i], d->vocab, "token_shards")) {
            return false;
        }
        if (i >= kept) { tn__reader_close(&s->file); }
        s->first = d->base.size;
        d->base.size += windows_of(d, s);
    }
    return true;
}

/* `plan` says which windows. */
static tn_dataset *open_paths(char **paths, int count, const char *pattern, const shards *plan) {
    shards *d = tn__calloc_for(1, sizeof(*d) + (size_t)count * sizeof(d->list[0]), "token_shards");
    if (!d) { return NULL; }
    *d = *plan;
    d->base = (tn_dataset){.kind = d->sliding ? "sliding token shards" : "token shards",
                           .x_dims = TN_DIMS(d->length),
                           .y_dims = TN_DIMS(d->length),
                           .x_dtype = TN_I64,
                           .y_dtype = TN_I64,
                           .get = shards_get,
                           .fields = shards_fields,
                           .digest = shards_digest,
                           .free = shards_free};
    bool whole = open_all(d, paths, count);
    if (whole && d->base.size == 0) {
        int64_t most = 0;
        for (int i = 0; i < d->count; i++) {
            most = d->list[i].count > most ? d->list[i].count : most;
        }
        tn__raise(TN_EFORMAT, "token_shards",
                  "%s: no file has the %lld tokens that a window of %lld takes (the longest has "
                  "%lld)",
                  pattern, d->sliding ? 2LL : (long long)d->length + 1, (long long)d->length,
                  (long long)most);
    }
    if (!whole || d->base.size == 0) {
        shards_free(&d->base);
        return NULL;
    }
    return &d->base;
}

/* A folder that cannot be read counts as empty, unless memory ran out. */
static int end_search(const char *path, int why) {
    return why == ENOMEM;
}

/* False after raising; otherwise the caller calls globfree. */
static bool find_paths(const char *pattern, glob_t *found, const char *operation) {
    if (!pattern) { return tn__fail(TN_EVALUE, operation, "the pattern is NULL"); }
    int status = glob(pattern, 0, end_search, found);
    bool none = status == GLOB_NOMATCH;
    return status == 0 || tn__fail(none ? TN_EIO : TN_ENOMEM, operation, "%s: %s", pattern,
                                   none ? "there is no such file" : "no memory");
}

static tn_dataset *open_pattern(const char *pattern, const shards *plan) {
    const char *wrong =
        TN__BEYOND({"the window", plan->length, 1, 0}, {"vocab", plan->vocab, 1, 0});
    glob_t found;
    if (wrong) { tn__raise(TN_EVALUE, "token_shards", "%s", wrong); }
    if (wrong || !find_paths(pattern, &found, "token_shards")) { return NULL; }
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
                  "the stride is %lld, not in [1, %lld], the window's length", (long long)stride,
                  (long long)length);
        return NULL;
    }
    shards plan = {.length = length, .vocab = vocab, .stride = stride, .sliding = true};
    return open_pattern(pattern, &plan);
}

/* The largest vocabulary of what is told of the files; 0: nothing is, or after raising, as when a
 * file is not from the tokenizer `ours` (NULL: any will do). */
static int64_t look_beside(const char *pattern, const char *ours, const char *operation) {
    int64_t most = 0;
    glob_t found;
    if (!find_paths(pattern, &found, operation)) { return 0; }
    for (size_t i = 0; i < found.gl_pathc && !tn__pending(); i++) {
        const char *path = found.gl_pathv[i];
        tn__tokens_told told = {0};
        if (tn__tokens_beside(path, &told, operation) != TN__TOKENS_WHOLE) { continue; }
        if (ours && *told.tokenizer && strcmp(told.tokenizer, ours) != 0) {
            tn__raise(TN_EMISMATCH, operation,
                      "%s was made with another tokenizer (" TN__TOKENS_JSON " beside it)", path);
        }
        most = told.vocab > most ? told.vocab : most;
    }
    globfree(&found);
    return tn__pending() ? 0 : most;
}

int64_t tn_token_shards_vocab(const char *pattern) {
    return look_beside(pattern, NULL, "token_shards_vocab");
}

tn_status tn_token_shards_check(const char *pattern, const tn_tokenizer *tokenizer) {
    static const char operation[] = "token_shards_check";
    char ours[TN__DIGEST_DIGITS + 1];
    if (!tokenizer) { return tn__raise(TN_EVALUE, operation, "the tokenizer is NULL"); }
    if (tn__tokenizer_digest(tokenizer, ours, operation)) { look_beside(pattern, ours, operation); }
    return tn_error();
}
