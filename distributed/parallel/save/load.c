/* Loading a checkpoint in parts, or one of one file, onto the ranks that are there now.
 *
 * Rank 0 finds the newest and gives all the same index. Each rank checks and compares everything,
 * and reads the elements that it has into memory of its own; when all have found all of it right,
 * they are put in place, which cannot fail.
 */
#include "core/error.h"
#include "core/folder.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/agree.h"
#include "distributed/parallel/save/saver.h"
#include "io/metadata.h"
#include "tensor/tensor.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Finding --------------------------------------------------------------------------------- */

/* What rank 0 tells all of: 's' and the path of a step, a 0, the text of its index; or 'f' and the
 * path of one file, and a 0; or nothing. */
static void put_path(tn__json_text *found, char kind, const char *path) {
    tn__json_put(found, "%c", kind);
    tn__json_put_bytes(found, path, strlen(path) + 1);
}

/* The newest file of one checkpoint in a folder. */
typedef struct search {
    const char *folder, *operation;
    char *path; /* NULL: there is none yet */
    int64_t step;
} search;

/* The step of a checkpoint of one file; -1: it is none. Raises nothing. */
static int64_t file_step(const char *path) {
    struct stat about;
    int64_t step = -1;
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode)) {
        return -1;
    }
    tn_safetensors *f = tn_safetensors_open(path);
    const char *format = tn_safetensors_metadata(f, "format");
    const char *text = tn_safetensors_metadata(f, "step");
    if (format && text && strncmp(format, "tern-checkpoint-", 16) == 0) {
        step = strtoll(text, NULL, 10);
    }
    tn_safetensors_close(f);
    tn_error_clear();
    return step;
}

static bool look_at(const char *name, void *user) {
    search *s = user;
    char *path = tn__folder_path(s->folder, name, s->operation);
    if (!path) {
        return false;
    }
    int64_t step = file_step(path);
    if (step > s->step) {
        free(s->path);
        s->path = path;
        s->step = step;
    } else {
        free(path);
    }
    return true;
}

static void find_file(tn__json_text *found, const char *folder, const char *operation) {
    search s = {.folder = folder, .operation = operation, .step = -1};
    struct stat about;
    if (stat(folder, &about) != 0) {
        if (errno != ENOENT) {
            tn__raise(TN_EIO, operation, "%s: %s", folder, strerror(errno));
        }
    } else if (!S_ISDIR(about.st_mode)) {
        put_path(found, 'f', folder);
    } else if (tn__folder_each(folder, look_at, &s, operation) && s.path) {
        put_path(found, 'f', s.path);
    }
    free(s.path);
}

static void read_step(tn__json_text *found, const char *folder, int64_t step,
                      const char *operation) {
    size_t bytes;
    char *path = tn__step_path(folder, step, false, NULL, operation);
    char *text = path ? tn__index_text(path, &bytes, operation) : NULL;
    if (text) {
        put_path(found, 's', path);
        tn__json_put_bytes(found, text, bytes);
    }
    free(text);
    free(path);
}

static void find_newest(tn__json_text *found, const char *folder, const char *operation) {
    struct stat about;
    bool is_file = stat(folder, &about) == 0 && !S_ISDIR(about.st_mode);
    int64_t step = is_file ? -1 : tn__step_newest(folder, operation);
    if (step >= 0) {
        read_step(found, folder, step, operation);
    } else if (step == -1) {
        find_file(found, folder, operation);
    }
    if (found->failed) {
        tn__raise(TN_ENOMEM, operation, "%s: no memory for its index", folder);
    }
}

/* All ranks get what rank 0 found, `bytes` of it (0: nothing). */
static tn_status share_newest(tn_saver *s, tn__json_text *mine, void **data, size_t *bytes) {
    tn__account_begin();
    if (s->rank == 0) {
        find_newest(mine, s->folder, s->operation);
    }
    tn__account said = tn__account_end();
    *data = mine->at;
    *bytes = mine->bytes;
    tn_status status = tn__accounts_agree(s->world, &said, s->operation);
    return status == TN_OK ? tn_broadcast_bytes(s->world, data, bytes, 0) : status;
}

/* ---- Reading --------------------------------------------------------------------------------- */

/* What was read and found right, before anything changes. */
typedef struct load_plan {
    tn__index *index;
    tn__metadata_plan metadata;
    tn__state state;
} load_plan;

static tn__index *open_index(const char *data, size_t bytes, const char *operation) {
    const char *path = data + 1;
    size_t head = strlen(path) + 2;
    return *data == 's' ? tn__index_read(path, data + head, bytes - head, operation)
                        : tn__index_of_file(path, operation);
}

/* What the index has for this item; NULL after raising. */
static const tn__index_tensor *match_item(const load_plan *p, const tn__state_item *item) {
    const char *path = p->index->path, *operation = p->state.operation;
    const tn__index_tensor *t = tn__index_find(p->index, item->name);
    if (!t) {
        tn__raise(TN_EMISMATCH, operation, "%s has no \"%s\"", path, item->name);
    } else if (!tn_dims_equal(t->whole, item->layout.whole)) {
        tn__raise(TN_ESHAPE, operation, "%s: \"%s\" is %s but the program's is %s", path,
                  item->name, tn__dims_text(t->whole), tn__dims_text(item->layout.whole));
    } else if (t->dtype != tn_dtype_of(item->tensor)) {
        tn__raise(TN_EDTYPE, operation, "%s: \"%s\" is %s but the program's is %s", path,
                  item->name, tn_dtype_name(t->dtype), tn_dtype_name(tn_dtype_of(item->tensor)));
    }
    return tn__pending() ? NULL : t;
}

