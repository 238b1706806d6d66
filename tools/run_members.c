/* The launcher at the endpoint's address serves the store: all try to, one succeeds and leads, the
 * others join. A node that loses its leader has lost the job. */
#include "tools/run_members.h"

#include "core/build_info.h"
#include "distributed/init/environment.h"
#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <tern/sys/store.h>

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
static bool serve_store(membership *m) {
    const run_options *o = m->options;
    if (o->node.wanted > 0) {
        tn_raise(TN_ESTATE, "this is node %d", o->node.wanted);
        return false;
    }
    m->server = tn_store_serve(is_own_name(o) ? NULL : o->host, o->port, o->token);
    if (!m->server) { return false; }
    m->port = tn_store_server_port(m->server);
    m->leader = leader_new(o, tn__now());
    return true;
}

static bool open_store(membership *m, double timeout, double answer) {
    m->store = tn_tcp_store(m->options->host, m->port, m->options->token, timeout);
    if (m->store) { m->store->timeout = answer; }
    return m->store != NULL;
}

/* Raises why this launcher could not join. If it is the token, says where ours came from. */
static void raise_refusal(const membership *m, const char *served) {
    const run_options *o = m->options;
    const tn_error_record error = error_take();
    char unused[TN_STORE_WHY];
    bool token = tn__tcp_probe(o->host, m->port, o->token, tn__now() + o->heartbeat, unused) ==
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
static bool join_job(membership *m) {
    const run_options *o = m->options;
    void *first = NULL;
    int64_t id = 0;
    if (tn_store_get(m->store, key_of("node/0").text, &first, NULL, o->heartbeat) != TN_OK) {
        tn_raise(TN_EPEER,
                 "no launcher leads several hosts at %s:%d (%s); a separate job needs another port",
                 o->host, o->port, error_take().message);
        return false;
    }
    free(first);
    if (tn_store_add(m->store, key_of("joined").text, 1, &id) == TN_OK &&
        (id < 1 || id > MOST_LAUNCHERS)) {
        tn_raise(TN_EPEER, "the store says that %lld launchers have joined: at most %d can",
                 (long long)id, MOST_LAUNCHERS);
    }
    m->id = (int)id;
    m->view = (order_view){
        .own = m->id, .min_nodes = o->node.min, .max_nodes = o->node.max, .ranks = o->node.ranks};
    set_text(m->store, key_of("beat/%d", m->id), heartbeat_write(&m->beat));
    set_text(m->store, key_of("node/%d", m->id), info_write(&o->node));
    return tn_error() == TN_OK;
}

bool membership_begin(membership *m, const run_options *o) {
    *m = (membership){.options = o, .port = o->port};
    if (serve_store(m)) {
        if (o->node.max > 1 && open_store(m, o->heartbeat, own_store_seconds)) {
            set_text(m->store, key_of("node/0"), info_write(&o->node));
        }
        return tn_error() == TN_OK;
    }
    const tn_error_record served = error_take();
    if (o->node.max == 1 || o->node.wanted == 0) { /* there is no one to join */
        tn_raise(TN_EPEER,
                 "job %s cannot serve its store: %s; a job beside a running one needs another port",
                 o->node.run_id, served.message);
    } else if (open_store(m, o->timeout, o->heartbeat)) {
        join_job(m);
    } else {
        raise_refusal(m, served.message);
    }
    return tn_error() == TN_OK;
}

void membership_end(membership *m) {
    leader_free(m->leader);
    tn_store_free(m->store);
    tn_store_server_free(m->server);
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* The failure's number among those of all nodes, once for each round. */
static int64_t number_failure(membership *m, const node_report *r) {
    bool failed = (r->state == NODE_FAILED || r->state == NODE_STOPPED) && r->code > 0;
    int64_t number = r->round == m->beat.round ? m->beat.failure : 0;
    if (!failed || number > 0) { return number; }
    number = 1;
    if (m->store) { tn_store_add(m->store, key_of("failures/%d", r->round).text, 1, &number); }
    if (number < 0) {
        tn_raise(TN_EPEER, "the store has counted %lld failures", (long long)number);
    }
    return number > 0 ? number : 0;
}

static void send_report(membership *m, const node_report *r) {
    char *text = r->text;
    m->beat = (heartbeat){m->beat.count + 1, r->round, r->state, r->code, number_failure(m, r)};
    m->view.state = r->state;
    m->view.reported = r->round;
    if (m->leader) {
        node *own = &m->leader->nodes[0];
        own->beat = m->beat;
        if (text) {
            free(own->report);
            own->report = text;
        }
        return;
    }
    if (text) { set_text(m->store, key_of("text/%d/%d", m->id, r->round), text); }
    set_text(m->store, key_of("beat/%d", m->id), heartbeat_write(&m->beat));
}

/* Ranks that wait in tn_dist_init for one that has ended can stop. */
static void send_ended(membership *m, tn__buffer *ended) {
    char *lines = text_take(ended), *rest = lines;
    for (char *key, *text; (key = strsep(&rest, "\n")) && (text = strchr(key, ' '));) {
        *text++ = 0;
        if (m->server) {
            tn__store_server_set(m->server, key, text);
        } else {
            tn_store_set(m->store, key, text, strlen(text));
        }
    }
    free(lines);
}

/* ---- What other nodes have sent -------------------------------------------------------------- */

/* The node loses its place: what it has sent makes no sense. */
static void drop_strange(membership *m, node *n, const char *what) {
    leader_drop(m->leader, n, text_new("its %s makes no sense: %s", what, error_take().message));
}

static void read_info(membership *m, node *n) {
    char *text = find_text(m->store, key_of("node/%d", n->id));
    if (!text) { return; }
    bool read = info_read(text, &n->info);
    n->foreign = *n->info.name && !tn__version_agrees(n->info.version, tn__version_text());
    n->known = read || n->foreign;
    if (!n->known) {
        drop_strange(m, n, "description");
    } else if (!read) {
        tn_error_clear();
    }
    free(text);
}

static void read_heartbeat(membership *m, node *n) {
    heartbeat h;
    char *text = find_text(m->store, key_of("beat/%d", n->id));
    if (!text) { return; }
    if (!heartbeat_read(text, m->leader->round, &h)) {
        drop_strange(m, n, "heartbeat");
    } else if (h.count != n->beat.count) {
        n->heard = tn__now();
        bool reports = (h.state != n->beat.state || h.round != n->beat.round) &&
                       (h.state == NODE_STOPPED || h.state == NODE_LEFT);
        n->beat = h;
        if (reports) {
            free(n->report);
            n->report = find_text(m->store, key_of("text/%d/%d", n->id, h.round));
        }
    }
    free(text);
}

static void lead_job(membership *m) {
    leader *l = m->leader;
    int64_t joined = 0;
    bool more = m->store && tn_store_add(m->store, key_of("joined").text, 0, &joined) == TN_OK &&
                leader_grow(l, joined);
    for (int i = 1; more && i < l->count; i++) {
        node *n = &l->nodes[i];
        if (!n->gone && !n->known) { read_info(m, n); }
        if (!n->gone && n->known) { read_heartbeat(m, n); }
    }
    leader_tick(l, tn__now());
}

/* ---- Orders ---------------------------------------------------------------------------------- */

/* For the other nodes. */
static bool write_order(membership *m, const order *o) {
    bool written = false;
    char *text = order_write(o);
    agent_key key = key_of("order/%d", ++m->orders);
    if (tn_store_compare_set(m->store, key.text, NULL, text, &written) == TN_OK && !written) {
        tn_raise(TN_EPEER,
                 "%s in the store is not from this launcher: another process has the token "
                 "and gives orders",
                 key.text);
    }
    free(text);
    return written;
}

/* An invalid order ends this launcher's ranks, and it leaves. */
static order *refuse_order(const membership *m, const char *text) {
    int line = (int)strcspn(text, "\n");
    return order_new(ORDER_END, 1,
                     text_new("order %d in the store cannot be followed: %s (\"%.*s\")", m->orders,
                              error_take().message, line < LONGEST_QUOTE ? line : LONGEST_QUOTE,
                              text));
}

static order *read_order(membership *m) {
    char *text = find_text(m->store, key_of("order/%d", m->orders + 1));
    if (!text) { return NULL; }
    m->orders++;
    order *o = order_read(text);
    if (!o || !order_accept(&m->view, o)) {
        order_free(o);
        o = refuse_order(m, text);
    }
    free(text);
    return o;
}

static void collect_orders(membership *m, order_queue *orders) {
    for (order *o; (o = m->leader ? orders_take(&m->leader->orders) : read_order(m));) {
        bool known = !m->leader || !m->store || write_order(m, o);
        if (o->kind == ORDER_DROP && o->number == m->id) { /* for this node the job is over */
            o->kind = ORDER_END;
            o->number = 1;
        }
        o->round = order_round(o, m->id);
        o->round.port = m->port;
        if (known && o->kind != ORDER_DROP) {
            orders_add(orders, o);
        } else {
            order_free(o);
        }
    }
}

void membership_exchange(membership *m, node_report *r, order_queue *orders) {
    send_ended(m, &r->ended);
    send_report(m, r);
    if (m->leader) { lead_job(m); }
    collect_orders(m, orders);
}
