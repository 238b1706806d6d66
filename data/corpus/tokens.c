/* Texts to shards: what `tern tokens` does.
 *
 * The caller's thread writes what the encoders return, in order. Before the first shard appears,
 * the folder's tokens.json says that they are unfinished; after the last one, what they are. Its
 * temporary file is locked from beginning to end, so that no other process writes to the folder. A
 * new run removes what an unfinished one left. So a folder never has shards of two runs, no matter
 * when either was killed.
 */
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/philox.h"
#include "data/corpus/encoders.h"
#include "data/corpus/tokens_json.h"
#include "text/json_write.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 1024 };

/* A run. */
typedef struct making {
    const tn_tokenizer *tokenizer;
    const char *out;
    tn_tokens_options options;
    int32_t eot;
    tn_corpus *corpus;
    tn__encoders *encoders;
    tn_shards_writer *train, *val;
    int64_t last_train, last_val; /* the pieces that were written last; -2: none */
    tn__file summary;             /* tokens.json, as it will be */
    bool locked;                  /* whether `summary` is open */
    tn_tokens_made made;
} making;

tn_tokens_options tn_tokens_defaults(void) {
    return (tn_tokens_options){.corpus = tn_corpus_defaults(),
                               .seed = 1337,
                               .shard_tokens = 100000000,
                               .from_defaults = true};
}

/* ---- Choosing pieces for validation ---------------------------------------------------------- */

/* The first piece of group i. A group has 1 / share pieces, one of them for validation. */
static int64_t group_begin(int64_t i, double share) {
    return (int64_t)ceil((double)i / share);
}

/* One piece of each group, drawn by the group's number. So every stretch of the corpus, even a
 * small one, contributes its share, and the choice depends only on the pieces' numbers. */
static bool is_drawn(int64_t piece, double share, uint64_t seed) {
    int64_t i = (int64_t)((double)piece * share);
    i -= i > 0 && group_begin(i, share) > piece; /* rounding may have made i 1 too large */
    i += group_begin(i + 1, share) <= piece;
    int64_t begin = group_begin(i, share), size = group_begin(i + 1, share) - begin;
    tn_random4 random = tn__philox(tn__philox_key(seed, 0), 0, (uint64_t)i);
    return piece - begin == (int64_t)(random.word[0] % (uint64_t)(size > 0 ? size : 1));
}

static bool is_for_validation(const making *m, const tn__part *p) {
    const tn_tokens_options *o = &m->options;
    return p->number < o->val_documents || (o->val > 0 && is_drawn(p->piece, o->val, o->seed));
}

/* ---- Writing what was encoded ---------------------------------------------------------------- */

/* Writes the end token first, before a document and where the text does not continue what was
 * written before it. */
static bool put_text(making *m, const tn__part *p, const int32_t *ids, int64_t count, bool val) {
    tn_shards_writer *w = val ? m->val : m->train;
    int64_t *last = val ? &m->last_val : &m->last_train;
    bool goes_on = !p->begins && *last == p->piece - 1;
    *last = p->piece;
    return (goes_on || tn_shards_writer_add(w, &m->eot, 1) == TN_OK) &&
           tn_shards_writer_add(w, ids, count) == TN_OK;
}

static bool put_pair(making *m, const tn__part *p, const int32_t *ids, int64_t count, bool val) {
    m->made.longest = count > m->made.longest ? count : m->made.longest;
    return tn_shards_writer_add_pair(val ? m->val : m->train, ids, count, p->prompt) == TN_OK;
}

static bool put_batch(making *m, const tn__batch *b) {
    int64_t from = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const tn__part *p = &b->parts[i];
        const int32_t *ids = b->ids.ids + from;
        int64_t count = p->end - from;
        bool val = is_for_validation(m, p);
        if (!(m->options.corpus.pairs ? put_pair : put_text)(m, p, ids, count, val)) {
            return false;
        }
        m->made.documents += p->begins;
        m->made.with_end += p->has_end;
        from = p->end;
    }
    m->made.text += (int64_t)b->bytes;
    m->made.read = b->read;
    m->made.train = tn_shards_writer_tokens(m->train);
    m->made.val = tn_shards_writer_tokens(m->val);
    return true;
}

static bool put_all(making *m) {
    for (const tn__batch *b; (b = tn__encoders_next(m->encoders));) {
        if (!put_batch(m, b)) {
            return false;
        }
        if (m->options.progress) {
            m->options.progress(&m->made, m->options.user);
        }
    }
    if (!tn__pending() && m->made.documents == 0) {
        tn__raise(TN_EFORMAT, "tokens", "there is no document in %" PRId64 " files", m->made.files);
    }
    bool done = !tn__pending() && tn_shards_writer_finish(m->train) == TN_OK &&
                tn_shards_writer_finish(m->val) == TN_OK;
    m->made.train_shards = tn_shards_writer_shards(m->train);
    m->made.val_shards = tn_shards_writer_shards(m->val);
    return done;
}

