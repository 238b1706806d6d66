#!/usr/bin/env python3
"""11_gpt2 is killed again and again, anywhere: while it computes, in the middle of a row, of a save, of a plot; alone, and
either of two ranks. It continues each time, and its losses and checkpoints must be those of an undisturbed run."""
import array, os, pathlib, random, signal, subprocess, sys, tempfile

root = pathlib.Path(os.environ.get("TERN_ROOT", pathlib.Path(__file__).parents[2]))
examples = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/test/examples"))
mortal = pathlib.Path(os.environ.get("TERN_TEST_BIN", root / "build/test/tests")) / "gpt2_program"
tern = examples.parent / "tools" / "tern"


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def run(folder, ranks, *more, program=examples / "11_gpt2", restarts=0, **settings):
    start = [tern, "run", "-n", str(ranks), "--max-restarts", str(restarts)] if ranks > 1 else []
    parts = ["--shard", "all"] if ranks > 1 else []
    command = [*start, program, "--data", "tokens.bin", "--val", "tokens.bin", "--val-every", "4", "--val-batches", "1", "--model",
               "tiny", "--context", "8", "--vocab", "100", "--batch", "1", "--steps", "60", "--threads", "1", "--save-every", "3",
               "--dropout", "0.1", *parts, *more]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ, **settings))


def outcome(folder):
    """All results except columns of time and memory."""
    out = folder / "run"
    rows = [row.split(",") for row in (out / "loss.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if not name.endswith(("_per_s", "_mb"))]
    files = [(path.name, path.read_bytes()) for path in sorted(out.glob("step-*/*")) + [out / "loss.svg"]]
    return [[row[i] for i in kept] for row in rows], sorted(path.name for path in out.iterdir()), files


def make_folder(top, name):
    folder = top / name
    folder.mkdir()
    (folder / "tokens.bin").write_bytes(array.array("H", [(7 * i + i * i % 3) % 100 for i in range(1000)]).tobytes())
    return folder


def killed(folder, ranks, kills, seed):
    draw, deaths = random.Random(seed), 0
    for _ in range(kills):
        victim, call = draw.randrange(ranks), int(2 ** draw.uniform(0, 6.5))
        done = run(folder, ranks, "--resume", program=mortal, TERN_TEST_KILL_AT=str(call), TERN_TEST_KILL_RANK=str(victim))
        check(done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), f"status {done.returncode}: {done.stderr}")
        deaths += done.returncode != 0
    check(deaths > kills // 2, f"only {deaths} of {kills} kills")
    done = run(folder, ranks, "--resume")
    check(done.returncode == 0, done.stderr)
    return deaths


def restarted(folder, whole):
    """A restarted program continues by itself, even with --overwrite."""
    done = run(folder, 2, "--overwrite", program=mortal, restarts=1, TERN_TEST_KILL_AT="150", TERN_TEST_KILL_RANK="0")
    check(done.returncode == 0 and "continuing after step" in done.stdout, f"{done.stdout}{done.stderr}")
    check(outcome(folder) == outcome(whole), "another outcome after a restart")


with tempfile.TemporaryDirectory() as top:
    top = pathlib.Path(top)
    for ranks, kills in ((1, 40), (2, 16)):
        whole, again = make_folder(top, f"whole{ranks}"), make_folder(top, f"killed{ranks}")
        done = run(whole, ranks)
        check(done.returncode == 0, done.stderr)
        deaths = killed(again, ranks, kills, seed=ranks)
        check(outcome(again) == outcome(whole), f"{ranks} ranks: another outcome after {deaths} kills")
        print(f"{ranks} ranks: {deaths} kills, the same bits")
    restarted(again, whole)
