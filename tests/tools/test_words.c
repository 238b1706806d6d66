/* The seeds of the fuzz target for what launchers write to each other, as an ordinary test, and
 * which messages are accepted. */
#include "tests/fuzz/fuzz_orders.c"

#include "core/build_info.h"
#include "tests/support/test.h"

#include "tests/support/replay.h"

TEST(test_corpus) {
    assert_true(replay_corpus("fuzz_orders", fuzz_orders) >= 27);
}

static void assert_refused(bool accepted, const char *why) {
    assert_false(accepted);
    assert_error(TN_EPEER, why);
}

static bool accept_text(order_view *view, const char *text) {
    order *o = order_read(text);
    bool accepted = o && order_accept(view, o);
    order_free(o);
    return accepted;
}

TEST(test_a_job) {
    order_view v = {.own = 2, .min_nodes = 2, .max_nodes = 2, .ranks = 2, .state = NODE_IDLE};
    const char *starts[] = {"start 1\n0 2\n2 2\n\n", "start 2\n0 2\n3 2\n\n"};
    assert_true(accept_text(&v, starts[0]));
    assert_true(v.round == 1 && v.started && v.member);
    assert_refused(accept_text(&v, starts[1]), "round 1 has not been stopped");
    assert_refused(accept_text(&v, "stop 2\n\n"), "its round is 2, not 1");
    v.state = NODE_RUNNING;
    v.reported = 1;
    assert_refused(accept_text(&v, "end 0\n\n"), "have not ended");
    assert_true(accept_text(&v, "stop 1\n\nwhy"));
    assert_refused(accept_text(&v, "end 0\n\n"), "no round has been started");
    assert_refused(accept_text(&v, starts[1]), "this node has ranks of round 1");
    v.state = NODE_STOPPED;
    assert_refused(accept_text(&v, starts[0]), "its round is 1 after round 1");
    assert_true(accept_text(&v, starts[1]));
    assert_true(v.round == 2 && !v.member);
    assert_true(accept_text(&v, "end 0\n\n")); /* other nodes have done it */
}

/* An order that is first of several in one queue can be the only one in the next. */
TEST(test_queues) {
    order_queue from = {0}, to = {0};
    for (int i = 1; i <= 2; i++) {
        orders_add(&from, order_new(ORDER_STOP, i, NULL));
    }
    orders_add(&to, orders_take(&from));
    for (int i = 1; i <= 2; i++) {
        order *o = orders_take(i == 1 ? &to : &from);
        assert_int_equal(o->number, i);
        order_free(o);
    }
    assert_true(!orders_take(&from) && !orders_take(&to));
}

TEST(test_a_round) {
    order *o = order_read("start 3\n0 2\n5 4\n2 1\n\nbecause\nof this");
    assert_non_null(o);
    assert_string_equal(o->text, "because\nof this");
    run_round r = order_round(o, 5), none = order_round(o, 4);
    assert_true(r.number == 3 && r.restarts == 2 && r.node == 1 && r.nodes == 3);
    assert_true(r.first == 2 && r.local == 4 && r.world == 7);
    assert_true(none.local == 0 && none.world == 7);
    order_free(o);
}

/* By node 1 of two, which has not started its two ranks yet; a heartbeat in round 1. */
static bool accept_order(const char *text) {
    order_view v = {.own = 1, .min_nodes = 2, .max_nodes = 2, .ranks = 2};
    return accept_text(&v, text);
}

static bool accept_heartbeat(const char *text) {
    heartbeat h;
    return heartbeat_read(text, 1, &h);
}

static bool accept_info(const char *text) {
    node_info info;
    return info_read(text, &info);
}

