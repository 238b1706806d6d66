/* The engine "nccl": collectives of GPUs through NCCL (sys/group.h;
 * distributed/group/engine/nccl.c loads it).
 *
 * Joining: rank 0 makes the unique id and writes it to the store; then each rank makes a
 * non-blocking communicator with its own stream. An operation waits for its ready mark in that
 * stream, is submitted to NCCL, and is then watched until its end mark: for the deadline, for
 * NCCL's asynchronous errors, for an abort, and for what the engine beside this one reports about
 * the ranks. Several may be queued: the stream runs them in order, and the oldest is watched. After
 * a failure the communicator is aborted, which ends its kernels, and nothing more runs.
 *
 * NCCL is used by one thread at a time: memory freed by other threads waits in a list for the next
 * operation.
 */
#include "backends/cuda/cuda.h"
#include "backends/cuda/libraries.h"
#include "core/clock.h"

#include <tern/sys/group.h>
#include <tern/sys/store.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

__attribute__((visibility("default"))) tn_nccl_engine_function tern_nccl_engine;

#if !TN_HAVE_NCCL

tn_engine *tern_nccl_engine(uint32_t version, const tn_engine_errors *errors,
                            const tn_engine_options *o) {
    errors->raise(TN_EUNSUPPORTED, "%s", tn__nccl_why());
    return NULL;
}

#else

static const tn_engine_errors *errors; /* of the libtern that loaded this plugin */

static const double NAP = 10e-6, LONGEST_NAP = 200e-6, BETWEEN_CHECKS = 0.25;
/* Seconds for communicators to finish. */
static const double GOODBYE = 5;

/* Memory registered with the communicator. */
typedef struct region {
    struct region *next;
    void *memory, *handle;
    bool freed; /* under the lock */
} region;

/* One wait, which checks the engine now and then. A rank may leave when it has done its part, so a
 * rank that has left is a failure only if every rank is needed until the end, and not at the first
 * check. */
typedef struct patience {
    double begun, deadline, next_check;
    int checks;
    bool all; /* every rank is needed */
} patience;

/* An operation in flight. */
typedef struct flight {
    struct flight *next;
    const tn__cuda_mark *end;
    void *copy; /* of its input, or NULL */
    patience patience;
} flight;

typedef struct nccl {
    tn_engine base;
    const tn__nccl_table *api;
    ncclComm_t comm; /* NULL: aborted */
    int index;
    cudaStream_t stream;
    tn_status (*check)(void *user, bool all);
    void *check_user;
    bool finalized;
    flight *flights; /* the oldest first */

    pthread_mutex_t lock;
    tn_status dead; /* TN_OK while alive */
    char reason[TN_ENGINE_WHY];
    region *regions;
} nccl;

/* ---- Failing --------------------------------------------------------------------------------- */

