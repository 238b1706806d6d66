#include "data/corpus/so_far.h"

#include "core/buffer.h"
#include "core/error.h"
#include "core/file.h"
#include "core/folder.h"
#include "core/memory.h"
#include "core/reader.h"
#include "data/corpus/encoders.h"
#include "data/corpus/tokens_json.h"
#include "data/shards.h"
#include "data/tokenizer/tokenizer.h"
#include "text/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FORMAT "tern-tokens-so-far-1"

const char *const tn__split_names[TN__SPLITS] = {"train", "val"};

typedef struct tn__made {
    int split;
    char digest[TN__DIGEST_DIGITS + 1];
    tn__point after;
} tn__made;

/* ---- What the shards depend on --------------------------------------------------------------- */

/* Tokenizers of one vocabulary may cut and join differently. */
static bool put_tokenizer(tn__buffer *b, const tn_tokenizer *t) {
    char digits[TN__DIGEST_DIGITS + 1];
    if (!tn__tokenizer_digest(t, digits, b->operation)) { return false; }
    tn__buffer_format(b, "tokenizer %s %d %d\n", digits, t->whole, t->prefix_space);
    for (int i = 0; i < t->patterns.count; i++) {
        const tn__pattern *p = t->patterns.of[i];
        tn__buffer_format(b, "pattern %d ", tn__pattern_is_literal(p));
        tn__buffer_text(b, tn__pattern_text(p));
        tn__buffer_text(b, "\n");
    }
    for (int32_t id = 0; id < t->size; id++) {
        uint8_t kind[2] = {(uint8_t)t->tokens[id].kind, t->tokens[id].late};
        tn__buffer_add(b, kind, sizeof(kind));
    }
    for (uint32_t i = 0; t->pairs.entries && i <= t->pairs.mask; i++) {
        if (t->pairs.entries[i].left >= 0) {
            tn__buffer_add(b, &t->pairs.entries[i], sizeof(t->pairs.entries[i]));
        }
    }
    return true;
}

static void put_option(tn__buffer *b, const char *name, const char *text) {
    tn__buffer_format(b, "%s %d ", name, text != NULL);
    tn__buffer_text(b, text ? text : "");
    tn__buffer_text(b, "\n");
}

static void put_texts(tn__buffer *b, const tn__sources *texts, bool here) {
    for (int64_t i = 0; i < texts->count; i++) {
        const tn__source_file *text = &texts->list[i];
        tn__buffer_format(b, "file %" PRId64, text->bytes);
        if (here) {
            tn__buffer_format(b, " %" PRId64 " ", text->time);
            tn__buffer_text(b, text->path);
        }
        tn__buffer_text(b, "\n");
    }
}

