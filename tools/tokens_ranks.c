#include "tools/tokens_ranks.h"

#include <string.h>
#include <tern/distributed.h>
#include <tern/train.h>

static bool tell_all(void *user, void *data, size_t bytes) {
    TN_SCOPE;
    tn_tensor *t = tn_from_memory(data, TN_DIMS((int64_t)bytes), TN_U8, NULL, NULL);
    return tn_work_wait(tn_broadcast(user, t, 0), 0) == TN_OK;
}

static bool send_bytes(void *user, const void *data, size_t bytes) {
    TN_SCOPE;
    int64_t size = (int64_t)bytes;
    tn_tensor *sizes = tn_from_data(&size, TN_DIMS(1), TN_I64);
    tn_tensor *t = tn_from_data(data, TN_DIMS(size), TN_U8);
    return tn_work_wait(tn_send(user, sizes, 0), 0) == TN_OK &&
           tn_work_wait(tn_send(user, t, 0), 0) == TN_OK;
}

static bool receive_bytes(void *user, int from, tn__buffer *to) {
    TN_SCOPE;
    int64_t size = 0;
    tn_tensor *sizes = tn_from_memory(&size, TN_DIMS(1), TN_I64, NULL, NULL);
    to->bytes = 0;
    if (tn_work_wait(tn_recv(user, sizes, from), 0) != TN_OK ||
        !tn__buffer_hold(to, (size_t)size)) {
        return false;
    }
    tn_tensor *t = tn_from_memory(to->at, TN_DIMS(size), TN_U8, NULL, NULL);
    to->bytes = (size_t)size;
    return tn_work_wait(tn_recv(user, t, from), 0) == TN_OK;
}

tn_status tokens_ranks(tn__token_ranks *r) {
    tn_setup setup = tn_setup_defaults();
    tn_group *world = tn_setup_world(&setup);
    *r = (tn__token_ranks){.rank = tn_group_rank(world),
                           .ranks = tn_group_size(world),
                           .tell = tell_all,
                           .send = send_bytes,
                           .receive = receive_bytes,
                           .user = world};
    return tn_error();
}
