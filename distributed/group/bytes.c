/* Bytes of any length: first their number, then the bytes as u8 elements. */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/group.h"
#include "distributed/group/values.h"
#include "distributed/on_cpu.h"

#include <string.h>

/* More is taken for a mistake, ours or a peer's. */
static const int64_t most_bytes = (int64_t)1 << 40;

/* An error on this rank only: the others must not wait. */
static tn_status fail_group(tn_group *g, tn_status status) {
    tn_group_abort(g, tn_error_message());
    return status;
}

/* Memory for n bytes that `root` has announced, and a 0 after them. NULL after raising. */
static char *make_buffer(tn_group *g, int64_t n, int root, const char *operation) {
    char *buffer = n >= 0 && n <= most_bytes ? tn__malloc((size_t)n + 1) : NULL;
    if (buffer) {
        buffer[n] = 0;
    } else {
        bool bad = n < 0 || n > most_bytes;
        fail_group(g, tn__raise(bad ? TN_EFORMAT : TN_ENOMEM, operation,
                                "rank %d sends %lld bytes%s", root, (long long)n,
                                bad ? " (must be 0 to 2^40)" : ", for which there is no memory"));
    }
    return buffer;
}

/* Whether this rank's bytes can be sent. */
static bool good_bytes(const void *data, size_t bytes, const char *operation) {
    if (!data && bytes > 0) {
        tn__raise(TN_EVALUE, operation, "%zu bytes at NULL", bytes);
    } else if (bytes > (size_t)most_bytes) {
        tn__raise(TN_EVALUE, operation, "%zu bytes (at most 2^40)", bytes);
    } else {
        return true;
    }
    return false;
}

/* Starts the broadcast of n bytes in place. */
static tn_work *send_bytes(tn_group *g, void *data, int64_t n, int root) {
    static char nothing; /* the address of 0 bytes */
    return tn_broadcast(g, tn_from_memory(n ? data : &nothing, TN_DIMS(n), TN_U8, NULL, NULL),
                        root);
}

tn_status tn_broadcast_bytes(tn_group *g, void **data, size_t *bytes, int root) {
    static const char name[] = "broadcast_bytes";
    TN_SCOPE;
    TN__ON_CPU;
    if (tn__pending()) { return fail_group(g, tn_error()); }
    if (!data || !bytes) {
        return fail_group(g, tn__raise(TN_EVALUE, name, "%s is NULL", data ? "bytes" : "data"));
    }
    bool mine = tn_group_rank(g) == root;
    if (mine && !good_bytes(*data, *bytes, name)) { return fail_group(g, tn_error()); }
    int64_t n = mine ? (int64_t)*bytes : 0;
    if (!mine) {
        *data = NULL;
        *bytes = 0;
    }
    if (tn__broadcast_values(g, &n, 1, TN_I64, root) != TN_OK) { return tn_error(); }
    char *buffer = mine ? *data : make_buffer(g, n, root, name);
    if (tn__pending()) { return tn_error(); }
    tn_status status = tn_work_wait(send_bytes(g, buffer, n, root), 0);
    if (!mine && status == TN_OK) {
        *data = buffer;
        *bytes = (size_t)n;
    } else if (!mine) {
        free(buffer);
    }
    return status;
}

/* Gathers everyone's bytes by one broadcast from each rank. all[N] holds those made so far. */
static tn_status gather_bytes(tn_group *g, const void *data, const size_t *lengths, void **all,
                              tn_work **works) {
    static const char name[] = "all_gather_bytes";
    int ranks = tn_group_size(g), me = tn_group_rank(g), started = 0;
    for (int r = 0; r < ranks && !tn__pending(); r++) {
        all[r] = make_buffer(g, (int64_t)lengths[r], r, name);
        if (all[r] && r == me && lengths[r] > 0) { memcpy(all[r], data, lengths[r]); }
    }
    for (; started < ranks && !tn__pending(); started++) {
        works[started] = send_bytes(g, all[started], (int64_t)lengths[started], started);
    }
    tn_status status = tn_error();
    for (int r = 0; r < started; r++) {
        tn_status one = tn_work_wait(works[r], 0);
        status = status == TN_OK ? one : status;
    }
    return status;
}

tn_status tn_all_gather_bytes(tn_group *g, const void *data, size_t bytes, void **all,
                              size_t *all_bytes) {
    static const char name[] = "all_gather_bytes";
    TN_SCOPE;
    TN__ON_CPU;
    if (tn__pending()) { return fail_group(g, tn_error()); }
    if (!all || !all_bytes) {
        return fail_group(g, tn__raise(TN_EVALUE, name, "%s is NULL", all ? "all_bytes" : "all"));
    }
    int ranks = tn_group_size(g);
    memset(all, 0, (size_t)ranks * sizeof(*all));
    memset(all_bytes, 0, (size_t)ranks * sizeof(*all_bytes));
    if (!good_bytes(data, bytes, name)) { return fail_group(g, tn_error()); }
    tn_work **works = tn__calloc((size_t)ranks, sizeof(*works));
    if (!works) {
        return fail_group(g, tn__raise(TN_ENOMEM, name, "out of memory for %d ranks", ranks));
    }
    tn_status status = tn__gather_values(g, &bytes, 1, TN_I64, all_bytes);
    status = status == TN_OK ? gather_bytes(g, data, all_bytes, all, works) : status;
    for (int r = 0; status != TN_OK && r < ranks; r++) {
        free(all[r]);
        all[r] = NULL;
        all_bytes[r] = 0;
    }
    free(works);
    return status;
}

void tn_bytes_free(void *data) {
    free(data);
}
