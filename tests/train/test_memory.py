#!/usr/bin/env python3
"""A rank of 11_gpt2 is killed under `tern run`: the job goes on from memory, which is newer than the checkpoint, and its losses and
checkpoints are those of an undisturbed run. Where memory is damaged, it goes on from the checkpoint, and the other way round; where
there is none, or it is full, the run says so and goes on. Whatever happens to the launcher, nothing stays in memory."""
import array, glob, os, pathlib, re, signal, subprocess, sys, tempfile, time

root = pathlib.Path(os.environ.get("TERN_ROOT", pathlib.Path(__file__).parents[2]))
examples = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/test/examples"))
mortal = pathlib.Path(os.environ.get("TERN_TEST_BIN", root / "build/test/tests")) / "gpt2_program"
tern = examples.parent / "tools" / "tern"
STEPS, SAVE, MEMORY = 40, 15, 4


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def command(ranks, *more, program=examples / "11_gpt2", before=None):
    """before: what sh does in each rank before its program begins."""
    parts = ["--shard", "all"] if ranks > 1 else []
    launch = [tern, "run", "-n", str(ranks), "--max-restarts", "1"] if ranks else []
    shell = ["sh", "-c", before + '; exec "$@"', "sh"] if before else []
    return [*launch, *shell, program, "--data", "tokens.bin", "--val", "tokens.bin", "--val-every", "4", "--val-batches", "1", "--model",
            "tiny", "--context", "8", "--vocab", "100", "--batch", "1", "--steps", str(STEPS), "--threads", "1", "--save-every",
            str(SAVE), "--dropout", "0.1", *parts, *more]


def run(folder, *arguments, program=examples / "11_gpt2", before=None, **settings):
    done = subprocess.run(command(*arguments, program=program, before=before), cwd=folder, capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, **settings))
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


def killed(top, name, whole, call, *arguments, **settings):
    """The output of a job of two ranks, of which one is killed in the middle."""
    folder = make_folder(top, name)
    output = run(folder, 2, "--memory-every", str(MEMORY), *arguments, program=mortal, TERN_TEST_KILL_AT=str(call), TERN_TEST_KILL_RANK="0",
                 **settings)
    check(outcome(folder) == outcome(whole), f"{name}: another outcome than without a kill: {output}")
    return output


def from_memory(top, ranks, call, victim):
    whole, again = make_folder(top, f"whole{ranks}-{call}"), make_folder(top, f"killed{ranks}-{call}")
    check(continued(run(whole, ranks)) < 0, "an undisturbed run")
    output = run(again, ranks, "--memory-every", str(MEMORY), program=mortal, TERN_TEST_KILL_AT=str(call),
                 TERN_TEST_KILL_RANK=str(victim))
    step = continued(output)
    check(step > 0 and step % MEMORY == 0, f"not from memory: {output}")
    check(outcome(again) == outcome(whole), f"{ranks} ranks: another outcome than without a kill")
    return whole, step


def spoil(files):
    """What a rank does before its program begins again."""
    return f'if [ $TERN_RESTART_COUNT = 1 ] && [ $RANK = 0 ]; then for f in {files}; do truncate -s -5 $f; done; fi'


def damaged(top, whole):
    """Either of the two is passed over, and the other loaded."""
    output = killed(top, "memory", whole, 330, before=spoil("$TERN_MEMORY_DIR/*/step-*/rank-00001.safetensors"))
    check(continued(output) % SAVE == 0 and re.search(r"step \d+ is passed over: .*rank-00001.safetensors", output), output)
    output = killed(top, "files", whole, 330, "--memory-every", "14", before=spoil("run/step-*/index.json"))
    check(continued(output) % 14 == 0 and re.search(r"step \d+ is passed over: .*index.json: is damaged", output), output)


def without_memory(top, whole):
    """No launcher, and a folder that cannot be made: a warning, once, and the run goes on."""
    output = run(make_folder(top, "alone"), 0, "--memory-every", str(MEMORY))
    check(output.count("not saved in memory: no launcher") == 1, output)
    output = killed(top, "missing", whole, 170, before="export TERN_MEMORY_DIR=/nowhere/at/all")
    check(len(re.findall(r"(?m)^\[0\] tern warn: step 4 and later ones are not saved in memory: .*/nowhere/at/all", output)) == 1, output)
    check(continued(output) % SAVE == 0, output)


def nothing_stays(top):
    """A launcher that is killed leaves nothing in memory; its guard removes it."""
    folder = make_folder(top, "launcher")
    with subprocess.Popen(command(2, "--memory-every", "1", "--steps", "100000"), cwd=folder, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as launcher:
        ours, end = f"/dev/shm/tern-{launcher.pid}-*", time.monotonic() + 60
        while not glob.glob(ours + "/*/step-*/index.json") and time.monotonic() < end:
            time.sleep(0.05)
        check(glob.glob(ours + "/*/step-*"), "nothing was saved in memory")
        launcher.send_signal(signal.SIGKILL)
    while glob.glob(ours) and time.monotonic() < end:
        time.sleep(0.05)
    check(not glob.glob(ours), f"{glob.glob(ours + '/*/*')} is left")


with tempfile.TemporaryDirectory() as top:
    top, before = pathlib.Path(top), set(glob.glob("/dev/shm/tern-*"))
    for ranks, call, victim in ((1, 150, 0), (2, 40, 1), (2, 150, 0)):
        whole, step = from_memory(top, ranks, call, victim)
        print(f"{ranks} ranks, rank {victim} killed: on from step {step}, the same bits")
    damaged(top, whole)
    without_memory(top, whole)
    nothing_stays(top)