static bool fetch_item(load_plan *p, tn__state_item *item) {
    TN_SCOPE;
    const tn__index_tensor *t = match_item(p, item);
    if (!t) {
        return false;
    }
    tn_tensor *source = tn_empty_on(tn_cpu(), tn_shape(item->tensor), t->dtype);
    if (tn_is_inert(source) ||
        (item->layout.length > 0 &&
         !tn__index_fetch(p->index, t, &item->layout, tn_data_mut(source), p->state.operation))) {
        return false;
    }
    item->source = tn_keep(source);
    return true;
}

/* Changes nothing but *p. */
static void make_plan(load_plan *p, tn_saver *s, tn_checkpoint *c, const char *data, size_t bytes) {
    TN__ON_CPU;
    p->state = (tn__state){.operation = s->operation, .loads = true, .parts = true};
    if (!c) {
        tn__raise(TN_EVALUE, s->operation, "the checkpoint is NULL");
        return;
    }
    p->index = open_index(data, bytes, s->operation);
    bool read = p->index &&
                tn__metadata_read(&p->metadata, c, p->index->labels, p->index->path, s->operation,
                                  s->rank == 0) &&
                tn__state_add(&p->state, c);
    for (int i = 0; read && i < p->state.count; i++) {
        read = fetch_item(p, &p->state.items[i]);
    }
    tn__state_sort(&p->state);
}

static void plan_free(load_plan *p) {
    tn__state_free(&p->state);
    tn__index_free(p->index);
}

/* The first name of the index that no rank's program has is an error on all of them. */
static tn_status refuse_surplus(const load_plan *p, tn_group *world) {
    TN_SCOPE;
    TN__ON_CPU;
    const tn__index *ix = p->index;
    if (!ix || ix->count == 0) {
        return tn_error();
    }
    tn_tensor *known = tn_zeros(TN_DIMS(ix->count), TN_U8);
    if (tn_is_inert(known)) {
        return tn_error();
    }
    uint8_t *at = tn_data_mut(known);
    for (int i = 0; i < ix->count; i++) {
        at[i] = tn__state_has(&p->state, ix->tensors[i].name);
    }
    if (tn_work_wait(tn_all_reduce(world, known, TN_MAX), 0) != TN_OK) {
        return tn_error();
    }
    for (int i = 0; i < ix->count; i++) {
        if (!at[i]) {
            return tn__raise(TN_EMISMATCH, p->state.operation,
                             "%s has \"%.200s\", which the program has not", ix->path,
                             ix->tensors[i].name);
        }
    }
    return TN_OK;
}

static tn_status load_shared(tn_saver *s, tn_checkpoint *c, const char *data, size_t bytes) {
    load_plan p = {0};
    tn__account_begin();
    make_plan(&p, s, c, data, bytes);
    tn__account said = tn__account_end();
    if (p.index && p.index->digest) {
        memcpy(said.digest, p.index->digest, TN__DIGEST_DIGITS);
    }
    tn_status status = tn__accounts_agree(s->world, &said, s->operation);
    if (status == TN_OK && !c->partial) {
        status = refuse_surplus(&p, s->world);
    }
    if (status == TN_OK) {
        tn__state_apply(&p.state);
        tn__metadata_apply(&p.metadata);
    }
    plan_free(&p);
    return status;
}

tn_status tn_saver_load(tn_saver *s, tn_checkpoint *c, bool *found) {
    if (found) {
        *found = false;
    }
    if (!s || !found) {
        return tn__raise(TN_EVALUE, "saver_load", "%s is NULL",
                         s ? "the place for the result" : "the saver");
    }
    if (!tn__account_may_begin(s->world, "saver_load") || tn_saver_wait(s) != TN_OK) {
        return tn_error();
    }
    s->operation = "saver_load";
    tn__json_text mine = {0};
    void *data = NULL;
    size_t bytes = 0;
    tn_status status = share_newest(s, &mine, &data, &bytes);
    if (status == TN_OK && bytes > 0) {
        status = load_shared(s, c, data, bytes);
        *found = status == TN_OK;
    }
    if (s->rank != 0) {
        tn_bytes_free(data);
    }
    free(mine.at);
    return status;
}

/* ---- Beginning anew -------------------------------------------------------------------------- */

/* The checkpoints of one file in the folder, where there are no steps: the newest, again and
 * again. */
static void remove_files(const tn_saver *s) {
    for (size_t bytes = 1; bytes > 0 && !tn__pending();) {
        tn__json_text found = {0};
        find_newest(&found, s->folder, s->operation);
        bytes = found.bytes;
        if (bytes > 0 && !tn__pending() && unlink(found.at + 1) != 0) {
            tn__raise(TN_EIO, s->operation, "%s: %s", found.at + 1, strerror(errno));
        }
        free(found.at);
    }
}

tn_status tn_saver_clear(tn_saver *s) {
    if (!s) {
        return tn__raise(TN_EVALUE, "saver_clear", "the saver is NULL");
    }
    if (!tn__account_may_begin(s->world, "saver_clear") || tn_saver_wait(s) != TN_OK) {
        return tn_error();
    }
    s->operation = "saver_clear";
    tn__account_begin();
    if (s->rank == 0 && tn__saver_clear_steps(s)) {
        remove_files(s);
    }
    tn__account said = tn__account_end();
    return tn__accounts_agree(s->world, &said, s->operation);
}
