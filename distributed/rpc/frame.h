/* The bytes between two ranks that call each other, after both have shown the secret (wire.h of
 * store/ has that part). Numbers are little-endian.
 *
 *     frame    head, body
 *     head     u8 kind, u8 status, u8 flags, u8 0, u16 values, u16 bytes of the name, u32 0,
 *              u32 references among the values, u64 number, u64 bytes of the body, u64 context (of
 *              a reply: how many bytes it answers), u64 microseconds
 *     body     name; values. Of a reply with a status: the reason
 *     value    u8 kind, u8 dtype, u8 dimensions, u8 flags, u32 owner, u64 number;
 *              a tensor's sizes, i64 each, and `number` bytes of elements; `number` bytes
 *
 * Only ranks get this far, but a faulty one must not take this process with it: what a head says is
 * checked before memory is taken for it, and values before they are used. There is no socket here,
 * so that tests/fuzz/fuzz_rpc.c can say anything.
 */
#ifndef TERN_DISTRIBUTED_RPC_FRAME_H
#define TERN_DISTRIBUTED_RPC_FRAME_H

#include "tern/tensor.h"

enum { TN__RPC_HEAD = 48, TN__VALUE_HEAD = 16, TN__RPC_NAME = 255, TN__RPC_VALUES = 65535 };

typedef enum tn__frame_kind {
    TN__RPC_RANK = 1, /* the first of both, and the dialler's before: the rank is the number */
    TN__RPC_CALL,
    TN__RPC_REPLY,
    TN__RPC_SHARE,  /* microseconds: a rank that gets a reference to what has the number `context`;
                       answered as a call is, but by the reader's thread */
    TN__RPC_LET_GO, /* one reference of rank `context` to what has this number */
    TN__RPC_GOT,    /* what this number is of has been passed on by rank `context`, and is here */
    TN__RPC_AWAIT, /* the rank with this number is gone here: when it is there, LOST is to follow */
    TN__RPC_LOST,  /* nothing more that this rank has passed on will come */
    TN__RPC_FORGET, /* what is owed to this context (grad.c) */
    TN__RPC_ENDING, /* of tn_rpc_shutdown: number: the round; context: calls sent, microseconds:
                       calls done */
    TN__RPC_KINDS
} tn__frame_kind;

enum { TN__RPC_LEARNS = 1 }; /* flags: a call by a context, whose graph is kept */

typedef enum tn__value_kind {
    TN__VALUE_TENSOR = 1,
    TN__VALUE_BYTES,
    TN__VALUE_TEXT,
    TN__VALUE_INT,
    TN__VALUE_REMOTE,
    TN__VALUE_KINDS
} tn__value_kind;

typedef struct tn__rpc_head {
    tn__frame_kind kind;
    tn_status status;
    uint8_t flags;
    uint16_t values, name_bytes;
    uint32_t references;
    uint64_t number, bytes, context, microseconds;
} tn__rpc_head;

/* A frame to be sent, or that was received. */
typedef struct tn__rpc_frame {
    struct tn__rpc_frame *next;
    tn__rpc_head head;
    bool refused; /* received: its body was too large, or there was no memory: of it, only the
                     references are here */
    int from;     /* received: from whom; a call must be answered until `deadline` */
    double deadline;
    size_t bytes;   /* of data: head and body */
    uint8_t data[]; /* as on the wire, and a 0 after it */
} tn__rpc_frame;

TN_API void tn__rpc_head_write(uint8_t to[TN__RPC_HEAD], const tn__rpc_head *h);
/* False if it is malformed. */
TN_API bool tn__rpc_head_read(const uint8_t from[TN__RPC_HEAD], tn__rpc_head *h);

/* A frame whose head is h, with room for h.bytes of body; NULL: no memory. */
TN_API tn__rpc_frame *tn__rpc_frame_new(const tn__rpc_head *h);
static inline uint8_t *tn__frame_body(tn__rpc_frame *f) {
    return f->data + TN__RPC_HEAD;
}

/* One value's head. */
typedef struct tn__value_head {
    uint8_t kind, dtype, ndim, flags;
    uint32_t owner;
    uint64_t number;
} tn__value_head;
enum { TN__VALUE_LEARNS = 1 }; /* flags: a tensor that requires a gradient */
TN_API void tn__value_write(uint8_t to[TN__VALUE_HEAD], const tn__value_head *v);

/* Goes through a body. */
typedef struct tn__body {
    const uint8_t *at;
    size_t left;
} tn__body;
/* After the name; of a refused frame, the references. */
TN_API tn__body tn__frame_values(const tn__rpc_frame *f);
/* The next value: its head, a tensor's sizes, and where its v->number bytes begin (NULL for ints
 * and references). False: malformed. */
TN_API bool tn__body_next(tn__body *b, tn__value_head *v, tn_dims *dims, const uint8_t **bytes);

/* Numbers as both sides write them. */
void tn__put_number(uint8_t *to, int bytes, uint64_t value);
uint64_t tn__get_number(const uint8_t *from, int bytes);

/* Puts frames together from what arrives. When zeroed, except for the limit, it expects one. */
typedef struct tn__rpc_reader {
    uint64_t limit;             /* of a body: more is skipped, and the frame is `refused` */
    uint8_t head[TN__RPC_HEAD]; /* of a frame, or of a value in a body that is skipped */
    size_t head_bytes;
    tn__rpc_frame *frame; /* with a body to come */
    uint64_t body_bytes;
    uint64_t skip;         /* in a body that is skipped: bytes before the next value */
    uint8_t scratch[4096]; /* for them */
} tn__rpc_reader;

/* Where the next bytes go, and how many at most. */
TN_API void *tn__reader_room(tn__rpc_reader *r, size_t *most);
/* They have arrived. False: malformed, and nothing may follow. *frame: a complete one, which is the
 * caller's to free; else NULL. */
TN_API bool tn__reader_took(tn__rpc_reader *r, size_t bytes, tn__rpc_frame **frame);
TN_API void tn__reader_end(tn__rpc_reader *r);

#endif
