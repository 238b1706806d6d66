/* Loading a checkpoint in its two halves, for callers that have to agree in between: ranks, of
 * which none may load what another refuses.
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

/* Compares what the checkpoint's texts say, and reads what the tensors of c have in `from`. Changes
 * nothing but *p. One of those that load together is the first: it compares the data, and logs what
 * differs. parts: c may have parts of parameters. False after raising. */
bool tn__checkpoint_plan_make(tn__checkpoint_plan *p, tn_checkpoint *c, const tn__source *from,
                              bool parts, bool first, const char *operation);
void tn__checkpoint_apply(tn__checkpoint_plan *p);

/* The whole file; the caller frees. NULL after raising: also when its header and its size say that
 * it is not a checkpoint. Then nothing more is read, since it may be anything and larger than
 * memory.
 */
char *tn__checkpoint_file(const char *path, size_t *bytes, const char *operation);

#endif
