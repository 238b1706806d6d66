/* A list of modules, by index or name; and the children of any module in turn. */
#include "nn/call.h"
#include "nn/layer.h"
#include "nn/misuse.h"

tn_tensor *tn__no_forward(tn_module *self, tn_tensor *x) {
    tn__raise(TN_EUNSUPPORTED, self->kind, "it holds tensors, and has no forward");
    return tn_inert();
}

tn_values tn__list_forward(tn_module *self, tn_values in, void *context) {
    tn__raise(TN_EUNSUPPORTED, self->kind,
              "a list of modules has no forward: call what is in it (tn_module_at, "
              "tn_module_child)");
    return tn__no_values();
}

void tn_module_list_init(tn_module_list *m) {
    tn__layer_begin(m, sizeof(*m), "module_list", NULL, tn__list_forward);
}

TN__LAYER_HEAP(tn_module_list, tn_module_list_new(void), tn_module_list_init(m))

int tn_module_children(void *module) {
    const tn_module *m = tn__module_of(module, "module_children");
    return m && m->lists ? m->lists->child_count : 0;
}

tn_module *tn_module_at(void *module, int i) {
    const tn_module *m = tn__module_of(module, "module_at");
    int count = m && m->lists ? m->lists->child_count : 0;
    if (m && (i < 0 || i >= count)) {
        tn__raise(TN_EINDEX, "module_at", "%s has %d children, but none at %d", m->kind, count, i);
    }
    return m && i >= 0 && i < count ? tn__module_in_place(m->lists->children[i], "module_at")
                                    : NULL;
}
