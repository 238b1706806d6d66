/* The messages between launchers: texts in the store with which each describes itself and its
 * state, and the leader gives orders. Their format, and when an order is valid.
 *
 * A message is lines of words with single spaces between them, from a table of fields: names, and
 * numbers in their ranges. Anyone with the token can write anything there, so a message is read
 * whole or not at all. An order is checked against what this launcher was started with, and against
 * earlier orders and heartbeats: the leader decides when and with whom, but not what runs here, nor
 * whether it succeeded (tests/fuzz/fuzz_orders.c).
 *
 * Keys of the store, all under "agent/". The leader is node 0:
 *   joined           counter: the one that makes it n is node n
 *   node/N           node_info, once. Version and name are first in every version of the library,
 *                    so that unequal launchers can be named
 *   beat/N           heartbeat, several times a second
 *   text/N/ROUND     a node's report, STOPPED after a failure, or why it has LEFT
 *   failures/ROUND   counter: the order of failures over all nodes
 *   order/K          K = 1, 2, …: the leader's orders, read by every node:
 *       "start ROUND", lines "N RANKS" of those that take part, by their places
 *       "stop ROUND"                   every member ends its ranks
 *       "drop N"                       node N has lost its place
 *       "end CODE"                     the job is over
 *                    each with an empty line after it, and then a text for the user
 * Between two starts there is always a stop, and every member has ended its ranks.
 */
#ifndef TERN_TOOLS_RUN_WORDS_H
#define TERN_TOOLS_RUN_WORDS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MOST_NODES = 65536,
    MOST_RANKS = 4096,        /* of one node */
    MOST_LAUNCHERS = 1 << 17, /* that ever join, including spares and those that rejoin */
    LONGEST_TEXT = 1 << 16,   /* of an order or a report */
    LONGEST_QUOTE = 80,       /* of a message that is refused */
};

/* ---- A node's description and state ---------------------------------------------------------- */

typedef struct node_info {
    /* Words without spaces and control characters. */
    char version[65]; /* of libtern */
    char name[65];
    int min, max, ranks;
    int wanted; /* its node rank; -1: any */
    int pid;
    char run_id[65];
} node_info;

typedef enum node_state {
    NODE_IDLE, /* waits for a round */
    NODE_RUNNING,
    NODE_FAILED,  /* a rank failed; the others are being ended */
    NODE_STOPPED, /* no rank is left */
    NODE_DONE,    /* all ranks succeeded */
    NODE_LEFT     /* ends; this was its last heartbeat */
} node_state;

typedef struct heartbeat {
    int64_t count;
    int round;
    node_state state;
    int code;        /* FAILED, STOPPED: the exit status of the first failure; 0: none failed */
    int64_t failure; /* its number among all nodes' failures of the round; 0: none */
} heartbeat;

/* A text for the caller to free. */
char *info_write(const node_info *info);
char *heartbeat_write(const heartbeat *h);
/* False after raising what is wrong. `rounds`: how many have been started. Of an info that is
 * refused, version and name may have been read; else they are "". */
bool info_read(const char *text, node_info *info);
bool heartbeat_read(const char *text, int rounds, heartbeat *h);

/* ---- Orders ---------------------------------------------------------------------------------- */

typedef enum order_kind { ORDER_START, ORDER_STOP, ORDER_DROP, ORDER_END } order_kind;

typedef struct round_member {
    int node, ranks;
} round_member;

/* A round, as one node sees it. */
typedef struct run_round {
    int number;              /* 1 for the first */
    int restarts;            /* rounds before it */
    int node, nodes;         /* this node's rank, and how many take part */
    int first, local, world; /* its ranks are first … first + local - 1 of world; local 0: none */
    int port;                /* of the store */
} run_round;

typedef struct order {
    struct order *next;
    order_kind kind;
    int number;            /* START, STOP: the round; DROP: the node; END: the exit status */
    round_member *members; /* START: [count], in the order of their ranks */
    int count;
    run_round round; /* START: as the node sees it that takes the order */
    char *text;      /* why, for the user; "": nothing to say */
} order;

/* Takes the text; NULL: nothing to say. */
order *order_new(order_kind kind, int number, char *text);
char *order_write(const order *o);
/* NULL after raising. */
order *order_read(const char *text);
void order_free(order *o);

/* Orders that nobody has taken yet; empty at first. */
typedef struct order_queue {
    order *first, *last;
} order_queue;

void orders_add(order_queue *q, order *o);
/* The first, for the caller to free; NULL: there is none. */
order *orders_take(order_queue *q);

/* The round that an order starts, as node `own` sees it; without the port. */
run_round order_round(const order *o, int own);

/* What orders are checked against. */
typedef struct order_view {
    int own;                         /* this node's number */
    int min_nodes, max_nodes, ranks; /* what this launcher was started with */
    node_state state;                /* last sent, for the round `reported` */
    int reported;
    int round;    /* the last that was started; 0: none. order_accept keeps these three */
    bool started; /* it has not been stopped */
    bool member;  /* it has ranks on this node */
} order_view;

/* Whether the order is valid; then the view remembers it. False after raising. */
bool order_accept(order_view *view, const order *o);

#endif
