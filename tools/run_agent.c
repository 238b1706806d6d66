/* Between the main thread and the job: this node's state goes out, orders come in.
 *
 * The launcher at the endpoint's address serves the store (run_words.h has its keys): all try to,
 * one succeeds and leads, the others join. A node that loses its leader has lost the job.
 *
 * On one host nothing goes through the store: the leader is a plain function, called at once. On
 * several a thread talks to the store, several times a second. The two threads share the fields
 * under the lock, which is not held during calls to the store: so the main thread never waits for
 * the network.
 */
#include "tools/run_leader.h"

#include "core/build_info.h"
#include "distributed/init/environment.h"
#include "distributed/init/members.h"
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <tern/sys/store.h>
#include <unistd.h>

/* What the main thread has for the leader. */
typedef struct node_report {
    node_state state;
    int round, code;
    char *text;       /* NULL: nothing new */
    tn__buffer ended; /* key, value, … for the ranks' part of the store: who has ended well */
} node_report;

struct agent {
    const run_options *options;
    bool threaded;
    pthread_t thread;
    int event, wake; /* eventfds: for the main thread, for this one */

    pthread_mutex_t lock;
    agent_state state;
    order_queue orders; /* for the main thread */
    node_report report;
    double contact; /* when the last turn began that went well */

    /* The thread's: */
    tn_store_server *server; /* NULL: another host serves the store */
    tn_store *store;         /* NULL: there is no other host */
    int port;                /* of the store */
    leader *leader;          /* NULL: node 0 has it */
    int id;
    int given;       /* orders that are in the store, or that were read there */
    order_view view; /* what orders are checked against */
    heartbeat beat;  /* the last sent */
};

/* A leader's own store is in its process: no answer in time means that the process was stopped. */
static const double own_store_seconds = 1e6;

/* ---- Keys ------------------------------------------------------------------------------------ */

typedef struct agent_key {
    char text[64];
} agent_key;

static agent_key key_of(const char *format, ...) TN_PRINTF(1, 2);

static agent_key key_of(const char *format, ...) {
    agent_key key;
    int prefix = snprintf(key.text, sizeof(key.text), "agent/");
    va_list numbers;
    va_start(numbers, format);
    vsnprintf(key.text + prefix, sizeof(key.text) - (size_t)prefix, format, numbers);
    va_end(numbers);
    return key;
}

/* The text at this key; the caller frees. NULL: there is none, or an error is pending. */
static char *find_text(tn_store *store, agent_key key) {
    bool exists = false;
    void *data = NULL;
    if (tn_store_check(store, key.text, &exists) == TN_OK && exists) {
        tn_store_get(store, key.text, &data, NULL, store->timeout);
    }
    return data;
}

/* Frees the text. An error stays pending. */
static void set_text(tn_store *store, agent_key key, char *text) {
    tn_store_set(store, key.text, text, strlen(text));
    free(text);
}

/* ---- Meeting --------------------------------------------------------------------------------- */

/* Whether the endpoint is this host by its own name, and that name resolves to an address that only
 * this host sees: in Debian's /etc/hosts 127.0.1.1. Other hosts resolve it differently. */
static bool is_own_name(const run_options *o) {
    const char *name = o->node.name, *unknown;
    size_t length = strcspn(name, ".");
    if (o->node.max == 1 || tn__host_is_near(o->host) || strcspn(o->host, ".") != length ||
        strncasecmp(o->host, name, length) != 0) {
        return false;
    }
    struct addrinfo *list = tn__net_resolve(o->host, o->port, &unknown);
    if (!list) { return false; }
    const struct sockaddr_in *v4 = (const void *)list->ai_addr;
    const struct sockaddr_in6 *v6 = (const void *)list->ai_addr;
    bool loopback = list->ai_family == AF_INET ? ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET
                                               : IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
    freeaddrinfo(list);
    return loopback;
}

/* Serves the store and leads; if not, the error says why. */
static bool serve_store(agent *a) {
    const run_options *o = a->options;
    if (o->node.wanted > 0) {
        tn_raise(TN_ESTATE, "this is node %d", o->node.wanted);
        return false;
    }
    a->server = tn_store_serve(is_own_name(o) ? NULL : o->host, o->port, o->token);
    if (!a->server) { return false; }
    a->port = tn_store_server_port(a->server);
    a->leader = leader_new(o, tn__now());
    return true;
}

static bool open_store(agent *a, double timeout, double answer) {
    a->store = tn_tcp_store(a->options->host, a->port, a->options->token, timeout);
    if (a->store) { a->store->timeout = answer; }
    return a->store != NULL;
}

