#!/usr/bin/env python3
"""A search over three ranks that pose as hosts with a common folder: each trial once, also when a rank is killed or comes late;
launchers; trials of several ranks, and with GPUs. search_program's trials wait for a trial of each host, so that all take part."""
import csv
import os
import pathlib
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
# pylint: disable=wrong-import-position
from launch import TERN, TESTS, complete, environment, errors, finish, free_port, has, holds, main, output, run, same, start, test, text, until

PROGRAM = os.path.join(TESTS, "search_program")
EXAMPLE = os.path.join(os.path.abspath(os.environ.get("TERN_EXAMPLE_BIN", os.path.join(TESTS, "..", "examples"))), "21_search")
HOSTS = "abc"
STEPS = {"10": 9, "30": 3, "90": 1}  # how many trials reach them


def table(folder="search"):
    return list(csv.DictReader(open(f"{folder}/trials.csv", encoding="utf-8")))


def wanted():
    """The table of the same search in one process."""
    complete(PROGRAM, "alone", "0", "hosts")
    return table("alone")


def settings(host, **more):
    os.makedirs("meet", exist_ok=True)
    more = {"SEARCH_HOSTS": len(HOSTS), **more}
    return environment(TERN_HOST=host, SEARCH_MEET=os.path.abspath("meet"), SEARCH_RAN=os.path.abspath("ran"), **more)


