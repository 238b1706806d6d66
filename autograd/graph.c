/* A picture of a tensor's graph, for Graphviz: `dot -Tsvg graph.dot > graph.svg`. */
#include "autograd/leaf.h"
#include "autograd/run.h"
#include "core/file.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

/* Text inside a label's quotes. */
static void draw_text(tn__file *file, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') { tn__file_put(file, "\\", 1); }
        tn__file_put(file, text, 1);
    }
}

/* What the first operation that takes the leaf calls it: "weight". NULL: no name. */
static const char *input_name(const tn__run *run, const tn_tensor *leaf) {
    for (int at = 0; at < run->count; at++) {
        const tn_node *node = run->slots[at].node;
        for (int i = 0; node && i < node->inputs && i < TN_OP_INPUTS; i++) {
            if (!node->edges[i].node && node->edges[i].leaf == leaf) { return node->op->inputs[i]; }
        }
    }
    return NULL;
}

static void draw_leaf(tn__file *file, const tn__run *run, int index, tn_leaf_name name,
                      void *user) {
    const tn_tensor *leaf = run->slots[index].leaf;
    const char *called = name ? name(leaf, user) : NULL;
    called = called ? called : input_name(run, leaf);
    tn__file_print(file, "  n%d [shape=box, style=filled, fillcolor=\"#d8ecd0\", label=\"", index);
    draw_text(file, called ? called : "leaf");
    tn__file_print(file, "\\n%s %s\"];\n", tn_dtype_name(leaf->dtype), tn__dims_text(leaf->dims));
}

/* The shape of a node's results, from the edges to it: the node does not store it. */
typedef struct node_shape {
    tn_dims dims; /* of all its results */
    bool known;
    bool differ; /* several results of different shapes: then only the edges show them */
} node_shape;

static int far_end(const tn__run *run, const tn__edge *edge) {
    const tn__slot *slot = tn__far_slot(run, edge);
    return slot ? (int)(slot - run->slots) : -1;
}

static void note_shape(node_shape *shape, tn_dims dims) {
    shape->differ = shape->known && (shape->differ || !tn_dims_equal(shape->dims, dims));
    shape->dims = dims;
    shape->known = true;
}

/* One for each slot; the caller frees them. NULL after TN_ENOMEM. */
static node_shape *find_shapes(const tn__run *run, const tn_tensor *t) {
    node_shape *shapes = tn__calloc_for((size_t)run->count, sizeof(*shapes), "graph_dot");
    for (int at = 0; shapes && at < run->count; at++) {
        const tn_node *node = run->slots[at].node;
        for (int i = 0; node && i < node->inputs; i++) {
            int far = far_end(run, &node->edges[i]);
            if (far >= 0) { note_shape(&shapes[far], node->edges[i].dims); }
        }
    }
    if (shapes) { note_shape(&shapes[0], t->dims); }
    return shapes;
}

static void draw_node(tn__file *file, const tn__run *run, int index, const node_shape *shapes) {
    const tn_node *node = run->slots[index].node;
    bool alone = shapes[index].known && !shapes[index].differ;
    tn__file_print(file, "  n%d [label=\"%s%s%s\"];\n", index, node->op->name, alone ? "\\n" : "",
                   alone ? tn__dims_text(shapes[index].dims) : "");
    for (int i = 0; i < node->inputs; i++) {
        int far = far_end(run, &node->edges[i]);
        if (far >= 0) {
            tn__file_print(file, "  n%d -> n%d [label=\"%s\"];\n", far, index,
                           shapes[far].differ ? tn__dims_text(node->edges[i].dims) : "");
        }
    }
}

tn_status tn_graph_dot(const tn_tensor *t, const char *path, tn_leaf_name name, void *user) {
    if (!tn__readable(t, "graph_dot")) { return tn_error(); }
    tn__run run = {0};
    tn_tensor *root = (tn_tensor *)t;
    if (!tn__run_discover(&run, &root, 1)) {
        tn__run_finish(&run);
        return tn_error();
    }
    node_shape *shapes = find_shapes(&run, t);
    tn__file file;
    if (shapes && tn__file_begin(&file, path, "graph_dot")) {
        tn__file_print(&file, "digraph tern {\n  rankdir=TB;\n"
                              "  node [fontname=\"sans-serif\"];\n"
                              "  edge [fontname=\"sans-serif\", fontsize=11];\n");
        for (int i = 0; i < run.count; i++) {
            if (run.slots[i].node) {
                draw_node(&file, &run, i, shapes);
            } else {
                draw_leaf(&file, &run, i, name, user);
            }
        }
        tn__file_print(&file, "}\n");
        (void)!tn__file_commit(&file);
    }
    free(shapes);
    tn__run_finish(&run);
    return tn_error();
}