/* Raises why this launcher could not join. If it is the token, says where ours came from. */
static void raise_refusal(const agent *a, const char *served) {
    const run_options *o = a->options;
    const tn_error_record error = error_take();
    char unused[TN_STORE_WHY];
    bool token = tn__tcp_probe(o->host, a->port, o->token, tn__now() + o->heartbeat, unused) ==
                 TN__DIAL_OTHER_JOB;
    const char *hint =
        !token         ? ""
        : o->own_token ? ". This launcher's token is made from the user's own and from --rdzv-id: "
                         "copy the other host's $XDG_CONFIG_HOME/tern/token (~/.config/tern/token) "
                         "to this one, or give all launchers the same --token-file or TERN_TOKEN"
                       : ". All launchers need the same --token-file, TERN_TOKEN or --token";
    tn_raise(TN_EPEER, "%s (and this host does not serve it: %s)%s", error.message, served, hint);
}

/* Takes a number, and describes this node after a first heartbeat. */
static bool join_job(agent *a) {
    const run_options *o = a->options;
    void *first = NULL;
    int64_t id = 0;
    if (tn_store_get(a->store, key_of("node/0").text, &first, NULL, o->heartbeat) != TN_OK) {
        tn_raise(TN_EPEER,
                 "no launcher leads several hosts at %s:%d (%s); a separate job needs another port",
                 o->host, o->port, error_take().message);
        return false;
    }
    free(first);
    if (tn_store_add(a->store, key_of("joined").text, 1, &id) == TN_OK &&
        (id < 1 || id > MOST_LAUNCHERS)) {
        tn_raise(TN_EPEER, "the store says that %lld launchers have joined: at most %d can",
                 (long long)id, MOST_LAUNCHERS);
    }
    a->id = (int)id;
    a->view = (order_view){
        .own = a->id, .min_nodes = o->node.min, .max_nodes = o->node.max, .ranks = o->node.ranks};
    set_text(a->store, key_of("beat/%d", a->id), heartbeat_write(&a->beat));
    set_text(a->store, key_of("node/%d", a->id), info_write(&o->node));
    return tn_error() == TN_OK;
}

