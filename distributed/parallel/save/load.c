/* Loading a checkpoint in parts, or in one file, onto the present ranks; and tn_dist_save, for
 * state that one rank has whole.
 *
 * Rank 0 sends all the same index, or file. Each rank checks everything, and reads its elements
 * into separate memory; when no rank has found a fault they are put in place, which cannot fail.
 */
#include "core/error.h"
#include "core/memory.h"
#include "distributed/group/agree.h"
#include "distributed/group/values.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/saver.h"
#include "io/checkpoint/checkpoint.h"
#include "tern/sys/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    } else if (l->file && tn__safetensors_check_digest(l->file, l->operation)) {
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

/* ---- A step ---------------------------------------------------------------------------------- */

/* Rank 0: the path of the newest step and a 0, then its index. Nothing: there is none, or after
 * raising. */
static void read_newest(tn__buffer *found, const char *folder, const char *operation) {
    size_t bytes;
    int64_t step = tn__step_newest(folder, operation);
    char *path = step < 0 ? NULL : tn__step_path(folder, step, false, NULL, operation);
    char *index = path ? tn__index_text(path, &bytes, operation) : NULL;
    if (index) {
        tn__buffer_add(found, path, strlen(path) + 1);
        tn__buffer_add(found, index, bytes);
    }
    free(index);
    free(path);
}

/* tn__agree_begin, when no save is under way. The error of one is on all ranks. */
static bool begin_load(tn_saver *s, const char *operation) {
    return tn__saver_sound(s, operation) && (tn__pending() || tn_saver_wait(s) == TN_OK) &&
           tn__agree_begin(s->world, operation);
}

tn_status tn_saver_load(tn_saver *s, tn_checkpoint *c, bool *found) {
    static const char operation[] = "saver_load";
    if (!found) { return tn__raise(TN_EVALUE, operation, "the pointer for the result is NULL"); }
    *found = false;
    if (!begin_load(s, operation)) { return tn_error(); }
    tn__buffer mine = {.operation = operation};
    if (s->rank == 0) { read_newest(&mine, s->folder, operation); }
    void *data = mine.at;
    size_t bytes = mine.bytes;
    tn_status status = share_found(s->world, &data, &bytes, operation);
    if (status == TN_OK && bytes > 0) {
        loading l = {.world = s->world, .operation = operation};
        size_t head = strlen(data) + 1;
        tn__agree_begin(s->world, operation);
        l.index = tn__index_read(data, (char *)data + head, bytes - head, operation);
        status = finish_load(&l, c);
        *found = status == TN_OK;
    }
    if (s->rank != 0) { tn_bytes_free(data); }
    tn__buffer_free(&mine);
    return status;
}

int64_t tn__saver_newest(tn_saver *s, const char *operation) {
    if (!begin_load(s, operation)) { return -1; }
    int64_t step = s->rank == 0 ? tn__step_newest(s->folder, operation) : -1;
    bool found = tn__agree(s->world, NULL, operation) == TN_OK &&
                 tn__broadcast_values(s->world, &step, 1, TN_I64, 0) == TN_OK;
    return found ? step : -1;
}

tn_status tn_saver_clear(tn_saver *s) {
    if (!begin_load(s, "saver_clear")) { return tn_error(); }
    s->operation = "saver_clear";
    if (s->rank == 0) { tn__saver_clear_steps(s); }
    return tn__agree(s->world, NULL, s->operation);
}

/* ---- One file, which only rank 0 need see ---------------------------------------------------- */

tn_status tn_dist_save(tn_group *g, const tn_checkpoint *c, const char *path) {
    static const char operation[] = "dist_save";
    if (!tn__agree_begin(g, operation)) { return tn_error(); }
    tn__warn_ranks_differ(g, c, operation);
    if (tn_group_rank(g) == 0) { tn_checkpoint_save(c, path); }
    return tn__agree(g, NULL, operation);
}

tn_status tn_dist_load(tn_group *g, tn_checkpoint *c, const char *path) {
    static const char operation[] = "dist_load";
    size_t bytes = 0;
    if (!tn__agree_begin(g, operation)) { return tn_error(); }
    char *mine = tn_group_rank(g) == 0 ? tn__checkpoint_file(path, &bytes, operation) : NULL;
    void *data = mine;
    tn_status status = share_found(g, &data, &bytes, operation);
    if (status == TN_OK) {
        loading l = {.world = g, .operation = operation};
        tn__agree_begin(g, operation);
        l.file = tn__safetensors_over(path, data, bytes);
        status = finish_load(&l, c);
    }
    if (data != mine) { tn_bytes_free(data); }
    free(mine);
    return status;
}