/* Keeps the first reason, which every later call gets. */
TN_PRINTF(3, 4) static tn_status engine_fail(nccl *e, tn_status status, const char *format, ...) {
    char text[TN_ENGINE_WHY];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    pthread_mutex_lock(&e->lock);
    if (e->dead == TN_OK) {
        e->dead = status;
        memcpy(e->reason, text, sizeof(text));
    }
    status = e->dead;
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* TN_OK while alive. */
static tn_status engine_failed(nccl *e) {
    pthread_mutex_lock(&e->lock);
    tn_status status = e->dead;
    pthread_mutex_unlock(&e->lock);
    return status;
}

/* Fails with the runtime's reason. */
static tn_status fail_cuda(nccl *e, tn_status status) {
    return engine_fail(e, status, "%s", tn__cuda_reason());
}

/* Raises the first failure, if there was one; once set, it does not change. */
static tn_status engine_raise(nccl *e) {
    tn_status status = engine_failed(e);
    return status == TN_OK ? TN_OK : errors->raise(status, "%s", e->reason);
}

static tn_status status_of(ncclResult_t result) {
    switch (result) {
    case ncclUnhandledCudaError:
        return TN_EDEVICE;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return TN_EUNSUPPORTED;
    default:
        return TN_EPEER;
    }
}

/* Fails with NCCL's message. */
static tn_status fail_nccl(nccl *e, ncclResult_t result, const char *what) {
    const char *last = e->api->GetLastError(e->comm);
    bool shared = last && strstr(last, "Duplicate GPU");
    return engine_fail(
        e, status_of(result), "NCCL, %s: %s%s%.300s%s", what, e->api->GetErrorString(result),
        last && *last ? ": " : "", last ? last : "",
        shared ? " (NCCL needs a GPU for each rank; with the engine staged they can share one)"
               : "");
}

static void flight_free(flight *f) {
    if (f) {
        cudaFree(f->copy);
        free(f);
    }
}

/* Ends what NCCL has in flight. */
static void abort_comm(nccl *e) {
    if (e->comm) {
        e->api->CommAbort(e->comm);
        e->comm = NULL;
    }
    while (e->flights) {
        flight *f = e->flights;
        e->flights = f->next;
        flight_free(f);
    }
}

/* ---- Waiting --------------------------------------------------------------------------------- */

static patience patience_of(double deadline, bool all) {
    double begun = tn__now();
    return (patience){begun, deadline, begun + BETWEEN_CHECKS, 0, all};
}

/* TN_OK: keep waiting. */
static tn_status check_engine(nccl *e, patience *p, const char *what) {
    double time = tn__now();
    tn_status status = engine_failed(e);
    if (status == TN_OK && e->check && time >= p->next_check) {
        status = e->check(e->check_user, p->all && p->checks > 0);
        p->checks++;
        p->next_check = time + BETWEEN_CHECKS;
        tn_error_record failed = {.message = "a peer has failed"};
        if (status != TN_OK) {
            errors->take(&failed);
            return engine_fail(e, status, "%s", failed.message + failed.why);
        }
    }
    if (status == TN_OK && time >= p->deadline) {
        return engine_fail(e, TN_EPEER, "NCCL has not finished %s within %.1f seconds", what,
                           p->deadline - p->begun);
    }
    return status;
}

/* Waits until a call that may continue asynchronously is done. */
static tn_status comm_settle(nccl *e, ncclResult_t result, double deadline, const char *what) {
    patience p = patience_of(deadline, false);
    tn_status status = TN_OK;
    double nap = NAP;
    while (result == ncclInProgress && status == TN_OK) {
        ncclResult_t asked = e->api->CommGetAsyncError(e->comm, &result);
        result = asked != ncclSuccess ? asked : result;
        if (result == ncclInProgress) {
            status = check_engine(e, &p, what);
            nanosleep(&(struct timespec){.tv_nsec = (long)(nap * 1e9)}, NULL);
            nap = nap < LONGEST_NAP ? 1.5 * nap : nap;
        }
    }
    return status != TN_OK ? status : result == ncclSuccess ? TN_OK : fail_nccl(e, result, what);
}

/* Whether no rank can have its result before all have contributed. */
static bool needs_all(tn_collective kind) {
    return kind == TN_ALL_REDUCE || kind == TN_ALL_GATHER || kind == TN_REDUCE_SCATTER ||
           kind == TN_ALL_TO_ALL;
}

/* Whether the stream has reached the end mark of t, the oldest operation. */
static tn_status flight_poll(nccl *e, flight *f, const tn_transfer *t, const char *what,
                             bool *over) {
    if (f->patience.begun == 0) { f->patience = patience_of(t->deadline, needs_all(t->kind)); }
    cudaError_t error = cudaEventQuery(f->end->event);
    (void)cudaGetLastError(); /* clears cudaErrorNotReady, which is not an error */
    *over = error != cudaErrorNotReady;
    if (*over) { return tn__cuda_check(error, what) == TN_OK ? TN_OK : fail_cuda(e, TN_EDEVICE); }
    ncclResult_t result = ncclSuccess, asked = e->api->CommGetAsyncError(e->comm, &result);
    result = asked != ncclSuccess ? asked : result;
    return result == ncclSuccess || result == ncclInProgress ? check_engine(e, &f->patience, what)
                                                             : fail_nccl(e, result, what);
}

/* ---- Operations ------------------------------------------------------------------------------ */

static bool type_of(tn_dtype dtype, ncclDataType_t *type) {
    static const struct {
        tn_dtype dtype;
        ncclDataType_t type;
    } all[] = {{TN_F32, ncclFloat32}, {TN_F64, ncclFloat64}, {TN_BF16, ncclBfloat16},
               {TN_F16, ncclFloat16}, {TN_I64, ncclInt64},   {TN_I32, ncclInt32},
               {TN_U8, ncclUint8},    {TN_I8, ncclInt8}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        if (all[i].dtype == dtype) {
            *type = all[i].type;
            return true;
        }
    }
    return false;
}

/* NCCL's integer means overflow in the sum and ours do not: only means of floats are left to it. */
static bool reduction_of(const tn_transfer *t, ncclRedOp_t *op) {
    static const struct {
        tn_reduction reduce;
        ncclRedOp_t op;
    } all[] = {{TN_MEAN, ncclAvg},
               {TN_SUM, ncclSum},
               {TN_PRODUCT, ncclProd},
               {TN_MIN, ncclMin},
               {TN_MAX, ncclMax}};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
        if (all[i].reduce == t->reduce) {
            *op = all[i].op;
            return t->reduce != TN_MEAN || tn__is_float(t->dtype);
        }
    }
    return false;
}

