#define _GNU_SOURCE /* memmem */
#include "data/corpus/encoders.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "data/tokenizer/bpe.h"

#include <pthread.h>
#include <string.h>

/* Reading a batch ends when so much has been read, whether it is wanted or not. */
enum { BATCH_BYTES = 1 << 18, BATCH_PARTS = 4096 };

typedef struct slot {
    bool ready;
    bool failed; /* then there is an error instead of a batch */
    tn_error_record error;
    tn__batch batch;
} slot;

struct tn__encoders {
    tn_corpus *corpus;
    tn__encoding how;
    pthread_mutex_t reading; /* held by the one that reads, before `lock` */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a slot is ready, or one of these: */
    int64_t read;           /* batches */
    int64_t returned;       /* of them, that the caller is done with */
    bool lent;              /* the caller has the next one after these */
    bool all_read, stop;

    pthread_t *threads;
    int started;
    int slots;
    slot list[];
};

/* Of the i-th batch. */
static slot *slot_of(tn__encoders *e, int64_t i) {
    return &e->list[i % e->slots];
}

/* ---- Reading --------------------------------------------------------------------------------- */

static bool append_text(tn__batch *b, const char *text, size_t bytes) {
    if (!tn__grow(&b->text, (int64_t)(b->bytes + bytes) + 1, &b->text_capacity, 1, "tokens")) {
        return false;
    }
    if (bytes > 0) { memcpy(b->text + b->bytes, text, bytes); }
    b->bytes += bytes;
    return true;
}

static bool append_part(const tn__encoders *e, tn__batch *b, const tn_document *d) {
    tn__part p = {.number = d->number,
                  .piece = d->piece,
                  .begins = d->begins,
                  .path = d->path,
                  .line = d->line,
                  .prompt_bytes = d->bytes,
                  .bytes = d->bytes + d->completion_bytes};
    if (!e->how.place(e->how.user, &p)) { return !tn__pending(); }
    if (!tn__grow(&b->parts, b->count + 1, &b->capacity, sizeof(*b->parts), "tokens") ||
        !append_text(b, d->text, d->bytes) || !append_text(b, d->completion, d->completion_bytes)) {
        return false;
    }
    b->parts[b->count++] = p;
    return true;
}

/* False when there is nothing more, or an error is pending. */
static bool read_batch(tn__encoders *e, tn__batch *b) {
    tn_document d;
    size_t bytes = 0;
    int parts = 0;
    b->count = 0;
    b->bytes = 0;
    while (bytes < BATCH_BYTES && parts < BATCH_PARTS && tn_corpus_next(e->corpus, &d) &&
           append_part(e, b, &d)) {
        bytes += d.bytes + d.completion_bytes;
        parts++;
    }
    b->read = tn_corpus_where(e->corpus).read;
    return parts > 0 && !tn__pending();
}

/* Whether another batch is to be read; waits until there is a slot for it. */
static bool may_read(tn__encoders *e) {
    pthread_mutex_lock(&e->lock);
    while (!e->stop && !e->all_read && e->read - e->returned == e->slots) {
        pthread_cond_wait(&e->changed, &e->lock);
    }
    bool may = !e->stop && !e->all_read;
    pthread_mutex_unlock(&e->lock);
    return may;
}

