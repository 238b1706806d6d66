#!/usr/bin/env python3
"""The character GPT is killed again and again, also in the middle of saving, and goes on each time: its losses, its weights and
what it prints at the end must be those of a run that nobody disturbed, bit for bit."""
import os, pathlib, random, signal, subprocess, sys, tempfile, time

root = pathlib.Path(os.environ.get("TERN_ROOT", pathlib.Path(__file__).parents[2]))
program = pathlib.Path(os.environ.get("TERN_EXAMPLE_BIN", root / "build/release/examples")) / "04_char_gpt"
STEPS = 150


def command(folder, *more):
    return [program, "--data", folder / "text", "--out", folder / "out", "--steps", str(STEPS), "--layers", "1", "--heads", "2",
            "--width", "16", "--context", "16", "--batch", "2", "--sample", "40", "--threads", "1", *more]


def run(folder, *more):
    return subprocess.run(command(folder, *more), capture_output=True, text=True, timeout=300)


def text():
    return "".join(path.read_text() for path in sorted((root / "include/tern").glob("*.h")))


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def last_lines(output):
    lines = output.splitlines()
    check(lines[-2].startswith("median ms/iter: "), output)
    check(lines[-1].startswith("validation loss: "), output)
    start = lines.index("---- a sample ----")
    return lines[start:-2] + lines[-1:]


def undisturbed(folder):
    result = run(folder)
    check(result.returncode == 0, result.stderr)
    return (folder / "out/loss.csv").read_bytes(), (folder / "out/checkpoint.safetensors").read_bytes(), last_lines(result.stdout)


def rows(folder):
    losses = folder / "out/loss.csv"
    return losses.read_bytes().count(b"\n") if losses.exists() else 0


def killed(folder, seed):
    """A save follows every step, so that many kills fall into one: each comes a random moment after 0 to 4 more steps."""
    draw = random.Random(seed)
    kills, most = 0, 0
    while True:
        with open(folder / "log", "w+") as log:
            process = subprocess.Popen(command(folder, "--save-every", "1", "--resume"), stdout=log, stderr=log)
            target = most + draw.randint(0, 4)
            while process.poll() is None and (rows(folder) < target or target >= STEPS):
                time.sleep(0.0005)
            time.sleep(draw.uniform(0, 0.01))
            process.kill()
            process.wait()
            log.seek(0)
            output = log.read()
        if process.returncode != -signal.SIGKILL:
            check(process.returncode == 0, output)
            return kills, last_lines(output)
        kills += 1
        most = max(most, rows(folder))


def interrupted(folder):
    """Ctrl-C: the step is finished, everything is saved, and the program says how to go on."""
    process = subprocess.Popen(command(folder, "--steps", "100000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "out").exists() or rows(folder) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    check(process.returncode == 0, error)
    check("stopped after step" in out and "--resume" in out.splitlines()[-1], out)
    steps = int(out.split("stopped after step ")[1].split()[0])
    check(rows(folder) == steps + 1, "rows of the losses")


def other_options(folder):
    """What does not fit the checkpoint is refused, and nothing is touched."""
    before = (folder / "out/loss.csv").read_bytes(), (folder / "out/checkpoint.safetensors").read_bytes()
    for more in (["--width", "32"], ["--batch", "3"], ["--lr", "0.5"], ["--seed", "5"], ["--layers", "2"]):
        result = run(folder, "--resume", *more)
        check(result.returncode == 1 and "checkpoint_load" in result.stderr, f"{more}: {result.stderr}")
    after = (folder / "out/loss.csv").read_bytes(), (folder / "out/checkpoint.safetensors").read_bytes()
    check(before == after, "a refused run has changed files")


with tempfile.TemporaryDirectory() as top:
    folders = [pathlib.Path(top) / name for name in ("undisturbed", "killed", "interrupted")]
    for folder in folders:
        folder.mkdir()
        (folder / "text").write_text(text())
    losses, checkpoint, printed = undisturbed(folders[0])
    kills, printed_after = killed(folders[1], seed=1)
    check((folders[1] / "out/loss.csv").read_bytes() == losses, "the losses differ")
    check((folders[1] / "out/checkpoint.safetensors").read_bytes() == checkpoint, "the checkpoints differ")
    check(printed_after == printed, f"the results differ: {printed} {printed_after}")
    check(kills >= 30, f"only {kills} kills")
    check(len(losses.splitlines()) == STEPS + 1, "rows of the losses")
    interrupted(folders[2])
    other_options(folders[0])
    print(f"{kills} kills, {STEPS} steps, the same bits")
