/* What ranks send each other, byte by byte. */
#include "rpc_check.h"

TEST(test_malformed_heads) {
    static const tn__rpc_head right[] = {
        {.kind = TN__RPC_RANK, .number = 3},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .values = 2, .bytes = 36},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .bytes = 5},
        {.kind = TN__RPC_REPLY, .number = 1, .values = 1, .references = 1, .bytes = 16},
        {.kind = TN__RPC_SHARE, .number = 1, .context = 7, .microseconds = 2},
        {.kind = TN__RPC_LET_GO, .number = 7},
        {.kind = TN__RPC_GOT, .number = 7, .context = 1},
        {.kind = TN__RPC_AWAIT, .number = 1},
        {.kind = TN__RPC_LOST, .number = 1},
        {.kind = TN__RPC_FORGET, .number = (uint64_t)1 << 48},
    };
    static const tn__rpc_head wrong[] = {
        {.kind = 0},
        {.kind = TN__RPC_KINDS},
        {.kind = TN__RPC_CALL, .number = 1, .bytes = 4},
        {.kind = TN__RPC_CALL, .name_bytes = 4, .bytes = 4},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 256, .bytes = 256},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .values = 3, .bytes = 36},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .status = TN_EPEER},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .flags = 2},
        {.kind = TN__RPC_CALL, .number = 1, .name_bytes = 4, .bytes = 4, .references = 1},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EMISMATCH + 1},
        {.kind = TN__RPC_REPLY, .number = 1, .status = TN_EPEER, .values = 1, .bytes = 16},
        {.kind = TN__RPC_REPLY},
        {.kind = TN__RPC_SHARE, .context = 7},
        {.kind = TN__RPC_SHARE, .number = 1, .bytes = 1},
        {.kind = TN__RPC_LET_GO, .number = 7, .bytes = 1},
    };
    uint8_t bytes[TN__RPC_HEAD];
    tn__rpc_head h;
    for (size_t i = 0; i < sizeof(right) / sizeof(*right); i++) {
        tn__rpc_head_write(bytes, &right[i]);
        assert_true(tn__rpc_head_read(bytes, &h));
        assert_int_equal(h.number, right[i].number);
        bytes[3] = 1;
        assert_false(tn__rpc_head_read(bytes, &h));
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        tn__rpc_head_write(bytes, &wrong[i]);
        assert_false(tn__rpc_head_read(bytes, &h));
    }
}
