/* Checkpoints: one safetensors file with everything that a run needs to continue. Tensors are
 * model.NAME, optim.NAME and average.NAME (io/state.c), the rest is metadata
 * (io/checkpoint/metadata.c). Loading reads and checks everything into a plan, then applies it.
 */
#include "io/checkpoint/checkpoint.h"

#include "core/error.h"
#include "core/reader.h"
#include "io/safetensors.h"

#include <stdlib.h>

/* ---- Saving ---------------------------------------------------------------------------------- */

static bool add_label(void *user, const char *key, const char *value) {
    return tn_safetensors_writer_add_metadata(user, key, value) == TN_OK;
}

tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path) {
    tn__state s = {.operation = "checkpoint_save"};
    if (tn__pending() || !tn__checkpoint_sound(c, s.operation)) { return tn_error(); }
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    if (w && tn__state_add(&s, c) && tn__state_write(&s, w)) {
        tn__metadata_write(c, s.operation, add_label, w);
    }
    tn_status status = tn__safetensors_write(w, path, true, s.operation);
    tn__state_free(&s);
    return status;
}

/* ---- Loading --------------------------------------------------------------------------------- */

bool tn__checkpoint_plan_make(tn__checkpoint_plan *p, tn_checkpoint *c, const tn__source *from,
                              bool parts, bool first, const char *operation) {
    p->state = (tn__state){.operation = operation, .loads = true, .parts = parts};
    if (!c) { return tn__fail(TN_EVALUE, operation, "the checkpoint is NULL"); }
    return tn__metadata_read(&p->metadata, c, from->metadata, from->path, operation, first) &&
           tn__state_add(&p->state, c) && tn__state_match(&p->state, from, false);
}

void tn__checkpoint_apply(tn__checkpoint_plan *p) {
    tn__state_apply(&p->state);
    tn__metadata_apply(&p->metadata);
}

char *tn__checkpoint_file(const char *path, size_t *bytes, const char *operation) {
    tn_safetensors *f = tn_safetensors_open(path);
    tn_safetensors_close(f);
    return f ? tn__read_whole(path, bytes, operation) : NULL;
}

/* The file is read once, as a whole: what is applied is what the digest was checked on, even if the
 * file changes in between. */
tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path) {
    static const char operation[] = "checkpoint_load";
    if (!c) { return tn__raise(TN_EVALUE, operation, "the checkpoint is NULL"); }
    size_t bytes;
    tn__checkpoint_plan p = {0};
    char *data = tn__checkpoint_file(path, &bytes, operation);
    tn_safetensors *f = data ? tn__safetensors_over(path, data, bytes) : NULL;
    if (f && tn__safetensors_check_digest(f, operation)) {
        const tn__source from = tn__source_of_file(f);
        if (tn__checkpoint_plan_make(&p, c, &from, false, true, operation) &&
            (c->partial || tn__state_has_all(&p.state, &from))) {
            tn__checkpoint_apply(&p);
        }
    }
    tn__state_free(&p.state);
    tn_safetensors_close(f);
    free(data);
    return tn_error();
}
