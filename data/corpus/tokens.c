/* Texts to shards: what `tern tokens` does.
 *
 * The caller's thread writes what the encoders return, in order. Before the first shard appears,
 * the folder's tokens.json says that they are unfinished; after the last one, what they are. Its
 * temporary file is locked from beginning to end, so that no other process writes to the folder. A
 * new run with the same texts and options keeps the whole shards that an unfinished one left
 * (so_far.h), and any other removes them. So a folder never has shards of two kinds, no matter when
 * a run was killed.
 *
 * With several ranks (exchange.h) rank 0 does all this, and the others send it what they encode.
 */
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/philox.h"
#include "data/corpus/exchange.h"
#include "data/corpus/so_far.h"
#include "data/corpus/tokens_json.h"
#include "data/shards.h"
#include "text/json_write.h"
#include "text/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 1024 };

typedef struct making making;

typedef struct split {
    making *m;
    int number; /* of tn__split_names */
    tn_shards_writer *writer;
    int64_t last;     /* the piece that was written last */
    int64_t longest;  /* pair, in tokens */
    int64_t unneeded; /* tokens to leave out, since they are in a shard that was kept */
    tn__point point;  /* what the record of the next shard says */
} split;

/* A run. */
struct making {
    const tn_tokenizer *tokenizer;
    const char *out;
    tn_tokens_options options;
    tn__token_ranks ranks;
    int32_t eot;
    tn_corpus *corpus;
    tn__encoders *encoders;
    split splits[TN__SPLITS]; /* rank 0's */
    tn__so_far so_far;
    tn__point kept[TN__SPLITS]; /* where it goes on */
    tn__file summary;           /* tokens.json, as it will be */
    bool locked;                /* whether `summary` is open */
    tn_tokens_made made;
};

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

/* The number of the split that gets this part. */
static int split_of(const making *m, const tn__part *p) {
    const tn_tokens_options *o = &m->options;
    return p->number < o->val_documents || (o->val > 0 && is_drawn(p->piece, o->val, o->seed));
}

/* Whether not all of the part's tokens are in shards that were kept. */
static bool is_wanted(void *user, const tn__part *p, int64_t batch) {
    const making *m = user;
    return batch >= m->kept[split_of(m, p)].batch;
}

/* ---- Writing what was encoded ---------------------------------------------------------------- */

/* How many of `count` tokens to leave out. */
static int64_t leave_out(split *s, int64_t count) {
    int64_t out = s->unneeded < count ? s->unneeded : count;
    s->unneeded -= out;
    return out;
}

static bool put_tokens(split *s, const int32_t *ids, int64_t count) {
    int64_t out = leave_out(s, count);
    return tn_shards_writer_add(s->writer, ids + out, count - out) == TN_OK;
}

/* Writes the end token first, before a document and where the text does not continue what was
 * written before it. */
static bool put_text(split *s, const tn__part *p, const int32_t *ids, int64_t count) {
    bool goes_on = !p->begins && s->last == p->piece - 1;
    s->last = p->piece;
    return (goes_on || put_tokens(s, &s->m->eot, 1)) && put_tokens(s, ids, count);
}

static bool put_pair(split *s, const tn__part *p, const int32_t *ids, int64_t count) {
    s->longest = count > s->longest ? count : s->longest;
    return leave_out(s, count) == count ||
           tn_shards_writer_add_pair(s->writer, ids, count, p->prompt) == TN_OK;
}

/* Before batch `number` is written. Of the batches before the one where it goes on, a split has
 * nothing. */
static void begin_batch(split *s, int64_t number) {
    if (number >= s->m->kept[s->number].batch) {
        s->point.batch = number;
        s->point.before = tn_shards_writer_tokens(s->writer) - s->unneeded;
        s->point.last = s->last;
        s->point.longest = s->longest;
    }
}

static bool put_batch(making *m, const tn__batch *b) {
    int64_t from = 0;
    for (int i = 0; i < TN__SPLITS; i++) {
        begin_batch(&m->splits[i], b->number);
    }
    for (int64_t i = 0; i < b->count; i++) {
        const tn__part *p = &b->parts[i];
        const int32_t *ids = b->ids.ids + from;
        int64_t count = p->end - from;
        split *s = &m->splits[split_of(m, p)];
        if (!p->unwanted && !(m->options.corpus.pairs ? put_pair : put_text)(s, p, ids, count)) {
            return false;
        }
        m->made.documents += p->begins;
        m->made.with_end += p->has_end;
        from = p->end;
    }
    m->made.text += (int64_t)b->bytes;
    m->made.read = b->read;
    const split *train = &m->splits[0], *val = &m->splits[1];
    m->made.longest = train->longest > val->longest ? train->longest : val->longest;
    m->made.train = tn_shards_writer_tokens(train->writer);
    m->made.val = tn_shards_writer_tokens(val->writer);
    return true;
}

/* The writers' function for each whole shard. */
static bool note_shard(void *user, const char *path) {
    split *s = user;
    s->point.shards = tn_shards_writer_shards(s->writer);
    s->point.tokens = tn_shards_writer_tokens(s->writer);
    return tn__so_far_add(&s->m->so_far, s->number, s->point, path);
}

