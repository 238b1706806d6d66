/* A thread that meets the other launchers in the store, sends this node's state, and receives the
 * leader's orders. The keys are described in run_words.h.
 *
 * The launcher at the endpoint's address serves the store: all try to, one succeeds, the others
 * join. It is the leader, and its thread also runs run_leader.c. A node that loses its leader has
 * lost the job.
 *
 * The main thread and this one share a few fields under a lock, which is not held during calls to
 * the store. So the main thread never waits for the network; it sees from agent_silence whether
 * this thread hangs.
 */
#include "tools/error_words.h"
#include "tools/run.h"

#include "core/build_info.h"
#include "distributed/init/environment.h"
#include "distributed/init/members.h"
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <tern/sys/store.h>
#include <unistd.h>

/* A leader's own store is in its process: no answer in time means that the process was stopped. */
static const double own_store_seconds = 1e6;

/* A rank that has succeeded, to be told to the other ranks. */
typedef struct ended_rank {
    struct ended_rank *next;
    int restarts, rank, world;
    pid_t pid;
} ended_rank;

enum {
    ENDED_AT_ONCE = 64, /* sent between two signs of life */
    LONGEST_QUOTE = 80
};

struct agent {
    const run_options *options;
    pthread_t thread;
    int event; /* for the main thread */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    order *first_order, **last_order; /* for the main thread */
    node_state state;                 /* the last it has sent */
    int round, code;
    char *text;     /* not yet passed on */
    bool changed;   /* since the last sign of life */
    double contact; /* when the last turn began that went well */
    ended_rank *first_ended, **last_ended;
    char *end; /* set: ends the job, with end_code */
    int end_code;
    bool joined, leads, ended;

    /* The thread's own. */
    tn_store_server *server;
    tn_store *store, *keys;
    leader *leader;
    int id;
    node_place place; /* of the store */
    int heard;        /* orders read */
    bool over;        /* further orders do not matter */
    order_view view;  /* what they are checked against */
    int64_t count;    /* signs of life sent */
    int64_t failure;  /* the number of the failure in failure_round; 0: none */
    int failure_round;
};

/* What the main thread wants to send, copied under the lock. */
typedef struct telling {
    node_state state;
    int round, code;
    char *text, *end;
    int end_code;
} telling;

/* ---- Keys ------------------------------------------------------------------------------------ */

char *agent_find(tn_store *keys, const char *key_format, ...) {
    char key[TN_STORE_KEY + 1];
    bool exists = false;
    void *data = NULL;
    va_list arguments;
    va_start(arguments, key_format);
    vsnprintf(key, sizeof(key), key_format, arguments);
    va_end(arguments);
    if (tn_store_check(keys, key, &exists) == TN_OK && exists) {
        tn_store_get(keys, key, &data, NULL, keys->timeout);
    }
    return data;
}

static void agent_set(tn_store *keys, const char *key, const char *text) {
    tn_store_set(keys, key, text, strlen(text)); /* an error stays pending until the turn's end */
}

/* ---- Orders ---------------------------------------------------------------------------------- */

static void wake_main(agent *a) {
    ssize_t put = write(a->event, &(uint64_t){1}, sizeof(uint64_t));
    (void)put;
}

static void hand_over(agent *a, order_kind kind, run_round round, int code, const char *text) {
    order *o = memory_new(1, sizeof(*o));
    *o = (order){.kind = kind, .round = round, .code = code, .text = text_new("%s", text)};
    pthread_mutex_lock(&a->lock);
    *a->last_order = o;
    a->last_order = &o->next;
    pthread_mutex_unlock(&a->lock);
    wake_main(a);
}

/* Refuses an invalid order: this launcher ends its ranks and leaves. */
static void refuse_order(agent *a, const char *text, const char *why) {
    int line = (int)strcspn(text, "\n");
    char *reason = text_new("order %d in the store cannot be followed: %s (\"%.*s\")", a->heard,
                            why, line < LONGEST_QUOTE ? line : LONGEST_QUOTE, text);
    hand_over(a, ORDER_BROKEN, (run_round){0}, 1, reason);
    free(reason);
    a->over = true;
}

static void hear_order(agent *a, const char *text) {
    said_order o;
    char why[WORD_WHY];
    if (!order_read(text, &a->view, &o, why)) {
        refuse_order(a, text, why);
        return;
    }
    o.round.store = a->place;
    if (o.kind == ORDER_DROP && o.node == a->id) { /* for this node the job is over */
        hand_over(a, ORDER_END, o.round, 1, o.text);
        a->over = true;
    } else if (o.kind != ORDER_DROP) {
        hand_over(a, o.kind, o.round, o.code, o.text);
        a->over = o.kind == ORDER_END;
    }
}