bool tn__tokens_identity(const tn_tokenizer *t, int32_t eot, const tn_tokens_options *o,
                         const tn__sources *texts, bool here, char *digits) {
    tn__buffer b = {.operation = "tokens"};
    const tn_corpus_options *c = &o->corpus;
    tn__buffer_format(&b, "tern %d.%d.%d, batches of %d and %d\n", TN_VERSION_MAJOR,
                      TN_VERSION_MINOR, TN_VERSION_PATCH, TN__BATCH_BYTES, TN__BATCH_PARTS);
    tn__buffer_format(&b, "eot %" PRId32 " val %a %" PRId64 " seed %" PRIu64, eot, o->val,
                      o->val_documents, o->seed);
    tn__buffer_format(&b, " shard %" PRId64 " pairs %d\n", o->shard_tokens, c->pairs);
    put_option(&b, "key", c->key);
    put_option(&b, "prompt", c->prompt);
    put_option(&b, "completion", c->completion);
    put_option(&b, "split", c->split);
    put_texts(&b, texts, here);
    bool done = put_tokenizer(&b, t) && !b.failed;
    if (done) { tn__digest_of(b.at, b.bytes, digits); }
    tn__buffer_free(&b);
    return done;
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool digest_file(const char *path, char *digits) {
    enum { AT_ONCE = 1 << 20 };
    tn__reader r;
    if (!tn__reader_open(&r, path, "tokens")) { return false; }
    char *part = tn__malloc_for(AT_ONCE, "tokens");
    tn__digest *d = part ? tn__digest_new("tokens") : NULL;
    bool done = d != NULL;
    for (size_t at = 0; done && at < r.bytes; at += AT_ONCE) {
        size_t bytes = r.bytes - at < AT_ONCE ? r.bytes - at : AT_ONCE;
        done = tn__reader_get(&r, at, part, bytes);
        if (done) { tn__digest_add(d, part, bytes); }
    }
    if (done) { tn__digest_text(d, digits); }
    tn__digest_free(d);
    free(part);
    tn__reader_close(&r);
    return done;
}

/* The caller frees. */
static char *shard_name(int split, int64_t number) {
    return tn__asprintf("tokens", TN__SHARD_NAME, tn__split_names[split], number);
}

/* Whether the shard that this was noted of is still there, as it was. */
static bool is_there(const tn__so_far *s, const tn__made *m) {
    char digest[TN__DIGEST_DIGITS + 1], *name = shard_name(m->split, m->after.shards - 1);
    char *path = name ? tn__folder_path(s->folder, name, "tokens") : NULL;
    bool same = path && tn__folder_has(s->folder, name) && digest_file(path, digest) &&
                strcmp(digest, m->digest) == 0;
    free(name);
    free(path);
    return same;
}

static bool take_whole(const tn__json *object, const char *key, int64_t least, int64_t *to) {
    const tn__json *value = tn__json_get(object, key);
    bool sound = value && value->kind == TN__JSON_WHOLE && value->whole >= least;
    *to = sound ? value->whole : 0;
    return sound;
}

static const char *text_at(const tn__json *object, const char *key) {
    const tn__json *value = tn__json_get(object, key);
    return value && value->kind == TN__JSON_TEXT ? value->text : "";
}

/* Whether this can be what was noted when the split was at `before`. */
static bool made_of(const tn__json *object, const tn__point *points, tn__made *m) {
    tn__point *p = &m->after;
    const char *split = text_at(object, "split");
    m->split = strcmp(split, tn__split_names[1]) == 0;
    snprintf(m->digest, sizeof(m->digest), "%s", text_at(object, "digest"));
    const tn__point *before = &points[m->split];
    p->shards = before->shards + 1;
    return strcmp(split, tn__split_names[m->split]) == 0 &&
           take_whole(object, "tokens", before->tokens, &p->tokens) &&
           take_whole(object, "batch", before->batch, &p->batch) &&
           take_whole(object, "before", before->before, &p->before) && p->before <= p->tokens &&
           take_whole(object, "last", TN__NO_PIECE, &p->last) &&
           take_whole(object, "longest", before->longest, &p->longest);
}

static bool keep_made(tn__so_far *s, const tn__made *m) {
    bool fits = tn__grow(&s->list, s->count + 1, &s->capacity, sizeof(*s->list), "tokens");
    if (fits) { s->list[s->count++] = *m; }
    return fits;
}

/* Of each split the shards up to the first one that has changed. */
static void take_shards(tn__so_far *s, const tn__json *whole, tn__point *points) {
    const tn__json *shards = tn__json_get(whole, "shards");
    if (strcmp(text_at(whole, "format"), FORMAT) != 0 || strcmp(text_at(whole, "of"), s->of) != 0 ||
        !shards || shards->kind != TN__JSON_LIST) {
        return;
    }
    bool ended[TN__SPLITS] = {false};
    const tn__json *one = tn__json_first(shards);
    for (uint32_t i = 0; i < shards->count && !tn__pending(); i++, one = tn__json_next(one)) {
        tn__made m;
        if (!made_of(one, points, &m)) { return; }
        ended[m.split] = ended[m.split] || !is_there(s, &m);
        if (!ended[m.split] && keep_made(s, &m)) { points[m.split] = m.after; }
    }
}

bool tn__so_far_read(tn__so_far *s, tn__point *points) {
    for (int i = 0; i < TN__SPLITS; i++) {
        points[i] = (tn__point){.last = TN__NO_PIECE};
    }
    size_t bytes;
    char *path = tn__folder_path(s->folder, TN__SO_FAR_JSON, "tokens"), *text = NULL;
    if (path && tn__folder_has(s->folder, TN__SO_FAR_JSON)) {
        text = tn__read_whole(path, &bytes, "tokens");
    }
    tn__json_file json;
    if (text && tn__json_read_any(&json, text, bytes)) {
        take_shards(s, json.values, points);
        tn__json_free(&json);
    } else if (text && !json.wrong) {
        tn__raise(TN_ENOMEM, "tokens", "%s: no memory", path);
    }
    free(text);
    free(path);
    return !tn__pending();
}

/* ---- Writing --------------------------------------------------------------------------------- */

static bool write_all(const tn__so_far *s) {
    tn__file f;
    char *path = tn__folder_path(s->folder, TN__SO_FAR_JSON, "tokens");
    bool open = path && tn__file_begin(&f, path, "tokens");
    free(path);
    if (!open) { return false; }
    tn__file_print(&f, "{\"format\": \"" FORMAT "\",\n \"of\": \"%s\",\n \"shards\": [", s->of);
    for (int64_t i = 0; i < s->count; i++) {
        const tn__made *m = &s->list[i];
        const tn__point *p = &m->after;
        tn__file_print(&f, "%s\n  {\"split\": \"%s\", \"digest\": \"%s\", \"tokens\": %" PRId64,
                       i ? "," : "", tn__split_names[m->split], m->digest, p->tokens);
        tn__file_print(&f, ", \"batch\": %" PRId64 ", \"before\": %" PRId64, p->batch, p->before);
        tn__file_print(&f, ", \"last\": %" PRId64 ", \"longest\": %" PRId64 "}", p->last,
                       p->longest);
    }
    tn__file_print(&f, "]}\n");
    return tn__file_commit(&f) == TN_OK;
}

bool tn__so_far_add(tn__so_far *s, int split, tn__point after, const char *path) {
    tn__made m = {.split = split, .after = after};
    return digest_file(path, m.digest) && keep_made(s, &m) && write_all(s);
}

void tn__so_far_free(tn__so_far *s) {
    free(s->list);
    *s = (tn__so_far){.folder = NULL};
}
