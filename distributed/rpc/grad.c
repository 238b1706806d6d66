/* Gradients through calls.
 *
 * A call by a context is one node here, and a graph there: the leaves that its inputs became, and
 * the results with their history. The node holds a reference to the graph (remote.c), so whatever
 * ends the node ends the graph: backward, a scope, the death of this rank. Backward sends the
 * results' gradients, and gets the inputs'.
 *
 *     here                                  rank 1
 *     x --- rpc_forward --- y --- loss      x' --- f --- y'      (reference from rpc_forward)
 *
 * What backward adds to parameters there belongs to the context: before it runs, the context's
 * gradients so far are exchanged with those in the parameters, and afterwards again. So contexts
 * take turns with a rank's parameters, and add up gradients as one process would. No turn lasts
 * while a backward waits for another rank, which may need one here. A step is the same exchange
 * around tn_optim_step.
 */
#include "autograd/node.h"
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "optim/optim.h"

#include <string.h>

/* What a call by a context has computed on this rank. */
typedef struct graph {
    int inputs, outputs;
    tn_tensor *in[TN_MAX_VALUES]; /* leaves that require a gradient, or NULL */
    tn_tensor *out[TN_MAX_VALUES];
} graph;

void tn__graph_free(void *user) {
    graph *g = user;
    for (int i = 0; i < TN_MAX_VALUES; i++) {
        tn_release(g->in[i]);
        tn_release(g->out[i]);
    }
    free(g);
}

static tn_tensor *tensor_at(const tn_message *m, int i) {
    return i < m->count && m->values[i].kind == TN__VALUE_TENSOR ? m->values[i].tensor : NULL;
}

/* Whether m has 1 to 8 tensors, and nothing else. */
static bool tensors_only(const tn_message *m, bool may_be_none) {
    bool fine = m->count <= TN_MAX_VALUES && (may_be_none || m->count > 0);
    for (int i = 0; i < (int)m->count; i++) {
        fine = fine && tensor_at(m, i);
    }
    return fine;
}

static graph *graph_new(const tn_message *in, const tn_message *out) {
    graph *g = tn__calloc_for(1, sizeof(*g), "rpc_forward");
    if (!g) {
        return NULL;
    }
    g->inputs = (int)in->count;
    g->outputs = (int)out->count;
    for (int i = 0; i < g->inputs; i++) {
        tn_tensor *t = tensor_at(in, i);
        g->in[i] = tn_requires_grad(t) ? tn_keep(t) : NULL;
    }
    for (int i = 0; i < g->outputs; i++) {
        g->out[i] = tn_keep(tensor_at(out, i));
    }
    return g;
}

void tn__graph_keep(tn_rpc *r, const tn_message *in, tn_message *out, const tn_rpc_context *c) {
    int64_t learns = 0;
    if (!tensors_only(in, true) || !tensors_only(out, false)) {
        tn__raise(TN_EVALUE, "rpc_forward",
                  "the function takes and gives something other than 1 to %d tensors",
                  TN_MAX_VALUES);
        return;
    }
    for (int i = 0; i < (int)out->count; i++) {
        learns |= (int64_t)tn_requires_grad(tensor_at(out, i)) << i;
    }
    graph *g = learns ? graph_new(in, out) : NULL;
    tn_remote *m = g ? tn__remote_of_graph(r, g) : NULL;
    if (g && !m) {
        tn__graph_free(g);
    }
    if (m) {
        tn_message_add_remote(out, m);
        tn_remote_free(m);
    } else {
        tn_message_add_int(out, 0);
    }
    tn_message_add_int(out, learns);
    for (int i = 0; i < r->ranks; i++) {
        if (c->touched[i] || (i == r->rank && learns)) {
            tn_message_add_int(out, i);
        }
    }
}

/* ---- What is owed to contexts -----------------------------------------------------------------
 */

/* An optimiser that contexts step. */
typedef struct tn__stepped {
    struct tn__stepped *next;
    tn_optim *opt;
} tn__stepped;

/* The gradients that belong to one context, of all optimisers' parameters in order. */
typedef struct tn__owed {
    struct tn__owed *next;
    uint64_t id;
    int64_t count, capacity;
    tn_tensor **grads; /* [count]: references, or NULL */
} tn__owed;

