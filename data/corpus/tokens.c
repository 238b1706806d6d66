/* Texts to shards: what `tern tokens` does.
 *
 * Where a text goes follows from the texts before it alone: its split, and its shard, which ends
 * when it has `shard_bytes` of text. So a shard can be made without the others. Of several ranks,
 * number n is made by rank n % ranks, and one that is there already is left as it is.
 *
 * The caller's thread writes what the encoders return, in order. Before the first shard appears,
 * the folder's tokens.json says that they are unfinished; after the last one, what they are. Rank 0
 * has its temporary file locked from beginning to end, so that no other job writes to the folder.
 * The header of a shard has a fingerprint of texts, options and tokenizer: a new run after one that
 * did not finish keeps the shards that have its own, and removes the others. So a folder never has
 * shards of two kinds, no matter when a run was killed.
 */
#include "core/buffer.h"
#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/philox.h"
#include "data/corpus/encoders.h"
#include "data/corpus/sources.h"
#include "data/corpus/tokens.h"
#include "data/corpus/tokens_json.h"
#include "data/shards.h"
#include "data/tokenizer/tokenizer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { MORE = 4 /* tokens that a text may have beyond its bytes */ };
enum { MOST_THREADS = 1024, MOST_SHARD = 1000000000 /* bytes of text */ };
enum { SPLITS = 2, NO_PIECE = -2 /* no piece comes after it, not even the first */ };

static const char *const split_names[SPLITS] = {"train", "val"};

/* Where the texts go that the encoders read. */
typedef struct split {
    int64_t shard;            /* of the text that was read last */
    int64_t bytes;            /* of text in it */
    int64_t last;             /* that piece */
    bool wanted;              /* whether this rank makes the shard */
    tn_shards_writer *writer; /* the caller's thread uses this one */
} split;

/* A run. */
typedef struct making {
    const tn_tokenizer *tokenizer;
    const char *out;
    tn_tokens_options options;
    tn__token_ranks ranks;
    int32_t eot;
    tn_corpus *corpus;
    char of[TN__DIGEST_DIGITS + 1]; /* the fingerprint */
    tn__encoders *encoders;
    split splits[SPLITS];
    bool goes_on;     /* keeps shards that are there */
    tn__file summary; /* tokens.json, as it will be: rank 0's */
    bool locked;      /* whether `summary` is open */
    tn_tokens_made made;
} making;

tn_tokens_options tn_tokens_defaults(void) {
    return (tn_tokens_options){.corpus = tn_corpus_defaults(),
                               .seed = 1337,
                               .shard_bytes = 400000000,
                               .from_defaults = true};
}

/* ---- The fingerprint ------------------------------------------------------------------------- */

static void put_option(tn__buffer *b, const char *name, const char *text) {
    tn__buffer_format(b, "%s %d ", name, text != NULL);
    tn__buffer_text(b, text ? text : "");
    tn__buffer_text(b, "\n");
}

/* Makes m->of, a digest of all that the shards depend on. Texts are the same if their names, sizes
 * and times are. False after raising. */
