/* The half of a save that takes long: each rank writes its file, rank 0 commits. As a rule in a
 * thread of its own, which has copies of everything and touches neither model nor group. */
#include "core/clock.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- A rank's file --------------------------------------------------------------------------- */

/* Called when the tensor's place in the file has come. */
static tn_tensor *give_written(const char *name, void *user) {
    tn__written *w = user;
    tn_tensor *t = tn_to(tn_contiguous(w->tensor), tn_cpu());
    if (!tn_is_inert(t)) {
        tn__digest_of(tn_data(t), (size_t)tn_count(t) * tn_dtype_size(tn_dtype_of(t)), w->digest);
    }
    return t;
}

static bool write_file(tn_saver *s, const char *path) {
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    bool added = w != NULL;
    for (int i = 0; added && i < s->written_count; i++) {
        tn__written *written = &s->written[i];
        added = tn__safetensors_writer_add_late(w, written->name, tn_shape(written->tensor),
                                                tn_dtype_of(written->tensor), give_written,
                                                written) == TN_OK;
    }
    if (!added) {
        tn_safetensors_writer_free(w);
        return false;
    }
    return tn__safetensors_write(w, path, s->operation) == TN_OK;
}

/* -1 after raising. */
static int64_t file_bytes(const tn_saver *s, const char *path) {
    struct stat about;
    if (stat(path, &about) != 0) {
        tn__raise(TN_EIO, s->operation, "%s: %s", path, strerror(errno));
        return -1;
    }
    return about.st_size;
}

static char *part_path(const tn_saver *s, int rank) {
    char name[64];
    tn__index_file(rank, name, sizeof(name));
    return tn__step_path(s->folder, s->step, true, name, s->operation);
}

/* "BYTES DIGEST DIGEST …", the digests in the order of the list. */
static void write_part(tn_saver *s) {
    tn__json_text said = {0};
    tn_error_give(&s->failed);
    char *path = tn__pending() ? NULL : part_path(s, s->rank);
    if (path && write_file(s, path)) {
        tn__json_put(&said, "%" PRId64, file_bytes(s, path));
    }
    for (int i = 0; i < s->written_count; i++) {
        tn__json_put(&said, " %s", s->written[i].digest);
    }
    if (said.failed) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for %d digests", s->written_count);
    }
    tn__saver_tell(s, s->rank, "done", said.at, said.bytes);
    free(said.at);
    free(path);
}

/* ---- Rank 0: what the others have written ---------------------------------------------------- */

static bool read_done(tn_saver *s, int rank, const char *said, int64_t *bytes) {
    tn__holdings_list *l = &s->holdings->lists[rank];
    char *at;
    *bytes = strtoll(said, &at, 10);
    for (int i = 0; i < l->count; i++) {
        if (!l->at[i].writes) {
            continue;
        }
        if (*at != ' ' || strnlen(at + 1, TN__DIGEST_DIGITS) < TN__DIGEST_DIGITS) {
            tn__raise(TN_EFORMAT, s->operation, "rank %d tells nonsense of what it wrote", rank);
            return false;
        }
        memcpy(l->at[i].digest, at + 1, TN__DIGEST_DIGITS);
        at += 1 + TN__DIGEST_DIGITS;
    }
    return true;
}

/* The file is there for rank 0 too, which the index will speak for. */
static bool see_file(tn_saver *s, int rank, int64_t bytes) {
    char *path = part_path(s, rank);
    int64_t seen = path ? file_bytes(s, path) : -1;
    if (seen >= 0 && seen != bytes) {
        tn__raise(TN_EIO, s->operation,
                  "%s has %" PRId64 " bytes, but rank %d wrote %" PRId64
                  " (all ranks must see the same folder)",
                  path, seen, rank, bytes);
    }
    free(path);
    return seen == bytes;
}

/* Waits for every rank, so that none still writes when this returns; bytes[ranks]. */
static bool hear_all(tn_saver *s, int64_t *bytes) {
    tn_error_record first = {.status = TN_OK};
    for (int r = 0; r < s->ranks; r++) {
        char late[160];
        snprintf(late, sizeof(late),
                 "rank %d has not written its part of step %" PRId64 " within %g seconds", r,
                 s->step, s->options.timeout);
        char *said = tn__saver_hear(s, r, "done", s->deadline, late);
        if (said && read_done(s, r, said, &bytes[r])) {
            see_file(s, r, bytes[r]);
        }
        free(said);
        if (tn__pending() && first.status == TN_OK) {
            tn_error_take(&first);
        }
        tn_error_clear();
    }
    tn_error_give(&first);
    return first.status == TN_OK;
}

