/* The leader: on the node that serves the store, decides who takes part, when a round starts and
 * stops, and how the job ends.
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
 * It sees everything in the nodes' signs of life. Only this host's clock counts: a node is lost
 * when its sign has not changed for too long. Errors of the store are sticky, so a turn runs to its
 * end and its caller checks.
 */
#include "tools/run.h"

#include "core/build_info.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

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
} node;

typedef enum leader_phase { GATHER, RUN, SETTLE, OVER } leader_phase;

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
};

/* Extra seconds after the grace, for a node to end its ranks and say so. */
static const double patience = 15;

leader *leader_new(const run_options *o, tn_store *keys, int own) {
    leader *l = memory_new(1, sizeof(*l));
    *l = (leader){.options = o,
                  .keys = keys,
                  .own = own,
                  .phase = GATHER,
                  .since = tn__now(),
                  .now = tn__now(),
                  .why = text_new("%s", "")};
    return l;
}

void leader_free(leader *l) {
    if (l) {
        for (int i = 0; i < l->count; i++) {
            free(l->nodes[i].gone);
        }
        free(l->nodes);
        free(l->why);
        free(l);
    }
}

/* ---- Words ----------------------------------------------------------------------------------- */

/* Takes ownership of the head. */
static void give_order(leader *l, char *head, const char *text) {
    char key[32];
    char *words = text_new("%s\n%.*s", head, LONGEST_TEXT, text);
    bool given = false;
    snprintf(key, sizeof(key), "order/%d", l->orders + 1);
    if (tn_store_compare_set(l->keys, key, NULL, words, &given) == TN_OK && !given) {
        tn_raise(TN_EPEER,
                 "%s in the store is not from this launcher: another process has the token "
                 "and gives orders",
                 key);
    }
    l->orders += given;
    free(words);
    free(head);
}

/* The node's report or reason, up to the longest allowed; NULL if it has given none. */
static char *node_text(leader *l, const node *n) {
    char *said = agent_find(l->keys, "text/%d/%d", n->id, n->sign.round);
    char *text = said ? text_new("%.*s", LONGEST_TEXT, said) : NULL;
    free(said);
    return text;
}

static void enter_phase(leader *l, leader_phase next) {
    l->phase = next;
    l->since = tn__now();
}

/* Sets the text of the next start, which it owns from then on. */
static void set_why(leader *l, char *text) {
    free(l->why);
    l->why = text;
}

void leader_end(leader *l, int code, const char *text) {
    if (l->phase != OVER) {
        give_order(l, text_new("end %d", code), text);
        enter_phase(l, OVER);
    }
}

/* Takes ownership of the text. */
static void end_job(leader *l, int code, char *text) {
    leader_end(l, code, text);
    free(text);
}

/* Stops the round. Takes ownership of the text. */
static void stop_round(leader *l, char *why) {
    give_order(l, text_new("stop %d", l->round), why);
    free(why);
    enter_phase(l, SETTLE);
}

/* Whether the node has a place. */
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

static int count_members(const leader *l) {
    int count = 0;
    for (int i = 0; i < l->count; i++) {
        count += l->nodes[i].member;
    }
    return count;
}

/* "node 1 (host b, ranks 2-3)"; the caller frees. */
static char *name_node(const node *n) {
    if (!n->known) {
        return text_new("a launcher that joined and sent nothing more");
    }
    if (!n->member) {
        return text_new("the launcher on host %s (pid %d)", n->card.name, n->card.pid);
    }
    int last = n->first + n->card.ranks - 1;
    return last > n->first
               ? text_new("node %d (host %s, ranks %d-%d)", n->place, n->card.name, n->first, last)
               : text_new("node %d (host %s, rank %d)", n->place, n->card.name, n->first);
}

/* The node loses its place. Takes ownership of the reason. */
static void give_up(leader *l, node *n, char *reason) {
    const run_options *o = l->options;
    if (n->gone) {
        free(reason);
        return;
    }
    n->gone = reason;
    if (n->sign.state == NODE_LEFT) {
        return; /* it hears no more orders */
    }
    char *text = n->admitted ? text_new("%s: this node has lost its place in the job", reason)
                             : text_new("no place in job %s at %s:%d: %s", o->run_id, o->host,
                                        o->port, reason);
    give_order(l, text_new("drop %d", n->id), text);
    free(text);
}

