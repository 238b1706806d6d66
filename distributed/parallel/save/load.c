/* Loading a checkpoint, in parts or one file, onto the present ranks; and tn_dist_save, for state
 * that one rank has whole.
 *
 * Rank 0 finds the checkpoint and sends all the same index, or file. Each rank checks everything,
 * and reads its elements into separate memory; when no rank has found a fault they are put in
 * place, which cannot fail.
 */
#include "core/error.h"
#include "core/folder.h"
#include "core/log.h"
#include "distributed/on_cpu.h"
#include "distributed/group/agree.h"
#include "distributed/parallel/save/saver.h"
#include "io/checkpoint/checkpoint.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Finding --------------------------------------------------------------------------------- */

/* What rank 0 sends to all: 's', the step as 20 digits and its path, a 0, its index as text; or
 * 'e', the step, its path and a 0, if its index cannot be read; or 'f', the step, the path of one
 * file, and a 0; or nothing. */
enum { PATH_AT = 21 };

static void put_path(tn__buffer *found, char kind, int64_t step, const char *path) {
    tn__buffer_format(found, "%c%020" PRId64, kind, step);
    tn__buffer_add(found, path, strlen(path) + 1);
}

/* Finds the newest one-file checkpoint in a folder. */
typedef struct search {
    const char *folder, *operation;
    char *path; /* NULL: none yet */
    int64_t step;
} search;

static bool look_at(const char *name, void *user) {
    search *s = user;
    char *path = tn__folder_path(s->folder, name, s->operation);
    if (!path) {
        return false;
    }
    tn_safetensors *f = tn_safetensors_open(path);
    const char *format = tn_safetensors_metadata(f, "format");
    const char *text = tn_safetensors_metadata(f, "step");
    bool checkpoint = format && text && strncmp(format, "tern-checkpoint-", 16) == 0;
    int64_t step = checkpoint ? strtoll(text, NULL, 10) : -1;
    tn_safetensors_close(f);
    tn_error_clear(); /* the file is not a checkpoint */
    if (step > s->step) {
        free(s->path);
        s->path = path;
        s->step = step;
    } else {
        free(path);
    }
    return true;
}

static void find_file(tn__buffer *found, const char *folder, const char *operation) {
    search s = {.folder = folder, .operation = operation, .step = -1};
    if (tn__folder_each(folder, look_at, &s, operation) && s.path) {
        put_path(found, 'f', s.step, s.path);
    }
    free(s.path);
}

/* After an error, which stays pending, `found` may still say which step there is. */
static void read_step(tn__buffer *found, const char *folder, int64_t step, const char *operation) {
    size_t bytes;
    char *path = tn__step_path(folder, step, false, NULL, operation);
    char *text = path ? tn__index_text(path, &bytes, operation) : NULL;
    if (path) {
        put_path(found, text ? 's' : 'e', step, path);
    }
    if (text) {
        tn__buffer_add(found, text, bytes);
    }
    free(text);
    free(path);
}

