/* The standby: a node whose launcher leads when the leader is lost, so that the job survives the
 * death of node 0.
 *
 * Every launcher of a job that may grow and shrink (--nnodes MIN:MAX) serves a store of its own,
 * empty at first. The leader names one of the nodes as standby, in an order, and copies to its
 * store all cards and orders, each before it writes it to its own. So no launcher has ever heard an
 * order that the standby lacks. A launcher that loses the leader goes to the standby's store and
 * waits there (run_agent.c). The standby, once it has lost the leader too, begins in CLAIM: when
 * more than half of the last round's nodes are in its store, it orders "lead" and continues the
 * list of orders. As a leader it has a standby in turn.
 *
 * No two may lead, except with --failover always, where hosts that are cut off from each other go
 * on as two jobs. The next order has one number and is set once, in the standby's store first: a
 * leader that was only stopped, or cut off, finds the number taken by "lead", and ends. A start
 * that the standby has not taken is not given.
 *
 * A standby that does not answer may be alive all the same. In its store are the orders up to its
 * loss, so it counts the members of the last round that these start: voters. The leader orders
 * "standby 0 - 1", which that store lacks. Nodes that have heard this, and say so (heard/N), never
 * go there. When they are half of the voters, the others can never be more than half, and the doubt
 * is over; until then no round starts, and no other standby is named. Voters that are silent
 * instead may be there: if these are more than half, the leader ends. Of the last thing that was
 * sent to the standby it is not known whether it has taken it, so both must hold: for the voters
 * without it, and with it. A standby whose port refuses connections has ended, and leaves no doubt.
 *
 * A round starts once all its members have heard who the standby is, or that there is none: if they
 * lose the leader in it, all go to the same store.
 */
#include "tools/run_leader.h"

#include "distributed/store/net.h"
#include "distributed/store/tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tern/sys/store.h>
#include <unistd.h>

static const double guide_seconds = 0.5;
/* Heartbeats for the others to come: a store that is silent is given up after two. */
static const double longest_claim = 3;

bool standby_wanted(const run_options *o) {
    bool elastic = o->min_nodes < o->max_nodes;
    return elastic &&
           (o->standby == STANDBY_ALWAYS ||
            (o->standby == STANDBY_MAJORITY && o->max_nodes > 2)); /* 1 of 2 is no more than half */
}

double standby_seconds(const run_options *o) {
    return (longest_claim + 2) * o->heartbeat; /* it may notice the loss two heartbeats later */
}

/* This host's address on the way to the leader's store. */
static bool find_address(const run_options *o, const node_place *store, node_place *at) {
    char why[TN_STORE_WHY];
    uint8_t place[TN__PLACE];
    struct in6_addr address;
    int fd;
    if (tn__tcp_dial(store->host, store->port, o->token, tn__now() + o->heartbeat, &fd, why) !=
        TN__DIAL_OURS) {
        return false;
    }
    bool known = tn__net_place(fd, false, place);
    close(fd);
    memcpy(&address, place, sizeof(address));
    bool v4 = IN6_IS_ADDR_V4MAPPED(&address);
    const void *bytes = v4 ? (const void *)(place + 12) : &address;
    return known && !IN6_IS_ADDR_LINKLOCAL(&address) &&
           inet_ntop(v4 ? AF_INET : AF_INET6, bytes, at->host, sizeof(at->host)) != NULL;
}

tn_store_server *standby_serve(const run_options *o, const node_place *store, node_place *at) {
    tn_store_server *server =
        find_address(o, store, at) ? tn_store_serve(at->host, 0, o->token) : NULL;
    tn_error_clear();
    at->port = tn_store_server_port(server);
    return server;
}

/* ---- The leader's side ----------------------------------------------------------------------- */

void standby_close(leader *l) {
    tn_store_free(l->copy);
    l->copy = NULL;
}

/* What answers at the standby's place now. */
static tn__dialed probe_standby(const leader *l) {
    const run_options *o = l->options;
    const node_place *p = &l->standby_place;
    char why[TN_STORE_WHY];
    return tn__tcp_probe(p->host, p->port, o->token, tn__now() + o->heartbeat / 2, why);
}

/* Whom the standby counts before it leads: the last round's members, or else all that have joined.
 * See standby_claim. */
static bool node_counts(const leader *l, const node *n) {
    return l->round > 0 ? n->member : n->known && !n->gone;
}

