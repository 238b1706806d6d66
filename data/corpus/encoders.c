#define _GNU_SOURCE /* memmem */
#include "data/corpus/encoders.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/threads.h"
#include "data/tokenizer/bpe.h"

#include <pthread.h>
#include <string.h>

/* Reading a batch ends when so much has been read, whether it is wanted or not. */
enum { BATCH_BYTES = 1 << 18, BATCH_PARTS = 4096, BATCHES_A_THREAD = 2 };

typedef struct slot {
    bool failed; /* then there is an error instead of a batch */
    tn_error_record error;
    tn__batch batch;
} slot;

/* Batches that are encoded together. */
typedef struct round {
    const tn__encoders *of;
    slot *slots; /* [of->size] */
    int count;   /* of batches */
    int next;    /* to encode; atomic */
    pthread_t *threads;
    int running; /* threads */
} round;

/* While the caller takes what one round returned, and the next one is read, another is encoded. */
struct tn__encoders {
    tn_corpus *corpus;
    tn__encoding how;
    int size;     /* batches of a round */
    int returned; /* of the first round */
    bool all_read;
    round rounds[2];
};

/* ---- Reading --------------------------------------------------------------------------------- */

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
        !tn__buffer_add(&b->text, d->text, d->bytes) ||
        !tn__buffer_add(&b->text, d->completion, d->completion_bytes)) {
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
    b->text.bytes = 0;
    b->text.operation = "tokens";
    while (bytes < BATCH_BYTES && parts < BATCH_PARTS && tn_corpus_next(e->corpus, &d) &&
           append_part(e, b, &d)) {
        bytes += d.bytes + d.completion_bytes;
        parts++;
    }
    b->read = tn_corpus_where(e->corpus).read;
    return parts > 0 && !tn__pending();
}

static void read_round(tn__encoders *e, round *r) {
    r->count = 0;
    tn__quiet(1); /* an error is raised when its batch is due */
    while (r->count < e->size && !e->all_read) {
        slot *s = &r->slots[r->count];
        bool more = read_batch(e, &s->batch);
        s->failed = tn_error_take(&s->error);
        e->all_read = !more;
        r->count += more || s->failed;
    }
    tn__quiet(-1);
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static bool encode_text(const tn__encoders *e, const tn__batch *b, size_t from, size_t to,
                        tn_ids *ids) {
    return tn_tokenizer_encode(e->how.tokenizer, b->text.at + from, to - from, false, ids) == TN_OK;
}

/* A completion must be predicted from something: without a prompt, from the end token, with which a
 * model begins when it writes without a prompt. */
static bool encode_pair(const tn__encoders *e, const tn__batch *b, tn__part *p, size_t from,
                        tn_ids *ids) {
    int64_t first = ids->count;
    bool done = encode_text(e, b, from, from + p->prompt_bytes, ids) &&
                (ids->count > first || tn__ids_append(ids, e->how.eot, "tokens"));
    p->prompt = ids->count - first;
    return done && encode_text(e, b, from + p->prompt_bytes, from + p->bytes, ids) &&
           tn__ids_append(ids, e->how.eot, "tokens");
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
        p->has_end = p->bytes && memmem(b->text.at + from, p->bytes, end, end_bytes);
        from += p->bytes;
    }
}

static void *encoder_run(void *user) {
    round *r = user;
    tn__quiet(1);
    for (int i; (i = __atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED)) < r->count;) {
        slot *s = &r->slots[i];
        if (!s->failed) {
            encode_batch(r->of, &s->batch);
            s->failed = tn_error_take(&s->error);
        }
    }
    tn__quiet(-1);
    return NULL;
}

/* Without a thread the caller encodes. */
static void begin_round(round *r) {
    r->next = r->running = 0;
    while (r->running < r->of->how.threads && r->running < r->count &&
           tn__thread_start(&r->threads[r->running], encoder_run, r) == 0) {
        r->running++;
    }
    if (!r->running) { encoder_run(r); }
}

static void end_round(round *r) {
    for (; r->running > 0; r->running--) {
        pthread_join(r->threads[r->running - 1], NULL);
    }
}

/* ---- Public ---------------------------------------------------------------------------------- */

const tn__batch *tn__encoders_next(tn__encoders *e) {
    round *first = &e->rounds[0], *second = &e->rounds[1];
    if (e->returned == first->count) {
        read_round(e, first);
        end_round(second);
        round read = *first;
        *first = *second;
        *second = read;
        begin_round(second);
        e->returned = 0;
        if (first->count == 0) { return NULL; }
    }
    slot *s = &first->slots[e->returned++];
    if (s->failed) { tn_error_give(&s->error); }
    return s->failed ? NULL : &s->batch;
}

tn__encoders *tn__encoders_begin(tn_corpus *c, tn__encoding how) {
    tn__encoders *e = tn__calloc_for(1, sizeof(*e), "tokens");
    if (!e) { return NULL; }
    e->corpus = c;
    e->how = how;
    e->size = BATCHES_A_THREAD * how.threads;
    bool made = true;
    for (int i = 0; i < 2; i++) {
        e->rounds[i] =
            (round){.of = e,
                    .slots = tn__calloc_for((size_t)e->size, sizeof(slot), "tokens"),
                    .threads = tn__calloc_for((size_t)how.threads, sizeof(pthread_t), "tokens")};
        made = made && e->rounds[i].slots && e->rounds[i].threads;
    }
    if (!made) {
        tn__encoders_end(e);
        return NULL;
    }
    read_round(e, &e->rounds[1]);
    begin_round(&e->rounds[1]);
    return e;
}

void tn__encoders_end(tn__encoders *e) {
    for (int k = 0; e && k < 2; k++) {
        round *r = &e->rounds[k];
        __atomic_store_n(&r->next, r->count, __ATOMIC_RELAXED); /* what is left is not encoded */
        end_round(r);
        for (int i = 0; r->slots && i < e->size; i++) {
            free(r->slots[i].batch.parts);
            tn__buffer_free(&r->slots[i].batch.text);
            tn_ids_free(&r->slots[i].batch.ids);
        }
        free(r->slots);
        free(r->threads);
    }
    free(e);
}
