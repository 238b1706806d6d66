/* Whole models from Hugging Face folders and into them: what programs call (models.h). */
#include "models/weights/hf.h"

#include "core/error.h"
#include "core/memory.h"
#include "core/plain_text.h"
#include "io/module.h"
#include "nn/describe.h"
#include "nn/module.h"
#include "tensor/recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The family that the config names; NULL after raising. */
static const tn__lm_family *family_of_config(const tn__hf_config *c) {
    const char *type;
    if (!tn__hf_config_text(c, "model_type", "", &type)) { return NULL; }
    const tn__lm_family *family = tn__lm_family_named(type);
    if (!family) {
        char known[128];
        tn__hf_config_bad(c, "model_type", tn__lm_family_types(known, sizeof(known)));
    }
    return tn__pending() ? NULL : family;
}

/* Refuses what no family here supports. False after raising. */
static bool check_config(const tn__hf_config *c) {
    return tn__hf_config_must(c, "is_causal", true) &&
           (!tn__hf_config_has(c, "per_layer_config") ||
            tn__hf_config_bad(c, "per_layer_config", "missing: all layers are alike here")) &&
           (!tn__hf_config_has(c, "quantization_config") ||
            tn__hf_config_bad(c, "quantization_config", "missing: weights are read as they are"));
}

/* ---- Loading --------------------------------------------------------------------------------- */

tn_lm_load_options tn_lm_load_defaults(void) {
    return (tn_lm_load_options){.as_stored = true, .dtype = TN_F32, .from_defaults = true};
}

/* An open folder: its config, its weights and their family. */
struct tn__hf_loading {
    const tn__lm_family *family;
    tn__hf_config config;
    tn__hf_plan plan;
};
typedef tn__hf_loading loading;

static void loading_close(loading *s) {
    tn__hf_plan_free(&s->plan);
    tn__hf_config_free(&s->config);
}

/* `wanted`: the only family accepted, or NULL. False after raising, with nothing to close. */
static bool loading_open(loading *s, const char *folder, bool mapped, const tn__lm_family *wanted,
                         const char *operation) {
    *s = (loading){.family = NULL};
    char *at = tn__pending() ? NULL : tn__hf_model_folder(folder, operation);
    bool opened = at && tn__hf_config_open(&s->config, at, "config.json", operation);
    s->family = opened ? family_of_config(&s->config) : NULL;
    if (s->family && check_config(&s->config) && wanted && s->family != wanted) {
        tn__raise(TN_EMISMATCH, operation, "%s is of a %s but must be of a %s", s->config.path,
                  s->family->kind, wanted->kind);
    }
    if (opened &&
        (tn__pending() || !tn__hf_weights_open(&s->plan.weights, at, mapped, operation))) {
        tn__hf_config_free(&s->config);
        opened = false;
    }
    free(at);
    return opened;
}

/* m, which its owner frees; after a failure it is freed, and NULL. */
static tn_module *keep_model(tn_module *m, bool made) {
    tn__layer_on_heap(m);
    if (made) { return m; }
    tn_module_free(m);
    return NULL;
}

/* Whether weights are bytes with a scale for each row (tn_quantize), as plain ones can be. */
static bool are_bytes(const tn__hf_weights *w) {
    bool found = false;
    for (int i = 0; w->plain && !found && i < w->count; i++) {
        found = strcmp(tn_safetensors_dtype(w->tensors[i].file, w->tensors[i].name), "I8") == 0;
    }
    return found;
}

/* The dtype of the token embedding in the files or, where that is bytes, of the last norm. False
 * after raising. */
static bool stored_dtype(const loading *s, tn_dtype *dtype) {
    const tn__hf_form *form = s->family->hf;
    const tn__hf_weights *w = &s->plan.weights;
    const char *path = are_bytes(w) ? form->norm : form->tokens;
    char name[128];
    snprintf(name, sizeof(name), "%s%s", form->prefix, path);
    const tn_safetensors *f = tn__hf_weights_find(w, name);
    const char *found = f ? name : path;
    f = f ? f : tn__hf_weights_find(w, found);
    const char *written = f ? tn_safetensors_dtype(f, found) : "missing";
    if (!f || !tn__safetensors_find_dtype(written, dtype) || !tn_dtype_is_float(*dtype)) {
        tn__raise(f ? TN_EUNSUPPORTED : TN_EMISMATCH, w->operation,
                  "%s: \"%s\" is %s, which no model computes in", w->path, found,
                  tn__show(written).text);
    }
    return !tn__pending();
}

/* The config's model, without elements. */
static bool build_deferred(const loading *s, void *m, tn_dtype dtype) {
    TN_DEFER_INIT;
    return s->family->hf->init(m, &s->config, dtype, s->plan.weights.count);
}

static bool fill_zeros(const tn_entry *entry, void *user) {
    return !tn_is_inert(tn_fill_(*entry->field, 0.0));
}

/* Elements that are not there yet will be zeros, which are made faster than random numbers. False
 * after raising. */