/* ---- Meeting --------------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *at) {
    const struct sockaddr_in *v4 = (const void *)at;
    const struct sockaddr_in6 *v6 = (const void *)at;
    return at->sa_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                    : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

/* Whether the endpoint is this host by its own name, and that name resolves to an address that only
 * this host sees: in Debian's /etc/hosts 127.0.1.1. Other hosts resolve it differently. */
static bool is_own_name(const run_options *o) {
    char why[TN_STORE_WHY], name[sizeof(o->node_name)] = "";
    gethostname(name, sizeof(name) - 1);
    size_t length = strcspn(name, ".");
    if (o->max_nodes == 1 || tn__host_is_near(o->host) || strcspn(o->host, ".") != length ||
        strncasecmp(o->host, name, length) != 0) {
        return false;
    }
    struct addrinfo *list = tn__net_resolve(o->host, o->port, why);
    bool loopback = list && is_loopback(list->ai_addr);
    if (list) {
        freeaddrinfo(list);
    }
    return loopback;
}

/* Whether this launcher serves the store; if not, `why` says why. */
static bool serve_store(agent *a, char *why, size_t size) {
    const run_options *o = a->options;
    if (o->node_rank > 0) {
        snprintf(why, size, "this is node %d", o->node_rank);
        return false;
    }
    a->server = tn_store_serve(is_own_name(o) ? NULL : o->host, o->port, o->token);
    if (!a->server) {
        snprintf(why, size, "%s", error_why());
        tn_error_clear();
    }
    return a->server != NULL;
}

/* Sends this node's description, after a first sign of life. */
static void introduce_node(agent *a) {
    const run_options *o = a->options;
    char key[32], sign[LONGEST_SIGN], card[LONGEST_CARD];
    node_card c = {.min = o->min_nodes,
                   .max = o->max_nodes,
                   .ranks = o->ranks,
                   .wanted = o->node_rank,
                   .pid = (int)getpid()};
    strcpy(c.run_id, o->run_id);
    strcpy(c.name, o->node_name);
    strcpy(c.devices, o->devices);
    snprintf(c.version, sizeof(c.version), "%s", tn__version_text());
    sign_write(sign, &(node_sign){.state = NODE_IDLE});
    card_write(card, &c);
    snprintf(key, sizeof(key), "sign/%d", a->id);
    agent_set(a->keys, key, sign);
    snprintf(key, sizeof(key), "node/%d", a->id);
    agent_set(a->keys, key, card);
}

static const char token_hint[] =
    ". All launchers need the same --token-file, TERN_TOKEN or --token";
static const char own_token_hint[] =
    ". This launcher's token is made from the user's own and from --rdzv-id: copy the other host's "
    "$XDG_CONFIG_HOME/tern/token (~/.config/tern/token) to this one, or give all launchers the "
    "same --token-file or TERN_TOKEN";

/* Raises why this launcher could not join. If it is the token, says where ours came from. */
static void raise_refusal(const agent *a, const char *served) {
    tn_error_record error;
    if (!tn_error_take(&error)) {
        return;
    }
    const char *hint = "";
    if (strstr(error.message, "token")) {
        hint = a->options->own_token ? own_token_hint : token_hint;
    }
    tn_raise(error.status, "%s (and this host does not serve it: %s)%s",
             error_why_of(error.message), served, hint);
}

/* Joins the job whose store is at a->place, or begins it: then `leads`. */
static bool join_job(agent *a, bool leads, double timeout) {
    const run_options *o = a->options;
    a->store = tn_tcp_store(a->place.host, a->place.port, o->token, timeout);
    a->keys = a->store ? tn_prefix_store(a->store, AGENT_PREFIX) : NULL;
    if (!a->keys) {
        return false;
    }
    a->store->timeout = a->keys->timeout = leads ? own_store_seconds : o->heartbeat;

    int64_t id = 0;
    if (tn_store_add(a->keys, "joined", 1, &id) != TN_OK) {
        return false;
    }
    a->id = (int)id;
    if (id < 1 || id > MOST_LAUNCHERS) {
        tn_raise(TN_EPEER, "the store says that %lld launchers have joined: at most %d can",
                 (long long)id, MOST_LAUNCHERS);
        return false;
    }
    a->view = (order_view){
        .own = a->id, .min_nodes = o->min_nodes, .max_nodes = o->max_nodes, .ranks = o->ranks};
    introduce_node(a);
    a->leader = leads ? leader_new(o, a->keys, a->id) : NULL;
    pthread_mutex_lock(&a->lock);
    a->joined = true;
    a->contact = tn__now();
    a->leads = leads;
    pthread_mutex_unlock(&a->lock);
    return tn_error() == TN_OK;
}

