/* Writing shards (shards.h): one file after another, each written completely or not at all. */
#include "core/alive.h"
#include "core/buffer.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/reader.h"
#include "data/shards.h"
#include "tern/data.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 4096 /* tokens that are turned into bytes together */ };

/* What the header says that is known only at the end. */
typedef struct counts {
    uint32_t tokens, pairs, documents, with_end;
    uint64_t text, longest;
} counts;
enum { COUNTS_AT = 8, OF_AT = COUNTS_AT + sizeof(counts) };

struct tn_shards_writer {
    tn__alive alive;
    tn_shards_options options;
    char *prefix;
    tn__file file;
    bool open;
    int64_t shards; /* complete ones: the number of the open one, or of the next */
    int64_t tokens; /* in them and in the open one */
    int64_t here;   /* tokens in the open one */
    uint64_t *ends; /* of its pairs, in tokens */
    int64_t pairs, capacity;
    tn__shard_note note;
};

tn_shards_options tn_shards_defaults(void) {
    return (tn_shards_options){.vocab = 50257, .shard_tokens = 100000000, .from_defaults = true};
}

/* ---- One shard ------------------------------------------------------------------------------- */

static bool is_wide(const tn_shards_writer *w) {
    return w->options.pairs || w->options.vocab > TN__NARROW_VOCAB;
}

static bool begin_shard(tn_shards_writer *w) {
    char *path = tn__asprintf("shards_writer", TN__SHARD_NAME, w->prefix, w->shards);
    if (!path) { return false; }
    w->open = tn__file_begin(&w->file, path, "shards_writer");
    free(path);
    if (!w->open) { return false; }
    uint32_t head[TN__SHARD_WORDS] = {htole32(w->options.pairs ? TN__MAGIC_PAIRS
                                              : is_wide(w)     ? TN__MAGIC_WIDE
                                                               : TN__MAGIC_NARROW),
                                      htole32(w->options.pairs ? TN__VERSION_PAIRS
                                              : is_wide(w)     ? TN__VERSION_WIDE
                                                               : TN__VERSION_NARROW)};
    memcpy((char *)head + OF_AT, w->note.of, sizeof(w->note.of));
    tn__file_put(&w->file, head, sizeof(head));
    w->here = w->pairs = 0;
    return true;
}

/* Completes the open shard, which then gets its name. */
static tn_status end_shard(tn_shards_writer *w) {
    static const counts unknown;
    const tn__shard_note *n = &w->note;
    counts known = {htole32((uint32_t)w->here), htole32((uint32_t)w->pairs),
                    htole32(n->documents),      htole32(n->with_end),
                    htole64(n->text),           htole64(n->longest)};
    if (!w->open) { return TN_OK; }
    for (int64_t i = 0; i < w->pairs; i++) {
        uint64_t end = htole64(w->ends[i]);
        tn__file_put(&w->file, &end, sizeof(end));
    }
    tn__file_patch(&w->file, COUNTS_AT, &unknown, &known, sizeof(known));
    w->open = false;
    tn_status status = tn__file_commit(&w->file);
    w->shards += status == TN_OK;
    return status;
}

/* Writes tokens to the open shard. The first `prompt` of them are marked. */
static void put_tokens(tn_shards_writer *w, const int32_t *tokens, int64_t count, int64_t prompt) {
    uint16_t narrow[AT_ONCE];
    uint32_t wide[AT_ONCE];
    for (int64_t from = 0; from < count; from += AT_ONCE) {
        int64_t n = count - from < AT_ONCE ? count - from : AT_ONCE;
        for (int64_t i = 0; i < n; i++) {
            uint32_t token = (uint32_t)tokens[from + i];
            narrow[i] = htole16((uint16_t)token);
            wide[i] = htole32(token | (from + i < prompt ? TN__NO_TARGET : 0));
        }
        bool is_narrow = !is_wide(w);
        tn__file_put(&w->file, is_narrow ? (void *)narrow : (void *)wide,
                     (size_t)n * (is_narrow ? sizeof(narrow[0]) : sizeof(wide[0])));
    }
    w->here += count;
    w->tokens += count;
}

/* ---- Public ---------------------------------------------------------------------------------- */

static bool check_writer(const char *prefix, const tn_shards_options *o) {
    if (!prefix || !*prefix) {
        return tn__fail(TN_EVALUE, "shards_writer", "the files have no name");
    }
    if (o->vocab < 1 || o->vocab > INT32_MAX || o->shard_tokens < 1 ||
        o->shard_tokens > INT32_MAX) {
        return tn__fail(TN_EVALUE, "shards_writer",
                        "vocabulary %" PRId64 ", %" PRId64 " tokens a shard (each 1 … 2^31 - 1)",
                        o->vocab, o->shard_tokens);
    }
    return true;
}

TN__ALIVE_LIST(writers, "writer");

tn_shards_writer *tn_shards_writer_new(const char *prefix, tn_shards_options options) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "shards_writer", "tn_shards") ||
        !check_writer(prefix, &options)) {
        return NULL;
    }
    tn_shards_writer *w = tn__calloc_for(1, sizeof(*w), "shards_writer");
    char *copy = w ? tn__strdup_for(prefix, "shards_writer") : NULL;
    if (!copy) {
        free(w);
        return NULL;
    }
    tn__alive_begin(&writers, w);
    w->options = options;
    w->prefix = copy;
    return w;
}

