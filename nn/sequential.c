/* sequential: modules one after the other, named "0", "1", … */
#include "nn/module.h"

#include <stdio.h>

/* What a child gave goes as soon as the next has read it,
 * unless the graph or the next one's result needs it. */
static tn_tensor *sequential_forward(tn_module *self, tn_tensor *x) {
    tn_tensor *input = x;
    for (int i = 0; self->lists && i < self->lists->child_count; i++) {
        tn_module *child = tn__module_in_place(self->lists->children[i], "sequential");
        if (!child) {
            return tn_inert();
        }
        tn_tensor *y = tn_call(child, x);
        if (x != y && x != input) {
            tn_drop(x);
        }
        x = y;
    }
    return x;
}

void tn_sequential_init(tn_sequential *m) {
    tn__layer_begin(m, sizeof(*m), "sequential", sequential_forward, NULL);
}

tn_status tn_sequential_add(tn_sequential *m, void *child) {
    tn_module *module = tn__module_of(m, "sequential_add");
    if (!module) {
        return tn_error();
    }
    char name[16];
    snprintf(name, sizeof(name), "%d", module->lists ? module->lists->child_count : 0);
    return tn_module_add(module, name, child);
}
