#!/usr/bin/env python3
"""`tern run --nnodes MIN:MAX` when node 0 is killed: another host leads, and the job goes on."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TESTS, environment, errors, finish, free_port, has, holds, main, same, start, test, text, until

HOST, TOKEN = "127.0.0.1", "secret"
SAYS = 'echo "$TERN_RESTART_COUNT: $RANK of $WORLD_SIZE" >> "said.$GROUP_RANK"; '
UNTIL_GO = ["sh", "-c", SAYS + "while [ ! -e go ]; do sleep 0.05; done"]


class Job:
    """Launchers of one job, the first of which leads. Short times, so that lost nodes are noticed soon."""

    def __init__(self, nnodes, *options):
        self.port = free_port()
        self.options = ["--nnodes", nnodes, "--rdzv-endpoint", f"{HOST}:{self.port}", "--heartbeat", 2, "--grace", 1, "--last-call", 0.5,
                        "--timeout", 30, *options]

    def start(self, *program, env=None):
        return start(*self.options, *program, env=env or environment(TERN_TOKEN=TOKEN))

    def launchers(self, count, *program, **more):
        """The first leads: it has begun before the others."""
        first = self.start(*program, **more)
        get(self.port, "node/1")
        return [first] + [self.start(*program, **more) for _ in range(count - 1)]

    def order(self, head, after=0):
        """The first order after that number that begins so, as words, and its number; waits for it."""
        while True:
            after += 1
            order = get(self.port, f"order/{after}")
            if order.startswith(head):
                return order.split(), after


def call(port, verb, key, *value):
    done = subprocess.run([os.path.join(TESTS, "store_client"), str(port), verb, "agent/" + key, *map(str, value)],
                          env=environment(TERN_TOKEN=TOKEN), stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def get(port, key):
    """The value at a launcher's key; waits for it."""
    return call(port, "get", key)


def numbers(job, launchers):
    """The launchers by their numbers, which are by arrival."""
    of = {p.pid: p for p in launchers}
    return {n: of[int(get(job.port, f"node/{n}").split()[6])] for n in range(1, len(launchers) + 1)}


def said(node):
    return text(f"said.{node}").splitlines()


def running(count, first=0):
    """Whether the last round has so many ranks, and is no earlier than `first`."""
    lines = [said(node)[-1:] for node in range(count)]
    return all(line and line[0].endswith(f": {node} of {count}") and int(line[0].split(":")[0]) >= first
               for node, line in enumerate(lines)) and int(lines[0][0].split(":")[0]) + 1


def go():
    with open("go", "w", encoding="utf-8"):
        pass


def end_well(*launchers):
    """The job ends well, and no two leaders have started ranks for one round."""
    go()
    for p in launchers:
        finish(p, 0)
    rounds = {}
    for line in sum((said(node) for node in range(9)), []):
        number, _, place = line.partition(": ")
        rounds.setdefault(number, []).append(place.split(" of "))
    for places in rounds.values():
        same(len({world for _, world in places}), 1, rounds)
        same(len({rank for rank, _ in places}), len(places), rounds)


@test
def in_a_round():
    """node 0 killed: the standby leads the others, says so in one line, and all of them start again"""
    job = Job("2:3")
    first, *others = job.launchers(3, *UNTIL_GO)
    rounds = until(lambda: running(3), "all have started")
    first.kill()
    first.wait()
    until(lambda: running(2, rounds), "the others have started again", 30)
    end_well(*others)
    for p in others:
        has(errors(p), "node 0 (host ", "is lost: host ", " leads the job now, at 127.0.0.1:", "all ranks start again on 2 hosts")
        same(errors(p).count("leads the job now"), 1)


PROGRAM = [os.path.join(TESTS, "fault_program"), "--out", "out", "--steps", 9]  # it saves after every third step


