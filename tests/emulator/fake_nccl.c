/* A stand-in for libnccl.so.2, for ranks over the emulator: TERN_NCCL names it.
 *
 * Ranks are processes or threads. They share one file, whose name is the unique id: a board with a
 * slot for each rank's part of a collective, and a lane for each pair's messages. An operation is
 * queued in the emulated stream, and each poll for its end runs it for a few milliseconds. As in
 * NCCL a communicator with blocking = 0 is in progress at first.
 *
 * It refuses what NCCL refuses; what would cause a wrong result or a hang there ends the process
 * here, with a message: memory or a stream of another device, results that overlap what is read,
 * ranks that do not call the same operation. So do the limits of the stand-in: RANKS ranks, SLOT
 * bytes for a rank's part, LANE for a message, no blocking communicators, and in a group of calls
 * only messages of one communicator.
 *
 * TERN_FAKE_NCCL makes it fail; then no operation waits for long, and nothing recovers:
 *     absent:R      rank R never joins
 *     error:R:N     rank R's communicator has an asynchronous error from its N-th operation on
 *     hang:R:N      rank R's N-th operation never runs
 *     lossy         nothing; for ranks that are killed
 */
#define _GNU_SOURCE
#include "tests/emulator/fake_nccl.h"

#include "tests/distributed/elements.h"
#include "tests/emulator/loaded.h"

#include <nccl.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    RANKS = 8,
    SLOT = 64 << 20, /* the file is sparse */
    LANE = 16 << 20,
    PIECES = 2 * RANKS,
    UNSETTLED = 3, /* queries that are answered with "in progress" */
    REGIONS = 64,  /* of registered memory in a process */
    LAUNCHES = 1024,
};

/* Seconds for a step, for an operation, and for one with TERN_FAKE_NCCL set. */
static const double STEP = 3e-3, PATIENCE = 60, BROKEN_PATIENCE = 1.2;

typedef struct seat {
    _Atomic uint64_t posted, taken; /* collectives */
    _Atomic int joined;             /* device + 1 */
    uint64_t call;                  /* what the rank posted last: call_of */
} seat;

typedef struct lane {
    _Atomic uint64_t sent, taken;
} lane;

typedef struct board {
    seat seats[RANKS];
    lane lanes[RANKS][RANKS]; /* from, to */
} board;

enum { HEADER = 1 << 16 };
static const size_t BOARD = HEADER + (size_t)RANKS * SLOT + (size_t)RANKS * RANKS * LANE;

struct ncclComm {
    _Atomic int refs; /* the program's, and one for each operation */
    board *board;
    int rank, ranks, device;
    int number; /* of those that this process has made */
    _Atomic int under_way;
    int questions;
    uint64_t operations, collectives;
    ncclResult_t error;
    atomic_bool aborted;
    bool settled;
    char path[NCCL_UNIQUE_ID_BYTES];
};

typedef enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, MESSAGES } kind;

typedef struct piece {
    bool sends, done;
    int peer;
    void *data;
    size_t bytes;
} piece;

typedef struct op {
    ncclComm_t comm;
    kind kind;
    const void *in;
    void *out;
    size_t count;
    tn_dtype dtype;
    ncclRedOp_t reduce;
    int root;
    uint64_t number; /* of the collectives */
    bool posted, done, never;
    double end; /* of its patience; 0: it has not begun */
    piece pieces[PIECES];
    int piece_count;
    void *stream;
} op;

static _Thread_local char last_error[256];

/* A misuse that the real library would not survive. */
__attribute__((noreturn)) static void abort_misuse(const char *how) {
    fprintf(stderr, "fake NCCL: %s\n", how);
    abort();
}

/* "Attempt to use communicator before the previous operation returned ncclSuccess" */
static void expect_settled(const struct ncclComm *c) {
    if (c->questions > 0) { abort_misuse("a communicator is used while something is in progress"); }
}

/* ---- The emulator ---------------------------------------------------------------------------- */

