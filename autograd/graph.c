/* A picture of the graph behind a tensor, for Graphviz: `dot -Tsvg graph.dot > graph.svg`. */
#include "autograd/leaf.h"
#include "autograd/run.h"
#include "core/file.h"
#include "core/memory.h"

#include <stdio.h>
#include <string.h>

static const char *dims_text(tn_dims dims, char *text, size_t room) {
    size_t at = (size_t)snprintf(text, room, "[");
    for (int i = 0; i < dims.ndim && at < room; i++) {
        at += (size_t)snprintf(text + at, room - at, "%s%lld", i ? ", " : "",
                               (long long)dims.size[i]);
    }
    if (at < room) {
        snprintf(text + at, room - at, "]");
    }
    return text;
}

/* Text inside a label's quotes. */
static void draw_text(tn__file *file, const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            tn__file_put(file, "\\", 1);
        }
        tn__file_put(file, text, 1);
    }
}

static void draw_leaf(tn__file *file, int index, const tn_tensor *leaf, tn_leaf_name name,
                      void *user) {
    char dims[256];
    const char *called = name ? name(leaf, user) : NULL;
    tn__file_print(file, "  n%d [shape=box, style=filled, fillcolor=\"#d8ecd0\", label=\"", index);
    draw_text(file, called ? called : "leaf");
    tn__file_print(file, "\\n%s %s\"];\n", tn_dtype_name(leaf->dtype),
                   dims_text(leaf->dims, dims, sizeof dims));
}

static void draw_slot(tn__file *file, const tn__run *run, int index, tn_leaf_name name,
                      void *user) {
    const tn__slot *slot = &run->slots[index];
    char text[256];
    if (!slot->node) {
        draw_leaf(file, index, slot->leaf, name, user);
        return;
    }
    tn__file_print(file, "  n%d [label=\"%s\"];\n", index, slot->node->op->name);
    for (int i = 0; i < slot->node->inputs; i++) {
        const tn__edge *edge = &slot->node->edges[i];
        if (edge->node || edge->leaf) {
            int far =
                tn__run_find(run, edge->node ? (const void *)edge->node : (const void *)edge->leaf);
            tn__file_print(file, "  n%d -> n%d [label=\"%s\"];\n", far, index,
                           edge->node ? dims_text(edge->dims, text, sizeof text)
                                      : ""); /* a leaf has it */
        }
    }
}

static bool walk_graph(tn__run *run, const tn_tensor *t) {
    bool fresh;
    if (tn__run_slot(run, t->node, t->node ? NULL : (tn_tensor *)t, &fresh) < 0) {
        return false;
    }
    for (int at = 0; at < run->count; at++) {
        tn_node *node = run->slots[at].node;
        for (int i = 0; node && i < node->inputs; i++) {
            const tn__edge *edge = &node->edges[i];
            if ((edge->node || edge->leaf) &&
                tn__run_slot(run, edge->node, edge->node ? NULL : edge->leaf, &fresh) < 0) {
                return false;
            }
        }
    }
    return true;
}

tn_status tn_graph_dot(const tn_tensor *t, const char *path, tn_leaf_name name, void *user) {
    if (!tn__readable(t, "graph_dot")) {
        return tn_error();
    }
    tn__run run = {0};
    if (!walk_graph(&run, t)) {
        tn__run_finish(&run);
        return tn_error();
    }
    tn__file file;
    if (tn__file_begin(&file, path, "graph_dot")) {
        tn__file_print(&file, "digraph tern {\n  rankdir=TB;\n  node [fontname=\"sans-serif\"];\n");
        for (int i = 0; i < run.count; i++) {
            draw_slot(&file, &run, i, name, user);
        }
        tn__file_print(&file, "}\n");
        (void)!tn__file_commit(&file);
    }
    tn__run_finish(&run);
    return tn_error();
}
