/* A rank's vault: memory that outlives its process, for saves that need no disk.
 *
 * `tern run` makes two blocks of memory without a name (memfd) for each rank of its host, and,
 * where there are several, two for the copies of the rank with each place on another host
 * (copies.h). It keeps them until the job ends (tools/run_vault.c). TERN_VAULT says where: "PID
 * RANKS FD FD FD …", descriptors of that process: two for each of the RANKS local ranks, and then
 * two for each place; whoever may read its /proc/PID/fd, which is this user, opens them there. So
 * nothing is inherited, and nothing is left when the launcher ends. They are sealed against
 * becoming smaller, so they can be mapped without fear of SIGBUS.
 *
 * A block holds one save, or nothing:
 *
 *     0      a head: which save, and the digests of itself and of the tail
 *     4096   what this rank wrote, as a safetensors file
 *     …      the tail: what the rank had (manifest.h), a digest for each item, rank 0's metadata
 *
 * A save goes to the older of two blocks, but never to the one with the last save that all ranks
 * have ended without an error. Its head is erased first and written last, so a rank that is killed
 * in between leaves the other block, and the last save whose parts are all there is never missing.
 * A copy is the same bytes in a block of another host.
 *
 * The first saver that uses it has a rank's vault until it is freed: the lock (flock) keeps out
 * others, also those of programs that the rank has started.
 */
#ifndef TERN_DISTRIBUTED_PARALLEL_VAULT_H
#define TERN_DISTRIBUTED_PARALLEL_VAULT_H

#include "core/buffer.h"
#include "io/state.h"

enum { TN__VAULT_BEGIN = 4096, TN__VAULT_PLACES = 1 << 16, TN__VAULT_WHY = 256 };

/* The head, as it is in memory. All zeros: the block holds nothing. */
typedef struct tn__vault_head {
    char magic[16];
    int64_t step;
    uint64_t save; /* a random number, the same on all ranks */
    int64_t ranks, rank;
    int64_t image, tail; /* bytes */
    char folder[40];     /* the digest of the saver's folder */
    char tail_digest[40];
    char digest[40]; /* of all before it */
} tn__vault_head;

typedef struct tn__vault {
    bool opened;             /* tried once */
    uint32_t process;        /* that did (core/fork.h) */
    int own[2];              /* this rank's blocks; -1: it has none */
    int newest;              /* which of them has what was written last */
    uint64_t whole;          /* the last save that all ranks have; 0: none yet */
    char why[TN__VAULT_WHY]; /* it has none because …; "": it has */
    char folder[40];         /* as in a head */
    char host[40];           /* the same where the same launcher keeps the blocks */
} tn__vault;

/* What one rank saves. */
typedef struct tn__vault_save {
    int64_t step;
    uint64_t save;
    int rank, ranks;
    tn__state *state;       /* items whose tensor is NULL are not written; sets the digests */
    const tn__buffer *list; /* of the whole state */
    const char *metadata;   /* of rank 0; NULL */
    const char *operation;
} tn__vault_save;

/* Opens this rank's blocks, once, for savers of this folder. Raises nothing. */
void tn__vault_open(tn__vault *v, const char *folder);
void tn__vault_close(tn__vault *v);

/* Writes it. False with v->why: then the vault is closed. Raises nothing. */
bool tn__vault_write(tn__vault *v, const tn__vault_save *s);

/* Appends the heads of what all blocks of this host hold for this folder. */
void tn__vault_heads(const tn__vault *v, tn__buffer *heads);

/* Erases what blocks of this host hold for this folder of steps above `step`. */
void tn__vault_forget(const tn__vault *v, int64_t step);

/* Begins a copy of a block with this head, of the rank with this place on another host: all but the
 * head may be written to the descriptor that is returned. -1 with why: there is no room. */
int tn__vault_take(const tn__vault *v, int place, const tn__vault_head *head, char *why);
/* All is written: the copy counts from now on. False with errno. */
bool tn__vault_keep(int fd, const tn__vault_head *head);
/* Frees the copies on this host, but for those of the last whole save. */
void tn__vault_drop_copies(const tn__vault *v);

/* Whether it is a head, of bytes that can be counted. */
bool tn__vault_head_sound(const tn__vault_head *head);
bool tn__vault_head_of(int fd, tn__vault_head *head); /* false: the block holds nothing whole */

/* A block of any rank of this host that holds the same save as `head`, open for reading; -1: there
 * is none. */
int tn__vault_find(const tn__vault_head *head);

/* The tail of a block, checked, which the caller frees; NULL after raising. */
char *tn__vault_tail(int fd, const tn__vault_head *head, const char *operation);

#endif
