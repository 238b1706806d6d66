/* The input is what a stranger with the token writes into the launchers' store: words, each ended
 * by a 0. The first two bytes say how the launcher that reads them was started, and what it has
 * reported. Each word is tried as an order, a sign of life, a node's card, a place and a number of
 * orders: refused with a reason, or everything in it is within its bounds. */
#define _GNU_SOURCE
#include "tests/fuzz/bytes.h"

#include "tools/run_words.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_name(const char *name, size_t size) {
    must_hold(*name && memchr(name, 0, size), "a name without a beginning or an end");
    for (; *name; name++) {
        must_hold(*name > ' ' && *name < 0x7f, "a name that a terminal might obey");
    }
}

static void check_card(const char *text) {
    node_card c;
    char why[WORD_WHY] = "", again[LONGEST_CARD];
    if (!card_read(text, &c, why)) {
        must_hold(*why, "a card refused without a reason");
        return;
    }
    must_hold(c.min >= 1 && c.min <= c.max && c.max <= MOST_NODES, "numbers of nodes");
    must_hold(c.ranks >= 1 && c.ranks <= MOST_RANKS, "a number of ranks");
    must_hold(c.wanted >= -1 && c.wanted < MOST_NODES && c.pid > 0, "a wanted rank or a process");
    check_name(c.run_id, sizeof(c.run_id));
    check_name(c.name, sizeof(c.name));
    check_name(c.version, sizeof(c.version));
    check_name(c.devices, sizeof(c.devices));
    card_write(again, &c);
    must_hold(strcmp(text, again) == 0, "a card that is written in another way");
}

static void check_sign(const char *text, int rounds) {
    node_sign s;
    char why[WORD_WHY] = "", again[LONGEST_SIGN];
    if (!sign_read(text, rounds, &s, why)) {
        must_hold(*why, "a sign refused without a reason");
        return;
    }
    must_hold(s.round >= 0 && s.round <= rounds, "a round that has not been started");
    must_hold(s.code >= 0 && s.code <= 255 && s.count >= 0 && s.failure >= 0, "a sign's numbers");
    must_hold(s.state != NODE_FAILED || s.code > 0, "a failure with exit code 0");
    must_hold(s.state != NODE_STOPPED || s.failure == 0 || s.code > 0,
              "a failure with exit code 0");
    sign_write(again, &s);
    must_hold(strcmp(text, again) == 0, "a sign that is written in another way");
}

static void check_start(const order_view *before, const order_view *after, const run_round *r) {
    must_hold(!before->started, "a start before the stop");
    must_hold(!before->member || before->told == before->round, "a start while ranks run");
    must_hold(!before->member || before->state == NODE_STOPPED || before->state == NODE_DONE,
              "a start while ranks run");
    must_hold(r->number == before->round + 1 && r->restarts == before->round, "the round's number");
    must_hold(r->nodes >= before->min_nodes && r->nodes <= before->max_nodes,
              "the number of nodes");
    must_hold(r->world >= r->nodes && r->world <= (int64_t)MOST_NODES * MOST_RANKS, "the world");
    must_hold(r->local == 0 || r->local == before->ranks, "the number of ranks");
    must_hold(r->first >= 0 && r->first + r->local <= r->world, "places outside the world");
    must_hold(r->node >= 0 && r->node < r->nodes, "the node's rank");
    must_hold(after->started && after->round == r->number && after->member == (r->local > 0),
              "a start that is not remembered");
}

/* False when no order matters any more. */
static bool check_order(const char *text, order_view *view) {
    said_order o;
    order_view before = *view;
    char why[WORD_WHY] = "";
    if (!order_read(text, view, &o, why)) {
        must_hold(*why, "an order refused without a reason");
        must_hold(before.round == view->round && before.started == view->started &&
                      before.member == view->member,
                  "a refused order that is remembered");
        return false;
    }
    must_hold(o.text >= text && o.text <= text + strlen(text), "a text from elsewhere");
    must_hold(strlen(o.text) <= LONGEST_TEXT, "a long text");
    switch (o.kind) {
    case ORDER_START:
        check_start(&before, view, &o.round);
        return true;
    case ORDER_STOP:
        must_hold(before.started && o.round.number == before.round && !view->started, "a stop");
        return true;
    case ORDER_DROP:
        must_hold(o.node >= 1 && o.node <= MOST_LAUNCHERS, "a node");
        return o.node != view->own;
    case ORDER_END:
        must_hold(o.code >= 0 && o.code <= 255, "an exit status");
        must_hold(o.code > 0 || before.started, "success before anything ran");
        must_hold(o.code > 0 || !before.member ||
                      (before.state == NODE_DONE && before.told == before.round),
                  "success that this node's ranks had no part in");
        return false;
    case ORDER_BROKEN:
        break;
    }
    must_hold(false, "an unknown order");
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char states[] = "irfsdlss";
    if (bytes < 2) {
        return 0;
    }
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
        view.state = (node_state)states[(data[1] + nth) % 8];
        view.told = data[1] / 8 % 2 && view.round > 0 ? view.round - 1 : view.round;
        check_card(text + at);
        check_sign(text + at, view.round);
        more = more && check_order(text + at, &view);
    }
    free(text);
    return 0;
}