tn_status tn_rpc_register_optim(tn_rpc *r, tn_optim *opt) {
    if (!tn__rpc_usable(r, "rpc_register_optim")) {
        return tn_error();
    }
    if (!opt) {
        return tn__raise(TN_EVALUE, "rpc_register_optim", "the optimiser is NULL");
    }
    tn__stepped *s = tn__calloc_for(1, sizeof(*s), "rpc_register_optim");
    if (s) {
        s->opt = opt;
        pthread_mutex_lock(&r->lock);
        while (r->grads_busy) { /* the thread that uses them goes through the list */
            pthread_cond_wait(&r->grads_free, &r->lock);
        }
        tn__stepped **at = &r->optims;
        while (*at) {
            at = &(*at)->next;
        }
        *at = s;
        pthread_mutex_unlock(&r->lock);
    }
    return tn_error();
}

void tn__stepped_free(tn_rpc *r) {
    for (tn__stepped *s = r->optims, *next; s; s = next) {
        next = s->next;
        free(s);
    }
}

tn__owed *tn__owed_of_gone(tn_rpc *r, int gone) {
    tn__owed *ended = NULL;
    for (tn__owed **at = &r->owed; *at;) {
        tn__owed *o = *at;
        if (gone >= 0 && o->id >> 48 != (uint64_t)gone + 1) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        o->next = ended;
        ended = o;
    }
    return ended;
}

void tn__owed_free(tn__owed *list) {
    for (tn__owed *o = list, *next; o; o = next) {
        next = o->next;
        for (int64_t i = 0; i < o->count; i++) {
            tn_release(o->grads[i]);
        }
        free(o->grads);
        free(o);
    }
}

