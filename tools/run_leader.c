/* What the leader decides:
 *
 *     GATHER    enough nodes? MAX start at once, MIN after a last call;
 *               too few for too long ends the job
 *     RUN       a failure, a lost node, or a new one while there is a free place stops the round;
 *               when all are done the job ends
 *     SETTLE    every member has ended its ranks, or is lost. Then the verdict: a lost node causes
 *               failures elsewhere, so it comes first and costs no restart; then the first failure
 *               of all nodes; then arrivals
 *     OVER      the nodes are told, and get time to read it
 *
 * Only this host's clock counts: a node is lost when its heartbeat has not changed for too long.
 */
#include "tools/run_leader.h"

#include "core/build_info.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>

/* Extra seconds after the grace, for a node to end its ranks and say so. */
static const double patience = 15;

leader *leader_new(const run_options *o, double now) {
    leader *l = memory_new(1, sizeof(*l));
    *l = (leader){.options = o, .since = now, .now = now};
    leader_grow(l, 0);
    l->nodes[0] = (node){.known = true, .info = o->node, .heard = now};
    return l;
}

void leader_free(leader *l) {
    if (!l) { return; }
    for (int i = 0; i < l->count; i++) {
        free(l->nodes[i].gone);
        free(l->nodes[i].report);
    }
    for (order *o; (o = orders_take(&l->orders));) {
        order_free(o);
    }
    tn__buffer_free(&l->why);
    free(l->nodes);
    free(l);
}

static void enter_phase(leader *l, leader_phase next) {
    l->phase = next;
    l->since = l->now;
}

void leader_end(leader *l, int code, char *text) {
    if (l->phase == OVER) {
        free(text);
    } else {
        orders_add(&l->orders, order_new(ORDER_END, code, text));
        enter_phase(l, OVER);
    }
}

bool leader_grow(leader *l, int64_t joined) {
    if (joined + 1 < l->count || joined > MOST_LAUNCHERS) {
        leader_end(l, 1,
                   text_new("the store counts %lld launchers: another process writes there",
                            (long long)joined));
        return false;
    }
    while (l->count <= joined) {
        memory_needed(
            tn__grow(&l->nodes, l->count + 1, &l->capacity, sizeof(*l->nodes), "tern run"));
        l->nodes[l->count] = (node){.id = l->count, .heard = l->now};
        l->count++;
    }
    return true;
}

/* ---- Nodes ----------------------------------------------------------------------------------- */

static bool has_place(const node *n) {
    return n->admitted && !n->gone;
}

static int count_usable(const leader *l) {
    int count = 0;
    for (int i = 0; i < l->count; i++) {
        count += has_place(&l->nodes[i]);
    }
    return count;
}

void leader_drop(leader *l, node *n, char *reason) {
    const run_options *o = l->options;
    if (n->gone) {
        free(reason);
        return;
    }
    n->gone = reason;
    if (n->beat.state == NODE_LEFT) { return; /* it reads no more orders */ }
    char *text = n->admitted ? text_new("%s: this node has lost its place in the job", reason)
                             : text_new("no place in job %s at %s:%d: %s", o->node.run_id, o->host,
                                        o->port, reason);
    orders_add(&l->orders, order_new(ORDER_DROP, n->id, text));
}

static void check_node(leader *l, node *n) {
    double silent = l->now - n->heard;
    if (n->beat.state == NODE_LEFT) {
        char *reason = text_new("%s", n->report ? n->report : "it has left");
        if (n->id == 0) {
            leader_end(l, n->beat.code, reason);
        } else {
            leader_drop(l, n, reason);
        }
    } else if (silent > l->options->heartbeat) {
        leader_drop(l, n, text_new("it gave no sign of life for %.1f s", silent));
    }
}

/* While this launcher was stopped it could not hear the others: that is not their silence. */
static void take_time(leader *l, double now) {
    double missed = now - l->now;
    for (int i = 0; missed > l->options->heartbeat / 2 && i < l->count; i++) {
        double heard = l->nodes[i].heard + missed;
        l->nodes[i].heard = heard < now ? heard : now;
    }
    l->now = l->nodes[0].heard = now;
}

/* The node that has the rank requested by this node; NULL: none, or it requests none. */
static const node *find_holder(const leader *l, const node *n) {
    for (int i = 0; n->info.wanted >= 0 && i < l->count; i++) {
        const node *other = &l->nodes[i];
        if (other != n && has_place(other) && other->info.wanted == n->info.wanted) {
            return other;
        }
    }
    return NULL;
}

/* Whether every node with a place has given a sign of life since then. */
static bool all_heard_since(const leader *l, double time) {
    for (int i = 0; i < l->count; i++) {
        if (has_place(&l->nodes[i]) && l->nodes[i].heard <= time) { return false; }
    }
    return true;
}

/* There is no place for this node. It may be replacing one whose loss is not noticed yet, so it is
 * refused only once the others have shown that they are alive. */