typedef struct emulator {
    bool (*queue)(int device, void *stream, bool (*work)(void *), void *user);
    int (*owner)(const void *memory, size_t bytes);
    void *(*alloc)(size_t bytes);
    void (*free)(void *memory);
    int (*device)(void);
} emulator;

static const emulator *emulator_table(void) {
    static emulator e;
    if (!e.queue) {
        void *handle = loaded_emulator();
        if (!handle) { abort_misuse("the emulator is not loaded"); }
        *(void **)&e.alloc = dlsym(handle, "tern_emulator_alloc");
        *(void **)&e.free = dlsym(handle, "tern_emulator_free");
        *(void **)&e.device = dlsym(handle, "tern_emulator_device");
        *(void **)&e.owner = dlsym(handle, "tern_emulator_owner");
        *(void **)&e.queue = dlsym(handle, "tern_emulator_queue");
    }
    return &e;
}

/* ---- Faults ---------------------------------------------------------------------------------- */

static bool is_broken(void) {
    const char *fault = getenv("TERN_FAKE_NCCL");
    return fault && *fault;
}

/* Whether the fault `name` is this rank's; *number is its N. */
static bool has_fault(const char *name, int rank, int *number) {
    const char *fault = getenv("TERN_FAKE_NCCL");
    int whose = -1;
    *number = 0;
    size_t length = strlen(name);
    if (!fault || strncmp(fault, name, length) != 0 || fault[length] != ':') { return false; }
    sscanf(fault + length + 1, "%d:%d", &whose, number);
    return whose == rank;
}

/* ---- Elements -------------------------------------------------------------------------------- */

static tn_dtype dtype_of(ncclDataType_t type) {
    switch (type) {
    case ncclFloat32:
        return TN_F32;
    case ncclFloat64:
        return TN_F64;
    case ncclBfloat16:
        return TN_BF16;
    case ncclFloat16:
        return TN_F16;
    case ncclInt64:
        return TN_I64;
    case ncclInt32:
        return TN_I32;
    case ncclUint8:
        return TN_U8;
    case ncclInt8:
        return TN_I8;
    default:
        abort_misuse("a type that Tern does not have");
    }
}

/* Memory of the communicator's device, for `bytes`. */
static void expect_memory(const struct ncclComm *c, const void *memory, size_t bytes) {
    if (bytes > 0 && emulator_table()->owner(memory, bytes) != c->device) {
        abort_misuse("memory that is not its device's");
    }
}

static bool is_reduction(ncclRedOp_t how) {
    return how == ncclSum || how == ncclProd || how == ncclMin || how == ncclMax || how == ncclAvg;
}

