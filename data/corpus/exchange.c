#include "data/corpus/exchange.h"

#include "core/digest.h"
#include "core/error.h"
#include "data/tokenizer/bpe.h"

#include <inttypes.h>
#include <string.h>

/* A message: this, then `parts` of the next, then the ids. */
typedef struct head {
    char text[TN__DIGEST_DIGITS + 8]; /* a digest of the batch's text, and zeros */
    int64_t parts, ids;
} head;

typedef struct encoded {
    int64_t prompt, end;
    int64_t has_end;
} encoded;

static head head_of(const tn__batch *b) {
    head h = {.parts = b->count, .ids = b->ids.count};
    tn__digest_of(b->text, b->bytes, h.text);
    return h;
}

bool tn__batch_send(const tn__token_ranks *r, const tn__batch *b) {
    tn__buffer message = {.operation = "tokens"};
    head h = head_of(b);
    tn__buffer_add(&message, &h, sizeof(h));
    for (int64_t i = 0; i < b->count; i++) {
        const tn__part *p = &b->parts[i];
        encoded e = {.prompt = p->prompt, .end = p->end, .has_end = p->has_end};
        tn__buffer_add(&message, &e, sizeof(e));
    }
    if (b->ids.count > 0) {
        tn__buffer_add(&message, b->ids.ids, (size_t)b->ids.count * sizeof(*b->ids.ids));
    }
    bool sent = !message.failed && r->send(r->user, message.at, message.bytes);
    tn__buffer_free(&message);
    return sent;
}

/* Takes a message's parts and ids, which are as many as its head says. */
static bool take_ids(tn__batch *b, const char *parts, int64_t ids) {
    int64_t from = 0;
    bool sound = true;
    for (int64_t i = 0; i < b->count; i++, parts += sizeof(encoded)) {
        encoded e;
        memcpy(&e, parts, sizeof(e));
        sound = sound && e.prompt >= 0 && e.end >= from && e.end <= ids && e.prompt <= e.end - from;
        from = e.end;
        b->parts[i].prompt = e.prompt;
        b->parts[i].end = e.end;
        b->parts[i].has_end = e.has_end != 0;
    }
    b->ids.count = 0;
    if (!sound || from != ids || !tn__ids_reserve(&b->ids, ids)) { return false; }
    if (ids > 0) { memcpy(b->ids.ids, parts, (size_t)ids * sizeof(*b->ids.ids)); }
    b->ids.count = ids;
    return true;
}

static bool take_message(tn__batch *b, const tn__buffer *message, int from) {
    head theirs = {.parts = -1}, ours = head_of(b);
    if (message->bytes >= sizeof(theirs)) { memcpy(&theirs, message->at, sizeof(theirs)); }
    size_t left = message->bytes - sizeof(theirs), parts = (size_t)b->count * sizeof(encoded);
    if (theirs.parts != ours.parts || memcmp(theirs.text, ours.text, sizeof(ours.text)) != 0) {
        tn__raise(TN_EMISMATCH, "tokens",
                  "%s: the text that rank %d has read there is not that of rank 0",
                  b->parts[0].path, from);
        return false;
    }
    bool sound = theirs.ids >= 0 && left >= parts && (left - parts) % sizeof(*b->ids.ids) == 0 &&
                 (left - parts) / sizeof(*b->ids.ids) == (size_t)theirs.ids &&
                 take_ids(b, message->at + sizeof(theirs), theirs.ids);
    if (!sound && !tn__pending()) {
        tn__raise(TN_EFORMAT, "tokens", "rank %d sent %zu bytes that are not a batch's", from,
                  message->bytes);
    }
    return sound;
}

bool tn__batch_receive(const tn__token_ranks *r, tn__batch *b) {
    tn__buffer message = {.operation = "tokens"};
    int from = (int)(b->number % r->ranks);
    bool received = r->receive(r->user, from, &message) && take_message(b, &message, from);
    tn__buffer_free(&message);
    return received;
}
