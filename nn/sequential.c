/* sequential: modules called in turn, named "0", "1", …
 *
 * The output of one, one tensor or several, is the input of the next. With a tn__range as context
 * only some of them run.
 */
#include "nn/call.h"
#include "nn/layer.h"
#include "nn/misuse.h"

tn__range tn__range_of(const tn_module *m, const void *context, int parts) {
    const tn__range *asked = context;
    if (!asked || (asked->first == 0 && asked->end == 0)) { return (tn__range){0, parts}; }
    tn__range range = {asked->first, asked->end ? asked->end : parts};
    if (range.first < 0 || range.first > range.end || range.end > parts) {
        tn__raise(TN_EINDEX, m->kind, "parts %d to %d of %d", range.first, range.end, parts);
        return (tn__range){0, 0};
    }
    return range;
}

static bool has_value(const tn_values *values, const tn_tensor *t) {
    for (int i = 0; i < values->n; i++) {
        if (values->v[i] == t) { return true; }
    }
    return false;
}

/* A child's output is released as soon as the next has read it, unless the graph or the next one's
 * results need it. */
static void drop_read(const tn_values *read, const tn_values *given, const tn_values *first) {
    for (int i = 0; i < read->n; i++) {
        if (read->v[i] && !has_value(given, read->v[i]) && !has_value(first, read->v[i])) {
            tn_drop(read->v[i]);
        }
    }
}

static tn_values sequential_forward(tn_module *self, tn_values in, void *context) {
    int count = self->lists ? self->lists->child_count : 0;
    tn__range range = tn__range_of(self, context, count);
    tn_values x = in;
    for (int i = range.first; i < range.end && self->lists; i++) {
        tn_module *child = tn__module_in_place(self->lists->children[i], "sequential");
        if (!child) { return tn__no_values(); }
        tn_values y = tn_call_values(child, x, NULL);
        drop_read(&x, &y, &in);
        x = y;
    }
    return tn__pending() ? tn__no_values() : x;
}

void tn_sequential_init(tn_sequential *m) {
    tn__layer_begin(m, sizeof(*m), "sequential", NULL, sequential_forward);
}

TN__LAYER_HEAP(tn_sequential, tn_sequential_new(void), tn_sequential_init(m))

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
