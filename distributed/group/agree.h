/* Ranks that agree before they continue: what happens to one of them, a full disk or a damaged
 * file, is an error on all, and no rank does what another refuses.
 *
 *     if (!tn__agree_begin(g, "load")) { return tn_error(); }
 *     ... what may fail on this rank ...
 *     if (tn__agree(g, NULL, "load") == TN_OK) { ... what cannot fail, or fails on all ... }
 *
 * After begin, an error on this rank is kept for the others: they receive it before the program's
 * handler runs, which may end the process.
 */
#ifndef TERN_DISTRIBUTED_AGREE_H
#define TERN_DISTRIBUTED_AGREE_H

#include "tern/distributed.h"

/* False if this rank cannot begin, for an error is pending: then the others do not wait for it. */
TN_API bool tn__agree_begin(tn_group *g, const char *operation);

/* Ends it: every rank sends its error, and the digest of a text that must be the same on all (NULL:
 * none). Raises this rank's error, or else that of the first rank that has one, or TN_EMISMATCH
 * with the first line of the text that differs. A rank that is not of g only ends it. */
TN_API tn_status tn__agree(tn_group *g, const char *text, const char *operation);

#endif