/* Serves the store, or joins the one at the endpoint. False with an error pending. */
static bool enter_job(agent *a) {
    const run_options *o = a->options;
    a->port = o->port;
    if (serve_store(a)) {
        if (o->node.max > 1 && open_store(a, o->heartbeat, own_store_seconds)) {
            set_text(a->store, key_of("node/0"), info_write(&o->node));
        }
        return tn_error() == TN_OK;
    }
    const tn_error_record served = error_take();
    if (o->node.max == 1 || o->node.wanted == 0) { /* there is no one to join */
        tn_raise(TN_EPEER,
                 "job %s cannot serve its store: %s; a job beside a running one needs another port",
                 o->node.run_id, served.message);
    } else if (open_store(a, o->timeout, o->heartbeat)) {
        join_job(a);
    } else {
        raise_refusal(a, served.message);
    }
    return tn_error() == TN_OK;
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* The failure's number among those of all nodes, once for each round. */
static int64_t number_failure(agent *a, const node_report *r) {
    bool failed = (r->state == NODE_FAILED || r->state == NODE_STOPPED) && r->code > 0;
    int64_t number = r->round == a->beat.round ? a->beat.failure : 0;
    if (!failed || number > 0) { return number; }
    number = 1;
    if (a->store) { tn_store_add(a->store, key_of("failures/%d", r->round).text, 1, &number); }
    if (number < 0) {
        tn_raise(TN_EPEER, "the store has counted %lld failures", (long long)number);
    }
    return number > 0 ? number : 0;
}

static void send_report(agent *a, const node_report *r) {
    char *text = r->text;
    a->beat = (heartbeat){a->beat.count + 1, r->round, r->state, r->code, number_failure(a, r)};
    a->view.state = r->state;
    a->view.reported = r->round;
    if (a->leader) {
        node *own = &a->leader->nodes[0];
        own->beat = a->beat;
        if (text) {
            free(own->report);
            own->report = text;
        }
        return;
    }
    if (text) { set_text(a->store, key_of("text/%d/%d", a->id, r->round), text); }
    set_text(a->store, key_of("beat/%d", a->id), heartbeat_write(&a->beat));
}

/* Ranks that wait in tn_dist_init for one that has ended can stop. */
static void send_ended(agent *a, tn__buffer *ended) {
    memory_needed(!ended->failed);
    for (char *key, *text = NULL; (key = tn__string_after(ended, text));) {
        text = tn__string_after(ended, key);
        if (a->server) {
            tn__store_server_set(a->server, key, text);
        } else {
            tn_store_set(a->store, key, text, strlen(text));
        }
    }
    tn__buffer_free(ended);
}

/* ---- What other nodes have sent -------------------------------------------------------------- */

/* The node loses its place: what it has sent makes no sense. */
static void drop_strange(agent *a, node *n, const char *what) {
    leader_drop(a->leader, n, text_new("its %s makes no sense: %s", what, error_take().message));
}

static void read_info(agent *a, node *n) {
    char *text = find_text(a->store, key_of("node/%d", n->id));
    if (!text) { return; }
    bool read = info_read(text, &n->info);
    n->foreign = *n->info.name && !tn__version_agrees(n->info.version, tn__version_text());
    n->known = read || n->foreign;
    if (!n->known) {
        drop_strange(a, n, "description");
    } else if (!read) {
        tn_error_clear();
    }
    free(text);
}

static void read_heartbeat(agent *a, node *n) {
    heartbeat h;
    char *text = find_text(a->store, key_of("beat/%d", n->id));
    if (!text) { return; }
    if (!heartbeat_read(text, a->leader->round, &h)) {
        drop_strange(a, n, "heartbeat");
    } else if (h.count != n->beat.count) {
        n->heard = tn__now();
        bool reports = (h.state != n->beat.state || h.round != n->beat.round) &&
                       (h.state == NODE_STOPPED || h.state == NODE_LEFT);
        n->beat = h;
        if (reports) {
            free(n->report);
            n->report = find_text(a->store, key_of("text/%d/%d", n->id, h.round));
        }
    }
    free(text);
}

static void lead_job(agent *a) {
    leader *l = a->leader;
    int64_t joined = 0;
    bool more = a->store && tn_store_add(a->store, key_of("joined").text, 0, &joined) == TN_OK &&
                leader_grow(l, joined);
    for (int i = 1; more && i < l->count; i++) {
        node *n = &l->nodes[i];
        if (!n->gone && !n->known) { read_info(a, n); }
        if (!n->gone && n->known) { read_heartbeat(a, n); }
    }
    leader_tick(l, tn__now());
}

/* ---- Orders ---------------------------------------------------------------------------------- */

/* For the other nodes. */
static bool write_order(agent *a, const order *o) {
    bool written = false;
    char *text = order_write(o);
    agent_key key = key_of("order/%d", ++a->given);
    if (tn_store_compare_set(a->store, key.text, NULL, text, &written) == TN_OK && !written) {
        tn_raise(TN_EPEER,
                 "%s in the store is not from this launcher: another process has the token "
                 "and gives orders",
                 key.text);
    }
    free(text);
    return written;
}

/* An invalid order ends this launcher's ranks, and it leaves. */
static order *refuse_order(const agent *a, const char *text) {
    int line = (int)strcspn(text, "\n");
    return order_new(ORDER_END, 1,
                     text_new("order %d in the store cannot be followed: %s (\"%.*s\")", a->given,
                              error_take().message, line < LONGEST_QUOTE ? line : LONGEST_QUOTE,
                              text));
}

static order *read_order(agent *a) {
    char *text = find_text(a->store, key_of("order/%d", a->given + 1));
    if (!text) { return NULL; }
    a->given++;
    order *o = order_read(text);
    if (!o || !order_accept(&a->view, o)) {
        order_free(o);
        o = refuse_order(a, text);
    }
    free(text);
    return o;
}

static void collect_orders(agent *a, order_queue *orders) {
    for (order *o; (o = a->leader ? orders_take(&a->leader->orders) : read_order(a));) {
        bool known = !a->leader || !a->store || write_order(a, o);
        if (o->kind == ORDER_DROP && o->number == a->id) { /* for this node the job is over */
            o->kind = ORDER_END;
            o->number = 1;
        }
        o->round = order_round(o, a->id);
        o->round.port = a->port;
        if (known && o->kind != ORDER_DROP) {
            orders_add(orders, o);
        } else {
            order_free(o);
        }
    }
}

/* ---- Turns ----------------------------------------------------------------------------------- */

/* Sends what there is to send, and takes what has come; on node 0 the leader decides in between.
 * False when nothing more is to be sent, or an error is pending. */
static bool agent_turn(agent *a) {
    if (a->state == AGENT_JOINING) {
        if (!enter_job(a)) { return false; }
        pthread_mutex_lock(&a->lock);
        a->state = a->leader ? AGENT_LEADS : AGENT_JOINED;
        pthread_mutex_unlock(&a->lock);
    }
    double begun = tn__now();
    pthread_mutex_lock(&a->lock);
    node_report report = a->report;
    a->report.text = NULL;
    a->report.ended = (tn__buffer){0};
    pthread_mutex_unlock(&a->lock);

    order_queue orders = {0};
    send_ended(a, &report.ended);
    send_report(a, &report);
    if (a->leader) { lead_job(a); }
    collect_orders(a, &orders);
    bool sent = tn_error() == TN_OK;

    pthread_mutex_lock(&a->lock);
    a->contact = sent ? begun : a->contact;
    for (order *o; (o = orders_take(&orders));) {
        orders_add(&a->orders, o);
    }
    bool waits = a->orders.first != NULL;
    pthread_mutex_unlock(&a->lock);
    if (waits) { eventfd_write(a->event, 1); }
    return sent && (report.state != NODE_LEFT || (a->leader && !leader_over(a->leader)));
}

/* There is nothing more to do: an error that is pending ends the job for this node. */
static void end_agent(agent *a) {
    order *last = NULL;
    if (tn_error() != TN_OK) {
        const char *what = a->state == AGENT_JOINED ? "node 0 is lost: " : "";
        last = order_new(ORDER_END, 1, text_new("%s%s", what, error_take().message));
    }
    pthread_mutex_lock(&a->lock);
    if (last) { orders_add(&a->orders, last); }
    a->state = AGENT_ENDED;
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->event, 1);
}

