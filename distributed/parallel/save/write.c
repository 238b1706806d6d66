/* The slow half of a save: each rank writes its file, rank 0 commits. It usually runs in its own
 * thread, which has copies of everything and touches neither model nor the program's groups. */
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/group/group.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/saver.h"

#include <inttypes.h>
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

static bool write_file(tn_saver *s) {
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    for (int i = 0; w && i < s->state.count; i++) {
        tn__state_item *item = &s->state.items[i];
        if (item->tensor) {
            tn__safetensors_writer_add_late(w, item->name, TN_DIMS(tn_count(item->tensor)),
                                            tn_dtype_of(item->tensor), give_item, item);
        }
    }
    return tn__safetensors_write(w, s->part, false, s->operation) == TN_OK;
}

/* -1: it does not exist. */
static int64_t file_bytes(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 ? about.st_size : -1;
}

/* Writes it, and lists its size and the digests of the items for the others. */
static void write_part(tn_saver *s, tn__buffer *written) {
    if (write_file(s)) {
        int64_t bytes = file_bytes(s->part);
        tn__buffer_add(written, &bytes, sizeof(bytes));
    }
    for (int i = 0; !tn__pending() && i < s->state.count; i++) {
        tn__buffer_add(written, s->state.items[i].digest, TN__DIGEST_DIGITS);
    }
}

/* Whether rank 0 sees every rank's file, since its index lists them. False after raising. */
static bool sees_files(const tn_saver *s) {
    for (int r = 0; r < s->ranks && !tn__pending(); r++) {
        int64_t bytes = s->manifest.lists[r].bytes;
        char *path = tn__saver_part(s, r);
        int64_t here = path ? file_bytes(path) : -1;
        if (path && (here < 0 || here != bytes)) {
            tn__raise(TN_EIO, s->operation,
                      "%s %s, but rank %d wrote %" PRId64
                      " bytes (all ranks must see the same folder)",
                      path, here < 0 ? "is not there" : "has another size", r, bytes);
        }
        free(path);
    }
    return !tn__pending();
}

/* ---- Rank 0: the index ----------------------------------------------------------------------- */

static void put_index(const tn__manifest *m, const char *metadata, tn__buffer *j) {
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
    char *path = tn__step_path(s->folder, s->step, true, TN__INDEX_NAME, s->operation);
    put_index(&s->manifest, s->metadata, &j);
    if (j.bytes > TN__INDEX_MOST) { /* the step could not be loaded */
        tn__raise(TN_EUNSUPPORTED, s->operation,
                  "the index of %d pieces has %zu bytes (at most %d)", s->manifest.count, j.bytes,
                  TN__INDEX_MOST);
    } else if (path && !j.failed) {
        tn__file_write_at(path, j.at, j.bytes, s->operation);
    }
    free(path);
    tn__buffer_free(&j);
    return !tn__pending();
}

/* The others wait for the commit since `began`: a step that they consider failed must not be
 * committed later, so a quarter of their time is left for it. */
static bool in_time(const tn_saver *s, double began) {
    double most = 0.75 * s->options.timeout;
    return tn__now() - began <= most ||
           tn__fail(TN_EPEER, s->operation, "step %" PRId64 " was not written within %g seconds",
                    s->step, most);
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* Ends at the first error, which all ranks get. */
static void write_step(tn_saver *s, tn__buffer *written) {
    tn__agree_begin(s->group, s->operation);
    tn_error_give(&s->result);
    if (!tn__pending()) { write_part(s, written); }
    if (tn__agree(s->group, NULL, s->operation) != TN_OK) { return; }
    double began = tn__now();
    free(s->part);
    s->part = NULL; /* from here on rank 0 may commit it, whatever happens to this rank */
    tn__agree_begin(s->group, s->operation);
    if (tn__manifest_gather_written(&s->manifest, s->group, written) && s->rank == 0 &&
        sees_files(s) && write_index(s) && in_time(s, began)) {
        tn__saver_commit(s);
    }
    tn__agree(s->group, NULL, s->operation);
}

/* Rank 0, when all ranks know that the step is there: what fails here is a warning. */
static void end_step(tn_saver *s) {
    tn__saver_remove_old(s);
    tn__saver_discard(s); /* the step that had the name before, if any */
    tn__after_commit(s);
}

void *tn__saver_write(void *saver) {
    TN__ON_CPU;
    tn_saver *s = saver;
    tn__buffer written = {.operation = s->operation};
    tn__quiet(1);
    write_step(s, &written);
    tn__buffer_free(&written);
    s->result.status = TN_OK;
    tn_error_take(&s->result);
    if (s->result.status != TN_OK) {
        tn__saver_discard(s);
    } else if (s->rank == 0) {
        end_step(s);
    }
    tn__quiet(-1);
    if (s->group) { s->group->owned = false; /* the next save's thread may use it */ }
    return NULL;
}