/* The standby's store has not taken something that was sent to it. Its launcher has ended for
 * certain only if its port is closed. */
static void lose_copy(leader *l, tn__dialed answer) {
    tn_error_clear();
    standby_close(l);
    l->doubted = l->standby && answer != TN__DIAL_REFUSED;
    for (int i = 0; i < l->count; i++) {
        l->nodes[i].maybe_voter = node_counts(l, &l->nodes[i]);
    }
}

static bool send_copy(leader *l, const char *key, const char *text, bool *is_set) {
    bool is_order = strncmp(key, "order/", 6) == 0;
    *is_set = true;
    return (is_order ? tn_store_compare_set(l->copy, key, NULL, text, is_set)
                     : tn_store_set(l->copy, key, text, strlen(text))) == TN_OK;
}

static void raise_moved(leader *l) {
    standby_close(l);
    tn_raise(TN_EPEER,
             "this launcher was silent for too long: the job goes on at %s:%d (host %s), and this "
             "launcher has lost its place in it",
             l->standby_place.host, l->standby_place.port, l->nodes[l->standby - 1].card.name);
}

void standby_ask(leader *l) {
    if (!l->copy || tn_error() != TN_OK) {
        return;
    }
    char *text = agent_find(l->copy, "order/%d", l->orders + 1);
    tn_error_clear(); /* the next order shows whether it is lost */
    if (text) {
        raise_moved(l);
    }
    free(text);
}

bool standby_copy(leader *l, const char *key, const char *text) {
    bool is_set;
    if (!l->copy || tn_error() != TN_OK) {
        return true;
    }
    if (!send_copy(l, key, text, &is_set)) {
        tn_error_clear();
        tn__dialed answer = probe_standby(l);
        /* Once more if it answers: it may be this launcher that was stopped. */
        if (answer != TN__DIAL_OURS || !send_copy(l, key, text, &is_set)) {
            lose_copy(l, answer);
            return false;
        }
    }
    if (!is_set) {
        raise_moved(l);
        return false;
    }
    for (int i = 0; i < l->count; i++) {
        l->nodes[i].voter = node_counts(l, &l->nodes[i]);
    }
    return true;
}

void standby_number(leader *l, const char *key, int number) {
    char text[16];
    snprintf(text, sizeof(text), "%d", number);
    standby_copy(l, key, text);
}

void standby_know(leader *l, const node *n, const char *card) {
    char key[32];
    snprintf(key, sizeof(key), "node/%d", n->id);
    standby_copy(l, key, card);
}

/* ---- Whether others may lead ----------------------------------------------------------------- */

/* Whether the former standby may have more than half of the nodes that it counts: those that have
 * not heard that it is not the standby any more; `gone`: and never will. */
static bool most_may_follow(const leader *l, bool gone) {
    int voters = 0, others = 0, maybe_voters = 0, maybe_others = 0;
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        bool other = n->orders < l->told && (n->gone || !gone);
        voters += n->voter;
        others += n->voter && other;
        maybe_voters += n->maybe_voter;
        maybe_others += n->maybe_voter && other;
    }
    return 2 * others > voters || 2 * maybe_others > maybe_voters;
}

char *standby_doubt(leader *l) {
    int voters = 0, here = 0;
    bool hopeless = l->doubted && most_may_follow(l, true);
    if (hopeless && probe_standby(l) == TN__DIAL_REFUSED) { /* it has ended since */
        l->doubted = hopeless = false;
    }
    for (int i = 0; i < l->count; i++) {
        voters += l->nodes[i].voter;
        here += l->nodes[i].voter && !l->nodes[i].gone;
    }
    return hopeless ? text_new("this launcher sees %d of the last round's %d hosts: the others may "
                               "run the job without it, so it ends (--failover never: node 0 alone "
                               "leads)",
                               here, voters)
                    : NULL;
}

bool standby_agreed(const leader *l) {
    for (int i = 0; i < l->count; i++) {
        if (leader_has(&l->nodes[i]) && l->nodes[i].orders < l->told) {
            return false;
        }
    }
    return !l->doubted;
}

/* ---- Choosing it ----------------------------------------------------------------------------- */

/* All that the standby must know. Its store may have an order that it was the last to take and that
 * was not given: this replaces it. */