/* Reads the next batch. NULL: there is none. */
static slot *read_next(tn__encoders *e) {
    slot *s = NULL;
    pthread_mutex_lock(&e->reading);
    if (may_read(e)) {
        s = slot_of(e, e->read);
        bool more = read_batch(e, &s->batch);
        s->failed = tn_error_take(&s->error);
        pthread_mutex_lock(&e->lock);
        e->all_read = !more;
        e->read += more || s->failed;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
        s = more || s->failed ? s : NULL;
    }
    pthread_mutex_unlock(&e->reading);
    return s;
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static bool encode_text(const tn__encoders *e, const tn__batch *b, size_t from, size_t to,
                        tn_ids *ids) {
    return tn_tokenizer_encode(e->how.tokenizer, b->text + from, to - from, false, ids) == TN_OK;
}

static bool append_id(tn_ids *ids, int32_t id) {
    if (!tn__ids_reserve(ids, 1)) { return false; }
    ids->ids[ids->count++] = id;
    return true;
}

/* A completion must be predicted from something: without a prompt, from the end token, with which a
 * model begins when it writes without a prompt. */
static bool encode_pair(const tn__encoders *e, const tn__batch *b, tn__part *p, size_t from,
                        tn_ids *ids) {
    int64_t first = ids->count;
    bool done = encode_text(e, b, from, from + p->prompt_bytes, ids) &&
                (ids->count > first || append_id(ids, e->how.eot));
    p->prompt = ids->count - first;
    return done && encode_text(e, b, from + p->prompt_bytes, from + p->bytes, ids) &&
           append_id(ids, e->how.eot);
}

/* Adds to the error where the text comes from, which the tokenizer does not know. */
static void say_where(const tn__part *p) {
    tn_error_record why;
    char line[40] = "";
    if (tn_error_take(&why)) {
        if (p->line > 0) { snprintf(line, sizeof(line), ": line %lld", (long long)p->line); }
        tn__raise(why.status, "tokens", "%s%s: %s", p->path, line, why.message);
    }
}

static void encode_batch(const tn__encoders *e, tn__batch *b) {
    size_t from = 0, end_bytes;
    const char *end = tn_tokenizer_bytes(e->how.tokenizer, e->how.eot, &end_bytes);
    b->ids.count = 0;
    for (int64_t i = 0; i < b->count; i++) {
        tn__part *p = &b->parts[i];
        bool done = e->how.pairs ? encode_pair(e, b, p, from, &b->ids)
                                 : encode_text(e, b, from, from + p->bytes, &b->ids);
        if (!done) {
            say_where(p);
            return;
        }
        p->end = b->ids.count;
        p->has_end = p->bytes && memmem(b->text + from, p->bytes, end, end_bytes);
        from += p->bytes;
    }
}

static void say_nothing(tn_status status, const char *message) {}

static void *encoder_run(void *user) {
    tn__encoders *e = user;
    tn_on_error_thread(say_nothing); /* an error is raised when its batch is due */
    for (slot *s; (s = read_next(e));) {
        if (!s->failed) {
            encode_batch(e, &s->batch);
            s->failed = tn_error_take(&s->error);
        }
        pthread_mutex_lock(&e->lock);
        s->ready = true;
        pthread_cond_broadcast(&e->changed);
        pthread_mutex_unlock(&e->lock);
    }
    return NULL;
}

/* ---- Returning batches ----------------------------------------------------------------------- */

const tn__batch *tn__encoders_next(tn__encoders *e) {
    pthread_mutex_lock(&e->lock);
    if (e->lent) {
        slot_of(e, e->returned++)->ready = e->lent = false;
        pthread_cond_broadcast(&e->changed);
    }
    slot *s = slot_of(e, e->returned);
    while (!s->ready && !(e->all_read && e->returned == e->read)) {
        pthread_cond_wait(&e->changed, &e->lock);
    }
    e->lent = s->ready;
    pthread_mutex_unlock(&e->lock);
    if (e->lent && s->failed) { tn_error_give(&s->error); }
    return e->lent && !s->failed ? &s->batch : NULL;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool start_threads(tn__encoders *e, int threads) {
    int failed = 0;
    while (e->started < threads && !failed) {
        failed = tn__thread_start(&e->threads[e->started], encoder_run, e);
        e->started += !failed;
    }
    return !failed || tn__fail(TN_ENOMEM, "tokens", "thread %d of %d could not be started: %s",
                               e->started + 1, threads, strerror(failed));
}

tn__encoders *tn__encoders_begin(tn_corpus *c, tn__encoding how) {
    int slots = 2 * how.threads + 1;
    tn__encoders *e = tn__calloc_for(1, sizeof(*e) + (size_t)slots * sizeof(e->list[0]), "tokens");
    if (e) { e->threads = tn__calloc_for((size_t)how.threads, sizeof(*e->threads), "tokens"); }
    if (!e || !e->threads) {
        free(e);
        return NULL;
    }
    e->corpus = c;
    e->how = how;
    e->slots = slots;
    pthread_mutex_init(&e->reading, NULL);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    if (!start_threads(e, how.threads)) {
        tn__encoders_end(e);
        return NULL;
    }
    return e;
}

void tn__encoders_end(tn__encoders *e) {
    if (!e) { return; }
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < e->started; i++) {
        pthread_join(e->threads[i], NULL);
    }
    for (int i = 0; i < e->slots; i++) {
        free(e->list[i].batch.parts);
        free(e->list[i].batch.text);
        tn_ids_free(&e->list[i].batch.ids);
    }
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->reading);
    free(e->threads);
    free(e);
}