/* Numbers have one spelling. */
TEST(test_refused) {
    static const struct {
        bool (*accept)(const char *text);
        const char *text, *why;
    } texts[] = {
        {accept_order, "start 1\n7 1\n1 300\n\n", "it starts 300 ranks here, where -n is 2"},
        {accept_order, "start 1\n7 1\n1 0\n\n", "number of ranks is \"0\" (1 to 4096)"},
        {accept_order, "start 1\n7 4097\n1 2\n\n", "number of ranks is \"4097\" (1 to 4096)"},
        {accept_order, "start 1\n7 1\n1\n\n", "number of ranks is \"\""},
        {accept_order, "start 2147483648\n1 1\n\n", "its number is \"2147483648\""},
        {accept_order, "start 2\n7 1\n1 2\n\n", "its round is 2 after round 0"},
        {accept_order, "start 1\n1 2\n\n", "it starts 1 nodes, where --nnodes is 2:2"},
        {accept_order, "start 1\n7 1\n8 1\n1 2\n\n", "it starts 3 nodes, where"},
        {accept_order, "start 1\n1 2\n1 2\n\n", "it names this node twice"},
        {accept_order, "start 1\n7 1\n2147483647 2\n\n", "its node is \"2147483647\""},
        {accept_order, "start 1 5\n7 1\n1 2\n\n", "extra text after its numbers"},
        {accept_order, "start 1\n7 1\n1 2\n", "no end of a line"},
        {accept_order, "stop 1\n\n", "no round has been started"},
        {accept_order, "stop 1\n1 2\n\n", "only a start has members"},
        {accept_order, "end 0\n\n", "no round has been started"},
        {accept_order, "end 256\n\n", "its exit code is 256"},
        {accept_order, "end 1", "no end of a line"},
        {accept_order, "end -1\n\n", "its number is \"-1\""},
        {accept_order, "end +1\n\n", "\"end +1\" is not a line of words and numbers"},
        {accept_order, "end 01\n\n", "\"end 01\" is not a line of words and numbers"},
        {accept_order, "end \t1\n\n", "its number is \"\""},
        {accept_order, "end  1\n\n", "its number is \"\""},
        {accept_order, "\033[2J\nend 1\n\n", "its kind is \"\""},
        {accept_order, "", "its kind is \"\""},
        {accept_heartbeat, "1 1 failed 0 1", "exit code 0"},
        {accept_heartbeat, "1 1 stopped 0 1", "exit code 0"},
        {accept_heartbeat, "1 2 running 0 0", "its round is 2"},
        {accept_heartbeat, "1 1 stopped 256 1", "its exit code is \"256\""},
        {accept_heartbeat, "1 1 x 0 0", "its state is \"x\""},
        {accept_heartbeat, "9223372036854775808 1 running 0 0", "its count is"},
        {accept_heartbeat, "1 1 running 0 0 ", "extra text"},
        {accept_info, "0.1.0 host 1 3 -4 -1 42 job", "number of ranks is \"-4\""},
        {accept_info, "0.1.0 host 3 1 2 -1 42 job", "at least 3 nodes and at most 1"},
        {accept_info, "0.1.0 host 1 3 2 -1 42 j\033[2J", "its job is not a name"},
        {accept_info, "0.1.0 host 1 3 2 -1 42 job a b", "extra text"},
        {accept_info, "", "its version is not a name"},
    };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        assert_refused(texts[i].accept(texts[i].text), texts[i].why);
    }
    char text[LONGEST_TEXT + 16] = "end 1\n\n";
    memset(text + 7, 'x', sizeof(text) - 8);
    assert_refused(accept_order(text), "its text has more than");
    text[7] = 0;
    assert_true(accept_order(text));
}

TEST(test_largest) {
    node_info info = {"", "", MOST_NODES, MOST_NODES, MOST_RANKS, MOST_NODES - 1, INT32_MAX, ""};
    memset(info.run_id, 'r', sizeof(info.run_id) - 1);
    memset(info.name, 'n', sizeof(info.name) - 1);
    memset(info.version, 'v', sizeof(info.version) - 1);
    char *text = info_write(&info);
    node_info is;
    assert_true(info_read(text, &is));
    char *same = info_write(&is);
    assert_string_equal(same, text);
    free(same);
    text = realloc(text, strlen(text) + 2);
    assert_refused(accept_info(strcat(text, "r")), "its job is not a name");
    free(text);
    heartbeat h = {INT64_MAX, INT32_MAX, NODE_STOPPED, 255, INT64_MAX}, again;
    text = heartbeat_write(&h);
    assert_true(heartbeat_read(text, INT32_MAX, &again) && again.count == INT64_MAX);
    free(text);
}

/* Launchers of different versions can name each other. */
TEST(test_another_version) {
    node_info info;
    assert_true(info_read("0.1.0 host 1 2 8 -1 42 job", &info));
    assert_string_equal(info.run_id, "job");
    assert_refused(info_read("9.0.0+abc host-b what it says today", &info), "nodes is \"what\"");
    assert_string_equal(info.version, "9.0.0+abc");
    assert_string_equal(info.name, "host-b");
    assert_refused(info_read("9.0.0", &info), "its host is not a name");
    assert_string_equal(info.name, "");
    assert_true(tn__version_agrees("0.1.0", "0.1.0+abc") && tn__version_agrees("1.2.3", "1.2.3"));
    assert_true(tn__version_agrees("0.1.0+abc", "0.1.0+abc"));
    assert_false(tn__version_agrees("0.1.0+abc", "0.1.0+abd"));
    assert_false(tn__version_agrees("0.1.0", "0.1.01"));
    assert_false(tn__version_agrees("0.1.0+abc", "0.1.1"));
    assert_contains(tn__version_text(), ".");
}
