/* Ranks that agree before they go on: what happens to one of them, a full disk or a damaged file,
 * is an error on all, and none does what another refuses.
 *
 *     if (!tn__account_may_begin(g, "load")) { return tn_error(); }
 *     tn__account_begin();
 *     ... what may fail on this rank ...
 *     tn__account mine = tn__account_end();
 *     if (tn__accounts_agree(g, &mine, "load") == TN_OK) { ... what cannot fail ... }
 *
 * Between begin and end an error of this rank is kept for the others: the program's handler, which
 * may end the process, comes after they have heard of it.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_AGREE_H
#define TERN_DISTRIBUTED_PARALLEL_AGREE_H

#include "core/digest.h"
#include "tern/distributed.h"

/* What a rank has to say: its error, which was taken out of its thread, or that it has none; and
 * the digest of what it is about to load. */
typedef struct tn__account {
    tn_error_record error;
    char digest[TN__DIGEST_DIGITS + 1]; /* "": nothing */
} tn__account;

/* Whether this rank may go on; else the others will not wait for it. */
bool tn__account_may_begin(tn_group *g, const char *operation);

void tn__account_begin(void);
tn__account tn__account_end(void);

/* Every rank tells its own and hears the others'. Raises this rank's error, or else that of the
 * first rank that has one; or TN_EMISMATCH where digests differ. */
tn_status tn__accounts_agree(tn_group *g, const tn__account *mine, const char *operation);

#endif
