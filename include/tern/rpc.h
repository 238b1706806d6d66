/* Calls between ranks: functions that run on another rank, tensors that stay there, and gradients
 * through both.
 *
 *     static void half(const tn_message *in, tn_message *out, void *net) {      // on rank 1
 *         tn_message_add(out, tn_call(net, tn_message_tensor(in, 0)));
 *     }
 *
 *     tn_rpc *r = tn_rpc_new(world, tn_rpc_defaults());       // every rank
 *     tn_rpc_register(r, "half", half, &net);                 // rank 1
 *     tn_rpc_start(r);                                        // every rank
 *     tn_message *in = tn_message_of((tn_values){1, {x}});
 *     tn_message *out = tn_rpc_wait(tn_rpc_call(r, 1, "half", in, 0));
 *     tn_tensor *y = tn_message_tensor(out, 0);
 *     tn_message_free(out);
 *     tn_rpc_shutdown(r, 0);                                  // every rank
 *     tn_rpc_free(r);
 *
 * Every wait has a deadline. What a function raises is raised where its call is waited for, with
 * the names of rank and function. A rank whose process dies is an error at once, which names it
 * (TN_EPEER); one that is stopped, at the deadline; one whose host loses power or network, then or
 * after about a minute. The ranks connect over TCP, and only those that can read the group's store
 * can call (docs/security.md).
 *
 * All functions here take NULL, and may be called by several threads at once, except that a message
 * is used by one thread at a time. Errors are those of the calling thread.
 *
 * Read next: docs/asynchronous.md, examples/26_rpc.c, distributed/rpc/rpc.h.
 */
#ifndef TERN_RPC_H
#define TERN_RPC_H

#include "distributed.h"
#include "optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_rpc tn_rpc;
typedef struct tn_message tn_message;
typedef struct tn_future tn_future;
typedef struct tn_remote tn_remote;

/* ---- Messages: what goes in and what comes out ------------------------------------------------ *
 *
 * A list of values: tensors, bytes, texts, integers and references. Tensors are sent without their
 * history, and arrive on the CPU. */

TN_API tn_message *tn_message_new(void);             /* NULL after an error */
TN_API tn_message *tn_message_of(tn_values tensors); /* the same as adding each */
TN_API void tn_message_free(tn_message *m);

/* These append one value. A tensor is kept, not copied, until the message is freed or sent. */
TN_API tn_status tn_message_add(tn_message *m, tn_tensor *t);
TN_API tn_status tn_message_add_bytes(tn_message *m, const void *data, size_t bytes);
TN_API tn_status tn_message_add_text(tn_message *m, const char *text);
TN_API tn_status tn_message_add_int(tn_message *m, int64_t number);
/* m has its own reference; it can be sent by r's rpc only. */
TN_API tn_status tn_message_add_remote(tn_message *m, tn_remote *r);

/* Value i: TN_EINDEX if there is none, TN_EVALUE if it is of another kind. The tensor is owned by
 * the current scope; bytes and text are the message's, with a 0 after them. The reference is the
 * caller's, to be freed. */
TN_API int tn_message_count(const tn_message *m);
TN_API tn_tensor *tn_message_tensor(const tn_message *m, int i);
TN_API const void *tn_message_bytes(const tn_message *m, int i, size_t *bytes); /* NULL: error */
TN_API const char *tn_message_text(const tn_message *m, int i);                 /* "": error */
TN_API int64_t tn_message_int(const tn_message *m, int i);                      /* 0: error */
TN_API tn_remote *tn_message_remote(const tn_message *m, int i);                /* NULL: error */

/* ---- Starting and ending ----------------------------------------------------------------------
 */

typedef struct tn_rpc_options {
    double timeout; /* seconds, of calls without their own and of starting: 60 */
    /* Functions that run at the same time on this rank: 16. One that waits for a call of its own
     * does not count, so functions may call back. */
    int threads;
    int threads_most;      /* with those that wait: 256. More calls wait for a free thread. */
    int64_t message_limit; /* bytes of a message, sent or received: 2^30 */
    int64_t backlog_limit; /* bytes of calls to one rank that it has not answered: 2^30 */
    bool from_defaults;
} tn_rpc_options;
TN_API tn_rpc_options tn_rpc_defaults(void);

/* Every rank of g calls. Of g only the store and the interface are used: g may be freed, or die,
 * and calls still work. NULL g: one rank, which can call itself. NULL after an error, also if the
 * store does not answer within options.timeout. */
TN_API tn_rpc *tn_rpc_new(tn_group *g, tn_rpc_options options);

/* f(in, out, user) runs in a thread of this library, in a scope of its own. It may call other
 * ranks; several may run at once, the same one too. Both messages are the library's. */
typedef void (*tn_rpc_function)(const tn_message *in, tn_message *out, void *user);
/* Before tn_rpc_start, or later if no one calls it yet. TN_ESTATE: the name is taken. */
TN_API tn_status tn_rpc_register(tn_rpc *r, const char *name, tn_rpc_function f, void *user);

