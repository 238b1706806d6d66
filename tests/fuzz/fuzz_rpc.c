/* The input is what a rank sends to another after both have shown the secret (rpc/frame.h).
 * Whatever it is: nothing is larger than the limit allows, a frame that is taken is as long as it
 * says, and what is taken of it has as many tensors as its head says.
 *
 *     input    u8: how many bytes arrive at a time, less 1; frames
 */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "core/memory.h"
#include "distributed/rpc/values.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    tn__rpc_reader reader = {.limit = LIMIT};
    size_t step = bytes ? (size_t)*data++ + 1 : 0;
    bytes -= bytes > 0;
    bool fine = true;
    while (bytes && fine) {
        size_t most;
        void *room = tn__reader_room(&reader, &most);
        must_hold(most > 0, "no room, and no frame");
        size_t n = step < most ? step : most;
        n = n < bytes ? n : bytes;
        memcpy(room, data, n);
        data += n;
        bytes -= n;
        tn__rpc_frame *f;
        fine = tn__reader_took(&reader, n, &f);
        if (f) { take_frame(f); }
    }
    tn__reader_end(&reader);
    must_hold(tn_live_tensors() == 0, "a tensor is left");
    return 0;
}
