#include "distributed/rpc/frame.h"

#include "core/memory.h"

tn__rpc_frame *tn__rpc_frame_new(const tn__rpc_head *h) {
    if (h->bytes > SIZE_MAX / 2) { return NULL; }
    tn__rpc_frame *f = tn__malloc(sizeof(*f) + (size_t)h->bytes);
    if (f) { *f = (tn__rpc_frame){.head = *h}; }
    return f;
}

void tn__rpc_queue_add(tn__rpc_queue *q, tn__rpc_frame *f) {
    f->next = NULL;
    *(q->first ? &q->last->next : &q->first) = f;
    q->last = f;
}

void tn__rpc_queue_clear(tn__rpc_queue *q) {
    for (tn__rpc_frame *f; (f = q->first);) {
        q->first = f->next;
        free(f);
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

enum { SKIPPED_AT_ONCE = 4096 }; /* bytes of a body that is refused */

/* Whether its kind may have what it says. */
static bool head_sound(const tn__rpc_head *h) {
    bool named = h->name_bytes >= 1 && h->name_bytes <= TN__RPC_NAME && h->number > 0;
    bool nameless = h->name_bytes == 0 && h->number > 0;
    bool fits = h->bytes >= h->name_bytes && h->tensors <= TN_MAX_VALUES;
    if (h->zero || (h->status != TN_OK && (h->kind != TN__RPC_REPLY || h->status > TN_EMISMATCH))) {
        return false;
    }
    switch (h->kind) {
    case TN__RPC_CALL:
        return named && fits && h->mask == 0;
    case TN__RPC_FORWARD:
        return named && fits && h->mask >> h->tensors == 0;
    case TN__RPC_BACKWARD:
        return nameless && fits && h->subject > 0 && __builtin_popcount(h->mask) == h->tensors;
    case TN__RPC_REPLY:
        return nameless && fits && (h->status == TN_OK || h->tensors + h->mask == 0);
    case TN__RPC_FORGET:
        return nameless && h->bytes == 0;
    case TN__RPC_END:
        return h->bytes == 0;
    default:
        return false;
    }
}

/* For a head that was received; NULL: no memory, not even to skip its body. */
static tn__rpc_frame *frame_for(const tn__rpc_reader *r) {
    tn__rpc_frame *f = r->head.bytes <= r->limit ? tn__rpc_frame_new(&r->head) : NULL;
    if (f) { return f; }
    f = tn__rpc_frame_new(&(tn__rpc_head){.bytes = SKIPPED_AT_ONCE});
    if (f) {
        f->head = r->head;
        f->refused = true;
    }
    return f;
}

void *tn__rpc_reader_room(tn__rpc_reader *r, size_t *most) {
    tn__rpc_frame *f = r->frame;
    *most = (f ? f->head.bytes : TN__RPC_HEAD) - r->received;
    if (f && f->refused) {
        *most = *most < SKIPPED_AT_ONCE ? *most : SKIPPED_AT_ONCE;
        return f->body;
    }
    return (f ? f->body : (uint8_t *)&r->head) + r->received;
}

const char *tn__rpc_reader_take(tn__rpc_reader *r, size_t bytes, tn__rpc_frame **whole) {
    *whole = NULL;
    r->received += bytes;
    if (!r->frame && r->received == TN__RPC_HEAD) {
        if (!head_sound(&r->head)) { return "what it sends is malformed"; }
        r->frame = frame_for(r);
        r->received = 0;
        if (!r->frame) { return "no memory for what it sends"; }
    }
    if (r->frame && r->received == r->frame->head.bytes) {
        *whole = r->frame;
        r->frame = NULL;
        r->received = 0;
    }
    return NULL;
}