static bool finish_shards(making *m) {
    if (m->made.documents == 0) {
        tn__raise(TN_EFORMAT, "tokens", "there is no document in %" PRId64 " file%s", m->made.files,
                  m->made.files == 1 ? "" : "s");
    }
    bool done = !tn__pending();
    for (int i = 0; done && i < TN__SPLITS; i++) {
        done = tn_shards_writer_finish(m->splits[i].writer) == TN_OK;
    }
    m->made.train_shards = tn_shards_writer_shards(m->splits[0].writer);
    m->made.val_shards = tn_shards_writer_shards(m->splits[1].writer);
    return done;
}

static bool put_all(making *m) {
    bool done = true;
    for (tn__batch *b; done && (b = tn__encoders_next(m->encoders));) {
        done = (!b->foreign || tn__batch_receive(&m->ranks, b)) && put_batch(m, b);
        if (done && m->options.progress) { m->options.progress(&m->made, m->options.user); }
    }
    return done && !tn__pending() && finish_shards(m);
}

/* Of the other ranks. */
static bool send_all(making *m) {
    bool done = true;
    for (const tn__batch *b; done && (b = tn__encoders_next(m->encoders));) {
        done = tn__batch_send(&m->ranks, b);
    }
    return done && !tn__pending();
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

static void put_counts(tn__buffer *j, const char *name, int64_t shards, int64_t tokens) {
    tn__buffer_format(j, " \"%s\": {\"shards\": %" PRId64 ", \"tokens\": %" PRId64 "},\n", name,
                      shards, tokens);
}

/* Writes what a reader needs to know. */
static bool put_summary(making *m, const char *const *paths, int count) {
    char digits[TN__DIGEST_DIGITS + 1];
    const tn_tokens_made *made = &m->made;
    if (!tn__tokenizer_digest(m->tokenizer, digits, "tokens")) { return false; }
    tn__buffer j = {.operation = "tokens"};
    tn__buffer_text(&j, "{\"format\": \"tern-tokens-1\",\n \"finished\": true,\n");
    tn__buffer_format(&j, " \"vocab\": %" PRId64 ",\n \"eot\": %" PRId32 ",\n",
                      tn_tokenizer_size(m->tokenizer), m->eot);
    tn__buffer_format(&j, " \"tokenizer\": \"%s\",\n", digits);
    tn__buffer_format(&j, " \"pairs\": %s,\n", m->options.corpus.pairs ? "true" : "false");
    tn__buffer_format(&j, " \"documents\": %" PRId64 ",\n \"tokens\": %" PRId64 ",\n",
                      made->documents, made->train + made->val);
    tn__buffer_format(&j, " \"bytes\": %" PRId64 ",\n", made->text);
    put_counts(&j, "train", made->train_shards, made->train);
    put_counts(&j, "val", made->val_shards, made->val);
    tn__buffer_format(&j, " \"files\": %" PRId64 ",\n \"sources\": [", made->files);
    for (int i = 0; i < count; i++) {
        tn__buffer_format(&j, i ? ", " : "");
        put_path(&j, paths[i]);
    }
    tn__buffer_text(&j, "]}\n");
    bool whole = !j.failed;
    if (whole) { tn__file_put(&m->summary, j.at, j.bytes); }
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
    return tn__is_token_shard(name) || strcmp(name, TN__SO_FAR_JSON) == 0;
}

static bool is_kept(const making *m, const char *name) {
    char kept[64];
    if (strcmp(name, TN__SO_FAR_JSON) == 0) { return m->so_far.count > 0; }
    for (int i = 0; i < TN__SPLITS; i++) {
        size_t bytes = strlen(tn__split_names[i]);
        if (strncmp(name, tn__split_names[i], bytes) == 0 && name[bytes] == '_') {
            int64_t number = strtoll(name + bytes + 1, NULL, 10);
            snprintf(kept, sizeof(kept), TN__SHARD_NAME, tn__split_names[i], number);
            return number < m->kept[i].shards && strcmp(name, kept) == 0;
        }
    }
    return false;
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
    bool remove = is_ours(name) && !is_kept(m, name);
    char *path = remove ? tn__folder_path(m->out, name, "tokens") : NULL;
    if (path && unlink(path) != 0) { tn__raise(TN_EIO, "tokens", "%s cannot be removed", path); }
    free(path);
    return !tn__pending();
}

/* Whether the folder may be written to. False after raising. */
static bool check_folder(making *m) {
    tn__tokens_told told;
    if (m->options.overwrite) { return true; }
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

/* Afterwards the folder belongs to this run and has no shards but those that it keeps. */
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
    m->so_far.folder = m->out;
    return taken &&
           tn__tokens_identity(m->tokenizer, m->eot, &m->options, tn__corpus_sources(m->corpus),
                               true, m->so_far.of) &&
           tn__so_far_read(&m->so_far, m->kept) &&
           tn__folder_each(m->out, remove_shard, m, "tokens") && !tn__pending();
}

/* The record of an unfinished run goes when tokens.json says that it is finished. Should that fail,
 * it stays, and nobody reads it. */
static void remove_record(const making *m) {
    char *path = tn__asprintf(NULL, "%s/" TN__SO_FAR_JSON, m->out);
    if (path) { unlink(path); }
    free(path);
}

static bool open_writer(making *m, int number, tn_shards_options o) {
    split *s = &m->splits[number];
    const tn__point *kept = &m->kept[number];
    char *prefix = tn__folder_path(m->out, tn__split_names[number], "tokens");
    *s = (split){.m = m,
                 .number = number,
                 .writer = prefix ? tn_shards_writer_new(prefix, o) : NULL,
                 .last = kept->last,
                 .longest = kept->longest,
                 .unneeded = kept->tokens - kept->before,
                 .point = *kept};
    free(prefix);
    if (s->writer) {
        tn__shards_writer_go_on(s->writer, kept->shards, kept->tokens, note_shard, s);
        m->made.kept += kept->shards;
    }
    return s->writer != NULL;
}

static bool open_writers(making *m) {
    tn_shards_options o =
        TN_WITH(tn_shards, .vocab = tn_tokenizer_size(m->tokenizer),
                .shard_tokens = m->options.shard_tokens, .pairs = m->options.corpus.pairs);
    return open_writer(m, 0, o) && open_writer(m, 1, o);
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

/* What rank 0 tells the others at the beginning. */
typedef struct told {
    char what[TN__DIGEST_DIGITS + 8]; /* a digest of texts, options and tokenizer */
    tn__point kept[TN__SPLITS];
} told;

/* All ranks agree on what they make, and where they go on. */
static bool agree_on_ranks(making *m) {
    told ours = {0}, theirs;
    if (m->ranks.ranks == 1) { return true; }
    if (!tn__tokens_identity(m->tokenizer, m->eot, &m->options, tn__corpus_sources(m->corpus),
                             false, ours.what)) {
        return false;
    }
    memcpy(ours.kept, m->kept, sizeof(ours.kept));
    theirs = ours;
    if (!m->ranks.tell(m->ranks.user, &theirs, sizeof(theirs))) { return false; }
    if (memcmp(ours.what, theirs.what, sizeof(ours.what)) != 0) {
        tn__raise(TN_EMISMATCH, "tokens",
                  "rank %d has texts of other sizes, other options or another tokenizer than rank "
                  "0",
                  m->ranks.rank);
        return false;
    }
    memcpy(m->kept, theirs.kept, sizeof(m->kept));
    return true;
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
    for (int i = 0; i < TN__SPLITS; i++) {
        tn_shards_writer_free(m->splits[i].writer);
    }
    tn_corpus_free(m->corpus);
    tn__so_far_free(&m->so_far);
    if (m->locked) { tn__file_abandon(&m->summary); }
}

static bool begin_making(making *m, const char *const *paths, int count) {
    int threads = m->options.threads ? m->options.threads : tn_threads();
    bool writes = m->ranks.rank == 0;
    if (!find_eot(m) || !(m->corpus = tn_corpus_open(paths, count, m->options.corpus)) ||
        (writes && (!tn__folder_make(m->out, "tokens") || !check_folder(m) || !take_folder(m) ||
                    !open_writers(m))) ||
        !agree_on_ranks(m)) {
        return false;
    }
    tn_corpus_place place = tn_corpus_where(m->corpus);
    m->made.files = place.files;
    m->made.bytes = place.bytes;
    m->encoders = tn__encoders_begin(m->corpus, (tn__encoding){.tokenizer = m->tokenizer,
                                                               .pairs = m->options.corpus.pairs,
                                                               .eot = m->eot,
                                                               .threads = threads,
                                                               .rank = m->ranks.rank,
                                                               .ranks = m->ranks.ranks,
                                                               .wants = is_wanted,
                                                               .user = m});
    return m->encoders != NULL;
}

/* On rank 0. */
static bool write_set(making *m, const char *const *paths, int count) {
    if (!put_all(m) || !put_summary(m, paths, count)) { return false; }
    m->locked = false;
    if (tn__file_commit(&m->summary) != TN_OK) { return false; }
    remove_record(m);
    return true;
}

tn_status tn__tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                          const char *out, tn_tokens_options options, const tn__token_ranks *r,
                          tn_tokens_made *made) {
    if (tn__pending() || !tn__options_made(options.from_defaults, "tokens", "tn_tokens") ||
        !check_options(t, out, &options)) {
        return tn_error();
    }
    making m = {.tokenizer = t, .out = out, .options = options, .ranks = {.ranks = 1}};
    if (r) { m.ranks = *r; }
    bool done = begin_making(&m, paths, count) &&
                (m.ranks.rank == 0 ? write_set(&m, paths, count) : send_all(&m)) &&
                (m.ranks.ranks == 1 || m.ranks.tell(m.ranks.user, &m.made, sizeof(m.made)));
    finish_making(&m);
    if (made) { *made = m.made; }
    return done ? TN_OK : tn_error();
}

tn_status tn_tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                         const char *out, tn_tokens_options options, tn_tokens_made *made) {
    return tn__tokens_make(t, paths, count, out, options, NULL, made);
}
