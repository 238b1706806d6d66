#include "distributed/rpc/frame.h"

#include "core/memory.h"

#include <string.h>

void tn__put_number(uint8_t *to, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; i++) {
        to[i] = (uint8_t)(value >> 8 * i);
    }
}

uint64_t tn__get_number(const uint8_t *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value |= (uint64_t)from[i] << 8 * i;
    }
    return value;
}

/* ---- Heads ----------------------------------------------------------------------------------- */

void tn__rpc_head_write(uint8_t to[TN__RPC_HEAD], const tn__rpc_head *h) {
    memset(to, 0, TN__RPC_HEAD);
    to[0] = (uint8_t)h->kind;
    to[1] = (uint8_t)h->status;
    to[2] = h->flags;
    tn__put_number(to + 4, 2, h->values);
    tn__put_number(to + 6, 2, h->name_bytes);
    tn__put_number(to + 12, 4, h->references);
    tn__put_number(to + 16, 8, h->number);
    tn__put_number(to + 24, 8, h->bytes);
    tn__put_number(to + 32, 8, h->context);
    tn__put_number(to + 40, 8, h->microseconds);
}

/* What a sender of this kind must not have set. */
static bool head_sound(const tn__rpc_head *h) {
    uint64_t least = h->name_bytes + (uint64_t)h->values * TN__VALUE_HEAD;
    bool failed = h->kind == TN__RPC_REPLY && h->status != TN_OK;
    if (h->kind < TN__RPC_RANK || h->kind >= TN__RPC_KINDS || h->status > TN_EMISMATCH ||
        (h->status != TN_OK && !failed) || h->flags > TN__RPC_LEARNS || h->references > h->values ||
        (failed && h->values > 0) || h->bytes < least) {
        return false;
    }
    switch (h->kind) {
    case TN__RPC_CALL:
        return h->name_bytes >= 1 && h->name_bytes <= TN__RPC_NAME && h->number > 0;
    case TN__RPC_REPLY:
        return h->name_bytes == 0 && h->number > 0;
    case TN__RPC_SHARE:
        return h->bytes == 0 && h->number > 0;
    default:
        return h->bytes == 0;
    }
}

bool tn__rpc_head_read(const uint8_t from[TN__RPC_HEAD], tn__rpc_head *h) {
    *h = (tn__rpc_head){.kind = (tn__frame_kind)from[0],
                        .status = (tn_status)from[1],
                        .flags = from[2],
                        .values = (uint16_t)tn__get_number(from + 4, 2),
                        .name_bytes = (uint16_t)tn__get_number(from + 6, 2),
                        .references = (uint32_t)tn__get_number(from + 12, 4),
                        .number = tn__get_number(from + 16, 8),
                        .bytes = tn__get_number(from + 24, 8),
                        .context = tn__get_number(from + 32, 8),
                        .microseconds = tn__get_number(from + 40, 8)};
    return from[3] == 0 && tn__get_number(from + 8, 4) == 0 && head_sound(h);
}

tn__rpc_frame *tn__rpc_frame_new(const tn__rpc_head *h) {
    if (h->bytes > SIZE_MAX / 2) {
        return NULL;
    }
    size_t bytes = TN__RPC_HEAD + (size_t)h->bytes;
    tn__rpc_frame *f = tn__malloc(sizeof(*f) + bytes + 1);
    if (f) {
        *f = (tn__rpc_frame){.head = *h, .bytes = bytes};
        f->data[bytes] = 0;
        tn__rpc_head_write(f->data, h);
    }
    return f;
}

/* ---- Values ---------------------------------------------------------------------------------- */

void tn__value_write(uint8_t to[TN__VALUE_HEAD], const tn__value_head *v) {
    to[0] = v->kind;
    to[1] = v->dtype;
    to[2] = v->ndim;
    to[3] = v->flags;
    tn__put_number(to + 4, 4, v->owner);
    tn__put_number(to + 8, 8, v->number);
}

tn__body tn__frame_values(const tn__rpc_frame *f) {
    size_t before = TN__RPC_HEAD + (f->refused ? 0u : f->head.name_bytes);
    return (tn__body){f->data + before, f->bytes - before};
}

static const uint8_t *take_bytes(tn__body *b, size_t bytes) {
    const uint8_t *at = b->at;
    b->at += bytes;
    b->left -= bytes;
    return at;
}

/* A tensor's sizes; they must say exactly as many bytes as its head, and next to a 0 nothing that
 * an address cannot reach. */
static bool take_sizes(tn__body *b, const tn__value_head *v, tn_dims *dims) {
    if (v->ndim > TN_MAX_DIMS || v->dtype >= TN_DTYPES || b->left < 8u * v->ndim) {
        return false;
    }
    int64_t sizes[TN_MAX_DIMS];
    size_t each = tn_dtype_size((tn_dtype)v->dtype);
    int64_t extent = (int64_t)each;
    for (int i = 0; i < v->ndim; i++) {
        sizes[i] = (int64_t)tn__get_number(take_bytes(b, 8), 8);
        if (sizes[i] < 0 || __builtin_mul_overflow(extent, sizes[i] > 1 ? sizes[i] : 1, &extent)) {
            return false;
        }
    }
    *dims = tn_dims_from(v->ndim, sizes);
    int64_t count = tn_dims_count(*dims);
    return count >= 0 && (uint64_t)count <= b->left / each && v->number == (uint64_t)count * each;
}