static bool check_tokens(const tn_shards_writer *w, const int32_t *tokens, int64_t count) {
    if (tn__pending()) { return false; }
    if (!w || count < 0 || (!tokens && count > 0)) {
        return tn__fail(TN_EVALUE, "shards_writer", "the %s NULL, or %" PRId64 " tokens",
                        w ? "tokens are" : "writer is", count);
    }
    if (!tn__alive_is(&writers, w, "shards_writer")) { return false; }
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        most = (uint32_t)tokens[i] > most ? (uint32_t)tokens[i] : most;
    }
    if (most >= (uint32_t)w->options.vocab) {
        return tn__fail(TN_EINDEX, "shards_writer",
                        "a token is %" PRId32 " but the vocabulary has %" PRId64, (int32_t)most,
                        w->options.vocab);
    }
    return true;
}

tn_status tn_shards_writer_add(tn_shards_writer *w, const int32_t *tokens, int64_t count) {
    if (!check_tokens(w, tokens, count)) { return tn_error(); }
    if (w->options.pairs) {
        return tn__raise(TN_ESTATE, "shards_writer", "this writer takes only pairs");
    }
    while (count > 0) {
        if (!w->open && !begin_shard(w)) { return tn_error(); }
        int64_t left = w->options.shard_tokens - w->here, n = count < left ? count : left;
        put_tokens(w, tokens, n, 0);
        tokens += n;
        count -= n;
        if (n == left && end_shard(w) != TN_OK) { return tn_error(); }
    }
    return TN_OK;
}

static bool note_pair(tn_shards_writer *w) {
    if (!tn__grow(&w->ends, w->pairs + 1, &w->capacity, sizeof(*w->ends), "shards_writer")) {
        return false;
    }
    w->ends[w->pairs++] = (uint64_t)w->here;
    return true;
}

tn_status tn_shards_writer_add_pair(tn_shards_writer *w, const int32_t *tokens, int64_t count,
                                    int64_t prompt) {
    if (!check_tokens(w, tokens, count)) { return tn_error(); }
    if (!w->options.pairs) {
        return tn__raise(TN_ESTATE, "shards_writer", "this writer does not take pairs");
    }
    if (count < 1 || count > INT32_MAX || prompt < 0 || prompt > count) {
        return tn__raise(TN_EVALUE, "shards_writer",
                         "a pair of %" PRId64 " tokens, %" PRId64 " of them the prompt", count,
                         prompt);
    }
    if (w->open && count > w->options.shard_tokens - w->here && end_shard(w) != TN_OK) {
        return tn_error();
    }
    if (!w->open && !begin_shard(w)) { return tn_error(); }
    put_tokens(w, tokens, count, prompt);
    return note_pair(w) ? TN_OK : tn_error();
}

tn_status tn_shards_writer_finish(tn_shards_writer *w) {
    if (tn__pending()) { return tn_error(); }
    if (w && !tn__alive_is(&writers, w, "shards_writer")) { return tn_error(); }
    return w ? end_shard(w) : tn__raise(TN_EVALUE, "shards_writer", "the writer is NULL");
}

/* ---- What `tern tokens` notes ---------------------------------------------------------------- */

tn_status tn__shards_writer_at(tn_shards_writer *w, int64_t number, const char *of) {
    if (w->open && w->shards == number) { return TN_OK; }
    tn_status status = end_shard(w);
    w->shards = number;
    w->note = (tn__shard_note){.documents = 0};
    memcpy(w->note.of, of, sizeof(w->note.of));
    return status;
}

tn__shard_note *tn__shards_writer_note(tn_shards_writer *w) {
    return &w->note;
}

/* Whether a file of this size can have this header. */
static bool is_whole(const char *head, const counts *c, size_t bytes) {
    uint32_t magic;
    memcpy(&magic, head, sizeof(magic));
    size_t width = le32toh(magic) == TN__MAGIC_NARROW ? 2 : 4;
    return bytes == TN__SHARD_HEAD + width * le32toh(c->tokens) + 8 * (size_t)le32toh(c->pairs);
}

bool tn__shard_look(const char *path, tn__shard_note *note, int64_t *tokens) {
    tn__reader r;
    counts c;
    char head[TN__SHARD_HEAD] = "";
    if (!tn__reader_open(&r, path, "shards")) { return false; }
    bool read = r.bytes < sizeof(head) || tn__reader_get(&r, 0, head, sizeof(head));
    tn__reader_close(&r);
    memcpy(&c, head + COUNTS_AT, sizeof(c));
    *note = (tn__shard_note){.documents = 0};
    *tokens = 0;
    if (!is_whole(head, &c, r.bytes)) { return read; }
    *note = (tn__shard_note){.documents = le32toh(c.documents),
                             .with_end = le32toh(c.with_end),
                             .text = le64toh(c.text),
                             .longest = le64toh(c.longest)};
    memcpy(note->of, head + OF_AT, sizeof(note->of));
    *tokens = le32toh(c.tokens);
    return read;
}

int64_t tn_shards_writer_shards(const tn_shards_writer *w) {
    return w ? w->shards : 0;
}

int64_t tn_shards_writer_tokens(const tn_shards_writer *w) {
    return w ? w->tokens : 0;
}

void tn_shards_writer_free(tn_shards_writer *w) {
    if (!w || !tn__alive_end(&writers, w, "shards_writer_free")) { return; }
    if (w->open) { tn__file_abandon(&w->file); }
    free(w->prefix);
    free(w->ends);
    free(w);
}
