/* A module's weights as a safetensors file, under the names they have in the module. */
#include "core/error.h"
#include "io/state.h"

tn_status tn_save(void *m, const char *path) {
    tn__state s = {.operation = "save"};
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_status status;
    if (tn__state_add_module(&s, m, "") && tn__state_write(&s, w)) {
        status = tn_safetensors_writer_save(w, path);
    } else {
        tn_safetensors_writer_free(w);
        status = tn_error();
    }
    tn__state_free(&s);
    return status;
}

tn_status tn_load(void *m, const char *path) {
    tn__state s = {.operation = "load"};
    tn_safetensors *f = tn_safetensors_open(path);
    if (f && tn__state_add_module(&s, m, "") && tn__state_match(&s, f, true, false)) {
        tn__state_apply(&s);
    }
    tn__state_free(&s);
    tn_safetensors_close(f);
    return tn_error();
}