/* Messages between ranks, as one operation: sends in[r] to each rank r in `to`, receives out[r]
 * from each in `from`; -1: every rank, -2: none. */
enum { EVERYBODY = -1, NOBODY = -2 };

static bool includes_rank(int whom, int rank) {
    return whom == EVERYBODY || whom == rank;
}

static ncclResult_t exchange_parts(nccl *e, const tn_transfer *t, ncclDataType_t type, int to,
                                   int from) {
    size_t count = (size_t)t->count, size = tn__cuda_element(t->dtype);
    ncclResult_t result = e->api->GroupStart();
    for (int r = 0; r < e->base.ranks && result == ncclSuccess; r++) {
        size_t skip = (size_t)r * count * size;
        if (includes_rank(to, r)) { /* to one rank: `in` has one part */
            const char *part = (const char *)t->in + (to == EVERYBODY ? skip : 0);
            result = e->api->Send(part, count, type, r, e->comm, e->stream);
        }
        if (includes_rank(from, r) && (result == ncclSuccess || result == ncclInProgress)) {
            char *part = (char *)t->out + (from == EVERYBODY ? skip : 0);
            result = e->api->Recv(part, count, type, r, e->comm, e->stream);
        }
        result = result == ncclInProgress ? ncclSuccess : result;
    }
    ncclResult_t ended = e->api->GroupEnd();
    return result != ncclSuccess ? result : ended;
}

static ncclResult_t submit_transfer(nccl *e, const tn_transfer *t, ncclDataType_t type,
                                    ncclRedOp_t op) {
    const tn__nccl_table *api = e->api;
    size_t count = (size_t)t->count;
    int root_alone = e->base.rank == t->root ? EVERYBODY : NOBODY;
    switch (t->kind) {
    case TN_ALL_REDUCE:
        return api->AllReduce(t->in, t->out, count, type, op, e->comm, e->stream);
    case TN_ALL_GATHER:
        return api->AllGather(t->in, t->out, count, type, e->comm, e->stream);
    case TN_REDUCE_SCATTER:
        return api->ReduceScatter(t->in, t->out, count, type, op, e->comm, e->stream);
    case TN_BROADCAST:
        return api->Broadcast(t->in, t->out, count, type, t->root, e->comm, e->stream);
    case TN_REDUCE_TO_ROOT:
        return api->Reduce(t->in, t->out, count, type, op, t->root, e->comm, e->stream);
    case TN_GATHER:
        return exchange_parts(e, t, type, t->root, root_alone);
    case TN_SCATTER:
        return exchange_parts(e, t, type, root_alone, t->root);
    case TN_ALL_TO_ALL:
        return exchange_parts(e, t, type, EVERYBODY, EVERYBODY);
    case TN_SEND:
        return exchange_parts(e, t, type, t->root, NOBODY);
    case TN_RECV:
        return exchange_parts(e, t, type, NOBODY, t->root);
    default:
        return ncclInvalidUsage;
    }
}

/* A copy of `in`, because NCCL cannot exchange in place; may fail the engine. Rare, so it uses
 * cudaMalloc. */