static double reduce_two(ncclRedOp_t how, double a, double b) {
    return how == ncclProd  ? a * b
           : how == ncclMin ? (a < b ? a : b)
           : how == ncclMax ? (a > b ? a : b)
                            : a + b;
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static char *slot_of(board *b, int rank) {
    return (char *)b + HEADER + (size_t)rank * SLOT;
}

/* From the last rank to the first: an order unlike other engines', as NCCL's is. */
static void reduce_parts(const op *o, size_t skip) {
    const struct ncclComm *c = o->comm;
    for (int64_t i = 0, at = (int64_t)skip; i < (int64_t)o->count; i++, at++) {
        double sum = get_element(o->dtype, slot_of(c->board, c->ranks - 1), at);
        for (int r = c->ranks - 2; r >= 0; r--) {
            sum = reduce_two(o->reduce, sum, get_element(o->dtype, slot_of(c->board, r), at));
        }
        put_element(o->dtype, o->out, i, o->reduce == ncclAvg ? sum / c->ranks : sum);
    }
}

static bool all_have(const struct ncclComm *c, bool posted, uint64_t number) {
    for (int r = 0; r < c->ranks; r++) {
        seat *s = &c->board->seats[r];
        if (atomic_load(posted ? &s->posted : &s->taken) < number) { return false; }
    }
    return true;
}

/* Zero bytes may have NULL addresses. */
static void copy_bytes(void *to, const void *from, size_t bytes) {
    if (bytes > 0) { memcpy(to, from, bytes); }
}

static void take_results(const op *o) {
    const struct ncclComm *c = o->comm;
    size_t bytes = o->count * tn_dtype_size(o->dtype);
    switch (o->kind) {
    case ALL_REDUCE:
        reduce_parts(o, 0);
        break;
    case REDUCE:
        if (c->rank == o->root) { reduce_parts(o, 0); }
        break;
    case REDUCE_SCATTER:
        reduce_parts(o, (size_t)c->rank * o->count);
        break;
    case BROADCAST:
        copy_bytes(o->out, slot_of(c->board, o->root), bytes);
        break;
    default:
        for (int r = 0; r < c->ranks; r++) {
            copy_bytes((char *)o->out + (size_t)r * bytes, slot_of(c->board, r), bytes);
        }
    }
}

/* Bytes that this rank reads and writes. */
static size_t bytes_in(const op *o) {
    size_t parts = o->kind == REDUCE_SCATTER ? (size_t)o->comm->ranks : 1;
    bool gives = o->kind != BROADCAST || o->comm->rank == o->root;
    return gives ? parts * o->count * tn_dtype_size(o->dtype) : 0;
}

static size_t bytes_out(const op *o) {
    size_t parts = o->kind == ALL_GATHER ? (size_t)o->comm->ranks : 1;
    bool gets = o->kind != REDUCE || o->comm->rank == o->root;
    return gets ? parts * o->count * tn_dtype_size(o->dtype) : 0;
}

/* What has to be the same on all ranks, as one number. */
static uint64_t call_of(const op *o) {
    uint64_t call = (uint64_t)o->kind;
    call = call * 31 + (uint64_t)o->dtype;
    call = call * 31 + (uint64_t)o->reduce;
    call = call * 31 + (uint64_t)o->root;
    return call * 1000003 + o->count;
}

static void expect_same_calls(const struct ncclComm *c) {
    for (int r = 1; r < c->ranks; r++) {
        if (c->board->seats[r].call != c->board->seats[0].call) {
            abort_misuse("the ranks do not call the same operation");
        }
    }
}

static void advance_collective(op *o) {
    const struct ncclComm *c = o->comm;
    seat *mine = &c->board->seats[c->rank];
    if (!o->posted && all_have(c, false, o->number - 1)) {
        copy_bytes(slot_of(c->board, c->rank), o->in, bytes_in(o));
        mine->call = call_of(o);
        atomic_store(&mine->posted, o->number);
        o->posted = true;
    }
    if (o->posted && all_have(c, true, o->number)) {
        expect_same_calls(c);
        take_results(o);
        atomic_store(&mine->taken, o->number);
        o->done = true;
    }
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void advance_piece(const op *o, piece *p) {
    const struct ncclComm *c = o->comm;
    int from = p->sends ? c->rank : p->peer, to = p->sends ? p->peer : c->rank;
    lane *l = &c->board->lanes[from][to];
    char *data =
        (char *)c->board + HEADER + (size_t)RANKS * SLOT + (size_t)(from * RANKS + to) * LANE;
    uint64_t sent = atomic_load(&l->sent), taken = atomic_load(&l->taken);
    if (p->sends && sent == taken) {
        copy_bytes(data, p->data, p->bytes);
        atomic_store(&l->sent, sent + 1);
        p->done = true;
    } else if (!p->sends && sent > taken) {
        copy_bytes(p->data, data, p->bytes);
        atomic_store(&l->taken, taken + 1);
        p->done = true;
    }
}

static void advance_op(op *o) {
    if (o->kind != MESSAGES) {
        advance_collective(o);
        return;
    }
    o->done = true;
    for (int i = 0; i < o->piece_count; i++) {
        if (!o->pieces[i].done) { advance_piece(o, &o->pieces[i]); }
        o->done = o->done && o->pieces[i].done;
    }
}

/* ---- What tests ask -------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    int communicators, launches, depth;
    int launched[LAUNCHES]; /* in which communicator */
} diary = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int note_communicator(void) {
    pthread_mutex_lock(&diary.lock);
    int number = diary.communicators++;
    pthread_mutex_unlock(&diary.lock);
    return number;
}

static void note_launch(ncclComm_t c) {
    int under_way = atomic_fetch_add(&c->under_way, 1) + 1;
    pthread_mutex_lock(&diary.lock);
    diary.launched[diary.launches++ % LAUNCHES] = c->number;
    diary.depth = under_way > diary.depth ? under_way : diary.depth;
    pthread_mutex_unlock(&diary.lock);
}

EXPORT int fake_nccl_launches(int *communicators, int most) {
    pthread_mutex_lock(&diary.lock);
    int n = diary.launches;
    for (int i = 0; i < n && i < most && i < LAUNCHES; i++) {
        communicators[i] = diary.launched[i];
    }
    pthread_mutex_unlock(&diary.lock);
    return n;
}

EXPORT int fake_nccl_depth(void) {
    pthread_mutex_lock(&diary.lock);
    int depth = diary.depth;
    pthread_mutex_unlock(&diary.lock);
    return depth;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static double seconds_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void comm_drop(ncclComm_t c) {
    if (atomic_fetch_sub(&c->refs, 1) == 1) {
        munmap(c->board, BOARD);
        free(c);
    }
}

/* Works on an operation for a while; returns whether it is over. */
static bool take_step(void *user) {
    op *o = user;
    ncclComm_t c = o->comm;
    double end = seconds_now() + STEP;
    o->end = o->end > 0 ? o->end : seconds_now() + (is_broken() ? BROKEN_PATIENCE : PATIENCE);
    while (!o->done && !atomic_load(&c->aborted) && seconds_now() < end) {
        if (!o->never) { advance_op(o); }
        if (!o->done) { nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL); }
    }
    if (!o->done && !atomic_load(&c->aborted) && seconds_now() < o->end) { return false; }
    atomic_fetch_sub(&c->under_way, 1);
    comm_drop(c);
    free(o);
    return true;
}

static ncclResult_t submit_op(op *o) {
    ncclComm_t c = o->comm;
    int number;
    expect_settled(c);
    c->operations++;
    if (has_fault("error", c->rank, &number) && c->operations >= (uint64_t)number) {
        c->error = ncclRemoteError;
        o->never = true;
    }
    if (has_fault("hang", c->rank, &number) && c->operations == (uint64_t)number) {
        o->never = true;
    }
    if (o->kind != MESSAGES) { o->number = ++c->collectives; }
    note_launch(c);
    atomic_fetch_add(&c->refs, 1);
    c->questions = 1; /* in progress once more */
    if (!emulator_table()->queue(c->device, o->stream, take_step, o)) {
        abort_misuse("a stream that is not its device's");
    }
    return ncclInProgress;
}

static _Thread_local op *open_group;
static _Thread_local int depth;

/* In place: a gather's part is where it will end up, a scatter's result where its part is. */
static void expect_apart(const op *o) {
    const char *in = o->in, *out = o->out;
    size_t part = (size_t)o->comm->rank * o->count * tn_dtype_size(o->dtype);
    bool in_place = o->kind == ALL_GATHER       ? in == out + part
                    : o->kind == REDUCE_SCATTER ? out == in + part
                                                : in == out;
    if (!in_place && in < out + bytes_out(o) && out < in + bytes_in(o)) {
        abort_misuse("the result overlaps what is read");
    }
}

static ncclResult_t queue_collective(kind what, const void *in, void *out, size_t count,
                                     ncclDataType_t type, ncclRedOp_t how, int root,
                                     ncclComm_t comm, cudaStream_t stream) {
    if (!is_reduction(how) || root < 0 || root >= comm->ranks) { return ncclInvalidArgument; }
    op *o = calloc(1, sizeof(*o));
    *o = (op){.comm = comm,
              .kind = what,
              .in = in,
              .out = out,
              .count = count,
              .dtype = dtype_of(type),
              .reduce = how,
              .root = root,
              .stream = stream};
    if (depth > 0 || bytes_in(o) > SLOT) {
        abort_misuse(depth > 0 ? "a collective in a group of calls"
                               : "a part is larger than the board's slots");
    }
    expect_memory(comm, in, bytes_in(o));
    expect_memory(comm, out, bytes_out(o));
    expect_apart(o);
    return submit_op(o);
}

/* ---- Groups of messages ---------------------------------------------------------------------- */

static ncclResult_t queue_message(bool sends, void *data, size_t count, ncclDataType_t type,
                                  int peer, ncclComm_t comm, cudaStream_t stream) {
    if (peer < 0 || peer >= comm->ranks) { return ncclInvalidArgument; }
    if (!open_group) {
        open_group = calloc(1, sizeof(op));
        *open_group = (op){.comm = comm, .kind = MESSAGES, .stream = stream};
    }
    op *o = open_group;
    size_t bytes = count * tn_dtype_size(dtype_of(type));
    if (o->comm != comm || o->stream != stream || o->piece_count == PIECES || bytes > LANE) {
        abort_misuse(bytes > LANE
                         ? "a message is larger than the board's lanes"
                         : "more messages, communicators or streams than a group can have");
    }
    expect_memory(comm, data, bytes);
    o->pieces[o->piece_count++] =
        (piece){.sends = sends, .peer = peer, .data = data, .bytes = bytes};
    if (depth > 0) { return ncclSuccess; }
    open_group = NULL;
    return submit_op(o);
}

EXPORT ncclResult_t ncclGroupStart(void); /* nccl.h has no prototypes of these */
EXPORT ncclResult_t ncclGroupEnd(void);

EXPORT ncclResult_t ncclGroupStart(void) {
    depth++;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void) {
    if (depth == 0) { return ncclInvalidUsage; }
    op *o = --depth == 0 ? open_group : NULL;
    if (!o) { return ncclSuccess; }
    open_group = NULL;
    return submit_op(o);
}

EXPORT ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
    return queue_message(true, (void *)data, count, type, peer, comm, stream);
}