/* False if it is malformed. */
static bool value_read(const uint8_t from[TN__VALUE_HEAD], tn__value_head *v) {
    *v = (tn__value_head){from[0],
                          from[1],
                          from[2],
                          from[3],
                          (uint32_t)tn__get_number(from + 4, 4),
                          tn__get_number(from + 8, 8)};
    bool is_tensor = v->kind == TN__VALUE_TENSOR, is_remote = v->kind == TN__VALUE_REMOTE;
    return v->kind >= TN__VALUE_TENSOR && v->kind < TN__VALUE_KINDS &&
           v->flags <= TN__VALUE_LEARNS && (is_tensor || !(v->dtype || v->ndim || v->flags)) &&
           (is_remote || !v->owner);
}

/* Whether v->number says how many bytes follow. */
static bool has_bytes(const tn__value_head *v) {
    return v->kind == TN__VALUE_TENSOR || v->kind == TN__VALUE_BYTES || v->kind == TN__VALUE_TEXT;
}

bool tn__body_next(tn__body *b, tn__value_head *v, tn_dims *dims, const uint8_t **bytes) {
    *bytes = NULL;
    if (b->left < TN__VALUE_HEAD || !value_read(take_bytes(b, TN__VALUE_HEAD), v)) {
        return false;
    }
    if (v->kind == TN__VALUE_TENSOR && !take_sizes(b, v, dims)) {
        return false;
    }
    if (has_bytes(v)) {
        if (v->number > b->left) {
            return false;
        }
        *bytes = take_bytes(b, (size_t)v->number);
    }
    return true;
}

/* ---- Reading --------------------------------------------------------------------------------- */

void *tn__reader_room(tn__rpc_reader *r, size_t *most) {
    if (!r->frame) {
        *most = TN__RPC_HEAD - r->head_bytes;
        return r->head + r->head_bytes;
    }
    if (r->frame->refused && r->skip > 0) {
        *most = r->skip < sizeof(r->scratch) ? (size_t)r->skip : sizeof(r->scratch);
        return r->scratch;
    }
    if (r->frame->refused) {
        *most = TN__VALUE_HEAD - r->head_bytes;
        return r->head + r->head_bytes;
    }
    *most = (size_t)(r->frame->head.bytes - r->body_bytes);
    return tn__frame_body(r->frame) + r->body_bytes;
}

/* What to skip before the next value's head: `bytes`, or all that is left if no head fits after
 * them. */
static void skip_bytes(tn__rpc_reader *r, uint64_t bytes) {
    uint64_t left = r->frame->head.bytes - r->body_bytes;
    r->skip = bytes > left || left - bytes < TN__VALUE_HEAD ? left : bytes;
}

/* Bytes of a body that is skipped have arrived. References are kept: whoever sent them has counted
 * them for this rank, which must let them go. */
static void skip_some(tn__rpc_reader *r, size_t bytes) {
    tn__rpc_frame *f = r->frame;
    if (r->skip > 0) {
        r->skip -= bytes;
        return;
    }
    r->head_bytes += bytes;
    if (r->head_bytes < TN__VALUE_HEAD) {
        return;
    }
    r->head_bytes = 0;
    tn__value_head v;
    bool fine = value_read(r->head, &v);
    if (fine && v.kind == TN__VALUE_REMOTE) {
        memcpy(f->data + f->bytes, r->head, TN__VALUE_HEAD);
        f->bytes += TN__VALUE_HEAD;
    }
    uint64_t follow = has_bytes(&v) ? v.number : 0;
    bool more = f->bytes < TN__RPC_HEAD + (size_t)f->head.references * TN__VALUE_HEAD;
    skip_bytes(r, fine && more && follow <= f->head.bytes ? 8u * v.ndim + follow : UINT64_MAX);
}

/* The frame of a complete head; where its body does not fit, with room for the references. */
static bool begin_frame(tn__rpc_reader *r) {
    tn__rpc_head h;
    if (!tn__rpc_head_read(r->head, &h)) {
        return false;
    }
    r->frame = h.bytes <= r->limit ? tn__rpc_frame_new(&h) : NULL;
    r->head_bytes = 0;
    r->body_bytes = 0;
    if (!r->frame) {
        tn__rpc_head bare = h;
        bare.bytes = (uint64_t)h.references * TN__VALUE_HEAD;
        r->frame = tn__rpc_frame_new(&bare);
        if (!r->frame) {
            return false;
        }
        r->frame->head = h;
        r->frame->refused = true;
        r->frame->bytes = TN__RPC_HEAD;
        skip_bytes(r, h.references ? h.name_bytes : h.bytes);
    }
    return true;
}

bool tn__reader_took(tn__rpc_reader *r, size_t bytes, tn__rpc_frame **frame) {
    *frame = NULL;
    if (r->frame) {
        r->body_bytes += bytes;
        if (r->frame->refused) {
            skip_some(r, bytes);
        }
    } else {
        r->head_bytes += bytes;
        if (r->head_bytes == TN__RPC_HEAD && !begin_frame(r)) {
            return false;
        }
    }
    if (r->frame && r->body_bytes == r->frame->head.bytes) {
        *frame = r->frame;
        r->frame = NULL;
    }
    return true;
}

void tn__reader_end(tn__rpc_reader *r) {
    free(r->frame);
    r->frame = NULL;
}