static bool meet_nodes(agent *a) {
    const run_options *o = a->options;
    char why[1024] = "";
    bool leads = serve_store(a, why, sizeof(why));
    if (!leads && (o->max_nodes == 1 || o->node_rank == 0)) { /* there is no one to join */
        tn_error_clear();
        tn_raise(TN_EPEER,
                 "job %s cannot serve its store: %s; a job beside a running one needs another port",
                 o->run_id, why);
        return false;
    }
    strcpy(a->place.host, o->host);
    a->place.port = leads ? tn_store_server_port(a->server) : o->port;
    bool joined = join_job(a, leads, leads ? o->heartbeat : o->timeout);
    if (!joined && !a->store && !leads) {
        raise_refusal(a, why);
    }
    return joined;
}

/* ---- Turns ----------------------------------------------------------------------------------- */

static telling listen_to_main(agent *a) {
    pthread_mutex_lock(&a->lock);
    telling t = {a->state, a->round, a->code, a->text, a->end, a->end_code};
    a->text = a->end = NULL;
    a->changed = false;
    pthread_mutex_unlock(&a->lock);
    return t;
}

static void give_sign(agent *a, const telling *t) {
    char key[64];
    if (t->round != a->failure_round) {
        a->failure = 0;
        a->failure_round = t->round;
    }
    if ((t->state == NODE_FAILED || t->state == NODE_STOPPED) && t->code && !a->failure) {
        snprintf(key, sizeof(key), "failures/%d", t->round);
        tn_store_add(a->keys, key, 1, &a->failure);
    }
    if (a->failure < 0) {
        tn_raise(TN_EPEER, "the store has counted %lld failures", (long long)a->failure);
        a->failure = 0;
    }
    if (t->text) {
        snprintf(key, sizeof(key), "text/%d/%d", a->id, t->round);
        agent_set(a->keys, key, t->text);
    }
    char sign[LONGEST_SIGN];
    sign_write(sign, &(node_sign){++a->count, t->round, t->state, t->code, a->failure});
    snprintf(key, sizeof(key), "sign/%d", a->id);
    agent_set(a->keys, key, sign);
    a->view.state = t->state;
    a->view.told = t->round;
}

static ended_rank *next_ended(agent *a) {
    pthread_mutex_lock(&a->lock);
    ended_rank *e = a->first_ended;
    if (e) {
        a->first_ended = e->next;
        a->last_ended = a->first_ended ? a->last_ended : &a->first_ended;
    }
    pthread_mutex_unlock(&a->lock);
    return e;
}

/* Writes to the ranks' part of the store, where tn_dist_init looks. */
static void tell_ranks(agent *a) {
    ended_rank *e;
    for (int i = 0; i < ENDED_AT_ONCE && (e = next_ended(a)); i++) {
        char *key = text_new(TN__ENDED_KEY, e->restarts, e->rank);
        char *text = text_new("%d %s:%d", e->world, a->options->node_name, (int)e->pid);
        agent_set(a->store, key, text);
        free(key);
        free(text);
        free(e);
    }
}

static void note_contact(agent *a, double when) {
    pthread_mutex_lock(&a->lock);
    a->contact = when;
    bool waits = a->first_order != NULL;
    pthread_mutex_unlock(&a->lock);
    if (waits) {
        wake_main(a);
    }
}

/* False when nothing more is to be sent, or an error is pending. */
static bool agent_turn(agent *a) {
    double begun = tn__now();
    telling t = listen_to_main(a);
    tell_ranks(a);
    give_sign(a, &t);
    if (a->leader && t.end) {
        leader_end(a->leader, t.end_code, t.end);
    }
    if (a->leader) {
        leader_tick(a->leader);
    }
    for (char *text; !a->over && (text = agent_find(a->keys, "order/%d", a->heard + 1));) {
        a->heard++;
        hear_order(a, text);
        free(text);
    }
    free(t.text);
    free(t.end);
    if (tn_error() == TN_OK) {
        note_contact(a, begun);
    }
    return tn_error() == TN_OK && !(t.state == NODE_LEFT && (!a->leader || leader_over(a->leader)));
}

