/* The bytes between two ranks that call each other, after both have shown the secret (join.c).
 *
 *     frame    head, body of head.bytes
 *     body     name; tensors. Of a reply with a status: the reason
 *     tensor   u8 dtype, u8 dimensions, u8[6] 0; i64 of each size; the elements
 *
 * Numbers and elements are sent as they are in memory: little-endian on every host.
 *
 * Only ranks get this far, but a faulty one must not take this process with it: what a head says is
 * checked before memory is taken for it.
 */
#ifndef TERN_DISTRIBUTED_RPC_FRAME_H
#define TERN_DISTRIBUTED_RPC_FRAME_H

#include "tern/autograd.h"

#include <stddef.h>

enum { TN__RPC_HEAD = 40, TN__RPC_NAME = 255 };

typedef enum tn__frame_kind {
    TN__RPC_CALL = 1,
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
    uint8_t kind, status, tensors, mask;
    uint16_t name_bytes, zero;
    uint64_t number, bytes, subject, microseconds; /* microseconds: until a call's deadline */
} tn__rpc_head;
_Static_assert(sizeof(tn__rpc_head) == TN__RPC_HEAD, "a head is sent as it is");

/* A frame to be sent, or that was received. */
typedef struct tn__rpc_frame {
    struct tn__rpc_frame *next;
    /* Received: from whom, and a call's deadline. Refused: its body is not here, since it was too
     * large, or there was no memory for it. */
    int from;
    bool refused;
    double deadline;
    tn__rpc_head head; /* and the body next to it, as they are sent */
    uint8_t body[];
} tn__rpc_frame;
_Static_assert(offsetof(tn__rpc_frame, body) ==
                   offsetof(tn__rpc_frame, head) + sizeof(tn__rpc_head),
               "a body follows its head");

/* A frame whose head is h, with room for h.bytes of body; NULL: no memory. */
tn__rpc_frame *tn__rpc_frame_new(const tn__rpc_head *h);

typedef struct tn__rpc_queue {
    tn__rpc_frame *first, *last; /* last is set where there is a first */
} tn__rpc_queue;
void tn__rpc_queue_add(tn__rpc_queue *q, tn__rpc_frame *f);
void tn__rpc_queue_clear(tn__rpc_queue *q);

/* ---- Reading frames, which arrive in pieces -------------------------------------------------- */

typedef struct tn__rpc_reader {
    uint64_t limit;       /* bytes of a body; larger ones are refused */
    tn__rpc_head head;    /* of the frame that arrives */
    tn__rpc_frame *frame; /* NULL: its head is not complete */
    uint64_t received;    /* of the body, or of the head */
} tn__rpc_reader;

/* Where the next bytes go, and how many at most. */
TN_API void *tn__rpc_reader_room(tn__rpc_reader *r, size_t *most);
/* So many bytes are there. *whole: the frame that is complete with them, or NULL. Returns why no
 * more can be read; NULL: it can. */
TN_API const char *tn__rpc_reader_take(tn__rpc_reader *r, size_t bytes, tn__rpc_frame **whole);

/* ---- Tensors: values.c ----------------------------------------------------------------------- */

/* A frame with head h, the name (NULL: none) and the values. NULL after raising, without what they
 * are for: they are no tensors, too many, or larger than the limit. */
tn__rpc_frame *tn__values_encode(tn__rpc_head h, const char *name, const tn_values *v,
                                 int64_t limit);
/* The tensors of a frame's body, for the current scope. False after raising TN_EFORMAT: malformed,
 * or another error. */
TN_API bool tn__values_decode(const tn__rpc_frame *f, tn_values *v);

#endif
