/* The leader: decides who takes part, when a round starts and stops, and how the job ends. It knows
 * no store and no clock: what it is given are the nodes' descriptions and heartbeats and the time,
 * what it returns are orders. */
#ifndef TERN_TOOLS_RUN_LEADER_H
#define TERN_TOOLS_RUN_LEADER_H

#include "tools/run.h"

typedef struct node {
    int id;       /* 0: the leader's own */
    bool known;   /* `info` is there */
    bool foreign; /* it has another version of the library */
    node_info info;
    heartbeat beat; /* the last */
    double heard;   /* when it came */
    char *report;   /* what came with it: of its ranks, or why it has left; NULL: nothing */

    /* The leader's own: */
    bool admitted;    /* it may take part: there was a free place */
    bool member;      /* of the round */
    double came;      /* since when there has been no place; 0: not checked yet */
    char *gone;       /* why it has lost its place; NULL: it has not */
    int place, first; /* its rank and its first rank in the round it was last a member of */
} node;

typedef enum leader_phase { GATHER, RUN, SETTLE, OVER } leader_phase;

typedef struct leader {
    const run_options *options;
    node *nodes; /* [count], node N at N */
    int count;
    int64_t capacity;
    leader_phase phase;
    double since;  /* when the phase began */
    double now;    /* of the last tick */
    double enough; /* since when MIN nodes have been there; 0: too few */
    bool hurry;    /* start without a last call: the same nodes continue after a failure */
    int round, failures;
    tn__buffer why; /* the text of the next start */
    order_queue orders;
} leader;

leader *leader_new(const run_options *o, double now);
void leader_free(leader *l);
/* There are nodes 1 … joined now. False after ending the job: they make no sense. */
bool leader_grow(leader *l, int64_t joined);
/* The node loses its place. Takes the reason. */
void leader_drop(leader *l, node *n, char *reason);
/* Looks at all nodes and decides. */
void leader_tick(leader *l, double now);
/* Ends the job, if it has not ended yet. Takes the text. */
void leader_end(leader *l, int code, char *text);
/* Whether the job has ended and every other node has read that, or had time to. */
bool leader_over(const leader *l);

#endif