/* ---- Looking --------------------------------------------------------------------------------- */

/* The node that has the rank requested by this node; NULL: none, or it requests none. */
static const node *find_holder(const leader *l, const node *n) {
    for (int i = 0; n->card.wanted >= 0 && i < l->count; i++) {
        const node *other = &l->nodes[i];
        if (other != n && has_place(other) && other->card.wanted == n->card.wanted) {
            return other;
        }
    }
    return NULL;
}

/* Whether every node with a place has given a sign of life since then. */
static bool all_heard_since(const leader *l, double time) {
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        if (has_place(n) && n->heard <= time) {
            return false;
        }
    }
    return true;
}

/* There is no place for this node. It may be replacing one whose loss is not noticed yet, so it is
 * refused only once the others have shown that they are alive. */
static void await_place(leader *l, node *n, const node *holder) {
    const run_options *o = l->options;
    if (n->came == 0) {
        n->came = tn__now();
    } else if (holder && holder->heard > n->came) {
        give_up(l, n,
                text_new("--node-rank %d is taken by host %s (pid %d)", n->card.wanted,
                         holder->card.name, holder->card.pid));
    } else if (!holder && all_heard_since(l, n->came)) {
        give_up(l, n,
                text_new("it has its %d hosts, led by host %s (pid %d); a separate job needs "
                         "another --rdzv-id and another port",
                         o->max_nodes, o->node_name, (int)getpid()));
    }
}

/* Nodes that do not have the same library do not train together. While nodes are missing it may be
 * the whole job that cannot start: gather_nodes sees to that. */
static void refuse_version(leader *l, node *n) {
    const run_options *o = l->options;
    if (l->phase != GATHER || count_usable(l) >= o->min_nodes) {
        give_up(l, n,
                text_new("this launcher's libtern is %s, and that of node 0 (host %s) is %s",
                         n->card.version, o->node_name, tn__version_text()));
    }
}

/* Admits the node if it may take part; if not, tells it why. */
static void admit_node(leader *l, node *n) {
    const run_options *o = l->options;
    const node *holder = find_holder(l, n);
    if (n->foreign) {
        refuse_version(l, n);
    } else if (strcmp(n->card.run_id, o->run_id) != 0) {
        give_up(l, n,
                text_new("this launcher's --rdzv-id is %s, and node 0's is %s", n->card.run_id,
                         o->run_id));
    } else if (n->card.min != o->min_nodes || n->card.max != o->max_nodes) {
        give_up(l, n,
                text_new("this launcher's --nnodes is %d:%d, and node 0's is %d:%d", n->card.min,
                         n->card.max, o->min_nodes, o->max_nodes));
    } else if (holder || count_usable(l) >= o->max_nodes) {
        await_place(l, n, holder);
    } else {
        n->admitted = true;
    }
}

/* The leader's own node comes first: it has a place even if others joined earlier. */
static void admit_nodes(leader *l) {
    for (int i = 0; i <= l->count; i++) {
        int id = i == 0 ? l->own : i;
        node *n = id <= l->count ? &l->nodes[id - 1] : NULL;
        if (n && n->known && !n->admitted && !n->gone) {
            admit_node(l, n);
        }
    }
}

/* Grows the list for all that have joined. */
static void note_arrivals(leader *l) {
    int64_t joined = l->count;
    tn_store_add(l->keys, "joined", 0, &joined);
    if (joined < l->count || joined > MOST_LAUNCHERS) {
        end_job(l, 1,
                text_new("the store counts %lld launchers: another process writes there",
                         (long long)joined));
        return;
    }
    if (joined > l->count) {
        node *longer = memory_new((size_t)joined, sizeof(*longer));
        for (int i = 0; i < joined; i++) {
            longer[i] = i < l->count ? l->nodes[i] : (node){.id = i + 1, .heard = tn__now()};
        }
        free(l->nodes);
        l->nodes = longer;
        l->count = (int)joined;
    }
}

