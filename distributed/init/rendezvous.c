/* Rank 0 serves the store at the agreed port, or, if that is taken, at one of the next; the others
 * knock at these ports until the job's own store answers. The handshake of the TCP store makes that
 * safe: a rank reveals nothing to a server that has not proved that it has the token, for the very
 * port at which the rank knocks, and moves on to the next port. */
#include "distributed/init/rendezvous.h"

#include "core/error.h"
#include "core/log.h"
#include "distributed/init/host.h"
#include "distributed/store/store.h"
#include "distributed/store/tcp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPERATION "dist_init"

#define KNOCK_SECONDS 1.0  /* for a port that rank 0 cannot have */
#define KNOCKS_SECONDS 4.0 /* for all of those */
/* For a port at which the store may be. If no one answers in this time, it doubles for the next
 * try, up to the longest; of the silent ports after the first only one is tried per round. So
 * silent strangers cost little, and a slow host is found in the end. */
#define FIRST_KNOCK 0.25
#define LONGEST_KNOCK 2.0
#define FIRST_PAUSE 0.01 /* between two rounds over the ports; doubles up to the longest */
#define LONGEST_PAUSE 0.2
#define DYING_SECONDS 1.0 /* how long this job's former rank 0 may take to give up the port */

/* Where to look. */
typedef struct ports {
    const char *hosts[2]; /* the second may be NULL */
    int first, count;
    char token[TN__TOKEN + 16];
} ports;

/* When to give up a port that has one of `shares` shares of the time. */
static double knock_until(double patience, double deadline, int shares) {
    double now = tn__now();
    return now + fmin(patience, fmax(deadline - now, 0) / shares);
}

/* ---- The token ------------------------------------------------------------------------------- */

/* Warns once: later worlds' ports are as open as the first one's. */
static void warn_of_guessable(const char *why) {
    static bool warned;
    if (!warned) {
        warned = true;
        tn__log_loud("dist_init: this job has no secret: anyone who reaches the store's port can "
                     "guess its token, join the job, and change or end it%s%s%s. "
                     "Give all ranks the same secret in TERN_TOKEN (openssl rand -hex 16) or "
                     "TERN_TOKEN_FILE, or start them with `tern run`",
                     *why ? " (" : "", why, *why ? ")" : "");
    }
}

/* A secret that this job's ranks have and strangers do not. False: none, or after raising. */
static bool find_secret(const tn__environment *e, bool one_host, char secret[TN__TOKEN]) {
    if (e->token_file) { return tn__token_read(e->token_file, secret) == TN_OK; }
    if (e->secret) {
        snprintf(secret, TN__TOKEN, "%s", e->secret);
        return true;
    }
    return one_host && tn__token_user(secret) == TN_OK;
}

/* TERN_TOKEN as it is; else a secret mixed with what tells this job from the user's others and, if
 * the job is on one host, from jobs of that name elsewhere. Without a secret the rest can be
 * guessed, and rank 0 says so. A rank that goes on to the next world must not meet ranks still
 * serving the last. False after raising. */
static bool choose_token(ports *p, const tn__environment *e, const char *job, bool one_host) {
    char token[TN__TOKEN], secret[TN__TOKEN];
    char place[TN__HOST_KEY] = "", identity[TN__TOKEN + TN__HOST_KEY];
    if (one_host) { tn__host_network(place); }
    snprintf(identity, sizeof(identity), "%s %s", job, place);
    tn__quiet(1);
    bool found = *e->token || find_secret(e, one_host, secret);
    tn__quiet(-1);
    if (*e->token) {
        snprintf(token, sizeof(token), "%s", e->token);
    } else if (found) {
        tn__token_derive(secret, identity, token);
    } else if (e->token_file) {
        tn__raise_again(OPERATION, "TERN_TOKEN_FILE");
        return false;
    } else {
        snprintf(token, sizeof(token), "%.*s", TN__TOKEN - 1, job);
        if (e->rank == 0) { warn_of_guessable(tn__error_why()); }
        tn_error_clear();
    }
    int length = snprintf(p->token, sizeof(p->token), "%s", token);
    if (e->world) {
        snprintf(p->token + length, sizeof(p->token) - (size_t)length, "#%d", e->world);
    }
    return true;
}