static void copy_all(leader *l) {
    char key[32];
    standby_number(l, "leader", l->own);
    standby_number(l, "restarts", l->failures);
    standby_number(l, "joined", l->count);
    for (int i = 0; i < l->count; i++) {
        char *card = agent_find(l->keys, "node/%d", l->nodes[i].id);
        if (card) {
            standby_know(l, &l->nodes[i], card);
        }
        free(card);
    }
    for (int k = 1; l->copy && k <= l->orders; k++) {
        char *words = agent_find(l->keys, "order/%d", k);
        snprintf(key, sizeof(key), "order/%d", k);
        agent_set(l->copy, key, words ? words : "");
        free(words);
    }
}

/* Whether this node can be the standby; its store is at *place. One that has not heard who was, or
 * who leads, may still believe that it is. */
static bool node_fit(leader *l, const node *n, node_place *place) {
    char why[WORD_WHY];
    bool fit = leader_has(n) && n->id != l->own && !n->absent && n->orders >= l->told;
    char *text = fit ? agent_find(l->keys, "place/%d", n->id) : NULL;
    fit = text && place_read(text, place, why);
    free(text);
    return fit;
}

static void choose_standby(leader *l) {
    const run_options *o = l->options;
    node *chosen = NULL;
    int start = l->tried ? l->tried : l->own;
    for (int i = 0; i < l->count && !chosen; i++) {
        node *n = &l->nodes[(start + i) % l->count]; /* the next one */
        chosen = node_fit(l, n, &l->standby_place) ? n : NULL;
    }
    if (!chosen || tn_error() != TN_OK) {
        return;
    }
    const node_place *p = &l->standby_place;
    tn_store *store = tn_tcp_store(p->host, p->port, o->token, o->heartbeat / 2);
    l->copy = store ? tn_prefix_store(store, AGENT_PREFIX) : NULL;
    tn_store_free(store);
    tn_error_clear();
    if (l->copy) {
        l->copy->timeout = o->heartbeat / 2;
        copy_all(l);
    }
    if (tn_error() != TN_OK) {
        tn_error_clear();
        standby_close(l);
    }
    l->standby = chosen->id;
    bool named =
        l->copy && leader_try(l, text_new("standby %d %s %d", chosen->id, p->host, p->port), "");
    l->standby = named ? chosen->id : 0;
    l->tried = named ? l->tried : chosen->id;
    l->told = named ? l->orders : l->told;
    l->choose_at = tn__now() + o->heartbeat;
}

void standby_keep(leader *l) {
    if (!standby_wanted(l->options)) {
        return;
    }
    if (l->standby && (!l->copy || !leader_has(&l->nodes[l->standby - 1]))) {
        standby_close(l);
        l->tried = l->standby;
        l->standby = 0;
        leader_order(l, text_new("standby 0 - 1"), "");
        l->told = l->orders;
    }
    l->doubted = l->doubted && most_may_follow(l, false);
    if (!l->standby && !l->doubted && tn__now() >= l->choose_at) {
        choose_standby(l);
    }
}

/* ---- The standby's side ---------------------------------------------------------------------- */

/* The members of a start that order_read has accepted. */
static void read_members(leader *l, const char *text) {
    for (int i = 0; i < l->count; i++) {
        l->nodes[i].member = false;
    }
    int id, place, first, ranks;
    while ((text = strchr(text, '\n')) &&
           sscanf(++text, "%d %d %d %d\n", &id, &place, &first, &ranks) == 4) {
        if (id <= l->count) {
            node *n = &l->nodes[id - 1];
            n->member = n->admitted = true;
            n->place = place;
            n->first = first;
        }
    }
}

/* Takes note of one of the lost leader's orders; false with an error. */
static bool note_order(leader *l, int number, const char *text) {
    said_order o;
    char why[WORD_WHY];
    if (!order_read(text, &l->log, &o, why)) {
        tn_raise(TN_EPEER, "node 0 is lost, and its order %d cannot be followed: %s", number, why);
        return false;
    }
    if (o.kind == ORDER_START) {
        read_members(l, text);
    } else if (o.kind == ORDER_DROP && o.node <= l->count && !l->nodes[o.node - 1].gone) {
        l->nodes[o.node - 1].gone = text_new("%s", o.text);
    }
    l->ended = o.kind == ORDER_END;
    l->orders = number;
    l->round = l->starts = l->log.round;
    return true;
}

