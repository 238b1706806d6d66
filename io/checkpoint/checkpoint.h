/* Loading a checkpoint in two steps, for callers that must agree in between: no rank may load what
 * another refuses.
 *
 *     tn__checkpoint_plan p = {0};
 *     if (tn__checkpoint_plan_make(&p, &c, &from, false, true, "load") && ...) {
 *         tn__checkpoint_apply(&p);                                          // cannot fail
 *     }
 *     tn__state_free(&p.state);
 */
#ifndef TERN_IO_CHECKPOINT_CHECKPOINT_H
#define TERN_IO_CHECKPOINT_CHECKPOINT_H

#include "io/checkpoint/metadata.h"
#include "io/state.h"

/* What was read and checked. */
typedef struct tn__checkpoint_plan {
    tn__metadata_plan metadata;
    tn__state state;
} tn__checkpoint_plan;

/* Compares the checkpoint's metadata, and reads c's tensors from `from`. Changes nothing but *p.
 * first: on one of the ranks that load together, which compares the data and logs what differs.
 * parts: c may have parts of parameters. False after raising. */
bool tn__checkpoint_plan_make(tn__checkpoint_plan *p, tn_checkpoint *c, const tn__source *from,
                              bool parts, bool first, const char *operation);
void tn__checkpoint_apply(tn__checkpoint_plan *p);

/* The whole file; the caller frees it. NULL after raising. If its header or size is not a
 * checkpoint's, the rest is not read: the file may be larger than memory. */
char *tn__checkpoint_file(const char *path, size_t *bytes, const char *operation);

#endif
