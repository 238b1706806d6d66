/* For test_pypi_onnx_nodes.py: runs nodes of the ONNX standard's tests with Tern's operations.
 *
 *     run_onnx_nodes FOLDER
 *
 * FOLDER/nodes has a line for each, separated by tabs: a name, the operator, the opset, the numbers
 * of inputs and outputs, and attributes such as "axes=0,2". FOLDER/inputs.safetensors has NAME/0, …
 * without absent inputs. It writes FOLDER/outputs.safetensors, with the results named likewise, and
 * FOLDER/states: the name and, after a tab, "ran", "missing REASON" or "failed ERROR".
 */
#include "tests/io/onnx_nodes_elementwise.h"
#include "tests/io/onnx_nodes_nn.h"
#include "tests/io/onnx_nodes_shape.h"

static const node_case *find_case(const char *op) {
    static const node_case *const tables[] = {elementwise_nodes, shape_nodes, nn_nodes};
    for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++) {
        for (const node_case *c = tables[i]; c->op; c++) {
            if (strcmp(c->op, op) == 0) {
                return c;
            }
        }
    }
    return NULL;
}

/* Splits a line; returns its name. */
static const char *read_node(char *line, node *n) {
    char *rest = line, *name = strsep(&rest, "\t");
    n->op = strsep(&rest, "\t");
    n->opset = atoi(strsep(&rest, "\t"));
    n->inputs = atoi(strsep(&rest, "\t"));
    n->outputs = atoi(strsep(&rest, "\t"));
    for (char *part; (part = strsep(&rest, "\t")) && n->attribute_count < NODE_ATTRIBUTES;) {
        n->attributes[n->attribute_count].name = strsep(&part, "=");
        n->attributes[n->attribute_count++].value = part;
    }
    return name;
}

static void read_inputs(const tn_safetensors *f, const char *name, node *n) {
    char path[512];
    for (int i = 0; i < n->inputs && i < NODE_INPUTS; i++) {
        snprintf(path, sizeof(path), "%s/%d", name, i);
        n->in[i] = tn_safetensors_has(f, path) ? tn_safetensors_get(f, path) : NULL;
    }
}

static void write_outputs(tn_safetensors_writer *w, const char *name, const node *n) {
    char path[512];
    for (int i = 0; i < n->outputs; i++) {
        if (n->out[i]) {
            snprintf(path, sizeof(path), "%s/%d", name, i);
            tn_safetensors_writer_add(w, path, tn_copy(n->out[i]));
        }
    }
}

/* Leaves no error pending. */
static void run_node(char *line, const tn_safetensors *f, tn_safetensors_writer *w, FILE *states) {
    node n = {0};
    const char *name = read_node(line, &n);
    const node_case *c = find_case(n.op);
    read_inputs(f, name, &n);
    fprintf(states, "%s\t", name);
    if (!c) {
        fputs("missing no such operation\n", states);
        return;
    }
    c->run(&n);
    tn_status status = tn_error();
    if (status == TN_EDTYPE || status == TN_EUNSUPPORTED) {
        fprintf(states, "missing dtype: %s\n", tn_error_message());
    } else if (status != TN_OK) {
        fprintf(states, "failed %s\n", tn_error_message());
    } else if (*n.missing) {
        fprintf(states, "missing %s\n", n.missing);
    } else {
        write_outputs(w, name, &n);
        fputs("ran\n", states);
    }
    tn_error_clear();
}

int main(int argc, char **argv) {
    char path[4096], *line = NULL;
    size_t capacity = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: run_onnx_nodes FOLDER\n");
        return 2;
    }
    snprintf(path, sizeof(path), "%s/inputs.safetensors", argv[1]);
    tn_safetensors *inputs = tn_safetensors_open(path);
    snprintf(path, sizeof(path), "%s/nodes", argv[1]);
    FILE *nodes = fopen(path, "r");
    snprintf(path, sizeof(path), "%s/states", argv[1]);
    FILE *states = fopen(path, "w");
    tn_safetensors_writer *outputs = tn_safetensors_writer_new();
    if (!inputs || !nodes || !states || !outputs) {
        fprintf(stderr, "%s: %s\n", argv[1], tn_error_message());
        return 1;
    }
    while (getline(&line, &capacity, nodes) > 0) {
        TN_SCOPE;
        line[strcspn(line, "\n")] = 0;
        run_node(line, inputs, outputs, states);
    }
    snprintf(path, sizeof(path), "%s/outputs.safetensors", argv[1]);
    tn_status status = tn_safetensors_writer_save(outputs, path);
    tn_safetensors_close(inputs);
    free(line);
    fclose(nodes);
    return fclose(states) != 0 || status != TN_OK;
}