/* Orders may still come: the leader may be alive, and only this node without it. */
static void note_orders(leader *l) {
    bool noted = true;
    for (char *text; noted && (text = agent_find(l->keys, "order/%d", l->orders + 1));) {
        noted = note_order(l, l->orders + 1, text);
        free(text);
    }
}

leader *leader_claim(const run_options *o, tn_store *keys, int own) {
    leader *l = leader_new(o, keys, own);
    leader_enter(l, CLAIM);
    /* A node that does not exist: the orders are checked without regard to our own ranks. */
    l->log = (order_view){.own = -1, .min_nodes = o->min_nodes, .max_nodes = o->max_nodes};
    leader_find_nodes(l);
    for (int i = 0; i < l->count; i++) {
        l->nodes[i].absent = l->nodes[i].id != own;
    }
    char *former = agent_find(keys, "leader"), *used = agent_find(keys, "restarts");
    l->former = former ? atoi(former) : 0;
    l->failures = used ? atoi(used) : 0;
    free(former);
    free(used);
    note_orders(l);
    return l;
}

/* What the thread that guides launchers needs. */
typedef struct guide {
    const run_options *options; /* they live as long as the program */
    char *key, *place;
} guide;

/* Tells a launcher that begins to lead at the endpoint, such as node 0's when it is started again,
 * where the job goes on. In a thread of its own, which ends with the program: names may take long
 * to resolve. */
static void *guide_launchers(void *user) {
    const guide *g = user;
    const run_options *o = g->options;
    for (;;) {
        tn_store *store = tn_tcp_store(o->host, o->port, o->token, guide_seconds);
        if (store) {
            agent_set(store, g->key, g->place);
        }
        tn_store_free(store);
        tn_error_clear();
        usleep((useconds_t)(guide_seconds * 1e6));
    }
    return NULL;
}

static void start_guide(const run_options *o, char *place) {
    guide *g = memory_new(1, sizeof(*g));
    pthread_t thread;
    *g =
        (guide){.options = o, .key = text_new(AGENT_PREFIX "/moved/%s", o->run_id), .place = place};
    if (pthread_create(&thread, NULL, guide_launchers, g) == 0) {
        pthread_detach(thread);
    }
}

/* "lead", with a line that says who led, who leads and where. False: the lost leader has given one
 * more order, which comes first. */
static bool order_lead(leader *l) {
    const run_options *o = l->options;
    node_place place = {0};
    char why[WORD_WHY], *text = agent_find(l->keys, "place/%d", l->own);
    if (!text || !place_read(text, &place, why)) {
        tn_raise(TN_EPEER, "place/%d in the store makes no sense: another process writes there",
                 l->own);
        free(text);
        return false;
    }
    bool known = l->former >= 1 && l->former <= l->count;
    char *lost = known ? leader_names(&l->nodes[l->former - 1]) : text_new("node 0");
    char *line = text_new("%s is lost: host %s leads the job now, at %s:%d", lost, o->node_name,
                          place.host, place.port);
    bool leads = leader_try(l, text_new("lead %d", l->own), line);
    if (leads) {
        l->told = l->orders;
        start_guide(o, text);
    } else {
        free(text);
    }
    free(lost);
    free(line);
    return leads;
}

static void begin_leading(leader *l) {
    if (l->former >= 1 && l->former <= l->count && l->former != l->own) {
        leader_give_up(l, &l->nodes[l->former - 1], text_new("its store did not answer"));
    }
    if (l->log.started) {
        leader_stop(l, text_new("%s", ""));
    } else {
        leader_enter(l, l->round > 0 ? SETTLE : GATHER);
    }
}

void standby_claim(leader *l) {
    int nodes = 0, here = 0;
    note_orders(l);
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        bool counts = node_counts(l, n);
        nodes += counts;
        here += counts && !n->absent && !n->gone;
    }
    if (tn_error() != TN_OK || l->nodes[l->own - 1].gone) {
        return; /* our own agent hears that we have lost our place */
    }
    if (l->ended) {
        leader_enter(l, OVER);
    } else if (2 * here > nodes || l->options->standby == STANDBY_ALWAYS) {
        if (order_lead(l)) {
            begin_leading(l);
        }
    } else if (tn__now() - l->since > longest_claim * l->options->heartbeat) {
        tn_raise(
            TN_EPEER,
            "node 0 is lost, and %d of the last round's %d hosts are here: not more than half, "
            "so this host cannot lead the job in its place",
            here, nodes);
    }
}