/* ---- Serving --------------------------------------------------------------------------------- */

/* Serves at the first port that is free. *ours: this very job serves one of them already. `why`:
 * why the last one was not free. */
static tn_store_server *serve_once(const ports *p, double deadline, bool *ours,
                                   tn_error_record *why) {
    double begin = tn__now(), end = begin + fmin(KNOCKS_SECONDS, fmax(deadline - begin, 0) / 2);
    const char *bound = tn__host_is_near(p->hosts[0]) ? p->hosts[0] : NULL;
    const char *near = bound ? bound : "127.0.0.1";
    char unused[TN_STORE_WHY];
    tn_store_server *server = NULL;
    *ours = false;
    for (int i = 0; i < p->count && !server && !*ours; i++) {
        tn__quiet(1);
        server = tn_store_serve(bound, p->first + i, p->token);
        tn__quiet(-1);
        if (!server) {
            tn_error_take(why);
            double limit = knock_until(KNOCK_SECONDS, end, 2); /* earlier ports are likelier */
            *ours = tn__tcp_probe(near, p->first + i, p->token, limit, unused) == TN__DIAL_OURS;
        }
    }
    return server;
}

static tn_store_server *serve_store(const ports *p, double deadline) {
    tn_error_record why = {0};
    double pause = FIRST_PAUSE, limit = fmin(deadline, tn__now() + DYING_SECONDS);
    bool ours;
    do {
        tn_store_server *server = serve_once(p, deadline, &ours, &why);
        if (server) { return server; }
    } while (ours && tn__rest_until(&pause, LONGEST_PAUSE, limit));
    if (ours) {
        tn__raise(TN_ESTATE, OPERATION,
                  "ports %d to %d: another process is rank 0 of this job, or a job with the same "
                  "MASTER_ADDR and MASTER_PORT is running (set TERN_TOKEN to tell them apart)",
                  p->first, p->first + p->count - 1);
    } else {
        tn__raise(TN_EIO, OPERATION,
                  "rank 0 cannot serve the store at any of the ports %d to %d: %s", p->first,
                  p->first + p->count - 1, why.message + why.why);
    }
    return NULL;
}

/* ---- Finding --------------------------------------------------------------------------------- */

/* What is known about the ports during the search for the store. */
typedef struct search {
    double patience[2][TN__PORTS_TRIED]; /* [host][port]; 0: no silence there so far */
    int silent, round;                   /* how many are not 0; rounds so far */
} search;

/* One round over hosts and ports. The reason: the most informative one, since most ports are
 * unused. */
static bool knock_at_store(const ports *p, search *s, double deadline, const char **host, int *port,
                           char *why) {
    int turn = s->silent ? s->round++ % s->silent : 0, silent = 0;
    for (int h = 0; h < 2 && p->hosts[h]; h++) {
        for (int i = 0; i < p->count; i++) {
            char reason[TN_STORE_WHY] = "";
            double *patience = &s->patience[h][i];
            if (*patience > 0 && silent++ != turn && i > 0) { continue; }
            double limit = knock_until(fmax(*patience, FIRST_KNOCK), deadline, p->count - i);
            tn__dialed found = tn__tcp_probe(p->hosts[h], p->first + i, p->token, limit, reason);
            if (found == TN__DIAL_OURS) {
                *host = p->hosts[h];
                *port = p->first + i;
                return true;
            }
            if (!*why || found != TN__DIAL_REFUSED) { snprintf(why, TN_STORE_WHY, "%s", reason); }
            if (found == TN__DIAL_SILENT) {
                s->silent += *patience > 0 ? 0 : 1;
                *patience = fmin(fmax(2 * *patience, 2 * FIRST_KNOCK), LONGEST_KNOCK);
            }
            if (found == TN__DIAL_NO_HOST) { break; /* its other ports cannot be reached either */ }
        }
    }
    return false;
}