class Ranks:
    """One search_program for each host. The last one's first trial hangs, if wanted, or it begins when another one has ended."""

    def __init__(self, hangs=False, late=False):
        number = len(list(pathlib.Path(".").glob("rank.*.0.out")))
        self.list = []
        for rank, host in enumerate(HOSTS):
            if late and host == HOSTS[-1]:
                finish(self.list[1], 0)
            more = {"SEARCH_HANG": os.path.abspath("hangs")} if hangs and host == HOSTS[-1] else {}
            name = f"rank.{number}.{rank}"
            with open(name + ".out", "wb") as out, open(name + ".err", "wb") as err:
                p = subprocess.Popen([PROGRAM, "search", "1", "hosts"], env=settings(host, RANK=rank, WORLD_SIZE=len(HOSTS), **more),
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            p.name = name
            self.list.append(p)

    def said(self):
        return "".join(output(p) + errors(p) for p in self.list)

    def until_hung(self, values):
        """The last rank's trial hangs, and the others have found as many values as these."""
        until(lambda: (text("hangs") and len(found("search")) >= values) or any(p.poll() for p in self.list), "a trial hangs")
        same([p.poll() for p in self.list], [None] * len(self.list), self.said())


def found(folder):
    return {str(p): p.stat().st_mtime_ns for p in pathlib.Path(folder).glob("trial-*/value-??????")}


def each_once():
    """No trial has trained twice, and none is missing."""
    ran = text("ran").split("\n")[:-1]
    same(sorted(set(ran)), sorted(ran))
    same({steps: sum(line.endswith(" " + steps) for line in ran) for steps in STEPS}, STEPS)


def all_end(ranks, rows):
    for p in ranks:
        finish(p, 0)
    same(table(), rows)


@test
def shared_folder():
    """three hosts share a search: each trial once, and the table of one process"""
    rows, ranks = wanted(), Ranks()
    all_end(ranks.list, rows)
    each_once()
    has(output(ranks.list[0]), "all trials: search/trials.csv")
    for p in ranks.list:
        has(output(p), "trial ")  # it has run some
        holds(p is ranks.list[0] or "place" not in output(p), "a second table")
    holds("has not been in" not in ranks.said(), ranks.said())


@test
def late_host():
    """one that starts when all is known has nothing to do"""
    rows = wanted()
    os.rename("alone", "search")
    all_end(Ranks(late=True).list, rows)


@test
def killed_host():
    """the trial of a host that is killed goes to another one, and no other trial trains twice"""
    rows, ranks = wanted(), Ranks(hangs=True)
    ranks.until_hung(2)
    ranks.list[2].kill()
    finish(ranks.list[2], -signal.SIGKILL)
    all_end(ranks.list[:2], rows)
    each_once()


@test
def killed_first_host():
    """without rank 0 the others find everything; only the table needs the same command again"""
    rows, ranks = wanted(), Ranks()
    until(lambda: len(found("search")) >= 2, "two values")
    ranks.list[0].kill()
    for p in ranks.list[1:]:
        finish(p, 0)
    holds(not os.path.exists("search/trials.csv"), "a table of a rank other than 0")
    before = found("search")
    all_end(Ranks().list, rows)
    same(found("search"), before)


@test
def interrupted():
    """all are asked to stop: the same command continues"""
    rows, ranks = wanted(), Ranks(hangs=True)
    ranks.until_hung(2)
    for p in reversed(ranks.list):
        p.send_signal(signal.SIGTERM)
    for p in ranks.list:
        finish(p, 128 + signal.SIGTERM)
        has(output(p), "stopped; the same command continues")
    same(text("hangs"), "hangs\nsaved\n", ranks.said())
    all_end(Ranks().list, rows)


@test
def other_folders():
    """a rank that searches something else is refused, and one that has another folder is named"""
    def run(rank, code, **more):
        return complete(PROGRAM, "search", "1", "hosts", code=code, env=environment(RANK=rank, WORLD_SIZE=2, **more))
    has(run(0, 0).stdout, "rank 1 of 2 has not been in search: all ranks should have the same folder")
    has(run(1, 1, SEARCH_SEED=1).stderr, "search is another search: it was\nseed 0", "but is\nseed 1")


@test
def launchers():
    """tern run on three hosts, one of which is killed: the launchers start again without it, and what was found stays"""
    rows, port = wanted(), free_port()
    options = ["--nnodes", "2:3", "--rdzv-endpoint", f"127.0.0.1:{port}", "--heartbeat", 2, "--grace", 1, "--last-call", 1]
    jobs = []
    for host in HOSTS:
        more = {"SEARCH_HANG": os.path.abspath("hangs")} if host == HOSTS[-1] else {}
        where = ["--node-rank", HOSTS.index(host)]
        jobs.append(start(*options, *where, PROGRAM, "search", "1", "hosts", env=settings(host, TERN_TOKEN="secret", **more)))
    until(lambda: text("hangs") and len(found("search")) >= 2, "a trial hangs")
    before = found("search")
    jobs[2].kill()
    finish(jobs[2], -signal.SIGKILL)
    for p in jobs[:2]:
        finish(p, 0)
    same(table(), rows)
    after = found("search")
    same({name: after[name] for name in before}, before)


@test
def stopped_launcher():
    """when the launcher signals its ranks' process groups, a trial is asked to stop once, by the search, and saves"""
    env = settings("a", SEARCH_HANG=os.path.abspath("hangs"), SEARCH_HOSTS=1)
    job = start("-n", 2, PROGRAM, "search", "1", "hosts", env=env)
    until(lambda: text("hangs") or job.poll() is not None, "a trial hangs")
    job.terminate()
    finish(job, 128 + signal.SIGTERM)
    same(text("hangs"), "hangs\nsaved\n", output(job) + errors(job))


@test
def example():
    """21_search under tern run: one table, the same as without"""
    more = ["--trials", "4", "--processes", "1"]
    env = environment(OMP_NUM_THREADS=1)
    complete(EXAMPLE, "--out", "alone", *more, env=env)
    done = run("-n", "2", EXAMPLE, "--out", "search", *more, env=env)
    same(table(), table("alone"))
    same(done.stdout.count(b"The best"), 1, done.stdout)


@test
def trials_of_ranks():
    """a trial with two ranks is a world of its own, alone and in a search over ranks; its first rank's value counts"""
    path = os.path.dirname(TERN) + os.pathsep + os.environ["PATH"]
    for folder, prefix, env in (("one", [], environment(PATH=path)), ("several", [TERN, "run", "-n", "2"], environment())):
        done = complete(*prefix, PROGRAM, folder, "1", "ranks", env=env, code=None)
        said = "".join(text(p) for p in pathlib.Path(folder).glob("trial-*/output.txt"))
        same(done.returncode, 0, f"{done.stdout}{done.stderr}{said}")
        same([row["value"] for row in table(folder)], ["3", "4"], said)


@test
def trials_with_gpus():
    """each process has its own of the GPUs that the search may use"""
    complete(PROGRAM, "search", "3", "gpus", env=environment(CUDA_VISIBLE_DEVICES="5,GPU-ab,7"))
    same(sorted(text(f"search/trial-000{i}/gpu.txt") for i in range(3)), ["5", "7", "GPU-ab"])
    done = complete(PROGRAM, "few", "3", "gpus", env=environment(CUDA_VISIBLE_DEVICES="5,7"), code=1)
    has(done.stderr, "the 3 processes of this host need 3 GPUs, but there are 2 in CUDA_VISIBLE_DEVICES")
    # Slurm does not say how many ranks a host has: this is its third one.
    env = environment(TERN_TOKEN="secret", RANK=0, WORLD_SIZE=8, LOCAL_RANK=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(),
                      CUDA_VISIBLE_DEVICES="5,7")
    done = complete(PROGRAM, "third", "1", "gpus", env=env, code=1)
    has(done.stderr, "GPUs, but there are 2 in CUDA_VISIBLE_DEVICES")


main()
