/* Loading a checkpoint in its two halves, for those who have to agree in between: ranks, of which
 * none may load what another refuses.
 *
 *     char *data = tn__checkpoint_file(path, &bytes, "load");
 *     tn__checkpoint_plan *p = tn__checkpoint_read(&c, path, data, bytes, true); // changes nothing
 *     ...
 *     tn__checkpoint_apply(p);                                               // cannot fail
 *     tn__checkpoint_plan_free(p);
 */
#ifndef TERN_IO_CHECKPOINT_H
#define TERN_IO_CHECKPOINT_H

#include "io/safetensors.h"

/* What was read and found right. */
typedef struct tn__checkpoint_plan tn__checkpoint_plan;

/* The whole file; the caller frees. NULL after raising: also when its header and its size say that
 * it is no checkpoint. Then nothing more is read, since it may be anything and larger than memory.
 */
char *tn__checkpoint_file(const char *path, size_t *bytes, const char *operation);

/* As tn_checkpoint_load from a file with these bytes, which are lent until the plan is freed;
 * messages speak of them as `path`. One of those that load them together is the first: it compares
 * the data, and logs what differs. NULL after raising. */
tn__checkpoint_plan *tn__checkpoint_read(tn_checkpoint *c, const char *path, void *data,
                                         size_t bytes, bool first);

/* The file's own digest, which was found right: TN__DIGEST_DIGITS characters, without a 0. */
const char *tn__checkpoint_digest(const tn__checkpoint_plan *p);

void tn__checkpoint_apply(tn__checkpoint_plan *p);
void tn__checkpoint_plan_free(tn__checkpoint_plan *p); /* NULL is fine */

#endif
