#!/usr/bin/env python3
"""A rank of 11_gpt2 is killed under `tern run`: the job goes on from the launcher's memory, which is newer than the checkpoint,
and its losses and checkpoints are those of an undisturbed run. Where there is no such memory, it goes on from the checkpoint."""
import array, os, pathlib, re, subprocess, sys, tempfile

root = pathlib.Path(os.environ.get("TERN_ROOT", pathlib.Path(__file__).parents[2]))
examples = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/test/examples"))
mortal = pathlib.Path(os.environ.get("TERN_TEST_BIN", root / "build/test/tests")) / "gpt2_program"
tern = examples.parent / "tools" / "tern"
STEPS, SAVE, MEMORY = 40, 15, 4


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def run(folder, ranks, *more, program=examples / "11_gpt2", **settings):
    parts = ["--shard", "all"] if ranks > 1 else []
    launch = [tern, "run", "-n", str(ranks), "--max-restarts", "1"] if ranks else []
    command = [*launch, program, "--data", "tokens.bin", "--val", "tokens.bin", "--val-every", "4", "--val-batches", "1", "--model",
               "tiny", "--context", "8", "--vocab", "100", "--batch", "1", "--steps", str(STEPS), "--threads", "1", "--save-every",
               str(SAVE), "--dropout", "0.1", *parts, *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ, **settings))
    check(done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def outcome(folder):
    """All results except columns of time and memory."""
    out = folder / "run"
    rows = [row.split(",") for row in (out / "loss.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if not name.endswith(("_per_s", "_mb"))]
    files = [(path.name, path.read_bytes()) for path in sorted(out.glob("step-*/*")) + [out / "loss.svg"]]
    return [[row[i] for i in kept] for row in rows], files


def make_folder(top, name):
    folder = top / name
    folder.mkdir()
    (folder / "tokens.bin").write_bytes(array.array("H", [(7 * i + i * i % 3) % 100 for i in range(1000)]).tobytes())
    return folder


def continued(output):
    """The step from which the restarted job went on; -1: from the beginning."""
    found = re.findall(r"continuing after step (\d+) of run", output)
    check(len(found) < 2, output)
    return int(found[0]) if found else -1


def from_memory(top, ranks, call, victim):
    whole, again = make_folder(top, f"whole{ranks}-{call}"), make_folder(top, f"killed{ranks}-{call}")
    check(continued(run(whole, ranks)) < 0, "an undisturbed run")
    output = run(again, ranks, "--memory-every", str(MEMORY), program=mortal, TERN_TEST_KILL_AT=str(call),
                 TERN_TEST_KILL_RANK=str(victim))
    step = continued(output)
    check(step > 0 and step % MEMORY == 0, f"not from memory: {output}")
    check(outcome(again) == outcome(whole), f"{ranks} ranks: another outcome than without a kill")
    return step


def without_launcher(top):
    output = run(make_folder(top, "alone"), 0, "--memory-every", str(MEMORY))
    check(output.count("not saved in memory: rank 0: no launcher") == 1, output)


with tempfile.TemporaryDirectory() as top:
    top = pathlib.Path(top)
    for ranks, call, victim in ((1, 150, 0), (2, 150, 0), (2, 40, 1)):
        print(f"{ranks} ranks, rank {victim} killed: on from step {from_memory(top, ranks, call, victim)}, the same bits")
    without_launcher(top)
