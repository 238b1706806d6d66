/* Checkpoints of a job: one file, written and read by rank 0. What happens to one rank, a full disk
 * or a damaged file, is an error on all: no rank goes on alone.
 */
#define _GNU_SOURCE
#include "core/error.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "tern/distributed.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Every rank tells its error, which was taken out of its thread, or that it has none. Then each
 * raises its own, or else that of the first rank that has one. */
static tn_status agree_on_error(tn_group *g, const tn_error_record *mine, const char *operation) {
    TN_SCOPE;
    TN__ON_CPU;
    int n = tn_group_size(g);
    const int64_t bytes = sizeof(*mine);
    tn_tensor *told = tn_from_data(mine, TN_DIMS(bytes), TN_U8);
    tn_tensor *heard = tn_empty(TN_DIMS(n, bytes), TN_U8);
    if (tn_work_wait(tn_all_gather(g, heard, told), 0) != TN_OK) {
        return tn_error();
    }
    tn_error_give(mine);
    const tn_error_record *all = tn_data(heard);
    for (int r = 0; r < n; r++) {
        if (all[r].status != TN_OK) {
            return tn__raise(all[r].status, operation, "rank %d: %.900s", r, all[r].message);
        }
    }
    return TN_OK;
}

/* Between these two an error of this rank is kept for the others: the program's handler, which may
 * end the process, comes after they have heard of it. */
static void begin_quiet(void) {
    tn__quiet(1);
}

static tn_error_record end_quiet(void) {
    tn_error_record record = {.status = TN_OK};
    tn_error_take(&record);
    tn__quiet(-1);
    return record;
}

/* Whether this rank may go on; else the others will not wait for it. */
static bool may_begin(tn_group *g) {
    if (tn__pending()) {
        tn_group_abort(g, tn_error_message());
    }
    return !tn__pending();
}

tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path) {
    if (!may_begin(g)) {
        return tn_error();
    }
    if (tn_group_size(g) == 1) {
        return tn_checkpoint_save(c, path);
    }
    begin_quiet();
    tn_status status = tn_group_rank(g) == 0 ? tn_checkpoint_save(c, path) : TN_OK;
    (void)status; /* in the record too */
    tn_error_record record = end_quiet();
    return agree_on_error(g, &record, "dist_save");
}

/* ---- Loading --------------------------------------------------------------------------------- */

/* A file in memory with these bytes; its path in text. -1 after raising. */
static int memory_file(const void *data, size_t bytes, char *text, size_t room) {
    int file = memfd_create("tern checkpoint", MFD_CLOEXEC);
    const char *from = data;
    while (file >= 0 && bytes > 0) {
        ssize_t written = write(file, from, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            close(file);
            file = -1;
            break;
        }
        from += written;
        bytes -= (size_t)written;
    }
    if (file < 0) {
        tn__raise(TN_ENOMEM, "dist_load", "a file in memory: %s", strerror(errno));
    }
    snprintf(text, room, "/proc/self/fd/%d", file);
    return file;
}

static tn_status load_bytes(tn_checkpoint *c, const void *data, size_t bytes) {
    char path[64];
    int file = memory_file(data, bytes, path, sizeof(path));
    tn_status status = file < 0 ? tn_error() : tn_checkpoint_load(c, path);
    if (file >= 0) {
        close(file);
    }
    return status;
}

tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path) {
    if (!may_begin(g)) {
        return tn_error();
    }
    if (tn_group_size(g) == 1) {
        return tn_checkpoint_load(c, path);
    }
    bool reads = tn_group_rank(g) == 0;
    size_t bytes = 0;
    begin_quiet();
    void *data = reads ? tn_text_read(path, &bytes) : NULL;
    tn_error_record record = end_quiet();
    tn_status status = agree_on_error(g, &record, "dist_load");
    if (status == TN_OK) {
        status = tn_broadcast_bytes(g, &data, &bytes, 0);
    }
    if (status == TN_OK) {
        begin_quiet();
        status = reads ? tn_checkpoint_load(c, path) : load_bytes(c, data, bytes);
        (void)status; /* in the record too */
        record = end_quiet();
        status = agree_on_error(g, &record, "dist_load");
    }
    if (reads) {
        tn_text_free(data);
    } else {
        tn_bytes_free(data);
    }
    return status;
}