def losses(saved, before, after):
    """Those of a run that was stopped after so many steps on some ranks, and continued on others."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for ranks, steps in ((before, saved), (after, 9)):
            if steps:
                finish(start("--standalone", "-n", ranks, *PROGRAM, "--out", folder, "--steps", steps, env=environment(OMP_NUM_THREADS=1)), 0)
        return text(folder + "/loss.csv")


def trains(fault):
    return environment(TERN_TOKEN=TOKEN, TERN_FAULT=fault, TERN_TIMEOUT=30, OMP_NUM_THREADS=1)


def has_trained(launchers, *ranks, saved):
    """They have gone on from a checkpoint of one of these steps, with the losses of a run that was not disturbed."""
    for p in launchers:
        finish(p, 0)
    is_ = text("out/loss.csv")
    holds(any(is_ == losses(steps, *ranks) for steps in saved), is_)


def killed_in(fault, *saved):
    """Node 0 is killed while a rank stands at this fault's phase."""
    os.mkdir("out")
    job = Job("2:3", "--last-call", 3)
    first, *others = job.launchers(3, *PROGRAM, env=trains(fault))
    until(lambda: any("fault: " in errors(p) for p in (first, *others)), "a rank is there")
    first.kill()
    first.wait()
    has_trained(others, 3, 2, saved=saved)
    for p in others:
        has(errors(p), "leads the job now")


@test
def while_ranks_start():
    """node 0 killed before the ranks have met: the others begin"""
    killed_in("wait@rendezvous:2:5", 0)


@test
def while_saving():
    """node 0 killed while its rank writes a checkpoint: the others go on from one that is whole"""
    killed_in("stop@save:0:5", 3, 6, 9)


@test
def some_have_left():
    """node 0 killed before there is a round, after two hosts have left: these do not count, and the others begin"""
    job = Job("2:6", "--last-call", 8)
    first, *others = job.launchers(5, *UNTIL_GO)
    get(job.port, "node/5")
    of = numbers(job, [first, *others])
    left = [of[n] for n in (4, 5)]
    _, number = job.order("standby")
    for p in left:
        others.remove(p)
        p.terminate()
        finish(p, 143)
        _, number = job.order("drop", number)
    time.sleep(0.5)  # until all have heard it
    first.kill()
    first.wait()
    until(lambda: running(2), "the others have started", 30)
    end_well(*others)


@test
def between_rounds():
    """node 0 killed while a round is being ended after another host was lost: the others, more than half, start the next"""
    job = Job("2:5", "--last-call", 2)
    first, *others = job.launchers(5, "sh", "-c", "trap : TERM; " + SAYS + "while [ ! -e go ]; do sleep 0.05; done")
    rounds = until(lambda: running(5), "all have started")
    of = numbers(job, [first, *others])
    lost = of[5 if job.order("standby")[0][1] != "5" else 4]
    others.remove(lost)
    lost.kill()
    lost.wait()
    job.order(f"stop {rounds}")  # the ranks take a second to end
    first.kill()
    first.wait()
    until(lambda: running(3, rounds), "the others have started again", 30)
    end_well(*others)
    same([errors(p).count("leads the job now") for p in others], [1, 1, 1])


@test
def no_majority():
    """the standby does not lead without more than half of the hosts: it and the others end, and say why"""
    job = Job("1:4")
    first, *others = job.launchers(3, *UNTIL_GO)
    until(lambda: running(3), "all have started")
    standby = int(job.order("standby")[0][1])
    of = numbers(job, [first, *others])
    last, other = of[standby], of[5 - standby]
    for p in (other, first):
        p.kill()
        p.wait()
    finish(last, 1, 30)
    has(errors(last), "node 0 is lost, and 1 of the last round's 3 hosts are here: not more than half")
    for options in (("--failover", "never"), ()):
        for name in ("said.0", "said.1", "said.2"):
            if os.path.exists(name):
                os.remove(name)
        job = Job("1:3" if options else "1:2", *options)
        first, *others = job.launchers(3 if options else 2, *UNTIL_GO)
        until(lambda: running(len(others) + 1), "all have started")
        first.kill()
        first.wait()
        for p in others:
            finish(p, 1, 30)
            has(errors(p), "node 0 is lost")