static void read_card(leader *l, node *n) {
    char why[WORD_WHY];
    char *text = agent_find(l->keys, "node/%d", n->id);
    if (text) {
        n->known = card_read(text, &n->card, why);
        n->foreign = *n->card.name && !tn__version_agrees(n->card.version, tn__version_text());
        n->known |= n->foreign;
    }
    if (text && !n->known) {
        give_up(l, n, text_new("its description makes no sense: %s", why));
    }
    free(text);
}

static void find_nodes(leader *l) {
    note_arrivals(l);
    for (int i = 0; i < l->count; i++) {
        if (!l->nodes[i].known && !l->nodes[i].gone) {
            read_card(l, &l->nodes[i]);
        }
    }
}

static void look_at(leader *l, node *n) {
    char why[WORD_WHY], *text = n->known ? agent_find(l->keys, "sign/%d", n->id) : NULL;
    node_sign sign;
    bool sound = !text || sign_read(text, l->round, &sign, why);
    if (text && sound && sign.count != n->sign.count) {
        n->sign = sign;
        n->heard = l->now;
    }
    free(text);
    if (!sound) {
        give_up(l, n, text_new("its sign of life makes no sense: %s", why));
    } else if (n->sign.state == NODE_LEFT) {
        text = node_text(l, n);
        give_up(l, n, text ? text : text_new("it has left"));
    } else if (l->now - n->heard > l->options->heartbeat) {
        give_up(l, n, text_new("it gave no sign of life for %.1f s", l->now - n->heard));
    }
}

/* While this launcher was stopped it could not hear the others: that is not their silence. */
static void note_time(leader *l) {
    double now = tn__now(), missed = now - l->now;
    l->now = now;
    if (missed > l->options->heartbeat / 2) {
        for (int i = 0; i < l->count; i++) {
            l->nodes[i].heard += missed;
        }
    }
}

/* ---- Starting a round ------------------------------------------------------------------------ */

/* By requested rank, then the leader's own node, then by arrival. */
static int compare_nodes(const void *left, const void *right, void *user) {
    const leader *l = user;
    const node *a = *(node *const *)left, *b = *(node *const *)right;
    int want_a = a->card.wanted >= 0 ? a->card.wanted : INT_MAX;
    int want_b = b->card.wanted >= 0 ? b->card.wanted : INT_MAX;
    if (want_a != want_b) {
        return want_a < want_b ? -1 : 1;
    }
    int own_a = a->id == l->own, own_b = b->id == l->own;
    return own_a != own_b ? own_b - own_a : a->id - b->id;
}

/* Chooses the members: all with a place, in order. Returns how many. */
static int choose_members(leader *l, node **members) {
    int count = 0, world = 0;
    for (int i = 0; i < l->count; i++) {
        l->nodes[i].member = has_place(&l->nodes[i]);
        if (l->nodes[i].member) {
            members[count++] = &l->nodes[i];
        }
    }
    qsort_r(members, (size_t)count, sizeof(*members), compare_nodes, l);
    for (int i = 0; i < count; i++) {
        members[i]->place = i;
        members[i]->first = world;
        world += members[i]->card.ranks;
    }
    return count;
}

/* "CUDA 12.4 (driver 12.4), …": the card has it as one word. */
static char *devices_of(const node *n) {
    char *text = text_new("%s", n->card.devices);
    for (char *c = text; *c; c++) {
        *c = (char)(*c == '_' ? ' ' : *c);
    }
    return text;
}

/* A warning when the members have other drivers or libraries for their GPUs, once for each member;
 * "": they have not. Hosts without the plugin are not compared. */
static char *compare_devices(node *const *members, int count) {
    const node *first = NULL;
    char *text = text_new("%s", "");
    for (int i = 0; i < count; i++) {
        node *n = members[i];
        bool has = strcmp(n->card.devices, "-") != 0, compared = n->compared;
        n->compared = true;
        first = first ? first : has ? n : NULL;
        if (has && !compared && strcmp(n->card.devices, first->card.devices) != 0) {
            char *own = devices_of(n);
            char *longer = text_new("%s; host %s has %s", text, n->card.name, own);
            free(own);
            free(text);
            text = longer;
        }
    }
    if (first && *text) {
        char *own = devices_of(first);
        char *whole = text_new("warning: the hosts' libraries for GPUs differ, so results may, and "
                               "NCCL refuses other versions of itself: host %s has %s%s",
                               first->card.name, own, text);
        free(own);
        free(text);
        text = whole;
    }
    return text;
}

