/* The input is what a rank sends to another after both have shown the secret (rpc/frame.h).
 * Whatever it is: nothing is larger than the limit allows, a frame that is taken is as long as it
 * says, and a message that is taken has as many values as its head says. Of one that is too large
 * there are at most as many references as its head says, and nothing else.
 *
 *     input    u8: how many bytes arrive at a time, less 1; frames
 */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "distributed/rpc/rpc.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { LIMIT = 4096 };

static void read_values(const tn_message *m) {
    TN_SCOPE;
    size_t most = 0;
    for (int i = 0; i < tn_message_count(m); i++) {
        const tn__value *v = &m->values[i];
        size_t length = 0;
        if (v->kind == TN__VALUE_TENSOR) {
            tn_tensor *t = tn_message_tensor(m, i);
            length = (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t));
            uint8_t copy[LIMIT];
            must_hold(length <= sizeof(copy) && tn_copy_out(t, copy) == TN_OK, "a tensor");
        } else if (v->kind == TN__VALUE_TEXT) {
            length = strlen(tn_message_text(m, i));
        } else if (v->kind == TN__VALUE_BYTES) {
            must_hold(tn_message_bytes(m, i, &length) != NULL, "bytes");
        }
        most += length;
    }
    must_hold(most <= LIMIT && !tn_error(), "values that are larger than the frame");
}

static void read_references(const tn__rpc_frame *f) {
    tn__body b = tn__frame_values(f);
    uint32_t seen = 0;
    tn__value_head v;
    tn_dims dims;
    const uint8_t *bytes;
    while (tn__body_next(&b, &v, &dims, &bytes)) {
        must_hold(v.kind == TN__VALUE_REMOTE, "a value that is no reference");
        seen++;
    }
    must_hold(seen <= f->head.references && b.left == 0, "other references than the head says");
}

static void take_frame(tn__rpc_frame *f) {
    must_hold(f->refused == (f->head.bytes > LIMIT), "refused for another reason than the limit");
    bool has_values =
        f->head.kind == TN__RPC_CALL || (f->head.kind == TN__RPC_REPLY && f->head.status == TN_OK);
    if (f->refused) {
        read_references(f);
    } else {
        must_hold(f->bytes == TN__RPC_HEAD + f->head.bytes, "a frame of another length");
    }
    if (!f->refused && has_values) {
        TN_SCOPE;
        tn_message *m = tn__message_decode(NULL, f, f->head.flags & TN__RPC_LEARNS);
        must_hold(m ? tn_message_count(m) == f->head.values : tn_error() == TN_EFORMAT,
                  "neither all values nor an error");
        tn_error_clear();
        read_values(m);
        tn_message_free(m);
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
        if (f) {
            take_frame(f);
        }
    }
    tn__reader_end(&reader);
    must_hold(tn_live_tensors() == 0, "a tensor is left");
    return 0;
}