static void *copy_input(nccl *e, const tn_transfer *t) {
    size_t bytes = (size_t)t->count * tn__cuda_element(t->dtype) * (size_t)e->base.ranks;
    void *copy = NULL;
    tn_status status = tn__cuda_check(cudaMalloc(&copy, bytes), "all_to_all in place");
    if (status == TN_OK) {
        status = tn__cuda_check(
            cudaMemcpyAsync(copy, t->in, bytes, cudaMemcpyDeviceToDevice, e->stream), "all_to_all");
    }
    if (status != TN_OK) { fail_cuda(e, status); }
    return copy;
}

static const char *name_of(tn_collective kind) {
    static const char *const names[TN_COLLECTIVES] = {
        [TN_ALL_REDUCE] = "all_reduce",
        [TN_ALL_GATHER] = "all_gather",
        [TN_REDUCE_SCATTER] = "reduce_scatter",
        [TN_BROADCAST] = "broadcast",
        [TN_REDUCE_TO_ROOT] = "reduce_to",
        [TN_GATHER] = "gather_to",
        [TN_SCATTER] = "scatter_from",
        [TN_ALL_TO_ALL] = "all_to_all",
        [TN_SEND] = "send",
        [TN_RECV] = "recv",
        [TN_BARRIER] = "barrier",
    };
    return (unsigned)kind < TN_COLLECTIVES ? names[kind] : "operation";
}

/* Marks the end of what is queued and passes the mark to the caller, who owns it from then on. */
static tn_status flight_begin(nccl *e, const tn_transfer *t, flight *f) {
    tn__cuda_mark *end = tn__cuda_mark_in(e->index, e->stream);
    if (!end) {
        fail_cuda(e, TN_EDEVICE);
        return TN_EDEVICE;
    }
    f->end = end;
    flight **last = &e->flights;
    while (*last) {
        last = &(*last)->next;
    }
    *last = f;
    t->launched(t->launched_user, end);
    return TN_OK;
}

