/* Loading a checkpoint, in parts or one file, onto the present ranks; and tn_dist_save, for state
 * that one rank has whole.
 *
 * Rank 0 finds the checkpoint and sends all the same index, or file. Each rank checks everything,
 * and reads its elements into separate memory; when no rank has found a fault they are put in
 * place, which cannot fail.
 */
#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/group/agree.h"
#include "distributed/parallel/save/saver.h"
#include "io/checkpoint/checkpoint.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Finding --------------------------------------------------------------------------------- */

/* The newest checkpoint of a folder, as rank 0 finds it. */
typedef struct newest {
    const char *folder, *operation;
    bool parts;   /* a step's folder; false: one file */
    int64_t step; /* of a file that was named instead of a folder INT64_MAX; -1: there is none */
    char *path;   /* NULL: there is none */
} newest;

/* A file that may be a checkpoint. */
static bool look_at(const char *name, void *user) {
    newest *n = user;
    char *path = tn__folder_path(n->folder, name, n->operation);
    if (!path) { return false; }
    tn_safetensors *f = tn_safetensors_open(path);
    const char *format = tn_safetensors_metadata(f, "format");
    const char *text = tn_safetensors_metadata(f, "step");
    bool checkpoint = format && text && strncmp(format, "tern-checkpoint-", 16) == 0;
    int64_t step = checkpoint ? strtoll(text, NULL, 10) : -1;
    tn_safetensors_close(f);
    tn_error_clear(); /* the file is not a checkpoint */
    if (step > n->step) {
        free(n->path);
        n->path = path;
        n->step = step;
    } else {
        free(path);
    }
    return true;
}

/* Reads no step, so a damaged one is found too. False after raising; the caller frees the path. */
static bool find_newest(newest *n, const char *folder, const char *operation) {
    struct stat about;
    *n = (newest){.folder = folder, .operation = operation, .step = -1};
    if (stat(folder, &about) != 0) {
        if (errno != ENOENT) { tn__raise(TN_EIO, operation, "%s: %s", folder, strerror(errno)); }
    } else if (!S_ISDIR(about.st_mode)) {
        n->step = INT64_MAX;
        n->path = tn__strdup_for(folder, operation);
    } else if ((n->step = tn__step_newest(folder, operation)) >= 0) {
        n->parts = true;
        n->path = tn__step_path(folder, n->step, false, NULL, operation);
    } else if (!tn__pending()) {
        tn__folder_each(folder, look_at, n, operation);
    }
    return !tn__pending();
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
    if (tn_work_wait(tn_all_reduce(l->world, known, TN_MAX), 0) != TN_OK) { return tn_error(); }
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
    if (!tn__pending()) { plan_load(l, c); }
    char text[64];
    snprintf(text, sizeof(text), "a checkpoint with the digest %.32s", l->from.digest);
    tn_status status = tn__agree(l->world, text, l->operation);
    if (status == TN_OK && !c->partial) { status = refuse_surplus(l); }
    if (status == TN_OK) { tn__checkpoint_apply(&l->plan); }
    tn__state_free(&l->plan.state);
    tn__index_free(l->index);
    tn_safetensors_close(l->file);
    return status;
}

/* Loads the step at `path` with this index, or the file there (data NULL), or a file with these
 * bytes. */
static tn_status load_shared(tn_group *g, tn_checkpoint *c, bool parts, const char *path,
                             void *data, size_t bytes, const char *operation) {
    loading l = {.world = g, .operation = operation};
    tn__agree_begin();
    if (parts) {
        l.index = tn__index_read(path, data, bytes, operation);
    } else {
        l.file = data ? tn__safetensors_over(path, data, bytes) : tn_safetensors_open(path);
    }
    return finish_load(&l, c);
}

/* Rank 0: the path of the newest checkpoint and a 0; of a step also its index. Nothing: there is
 * none, or after raising. */
static void read_newest(tn__buffer *found, const char *folder, const char *operation) {
    newest n;
    size_t bytes;
    if (find_newest(&n, folder, operation) && n.path) {
        char *index = n.parts ? tn__index_text(n.path, &bytes, operation) : NULL;
        if (!tn__pending()) {
            tn__buffer_add(found, n.path, strlen(n.path) + 1);
            tn__buffer_add(found, index ? index : "", index ? bytes : 0);
        }
        free(index);
    }
    free(n.path);
}

