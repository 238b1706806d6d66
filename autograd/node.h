/* A recorded operation: the rule, its arguments, what it saved, and where its gradients go.
 *
 * Nodes form a graph from results to inputs. An edge holds the node that made an input, or the leaf
 * itself. A node is younger than every node it points to. It never holds its own outputs (that
 * would be a cycle): a saved output is a view without a node, and gets one again when a rule asks
 * for it (tn_op_saved_output).
 */
#ifndef TERN_AUTOGRAD_NODE_H
#define TERN_AUTOGRAD_NODE_H

#include "autograd/hooks.h"
#include "profile/span.h"
#include "tensor/tensor.h"
#include "tern/sys/op.h"

/* Where the gradient of one input goes. Both pointers NULL: it is not needed. */
typedef struct tn__edge {
    tn_node *node;   /* one reference */
    tn_tensor *leaf; /* one reference */
    int output;      /* of node */
    bool present;    /* false: an optional input that was absent */
    tn_dtype dtype;
    tn_device device;
    tn_dims dims;
} tn__edge;

typedef struct tn__saved {
    tn_tensor *tensor; /* one reference; NULL once released */
    uint32_t version;  /* of its elements when it was saved */
    uint32_t bit;      /* which input or output: TN_SAVES_INPUT(i), TN_SAVES_OUTPUT(i) */
} tn__saved;

struct tn_node {
    int32_t refs; /* atomic */
    int inputs, outputs, saved_count;
    uint64_t age; /* grows with every node of the process */
    const tn_op *op;
    void *args; /* after the struct */
    tn__edge *edges;
    tn__saved *saved;
    tn__hook *hooks;
    char *where;            /* anomaly mode: where the forward was called */
    const tn__site *module; /* with the profiler on: the module whose forward made it; or NULL */
    tn_node *doomed;        /* the release queue */
    bool freed;             /* a backward has run and released what was saved */
};

/* Records the call: c's outputs get the node, and what `saves` names is saved. Takes over what args
 * own. False after TN_ENOMEM (and then args are finished). */
bool tn__node_record(tn_op_call *c, uint32_t saves);

/* A node without outputs yet, one reference. NULL after TN_ENOMEM, with args finished. */
tn_node *tn__node_new(const tn_op *op, const void *args, tn_tensor *const *in, int n, int outputs,
                      int saved);

/* Makes t the node's output number `output`. */
void tn__node_attach(tn_node *node, tn_tensor *t, int output);

void tn__node_save(tn_node *node, int place, tn_tensor *t, uint32_t bit);

void tn__node_keep(tn_node *node);
void tn__node_release(tn_node *node);    /* never recurses, however long the graph */
void tn__node_free_saved(tn_node *node); /* saved tensors and args */

/* Whether a second backward would need what the node has released. */
static inline bool tn__node_spent(const tn_node *node) {
    return node->freed && (node->saved_count > 0 || node->op->args_finish);
}

#endif
