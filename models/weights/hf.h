/* How a family of models is kept in Hugging Face folders: what its config.json says, and which
 * names its weights have there.
 *
 * Names are the module's own paths, after the family's prefix ("transformer.h.0.ln_1.weight") or,
 * in files of the model without its head, without. */
#ifndef TERN_MODELS_WEIGHTS_HF_H
#define TERN_MODELS_WEIGHTS_HF_H

#include "text/json_write.h"
#include "io/state.h"
#include "models/weights/hf_config.h"
#include "models/weights/hf_weights.h"
#include "models/language.h"

struct tn__hf_form {
    const char *prefix;
    const char *tokens; /* path of the token embedding, which every file has */
    const char *norm;   /* of the last norm's weight */

    /* Makes a model of the config's options, with parameters of this dtype; `tensors` is how many
     * the weights have, and a model that would need more is refused. False after raising; m is then
     * finished, or has not begun. */
    bool (*init)(void *m, const tn__hf_config *c, tn_dtype dtype, int tensors);

    bool dropout; /* whether `init` uses the config's `dropout` */

    bool (*transposed)(const char *path); /* whether files have it as (in, out) */
    bool (*biased)(const char *path);     /* a weight beside which files have a bias; or NULL */
    bool (*ignored)(const char *name);    /* not a weight: what older files have beside them */

    /* The members of config.json that say what m computes, each with a comma after it; `plain`:
     * with weights as m has them. False after raising TN_EUNSUPPORTED: transformers has no such
     * model. */
    bool (*put_config)(tn__buffer *j, void *m, bool plain, const char *operation);
};

/* ---- Loading: models/weights/hf_load.c ------------------------------------------------------- */

/* Weights of a folder for a module: everything is checked when it is made, and nothing changes
 * before it is applied, except that parameters without elements (TN_DEFER_INIT) get them. */
typedef struct tn__hf_plan {
    const tn__hf_form *form;
    tn_module *model;
    tn__hf_weights weights;
    tn__state state; /* what this rank has of m, under its paths */
    bool prefixed;
} tn__hf_plan;

/* False after raising. tn__hf_plan_free in any case. */
bool tn__hf_plan_make(tn__hf_plan *p, const tn__hf_form *form, void *m);
void tn__hf_plan_apply(tn__hf_plan *p);
void tn__hf_plan_free(tn__hf_plan *p);

/* Reads the elements that `layout` names, in their order and the file's dtype, to `to`. With
 * `transposed` the layout is that of a matrix whose transpose is in the file. False after raising.
 */
TN_API bool tn__hf_read(const tn_safetensors *f, const char *name, const tn_layout *layout,
                        bool transposed, void *to);

/* ---- Whole models: models/weights/hf.c ------------------------------------------------------- */

/* Weights for an existing model, in two steps: everything that can fail, then the change. NULL
 * after raising. */
typedef struct tn__hf_loading tn__hf_loading;
tn__hf_loading *tn__hf_loading_new(void *m, const char *folder, const char *operation);
void tn__hf_loading_apply(tn__hf_loading *l);
void tn__hf_loading_free(tn__hf_loading *l); /* NULL is fine */

/* ---- Saving: models/weights/hf_save.c -------------------------------------------------------- */

/* The whole of the parameter at `path`, on any device, when its turn in a file comes. */
typedef tn_tensor *tn__hf_source(const char *path, void *user);

/* Writes the folder from m's entries and the tensors from `source`. */
tn_status tn__hf_save(const tn__lm_family *family, void *m, const char *folder,
                      tn_lm_save_options options, tn__hf_source *source, void *user,
                      const char *operation);

/* ---- Names change: models/weights/hf_place.c ------------------------------------------------- */

#define TN__HF_STAGING "weights.tmp" /* a folder in the folder */

/* Whether the folder's model is that of its TN__HF_STAGING, whole, because a save was
 * interrupted. */
bool tn__hf_is_staged(const char *folder);

/* Whether the folder has a model, wherever in it. */
TN_API bool tn__hf_has_model(const char *folder);

/* Where the folder's model is: there, or in its TN__HF_STAGING. The caller frees; NULL after
 * raising. */
char *tn__hf_model_folder(const char *folder, const char *operation);

/* Whether a save into a folder replaces or removes a file of this name there. */
TN_API bool tn__hf_replaces(const char *name);

/* Makes the whole model in TN__HF_STAGING that of the folder. False after raising: the folder's
 * model is still the old one, or already the new one (tn__hf_is_staged). */
bool tn__hf_place(const char *folder, const char *operation);

/* Finishes an interrupted save, if tn__hf_is_staged. False after raising. */
bool tn__hf_finish(const char *folder, const char *operation);

/* Copies the tokenizer's files that folder `from` has into `to`. False after raising. */
bool tn__hf_copy_words(const char *from, const char *to, const char *operation);

#endif
