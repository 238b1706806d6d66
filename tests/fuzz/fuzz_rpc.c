/* The input is what a rank sends to another after both have shown the secret (rpc/frame.h).
 * Whatever it is: in whichever pieces it arrives, it is the same frames; none is larger than the
 * limit allows, and what is taken of one has as many tensors as its head says.
 *
 *     input    frames
 */
#include "tests/fuzz/bytes.h"

#include "core/memory.h"
#include "distributed/rpc/frame.h"

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

static void take_frame(const tn__rpc_frame *f) {
    must_hold(f->refused == (f->head.bytes > LIMIT), "refused for another reason than the limit");
    if (!f->refused && f->head.status == TN_OK && f->head.kind <= TN__RPC_REPLY) {
        read_tensors(f);
    }
}

/* In pieces of at most so many bytes. Returns how many frames there are. */
static int read_frames(const uint8_t *data, size_t bytes, size_t piece) {
    tn__rpc_reader r = {.limit = LIMIT};
    int count = 0;
    for (const char *why = NULL; bytes && !why;) {
        size_t most;
        void *room = tn__rpc_reader_room(&r, &most);
        must_hold(most > 0, "no room, and no frame");
        most = most < piece ? most : piece;
        most = most < bytes ? most : bytes;
        memcpy(room, data, most);
        data += most;
        bytes -= most;
        tn__rpc_frame *whole;
        why = tn__rpc_reader_take(&r, most, &whole);
        must_hold(!whole || !why, "a frame that is malformed");
        if (whole) {
            take_frame(whole);
            free(whole);
            count++;
        }
    }
    free(r.frame);
    return count;
}

FUZZ(rpc, NULL) {
    int count = read_frames(data, bytes, SIZE_MAX);
    must_hold(read_frames(data, bytes, 1) == count && read_frames(data, bytes, 23) == count,
              "other frames, for they came in pieces");
}