static bool make_zeros(void *m) {
    TN_SCOPE;
    TN_NO_GRAD;
    TN_DEFER_INIT;
    tn_module_each(m, (tn_walk){0}, fill_zeros, NULL);
    return !tn__pending();
}

/* Fills m, zeros for a model of its family. False after raising. */
static bool load_model(loading *s, tn_module *m, tn_lm_load_options options) {
    tn_dtype dtype = options.dtype;
    if ((options.as_stored && !stored_dtype(s, &dtype)) || !build_deferred(s, m, dtype)) {
        return false;
    }
    bool bytes = are_bytes(&s->plan.weights), waits = tn__deferring && !bytes;
    if (waits) { return make_zeros(m); }
    if (bytes && !(make_zeros(m) && tn_quantize(m) == TN_OK)) { return false; }
    if (!tn__hf_plan_make(&s->plan, s->family->hf, m)) { return false; }
    tn__hf_plan_apply(&s->plan);
    return true;
}

tn_module *tn_lm_load(const char *folder, tn_lm_load_options options) {
    loading s;
    if (!tn__options_made(options.from_defaults, "lm_load", "tn_lm_load") ||
        !loading_open(&s, folder, options.mmap, NULL, "lm_load")) {
        return NULL;
    }
    tn_module *m = tn__layer_alloc(s.family->bytes);
    bool loaded = m && load_model(&s, m, options);
    loading_close(&s);
    return keep_model(m, loaded);
}

tn_module *tn_lm_new(const char *folder, double dropout) {
    enum { MOST_TENSORS = 1 << 16 }; /* no weights are here to say how many there are */
    tn__hf_config c;
    char *at = tn__pending() ? NULL : tn__hf_model_folder(folder, "lm_new");
    bool opened = at && tn__hf_config_open(&c, at, "config.json", "lm_new");
    free(at);
    if (!opened) { return NULL; }
    c.dropout = dropout;
    const tn__lm_family *family = family_of_config(&c);
    bool fits = family && check_config(&c);
    if (fits && dropout != 0 && !family->hf->dropout) {
        fits = tn__fail(TN_EUNSUPPORTED, "lm_new", "dropout %g, but a %s has none: must be 0",
                        dropout, family->kind);
    }
    tn_module *m = fits ? tn__layer_alloc(family->bytes) : NULL;
    m = keep_model(m, m && family->hf->init(m, &c, TN_F32, MOST_TENSORS));
    tn__hf_config_free(&c);
    return m;
}

/* ---- Into a model that is there -------------------------------------------------------------- */

/* Whether the weights compute in m what they do in the config's model. That one is built for
 * comparison: without elements it takes no memory and draws no random numbers. */
static bool model_fits(const loading *s, void *m) {
    tn_generator before = *tn_default_generator();
    tn_module *theirs = tn__calloc(1, s->family->bytes);
    char *text = NULL;
    if (!theirs) {
        tn__raise(TN_ENOMEM, s->config.operation, "no memory for a %s", s->family->kind);
    } else if (build_deferred(s, theirs, TN_F32)) {
        text = tn__module_describe(theirs, s->config.operation);
        tn_module_finish(theirs);
    }
    free(theirs);
    *tn_default_generator() = before;
    bool fits = text && tn__module_fits(m, text, s->config.path, s->config.operation);
    free(text);
    return fits;
}

tn__hf_loading *tn__hf_loading_new(void *m, const char *folder, const char *operation) {
    const tn__lm_family *family = tn__lm_family_of(m, operation);
    tn__hf_loading *l = family ? tn__calloc_for(1, sizeof(*l), operation) : NULL;
    if (!l || !loading_open(l, folder, false, family, operation)) {
        free(l);
        return NULL;
    }
    if (!model_fits(l, m) || !tn__hf_plan_make(&l->plan, family->hf, m)) {
        tn__hf_loading_free(l);
        return NULL;
    }
    return l;
}

void tn__hf_loading_apply(tn__hf_loading *l) {
    tn__hf_plan_apply(&l->plan);
}

void tn__hf_loading_free(tn__hf_loading *l) {
    if (l) {
        loading_close(l);
        free(l);
    }
}

tn_status tn_lm_load_weights(void *m, const char *folder) {
    tn__hf_loading *l = tn__hf_loading_new(m, folder, "lm_load_weights");
    if (l) { tn__hf_loading_apply(l); }
    tn__hf_loading_free(l);
    return tn_error();
}

/* ---- Saving ---------------------------------------------------------------------------------- */

tn_lm_save_options tn_lm_save_defaults(void) {
    return (tn_lm_save_options){.max_part_bytes = 5000000000, .from_defaults = true};
}

tn_status tn_lm_save_with(void *m, const char *folder, tn_lm_save_options options) {
    if (!tn__options_made(options.from_defaults, "lm_save", "tn_lm_save")) { return tn_error(); }
    const tn__lm_family *family = tn__lm_family_of(m, "lm_save");
    return family ? tn__hf_save(family, m, folder, options, NULL, NULL, "lm_save") : tn_error();
}

tn_status tn_lm_save(void *m, const char *folder) {
    return tn_lm_save_with(m, folder, tn_lm_save_defaults());
}
