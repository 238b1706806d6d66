/* The inside of the engine "shm": ranks are processes of one host and share memory.
 *
 *     shm.c      joining, leaving, the table; which way an operation goes
 *     sync.c     waiting for each other: barriers, bells, who has died, failure
 *     memory.c   memory without names, and the regions of alloc
 *     move.c     collectives: directly between regions, or staged through slots
 *     lanes.c    send and receive
 *
 * Rank 0 makes one block of memory and the others map it:
 *
 *     control | seat of each rank | lane for each pair | bytes of the lanes | slots of each rank
 *
 * Everything in it is plain data with atomic words: a rank that is killed leaves nothing locked.
 */
#ifndef TERN_DISTRIBUTED_GROUP_SHM_H
#define TERN_DISTRIBUTED_GROUP_SHM_H

#include "distributed/group/engine/view.h"
#include "distributed/group/fingerprint.h"

#include <poll.h>
#include <stdatomic.h>

enum {
    TN__SHM_RANKS = TN__VIEW_RANKS, /* at most */
    TN__SHM_PAGE = 4096
};

static inline size_t tn__shm_round(size_t bytes) { /* up to whole pages */
    return (bytes + TN__SHM_PAGE - 1) / TN__SHM_PAGE * TN__SHM_PAGE;
}

/* A process, and not a later one that has been given the same number. */
typedef struct tn__shm_process {
    uint64_t start; /* when it began, in ticks since the boot */
    int32_t pid;
} tn__shm_process;

/* What rank 0 writes to the store: where its block is. */
typedef struct tn__shm_announcement {
    uint64_t nonce;
    tn__shm_process process;
    int32_t fd;
    int32_t failed; /* errno, and then there is no block */
} tn__shm_announcement;

/* Where a buffer is in memory from alloc, the same for every rank. */
typedef struct tn__shm_place {
    int64_t region; /* -1: in none */
    uint64_t offset;
} tn__shm_place;

/* What a rank says about itself when it arrives at a collective. */
typedef struct tn__shm_record {
    tn__fingerprint print;
    tn__shm_place in, out;
    bool in_place;
} tn__shm_record;

/* One rank, as the others see it. */
typedef struct tn__shm_seat {
    /* The futex on which this rank sleeps: it grows with every event that the rank may be waiting
     * for. */
    _Alignas(128) _Atomic uint32_t bell;
    _Atomic uint32_t sleeping;
    _Alignas(128) _Atomic uint64_t steps; /* barriers at which it has arrived */
    /* The number of its operation, its kind, and whether it is still in it: see tn__shm_enter. */
    _Atomic uint64_t doing;
    _Atomic int32_t pid;
    _Atomic bool left;
    int alloc_error; /* errno of its part of an allocation */
    /* For the collectives with even and odd numbers: a rank writes the next one while others still
     * read this one, but none is two ahead. */
    tn__shm_record records[2];
} tn__shm_seat;

/* Bytes in flight from one rank to another: a ring. */
typedef struct tn__shm_lane {
    _Alignas(128) _Atomic uint64_t written; /* by the sender; both count from the beginning */
    _Alignas(128) _Atomic uint64_t taken;   /* by the receiver */
} tn__shm_lane;

typedef struct tn__shm_control {
    uint64_t magic, nonce;
    uint64_t bytes; /* of the whole block */
    int32_t ranks;
    /* Memory that rank 0 has just made for all ranks. */
    int32_t region_fd;
    uint64_t region_inode;

    /* Failure: 0 none, 1 being written, 2 to be read. */
    _Alignas(128) _Atomic int32_t failed;
    int32_t status;
    char reason[TN_ENGINE_WHY];

    _Alignas(128) _Atomic uint64_t arrivals; /* of all ranks at all barriers */
    _Alignas(128) _Atomic uint64_t round;    /* barriers at which all have arrived */
    _Alignas(128) tn__shm_seat seats[];
} tn__shm_control;

/* Memory of alloc. Its last page counts the ranks that have freed it. */
typedef struct tn__shm_region {
    struct tn__shm_region *next;
    struct tn__shm_region *next_mapped; /* of all engines of this process */
    int fd;
    int64_t number;
    char *base;
    size_t bytes, stride; /* of the mapping; from one rank's part to the next one's */
    bool freed;           /* by this rank */
} tn__shm_region;

/* Bytes that arrived while this rank waited for something else. */
typedef struct tn__shm_letter tn__shm_letter;