static void find_newest(tn__buffer *found, const char *folder, const char *operation) {
    struct stat about;
    if (stat(folder, &about) != 0) {
        if (errno != ENOENT) {
            tn__raise(TN_EIO, operation, "%s: %s", folder, strerror(errno));
        }
    } else if (!S_ISDIR(about.st_mode)) {
        put_path(found, 'f', INT64_MAX, folder);
    } else {
        int64_t step = tn__step_newest(folder, operation);
        if (step >= 0) {
            read_step(found, folder, step, operation);
        } else if (!tn__pending()) {
            find_file(found, folder, operation);
        }
    }
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* What was read and checked, from an index or a file, before anything changes. */
typedef struct loading {
    tn_group *world;
    const char *operation; /* a static string */
    tn__index *index;
    tn_safetensors *file;
    tn__source from;
    tn__checkpoint_plan plan;
} loading;

/* Changes nothing but *l. */
static void plan_load(loading *l, tn_checkpoint *c) {
    TN__ON_CPU;
    if (l->index) {
        l->from = tn__index_source(l->index);
    } else if (l->file && tn__safetensors_check_digest(l->file, l->operation) == TN_OK) {
        l->from = tn__source_of_file(l->file);
    }
    if (l->from.path) {
        tn__checkpoint_plan_make(&l->plan, c, &l->from, true, tn_group_rank(l->world) == 0,
                                 l->operation);
    }
}

/* A name in the checkpoint that no rank's program has is an error on all ranks; the first is
 * named. */
static tn_status refuse_surplus(const loading *l) {
    TN_SCOPE;
    TN__ON_CPU;
    tn_tensor *known = tn_zeros(TN_DIMS(l->from.count), TN_U8);
    uint8_t *at = tn_data_mut(known);
    for (int i = 0; !tn__pending() && i < l->from.count; i++) {
        at[i] = tn__state_has(&l->plan.state, l->from.name(i, l->from.user));
    }
    if (tn_work_wait(tn_all_reduce(l->world, known, TN_MAX), 0) != TN_OK) {
        return tn_error();
    }
    for (int i = 0; i < l->from.count; i++) {
        if (!at[i]) {
            return tn__raise(TN_EMISMATCH, l->operation,
                             "%s has \"%.200s\", which the program does not have", l->from.path,
                             l->from.name(i, l->from.user));
        }
    }
    return TN_OK;
}

/* All ranks get what rank 0 has found, unless it has raised an error. Rank 0's bytes stay its own;
 * the others' are for tn_bytes_free. */
static tn_status share_found(tn_group *g, void **data, size_t *bytes, const char *operation) {
    tn_status status = tn__agree(g, NULL, operation);
    return status == TN_OK ? tn_broadcast_bytes(g, data, bytes, 0) : status;
}

/* Ends what tn__agree_begin has begun, and frees index and file. */
static tn_status finish_load(loading *l, tn_checkpoint *c) {
    if (!tn__pending()) {
        plan_load(l, c);
    }
    char text[64];
    snprintf(text, sizeof(text), "a checkpoint with the digest %.32s", l->from.digest);
    tn_status status = tn__agree(l->world, text, l->operation);
    if (status == TN_OK && !c->partial) {
        status = refuse_surplus(l);
    }
    if (status == TN_OK) {
        tn__checkpoint_apply(&l->plan);
    }
    tn__state_free(&l->plan.state);
    tn__index_free(l->index);
    tn_safetensors_close(l->file);
    return status;
}

tn_status tn__saver_load_index(tn_group *g, tn_checkpoint *c, tn__index *ix,
                               const char *operation) {
    loading l = {.world = g, .operation = operation, .index = ix};
    return finish_load(&l, c);
}

/* Kind 's': from a step's folder, with `data` as its index; 'e': from none, since `data` is rank
 * 0's error; 'f': from the file at `path`; 'b': from a file with these bytes. */
static tn_status load_shared(tn_group *g, tn_checkpoint *c, char kind, const char *path, void *data,
                             size_t bytes, const char *operation) {
    loading l = {.world = g, .operation = operation};
    tn__agree_begin();
    if (kind == 's') {
        l.index = tn__index_read(path, data, bytes, operation);
    } else if (kind == 'e') {
        tn_error_give(data);
    } else {
        l.file = kind == 'f' ? tn_safetensors_open(path) : tn__safetensors_over(path, data, bytes);
    }
    return finish_load(&l, c);
}

tn_status tn_saver_load(tn_saver *s, tn_checkpoint *c, bool *found) {
    static const char operation[] = "saver_load";
    if (found) {
        *found = false;
    }
    if (!s || !found) {
        return tn__raise(TN_EVALUE, operation, "%s is NULL",
                         s ? "the pointer for the result" : "the saver");
    }
    if (!tn__saver_here(s, operation) || !tn__agree_may_begin(s->world, operation) ||
        tn_saver_wait(s) != TN_OK) {
        return tn_error();
    }
    tn__buffer newest = {.operation = operation};
    tn_error_record unread = {.status = TN_OK};
    tn__agree_begin();
    if (s->rank == 0) {
        find_newest(&newest, s->folder, operation);
        if (newest.bytes > 0 && !newest.failed) { /* memory may have a newer one */
            tn_error_take(&unread);
        }
    }
    void *data = newest.at;
    size_t bytes = newest.bytes;
    tn_status status = share_found(s->world, &data, &bytes, operation);
    int64_t step = -1;
    s->in_files = -1;
    if (status == TN_OK && bytes > 0) {
        sscanf((char *)data + 1, "%20" SCNd64, &s->in_files);
    }
    if (status == TN_OK) {
        status = tn__saver_recall(s, c, s->in_files, &step, operation);
    }
    if (status == TN_OK && step < 0 && bytes > 0) {
        char *path = (char *)data + PATH_AT, kind = *(char *)data;
        size_t head = PATH_AT + strlen(path) + 1;
        status = load_shared(s->world, c, kind, path,
                             kind == 'e' ? (void *)&unread : (char *)data + head, bytes - head,
                             operation);
        step = s->in_files;
    } else if (status == TN_OK && unread.status != TN_OK) {
        tn__log_loud("step %" PRId64 " in memory is loaded: %.300s", step, unread.message);
    }
    *found = status == TN_OK && step >= 0;
    if (status == TN_OK) {
        tn__vault_forget(&s->vault, step); /* of a future that will be another */
    }
    if (s->rank != 0) {
        tn_bytes_free(data);
    }
    tn__buffer_free(&newest);
    return status;
}

/* ---- One file, which only rank 0 need see ---------------------------------------------------- */

tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path) {
    static const char operation[] = "dist_save";
    if (!tn__agree_may_begin(g, operation)) {
        return tn_error();
    }
    tn__agree_begin();
    tn__warn_ranks_differ(g, c, operation);
    if (tn_group_rank(g) == 0) {
        tn_checkpoint_save(c, path);
    }
    return tn__agree(g, NULL, operation);
}

tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path) {
    static const char operation[] = "dist_load";
    size_t bytes = 0;
    if (!tn__agree_may_begin(g, operation)) {
        return tn_error();
    }
    tn__agree_begin();
    char *mine = tn_group_rank(g) == 0 ? tn__checkpoint_file(path, &bytes, operation) : NULL;
    void *data = mine;
    tn_status status = share_found(g, &data, &bytes, operation);
    if (status == TN_OK) {
        status = load_shared(g, c, 'b', path, data, bytes, operation);
    }
    if (data != mine) {
        tn_bytes_free(data);
    }
    free(mine);
    return status;
}

/* ---- Starting over --------------------------------------------------------------------------- */

/* Removes the one-file checkpoints of a folder without steps, the newest first. */
static void remove_files(const tn_saver *s) {
    for (size_t bytes = 1; bytes > 0 && !tn__pending();) {
        tn__buffer found = {.operation = s->operation};
        find_newest(&found, s->folder, s->operation);
        bytes = found.bytes;
        if (bytes > 0 && !tn__pending() && unlink(found.at + PATH_AT) != 0) {
            tn__raise(TN_EIO, s->operation, "%s: %s", found.at + PATH_AT, strerror(errno));
        }
        tn__buffer_free(&found);
    }
}

tn_status tn_saver_clear(tn_saver *s) {
    if (!s) {
        return tn__raise(TN_EVALUE, "saver_clear", "the saver is NULL");
    }
    if (!tn__saver_here(s, "saver_clear") || !tn__agree_may_begin(s->world, "saver_clear") ||
        tn_saver_wait(s) != TN_OK) {
        return tn_error();
    }
    s->operation = "saver_clear";
    tn__vault_open(&s->vault, s->folder);
    tn__vault_forget(&s->vault, -1);
    tn__agree_begin();
    if (s->rank == 0 && tn__saver_clear_steps(s)) {
        remove_files(s);
    }
    return tn__agree(s->world, NULL, s->operation);
}