static tn_status launch_transfer(nccl *e, const tn_transfer *given, flight *f) {
    tn_transfer t = *given;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    const char *what = name_of(t.kind);
    bool reduces =
        t.kind == TN_ALL_REDUCE || t.kind == TN_REDUCE_SCATTER || t.kind == TN_REDUCE_TO_ROOT;
    if (!type_of(t.dtype, &type) || (reduces && !reduction_of(&t, &op))) {
        engine_fail(e, TN_EUNSUPPORTED, "NCCL has no such %s (means are of floats only)", what);
        return TN_EUNSUPPORTED;
    }
    if (t.device.index != e->index) {
        engine_fail(e, TN_EDEVICE, "the tensors are on cuda:%d, but this rank's GPU is cuda:%d",
                    t.device.index, e->index);
        return TN_EDEVICE;
    }
    const tn__cuda_mark *ready = t.ready;
    if (ready && tn__cuda_check(cudaStreamWaitEvent(e->stream, ready->event, 0), what) != TN_OK) {
        fail_cuda(e, TN_EDEVICE);
        return TN_EDEVICE;
    }
    if (t.kind == TN_ALL_TO_ALL && t.in == t.out && t.count > 0) {
        t.in = f->copy = copy_input(e, &t);
    }
    tn_status status = engine_failed(e);
    if (status == TN_OK) {
        status = comm_settle(e, submit_transfer(e, &t, type, op), t.deadline, what);
    }
    return status == TN_OK ? flight_begin(e, &t, f) : status;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Deregisters the memory from NCCL. */
static void region_drop(nccl *e, region *r) {
    if (r->handle && e->comm && !e->finalized) {
        comm_settle(e, e->api->CommDeregister(e->comm, r->handle), tn__now() + GOODBYE,
                    "deregistering");
    }
    r->handle = NULL;
}

/* Frees regions marked as freed, after waiting for the compute stream, which may still use them.
 * `all`: frees every region, since the communicator is gone. */
static void reap_regions(nccl *e, bool all) {
    region *gone = NULL;
    pthread_mutex_lock(&e->lock);
    for (region **at = &e->regions; *at;) {
        region *r = *at;
        if (r->freed || all) {
            *at = r->next;
            r->next = gone;
            gone = r;
        } else {
            at = &r->next;
        }
    }
    pthread_mutex_unlock(&e->lock);
    const tn__cuda_device *device = gone ? tn__cuda_device_at(e->index) : NULL;
    if (device) { cudaStreamSynchronize(device->compute); }
    while (gone) {
        region *r = gone;
        gone = r->next;
        if (device) {
            region_drop(e, r);
            e->api->MemFree(r->memory);
        }
        free(r);
    }
}

static void *device_alloc(tn_engine *base, size_t bytes, double deadline) {
    nccl *e = (nccl *)base;
    if (engine_raise(e) != TN_OK || !tn__cuda_device_at(e->index)) { return NULL; }
    reap_regions(e, false);
    region *r = calloc(1, sizeof(*r));
    if (!r || e->api->MemAlloc(&r->memory, bytes) != ncclSuccess) {
        free(r);
        (void)cudaGetLastError();
        return NULL;
    }
    tn_status status = comm_settle(e, e->api->CommRegister(e->comm, r->memory, bytes, &r->handle),
                                   deadline, "registering memory");
    if (status != TN_OK) {
        engine_raise(e);
        e->api->MemFree(r->memory);
        free(r);
        return NULL;
    }
    pthread_mutex_lock(&e->lock);
    void *memory = r->memory;
    r->next = e->regions;
    e->regions = r;
    pthread_mutex_unlock(&e->lock);
    return memory;
}

static void device_free(tn_engine *base, void *memory) {
    nccl *e = (nccl *)base;
    pthread_mutex_lock(&e->lock);
    for (region *r = e->regions; r && memory; r = r->next) {
        if (r->memory == memory) { r->freed = true; }
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- The engine ------------------------------------------------------------------------------ */

static tn_status engine_launch(tn_engine *base, const tn_transfer *t) {
    nccl *e = (nccl *)base;
    flight *f = calloc(1, sizeof(*f));
    tn_status status = engine_failed(e);
    if (!f) {
        engine_fail(e, TN_ENOMEM, "out of memory");
        status = TN_ENOMEM;
    }
    if (status == TN_OK && !tn__cuda_device_at(e->index)) { status = fail_cuda(e, TN_EDEVICE); }
    if (status == TN_OK) {
        if (!e->flights) { /* reaping would wait for them */
            reap_regions(e, false);
        }
        status = launch_transfer(e, t, f);
    }
    if (status != TN_OK) {
        abort_comm(e);
        flight_free(f);
        return engine_raise(e); /* its first failure */
    }
    return TN_OK;
}

static tn_status engine_poll(tn_engine *base, const tn_transfer *t, bool *over) {
    nccl *e = (nccl *)base;
    tn_status status = engine_failed(e);
    if (status == TN_OK && !tn__cuda_device_at(e->index)) { status = fail_cuda(e, TN_EDEVICE); }
    if (status == TN_OK) { status = flight_poll(e, e->flights, t, name_of(t->kind), over); }
    if (status != TN_OK) {
        abort_comm(e);
        engine_raise(e);
    } else if (*over) {
        flight *f = e->flights;
        e->flights = f->next;
        flight_free(f);
    }
    return status;
}

static void engine_stop(tn_engine *base, const char *reason) {
    engine_fail((nccl *)base, TN_EPEER, "%s", reason ? reason : "aborted");
}

/* Returns when the peers need nothing more from this rank. Tensors may still use memory of the
 * engine, which is no longer registered. */
static void engine_leave(tn_engine *base) {
    nccl *e = (nccl *)base;
    if (e->comm && !e->finalized && engine_failed(e) == TN_OK && tn__cuda_device_at(e->index)) {
        reap_regions(e, false);
        for (region *r = e->regions; r; r = r->next) {
            region_drop(e, r);
        }
        e->finalized = true;
        comm_settle(e, e->api->CommFinalize(e->comm), tn__now() + GOODBYE, "saying goodbye");
    }
}

/* In a forked child, NCCL and its memory belong to the parent. */
static void engine_destroy(tn_engine *base) {
    nccl *e = (nccl *)base;
    bool there = tn__cuda_device_at(e->index) != NULL;
    if (there) {
        engine_leave(base);
        if (engine_failed(e) != TN_OK) {
            abort_comm(e);
        } else if (e->comm) {
            e->api->CommDestroy(e->comm);
            e->comm = NULL;
        }
    }
    reap_regions(e, true);
    if (e->stream && there) { cudaStreamDestroy(e->stream); }
    pthread_mutex_destroy(&e->lock);
    free(e);
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* Sends rank 0's unique id to all, or a text of another length: why there is none. */
static tn_status share_id(nccl *e, const tn_engine_options *o, ncclUniqueId *id) {
    tn_store_call c = {.kind = TN_STORE_GET, .key = "nccl/id", .deadline = o->deadline};
    if (o->rank == 0) {
        ncclResult_t result = e->api->GetUniqueId(id);
        const char *text = result == ncclSuccess ? id->internal : e->api->GetErrorString(result);
        c.kind = TN_STORE_SET;
        c.data = text;
        c.bytes = result == ncclSuccess ? sizeof(*id) : strlen(text);
        tn_status status = o->store->run(o->store, &c);
        return result != ncclSuccess ? fail_nccl(e, result, "a unique id")
               : status == TN_OK     ? TN_OK
                                     : engine_fail(e, status, "the store: %s", c.why);
    }
    tn_status status = o->store->run(o->store, &c);
    if (status != TN_OK) { return engine_fail(e, status, "the unique id of rank 0: %s", c.why); }
    if (c.value.bytes == sizeof(*id)) {
        memcpy(id, c.value.data, sizeof(*id));
    } else {
        status =
            engine_fail(e, TN_EPEER, "rank 0 has no unique id: %.*s",
                        c.value.bytes < 300 ? (int)c.value.bytes : 300, (const char *)c.value.data);
    }
    free(c.value.data);
    return status;
}

static tn_status comm_join(nccl *e, const tn_engine_options *o) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (!tn__cuda_device_at(e->index)) { return fail_cuda(e, TN_EDEVICE); }
    int least = 0, greatest = 0;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    tn_status status = tn__cuda_check(
        cudaStreamCreateWithPriority(&e->stream, cudaStreamNonBlocking, greatest), "a stream");
    if (status != TN_OK) { return fail_cuda(e, status); }
    status = share_id(e, o, &id);
    if (status != TN_OK) { return status; }
    ncclResult_t result = e->api->CommInitRankConfig(&e->comm, o->ranks, id, o->rank, &config);
    return comm_settle(e, result, o->deadline, "joining");
}

static nccl *engine_new(const tn__nccl_table *api, const tn_engine_options *o) {
    nccl *e = calloc(1, sizeof(*e));
    if (!e) { return NULL; }
    bool has_memory = api->MemAlloc && api->MemFree && api->CommRegister && api->CommDeregister;
    e->base = (tn_engine){.size = sizeof(tn_engine),
                          .version = TN_ENGINE_VERSION,
                          .name = "nccl",
                          .rank = o->rank,
                          .ranks = o->ranks,
                          .vague = true,
                          .devices = 1u << TN_CUDA,
                          .queues = 1u << TN_CUDA,
                          .launch = engine_launch,
                          .poll = engine_poll,
                          .abort = engine_stop,
                          .device_alloc = has_memory ? device_alloc : NULL,
                          .device_free = has_memory ? device_free : NULL,
                          .leave = engine_leave,
                          .destroy = engine_destroy};
    e->api = api;
    e->index = o->device.index;
    e->check = o->check;
    e->check_user = o->check_user;
    pthread_mutex_init(&e->lock, NULL);
    return e;
}

tn_engine *tern_nccl_engine(uint32_t version, const tn_engine_errors *given,
                            const tn_engine_options *o) {
    const tn__nccl_table *api = tn__nccl();
    errors = given;
    if (version != TN_ENGINE_VERSION) {
        errors->raise(TN_EUNSUPPORTED, "the CUDA plugin was built for another libtern");
        return NULL;
    }
    if (!api) {
        errors->raise(TN_EUNSUPPORTED, "%s", tn__nccl_why());
        return NULL;
    }
    if (!o) { return NULL; }
    nccl *e = engine_new(api, o);
    if (!e) {
        errors->raise(TN_ENOMEM, "out of memory");
        return NULL;
    }
    if (comm_join(e, o) != TN_OK) {
        engine_raise(e);
        engine_destroy(&e->base);
        return NULL;
    }
    return &e->base;
}

#endif
