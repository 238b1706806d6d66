/* The bytes between two ranks that call each other, after both have shown the secret (wire.h of
 * store/ has that part). Numbers are little-endian.
 *
 *     frame    head, body
 *     head     u8 kind, u8 status, u8 tensors, u8 mask, u16 bytes of the name, u16 0, u64 number,
 *              u64 bytes of the body, u64 subject, u64 microseconds
 *     body     name; tensors (values.c). Of a reply with a status: the reason
 *
 * Only ranks get this far, but a faulty one must not take this process with it: what a head says is
 * checked before memory is taken for it.
 */
#ifndef TERN_DISTRIBUTED_RPC_FRAME_H
#define TERN_DISTRIBUTED_RPC_FRAME_H

#include "tern/autograd.h"

enum { TN__RPC_HEAD = 40, TN__RPC_NAME = 255 };

typedef enum tn__frame_kind {
    TN__RPC_RANK = 1, /* the first of both sides: number is the sender's rank */
    TN__RPC_CALL,
    TN__RPC_FORWARD,  /* a call whose graph is kept under its number; mask: which inputs require a
                         gradient */
    TN__RPC_BACKWARD, /* through the graph `subject`; mask: of which results the gradients follow */
    TN__RPC_REPLY,    /* subject: bytes of the call. mask: of a forward, which results require a
                         gradient; of a backward, of which inputs the gradients follow */
    TN__RPC_FORGET,   /* the graph with this number */
    TN__RPC_END,      /* of tn_rpc_shutdown: the sender waits for nothing more */
    TN__RPC_KINDS
} tn__frame_kind;

typedef struct tn__rpc_head {
    tn__frame_kind kind;
    tn_status status;
    uint8_t tensors, mask;
    uint16_t name_bytes;
    uint64_t number, bytes, subject, microseconds; /* microseconds: until a call's deadline */
} tn__rpc_head;

/* A frame to be sent, or that was received. */
typedef struct tn__rpc_frame {
    struct tn__rpc_frame *next;
    tn__rpc_head head;
    /* Received: from whom, and a call's deadline. Refused: only its head is here, since the body
     * was too large, or there was no memory for it. */
    int from;
    double deadline;
    bool refused;
    size_t bytes;   /* of data: head and body */
    uint8_t data[]; /* as on the wire, and a 0 after it */
} tn__rpc_frame;

TN_API void tn__rpc_head_write(uint8_t to[TN__RPC_HEAD], const tn__rpc_head *h);
/* False if it is malformed. */
TN_API bool tn__rpc_head_read(const uint8_t from[TN__RPC_HEAD], tn__rpc_head *h);

/* A frame whose head is h, with room for h.bytes of body; NULL: no memory. */
tn__rpc_frame *tn__rpc_frame_new(const tn__rpc_head *h);
/* The same for a head that was received; refused if the body is above the limit, or too large for
 * the memory that there is. */
TN_API tn__rpc_frame *tn__rpc_frame_for(const tn__rpc_head *h, uint64_t limit);
void tn__rpc_frames_free(tn__rpc_frame *list);

#endif
