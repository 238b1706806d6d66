/* What ranks send each other, byte by byte. */
#include <stdlib.h>

#include "rpc_check.h"

#define FORWARD TN__RPC_FORWARD

static bool head_is_sound(const tn__rpc_head *h) {
    tn__rpc_reader r = {.limit = 100};
    tn__rpc_frame *whole = NULL;
    size_t most;
    memcpy(tn__rpc_reader_room(&r, &most), h, TN__RPC_HEAD);
    assert_int_equal(most, TN__RPC_HEAD);
    const char *why = tn__rpc_reader_take(&r, TN__RPC_HEAD, &whole);
    assert_true(!why == (whole || r.frame));
    free(whole);
    free(r.frame);
    return !why;
}

TEST(test_malformed_heads) {
    static const tn__rpc_head right[] = {
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .tensors = 2, .bytes = 20},
        {.kind = FORWARD, .number = 1, .name_bytes = 4, .bytes = 20, .tensors = 2, .mask = 2},
        {.kind = TN__RPC_BACKWARD, .number = 1, .subject = 7, .tensors = 2, .mask = 5, .bytes = 16},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .bytes = 5},
        {.kind = TN__RPC_REPLY, .number = 1, .tensors = 1, .mask = 1, .bytes = 8},
        {.kind = TN__RPC_FORGET, .number = (uint64_t)1 << 48},
        {.kind = TN__RPC_END},
    };
    static const tn__rpc_head wrong[] = {
        {.kind = 0},
        {.kind = TN__RPC_KINDS},
        {.kind = TN__RPC_CALL, .number = 1, .bytes = 4},
        {.kind = TN__RPC_CALL, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 256, .bytes = 256},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 3},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 99, .tensors = 9},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .status = TN_EPEER},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 20, .tensors = 2, .mask = 1},
        {.kind = FORWARD, .number = 1, .name_bytes = 4, .bytes = 12, .tensors = 1, .mask = 2},
        {.kind = TN__RPC_BACKWARD, .number = 1, .bytes = 8, .tensors = 1, .mask = 3},
        {.kind = TN__RPC_BACKWARD, .number = 1, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EMISMATCH + 1},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .tensors = 1, .bytes = 16},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .mask = 1},
        {.kind = TN__RPC_REPLY},
        {.kind = TN__RPC_FORGET},
        {.kind = TN__RPC_FORGET, .number = 7, .bytes = 1},
        {.kind = TN__RPC_END, .bytes = 1},
    };
    for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++) {
        tn__rpc_head h = right[i];
        assert_true(head_is_sound(&h));
        h.zero = 1;
        assert_false(head_is_sound(&h));
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        assert_false(head_is_sound(&wrong[i]));
    }
}
