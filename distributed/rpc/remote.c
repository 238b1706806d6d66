/* What a rank keeps for others, and the references to it.
 *
 * The owner counts the references of each rank. A reference that comes in a message is one more for
 * the rank that gets it: the owner counts it before the message is sent, whether it sends it itself
 * or another rank does, which asks for it first. If the message is not sent after all, or the owner
 * does not answer in time, the same rank takes it back: by a word that the owner reads after the
 * question. If that rank dies, nobody else knows what it has sent: so a receiver tells the owner
 * what it gets from others, and when the owner has lost that rank it asks the receiver to say when
 * it has, too: what has not come by then never will. One that comes back to its owner is counted by
 * the owner when it arrives, in the order of the connection, so before the sender's own can be let
 * go. Inside a rank a reference is shared by count, and its last user lets it go.
 */
#include "core/fork.h"
#include "core/memory.h"
#include "distributed/rpc/rpc.h"
#include "tensor/tensor.h"

struct tn_remote {
    int32_t refs; /* atomic */
    tn_rpc *rpc;  /* one reference; NULL: of no rpc */
    int owner;
    uint64_t number;
};

/* What rank `from` has passed to rank `to`; or, at `to`, an owner that asks for the end of `from`.
 */
typedef struct tn__passing {
    struct tn__passing *next;
    int from, to;
} tn__passing;

/* ---- The owner's table ----------------------------------------------------------------------- */

/* Keeps it for this rank itself, which has one reference; its number, or 0 after raising. */
static uint64_t keep_here(tn_rpc *r, tn__kept what) {
    tn__kept *k =
        tn__calloc_for(1, sizeof(*k) + (size_t)r->ranks * sizeof(k->holders[0]), "remote_of");
    if (!k) {
        return 0;
    }
    *k = what;
    k->total = k->holders[r->rank] = 1;
    pthread_mutex_lock(&r->lock);
    bool gone = r->peers[r->rank].gone;
    if (!gone) {
        k->number = ++r->last_kept;
        k->next = r->kept;
        r->kept = k;
        r->kept_count++;
    }
    pthread_mutex_unlock(&r->lock);
    if (gone) {
        free(k);
        tn__raise(TN_ESTATE, "remote_of", "tn_rpc_free was called");
        return 0;
    }
    return k->number;
}

/* Under the lock. */
static tn__kept **find_kept(tn_rpc *r, uint64_t number) {
    tn__kept **at = &r->kept;
    while (*at && (*at)->number != number) {
        at = &(*at)->next;
    }
    return at;
}

/* Under the lock; NULL: there is no such thing, or the rank is gone. */
static tn__kept *hold_locked(tn_rpc *r, uint64_t number, int holder) {
    tn__kept *k = *find_kept(r, number);
    if (!k || r->peers[holder].gone) {
        return NULL;
    }
    k->holders[holder]++;
    k->total++;
    return k;
}

bool tn__kept_hold(tn_rpc *r, uint64_t number, int holder) {
    pthread_mutex_lock(&r->lock);
    bool fine = hold_locked(r, number, holder) != NULL;
    pthread_mutex_unlock(&r->lock);
    return fine;
}

/* Under the lock: takes one off the list; NULL: there is none. */
static tn__passing *take_passing(tn__passing **list, int from, int to) {
    for (tn__passing **at = list; *at; at = &(*at)->next) {
        tn__passing *p = *at;
        if (p->from == from && p->to == to) {
            *at = p->next;
            return p;
        }
    }
    return NULL;
}

/* Under the lock: a reference that `from` has passed to `to` is there, or taken back. */
static bool end_passing(tn__kept *k, int from, int to) {
    tn__passing *p = take_passing(&k->passing, from, to);
    free(p);
    return p != NULL;
}

static void free_passing(tn__passing *list) {
    for (tn__passing *p = list, *next; p; p = next) {
        next = p->next;
        free(p);
    }
}

void tn__kept_drop(tn_rpc *r, uint64_t number, int holder, int from) {
    tn__kept *ended = NULL;
    pthread_mutex_lock(&r->lock);
    tn__kept **at = find_kept(r, number), *k = *at;
    /* another rank's word is about what it passes on, nothing else */
    bool fine = k && (from == holder || from == r->rank || end_passing(k, from, holder));
    if (fine && k->holders[holder] > 0) {
        k->holders[holder]--;
        if (--k->total == 0) {
            *at = k->next;
            r->kept_count--;
            k->next = NULL;
            ended = k;
        }
    }
    pthread_mutex_unlock(&r->lock);
    tn__kept_free(ended);
}