static void await_place(leader *l, node *n, const node *holder) {
    const run_options *o = l->options;
    if (n->came == 0) {
        n->came = l->now;
    } else if (holder && holder->heard > n->came) {
        leader_drop(l, n,
                    text_new("--node-rank %d is taken by host %s (pid %d)", n->info.wanted,
                             holder->info.name, holder->info.pid));
    } else if (!holder && all_heard_since(l, n->came)) {
        leader_drop(l, n,
                    text_new("it has its %d hosts, led by host %s (pid %d); a separate job needs "
                             "another --rdzv-id and another port",
                             o->node.max, o->node.name, l->nodes[0].info.pid));
    }
}

/* Why a node cannot take part in this job, whatever its places; NULL: it can. */
static char *find_mismatch(const run_options *o, const node *n) {
    const node_info *info = &n->info;
    if (n->foreign) {
        return text_new("this launcher's libtern is %s, and that of node 0 (host %s) is %s",
                        info->version, o->node.name, tn__version_text());
    }
    if (strcmp(info->run_id, o->node.run_id) != 0) {
        return text_new("this launcher's --rdzv-id is %s, and node 0's is %s", info->run_id,
                        o->node.run_id);
    }
    if (info->min != o->node.min || info->max != o->node.max) {
        return text_new("this launcher's --nnodes is %d:%d, and node 0's is %d:%d", info->min,
                        info->max, o->node.min, o->node.max);
    }
    return NULL;
}

/* Nodes of other versions do not train together; while nodes are missing it may be the whole job
 * that cannot start (gather_nodes). */
static void admit_node(leader *l, node *n) {
    const run_options *o = l->options;
    bool missing = l->phase == GATHER && count_usable(l) < o->node.min;
    if (n->foreign && missing) { return; }
    const node *holder = find_holder(l, n);
    char *mismatch = find_mismatch(o, n);
    if (mismatch) {
        leader_drop(l, n, mismatch);
    } else if (holder || count_usable(l) >= o->node.max) {
        await_place(l, n, holder);
    } else {
        n->admitted = true;
    }
}

/* ---- Starting a round ------------------------------------------------------------------------ */

/* By requested rank, then by arrival. */
static int compare_nodes(const void *left, const void *right) {
    const node *a = *(node *const *)left, *b = *(node *const *)right;
    unsigned want_a = (unsigned)a->info.wanted, want_b = (unsigned)b->info.wanted; /* -1: last */
    return want_a != want_b ? (want_a < want_b ? -1 : 1) : a->id - b->id;
}

/* With all nodes that have a place. */
static void start_round(leader *l) {
    node **members = memory_new((size_t)l->count, sizeof(*members));
    order *o = order_new(ORDER_START, ++l->round, text_take(&l->why));
    for (int i = 0; i < l->count; i++) {
        l->nodes[i].member = has_place(&l->nodes[i]);
        if (l->nodes[i].member) { members[o->count++] = &l->nodes[i]; }
    }
    qsort(members, (size_t)o->count, sizeof(*members), compare_nodes);
    o->members = memory_new((size_t)o->count, sizeof(*o->members));
    for (int i = 0, world = 0; i < o->count; i++) {
        members[i]->place = i;
        members[i]->first = world;
        world += members[i]->info.ranks;
        o->members[i] = (round_member){members[i]->id, members[i]->info.ranks};
    }
    orders_add(&l->orders, o);
    free(members);
    l->enough = 0;
    l->hurry = false;
    enter_phase(l, RUN);
}

/* Whether so many nodes are missing because of their versions; who has which is written to `to`. */
static bool versions_differ(const leader *l, int missing, tn__buffer *to) {
    tn__buffer_format(to, "the hosts do not have the same libtern: node 0 (host %s) has %s",
                      l->options->node.name, tn__version_text());
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        if (n->foreign && !n->gone) {
            tn__buffer_format(to, ", host %s has %s", n->info.name, n->info.version);
            missing--;
        }
    }
    return missing <= 0;
}

static void await_nodes(leader *l, int count) {
    const run_options *o = l->options;
    tn__buffer why = {0};
    l->enough = 0;
    if (versions_differ(l, o->node.min - count, &why)) {
        leader_end(l, 1, text_take(&why));
    } else if (l->now - l->since > o->timeout) {
        tn__buffer_free(&why);
        tn__buffer_format(&why, "%d of %d hosts joined within %.0f s", count, o->node.min,
                          o->timeout);
        for (int i = 0, named = 0; i < l->count; i++) {
            if (has_place(&l->nodes[i])) {
                tn__buffer_format(&why, "%shost %s", named++ ? ", " : ": ", l->nodes[i].info.name);
            }
        }
        leader_end(l, 1, text_take(&why));
    }
    tn__buffer_free(&why);
}

static void gather_nodes(leader *l) {
    const run_options *o = l->options;
    int count = count_usable(l);
    if (count < o->node.min) {
        await_nodes(l, count);
        return;
    }
    l->enough = l->enough > 0 ? l->enough : l->now;
    if (count >= o->node.max || l->hurry || l->now - l->enough >= o->last_call) { start_round(l); }
}

/* ---- Watching a round, and the verdict ------------------------------------------------------- */

