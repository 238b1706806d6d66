/* The messages between launchers: texts in the store with which each describes itself and its
 * state, and the leader gives orders. Their format, and when one is valid.
 *
 * Anyone with the token can write anything there. So a message is read whole or not at all: numbers
 * within bounds, separated by single spaces, nothing after them. An order is checked against what
 * this launcher was started with, and against earlier orders and signs: the leader decides when and
 * with whom, but not what runs here, nor whether it succeeded.
 *
 * Nothing here waits, allocates or prints (tests/fuzz/fuzz_orders.c).
 *
 * Keys of the store, all under "agent/":
 *   joined           counter: the one that makes it n is node n
 *   node/N           "version host min max ranks wanted-rank pid run-id devices", once. The first
 *                    two are the same in every version, so that unequal launchers can be named
 *   sign/N           "count round state code failure", several times a second
 *   text/N/ROUND     a node's report, STOPPED after a failure, or why it has LEFT
 *   failures/ROUND   counter: the order of failures over all nodes
 *   order/K          K = 1, 2, …: the leader's orders, read by every node:
 *       "start ROUND RESTARTS WORLD NODES", NODES lines "N node-rank first-rank ranks", text
 *       "stop ROUND", then text        every member ends its ranks
 *       "drop N", then text            node N has lost its place
 *       "end CODE", then text          the job is over
 * Between two starts there is always a stop, and every member has ended its ranks.
 */
#ifndef TERN_TOOLS_RUN_WORDS_H
#define TERN_TOOLS_RUN_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#define AGENT_PREFIX "agent"

enum {
    MOST_NODES = 65536,
    MOST_RANKS = 4096,        /* of one node */
    MOST_LAUNCHERS = 1 << 17, /* that ever join, including spares and those that rejoin */
    LONGEST_TEXT = 1 << 16,   /* of an order or a report */
    LONGEST_SIGN = 128,
    LONGEST_CARD = 640,
    WORD_WHY = 160
};

/* ---- A node's description -------------------------------------------------------------------- */

typedef struct node_card {
    int min, max, ranks;
    int wanted; /* its node rank; -1: any */
    int pid;
    /* Words without spaces and control characters. */
    char run_id[65], name[65];
    char version[65];  /* of libtern */
    char devices[257]; /* CUDA, its driver, NCCL, …, with _ for spaces; "-": no plugin for them */
} node_card;

/* Where the store is. */
typedef struct node_place {
    char host[256];
    int port;
} node_place;

/* A node's state in its round, sent with every sign of life. */
typedef enum node_state {
    NODE_IDLE = 'i', /* waits for a round */
    NODE_RUNNING = 'r',
    NODE_FAILED = 'f',  /* a rank failed; the others are being ended */
    NODE_STOPPED = 's', /* no rank is left */
    NODE_DONE = 'd',    /* all ranks succeeded */
    NODE_LEFT = 'l'     /* ends; this was its last sign */
} node_state;

typedef struct node_sign {
    int64_t count; /* of its signs */
    int round;
    node_state state;
    int code;        /* FAILED, STOPPED: the exit status of the first failure; 0: none failed */
    int64_t failure; /* its number among all nodes' failures of the round; 0: none */
} node_sign;

void card_write(char text[LONGEST_CARD], const node_card *c);
void sign_write(char text[LONGEST_SIGN], const node_sign *s);
/* False with why[WORD_WHY]. `rounds`: how many have been started. A card that is refused may have
 * its version and name nevertheless; what it does not have is "". */
bool card_read(const char *text, node_card *c, char *why);
bool sign_read(const char *text, int rounds, node_sign *s, char *why);

/* ---- Orders ---------------------------------------------------------------------------------- */

/* A round, as one node sees it. */
typedef struct run_round {
    int number;              /* 1 for the first */
    int restarts;            /* rounds before it */
    int node, nodes;         /* this node's rank, and how many take part */
    int first, local, world; /* its ranks are first … first + local - 1 of world; local 0: none */
    int most;                /* ranks of any node */
    node_place store;        /* for the ranks */
} run_round;

/* BROKEN is never sent by a leader: one of its orders cannot be followed. */
typedef enum order_kind { ORDER_START, ORDER_STOP, ORDER_DROP, ORDER_END, ORDER_BROKEN } order_kind;

typedef struct said_order {
    order_kind kind;
    run_round round;  /* START, without the store. STOP: only the number */
    int node;         /* DROP: the node's number */
    int code;         /* END: the exit status */
    const char *text; /* why, for the user, in the order's own text; "": nothing to say */
} said_order;

/* What orders are checked against. */
typedef struct order_view {
    int own;                         /* this node's number */
    int min_nodes, max_nodes, ranks; /* what this launcher was started with */
    node_state state;                /* last sent, for its round `told` */
    int told;
    int round;    /* the last that was started; 0: none. order_read keeps these four */
    bool started; /* it has not been stopped */
    bool member;  /* it has ranks on this node */
} order_view;

/* Reads an order, and remembers it in the view if it is valid; else false with why[WORD_WHY]. */
bool order_read(const char *text, order_view *view, said_order *o, char *why);

#endif
