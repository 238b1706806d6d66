/* Calls between ranks: functions that run on another rank, and gradients through them.
 *
 *     static tn_values half(tn_values in, void *net) {         // on rank 1
 *         return TN_VALUES(tn_call(net, in.v[0]));
 *     }
 *
 *     tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());        // every rank
 *     tn_rpc_register(r, "half", half, &net);                  // rank 1
 *     tn_rpc_start(r);                                         // every rank
 *     tn_values y = tn_rpc_wait(tn_rpc_call(r, 1, "half", TN_VALUES(x), 0));
 *     tn_rpc_shutdown(r, 0);                                   // every rank
 *     tn_rpc_free(r);
 *
 * What goes in and comes out are up to TN_MAX_VALUES tensors, by value: without their history, and
 * on the CPU. A number is a tensor of one element, a text one of bytes; the weights of a model are
 * one flat tensor (tn_cat).
 *
 * Every wait has a deadline. What a function raises is raised where its call is waited for, with
 * the names of rank and function. A rank whose process dies is an error at once, which names it
 * (TN_EPEER); one that is stopped, at the deadline; one whose host loses power or network, then or
 * after about a minute. The ranks connect over TCP, and only those that can read the group's store
 * can call (docs/security.md).
 *
 * All functions here take NULL, and may be called by several threads at once. Errors are those of
 * the calling thread.
 *
 * Read next: docs/asynchronous.md, examples/27_parameter_server.c, distributed/rpc/rpc.h.
 */
#ifndef TERN_RPC_H
#define TERN_RPC_H

#include "autograd.h"
#include "distributed.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_rpc tn_rpc;
typedef struct tn_future tn_future;

/* ---- Starting and ending ----------------------------------------------------------------------
 */

typedef struct tn_rpc_options {
    double timeout; /* seconds, of calls without their own and of starting: 60 */
    /* Functions that run at the same time on this rank: 16. One that waits for a call of its own
     * does not count, so functions may call back. */
    int threads;
    int threads_most;      /* with those that wait: 256. More calls wait for a free thread. */
    int64_t message_limit; /* bytes of a call or a result, sent or received: 2^30 */
    int64_t backlog_limit; /* bytes of calls to one rank that it has not answered: 2^30 */
    bool from_defaults;
} tn_rpc_options;
TN_API tn_rpc_options tn_rpc_defaults(void);

/* Every rank of g calls. Of g only the store and the interface are used: g may be freed, or die,
 * and calls still work. NULL g: one rank, which can call itself. NULL after an error. */
TN_API tn_rpc *tn_rpc_new(tn_group *g, tn_rpc_options options);

/* f(in, user) runs in a thread of this library, in a scope of its own. It may call other ranks;
 * several may run at once, the same one too. */
typedef tn_values (*tn_rpc_function)(tn_values in, void *user);
/* Before tn_rpc_start, or later if no one calls it yet. TN_ESTATE: the name is taken. */
TN_API tn_status tn_rpc_register(tn_rpc *r, const char *name, tn_rpc_function f, void *user);

/* Connects to all other ranks; every rank calls. What was registered before can be called by any
 * rank whose tn_rpc_start has returned. TN_EPEER names ranks that have not connected in time.
 * TN_ENOMEM: no thread can be started to answer; if only further ones cannot, calls wait for those
 * that are there. */
TN_API tn_status tn_rpc_start(tn_rpc *r);

/* Waits until every rank has called it and no function runs here: then no call that anyone waits
 * for is lost by tn_rpc_free. Meanwhile this rank serves: for one that only does so, it is the
 * whole program. So 0 is no time-out here, but a rank that is gone without having called it ends
 * the wait: TN_EPEER names it, or one that has not called within `timeout` seconds. After an error
 * it may be called again. */
TN_API tn_status tn_rpc_shutdown(tn_rpc *r, double timeout);

/* Without tn_rpc_shutdown: others' calls of this rank fail, and so do this rank's own. Waits for
 * functions that run here. Not inside one (TN_ESTATE). */
TN_API void tn_rpc_free(tn_rpc *r);

TN_API int tn_rpc_caller(void); /* inside a function: the rank that called it; else -1 */

/* ---- Calls ------------------------------------------------------------------------------------
 */

/* Calls a function of rank `to` (this one too) and returns at once; the tensors are sent as they
 * are now. The call may take `timeout` seconds, 0: options.timeout; inside a function, no longer
 * than the call that runs it. NULL after an error.
 *
 * If rank `to` is slower than it is called, memory must not fill up with calls, here or there. So
 * while backlog_limit bytes or more wait for its answers, those of calls that nobody waits for any
 * more too, this waits within the same time; then TN_EPEER. Inside a function it does not: what it
 * waits for might wait for the function. */
TN_API tn_future *tn_rpc_call(tn_rpc *r, int to, const char *name, tn_values in, double timeout);

/* Waits for the result, which the current scope owns, and frees f. Inert values after an error:
 * what the function raised, or TN_EPEER. A call that has failed or is late may still run, or have
 * run. NULL: TN_EVALUE, unless the error of the call is pending. */
TN_API tn_values tn_rpc_wait(tn_future *f);
TN_API bool tn_rpc_done(const tn_future *f); /* whether waiting would not block */

/* Calls a function like an operation: waits, and its results have a history. What it computes stays
 * recorded on rank `to` until the results are let go here, or this rank is gone; backward runs it
 * there, as another call with the same time-out. The inputs get their gradients; those of
 * parameters are added up on rank `to`, for an optimiser there. Results require gradients if the
 * function's did, so parameters learn even if no input requires one. They are on the first input's
 * device. Inert values after an error. */
TN_API tn_values tn_rpc_forward(tn_rpc *r, int to, const char *name, tn_values in, double timeout);

#ifdef __cplusplus
}
#endif
#endif
