/* The slow half of a save: each rank writes its file, rank 0 commits. It usually runs in its own
 * thread, which has copies of everything and touches neither model nor group. */
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- A rank's file --------------------------------------------------------------------------- */

/* Called when the tensor's turn in the file comes. */
static tn_tensor *give_item(const char *name, void *user) {
    tn__state_item *item = user;
    tn_tensor *t = tn_to(tn_reshape(item->tensor, TN_DIMS(tn_count(item->tensor))), tn_cpu());
    if (!tn_is_inert(t)) {
        tn__digest_of(tn_data(t), (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)),
                      item->digest);
    }
    return t;
}

static bool write_file(tn_saver *s, const char *path) {
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    for (int i = 0; w && i < s->state.count; i++) {
        tn__state_item *item = &s->state.items[i];
        if (item->tensor) {
            tn__safetensors_writer_add_late(w, item->name, TN_DIMS(tn_count(item->tensor)),
                                            tn_dtype_of(item->tensor), give_item, item);
        }
    }
    return tn__safetensors_write(w, path, false, s->operation) == TN_OK;
}

/* -1: it does not exist. */
static int64_t file_bytes(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? about.st_size : -1;
}

static char *part_path(const tn_saver *s, int rank) {
    char name[64];
    tn__index_file(rank, name, sizeof(name));
    return tn__step_path(s->folder, s->step, true, name, s->operation);
}

/* Writes this rank's block, and has it copied. Sends nothing, or 'm' and why it could not, or 'c'
 * and why a copy was not made. */
static void write_memory(tn_saver *s) {
    const tn__vault_save save = {.step = s->step,
                                 .save = s->number,
                                 .rank = s->rank,
                                 .ranks = s->ranks,
                                 .state = &s->state,
                                 .list = &s->list,
                                 .metadata = s->metadata,
                                 .operation = s->operation};
    tn__buffer done = {.operation = s->operation};
    bool failed = s->failed.status != TN_OK, saved = !failed && tn__vault_write(&s->vault, &save);
    char no_copies[TN__VAULT_WHY] = "";
    tn__copies_exchange(s, saved, no_copies);
    if (!saved) {
        tn__buffer_format(&done, "m%s", failed ? s->failed.message : s->vault.why);
    } else if (no_copies[0]) {
        tn__buffer_format(&done, "c%s", no_copies);
    } else if (s->copies.count == 0) {
        tn__vault_drop_copies(&s->vault);
    }
    tn__saver_send(s, s->rank, "done", done.at, done.bytes);
    tn__buffer_free(&done);
}

/* Sends the file's size and the items' digests. */
static void write_part(tn_saver *s) {
    tn__buffer done = {.operation = s->operation};
    tn_error_give(&s->failed);
    char *path = tn__pending() ? NULL : part_path(s, s->rank);
    if (path && write_file(s, path)) {
        int64_t bytes = file_bytes(path);
        tn__buffer_add(&done, &bytes, sizeof(bytes));
    }
    for (int i = 0; i < s->state.count; i++) {
        tn__buffer_add(&done, s->state.items[i].digest, TN__DIGEST_DIGITS);
    }
    tn__saver_send(s, s->rank, "done", done.at, done.bytes);
    tn__buffer_free(&done);
    free(path);
}

/* ---- Rank 0: what the others have written ---------------------------------------------------- */

/* Rank 0 must see the file too, since its index lists it. */
static void read_done(tn_saver *s, int rank, const char *done, size_t bytes) {
    tn__manifest_list *l = &s->manifest->lists[rank];
    if (s->memory) {
        if (bytes > 0) {
            (*done == 'c' ? tn__saver_no_copies : tn__saver_no_memory)(s, rank, done + 1);
        }
        return;
    }
    if (bytes != sizeof(l->bytes) + (size_t)l->count * TN__DIGEST_DIGITS) {
        tn__raise(TN_EFORMAT, s->operation, "rank %d sent no digests of what it wrote", rank);
        return;
    }
    memcpy(&l->bytes, done, sizeof(l->bytes));
    for (int i = 0; i < l->count; i++) {
        memcpy(l->at[i].digest, done + sizeof(l->bytes) + (size_t)i * TN__DIGEST_DIGITS,
               TN__DIGEST_DIGITS);
    }
    char *path = part_path(s, rank);
    int64_t here = path ? file_bytes(path) : -1;
    if (path && here != l->bytes) {
        tn__raise(TN_EIO, s->operation,
                  "%s %s, but rank %d wrote %" PRId64 " bytes (all ranks must see the same folder)",
                  path, here < 0 ? "is not there" : "has another size", rank, l->bytes);
    }
    free(path);
}