EXPORT ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream) {
    return queue_message(false, data, count, type, peer, comm, stream);
}

/* ---- The other operations -------------------------------------------------------------------- */

EXPORT ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                                  ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream) {
    return queue_collective(ALL_REDUCE, in, out, count, type, how, 0, comm, stream);
}

EXPORT ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                                      ncclRedOp_t how, ncclComm_t comm, cudaStream_t stream) {
    return queue_collective(REDUCE_SCATTER, in, out, count, type, how, 0, comm, stream);
}

EXPORT ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream) {
    return queue_collective(ALL_GATHER, in, out, count, type, ncclSum, 0, comm, stream);
}

EXPORT ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type,
                                  int root, ncclComm_t comm, cudaStream_t stream) {
    return queue_collective(BROADCAST, in, out, count, type, ncclSum, root, comm, stream);
}

EXPORT ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t how, int root, ncclComm_t comm, cudaStream_t stream) {
    return queue_collective(REDUCE, in, out, count, type, how, root, comm, stream);
}

/* ---- Communicators --------------------------------------------------------------------------- */

EXPORT ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError    ? "remote process exited or there was a network error"
           : result == ncclInvalidUsage ? "invalid usage (run with NCCL_DEBUG=WARN for details)"
           : result == ncclSystemError  ? "unhandled system error"
           : result == ncclInvalidArgument
               ? "invalid argument (run with NCCL_DEBUG=WARN for details)"
               : "no error";
}