static void *agent_main(void *user) {
    agent *a = user;
    while (agent_turn(a)) {
        poll(&(struct pollfd){.fd = a->wake, .events = POLLIN}, 1,
             (int)(1e3 * a->options->monitor));
        eventfd_read(a->wake, &(eventfd_t){0});
    }
    end_agent(a);
    return NULL;
}

/* ---- The main thread's side ------------------------------------------------------------------ */

agent *agent_new(const run_options *o) {
    agent *a = memory_new(1, sizeof(*a));
    pthread_mutex_init(&a->lock, NULL);
    a->options = o;
    /* Looking up the name of another host may take long, too. */
    a->threaded = o->node.max > 1 || !tn__host_is_near(o->host);
    a->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->event < 0 || a->wake < 0 ||
        (a->threaded && pthread_create(&a->thread, NULL, agent_main, a) != 0)) {
        free(a);
        return NULL;
    }
    return a;
}

int agent_event(const agent *a) {
    return a->event;
}

order *agent_order(agent *a) {
    eventfd_read(a->event, &(eventfd_t){0});
    if (!a->threaded && a->state != AGENT_ENDED && !agent_turn(a)) { end_agent(a); }
    pthread_mutex_lock(&a->lock);
    order *o = a->orders.first;
    bool start = o && o->kind == ORDER_START;
    if (start && o->next && o->next->kind == ORDER_END) {
        order_free(orders_take(&a->orders));
        start = false;
    }
    /* Until twice this time the others do not give this node up. */
    bool waits = start && a->threaded && tn__now() - a->contact > a->options->heartbeat / 2;
    o = waits ? NULL : orders_take(&a->orders);
    pthread_mutex_unlock(&a->lock);
    return o;
}

void agent_report(agent *a, node_state state, int round, int code, const char *text) {
    pthread_mutex_lock(&a->lock);
    free(a->report.text);
    a->report.state = state;
    a->report.round = round;
    a->report.code = code;
    a->report.text = text ? text_new("%s", text) : NULL;
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->wake, 1);
}

void agent_rank_ended(agent *a, const run_round *r, const worker *w) {
    pthread_mutex_lock(&a->lock);
    tn__buffer_format(&a->report.ended, TN__ENDED_KEY "%c%d %s:%d%c", r->restarts, w->rank, 0,
                      r->world, a->options->node.name, (int)w->pid, 0);
    pthread_mutex_unlock(&a->lock);
    eventfd_write(a->wake, 1);
}

agent_state agent_state_now(agent *a) {
    pthread_mutex_lock(&a->lock);
    agent_state state = a->state;
    pthread_mutex_unlock(&a->lock);
    return state;
}

void agent_free(agent *a) {
    if (a->threaded) { pthread_join(a->thread, NULL); }
    for (order *o; (o = orders_take(&a->orders));) {
        order_free(o);
    }
    leader_free(a->leader);
    tn_store_free(a->store);
    tn_store_server_free(a->server);
    tn__buffer_free(&a->report.ended);
    free(a->report.text);
    close(a->event);
    close(a->wake);
    pthread_mutex_destroy(&a->lock);
    free(a);
}
