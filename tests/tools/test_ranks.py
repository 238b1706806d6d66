#!/usr/bin/env python3
"""Programs that meet in the launcher's store and work together: through restarts, lost nodes, and worlds that change size."""
import os
import re
import signal
import sys

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TESTS, environment, errors, finish, free_port, has, main, run, same, start, test, text, until

LOOP = os.path.join(TESTS, "loop_program")
FAST = {"TERN_TIMEOUT": 20, "OMP_NUM_THREADS": 1, "TERN_TOKEN": "secret"}


def steps(rank):
    return text(f"steps.{rank}").split("\n")[:-1]


def go():
    with open("go", "w", encoding="utf-8"):
        pass


def pids_of(program, launcher):
    """The ranks of a launcher, by rank."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                environ = f.read().split(b"\0")
            name = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            continue
        rank = [v[5:] for v in environ if v.startswith(b"RANK=")]
        if name == os.path.realpath(program) and any(v.startswith(b"TERN_LAUNCHER=%d-" % launcher.pid) for v in environ):
            found[int(rank[0])] = int(pid)
    return found


@test
def one_host():
    """ranks of one launcher add up"""
    done = run("-n", 3, os.path.join(TESTS, "rank_program"), env=environment(**FAST))
    same(done.returncode, 0, done.stderr)
    same(sorted(done.stdout.decode().splitlines()), [f"[{r}] rank {r} of 3, local {r}, sum 6" for r in range(3)])


@test
def killed_rank():
    """a rank killed in mid-work: the report names it first, and the restarted ranks meet anew"""
    p = start("-n", 2, "--max-restarts", 1, LOOP, env=environment(**FAST))
    until(lambda: steps(0) and steps(1), "both work")
    os.kill(pids_of(LOOP, p)[1], signal.SIGKILL)
    until(lambda: any("restart 1" in line for line in steps(0)), "they work again")
    go()
    finish(p, 0)
    report = [line for line in errors(p).splitlines() if "(host" in line]
    has(report[0], "rank 1 (host", "was killed by SIGKILL")


@test
def changing_world():
    """the world grows when a node comes and shrinks when it is lost; the ranks meet anew each time"""
    options = ["-n", 2, "--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--heartbeat", 2, "--grace", 1,
               "--last-call", 0.5]
    first = start(*options, LOOP, env=environment(**FAST))
    until(lambda: any(line.startswith("1 of 2, restart 0,") for line in steps(1)), "one node works")
    second = start(*options, LOOP, env=environment(**FAST))
    until(lambda: any(line.startswith("3 of 4, restart 1,") for line in steps(3)), "two nodes work")
    second.kill()
    second.wait()
    until(lambda: any(line.startswith("0 of 2, restart 2,") for line in steps(0)), "one node works again")
    go()
    finish(first, 0)
    worlds = re.findall(r"of (\d)", text("steps.0"))
    same(sorted(set(zip(worlds, re.findall(r"restart (\d)", text("steps.0"))))), [("2", "0"), ("2", "2"), ("4", "1")])
    has(errors(first), "node 1 (host ", "is lost")


main()
