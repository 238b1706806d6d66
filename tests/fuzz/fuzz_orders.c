/* The input is what a stranger with the token writes into the launchers' store: words, each ended
 * by a 0. The first two bytes say how the launcher that reads them was started, and what it has
 * reported. Each word is tried as an order, a heartbeat and a node's
 * description: refused with a reason, or everything in it is within its bounds. */
#include "tests/fuzz/bytes.h"

#include "tools/run_words.h"

#include <stdlib.h>
#include <string.h>
#include <tern/core.h>

static void check_name(const char *name, size_t size) {
    must_hold(*name && memchr(name, 0, size), "a name without a beginning or an end");
    for (; *name; name++) {
        must_hold(*name > ' ' && *name < 0x7f, "a name that a terminal might obey");
    }
}

/* Whether what was read is written as it was; otherwise the refusal has a reason. */
static void check_refused(void) {
    tn_error_record error;
    must_hold(tn_error_take(&error) && *error.message, "a message refused without a reason");
}

static void check_same(const char *text, char *again) {
    must_hold(again && strcmp(text, again) == 0, "a message that is written in another way");
    free(again);
}

static void check_info(const char *text) {
    node_info info;
    if (!info_read(text, &info)) {
        check_refused();
        return;
    }
    must_hold(info.min >= 1 && info.min <= info.max && info.max <= MOST_NODES, "numbers of nodes");
    must_hold(info.ranks >= 1 && info.ranks <= MOST_RANKS, "a number of ranks");
    must_hold(info.wanted >= -1 && info.wanted < MOST_NODES && info.pid > 0,
              "a wanted rank or a process");
    check_name(info.run_id, sizeof(info.run_id));
    check_name(info.name, sizeof(info.name));
    check_name(info.version, sizeof(info.version));
    check_same(text, info_write(&info));
}

static void check_heartbeat(const char *text, int rounds) {
    heartbeat h;
    if (!heartbeat_read(text, rounds, &h)) {
        check_refused();
        return;
    }
    must_hold(h.round >= 0 && h.round <= rounds, "a round that has not been started");
    must_hold(h.code >= 0 && h.code <= 255 && h.count >= 0 && h.failure >= 0, "its numbers");
    must_hold(h.state != NODE_FAILED || h.code > 0, "a failure with exit code 0");
    must_hold(h.state != NODE_STOPPED || h.failure == 0 || h.code > 0,
              "a failure with exit code 0");
    check_same(text, heartbeat_write(&h));
}

static void check_start(const order_view *before, const order_view *after, const run_round *r) {
    must_hold(!before->started, "a start before the stop");
    must_hold(!before->member || before->reported == before->round, "a start while ranks run");
    must_hold(!before->member || before->state == NODE_STOPPED || before->state == NODE_DONE,
              "a start while ranks run");
    must_hold(r->number == before->round + 1 && r->restarts == before->round, "the round's number");
    must_hold(r->nodes >= before->min_nodes && r->nodes <= before->max_nodes,
              "the number of nodes");
    must_hold(r->world >= r->nodes && r->world <= r->nodes * MOST_RANKS, "the world");
    must_hold(r->local == 0 || r->local == before->ranks, "the number of ranks");
    must_hold(r->first >= 0 && r->first + r->local <= r->world, "places outside the world");
    must_hold(r->node >= 0 && r->node < r->nodes, "the node's rank");
    must_hold(after->started && after->round == r->number && after->member == (r->local > 0),
              "a start that is not remembered");
}

/* An order that was accepted; false when no order matters any more. */
static bool check_accepted(const order *o, const order_view *before, const order_view *view) {
    run_round r = order_round(o, view->own);
    switch (o->kind) {
    case ORDER_START:
        check_start(before, view, &r);
        return true;
    case ORDER_STOP:
        must_hold(before->started && o->number == before->round && !view->started, "a stop");
        return true;
    case ORDER_DROP:
        return o->number != view->own;
    case ORDER_END:
        must_hold(o->number >= 0 && o->number <= 255, "an exit status");
        must_hold(o->number > 0 || before->started, "success before anything ran");
        must_hold(o->number > 0 || !before->member ||
                      (before->state == NODE_DONE && before->reported == before->round),
                  "success that this node's ranks had no part in");
        return false;
    }
    must_hold(false, "an unknown order");
    return false;
}

static bool check_order(const char *text, order_view *view) {
    order_view before = *view;
    order *o = order_read(text);
    bool more = false;
    if (o) {
        must_hold(strlen(o->text) <= LONGEST_TEXT, "a long text");
        check_same(text, order_write(o));
    }
    if (o && order_accept(view, o)) {
        more = check_accepted(o, &before, view);
    } else {
        check_refused();
        must_hold(before.round == view->round && before.started == view->started &&
                      before.member == view->member,
                  "a refused order that is remembered");
    }
    order_free(o);
    return more;
}

FUZZ(orders, NULL) {
    static const node_state states[] = {NODE_IDLE, NODE_RUNNING, NODE_FAILED,  NODE_STOPPED,
                                        NODE_DONE, NODE_LEFT,    NODE_STOPPED, NODE_STOPPED};
    if (bytes < 2) { return; }
    order_view view = {.own = 1 + data[0] % 4,
                       .ranks = 1 + data[0] / 4 % 4,
                       .min_nodes = 1 + data[0] / 16 % 4,
                       .max_nodes = 1 + data[0] / 16 % 4 + data[0] / 64};
    char *text = malloc(bytes - 1);
    memcpy(text, data + 2, bytes - 2);
    text[bytes - 2] = 0;
    bool more = true;
    for (size_t at = 0, nth = 0; at < bytes - 1; at += strlen(text + at) + 1, nth++) {
        /* The second byte says how the ranks fare, differently after every word. */
        view.state = states[(data[1] + nth) % 8];
        view.reported = data[1] / 8 % 2 && view.round > 0 ? view.round - 1 : view.round;
        check_info(text + at);
        check_heartbeat(text + at, view.round);
        more = more && check_order(text + at, &view);
    }
    free(text);
}
