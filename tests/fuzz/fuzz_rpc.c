/* The input is what a rank sends to another after both have shown the secret (rpc/frame.h).
 * Whatever it is: nothing is larger than the limit allows, a frame that is taken is as long as it
 * says, and what is taken of it has as many tensors as its head says.
 *
 *     input    frames
 */
#include "tests/fuzz/bytes.h"

#include "core/memory.h"
#include "distributed/rpc/values.h"

#include <stdlib.h>
#include <string.h>

enum { LIMIT = 4096 };

static void read_tensors(const tn__rpc_frame *f) {
    TN_SCOPE;
    tn_values v;
    bool fine = tn__values_decode(f, &v);
    must_hold(fine ? v.n == f->head.tensors : tn_error() == TN_EFORMAT,
              "neither all tensors nor an error");
    tn_error_clear();
    size_t sum = 0;
    for (int i = 0; fine && i < v.n; i++) {
        size_t length = (size_t)tn_count(v.v[i]) * tn_dtype_size(tn_dtype_of(v.v[i]));
        uint8_t copy[LIMIT];
        for (int k = 0; k < tn_ndim(v.v[i]); k++) {
            must_hold(tn_size(v.v[i], k) >= 0, "a negative size");
        }
        must_hold(length <= sizeof(copy) && tn_copy_out(v.v[i], copy) == TN_OK, "a tensor");
        sum += length;
    }
    must_hold(sum <= LIMIT && !tn_error(), "tensors that are larger than the frame");
}

static void take_frame(tn__rpc_frame *f) {
    must_hold(f->refused == (f->head.bytes > LIMIT), "refused for another reason than the limit");
    must_hold(f->bytes == TN__RPC_HEAD + (f->refused ? 0 : f->head.bytes),
              "a frame of another length");
    if (!f->refused && f->head.status == TN_OK && f->head.kind >= TN__RPC_CALL &&
        f->head.kind <= TN__RPC_REPLY) {
        read_tensors(f);
    }
    free(f);
}

FUZZ(rpc, NULL) {
    tn__rpc_head h;
    while (bytes >= TN__RPC_HEAD && tn__rpc_head_read(data, &h)) {
        data += TN__RPC_HEAD;
        bytes -= TN__RPC_HEAD;
        tn__rpc_frame *f = h.bytes <= bytes ? tn__rpc_frame_for(&h, LIMIT) : NULL;
        if (!f) { break; }
        if (!f->refused && h.bytes) { memcpy(f->data + TN__RPC_HEAD, data, h.bytes); }
        data += h.bytes;
        bytes -= h.bytes;
        take_frame(f);
    }
}
