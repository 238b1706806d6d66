/* What tn_rpc_forward has computed on this rank for others, until they have run backward through
 * it, or never will. */
#ifndef TERN_DISTRIBUTED_RPC_GRAPHS_H
#define TERN_DISTRIBUTED_RPC_GRAPHS_H

#include "tern/autograd.h"

#include <pthread.h>

/* The graph of one call: the leaves that its inputs became, and the results with their history. */
typedef struct tn__graph {
    struct tn__graph *next;
    int caller;
    uint64_t number; /* of the caller's call */
    int refs;        /* of the list, and of a backward */
    tn_values in, out;
} tn__graph;

typedef struct tn__graphs {
    pthread_mutex_t lock;
    pthread_cond_t free; /* nobody's turn */
    tn__graph *first;
    bool taken; /* it is some thread's turn to add to the gradients of this rank's parameters */
} tn__graphs;

void tn__graphs_init(tn__graphs *gs);
void tn__graphs_finish(tn__graphs *gs);

/* Keeps the graph of a call if a result requires a gradient; *mask: which. False after raising. */
bool tn__graphs_keep(tn__graphs *gs, int caller, uint64_t number, const tn_values *in,
                     const tn_values *out, uint8_t *mask);
/* The caller does not need the graph of this call any more; 0: of all its calls; -1: no one does.
 */
void tn__graphs_forget(tn__graphs *gs, int caller, uint64_t number);

/* Runs backward with the gradients of the results in *mask; gives those of the inputs, and which in
 * *mask. Nothing after raising. */
tn_values tn__graphs_backward(tn__graphs *gs, int caller, uint64_t number, const tn_values *grads,
                              uint8_t *mask, double deadline);

/* While a backward here waits for another rank, which may need this one, others have their turn.
 * False: this thread runs no backward. */
bool tn__graphs_yield(tn__graphs *gs);
/* And then again; false after raising: not by the deadline. */
bool tn__graphs_resume(tn__graphs *gs, double deadline);

#endif
