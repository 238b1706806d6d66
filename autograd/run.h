/* The state of one backward run: what waits for gradients, and which have arrived.
 *
 * A run keeps its counters to itself, keyed by node and leaf,
 * so that runs nest and graphs are shared.
 */
#ifndef TERN_AUTOGRAD_RUN_H
#define TERN_AUTOGRAD_RUN_H

#include "autograd/leaf.h"
#include "autograd/node.h"

/* A node or a leaf that the roots reach. */
typedef struct tn__slot {
    const void *key; /* tn_node or tn_tensor */
    tn_node *node;   /* or NULL: a leaf */
    tn_tensor *leaf;
    bool root;            /* the run holds a reference, which keeps all it leads to */
    int waiting;          /* edges whose gradient has not arrived */
    bool wanted;          /* tn_grad: leads to a chosen input (always true in backward) */
    bool captured;        /* tn_grad: is a chosen input, or made one */
    bool continued;       /* a leaf: the run added to its gradient from before (target.h) */
    bool early;           /* in halves: leads to an input of the first (else always true) */
    struct tn__run *rest; /* in halves: of the graph that the node's rule ran; or NULL */
    tn_tensor *grad[TN_OP_OUTPUTS]; /* sums so far; one reference each */
} tn__slot;

typedef struct tn__run {
    tn__slot *slots; /* in order of discovery */
    int count;
    int64_t capacity;
    int *table; /* open addressing: index + 1 into slots, 0 empty */
    size_t table_size;
    int *heap; /* slots of ready nodes, the youngest on top */
    int heap_count;
    bool create_graph, retain_graph;
    bool accumulate;     /* backward: leaves accumulate; otherwise chosen inputs are captured */
    bool halved, second; /* runs in halves (halves.h); the second is running */
    tn_tensor **later;   /* [later_n] what tn_grad captures in the second; one reference each */
    int later_n;
    struct tn__profile_run *profile; /* NULL: the profiler is off */
} tn__run;

/* The slot of a node, or of a leaf (then node is NULL), made when new. -1 after TN_ENOMEM. */
int tn__run_slot(tn__run *run, tn_node *node, tn_tensor *leaf);
int tn__run_find(const tn__run *run, const void *key); /* -1: none */

/* ---- Along edges ----------------------------------------------------------------------------- */

/* The key of an edge's target; NULL: this gradient is not needed. */
static inline const void *tn__far_end(const tn__edge *edge) {
    return edge->node ? (const void *)edge->node : (const void *)edge->leaf;
}
tn__slot *tn__far_slot(const tn__run *run, const tn__edge *edge); /* NULL: none */

/* Whether gradients that arrive there are needed in this half: of a run that is whole, all. */
bool tn__slot_due(const tn__run *run, const tn__slot *slot);
/* Whether the first half leaves something to do there. */
bool tn__slot_left(const tn__run *run, const tn__slot *slot);

/* Whether one of the node's edges leads to such a slot. */
bool tn__any_edge(const tn__run *run, const tn__slot *slot,
                  bool (*such)(const tn__run *run, const tn__slot *slot));
/* Whether the node's rule is called again in the second half. */
bool tn__leaves_some(const tn__run *run, const tn__slot *slot);

/* ---- Roots, sums, queue ---------------------------------------------------------------------- */

/* Makes a slot a root: hooks may release the tensor that was passed. */
void tn__run_hold(tn__slot *slot);

/* Adds a gradient to output `output` of a slot. The caller keeps its reference. */
void tn__run_add(tn__run *run, tn__slot *slot, int output, tn_tensor *grad);

bool tn__run_reserve_heap(tn__run *run); /* once, after discovery: for all slots */
void tn__run_push(tn__run *run, int slot);
int tn__run_pop(tn__run *run); /* -1: empty */

void tn__run_finish(tn__run *run); /* leaves an empty one */

/* ---- engine.c -------------------------------------------------------------------------------- */

/* Whether backward may begin at these roots. False after raising. */
bool tn__check_roots(tn_tensor *const *roots, tn_tensor *const *grads, int n,
                     const char *operation);
/* Makes slots for all that the roots reach, and counts what each waits for. False after raising. */
bool tn__run_discover(tn__run *run, tn_tensor *const *roots, int n);
/* Before a run; the two below leave it. False after raising. */
bool tn__run_enter(const char *operation);

/* Runs what is due, after discovering it from the roots (NULL: the second half). input (NULL:
 * none): all that the first half is for. */
void tn__run_accumulate(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n,
                        tn_tensor *input);
/* The same, capturing the gradients of these inputs, in halves those of this half. */
void tn__run_capture(tn__run *run, tn_tensor *const *roots, tn_tensor *const *grads, int n,
                     tn_tensor *const *inputs, int inputs_n, tn_tensor **results,
                     bool allow_unused);

/* ---- rule.c ---------------------------------------------------------------------------------- */

/* For up to this many inputs a node needs nothing from the heap. */
enum { TN__RUN_FEW = 16 };

/* Runs a node's rule on the gradients in its slot. In its own scope; din[i] are references that the
 * caller owns. */
bool tn__node_backward(tn__run *run, tn__slot *slot, tn_tensor **din);

#endif