/* Takes what is owed to a context out of the table; NULL: nothing. */
static tn__owed *take_owed(tn_rpc *r, uint64_t id) {
    pthread_mutex_lock(&r->lock);
    tn__owed **at = &r->owed, *o;
    while (*at && (*at)->id != id) {
        at = &(*at)->next;
    }
    o = *at;
    if (o) {
        *at = o->next;
        o->next = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    return o;
}

void tn__owed_forget(tn_rpc *r, uint64_t context) {
    tn__owed_free(take_owed(r, context));
}

/* Puts it back, unless the context's rank is gone. */
static void put_owed(tn_rpc *r, tn__owed *o) {
    pthread_mutex_lock(&r->lock);
    uint64_t rank = (o->id >> 48) - 1;
    bool gone = rank >= (uint64_t)r->ranks || r->peers[rank].gone;
    if (!gone) {
        o->next = r->owed;
        r->owed = o;
    }
    pthread_mutex_unlock(&r->lock);
    if (gone) {
        tn__owed_free(o);
    }
}

/* Room for the gradients of all parameters; false after raising. */
static bool grow_owed(const tn_rpc *r, tn__owed *o) {
    int64_t count = 0;
    for (const tn__stepped *s = r->optims; s; s = s->next) {
        count += s->opt->item_count;
    }
    if (!tn__grow(&o->grads, count, &o->capacity, sizeof(tn_tensor *), "rpc_step")) {
        return false;
    }
    while (o->count < count) {
        o->grads[o->count++] = NULL;
    }
    return true;
}

/* Exchanges the context's gradients and those in the parameters: once before they are used, and
 * once afterwards. No error may be pending. */
static void exchange_grads(const tn_rpc *r, tn__owed *o) {
    int64_t k = 0;
    for (const tn__stepped *s = r->optims; s; s = s->next) {
        for (int i = 0; i < s->opt->item_count; i++, k++) {
            tn_tensor *p = tn__item_param(&s->opt->items[i]);
            if (p) {
                tn_tensor *own = tn_keep(tn_grad_of(p)), *theirs = o->grads[k];
                tn_set_grad(p, theirs);
                tn_release(theirs);
                o->grads[k] = own;
            }
        }
    }
}

static void let_others(tn_rpc *r) {
    pthread_mutex_lock(&r->lock);
    r->grads_busy = false;
    pthread_cond_broadcast(&r->grads_free);
    pthread_mutex_unlock(&r->lock);
}

/* Puts the gradients of context `id` into the parameters: for one thread at a time, which then has
 * tn__served->owed. False after raising. */
static bool begin_exchange(tn_rpc *r, uint64_t id) {
    struct timespec until = tn__timespec(tn__served->deadline);
    bool late = false;
    pthread_mutex_lock(&r->lock);
    while (r->grads_busy && !late) {
        late = pthread_cond_timedwait(&r->grads_free, &r->lock, &until) != 0;
    }
    bool mine = !r->grads_busy;
    r->grads_busy = true;
    pthread_mutex_unlock(&r->lock);
    if (!mine) {
        tn__raise(TN_EPEER, "rpc_backward",
                  "the parameters' gradients are still used for another backward or step");
        return false;
    }
    tn__owed *o = take_owed(r, id);
    if (!o && (o = tn__calloc_for(1, sizeof(*o), "rpc_backward"))) {
        o->id = id;
    }
    if (!o || !grow_owed(r, o)) {
        tn__owed_free(o);
        let_others(r);
        return false;
    }
    exchange_grads(r, o);
    tn__served->owed = o;
    return true;
}

/* Takes them out again, and keeps them or not; does nothing if this thread has none there. */
static void end_exchange(tn_rpc *r, bool keeps) {
    tn_error_record error;
    tn__owed *o = tn__served->owed;
    if (!o) {
        return;
    }
    bool failed = tn_error_take(&error);
    exchange_grads(r, o);
    if (failed) {
        tn_error_give(&error);
    }
    tn__served->owed = NULL;
    if (keeps) {
        put_owed(r, o);
    } else {
        tn__owed_free(o);
    }
    let_others(r);
}

/* ---- On the owner -----------------------------------------------------------------------------
 */

typedef struct backward {
    graph *g;
    const tn_message *in; /* graph, context, gradient of each result or 0 */
    tn_message *out;      /* gradient of each input, or 0 */
} backward;

static void run_backward(const backward *b) {
    graph *g = b->g;
    tn_tensor *roots[TN_MAX_VALUES], *grads[TN_MAX_VALUES];
    int n = 0;
    for (int i = 0; i < g->inputs; i++) {
        if (g->in[i]) {
            tn_zero_grad(g->in[i]); /* of a backward that has failed */
        }
    }
    for (int i = 0; i < g->outputs; i++) {
        tn_tensor *grad = tensor_at(b->in, 2 + i);
        if (grad && tn_requires_grad(g->out[i])) {
            roots[n] = g->out[i];
            grads[n++] = tn_to(grad, tn_device_of(g->out[i]));
        }
    }
    if (n > 0) {
        tn_backward_from(roots, grads, n, true);
    }
    for (int i = 0; i < g->inputs; i++) {
        tn_tensor *grad = g->in[i] && !tn__pending() ? tn_grad_of(g->in[i]) : NULL;
        if (grad) {
            tn_message_add(b->out, grad);
            tn_zero_grad(g->in[i]);
        } else {
            tn_message_add_int(b->out, 0);
        }
    }
}

static void answer_backward(tn_rpc *r, const tn_message *in, tn_message *out) {
    tn_remote *m = tn_message_remote(in, 0);
    uint64_t id = (uint64_t)tn_message_int(in, 1);
    graph *g = m ? tn__remote_graph(m, "rpc_backward") : NULL;
    if (g && g->outputs + 2 != tn_message_count(in)) {
        tn__raise(TN_EMISMATCH, "rpc_backward", "%d gradients for %d results",
                  tn_message_count(in) - 2, g->outputs);
    }
    if (g && !tn__pending() && begin_exchange(r, id)) {
        run_backward(&(backward){g, in, out});
        end_exchange(r, true);
    }
    tn_remote_free(m);
}

/* Steps the optimisers whose parameters have gradients now. */
static void step_optims(const tn_rpc *r) {
    for (const tn__stepped *s = r->optims; s; s = s->next) {
        bool any = false;
        for (int i = 0; i < s->opt->item_count; i++) {
            tn_tensor *p = tn__item_param(&s->opt->items[i]);
            any |= p && tn_grad_of(p);
        }
        if (any) {
            tn_optim_step(s->opt);
            tn_optim_zero_grad(s->opt);
        }
    }
}

static void answer_step(tn_rpc *r, const tn_message *in, tn_message *out) {
    uint64_t id = (uint64_t)tn_message_int(in, 0);
    if (!tn__pending() && begin_exchange(r, id)) {
        step_optims(r);
        end_exchange(r, false);
    }
}

bool tn__grad_builtins(tn_rpc *r) {
    return tn__rpc_add_function(r, "tn/backward", NULL, answer_backward, NULL) == TN_OK &&
           tn__rpc_add_function(r, "tn/step", NULL, answer_step, NULL) == TN_OK;
}

/* ---- The node ---------------------------------------------------------------------------------
 */

typedef struct forward_args {
    tn_remote *graph;
    tn_rpc *rpc; /* the graph's reference keeps it */
    int owner;
    uint64_t context;
    double timeout;
} forward_args;

static void forward_finish(void *memory) {
    tn_remote_free(((forward_args *)memory)->graph);
}

/* The gradient of each wanted input, on its device. */
static void give_grads(tn_op_grad *g, const tn_message *out) {
    for (int i = 0; i < g->inputs - 1 && !tn__pending(); i++) {
        tn_tensor *grad = tensor_at(out, i);
        if (grad && g->wants[i]) {
            tn_op_give(g, i, tn_to(grad, tn_op_input_device(g, i)));
        }
    }
}

/* A function's own calls: while this thread waits, others use the parameters here, the inner
 * backwards of this context too. */
static tn_message *ask_backward(const forward_args *args, tn_message *in) {
    bool inside = tn__served && tn__served->rpc == args->rpc && tn__served->owed;
    uint64_t id = inside ? tn__served->owed->id : 0;
    if (inside) {
        end_exchange(args->rpc, true);
    }
    tn_message *out =
        tn__rpc_finish(tn__rpc_issue(args->rpc, args->owner, "tn/backward", in, (tn__rpc_head){0},
                                     args->timeout, "rpc_backward"),
                       false, "rpc_backward");
    if (inside && out && !begin_exchange(args->rpc, id)) {
        tn_message_free(out);
        out = NULL;
    }
    return out;
}

static void forward_backward(tn_op_grad *g) {
    const forward_args *args = g->args;
    if (tn_grad_mode()) {
        tn__raise(TN_EUNSUPPORTED, "rpc_forward",
                  "its gradient cannot be differentiated again: it is on rank %d", args->owner);
        return;
    }
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, args->graph);
    tn_message_add_int(in, (int64_t)args->context);
    for (int i = 0; i < g->outputs; i++) {
        if (g->dout[i]) {
            tn_message_add(in, g->dout[i]);
        } else {
            tn_message_add_int(in, 0);
        }
    }
    tn_message *out = ask_backward(args, in);
    if (out) {
        give_grads(g, out);
    }
    tn_message_free(out);
}