tn__kept *tn__kept_find(tn_rpc *r, uint64_t number, int holder) {
    pthread_mutex_lock(&r->lock);
    tn__kept *k = *find_kept(r, number);
    bool holds = k && k->holders[holder] > 0;
    pthread_mutex_unlock(&r->lock);
    return holds ? k : NULL;
}

/* Under the lock: takes out of the table what no one holds. */
static tn__kept *take_ended(tn_rpc *r) {
    tn__kept *ended = NULL;
    for (tn__kept **at = &r->kept; *at;) {
        tn__kept *k = *at;
        if (k->total > 0) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        r->kept_count--;
        k->next = ended;
        ended = k;
    }
    return ended;
}

/* Under the lock: nobody passes anything to this rank any more. */
static void end_passing_to(tn__kept *k, int to) {
    for (tn__passing **at = &k->passing; *at;) {
        tn__passing *p = *at;
        if (p->to == to) {
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    }
}

tn__kept *tn__kept_of_gone(tn_rpc *r, int gone) {
    for (tn__kept *k = r->kept; k; k = k->next) {
        k->total -= gone < 0 ? k->total : k->holders[gone];
        if (gone >= 0) {
            k->holders[gone] = 0;
            end_passing_to(k, gone);
        }
    }
    return take_ended(r);
}

void tn__kept_got(tn_rpc *r, uint64_t number, int from, int to) {
    pthread_mutex_lock(&r->lock);
    tn__kept *k = *find_kept(r, number);
    if (k) {
        end_passing(k, from, to);
    }
    pthread_mutex_unlock(&r->lock);
}

void tn__kept_lost(tn_rpc *r, int from, int to) {
    pthread_mutex_lock(&r->lock);
    for (tn__kept *k = r->kept; k; k = k->next) {
        while (end_passing(k, from, to)) {
            k->total -= k->holders[to] > 0;
            k->holders[to] -= k->holders[to] > 0;
        }
    }
    tn__kept *ended = take_ended(r);
    pthread_mutex_unlock(&r->lock);
    tn__kept_free(ended);
}

void tn__kept_free(tn__kept *list) {
    for (tn__kept *k = list, *next; k; k = next) {
        next = k->next;
        free_passing(k->passing);
        tn_release(k->tensor);
        if (k->is_graph) {
            tn__graph_free(k->object);
        } else if (k->let_go) {
            k->let_go(k->object);
        }
        free(k);
    }
}

int64_t tn_rpc_kept(tn_rpc *r) {
    if (!r || tn__inherited(r->process)) {
        return 0;
    }
    pthread_mutex_lock(&r->lock);
    int64_t count = r->kept_count;
    pthread_mutex_unlock(&r->lock);
    return count;
}

/* ---- References in frames -------------------------------------------------------------------- */

static void note_arrived(tn_rpc *r, int owner, uint64_t number, void *user) {
    int from = *(int *)user;
    if (owner == r->rank) {
        tn__kept_hold(r, number, r->rank);
    } else if (owner != from && from != r->rank) {
        tn__peer_tell(
            r, owner,
            (tn__rpc_head){.kind = TN__RPC_GOT, .number = number, .context = (uint64_t)from});
    }
}

void tn__references_arrived(tn_rpc *r, const tn__rpc_frame *f, int from) {
    tn__message_references(r, f, note_arrived, &from);
}

/* Under the lock: whether `gone` has passed on what `to` has not got. */
static bool is_passing(const tn_rpc *r, int gone, int to) {
    for (const tn__kept *k = r->kept; k; k = k->next) {
        for (const tn__passing *p = k->passing; p; p = p->next) {
            if (p->from == gone && p->to == to) {
                return true;
            }
        }
    }
    return false;
}

static void tell_lost(tn_rpc *r, int to, int gone) {
    tn__peer_tell(r, to, (tn__rpc_head){.kind = TN__RPC_LOST, .number = (uint64_t)gone});
}

void tn__references_lost(tn_rpc *r, int gone) {
    for (int i = 0; i < r->ranks; i++) {
        pthread_mutex_lock(&r->lock);
        bool asks = i != r->rank && is_passing(r, gone, i);
        tn__passing *asked = r->asked ? take_passing(&r->asked, gone, i) : NULL;
        pthread_mutex_unlock(&r->lock);
        if (asks) {
            tn__peer_tell(r, i, (tn__rpc_head){.kind = TN__RPC_AWAIT, .number = (uint64_t)gone});
        }
        if (asked) {
            tell_lost(r, i, gone);
        }
        free(asked);
    }
}

void tn__references_await(tn_rpc *r, int gone, int owner) {
    tn__passing *p = tn__malloc(sizeof(*p));
    pthread_mutex_lock(&r->lock);
    bool lost = r->peers[gone].gone;
    if (!lost && p) {
        *p = (tn__passing){r->asked, gone, owner};
        r->asked = p;
        p = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    free(p);
    if (lost) {
        tell_lost(r, owner, gone);
    }
}

void tn__references_end(tn_rpc *r) {
    free_passing(r->asked);
    r->asked = NULL;
}

/* Rank `holder` has one reference fewer. */
static void let_go(tn_rpc *r, int owner, uint64_t number, int holder) {
    if (owner == r->rank) {
        tn__kept_drop(r, number, holder, r->rank);
    } else {
        tn__peer_tell(
            r, owner,
            (tn__rpc_head){.kind = TN__RPC_LET_GO, .number = number, .context = (uint64_t)holder});
    }
}

static void let_go_later(tn_rpc *r, int owner, uint64_t number, void *user) {
    uint32_t *before = user;
    if (*before > 0) {
        --*before;
    } else {
        let_go(r, owner, number, r->rank);
    }
}

void tn__references_dropped(tn_rpc *r, const tn__rpc_frame *f, uint32_t first) {
    tn__message_references(r, f, let_go_later, &first);
}

/* ---- References ------------------------------------------------------------------------------ */

tn_remote *tn__remote_new(tn_rpc *r, int owner, uint64_t number) {
    tn_remote *m = tn__malloc_for(sizeof(*m), "remote");
    if (!m) {
        if (r) {
            let_go(r, owner, number, r->rank);
        }
        return NULL;
    }
    *m = (tn_remote){1, r ? tn__rpc_keep(r) : NULL, owner, number};
    return m;
}

tn_remote *tn__remote_keep(tn_remote *m) {
    __atomic_fetch_add(&m->refs, 1, __ATOMIC_RELAXED);
    return m;
}

void tn__remote_place(const tn_remote *m, int *owner, uint64_t *number) {
    *owner = m->owner;
    *number = m->number;
}

void tn_remote_free(tn_remote *m) {
    if (m && __atomic_fetch_sub(&m->refs, 1, __ATOMIC_ACQ_REL) == 1) {
        if (m->rpc && !tn__inherited(m->rpc->process)) {
            let_go(m->rpc, m->owner, m->number, m->rpc->rank);
            tn__rpc_release(m->rpc);
        }
        free(m);
    }
}

static tn_remote *refer_to(tn_rpc *r, tn__kept what) {
    tn_remote *m = tn__malloc_for(sizeof(*m), "remote_of");
    uint64_t number = m ? keep_here(r, what) : 0;
    if (!number) {
        free(m);
        return NULL;
    }
    *m = (tn_remote){1, tn__rpc_keep(r), r->rank, number};
    return m;
}

tn_remote *tn__remote_of_graph(tn_rpc *r, void *graph) {
    return refer_to(r, (tn__kept){.object = graph, .is_graph = true});
}

tn_remote *tn_remote_of(tn_rpc *r, tn_tensor *t) {
    if (!tn__rpc_usable(r, "remote_of") || !tn__usable(t, "remote_of")) {
        return NULL;
    }
    tn_remote *m = refer_to(r, (tn__kept){.tensor = tn_keep(t)});
    if (!m) {
        tn_release(t);
    }
    return m;
}

tn_remote *tn_remote_of_object(tn_rpc *r, void *object, void (*let_go_of)(void *object)) {
    if (!tn__rpc_usable(r, "remote_of_object")) {
        return NULL;
    }
    if (!object) {
        tn__raise(TN_EVALUE, "remote_of_object", "the object is NULL");
        return NULL;
    }
    return refer_to(r, (tn__kept){.object = object, .let_go = let_go_of});
}

int tn_remote_owner(const tn_remote *m) {
    return m ? m->owner : -1;
}

/* What is here under m's number; NULL after raising. */
static tn__kept *local_object(const tn_remote *m, const char *operation) {
    if (tn__pending()) {
        return NULL;
    }
    if (!m) {
        tn__raise(TN_EVALUE, operation, "the reference is NULL");
        return NULL;
    }
    tn__kept *k =
        m->rpc && m->owner == m->rpc->rank ? tn__kept_find(m->rpc, m->number, m->owner) : NULL;
    if (!k) {
        tn__raise(TN_ESTATE, operation, "the owner, rank %d, has nothing for it here", m->owner);
    }
    return k;
}

void *tn_remote_object(tn_remote *m) {
    tn__kept *k = local_object(m, "remote_object");
    if (k && (k->tensor || k->is_graph)) {
        tn__raise(TN_ESTATE, "remote_object", "it is a tensor (tn_remote_get)");
        return NULL;
    }
    return k ? k->object : NULL;
}

void *tn__remote_graph(tn_remote *m, const char *operation) {
    tn__kept *k = local_object(m, operation);
    if (k && !k->is_graph) {
        tn__raise(TN_ESTATE, operation, "it is no graph");
        return NULL;
    }
    return k ? k->object : NULL;
}

/* The tensor of an entry here, for the current scope; inert after raising. */
static tn_tensor *tensor_of(const tn__kept *k) {
    if (k && !k->tensor) {
        tn__raise(TN_ESTATE, "remote_get", "it is not a tensor");
    }
    return k && k->tensor ? tn_adopt(tn_keep(k->tensor)) : tn_inert();
}

tn_tensor *tn_remote_get(tn_remote *m, double timeout) {
    if (!m || tn__pending() || m->owner == (m->rpc ? m->rpc->rank : -1)) {
        return tensor_of(local_object(m, "remote_get"));
    }
    tn_message *in = tn_message_new();
    tn_message_add_remote(in, m);
    tn_message *out = tn__rpc_finish(
        tn__rpc_issue(m->rpc, m->owner, "tn/get", in, (tn__rpc_head){0}, timeout, "remote_get"),
        false, "remote_get");
    tn_tensor *t = out ? tn_message_tensor(out, 0) : tn_inert();
    tn_message_free(out);
    return t;
}

static void answer_get(tn_rpc *r, const tn_message *in, tn_message *out) {
    tn_remote *m = tn_message_remote(in, 0);
    if (m) {
        tn_message_add(out, tensor_of(local_object(m, "remote_get")));
    }
    tn_remote_free(m);
}

/* ---- Passing on ------------------------------------------------------------------------------ */

bool tn__remote_pass(tn_rpc *r, tn_remote *m, int to, double deadline) {
    if (m->rpc != r) {
        tn__raise(TN_EVALUE, "rpc_call", "a reference of another rpc");
        return false;
    }
    if (to == m->owner) {
        return true; /* it counts when it arrives */
    }
    bool owns = m->owner == r->rank, gone = owns && !tn__kept_hold(r, m->number, to);
    if (!owns) {
        pthread_mutex_lock(&r->lock);
        gone = r->peers[to].gone;
        pthread_mutex_unlock(&r->lock);
    }
    if (gone) {
        tn__raise(TN_EPEER, "rpc_call", "rank %d is gone: it gets no reference", to);
    }
    if (gone || owns) {
        return !gone;
    }
    double left = deadline - tn__now();
    tn_message *out = tn__rpc_finish(
        tn__rpc_share(r, m->owner, m->number, to, left > 1e-3 ? left : 1e-3), false, "rpc_call");
    if (!out && tn_error() == TN_EPEER) { /* the owner may have counted it, or will */
        tn__remote_recall(m, to);
    }
    tn_message_free(out);
    return out != NULL;
}

void tn__remote_recall(const tn_remote *m, int to) {
    if (to != m->owner) {
        let_go(m->rpc, m->owner, m->number, to);
    }
}

tn_status tn__kept_share(tn_rpc *r, int from, const tn__rpc_head *h) {
    uint64_t to = h->microseconds;
    if (to >= (uint64_t)r->ranks || !tn__kept_find(r, h->context, from)) {
        return tn__raise(TN_EVALUE, "rpc_share", "rank %d has no such reference to pass on", from);
    }
    tn__passing *m = tn__malloc_for(sizeof(*m), "rpc_share");
    if (!m) {
        return tn_error();
    }
    pthread_mutex_lock(&r->lock);
    tn__kept *k = hold_locked(r, h->context, (int)to);
    if (k && (int)to != from) {
        *m = (tn__passing){k->passing, from, (int)to};
        k->passing = m;
        m = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    free(m);
    return k ? TN_OK
             : tn__raise(TN_EPEER, "rpc_share", "rank %d is gone: it gets no reference", (int)to);
}

bool tn__remote_builtins(tn_rpc *r) {
    return tn__rpc_add_function(r, "tn/get", NULL, answer_get, NULL) == TN_OK;
}