static bool in_round(const leader *l, const node *n, node_state state) {
    return n->member && n->beat.round == l->round && n->beat.state == state;
}

static bool has_failed(const leader *l, const node *n) {
    return in_round(l, n, NODE_STOPPED) && n->beat.failure > 0;
}

/* The report of the first failure, with the first lines of other nodes' reports. Its exit code; 0:
 * no rank has failed. */
static int put_failures(const leader *l, tn__buffer *to) {
    const node *first = NULL;
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        bool earlier = has_failed(l, n) && (!first || n->beat.failure < first->beat.failure);
        first = earlier ? n : first;
    }
    if (first && first->report) {
        tn__buffer_text(to, first->report);
    } else if (first) {
        tn__buffer_format(to, "host %s reports a failure with exit code %d, without details",
                          first->info.name, first->beat.code);
    }
    for (int i = 0; first && i < l->count && to->bytes < LONGEST_TEXT; i++) {
        const node *n = &l->nodes[i];
        if (n != first && has_failed(l, n) && n->report) {
            tn__buffer_format(to, "\n  and %.*s", (int)strcspn(n->report, "\n"), n->report);
        }
    }
    return first ? first->beat.code : 0;
}

/* "node 1 (host b, ranks 2-3) is lost: …" for every lost member; false: there is none. */
static bool put_losses(const leader *l, tn__buffer *to) {
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        if (n->member && n->gone) {
            int last = n->first + n->info.ranks - 1;
            tn__buffer_format(to, "%snode %d (host %s, rank", to->bytes ? "\n" : "", n->place,
                              n->info.name);
            tn__buffer_format(
                to, last > n->first ? "s %d-%d) is lost: " : " %d) is lost: ", n->first, last);
            tn__buffer_text(to, n->gone);
        }
    }
    return to->bytes > 0;
}

/* Whether a restart cannot help: the program refuses its arguments, a run's loss or weights are
 * NaN, or it cannot be started (126 and 127, as in shells). */
static bool is_final(int code) {
    return code == EX_USAGE || code == EX_DATAERR || code == 126 || code == 127;
}

static void judge_round(leader *l) {
    const run_options *o = l->options;
    int left = count_usable(l), starts = left < o->node.max ? left : o->node.max, code;
    tn__buffer why = {0};
    if (put_losses(l, &why)) {
        if (left < o->node.min) {
            tn__buffer_format(&why, "\n%d of at least %d hosts are left", left, o->node.min);
            leader_end(l, 1, text_take(&why));
            return;
        }
        tn__buffer_format(&why, "\nall ranks start again on %d host%s", starts,
                          starts == 1 ? "" : "s");
    } else if ((code = put_failures(l, &why))) {
        if (l->failures >= o->max_restarts || is_final(code)) {
            leader_end(l, code, text_take(&why));
            return;
        }
        l->hurry = true;
        tn__buffer_format(&why, "\nall ranks start again: restart %d of %d", ++l->failures,
                          o->max_restarts);
    }
    tn__buffer_free(&l->why);
    l->why = why;
    enter_phase(l, GATHER);
}

static void watch_round(leader *l) {
    const char *stop = NULL; /* why the round is stopped */
    int done = 0, members = 0;
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        bool lost = n->member && n->gone;
        if (lost || in_round(l, n, NODE_FAILED) || in_round(l, n, NODE_STOPPED)) {
            stop = ""; /* the verdict says it when all have ended */
        }
        done += in_round(l, n, NODE_DONE);
        members += n->member;
    }
    bool grows = count_usable(l) > members && members < l->options->node.max;
    if (!stop && done == 0 && grows) {
        stop = "another host has joined: all ranks start again with it";
    }
    if (stop) {
        orders_add(&l->orders, order_new(ORDER_STOP, l->round, text_new("%s", stop)));
        enter_phase(l, SETTLE);
    } else if (done == members) {
        leader_end(l, 0, NULL);
    }
}

static void settle_round(leader *l) {
    for (int i = 0; i < l->count; i++) {
        node *n = &l->nodes[i];
        if (!n->member || n->gone || in_round(l, n, NODE_STOPPED) || in_round(l, n, NODE_DONE)) {
            continue;
        }
        if (l->now - l->since < l->options->grace + patience) { return; }
        leader_drop(l, n, text_new("its ranks did not end in time"));
    }
    judge_round(l);
}

void leader_tick(leader *l, double now) {
    take_time(l, now);
    for (int i = 0; i < l->count; i++) {
        node *n = &l->nodes[i];
        check_node(l, n);
        if (l->phase != OVER && n->known && !n->admitted && !n->gone) { admit_node(l, n); }
    }
    if (l->phase == RUN) { watch_round(l); }
    if (l->phase == SETTLE) { settle_round(l); }
    if (l->phase == GATHER) { gather_nodes(l); }
}

bool leader_over(const leader *l) {
    bool over = l->phase == OVER, late = l->now - l->since > l->options->grace + patience;
    for (int i = 1; i < l->count && !late; i++) {
        over = over && (!l->nodes[i].known || l->nodes[i].gone);
    }
    return over;
}