/* Whether s may load now, on all ranks. */
static bool begin_load(tn_saver *s, const char *operation) {
    return tn__saver_here(s, operation) && tn__agree_may_begin(s->world, operation) &&
           tn_saver_wait(s) == TN_OK;
}

tn_status tn_saver_load(tn_saver *s, tn_checkpoint *c, bool *found) {
    static const char operation[] = "saver_load";
    if (found) { *found = false; }
    if (!s || !found) {
        return tn__raise(TN_EVALUE, operation, "%s is NULL",
                         s ? "the pointer for the result" : "the saver");
    }
    if (!begin_load(s, operation)) { return tn_error(); }
    tn__buffer mine = {.operation = operation};
    tn__agree_begin();
    if (s->rank == 0) { read_newest(&mine, s->folder, operation); }
    void *data = mine.at;
    size_t bytes = mine.bytes;
    tn_status status = share_found(s->world, &data, &bytes, operation);
    if (status == TN_OK && bytes > 0) {
        size_t head = strlen(data) + 1;
        bool parts = bytes > head;
        status = load_shared(s->world, c, parts, data, parts ? (char *)data + head : NULL,
                             bytes - head, operation);
        *found = status == TN_OK;
    }
    if (s->rank != 0) { tn_bytes_free(data); }
    tn__buffer_free(&mine);
    return status;
}

int64_t tn__saver_newest(tn_saver *s, const char *operation) {
    newest n = {.step = -1};
    if (!begin_load(s, operation)) { return -1; }
    tn__agree_begin();
    if (s->rank == 0) { find_newest(&n, s->folder, operation); }
    void *data = &n.step;
    size_t bytes = sizeof(n.step);
    if (share_found(s->world, &data, &bytes, operation) == TN_OK && s->rank != 0) {
        memcpy(&n.step, data, sizeof(n.step));
        tn_bytes_free(data);
    }
    free(n.path);
    return tn__pending() ? -1 : n.step;
}

/* ---- One file, which only rank 0 need see ---------------------------------------------------- */

tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path) {
    static const char operation[] = "dist_save";
    if (!tn__agree_may_begin(g, operation)) { return tn_error(); }
    tn__agree_begin();
    tn__warn_ranks_differ(g, c, operation);
    if (tn_group_rank(g) == 0) { tn_checkpoint_save(c, path); }
    return tn__agree(g, NULL, operation);
}

tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path) {
    static const char operation[] = "dist_load";
    size_t bytes = 0;
    if (!tn__agree_may_begin(g, operation)) { return tn_error(); }
    tn__agree_begin();
    char *mine = tn_group_rank(g) == 0 ? tn__checkpoint_file(path, &bytes, operation) : NULL;
    void *data = mine;
    tn_status status = share_found(g, &data, &bytes, operation);
    if (status == TN_OK) { status = load_shared(g, c, false, path, data, bytes, operation); }
    if (data != mine) { tn_bytes_free(data); }
    free(mine);
    return status;
}

/* ---- Starting over --------------------------------------------------------------------------- */

/* Removes the one-file checkpoints of a folder without steps, the newest first. */
static void remove_files(const tn_saver *s) {
    for (bool more = true; more;) {
        newest n;
        /* a step that is still there is in use */
        more = find_newest(&n, s->folder, s->operation) && n.path && !n.parts;
        if (more && unlink(n.path) != 0) {
            tn__raise(TN_EIO, s->operation, "%s: %s", n.path, strerror(errno));
            more = false;
        }
        free(n.path);
    }
}

tn_status tn_saver_clear(tn_saver *s) {
    if (!s) { return tn__raise(TN_EVALUE, "saver_clear", "the saver is NULL"); }
    if (!begin_load(s, "saver_clear")) { return tn_error(); }
    s->operation = "saver_clear";
    tn__agree_begin();
    if (s->rank == 0 && tn__saver_clear_steps(s)) { remove_files(s); }
    return tn__agree(s->world, NULL, s->operation);
}
