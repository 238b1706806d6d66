/* The seeds of the fuzz target for what launchers write to each other, as an ordinary test, and
 * which messages are accepted. */
#include "tests/fuzz/fuzz_orders.c"

#include "core/build_info.h"
#include "tests/support/test.h"

#include "tests/support/replay.h"

TEST(test_corpus) {
    assert_true(replay_corpus("fuzz_orders", LLVMFuzzerTestOneInput) >= 29);
}

static bool order_holds(const char *text, order_view *view, const char *why_not) {
    said_order o;
    char why[WORD_WHY] = "";
    bool holds = order_read(text, view, &o, why);
    if (why_not) {
        assert_contains(why, why_not);
    }
    return holds;
}

TEST(test_a_job) {
    order_view v = {.own = 2, .min_nodes = 2, .max_nodes = 2, .ranks = 2, .state = NODE_IDLE};
    const char *starts[] = {"start 1 0 4 2\n1 0 0 2\n2 1 2 2\n",
                            "start 2 1 4 2\n1 0 0 2\n3 1 2 2\n"};
    assert_true(order_holds(starts[0], &v, NULL));
    assert_true(v.round == 1 && v.started && v.member);
    v.state = NODE_RUNNING;
    v.told = 1;
    assert_false(order_holds("end 0\n", &v, "have not ended"));
    assert_true(order_holds("stop 1\nwhy", &v, NULL));
    assert_false(order_holds("end 0\n", &v, "no round has been started"));
    assert_false(order_holds(starts[1], &v, "this node has ranks of round 1"));
    v.state = NODE_STOPPED;
    assert_false(order_holds(starts[0], &v, "its round is 1, not 2"));
    assert_true(order_holds(starts[1], &v, NULL));
    assert_true(v.round == 2 && !v.member);
    assert_true(order_holds("end 0\n", &v, NULL)); /* other nodes have done it */
}

TEST(test_largest) {
    order_view v = {.own = 1, .min_nodes = 1, .max_nodes = 1, .ranks = 1, .round = INT32_MAX};
    assert_false(order_holds("start 2147483648 2147483647 1 1\n1 0 0 1\n", &v, "its round"));
    assert_false(order_holds("end 9223372036854775808\n", &v, "its exit code is not a number"));
    node_card c = {MOST_NODES, MOST_NODES, MOST_RANKS, MOST_NODES - 1, INT32_MAX, "", "", "", ""};
    node_card is;
    char text[LONGEST_CARD], again[LONGEST_CARD], why[WORD_WHY];
    memset(c.run_id, 'r', sizeof(c.run_id) - 1);
    memset(c.name, 'n', sizeof(c.name) - 1);
    memset(c.version, 'v', sizeof(c.version) - 1);
    memset(c.devices, 'd', sizeof(c.devices) - 1);
    card_write(text, &c);
    assert_true(card_read(text, &is, why));
    card_write(again, &is);
    assert_string_equal(again, text);
    node_sign s = {INT64_MAX, INT32_MAX, NODE_STOPPED, 255, INT64_MAX}, sign;
    sign_write(text, &s);
    assert_true(sign_read(text, INT32_MAX, &sign, why) && sign.count == INT64_MAX);
}

/* Launchers of different versions can name each other. */
TEST(test_another_version) {
    node_card c;
    char why[WORD_WHY];
    assert_true(card_read("0.1.0 host 1 2 8 -1 42 job -", &c, why));
    assert_string_equal(c.devices, "-");
    assert_false(card_read("9.0.0+abc host-b what it says today", &c, why));
    assert_string_equal(c.version, "9.0.0+abc");
    assert_string_equal(c.name, "host-b");
    assert_false(card_read("9.0.0", &c, why));
    assert_string_equal(c.name, "");
    assert_true(tn__version_agrees("0.1.0", "0.1.0+abc") && tn__version_agrees("1.2.3", "1.2.3"));
    assert_true(tn__version_agrees("0.1.0+abc", "0.1.0+abc"));
    assert_false(tn__version_agrees("0.1.0+abc", "0.1.0+abd"));
    assert_false(tn__version_agrees("0.1.0", "0.1.01"));
    assert_false(tn__version_agrees("0.1.0+abc", "0.1.1"));
    assert_contains(tn__version_text(), ".");
}
