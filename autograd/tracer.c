/* Tracers (tracer.h), and the arguments of a call by their names. */
#include "autograd/tracer.h"

#include "autograd/mode.h"
#include "tensor/fields.h"

#include <string.h>

tn__tracer *tn__tracer_begin(tn__tracer *tracer) {
    tn__tracer *before = tn__grad_self.tracer;
    tn__grad_self.tracer = tracer;
    return before;
}

bool tn__tracer_change(const tn_tensor *y, const char *operation) {
    tn__tracer *tracer = tn__grad_self.tracer;
    return !tracer || tracer->change(tracer, y, operation);
}

/* NULL after raising. */
static const tn_field *find_field(const tn_op_call *c, const char *name) {
    for (int i = 0; i < TN_OP_FIELDS && c->op->fields[i].name; i++) {
        if (strcmp(c->op->fields[i].name, name) == 0) { return &c->op->fields[i]; }
    }
    tn_op_fail(c, TN_ESTATE, "its descriptor has no argument %s", name);
    return NULL;
}

int64_t tn__arg_whole(const tn_op_call *c, const char *name) {
    const tn_field *f = find_field(c, name);
    int64_t number;
    return f && tn__field_whole(f, c->args, &number) ? number : 0;
}

double tn__arg_real(const tn_op_call *c, const char *name) {
    const tn_field *f = find_field(c, name);
    double value = 0;
    if (f && f->kind == TN_FIELD_DOUBLE) {
        memcpy(&value, (const char *)c->args + f->offset, sizeof(value));
    }
    return value;
}

tn_dims tn__arg_dims(const tn_op_call *c, const char *name) {
    const tn_field *f = find_field(c, name);
    return f ? tn__field_sizes(f, c->args) : (tn_dims){0};
}
