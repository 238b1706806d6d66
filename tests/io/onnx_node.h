/* One node of the ONNX standard's tests, as run_onnx_nodes.c reads it: its operator, attributes and
 * inputs. A function for an operator fills n->out, or says what is missing.
 */
#ifndef TERN_TESTS_IO_ONNX_NODE_H
#define TERN_TESTS_IO_ONNX_NODE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tern/tern.h>

enum { NODE_INPUTS = 32, NODE_OUTPUTS = 8, NODE_ATTRIBUTES = 16, NODE_NUMBERS = 16 };

typedef struct node {
    const char *op;
    int opset, inputs, outputs;
    tn_tensor *in[NODE_INPUTS], *out[NODE_OUTPUTS]; /* in: NULL if absent */
    struct {
        const char *name, *value; /* "axes", "0,2" */
    } attributes[NODE_ATTRIBUTES];
    int attribute_count;
    char missing[128]; /* what Tern lacks; "" if nothing */
} node;

typedef struct node_case {
    const char *op;
    void (*run)(node *n);
} node_case;

/* ---- Attributes ------------------------------------------------------------------------------ */

static inline const char *text_of(const node *n, const char *name, const char *otherwise) {
    for (int i = 0; i < n->attribute_count; i++) {
        if (strcmp(n->attributes[i].name, name) == 0) {
            return n->attributes[i].value;
        }
    }
    return otherwise;
}

static inline int64_t whole_of(const node *n, const char *name, int64_t otherwise) {
    const char *value = text_of(n, name, NULL);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

static inline double real_of(const node *n, const char *name, double otherwise) {
    const char *value = text_of(n, name, NULL);
    return value ? strtod(value, NULL) : otherwise;
}

static inline bool attribute_is(const node *n, const char *name, const char *otherwise,
                                const char *value) {
    return strcmp(text_of(n, name, otherwise), value) == 0;
}

/* How many there are; -1: the attribute is absent. */
static inline int list_of(const node *n, const char *name, int64_t *to) {
    const char *value = text_of(n, name, NULL);
    int count = value ? 0 : -1;
    while (value && *value && count < NODE_NUMBERS) {
        to[count++] = strtoll(value, (char **)&value, 10);
        value += *value == ',';
    }
    return count;
}

/* ---- Inputs ---------------------------------------------------------------------------------- */

static inline tn_tensor *input_at(const node *n, int i) {
    return i < n->inputs ? n->in[i] : NULL;
}

/* The integers in input i, as list_of. */
static inline int numbers_of(const node *n, int i, int64_t *to) {
    tn_tensor *t = input_at(n, i);
    if (!t || tn_count(t) > NODE_NUMBERS) {
        return -1;
    }
    tn_copy_out(tn_contiguous(tn_cast(t, TN_I64)), to);
    return (int)tn_count(t);
}

/* The number in input i. */
static inline double number_of(const node *n, int i, double otherwise) {
    tn_tensor *t = input_at(n, i);
    return t && tn_count(t) == 1 ? tn_item(t) : otherwise;
}

/* Axes, from an attribute or, in later opsets, an input. None: all axes, or nothing. */
static inline tn_dims axes_of(const node *n, int from) {
    int64_t axes[NODE_NUMBERS];
    int count = list_of(n, "axes", axes);
    count = count < 0 ? numbers_of(n, from, axes) : count;
    return tn_dims_from(count > 0 ? count : 0, axes);
}

static inline bool is_float_node(const node *n) {
    return n->in[0] && tn_dtype_is_float(tn_dtype_of(n->in[0]));
}

static inline void note_missing(node *n, const char *what) {
    snprintf(n->missing, sizeof(n->missing), "%s", what);
}

/* False if an attribute differs from the only value that Tern has. */
static inline bool must_be(node *n, const char *name, double value) {
    if (real_of(n, name, value) != value) {
        snprintf(n->missing, sizeof(n->missing), "%s other than %g", name, value);
    }
    return !*n->missing;
}

/* False if an index is below 0, or not below `end`. */
static inline bool indexed_within(node *n, tn_tensor *index, double end) {
    tn_dims all = TN_DIMS();
    if (tn_count(index) > 0 && (tn_item(tn_min(tn_cast(index, TN_F64), all, false)) < 0 ||
                                tn_item(tn_max(tn_cast(index, TN_F64), all, false)) >= end)) {
        note_missing(n, "an index that is negative or too large");
    }
    return !*n->missing;
}

#endif
