/* This node's membership in the job: the store through which the launchers meet, and what each
 * sends and receives there (run_words.h has the keys). On node 0 it has the leader; on a job of one
 * host nothing goes through the store. */
#ifndef TERN_TOOLS_RUN_MEMBERS_H
#define TERN_TOOLS_RUN_MEMBERS_H

#include "tools/run_leader.h"

/* What a node tells the leader. */
typedef struct node_report {
    node_state state;
    int round, code;
    char *text;       /* NULL: nothing new */
    tn__buffer ended; /* of ranks that ended well, lines "KEY VALUE" for the ranks' part of the
                         store */
} node_report;

typedef struct membership {
    const run_options *options;
    tn_store_server *server; /* NULL: another host serves the store */
    tn_store *store;         /* NULL: there is no other host */
    int port;                /* of the store */
    leader *leader;          /* NULL: node 0 has it */
    int id;
    int orders;      /* written, or read */
    order_view view; /* what orders are checked against */
    heartbeat beat;  /* the last sent */
} membership;

/* Serves the store, or joins the one at the endpoint. False with an error pending. */
bool membership_begin(membership *m, const run_options *o);
void membership_end(membership *m);
/* Sends a heartbeat with this report, whose texts it takes. On node 0 reads what the other nodes
 * have sent, and lets the leader decide. Adds the orders for this node. Errors of the store stay
 * pending. */
void membership_exchange(membership *m, node_report *r, order_queue *orders);

#endif