typedef struct tn__shm {
    tn_engine base;
    tn__shm_process host; /* rank 0 */
    tn__shm_control *control;
    tn__shm_lane *lanes; /* [from * ranks + to] */
    char *lane_bytes, *slots;
    size_t lane_size, slot_size;
    uint64_t steps;           /* like my seat's */
    uint64_t collectives;     /* records published */
    uint64_t chunks;          /* staged: says which of the two slots is next */
    bool spin;                /* there is a core for every rank */
    struct pollfd *peers;     /* [ranks], readable when the process has ended; fd -1: not known */
    tn__shm_letter **letters; /* [ranks], oldest first */
    int reading;              /* the lane that recv reads itself; -1: none */

    pthread_mutex_t lock; /* of the regions: free may be called by any thread */
    tn__shm_region *regions;
    int64_t next_region;
} tn__shm;

/* ---- sync.c ------------------------------------------------------------------------------ */

/* Sleeping until something has changed. The condition is checked between the calls:
 *
 *     tn__shm_wait w = tn__shm_wait_begin(e, from, deadline);
 *     while (!condition && status == TN_OK) { status = tn__shm_wait_more(e, &w); }
 *
 * A rank that is found to be gone may have done its part before, so the condition is checked once
 * more. */
typedef struct tn__shm_wait {
    uint32_t seen; /* the bell, before the condition was checked */
    int from;      /* the rank we wait for; -1: all */
    bool comes;    /* waits for a send, which `from` cannot do inside a collective */
    bool may_leave;
    double deadline;
    enum { TN__SHM_FINE, TN__SHM_LATE, TN__SHM_LEFT, TN__SHM_DIED, TN__SHM_ELSEWHERE } trouble;
    int who;
} tn__shm_wait;
tn__shm_wait tn__shm_wait_begin(const tn__shm *e, int from, double deadline);
tn_status tn__shm_wait_more(tn__shm *e, tn__shm_wait *w);

/* Wakes a rank that waits for what has just been written. */
void tn__shm_ring(tn__shm *e, int rank);

/* All ranks arrive; what they wrote before is seen by all after. */
tn_status tn__shm_barrier(tn__shm *e, double deadline);

/* Says in my seat what I am doing, and that it is done. Allocations are not numbered. */
void tn__shm_enter(tn__shm *e, int kind, uint64_t sequence);
void tn__shm_leave(tn__shm *e);

/* The first failure of any rank is the group's. Returns its status. */
tn_status tn__shm_fail(tn__shm *e, tn_status status, const char *format, ...) TN_PRINTF(3, 4);
tn_status tn__shm_failed(const tn__shm *e); /* TN_OK while there is none */
tn_status tn__shm_raise(const tn__shm *e);  /* raises it, if there is one */

/* Whether a rank has died or given up, or with `all` has left, without waiting. */
tn_status tn__shm_look(tn__shm *e, bool all);

/* Opens the peers' processes, to notice when they end. Between two barriers. */
tn_status tn__shm_watch(tn__shm *e);

/* ---- memory.c ---------------------------------------------------------------------------- */

/* The size of the block for `ranks` ranks, and the number it begins with. */
TN_API size_t tn__shm_block(int ranks);
TN_API extern const uint64_t tn__shm_magic;

TN_API tn__shm_process tn__shm_this_process(void);
TN_API uint64_t tn__shm_start(int pid); /* 0: there is no such process */

/* `bytes` of new memory that has no name and keeps its size; a file descriptor, or -1 with errno.
 */
TN_API int tn__shm_create(size_t bytes);
/* Allocates the pages of this part now, or returns errno: a page that is missing later would mean
 * SIGBUS. */
int tn__shm_reserve(int fd, size_t offset, size_t bytes);
/* Opens the memory of `bytes` that a descriptor of another process refers to. -1 with errno: ESRCH
 * when it is not that process, EPERM when the process or its memory is another user's, ESTALE for
 * anything else, or memory that could still be truncated while it is mapped. */
int tn__shm_open(const tn__shm_process *process, int fd, size_t bytes);

void *tn__shm_alloc(tn_engine *base, size_t bytes, double deadline);
void tn__shm_free(tn_engine *base, void *memory);
void tn__shm_free_all(tn__shm *e);

tn__shm_place tn__shm_place_of(tn__shm *e, const void *data);
void *tn__shm_at(tn__shm *e, tn__shm_place place);

/* ---- move.c ------------------------------------------------------------------------------ */

/* Arrives at a collective (or an allocation), and compares what all are about to do. */
tn_status tn__shm_meet(tn__shm *e, const tn__shm_record *mine, double deadline);
tn_status tn__shm_collective(tn__shm *e, const tn_transfer *t);

/* ---- lanes.c ----------------------------------------------------------------------------- */

tn_status tn__shm_send(tn__shm *e, const tn_transfer *t);
tn_status tn__shm_recv(tn__shm *e, const tn_transfer *t);
/* Takes in what others have sent, so that two ranks that send to each other both continue. */
tn_status tn__shm_take_letters(tn__shm *e);
void tn__shm_free_letters(tn__shm *e);

#endif