/* ---- Rank 0: the index ----------------------------------------------------------------------- */

static void put_files(tn_saver *s, const int64_t *bytes, tn__json_text *j) {
    tn__json_put(j, "\"files\":[");
    for (int r = 0; r < s->ranks; r++) {
        char name[64];
        tn__index_file(r, name, sizeof(name));
        tn__json_put(j, "%s{\"name\":\"%s\",\"bytes\":%" PRId64 "}", r ? "," : "", name, bytes[r]);
    }
    tn__json_put(j, "]");
}

static void put_index(tn_saver *s, const int64_t *bytes, tn__json_text *j) {
    tn__json_put(j,
                 TN__INDEX_BEFORE "%032d\",\"format\":\"" TN__INDEX_FORMAT "\",\n\"metadata\":", 0);
    tn__json_put_bytes(j, s->metadata, strlen(s->metadata));
    tn__json_put(j, ",\n");
    put_files(s, bytes, j);
    tn__json_put(j, ",\n\"tensors\":");
    tn__holdings_index(s->holdings, j);
    tn__json_put(j, "}\n");
    if (!j->failed) {
        char digits[TN__DIGEST_DIGITS + 1];
        tn__digest_of(j->at, j->bytes, digits);
        memcpy(j->at + TN__INDEX_DIGEST_AT, digits, TN__DIGEST_DIGITS);
    }
}

static bool write_index(tn_saver *s, const int64_t *bytes) {
    tn__json_text j = {0};
    tn__file file;
    put_index(s, bytes, &j);
    if (j.failed) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for the index of %d pieces",
                  s->holdings->count);
    } else if (j.bytes > TN__INDEX_MOST) { /* committed, it would be a step that nobody can load */
        tn__raise(TN_EUNSUPPORTED, s->operation,
                  "the index of %d pieces has %zu bytes (%d at most)", s->holdings->count, j.bytes,
                  TN__INDEX_MOST);
    }
    char *path = tn__pending()
                     ? NULL
                     : tn__step_path(s->folder, s->step, true, TN__INDEX_NAME, s->operation);
    if (path && tn__file_begin(&file, path, s->operation)) {
        tn__file_put(&file, j.at, j.bytes);
        tn_status status = tn__file_commit(&file);
        (void)status; /* pending */
    }
    free(path);
    free(j.at);
    return !tn__pending();
}

/* The others have waited until the deadline and not for ever: who is later must not commit what
 * they call failed. */
static bool in_time(const tn_saver *s) {
    if (tn__now() > s->deadline) {
        tn__raise(TN_EPEER, s->operation, "step %" PRId64 " was not written within %g seconds",
                  s->step, s->options.timeout);
    }
    return !tn__pending();
}

static void commit_all(tn_saver *s) {
    int64_t *bytes = tn__calloc((size_t)s->ranks, sizeof(*bytes));
    if (!bytes) {
        tn__raise(TN_ENOMEM, s->operation, "no memory for %d ranks", s->ranks);
    }
    bool done =
        bytes && hear_all(s, bytes) && write_index(s, bytes) && in_time(s) && tn__saver_commit(s);
    free(bytes);
    if (!done) {
        tn_error_record why;
        tn_error_take(&why);
        tn__saver_discard(s);
        tn_error_give(&why);
    }
    tn__saver_tell(s, -1, "end", NULL, 0);
}

void tn__saver_give_up(tn_saver *s) {
    tn_error_record why;
    tn_error_take(&why);
    for (int r = 0; s->made && r < s->ranks; r++) {
        free(tn__saver_hear(s, r, "done", s->deadline, ""));
        tn_error_clear();
    }
    tn__saver_discard(s);
    tn_error_give(&why);
}

void tn__saver_write(tn_saver *s) {
    TN__ON_CPU;
    tn__quiet(1);
    write_part(s);
    tn_error_clear();
    if (s->rank == 0) {
        commit_all(s);
        tn_error_clear();
    }
    tn__quiet(-1);
}