static tn_store *find_store(const ports *p, const tn__environment *e, double timeout,
                            double deadline) {
    double begin = tn__now(), pause = FIRST_PAUSE;
    search s = {0};
    const char *host;
    int port;
    char why[TN_STORE_WHY];
    do {
        *why = 0;
        if (knock_at_store(p, &s, deadline, &host, &port, why)) {
            tn_store *store = tn_tcp_store(host, port, p->token, fmax(deadline - tn__now(), 0));
            if (store) { store->timeout = timeout; }
            return store;
        }
    } while (tn__rest_until(&pause, LONGEST_PAUSE, deadline));
    return tn__fail_null(
        TN_EPEER, OPERATION,
        "rank %d of %d has found no store of this job at %s, ports %d to %d, within %.1f seconds "
        "(%s); rank 0 serves it: has it started?",
        e->rank, e->ranks, p->hosts[0], p->first, p->first + p->count - 1, tn__now() - begin, why);
}

/* ---- Ways to meet ---------------------------------------------------------------------------- */

static bool meet_at(tn__rendezvous *r, const ports *p, const tn__environment *e, double timeout,
                    double deadline) {
    if (e->rank > 0) {
        r->store = find_store(p, e, timeout, deadline);
        return r->store != NULL;
    }
    r->server = serve_store(p, deadline);
    if (r->server) {
        const char *near = tn__host_is_near(p->hosts[0]) ? p->hosts[0] : "127.0.0.1";
        r->store = tn_tcp_store(near, tn_store_server_port(r->server), p->token, timeout);
    }
    return r->store != NULL;
}

static bool meet_by_environment(tn__rendezvous *r, const tn__environment *e, double timeout,
                                double deadline) {
    if (!*e->host) {
        return tn__fail(TN_EVALUE, OPERATION, "rank %d of %d: %s", e->rank, e->ranks,
                        e->no_host ? e->no_host
                                   : "MASTER_ADDR is not set: the address of rank 0's host");
    }
    if (e->agent) {
        r->store = tn_tcp_store(e->host, e->port, e->token, timeout);
        return r->store != NULL;
    }
    int first = e->port + e->port_taken, last = e->port + TN__PORTS_TRIED - 1;
    ports p = {.hosts = {e->host, *e->second ? e->second : NULL}};
    last = last > e->last_port ? e->last_port : last;
    p.first = first > last ? last : first;
    p.count = last - p.first + 1;
    return choose_token(&p, e, e->job, e->one_host) && meet_at(r, &p, e, timeout, deadline);
}

/* "HOST:PORT" or "[ADDRESS]:PORT". */
static bool split_address(const char *text, char host[TN__HOST], int *port) {
    const char *colon = strrchr(text, ':');
    bool bracketed = colon && *text == '[' && colon > text + 1 && colon[-1] == ']';
    size_t length = colon ? (size_t)(colon - text) - 2 * bracketed : 0;
    char *end = NULL;
    long number = colon ? strtol(colon + 1, &end, 10) : 0;
    if (length == 0 || length >= TN__HOST || !end || *end || number < 1 || number > 65535 ||
        (!bracketed && memchr(text, ':', length))) {
        return false;
    }
    memcpy(host, text + bracketed, length);
    host[length] = 0;
    *port = (int)number;
    return true;
}

static bool meet_by_tcp(tn__rendezvous *r, const char *init, const tn__environment *e,
                        double timeout, double deadline) {
    char host[TN__HOST];
    ports p = {.hosts = {host}, .count = 1};
    if (!split_address(init + strlen("tcp://"), host, &p.first)) {
        return tn__fail(TN_EVALUE, OPERATION,
                        "init is \"%.100s\" (tcp://HOST:PORT, tcp://[ADDRESS]:PORT)", init);
    }
    return choose_token(&p, e, init, tn__host_is_near(host)) &&
           meet_at(r, &p, e, timeout, deadline);
}

bool tn__rendezvous_begin(tn__rendezvous *r, const char *init, const tn__environment *e,
                          double timeout, double deadline) {
    *r = (tn__rendezvous){0};
    return strncmp(init, "tcp://", 6) == 0 ? meet_by_tcp(r, init, e, timeout, deadline)
                                           : meet_by_environment(r, e, timeout, deadline);
}

void tn__rendezvous_end(tn__rendezvous *r, double seconds) {
    double pause = FIRST_PAUSE, deadline = tn__now() + seconds;
    tn_store_free(r->store);
    while (tn__store_server_members(r->server) > 0 &&
           tn__rest_until(&pause, LONGEST_PAUSE, deadline)) {}
    tn_store_server_free(r->server);
    *r = (tn__rendezvous){0};
}
