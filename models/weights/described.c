/* A language model from a checkpoint's description of it (described.h). The text is untrusted, like
 * any file. */
#include "models/weights/described.h"

#include "core/error.h"
#include "core/plain_text.h"
#include "nn/describe.h"
#include "nn/module.h"
#include "tensor/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The module in the description, as messages call it: "h.0.attn", "the model". */
static const char *name_module(const char *module) {
    return strcmp(module, ".") == 0 ? "the model" : module;
}

static bool read_option(const tn__described *d, const char *module, const tn__json *options,
                        const tn_field *f, void *at) {
    const tn__json *value = options ? tn__json_get(options, f->name) : NULL;
    if (!value && f->optional) { return true; }
    if (!value) {
        tn__raise(TN_EFORMAT, d->operation, "%s: its description does not say what %s of %s is",
                  d->path, f->name, name_module(module));
    } else if (!value->text || !tn__field_read(f, at, value->text)) {
        char range[128] = "";
        tn__field_range(f, range, sizeof(range));
        tn__raise(TN_EFORMAT, d->operation, "%s: %s of %s is \"%s\" in its description (%s)",
                  d->path, f->name, name_module(module),
                  tn__show(value->text ? value->text : "{}").text, range);
    }
    return !tn__pending();
}

bool tn__described_read(const tn__described *d, const char *module, const tn_field *fields,
                        void *at) {
    const tn__json *m = tn__json_get(d->description.values, module);
    const tn__json *options = m ? tn__json_get(m, "options") : NULL;
    const tn__json *training = m ? tn__json_get(m, "training") : NULL;
    for (const tn_field *f = fields; f->name; f++) {
        if (!read_option(d, module, f->training ? training : options, f, at)) { return false; }
    }
    return true;
}

bool tn__described_layers(const tn__described *d, int64_t layers) {
    if (layers > d->tensors) {
        tn__raise(TN_EFORMAT, d->operation,
                  "%s: its description has %lld layers, which is more than its %d tensors", d->path,
                  (long long)layers, d->tensors);
    }
    return layers <= d->tensors;
}

static tn_module *model_of(const tn__described *d, tn_dtype dtype) {
    const tn__json *root = tn__json_get(d->description.values, ".");
    const tn__json *kind = root ? tn__json_get(root, "kind") : NULL;
    const char *name = kind && kind->text ? kind->text : "";
    const tn__lm_family *family = tn__lm_family_kind(name);
    if (!family) {
        tn__raise(TN_EUNSUPPORTED, d->operation, "%s is of a \"%s\", which is not a language model",
                  d->path, tn__show(name).text);
        return NULL;
    }
    TN_DEFER_INIT;
    tn_module *m = tn__layer_alloc(family->bytes);
    bool made = m && family->described(m, d, dtype) && !tn__pending();
    tn__layer_on_heap(m);
    if (made) { return m; }
    tn_module_free(m);
    return NULL;
}

tn_module *tn__described_model(const tn__described *d, tn_dtype dtype) {
    tn__described read = *d;
    if (!tn__description_read(&read.description, d->text ? d->text : "", d->path, d->operation)) {
        return NULL;
    }
    tn_module *m = model_of(&read, dtype);
    tn__json_free(&read.description);
    return m;
}
