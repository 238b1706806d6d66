/* Checkpoints: one safetensors file with everything that a run needs to go on. Tensors are
 * model.NAME, optim.NAME and average.NAME (io/state.c), the rest is metadata (io/metadata.c).
 * Loading reads and checks everything into a plan, then applies it.
 */
#include "io/checkpoint.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/reader.h"
#include "io/metadata.h"
#include "io/safetensors.h"
#include "io/state.h"

#include <stdlib.h>

/* ---- Saving ---------------------------------------------------------------------------------- */

static bool add_label(void *user, const char *key, const char *value) {
    return tn_safetensors_writer_add_metadata(user, key, value) == TN_OK;
}

tn_status tn_checkpoint_save(const tn_checkpoint *c, const char *path) {
    tn__state s = {.operation = "checkpoint_save"};
    if (!tn__checkpoint_sound(c, s.operation)) {
        return tn_error();
    }
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_status status;
    if (w && tn__state_add(&s, c) && tn__state_write(&s, w) &&
        tn__metadata_write(c, s.operation, add_label, w)) {
        status = tn__safetensors_write_digest(w, path, s.operation);
    } else {
        tn_safetensors_writer_free(w);
        status = tn_error();
    }
    tn__state_free(&s);
    return status;
}

/* ---- Loading --------------------------------------------------------------------------------- */

struct tn__checkpoint_plan {
    tn_safetensors *file;
    tn__metadata_plan metadata;
    tn__state state;
};

/* Changes nothing but *p. */
static bool make_plan(tn__checkpoint_plan *p, tn_checkpoint *c, bool first) {
    const char *operation = p->state.operation, *path = tn__safetensors_path(p->file);
    return tn__safetensors_check_digest(p->file, operation) == TN_OK &&
           tn__metadata_read(&p->metadata, c, tn__safetensors_labels(p->file), path, operation,
                             first) &&
           tn__state_add(&p->state, c) && tn__state_match(&p->state, p->file, false, c->partial);
}

void tn__checkpoint_apply(tn__checkpoint_plan *p) {
    tn__state_apply(&p->state);
    tn__metadata_apply(&p->metadata);
}

void tn__checkpoint_plan_free(tn__checkpoint_plan *p) {
    if (p) {
        tn__state_free(&p->state);
        tn_safetensors_close(p->file);
        free(p);
    }
}

/* Takes f; NULL: there is none, which was raised. */
static tn__checkpoint_plan *plan_of(tn_checkpoint *c, tn_safetensors *f, bool first) {
    tn__checkpoint_plan *p = f ? tn__calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        tn__raise(TN_ENOMEM, "checkpoint_load", "no memory"); /* if there was no error before */
        tn_safetensors_close(f);
        return NULL;
    }
    p->file = f;
    p->state.operation = "checkpoint_load";
    p->state.loads = true;
    if (!make_plan(p, c, first)) {
        tn__checkpoint_plan_free(p);
        return NULL;
    }
    return p;
}

tn__checkpoint_plan *tn__checkpoint_read(tn_checkpoint *c, const char *path, void *data,
                                         size_t bytes, bool first) {
    if (!c) {
        tn__raise(TN_EVALUE, "checkpoint_load", "the checkpoint is NULL");
        return NULL;
    }
    return plan_of(c, tn__safetensors_over(path, data, bytes), first);
}

const char *tn__checkpoint_digest(const tn__checkpoint_plan *p) {
    return tn__safetensors_digest(p->file);
}

char *tn__checkpoint_file(const char *path, size_t *bytes, const char *operation) {
    tn_safetensors *f = tn_safetensors_open(path);
    tn_safetensors_close(f);
    return f ? tn__read_whole(path, bytes, operation) : NULL;
}

/* Read once and as a whole: what is applied is what the digest was right for, whatever happens to
 * the file meanwhile. */
tn_status tn_checkpoint_load(tn_checkpoint *c, const char *path) {
    if (!c) {
        return tn__raise(TN_EVALUE, "checkpoint_load", "the checkpoint is NULL");
    }
    size_t bytes;
    char *data = tn__checkpoint_file(path, &bytes, "checkpoint_load");
    tn__checkpoint_plan *p = data ? tn__checkpoint_read(c, path, data, bytes, true) : NULL;
    if (p) {
        tn__checkpoint_apply(p);
    }
    tn__checkpoint_plan_free(p);
    free(data);
    return tn_error();
}
