/* The leader as a plain function: descriptions, heartbeats and the time in, orders out. What
 * launchers do with them is in test_nodes.py. */
#define _GNU_SOURCE
#include "tests/support/test.h"

#include "tools/run_leader.h"

#include <string.h>

static const run_options elastic = {
    .node = {.min = 1, .max = 2, .ranks = 1, .wanted = -1, .run_id = "job", .name = "a"},
    .max_restarts = 1,
    .host = "a",
    .heartbeat = 10,
    .timeout = 60,
    .last_call = 3,
    .grace = 5};

static void join_node(leader *l, int id, const char *name, int wanted, double now) {
    assert_true(leader_grow(l, id));
    node *n = &l->nodes[id];
    *n = (node){.id = id, .known = true, .info = elastic.node, .heard = now};
    n->info.ranks = 2;
    n->info.wanted = wanted;
    n->info.pid = 42;
    strcpy(n->info.name, name);
}

static void report_state(leader *l, int id, node_state state, int code, int64_t failure) {
    l->nodes[id].beat = (heartbeat){1, l->round, state, code, failure};
    l->nodes[id].heard = l->now;
}

/* The next order must be this one. */
static void assert_order(leader *l, order_kind kind, int number, const char *text) {
    order *o = orders_take(&l->orders);
    assert_non_null(o);
    assert_int_equal(o->kind, kind);
    assert_int_equal(o->number, number);
    assert_contains(o->text, text);
    order_free(o);
}

static void assert_start(leader *l, int round, int count, const round_member *members) {
    order *o = orders_take(&l->orders);
    assert_true(o && o->kind == ORDER_START && o->number == round && o->count == count);
    assert_memory_equal(o->members, members, (size_t)count * sizeof(*members));
    order_free(o);
    assert_null(orders_take(&l->orders));
}

/* A last call, another node by its wanted rank, a failure, a restart, and success. */
TEST(test_a_job) {
    leader *l = leader_new(&elastic, 100);
    leader_tick(l, 101);
    assert_null(orders_take(&l->orders));
    leader_tick(l, 104.5);
    assert_start(l, 1, 1, (round_member[]){{0, 1}});
    join_node(l, 1, "b", 0, 105);
    leader_tick(l, 105);
    assert_order(l, ORDER_STOP, 1, "another host has joined");
    report_state(l, 0, NODE_STOPPED, 0, 0);
    leader_tick(l, 106);
    leader_tick(l, 106.1);
    assert_start(l, 2, 2, (round_member[]){{1, 2}, {0, 1}});
    report_state(l, 0, NODE_FAILED, 7, 2);
    leader_tick(l, 107);
    assert_order(l, ORDER_STOP, 2, "");
    report_state(l, 0, NODE_STOPPED, 7, 2);
    leader_tick(l, 108);
    assert_null(orders_take(&l->orders)); /* node 1 has not ended its ranks */
    report_state(l, 1, NODE_STOPPED, 5, 1);
    l->nodes[1].report = strdup("it was first\nlast words");
    l->nodes[0].report = strdup("it was second\nlast words");
    leader_tick(l, 109);
    leader_tick(l, 109.1);
    order *o = orders_take(&l->orders);
    assert_int_equal(o->kind, ORDER_START);
    assert_string_equal(o->text, "it was first\nlast words\n  and it was second\n"
                                 "all ranks start again: restart 1 of 1");
    order_free(o);
    report_state(l, 0, NODE_DONE, 0, 0);
    report_state(l, 1, NODE_DONE, 0, 0);
    leader_tick(l, 110);
    assert_order(l, ORDER_END, 0, "");
    assert_false(leader_over(l));
    report_state(l, 1, NODE_LEFT, 0, 0);
    leader_tick(l, 111);
    assert_true(leader_over(l));
    leader_free(l);
}

/* A restart waits for no one: the last call was at the beginning. */
TEST(test_restart_at_once) {
    leader *l = leader_new(&elastic, 100);
    leader_tick(l, 100);
    leader_tick(l, 104);
    assert_start(l, 1, 1, (round_member[]){{0, 1}});
    report_state(l, 0, NODE_STOPPED, 7, 1);
    leader_tick(l, 105);
    assert_order(l, ORDER_STOP, 1, "");
    assert_start(l, 2, 1, (round_member[]){{0, 1}});
    leader_free(l);
}

/* Silence is loss, unless it was this launcher that did not look. */
TEST(test_silence) {
    leader *l = leader_new(&elastic, 100);
    join_node(l, 1, "b", -1, 100);
    leader_tick(l, 100);
    assert_start(l, 1, 2, (round_member[]){{0, 1}, {1, 2}});
    report_state(l, 0, NODE_RUNNING, 0, 0);
    report_state(l, 1, NODE_RUNNING, 0, 0);
    leader_tick(l, 130); /* it was stopped for 30 s */
    assert_null(orders_take(&l->orders));
    for (int i = 1; i <= 11; i++) {
        leader_tick(l, 130 + i);
    }
    assert_order(l, ORDER_DROP, 1, "it gave no sign of life for 11.0 s");
    assert_order(l, ORDER_STOP, 1, "");
    report_state(l, 0, NODE_STOPPED, 1, 1);
    leader_tick(l, 142); /* the verdict */
    leader_tick(l, 143); /* the last call begins */
    leader_tick(l, 146);
    order *o = orders_take(&l->orders);
    assert_true(o->kind == ORDER_START && o->count == 1);
    assert_string_equal(o->text, "node 1 (host b, ranks 1-2) is lost: it gave no sign of life for "
                                 "11.0 s\nall ranks start again on 1 host");
    order_free(o);
    leader_free(l);
}

/* A place is taken only if its holder has been heard since the newcomer came. */
TEST(test_full) {
    leader *l = leader_new(&elastic, 100);
    join_node(l, 1, "b", 1, 100);
    leader_tick(l, 100);
    assert_start(l, 1, 2, (round_member[]){{1, 2}, {0, 1}});
    join_node(l, 2, "c", 1, 101);
    join_node(l, 3, "d", -1, 101);
    leader_tick(l, 101);
    assert_null(orders_take(&l->orders));
    leader_tick(l, 102);
    assert_null(orders_take(&l->orders));
    l->nodes[1].heard = l->nodes[2].heard = l->nodes[3].heard = 102.5;
    leader_tick(l, 103);
    assert_order(l, ORDER_DROP, 2, "--node-rank 1 is taken by host b (pid 42)");
    assert_order(l, ORDER_DROP, 3, "it has its 2 hosts, led by host a");
    leader_free(l);
}

/* What makes no sense ends the job. */
TEST(test_strange_counts) {
    static const int64_t counts[] = {2, -1, MOST_LAUNCHERS + 1, INT64_MAX - 1};
    for (int i = 0; i < 4; i++) {
        leader *l = leader_new(&elastic, 100);
        assert_true(leader_grow(l, 3));
        assert_false(leader_grow(l, counts[i]));
        assert_order(l, ORDER_END, 1, "launchers: another process writes there");
        leader_free(l);
    }
}