static const tn_op forward_op = {
    .name = "rpc_forward",
    .args_size = sizeof(forward_args),
    .backward = forward_backward,
    .args_finish = forward_finish,
};

/* ---- Calling ----------------------------------------------------------------------------------
 */

static tn_values inert_values(void) {
    return (tn_values){1, {tn_inert()}};
}

/* Makes the results outputs of a node. A graph may be wanted though no input requires a gradient:
 * so the node has one input more, a leaf that gets none. */
static void record_node(const forward_args *args, tn_values in, tn_values *out, int64_t learns) {
    tn_tensor *all[TN_MAX_VALUES + 1];
    memcpy(all, in.v, (size_t)in.n * sizeof(all[0]));
    all[in.n] = tn_set_requires_grad(tn_empty_on(tn_cpu(), TN_DIMS(0), TN_F32), true);
    if (tn__pending()) {
        tn_remote_free(args->graph);
        return;
    }
    tn_node *node = tn__node_new(&forward_op, args, all, in.n + 1, out->n, 0);
    for (int i = 0; node && i < out->n; i++) {
        if (learns >> i & 1) {
            tn__node_attach(node, out->v[i], i);
        }
    }
    if (node) {
        tn__node_release(node);
    }
}

/* Splits the reply into results, on the first input's device, and what tn__graph_keep added. */
static tn_values open_results(tn_rpc_context *c, const forward_args *like, tn_values in,
                              const tn_message *m, bool learns) {
    tn_values out = {0};
    forward_args args = *like;
    tn_device device = in.n > 0 ? tn_device_of(in.v[0]) : tn_cpu();
    while (out.n < TN_MAX_VALUES && tensor_at(m, out.n)) {
        out.v[out.n] = tn_to(tn_message_tensor(m, out.n), device);
        out.n++;
    }
    int at = out.n + (learns ? 2 : 0);
    if (out.n == 0 || at > m->count || (!learns && at < m->count)) {
        tn__raise(TN_EVALUE, "rpc_forward", "rank %d gave something other than 1 to %d tensors",
                  args.owner, TN_MAX_VALUES);
        return inert_values();
    }
    for (int i = at; learns && i < m->count; i++) {
        int64_t rank = tn_message_int(m, i);
        if (rank >= 0 && rank < c->rpc->ranks) {
            c->touched[rank] = true;
        }
    }
    if (learns && m->values[out.n].kind == TN__VALUE_REMOTE) {
        args.graph = tn_message_remote(m, out.n);
        record_node(&args, in, &out, tn_message_int(m, out.n + 1));
    }
    return tn__pending() ? inert_values() : out;
}

