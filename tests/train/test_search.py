#!/usr/bin/env python3
"""21_search in processes: killed at any moment and started again, it ends with the same table for any number of processes, and
nothing is done twice. Interrupted, it says so and stops; a program that fails is a failed trial. search_program has trials that go
wrong."""
import csv, fcntl, os, pathlib, signal, subprocess, tempfile, time

from runs import check, examples, helpers, until

program, ill = examples / "21_search", helpers / "search_program"
TRIALS = 8
HEX = "0123456789abcdef" * 4
TEXTS = ["plain", 'a, "b"', HEX * 3, HEX]


def start(folder, *more, **settings):
    return subprocess.Popen([program, "--out", folder, "--trials", str(TRIALS), *more], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS="1", **settings))


def values(folder):
    """The values in the trials' files, by trial and steps."""
    return {(p.parent.name, p.name): (p.read_text(), p.stat().st_mtime_ns) for p in folder.glob("trial-*/value-??????")}


def table(folder):
    return list(csv.DictReader((folder / "trials.csv").open()))


with tempfile.TemporaryDirectory() as top:
    whole, cut = pathlib.Path(top) / "whole", pathlib.Path(top) / "cut"
    out, err = start(whole, "--processes", "3").communicate(timeout=300)
    rows = table(whole)
    check(len(rows) == TRIALS and rows[0]["steps"] == "360", f"the table is {rows}\n{out}{err}")
    alone = pathlib.Path(top) / "alone"
    out_alone, err = start(alone, "--processes", "0").communicate(timeout=300)
    check(table(alone) == rows, f"alone: {table(alone)}, in processes: {rows}\n{out_alone}{err}")
    check("tok/s" not in err, f"a rate of nothing: {err}")
    check([row["place"] for row in rows] == [str(i + 1) for i in range(TRIALS)], "places")
    check("The best" in out and "all trials:" in out and float(rows[0]["value"]) < 0.4, out + err)
    check(all((whole / f"trial-{int(row['trial']):04}" / "output.txt").stat().st_size for row in rows), "what processes said")

    for signal_number, wanted in ((signal.SIGKILL, 2), (signal.SIGTERM, 4)):
        before = values(cut)
        running = start(cut, "--processes", "2")
        until(lambda: len(values(cut)) >= len(before) + 2 or running.poll() is not None, "two values")
        running.send_signal(signal_number)
        out, err = running.communicate(timeout=300)
        check(running.returncode == (-signal.SIGKILL if signal_number == signal.SIGKILL else 128 + signal.SIGTERM),
              f"status {running.returncode}: {out}{err}")
        check(signal_number == signal.SIGKILL or "the same command continues" in out, out + err)
        check("The best" not in out, f"it has trained on after the search: {out}{err}")
    before = values(cut)
    out, err = start(cut, "--processes", "2").communicate(timeout=300)
    after = values(cut)
    check(all(after[name] == before[name] for name in before), "finished work was done again")
    check(table(cut) == rows, f"killed: {table(cut)}, not: {rows}\n{out}{err}")

    broken = pathlib.Path(top) / "broken"
    out, err = start(broken, "--processes", "2", TERN_TRIAL="999 0 -1").communicate(timeout=300)
    check("names trial 999, rung 0, which does not exist" in err, out + err)
    (broken / "trial-0001").mkdir(parents=True)
    (broken / "trial-0001" / "loss.csv").mkdir()  # its run cannot begin
    out, err = start(broken, "--processes", "2").communicate(timeout=300)
    check("trial 1 has failed" in out and len(table(broken)) == TRIALS - 1, out + err)

    # a trial's value counts, however its process ends; TERN_TRIAL is not inherited, and each is profiled into its own folder; no
    # trial has the memory that a launcher keeps for the search's rank, which is said once
    folder = pathlib.Path(top) / "ill"
    trace = pathlib.Path(top) / "trace.json"
    done = subprocess.run([ill, folder, "2"], text=True, capture_output=True, timeout=300, check=False,
                          env=dict(os.environ, OMP_NUM_THREADS="1", TERN_PROFILE=str(trace), TERN_MEMORY_DIR="/dev/shm", TERN_LOG="info"))
    check(done.returncode == 0 and "trial 0 has failed after its value" in done.stdout, done.stdout + done.stderr)
    check([row["text"] for row in table(folder)] == TEXTS, (folder / "trials.csv").read_text())
    check(all(text in done.stdout for text in TEXTS), done.stdout)
    check(done.stderr.count("trials save to files only") == 1, done.stderr)
    for i in range(4):
        output = (folder / f"trial-{i:04}" / "output.txt").read_text()
        check("TERN_TRIAL is not there" in output, "a trial's own processes inherit TERN_TRIAL")
        check("TERN_MEMORY_DIR is not there" in output and "files only" not in output, output)
        check((folder / f"trial-{i:04}" / "trace.json").stat().st_size > 0, "a trace of its own")
        check(TEXTS[i] in (folder / f"trial-{i:04}" / "values.txt").read_text(), "the whole value")

    # promotions do not depend on which trial ends first
    tables = {}
    for processes in ("0", "2", "3"):
        folder = pathlib.Path(top) / f"late-{processes}"
        done = subprocess.run([ill, folder, processes, "late"], text=True, capture_output=True, timeout=300, check=False)
        check(done.returncode == 0, done.stdout + done.stderr)
        tables[processes] = (folder / "trials.csv").read_text()
    check(tables["2"] == tables["0"] and tables["3"] == tables["0"], f"other tables: {tables}")

    # a trial that another process still holds is waited for, and its output is kept even if the search has no streams
    folder = pathlib.Path(top) / "held"
    (folder / "trial-0002").mkdir(parents=True)
    with (folder / "trial-0002" / "process.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = subprocess.Popen(["sh", "-c", 'exec "$0" "$1" 2 <&- >&- 2>&-', ill, folder])
        until(lambda: len(values(folder)) == 3 or running.poll() is not None, "all but the one that is held")
        time.sleep(1.5)
        check(running.poll() is None and not (folder / "trial-0002" / "value-001000").exists(), "it did not wait")
    running.wait(timeout=300)
    check(len(table(folder)) == 4, "the trial that waited")
    said = [(folder / f"trial-{i:04}" / "output.txt").read_text() for i in range(4)]
    check(all("TERN_TRIAL" in text for text in said), f"they have said {said}")
print(f"{TRIALS} trials, killed and stopped, with the same values")
