/* function: y = f(x), for what has no parameters. */
#include "nn/layer.h"

#include <stdio.h>
#include <string.h>

static tn_tensor *function_forward(tn_module *self, tn_tensor *x) {
    return ((tn_function *)self)->f(x);
}

void tn_function_init(tn_function *m, const char *kind, tn_tensor *(*f)(tn_tensor *x)) {
    if (!tn__layer_begin(m, sizeof(*m), kind ? kind : "function", function_forward, NULL)) {
        return;
    }
    m->f = f;
    if (!f) { tn__layer_refuse(m, TN_EVALUE, "the function is NULL"); }
}

/* TN_FN(tn_relu) gives the kind "tn_relu", which is shown as "relu". */
static const char *without_prefix(const char *kind) {
    return kind && strncmp(kind, "tn_", 3) == 0 ? kind + 3 : kind;
}

TN__LAYER_HEAP(tn_function, tn_function_new(const char *kind, tn_tensor *(*f)(tn_tensor *x)),
               tn_function_init(m, without_prefix(kind), f))

/* ---- A function of x and a number ------------------------------------------------------------ */

static tn_tensor *number_forward(tn_module *self, tn_tensor *x) {
    const tn_function *m = (tn_function *)self;
    return m->f_with(x, m->number);
}

static const tn_field number_fields[] = {TN_FIELD(tn_function, number), {0}};

tn_function *tn_function_new_with(const char *kind, tn_tensor *(*f)(tn_tensor *x, double number),
                                  double number) {
    tn_function *m = tn__layer_alloc(sizeof(*m));
    const char *shown = kind ? without_prefix(kind) : "function";
    if (tn__layer_begin(m, sizeof(*m), shown, number_forward, NULL)) {
        m->base.fields = number_fields;
        m->f_with = f;
        m->number = number;
        if (!f) { tn__layer_refuse(m, TN_EVALUE, "the function is NULL"); }
    }
    return tn__layer_on_heap(m);
}