/* ---- tokens.json ----------------------------------------------------------------------------- */

/* A path may not be UTF-8, but JSON must be. */
static void put_path(tn__buffer *j, const char *path) {
    char *copy = tn__strdup_for(path, j->operation);
    j->failed = j->failed || !copy;
    int32_t code;
    for (char *c = copy; c && *c;) {
        int bytes = tn__utf8_decode(c, strlen(c), &code);
        *c = bytes ? *c : '?';
        c += bytes ? bytes : 1;
    }
    tn__json_put_string(j, copy ? copy : "");
    free(copy);
}

static void put_split(tn__buffer *j, const char *name, int64_t shards, int64_t tokens) {
    tn__buffer_format(j, " \"%s\": {\"shards\": %" PRId64 ", \"tokens\": %" PRId64 "},\n", name,
                      shards, tokens);
}

/* Writes what a reader needs to know. */
static bool put_summary(making *m, const char *const *paths, int count) {
    char digits[TN__DIGEST_DIGITS + 1];
    const tn_tokens_made *made = &m->made;
    if (!tn__tokenizer_digest(m->tokenizer, digits, "tokens")) {
        return false;
    }
    tn__buffer j = {.operation = "tokens"};
    tn__buffer_text(&j, "{\"format\": \"tern-tokens-1\",\n \"finished\": true,\n");
    tn__buffer_format(&j, " \"vocab\": %" PRId64 ",\n \"eot\": %" PRId32 ",\n",
                      tn_tokenizer_size(m->tokenizer), m->eot);
    tn__buffer_format(&j, " \"tokenizer\": \"%s\",\n", digits);
    tn__buffer_format(&j, " \"pairs\": %s,\n", m->options.corpus.pairs ? "true" : "false");
    tn__buffer_format(&j, " \"documents\": %" PRId64 ",\n \"tokens\": %" PRId64 ",\n",
                      made->documents, made->train + made->val);
    tn__buffer_format(&j, " \"bytes\": %" PRId64 ",\n", made->text);
    put_split(&j, "train", made->train_shards, made->train);
    put_split(&j, "val", made->val_shards, made->val);
    tn__buffer_format(&j, " \"files\": %" PRId64 ",\n \"sources\": [", made->files);
    for (int i = 0; i < count; i++) {
        tn__buffer_format(&j, i ? ", " : "");
        put_path(&j, paths[i]);
    }
    tn__buffer_text(&j, "]}\n");
    bool whole = !j.failed;
    if (whole) {
        tn__file_put(&m->summary, j.at, j.bytes);
    }
    tn__buffer_free(&j);
    return whole;
}

/* ---- The folder ------------------------------------------------------------------------------ */

/* "train_000000.bin.tmp" too. */
static bool is_ours(const char *name) {
    char copy[64];
    size_t bytes = strlen(name), more = strlen(".tmp");
    if (bytes > more && bytes < sizeof(copy) && strcmp(name + bytes - more, ".tmp") == 0) {
        memcpy(copy, name, bytes - more);
        copy[bytes - more] = 0;
        name = copy;
    }
    return tn__is_token_shard(name);
}

static bool refuse_shard(const char *name, void *user) {
    const making *m = user;
    if (tn__is_token_shard(name)) {
        tn__raise(TN_ESTATE, "tokens",
                  "%s/%s is there, and " TN__TOKENS_JSON
                  ", which would say where it is from, is not: use another folder or --overwrite",
                  m->out, name);
    }
    return !tn__pending();
}

static bool remove_shard(const char *name, void *user) {
    const making *m = user;
    char *path = is_ours(name) ? tn__folder_path(m->out, name, "tokens") : NULL;
    if (path && unlink(path) != 0) {
        tn__raise(TN_EIO, "tokens", "%s cannot be removed", path);
    }
    free(path);
    return !tn__pending();
}

/* Whether the folder may be written to. False after raising. */
static bool check_folder(making *m) {
    tn__tokens_told told;
    if (m->options.overwrite) {
        return true;
    }
    switch (tn__tokens_look(m->out, &told, "tokens")) {
    case TN__TOKENS_WHOLE:
        tn__raise(TN_ESTATE, "tokens", "%s has tokens already (--overwrite replaces them)", m->out);
        return false;
    case TN__TOKENS_UNFINISHED:
        return true;
    case TN__TOKENS_NONE:
        return tn__folder_each(m->out, refuse_shard, m, "tokens") && !tn__pending();
    case TN__TOKENS_ERROR:
        break;
    }
    return false;
}

