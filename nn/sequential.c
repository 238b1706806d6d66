/* sequential: modules one after the other, named "0", "1", … */
#include "nn/module.h"

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

tn_sequential *tn_sequential_new(void) {
    tn_sequential *m = tn__layer_alloc(sizeof(*m));
    tn_sequential_init(m);
    return tn__layer_on_heap(m);
}

tn_status tn_sequential_add(tn_sequential *m, void *child) {
    return tn_module_append(m, child);
}

/* Children that could not be made are NULL: the error is pending, and the others are finished with
 * the sequential. */
tn_sequential *tn_sequential_of(void *const *children, int n) {
    tn_sequential *m = tn_sequential_new();
    for (int i = 0; children && i < n; i++) {
        tn_sequential_add(m, children[i]);
    }
    return m;
}
