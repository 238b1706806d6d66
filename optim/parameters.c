/* Plain tensors as a module, so that functions of modules accept them: an optimiser over two
 * tensors of the program, for example. */
#include "optim/optim.h"

#include "core/memory.h"
#include "nn/layer.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct parameters {
    tn_module base;
    tn_tensor *list[]; /* fields */
} parameters;

static tn_tensor *parameters_forward(tn_module *self, tn_tensor *x) {
    tn__raise(TN_EUNSUPPORTED, "parameters", "a list of tensors has no forward");
    return tn_inert();
}

void *tn_parameters(tn_tensor *const *list, int n) {
    if (tn__pending() || !list || n < 1) {
        tn__raise(TN_EVALUE, "parameters", "%d tensors%s", n, list ? "" : ", and the list is NULL");
        return NULL;
    }
    parameters *p = tn__layer_alloc(sizeof(*p) + (size_t)n * sizeof(*p->list));
    if (!p) { return NULL; }
    tn_module_init(p, "parameters", parameters_forward);
    for (int i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%d", i);
        tn_module_param(p, name, &p->list[i], list[i]);
    }
    if (tn__pending()) {
        tn_parameters_free(p);
        return NULL;
    }
    return p;
}

bool tn__is_parameters(const void *m) {
    const tn_module *module = m;
    return module && module->forward == parameters_forward;
}

void tn_parameters_free(void *m) {
    if (m && !tn__layer_here(m)) {
        tn__raise(TN_ESTATE, "parameters_free",
                  "the list was freed before (an optimiser frees its own)");
    } else if (tn__is_parameters(m)) {
        tn_module_finish(m);
        tn__layer_free(m);
    }
}