@test
def two_hosts():
    """--failover always: of two hosts the second leads; new hosts join at the place that it names"""
    job = Job("1:2", "--failover", "always")
    first, second = job.launchers(2, *UNTIL_GO)
    rounds = until(lambda: running(2), "both have started")
    first.kill()
    first.wait()
    rounds = until(lambda: running(1, rounds), "the second has started again", 30)
    job.options[3] = errors(second).split("leads the job now, at ")[1].split()[0]
    third = job.start(*UNTIL_GO)
    until(lambda: running(2, rounds), "the third has joined", 30)
    end_well(second, third)


@test
def one_after_another():
    """the standby that leads has a standby in turn, and the job outlives it too"""
    job = Job("2:5")
    launchers = job.launchers(5, *UNTIL_GO)
    rounds = until(lambda: running(5), "all have started")
    of = numbers(job, launchers)
    leader, number = 1, 0
    for left in (4, 3):
        (_, standby, _, port), number = job.order("standby", number)
        of[leader].kill()
        of[leader].wait()
        launchers.remove(of[leader])
        rounds = until(lambda left=left, first=rounds: running(left, first), "the others have started again", 30)
        leader, job.port = int(standby), int(port)
    end_well(*launchers)


@test
def stopped_leader():
    """node 0 that was only stopped: another leads meanwhile, and when it continues it learns so, ends its rank and itself"""
    job = Job("1:3")
    first, *others = job.launchers(3, *UNTIL_GO)
    rounds = until(lambda: running(3), "all have started")
    first.send_signal(signal.SIGSTOP)
    rounds = until(lambda: running(2, rounds), "the others have started again", 30)
    first.send_signal(signal.SIGCONT)
    finish(first, 1, 30)
    has(errors(first), f"the job goes on at {HOST}:", "this launcher has lost its place in it")
    same(running(2), rounds)  # it has disturbed nothing
    end_well(*others)


STUBBORN = ["sh", "-c", "trap : TERM; " + SAYS + "while [ ! -e go ]; do sleep 0.05; done"]  # its ranks take a second to end
PHASES = ("gather", "start", "run", "settle")


class Struck:
    """A job of enough hosts that, in one of the phases, loses node 0 or the standby to a signal; the others, more than half, go on."""

    def __init__(self, phase, leader, number, program=None, env=None):
        for name in os.listdir("."):
            if name == "go" or name.startswith("said."):
                os.remove(name)
        job = Job("2:6", "--last-call", 5 if phase == "gather" else 0.5)
        self.count = 5 if phase == "settle" else 4
        launchers = job.launchers(self.count, *(program or (STUBBORN if phase == "settle" else UNTIL_GO)), env=env)
        get(job.port, f"node/{self.count}")
        of = numbers(job, launchers)
        standby = of[int(job.order("standby")[0][1])]
        if phase == "gather":
            time.sleep(0.5)  # until all have heard it
        elif phase == "start":
            job.order("start")
        elif program:
            until(lambda: any("fault: " in errors(p) for p in launchers), "a rank is there")
        else:
            until(lambda: running(self.count), "all have started")
        if phase == "settle":
            other = next(p for p in launchers[1:] if p != standby)
            launchers.remove(other)
            other.kill()
            other.wait()
            job.order("stop")
        self.lost = launchers[0] if leader else standby
        self.lost.send_signal(number)
        self.others = [p for p in launchers if p != self.lost]
        if not program:
            self.rounds = until(lambda: running(3, int(phase != "gather")), f"the others have started again ({phase})", 40)
        if leader:
            until(lambda: all(errors(p).count("leads the job now") == 1 for p in self.others), "they say so once")

    def ends(self, *words):
        finish(self.lost, 1, 30)
        has(errors(self.lost), *words)
        # It has begun nothing. Its rank of the former round may have, if it was stopped in the middle of starting it.
        same(1 + max(int(line.split(":")[0]) for node in range(6) for line in said(node)), self.rounds)