/* Afterwards the folder belongs to this run and has no shards. */
static bool take_folder(making *m) {
    static const char unfinished[] = "{\"format\": \"tern-tokens-1\", \"finished\": false}\n";
    char *path = tn__folder_path(m->out, TN__TOKENS_JSON, "tokens");
    bool taken = path && tn__file_begin(&m->summary, path, "tokens");
    if (taken) {
        tn__file_put(&m->summary, unfinished, strlen(unfinished));
        taken =
            tn__file_commit(&m->summary) == TN_OK && tn__file_begin(&m->summary, path, "tokens");
    }
    m->locked = taken;
    free(path);
    return taken && tn__folder_each(m->out, remove_shard, m, "tokens") && !tn__pending();
}

static bool open_writers(making *m) {
    tn_shards_options o =
        TN_WITH(tn_shards, .vocab = tn_tokenizer_size(m->tokenizer),
                .shard_tokens = m->options.shard_tokens, .pairs = m->options.corpus.pairs);
    char *train = tn__folder_path(m->out, "train", "tokens"),
         *val = tn__folder_path(m->out, "val", "tokens");
    m->train = train && val ? tn_shards_writer_new(train, o) : NULL;
    m->val = m->train ? tn_shards_writer_new(val, o) : NULL;
    free(train);
    free(val);
    return m->val != NULL;
}

/* ---- Public ---------------------------------------------------------------------------------- */

/* The id that ends documents. False after raising. */
static bool find_eot(making *m) {
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    const char *said = m->options.eot;
    m->eot = said ? tn_tokenizer_special(m->tokenizer, said) : -1;
    for (int i = 0; !said && m->eot < 0 && i < 3; i++) {
        m->eot = tn_tokenizer_special(m->tokenizer, usual[i]);
    }
    if (m->eot < 0) {
        tn__raise(TN_EVALUE, "tokens", "the tokenizer has no special token \"%s\"%s",
                  said ? said : usual[0],
                  said ? "" : ", nor another usual one (--eot TEXT names it)");
    }
    return m->eot >= 0;
}

static bool check_options(const tn_tokenizer *t, const char *out, const tn_tokens_options *o) {
    if (!t || !out || !*out) {
        tn__raise(TN_EVALUE, "tokens", "%s", t ? "the folder has no name" : "no tokenizer");
        return false;
    }
    if (!(o->val >= 0 && o->val < 1) || o->val_documents < 0 || o->threads < 0 ||
        o->threads > MOST_THREADS) {
        tn__raise(TN_EVALUE, "tokens",
                  "a validation share of %g (0 … 1), %" PRId64
                  " documents for it, %d threads (0 to "
                  "%d)",
                  o->val, o->val_documents, o->threads, MOST_THREADS);
        return false;
    }
    return true;
}

static void finish_making(making *m) {
    tn__encoders_end(m->encoders);
    tn_shards_writer_free(m->train);
    tn_shards_writer_free(m->val);
    tn_corpus_free(m->corpus);
    if (m->locked) {
        tn__file_abandon(&m->summary);
    }
}

static bool begin_making(making *m, const char *const *paths, int count) {
    int threads = m->options.threads ? m->options.threads : tn_threads();
    if (!find_eot(m) || !(m->corpus = tn_corpus_open(paths, count, m->options.corpus)) ||
        !tn__folder_make(m->out, "tokens") || !check_folder(m) || !take_folder(m) ||
        !open_writers(m)) {
        return false;
    }
    tn_corpus_place place = tn_corpus_where(m->corpus);
    m->made.files = place.files;
    m->made.bytes = place.bytes;
    m->encoders =
        tn__encoders_begin(m->corpus, m->tokenizer, m->options.corpus.pairs, m->eot, threads);
    return m->encoders != NULL;
}

tn_status tn_tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                         const char *out, tn_tokens_options options, tn_tokens_made *made) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "tokens", "tn_tokens") ||
        !check_options(t, out, &options)) {
        return tn_error();
    }
    making m = {.tokenizer = t, .out = out, .options = options, .last_train = -2, .last_val = -2};
    bool done = begin_making(&m, paths, count) && put_all(&m) && put_summary(&m, paths, count);
    if (done) {
        m.locked = false;
        done = tn__file_commit(&m.summary) == TN_OK;
    }
    finish_making(&m);
    if (made) {
        *made = m.made;
    }
    return done ? TN_OK : tn_error();
}