EXPORT const char *ncclGetLastError(ncclComm_t comm) {
    return last_error;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    const char *folder = getenv("TMPDIR");
    memset(id, 0, sizeof(*id));
    snprintf(id->internal, sizeof(id->internal), "%.90s/fake_nccl_XXXXXX",
             folder && *folder ? folder : "/tmp");
    int file = mkstemp(id->internal);
    bool fine = file >= 0 && ftruncate(file, (off_t)BOARD) == 0;
    if (file >= 0) { close(file); }
    return fine ? ncclSuccess : ncclSystemError;
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config) {
    static const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
    if (!config || config->magic != initial.magic || ranks < 1 || rank < 0 || rank >= ranks) {
        return ncclInvalidArgument;
    }
    if (ranks > RANKS || config->blocking != 0) {
        abort_misuse(ranks > RANKS ? "more ranks than the board has seats"
                                   : "a communicator that blocks");
    }
    int file = open(id.internal, O_RDWR), number;
    void *memory =
        file < 0 ? MAP_FAILED
                 : mmap(NULL, BOARD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (file >= 0) { close(file); }
    if (memory == MAP_FAILED) { return ncclSystemError; }
    ncclComm_t c = calloc(1, sizeof(*c));
    c->board = memory;
    c->rank = rank;
    c->ranks = ranks;
    c->device = emulator_table()->device();
    c->number = note_communicator();
    c->questions = UNSETTLED;
    memcpy(c->path, id.internal, sizeof(c->path));
    atomic_store(&c->refs, 1);
    if (!has_fault("absent", rank, &number)) {
        atomic_store(&c->board->seats[rank].joined, c->device + 1);
    }
    *comm = c;
    return ncclInProgress;
}

/* Once all have joined: checks whether two are on one GPU. */
static ncclResult_t settle_comm(ncclComm_t c) {
    for (int r = 0; r < c->ranks; r++) {
        if (atomic_load(&c->board->seats[r].joined) == 0) { return ncclInProgress; }
    }
    c->settled = true;
    unlink(c->path);
    for (int r = 0; r < c->ranks; r++) {
        if (r != c->rank && atomic_load(&c->board->seats[r].joined) == c->device + 1) {
            snprintf(last_error, sizeof(last_error),
                     "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d000",
                     c->rank, r, c->device + 1);
            c->error = ncclInvalidUsage;
        }
    }
    return c->error;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *result) {
    if (c->questions > 0) {
        c->questions--;
        *result = ncclInProgress;
    } else {
        *result = c->settled ? c->error : settle_comm(c);
        if (*result == ncclRemoteError) {
            snprintf(last_error, sizeof(last_error), "fake: connection closed by remote peer");
        }
    }
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    expect_settled(comm);
    comm->questions = UNSETTLED;
    return ncclInProgress;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    expect_settled(comm);
    comm_drop(comm);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
    atomic_store(&comm->aborted, true);
    comm_drop(comm);
    return ncclSuccess;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

EXPORT ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
    *memory = emulator_table()->alloc(bytes);
    return *memory ? ncclSuccess : ncclSystemError;
}

/* Memory registered with a communicator of this process. */
static pthread_mutex_t region_lock = PTHREAD_MUTEX_INITIALIZER;
static void *registered[REGIONS];

static bool replace_region(void *memory, void *with) {
    bool found = false;
    pthread_mutex_lock(&region_lock);
    for (int i = 0; i < REGIONS && !found; i++) {
        found = registered[i] == memory;
        registered[i] = found ? with : registered[i];
    }
    pthread_mutex_unlock(&region_lock);
    return found;
}

EXPORT ncclResult_t ncclMemFree(void *memory) {
    if (memory && replace_region(memory, NULL)) { abort_misuse("registered memory is freed"); }
    emulator_table()->free(memory);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes,
                                     void **handle) {
    expect_settled(comm);
    comm->questions = 1;
    *handle = memory;
    return replace_region(NULL, memory) ? ncclInProgress : ncclSystemError;
}

EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    expect_settled(comm);
    if (!replace_region(handle, NULL)) {
        abort_misuse("memory that is not registered is deregistered");
    }
    return ncclSuccess;
}
