#!/usr/bin/env python3
"""Messages that no launcher writes: a hostile process with the token gives orders, and makes false claims about itself."""
import os
import re
import signal
import socket
import subprocess
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TESTS, environment, errors, finish, free_port, has, holds, main, start, tern, test, text, until

HOST, TOKEN = "127.0.0.1", "secret"
ESCAPES = "\033]0;owned\a\033[2J\b\x7f\u009b31m"


class Store:
    """A store that a hostile process serves or has joined; the keys are the launchers'."""

    def __init__(self, port=None):
        self.server = None
        if port is None:
            self.server = subprocess.Popen([os.path.join(TESTS, "store_program")], env=environment(TERN_TOKEN=TOKEN), stdout=subprocess.PIPE)
            port = int(self.server.stdout.readline())
        self.port = port

    def call(self, verb, key, *value, stdin=None):
        done = subprocess.run([os.path.join(TESTS, "store_client"), str(self.port), verb, "agent/" + key, *value], input=stdin,
                              env=environment(TERN_TOKEN=TOKEN), stdout=subprocess.PIPE, check=True)
        return done.stdout.decode("utf-8", "replace")

    def set(self, key, value):
        self.call("set", key, "-", stdin=value.encode())

    def close(self):
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()


def launcher(port, *program, nnodes=2, options=()):
    return start("--nnodes", nnodes, "--rdzv-endpoint", f"{HOST}:{port}", "--heartbeat", 60, "--grace", 1, "--timeout", 30, *options,
                 *program, env=environment(TERN_TOKEN=TOKEN, TERN_CUDA="none"))  # what a host has of CUDA is said by the tests


VERSION = tern("--version").split()[1]
CARD = f"{VERSION} host 2 2 1 -1 42 job"

BEGIN = ("sh", "-c", "echo $$ >> began; exec sleep 1000")


def plain(said):
    """It has no control characters."""
    holds(not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f]", said), repr(said))


def follower(*words, program=BEGIN, code=1):
    """A launcher of two ranks whose leader is a hostile process: it gives these orders in sequence, and calls those that are
    functions. Returns what the launcher prints; it must end with this exit code."""
    store, number = Store(), 0
    p = launcher(store.port, *program, options=("--node-rank", 1, "-n", 2))
    try:
        store.set("node/0", "a leader")
        store.call("get", "node/1")
        for word in words:
            if callable(word):
                word(store)
            else:
                number += 1
                store.set(f"order/{number}", word)
        finish(p, code, 30)
    finally:
        p.kill()
        store.close()
    plain(errors(p))
    return errors(p)


START = "start 1\n7 1\n1 2\n\n"
AGAIN = "start 2\n7 1\n1 2\n\n"


def begun(_):
    until(lambda: len(text("began").split()) == 2, "both ranks run")


@test
def refused_orders():
    """an order that makes no sense (test_words.c) ends the launcher with an error that names it, before its ranks run or while they do"""
    has(follower("start 1\n7 1\n1 300\n\n"), "tern: order 1 in the store cannot be followed: it starts 300 ranks here, where -n is 2")
    leader_hears = lambda store: has(store.call("get", "text/1/0"), "order 1 in the store cannot be followed")
    has(follower("end 0\n\n", leader_hears), "order 1 in the store cannot be followed", "no round has been started", '"end 0"')
    has(follower(ESCAPES + "\n" + START), 'its kind is ""')
    holds(not os.path.exists("began"), "a rank was started")
    # The later order is there first, so that both are read at once: the ranks cannot have ended between them.
    has(follower(START, begun, lambda store: store.set("order/3", AGAIN), "stop 1\n\n"),
        "order 3 in the store cannot be followed: this node has ranks of round 1")
    os.remove("began")
    has(follower(START, begun, "end 0\n\n"), "order 2 in the store cannot be followed", "this node's ranks have not ended")


@test
def good_orders():
    """valid orders are followed, whoever gives them; their texts are printed without control characters"""
    said = follower(START + "why " + ESCAPES, begun, "drop 5\n\nnot this one", "end 3\n\nit is " + ESCAPES + "over\nat last", code=3)
    has(said, "tern: why ?]0;owned????31m", "node 1 of 2, rank 1-2 of 3", "tern: it is ?]0;owned????31mover\n", "tern: at last")
    os.remove("began")
    has(follower(START, begun, "drop 1\n\nbecause"), "because")
    os.remove("began")
    done = lambda store: until(lambda: " done 0 0" in store.call("get", "beat/1"), "the node says that it is done")
    follower(START, done, "end 0\n\n", program=("true",), code=0)


def leader_and(*steps, nnodes=2, code=1):
    """A launcher that leads, and a hostile process that has joined its store and writes there; returns what the leader prints."""
    port = free_port()
    p = launcher(port, *BEGIN, nnodes=nnodes, options=("--last-call", 1))
    store = Store(port)
    try:
        store.call("get", "node/0")
        for step in steps:
            step(store)
        finish(p, code, 30)
    finally:
        p.kill()
    plain(errors(p))
    return errors(p)


def joins(card, sign=None):
    def step(store):
        number = int(store.call("add", "joined", "1"))
        if sign:
            store.set(f"beat/{number}", sign)
        store.set(f"node/{number}", card)
    return step