static void start_round(leader *l) {
    node **members = memory_new((size_t)l->count, sizeof(*members));
    int count = choose_members(l, members),
        world = members[count - 1]->first + members[count - 1]->card.ranks;
    char *text = text_new("start %d %d %d %d", ++l->round, l->starts, world, count);
    for (int i = 0; i < count; i++) {
        char *longer = text_new("%s\n%d %d %d %d", text, members[i]->id, i, members[i]->first,
                                members[i]->card.ranks);
        free(text);
        text = longer;
    }
    char *warning = compare_devices(members, count);
    if (*warning) {
        set_why(l, text_new("%s%s%s", l->why, *l->why ? "\n" : "", warning));
    }
    give_order(l, text, l->why);
    free(warning);
    free(members);
    l->starts++;
    set_why(l, text_new("%s", ""));
    l->enough = 0;
    l->hurry = false;
    enter_phase(l, RUN);
}

/* "host a, host b" */
static char *present_nodes(const leader *l) {
    char *text = text_new("%s", "");
    for (int i = 0; i < l->count; i++) {
        if (has_place(&l->nodes[i])) {
            char *longer = text_new("%s%shost %s", text, *text ? ", " : "", l->nodes[i].card.name);
            free(text);
            text = longer;
        }
    }
    return text;
}

/* Who has which version of the library; NULL: all that are needed may still come. */
static char *other_versions(leader *l, int missing) {
    char *text = text_new("the hosts do not have the same libtern: node 0 (host %s) has %s",
                          l->options->node_name, tn__version_text());
    for (int i = 0; i < l->count; i++) {
        const node_card *c = &l->nodes[i].card;
        if (l->nodes[i].foreign && !l->nodes[i].gone) {
            char *longer = text_new("%s, host %s has %s", text, c->name, c->version);
            free(text);
            text = longer;
            missing--;
        }
    }
    if (missing > 0) {
        free(text);
        text = NULL;
    }
    return text;
}

static void gather_nodes(leader *l) {
    const run_options *o = l->options;
    double now = tn__now();
    int count = count_usable(l);
    if (count < o->min_nodes) {
        l->enough = 0;
        char *versions = other_versions(l, o->min_nodes - count);
        if (versions) {
            end_job(l, 1, versions);
        } else if (now - l->since > o->timeout) {
            char *here = present_nodes(l);
            end_job(l, 1,
                    text_new("%d of %d hosts joined within %.0f s: %s", count, o->min_nodes,
                             o->timeout, here));
            free(here);
        }
        return;
    }
    l->enough = l->enough > 0 ? l->enough : now;
    if (count >= o->max_nodes || l->hurry || now - l->enough >= o->last_call) {
        start_round(l);
    }
}

/* ---- The verdict ----------------------------------------------------------------------------- */

static bool in_round(const leader *l, const node *n, node_state state) {
    return n->member && n->sign.round == l->round && n->sign.state == state;
}

/* The report of the first failure, with the first lines of other nodes' reports; NULL if no rank
 * has failed. */
static char *first_report(leader *l, int *code) {
    const node *first = NULL;
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        bool failed = in_round(l, n, NODE_STOPPED) && n->sign.failure > 0;
        first = failed && (!first || n->sign.failure < first->sign.failure) ? n : first;
    }
    if (!first) {
        return NULL;
    }
    *code = first->sign.code;
    char *report = node_text(l, first);
    if (!report) {
        report = text_new("host %s reports a failure with exit code %d, without details",
                          first->card.name, *code);
    }
    for (int i = 0; i < l->count && strlen(report) < LONGEST_TEXT; i++) {
        const node *n = &l->nodes[i];
        if (n != first && in_round(l, n, NODE_STOPPED) && n->sign.failure > 0) {
            char *other = node_text(l, n);
            int line = other ? (int)strcspn(other, "\n") : 0;
            char *longer = text_new("%s\n  and %.*s", report, line, other ? other : "");
            free(other);
            free(report);
            report = longer;
        }
    }
    return report;
}