/* Connects to all other ranks; every rank calls. What was registered before can be called by any
 * rank whose tn_rpc_start has returned. TN_EPEER names a rank that has not connected in time, or at
 * once one on this host whose process has ended since its tn_rpc_new. TN_ENOMEM: no thread can be
 * started to answer; if only further ones cannot, calls wait for those that are there. */
TN_API tn_status tn_rpc_start(tn_rpc *r);

/* Waits until every rank has called it and no function runs anywhere: then nothing is lost by
 * tn_rpc_free. Meanwhile this rank serves: for one that only does so, it is the whole program. So 0
 * is no time-out here, but a rank that is gone ends the wait: TN_EPEER names it, or one that has
 * not called within `timeout` seconds. After an error it may be called again. */
TN_API tn_status tn_rpc_shutdown(tn_rpc *r, double timeout);

/* Without tn_rpc_shutdown: others' calls of this rank fail, and so do this rank's own. Waits for
 * functions that run here. Not inside one (TN_ESTATE). */
TN_API void tn_rpc_free(tn_rpc *r);

TN_API int tn_rpc_rank(const tn_rpc *r); /* this rank's, as in the group; NULL: 0 */
TN_API int tn_rpc_size(const tn_rpc *r); /* how many ranks; NULL: 1 */
TN_API int tn_rpc_caller(void);          /* inside a function: the rank that called it; else -1 */

/* ---- Calls ------------------------------------------------------------------------------------
 */

/* Calls a function of rank `to` (this one too) and returns at once; `in` (NULL: no values) is sent
 * and freed, even after an error. The call may take `timeout` seconds, 0: options.timeout; inside a
 * function, no longer than the call that runs it. NULL after an error.
 *
 * If rank `to` is slower than it is called, memory must not fill up with calls, here or there. So
 * while backlog_limit bytes or more wait for its answers, those of calls that nobody waits for any
 * more too, this waits within the same time; then TN_EPEER. Inside a function it does not: what it
 * waits for might wait for the function. */
TN_API tn_future *tn_rpc_call(tn_rpc *r, int to, const char *name, tn_message *in, double timeout);

/* Waits for the result, and frees f. NULL after an error: what the function raised, or TN_EPEER.
 * A call that has failed or is late may still run, or have run. For NULL, NULL. */
TN_API tn_message *tn_rpc_wait(tn_future *f);
TN_API bool tn_rpc_done(const tn_future *f); /* whether waiting would not block */

/* ---- Remote references ------------------------------------------------------------------------ *
 *
 * A tensor or any other object that stays with its owner, while others hold references to it and
 * pass them on in messages. It is let go when no reference is left: those of a rank that dies are
 * gone with it. */

/* References to what is here: a tensor, or an object for which let_go (may be NULL) is called in
 * the end, in any thread, where it must not wait for a call. If this fails, the object stays the
 * caller's. */
TN_API tn_remote *tn_remote_of(tn_rpc *r, tn_tensor *t);
TN_API tn_remote *tn_remote_of_object(tn_rpc *r, void *object, void (*let_go)(void *object));

TN_API int tn_remote_owner(const tn_remote *m);
/* The tensor: fetched from its owner, a copy without history; on the owner the tensor itself. 0:
 * the time-out of options. */
TN_API tn_tensor *tn_remote_get(tn_remote *m, double timeout);
/* On its owner, the object; elsewhere, and for a tensor, NULL and TN_ESTATE. */
TN_API void *tn_remote_object(tn_remote *m);
TN_API void tn_remote_free(tn_remote *m);

/* How many tensors and objects this rank keeps because there are references to them, here or
 * elsewhere, or because backward may need them. */
TN_API int64_t tn_rpc_kept(tn_rpc *r);

/* ---- Gradients -------------------------------------------------------------------------------- *
 *
 * A context belongs to one loop of training. A call in it is one node of the graph here; what the
 * function computed stays recorded on its rank, and backward runs it there. Gradients of parameters
 * stay there too, apart for each context, until it steps. */

typedef struct tn_rpc_context tn_rpc_context;
TN_API tn_rpc_context *tn_rpc_context_new(tn_rpc *r); /* NULL after an error */
/* Forgets the gradients that other ranks have for it. A backward must not follow. */
TN_API void tn_rpc_context_free(tn_rpc_context *c);
/* Inside a function that a context called: that context, which is the library's. Else NULL. */
TN_API tn_rpc_context *tn_rpc_context_current(void);

/* Calls a function whose values are tensors only, and waits. Results require gradients if the
 * function's did, so parameters of rank `to` learn even if no input requires one. Inert values
 * after an error. Its backward is another call, with the same time-out. */
TN_API tn_values tn_rpc_forward(tn_rpc_context *c, int to, const char *name, tn_values in,
                                double timeout);

/* On an owner: opt steps when a context that has gradients of its parameters does. opt must live
 * until tn_rpc_free. */
TN_API tn_status tn_rpc_register_optim(tn_rpc *r, tn_optim *opt);

/* After backward: the optimisers of all ranks that the context has called step with its gradients,
 * which are then forgotten. Several contexts step one after the other, each with its own. */
TN_API tn_status tn_rpc_step(tn_rpc_context *c);

#ifdef __cplusplus
}
#endif
#endif
