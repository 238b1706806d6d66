/* The model of a checkpoint (model.h). */
#include "distributed/parallel/save/model.h"

#include "core/error.h"
#include "distributed/on_cpu.h"
#include "distributed/parallel/save/convert.h"
#include "distributed/parallel/save/saver.h"
#include "models/weights/described.h"
#include "nn/layout.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char operation[] = "convert";

enum { NAME_ROOM = 512 };

/* ---- Checkpoints ----------------------------------------------------------------------------- */

static const tn__index_tensor *find_parameter(const tn__index *ix, const char *path) {
    char name[NAME_ROOM];
    snprintf(name, sizeof(name), "model.%s", path);
    return tn__index_find(ix, name);
}

static bool index_shape(const char *parameter, tn_dims *dims, void *user) {
    const tn__index_tensor *t = find_parameter(user, parameter);
    *dims = t ? t->whole : TN_DIMS();
    return t != NULL;
}

static int count_parameters(const tn__index *ix, const tn__index_tensor **first) {
    int count = 0;
    for (int i = 0; i < ix->count; i++) {
        if (strncmp(ix->tensors[i].name, "model.", 6) == 0) {
            *first = count++ ? *first : &ix->tensors[i];
        }
    }
    return count;
}

/* Gives one parameter its elements. */
typedef struct filler {
    tn__index *index;
    int count;
} filler;

static bool fill_entry(const tn_entry *entry, void *user) {
    TN_SCOPE;
    TN_NO_GRAD;
    filler *f = user;
    tn_tensor *t = entry->stored;
    const tn__index_tensor *from = find_parameter(f->index, entry->path);
    if (!from || !tn_dims_equal(from->whole, tn_shape(t))) {
        tn__raise(from ? TN_ESHAPE : TN_EMISMATCH, operation,
                  "%s: \"model.%s\" is %s but must be %s", f->index->path, entry->path,
                  from ? tn__dims_text(from->whole) : "missing", tn_shape_text(t));
        return false;
    }
    tn_layout all = tn__layout_whole(from->whole);
    tn_tensor *read = tn_empty_on(tn_cpu(), from->whole, from->dtype);
    if (tn_is_inert(read) || tn_storage_refill(t) != TN_OK ||
        !tn__index_fetch(f->index, from, &all, tn_data_mut(read), operation)) {
        return false;
    }
    tn_copy_(tn_detach(t), tn_cast(read, tn_dtype_of(t)));
    f->count++;
    return !tn__pending();
}

static tn_module *model_of_index(tn__index *ix, tn_lm_load_options options) {
    const tn__index_tensor *first = NULL;
    filler f = {.index = ix};
    int count = count_parameters(ix, &first);
    const char *text = tn__labels_get(ix->labels, "model");
    if (!text || !first) {
        tn__raise(TN_EFORMAT, operation, "%s does not tell of a model", ix->path);
        return NULL;
    }
    tn__described d = {.path = ix->path,
                       .operation = operation,
                       .text = text,
                       .tensors = count,
                       .shape = index_shape,
                       .user = ix};
    tn_module *m = tn__described_model(&d, options.as_stored ? first->dtype : options.dtype);
    if (m) {
        tn_module_each(m, (tn_walk){.buffers = true}, fill_entry, &f);
    }
    if (m && !tn__pending() && f.count != count) {
        tn__raise(TN_EMISMATCH, operation, "%s has %d parameters, but its model %d", ix->path,
                  count, f.count);
    }
    if (m && tn__pending()) {
        tn_lm_free(m);
        return NULL;
    }
    return m;
}

/* ---- Files of tn_save ------------------------------------------------------------------------ */

static bool file_shape(const char *parameter, tn_dims *dims, void *user) {
    bool has = tn_safetensors_has(user, parameter);
    *dims = has ? tn_safetensors_shape(user, parameter) : TN_DIMS();
    return has;
}

static tn_module *model_of_file(tn_safetensors *f, const char *from, tn_lm_load_options options) {
    tn__described d = {.path = from,
                       .operation = operation,
                       .text = tn_safetensors_metadata(f, "model"),
                       .tensors = tn_safetensors_count(f),
                       .shape = file_shape,
                       .user = f};
    const char *first = tn_safetensors_name(f, 0);
    tn_dtype dtype = options.dtype;
    if (options.as_stored &&
        (!first || !tn__safetensors_find_dtype(tn_safetensors_dtype(f, first), &dtype))) {
        tn__raise(TN_EFORMAT, operation, "%s has no weights in a dtype that we have", from);
        return NULL;
    }
    tn_module *m = tn__described_model(&d, dtype);
    if (m && tn_load(m, from) != TN_OK) {
        tn_lm_free(m);
        return NULL;
    }
    return m;
}

/* ---- Either ---------------------------------------------------------------------------------- */

static tn_module *model_of_step(const char *from, tn_lm_load_options options) {
    size_t bytes;
    char *step = tn__saver_find_step(from);
    char *text = step ? tn__index_text(step, &bytes, operation) : NULL;
    tn__index *ix = text ? tn__index_read(step, text, bytes, operation) : NULL;
    tn_module *m = ix ? model_of_index(ix, options) : NULL;
    tn__index_free(ix);
    free(text);
    free(step);
    return m;
}

tn_module *tn__saver_model(const char *from, tn_lm_load_options options) {
    TN__ON_CPU;
    struct stat about;
    if (stat(from, &about) == 0 && S_ISDIR(about.st_mode)) {
        return model_of_step(from, options);
    }
    tn_safetensors *f = tn_safetensors_open(from);
    tn_module *m = NULL;
    if (f && tn__safetensors_digest(f)) {
        tn__index *ix = tn__index_of_file(from, operation);
        m = ix ? model_of_index(ix, options) : NULL;
        tn__index_free(ix);
    } else if (f) {
        m = model_of_file(f, from, options);
    }
    tn_safetensors_close(f);
    return m;
}