@test
def leader_stopped():
    """node 0 stopped in each phase: another leads, and node 0 learns where when it continues"""
    for phase in PHASES:
        job = Struck(phase, True, signal.SIGSTOP)
        job.lost.send_signal(signal.SIGCONT)
        if phase == "gather":  # it has started no ranks: it joins the job there if it hears of it before it misses the others
            until(lambda: job.lost.poll() == 1 or running(4, job.rounds), "node 0 goes on", 30)  # pylint: disable=cell-var-from-loop
        if phase != "gather" or job.lost.poll() == 1:
            job.ends(f"the job goes on at {HOST}:", "this launcher has lost its place in it")
        else:
            job.others.append(job.lost)
        end_well(*job.others)


@test
def leader_stopped_in_a_call():
    """node 0 stopped again and again while it talks to the stores: it ends with the place where the job goes on, not with a time-out"""
    for _ in range(3):
        for name in ("said.0", "said.1", "said.2"):
            if os.path.exists(name):
                os.remove(name)
        job = Job("1:3", "--monitor-interval", 0.01)
        first, *others = job.launchers(3, *UNTIL_GO)
        rounds = until(lambda: running(3), "all have started")
        first.send_signal(signal.SIGSTOP)
        until(lambda: running(2, rounds), "the others have started again", 30)
        first.send_signal(signal.SIGCONT)
        finish(first, 1, 30)
        has(errors(first), f"the job goes on at {HOST}:", "this launcher has lost its place in it")
        end_well(*others)
        os.remove("go")


@test
def standby_stopped():
    """the standby stopped in each phase: the job goes on without it, and when it continues it learns that it has lost its place"""
    for phase in PHASES:
        job = Struck(phase, False, signal.SIGSTOP)
        job.lost.send_signal(signal.SIGCONT)
        job.ends("this node has lost its place in the job")
        end_well(*job.others)


@test
def killed_in_each_phase():
    """node 0 killed, and the standby killed, in each phase: the others train on, with the losses of a run that was not disturbed"""
    for phase in PHASES:
        for leader in (True, False):
            os.mkdir("out")
            # A rank that is stopped in step 5 ends only after the grace: long enough for a loss while the round settles.
            job = Struck(phase, leader, signal.SIGKILL, PROGRAM, trains("stop@bucket:2:5" if phase != "gather" else ""))
            has_trained(job.others, job.count, 3, saved={"gather": [0], "start": [0, 3]}.get(phase, [3]))
            shutil.rmtree("out")


@test
def standby_then_leader():
    """the standby stopped, then node 0 killed: the next standby leads, and the one that wakes up has no majority"""
    job = Job("2:6")
    first, *others = job.launchers(5, *UNTIL_GO)
    rounds = until(lambda: running(5), "all have started")
    (_, standby, *_), number = job.order("standby")
    lost = numbers(job, [first, *others])[int(standby)]
    lost.send_signal(signal.SIGSTOP)
    others.remove(lost)
    rounds = until(lambda: running(4, rounds), "the others have started again", 30)
    while int(standby) == 0 or lost == numbers(job, [first, lost, *others])[int(standby)]:
        (_, standby, *_), number = job.order("standby", number)
    first.kill()
    first.wait()
    rounds = until(lambda: running(3, rounds), "the next standby leads", 30)
    lost.send_signal(signal.SIGCONT)
    finish(lost, 1, 60)
    has(errors(lost), "lost")  # its place, or node 0: whether its store has taken the order that drops it is not certain
    same(running(3), rounds)
    end_well(*others)


class Silent:
    """A node that gives signs of life, but does not say that it has heard an order."""

    def __init__(self, job):
        self.port, self.count = job.port, 0
        card = get(self.port, "node/1").split()
        self.number = int(call(self.port, "add", "joined", 1))
        self.lives(0)
        call(self.port, "set", f"node/{self.number}", " ".join([card[0], "silent", *card[2:]]))

    def lives(self, round_, state="i"):
        self.count += 1
        call(self.port, "set", f"sign/{self.number}", f"{self.count} {round_} {state} 0 0")
        return True

    def hears(self, order):
        call(self.port, "set", f"heard/{self.number}", order)

    def lives_until(self, condition, what, round_=0, state="i", limit=30):
        until(lambda: self.lives(round_, state) and condition(), what, limit)


