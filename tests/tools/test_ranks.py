#!/usr/bin/env python3
"""Programs that meet in the launcher's store and work together: through restarts, lost nodes, and worlds that change size."""
import os
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import TESTS, environment, errors, finish, free_port, go, has, main, pids_of, run, same, start, test, text, until

LOOP = os.path.join(TESTS, "loop_program")
FAST = {"TERN_TIMEOUT": 20, "OMP_NUM_THREADS": 1, "TERN_TOKEN": "secret"}


def steps(rank):
    return text(f"steps.{rank}").split("\n")[:-1]


@test
def killed_rank():
    """a rank killed in mid-work: the report names it first, and the restarted ranks meet again"""
    p = start("-n", 2, "--max-restarts", 1, LOOP, env=environment(**FAST))
    until(lambda: steps(0) and steps(1), "both work")
    os.kill(pids_of(LOOP, p)[1], signal.SIGKILL)
    until(lambda: any("restart 1" in line for line in steps(0)), "they work again")
    go()
    finish(p, 0)
    report = [line for line in errors(p).splitlines() if "(host" in line]
    has(report[0], "rank 1 (host", "was killed by SIGKILL")


@test
def ended_rank():
    """a rank that ends well without tn_dist_init is reported to the others at once, whichever it is, and however late"""
    patient = environment(**dict(FAST, TERN_TIMEOUT=600))
    meets = [os.path.join(TESTS, "rank_program")]
    for rank, pause, more in ((1, 0, []), (0, 0, []), (2, 1, []), (1, 0, ["--max-restarts", 1])):
        done = run("-n", 3, *more, "sh", "-c", f'[ $RANK != {rank} ] || {{ sleep {pause}; exit 0; }}; exec "$0"', *meets, env=patient, code=1)
        has(done.stderr, f"rank {rank} (", "has ended with exit code 0, and never called tn_dist_init")
        same(done.stderr.count(b"restart 1 of 1"), len(more) // 2)
    job = ["-n", 2, "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--grace", 1]
    nodes = [start(*job, "sh", "-c", '[ $RANK != 3 ] || exit 0; exec "$0"', *meets, env=patient) for _ in range(2)]
    for node in nodes:
        finish(node, 1)
    has(errors(nodes[0]) + errors(nodes[1]), "rank 3 (", "never called tn_dist_init")


@test
def silent_launcher():
    """ranks that wait for each other survive a launcher that is stopped for a while"""
    p = start("-n", 2, "sh", "-c", '[ $RANK = 0 ] || while [ ! -e go ]; do sleep 0.05; done; echo x > begun.$RANK; exec "$0"',
              os.path.join(TESTS, "rank_program"), env=environment(**FAST))
    until(lambda: text("begun.0"), "rank 0 waits, or soon will")
    time.sleep(0.5)
    p.send_signal(signal.SIGSTOP)
    time.sleep(3)
    p.send_signal(signal.SIGCONT)
    go()
    finish(p, 0)


@test
def own_worlds():
    """ranks that end while others still run disturb none that do not wait for them"""
    program = ('[ $RANK != 0 ] || exit 0; [ $RANK != 1 ] || sleep 2; '
               'RANK=$((RANK - 1)) LOCAL_RANK=$((LOCAL_RANK - 1)) WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 exec "$0"')
    done = run("-n", 3, "sh", "-c", program, os.path.join(TESTS, "rank_program"), env=environment(**FAST))
    same(sorted(done.stdout.decode().splitlines()), [f"[{r + 1}] rank {r} of 2, local {r}, sum 3" for r in range(2)])
    done = run("-n", 3, "sh", "-c", "sleep 0.$RANK", env=environment(**FAST))


@test
def changing_world():
    """the world grows when a node comes and shrinks when it is lost; the ranks meet again each time"""
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
