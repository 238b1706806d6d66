/* Copies of saves in memory, on the next host: they outlive a host with its launcher.
 *
 * Hosts are in the order of their first ranks, and the next one of the last is the first. Each rank
 * sends what it has saved to the rank of the next host that has the same place there, or, where
 * that has fewer ranks, place modulo their number. Who shares a host is known from which launcher
 * keeps a rank's memory (vault.h); so hosts that the job has lost, or that joined it, need no care.
 *
 * A link is one sender and one receiver, and a group of these two, which only the saver's thread
 * uses. In each save they first tell each other, through the store, that they can:
 *
 *     K/S/copy     sender S: its block's head; nothing: it has saved nothing
 *     K/S/takes    its receiver: a byte; nothing: it has no room
 *
 * Either may be an error instead, so that nobody waits for a rank that will not come. Then the
 * block travels, without a stop in between: out of one vault and into the other.
 *
 * Whatever goes wrong, the save stands: all ranks have their own blocks. One says why, and copies
 * end for all.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_COPIES_H
#define TERN_DISTRIBUTED_PARALLEL_COPIES_H

#include "distributed/parallel/save/vault.h"
#include "tern/parallel.h"

/* Where a rank is, as rank 0 knows it. */
typedef struct tn__copy_place {
    char host[TN__DIGEST_DIGITS + 1];
    int local; /* tn_local_rank */
    int first; /* the first rank on its host */
    int to;    /* the rank that its copy goes to; -1: there is one host */
} tn__copy_place;

typedef struct tn__copy_link {
    int from, to, place; /* ranks of the saver's group; tn_local_rank of `from` */
    tn_group *pair;      /* in the saver's order; NULL: not connected */

    /* The current save. */
    tn__vault_head head;
    bool runs;        /* both can */
    int fd;           /* of the block to receive; -1 */
    tn_tensor *block; /* mapped, after its head; NULL */
    tn_work *work;    /* while it travels */
} tn__copy_link;

typedef struct tn__copies {
    char *text;           /* of which the links were made */
    tn__copy_link *links; /* this rank's, by sender */
    int count;
    double deadline; /* of the current save's copies */
} tn__copies;

/* Rank 0: decides who sends to whom. */
void tn__copies_deal(tn__copy_place *places, int ranks);
/* Appends a rank's links as text, for tn__copies_set. Nothing: there is one host. */
void tn__copies_put(const tn__copy_place *places, int ranks, int rank, tn__buffer *text);

/* Every rank: its links are these. False after raising. */
bool tn__copies_set(tn_saver *s, const char *text);

/* In the saver's thread, once this rank has saved (`saved`) or could not: sends its copy and
 * receives others'. Says in why[TN__VAULT_WHY] why one was not made ("": all were, or another rank
 * says it). Raises nothing, and no other rank waits for this one. */
void tn__copies_exchange(tn_saver *s, bool saved, char *why);

/* With an error pending: tells those who may have agreed to save and wait for this rank. */
void tn__copies_refuse(tn_saver *s);

void tn__copies_free(tn__copies *c);

#endif