@test
def round_waits_for_all():
    """no round starts before every node has heard who the standby is"""
    job = Job("1:3", "--heartbeat", 20)
    first, second = job.launchers(2, *UNTIL_GO)
    _, standby = job.order("standby")
    silent = Silent(job)
    end = time.monotonic() + 2
    silent.lives_until(lambda: time.monotonic() > end, "two seconds")
    holds("of 3, rank" not in errors(first), errors(first))
    silent.hears(standby)
    silent.lives_until(lambda: "of 3, rank" in errors(first), "the round has started")
    for p in (first, second):
        p.kill()
        p.wait()


@test
def own_silence():
    """node 0 stopped for longer than a heartbeat, with a host that had just given a sign: that host is not the silent one"""
    job = Job("1:3", "--heartbeat", 5)
    first = job.start(*UNTIL_GO)
    silent = Silent(job)
    silent.lives_until(lambda: "of 2, rank" in errors(first), "the round has started")
    first.send_signal(signal.SIGSTOP)
    time.sleep(6)
    first.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    end = time.monotonic() + 2
    silent.lives_until(lambda: time.monotonic() > end, "two seconds", 1, "r")
    holds("no sign of life" not in errors(first), errors(first))
    first.kill()
    first.wait()


@test
def lost_in_a_round():
    """the standby lost in a round, perhaps only to node 0: no round starts before half of the hosts have heard that it is not the standby"""
    job = Job("1:3", "--heartbeat", 4)
    first, second = job.launchers(2, *UNTIL_GO)
    number = job.order("standby")[1]
    silent = Silent(job)
    silent.hears(number)
    silent.lives_until(lambda: "of 3, rank" in errors(second), "the round has started")
    start, number = job.order("start", number)
    while start[4] != "3":
        start, number = job.order("start", number)
    second.send_signal(signal.SIGSTOP)
    silent.lives_until(lambda: "is lost: " in errors(first), "the loss is noticed", start[1], "r")
    before, end = errors(first).count("of 2, rank"), time.monotonic() + 3
    silent.lives_until(lambda: time.monotonic() > end, "three seconds", start[1], "s")
    same(errors(first).count("of 2, rank"), before)
    silent.hears(job.order("standby 0", number)[1])
    silent.lives_until(lambda: errors(first).count("of 2, rank") > before, "the next round has started", start[1], "s")
    second.kill()
    second.wait()
    first.kill()
    first.wait()


@test
def in_doubt():
    """two of three hosts silent, one of them the standby: they may be running the job, so node 0 ends"""
    job = Job("1:3")
    first, *others = job.launchers(3, *UNTIL_GO)
    until(lambda: running(3), "all have started")
    for p in others:
        p.send_signal(signal.SIGSTOP)
    finish(first, 1, 40)
    has(errors(first), "this launcher sees 1 of the last round's 3 hosts: the others may run the job without it")
    for p in others:
        p.kill()
        p.send_signal(signal.SIGCONT)
        p.wait()


@test
def started_again():
    """node 0's launcher started again finds the job that has outlived it, and joins it: there are not two"""
    job = Job("1:3", "--last-call", 2)
    first, *others = job.launchers(3, *UNTIL_GO)
    rounds = until(lambda: running(3), "all have started")
    first.kill()
    first.wait()
    rounds = until(lambda: running(2, rounds), "the others have started again", 30)
    again = job.start(*UNTIL_GO)
    until(lambda: running(3, rounds), "all three have started", 30)
    end_well(again, *others)
    same([line for line in sum((said(node) for node in range(3)), []) if line.endswith("of 1")], [])


main()
