/* Checkpoints as other files and as models (convert.h). */
#include "distributed/parallel/save/convert.h"

#include "core/error.h"
#include "core/folder.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/saver.h"
#include "models/weights/described.h"
#include "nn/layout.h"
#include "tensor/tensor.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char operation[] = "convert", model_prefix[] = "model.";
enum { PREFIX = sizeof(model_prefix) - 1 };

char *tn__saver_find_step(const char *from) {
    if (tn__folder_has(from, TN__INDEX_NAME)) { return tn__strdup_for(from, operation); }
    if (access(from, F_OK) != 0) {
        return tn__fail_null(TN_EIO, operation, "%s: %s", from, strerror(errno));
    }
    int64_t step = tn__step_newest(from, operation);
    if (step >= 0) { return tn__step_path(from, step, false, NULL, operation); }
    return tn__fail_null(TN_EIO, operation, "%s has no committed step of a checkpoint in parts",
                         from);
}

static tn__index *open_step(const char *from) {
    size_t bytes;
    char *step = tn__saver_find_step(from);
    char *text = step ? tn__index_text(step, &bytes, operation) : NULL;
    tn__index *ix = text ? tn__index_read(step, text, bytes, operation) : NULL;
    free(text);
    free(step);
    return ix;
}

/* ---- As one file ----------------------------------------------------------------------------- */

/* Called when the tensor's turn in the file comes. */
static tn_tensor *make_whole(const char *name, void *user) {
    const tn__index_tensor *t = user;
    const tn_layout all = tn__layout_whole(t->whole);
    tn_tensor *whole = tn_empty_on(tn_cpu(), t->whole, t->dtype);
    bool made =
        !tn_is_inert(whole) && (!all.length || tn__index_fetch(t, &all, tn_data_mut(whole)));
    return made ? whole : tn_inert();
}

/* All of a step, or its model's weights, without the prefix in their names. NULL after raising. */
static tn_safetensors_writer *plan_file(tn__index *ix, bool weights) {
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    const tn__json *label = tn__json_first(ix->metadata);
    for (uint32_t i = 0; w && i < ix->metadata->count; i++, label = tn__json_next(label)) {
        bool ours = strcmp(label->key, "digest") == 0; /* the file gets its own */
        if (weights ? strcmp(label->key, "model") == 0 : !ours) {
            tn_safetensors_writer_add_metadata(w, label->key, label->text);
        }
    }
    for (int i = 0; w && i < ix->count; i++) {
        tn__index_tensor *t = &ix->tensors[i];
        if (!weights || strncmp(t->name, model_prefix, PREFIX) == 0) {
            tn__safetensors_writer_add_late(w, weights ? t->name + PREFIX : t->name, t->whole,
                                            t->dtype, make_whole, t);
        }
    }
    return w;
}

tn_status tn__saver_convert(const char *from, const char *to, bool weights) {
    TN__ON_CPU;
    tn__index *ix = open_step(from);
    tn_safetensors_writer *w = ix ? plan_file(ix, weights) : NULL;
    tn_status status = tn__safetensors_write(w, to, !weights, operation);
    tn__index_free(ix);
    return status;
}

/* ---- As a model ------------------------------------------------------------------------------ */

/* In a checkpoint, unlike a tn_save file, the names of a model's parameters have a prefix. */
static tn_module *model_of(const tn__source *from, const char *prefix, tn_lm_load_options options) {
    tn__described d = {
        .path = from->path, .operation = operation, .text = tn__json_text(from->metadata, "model")};
    const char *first = NULL; /* by name; in a tn_save file the first one */
    for (int i = 0; i < from->count; i++) {
        const char *name = from->name(i, from->user);
        if (strncmp(name, prefix, strlen(prefix)) == 0) {
            first = first && (!*prefix || strcmp(first, name) < 0) ? first : name;
            d.tensors++;
        }
    }
    if (!d.text || !first) {
        return tn__fail_null(TN_EFORMAT, operation, "%s does not describe a model", from->path);
    }
    tn_dims dims;
    if (options.as_stored) { from->find(first, &dims, &options.dtype, from->user); }
    tn_module *m = tn__described_model(&d, options.dtype);
    tn__state s = {.operation = operation, .deferred = true};
    if (m && tn__state_add_module(&s, m, prefix) && tn__state_match(&s, from, true) &&
        s.count != d.tensors) {
        tn__raise(TN_EMISMATCH, operation, "%s has %d parameters, but its model has %d", from->path,
                  d.tensors, s.count);
    }
    tn__state_free(&s);
    if (tn__pending()) {
        tn_module_free(m);
        return NULL;
    }
    return m;
}

tn_module *tn__saver_model(const char *from, tn_lm_load_options options) {
    TN__ON_CPU;
    struct stat about;
    bool folder = stat(from, &about) == 0 && S_ISDIR(about.st_mode);
    tn__index *ix = folder ? open_step(from) : NULL;
    tn_safetensors *f = folder ? NULL : tn_safetensors_open(from);
    tn__source source = {.digest = NULL};
    if (ix) {
        source = tn__index_source(ix);
    } else if (f && (!tn__safetensors_digest(f) || tn__safetensors_check_digest(f, operation))) {
        source = tn__source_of_file(f);
    }
    tn_module *m =
        source.path ? model_of(&source, source.digest ? model_prefix : "", options) : NULL;
    tn__index_free(ix);
    tn_safetensors_close(f);
    return m;
}
