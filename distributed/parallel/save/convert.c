/* A checkpoint in parts as one file (convert.h). */
#include "distributed/parallel/save/convert.h"

#include "core/error.h"
#include "core/memory.h"
#include "distributed/on_cpu.h"
#include "nn/layout.h"
#include "distributed/parallel/save/saver.h"
#include "tern/sys/tensor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char operation[] = "convert", model_prefix[] = "model.";

typedef struct wanted {
    tn__index *index;
    const tn__index_tensor *tensor;
} wanted;

/* Called when its place in the file has come. */
static tn_tensor *make_whole(const char *name, void *user) {
    const wanted *w = user;
    const tn_layout all = tn__layout_whole(w->tensor->whole);
    tn_tensor *t = tn_empty_on(tn_cpu(), w->tensor->whole, w->tensor->dtype);
    if (!tn_is_inert(t) && all.length > 0 &&
        !tn__index_fetch(w->index, w->tensor, &all, tn_data_mut(t), operation)) {
        return tn_inert();
    }
    return t;
}

/* The name that a tensor has in the file; NULL: it is not in it. */
static const char *name_in_file(const char *name, bool weights) {
    const size_t prefix = sizeof(model_prefix) - 1;
    bool of_model = strncmp(name, model_prefix, prefix) == 0;
    return !weights ? name : of_model ? name + prefix : NULL;
}

static bool add_labels(tn_safetensors_writer *w, const tn__labels *labels, bool weights) {
    bool added = true;
    for (int i = 0; added && i < labels->count; i++) {
        const tn__json *label = labels->at[i];
        if (!weights || strcmp(label->key, "model") == 0) {
            added = tn_safetensors_writer_add_metadata(w, label->key, label->text) == TN_OK;
        }
    }
    return added;
}

/* list[ix->count] is what make_whole gets. */
static bool add_tensors(tn_safetensors_writer *w, tn__index *ix, bool weights, wanted *list) {
    bool added = true;
    for (int i = 0; added && i < ix->count; i++) {
        const tn__index_tensor *t = &ix->tensors[i];
        const char *name = name_in_file(t->name, weights);
        list[i] = (wanted){ix, t};
        added = !name || tn__safetensors_writer_add_late(w, name, t->whole, t->dtype, make_whole,
                                                         &list[i]) == TN_OK;
    }
    return added;
}

static tn_status write_file(tn__index *ix, const char *to, bool weights) {
    wanted *list = tn__calloc((size_t)ix->count, sizeof(*list));
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_status status;
    if (!list) {
        tn__raise(TN_ENOMEM, operation, "no memory for %d tensors", ix->count);
    }
    if (list && w && add_labels(w, ix->labels, weights) && add_tensors(w, ix, weights, list)) {
        status = weights ? tn__safetensors_write(w, to, operation)
                         : tn__safetensors_write_digest(w, to, operation);
    } else {
        tn_safetensors_writer_free(w);
        status = tn_error();
    }
    free(list);
    return status;
}

char *tn__saver_find_step(const char *from) {
    char index[4096];
    bool fits = snprintf(index, sizeof(index), "%s/" TN__INDEX_NAME, from) < (int)sizeof(index);
    if (fits && access(index, F_OK) == 0) {
        return tn__strdup(from);
    }
    if (access(from, F_OK) != 0) {
        tn__raise(TN_EIO, operation, "%s: %s", from, strerror(errno));
        return NULL;
    }
    int64_t step = tn__step_newest(from, operation);
    if (step >= 0) {
        return tn__step_path(from, step, false, NULL, operation);
    }
    tn__raise(TN_EIO, operation, "%s has no committed step of a checkpoint in parts", from);
    return NULL;
}

tn_status tn__saver_convert(const char *from, const char *to, bool weights) {
    TN__ON_CPU;
    size_t bytes;
    char *step = tn__saver_find_step(from);
    char *text = step ? tn__index_text(step, &bytes, operation) : NULL;
    tn__index *ix = text ? tn__index_read(step, text, bytes, operation) : NULL;
    if (ix) {
        tn_status status = write_file(ix, to, weights);
        (void)status; /* pending */
    }
    tn__index_free(ix);
    free(text);
    free(step);
    return tn_error();
}
