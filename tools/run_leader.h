/* What run_leader.c and run_standby.c share. */
#ifndef TERN_TOOLS_RUN_LEADER_H
#define TERN_TOOLS_RUN_LEADER_H

#include "tools/run.h"

typedef struct node {
    int id;
    bool known;    /* node/N has been read */
    bool admitted; /* it may take part: there was a free place */
    bool foreign;  /* it has another version of the library */
    bool compared; /* with the others' devices */
    double came;   /* since when there has been none; 0: not checked yet */
    char *gone;    /* why it has lost its place; NULL: it has not */
    double heard;  /* when its sign last changed */
    node_card card;
    node_sign sign;
    bool member;      /* of the round */
    int place, first; /* its rank and its first rank in the round it was last a member of */
    bool absent;      /* it had joined the leader that was lost, and has not come here yet */
    int orders;       /* so many it has heard; kept up to leader.told */
    bool voter;       /* the standby counts it, by what it has taken */
    bool maybe_voter; /* and by the last that was sent to it, which it may have taken */
} node;

typedef enum leader_phase { CLAIM, GATHER, RUN, SETTLE, OVER } leader_phase;

struct leader {
    const run_options *options;
    tn_store *keys;
    int own;
    node *nodes; /* [count], node N at N - 1 */
    int count;
    leader_phase phase;
    double since;  /* when the phase began */
    double now;    /* when this turn began */
    double enough; /* since when MIN nodes have been there; 0: too few */
    bool hurry;    /* start without a last call: the same nodes continue after a failure */
    int orders, round, starts, failures;
    char *why; /* the text of the next start */

    /* The standby (run_standby.c). */
    tn_store *copy; /* its keys; NULL: there is none, or it has not taken an order */
    int standby;    /* its node; 0: none */
    node_place standby_place;
    int tried;        /* the last that was lost, or whose store did not answer; 0: none */
    double choose_at; /* when the next may be chosen */
    int told;         /* the last order that says who the standby is, or who leads */
    bool doubted;     /* the former standby may be alive, and lead yet */
    int former;       /* CLAIM: the leader that was lost; and what it has ordered */
    order_view log;
    bool ended;
};

/* ---- run_leader.c ---------------------------------------------------------------------------- */

/* Gives the next order. Takes ownership of the head; the text is for users. No one else gives
 * orders. */
void leader_order(leader *l, char *head, const char *text);
/* The same, but only if the standby has taken it; false: it has not. In CLAIM, only if the lost
 * leader has not given that order itself. */
bool leader_try(leader *l, char *head, const char *text);
/* The node loses its place. Takes ownership of the reason. */
void leader_give_up(leader *l, node *n, char *reason);
/* Stops the round. Takes ownership of the text. */
void leader_stop(leader *l, char *why);
void leader_enter(leader *l, leader_phase next);
/* Looks for nodes that have joined, and reads their cards. */
void leader_find_nodes(leader *l);
/* Whether the node has a place. */
bool leader_has(const node *n);
/* "node 1 (host b, ranks 2-3)"; the caller frees. */
char *leader_names(const node *n);

/* ---- run_standby.c --------------------------------------------------------------------------- */

/* Chooses a standby if there is none. */
void standby_keep(leader *l);
/* Writes to the standby's store, before it is written to our own. False: there is a standby, and it
 * has not taken it. Raises an error if the standby leads by now. */
bool standby_copy(leader *l, const char *key, const char *text);
void standby_number(leader *l, const char *key, int number);
/* The same for what a node says of itself. */
void standby_know(leader *l, const node *n, const char *card);
/* Raises an error if the standby leads by now. */
void standby_ask(leader *l);
/* Why no round can start any more: others may run the job without us. NULL: it can. */
char *standby_doubt(leader *l);
/* Whether a round may start: no one else can lead, and all know who does if this leader is lost. */
bool standby_agreed(const leader *l);
/* In CLAIM: takes the lost leader's place once more than half of its nodes are here. */
void standby_claim(leader *l);
void standby_close(leader *l);

#endif