/* Waits for every rank, so that none is still writing afterwards. */
static bool receive_all(tn_saver *s) {
    tn_error_record first = {.status = TN_OK};
    for (int r = 0; r < s->ranks; r++) {
        size_t received;
        char *done = tn__saver_receive(s, r, "done", "written its part of", &received);
        if (done) {
            read_done(s, r, done, received);
        }
        free(done);
        if (tn__pending() && first.status == TN_OK) {
            tn_error_take(&first);
        }
        tn_error_clear();
    }
    tn_error_give(&first);
    return first.status == TN_OK;
}

void tn__saver_no_memory(tn_saver *s, int rank, const char *why) {
    if (!s->memory_ends) {
        tn__log_loud("step %" PRId64 " and later ones are not saved in memory: rank %d: %.300s",
                     s->step, rank, why);
    }
    s->memory_ends = true;
}

void tn__saver_no_copies(tn_saver *s, int rank, const char *why) {
    if (!s->copies_end) {
        tn__log_loud("step %" PRId64
                     " and later ones are not copied to other hosts: rank %d: %.300s",
                     s->step, rank, why);
    }
    s->copies_end = true;
}

/* ---- Rank 0: the index ----------------------------------------------------------------------- */

void tn__saver_put_index(const tn__manifest *m, const char *metadata, tn__buffer *j) {
    tn__buffer_format(
        j, TN__INDEX_BEFORE "%032d\",\"format\":\"" TN__INDEX_FORMAT "\",\n\"metadata\":", 0);
    tn__buffer_text(j, metadata);
    tn__buffer_format(j, ",\n\"files\":[");
    for (int r = 0; r < m->ranks; r++) {
        char name[64];
        tn__index_file(r, name, sizeof(name));
        tn__buffer_format(j, "%s{\"name\":\"%s\",\"bytes\":%" PRId64 "}", r ? "," : "", name,
                          m->lists[r].bytes);
    }
    tn__buffer_format(j, "],\n\"tensors\":");
    tn__manifest_index(m, j);
    tn__buffer_format(j, "}\n");
    if (!j->failed) {
        char digits[TN__DIGEST_DIGITS + 1];
        tn__digest_of(j->at, j->bytes, digits);
        memcpy(j->at + TN__INDEX_DIGEST_AT, digits, TN__DIGEST_DIGITS);
    }
}

static bool write_index(tn_saver *s) {
    tn__buffer j = {.operation = s->operation};
    tn__file file;
    char *path = tn__step_path(s->folder, s->step, true, TN__INDEX_NAME, s->operation);
    tn__saver_put_index(s->manifest, s->metadata, &j);
    if (j.bytes > TN__INDEX_MOST) { /* the step could not be loaded */
        tn__raise(TN_EUNSUPPORTED, s->operation,
                  "the index of %d pieces has %zu bytes (at most %d)", s->manifest->count, j.bytes,
                  TN__INDEX_MOST);
    } else if (path && !j.failed && tn__file_begin(&file, path, s->operation)) {
        tn__file_put(&file, j.at, j.bytes);
        tn__file_commit(&file);
    }
    free(path);
    tn__buffer_free(&j);
    return !tn__pending();
}

/* The others wait until the deadline: a step that they consider failed must not be committed
 * later. */
static bool in_time(const tn_saver *s) {
    if (tn__now() > s->deadline) {
        tn__raise(TN_EPEER, s->operation, "step %" PRId64 " was not written within %g seconds",
                  s->step, s->options.timeout);
    }
    return !tn__pending();
}

static void commit_all(tn_saver *s) {
    bool done = receive_all(s) && (s->memory || write_index(s)) && in_time(s) &&
                (s->memory || tn__saver_commit(s));
    if (!done) {
        tn_error_record why;
        tn_error_take(&why);
        tn__saver_discard(s);
        tn_error_give(&why);
    }
    tn__saver_send(s, -1, "end", NULL, 0);
    if (done && !s->memory) {
        tn__after_commit(s);
    }
}

void tn__saver_give_up(tn_saver *s) {
    tn_error_record why;
    tn_error_take(&why);
    for (int r = 0; s->made && r < s->ranks; r++) {
        free(tn__saver_receive(s, r, "done", "", NULL));
        tn_error_clear();
    }
    tn__saver_discard(s);
    tn_error_give(&why);
}

void *tn__saver_write(void *saver) {
    TN__ON_CPU;
    tn_saver *s = saver;
    tn__quiet(1);
    s->memory ? write_memory(s) : write_part(s);
    tn_error_clear();
    if (s->rank == 0) {
        commit_all(s);
        tn_error_clear();
    }
    tn__quiet(-1);
    return NULL;
}
