#include "distributed/rpc/frame.h"

#include "core/memory.h"
#include "distributed/store/wire.h"

void tn__rpc_head_write(uint8_t to[TN__RPC_HEAD], const tn__rpc_head *h) {
    to[0] = (uint8_t)h->kind;
    to[1] = (uint8_t)h->status;
    to[2] = h->tensors;
    to[3] = h->mask;
    tn__put_number(to + 4, 2, h->name_bytes);
    tn__put_number(to + 6, 2, 0);
    tn__put_number(to + 8, 8, h->number);
    tn__put_number(to + 16, 8, h->bytes);
    tn__put_number(to + 24, 8, h->subject);
    tn__put_number(to + 32, 8, h->microseconds);
}

/* Whether its kind may have what it says. */
static bool head_sound(const tn__rpc_head *h) {
    bool named = h->name_bytes >= 1 && h->name_bytes <= TN__RPC_NAME && h->number > 0;
    bool nameless = h->name_bytes == 0 && h->number > 0;
    bool fits = h->bytes >= h->name_bytes && h->tensors <= TN_MAX_VALUES;
    if (h->status != TN_OK && (h->kind != TN__RPC_REPLY || h->status > TN_EMISMATCH)) {
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
    case TN__RPC_RANK:
    case TN__RPC_END:
        return h->bytes == 0;
    default:
        return false;
    }
}

bool tn__rpc_head_read(const uint8_t from[TN__RPC_HEAD], tn__rpc_head *h) {
    *h = (tn__rpc_head){.kind = (tn__frame_kind)from[0],
                        .status = (tn_status)from[1],
                        .tensors = from[2],
                        .mask = from[3],
                        .name_bytes = (uint16_t)tn__get_number(from + 4, 2),
                        .number = tn__get_number(from + 8, 8),
                        .bytes = tn__get_number(from + 16, 8),
                        .subject = tn__get_number(from + 24, 8),
                        .microseconds = tn__get_number(from + 32, 8)};
    return tn__get_number(from + 6, 2) == 0 && head_sound(h);
}

tn__rpc_frame *tn__rpc_frame_new(const tn__rpc_head *h) {
    if (h->bytes > SIZE_MAX / 2) { return NULL; }
    size_t bytes = TN__RPC_HEAD + (size_t)h->bytes;
    tn__rpc_frame *f = tn__malloc(sizeof(*f) + bytes + 1);
    if (f) {
        *f = (tn__rpc_frame){.head = *h, .bytes = bytes};
        f->data[bytes] = 0;
        tn__rpc_head_write(f->data, h);
    }
    return f;
}

tn__rpc_frame *tn__rpc_frame_for(const tn__rpc_head *h, uint64_t limit) {
    tn__rpc_frame *f = h->bytes <= limit ? tn__rpc_frame_new(h) : NULL;
    if (f) { return f; }
    f = tn__rpc_frame_new(&(tn__rpc_head){.kind = h->kind});
    if (f) {
        f->head = *h;
        f->refused = true;
    }
    return f;
}

void tn__rpc_frames_free(tn__rpc_frame *list) {
    for (tn__rpc_frame *f = list, *next; f; f = next) {
        next = f->next;
        free(f);
    }
}
