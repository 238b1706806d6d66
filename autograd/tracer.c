/* Tracers (tracer.h), and the arguments of a call by their names. */
#include "autograd/tracer.h"

#include "autograd/mode.h"

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

/* Where it stands in args; NULL after raising. */
static const char *find_field(const tn_op_call *c, const char *name, const tn_op_field **field) {
    for (int i = 0; i < TN_OP_FIELDS && c->op->fields[i].name; i++) {
        if (strcmp(c->op->fields[i].name, name) == 0) {
            *field = &c->op->fields[i];
            return (const char *)c->args + c->op->fields[i].offset;
        }
    }
    tn_op_fail(c, TN_ESTATE, "its descriptor names no argument %s", name);
    return NULL;
}

int64_t tn__field_whole(const tn_op_call *c, const char *name) {
    const tn_op_field *field;
    const char *at = find_field(c, name, &field);
    int narrow = 0;
    int64_t wide = 0;
    bool yes = false;
    switch (at ? field->kind : TN_FIELD_DIMS) {
    case TN_FIELD_INT:
        memcpy(&narrow, at, sizeof(narrow));
        return narrow;
    case TN_FIELD_INT64:
        memcpy(&wide, at, sizeof(wide));
        return wide;
    case TN_FIELD_BOOL:
        memcpy(&yes, at, sizeof(yes));
        return yes;
    default:
        return 0;
    }
}

double tn__field_real(const tn_op_call *c, const char *name) {
    const tn_op_field *field;
    const char *at = find_field(c, name, &field);
    double value = 0;
    if (at && field->kind == TN_FIELD_DOUBLE) {
        memcpy(&value, at, sizeof(value));
    }
    return value;
}

tn_dims tn__field_dims(const tn_op_call *c, const char *name) {
    const tn_op_field *field;
    const char *at = find_field(c, name, &field);
    tn_dims dims = {0};
    if (at && field->kind == TN_FIELD_DIMS) {
        memcpy(&dims, at, sizeof(dims));
    } else if (at && field->kind == TN_FIELD_INT64) {
        dims.ndim = (int)(field->bytes / sizeof(int64_t));
        memcpy(dims.size, at, field->bytes);
    }
    return dims;
}
