/* function: y = f(x), for what has no parameters. */
#include "nn/module.h"

#include <string.h>

static tn_tensor *function_forward(tn_module *self, tn_tensor *x) {
    return ((tn_function *)self)->f(x);
}

void tn_function_init(tn_function *m, const char *kind, tn_tensor *(*f)(tn_tensor *x)) {
    if (!tn__layer_begin(m, sizeof(*m), kind ? kind : "function", function_forward, NULL)) {
        return;
    }
    m->f = f;
    if (!f) {
        tn__layer_refuse(m, TN_EVALUE, "the function is NULL");
    }
}

/* TN_FN(tn_relu) gives the kind "tn_relu", which is "relu" to those who read it. */
tn_function *tn_function_new(const char *kind, tn_tensor *(*f)(tn_tensor *x)) {
    tn_function *m = tn__layer_alloc(sizeof(*m));
    tn_function_init(m, kind && strncmp(kind, "tn_", 3) == 0 ? kind + 3 : kind, f);
    return tn__layer_on_heap(m);
}
