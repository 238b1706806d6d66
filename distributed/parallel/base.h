/* What every way of laying a model on ranks stands on. The public side is tern/parallel.h. */
#ifndef TERN_DISTRIBUTED_PARALLEL_BASE_H
#define TERN_DISTRIBUTED_PARALLEL_BASE_H

#include "core/error.h"
#include "tern/parallel.h"

/* What strategies check before they attach: m is a module, g has this rank, nothing in or around m
 * has a strategy, and none of its parameters is sharded or an optimiser's already. False after
 * raising. */
bool tn__parallel_may_attach(void *m, tn_group *g, const char *operation);

/* ---- compare.c, share.c ---------------------------------------------------------------------- */

/* Compares names, shapes, dtypes and `options` (a line of text) on all ranks. TN_EMISMATCH, on
 * every rank, names the first difference and both sides; *differ is true then and not written
 * otherwise. False after raising. */
bool tn__parallel_compare(tn_module *m, tn_group *g, const char *options, const char *operation,
                          bool *differ);

/* Gives every rank the values of rank `root`: of buffers, and of parameters too. */
tn_status tn__parallel_share(tn_module *m, tn_group *g, int root, bool parameters);

/* Waits for one operation of DDP. Its error says what to do about ranks whose data has ended. */
tn_status tn__parallel_wait(tn_work *w);

/* ---- round.c ----------------------------------------------------------------------------------
 */

/* Before a forward: keys the default generator for this rank's part of the global micro-batch. */
void tn__round_begin(tn_group *g);
/* Inside a backward: when the outermost ends, the round is over. Once, whoever calls. */
tn_status tn__round_end(tn_group *g);

#endif