static void pause_until_next(agent *a) {
    struct timespec until = tn__timespec(tn__now() + a->options->monitor);
    pthread_mutex_lock(&a->lock);
    while (!a->changed && pthread_cond_timedwait(&a->wake, &a->lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&a->lock);
}

static void *agent_main(void *user) {
    agent *a = user;
    bool met = meet_nodes(a);
    if (met) {
        while (agent_turn(a)) {
            pause_until_next(a);
        }
    }
    tn_error_record error;
    if (tn_error_take(&error)) {
        char *text = text_new("%s%s", met && !a->leader ? "node 0 is lost: " : "",
                              error_why_of(error.message));
        hand_over(a, ORDER_END, (run_round){0}, 1, text);
        free(text);
    }
    pthread_mutex_lock(&a->lock);
    a->ended = true;
    pthread_mutex_unlock(&a->lock);
    wake_main(a);
    return NULL;
}

/* ---- The main thread's side ------------------------------------------------------------------ */

agent *agent_new(const run_options *o) {
    agent *a = memory_new(1, sizeof(*a));
    tn__condition_init(&a->wake);
    pthread_mutex_init(&a->lock, NULL);
    a->options = o;
    a->last_order = &a->first_order;
    a->last_ended = &a->first_ended;
    a->state = NODE_IDLE;
    a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->event < 0 || pthread_create(&a->thread, NULL, agent_main, a) != 0) {
        free(a);
        return NULL;
    }
    return a;
}

int agent_event(const agent *a) {
    return a->event;
}

static order *take_order(agent *a) {
    order *o = a->first_order;
    if (o) {
        a->first_order = o->next;
        a->last_order = a->first_order ? a->last_order : &a->first_order;
    }
    return o;
}

order *agent_order(agent *a) {
    uint64_t times;
    if (read(a->event, &times, sizeof(times)) < 0 && errno != EAGAIN) {
        return NULL;
    }
    pthread_mutex_lock(&a->lock);
    order *o = a->first_order;
    bool start = o && o->kind == ORDER_START;
    if (start && o->next && o->next->kind == ORDER_END) {
        order_free(take_order(a));
        start = false;
    }
    /* Until twice this time the others do not give this node up. */
    bool waits = start && tn__now() - a->contact > a->options->heartbeat / 2;
    o = waits ? NULL : take_order(a);
    pthread_mutex_unlock(&a->lock);
    return o;
}

void order_free(order *o) {
    if (o) {
        free(o->text);
        free(o);
    }
}

void agent_tell(agent *a, node_state state, int round, int code, const char *text) {
    pthread_mutex_lock(&a->lock);
    a->state = state;
    a->round = round;
    a->code = code;
    free(a->text);
    a->text = text ? text_new("%s", text) : NULL;
    a->changed = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

void agent_rank_ended(agent *a, const run_round *r, const worker *w) {
    ended_rank *e = memory_new(1, sizeof(*e));
    *e = (ended_rank){.restarts = r->restarts, .rank = w->rank, .world = r->world, .pid = w->pid};
    pthread_mutex_lock(&a->lock);
    *a->last_ended = e;
    a->last_ended = &e->next;
    a->changed = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

void agent_end_job(agent *a, int code, const char *text) {
    pthread_mutex_lock(&a->lock);
    free(a->end);
    a->end = text_new("%s", text);
    a->end_code = code;
    a->changed = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

bool agent_leads(agent *a) {
    pthread_mutex_lock(&a->lock);
    bool leads = a->leads;
    pthread_mutex_unlock(&a->lock);
    return leads;
}

bool agent_joined(agent *a) {
    pthread_mutex_lock(&a->lock);
    bool joined = a->joined;
    pthread_mutex_unlock(&a->lock);
    return joined;
}

bool agent_ended(agent *a) {
    pthread_mutex_lock(&a->lock);
    bool ended = a->ended;
    pthread_mutex_unlock(&a->lock);
    return ended;
}

void agent_free(agent *a) {
    pthread_join(a->thread, NULL);
    for (order *o; (o = take_order(a));) {
        order_free(o);
    }
    for (ended_rank *e; (e = next_ended(a));) {
        free(e);
    }
    leader_free(a->leader);
    tn_store_free(a->keys);
    tn_store_free(a->store);
    tn_store_server_free(a->server);
    free(a->text);
    free(a->end);
    close(a->event);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
    free(a);
}
