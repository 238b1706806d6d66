/* A module's weights as a safetensors file, under their names in the module, and its description
 * (nn/describe.c). */
#include "io/module.h"

#include "core/error.h"
#include "io/differences.h"
#include "io/safetensors.h"
#include "io/state.h"
#include "nn/describe.h"

#include <stdlib.h>

tn_safetensors_writer *tn__module_writer(void *m, const char *operation) {
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    char *model = w ? tn__module_describe(m, operation) : NULL;
    if (w && (!model || tn_safetensors_writer_add_metadata(w, "model", model) != TN_OK)) {
        tn_safetensors_writer_free(w);
        w = NULL;
    }
    free(model);
    return w;
}

tn_status tn_save(void *m, const char *path) {
    tn__state s = {.operation = "save"};
    tn_safetensors_writer *w = tn__module_writer(m, s.operation);
    if (w && tn__state_add_module(&s, m, "")) { tn__state_write(&s, w); }
    tn_status status = tn_safetensors_writer_save(w, path);
    tn__state_free(&s);
    return status;
}

bool tn__module_fits(void *m, const char *theirs, const char *path, const char *operation) {
    tn__differences d = {.path = path, .operation = operation};
    char *mine = tn__module_describe(m, operation);
    bool fit = mine && tn__differ_models(&d, theirs, mine, true);
    free(mine);
    return fit && tn__differences_end(&d) == TN_OK;
}

/* Files from elsewhere do not describe their model. */
static bool options_fit(void *m, const tn_safetensors *f, const char *operation) {
    const char *theirs = tn_safetensors_metadata(f, "model");
    return !theirs || tn__module_fits(m, theirs, tn__safetensors_path(f), operation);
}

tn_status tn_load(void *m, const char *path) {
    tn__state s = {.operation = "load", .loads = true};
    tn_safetensors *f = tn_safetensors_open(path);
    if (f && tn__state_add_module(&s, m, "")) {
        const tn__source from = tn__source_of_file(f);
        if (tn__state_match(&s, &from, true) && tn__state_has_all(&s, &from) &&
            options_fit(m, f, s.operation)) {
            tn__state_apply(&s);
        }
    }
    tn__state_free(&s);
    tn_safetensors_close(f);
    return tn_error();
}