@test
def strange_nodes():
    """a node whose description or first sign of life makes no sense gets no place, and the job begins without it"""
    port = free_port()
    first = launcher(port, *BEGIN, nnodes="1:3", options=("--last-call", 1))
    store = Store(port)
    store.call("get", "node/0")
    card = f"{VERSION} host 1 3 2 -1 42 job"
    for absurd in (card + " " + ESCAPES, f"{VERSION} host 1 3 99999999999 -1 42 job", "\0\1\2"):
        joins(absurd, "0 0 idle 0 0")(store)
    joins(card)(store)  # without a sign of life
    joins(card, "0 0 idle 0 256 " + ESCAPES)(store)
    number = drops = 0
    while drops < 3:  # on a slow machine the job begins before all of them are read
        number += 1
        said = store.call("get", f"order/{number}")
        if not said.startswith(("start", "stop")):
            has(said, "no place in job job", "its description makes no sense")
            drops += 1
    until(lambda: text("began"), "the job begins without them")
    store.set("beat/4", "1 0 left 0 0")
    first.terminate()
    finish(first, 143, 30)
    plain(errors(first))


def leaves(number, order, wanted):
    """The node reads this order, and acknowledges it."""
    def step(store):
        has(store.call("get", f"order/{order}"), *wanted)
        store.set(f"beat/{number}", "1 0 left 0 0")
    return step


def rank_dies(_):
    os.kill(int(until(lambda: text("began"), "the rank runs")), signal.SIGTERM)


@test
def other_versions():
    """hosts whose libtern is another version or of another revision are named in one error, on each of them; a job that has enough goes on"""
    wanted = f"the hosts do not have the same libtern: node 0 (host {socket.gethostname()[:64]}) has {VERSION}"
    for card, words in ((f"{VERSION}.9 host-b 2 2 1 -1 42 job", f"host host-b has {VERSION}.9"),
                        ("99.0.0+abc host-b what they say then", "host host-b has 99.0.0+abc")):
        has(leader_and(joins(card, "0 0 idle 0 0"), leaves(1, 1, [wanted, words])), "tern: " + wanted, words)
    said = leader_and(joins("99.0.0 host-b 3 3 1 -1 42 job", "0 0 idle 0 0"), joins("98.0.0 host-c 3 3 1 -1 42 job", "0 0 idle 0 0"),
                      leaves(1, 1, [wanted]), leaves(2, 1, [wanted]), nnodes=3)
    has(said, "host host-b has 99.0.0, host host-c has 98.0.0")
    holds(not os.path.exists("began"), "a rank was started")
    begun_alone = lambda store: until(lambda: text("began"), "the job has begun")
    said = leader_and(begun_alone, joins("99.0.0 host-b 1 2 1 -1 42 job", "0 0 idle 0 0"),
                      leaves(1, 2, ["no place in job job", "this launcher's libtern is 99.0.0, and that of node 0"]), rank_dies, nnodes="1:2", code=143)
    holds("99.0.0" not in said, said)


@test
def strange_signs():
    """a sign of life that makes no sense costs its node the place; one that claims success or failure does not end the job with 0"""
    has(leader_and(joins(CARD, "0 0 idle 0 0"), lambda store: until(lambda: text("began"), "the rank runs"),
                   lambda store: store.set("beat/1", "1 1 failed 0 1")),
        "node 1 (host host, rank 1) is lost: its heartbeat makes no sense: it reports a failure with exit code 0")
    os.remove("began")
    # A failure without a report, one with escapes in it, and one of a hundred thousand lines.
    for report in (None, ESCAPES + "the disk is full\nof" + ESCAPES, "line\n" * 100000):
        def fails(store, report=report):
            if report:
                store.set("text/1/1", report)
            store.set("beat/1", "1 1 stopped 7 1")
            store.call("get", "order/3")  # the end order, which it acknowledges
            store.set("beat/1", "2 1 left 0 0")
        said = leader_and(joins(CARD, "0 0 idle 0 0"), lambda store: until(lambda: text("began"), "the rank runs"), fails,
                          code=7)
        has(said, "the disk is full" if report and ESCAPES in report else "line" if report else "host host reports a failure with exit code 7")
        holds(len(said) < 300000, f"{len(said)} bytes are printed")
        os.remove("began")
    # The hostile process says that it is done, but the leader's own rank runs.
    has(leader_and(joins(CARD, "0 0 idle 0 0"), lambda store: until(lambda: text("began"), "the rank runs"),
                   lambda store: [store.set("beat/1", "1 1 done 0 0"), store.set("order/2", "end 0\n\n")], rank_dies),
        "order/2 in the store is not from this launcher")


@test
def two_leaders():
    """an order that another process wrote in the leader's place is noticed, and so is a counter of launchers of two thousand million"""
    has(leader_and(lambda store: store.set("order/1", "start 1\n0 300\n1 300\n\n"), joins(CARD, "0 0 idle 0 0")),
        "order/1 in the store is not from this launcher")
    has(leader_and(lambda store: store.call("add", "joined", "2000000000")), "the store counts", "launchers: another process writes there")
    holds(not os.path.exists("began"), "a rank was started")


@test
def one_host():
    """a job of one host takes no others: a launcher that joins its store says so in bounded time"""
    port = free_port()
    p = launcher(port, *BEGIN, nnodes=1)
    Store(port).call("add", "any", "1")
    other = launcher(port, *BEGIN, options=("--node-rank", 1, "--heartbeat", 1))
    finish(other, 1, 30)
    has(errors(other), f"no launcher leads several hosts at {HOST}:{port}", "another port")
    p.terminate()
    finish(p, 143, 30)


main()