/* "node 1 (…) is lost: …" for every lost member; NULL if there is none. */
static char *lost_nodes(leader *l) {
    char *text = NULL;
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        if (n->member && n->gone) {
            char *who = name_node(n);
            char *longer =
                text_new("%s%s%s is lost: %s", text ? text : "", text ? "\n" : "", who, n->gone);
            free(who);
            free(text);
            text = longer;
        }
    }
    return text;
}

/* Whether a restart cannot help: the program refuses its arguments, a run's loss or weights are
 * NaN, or it cannot be started (126 and 127, as in shells). */
static bool is_final(int code) {
    return code == EX_USAGE || code == EX_DATAERR || code == 126 || code == 127;
}

static void judge_round(leader *l) {
    const run_options *o = l->options;
    int code = 0, left = count_usable(l);
    char *lost = lost_nodes(l), *report = lost ? NULL : first_report(l, &code);
    if (lost && left < o->min_nodes) {
        end_job(l, 1, text_new("%s\n%d of at least %d hosts are left", lost, left, o->min_nodes));
    } else if (lost) {
        set_why(l, text_new("%s\nall ranks start again on %d host%s", lost,
                            left < o->max_nodes ? left : o->max_nodes, left == 1 ? "" : "s"));
        enter_phase(l, GATHER);
    } else if (report && (l->failures >= o->max_restarts || is_final(code))) {
        end_job(l, code, text_new("%s", report));
    } else if (report) {
        l->failures++;
        set_why(l, text_new("%s\nall ranks start again: restart %d of %d", report, l->failures,
                            o->max_restarts));
        l->hurry = true;
        enter_phase(l, GATHER);
    } else {
        enter_phase(l, GATHER);
    }
    free(lost);
    free(report);
}

/* ---- Watching a round ------------------------------------------------------------------------ */

static void watch_round(leader *l) {
    int done = 0, members = count_members(l);
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        if (n->member && n->gone) {
            char *who = name_node(n);
            stop_round(l, text_new("%s is lost: %s", who, n->gone));
            free(who);
            return;
        }
        if (in_round(l, n, NODE_FAILED) || in_round(l, n, NODE_STOPPED)) {
            stop_round(l, text_new("%s", "")); /* the report follows when all have ended */
            return;
        }
        done += in_round(l, n, NODE_DONE);
    }
    if (done == members) {
        leader_end(l, 0, "");
    } else if (done == 0 && count_usable(l) > members && members < l->options->max_nodes) {
        stop_round(l, text_new("%s", "another host has joined: all ranks start again with it"));
    }
}

static void settle_round(leader *l) {
    for (int i = 0; i < l->count; i++) {
        node *n = &l->nodes[i];
        if (!n->member || n->gone || in_round(l, n, NODE_STOPPED) || in_round(l, n, NODE_DONE)) {
            continue;
        }
        if (tn__now() - l->since < l->options->grace + patience) {
            return;
        }
        give_up(l, n, text_new("its ranks did not end in time"));
    }
    judge_round(l);
}

void leader_tick(leader *l) {
    note_time(l);
    find_nodes(l);
    for (int i = 0; i < l->count; i++) {
        if (!l->nodes[i].gone) {
            look_at(l, &l->nodes[i]);
        }
    }
    if (l->phase != OVER) {
        admit_nodes(l);
    }
    switch (l->phase) {
    case GATHER:
        gather_nodes(l);
        break;
    case RUN:
        watch_round(l);
        break;
    case SETTLE:
        settle_round(l);
        break;
    case OVER:
        break;
    }
}

bool leader_over(const leader *l) {
    bool late = tn__now() - l->since > l->options->grace + patience;
    for (int i = 0; i < l->count; i++) {
        const node *n = &l->nodes[i];
        if (l->phase != OVER || (n->id != l->own && n->known && !n->gone && !late)) {
            return false;
        }
    }
    return l->phase == OVER;
}