static bool make_fingerprint(making *m) {
    tn__buffer b = {.operation = "tokens"};
    const tn_tokens_options *o = &m->options;
    const tn_corpus_options *c = &o->corpus;
    const tn__sources *texts = tn__corpus_sources(m->corpus);
    tn__buffer_format(&b, "tern %d.%d.%d\n", TN_VERSION_MAJOR, TN_VERSION_MINOR, TN_VERSION_PATCH);
    tn__buffer_format(&b, "eot %" PRId32 " val %a %" PRId64 " seed %" PRIu64, m->eot, o->val,
                      o->val_documents, o->seed);
    tn__buffer_format(&b, " shard %" PRId64 " pairs %d\n", o->shard_bytes, c->pairs);
    put_option(&b, "key", c->key);
    put_option(&b, "prompt", c->prompt);
    put_option(&b, "completion", c->completion);
    put_option(&b, "split", c->split);
    for (int64_t i = 0; i < texts->count; i++) {
        const tn__source_file *text = &texts->list[i];
        tn__buffer_format(&b, "file %" PRId64 " %" PRId64 " ", text->bytes, text->time);
        tn__buffer_text(&b, text->path);
        tn__buffer_text(&b, "\n");
    }
    bool done = tn__tokenizer_put(&b, m->tokenizer) && !b.failed;
    if (done) { tn__digest_of(b.at, b.bytes, m->of); }
    tn__buffer_free(&b);
    return done;
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

/* ---- Shards ---------------------------------------------------------------------------------- */

/* The caller frees. NULL after raising. */
static char *shard_path(const making *m, int which, int64_t number) {
    return tn__asprintf("tokens", "%s/" TN__SHARD_NAME, m->out, split_names[which], number);
}

/* Whether this rank makes the shard. */
static bool is_wanted(const making *m, int which, int64_t number) {
    if (number % m->ranks.ranks != m->ranks.rank) { return false; }
    char *path = shard_path(m, which, number);
    bool there = path && access(path, F_OK) == 0;
    free(path);
    return path && !there;
}

static bool place_part(void *user, tn__part *p) {
    making *m = user;
    p->split = split_of(m, p);
    split *s = &m->splits[p->split];
    p->goes_on = !p->begins && s->last == p->piece - 1;
    s->last = p->piece;
    bool nothing = p->goes_on && p->bytes == 0;
    if (s->bytes >= m->options.shard_bytes && !nothing) {
        s->shard++;
        s->bytes = 0;
        s->wanted = is_wanted(m, p->split, s->shard);
    }
    s->bytes += (int64_t)p->bytes + MORE;
    p->shard = s->shard;
    return s->wanted;
}

/* ---- Writing what was encoded ---------------------------------------------------------------- */

/* The end token precedes a document, and a text that does not continue what is before it. */
static bool put_text(const making *m, const tn__part *p, const int32_t *ids, int64_t count) {
    tn_shards_writer *w = m->splits[p->split].writer;
    return (p->goes_on || tn_shards_writer_add(w, &m->eot, 1) == TN_OK) &&
           tn_shards_writer_add(w, ids, count) == TN_OK;
}

static bool put_part(const making *m, const tn__part *p, const int32_t *ids, int64_t count) {
    tn_shards_writer *w = m->splits[p->split].writer;
    bool pairs = m->options.corpus.pairs;
    if (count > INT32_MAX - MOST_SHARD - MORE) {
        return tn__fail(TN_EVALUE, "tokens",
                        "%s: a text of %" PRId64 " tokens is too long for a shard", p->path, count);
    }
    if (tn__shards_writer_at(w, p->shard, m->of) != TN_OK ||
        !(pairs ? tn_shards_writer_add_pair(w, ids, count, p->prompt) == TN_OK
                : put_text(m, p, ids, count))) {
        return false;
    }
    tn__shard_note *note = tn__shards_writer_note(w);
    note->documents += p->begins;
    note->with_end += p->has_end;
    note->text += p->bytes;
    note->longest = pairs && (uint64_t)count > note->longest ? (uint64_t)count : note->longest;
    return true;
}

static bool put_batch(making *m, const tn__batch *b) {
    int64_t from = 0;
    for (int64_t i = 0; i < b->count; i++) {
        const tn__part *p = &b->parts[i];
        if (!put_part(m, p, b->ids.ids + from, p->end - from)) { return false; }
        m->made.documents += p->begins;
        from = p->end;
    }
    m->made.text += (int64_t)b->text.bytes;
    m->made.read = b->read;
    m->made.train = tn_shards_writer_tokens(m->splits[0].writer);
    m->made.val = tn_shards_writer_tokens(m->splits[1].writer);
    return true;
}

/* The shards of this rank. */
static bool put_all(making *m) {
    bool done = true;
    for (const tn__batch *b; done && (b = tn__encoders_next(m->encoders));) {
        done = put_batch(m, b);
        if (done && m->options.progress) { m->options.progress(&m->made, m->options.user); }
    }
    done = done && !tn__pending();
    for (int i = 0; done && i < SPLITS; i++) {
        done = tn_shards_writer_finish(m->splits[i].writer) == TN_OK;
    }
    return done;
}

/* ---- The set --------------------------------------------------------------------------------- */

static bool count_shard(making *m, int which, int64_t number) {
    tn__shard_note note;
    int64_t tokens;
    char *path = shard_path(m, which, number);
    if (path && m->ranks.ranks > 1 && access(path, F_OK) != 0) {
        tn__raise(
            TN_EIO, "tokens",
            "%s is missing: rank %d wrote it into another folder, or it is not visible here yet",
            path, (int)(number % m->ranks.ranks));
    }
    bool done = path && !tn__pending() && tn__shard_look(path, &note, &tokens);
    if (done && memcmp(note.of, m->of, sizeof(note.of)) != 0) {
        tn__raise(TN_ESTATE, "tokens", "%s is of other texts or options: another run writes there",
                  path);
        done = false;
    }
    free(path);
    if (!done) { return false; }
    tn_tokens_made *made = &m->made;
    made->documents += note.documents;
    made->with_end += note.with_end;
    made->text += (int64_t)note.text;
    made->longest = (int64_t)note.longest > made->longest ? (int64_t)note.longest : made->longest;
    *(which ? &made->val : &made->train) += tokens;
    return true;
}

/* When all have been written, also by other ranks and by runs before this one. */
static bool count_all(making *m) {
    tn_tokens_made *made = &m->made;
    made->documents = made->with_end = made->text = made->train = made->val = 0;
    made->train_shards = m->splits[0].shard + 1;
    made->val_shards = m->splits[1].shard + 1;
    bool done = true;
    for (int i = 0; i < SPLITS; i++) {
        for (int64_t number = 0; done && number <= m->splits[i].shard; number++) {
            done = count_shard(m, i, number);
        }
    }
    return done && (made->documents > 0 ||
                    tn__fail(TN_EFORMAT, "tokens", "there is no document in %" PRId64 " file%s",
                             made->files, made->files == 1 ? "" : "s"));
}

/* ---- The folder ------------------------------------------------------------------------------ */

/* Whether this shard is one that this run would make. False also after raising. */
static bool is_kept(const making *m, const char *path) {
    tn__shard_note note;
    int64_t tokens;
    return m->goes_on && tn__shard_look(path, &note, &tokens) &&
           memcmp(note.of, m->of, sizeof(note.of)) == 0;
}

static bool refuse_shard(const char *name, void *user) {
    const making *m = user;
    return !tn__is_token_shard(name, ".bin") ||
           tn__fail(TN_ESTATE, "tokens",
                    "%s/%s is there, and " TN__TOKENS_JSON
                    ", which would say where it is from, is not: use another folder or --overwrite",
                    m->out, name);
}

static bool keep_or_remove(const char *name, void *user) {
    making *m = user;
    bool whole = tn__is_token_shard(name, ".bin"); /* else another process may be writing it */
    if (!whole && !tn__is_token_shard(name, ".bin.tmp")) { return true; }
    char *path = tn__folder_path(m->out, name, "tokens");
    bool kept = path && whole && is_kept(m, path);
    m->made.kept += kept;
    if (path && !kept && !tn__pending() &&
        !(whole ? unlink(path) == 0 : tn__file_remove_stale(path))) {
        tn__raise(TN_EIO, "tokens", "%s cannot be removed: %s", path,
                  errno == EBUSY ? "another process writes it" : strerror(errno));
    }
    free(path);
    return !tn__pending();
}

/* Whether the folder may be written to. False after raising. */
static bool check_folder(making *m) {
    tn__tokens_told told;
    int quiet = m->options.overwrite;
    tn__quiet(quiet);
    tn__tokens_state state = tn__tokens_look(m->out, &told, "tokens");
    tn__quiet(-quiet);
    m->goes_on = state == TN__TOKENS_UNFINISHED;
    if (m->options.overwrite) {
        tn_error_clear(); /* whatever is there */
    } else if (state == TN__TOKENS_WHOLE) {
        tn__raise(TN_ESTATE, "tokens", "%s has tokens already (--overwrite replaces them)", m->out);
    } else if (state == TN__TOKENS_NONE) {
        return tn__folder_each(m->out, refuse_shard, m, "tokens") && !tn__pending();
    }
    return !tn__pending();
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
    return taken && tn__folder_each(m->out, keep_or_remove, m, "tokens") && !tn__pending();
}

static bool open_writers(making *m) {
    tn_shards_options o = TN_WITH(tn_shards, .vocab = tn_tokenizer_size(m->tokenizer),
                                  .shard_tokens = INT32_MAX, .pairs = m->options.corpus.pairs);
    for (int i = 0; i < SPLITS; i++) {
        char *prefix = tn__folder_path(m->out, split_names[i], "tokens");
        m->splits[i] = (split){.shard = -1,
                               .bytes = m->options.shard_bytes,
                               .last = NO_PIECE,
                               .writer = prefix ? tn_shards_writer_new(prefix, o) : NULL};
        free(prefix);
    }
    return !tn__pending();
}

/* ---- Ranks ----------------------------------------------------------------------------------- */

/* All ranks make the same, and begin when rank 0 has the folder. */
static bool agree_on_ranks(making *m) {
    char of[sizeof(m->of)];
    if (m->ranks.ranks == 1) { return true; }
    memcpy(of, m->of, sizeof(of));
    if (!m->ranks.tell(m->ranks.user, of, sizeof(of))) { return false; }
    return strcmp(of, m->of) == 0 ||
           tn__fail(TN_EMISMATCH, "tokens",
                    "rank %d has texts of other names, sizes or times, other options or another "
                    "tokenizer than rank 0",
                    m->ranks.rank);
}

/* When all have written their shards. */
static bool finish_set(making *m, const char *const *paths, int count) {
    bool alone = m->ranks.ranks == 1;
    if (!alone && !m->ranks.meet(m->ranks.user)) { return false; }
    if (m->ranks.rank == 0) {
        tn__tokens_told told = {.vocab = tn_tokenizer_size(m->tokenizer)};
        if (!count_all(m) || !tn__tokenizer_digest(m->tokenizer, told.tokenizer, "tokens") ||
            !tn__tokens_put(&m->summary, &told, m->eot, m->options.corpus.pairs, &m->made, paths,
                            count)) {
            return false;
        }
        m->locked = false;
        if (tn__file_commit(&m->summary) != TN_OK) { return false; }
    }
    return alone || m->ranks.tell(m->ranks.user, &m->made, sizeof(m->made));
}

/* ---- Public ---------------------------------------------------------------------------------- */

/* The id that ends documents. False after raising. */
static bool find_eot(making *m) {
    const char *said = m->options.eot;
    m->eot = said ? tn_tokenizer_special(m->tokenizer, said) : tn__tokenizer_end(m->tokenizer);
    return m->eot >= 0 ||
           tn__fail(TN_EVALUE, "tokens", "the tokenizer has no special token \"%s\"%s",
                    said ? said : "<|endoftext|>",
                    said ? "" : ", nor another usual one (--eot TEXT names it)");
}

static bool check_options(const tn_tokenizer *t, const char *out, const tn_tokens_options *o) {
    if (!t || !out || !*out) {
        return tn__fail(TN_EVALUE, "tokens", "%s", t ? "the folder has no name" : "no tokenizer");
    }
    const char *wrong = TN__BEYOND({"val_documents", o->val_documents, 0, 0},
                                   {"threads", o->threads, 0, MOST_THREADS},
                                   {"shard_bytes", o->shard_bytes, 1, MOST_SHARD});
    if (wrong) { return tn__fail(TN_EVALUE, "tokens", "%s", wrong); }
    return (o->val >= 0 && o->val < 1) ||
           tn__fail(TN_EVALUE, "tokens", "a validation share of %g (0 … 1)", o->val);
}

static void finish_making(making *m) {
    tn__encoders_end(m->encoders);
    for (int i = 0; i < SPLITS; i++) {
        tn_shards_writer_free(m->splits[i].writer);
    }
    tn_corpus_free(m->corpus);
    if (m->locked) { tn__file_abandon(&m->summary); }
}

static bool begin_making(making *m, const char *const *paths, int count) {
    int threads = m->options.threads ? m->options.threads : tn_threads();
    bool first = m->ranks.rank == 0;
    if (!find_eot(m) || !(m->corpus = tn_corpus_open(paths, count, m->options.corpus)) ||
        !make_fingerprint(m) ||
        (first && (!tn__folder_make(m->out, "tokens") || !check_folder(m) || !take_folder(m))) ||
        !agree_on_ranks(m) || !open_writers(m)) {
        return false;
    }
    tn_corpus_place place = tn_corpus_where(m->corpus);
    m->made.files = place.files;
    m->made.bytes = place.bytes;
    m->encoders = tn__encoders_begin(m->corpus, (tn__encoding){.tokenizer = m->tokenizer,
                                                               .pairs = m->options.corpus.pairs,
                                                               .eot = m->eot,
                                                               .threads = threads,
                                                               .place = place_part,
                                                               .user = m});
    return m->encoders != NULL;
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
    bool done = begin_making(&m, paths, count) && put_all(&m) && finish_set(&m, paths, count);
    finish_making(&m);
    if (made) { *made = m.made; }
    return done ? TN_OK : tn_error();
}

tn_status tn_tokens_make(const tn_tokenizer *t, const char *const *paths, int count,
                         const char *out, tn_tokens_options options, tn_tokens_made *made) {
    return tn__tokens_make(t, paths, count, out, options, NULL, made);
}