tn_values tn_rpc_forward(tn_rpc_context *c, int to, const char *name, tn_values in,
                         double timeout) {
    if (!c && !tn__pending()) {
        tn__raise(TN_EVALUE, "rpc_forward", "the context is NULL");
    }
    if (!c || tn__pending()) {
        return inert_values();
    }
    bool learns = tn_grad_mode();
    tn__rpc_head h = {.flags = learns ? TN__RPC_LEARNS : 0, .context = learns ? c->id : 0};
    tn_message *reply = tn__rpc_finish(
        tn__rpc_issue(c->rpc, to, name, tn_message_of(in), h, timeout, "rpc_forward"), false,
        "rpc_forward");
    if (!reply) {
        return inert_values();
    }
    forward_args args = {.rpc = c->rpc, .owner = to, .context = c->id, .timeout = timeout};
    tn_values out = open_results(c, &args, in, reply, learns);
    tn_message_free(reply);
    return out;
}

/* ---- Contexts ---------------------------------------------------------------------------------
 */

tn_rpc_context *tn_rpc_context_new(tn_rpc *r) {
    if (!tn__rpc_usable(r, "rpc_context_new")) {
        return NULL;
    }
    tn_rpc_context *c = tn__calloc(1, sizeof(*c));
    bool *touched = tn__calloc((size_t)r->ranks, sizeof(*touched));
    if (!c || !touched) {
        free(c);
        free(touched);
        tn__raise(TN_ENOMEM, "rpc_context_new", "no memory for %d ranks", r->ranks);
        return NULL;
    }
    pthread_mutex_lock(&r->lock);
    uint64_t number = ++r->last_context;
    pthread_mutex_unlock(&r->lock);
    *c = (tn_rpc_context){
        .rpc = tn__rpc_keep(r), .id = ((uint64_t)r->rank + 1) << 48 | number, .touched = touched};
    return c;
}

tn_rpc_context *tn_rpc_context_current(void) {
    return tn__served ? tn__served->context : NULL;
}

static tn_future *ask_step(tn_rpc_context *c, int rank) {
    tn_message *m = tn_message_new();
    tn_message_add_int(m, (int64_t)c->id);
    return tn__rpc_issue(c->rpc, rank, "tn/step", m, (tn__rpc_head){0}, 0, "rpc_step");
}

/* After an answer that is not one: whether rank `to` could still step. */
static bool may_step(tn_rpc *r, int to) {
    pthread_mutex_lock(&r->lock);
    bool gone = r->peers[to].gone;
    pthread_mutex_unlock(&r->lock);
    return !gone;
}

tn_status tn_rpc_step(tn_rpc_context *c) {
    if (!c && !tn__pending()) {
        return tn__raise(TN_EVALUE, "rpc_step", "the context is NULL");
    }
    if (!c || tn__pending()) {
        return tn_error();
    }
    int ranks = c->rpc->ranks;
    tn_future **steps = tn__calloc_for((size_t)ranks, sizeof(tn_future *), "rpc_step");
    for (int i = 0; steps && i < ranks; i++) {
        if (c->touched[i]) {
            steps[i] = ask_step(c, i);
        }
    }
    for (int i = 0; steps && i < ranks; i++) {
        tn_message *done = tn__rpc_finish(steps[i], false, "rpc_step");
        c->touched[i] = c->touched[i] && !done && may_step(c->rpc, i);
        tn_message_free(done);
    }
    free(steps);
    return tn_error();
}

void tn_rpc_context_free(tn_rpc_context *c) {
    if (!c || c->ours || tn__inherited(c->rpc->process)) {
        return;
    }
    for (int i = 0; i < c->rpc->ranks; i++) {
        if (c->touched[i]) {
            tn__peer_tell(c->rpc, i, (tn__rpc_head){.kind = TN__RPC_FORGET, .number = c->id});
        }
    }
    tn__rpc_release(c->rpc);
    free(c->touched);
    free(c);
}
